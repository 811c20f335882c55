"""A prediction is a `Classification` or a `Regression`, as the task says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from .._common.torch_private import pytree
from .._common.trees import map_tensors, tensors_of
from .classification import Classification
from .outputs import class_dim_of, gaussian, one_tensor
from .regression import Regression

Prediction = Classification | Regression


def prediction_of(task: str, outputs: Any, class_dim: int | None = None) -> Prediction:
    """The prediction that stacked outputs, (members, batch, ...), are under a task.

    Args:
        class_dim: where a member's output, (batch, ...), has its classes
    """
    if task == "gaussian":
        return Regression(*gaussian(outputs))
    tensor = one_tensor(outputs)
    if task == "regression":
        return Regression(tensor)
    if task == "binary":
        return Classification.from_binary(tensor)
    return Classification.from_logits(tensor, class_dim_of(tensor, class_dim))


def join_outputs(batches: Iterable[tuple[Any, Any]]) -> Any:
    """The outputs of all batches of (outputs, targets) together, (members, rows, ...), on the CPU."""
    parts = [map_tensors(outputs, torch.Tensor.cpu) for outputs, _ in batches]
    check_any_batch(parts)
    shapes = {tuple((*t.shape[:1], *t.shape[2:]) for t in tensors_of(part)) for part in parts}
    if len(shapes) > 1:
        lengths = sorted({str(tuple(tensors_of(part)[0].shape[2:])) for part in parts})
        raise ValueError(
            f"predict: the outputs of all batches must have one shape, but there are {', '.join(lengths[:5])}. "
            'Pad all sequences to one length, or use predict(..., keep="summary"), which takes any lengths.'
        )
    return pytree.tree_map(lambda *tensors: torch.cat(tensors, 1), *parts)


def check_any_batch(parts: Sequence[Any]) -> None:
    """Refuse a loader that gives nothing."""
    if not parts:
        raise ValueError("predict: there must be at least one batch, but the loader is empty.")
