"""Whatever stands in a file that we read, the reader gives a value or a message."""

import contextlib
import json
import shutil

import numpy as np
import pytest
import torch
from good_folders import make_bert
from hostile import header_of, npy, npz, with_header
from hostile_folders import rewrite
from hostile_texts import TEXT_FOLDERS
from hypothesis import given, settings
from hypothesis import strategies as st
from mutations import FUZZ, mutations, value_or_message
from torch import nn

import pluribus as pb
from pluribus.data import texts
from pluribus.data.imagenet_variants import _read as read_list
from pluribus.data.source import Request
from pluribus.landscape.common.points import _File
from pluribus.models.by_name import build_network
from pluribus.report.claims import Claim, ClaimVerdict
from pluribus.reproduce.parts import Context, InParts, Part, part_path
from pluribus.reproduce.running import collect, reproduce_claim
from pluribus.results.judgements import HOLDS
from pluribus.study.folder import _check_folder, _claim
from pluribus.study.grid import Study
from pluribus.study.progress import MARK, read_progress
from pluribus.study.settings import Run
from pluribus.study.trained_weights import read_weights
from pluribus.workflows.predictor_training import claim

SOME = settings(FUZZ, max_examples=40)


def test_any_verdict_gives_a_page_or_a_message(tmp_path):
    good = {"item": "packed/table10", "scale": "smoke", "judgement": HOLDS, "found": ["It does."], "header": ["a", "b"]}
    good |= {"rows": [["1", "2"]], "seconds": 1.5, "command": "pluribus reproduce"}
    (tmp_path / "verdicts").mkdir()

    @SOME
    @given(mutations(good))
    def check(changed):
        rewrite(tmp_path / "verdicts" / "x.json", changed)
        value_or_message(lambda: collect(tmp_path))

    check()


def test_any_stored_part_gives_a_verdict_or_a_message(tmp_path):
    def judge(item, found):
        mean = sum(part.figures["value"] / len(part.columns["rows"]) for part in found.values())
        return ClaimVerdict(HOLDS, [f"{mean:.3f}"], ["value"], [[f"{mean:.2f}"]])

    experiment = InParts(
        "two", lambda scale: [Part("a", {"value": 1}), Part("b", {"value": 2})],
        lambda part, data, needed: ({"value": part.settings["value"], "list": [1, {"x": 2.5}]}, {"rows": np.ones(3)}),
    )  # fmt: skip
    item = Claim("packed", "table10", "T", "It does.", experiment=experiment, check=judge)
    reproduce_claim(item, Context("smoke", tmp_path))
    path = part_path(tmp_path / "two-smoke", Part("a"))
    with np.load(path) as stored:
        record = json.loads(str(stored["record"]))

    @SOME
    @given(mutations(record), st.sampled_from([{}, {"rows": npy(np.zeros(0))}, {"rows": npy(np.array(1.0))}]))
    def check(changed, columns):
        npz(path, record=npy(np.array(json.dumps(changed))), **{"rows": npy(np.ones(3)), **columns})
        value_or_message(lambda: reproduce_claim(item, Context("smoke", tmp_path)))

    check()


def test_any_figures_of_points_are_taken_up_or_refused(tmp_path):
    file, values, done = _File(tmp_path / "x.npz", "mark"), np.zeros((4, 2)), np.zeros(4, bool)
    file.write(values, done)
    arrays = [values, done, np.array("mark"), np.zeros((2, 2)), np.array(3), np.array(["a"] * 4), np.zeros(4, "M8[s]")]

    @SOME
    @given(*[st.sampled_from(arrays)] * 3, st.sets(st.sampled_from(["values", "done", "fingerprint"]), max_size=1))
    def check(first, second, third, absent):
        found = {"values": first, "done": second, "fingerprint": third}
        npz(tmp_path / "x.npz", **{name: npy(array) for name, array in found.items() if name not in absent})
        value_or_message(lambda: file.read("surface", values, done))

    check()


@pytest.mark.parametrize("end", ["safetensors", "pt"])
def test_any_checkpoint_to_align_gives_a_network_or_a_message(tmp_path, end):
    from safetensors.torch import save_file

    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    path = tmp_path / f"x.{end}"
    save_file(model.state_dict(), tmp_path / "good")
    header, rest = header_of(tmp_path / "good")
    tensors = {name: tensor.tolist() for name, tensor in model.state_dict().items()}

    @SOME
    @given(mutations(header if end == "safetensors" else {"state_dict": tensors, "epoch": 3}))
    def check(changed):
        if end == "safetensors":
            with_header(path, changed, rest)
        else:
            torch.save(_with_tensors(changed), path)
        value_or_message(lambda: read_weights("align", path, model)(torch.zeros(2, 3)))

    check()


def _with_tensors(value):
    """Lists of numbers as tensors, where they can be."""
    if isinstance(value, dict):
        return {name: _with_tensors(one) for name, one in value.items()}
    with contextlib.suppress(ValueError, TypeError, RuntimeError, OverflowError):
        return torch.tensor(value)
    return value


def test_any_study_is_claimed_or_refused(tmp_path):
    study = Study(data=["iris"], methods=["single"])
    _claim(study, tmp_path, study._own(), "")
    good = json.loads((tmp_path / "study.json").read_text())

    @SOME
    @given(mutations(good))
    def check(changed):
        rewrite(tmp_path / "study.json", changed)
        value_or_message(lambda: _check_folder(study, tmp_path))

    check()


@pytest.mark.parametrize("place", ["training/run.json", "bundle.json"])
def test_any_record_of_a_training_is_claimed_or_refused(tmp_path, place):
    run = Run(data="iris")
    claim(run, tmp_path)
    good = json.loads((tmp_path / "training" / "run.json").read_text())

    @SOME
    @given(mutations(good if place != "bundle.json" else {"run": good}))
    def check(changed):
        rewrite(tmp_path / place, changed)
        value_or_message(lambda: claim(run, tmp_path))

    check()


@SOME
@given(st.one_of(st.binary(max_size=100), mutations({"epoch": 2, "epochs": 3, "seconds": 1.5})))
def test_any_progress_is_one_or_none(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("progress")
    (folder / MARK).write_bytes(content) if isinstance(content, bytes) else rewrite(folder / MARK, content)
    found = read_progress(folder)
    assert found is None or 0 <= found.epoch <= found.epochs and 0 <= found.seconds < float("inf")


def test_any_list_of_frames_is_read_or_refused(tmp_path):
    request = Request("imagenet_vid_robust", "", tmp_path)
    shape = {str: [str]}

    @SOME
    @given(mutations({"a.jpg": ["b.jpg", "c.jpg"], "d.jpg": []}))
    def check(changed):
        (tmp_path / "x.json").write_text(json.dumps(changed))
        value_or_message(lambda: read_list(request, tmp_path, "x.json", shape))

    check()


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    pytest.importorskip("transformers")
    place = tmp_path_factory.mktemp("texts")
    make_bert(place)
    return place / "bert"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
def test_any_file_of_transformers_gives_a_network_and_tokens_or_a_message(bert, tmp_path, name):
    shutil.copytree(bert, tmp_path / "bert")
    good = json.loads((bert / name).read_text())

    @settings(FUZZ, max_examples=30)
    @given(mutations(good))
    def check(changed):
        (tmp_path / "bert" / name).write_text(json.dumps(changed))
        texts._tokenizer.cache_clear()
        value_or_message(lambda: texts.most_tokens(str(tmp_path / "bert")))
        value_or_message(lambda: build_network(f"hf:{tmp_path / 'bert'}", (8,), 2)(torch.tensor([[2, 4, 3, 0]])))

    check()
    texts._tokenizer.cache_clear()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*without a digest")
@pytest.mark.parametrize("name", list(TEXT_FOLDERS)[::9])
def test_a_spoiled_ensemble_of_transformers_is_refused(bert, tmp_path, name):
    huggingface = pytest.importorskip("pluribus.integrations.huggingface")
    shutil.copytree(bert, tmp_path / "bert")
    (tmp_path / "reviews.csv").touch()
    network = build_network(f"hf:{bert}", (8,), 2).network
    pb.save(pb.multihead(network, 2), tmp_path / "bert" / huggingface.WEIGHTS, whole=True)
    TEXT_FOLDERS[name](tmp_path / "bert", tmp_path / "canary")
    value_or_message(lambda: huggingface.EnsembleForSequenceClassification.from_pretrained(tmp_path / "bert"))
    assert not (tmp_path / "canary").exists()


@pytest.mark.slow
def test_a_pattern_that_a_tokenizer_gives_up_on_gives_a_message(bert, tmp_path):
    shutil.copytree(bert, tmp_path / "bert")
    told = json.loads((bert / "tokenizer.json").read_text())
    told["pre_tokenizer"] = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    (tmp_path / "bert" / "tokenizer.json").write_text(json.dumps(told))
    with pytest.raises(ValueError, match="reads no texts"):
        texts._tokenize(str(tmp_path / "bert"), ["a" * 60 + "b"])
