"""What training minimises, by name: criterion(output, target) -> mean over rows; CRITERIA at the foot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from .._common.trees import IGNORED
from ..core.target_checks import check_class_shapes, is_torch_cross_entropy
from ..uncertainty.outputs import class_dim_of, gaussian_nll

Criterion = Callable[[Any, Any], Tensor]


def cross_entropy(output: Tensor, target: Tensor, class_dim: int | None = None) -> Tensor:
    """Cross-entropy over all labels but -100; labels of several dimensions belong to sequences or images.

    Shapes:
        output: (rows, classes), or (rows, ..., classes), or (rows, classes, ...); target: (rows, ...), or soft

    Args:
        class_dim: where the output has its classes; by default where the targets leave only one place for them

    >>> logits, labels = torch.zeros(2, 5, 3), torch.tensor([[0, 1, 2, 0, -100], [1, -100, -100, -100, -100]])
    >>> cross_entropy(logits, labels).item()  # five labels, three classes: log 3
    1.09...
    """
    if output.ndim > 2:
        places = class_places(output, target)
        dim = class_dim_of(output[None], places[0] if class_dim is None and len(places) == 1 else class_dim)
        target = target[None].movedim(dim, 2)[0] if target.shape == output.shape else target
        output = output[None].movedim(dim, 2)[0]
    if target.shape == (len(output), 1) and not target.is_floating_point():
        target = target.flatten()  # a column of class numbers
    check_class_shapes(output, target)
    if target.is_floating_point():
        return F.cross_entropy(output, target)
    target = target.long()  # pandas and numpy have whole numbers of other kinds, and flags
    return F.cross_entropy(output, target, reduction="sum") / (target != IGNORED).sum().clamp_min(1)


def check_target_values(criterion: Any, target: Any) -> None:
    """Refuse the values of a first batch that do not fit the criterion, and name the task that they do fit.

    >>> check_target_values(cross_entropy, torch.tensor([[1.0, 0.0, 1.0]]))
    Traceback (most recent call last):
    ValueError: cross_entropy: the probabilities of a row must sum to 1, but in row 0 they sum to 2. For several...
    """
    if not isinstance(target, Tensor):
        return
    usual = criterion is cross_entropy or is_torch_cross_entropy(criterion)
    if usual and target.is_floating_point() and target.ndim == 2 and target.shape[1] > 1:
        sums = target.double().sum(1)  # classes
        wrong = ((sums - 1).abs() > 1e-3).nonzero()
        if len(wrong):
            row = int(wrong[0])
            raise ValueError(
                f"cross_entropy: the probabilities of a row must sum to 1, but in row {row} they sum to {sums[row]:g}. "
                'For several labels in each row, set ensemble.task = "binary".'
            )
    if criterion is binary:
        judged = target[target != IGNORED]
        if len(judged) and (float(judged.min()) < 0 or float(judged.max()) > 1):
            raise ValueError(
                f"binary: targets must lie between 0 and 1, but they reach from {judged.min():g} to {judged.max():g}. "
                'For class numbers, set ensemble.task = "classification" and give the network an output for each '
                'class; for numbers, ensemble.task = "regression".'
            )


def _as_outputs(name: str, output: Tensor, target: Tensor) -> Tensor:
    """Targets in the shape of the outputs: the rows must be the same, and so must the numbers in each."""
    if len(target) != len(output) or target.numel() != output.numel():
        raise ValueError(
            f"{name}: needs one target for each output, but outputs are {tuple(output.shape)} and targets "
            f'{tuple(target.shape)}. For class numbers, set ensemble.task = "classification"; for means and variances, '
            '"gaussian".'
        )
    return target.reshape(output.shape)


def class_places(output: Tensor, target: Tensor) -> list[int]:
    """The dimensions of an output that may be its classes, since the targets have all others."""
    return [dim for dim in range(1, output.ndim) if output.select(dim, 0).shape == target.shape]


def bce(output: Tensor, target: Tensor) -> Tensor:
    """Binary cross-entropy over all classes, as in the A3 recipe: each class is a question of its own."""
    if not target.is_floating_point():
        judged = target != IGNORED
        output, target = output[judged], F.one_hot(target[judged].long(), output.shape[-1])
    return F.binary_cross_entropy_with_logits(output, target.to(output.dtype))


def multilabel_bce(output: Tensor, target: Tensor) -> Tensor:
    """Binary cross-entropy in which every class that was mixed in is a right answer, as in A3 (Wightman et al., 2021).

    A class with at most a fifth of the mixture does not count, as in the settings that timm publishes.
    """
    return bce(output, (target > 0.2).to(output.dtype) if target.is_floating_point() else target)


def binary(output: Tensor, target: Tensor) -> Tensor:
    """Binary cross-entropy of one logit per row; labels of -100 are left out."""
    target = _as_outputs("binary", output, target)
    judged = target != IGNORED
    loss = F.binary_cross_entropy_with_logits(output, target.to(output.dtype).where(judged, 0.0), reduction="none")
    return loss.where(judged, 0.0).sum() / judged.sum().clamp_min(1)


def mse(output: Tensor, target: Tensor) -> Tensor:
    """The mean squared error."""
    return F.mse_loss(output, _as_outputs("mse", output, target).to(output.dtype))


CRITERIA: dict[str, Criterion] = {
    "cross_entropy": cross_entropy,
    "bce": bce,
    "multilabel_bce": multilabel_bce,
    "binary": binary,
    "mse": mse,
    "gaussian_nll": gaussian_nll,
}

USUAL = {"classification": "cross_entropy", "binary": "binary", "regression": "mse", "gaussian": "gaussian_nll"}
