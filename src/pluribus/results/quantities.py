"""The quantities of a comparison: how each is read from a run, called and printed, and which way it is better."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from ..uncertainty.metrics import BINS, METRICS
from ..uncertainty.resampling import Interval, all_alike_interval, draw_weights
from .intervals import Spread
from .store import Group, Result, has_classes

FEW = 20  # test rows, below which resampling them says nothing


@dataclass(frozen=True)
class Quantity:
    """A column of the page's table."""

    title: str
    better: Literal["higher", "lower", "neither"]
    unit: str = ""
    digits: int | None = 3  # decimals in the table; None: three significant digits with k, M, G
    factor: float = 1  # what the stored value is multiplied with, such as 100 for shares shown in percent
    meaning: str = ""
    most: float = math.inf  # what no value exceeds; of a share it is 1


def quantity(name: str) -> Quantity:
    """The quantity of this name; a metric that has no line of its own below is shown by its name.

    "accuracy imagenet_r" is a metric on one variant, "rmse price" of one target, "auroc textures" on one OOD set.
    """
    if name in QUANTITIES:
        return QUANTITIES[name]
    metric, _, where = name.partition(" ")
    if where:
        return replace(quantity(metric), title=f"{quantity(metric).title}, {where}")
    better = METRICS[name].better if name in METRICS else "neither"
    meaning = METRICS[name].paper if name in METRICS else ""
    return Quantity(name.replace("_", " "), better, meaning=meaning)


def value(result: Result, name: str) -> float:
    """A quantity of one run, as it is stored; NaN where the run has none."""
    record = result.record
    metric, _, where = name.partition(" ")
    if name in SHIFT:
        found: Any = _shift(record, SHIFT[name])
    elif metric in OOD or metric in OWN_SCORE:
        found = _ood(record, metric, where)
    elif (part := name.partition("_"))[0] in PARTS:
        found = (record.get(part[0]) or {}).get(part[2])
    elif where:
        found = {**(record.get("variants") or {}), **(record.get("targets") or {})}.get(where, {}).get(metric)
    elif name == "training":
        found = (record.get("seconds") or {}).get("training")
    elif name in COSTS:
        found = next((cost for place in COSTS[name] if (cost := _look(record["cost"], place)) is not None), None)
    else:
        found = record["metrics"].get(name)
        found = found.get("value") if isinstance(found, dict) else found
    return float(found) if isinstance(found, (int, float)) else math.nan


def estimate(group: Group, name: str) -> Interval:
    """The mean over seeds, with an interval over seeds and test examples; of one seed the one that its run stored."""
    values = [number for run in group.runs if math.isfinite(number := value(run, name))]
    if not values:
        return Interval(math.nan)
    stored = [_stored_interval(run, name) for run in group.runs]
    if len(values) == 1:
        found = Interval(values[0], *stored[0][1:]) if len(stored) == 1 else Interval(values[0])
    else:
        halves = [max(one.value - one.low, one.high - one.value) for one in stored if one.known]
        rows = float(np.mean(np.square(halves))) / NORMAL**2 if len(halves) == len(values) else 0.0
        found = replace(Spread.over(values), rows=rows).interval()
    limits = _limits(name, group.record["task"])
    return Interval(found.value, max(found.low, limits[0]), min(found.high, limits[1])) if found.known else found


NORMAL = 1.96  # standard deviations from the middle to the end of a 95 % interval


def _stored_interval(run: Result, name: str) -> Interval:
    """The interval over examples that a run stored; one of no width is none."""
    stored = run.record["metrics"].get(name)
    ends = [stored.get(end) for end in ("low", "high")] if isinstance(stored, dict) else []
    found = Interval(value(run, name), *(float(end) if end is not None else math.nan for end in ends))
    if not found.known or found.high > found.low:
        return found
    rows, limits = len(run.columns.get("test/target", ())), _limits(name, run.record["task"])
    if quantity(name).unit != "%" or not rows:
        return Interval(found.value)
    exact = all_alike_interval(found.value, rows)
    return Interval(found.value, max(exact.low, limits[0]), min(exact.high, limits[1]))


def difference(first: Group, second: Group, name: str) -> Interval:
    """How much larger the quantity of the first group is, paired.

    Over the common seeds and, for metrics that are functions of the stored columns, over test examples (`Spread`). One
    seed without such columns has no interval, nor has a difference that is the same wherever one looks.
    """
    found = paired_spread(first, second, name)
    if found is None:
        return Interval(estimate(first, name).value - estimate(second, name).value)
    interval, rows = found.interval(), len(first.runs[0].columns.get("test/target", ()))
    if not interval.known and found.prior and quantity(name).unit == "%":
        return all_alike_interval(found.value, rows)  # every label alike
    return interval


def paired_spread(first: Group, second: Group, name: str) -> Spread | None:
    """The paired difference of two groups and what it varies with; None where they have no common seed."""
    one, other = first.by_seed, second.by_seed
    pairs = [(one[seed], other[seed]) for seed in one if seed in other]
    gaps = [gap for a, b in pairs if math.isfinite(gap := value(a, name) - value(b, name))]
    if not gaps or len(gaps) != len(pairs):
        return Spread.over(gaps) if len(gaps) >= 2 else None
    resampled = [_resample_examples(*pair, name) for pair in pairs]
    alike = [column for column in resampled if column is not None]
    targets = [np.asarray(pair[0].columns.get("test/target", ())) for pair in pairs]
    whole = len(alike) == len(pairs) and all(np.array_equal(targets[0], one) for one in targets)
    return Spread.over(gaps, np.stack(alike, 1) if whole else None)


def ood_score(result: Result) -> str:
    """The score that tells outside from inside data on the page: MSP, or the total variance, where stored."""
    scores = [score for found in (result.record.get("outside") or {}).values() for score in found]
    return next((score for score in ("msp", "total") if score in scores), scores[0] if scores else "")


def distance_groups(groups: Sequence[Group]) -> list[Group]:
    """The single network as rows of its own, each detecting OOD data by a distance in its features."""
    found = []
    for group in (one for one in groups if one.is_baseline):
        for kind, name in DISTANCES.items():
            sets = [scores for run in group.runs for scores in (run.record.get("outside") or {"": {}}).values()]
            if all(kind in scores for scores in sets):
                label, runs = f"{group.label} + {name}", []
                for run in group.runs:  # with this score in the place of the usual one
                    outside = {key: {ood_score(run): scores[kind]} for key, scores in run.record["outside"].items()}
                    runs.append(Result({**run.record, "label": label, "outside": outside}, run.columns, run.path))
                found.append(Group(label, tuple(runs)))
    return found


DISTANCES = {"neighbours": "kNN", "mahalanobis": "Mahalanobis"}  # of `pb.feature_distance`


def best(groups: Sequence[Group], name: str) -> Group | None:
    """The group with the best mean; None where no group has the quantity or no way is better."""
    found = [group for group in groups if math.isfinite(estimate(group, name).value)]
    way = quantity(name).better
    if not found or way == "neither":
        return None
    return (max if way == "higher" else min)(found, key=lambda group: estimate(group, name).value)


def _limits(name: str, task: str) -> tuple[float, float]:
    """What the quantity cannot exceed, so that its interval ends there: only the NLL of densities can be negative."""
    low = -math.inf if quantity(name).title.endswith("NLL") and not has_classes(task) else 0.0
    return low, 1.0 if quantity(name).unit == "%" else quantity(name).most


# ---------------------------------------------------------------- printing


def format_value(number: float, name: str) -> str:
    """A value as the table shows it, without its unit.

    >>> format_value(0.97249, "accuracy"), format_value(61706, "parameters"), format_value(float("nan"), "nll")
    ('97.25', '61.7 k', '–')
    """
    kind = quantity(name)
    if not math.isfinite(number):
        return "–" if math.isnan(number) else ("∞" if number > 0 else "−∞")
    number *= kind.factor
    return format_short(number) if kind.digits is None else format_fixed(number, kind.digits)


def format_fixed(number: float, digits: int) -> str:
    """A number with this many decimals, a typographic minus, and no minus before zero."""
    text = f"{number:.{digits}f}"
    return text.lstrip("-") if not text.strip("-0.") else text.replace("-", "−")


def format_short(number: float) -> str:
    """Three significant digits: 61.7 k, 1.20 M, 0.0123."""
    if number == 0 or not math.isfinite(number):
        return f"{number:g}"
    steps = ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k"))
    step, suffix = next((pair for pair in steps if abs(number) >= 0.9995 * pair[0]), (1.0, ""))
    number /= step
    digits = max(0, 2 - math.floor(math.log10(abs(number) * 1.0005)))
    return format_fixed(number, min(digits, 6)) + suffix


def format_interval(found: Interval, name: str) -> str:
    """A value with its interval and unit, with as many decimals as the interval supports: "0.112 [0.108, 0.117]"."""
    kind, factor = quantity(name), quantity(name).factor
    unit = f" {kind.unit}" if kind.unit else ""
    if not found.known or (kind.digits is None and found.low == found.high):  # a count that is the same in all runs
        return format_value(found.value, name) + unit
    if kind.digits is None:
        return f"{format_short(found.value)}{unit} [{format_short(found.low)}, {format_short(found.high)}]"
    half = max((found.high - found.low) / 2 * factor, 1e-12)
    digits = min(max(math.ceil(-math.log10(half / 2)), 1 if factor == 100 else 2), 2 if factor == 100 else 4)
    while digits < 4 and found.low * found.high > 0 and not min(map(abs, found[1:])) * factor >= 0.5 * 10**-digits:
        digits += 1  # an end that is not zero does not print as zero
    shown = [format_fixed(number * factor, digits) for number in found]
    return shown[0] + unit + (f" [{shown[1]}, {shown[2]}]" if shown[1] != shown[2] else "")


# ---------------------------------------------------------------- reading


def _look(found: Any, place: str) -> Any:
    """What stands at a place such as "deployed latency 32", or None."""
    for key in place.split():
        found = (found or {}).get(key)
    return found


def _shift(record: dict[str, Any], name: str) -> float | None:
    rows = [row for corruption in (record.get("shift") or {}).values() for row in corruption]
    values = [row[name] for row in rows if row.get("severity", 1) > 0 and isinstance(row.get(name), (int, float))]
    return float(np.mean(values)) if values else None


def _ood(record: dict[str, Any], name: str, where: str = "") -> float | None:
    score, name = ood_score(Result(record)), OWN_SCORE.get(name, name) if (own := name in OWN_SCORE) else name
    if own and record["cost"].get("forward_passes") != 1:  # members that answer in one pass have the network's score
        score = "mutual_information"
    sets = {key: scores for key, scores in (record.get("outside") or {}).items() if where in ("", key)}
    found = [scores[score][name] for scores in sets.values() if name in scores.get(score, {})]
    return float(np.mean(found)) if found else None


def _resample_examples(first: Result, second: Result, name: str) -> np.ndarray | None:
    """A difference when test examples are drawn again, where both runs stored the columns for it: (resamples).

    All pixels of an image, and all targets of a row (`block`), are drawn together.
    """
    part, table = ("images", IMAGE_STATISTICS) if first.record["task"] == "segmentation" else ("test", STATISTICS)
    if name not in table:
        return None
    needs, statistic = table[name]
    names = [f"{part}/{need}" for need in needs]
    if not all({*names, "test/target"} <= run.columns.keys() for run in (first, second)):
        return None
    columns = [np.asarray(run.columns[name]) for run in (first, second) for name in names]
    targets, half = [run.columns["test/target"] for run in (first, second)], len(names)
    rows, rest = divmod(len(columns[0]), block := int(first.record.get("block") or 1))
    alike = len({len(column) for column in columns}) == 1 and np.array_equal(targets[0], targets[1])
    if rest or rows < FEW or not alike:
        return None
    if not all(np.isfinite(column).all() for column in columns):
        return None

    def gap(weights: np.ndarray) -> np.ndarray:
        weights = np.repeat(weights, block, axis=1) if block > 1 else weights
        return statistic(weights, *columns[:half]) - statistic(weights, *columns[half:])

    found = np.concatenate([gap(weights) for weights in draw_weights(rows)])
    return found if np.isfinite(found).all() else None


def _mean(weights: np.ndarray, column: np.ndarray) -> np.ndarray:
    return weights @ column.astype(np.float64) / weights.sum(1)


def _accuracy(weights: np.ndarray, label: np.ndarray, target: np.ndarray) -> np.ndarray:
    return _mean(weights, label == target)


def _ece(weights: np.ndarray, confidence: np.ndarray, label: np.ndarray, target: np.ndarray) -> np.ndarray:
    bins = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
    gaps = np.zeros((len(confidence), BINS))
    gaps[np.arange(len(confidence)), bins] = confidence - (label == target)
    return np.abs(weights @ gaps).sum(1) / weights.sum(1)


Statistic = Callable[..., np.ndarray]

STATISTICS: dict[str, tuple[tuple[str, ...], Statistic]] = {
    "nll": (("log_likelihood",), lambda weights, column: -_mean(weights, column)),
    "accuracy": (("label", "target"), _accuracy),
    "ece": (("confidence", "label", "target"), _ece),
    "rmse": (("mean", "target"), lambda weights, mean, target: np.sqrt(_mean(weights, (mean - target) ** 2))),
    "mae": (("mean", "target"), lambda weights, mean, target: _mean(weights, np.abs(mean - target))),
}


def _ratio(weights: np.ndarray, sums: np.ndarray, pixels: np.ndarray) -> np.ndarray:
    return weights @ sums.astype(np.float64) / np.maximum(weights @ pixels.astype(np.float64), 1)


def _mean_iou(weights: np.ndarray, both: np.ndarray, either: np.ndarray) -> np.ndarray:
    """Over the classes that occur in labels or targets."""
    both, either = weights @ both.astype(np.float64), weights @ either.astype(np.float64)
    return (both / np.maximum(either, 1)).sum(1) / np.maximum((either > 0).sum(1), 1)


IMAGE_STATISTICS: dict[str, tuple[tuple[str, ...], Statistic]] = {  # of sums over the pixels of each image
    "nll": (("log_likelihood", "pixels"), lambda weights, sums, pixels: -_ratio(weights, sums, pixels)),
    "accuracy": (("correct", "pixels"), _ratio),
    "brier": (("squared_error", "pixels"), _ratio),
    "ece": (("gaps", "pixels"), lambda w, gaps, pixels: np.abs(w @ gaps).sum(1) / np.maximum(w @ pixels, 1)),
    "mean_iou": (("both", "either"), _mean_iou),
}

# ---------------------------------------------------------------- the table

SHIFT = {"cacc": "accuracy", "cnll": "nll", "cece": "ece"}
OOD = ("auroc", "aupr", "fpr95")
PARTS = ("train", "scaled")  # "train_accuracy": on training rows; "scaled_nll": after temperature scaling
OWN_SCORE = {f"{name}_mi": name for name in OOD}  # by mutual information, as Packed-Ensembles judges on ImageNet
_OWN = "by mutual information; single network and MIMO: MSP"
_ECE = Quantity("ECE", "lower", "", 4, 1, "expected calibration error: |confidence − accuracy|, 15 bins", most=1)
_SHARE = Quantity("Accuracy", "higher", "%", 2, 100, "share of test examples with the right label")

COSTS = {  # where each is stored; records of earlier versions know nothing of deployed costs
    "parameters": ["parameters"],
    "mult_adds": ["deployed mult_adds", "mult_adds"],
    "memory": ["deployed memory"],
    "latency": ["deployed latency 32", "latency"],
    "latency_1": ["deployed latency 1"],
    "relative_parameters": ["relative parameters"],
    "relative_mult_adds": ["deployed relative mult_adds", "relative mult_adds"],
    "relative_latency": ["deployed relative latency 32", "relative latency"],
    "relative_latency_1": ["deployed relative latency 1"],
    "plain_latency": ["deployed relative plain_latency 32"],
    "relative_training": ["relative training"],
    "unfrozen_mult_adds": ["relative mult_adds"],
    "unfrozen_latency": ["relative latency"],
}

QUANTITIES: dict[str, Quantity] = {
    "accuracy": _SHARE,
    "mean_iou": Quantity("mIoU", "higher", "%", 2, 100, "intersection over union, mean over the classes"),
    "nll": Quantity("NLL", "lower", meaning="negative log-likelihood of the mean prediction: punishes overconfidence"),
    "brier": Quantity("Brier", "lower", most=2, meaning="squared error of the probabilities, summed over classes"),
    "ece": _ECE,
    "aurc": Quantity("AURC", "lower", digits=4, most=1, meaning="area under the risk-coverage curve"),
    "rmse": Quantity("RMSE", "lower", meaning="root of the mean squared error"),
    "mae": Quantity("MAE", "lower", meaning="mean absolute error"),
    "crps": Quantity("CRPS", "lower", meaning="continuous ranked probability score"),
    "coverage": Quantity("Coverage", "neither", "%", 1, 100, "of the 90 % intervals: 90 is right"),
    "width": Quantity("Width", "lower", meaning="mean width of the 90 % intervals"),
    "quantile_calibration": Quantity("Quantile error", "lower", meaning="mean |share below − level| of 19 quantiles"),
    "auroc": Quantity("AUROC OOD", "higher", "%", 1, 100, "how well out-of-distribution (OOD) data are detected"),
    "aupr": Quantity("AUPR OOD", "higher", "%", 1, 100, "average precision for out-of-distribution data"),
    "fpr95": Quantity("FPR95 OOD", "lower", "%", 1, 100, "share of test data rejected when 95 % of OOD data are"),
    "auroc_mi": Quantity("AUROC OOD (MI)", "higher", "%", 1, 100, _OWN),
    "aupr_mi": Quantity("AUPR OOD (MI)", "higher", "%", 1, 100, _OWN),
    "fpr95_mi": Quantity("FPR95 OOD (MI)", "lower", "%", 1, 100, _OWN),
    "cacc": replace(_SHARE, title="cAcc", meaning="accuracy, mean over corruptions and severities"),
    "cnll": Quantity("cNLL", "lower", meaning="NLL, mean over corruptions and severities"),
    "cece": replace(_ECE, title="cECE", meaning="ECE, mean over corruptions and severities"),
    "train_accuracy": replace(_SHARE, title="Training accuracy", meaning="on up to 1,000 of the training rows"),
    "train_nll": Quantity("Training NLL", "lower", meaning="on up to 1,000 of the training rows"),
    "scaled_nll": Quantity("NLL, scaled", "lower", meaning="after temperature scaling on calibration rows"),
    "scaled_ece": replace(_ECE, title="ECE, scaled", meaning="after temperature scaling on calibration rows"),
    "accuracy_among_known": replace(_SHARE, title="Accuracy among known", meaning="only classes that can be right"),
    "anchor_accuracy": replace(_SHARE, title="Anchors", meaning="share of anchor frames with a right label (pm-0)"),
    "stable_accuracy": replace(_SHARE, title="Stable", meaning="sets of similar frames that are all right (pm-k)"),
    "accuracy_drop": Quantity("Drop", "lower", "%", 2, 100, "anchors that are right though nearby frames are not"),
    "anchor_accuracy_among_known": replace(_SHARE, title="Anchors among known", meaning="of classes that can be right"),
    "stable_accuracy_among_known": replace(_SHARE, title="Stable among known", meaning="of classes that can be right"),
    "accuracy_drop_among_known": Quantity("Drop among known", "lower", "%", 2, 100, "of classes that can be right"),
    "disagreement": Quantity("Disagreement", "neither", "%", 2, 100, "how often two members give different labels"),
    "mutual_information": Quantity("Mutual information", "neither", "nats", 4, meaning="mean epistemic uncertainty"),
    "parameters": Quantity("Parameters", "lower", digits=None, meaning="numbers stored"),
    "mult_adds": Quantity("Mult-adds", "lower", digits=None, meaning="of one prediction, once frozen"),
    "memory": Quantity("Memory", "lower", "MB", 1, 1e-6, "weights and the most results alive at once, 32 rows, frozen"),
    "latency": Quantity("Latency", "lower", "ms", 2, 1000, "time of a batch of 32 rows once frozen, on this machine"),
    "latency_1": Quantity("Latency of one row", "lower", "ms", 2, 1000, "once frozen, on this machine"),
    "relative_parameters": Quantity("Parameters", "lower", "×", 2, meaning="relative to the single network"),
    "relative_mult_adds": Quantity("Mult-adds", "lower", "×", 2, meaning="once frozen, relative to the single network"),
    "relative_latency": Quantity("Time", "lower", "×", 2, meaning="of 32 rows, frozen, relative to the single network"),
    "relative_latency_1": Quantity("Time, 1 row", "lower", "×", 2, meaning="frozen, relative to the single network"),
    "plain_latency": Quantity("Time to PyTorch", "lower", "×", 2, meaning="relative to the network before freezing"),
    "relative_training": Quantity(
        "Training cost", "lower", "×", 2, meaning="of an epoch, relative to the single network"
    ),
    "unfrozen_mult_adds": Quantity("Mult-adds, unfrozen", "lower", "×", 2, meaning="relative to the single network"),
    "unfrozen_latency": Quantity("Time, unfrozen", "lower", "×", 2, meaning="relative to the single network"),
    "training": Quantity("Training", "lower", "s", 1, meaning="seconds to train"),
}
