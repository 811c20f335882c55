"""Targets that fit a prediction, and shares between 0 and 1; anything else is an error that says what is wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ._columns import tensor_of


def check_classes(members: Tensor, target: Tensor | np.ndarray, class_dim: int, name: str = "target") -> Tensor:
    """The targets as class numbers, (batch, ...), for probabilities (members, batch, ...)."""
    given = tensor_of(target).to(members.device)
    expected, classes = members.movedim(class_dim, -1).shape[1:-1], members.shape[class_dim]
    shaped = given.reshape(expected) if given.shape in ((*expected, 1), (expected[0], 1, *expected[1:])) else given
    if shaped.shape != expected:
        raise ValueError(
            f"{name}: targets must be one class number per example, not one-hot rows, {tuple(expected)}, but the "
            f"shape is {tuple(given.shape)}. For one-hot or soft targets, give target.argmax over the classes."
        )
    numbers = shaped.long()
    wrong = (numbers < 0) | (numbers >= classes) | (numbers != shaped)  # the last: not a whole number, or NaN
    if bool(wrong.any()):
        where = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"{name}: class numbers must be whole numbers from 0 to {classes - 1}, but at {where} there is "
            f"{shaped[tuple(where)].item():g}. Leave out rows without a label."
        )
    return numbers


def check_numbers(means: Tensor, target: Tensor | np.ndarray, name: str = "target") -> Tensor:
    """The targets as numbers, (batch, ...), for means (members, batch, ...)."""
    given = tensor_of(target).to(means.device)
    expected = means.shape[1:]
    if given.numel() == expected.numel() and given.shape in ((*expected, 1), expected[:-1]):
        given = given.reshape(expected)
    if given.shape != expected:
        raise ValueError(
            f"{name}: needs one target for each mean, {tuple(expected)}, but the shape is {tuple(given.shape)}."
        )
    check_finite(name, "targets", given)
    return given.to(torch.promote_types(given.dtype, means.dtype))


def check_labels(name: str, members: Tensor, target: Any, class_dim: int) -> Tensor:
    """As `check_classes`, for examples that a function fits or judges: not empty, and probabilities without NaN."""
    target = check_classes(members, target, class_dim, name)
    _check_not_empty(name, target)
    nan = members.isnan().movedim(class_dim, -1)
    if bool(nan.any()):
        member, row = nan.nonzero()[0][:2].tolist()
        raise ValueError(
            f"{name}: probabilities must be numbers, but member {member} gives NaN in row {row}. "
            "Look for infinite inputs or weights."
        )
    return target


def check_values(name: str, means: Tensor, variances: Tensor, target: Any) -> Tensor:
    """As `check_numbers`, for examples that a function fits or judges: not empty, and everything finite."""
    target = check_numbers(means, target, name).to(means)
    _check_not_empty(name, target)
    check_finite(name, "means", means)
    check_finite(name, "variances", variances)
    return target


def check_finite(name: str, what: str, tensor: Tensor) -> None:
    """Refuse NaN and infinities."""
    if not bool(tensor.isfinite().all()):
        where = (~tensor.isfinite()).nonzero()[0].tolist()
        raise ValueError(f"{name}: {what} must be finite, but at {where} there is {tensor[tuple(where)].item()}.")


def is_multi_label(log_mean: Tensor, class_dim: int) -> bool:
    """Whether a prediction says yes or no to each of several labels: (batch, labels, 2)."""
    return log_mean.ndim == 3 and class_dim == -1 and log_mean.shape[-1] == 2


def check_one_label_each(name: str, target: Tensor, multi_label: bool = False) -> None:
    """Refuse targets with more than one label for an example."""
    if multi_label:
        raise ValueError(
            f"{name}: this is a multi-label prediction, with {target.shape[1]} labels for each example, which can be "
            "right and wrong at once. Call it for each label i, with Classification.from_probabilities("
            "prediction.members[:, :, i]) and target[:, i]."
        )
    if target.ndim > 1:
        raise ValueError(
            f"{name}: examples must be independent, with one label each, but the targets have the shape "
            f"{tuple(target.shape)}. For dense outputs, take one random pixel of each image."
        )


def check_share(name: str, what: str, value: float) -> None:
    """Refuse a value that is not between 0 and 1."""
    if not 0 < value < 1:
        raise ValueError(f"{name}: {what} must be above 0 and below 1, but it is {value}. Write 90 % as 0.9.")


def _check_not_empty(name: str, target: Tensor) -> None:
    if target.numel() == 0:
        raise ValueError(f"{name}: there must be at least one example, but there are no validation data.")
