"""One bit of a file that we wrote changes: it is said, or nothing that the file gives has changed."""

import dataclasses
import json
import random
import shutil
import warnings

import fakes
import numpy as np
import pytest
import torch
from good_folders import WORDS, make_tokenizer
from torch import nn

import pluribus as pb
from pluribus._common.signed_files import check_digest, read_checkpoint_file
from pluribus.data.catalogue import load
from pluribus.deploy.predictor import DISTANCE, RECORD, WEIGHTS, load_predictor, make_predictor
from pluribus.landscape.checkpoints import Trajectory, state_dict_of
from pluribus.landscape.common.points import _File
from pluribus.models.by_name import ModelSpec
from pluribus.report.claims import ClaimVerdict
from pluribus.reproduce.parts import Context, Part, read_part, write_part
from pluribus.reproduce.registry import CLAIMS
from pluribus.reproduce.running import read_verdicts, write_verdict
from pluribus.results.judgements import HOLDS
from pluribus.results.store import read, write
from pluribus.study.folder import _claim, read_study
from pluribus.study.grid import Study
from pluribus.study.progress import MARK, progress_callback, read_progress
from pluribus.workflows.aligning import write_network

FLIPS = 200

ROWS = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 96), nn.ReLU(), nn.Linear(96, 3))


def _weights(folder):
    pb.save(pb.packed(network(), 2, example=ROWS), folder / "file")
    return lambda: pb.load(folder / "file", network())(ROWS)


def _trained_folder(name):
    def write_folder(folder):
        spec = ModelSpec("mlp", (4,), 3, width=0.05)
        torch.manual_seed(0)
        make_predictor(spec, load("iris"), pb.deep(spec.build(), 2), risk=0.9).save(folder / "sent")
        (folder / "file").symlink_to(folder / "sent" / name)

        def answers():
            predictor = load_predictor(folder / "sent")
            return predictor.record, predictor.ensemble(ROWS)

        return answers

    return write_folder


def _distance(folder):
    """What `upgrade` keeps of the training rows, to say which rows are unfamiliar."""
    spec, data = ModelSpec("mlp", (4,), 3, width=0.05), load("iris")
    torch.manual_seed(0)
    network, x = spec.build(), data.train[:][0]
    found = pb.feature_distance(network, (x, data.train.y), neighbours=3)
    predictor = make_predictor(spec, data, pb.single(network), risk=0.9)
    predictor.record["distance"] = {"kind": found.kind, "head": found.head, "neighbours": 3, "limit": 1.0}
    dataclasses.replace(predictor, distance=found).save(folder / "sent")
    (folder / "file").symlink_to(folder / "sent" / DISTANCE)
    return lambda: load_predictor(folder / "sent").distance.reference


def _checkpoint(folder):
    fit = {"epochs": 2, "batch_size": 8, "folder": folder / "training"}
    pb.fit(pb.deep(network(), 2), (ROWS, torch.arange(16) % 3), **fit)
    shutil.copy(folder / "training" / "last.ckpt", folder / "file")
    return lambda: (read_checkpoint_file(folder / "file"), check_digest(folder / "file", note=True))


def _trajectory(folder):
    run = Trajectory(network(), torch.randn(2, 771), {}, [0, 1], None, None, "classification", None)
    run.save(folder / "file")
    return lambda: (Trajectory.load(folder / "file", network()).weights, Trajectory.load(folder / "file", network())[0])


def _aligned(folder):
    write_network(folder / "x.safetensors", network())
    (folder / "file").symlink_to(folder / "x.safetensors")
    return lambda: state_dict_of(folder / "x.safetensors")


def _result(folder):
    run = fakes.classification("deep", examples=20, pictures=False)
    write(folder / "file", run.record, run.columns)
    return lambda: (read(folder / "file").record, read(folder / "file").columns)


def _study(folder):
    study = Study(data=["iris"], methods=["single"])
    _claim(study, folder, study._own(), "")
    (folder / "file").symlink_to(folder / "study.json")
    return lambda: read_study(folder).to_json()


def _part(folder):
    part = Part("a", {"seed": 1})
    write_part(folder / "file", "exact", part, {"nll": 0.25}, {"rows": np.arange(40.0)}, 1.5)
    return lambda: vars(read_part(folder / "file", "exact", part))


def _verdict(folder):
    found = ClaimVerdict(HOLDS, ["It does."], ["a", "b"], [["1", "2"]])
    write_verdict(CLAIMS["packed/table10"], Context("smoke", folder), found, 1.5, "pluribus reproduce")
    (folder / "file").symlink_to(next((folder / "verdicts").iterdir()))
    return lambda: read_verdicts(folder)


def _points(folder):
    file, values, done = _File(folder / "file", "mark"), np.random.rand(40, 2), np.zeros(40, bool)
    file.write(values, ~done)
    return lambda: file.read("surface", values, done)


def _progress(folder):
    progress_callback(folder, 12.5).on_train_epoch_end(type("Trainer", (), {"current_epoch": 3, "max_epochs": 9}), None)
    (folder / "file").symlink_to(folder / MARK)

    def progress():
        if (found := read_progress(folder)) is None:
            raise ValueError("it counts as missing")
        return found

    return progress


def _shared(name):
    def write_folder(folder):
        transformers = pytest.importorskip("transformers")
        from pluribus.integrations.huggingface import EnsembleForSequenceClassification as Shared

        sizes = {"vocab_size": len(WORDS), "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
        config = transformers.BertConfig(intermediate_size=8, num_labels=3, **sizes)
        torch.manual_seed(0)
        ensemble = pb.multihead(transformers.BertForSequenceClassification(config), 2)
        Shared(ensemble, make_tokenizer(12)).save_pretrained(folder / "sent")
        (folder / "file").symlink_to(folder / "sent" / name)

        def answers():
            model = Shared.from_pretrained(folder / "sent").eval()
            tokens = model.tokenizer("good film bad")["input_ids"]
            return tokens, model(input_ids=torch.tensor([tokens])).logits, model.config.to_dict()

        return answers

    return write_folder


def _language_model(name):
    def write_folder(folder):
        transformers = pytest.importorskip("transformers")
        from pluribus.integrations.huggingface import EnsembleForCausalLM

        special = {"bos_token_id": 0, "eos_token_id": 1}
        config = transformers.GPT2Config(vocab_size=12, n_embd=8, n_layer=1, n_head=2, n_positions=16, **special)
        tokenizer = make_tokenizer(16)
        tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }} was said.{% endfor %}"
        ensemble = pb.deep(transformers.GPT2LMHeadModel(config), 2)
        EnsembleForCausalLM(ensemble, tokenizer).save_pretrained(folder / "sent")
        (folder / "file").symlink_to(folder / "sent" / name)

        def answers():
            model = EnsembleForCausalLM.from_pretrained(folder / "sent")
            return model.generation_config.to_dict(), model.tokenizer.chat_template

        return answers

    return write_folder


KINDS = {
    "what pb.save wrote": _weights,
    "the weights of a trained folder": _trained_folder(WEIGHTS),
    "the record of a trained folder": _trained_folder(RECORD),
    "the distances of a trained folder": _distance,
    "a checkpoint of training": _checkpoint,
    "a trajectory": _trajectory,
    "an aligned network": _aligned,
    "a result of a study": _result,
    "a study": _study,
    "a part of a reproduced claim": _part,
    "a verdict": _verdict,
    "points of a surface": _points,
    "the progress of a run": _progress,
    "the weights of a Hub folder": _shared("ensemble.safetensors"),
    "the configuration of a Hub folder": _shared("config.json"),
    "the tokenizer of a Hub folder": _shared("tokenizer.json"),
    "the digests of a Hub folder": _shared("digests.json"),
    "how a language model of a Hub folder generates": _language_model("generation_config.json"),
    "how a language model of a Hub folder talks": _language_model("chat_template.jinja"),
}


def alike(one, other):
    """Whether two answers are equal to the bit."""
    if isinstance(one, nn.Module):
        one, other = one.state_dict(), other.state_dict()
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, torch.Tensor):
        one, other = one.detach().numpy(), other.detach().numpy()
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    return type(one) is type(other) and (one == other or one != one)


SLOW = "the weights of a Hub folder"  # each time a model of transformers is built


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind == SLOW)) for kind in KINDS])
def test_no_bit_changes_what_a_file_gives_without_a_word(kind, tmp_path):
    give = KINDS[kind](tmp_path)
    before, path, chance = give(), (tmp_path / "file").resolve(), random.Random(0)
    content, silent, found = path.read_bytes(), [], 0
    for _ in range(FLIPS):
        bit = chance.randrange(8 * len(content))
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        path.unlink()  # a mapped file keeps its bytes
        path.write_bytes(changed)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                if not alike(give(), before):
                    silent.append(bit)
        except Exception as error:
            assert str(error)
            found += 1
    assert silent == []
    assert found > FLIPS / 2  # most bits matter


# ---------------------------------------------------------------- whole commands, and files of earlier versions


def flip(path, bit):
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.unlink()
    path.write_bytes(content)


def test_training_does_not_go_on_from_a_checkpoint_that_changed(tmp_path):
    data, settings = (ROWS, torch.arange(16) % 3), {"batch_size": 8, "schedule": "constant", "seed": 0}
    whole, stopped = pb.deep(network(), 2), pb.deep(network(), 2)
    pb.fit(whole, data, epochs=4, **settings)
    pb.fit(stopped, data, epochs=2, folder=tmp_path, **settings)
    name = next(name for name, _ in stopped.module.named_parameters())
    stored = read_checkpoint_file(tmp_path / "last.ckpt")["state_dict"]
    value = next(t for key, t in stored.items() if key.endswith(name)).numpy().tobytes()[:64]
    flip(tmp_path / "last.ckpt", 8 * (tmp_path / "last.ckpt").read_bytes().index(value) + 21)
    with pytest.warns(UserWarning, match=r"last\.ckpt.*has changed since it was written.*starts from the beginning"):
        pb.fit(again := pb.deep(network(), 2), data, epochs=4, folder=tmp_path, **settings)
    assert alike(again.module, whole.module)


UNSLOTTED = ("the weights", "the configuration", "the tokenizer", "how a language model", "an aligned network")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.startswith(UNSLOTTED)])
def test_a_file_of_an_earlier_version_is_read_with_a_note(kind, tmp_path):
    give = KINDS[kind](tmp_path)
    before, path = give(), (tmp_path / "file").resolve()
    content = path.read_bytes()
    path.unlink()
    if content.startswith(b"{"):
        path.write_text(json.dumps({key: value for key, value in json.loads(content).items() if key != "digest"}))
    else:
        path.write_bytes(content.replace(b'digest"', b'earlie"', 1))
    with pytest.warns(UserWarning, match="by an earlier version, without a digest"):
        assert alike(give(), before)


def test_a_command_says_once_in_a_line_that_a_file_is_of_an_earlier_version(pluribus, tmp_path):
    _trained_folder(WEIGHTS)(tmp_path)
    for path in (tmp_path / "sent").iterdir():
        path.write_bytes(path.read_bytes().replace(b'digest"', b'earlie"', 1))
    (tmp_path / "rows.csv").write_text(
        "sepal length (cm),sepal width (cm),petal length (cm),petal width (cm)\n5,3,1,0\n"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        code, _, said = pluribus("predict", "sent", "rows.csv")
    assert code == 0 and said.count("warning: ") == said.count("earlier version") == 2 and "Warning" not in said


def test_a_hub_folder_of_an_earlier_version_is_read_with_a_note(tmp_path):
    give = KINDS["the digests of a Hub folder"](tmp_path)
    before = give()
    (tmp_path / "sent" / "digests.json").unlink()
    with pytest.warns(UserWarning, match="by an earlier version, without a digest"):
        assert alike(give(), before)


def test_a_record_that_was_changed_on_purpose_says_how_to_be_read(tmp_path):
    give = KINDS["the record of a trained folder"](tmp_path)
    path = tmp_path / "sent" / RECORD
    path.write_text(path.read_text().replace('"setosa"', '"iris setosa"'))
    with pytest.raises(ValueError, match='delete its entry "digest"'):
        give()


def test_blocks_that_changed_places_are_noticed(tmp_path):
    ensemble = pb.single(nn.Linear(2**15, 4))
    pb.save(ensemble, tmp_path / "file")
    content = bytearray((tmp_path / "file").read_bytes())
    for distance in (2**12, 2**15, 2**18):
        changed, at = bytearray(content), len(content) - 2**19
        changed[at : at + 4096], changed[at + distance : at + distance + 4096] = (
            content[at + distance : at + distance + 4096], content[at : at + 4096],
        )  # fmt: skip
        (tmp_path / "changed").write_bytes(changed)
        with pytest.raises(ValueError, match="has changed since it was written"):
            pb.load(tmp_path / "changed", nn.Linear(2**15, 4))
