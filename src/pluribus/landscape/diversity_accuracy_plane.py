"""The diversity-accuracy plane of Fort et al. (section 4.3), its limits and its one-parameter family (appendix D)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._common.optional import require
from ..report.figures import diversity_family, diversity_limits
from .common.examples import Examples, is_classifying, labels_of, target_labels
from .common.networks import Networks, network_of
from .similarity import answers_and_targets, ratios


@dataclass(frozen=True)
class DiversityAccuracy:
    """Points of the plane, one for each network; `pb.figures.diversity_accuracy` draws accuracy and disagreement.

    Args:
        accuracy: of each network
        disagreement: the share of rows on which a network differs from the reference
        reference_accuracy: how accurate the reference is
        classes: how many there are
        normalised: whether `diversity` is divided by 1 - accuracy

    >>> a, b = nn.Linear(4, 3), nn.Linear(4, 3)
    >>> x, y = torch.randn(12, 4), torch.arange(12) % 3
    >>> diversity_accuracy(a, [b], (x, y)).accuracy.shape
    (1,)
    """

    accuracy: np.ndarray
    disagreement: np.ndarray
    reference_accuracy: float
    classes: int
    normalised: bool = True

    @property
    def diversity(self) -> np.ndarray:
        """Up: disagreement, divided by 1 - accuracy if it is normalised; infinite where no error is made."""
        return ratios(self.disagreement, 1 - self.accuracy) if self.normalised else self.disagreement


def diversity_accuracy(
    reference: Any, others: Any, data: Any, *, normalised: bool = True, task: str | None = None
) -> DiversityAccuracy:
    """How accurate networks are, and how often they differ from a reference: points of Figures 6 and 7.

    Args:
        reference: a network; a trajectory stands for its solution
        others: networks: an Ensemble of samples, a list, a Trajectory
        data: (x, y), a data set or a loader, which nobody was trained on
        normalised: divide disagreement by 1 - accuracy
        task: as `Ensemble.task`; by default what the networks, labels and outputs tell

    >>> a, b = nn.Linear(4, 3), nn.Linear(4, 3)
    >>> x, y = torch.randn(12, 4), torch.arange(12) % 3
    >>> float(diversity_accuracy(a, [a, b], (x, y)).disagreement[0])  # from itself
    0.0
    """
    examples = Examples("diversity_accuracy", data, labelled=True)
    base = network_of("diversity_accuracy", reference) if isinstance(reference, Networks) else reference
    first, kind, targets = answers_and_targets("diversity_accuracy", base, examples, task)
    rest, _, _ = answers_and_targets("diversity_accuracy", others, examples, task)
    if not is_classifying(kind) or targets is None:
        raise ValueError(f"diversity_accuracy: compares labels, but the task is {kind}.")
    target = target_labels(targets, first.shape[-1])
    labels, own = labels_of(rest), labels_of(first)[0]
    return DiversityAccuracy(
        (labels == target).double().mean(1).numpy(), (labels != own).double().mean(1).numpy(),
        float((own == target).double().mean()), int(first.shape[-1]), normalised,
    )  # fmt: skip


def limits(
    accuracy: Any, reference_accuracy: float, classes: int, *, normalised: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """The least and the most diversity at an accuracy: random flips of the reference's labels, and independent labels.

    The lower one is not a number above the reference's accuracy, where no flips lead.

    Args:
        accuracy: where they are wanted: a number, or an array of them
        reference_accuracy: how accurate the reference is
        classes: how many there are
        normalised: divide by the error, as in the paper's figures

    >>> low, high = limits([0.5, 0.8], reference_accuracy=0.8, classes=10)
    >>> low.round(3).tolist(), high.round(3).tolist()
    ([0.771, 0.0], [1.178, 1.778])
    """
    a = _check("limits", accuracy, reference_accuracy, classes)
    lower, upper = diversity_limits(a, reference_accuracy, classes)
    lower = np.where(a <= reference_accuracy, lower, np.nan)
    return (ratios(lower, 1 - a), ratios(upper, 1 - a)) if normalised else (lower, upper)


def family(
    accuracy: Any, reference_accuracy: float, classes: int, exponent: float, *, normalised: bool = True
) -> np.ndarray:
    """The diversity at an accuracy when right labels flip with a probability p and wrong ones with p ** exponent.

    With an exponent below 1 accuracy first rises with p a little, then falls: this is the falling part. Not a number
    where no p leads.

    Args:
        exponent: of the flips of wrong labels
        accuracy, reference_accuracy, classes, normalised: as for `limits`

    >>> lower = limits([0.5], 0.8, 10)[0]
    >>> bool(abs(family([0.5], 0.8, 10, exponent=1.0) - lower) < 1e-9)  # the lower limit is the exponent 1
    True
    """
    a = _check("family", accuracy, reference_accuracy, classes)
    top = _peak(reference_accuracy, classes, exponent)
    low, high = np.full(a.shape, top), np.ones(a.shape)
    for _ in range(80):  # accuracy falls from `top` on
        middle = (low + high) / 2
        above = diversity_family(middle, middle**exponent, reference_accuracy, classes)[0] > a
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    reached, found = diversity_family(high, high**exponent, reference_accuracy, classes)
    found = np.where(np.abs(reached - a) < 1e-9, found, np.nan)
    if exponent == 1:
        found = np.where(a == reference_accuracy, 0.0, found)
    return ratios(found, 1 - a) if normalised else found


def fit_exponent(
    points: Any,
    reference_accuracy: float | None = None,
    classes: int | None = None,
    *,
    normalised: bool | None = None,
) -> float:
    """The exponent of the family that lies nearest to the points, by least squares of diversity (Figure S6).

    Args:
        points: what `diversity_accuracy` gives, or (accuracy, diversity) with the reference's accuracy and the classes
        reference_accuracy: how accurate the reference is; by default what the points say
        normalised: whether the diversity is divided by 1 - accuracy; by default as the points say, or yes

    >>> accuracy = np.array([0.5, 0.6, 0.7])
    >>> diversity = family(accuracy, 0.8, 10, exponent=0.7)
    >>> round(fit_exponent((accuracy, diversity), 0.8, 10), 2)
    0.7
    """
    if isinstance(points, DiversityAccuracy):
        reference_accuracy, classes = points.reference_accuracy, points.classes
        normalised = points.normalised if normalised is None else normalised
        a, d = points.accuracy, ratios(points.disagreement, 1 - points.accuracy) if normalised else points.disagreement
    else:
        a, d = (np.asarray(part, float) for part in points)
    if reference_accuracy is None or classes is None:
        raise ValueError("fit_exponent: needs the reference's accuracy and the number of classes beside the points.")
    normalised = normalised is None or normalised
    keep = np.isfinite(d) & (a < reference_accuracy) & (a > (1 - reference_accuracy) / (classes - 1))
    if not keep.any():
        raise ValueError("fit_exponent: no point is less accurate than the reference, so nothing can be fitted.")
    a, d = _check("fit_exponent", a[keep], reference_accuracy, classes), d[keep]

    def loss(log_exponent: float) -> float:
        found = family(a, reference_accuracy, classes, math.exp(log_exponent), normalised=bool(normalised))
        return float(np.square(np.nan_to_num(found - d, nan=1e3)).sum())

    grid = np.linspace(math.log(0.01), math.log(100), 121)
    best = int(np.argmin([loss(value) for value in grid]))
    bounds = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    found = require("scipy.optimize", "ls.fit_exponent", "data").minimize_scalar(loss, bounds=bounds, method="bounded")
    return math.exp(found.x)


def _peak(reference: float, classes: int, exponent: float) -> float:
    """The probability of flips at which accuracy is largest: its slope is -a* + (1 - a*) e p^(e-1) / (C - 1)."""
    if exponent >= 1 or reference == 1:
        return 0.0
    slope = reference * (classes - 1) / ((1 - reference) * exponent)
    return min(1.0, slope ** (1 / (exponent - 1)))


def _check(caller: str, accuracy: Any, reference: float, classes: int) -> np.ndarray:
    a = np.asarray(accuracy, float)
    if classes < 2 or not 1 / classes < reference <= 1:
        raise ValueError(
            f"{caller}: the reference must be better than chance with at least 2 classes, but its accuracy "
            f"is {reference:g} with {classes} classes."
        )
    if not ((a >= 0) & (a <= 1)).all():
        raise ValueError(f"{caller}: accuracies must be from 0 to 1, but one is {a[~((a >= 0) & (a <= 1))][0]:g}.")
    return a
