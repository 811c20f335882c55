"""Does it notice what is foreign? Scores of examples inside and outside the data that a network was trained for."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .._columns import Column, read_columns


def auroc(inside: Column, outside: Column) -> float:
    """Probability that an outside example scores higher than an inside one; a tie counts one half.

    Shapes:
        inside: (batch) and outside: (another batch), scores that are larger for what is less certain

    >>> auroc(inside=[0.1, 0.2], outside=[0.3, 0.2])  # of four pairs three are in order and one is a tie
    0.875
    """
    counts = _detections("auroc", inside, outside)
    return float((counts.found * (counts.below + counts.equal / 2)).sum() / counts.pairs)


def aupr(inside: Column, outside: Column) -> float:
    """Average precision with the outside examples as positives; tied examples are found together.

    Shapes:
        inside: (batch) and outside: (another batch), scores that are larger for what is less certain

    >>> aupr(inside=[0.1, 0.2], outside=[0.3, 0.2])  # half at a precision of 1, half at one of 2/3
    0.83...
    """
    counts = _detections("aupr", inside, outside)
    found, false = _at_least(counts.found), _at_least_inside(counts)
    return float((counts.found * found / (found + false)).sum() / counts.found.sum())


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
    enough = _at_least(counts.found) >= recall * counts.found.sum() * (1 - 1e-12)
    return float(_at_least_inside(counts)[enough].min() / counts.inside)


class _Detections(NamedTuple):
    found: np.ndarray  # outside examples with each distinct outside score, ascending
    below: np.ndarray  # inside examples below that score
    equal: np.ndarray  # inside examples with that score
    inside: int

    @property
    def pairs(self) -> float:
        return float(self.found.sum()) * self.inside


def _detections(metric: str, inside: Column, outside: Column) -> _Detections:
    (inside,) = read_columns(metric, infinite=True, inside=inside)
    (outside,) = read_columns(metric, infinite=True, outside=outside)
    low = np.sort(inside.cpu().numpy())
    scores, found = np.unique(outside.cpu().numpy(), return_counts=True)
    below, up_to = np.searchsorted(low, scores, "left"), np.searchsorted(low, scores, "right")
    return _Detections(found.astype(float), below.astype(float), (up_to - below).astype(float), len(low))


def _at_least(counts: np.ndarray) -> np.ndarray:
    return np.cumsum(counts[::-1])[::-1]


def _at_least_inside(counts: _Detections) -> np.ndarray:
    return counts.inside - counts.below
