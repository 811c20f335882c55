"""What a prediction and its targets must be: read from tensors, arrays or lists, or an error that says why not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._common.text_tables import align_columns, some_of
from .._common.trees import IGNORED

Column = Tensor | np.ndarray | Sequence[float] | Sequence[int] | Sequence[bool]
SHOWN = 6  # rows of a prediction that are printed


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
            f"values must be numbers in a tensor, an array or a list, but got a {type(values).__name__} ({error}). For "
            "class names, give their positions in the list of classes."
        ) from None


def rows_index(rows: Any) -> Any:
    """An index of rows that keeps their dimension: one row stays a batch."""
    if isinstance(rows, str):
        raise TypeError(
            f'rows are chosen by numbers, slices or masks, but "{rows}" is a name. For a column, use `.{rows}`.'
        )
    return slice(int(rows), int(rows) + 1 or None) if isinstance(rows, (int, np.integer)) else rows


def judged_labels(
    members: Tensor, target: Tensor | np.ndarray, class_dim: int, name: str = "target", ignore: int | None = None
) -> tuple[Tensor, Tensor]:
    """The targets as class numbers, and which of them count: all but -100 and `ignore`; both (batch, ...)."""
    given = tensor_of(target).to(members.device)
    given = given if given.is_floating_point() else given.long()  # in eight bits, 156 is -100
    left_out = given == IGNORED if ignore is None else (given == IGNORED) | (given == ignore)
    numbers = check_classes(members, given.masked_fill(left_out, 0), class_dim, name)
    return numbers, ~left_out.reshape(numbers.shape)


def check_classes(members: Tensor, target: Tensor | np.ndarray, class_dim: int, name: str = "target") -> Tensor:
    """The targets as class numbers, (batch, ...), for probabilities (members, batch, ...)."""
    given = tensor_of(target).to(members.device)
    expected, classes = members.movedim(class_dim, -1).shape[1:-1], members.shape[class_dim]
    shaped = given.reshape(expected) if given.shape in ((*expected, 1), (expected[0], 1, *expected[1:])) else given
    if shaped.shape != expected:
        raise ValueError(
            f"{name}: targets must be class numbers of the shape {tuple(expected)}, but theirs is "
            f"{tuple(given.shape)}. For one-hot or soft targets, give target.argmax over the classes; for several "
            'labels in each row, set ensemble.task = "binary" and give each a 0 or 1.'
        )
    numbers = shaped.long()
    wrong = (numbers < 0) | (numbers >= classes) | (numbers != shaped)  # the last: not a whole number, or NaN
    if bool(wrong.any()):
        where = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"{name}: class numbers must be whole numbers from 0 to {classes - 1}, but at {where} there is "
            f"{shaped[tuple(where)].item():g}. Leave out rows without a label, or give them {IGNORED} where metrics, "
            "calibration and training read them: it is ignored there."
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


def check_numeric(name: str, members: Tensor, class_dim: int) -> None:
    """Refuse probabilities that are NaN."""
    nan = members.isnan().movedim(class_dim, -1)
    if bool(nan.any()):
        member, row = nan.nonzero()[0][:2].tolist()
        raise ValueError(
            f"{name}: probabilities must be numbers, but member {member} gives NaN in row {row}. "
            "Look for infinite inputs or weights."
        )


def check_values(name: str, means: Tensor, variances: Tensor, target: Any) -> Tensor:
    """As `check_numbers`, for examples that a function fits or judges: not empty, and everything finite."""
    target = check_numbers(means, target, name).to(means)
    if target.numel() == 0:
        raise ValueError(f"{name}: there must be at least one example, but there are no validation data.")
    check_finite(name, "means", means)
    check_finite(name, "variances", variances)
    return target


def check_finite(name: str, what: str, tensor: Tensor, infinite: bool = False) -> None:
    """Refuse NaN, and infinities where they are not allowed."""
    bad = tensor.isnan() if infinite else ~tensor.isfinite()
    if bool(bad.any()):
        where = bad.nonzero()[0].tolist()
        rule = "must not hold NaN" if infinite else "must be finite"
        raise ValueError(f"{name}: {what} {rule}, but at {where} there is {tensor[tuple(where)].item()}.")


def is_multi_label(log_mean: Tensor, class_dim: int) -> bool:
    """Whether a prediction says yes or no to each of several labels: (batch, labels, 2)."""
    return log_mean.ndim == 3 and class_dim == -1 and log_mean.shape[-1] == 2


def check_all_labels(name: str, members: Tensor, target: Tensor, class_dim: int) -> Tensor:
    """The targets as class numbers, none of which is ignored."""
    numbers, judged = judged_labels(members, target, class_dim, name)
    if not bool(judged.all()):
        raise ValueError(f"{name}: with several labels for each example, none can be {IGNORED}. Leave such rows out.")
    return numbers


def refuse_multi_label(name: str, log_mean: Tensor, class_dim: int) -> None:
    """Refuse a prediction with several labels for each example."""
    if is_multi_label(log_mean, class_dim):
        raise ValueError(
            f"{name}: this is a multi-label prediction, with {log_mean.shape[1]} labels for each example, which can be "
            "right and wrong at once. Call it for each label i, with Classification.from_probabilities("
            "prediction.members[:, :, i]) and target[:, i]."
        )


def check_one_label_each(name: str, rows: Tensor) -> None:
    """Refuse rows of the batch with more than one label that counts.

    Args:
        rows: the row of each label
    """
    if len(rows.unique()) < len(rows):
        raise ValueError(
            f"{name}: examples must be independent, with one label each, but {len(rows)} labels belong to "
            f"{len(rows.unique())} rows. For sequences and dense outputs, keep one random label (a pixel, a token) "
            f"of each row and set the others to {IGNORED}, which is ignored."
        )


def check_share(name: str, what: str, value: float) -> None:
    """Refuse a value that is not between 0 and 1."""
    if not 0 < value < 1:
        raise ValueError(f"{name}: {what} must be above 0 and below 1, but it is {value}. Write 90 % as 0.9.")


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
