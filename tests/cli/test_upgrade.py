"""`pluribus upgrade`, and studies that start from trained weights: --weights and --pretrained."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import pluribus as pb
from pluribus.cli.common.messages import next_prediction
from pluribus.deploy.predictor import load_predictor


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A multilayer perceptron that has learned 900 digits, in a file."""
    data = pb.data.load("sklearn_digits")
    x, y = data.train[:900]
    torch.manual_seed(0)
    network = pb.single(pb.models.mlp(inputs=64, num_classes=10))
    pb.fit(network, (data.normalise(x), y), epochs=4, batch_size=32)
    path = tmp_path_factory.mktemp("weights") / "mlp.safetensors"
    save_file(network.member(0).state_dict(), path)
    return path


START = ("--data", "sklearn_digits", "--model", "mlp")


def test_a_network_in_a_file_becomes_a_folder_that_predicts(pluribus, weights, tmp_path):
    ways = ("--methods", "multihead,fine_tuned", "--budget", "1", "--validation", "0.3", "--json")
    code, out, err = pluribus("upgrade", *START, "--weights", weights, "--out", "better", *ways)
    assert code == 0, err
    found = json.loads(out)
    assert [row["name"] for row in found["table"]] == ["your network", "multihead", "multihead", "your network"]
    predictor = load_predictor(tmp_path / "better")
    data = pb.data.load("sklearn_digits", validation=0.3)
    x, y = data.test[:]
    given = predictor.ensemble.predict(data.normalise(x))
    scaled, sets = predictor.calibrated.apply(given), predictor.conformal.sets(predictor.calibrated.apply(given))
    stage = [row for row in found["table"] if row["name"] == "your network"][0] if found["enough"] else None
    if stage is not None:
        assert pb.evaluate(scaled, y)["nll"] == pytest.approx(stage["figures"]["nll"], abs=1e-4)
    assert sets.gather(1, y[:, None]).float().mean() > 0.8
    # The rows that promise are kept, so that another promise needs no training.
    changed = predictor.promising(coverage=0.8, risk=0.3)
    assert (changed.conformal.coverage, changed.conformal.examples) == (0.8, found["rows"]["promise"])
    assert changed.conformal.sets(scaled).sum() <= sets.sum()
    assert changed.threshold.risk == 0.3
    # What is exported is scaled as well.
    module, _ = predictor.for_export(8, frozen=False)
    torch.testing.assert_close(module(x[:8]).log_softmax(-1), scaled.log_members[:, :8], rtol=1e-3, atol=1e-4)
    code, _, err = pluribus("upgrade", *START, "--weights", weights, "--out", "better")
    assert code == 2 and "--overwrite" in err


def test_the_next_command_names_code_that_a_folder_cannot_name():
    plain, code = ({"model": model} for model in ("mlp", "python:/my nets/net.py:build"))
    assert shlex.split(next_prediction(Path("my folder"), plain)) == ["pluribus", "predict", "my folder", "FILES"]
    words = shlex.split(next_prediction(Path("new"), code, "--coverage", "0.8"))
    assert words == ["pluribus", "predict", "new", "--model", code["model"], "--coverage", "0.8", "FILES"]


def test_a_distance_in_features_is_stored_with_the_predictor_and_decides(pluribus, weights, tmp_path):
    goal = ("--goal", "ood", "--outside", "noise", "--methods", "mahalanobis", "--budget", "0", "--validation", "0.3")
    code, out, err = pluribus("upgrade", *START, "--weights", weights, "--out", "near", *goal, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["best"] == "your network + mahalanobis, at once" and not found["enough"]
    predictor = load_predictor(tmp_path / "near")
    data = pb.data.load("sklearn_digits", validation=0.3, outside="noise")
    x, _ = data.test[:]
    expected = predictor.distance(data.normalise(x)) / predictor.record["distance"]["limit"]
    answers = list(predictor._answers(data.test, 64))
    assert [row["distance"] for row in answers] == pytest.approx(expected.tolist(), rel=1e-4)
    assert np.mean([row["distance"] > 1 for row in answers]) < 0.12
    outer = list(predictor._answers(data.outside["noise"], 64))
    assert np.mean([row["distance"] > 1 for row in outer]) > 0.9
    assert {row["decision"] for row in outer if row["distance"] > 1} == {"abstain"}
    code, _, err = pluribus("upgrade", *START, "--weights", weights, "--out", "none", "--goal", "ood")
    assert code == 2 and "Give --outside" in " ".join(err.split())


@pytest.mark.parametrize("command", ["upgrade", "train", "compare"])
def test_weights_that_do_not_fit_are_refused_by_their_names(pluribus, weights, command, tmp_path):
    narrow = ("--data", "sklearn_digits", "--model", "mlp", "--width", "0.5", "--weights", weights)
    method = {"train": ("--method", "multihead"), "compare": ("--methods", "single")}.get(command, ())
    code, _, err = pluribus(command, *narrow, *method, "--out", "new")
    said = " ".join(err.split())
    assert code == 2 and "tensors differ in shape from the model's: fc1.weight" in said and "for" in said
    assert not (tmp_path / "new" / "bundle.json").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--model", "mlp", "--pretrained"), "published weights exist only for timm:NAME"),
        (("--model", "mlp", "--weights", "nowhere.pt"), "file not found"),
        (("--weights", "mlp.safetensors"), "no --model was given"),
        (("--model", "mlp", "--weights", "a.pt", "--pretrained"), "Give one of them"),
    ],
)
def test_where_training_starts_is_said_once_and_exists(pluribus, words, message):
    code, _, err = pluribus("compare", "--data", "sklearn_digits", "--methods", "single", *words)
    assert code == 2 and message in " ".join(err.split())


def test_a_study_starts_from_the_weights(pluribus, weights):
    quick = ("--epochs", "1", "--lr", "1e-12", "--corruptions", "none", "--outside", "noise", "--json", "--jobs", "1")
    code, out, err = pluribus("compare", *START, "--weights", weights, "--methods", "single,lora", *quick)
    assert code == 0, err
    data = pb.data.load("sklearn_digits")
    network = pb.models.mlp(inputs=64, num_classes=10)
    network.load_state_dict(load_file(weights))
    x, y = data.test[:]
    expected = (network(data.normalise(x)).argmax(1) == y).float().mean().item()
    found = {row["label"]: row["accuracy"] for row in json.loads(out)["rows"]}
    labels = "single", "lora", "single + kNN", "single + Mahalanobis"
    assert found == {name: pytest.approx(expected, abs=1e-6) for name in labels}


@pytest.mark.slow
def test_published_weights_are_taken_from_the_local_cache(pluribus, monkeypatch, tmp_path):
    timm = pytest.importorskip("timm")
    constants = pytest.importorskip("huggingface_hub").constants
    torch.manual_seed(7)
    published = timm.create_model("test_resnet")  # 470,000 parameters, 1000 classes, three colours
    cached = tmp_path / "hub" / ("models--" + published.pretrained_cfg["hf_hub_id"].replace("/", "--"))
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("0" * 40)
    (snapshot := cached / "snapshots" / ("0" * 40)).mkdir(parents=True)
    save_file(published.state_dict(), snapshot / "model.safetensors")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    quick = ("--epochs", "1", "--lr", "1e-12", "--out", "here")
    begin = ("--data", "sklearn_digits", "--model", "timm:test_resnet", "--pretrained")
    code, _, err = pluribus("train", *begin, "--method", "multihead", *quick)
    assert code == 0, err
    found = load_predictor(tmp_path / "here").ensemble.member(1).state_dict()
    kept = {name: t for name, t in published.state_dict().items() if t.ndim == 4 and name in found}
    same = [name for name, t in kept.items() if t.shape == found[name].shape]
    assert len(same) == len(kept) - 1  # the first layer takes one colour here
    assert all(torch.allclose(found[name], kept[name], atol=1e-5) for name in same)
