"""Predictions against targets, outside data and each other: every figure of a table, and how sure it is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .checks import tensor_of
from .classification import Classification
from .metrics import METRICS, Metric, aupr, auroc, fpr95
from .prediction import Prediction
from .resampling import LEVEL, RESAMPLES, Interval, all_alike_interval, draw_swaps, percentile_interval, resample
from .summary import Summary

Target = Tensor | np.ndarray | Sequence[int] | Sequence[float] | None


def evaluate(
    prediction: Prediction | Summary,
    target: Target = None,
    *,
    metrics: Sequence[str] | None = None,
    ignore: int | None = None,
) -> dict[str, float]:
    """Every metric that applies to the prediction, or those named, by name; `METRICS` says whether higher is better.

    Without targets: what needs none, such as entropy, mutual information and disagreement.

    Shapes:
        prediction: (members, batch, ..., classes); target: (batch, ...)

    Args:
        prediction: a `Classification` or `Regression`, or a `Summary`, which holds its own targets
        metrics: names in METRICS; by default all that fit
        ignore: a target that is left out, such as 255 in segmentation; -100 always is

    >>> p = pb.Classification.from_logits(torch.tensor([[[2.0, 0.0], [0.0, 1.0]]]))
    >>> evaluate(p, torch.tensor([0, 0]), metrics=["accuracy"])
    {'accuracy': 0.5}
    """
    summary = _summary("evaluate", prediction, target, ignore)
    names = _possible(summary) if metrics is None else metrics
    return {name: _value("evaluate", summary, name) for name in names}


def by_member(
    prediction: Prediction | Summary, target: Target = None, *, metrics: Sequence[str] | None = None
) -> dict[str, dict[str, float]]:
    """The ensemble and its members: {"ensemble": ..., "mean": ..., "member 0": ..., ...}, as `evaluate` gives them.

    "mean" is the mean over members: what the ensemble has to beat. Metrics that compare members are left out.

    Shapes:
        prediction: (members, batch, classes); target: (batch)

    Args:
        metrics: names in METRICS; by default all that fit

    >>> p = pb.Classification.from_logits(torch.tensor([[[2.0, 0.0]], [[0.0, 1.0]]]))
    >>> {who: row["accuracy"] for who, row in by_member(p, torch.tensor([0])).items()}
    {'ensemble': 1.0, 'mean': 0.5, 'member 0': 1.0, 'member 1': 0.0}
    """
    summary = _summary("by_member", prediction, target)
    members = [summary.member(i) for i in range(summary.size)]
    names = _possible(members[0]) if metrics is None else metrics
    names = [name for name in names if name not in METRICS or not OF_SEVERAL & set(METRICS[name].needs)]
    rows = [{name: _value("by_member", one, name) for name in names} for one in (summary, *members)]
    mean = {name: sum(row[name] for row in rows[1:]) / len(members) for name in names}
    return {"ensemble": rows[0], "mean": mean, **{f"member {i}": row for i, row in enumerate(rows[1:])}}


def ood(inside: Prediction | Summary, outside: Prediction | Summary, score: str = "msp") -> dict[str, float]:
    """How well an uncertainty separates out-of-distribution data (the positives) from data like that of training.

    Shapes:
        inside, outside: (members, rows of each, classes)

    Args:
        score: one of `Classification.score`; for a `Regression` "total", "aleatoric" or "epistemic"

    >>> inside = pb.Classification.from_logits(torch.tensor([[[4.0, 0.0], [0.0, 5.0]]]))
    >>> outside = pb.Classification.from_logits(torch.tensor([[[0.1, 0.0], [0.0, 0.2]]]))
    >>> ood(inside, outside)
    {'auroc': 1.0, 'aupr': 1.0, 'fpr95': 0.0}
    """
    inner, outer = _summary("ood", inside), _summary("ood", outside)
    if inner.classes != outer.classes:
        raise ValueError(
            f"ood: inside and outside must be predictions of the same classes, but they have {inner.classes} and "
            f"{outer.classes}."
        )
    scores = inner.score(score), outer.score(score)
    return {"auroc": auroc(*scores), "aupr": aupr(*scores), "fpr95": fpr95(*scores)}


def shift(
    results: Mapping[str, Sequence[Mapping[str, float]]],
    baseline: Mapping[str, Sequence[Mapping[str, float]]] | None = None,
) -> dict[str, float]:
    """cAcc, cNLL, cECE over corruptions and severities, and mCE relative to a baseline's results.

    Args:
        results: for each corruption, what `evaluate` gave at each severity
        baseline: the same of the network that mCE is relative to

    >>> shift({"fog": [{"accuracy": 0.9}, {"accuracy": 0.7}]}, {"fog": [{"accuracy": 0.8}, {"accuracy": 0.6}]})
    {'cacc': 0.8, 'mean_corruption_error': 0.66...}
    """
    names = {"accuracy": "cacc", "nll": "cnll", "ece": "cece"}
    known = [name for name in names if all(name in row for rows in results.values() for row in rows)]
    values = {names[name]: METRICS[names[name]].function(_table(results, name)) for name in known}
    if baseline is not None:
        if list(baseline) != list(results):
            raise ValueError(
                f"shift: the baseline must have the same corruptions, {list(results)}, but it has {list(baseline)}."
            )
        errors = [1 - tensor_of(_table(rows, "accuracy")) for rows in (results, baseline)]
        values["mean_corruption_error"] = METRICS["mean_corruption_error"].function(*errors)
    return values


def answered(
    prediction: Classification | Summary, target: Target, answers: Tensor, *, among: Literal["all", "known"] = "all"
) -> Tensor:
    """Whether each label is one of those that count as right, for targets from another set of classes: (batch).

    Args:
        prediction: of all classes that the network knows
        target: for each row its row of `answers`
        answers: (kinds, classes), bool: the classes that are right for each kind, as ObjectNet and videos have them
        among: "all": the most probable of all classes is the label; "known": of those that are right for some kind,
            as the published scripts for videos have it

    >>> p = pb.Classification.from_logits(torch.tensor([[[2.0, 0.0, 1.0], [0.0, 1.0, 3.0]]]))
    >>> answers = torch.tensor([[True, True, False]])  # the classes 0 and 1 are one kind
    >>> answered(p, [0, 0], answers).tolist(), answered(p, [0, 0], answers, among="known").tolist()
    ([True, False], [True, True])
    """
    kinds, table, label = tensor_of(target), tensor_of(answers).bool(), prediction.label
    if table.ndim != 2 or table.shape[1] != prediction.classes:
        raise ValueError(
            f"answered: answers must be (kinds, {prediction.classes} classes), but their shape is {tuple(table.shape)}."
        )
    if kinds.shape != label.shape or not bool(((kinds >= 0) & (kinds < len(table))).all()):
        raise ValueError(
            f"answered: needs a target from 0 to {len(table) - 1} for each of {tuple(label.shape)} labels, but the "
            f"shape is {tuple(kinds.shape)} or a target is out of range."
        )
    if among == "known":
        if not isinstance(prediction, Classification):
            raise TypeError('answered: among="known" needs the probabilities of all classes: give a Classification.')
        classes_last = prediction.log_mean.movedim(prediction.class_dim, -1)
        label = classes_last.masked_fill(~table.any(0), -math.inf).argmax(-1)
    return table[kinds.long(), label]


def stability(
    right: Tensor | np.ndarray | Sequence[bool], sets: Tensor | np.ndarray | Sequence[int]
) -> dict[str, float]:
    """How accuracy holds over sets of similar frames, of which the first row is the anchor (Shankar et al., 2021).

    "anchor_accuracy": share of anchors that are right (pm-0); "stable_accuracy": share of sets of which every frame is
    (pm-k, of frames up to k steps from the anchor); "accuracy_drop": their difference.

    Shapes:
        right, sets: (rows)

    Args:
        right: whether each row is right, as `answered` says
        sets: the number of the set of each row

    >>> stability([True, True, True, False, False, True], [0, 0, 1, 1, 2, 2])
    {'anchor_accuracy': 0.66..., 'stable_accuracy': 0.33..., 'accuracy_drop': 0.33...}
    """
    hits, numbers = tensor_of(right).bool(), tensor_of(sets)
    if hits.ndim != 1 or hits.shape != numbers.shape or not len(hits):
        raise ValueError(
            f"stability: needs one set for each row, and at least one row, but there are {tuple(hits.shape)} "
            f"rows and {tuple(numbers.shape)} sets."
        )
    groups = [hits[numbers == number] for number in numbers.unique()]
    anchor = sum(group[0].item() for group in groups) / len(groups)
    stable = sum(group.all().item() for group in groups) / len(groups)
    return {"anchor_accuracy": anchor, "stable_accuracy": stable, "accuracy_drop": anchor - stable}


class Comparison(NamedTuple):
    """A difference, the ends of its confidence interval, and how probable one as large is between equals."""

    difference: float
    low: float
    high: float
    p_value: float


def bootstrap(
    prediction: Prediction | Summary,
    target: Target = None,
    *,
    metric: str = "accuracy",
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    generator: torch.Generator | None = None,
) -> Interval:
    """A metric with its bootstrap confidence interval: percentiles over resampled examples (Efron 1979).

    The percentiles are moved by the bootstrap's own estimate of its bias: resampling makes an ECE larger than it is,
    so that plain percentiles can miss the value itself. All pixels or outputs of one row of the batch are drawn
    together; labels of -100 are ignored. An infinite NLL has an interval without an upper end. Default generator:
    seed 0.

    Shapes:
        prediction: (members, batch, classes); target: (batch)

    Args:
        metric: a name in METRICS
        level: the probability of the interval
        resamples: how often examples are drawn again

    >>> p = pb.Classification.from_probabilities(torch.tensor([[[0.9, 0.1]]]).repeat(1, 50, 1))
    >>> value, low, high = bootstrap(p, torch.arange(50) // 40, metric="accuracy", resamples=200)
    >>> value, low < value < high
    (0.8, True)
    """
    summary = _summary("bootstrap", prediction, target)
    entry = _metric("bootstrap", summary, metric)
    (columns,) = _resampled_columns("bootstrap", metric, level, resamples, summary)
    generator = generator or torch.Generator().manual_seed(0)
    value = entry.function(*columns)  # and its checks of the columns
    if entry.each is None:
        values = resample(entry.function, columns, summary.row, resamples, generator)
    else:
        each = entry.each(*columns).cpu().double()
        if value in (0.0, 1.0) and bool((each == value).all()):  # 100 of 100 right: resamples are all alike
            exact = all_alike_interval(value, len(summary.row.unique()), level)
            return Interval(value, max(exact.low, 0.0), min(exact.high, 1.0))
        values = resample(lambda drawn: drawn.mean().item(), [each], summary.row, resamples, generator)
    bias = values.mean() - value if math.isfinite(value) else 0.0
    return percentile_interval(value, values - bias, level)


def compare(
    first: Prediction | Summary,
    second: Prediction | Summary,
    target: Target = None,
    *,
    metric: str = "accuracy",
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    generator: torch.Generator | None = None,
) -> Comparison:
    """The difference first - second of a metric on the same examples, and whether it is significant.

    The interval is a paired bootstrap; the p-value that of a paired permutation test, in which the two predictions
    of an example change places by chance: (1 + as large ones) / (1 + resamples). Default generator: seed 0.

    Where a metric is infinite for one of them, so is the difference. If it is infinite for both, two different
    predictions raise an error, since the metric does not show how they differ.

    Shapes:
        first, second: (members, batch, classes), of any numbers of members; target: (batch)

    Args:
        metric: a name in METRICS
        level: the probability of the interval
        resamples: how often examples are drawn again, and change places

    >>> target = torch.arange(60) % 2
    >>> good = pb.Classification.from_logits(nn.functional.one_hot(target, 2)[None] * torch.linspace(2, 4, 60)[:, None])
    >>> found = compare(good, pb.Classification.from_logits(torch.zeros(1, 60, 2)), target, metric="nll", resamples=100)
    >>> found.high < 0, found.p_value < 0.05  # the first has the lower NLL
    (True, True)
    """
    one, two = _summary("compare", first, target), _summary("compare", second, target)
    _check_paired(one, two)
    function = _metric("compare", one, metric).function
    columns = list(zip(*_resampled_columns("compare", metric, level, resamples, one, two), strict=True))
    if any(a.shape != b.shape for a, b in columns):
        raise ValueError(
            f"compare: {metric} needs equally many members in both, but there are {one.size} and {two.size}."
        )
    generator = generator or torch.Generator().manual_seed(0)

    def difference(*alternating: Tensor) -> float:
        first, second = function(*alternating[::2]), function(*alternating[1::2])
        return 0.0 if first == second else first - second  # two may be infinite

    alternating = [column for pair in columns for column in pair]
    values = function(*alternating[::2]), function(*alternating[1::2])
    if not any(map(math.isfinite, values)) and not all(torch.equal(a, b) for a, b in columns):
        raise ValueError(
            f"compare: {metric} must be finite for at least one of the predictions, but it is {values[0]} and "
            f'{values[1]}: they give targets probability 0. Compare another metric, such as "brier", or predictions '
            "with probabilities above zero, as of pb.calibrate."
        )
    resampled = resample(difference, alternating, one.row, resamples, generator)
    observed, at_least = difference(*alternating), 0
    for swap in draw_swaps(one.row, resamples, generator):
        swapped = difference(*(torch.where(swap, *pair) for a, b in columns for pair in ((b, a), (a, b))))
        at_least += abs(swapped) >= abs(observed) * (1 - 1e-9)
    return Comparison(*percentile_interval(observed, resampled, level), (1 + at_least) / (1 + resamples))


# ---------------------------------------------------------------- helpers


def _summary(name: str, prediction: Any, target: Target = None, ignore: int | None = None) -> Summary:
    if isinstance(prediction, Summary):
        if target is not None or ignore is not None:
            raise ValueError(
                f"{name}: a Summary holds its own targets, but other targets were given. Predict from a loader of (x, "
                "y), or make it with Summary(prediction, target, ignore)."
            )
        return prediction
    if not isinstance(prediction, Prediction):
        raise TypeError(
            f"{name}: needs a Classification, Regression or Summary, but got a {type(prediction).__name__}. "
            "Make one with ensemble.predict(x) or Classification.from_probabilities(p)."
        )
    return Summary(prediction, None if target is None else tensor_of(target), ignore)


def _tasks(summary: Summary) -> set[str]:
    dense = {"dense"} if summary.dense else set()
    return {"any", "classification", *dense} if summary.classes else {"any", "regression"}


def _possible(summary: Summary) -> list[str]:
    """The metrics whose columns the summary has."""
    tasks, names = _tasks(summary), set(summary.names)
    return [name for name, entry in METRICS.items() if entry.task in tasks and set(entry.needs) <= names]


def _metric(caller: str, summary: Summary, name: str) -> Metric:
    tasks = _tasks(summary) | ({"dense"} if summary.classes else set())
    if name not in METRICS:
        known = ", ".join(n for n, entry in METRICS.items() if entry.task in tasks)
        raise ValueError(f"{caller}: the metric {name!r} is unknown. Choose from {known}.")
    entry = METRICS[name]
    names = summary.names
    missing = [need for need in entry.needs if need not in names]
    if entry.task not in tasks or missing:
        kind = "classification" if summary.classes else "regression"
        use = {"ood": " Use ood(inside, outside).", "shift": " Use shift(results)."}.get(entry.task, "")
        use = use or (" Give the targets." if "target" not in names else "")
        raise ValueError(
            f"{caller}: {name} is a metric for {entry.task} and needs {', '.join(entry.needs)}, but this {kind} has "
            f"{'no ' + ', '.join(missing) if missing else 'another meaning of them'}.{use}"
        )
    return entry


OF_SEVERAL = {"member_label", "pairwise_kl", "epistemic"}  # columns in which members are compared


def _value(caller: str, summary: Summary, name: str) -> float:
    entry = _metric(caller, summary, name)
    return entry.function(*(getattr(summary, need) for need in entry.needs))


def _resampled_columns(
    caller: str, metric: str, level: float, resamples: int, *summaries: Summary
) -> list[list[Tensor]]:
    """The columns that are resampled, of each summary."""
    needs = _metric(caller, summaries[0], metric).needs
    if "class_bins" in needs:
        raise ValueError(f"{caller}: {metric} cannot be computed on resampled examples. Choose ece or adaptive_ece.")
    if not 0 < level < 1 or resamples < 1:
        raise ValueError(
            f"{caller}: level must be between 0 and 1 and resamples at least 1, but they are {level} and {resamples}."
        )
    return [[getattr(one, need) for need in needs] for one in summaries]


def _table(results: Mapping[str, Sequence[Mapping[str, float]]], name: str) -> list[list[float]]:
    lengths = {corruption: len(rows) for corruption, rows in results.items()}
    if not results or len(set(lengths.values())) != 1 or 0 in lengths.values():
        raise ValueError(f"shift: every corruption must have the same severities, but there are {lengths}.")
    return [[row[name] for row in rows] for rows in results.values()]


def _check_paired(one: Summary, two: Summary) -> None:
    if one.classes != two.classes or not torch.equal(one.row, two.row):
        raise ValueError(
            "compare: both predictions must be for the same examples and classes, but there are "
            f"{len(one)} with {one.classes} and {len(two)} with {two.classes}."
        )
    if "target" in one.names and "target" in two.names and not torch.equal(one.target, two.target):
        where = int((one.target != two.target).nonzero()[0])
        raise ValueError(
            f"compare: the targets of both must be equal, but differ at {where}. Do not shuffle the loader."
        )
