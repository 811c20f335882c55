"""Trees of tensors: what a model takes and gives back (tensors, tuples, dicts, dataclasses), rows first."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

Batch = tuple[tuple[Any, ...], dict[str, Any]]  # positional and named arguments of one call


def as_batch(x: Any) -> Batch:
    """What one call takes, as arguments: a tensor, a tuple of positional or a mapping of named ones."""
    if isinstance(x, Mapping):
        return (), dict(x)
    return (tuple(x), {}) if isinstance(x, (tuple, list)) else ((x,), {})


def flatten(tree: Any) -> tuple[list[Any], pytree.TreeSpec]:
    """Leaves and structure; dataclasses that torch does not know yet are made known."""
    while unknown := {type(leaf) for leaf in pytree.tree_leaves(tree) if _is_unknown(leaf)}:
        for kind in unknown:
            pytree.register_dataclass(kind)
    return pytree.tree_flatten(tree)


def _is_unknown(leaf: Any) -> bool:
    return dataclasses.is_dataclass(leaf) and not isinstance(leaf, type)


def tensors_of(tree: Any) -> list[Tensor]:
    """The tensors among the leaves."""
    return [leaf for leaf in flatten(tree)[0] if isinstance(leaf, Tensor)]


def stack_trees(trees: list[Any]) -> Any:
    """One tree of stacked tensors, (members, ...); other leaves are those of the first."""
    flat = [flatten(tree) for tree in trees]
    columns = list(zip(*(leaves for leaves, _ in flat), strict=True))
    for column in columns:
        shapes = {tuple(leaf.shape) for leaf in column if isinstance(leaf, Tensor)}
        if len(shapes) > 1:
            raise ValueError(f"the members' outputs must have one shape, but they have {sorted(shapes)}.")
    stacked = [torch.stack(list(c)) if isinstance(c[0], Tensor) else c[0] for c in columns]
    return pytree.tree_unflatten(stacked, flat[0][1])


def unstack(tree: Any, size: int) -> list[Any]:
    """The tree of each member."""
    leaves, structure = flatten(tree)
    return [
        pytree.tree_unflatten([leaf[i] if isinstance(leaf, Tensor) else leaf for leaf in leaves], structure)
        for i in range(size)
    ]


def members_first(tensor: Tensor, size: int, rows: int) -> Tensor:
    """(members * batch, ...) as (members, batch, ...); what has no such rows is the same for all members."""
    if tensor.ndim and tensor.shape[0] == rows:
        return tensor.unflatten(0, (size, rows // size))
    return tensor.expand(size, *tensor.shape)


def check_members(batch: Batch, size: int) -> None:
    """Every tensor must be (members, batch, ...)."""
    for tensor in tensors_of(batch):
        if tensor.ndim < 2 or tensor.shape[0] != size:
            raise ValueError(
                f"loss: with per_member=True inputs are ({size} members, batch, ...), "
                f"but one has the shape {tuple(tensor.shape)}. Stack one batch per member."
            )


def rows_of(batch: Any, dim: int = 0) -> int:
    """How many rows the batch has: the length of its first tensor."""
    for tensor in tensors_of(batch):
        if tensor.ndim > dim:
            return tensor.shape[dim]
    raise ValueError("a batch must hold a tensor whose first dimension counts its rows, but there is none.")


def device_of(batch: Any) -> torch.device:
    """Where the batch is."""
    return next((tensor.device for tensor in tensors_of(batch)), torch.device("cpu"))


def tile(tree: Any, rows: int, size: int) -> Any:
    """Every tensor with `rows` rows, `size` times, one after the other."""
    return map_rows(tree, rows, lambda t: t.repeat(size, *[1] * (t.ndim - 1)))


def map_rows(tree: Any, rows: int, change: Any) -> Any:
    """The tree with `change` applied to every tensor that has `rows` rows; others are the same for all rows."""
    leaves, structure = flatten(tree)
    changed = [
        change(leaf) if isinstance(leaf, Tensor) and leaf.ndim and leaf.shape[0] == rows else leaf for leaf in leaves
    ]
    return pytree.tree_unflatten(changed, structure)


def map_tensors(tree: Any, change: Any) -> Any:
    """The tree with `change` applied to every tensor."""
    leaves, structure = flatten(tree)
    return pytree.tree_unflatten([change(t) if isinstance(t, Tensor) else t for t in leaves], structure)


def answer(output: Any) -> Any:
    """What a criterion looks at: the `logits` of an output that has them, otherwise the output."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping):
        return output.get("logits", output)
    return getattr(output, "logits", output)


def batches_and_targets(
    x: Any, batch_size: int | None, device: torch.device, dtype: torch.dtype
) -> Iterator[tuple[Batch, Any]]:
    """The batches of a tensor, an array, a tree of them or a loader, on the device and in the model's precision.

    Each comes with the targets of a loader that gives (x, y), or None.
    """

    if batch_size is not None and batch_size < 1:
        raise ValueError(f"predict: batch_size must be at least 1, but it is {batch_size}. Leave it out for all rows.")

    def ready(tree: Any) -> Any:
        if isinstance(tree, np.ndarray):
            tree = torch.from_numpy(np.require(tree, requirements=["C", "W"]))
        if isinstance(tree, Tensor):
            return tree.to(device, dtype if tree.is_floating_point() else None)
        return tree

    def split(batch: Batch, targets: Any = None) -> Iterator[tuple[Batch, Any]]:
        leaves, structure = flatten(batch)
        batch = pytree.tree_unflatten([ready(leaf) for leaf in leaves], structure)
        rows = rows_of(batch)
        step = batch_size or max(rows, 1)
        for start in range(0, max(rows, 1), step):
            part = map_rows(batch, rows, lambda t, start=start: t[start : start + step])
            yield part, targets if targets is None or step >= rows else targets[start : start + step]

    if isinstance(x, (Tensor, np.ndarray, Mapping, tuple)):
        yield from split(as_batch(x))
    elif isinstance(x, Iterable):
        for item in x:  # a loader; (x, y) as loaders give it
            several = isinstance(item, (tuple, list))
            yield from split(as_batch(item[0] if several else item), item[1] if several and len(item) > 1 else None)
    else:
        raise TypeError(f"predict: x must be a tensor, an array, a tuple, a dict or a loader, but it is {type(x)}.")
