"""Folders of transformers that mean harm, each spoiled by a function: see `hostile_folders.py`."""

import json
import os
import struct
from pathlib import Path

import torch
from hostile import TEXTS, Trap, header_of, with_header
from hostile_folders import IN_PLACE, Spoil, entries, header, nested, put, text


def _remote(name: str, **values) -> Spoil:
    """Code in the folder, which an `auto_map` asks for."""

    def spoil(folder: Path, canary: Path) -> None:
        (folder / "evil.py").write_text(f"import pathlib; pathlib.Path({str(canary)!r}).touch()\n")
        entries(name, **values)(folder, canary)

    return spoil


def _pickled_weights(folder: Path, canary: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"weight": Trap(canary)}, folder / "pytorch_model.bin")


def _pickled_adapter(folder: Path, canary: Path) -> None:
    text("adapter_config.json", '{"base_model_name_or_path": "bert", "peft_type": "LORA", "r": 2}')(folder, canary)
    torch.save({"weight": Trap(canary)}, folder / "adapter_model.bin")


def _pattern(pattern: object) -> Spoil:
    """A tokenizer that splits texts by a regular expression, and a text for it."""

    def spoil(folder: Path, canary: Path) -> None:
        split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        entries("tokenizer.json", pre_tokenizer=split)(folder, canary)
        with open(folder.parent / "reviews.csv", "a") as file:
            file.write(f"{'a' * 40}b,1\n")

    return spoil


def _index(**weights: str) -> Spoil:
    """Weights in several files, as an index says."""

    def spoil(folder: Path, canary: Path) -> None:
        names = [one for one in header_of(folder / "model.safetensors")[0] if one != "__metadata__"]
        (folder / "model.safetensors").unlink()
        torch.save({"weight": Trap(canary)}, folder / "part.bin")
        os.mkfifo(folder / "pipe.safetensors")
        told = dict.fromkeys(names, weights["all"]) if "all" in weights else weights
        index = {"metadata": {"total_size": 1}, "weight_map": told}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    return spoil


CONFIGS = [
    {"num_hidden_layers": 10**9}, {"hidden_size": 10**9}, {"hidden_size": 7}, {"vocab_size": 10**12}, {"vocab_size": 5},
    {"max_position_embeddings": -3}, {"max_position_embeddings": 10**12}, {"pad_token_id": 10**30},
    {"pad_token_id": [0]}, {"model_type": "nothing"}, {"model_type": "vit"}, {"model_type": "../bert"},
    {"architectures": ["BertForSequenceClassification"], "id2label": 3}, {"architectures": nested(900)},
    {"dtype": "system"}, {"hidden_act": "os.system"}, {"quantization_config": {"quant_method": "gptq", "bits": 4}},
    {"intermediate_size": -1}, {"num_labels": 10**9}, {"kernel": {"attn_implementation": "someone/kernels"}},
    {"num_hash_functions": 10**9}, {"num_attention_heads": 0},
]  # fmt: skip

TEXT_FOLDERS: dict[str, Spoil] = {
    **{f"a config that is {name}": text("config.json", told) for name, told in TEXTS.items() if name != "a key twice"},
    **{f"a config with {config}": entries("config.json", **config) for config in CONFIGS},
    **{
        f"{what} in place of {name}": put(name, make)
        for what, make in IN_PLACE.items()
        for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
        if (what, name) not in [("nothing", "tokenizer_config.json"), ("a link to nothing", "tokenizer_config.json")]
    },
    **{f"a tokenizer that is {name}": text("tokenizer.json", told) for name, told in TEXTS.items()},
    **{
        f"settings of a tokenizer that are {name}": text("tokenizer_config.json", told)
        for name, told in TEXTS.items() if name != "a key twice"
    },
    "a network with code of its own": _remote(
        "config.json", model_type="evil",
        auto_map={"AutoConfig": "evil.Config", "AutoModelForSequenceClassification": "evil.Model"},
    ),
    "a network of transformers with code beside it": _remote(
        "config.json", architectures=["BertForSequenceClassification"], vocab_size="x",
        auto_map={"AutoConfig": "evil.Config", "AutoModelForSequenceClassification": "evil.Model"},
    ),
    "attention with code of its own": _remote("config.json", _attn_implementation="someone/kernels"),
    "attention that is unknown": entries("config.json", attn_implementation="someone/kernels"),
    "an adapter": text("adapter_config.json", '{"base_model_name_or_path": "/nowhere", "peft_type": "LORA"}'),
    "an adapter that asks for a module": text(
        "adapter_config.json",
        '{"base_model_name_or_path": "bert", "peft_type": "LORA", "auto_mapping": {"parent_library": "antigravity"}}',
    ),
    "an adapter that is a list": text("adapter_config.json", "[]"),
    "an adapter whose weights are a pickle": _pickled_adapter,
    "a tokenizer whose pattern is a number": _pattern(3),
    "weights that are a pickle": _pickled_weights,
    "an index of pickles": _index(all="part.bin"),
    "an index of a pipe": _index(all="pipe.safetensors"),
    "an index of files elsewhere": _index(all="../../../../etc/passwd"),
    "an index of nothing": _index(),
    "an index of numbers": _index(weight=3),
    "weights of another shape": header(name="model.safetensors", dtype="F32", shape=[1, 1]),
    "weights cut off": lambda f, c: os.truncate(f / "model.safetensors", 900),
    "weights whose header is brackets": lambda f, c: with_header(f / "model.safetensors", b"[" * 10**6, b""),
    "weights whose header is longer than the file": lambda f, c: (
        (f / "model.safetensors").write_bytes(struct.pack("<Q", 2**40))
    ),
}  # fmt: skip
