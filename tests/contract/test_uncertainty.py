"""What every function on predictions promises: the same answer in any form of its input, or an error that says why."""

import math
import pickle
import threading

import numpy as np
import pytest
import torch

import pluribus as pb
from pluribus.uncertainty.metrics import METRICS

ROWS = 60


def classes():
    g = torch.Generator().manual_seed(0)
    return torch.randn(2, ROWS, 4, generator=g), torch.randint(4, (ROWS,), generator=g)


def numbers():
    g = torch.Generator().manual_seed(0)
    return torch.randn(3, ROWS, generator=g), torch.randn(ROWS, generator=g)


LOGITS, LABELS = classes()
MEANS, VALUES = numbers()


def classification(logits=LOGITS):
    return pb.Classification.from_logits(logits)


def regression(means=MEANS):
    return pb.Regression(means, 0.1 + torch.as_tensor(means, dtype=torch.float32).square())


def numbers_of(result):
    """Everything that a result says, as one flat list of numbers."""
    if isinstance(result, dict):
        return [n for value in result.values() for n in numbers_of(value)]
    if isinstance(result, (tuple, list)):
        return [n for value in result for n in numbers_of(value)]
    return torch.as_tensor(result).double().flatten().tolist()


def conformal_sets(prediction, target):
    fitted = pb.conformal(prediction, target, 0.8)
    return [fitted.sets(prediction), fitted.measure(prediction, target), fitted.quantile]


def conformal_intervals(prediction, target):
    fitted = pb.conformal(prediction, target, 0.8)
    return [*fitted.intervals(prediction), fitted.measure(prediction, target)]


def abstention(prediction, target):
    found = pb.abstain(prediction, target, risk=0.9)
    return [found.value, found.coverage, found.bound, found.keep(prediction)]


CLASS_FUNCTIONS = {
    "evaluate": lambda p, y: pb.evaluate(p, y),
    "by_member": lambda p, y: pb.by_member(p, y),
    "bootstrap": lambda p, y: pb.bootstrap(p, y, resamples=5),
    "compare": lambda p, y: pb.compare(p, p.member(0), y, resamples=5),
    "calibrate": lambda p, y: pb.calibrate(p, y, method="isotonic", folds=2).apply(p).mean,
    "conformal": conformal_sets,
    "abstain": abstention,
}

NUMBER_FUNCTIONS = {
    "evaluate": lambda p, y: pb.evaluate(p, y),
    "bootstrap": lambda p, y: pb.bootstrap(p, y, metric="rmse", resamples=5),
    "compare": lambda p, y: pb.compare(p, p.member(0), y, metric="rmse", resamples=5),
    "calibrate": lambda p, y: pb.calibrate(p, y).apply(p).total,
    "conformal": conformal_intervals,
}

WITHOUT_TARGETS = [CLASS_FUNCTIONS["evaluate"], CLASS_FUNCTIONS["by_member"], NUMBER_FUNCTIONS["evaluate"]]

CASES = [
    *((function, classification, LOGITS, LABELS) for function in CLASS_FUNCTIONS.values()),
    *((function, regression, MEANS, VALUES) for function in NUMBER_FUNCTIONS.values()),
]

NAMES = [*(f"{name} classes" for name in CLASS_FUNCTIONS), *(f"{name} numbers" for name in NUMBER_FUNCTIONS)]


def read_only(tensor):
    array = tensor.numpy().copy()
    array.setflags(write=False)
    return array


TARGETS = {
    "list": lambda t: t.tolist(),
    "tuple": lambda t: tuple(t.tolist()),
    "array": lambda t: t.numpy(),
    "array that may not be written": read_only,
    "array of the other byte order": lambda t: t.numpy().astype(t.numpy().dtype.newbyteorder(">")),
    "list of tensors": list,
    "not contiguous": lambda t: torch.stack([t, t], 1)[:, 0],
    "column": lambda t: t[:, None],
    "requires grad": lambda t: t.double().requires_grad_(),
}

OUTPUTS = {
    "requires grad": lambda t: t.clone().requires_grad_(),
    "not contiguous": lambda t: torch.stack([t, t], -1)[..., 0],
    "array": lambda t: t.numpy(),
    "double": lambda t: t.double(),
}


@pytest.mark.parametrize("form", TARGETS)
@pytest.mark.parametrize(("function", "make", "outputs", "target"), CASES, ids=NAMES)
def test_targets_may_come_in_any_form(function, make, outputs, target, form):
    expected = numbers_of(function(make(outputs), target))
    assert numbers_of(function(make(outputs), TARGETS[form](target))) == pytest.approx(expected, rel=1e-5, nan_ok=True)


@pytest.mark.parametrize("form", OUTPUTS)
@pytest.mark.parametrize(("function", "make", "outputs", "target"), CASES, ids=NAMES)
def test_predictions_may_come_in_any_form(function, make, outputs, target, form):
    expected = numbers_of(function(make(outputs), target))
    assert numbers_of(function(make(OUTPUTS[form](outputs)), target)) == pytest.approx(
        expected, rel=1e-4, abs=1e-5, nan_ok=True
    )


@pytest.mark.parametrize("form", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("function", "make", "outputs", "target"), CASES, ids=NAMES)
def test_half_precision_is_judged_in_single(function, make, outputs, target, form):
    half = outputs.to(form)
    assert numbers_of(function(make(half), target)) == numbers_of(function(make(half.float()), target))


@pytest.mark.parametrize(
    "bad", [[], [math.nan] * ROWS, [math.inf] * ROWS, ["cat"] * ROWS, [[1, 2], [3]], None, "cat", [1] * (ROWS - 1)]
)
@pytest.mark.parametrize(("function", "make", "outputs", "target"), CASES, ids=NAMES)
def test_bad_targets_are_an_error_with_a_reason(function, make, outputs, target, bad):
    if bad is None and function in WITHOUT_TARGETS:
        pytest.skip("what needs no targets is judged without them")
    with pytest.raises((ValueError, TypeError)) as caught:
        function(make(outputs), bad)
    assert ":" in str(caught.value) or "numbers" in str(caught.value)


@pytest.mark.parametrize(("function", "make", "outputs", "target"), CASES, ids=NAMES)
def test_one_row_has_an_answer_or_an_error_with_a_reason(function, make, outputs, target):
    try:
        found = function(make(outputs[:, :1]), target[:1])
    except ValueError as error:
        assert "examples" in str(error) or "folds" in str(error)
    else:
        found = found[0] if hasattr(found, "low") else found  # resamples of one row are alike: no interval is known
        assert not any(math.isnan(number) for number in numbers_of([found]))


# ---------------------------------------------------------------- infinite likelihoods


def impossible(first, second, rows=(0,)):
    """Two predictions of which the first holds the targets of some rows impossible."""
    p = torch.full((1, ROWS, 2), 0.5)
    p[0, list(rows)] = torch.tensor([1.0, 0.0])
    q = p if second is None else torch.full((1, ROWS, 2), second)
    return pb.Classification.from_probabilities(p), pb.Classification.from_probabilities(q), torch.ones(ROWS).long()


def test_equal_predictions_do_not_differ_however_bad_they_are():
    one, two, target = impossible(1.0, None)
    difference, low, high, p_value = pb.compare(one, two, target, metric="nll", resamples=50)
    assert difference == 0 and math.isnan(low) and math.isnan(high) and p_value == 1


@pytest.mark.parametrize("count", [1, 3, 12])
def test_an_infinite_difference_is_as_probable_as_all_impossible_targets_on_one_side(count):
    one, two, target = impossible(1.0, 0.5, range(count))
    found = pb.compare(one, two, target, metric="nll", resamples=2000)
    assert found.difference == found.high == math.inf and not math.isnan(found.low)
    assert found.p_value == pytest.approx(2 ** (1 - count), abs=0.03)  # the permutation test in closed form
    assert pb.compare(two, one, target, metric="nll", resamples=50).difference == -math.inf


def test_unlike_predictions_that_are_both_infinitely_bad_are_refused():
    one, _, target = impossible(1.0, None, (0,))
    other, _, _ = impossible(1.0, None, (3,))
    with pytest.raises(ValueError, match=r"compare: nll must be finite.*inf and inf.*brier"):
        pb.compare(one, other, target, metric="nll")


def test_an_infinite_nll_has_an_interval_without_an_upper_end():
    one, _, target = impossible(1.0, None)
    found = pb.bootstrap(one, target, metric="nll", resamples=200)
    assert found.value == found.high == math.inf
    assert found.low == pytest.approx(math.log(2))  # the row is missing in one of e resamples


@pytest.mark.parametrize(
    "metric", [n for n, m in METRICS.items() if m.task == "classification" and "class_bins" not in m.needs]
)
def test_no_metric_of_saturated_predictions_has_a_nan_end(metric):
    one, two, target = impossible(1.0, 0.5, (0, 1))
    ends = (
        pb.bootstrap(one, target, metric=metric, resamples=20),
        pb.compare(one, two, target, metric=metric, resamples=20),
    )
    for value, low, high, *_ in ends:  # what is the same in every resample has no interval
        assert not math.isnan(value) and math.isnan(low) == math.isnan(high)


# ---------------------------------------------------------------- the outer forms of an ensemble


def test_randomised_sets_survive_copies_and_threads():
    fitted = pb.conformal(classification(), LABELS, 0.8, "aps", randomise=True)
    again = pickle.loads(pickle.dumps(fitted))
    assert torch.equal(fitted.sets(classification()), again.sets(classification()))
    draws, threads = (
        [],
        [threading.Thread(target=lambda: draws.append(fitted.sets(classification()))) for _ in range(8)],
    )
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sizes = [draw.sum().item() for draw in draws]
    assert len(draws) == 8 and np.std(sizes) > 0


def test_torchmetric_says_how_to_get_torchmetrics(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "torchmetrics", None)
    monkeypatch.delitem(sys.modules, "pluribus.integrations.torchmetrics", raising=False)
    with pytest.raises(ImportError, match=r"pb.torchmetric needs torchmetrics.*pip install '\.\[metrics\]'"):
        pb.torchmetric("accuracy")
