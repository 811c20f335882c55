"""Sets, intervals and thresholds keep what they promise, over many repetitions; a loop gives the same sets."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import pluribus as pb
from pluribus.uncertainty.abstention import abstain, upper_bound
from pluribus.uncertainty.calibration import calibrate
from pluribus.uncertainty.conformal_prediction import INTERVALS, SETS, conformal


def classified(examples, seed, classes=6):
    """A model that is wrong in a known way: too sure, and with noise."""
    g = torch.Generator().manual_seed(seed)
    true = 1.5 * torch.randn(examples, classes, generator=g)
    target = torch.multinomial(true.softmax(-1), 1, generator=g)[:, 0]
    logits = 3 * true + torch.randn(2, examples, classes, generator=g)
    return pb.Classification.from_logits(logits), target


def regressed(examples, seed, variances=True):
    """A model whose mean is biased and whose variances are too small."""
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(examples, generator=g)
    target = x + (0.1 + x) * torch.randn(examples, generator=g)
    means = 1.2 * x + 0.1 * torch.randn(3, examples, generator=g)
    return pb.Regression(means, (0.05 + 0.3 * x).expand(3, -1) if variances else None), target


def part(prediction, rows):
    if isinstance(prediction, pb.Classification):
        return pb.Classification.from_logits(prediction.logits[:, rows])
    return pb.Regression(
        prediction.means[:, rows], None if prediction.variances is None else prediction.variances[:, rows]
    )


# ---------------------------------------------------------------- coverage


@pytest.mark.parametrize(
    ("kind", "randomise"),
    [("lac", False), ("aps", False), ("aps", True), ("raps", False), ("raps", True)],
)
@pytest.mark.parametrize("coverage", [0.8, 0.95])
@pytest.mark.slow
def test_sets_hold_the_truth_as_often_as_promised(kind, randomise, coverage):
    check_coverage(classified, coverage, kind, randomise=randomise, penalty=0.05, free=2, empty=True)


@pytest.mark.parametrize("kind", list(INTERVALS))
@pytest.mark.parametrize("coverage", [0.8, 0.95])
def test_intervals_hold_the_truth_as_often_as_promised(kind, coverage):
    check_coverage(regressed, coverage, kind)


def check_coverage(make, coverage, kind, repetitions=300, validation=99, test=100, **options):
    """The mean over repetitions is ceil((n + 1) coverage) / (n + 1), within three of its standard errors."""
    found = []
    for seed in range(repetitions):
        prediction, target = make(validation + test, seed)
        fitted = conformal(
            part(prediction, slice(validation)), target[:validation], coverage, kind, seed=seed, **options
        )
        found.append(fitted.measure(part(prediction, slice(validation, None)), target[validation:])["coverage"])
    expected = math.ceil(round((validation + 1) * coverage, 9)) / (validation + 1)
    assert abs(np.mean(found) - expected) < 3 * np.std(found) / math.sqrt(repetitions)


# ---------------------------------------------------------------- a network that is sure of itself


def confident(examples, seed, classes=10, accuracy=0.95):
    """Logits and targets of a network that is 95 % right and nearly always sure; the truth is first or second."""
    rng = np.random.default_rng(seed)
    target, rows = rng.integers(classes, size=examples), np.arange(examples)
    wrong = rng.random(examples) > accuracy
    other = (target + rng.integers(1, classes, examples)) % classes
    logits = rng.normal(-12, 1, (examples, classes))
    logits[rows, np.where(wrong, other, target)] = 14 + rng.exponential(6, examples) - 8 * wrong * rng.random(examples)
    logits[rows, np.where(wrong, target, other)] = rng.uniform(-6, 5, examples)
    return torch.from_numpy(logits)[None], torch.from_numpy(target)


def least_ambiguous_sets(logits, target, new, coverage):
    """The sets of Sadinle et al. from sorted log probabilities, with the label where they are empty."""
    values = logits[0].log_softmax(-1).numpy()
    least = np.sort(values[np.arange(len(target)), target])[::-1][math.ceil((len(target) + 1) * coverage) - 1]
    new = new[0].log_softmax(-1).numpy()
    sets = new >= least
    sets[np.arange(len(new)), new.argmax(1)] |= ~sets.any(1)
    return sets


@pytest.mark.parametrize("coverage", [0.9, 0.95, 0.97, 0.99])
def test_the_default_gives_small_sets_with_the_coverage_asked_for_where_the_network_is_sure(coverage):
    (logits, target), (new, truth) = confident(2000, 0), confident(8000, 1)
    prediction = pb.Classification.from_logits(new)
    right = (prediction.label == truth).double().mean().item()
    assert 0.94 < right < 0.96 and prediction.confidence.median() > 0.9999
    fitted = conformal(pb.Classification.from_logits(logits), target, coverage)
    sets, found = fitted.sets(prediction), fitted.measure(prediction, truth)
    assert np.array_equal(sets.numpy(), least_ambiguous_sets(logits, target, new, coverage))
    assert found["coverage"] == pytest.approx(max(coverage, right), abs=0.012)  # two of its standard deviations
    assert sets.sum(1).min() == 1 and found["size"] < 2


@pytest.mark.parametrize("kind", list(SETS))
def test_sets_stay_small_where_probabilities_round_to_zero_and_one(kind):
    """Sure and wrong in one of five: the truth has a probability of exp(-100), which 1 - p cannot hold."""
    rng = np.random.default_rng(0)
    logits = np.tile([[200.0, 100.0, 0.0, -100.0]], (1000, 1)) + rng.normal(0, 1, (1000, 4))
    target = torch.from_numpy((rng.random(1000) < 0.2).astype(int))
    prediction = pb.Classification.from_logits(torch.from_numpy(logits[None]).float())
    found = conformal(prediction, target, 0.9, kind).measure(prediction, target)
    assert found["coverage"] >= 0.9 and found["size"] <= 2


@pytest.mark.parametrize(("kind", "randomise"), [("lac", False), ("aps", True), ("raps", True), ("aps", False)])
def test_sets_are_empty_only_if_asked_and_the_label_alone_otherwise(kind, randomise):
    prediction, target = classified(500, 3)
    plain, filled = (
        conformal(prediction, target, 0.4, kind, randomise=randomise, empty=empty).sets(prediction)
        for empty in (True, False)
    )
    none = ~plain.any(1)
    assert bool(none.any()) and torch.equal(filled[~none], plain[~none])
    assert bool((filled[none].sum(1) == 1).all())
    assert torch.equal(filled[none].double().argmax(1), prediction.label[none])


# ---------------------------------------------------------------- the sets themselves


@pytest.mark.parametrize("kind", list(SETS))
def test_sets_equal_those_of_a_loop_over_classes(kind):
    prediction, target = classified(150, 0)
    fitted = conformal(part(prediction, slice(100)), target[:100], 0.85, kind, penalty=0.07, free=2, empty=True)
    p = prediction.mean.double().numpy()

    def strange(row, c):
        if kind == "lac":
            return 1 - row[c]
        above = [row[j] for j in range(6) if row[j] > row[c]]
        penalty = 0.07 * max(0, len(above) + 1 - 2) if kind == "raps" else 0
        return sum(above) + row[c] + penalty

    scores = np.array([strange(row, c) for row, c in zip(p[:100], target[:100].tolist(), strict=True)])
    quantile = np.quantile(scores, math.ceil(101 * 0.85) / 100, method="inverted_cdf")
    assert fitted.quantile.item() == pytest.approx(quantile, abs=1e-6)
    expected = [[strange(row, c) <= quantile + 1e-9 for c in range(6)] for row in p[100:]]
    assert fitted.sets(part(prediction, slice(100, None))).tolist() == expected


def test_randomised_sets_are_smaller_and_drawn_anew_at_each_call():
    prediction, target = classified(2000, 0)
    fixed, drawn = (conformal(prediction, target, 0.9, "aps", randomise=r) for r in (False, True))
    assert drawn.sets(prediction).sum() < fixed.sets(prediction).sum()
    assert not torch.equal(drawn.sets(prediction), drawn.sets(prediction))
    assert torch.equal(fixed.sets(prediction), fixed.sets(prediction))


def test_intervals_of_one_width_are_the_mean_and_a_quantile_of_the_errors():
    prediction, target = regressed(200, 0, variances=False)
    low, high = conformal(prediction, target, 0.9, "absolute").intervals(prediction)
    width = np.quantile((target - prediction.mean).abs().numpy(), math.ceil(201 * 0.9) / 200, method="inverted_cdf")
    assert torch.allclose((high - low) / 2, torch.full((200,), float(width), dtype=torch.float64))
    assert torch.allclose((high + low) / 2, prediction.mean.double())


def test_each_of_several_outputs_has_its_own_quantile():
    prediction = pb.Regression(torch.randn(2, 100, 2))
    target = torch.randn(100, 2) * torch.tensor([1.0, 10.0])
    fitted = conformal(prediction, target, 0.9, "absolute")
    alone = conformal(pb.Regression(prediction.means[..., 1]), target[:, 1], 0.9, "absolute")
    assert fitted.quantile[1] == alone.quantile and fitted.quantile[1] > fitted.quantile[0]
    assert fitted.intervals(prediction)[0].shape == (100, 2)


def test_an_ensemble_a_calibrated_one_and_a_prediction_are_taken_alike():
    ensemble, x, y = pb.deep(nn.Linear(6, 3), 3), torch.randn(100, 6), torch.randint(3, (100,))
    calibrated = calibrate(ensemble, (x[:50], y[:50]), method="temperature")
    later = x[50:], y[50:]
    for one in (ensemble, calibrated):
        fitted = conformal(one, [later], 0.8)
        same = conformal(one.predict(x[50:]), y[50:], 0.8)
        assert torch.equal(fitted.sets(x), same.sets(one.predict(x)))
        assert fitted.measure(*later)["coverage"] >= 0.8
    assert "lac" in fitted.explain() and "0.8" in fitted.explain()
    assert str(fitted) == fitted.explain()  # what print shows


@pytest.mark.parametrize(("coverage", "needed"), [(0.9, 9), (0.95, 19), (0.99, 99), (0.5, 1)])
def test_too_few_examples_are_an_error_that_says_how_many_it_takes(coverage, needed):
    prediction, target = classified(needed, 0)
    conformal(prediction, target, coverage)
    if needed > 1:
        with pytest.raises(ValueError, match=f"at least {needed} validation examples, but there are {needed - 1}"):
            conformal(part(prediction, slice(needed - 1)), target[: needed - 1], coverage)


GOOD, TARGET = classified(100, 0)


@pytest.mark.parametrize(
    ("first", "second", "options", "words"),
    [
        (GOOD, TARGET, {"coverage": 90}, "above 0 and below 1, but it is 90"),
        (GOOD, TARGET, {"coverage": 1.0}, "below 1"),
        (GOOD, TARGET, {"kind": "normalised"}, "'normalised'.*lac, aps, raps"),
        (GOOD, TARGET, {"kind": "raps", "penalty": -1}, "negative"),
        (GOOD, TARGET, {"kind": "raps", "penalty": math.nan}, "negative.*nan"),
        (GOOD, TARGET, {"randomise": True}, 'kind is lac. Give kind="aps"'),
        (GOOD, [], {}, "shape"),
        (GOOD, torch.full((100,), math.nan), {}, "there is nan"),
        (GOOD, TARGET + 6, {}, "from 0 to 5"),
        (pb.Regression(torch.randn(2, 50)), torch.zeros(50), {"kind": "aps"}, "'aps'.*absolute"),
        (pb.Regression(torch.zeros(1, 50)), torch.zeros(50), {"kind": "normalised"}, "kind='absolute'"),
        (pb.Classification.from_logits(torch.randn(1, 9, 3, 2, 2), 2), torch.zeros(9, 2, 2), {}, "pixel"),
    ],
)
def test_bad_input_is_an_error_that_names_the_value(first, second, options, words):
    with pytest.raises(ValueError, match=words):
        conformal(first, second, **options)


# ---------------------------------------------------------------- abstaining


def answers(examples, seed, risk_of, levels=None):
    """Two classes; the score of an example is u / 2 and its label is wrong with probability risk_of(u)."""
    rng = np.random.default_rng(seed)
    u = rng.random(examples) if levels is None else rng.integers(1, levels + 1, examples) / (levels + 1)
    wrong = rng.random(examples) < risk_of(u)
    p = torch.from_numpy(1 - u / 2)
    return pb.Classification.from_probabilities(torch.stack([p, 1 - p], -1)[None]), torch.from_numpy(wrong).long()


def true_risk(value, risk_of, levels=None):
    """The error of what is kept, by integration."""
    u = np.linspace(0, 1, 100_001) if levels is None else np.arange(1, levels + 1) / (levels + 1)
    kept = u / 2 < value - 1e-12
    return risk_of(u[kept]).mean()


RISKS = {
    "rising": lambda u: 0.4 * u**2,
    "flat, just too high": lambda u: np.full_like(u, 0.055),
    "flat, exactly as asked": lambda u: np.full_like(u, 0.05),
    "worst where surest": lambda u: np.where(u < 0.3, 0.2, 0.02),
    "up and down": lambda u: 0.05 + 0.05 * np.sin(12 * u),
}


@pytest.mark.slow
@pytest.mark.parametrize("levels", [None, 7], ids=["continuous", "ties"])
@pytest.mark.parametrize("name", list(RISKS))
def test_the_risk_of_what_is_kept_is_too_high_at_most_as_often_as_allowed(name, levels):
    violations, repetitions = 0, 300
    for seed in range(repetitions):
        prediction, target = answers(1000, seed, RISKS[name], levels)
        try:
            found = abstain(prediction, target, risk=0.05, confidence=0.95)
        except ValueError:
            continue  # nothing is promised
        violations += true_risk(found.value, RISKS[name], levels) > 0.05 + 1e-9
    assert violations / repetitions <= 0.05


@pytest.mark.parametrize(("errors", "examples"), [(0, 1), (0, 299), (3, 500), (40, 5000), (499, 500), (5, 5)])
def test_the_bound_is_that_of_clopper_and_pearson(errors, examples):
    for level in (0.05, 0.0025):
        expected = stats.beta.ppf(1 - level, errors + 1, examples - errors) if errors < examples else 1.0
        assert upper_bound(errors, examples, level) == pytest.approx(expected, rel=1e-9)


def test_a_threshold_counts_what_it_says():
    prediction, target = answers(2000, 1, RISKS["rising"])
    found = abstain(prediction, target, risk=0.05, candidates=10)
    kept = found.keep(prediction)
    assert (int(kept.sum()), int(target[kept].sum())) == (found.kept, found.errors)
    assert found.coverage == found.kept / 2000
    assert found.bound == pytest.approx(
        stats.beta.ppf(1 - 0.05 / found.candidates, found.errors + 1, found.kept - found.errors)
    )
    assert found.bound <= 0.05
    assert f"{found.errors} errors" in found.explain()


def test_a_risk_that_cannot_be_reached_is_an_error_with_the_best_that_can():
    prediction, target = answers(1000, 0, lambda u: 0.2 + 0 * u)
    with pytest.raises(ValueError, match=r"lowest that can be guaranteed is (0\.\d+).*Allow risk=(0\.\d+)") as error:
        abstain(prediction, target, risk=0.05)
    allowed = float(str(error.value).split("Allow risk=")[1].split(",")[0])
    assert abstain(prediction, target, risk=allowed).bound <= allowed


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"risk": 0.01}, "at least 299 validation examples, but there are 100"),
        ({"risk": 0}, "risk must be above 0"),
        ({"confidence": 95}, "confidence must be above 0 and below 1, but it is 95"),
        ({"score": "msp2"}, "msp2"),
        ({"score": torch.zeros(7)}, r"\(7,\)"),
        ({"score": torch.full((100,), math.nan)}, "100 are not finite"),
    ],
)
def test_abstaining_on_bad_input_is_an_error_that_names_the_value(options, words):
    with pytest.raises(ValueError, match=words):
        abstain(GOOD, TARGET, **{"risk": 0.5, **options})
