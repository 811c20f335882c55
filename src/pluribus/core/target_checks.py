"""Targets of which a criterion would make a constant, or pairs of rows, without a word. Shapes alone are read."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

OF_NUMBERS = (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss)
OF_NUMBERS_MODULES = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss)


def is_torch_cross_entropy(criterion: Any) -> bool:
    """Whether a criterion is torch's own, as a function or a module."""
    return criterion is F.cross_entropy or isinstance(criterion, nn.CrossEntropyLoss)


def check_targets(criterion: Any, output: Any, target: Any) -> None:
    """Refuse what torch's own criteria take for something else; other criteria are their author's.

    >>> check_targets(F.mse_loss, torch.zeros(8, 1), torch.zeros(8))
    Traceback (most recent call last):
    ValueError: mse_loss: targets of the shape (8,) for outputs of (8, 1) would be...
    """
    if not isinstance(output, Tensor) or not isinstance(target, Tensor):
        return
    if is_torch_cross_entropy(criterion) and output.ndim == 2:
        check_class_shapes(output, target)
    of_numbers = criterion in OF_NUMBERS or isinstance(criterion, OF_NUMBERS_MODULES)
    if of_numbers and target.ndim and output.shape != target.shape:
        name = getattr(criterion, "__name__", type(criterion).__name__)
        raise ValueError(
            f"{name}: targets of the shape {tuple(target.shape)} for outputs of {tuple(output.shape)} would be "
            "compared with the outputs of all rows. Give targets of the same shape, such as target[:, None], or set "
            'ensemble.task = "regression" and leave criterion= out of pb.fit.'
        )


def check_class_shapes(output: Tensor, target: Tensor) -> None:
    """Refuse what cross-entropy would make a constant of, or torch an error without a way out.

    Shapes:
        output: (rows, classes); target: (rows), or soft, (rows, classes)
    """
    if output.shape[1] < 2:
        raise ValueError(
            "cross_entropy: needs two outputs or more, but there is one, of which the loss is always 0. For yes or no, "
            'set ensemble.task = "binary"; for a number, ensemble.task = "regression".'
        )
    if target.shape == output.shape:
        if target.is_floating_point():
            return
        raise ValueError(
            f"cross_entropy: targets of the shape {tuple(target.shape)} must be probabilities, but they are whole "
            'numbers. For several labels in each row, set ensemble.task = "binary"; for one, give target.argmax(1).'
        )
    wanted, given = (len(output), *output.shape[2:]), tuple(target.shape)
    if target.is_floating_point() or given != wanted:
        raise ValueError(
            f"cross_entropy: targets of the shape {wanted} for outputs of {tuple(output.shape)} must be class numbers "
            f"(int64), but they are {'floats' if target.is_floating_point() else given}. To predict numbers, set "
            'ensemble.task = "regression"; for means and variances, "gaussian".'
        )
