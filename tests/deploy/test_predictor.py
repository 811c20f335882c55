"""A predictor abstains by what its validation data can promise, and its exported file says what it takes and gives."""

import json

import numpy as np
import pytest
import scipy.stats
import torch
import torch.nn.functional as F
from scipy.optimize import minimize_scalar
from torch import nn

import pluribus as pb
from pluribus.data.catalogue import load
from pluribus.deploy.predictor import load_predictor, make_predictor
from pluribus.deploy.promises import Evidence, find_scale, find_threshold
from pluribus.models.by_name import ModelSpec


def predictions(rows: int, skill: float, seed: int = 0) -> tuple[pb.Classification, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = skill * torch.randn(1, rows, 3, generator=generator)
    target = torch.multinomial(logits[0].softmax(-1), 1, generator=generator)[:, 0]
    return pb.Classification.from_logits(logits), target


def evidence(prediction: pb.Classification, target: torch.Tensor) -> Evidence:
    truth = -prediction.mean.gather(1, target[:, None])[:, 0].double()
    return Evidence("lac", truth, None, prediction.score("msp").double(), (prediction.label != target).long())


def test_where_the_risk_can_be_promised_it_is():
    found = find_threshold(evidence(*predictions(4000, 4.0)), 0.05)
    assert found["threshold"]["risk"] == 0.05 and "no_threshold" not in found


def test_too_few_rows_fall_back_to_the_best_risk_that_can_be_promised_and_say_how_many_rows_it_takes():
    prediction, target = predictions(80, 4.0)
    found = find_threshold(evidence(prediction, target), None)
    threshold = found["threshold"]
    assert 0.05 < threshold["risk"] <= 0.5 and threshold["kept"] > 0
    assert "80 calibration rows are too few to guarantee an error of at most 0.05" in found["no_threshold"]
    asked = find_threshold(evidence(prediction, target), 0.02)
    assert asked["threshold"] is None and asked["no_threshold"].startswith("no row is accepted")
    assert f"--risk {threshold['risk']:g} can be guaranteed" in asked["no_threshold"]
    # scipy's exact interval gives the same promise for what is kept
    level = 1 - 0.05 / threshold["candidates"]
    exact = scipy.stats.beta.ppf(level, threshold["errors"] + 1, threshold["kept"] - threshold["errors"])
    assert threshold["bound"] == pytest.approx(exact, rel=1e-6) and exact <= threshold["risk"]


def test_where_nothing_can_be_promised_there_is_no_threshold():
    assert find_threshold(evidence(*predictions(5, 4.0)), None)["threshold"] is None


@pytest.mark.slow
def test_the_promise_of_the_fallback_holds_as_often_as_it_says():
    broken = []
    for seed in range(200):
        prediction, target = predictions(120, 2.0, seed)
        found = find_threshold(evidence(prediction, target), None)["threshold"]
        if found is None:
            continue
        other, truth = predictions(4000, 2.0, 10_000 + seed)
        kept = other.score("msp") < found["value"]
        broken.append(bool(kept.any()) and float((other.label != truth)[kept].float().mean()) > found["risk"])
    assert len(broken) > 100 and np.mean(broken) <= 0.05


def test_the_exported_file_says_its_members_classes_and_inputs(tmp_path):
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    data = load("moons")
    spec = ModelSpec("mlp", (2,), 2, width=0.05)
    predictor = make_predictor(spec, data, pb.deep(spec.build(), 3))
    pb.export(*predictor.for_export(4), tmp_path / "moons.onnx")
    said = {one.key: one.value for one in onnx.load(tmp_path / "moons.onnx").metadata_props}
    assert said["pluribus.members"] == "3" and json.loads(said["pluribus.classes"]) == list(data.classes)
    assert json.loads(said["pluribus.inputs"]) == ["x", "y"] and json.loads(said["pluribus.shape"]) == [2]
    assert json.loads(said["pluribus.normalisation"])["inside"] is True


def test_the_exported_file_of_a_table_says_how_its_columns_become_inputs(tmp_path):
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    path, file = tmp_path / "people.csv", str(tmp_path / "people.onnx")
    lines = [f"{20 + i % 41},{'abc'[i % 3]},{'yes' if i % 7 < 3 else 'no'}" for i in range(120)]
    path.write_text("\n".join(["age,segment,churn", *lines]))
    data = load(f"table:{path}", target="churn")
    spec = ModelSpec("mlp", (5,), 2, width=0.05)
    predictor = make_predictor(spec, data, pb.deep(spec.build(), 3))
    pb.export(*predictor.for_export(4), file)
    said = {one.key: one.value for one in onnx.load(file).metadata_props}
    age, segment = json.loads(said["pluribus.columns"])
    row = [(33 - age["mean"]) / age["std"], *(float(level == "b") for level in segment["levels"]), 0.0]  # as it says
    session = runtime.InferenceSession(file)
    names = [one.name for one in session.get_outputs()]
    found = dict(zip(names, session.run(None, {session.get_inputs()[0].name: np.float32([row] * 4)}), strict=True))
    (tmp_path / "new.csv").write_text("age,segment\n33,b\n")
    (answer,) = predictor.answers(tmp_path / "new.csv")
    assert found["confidence"][0] == pytest.approx(answer["confidence"], abs=1e-5)
    assert json.loads(said["pluribus.classes"])[found["label"][0]] == answer["label"]
    assert "(value - mean) / std" in said["pluribus.encoding"]


def nll(logits: np.ndarray, y: np.ndarray, temperature: float) -> float:
    """By hand, for one network."""
    z = logits / temperature
    return float(np.mean(np.log(np.exp(z - z.max(1, keepdims=True)).sum(1)) + z.max(1) - z[np.arange(len(y)), y]))


def test_probabilities_are_scaled_by_the_temperature_that_scipy_finds(tmp_path):
    data = load("moons", validation=0.7)
    spec = ModelSpec("mlp", tuple(data.shape), 2)
    torch.manual_seed(0)
    network = spec.build()
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    for _ in range(20):
        optimizer.zero_grad()
        F.cross_entropy(network(data.normalise(data.train[:][0])), data.train[:][1]).backward()
        optimizer.step()
    last = [module for module in network.modules() if isinstance(module, nn.Linear)][-1]
    with torch.no_grad():
        last.weight *= 10  # far too sure of itself
        last.bias *= 10
        x, y = data.calibration[:]
        logits = network(data.normalise(x)).double().numpy()
    made = make_predictor(spec, data, pb.single(network))
    best = minimize_scalar(lambda t: nll(logits, y.numpy(), t), bounds=(0.05, 100), method="bounded").x
    assert best > 2 and made.record["scale"] == pytest.approx(best, rel=0.02)
    made.save(tmp_path)
    expected = torch.from_numpy(logits / best).softmax(1)
    found = load_predictor(tmp_path).predict_batch(x)
    torch.testing.assert_close(found.mean.double(), expected, rtol=0, atol=0.01)
    assert made.evidence.score.numpy() == pytest.approx(1 - expected.amax(1).numpy(), abs=0.01)


def test_probabilities_that_are_right_are_left_alone():
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(300, 4, generator=generator)
    y = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    assert find_scale(pb.Classification.from_logits(logits[None]), y) is None
    assert find_scale(pb.Classification.from_logits(4 * logits[None]), y) == pytest.approx(4, rel=0.2)
    right = pb.Classification.from_probabilities(torch.tensor([[0.9, 0.1]]).repeat(1, 19, 1))
    assert find_scale(right, torch.zeros(19, dtype=torch.long)) is None  # 19 right answers make no certainty


def test_promises_change_without_training_and_are_those_of_new_ones(tmp_path):
    data = load("moons", validation=0.7)
    spec = ModelSpec("mlp", tuple(data.shape), 2)
    made = make_predictor(spec, data, pb.deep(spec.build(), 2), risk=0.95, coverage=0.8)
    made.save(tmp_path)
    held = data.calibration
    x = data.normalise(held[:][0])
    prediction = pb.Classification.from_logits(made.ensemble.eval()(x).detach() / (made.record["scale"] or 1.0))
    changed = load_predictor(tmp_path).promising(coverage=0.95, risk=0.97)
    expected = pb.conformal(prediction, held.y, coverage=0.95)
    assert changed.conformal.most.item() == pytest.approx(expected.most.item()) and changed.conformal.coverage == 0.95
    threshold = pb.abstain(prediction, held.y, risk=0.97)
    assert changed.threshold.value == pytest.approx(threshold.value)
    assert (changed.threshold.kept, changed.threshold.errors) == (threshold.kept, threshold.errors)
    assert made.threshold.risk == 0.95 and made.conformal.coverage == 0.8
    with pytest.raises(ValueError, match="at least 999 validation examples"):
        changed.promising(coverage=0.999)


def test_a_predictor_that_answers_as_a_cascade_does_so_when_it_is_read_and_exported(tmp_path):
    data = load("digits")
    spec = ModelSpec("mlp", data.shape, 10)
    torch.manual_seed(0)
    made = make_predictor(spec, data, pb.deep(spec.build(), 3), margin=0.3)
    made.record["cascade"]["windows"] = [[0.88, float("inf")], [0.885, float("inf")]]
    made.save(tmp_path / "folder")
    read, x = load_predictor(tmp_path / "folder"), data.test[:40][0]
    answers = read.cascade.answers(data.normalise(x))
    assert len(set(answers["members"].tolist())) > 1
    torch.testing.assert_close(read.predict_batch(x).mean, answers["mean"])
    images = (255 * x[:, 0]).round().byte().numpy()
    torch.testing.assert_close(read.predict(images).mean, answers["mean"])  # what sets are promised for
    pb.export(*read.for_export(4), tmp_path / "file.onnx")
    session = pytest.importorskip("onnxruntime").InferenceSession(tmp_path / "file.onnx")
    mean, members = session.run(["mean", "members"], {session.get_inputs()[0].name: x.numpy()})
    np.testing.assert_allclose(mean, answers["mean"], atol=1e-5)
    assert members.tolist() == answers["members"].tolist()
