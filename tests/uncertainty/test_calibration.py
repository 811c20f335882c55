"""Calibration of whole ensembles, against scipy, scikit-learn and held-out data."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, special
from sklearn.isotonic import IsotonicRegression
from torch import nn

import pluribus as pb
from pluribus.uncertainty.calibration import calibrate
from pluribus.uncertainty.calibration_maps import (
    CALIBRATIONS,
    fit_increasing,
    fit_isotonic,
    fit_temperature,
    fit_vector,
)


def overconfident(examples=2000, members=3, factor=3.0, noise=0.5, classes=5, seed=0):
    """Members whose logits are `factor` times those that made the labels, plus noise of their own."""
    g = torch.Generator().manual_seed(seed)
    true = 2 * torch.randn(examples, classes, generator=g)
    target = torch.multinomial(true.softmax(-1), 1, generator=g)[:, 0]
    logits = factor * (true + noise * torch.randn(members, examples, classes, generator=g))
    return pb.Classification.from_logits(logits), target


def pooled_nll(log_p, target):
    """By the definition, in numpy: log_p is (members, examples, classes), not normalised."""
    own = log_p - special.logsumexp(log_p, -1, keepdims=True)
    pooled = special.logsumexp(own, 0) - math.log(len(log_p))
    return -pooled[np.arange(len(target)), target].mean()


def loss(prediction, target):
    return -prediction.log_mean.gather(1, target[:, None]).double().mean().item()


# ---------------------------------------------------------------- each scaling


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("members", [1, 3])
def test_temperature_is_the_minimum_that_scipy_finds(members, seed):
    prediction, target = overconfident(300, members, factor=[0.2, 1, 4, 30][seed], seed=seed)
    log_p, labels = prediction.log_members.double(), target.numpy()
    best = optimize.minimize_scalar(
        lambda s: pooled_nll(log_p.numpy() * math.exp(s), labels), bounds=(-7, 3), method="bounded",
        options={"xatol": 1e-9},
    )  # fmt: skip
    assert fit_temperature(log_p, target).value == pytest.approx(math.exp(-best.x), rel=1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_no_other_temperature_is_better_where_members_make_more_than_one_valley(seed):
    g = torch.Generator().manual_seed(seed)
    log_p = (
        (10 ** (3 * torch.rand(4, 60, 1, generator=g)) * torch.randn(4, 60, 3, generator=g)).log_softmax(-1).double()
    )
    target = torch.randint(3, (60,), generator=g)
    others = [pooled_nll(log_p.numpy() * s, target.numpy()) for s in np.geomspace(1e-4, 20, 500)]
    found = fit_temperature(log_p, target).value
    assert pooled_nll(log_p.numpy() / found, target.numpy()) <= min(others) + 1e-9


@pytest.mark.parametrize("seed", range(5))
def test_temperature_after_pooling_never_changes_the_label(seed):
    prediction, target = overconfident(500, 4, factor=[0.1, 1, 3, 10, 100][seed], seed=seed)
    calibrated = calibrate(prediction, target, method="temperature", when="after").apply(prediction)
    assert torch.equal(calibrated.label, prediction.label)


def test_vector_scaling_is_the_minimum_that_scipy_finds():
    prediction, target = overconfident(400, 2, classes=3)
    log_p, labels = prediction.log_members.double(), target.numpy()
    centre = 1 / fit_temperature(log_p, target).value

    def objective(v):
        prior = (((v[:3] - centre) ** 2).sum() + (v[3:] ** 2).sum()) / (2 * len(labels))
        return pooled_nll(log_p.numpy() * v[:3] + v[3:], labels) + prior

    best = optimize.minimize(objective, np.r_[np.full(3, centre), np.zeros(3)], tol=1e-10)
    found = fit_vector(log_p, target)
    assert torch.cat([found.weights, found.biases]).numpy() == pytest.approx(best.x, abs=1e-4)
    assert objective(torch.cat([found.weights, found.biases]).numpy()) == pytest.approx(best.fun, abs=1e-9)


def test_vector_scaling_keeps_a_class_possible_that_the_validation_data_lack():
    prediction, target = overconfident(400, 2, classes=3)
    some = target != 2
    few = pb.Classification.from_logits(prediction.logits[:, some])
    assert fit_vector(few.log_members, target[some]).biases.abs().max() < 20


@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9, 1.0]) | st.floats(0, 1), st.booleans()),
        min_size=1,
        max_size=60,
    )
)
def test_increasing_equals_isotonic_regression_of_scikit_learn(pairs):
    x, y = np.array([a for a, _ in pairs]), np.array([float(b) for _, b in pairs])
    knots, values = fit_increasing(x, y)
    reference = IsotonicRegression(out_of_bounds="clip").fit(x, y)
    at = np.concatenate([x, np.linspace(-0.1, 1.1, 50)])
    scale = np.abs(reference.predict(at) - np.interp(at, knots, values))
    gaps = np.diff(np.unique(x))
    if not len(gaps) or gaps.min() > 1e-9:  # closer than that scikit-learn takes values for equal
        assert scale.max() < 1e-9


def test_isotonic_is_one_against_rest_of_scikit_learn_renormalised():
    prediction, target = overconfident(500, 3)
    scaled = fit_isotonic(prediction.log_members, target)(prediction.log_members)
    p = prediction.log_members.double().exp().flatten(0, 1).numpy()
    labels = target.repeat(3).numpy()
    columns = [IsotonicRegression().fit(p[:, c], labels == c).predict(p[:, c]) for c in range(5)]
    mixed = np.stack(columns, -1) * (500 / 501) + p / 501
    expected = (mixed / mixed.sum(-1, keepdims=True)).reshape(3, 500, 5)
    assert scaled.exp().numpy() == pytest.approx(expected, abs=1e-9)


def test_isotonic_gives_no_class_the_probability_zero():
    prediction, target = overconfident(300, 2)
    new, _ = overconfident(5000, 2, seed=1)
    calibrated = calibrate(prediction, target, method="isotonic", when="before").apply(new)
    assert calibrated.log_members.isfinite().all()


# ---------------------------------------------------------------- choosing


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("method", [m for m in CALIBRATIONS if m != "none"])
def test_calibration_lowers_nll_and_ece_of_an_overconfident_ensemble_on_new_data(method, when):
    prediction, target = overconfident(2000, 3)
    new, truth = overconfident(5000, 3, seed=1)
    calibrated = calibrate(prediction, target, method=method, when=when).apply(new)
    assert loss(calibrated, truth) < loss(new, truth) - 0.3
    ece = [gap(p, truth) for p in (calibrated, new)]
    assert ece[0] < ece[1] / 3


def gap(prediction, target):
    """ECE by a loop over 15 bins."""
    confidence, right = prediction.confidence.double(), (prediction.label == target).double()
    total = 0.0
    for low in range(15):
        inside = (confidence > low / 15) & (confidence <= (low + 1) / 15)
        total += abs((confidence[inside] - right[inside]).sum().item())
    return total / len(target)


def test_the_table_holds_every_candidate_and_the_best_is_chosen():
    prediction, target = overconfident(500, 3)
    found = calibrate(prediction, target)
    assert {(row["method"], row["when"]) for row in found.table} == {("none", "")} | {
        (m, w) for m in CALIBRATIONS if m != "none" for w in ("before", "after")
    }
    assert (found.method, found.when) == (found.table[0]["method"], found.table[0]["when"])
    assert [row["nll"] for row in found.table] == sorted(row["nll"] for row in found.table)


def test_held_out_figures_come_from_fits_without_the_example():
    prediction, target = overconfident(60, 2)
    row = calibrate(prediction, target, method="temperature", when="after", folds=60).table[0]  # leave one out
    nll, log_p = [], prediction.log_mean[None].double()
    for i in range(60):
        rest = torch.arange(60) != i
        scaled = fit_temperature(log_p[:, rest], target[rest])(log_p[0, i])
        nll.append(-scaled[target[i]].item())
    assert row["nll"] == pytest.approx(np.mean(nll), rel=1e-6)
    without = loss(prediction, target)
    assert row["gain"] == pytest.approx(without - np.mean(nll), rel=1e-5)


def test_table_gives_the_ece_and_the_standard_error_of_the_gain():
    prediction, target = overconfident(400, 3)
    found = calibrate(prediction, target, method="none")
    assert found.table[0]["ece"] == pytest.approx(gap(prediction, target), abs=1e-6)
    assert found.apply(prediction) is prediction
    better = calibrate(prediction, target, method="temperature", when="after").table[0]
    assert 0 < better["gain_error"] < better["gain"]


def test_before_pooling_keeps_the_members_and_after_gives_one():
    prediction, target = overconfident(300, 3)
    before, after = (
        calibrate(prediction, target, method="vector", when=w).apply(prediction) for w in ("before", "after")
    )
    assert before.log_members.shape == (3, 300, 5) and before.epistemic.max() > 0.01
    assert after.log_members.shape == (1, 300, 5) and after.epistemic.abs().max() < 1e-6


@pytest.mark.parametrize("when", ["before", "after"])
def test_probabilities_of_exactly_zero_and_one_are_calibrated(when):
    certain = torch.eye(3)[torch.randint(3, (2, 200))]
    found = calibrate(pb.Classification.from_probabilities(certain), torch.randint(3, (200,)), when=when)
    assert all(math.isfinite(row["nll"]) for row in found.table)
    assert found.apply(pb.Classification.from_probabilities(certain)).mean.max() < 0.9


def test_energy_is_refused_where_only_calibrated_log_probabilities_are_left():
    prediction, target = overconfident(300, 3)
    with pytest.raises(ValueError, match="logits"):
        calibrate(prediction, target, method="vector").apply(prediction).score("energy")
    scaled = calibrate(prediction, target, method="temperature", when="before")
    expected = pb.Classification.from_logits(prediction.logits / scaled.scaling.value).score("energy")
    assert torch.allclose(scaled.apply(prediction).score("energy"), expected)


# ---------------------------------------------------------------- what validation data may be


class Shuffled:
    """A loader that gives another order each time."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __iter__(self):
        for part in torch.randperm(len(self.x)).split(7):
            yield [self.x[part], self.y[part]]


def test_every_form_of_validation_data_gives_the_same():
    ensemble, x, y = pb.deep(nn.Linear(6, 3), 3), torch.randn(100, 6), torch.randint(3, (100,))
    prediction = ensemble.predict(x)
    found = [
        calibrate(ensemble, (x, y), method="vector", when="before"),
        calibrate(ensemble, (x.numpy(), y.numpy()), method="vector", when="before", batch_size=9),
        calibrate(ensemble, [(x[:50], y[:50]), (x[50:], y[50:])], method="vector", when="before"),
        calibrate(ensemble, Shuffled(x, y), method="vector", when="before"),
        calibrate(ensemble, (prediction, y), method="vector", when="before"),
        calibrate(prediction, y, method="vector", when="before"),
    ]
    for one in found:
        assert torch.allclose(one.scaling.weights, found[0].scaling.weights, atol=1e-4)
        assert torch.allclose(one.apply(prediction).mean, found[0].apply(prediction).mean, atol=1e-5)
    assert torch.allclose(found[0].predict(x, batch_size=11).mean, found[0].apply(prediction).mean, atol=1e-6)


def test_binary_ensembles_are_calibrated():
    ensemble = pb.deep(nn.Linear(4, 1), 3)
    ensemble.task = "binary"
    x, y = 20 * torch.randn(400, 4), torch.randint(2, (400, 1)).float()
    found = calibrate(ensemble, (x, y), method="temperature")
    assert found.predict(x).mean.shape == (400, 2)
    assert loss(found.predict(x), y[:, 0].long()) == pytest.approx(math.log(2), abs=0.01)  # labels are coins


@pytest.mark.parametrize("method", ["temperature", "vector", "isotonic"])
def test_dense_outputs_are_calibrated_pixel_by_pixel(method):
    flat, target = overconfident(20 * 12, 2, classes=3)
    dense = pb.Classification.from_logits(flat.logits.unflatten(1, (20, 3, 4)).movedim(-1, 2), class_dim=2)
    first = calibrate(flat, target, method=method, when="after").apply(flat).mean
    second = calibrate(dense, target.view(20, 3, 4), method=method, when="after").apply(dense).mean
    assert second.shape == (20, 3, 3, 4)
    assert torch.allclose(second.movedim(1, -1).flatten(0, 2), first, atol=1e-5)


def test_pixels_of_one_image_stay_in_one_fold():
    one_image = 4 * torch.randn(1, 10, 3, 1, 1)
    dense = pb.Classification.from_logits(one_image.expand(1, 10, 3, 5, 5), class_dim=2)
    target = torch.randint(3, (10, 1, 1))
    single = pb.Classification.from_logits(one_image[..., 0, 0])
    many = calibrate(dense, target.expand(10, 5, 5), folds=10, method="temperature").table
    one = calibrate(single, target[:, 0, 0], folds=10, method="temperature").table
    assert many[0]["nll"] == pytest.approx(one[0]["nll"], rel=1e-5)
    assert many[0]["gain_error"] == pytest.approx(one[0]["gain_error"], rel=1e-4)


# ---------------------------------------------------------------- regression


def test_variance_factor_is_the_minimum_that_scipy_finds_and_parts_stay_a_sum():
    prediction = pb.Regression(torch.randn(3, 200, dtype=torch.float64), 0.1 + torch.rand(3, 200, dtype=torch.float64))
    target = 2 * torch.randn(200, dtype=torch.float64)

    def objective(s):
        normal = torch.distributions.Normal(prediction.mean, (prediction.total * math.exp(s)).sqrt())
        return -normal.log_prob(target).mean().item()

    best = optimize.minimize_scalar(objective, bounds=(-5, 5), method="bounded", options={"xatol": 1e-10})
    found = calibrate(prediction, target)
    assert found.scaling.factor == pytest.approx(math.exp(best.x), rel=1e-6)
    scaled = found.apply(prediction)
    assert torch.allclose(scaled.mean, prediction.mean)
    assert torch.allclose(scaled.total, found.scaling.factor * prediction.total)
    assert torch.allclose(scaled.total, scaled.aleatoric + scaled.epistemic)
    assert "variance" in found.explain()


def test_held_out_nll_of_a_regression_comes_from_factors_without_the_example():
    prediction, target = pb.Regression(torch.randn(3, 20), torch.rand(3, 20) + 0.1), 2 * torch.randn(20)
    table = {row["method"]: row["nll"] for row in calibrate(prediction, target, folds=20).table}  # leave one out
    squares, nll = (target - prediction.mean).square() / prediction.total, []
    for i in range(20):
        scale = (prediction.total[i] * squares[torch.arange(20) != i].mean()).sqrt()
        nll.append(-torch.distributions.Normal(prediction.mean[i], scale).log_prob(target[i]).item())
    assert table["variance"] == pytest.approx(np.mean(nll), rel=1e-5)


# ---------------------------------------------------------------- bad input

GOOD, TARGET = overconfident(30, 2, classes=3)


@pytest.mark.parametrize(
    ("first", "second", "options", "words"),
    [
        (GOOD, TARGET[:20], {}, r"\(30,\).*\(20,\)"),
        (GOOD, torch.eye(3)[TARGET], {}, "one-hot"),
        (GOOD, TARGET + 1, {}, "from 0 to 2, but at .* there is 3"),
        (GOOD, TARGET - 100, {}, "-100|-9"),
        (GOOD, TARGET + 0.5, {}, r"class numbers.*\.5"),
        (GOOD, TARGET, {"method": "platt"}, "'platt'.*temperature"),
        (GOOD, TARGET, {"when": "during"}, "'during'.*before"),
        (GOOD, TARGET, {"folds": 1}, "between 2 and.*30, but it is 1"),
        (GOOD, TARGET, {"folds": 31}, "it is 31"),
        (GOOD, TARGET, {"method": "variance"}, "'variance'"),
        (pb.Classification(GOOD.log_members * math.nan), TARGET, {}, "member 0 gives NaN in row 0"),
        (pb.Regression(torch.zeros(1, 5)), torch.zeros(5), {}, "variance above zero"),
        (pb.Regression(torch.randn(2, 5)), torch.zeros(4), {}, r"\(5,\).*\(4,\)"),
        (pb.Regression(torch.randn(2, 5)), torch.full((5,), math.nan), {}, "targets must be finite"),
        (pb.Regression(torch.randn(2, 5)), torch.zeros(5), {"method": "vector"}, "'vector'.*variance"),
    ],
)
def test_bad_input_is_an_error_that_names_the_value(first, second, options, words):
    with pytest.raises(ValueError, match=words):
        calibrate(first, second, **options)


def test_validation_data_without_targets_are_refused():
    ensemble = pb.single(nn.Linear(6, 3))
    x = torch.randn(10, 6)
    for validation in (x, (x, x, x), 3, torch.utils.data.TensorDataset(x, x), [x]):
        with pytest.raises(TypeError, match="calibrate"):
            calibrate(ensemble, validation)
