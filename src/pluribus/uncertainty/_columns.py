"""Columns, one value for each example: read from tensors, arrays or lists, checked, sorted and put into bins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._common.text_tables import align_columns, some_of

Column = Tensor | np.ndarray | Sequence[float] | Sequence[int] | Sequence[bool]

Matrix = Tensor | np.ndarray | Sequence[Sequence[float]] | Sequence[Sequence[int]]

ROUNDING = 1e-4  # how far from [0, 1] a probability may be


def read_columns(metric: str, infinite: bool = False, **given: Column) -> list[Tensor]:
    """The columns as flat tensors in double precision, of one shape, not empty and without NaN."""
    tensors = {name: tensor_of(column) for name, column in given.items()}
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if len(set(shapes.values())) > 1:
        listed = " and ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ValueError(f"{metric}: all columns must have the same shape, but they have {listed}.")
    return [_check_finite(metric, name, tensor, infinite).flatten() for name, tensor in tensors.items()]


def read_matrix(metric: str, name: str, values: Matrix, infinite: bool = False) -> Tensor:
    """The values as a matrix in double precision; further dimensions (pixels) join the second."""
    tensor = tensor_of(values)
    if tensor.ndim < 2:
        raise ValueError(f"{metric}: {name} must have two dimensions, but its shape is {tuple(tensor.shape)}.")
    return _check_finite(metric, name, tensor, infinite).flatten(1)


def tensor_of(values: Any) -> Tensor:
    """A tensor without gradients; lists in double precision, arrays in their own."""
    if isinstance(values, Tensor):
        return values.detach()
    if isinstance(values, (list, tuple)) and any(isinstance(value, Tensor) for value in values):
        values = [value.tolist() if isinstance(value, Tensor) else value for value in values]
    try:
        array = np.require(values, requirements=["C", "W"])  # torch warns of what it may not write
        return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"values must be numbers in a tensor, an array or a list, but they are a {type(values).__name__} "
            f"that does not hold numbers ({error}). Give numbers; for class names, their positions in the list of "
            "classes."
        ) from None


def rows_index(rows: Any) -> Any:
    """An index of rows that keeps their dimension: one row stays a batch."""
    if isinstance(rows, str):
        raise TypeError(
            f'rows are chosen by numbers, slices or masks, but "{rows}" is a name. For a column, use `.{rows}`.'
        )
    return slice(int(rows), int(rows) + 1 or None) if isinstance(rows, (int, np.integer)) else rows


def _check_finite(metric: str, name: str, tensor: Tensor, infinite: bool) -> Tensor:
    if tensor.numel() == 0:
        raise ValueError(f"{metric}: {name} must hold at least one example, but it is empty.")
    tensor = tensor.cpu().double()  # some devices have no double precision
    bad = tensor.isnan() if infinite else ~tensor.isfinite()
    if bool(bad.any()):
        where = tuple(bad.nonzero()[0].tolist())
        rule = "must not hold NaN" if infinite else "must be finite"
        raise ValueError(f"{metric}: {name} {rule}, but at {list(where)} there is {tensor[where].item()}.")
    return tensor


def check_probabilities(metric: str, name: str, values: Tensor) -> Tensor:
    """The values within [0, 1]: what is outside by rounding is moved, anything else refused."""
    outside = (values < -ROUNDING) | (values > 1 + ROUNDING)
    if bool(outside.any()):
        where = tuple(outside.nonzero()[0].tolist())
        raise ValueError(
            f"{metric}: {name} must be from 0 to 1, but at {list(where)} there is {values[where].item():.6g}."
        )
    return values.clamp(0, 1)


def check_outcomes(metric: str, confidence: Tensor, correct: Tensor) -> tuple[Tensor, Tensor]:
    """Confidences, and whether each example is correct, both from 0 to 1."""
    return check_probabilities(metric, "confidence", confidence), check_probabilities(metric, "correct", correct)


def check_bins(metric: str, bins: int) -> None:
    """Refuse fewer than one bin."""
    if bins < 1:
        raise ValueError(f"{metric}: bins must be at least 1, but it is {bins}.")


def bin_of(metric: str, values: Tensor, bins: int, given: torch.dtype) -> Tensor:
    """The bin of each probability: (0, 1/bins] is 0. What was 3/10 in the type it was `given` in is on that edge."""
    check_bins(metric, bins)
    kind = given if given.is_floating_point else torch.float64
    edges = torch.tensor([i / bins for i in range(1, bins)], dtype=kind, device=values.device)
    return torch.bucketize(values, edges.to(values.dtype))


def bin_outcomes(metric: str, confidence: Column, correct: Column, bins: int) -> list[Tensor]:
    """Examples, summed confidence and correct ones in each bin."""
    given = tensor_of(confidence)
    confidence, correct = read_columns(metric, confidence=given, correct=correct)
    confidence, correct = check_outcomes(metric, confidence, correct)
    index = bin_of(metric, confidence, bins, given.dtype)
    weights = (torch.ones_like(confidence), confidence, correct)
    return [torch.bincount(index, weight, minlength=bins) for weight in weights]


def sort_with_ties(values: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """Values ascending, and the others in that order; within a tie each gets the tie's mean."""
    values, order = values.sort()
    _, tie, size = values.unique_consecutive(return_inverse=True, return_counts=True)
    if len(size) == len(values):
        return values, others[order]
    sums = torch.zeros(len(size), dtype=others.dtype, device=others.device).index_add_(0, tie, others[order])
    return values, (sums / size)[tie]


SHOWN = 6  # rows of a prediction that are printed


def show_rows(columns: Mapping[str, Tensor], rows: int) -> str:
    """Some rows of the columns, and of many the means over all, as a table."""
    shown = some_of(rows, SHOWN)
    lines = [{"example": str(i), **{name: _number(column[i]) for name, column in columns.items()}} for i in shown]
    if rows > SHOWN:
        means = {n: "" if n == "label" else _number(c.double().mean()) for n, c in columns.items()}
        lines.append({"example": "mean", **means})
    return align_columns(lines)


def _number(value: Tensor) -> str:
    return f"{value.item():.3f}" if value.is_floating_point() else str(value.item())
