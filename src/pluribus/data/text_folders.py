"""A folder of transformers that nobody vouches for: looked at before transformers reads it, and nothing in it is run.

transformers reads JSON with pickles and code left aside where it is told to; it does not ask how large a network is
that a configuration claims, waits for pipes, and takes kernels and other folders from wherever a file says.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from .._common.optional import require
from .._common.untrusted import LONGEST_JSON, check_shape, open_file, read_json, shorten_value
from .unpacking import check_claim

OFFLINE: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
CONFIG, TOKENIZER = "config.json", "tokenizer_config.json"
ADAPTER, INDEX = "adapter_config.json", "model.safetensors.index.json"
READ = (".json", ".txt", ".model", ".jinja", ".safetensors")  # what transformers may open

SHAPE = {
    "model_type?": str,
    "architectures?": (None, [str]),
    "vocab_size?": int,
    "max_position_embeddings?": int,
    "pad_token_id?": (None, int),
    "num_labels?": int,
    "id2label?": (None, {str: str}),
}

COUNTS = re.compile(r"layer|block|expert|depth|stage|^num_|^n_")  # so many parts are built one after the other
SIZES = re.compile(r"size$|position|ctx|embd|token|vocab|bucket|inner|words|label")
MOST_PARTS, MOST_LABELS, LARGEST = 1024, 100_000, 2**31

Given = TypeVar("Given")


def read_config(folder: str | Path) -> Any:
    """The configuration in a folder of transformers, after the folder was looked at."""
    return _read(folder, "AutoConfig")


def read_tokenizer(folder: str | Path) -> Any:
    """The tokenizer in a folder of transformers, after the folder was looked at."""
    return _read(folder, "AutoTokenizer")


def _read(folder: str | Path, kind: str) -> Any:
    transformers = require("transformers", "reading texts", "huggingface")
    check_text_folder(Path(folder))
    return quietly(lambda: getattr(transformers, kind).from_pretrained(folder, **OFFLINE))


def read_text_classifier(folder: str | Path, config: Any) -> Any:
    """The network with its weights, after its size was counted; a head that the folder lacks is drawn."""
    kind = require("transformers", "reading texts", "huggingface").AutoModelForSequenceClassification
    check_claimed_size(Path(folder), config)
    return quietly(lambda: kind.from_pretrained(folder, config=config, use_safetensors=True, **OFFLINE))


def build_text_classifier(config: Any, kind: str = "SequenceClassification") -> Any:
    """The network that a configuration describes, with weights drawn at random."""
    auto = getattr(require("transformers", "reading texts", "huggingface"), f"AutoModelFor{kind}")
    return quietly(lambda: auto.from_config(config, trust_remote_code=False))


def check_claimed_size(folder: Path, config: Any, kind: str = "SequenceClassification") -> None:
    """Refuse a network that is much larger than the weights beside its configuration, before it is built."""
    torch = require("torch", "reading texts", "huggingface")
    with torch.device("meta"):
        claimed = sum(tensor.nbytes for tensor in build_text_classifier(config, kind).state_dict().values())
    there = sum(path.stat().st_size for path in folder.glob("*.safetensors") if path.is_file())
    check_claim(f"{CONFIG} claims a network", claimed, there)


def quietly(read: Callable[[], Given]) -> Given:
    """What `read` gives; whatever transformers raises is a `ValueError`, and what it would say beside is not shown."""
    with _silence():
        try:
            return read()
        except BaseException as error:  # transformers raises errors of many kinds
            if not is_error(error):
                raise
            said = " ".join(str(error).split()) or type(error).__name__
            raise ValueError(said[:300].rstrip(".")) from None


def is_error(error: BaseException) -> bool:
    """Whether it is an error and not Ctrl-C: what goes wrong in the tokenizers' Rust code is neither by its class."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


@contextmanager
def _silence() -> Iterator[None]:
    logger = logging.getLogger("transformers")
    bars = require("transformers.utils.logging", "reading texts", "huggingface")
    level, drawn = logger.level, bars.is_progress_bar_enabled()
    logger.setLevel(logging.CRITICAL)
    bars.disable_progress_bar()
    try:
        yield
    finally:
        logger.setLevel(level)
        if drawn:
            bars.enable_progress_bar()


# ---------------------------------------------------------------- what a folder must be


def check_text_folder(folder: Path) -> None:
    """Refuse a folder with files that are none, JSON that is none, kernels, adapters or a network without bounds."""
    try:
        for path in sorted(folder.iterdir()):
            if path.suffix in READ:
                _check_file(path)
        if (folder / ADAPTER).exists():
            raise ValueError(
                f"{ADAPTER} needs a network from elsewhere. Merge the adapter into its network (peft: "
                "merge_and_unload) and save that"
            )
        _check_config(read_json(folder / CONFIG))
        if (folder / TOKENIZER).exists():
            _check_tokenizer(read_json(folder / TOKENIZER))
        if (folder / INDEX).exists():
            _check_index(read_json(folder / INDEX), folder)
    except RecursionError:
        raise ValueError("one of its files is nested too deeply") from None


def _check_file(path: Path) -> None:
    try:
        with open_file(path) as file:
            if path.suffix != ".safetensors" and file.seek(0, 2) > LONGEST_JSON:
                raise ValueError(f"it is longer than {LONGEST_JSON // 2**20} MB")
        if path.suffix == ".json":
            read_json(path)
    except (ValueError, OSError) as error:
        said = str(error).removeprefix(f"{path}: ").rstrip(".")
        raise ValueError(f"{path.name}: {said}") from None


def _check_config(config: Any) -> None:
    check_shape(config, SHAPE, CONFIG)
    if config.get("quantization_config"):
        raise ValueError(f"{CONFIG}: quantized weights cannot be trained. Save the network without quantization")
    for name, value in _entries(config):
        if "implementation" in name and "/" in str(value):
            raise ValueError(
                f"{CONFIG}: {name} {shorten_value(value)} would be fetched and run; only built-in ones are"
            )
        if isinstance(value, int) and not isinstance(value, bool):
            most = MOST_LABELS if name == "num_labels" else LARGEST
            most = MOST_PARTS if COUNTS.search(name) and not SIZES.search(name) else most
            if abs(value) > most:
                raise ValueError(f"{CONFIG}: {name} is {shorten_value(value)}, of {most:,} at most")
    if not 1 <= config.get("max_position_embeddings", 1) or not 1 <= config.get("vocab_size", 1):
        raise ValueError(f"{CONFIG}: max_position_embeddings and vocab_size must be at least 1")
    if not 0 <= (config.get("pad_token_id") or 0) < config.get("vocab_size", LARGEST):
        raise ValueError(f"{CONFIG}: pad_token_id {config['pad_token_id']} is not one of its tokens")


def _check_tokenizer(settings: Any) -> None:
    check_shape(settings, {str: Any}, TOKENIZER)
    most = settings.get("model_max_length", 1)  # often a whole number of 31 digits, for as many as one likes
    if not isinstance(most, int | float) or not most >= 1:
        raise ValueError(f"{TOKENIZER}: model_max_length must be a number of at least 1, but is {shorten_value(most)}")


def _check_index(index: Any, folder: Path) -> None:
    check_shape(index, {"weight_map": {str: str}}, INDEX)
    for name in set(index["weight_map"].values()):
        if Path(name).name != name or not name.endswith(".safetensors") or not (folder / name).is_file():
            raise ValueError(f"{INDEX}: {shorten_value(name)} is not a safetensors file in the folder")


def _entries(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every value at any depth with the name that it has where it stands."""
    yield name, value
    pairs = [(name, one) for one in value] if isinstance(value, list) else []
    for key, one in value.items() if isinstance(value, dict) else pairs:
        yield from _entries(one, str(key))
