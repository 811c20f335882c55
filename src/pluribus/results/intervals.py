"""How sure a value or a difference is: over seeds, over examples, and over both."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from .._common.optional import require
from ..uncertainty.resampling import LEVEL, Interval, draw_weights, percentile_interval


def t_interval(values: Sequence[float], level: float = LEVEL, overlap: float = 0.0) -> Interval:
    """The mean of values and its interval by Student's t; one value, or equal ones, have no interval.

    Args:
        overlap: test rows / training rows, for values of random splits of one table: their training rows overlap, so
            the variance of the mean is (1/n + overlap) times that of the values (Nadeau and Bengio 2003)

    >>> t_interval([1.0, 2.0, 3.0])
    Interval(value=2.0, low=-0.48..., high=4.48...)
    """
    mean, count = float(np.mean(values)), len(values)
    if count < 2 or np.ptp(values) == 0:
        return Interval(mean)
    half = t_quantile(count - 1, level) * float(np.std(values, ddof=1)) * math.sqrt(1 / count + overlap)
    return Interval(mean, mean - half, mean + half)


@dataclass(frozen=True)
class Spread:
    """A mean over seeds and what it varies with: the test rows that were drawn, and the seeds of training.

    The model is value[seed] = mean + rows + seed. All seeds are scored on the same rows, so the variance from drawing
    other rows, `rows`, does not fall with more seeds; that between seeds does. Few seeds say little about how much
    training varies, so their variance is shrunk towards that of the rows, which counts as `PRIOR` further seeds (a
    scaled inverse chi-squared prior, as in the moderated t-test of Smyth 2004). Test accuracies of repeated trainings
    were found to vary about as much as the draw of test rows explains (Jordan 2024). Degrees of freedom: Satterthwaite.

    Args:
        rows: the variance of the mean over draws of test rows; 0 where it is not known
        seeds: the variance of one seed's value
        prior: the degrees of freedom that `seeds` has beyond those of the seeds
    """

    value: float
    count: int
    seeds: float
    rows: float = 0.0
    prior: float = 0.0

    @classmethod
    def over(cls, values: Sequence[float], resampled: np.ndarray | None = None) -> Spread:
        """The spread of a value for each seed.

        Shapes:
            resampled: (resamples, seeds), the values when the same test rows are drawn again for all seeds
        """
        count, own = len(values), float(np.var(values, ddof=1)) if len(values) > 1 else 0.0
        if resampled is None:
            return cls(float(np.mean(values)), count, own)
        rows, one = float(resampled.mean(1).var()), float(resampled.var(0).mean())
        pooled = (PRIOR * one + (count - 1) * own) / (PRIOR + count - 1)
        return cls(float(np.mean(values)), count, pooled, rows, PRIOR)

    def interval(self, level: float = LEVEL, seeds: int | None = None) -> Interval:
        """The confidence interval of the mean; as it would be for another number of seeds, if nothing else changes."""
        count = seeds or self.count
        degrees, between = self.prior + count - 1, self.seeds / count
        total = self.rows + between
        if degrees <= 0 or total <= 1e-24:  # an interval of no width would claim too much
            return Interval(self.value)
        degrees = min(total**2 * degrees / between**2, 1e9) if between else 1e9
        half = t_quantile(degrees, level) * math.sqrt(total)
        return Interval(self.value, self.value - half, self.value + half)

    def seeds_to_settle(self) -> int | None:
        """How many seeds would leave zero out of the interval, if mean and spread stay what they are.

        None where they would be more than MANY, or where there is one seed, which says nothing about the spread.

        >>> Spread.over([1.0, 2.0, 3.0]).seeds_to_settle()
        4
        """
        if self.count < 2 or not self.value:
            return None
        ends = ((n, self.interval(seeds=n)) for n in range(self.count + 1, MANY + 1))
        return next((n for n, found in ends if found.known and not found.low <= 0 <= found.high), None)


PRIOR = 2.0  # seeds' worth: of 1 to 4, chosen by simulated coverage and power (tests/results/test_verdict.py)
MANY = 20  # seeds, more than anybody tries


def t_quantile(degrees: float, level: float = LEVEL) -> float:
    """The quantile of Student's t."""
    return float(require("scipy.special", "an interval over seeds", "report").stdtrit(degrees, (1 + level) / 2))


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
