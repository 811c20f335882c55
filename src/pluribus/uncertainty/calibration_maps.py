"""Maps from probabilities to calibrated ones, and how each is fitted: CALIBRATIONS at the foot."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .outputs import log_mean_exp
from .regression import Regression

TEMPERATURES = (0.05, 10_000.0)  # the limits of the search; the lower one is reached when every label is right


@dataclass(frozen=True)
class Temperature:
    """Log probabilities divided by one number."""

    value: float

    def __call__(self, log_p: Tensor) -> Tensor:
        """The calibrated log probabilities."""
        return (log_p / self.value).log_softmax(-1)

    def explain(self) -> str:
        """What the map does, in one line."""
        limit = next((name for name, t in zip(("lower", "upper"), TEMPERATURES, strict=True) if t == self.value), None)
        return f"divided by {self.value:.4g}" + (f", the {limit} limit of the search" if limit else "")


class Unchanged(Temperature):
    """The log probabilities as they are."""

    def explain(self) -> str:
        """What the map does, in one line."""
        return "the probabilities as they are"


@dataclass(frozen=True)
class Vector:
    """Log probabilities times one weight for each class, plus one bias for each class."""

    weights: Tensor
    biases: Tensor

    def __call__(self, log_p: Tensor) -> Tensor:
        """The calibrated log probabilities."""
        _check_classes(len(self.weights), log_p)
        return (log_p * self.weights.to(log_p) + self.biases.to(log_p)).log_softmax(-1)

    def explain(self) -> str:
        """What the map does, in one line."""
        w, b = self.weights, self.biases
        return f"weights {w.min():.4g} to {w.max():.4g}, biases {b.min():.4g} to {b.max():.4g}"


@dataclass(frozen=True)
class Isotonic:
    """One increasing map for each class, with one example's worth of the uncalibrated probability; renormalised."""

    maps: list[tuple[np.ndarray, np.ndarray]] = field(repr=False)
    examples: int

    def __call__(self, log_p: Tensor) -> Tensor:
        """The calibrated log probabilities."""
        _check_classes(len(self.maps), log_p)
        p = log_p.detach().double().exp()  # steps have no gradient
        columns = [np.interp(p[..., c].cpu().numpy(), x, y) for c, (x, y) in enumerate(self.maps)]
        mapped = torch.from_numpy(np.stack(columns, -1)).to(p.device)
        share = 1 / (self.examples + 1)  # or a class unseen at this probability would be impossible
        mixed = mapped * (1 - share) + p * share
        return (mixed / mixed.sum(-1, keepdim=True)).clamp_min(torch.finfo(torch.float64).tiny).log()

    def explain(self) -> str:
        """What the map does, in one line."""
        steps = sum(len(x) for x, _ in self.maps) / len(self.maps)
        return f"one increasing map for each of {len(self.maps)} classes, {steps:.0f} knots on average"


@dataclass(frozen=True)
class Variance:
    """The mixture's variance times one factor, with its parts; the mean stays."""

    factor: float

    def __call__(self, prediction: Regression) -> Regression:
        """The prediction with scaled variances."""
        spread = math.sqrt(self.factor) * (prediction.means - prediction.mean)
        variances = None if prediction.variances is None else prediction.variances * self.factor
        return Regression(prediction.mean + spread, variances)

    def explain(self) -> str:
        """What the map does, in one line."""
        return f"variances times {self.factor:.4g}"


# ---------------------------------------------------------------- fitting: (members, examples, classes), (examples)


def fit_temperature(log_p: Tensor, target: Tensor) -> Temperature:
    """The temperature with the lowest NLL of the pooled members.

    The NLL of one member is convex in the inverse temperature, that of several need not be: a grid finds the valley,
    Newton steps that stay inside it its floor.
    """
    grid = np.geomspace(1 / TEMPERATURES[1], 1 / TEMPERATURES[0], 25)
    some = slice(None, None, 1 + log_p.numel() // 4_000_000)
    valley = int(np.argmin([_slopes(log_p[:, some], target[some], s)[0] for s in grid]))
    low, inverse, high = grid[max(valley - 1, 0)], grid[valley], grid[min(valley + 1, len(grid) - 1)]
    best = math.inf, inverse
    for _ in range(100):
        value, slope, curvature = _slopes(log_p, target, inverse)
        best = min(best, (value, inverse))
        low, high = (low, inverse) if slope > 0 else (inverse, high)
        newton = inverse - slope / curvature if curvature > 0 else -1.0
        last, inverse = inverse, newton if low < newton < high else math.sqrt(low * high)
        if abs(inverse / last - 1) < 1e-10:
            break
    found = 1 / float(best[1])
    return Temperature(next((limit for limit in TEMPERATURES if abs(found / limit - 1) < 1e-9), found))


def fit_vector(log_p: Tensor, target: Tensor) -> Vector:
    """Weights and biases with the lowest NLL of the pooled members, under a prior that one example outweighs.

    The prior, a normal one of width 1 around the best temperature and zero biases, keeps classes that the
    validation data lack from becoming impossible.
    """
    classes, centre = log_p.shape[-1], 1 / fit_temperature(log_p, target).value
    weights = torch.full((classes,), centre, dtype=torch.float64, requires_grad=True)
    biases = torch.zeros(classes, dtype=torch.float64, requires_grad=True)
    search: dict[str, Any] = {"history_size": 20, "tolerance_grad": 1e-8, "tolerance_change": 1e-12}
    optimizer = torch.optim.LBFGS([weights, biases], max_iter=200, line_search_fn="strong_wolfe", **search)

    def closure() -> float:
        optimizer.zero_grad()
        loss = ((weights - centre).square().sum() + biases.square().sum()) / (2 * len(target))
        loss.backward()
        total = loss.item()
        for rows, labels in _chunks(log_p, target):
            loss = label_nll(log_mean_exp((rows * weights + biases).log_softmax(-1)), labels).sum() / len(target)
            loss.backward()
            total += loss.item()
        return total

    with torch.enable_grad():
        optimizer.step(closure)
    return Vector(weights.detach(), biases.detach())


def fit_isotonic(log_p: Tensor, target: Tensor) -> Isotonic:
    """For each class the increasing map from its probability to its frequency, over all members together."""
    p = log_p.double().exp().flatten(0, 1).cpu().numpy()
    labels = target.repeat(len(log_p)).cpu().numpy()
    return Isotonic([fit_increasing(p[:, c], labels == c) for c in range(p.shape[1])], len(target))


def fit_increasing(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Knots of the increasing function that is closest to y in squares; between them it is linear.

    Pools adjacent violators; all decreasing runs at once, because each of them ends up in one pool.
    """
    x, place = np.unique(x, return_inverse=True)
    weight = np.bincount(place).astype(float)
    value = np.bincount(place, np.asarray(y, float)) / weight
    start = np.arange(len(x))  # where each pool begins
    while (rises := np.diff(value) > 0).sum() < len(value) - 1:
        first = np.concatenate([[0], 1 + np.flatnonzero(rises)])
        pooled = np.add.reduceat(weight, first)
        value = np.add.reduceat(weight * value, first) / pooled
        weight, start = pooled, start[first]
    end = np.concatenate([start[1:] - 1, [len(x) - 1]])
    knots = np.stack([start, end], 1)
    keep = np.stack([np.ones(len(start), bool), end > start], 1)
    return x[knots[keep]], np.repeat(value[:, None], 2, 1)[keep]


def label_nll(log_p: Tensor, target: Tensor) -> Tensor:
    """Minus the log probability of each label: (examples)."""
    return -log_p.gather(-1, target[..., None])[..., 0]


# ---------------------------------------------------------------- sums over rows, in bounded memory


def _slopes(log_p: Tensor, target: Tensor, inverse: float) -> tuple[float, float, float]:
    """The pooled members' NLL at an inverse temperature, with its first and second derivative."""
    sums = torch.zeros(3, dtype=torch.float64)
    for rows, labels in _chunks(log_p, target):
        scaled = (rows * inverse).log_softmax(-1)
        p = scaled.exp()
        mean = (p * rows).sum(-1, keepdim=True)
        variance = (p * (rows - mean).square()).sum(-1)
        index = labels.expand(len(rows), -1)
        own = label_nll(scaled, index).neg()  # members, examples
        rise = label_nll(mean - rows, index)
        share = own.softmax(0)  # members
        slope = (share * rise).sum(0)
        bend = (share * (rise.square() - variance)).sum(0) - slope.square()
        sums -= torch.stack([(own.logsumexp(0) - math.log(len(rows))).sum(), slope.sum(), bend.sum()]).cpu()
    value, slope_, curvature = (sums / len(target)).tolist()
    return value, slope_, curvature


def _chunks(log_p: Tensor, target: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    members, examples, classes = log_p.shape
    step = max(1, 2**21 // (members * classes))
    for start in range(0, examples, step):
        yield log_p[:, start : start + step].double(), target[start : start + step]


def _check_classes(classes: int, log_p: Tensor) -> None:
    if log_p.shape[-1] != classes:
        raise ValueError(
            f"Calibrated.apply: the scaling was fitted on {classes} classes, but the prediction has {log_p.shape[-1]}. "
            "Calibrate on predictions of the same classes."
        )


CalibrationMap = Temperature | Vector | Isotonic  # log probabilities to calibrated ones, (..., classes) each

CALIBRATIONS: dict[str, Callable[[Tensor, Tensor], CalibrationMap]] = {
    "none": lambda log_p, target: Unchanged(1.0),
    "temperature": fit_temperature,
    "vector": fit_vector,
    "isotonic": fit_isotonic,
}
