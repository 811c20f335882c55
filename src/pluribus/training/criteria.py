"""What training minimises, by name: criterion(output, target) -> mean over rows; CRITERIA at the foot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from ..uncertainty.outputs import gaussian_nll

Criterion = Callable[[Any, Any], Tensor]


def bce(output: Tensor, target: Tensor) -> Tensor:
    """Binary cross-entropy over all classes, as in the A3 recipe: each class is a question of its own."""
    if not target.is_floating_point():
        target = F.one_hot(target, output.shape[-1])
    return F.binary_cross_entropy_with_logits(output, target.to(output.dtype))


def multilabel_bce(output: Tensor, target: Tensor) -> Tensor:
    """Binary cross-entropy in which every class that was mixed in is a right answer, as in A3 (Wightman et al., 2021).

    A class with at most a fifth of the mixture does not count, as in the settings that timm publishes.
    """
    return bce(output, (target > 0.2).to(output.dtype) if target.is_floating_point() else target)


def binary(output: Tensor, target: Tensor) -> Tensor:
    """Binary cross-entropy of one logit per row."""
    return F.binary_cross_entropy_with_logits(output, target.reshape(output.shape).to(output.dtype))


def mse(output: Tensor, target: Tensor) -> Tensor:
    """The mean squared error."""
    return F.mse_loss(output, target.reshape(output.shape).to(output.dtype))


CRITERIA: dict[str, Criterion] = {
    "cross_entropy": F.cross_entropy,
    "bce": bce,
    "multilabel_bce": multilabel_bce,
    "binary": binary,
    "mse": mse,
    "gaussian_nll": gaussian_nll,
}

USUAL = {
    "classification": "cross_entropy",
    "binary": "binary",
    "regression": "mse",
    "gaussian": "gaussian_nll",
}  # by task
