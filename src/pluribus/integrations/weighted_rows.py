"""Rows of a table with weights, dense or sparse: what a weight means does not depend on how often a row is written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._common.optional import require

AT_ONCE = 4096  # rows that are dense at a time


@dataclass(frozen=True)
class WeightedRows:
    """Inputs, (rows, features), targets, (rows, ...), and weights above zero, (rows)."""

    x: Any  # an array, or a sparse matrix in CSR form
    y: np.ndarray
    weight: np.ndarray

    def __len__(self) -> int:
        return self.x.shape[0]

    def merged(self) -> WeightedRows:
        """The rows in an order of their own, equal ones as one with the sum of their weights; none of weight 0.

        To train with a weight of 3 is then the same, to the last digit, as to train on the row three times.

        >>> rows = WeightedRows(np.array([[2.0], [1.0], [2.0]]), np.array([0, 1, 0]), np.array([1.0, 0.5, 2.0]))
        >>> sorted(zip(rows.merged().x.tolist(), rows.merged().weight.tolist()))
        [([1.0], 0.5), ([2.0], 3.0)]
        """
        kept = self.weight > 0
        x, y, weight = (self.x, self.y, self.weight) if kept.all() else (self.x[kept], self.y[kept], self.weight[kept])
        _, first, group = np.unique(_keys(x, y), return_index=True, return_inverse=True)
        return WeightedRows(x[first], y[first], np.bincount(group.ravel(), weight))


def weighted_moments(x: Any, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each column under the weights; 1 for a column that does not vary.

    >>> [column.tolist() for column in weighted_moments(np.array([[0.0], [4.0]]), np.array([3.0, 1.0]))]
    [[1.0], [1.7320508075688772]]
    """
    if isinstance(x, np.ndarray):
        mean = np.average(x, axis=0, weights=weight)
        variance = np.average((x - mean) ** 2, axis=0, weights=weight)
    else:
        sparse = require("sklearn.utils.sparsefuncs", "pluribus.integrations.sklearn", "sklearn")
        mean, variance = sparse.mean_variance_axis(x, axis=0, weights=weight.astype(x.dtype))
    std = np.sqrt(np.maximum(variance, 0))
    return mean, np.where(std > 10 * np.finfo(std.dtype).eps * (1 + np.abs(mean)), std, 1.0).astype(std.dtype)


def dense_batches(x: Any, mean: np.ndarray, std: np.ndarray) -> Iterator[Tensor]:
    """The rows standardised, some thousands at a time."""
    for start in range(0, x.shape[0], AT_ONCE):
        yield dense(x[start : start + AT_ONCE], mean, std)


def dense(x: Any, mean: np.ndarray, std: np.ndarray) -> Tensor:
    """The rows standardised, as a tensor in the precision of the rows."""
    rows = x if isinstance(x, np.ndarray) else x.toarray()
    return torch.from_numpy(((rows - mean) / std).astype(rows.dtype, copy=False))


def _keys(x: Any, y: np.ndarray) -> np.ndarray:
    """One value for each row that is equal for equal rows, and sorts them."""
    numbers = y if y.dtype.kind == "f" else np.unique(y, return_inverse=True)[1]  # large whole numbers are no floats
    targets = numbers.reshape(len(y), -1).astype(np.float64)
    if isinstance(x, np.ndarray):
        together = np.ascontiguousarray(np.hstack([x.astype(np.float64), targets]) + 0.0)  # -0.0 is 0.0
        return together.view(np.dtype((np.void, together.itemsize * together.shape[1]))).ravel()
    x = x.copy()
    x.sum_duplicates()
    x.eliminate_zeros()
    parts = zip(x.indptr[:-1], x.indptr[1:], targets, strict=True)
    keys = np.empty(len(y), dtype=object)
    keys[:] = [x.indices[a:b].tobytes() + b"|" + x.data[a:b].tobytes() + b"|" + t.tobytes() for a, b, t in parts]
    return keys
