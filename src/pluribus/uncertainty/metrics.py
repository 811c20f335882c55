"""One function per metric, on columns: one value for each example, as `Summary` holds them; METRICS is their table.

Columns are tensors, arrays or lists of one shape; pixels count as examples. Every result is the same in any order
of the examples, ties included. NaN, an empty column and values out of range are errors, never a plausible number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .checks import Column, check_finite, tensor_of

__all__ = [
    "BINS",
    "METRICS",
    "Metric",
    "Reliability",
    "accuracy",
    "adaptive_ece",
    "agreement",
    "aleatoric",
    "aupr",
    "auroc",
    "aurc",
    "brier",
    "class_bins",
    "classwise_ece",
    "corruption_mean",
    "coverage",
    "crps",
    "disagreement",
    "disagreement_by_error",
    "disagreement_with_base",
    "e_aurc",
    "ece",
    "entropy",
    "fpr95",
    "mae",
    "mce",
    "mean_corruption_error",
    "mean_iou",
    "mutual_information",
    "nll",
    "pairwise_kl",
    "quantile_calibration",
    "reliability",
    "risk_at_coverage",
    "risk_coverage",
    "rmse",
    "top_k",
    "width",
]

BINS = 15


# ---------------------------------------------------------------- Is it right? Accuracy, likelihood, squared error


def accuracy(label: Column, target: Column) -> float:
    """Share of examples whose label is the target.

    Shapes:
        label, target: (batch), or (batch, *pixels), whole numbers

    >>> accuracy(label=[0, 1, 1, 2], target=[0, 1, 2, 2])
    0.75
    """
    label, target = read_columns("accuracy", label=label, target=target)
    return (label == target).double().mean().item()


def top_k(rank: Column, k: int = 5) -> float:
    """Share of examples with fewer than `k` classes before the target; 1 when there are at most k classes.

    Shapes:
        rank: (batch), how many classes are held likelier than the target

    >>> top_k(rank=[0, 0, 1, 7], k=5)
    0.75
    """
    if k < 1:
        raise ValueError(f"top_k: k must be at least 1, but it is {k}.")
    (rank,) = read_columns("top_k", rank=rank)
    return (rank < k).double().mean().item()


def nll(log_likelihood: Column) -> float:
    """Negative log-likelihood of the targets, in nats; infinite where a target was given probability 0.

    Shapes:
        log_likelihood: (batch), the logarithm of the probability (regression: density) that each target was given

    >>> nll(torch.tensor([0.5, 0.25]).log())  # (log 2 + log 4) / 2
    1.0397...
    """
    return -read_columns("nll", infinite=True, log_likelihood=log_likelihood)[0].mean().item()


def brier(squared_error: Column) -> float:
    """Squared distance between probabilities and the one-hot target, summed over classes: from 0 to 2.

    Many libraries divide it by the number of classes: their figures are that much smaller.

    Shapes:
        squared_error: (batch), summed over classes

    >>> probability, target = torch.tensor([[0.5, 0.5], [1.0, 0.0]]), torch.tensor([[1, 0], [1, 0]])
    >>> brier((probability - target).square().sum(1))
    0.25
    """
    return read_columns("brier", squared_error=squared_error)[0].mean().item()


def mean_iou(label: Column, target: Column) -> float:
    """Intersection over union, averaged over the classes that occur in labels or targets.

    Shapes:
        label, target: (batch, *pixels), whole numbers from 0

    >>> mean_iou(label=[0, 1, 1, 2], target=[0, 1, 2, 2])  # of three classes: 1, 1/2 and 1/2
    0.66...
    """
    label, target = read_columns("mean_iou", label=label, target=target)
    if min(label.min(), target.min()) < 0:
        raise ValueError(f"mean_iou: classes must not be negative, but one is {min(label.min(), target.min()):.0f}.")
    label, target = label.long(), target.long()
    size = int(max(label.max(), target.max())) + 1
    both = torch.bincount(label[label == target], minlength=size)
    either = torch.bincount(label, minlength=size) + torch.bincount(target, minlength=size) - both
    return (both[either > 0] / either[either > 0].double()).mean().item()


# ---------------------------------------------------------------- Is it as sure as it is right?


class Reliability(NamedTuple):
    """What a reliability diagram shows, bin by bin; confidence and accuracy are NaN where there are no examples.

    Shapes:
        edges: (bins + 1); confidence, accuracy, examples: (bins)

    >>> reliability([0.3, 0.9, 0.9, 1.0], [False, True, True, True], bins=2).examples.tolist()
    [1.0, 3.0]
    """

    edges: Tensor
    confidence: Tensor
    accuracy: Tensor
    examples: Tensor


def reliability(confidence: Column, correct: Column, bins: int = BINS) -> Reliability:
    """Mean confidence and accuracy in equal-width bins over (0, 1]; a confidence of 0 counts in the first.

    Shapes:
        confidence: (batch), from 0 to 1; correct: (batch), true or false

    >>> reliability([0.3, 0.9, 0.9, 1.0], [False, True, True, True], bins=2).accuracy.tolist()
    [0.0, 1.0]
    """
    count, confident, right = bin_outcomes("reliability", confidence, correct, bins)
    return Reliability(torch.linspace(0, 1, bins + 1, dtype=torch.float64), confident / count, right / count, count)


def ece(confidence: Column, correct: Column, bins: int = BINS) -> float:
    """Expected calibration error: |accuracy - confidence| over equal-width bins, weighted by their examples.

    Shapes:
        confidence: (batch), from 0 to 1; correct: (batch), true or false

    >>> ece([1.0, 0.75, 0.625, 0.625], [True, True, False, True], bins=10)  # gaps 0, 1/4 and, of two, 1/8
    0.125
    """
    count, confident, right = bin_outcomes("ece", confidence, correct, bins)
    return ((confident - right).abs().sum() / count.sum()).item()


def mce(confidence: Column, correct: Column, bins: int = BINS) -> float:
    """Maximum calibration error: the largest |accuracy - confidence| of a bin that has examples.

    Shapes:
        confidence: (batch), from 0 to 1; correct: (batch), true or false

    >>> mce([0.9, 0.75, 0.6, 0.6], [True, True, False, True], bins=10)
    0.25
    """
    count, confident, right = bin_outcomes("mce", confidence, correct, bins)
    return ((confident - right).abs() / count.clamp_min(1)).max().item()


def adaptive_ece(confidence: Column, correct: Column, bins: int = BINS) -> float:
    """Expected calibration error over at most `bins` bins with equally many examples each.

    Examples of the same confidence share their accuracy, so that it does not matter on which side of an edge they are.

    Shapes:
        confidence: (batch), from 0 to 1; correct: (batch), true or false

    >>> adaptive_ece([1.0, 0.75, 0.625, 0.625], [True, True, False, True], bins=2)  # two gaps of 1/8
    0.125
    """
    confidence, correct = sort_with_ties(*read_outcomes("adaptive_ece", confidence, correct, bins))
    gaps = torch.cat([confidence.new_zeros(1), (confidence - correct).cumsum(0)])
    edges = torch.arange(bins + 1) * len(confidence) // bins  # fewer examples than bins: some bins are empty
    return (gaps[edges].diff().abs().sum() / len(confidence)).item()


def class_bins(probability: Matrix, target: Column, bins: int = BINS) -> Tensor:
    """Sums for `classwise_ece`, which add up over batches: count, probability and hits of each class and bin.

    Shapes:
        probability: (batch, classes); target: (batch)
        result: (3, classes, bins)

    >>> count, probability, hits = class_bins([[0.9, 0.1], [0.2, 0.8]], [0, 1], bins=2)
    >>> count.tolist(), hits.tolist()  # each class: one low and one high probability, and it was the high one
    ([[1.0, 1.0], [1.0, 1.0]], [[0.0, 1.0], [0.0, 1.0]])
    """
    values = check_probabilities("class_bins", "probability", read_matrix("class_bins", "probability", probability))
    (target,) = read_columns("class_bins", target=target)
    batch, classes = values.shape
    if len(target) != batch or target.min() < 0 or target.max() >= classes:
        raise ValueError(
            f"class_bins: needs one target from 0 to {classes - 1} for each of {batch} rows, but there are "
            f"{len(target)}, from {target.min():.0f} to {target.max():.0f}."
        )
    check_bins("class_bins", bins)
    cell = bin_of(values, bins, tensor_of(probability).dtype) + torch.arange(classes, device=values.device) * bins
    hit = cell.gather(1, target.long()[:, None]).flatten()
    size = classes * bins
    counted = ((cell.flatten(), None), (cell.flatten(), values.flatten()), (hit, None))
    sums = [torch.bincount(where, weights, minlength=size).double() for where, weights in counted]
    return torch.stack(sums).unflatten(1, (classes, bins))


def classwise_ece(class_bins: Tensor) -> float:
    """Calibration error of every class's probability, averaged over classes; takes what `class_bins` gives.

    Shapes:
        class_bins: (3, classes, bins), or the sum of such tensors over batches

    >>> sums = class_bins([[0.75, 0.25]], [0]) + class_bins([[0.25, 0.75]], [1])
    >>> classwise_ece(sums)  # every probability is a quarter too careful
    0.25
    """
    count, confident, right = tensor_of(class_bins).double()
    return ((confident - right).abs().sum() / count.sum()).item()  # count.sum() is examples * classes


# ---------------------------------------------------------------- Does it notice what is foreign?


def auroc(inside: Column, outside: Column) -> float:
    """Probability that an outside example scores higher than an inside one; a tie counts one half.

    Shapes:
        inside: (batch) and outside: (another batch), scores that are larger for what is less certain

    >>> auroc(inside=[0.1, 0.2], outside=[0.3, 0.2])  # of four pairs three are in order and one is a tie
    0.875
    """
    counts = _detections("auroc", inside, outside)
    below = counts.inside - counts.false + counts.tied / 2
    return float((counts.found * below).sum() / (counts.caught[-1] * counts.inside))


def aupr(inside: Column, outside: Column) -> float:
    """Average precision with the outside examples as positives; tied examples are found together.

    Shapes:
        inside: (batch) and outside: (another batch), scores that are larger for what is less certain

    >>> aupr(inside=[0.1, 0.2], outside=[0.3, 0.2])  # half at a precision of 1, half at one of 2/3
    0.83...
    """
    counts = _detections("aupr", inside, outside)
    precision = counts.caught / (counts.caught + counts.false)
    return float((counts.found * precision).sum() / counts.caught[-1])


def fpr95(inside: Column, outside: Column, recall: float = 0.95) -> float:
    """Share of inside examples at or above the highest threshold that finds at least 95 % of the outside ones.

    Shapes:
        inside: (batch) and outside: (another batch), scores that are larger for what is less certain

    >>> fpr95(inside=[0.1, 0.2], outside=[0.3, 0.2])  # to find both, 0.2 must count as foreign
    0.5
    """
    if not 0 < recall <= 1:
        raise ValueError(f"fpr95: recall must be above 0 and at most 1, but it is {recall}.")
    counts = _detections("fpr95", inside, outside)
    enough = counts.caught >= recall * counts.caught[-1] * (1 - 1e-12)
    return float(counts.false[enough].min() / counts.inside)


class _Detections(NamedTuple):
    found: np.ndarray  # outside examples with each distinct outside score, from the highest on
    caught: np.ndarray  # outside examples at or above that score
    false: np.ndarray  # inside examples at or above that score
    tied: np.ndarray  # inside examples with that score
    inside: int


def _detections(metric: str, inside: Column, outside: Column) -> _Detections:
    (inside,) = read_columns(metric, infinite=True, inside=inside)
    (outside,) = read_columns(metric, infinite=True, outside=outside)
    low = np.sort(inside.numpy())
    scores, found = (part[::-1].astype(float) for part in np.unique(outside.numpy(), return_counts=True))
    below, up_to = np.searchsorted(low, scores, "left"), np.searchsorted(low, scores, "right")
    return _Detections(found, found.cumsum(), len(low) - below, up_to - below, len(low))


# ---------------------------------------------------------------- May it be trusted where it is sure?


def risk_coverage(uncertainty: Column, loss: Column) -> tuple[Tensor, Tensor]:
    """Coverage k/n and the mean loss of the k most certain examples, k = 1 to n.

    Where examples tie, the expected value over all their orders.

    Shapes:
        uncertainty: (n), any score that is larger for what is less certain; loss: (n), such as 1 for an error
        results: (n) each

    >>> coverage, risk = risk_coverage(uncertainty=[0.1, 0.2, 0.3, 0.4], loss=[0, 0, 0, 1])
    >>> coverage.tolist(), risk.tolist()
    ([0.25, 0.5, 0.75, 1.0], [0.0, 0.0, 0.0, 0.25])
    """
    uncertainty, loss = read_columns("risk_coverage", uncertainty=uncertainty, loss=loss)
    return _risk_coverage(uncertainty, loss)


def aurc(uncertainty: Column, loss: Column) -> float:
    """Area under the risk-coverage curve: the mean of `risk_coverage` over k = 1 to n.

    Shapes:
        uncertainty, loss: (n)

    >>> aurc(uncertainty=[0.1, 0.2, 0.3, 0.4], loss=[0, 0, 0, 1])  # (0 + 0 + 0 + 1/4) / 4
    0.0625
    """
    uncertainty, loss = read_columns("aurc", uncertainty=uncertainty, loss=loss)
    return _risk_coverage(uncertainty, loss)[1].mean().item()


def e_aurc(uncertainty: Column, loss: Column) -> float:
    """Excess of `aurc` over that of the best possible order of the same losses; 0 if all errors are the least certain.

    Shapes:
        uncertainty, loss: (n)

    >>> e_aurc([0.1, 0.2, 0.3, 0.4], [0, 0, 0, 1]), e_aurc([0.1, 0.2, 0.3, 0.4], [0, 1, 0, 0])
    (0.0, 0.2083...)
    """
    uncertainty, loss = read_columns("e_aurc", uncertainty=uncertainty, loss=loss)
    curves = [_risk_coverage(order, loss)[1].mean() for order in (uncertainty, loss)]
    return (curves[0] - curves[1]).clamp_min(0).item()


def risk_at_coverage(uncertainty: Column, loss: Column, coverage: float = 0.9) -> float:
    """Mean loss of the `coverage` most certain share of the examples, rounded up to at least one.

    Shapes:
        uncertainty, loss: (n)

    >>> risk_at_coverage([0.1, 0.2, 0.3, 0.4], [0, 1, 0, 0], coverage=0.5)  # one error in the two that are kept
    0.5
    """
    if not 0 < coverage <= 1:
        raise ValueError(f"risk_at_coverage: coverage must be above 0 and at most 1, but it is {coverage}.")
    uncertainty, loss = read_columns("risk_at_coverage", uncertainty=uncertainty, loss=loss)
    kept = max(math.ceil(coverage * len(loss) - 1e-9), 1)
    return _risk_coverage(uncertainty, loss)[1][kept - 1].item()


def _risk_coverage(uncertainty: Tensor, loss: Tensor) -> tuple[Tensor, Tensor]:
    _, loss = sort_with_ties(uncertainty, loss)
    kept = torch.arange(1, len(loss) + 1, device=loss.device, dtype=loss.dtype)
    return kept / len(loss), loss.cumsum(0) / kept


# ---------------------------------------------------------------- Do members differ?


def agreement(member_label: Matrix) -> Tensor:
    """Share of examples on which each pair of members gives the same label.

    Shapes:
        member_label: (members, batch); result: (members, members), with ones on the diagonal

    >>> agreement([[0, 1, 1, 2], [0, 1, 2, 1]]).tolist()
    [[1.0, 0.5], [0.5, 1.0]]
    """
    labels = read_matrix("agreement", "member_label", member_label)
    return torch.stack([(label == labels).double().mean(1) for label in labels])


def disagreement(member_label: Matrix) -> float:
    """Share of examples on which two members differ, averaged over pairs; 0 for one member.

    Shapes:
        member_label: (members, batch)

    >>> disagreement([[0, 1, 1, 2], [0, 1, 2, 1]])
    0.5
    """
    labels = read_matrix("disagreement", "member_label", member_label)
    pairs = len(labels) * (len(labels) - 1)
    return (1 - agreement(labels)).sum().item() / max(pairs, 1)


def disagreement_by_error(member_label: Matrix, target: Column) -> float:
    """`disagreement` divided by the members' mean error; 0 when no member errs, for then all agree.

    Shapes:
        member_label: (members, batch); target: (batch)

    >>> disagreement_by_error([[0, 1, 1, 2], [0, 1, 2, 1]], target=[0, 1, 2, 2])  # 1/2, and each errs once in four
    2.0
    """
    _, error = _member_errors("disagreement_by_error", member_label, target)
    return _ratio(disagreement(member_label), error.mean().item())


def disagreement_with_base(member_label: Matrix, target: Column) -> float:
    """Disagreement of each further member with the first, divided by its own error, averaged; 0 for one member.

    Infinite when a member makes no error and the first does.

    Shapes:
        member_label: (members, batch), the base first; target: (batch)

    >>> disagreement_with_base([[0, 1, 2, 2], [0, 1, 2, 1]], target=[0, 1, 2, 2])
    1.0
    """
    labels, error = _member_errors("disagreement_with_base", member_label, target)
    apart = (labels != labels[0]).double().mean(1)
    ratios = list(map(_ratio, apart[1:].tolist(), error[1:].tolist()))
    return sum(ratios) / max(len(ratios), 1)


def pairwise_kl(pairwise_kl: Column) -> float:
    """Kullback-Leibler divergence of two members, averaged over ordered pairs; infinite where supports differ.

    Shapes:
        pairwise_kl: (batch), the mean over ordered pairs for each example, as `Summary` gives it

    >>> members = pb.Classification.from_probabilities(torch.tensor([[[0.5, 0.5]], [[0.8, 0.2]]]))
    >>> pairwise_kl(pb.Summary(members).pairwise_kl)
    0.2079...
    """
    return read_columns("pairwise_kl", infinite=True, pairwise_kl=pairwise_kl)[0].mean().item()


def mutual_information(epistemic: Column) -> float:
    """Mean mutual information of label and member: the Jensen-Shannon divergence of the members, in nats.

    Of data inside it is the papers' IDMI, of data outside their OODMI.

    Shapes:
        epistemic: (batch), as `Classification.epistemic` gives it

    >>> members = pb.Classification.from_probabilities(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]))
    >>> mutual_information(members.epistemic)  # each is sure, and they contradict each other: log 2
    0.6931...
    """
    return read_columns("mutual_information", epistemic=epistemic)[0].mean().item()


def entropy(total: Column) -> float:
    """Mean entropy of the mean prediction, in nats.

    Shapes:
        total: (batch), as `Classification.total` gives it

    >>> entropy(pb.Classification.from_probabilities(torch.full((2, 3, 4), 0.25)).total)  # log 4
    1.3862...
    """
    return read_columns("entropy", total=total)[0].mean().item()


def aleatoric(aleatoric: Column) -> float:
    """Mean entropy of the members, in nats: `entropy` without `mutual_information`.

    Shapes:
        aleatoric: (batch), as `Classification.aleatoric` gives it

    >>> aleatoric(pb.Classification.from_probabilities(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])).aleatoric)
    0.0
    """
    return read_columns("aleatoric", aleatoric=aleatoric)[0].mean().item()


def _member_errors(metric: str, member_label: Matrix, target: Column) -> tuple[Tensor, Tensor]:
    labels = read_matrix(metric, "member_label", member_label)
    (target,) = read_columns(metric, target=target)
    if labels.shape[1] != len(target):
        raise ValueError(
            f"{metric}: needs one target for each of {labels.shape[1]} labels of a member, but there are {len(target)}."
        )
    return labels, (labels != target).double().mean(1)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else (math.inf if part else 0.0)


# ---------------------------------------------------------------- Does it stand corruptions?


def corruption_mean(values: Matrix) -> float:
    """Mean over corruptions and severities: cAcc, cNLL and cECE.

    Shapes:
        values: (corruptions, severities), such as the accuracy on each

    >>> corruption_mean([[0.875, 0.75], [0.75, 0.625]])
    0.75
    """
    return read_matrix("corruption_mean", "values", values, infinite=True).mean().item()


def mean_corruption_error(errors: Matrix, baseline: Matrix) -> float:
    """Mean over corruptions of the error summed over severities, divided by the baseline's: 1 is the baseline.

    Shapes:
        errors, baseline: (corruptions, severities), errors from 0 to 1

    >>> mean_corruption_error(errors=[[0.125, 0.25]], baseline=[[0.25, 0.5]])
    0.5
    """
    ours = read_matrix("mean_corruption_error", "errors", errors)
    theirs = read_matrix("mean_corruption_error", "baseline", baseline)
    if ours.shape != theirs.shape:
        raise ValueError(
            "mean_corruption_error: errors and baseline must have the same corruptions and severities, but their "
            f"shapes are {tuple(ours.shape)} and {tuple(theirs.shape)}."
        )
    if bool((theirs.sum(1) <= 0).any()):
        raise ValueError("mean_corruption_error: the baseline must make errors, but on one corruption it makes none.")
    return (ours.sum(1) / theirs.sum(1)).mean().item()


# ---------------------------------------------------------------- Are its values near, its intervals right?


def rmse(mean: Column, target: Column) -> float:
    """Root of the mean squared error.

    Shapes:
        mean, target: (batch), or (batch, outputs)

    >>> rmse(mean=[1.0, 5.0], target=[1.0, 3.0])
    1.4142...
    """
    mean, target = read_columns("rmse", mean=mean, target=target)
    return (mean - target).square().mean().sqrt().item()


def mae(mean: Column, target: Column) -> float:
    """Mean absolute error.

    Shapes:
        mean, target: (batch), or (batch, outputs)

    >>> mae(mean=[1.0, 5.0], target=[1.0, 3.0])
    1.0
    """
    mean, target = read_columns("mae", mean=mean, target=target)
    return (mean - target).abs().mean().item()


def crps(crps: Column) -> float:
    """Continuous ranked probability score of the mixture, in the unit of the target; |error| for a point.

    Shapes:
        crps: (batch), the score of each example, as `Summary` gives it

    >>> points = pb.Regression(torch.tensor([[[1.0], [5.0]]]))  # one member, without a variance
    >>> crps(pb.Summary(points, torch.tensor([1.0, 3.0])).crps)
    1.0
    """
    return read_columns("crps", crps=crps)[0].mean().item()


def coverage(lower: Column, upper: Column, target: Column) -> float:
    """Share of targets inside their interval, ends included.

    Shapes:
        lower, upper, target: (batch), or (batch, outputs)

    >>> coverage(lower=[0.0, 0.0], upper=[1.0, 1.0], target=[0.5, 2.0])
    0.5
    """
    lower, upper, target = read_columns("coverage", infinite=True, lower=lower, upper=upper, target=target)
    return ((lower <= target) & (target <= upper)).double().mean().item()


def width(lower: Column, upper: Column) -> float:
    """Mean width of the intervals.

    Shapes:
        lower, upper: (batch), or (batch, outputs)

    >>> width(lower=[0.0, 0.0], upper=[1.0, 3.0])
    2.0
    """
    lower, upper = read_columns("width", lower=lower, upper=upper)
    return (upper - lower).mean().item()


def quantile_calibration(cumulative: Column, levels: int = 19) -> float:
    """Mean |share of targets below the q-quantile - q| over q = 1/20 to 19/20; `cumulative` is the mixture's CDF there.

    The default levels are those of 19 quantiles; 0 is perfect, 1/2 the worst.

    Shapes:
        cumulative: (batch), from 0 to 1: the probability that was given to values below the target

    >>> quantile_calibration([0.25, 0.75], levels=3)  # shares 1/2, 1/2 and 1 at 1/4, 1/2 and 3/4
    0.16...
    >>> quantile_calibration([0.5, 0.5], levels=3)  # every target at the median: intervals are too wide
    0.33...
    """
    (cumulative,) = read_columns("quantile_calibration", cumulative=cumulative)
    cumulative = check_probabilities("quantile_calibration", "cumulative", cumulative)
    check_bins("quantile_calibration", levels)
    level = torch.arange(1, levels + 1, device=cumulative.device).double() / (levels + 1)
    below = torch.searchsorted(cumulative.sort().values, level, right=True).double()
    return (below / len(cumulative) - level).abs().mean().item()


# ---------------------------------------------------------------- columns: read, checked, sorted and put into bins

Matrix = Tensor | np.ndarray | Sequence[Sequence[float]] | Sequence[Sequence[int]]
ROUNDING = 1e-4  # how far from [0, 1] a probability may be


def read_columns(metric: str, infinite: bool = False, **given: Column) -> list[Tensor]:
    """The columns as flat tensors in double precision, of one shape, not empty and without NaN."""
    tensors = {name: tensor_of(column) for name, column in given.items()}
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if len(set(shapes.values())) > 1:
        listed = " and ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ValueError(f"{metric}: all columns must have the same shape, but they have {listed}.")
    return [_read(metric, name, tensor, infinite).flatten() for name, tensor in tensors.items()]


def read_matrix(metric: str, name: str, values: Matrix, infinite: bool = False) -> Tensor:
    """The values as a matrix in double precision; further dimensions (pixels) join the second."""
    tensor = tensor_of(values)
    if tensor.ndim < 2:
        raise ValueError(f"{metric}: {name} must have two dimensions, but its shape is {tuple(tensor.shape)}.")
    return _read(metric, name, tensor, infinite).flatten(1)


def _read(metric: str, name: str, tensor: Tensor, infinite: bool) -> Tensor:
    if tensor.numel() == 0:
        raise ValueError(f"{metric}: {name} must hold at least one example, but it is empty.")
    tensor = tensor.cpu().double()  # some devices have no double precision
    check_finite(metric, name, tensor, infinite)
    return tensor


def check_probabilities(metric: str, name: str, values: Tensor) -> Tensor:
    """The values within [0, 1]: what is outside by rounding is moved, anything else is an error."""
    outside = (values < -ROUNDING) | (values > 1 + ROUNDING)
    if bool(outside.any()):
        where = tuple(outside.nonzero()[0].tolist())
        raise ValueError(
            f"{metric}: {name} must be from 0 to 1, but at {list(where)} there is {values[where].item():.6g}."
        )
    return values.clamp(0, 1)


def check_bins(metric: str, bins: int) -> None:
    """Refuse fewer than one bin."""
    if bins < 1:
        raise ValueError(f"{metric}: bins must be at least 1, but it is {bins}.")


def read_outcomes(metric: str, confidence: Column, correct: Column, bins: int) -> tuple[Tensor, Tensor]:
    """Confidences, and whether each example is correct, both from 0 to 1, to be put into bins."""
    check_bins(metric, bins)
    confidence, correct = read_columns(metric, confidence=confidence, correct=correct)
    return check_probabilities(metric, "confidence", confidence), check_probabilities(metric, "correct", correct)


def bin_of(values: Tensor, bins: int, given: torch.dtype) -> Tensor:
    """The bin of each probability: (0, 1/bins] is 0. What was 3/10 in the type it was `given` in is on that edge."""
    kind = given if given.is_floating_point else torch.float64
    edges = torch.tensor([i / bins for i in range(1, bins)], dtype=kind, device=values.device)
    return torch.bucketize(values, edges.to(values.dtype))


def bin_outcomes(metric: str, confidence: Column, correct: Column, bins: int) -> list[Tensor]:
    """Examples, summed confidence and correct ones in each bin."""
    given = tensor_of(confidence)
    confidence, correct = read_outcomes(metric, given, correct, bins)
    weights = (torch.ones_like(confidence), confidence, correct)
    index = bin_of(confidence, bins, given.dtype)
    return [torch.bincount(index, weight, minlength=bins) for weight in weights]


def sort_with_ties(values: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """Values ascending, and the others in that order; within a tie each gets the tie's mean."""
    values, order = values.sort()
    _, tie, size = values.unique_consecutive(return_inverse=True, return_counts=True)
    if len(size) == len(values):
        return values, others[order]
    sums = torch.zeros(len(size), dtype=others.dtype, device=others.device).index_add_(0, tie, others[order])
    return values, (sums / size)[tie]


# ---------------------------------------------------------------- the table


@dataclass(frozen=True)
class Metric:
    """A row of METRICS.

    Args:
        needs: the columns it is a function of, in order
        task: "classification", "dense", "regression", "any"; "ood" and "shift" compare several predictions
        paper: where it comes from, or the convention that is followed
        each: for a mean over examples, what it is the mean of: columns in, (examples) out

    >>> METRICS["ece"].needs, METRICS["ece"].better
    (('confidence', 'correct'), 'lower')
    """

    function: Callable[..., float]
    needs: tuple[str, ...]
    better: Literal["higher", "lower", "neither"]
    task: Literal["classification", "dense", "regression", "any", "ood", "shift"]
    paper: str
    each: Callable[..., Tensor] | None = None


_SELECTIVE = ("msp", "error")

METRICS: dict[str, Metric] = {
    "accuracy": Metric(accuracy, ("label", "target"), "higher", "classification", "share of correct labels", torch.eq),
    "top_5": Metric(top_k, ("rank",), "higher", "classification", "Russakovsky et al. 2015"),
    "nll": Metric(
        nll, ("log_likelihood",), "lower", "any", "Lakshminarayanan et al. 2017; of the mean probability", torch.neg
    ),
    "brier": Metric(
        brier, ("squared_error",), "lower", "classification", "Brier 1950; summed over classes", Tensor.double
    ),
    "ece": Metric(ece, ("confidence", "correct"), "lower", "classification", "Guo et al. 2017; 15 equal-width bins"),
    "adaptive_ece": Metric(
        adaptive_ece, ("confidence", "correct"), "lower", "classification", "Nguyen and O'Connor 2015; 15 bins"
    ),
    "classwise_ece": Metric(
        classwise_ece, ("class_bins",), "lower", "classification", "Kull et al. 2019; Nixon et al. 2019; 15 bins"
    ),
    "mce": Metric(mce, ("confidence", "correct"), "lower", "classification", "Naeini et al. 2015; 15 bins"),
    "aurc": Metric(aurc, _SELECTIVE, "lower", "classification", "Geifman and El-Yaniv 2017"),
    "e_aurc": Metric(e_aurc, _SELECTIVE, "lower", "classification", "Geifman et al. 2019; the exact best order"),
    "risk_at_90": Metric(risk_at_coverage, _SELECTIVE, "lower", "classification", "Geifman and El-Yaniv 2017"),
    "entropy": Metric(entropy, ("total",), "neither", "classification", "entropy of the mean"),
    "aleatoric": Metric(aleatoric, ("aleatoric",), "neither", "classification", "mean entropy; Depeweg et al. 2018"),
    "mutual_information": Metric(
        mutual_information, ("epistemic",), "neither", "classification", "Fort et al. 2019, JSD; IDMI and OODMI"
    ),
    "disagreement": Metric(disagreement, ("member_label",), "neither", "classification", "Havasi et al. 2021"),
    "disagreement_by_error": Metric(
        disagreement_by_error, ("member_label", "target"), "neither", "classification", "Durasov et al. 2021, eq. 7"
    ),
    "disagreement_with_base": Metric(
        disagreement_with_base, ("member_label", "target"), "neither", "classification", "Fort et al. 2019, section 4.3"
    ),
    "pairwise_kl": Metric(pairwise_kl, ("pairwise_kl",), "neither", "classification", "Havasi et al. 2021"),
    "mean_iou": Metric(mean_iou, ("label", "target"), "higher", "dense", "Everingham et al. 2010"),
    "auroc": Metric(auroc, ("inside", "outside"), "higher", "ood", "Hendrycks and Gimpel 2017"),
    "aupr": Metric(aupr, ("inside", "outside"), "higher", "ood", "Hendrycks and Gimpel 2017; average precision"),
    "fpr95": Metric(fpr95, ("inside", "outside"), "lower", "ood", "Liang et al. 2018"),
    "cacc": Metric(corruption_mean, ("values",), "higher", "shift", "Hendrycks and Dietterich 2019"),
    "cnll": Metric(corruption_mean, ("values",), "lower", "shift", "Ovadia et al. 2019"),
    "cece": Metric(corruption_mean, ("values",), "lower", "shift", "Ovadia et al. 2019"),
    "mean_corruption_error": Metric(
        mean_corruption_error, ("errors", "baseline"), "lower", "shift", "mCE; Hendrycks and Dietterich 2019"
    ),
    "rmse": Metric(rmse, ("mean", "target"), "lower", "regression", "root of the mean squared error"),
    "mae": Metric(mae, ("mean", "target"), "lower", "regression", "mean absolute error"),
    "crps": Metric(
        crps, ("crps",), "lower", "regression", "Grimit et al. 2006; closed form of a Gaussian mixture", Tensor.double
    ),
    "coverage": Metric(
        coverage, ("lower", "upper", "target"), "neither", "regression", "of 90 % intervals: 0.9 is right"
    ),
    "width": Metric(width, ("lower", "upper"), "lower", "regression", "of 90 % intervals"),
    "quantile_calibration": Metric(
        quantile_calibration, ("cumulative",), "lower", "regression", "Kuleshov et al. 2018; 19 quantiles"
    ),
}
