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
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    quantile = require("scipy.special", "an interval over seeds", "report").stdtrit(len(values) - 1, (1 + level) / 2)
    half = float(quantile) * error
    return Interval(mean, mean - half, mean + half)


def bootstrap_interval(statistic: Callable[[np.ndarray], np.ndarray], examples: int, level: float = LEVEL) -> Interval:
    """The percentile interval of a statistic when the examples are drawn again with replacement.

    Args:
        statistic: from weights (resamples, examples), how often each example was drawn, to values (resamples)

    >>> values = np.array([0.1, 0.2, 0.4, 0.3])
    >>> bootstrap_interval(lambda weights: weights @ values / weights.sum(1), 4).value
    0.25
    """
    value = float(statistic(np.ones((1, examples)))[0])
    return percentile_interval(value, np.concatenate([statistic(part) for part in draw_weights(examples)]), level)
