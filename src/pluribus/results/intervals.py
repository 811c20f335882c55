"""How sure a difference is: t-intervals over seeds, the bootstrap over examples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from .._common.optional import require
from ..uncertainty.resampling import LEVEL, Interval, draw_weights, percentile_interval


def t_interval(values: Sequence[float], level: float = LEVEL) -> Interval:
    """The mean of independent values and its interval by Student's t; one value has no interval.

    >>> t_interval([1.0, 2.0, 3.0])
    Interval(value=2.0, low=-0.48..., high=4.48...)
    """
    mean = float(np.mean(values))
    if len(values) < 2:
        return Interval(mean)
    half = _quantile(len(values), level) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half)


def seeds_to_settle(found: Interval, seeds: int) -> int | None:
    """How many seeds would leave zero out of the interval, if mean and spread stay what they are over these seeds.

    None where they would be more than MANY, or where there is one seed, which says nothing about the spread.

    >>> seeds_to_settle(t_interval([1.0, 2.0, 3.0]), 3)
    4
    """
    if seeds < 2 or not found.known or not found.value:
        return None
    spread = (found.high - found.low) / 2 * math.sqrt(seeds) / _quantile(seeds, LEVEL)
    enough = (n for n in range(seeds + 1, MANY + 1) if _quantile(n, LEVEL) * spread < abs(found.value) * math.sqrt(n))
    return next(enough, None)


MANY = 20  # seeds, more than anybody tries


def _quantile(values: int, level: float) -> float:
    """The quantile of Student's t for the mean of this many values."""
    return float(require("scipy.special", "an interval over seeds", "report").stdtrit(values - 1, (1 + level) / 2))


def bootstrap_interval(statistic: Callable[[np.ndarray], np.ndarray], examples: int) -> Interval:
    """The percentile interval of a statistic when the examples are drawn again with replacement.

    >>> values = np.array([0.1, 0.2, 0.4, 0.3])
    >>> bootstrap_interval(lambda weights: weights @ values / weights.sum(1), 4).value
    0.25
    """
    value = float(statistic(np.ones((1, examples)))[0])
    return percentile_interval(value, np.concatenate([statistic(part) for part in draw_weights(examples)]), LEVEL)
