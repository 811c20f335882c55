"""How sure a figure is: its interval when examples are drawn again with replacement (the bootstrap, Efron 1979)."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

LEVEL = 0.95
RESAMPLES = 1000
CHUNKS = 10  # parts in which weights are drawn, so that one product with a column stays small


class Interval(NamedTuple):
    """A value and the ends of its confidence interval; NaN ends say that there is none."""

    value: float
    low: float = math.nan
    high: float = math.nan

    @property
    def known(self) -> bool:
        """Whether there is an interval."""
        return math.isfinite(self.low) and math.isfinite(self.high)


def percentile_interval(value: float, resampled: Sequence[float] | np.ndarray, level: float = LEVEL) -> Interval:
    """The value between the percentiles of what resampling gave; among infinite ones, the next outwards.

    What is the same in every resample has no interval: one of no width would claim too much.

    >>> percentile_interval(2.0, [1.0, 2.0, 3.0], level=0.5)
    Interval(value=2.0, low=1.5, high=2.5)
    """
    values, tail = np.asarray(resampled), (1 - level) / 2
    if len(values) and values.min() == values.max() and math.isfinite(values[0]):
        return Interval(value)
    between = bool(np.isfinite(values).all())  # between infinite ones there is nothing
    low = np.quantile(values, tail, method="linear" if between else "lower")
    high = np.quantile(values, 1 - tail, method="linear" if between else "higher")
    return Interval(value, float(low), float(high))


def all_alike_interval(value: float, rows: int, level: float = LEVEL) -> Interval:
    """The interval of a share, or of a difference of shares, that is the same in all rows: the exact binomial one.

    >>> all_alike_interval(1.0, 100)
    Interval(value=1.0, low=0.963..., high=1.036...)
    """
    bound = 1 - ((1 - level) / 2) ** (1 / rows)
    return Interval(value, value - bound, value + bound)


def resample(
    statistic: Callable[..., float],
    columns: Sequence[Tensor],
    row: Tensor,
    resamples: int,
    generator: torch.Generator,
) -> np.ndarray:
    """The statistic of the columns, (..., examples), with examples drawn again, as often as asked: (resamples).

    The examples of one row, such as an image's pixels, are drawn together.

    Args:
        row: (examples), the number of each example's row

    >>> seed = torch.Generator().manual_seed(0)
    >>> resample(lambda x: x.sum().item(), [torch.ones(4)], torch.tensor([0, 0, 1, 1]), resamples=3, generator=seed)
    array([4., 4., 4.])
    """
    draws = _draw_examples(row, resamples, generator)
    return np.array([statistic(*(column[..., drawn] for column in columns)) for drawn in draws])


def _draw_examples(row: Tensor, resamples: int, generator: torch.Generator) -> Iterator[Tensor]:
    """The numbers of the examples in each resample; those of one row come together, however many it has."""
    grouped, sizes = row.argsort(stable=True), row.unique(return_counts=True)[1]
    starts, rows = sizes.cumsum(0) - sizes, len(sizes)
    for _ in range(resamples):
        drawn = torch.randint(rows, (rows,), generator=generator)
        lengths = sizes[drawn]
        shifts = starts[drawn] - (lengths.cumsum(0) - lengths)  # from places in the resample to places in `grouped`
        yield grouped[shifts.repeat_interleave(lengths) + torch.arange(int(lengths.sum()))]


def draw_swaps(row: Tensor, resamples: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Which examples change places in each permutation of two predictions: half of the rows, all examples of each."""
    numbers = row.unique(return_inverse=True)[1]
    rows = int(numbers.max()) + 1
    for _ in range(resamples):
        yield (torch.rand(rows, generator=generator) < 0.5)[numbers]


@functools.lru_cache(maxsize=1)
def draw_weights(examples: int, seed: int = 0) -> tuple[np.ndarray, ...]:
    """How often each example is drawn in each resample, (resamples, examples) in parts: for statistics that are sums.

    Equal arguments give the same draws, so that all methods of a comparison see the same examples.
    """
    generator, parts = np.random.default_rng(seed), []
    for _ in range(CHUNKS):
        rows = RESAMPLES // CHUNKS
        drawn = generator.integers(examples, size=(rows, examples)) + examples * np.arange(rows)[:, None]
        parts.append(np.bincount(drawn.ravel(), minlength=rows * examples).reshape(rows, examples).astype(np.float32))
    return tuple(parts)
