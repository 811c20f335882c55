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

    >>> percentile_interval(2.0, [1.0, 2.0, 3.0], level=0.5)
    Interval(value=2.0, low=1.5, high=2.5)
    """
    values, tail = np.asarray(resampled), (1 - level) / 2
    between = bool(np.isfinite(values).all())  # between infinite ones there is nothing
    low = np.quantile(values, tail, method="linear" if between else "lower")
    high = np.quantile(values, 1 - tail, method="linear" if between else "higher")
    return Interval(value, float(low), float(high))


def resample(
    statistic: Callable[..., float],
    columns: Sequence[Tensor],
    block: int,
    resamples: int,
    generator: torch.Generator,
) -> np.ndarray:
    """The statistic of the columns, (..., examples), with examples drawn again, as often as asked: (resamples).

    The `block` examples of a row, such as pixels, are drawn together.

    >>> seed = torch.Generator().manual_seed(0)
    >>> resample(lambda x: x.sum().item(), [torch.ones(4)], block=2, resamples=3, generator=seed)
    array([4., 4., 4.])
    """
    draws = _draw_examples(columns[0].shape[-1], block, resamples, generator)
    return np.array([statistic(*(column[..., drawn] for column in columns)) for drawn in draws])


def resample_mean(column: Tensor, block: int, resamples: int, generator: torch.Generator) -> np.ndarray:
    """The mean of the column, (examples), by the same draws as `resample`: (resamples)."""
    draws = _draw_examples(len(column), block, resamples, generator)
    return np.array([column[drawn].mean().item() for drawn in draws])


def _draw_examples(examples: int, block: int, resamples: int, generator: torch.Generator) -> Iterator[Tensor]:
    """The numbers of the examples in each resample; those of one row come together."""
    rows = examples // block
    for _ in range(resamples):
        drawn = torch.randint(rows, (rows,), generator=generator) * block
        yield drawn.repeat_interleave(block) + torch.arange(block).repeat(rows)


def draw_swaps(rows: int, block: int, resamples: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Which examples change places in each permutation of two predictions: half of the rows, all of their block."""
    for _ in range(resamples):
        yield (torch.rand(rows, generator=generator) < 0.5).repeat_interleave(block)


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
