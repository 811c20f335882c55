"""How sure a difference is: t-intervals over seeds, the bootstrap over examples."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

LEVEL = 0.95
RESAMPLES = 1000


class Interval(NamedTuple):
    """A value and the ends of its confidence interval; NaN ends say that there is none."""

    value: float
    low: float = math.nan
    high: float = math.nan

    @property
    def known(self) -> bool:
        """Whether there is an interval."""
        return math.isfinite(self.low) and math.isfinite(self.high)


def t_interval(values: Sequence[float], level: float = LEVEL) -> Interval:
    """The mean of independent values and its interval by Student's t; one value has no interval.

    >>> t_interval([1.0, 2.0, 3.0])
    Interval(value=2.0, low=-0.48..., high=4.48...)
    """
    mean = float(np.mean(values))
    if len(values) < 2:
        return Interval(mean)
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    half = t_quantile((1 + level) / 2, len(values) - 1) * error
    return Interval(mean, mean - half, mean + half)


def t_quantile(probability: float, degrees: int) -> float:
    """The quantile of Student's t for whole degrees of freedom, exact up to rounding.

    >>> round(t_quantile(0.975, 4), 3)
    2.776
    """
    if probability < 0.5:
        return -t_quantile(1 - probability, degrees)
    low, high = 0.0, math.pi / 2  # the angle arctan(t / sqrt(degrees)) lies between
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _central(middle, degrees) < 2 * probability - 1 else (low, middle)
    return math.sqrt(degrees) * math.tan(low)


def _central(angle: float, degrees: int) -> float:
    """The probability of |T| < sqrt(degrees) tan(angle): Abramowitz and Stegun 26.7.3 and 26.7.4, finite sums."""
    square, term, total = math.cos(angle) ** 2, 1.0, 1.0
    for k in range(2 if degrees % 2 else 1, degrees - 1, 2):
        term *= square * k / (k + 1)
        total += term
    if degrees % 2 == 0:
        return math.sin(angle) * total
    tail = math.sin(angle) * math.cos(angle) * total if degrees > 1 else 0.0
    return 2 / math.pi * (angle + tail)


def bootstrap(
    statistic: Callable[[np.ndarray], np.ndarray], examples: int, level: float = LEVEL, seed: int = 0
) -> Interval:
    """The percentile interval of a statistic when the examples are drawn again with replacement.

    Args:
        statistic: from weights (resamples, examples), how often each example was drawn, to values (resamples)

    >>> values = np.array([0.1, 0.2, 0.4, 0.3])
    >>> bootstrap(lambda weights: weights @ values / weights.sum(1), 4).value
    0.25
    """
    value = float(statistic(np.ones((1, examples)))[0])
    draws = np.concatenate([statistic(weights) for weights in _weights(examples, seed)])
    low, high = np.nanquantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return Interval(value, float(low), float(high))


@functools.lru_cache(maxsize=1)
def _weights(examples: int, seed: int) -> tuple[np.ndarray, ...]:
    """Weights in blocks; the same for every method, so that all see the same draws."""
    generator, blocks = np.random.default_rng(seed), []
    for _ in range(10):
        rows = RESAMPLES // 10
        drawn = generator.integers(examples, size=(rows, examples)) + examples * np.arange(rows)[:, None]
        blocks.append(np.bincount(drawn.ravel(), minlength=rows * examples).reshape(rows, examples).astype(np.float32))
    return tuple(blocks)
