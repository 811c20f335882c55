"""Each metric equals another library or a closed form, in any order of examples, and says no to what has no value."""

import functools
import itertools
import math

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
import torchmetrics.functional.classification as tm
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, optimize, special, stats

from pluribus import metrics
from pluribus.metrics import METRICS
from pluribus.prediction import Classification, Regression
from pluribus.summary import Summary

MEMBERS, EXAMPLES, CLASSES = 4, 500, 6
FEW = 40  # examples where the other way is slow


def classification(ties: bool = False) -> Summary:
    generator = torch.Generator().manual_seed(1)
    logits = 2 * torch.randn(MEMBERS, EXAMPLES, CLASSES, generator=generator, dtype=torch.float64)
    logits = logits.round() if ties else logits
    target = torch.where(
        torch.rand(EXAMPLES, generator=generator) < 0.6,
        logits.mean(0).argmax(-1),
        torch.randint(CLASSES, (EXAMPLES,), generator=generator),
    )
    return Summary(Classification.from_logits(logits), target)


def regression() -> Summary:
    generator = torch.Generator().manual_seed(2)
    means = torch.randn(MEMBERS, EXAMPLES, generator=generator, dtype=torch.float64)
    variances = 0.2 + torch.rand(MEMBERS, EXAMPLES, generator=generator, dtype=torch.float64)
    return Summary(Regression(means, variances), torch.randn(EXAMPLES, generator=generator, dtype=torch.float64))


def scores(ties: bool) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    inside, outside = torch.randn(300, generator=generator), 1 + torch.randn(200, generator=generator)
    return (inside.round(), outside.round()) if ties else (inside, outside)


def columns(name: str, ties: bool = False) -> list[torch.Tensor]:
    """The columns of some data that a metric needs."""
    entry = METRICS[name]
    if entry.task == "ood":
        return list(scores(ties))
    if entry.task == "shift":
        generator = torch.Generator().manual_seed(4)
        return [0.1 + torch.rand(3, 5, generator=generator, dtype=torch.float64) for _ in entry.needs]
    summary = regression() if entry.task == "regression" else classification(ties)
    return [getattr(summary, need) for need in entry.needs]


# ---------------------------------------------------------------- another way to each number


def probabilities() -> tuple[np.ndarray, np.ndarray]:
    """The ensemble's probabilities and targets, by plain means of softmax."""
    summary = classification()
    return summary._prediction.logits.softmax(-1).mean(0).numpy(), summary.target.numpy()


def binned_gap(confidence: np.ndarray, correct: np.ndarray, bins: int) -> float:
    edges, total = np.arange(bins + 1) / bins, 0.0
    for low, high in itertools.pairwise(edges):
        inside = (confidence > low) & (confidence <= high)
        total += abs((confidence[inside] - correct[inside]).sum()) / len(confidence)
    return total


def calibration_error(norm: str) -> float:
    p, y = (torch.tensor(values) for values in probabilities())
    return tm.multiclass_calibration_error(p, y, CLASSES, n_bins=15, norm=norm).item()


def adaptive_ece() -> float:
    p, y = probabilities()
    order = p.max(1).argsort()
    gap = (p.max(1) - (p.argmax(1) == y))[order]
    edges = [i * len(y) // 15 for i in range(16)]
    return sum(abs(gap[a:b].sum()) for a, b in itertools.pairwise(edges)) / len(y)


def classwise_ece() -> float:
    p, y = probabilities()
    return np.mean([binned_gap(p[:, c], (y == c).astype(float), 15) for c in range(CLASSES)])


def selective(number) -> float:
    p, y = probabilities()
    order = p.max(1).argsort()[::-1]
    wrong = (p.argmax(1) != y)[order].astype(float)
    return number([wrong[: k + 1].mean() for k in range(len(y))], np.sort(wrong))


def member_labels() -> np.ndarray:
    return classification()._prediction.logits.argmax(-1).numpy()


def pairs_apart() -> float:
    labels = member_labels()
    return np.mean([np.mean(labels[i] != labels[j]) for i, j in itertools.combinations(range(MEMBERS), 2)])


def with_base() -> float:
    labels, (_, y) = member_labels(), probabilities()
    return np.mean([np.mean(labels[j] != labels[0]) / np.mean(labels[j] != y) for j in range(1, MEMBERS)])


def pairwise_kl() -> float:
    p = classification()._prediction.logits.softmax(-1).numpy()
    return np.mean([stats.entropy(p[i], p[j], axis=1) for i, j in itertools.permutations(range(MEMBERS), 2)])


def mean_entropy(of_members: bool) -> float:
    p = classification()._prediction.logits.softmax(-1).numpy()
    return stats.entropy(p if of_members else p.mean(0), axis=-1).mean()


def detection(reference) -> float:
    inside, outside = (s.numpy() for s in scores(False))
    return reference(np.r_[np.zeros(len(inside)), np.ones(len(outside))], np.r_[inside, outside])


def false_positives(truth: np.ndarray, score: np.ndarray) -> float:
    false, true, _ = sk.roc_curve(truth, score, drop_intermediate=False)
    return false[true >= 0.95].min()


@functools.cache
def mixture() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    p, y = regression()._prediction, regression().target
    return p.means.numpy(), p.variances.sqrt().numpy(), y.numpy()


def mixture_cdf(x: float, i: int) -> float:
    means, deviations, _ = mixture()
    return special.ndtr((x - means[:, i]) / deviations[:, i]).mean()


def crps_by_integration() -> float:
    total = 0.0
    for i, y in enumerate(mixture()[2][:FEW]):
        total += integrate.quad(lambda x, i=i: mixture_cdf(x, i) ** 2, -12, y, epsabs=1e-9)[0]
        total += integrate.quad(lambda x, i=i: (1 - mixture_cdf(x, i)) ** 2, y, 12, epsabs=1e-9)[0]
    return total / FEW


@functools.cache
def interval() -> tuple[np.ndarray, np.ndarray]:
    """Where the mixture's distribution function is 0.05 and 0.95."""
    ends = [
        [optimize.brentq(lambda x, i=i, q=q: mixture_cdf(x, i) - q, -20, 20, xtol=1e-12) for i in range(FEW)]
        for q in (0.05, 0.95)
    ]
    return np.array(ends[0]), np.array(ends[1])


def interval_coverage() -> float:
    (low, high), y = interval(), mixture()[2][:FEW]
    return np.mean((low <= y) & (y <= high))


def quantile_gap() -> float:
    means, deviations, y = mixture()
    u = stats.norm.cdf(y, means, deviations).mean(0)
    return np.mean([abs(np.mean(u <= q) - q) for q in np.arange(1, 20) / 20])


REFERENCES = {
    "accuracy": lambda: sk.accuracy_score(probabilities()[1], probabilities()[0].argmax(1)),
    "top_5": lambda: sk.top_k_accuracy_score(probabilities()[1], probabilities()[0], k=5),
    "nll": lambda: sk.log_loss(probabilities()[1], probabilities()[0]),
    "brier": lambda: np.mean(((probabilities()[0] - np.eye(CLASSES)[probabilities()[1]]) ** 2).sum(1)),
    "ece": lambda: calibration_error("l1"),
    "adaptive_ece": adaptive_ece,
    "classwise_ece": classwise_ece,
    "mce": lambda: calibration_error("max"),
    "aurc": lambda: selective(lambda risks, _: np.mean(risks)),
    "e_aurc": lambda: selective(
        lambda risks, best: np.mean(risks) - np.mean(np.cumsum(best) / np.arange(1, len(best) + 1))
    ),
    "risk_at_90": lambda: selective(lambda risks, _: risks[math.ceil(0.9 * len(risks)) - 1]),
    "entropy": lambda: mean_entropy(False),
    "aleatoric": lambda: mean_entropy(True),
    "mutual_information": lambda: mean_entropy(False) - mean_entropy(True),
    "disagreement": pairs_apart,
    "disagreement_by_error": lambda: pairs_apart() / np.mean(member_labels() != probabilities()[1]),
    "disagreement_with_base": with_base,
    "pairwise_kl": pairwise_kl,
    "mean_iou": lambda: sk.jaccard_score(probabilities()[1], probabilities()[0].argmax(1), average="macro"),
    "auroc": lambda: detection(sk.roc_auc_score),
    "aupr": lambda: detection(sk.average_precision_score),
    "fpr95": lambda: detection(false_positives),
    "cacc": lambda: np.mean(columns("cacc")[0].numpy()),
    "cnll": lambda: np.mean(columns("cnll")[0].numpy()),
    "cece": lambda: np.mean(columns("cece")[0].numpy()),
    "mean_corruption_error": lambda: np.mean(
        [ours.sum() / theirs.sum() for ours, theirs in zip(*columns("mean_corruption_error"), strict=True)]
    ),
    "rmse": lambda: sk.root_mean_squared_error(mixture()[2], mixture()[0].mean(0)),
    "mae": lambda: sk.mean_absolute_error(mixture()[2], mixture()[0].mean(0)),
    "crps": lambda: crps_by_integration(),
    "coverage": interval_coverage,
    "width": lambda: np.mean(interval()[1] - interval()[0]),
    "quantile_calibration": quantile_gap,
}


@pytest.mark.parametrize("name", METRICS)
def test_metric_equals_its_reference(name):
    given = columns(name)
    given = [column[:FEW] for column in given] if name in ("crps", "coverage", "width") else given
    assert METRICS[name].function(*given) == pytest.approx(REFERENCES[name](), abs=1e-6)


def test_every_metric_has_a_reference():
    assert set(REFERENCES) == set(METRICS)


@pytest.mark.parametrize("name", METRICS)
def test_metric_says_its_direction_and_paper(name):
    entry = METRICS[name]
    assert entry.better in ("higher", "lower", "neither") and entry.paper and entry.function.__doc__


@pytest.mark.parametrize("name", [n for n, entry in METRICS.items() if entry.needs != ("class_bins",)])
@pytest.mark.parametrize("ties", [False, True], ids=["", "ties"])
def test_the_order_of_examples_does_not_matter(name, ties):
    given = columns(name, ties)
    together = METRICS[name].task != "ood"
    order = torch.randperm(given[0].shape[-1])
    shuffled = [c[..., order] if together else c[torch.randperm(len(c))] for c in given]
    if METRICS[name].task == "shift":
        shuffled = [c[order[order < len(c)]] for c in given]
    assert METRICS[name].function(*shuffled) == pytest.approx(METRICS[name].function(*given), rel=1e-12)


@pytest.mark.parametrize("name", METRICS)
def test_arrays_and_single_precision_give_the_same(name):
    given = columns(name)
    narrow = [c.float().numpy() if c.is_floating_point() else c.numpy() for c in given]
    assert METRICS[name].function(*narrow) == pytest.approx(METRICS[name].function(*given), abs=1e-6)


@pytest.mark.parametrize("name", METRICS)
def test_one_example_has_a_value(name):
    if METRICS[name].task in ("ood", "shift"):
        given = [column[:1] for column in columns(name)]
    else:
        summary = regression() if METRICS[name].task == "regression" else classification()
        one = Summary(summary._prediction[0], summary.target[:1])
        given = [getattr(one, need) for need in METRICS[name].needs]
    assert not math.isnan(METRICS[name].function(*given))


@pytest.mark.parametrize("name", METRICS)
def test_nan_is_an_error_and_never_a_number(name):
    given = [column.double().clone() for column in columns(name)]
    for i in range(len(given)):
        broken = [column.clone() for column in given]
        broken[i].view(-1)[-1] = math.nan
        if METRICS[name].needs == ("class_bins",):
            continue  # made by class_bins, which refuses
        with pytest.raises(ValueError, match=r"nan"):
            METRICS[name].function(*broken)


@pytest.mark.parametrize("name", [n for n, entry in METRICS.items() if entry.needs != ("class_bins",)])
def test_an_empty_column_is_an_error(name):
    with pytest.raises(ValueError, match=r"at least one"):
        METRICS[name].function(*(column[..., :0] for column in columns(name)))


@pytest.mark.parametrize("name", [n for n, e in METRICS.items() if len(e.needs) > 1 and e.task != "ood"])
def test_columns_of_different_lengths_are_an_error(name):
    first, *others = columns(name)
    with pytest.raises(ValueError, match=METRICS[name].function.__name__):
        METRICS[name].function(first[..., :-1], *others)


# ---------------------------------------------------------------- edges


def test_confidence_one_is_in_the_last_bin_and_zero_in_the_first():
    assert metrics.reliability([0.0, 1.0], [0, 1], bins=4).examples.tolist() == [1, 0, 0, 1]


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("bins", [10, 15])
def test_a_confidence_on_an_edge_is_in_the_bin_below(kind, bins):
    confidence = torch.tensor([i / bins for i in range(1, bins + 1)], dtype=kind)
    assert metrics.reliability(confidence, torch.ones(bins), bins).examples.tolist() == [1] * bins


def test_a_confidence_above_one_by_rounding_changes_nothing():
    correct = [0, 1, 1]
    assert metrics.ece([0.4, 0.9, 1.0000001], correct) == pytest.approx(metrics.ece([0.4, 0.9, 1.0], correct), abs=1e-6)
    assert metrics.ece([1.0000001], [1]) == 0


@pytest.mark.parametrize("metric", [metrics.ece, metrics.mce, metrics.adaptive_ece, metrics.reliability])
@pytest.mark.parametrize("confidence", [1.01, -0.2, math.inf])
def test_a_confidence_that_is_none_is_an_error_that_says_where(metric, confidence):
    with pytest.raises(ValueError, match=rf"{metric.__name__}: confidence .* at \[1\] there is"):
        metric([0.5, confidence], [0, 1])


def test_labels_in_place_of_correctness_are_an_error():
    with pytest.raises(ValueError, match="correct must be from 0 to 1"):
        metrics.ece([0.5, 0.6], [3, 7])


def test_fewer_examples_than_bins_leave_bins_empty():
    assert metrics.adaptive_ece([0.2, 0.8], [0, 1], bins=15) == pytest.approx(0.2)
    assert metrics.ece([0.2, 0.8], [0, 1], bins=15) == pytest.approx(0.2)


def test_reliability_of_an_empty_bin_is_nan():
    curve = metrics.reliability([0.9], [1], bins=2)
    assert curve.accuracy.isnan().tolist() == [True, False] and curve.edges.tolist() == [0, 0.5, 1]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1)), min_size=1, max_size=6))
def test_aurc_of_ties_is_the_mean_over_their_orders(rows):
    loss = {order: [rows[i][1] for i in order] for order in itertools.permutations(range(len(rows)))}
    sorted_orders = [o for o in loss if all(rows[a][0] <= rows[b][0] for a, b in itertools.pairwise(o))]
    areas = [np.mean(np.cumsum(loss[o]) / np.arange(1, len(rows) + 1)) for o in sorted_orders]
    assert metrics.aurc(*zip(*rows, strict=True)) == pytest.approx(np.mean(areas))


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=20),
    st.lists(st.integers(0, 4), min_size=1, max_size=20),
)
def test_detection_with_ties_equals_scikit_learn(inside, outside):
    truth, score = [0] * len(inside) + [1] * len(outside), inside + outside
    assert metrics.auroc(inside, outside) == pytest.approx(sk.roc_auc_score(truth, score))
    assert metrics.aupr(inside, outside) == pytest.approx(sk.average_precision_score(truth, score))
    assert metrics.fpr95(inside, outside) == pytest.approx(false_positives(np.array(truth), np.array(score)))


def test_scores_that_are_all_equal_tell_nothing():
    same = torch.zeros(7)
    assert metrics.auroc(same, same[:3]) == 0.5
    assert metrics.aupr(same, same[:3]) == pytest.approx(0.3)
    assert metrics.fpr95(same, same[:3]) == 1.0
    assert metrics.aurc(same, [1, 0, 0, 0, 0, 0, 0]) == pytest.approx(1 / 7)


def test_infinite_scores_have_a_rank():
    assert metrics.auroc([0.0, 1.0], [math.inf, 2.0]) == 1.0
    assert metrics.auroc([-math.inf, 1.0], [0.0, 2.0]) == 0.75


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.data())
def test_excess_is_between_zero_and_the_area(uncertainty, data):
    loss = data.draw(st.lists(st.integers(0, 1), min_size=len(uncertainty), max_size=len(uncertainty)))
    assert 0 <= metrics.e_aurc(uncertainty, loss) <= metrics.aurc(uncertainty, loss) + 1e-12


def test_a_perfect_order_has_no_excess():
    assert metrics.e_aurc([0.1, 0.2, 0.3], [0, 0, 1]) == 0


def test_one_class_is_a_value():
    assert metrics.mean_iou([0, 0], [0, 0]) == 1.0
    assert metrics.accuracy([0, 0], [0, 0]) == 1.0


def test_classes_that_do_not_occur_are_no_part_of_mean_iou():
    assert metrics.mean_iou([0, 5], [0, 5]) == 1.0
    assert metrics.mean_iou([0, 5], [0, 4]) == pytest.approx(1 / 3)


def test_one_member_does_not_disagree():
    labels, target = torch.tensor([[0, 1, 2]]), torch.tensor([0, 1, 1])
    assert metrics.disagreement(labels) == 0
    assert metrics.disagreement_by_error(labels, target) == 0
    assert metrics.disagreement_with_base(labels, target) == 0


def test_members_that_never_err_have_no_disagreement_by_error():
    labels = torch.tensor([[0, 1], [0, 1]])
    assert metrics.disagreement_by_error(labels, labels[0]) == 0
    assert metrics.disagreement_with_base(torch.tensor([[0, 0], [0, 1]]), labels[0]) == math.inf


def test_agreement_is_one_with_oneself_and_symmetric():
    matrix = metrics.agreement(torch.tensor([[0, 1, 2], [0, 1, 1], [2, 2, 2]]))
    torch.testing.assert_close(matrix, torch.tensor([[3, 2, 1], [2, 3, 0], [1, 0, 3]]).double() / 3)


def test_class_bins_add_up_over_batches():
    p, y = (torch.tensor(values) for values in probabilities())
    parts = metrics.class_bins(p[:200], y[:200]) + metrics.class_bins(p[200:], y[200:])
    torch.testing.assert_close(parts, metrics.class_bins(p, y))


def test_an_impossible_target_has_an_infinite_nll():
    assert metrics.nll([-1.0, -math.inf]) == math.inf


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.top_k([1], k=0), "k must be at least 1, but it is 0"),
        (lambda: metrics.ece([0.5], [1], bins=0), "at least 1 bin, but 0"),
        (lambda: metrics.risk_at_coverage([1], [1], coverage=1.5), "coverage must be above 0 and at most 1"),
        (lambda: metrics.fpr95([1], [1], recall=0), "recall must be above 0"),
        (lambda: metrics.disagreement([1, 2]), r"two dimensions, but its shape is \(2,\)"),
        (lambda: metrics.mean_iou([-1], [0]), "must not be negative; one is -1"),
        (lambda: metrics.class_bins([[0.5, 0.5]], [2]), "one target from 0 to 1"),
        (lambda: metrics.mean_corruption_error([[0.1]], [[0.0]]), "corruption 0 it never does"),
        (lambda: metrics.accuracy([[1], [2]], [1, 2]), r"label \(2, 1\) and target \(2,\)"),
    ],
)
def test_an_error_says_the_rule_and_the_value(call, message):
    with pytest.raises(ValueError, match=message):
        call()
