"""Trees of tensors: what a model takes and gives back (tensors, tuples, dicts, dataclasses), rows first."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from .torch_private import pytree

IGNORED = -100  # the label of what is not evaluated, as torch's losses and transformers have it

LARGEST = 1e18  # the square of a larger number overflows float32

Batch = tuple[tuple[Any, ...], dict[str, Any]]  # positional and named arguments of one call


def as_batch(x: Any) -> Batch:
    """What one call takes, as arguments: a tensor, a tuple of positional or a mapping of named ones."""
    if isinstance(x, Mapping):
        return (), dict(x)
    return (tuple(x), {}) if isinstance(x, (tuple, list)) else ((x,), {})


def flatten(tree: Any) -> tuple[list[Any], pytree.TreeSpec]:
    """Leaves and structure; dataclasses and namespaces that torch does not know yet are made known."""
    leaves, structure = pytree.tree_flatten(tree)
    for leaf in leaves:
        if isinstance(leaf, SimpleNamespace):
            _register_namespace(type(leaf))
        elif dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            pytree.register_dataclass(type(leaf))
        else:
            continue
        return flatten(tree)
    return leaves, structure


def _register_namespace(kind: type[SimpleNamespace]) -> None:
    pytree.register_pytree_node(
        kind,
        lambda space: (list(vars(space).values()), tuple(vars(space))),
        lambda values, names: kind(**dict(zip(names, values, strict=True))),
    )


class MemberObjects(list[Any]):
    """One object for each member, where an output is neither a tensor nor a tree of them: a distribution, a cache."""


def hidden_tensors(leaf: Any, depth: int = 4) -> list[Tensor]:
    """The tensors inside an object that is not a tree: in its attributes, and in the objects that these hold."""
    if isinstance(leaf, Tensor):
        return [leaf]
    if not depth or leaf is None or isinstance(leaf, (bool, int, float, str, bytes, type, np.ndarray, nn.Module)):
        return []
    slots = (key for kind in type(leaf).__mro__ for key in getattr(kind, "__slots__", ()) if hasattr(leaf, key))
    held = [*getattr(leaf, "__dict__", {}).values(), *(getattr(leaf, key) for key in slots if key != "__weakref__")]
    if isinstance(leaf, MemberObjects):
        held = list(leaf)
    found = {id(t): t for value in held for part in pytree.tree_leaves(value) for t in hidden_tensors(part, depth - 1)}
    return list(found.values())


def tensors_of(tree: Any) -> list[Tensor]:
    """The tensors among the leaves."""
    if isinstance(tree, Tensor):
        return [tree]
    if type(tree) is tuple and tree[1:] == ({},) and {*map(type, tree[0])} == {Tensor}:  # a batch, as a rule
        return list(tree[0])
    return [leaf for leaf in flatten(tree)[0] if isinstance(leaf, Tensor)]


def are_close(first: Sequence[Tensor], second: Sequence[Tensor], tolerance: float = 1e-4) -> bool:
    """Whether two runs have given the same tensors, to a share of the largest value in each."""
    return len(first) == len(second) and all(_is_close(a, b, tolerance) for a, b in zip(first, second, strict=True))


def _is_close(a: Tensor, b: Tensor, tolerance: float) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.is_meta or not a.is_floating_point():
        return a.is_meta or torch.equal(a, b)
    tolerance = max(tolerance, 2 * torch.finfo(a.dtype).eps)  # half precision rounds more than that
    scale = float(a.detach().nan_to_num(0, 0, 0).abs().max()) if a.numel() else 0.0
    return torch.allclose(a, b, rtol=10 * tolerance, atol=tolerance * scale + 1e-30, equal_nan=True)


def stack_trees(trees: list[Any]) -> Any:
    """One tree of stacked tensors, (members, ...); of other leaves that differ there is one for each member."""
    if {*map(type, trees)} == {Tensor} and len({*map(attrgetter("shape"), trees)}) == 1:
        return torch.stack(trees)
    flat = [flatten(tree) for tree in trees]
    columns = list(zip(*(leaves for leaves, _ in flat), strict=True))
    for column in columns:
        shapes = {tuple(leaf.shape) for leaf in column if isinstance(leaf, Tensor)}
        if len(shapes) > 1:
            raise ValueError(f"the members' outputs must all have the same shape, but the shapes are {sorted(shapes)}.")
    stacked = [torch.stack(list(c)) if isinstance(c[0], Tensor) else join_objects(c) for c in columns]
    return pytree.tree_unflatten(stacked, flat[0][1])


def join_objects(objects: Sequence[Any]) -> Any:
    """The members' objects that are not tensors: a single one where it is the same for all."""
    first = objects[0]
    if isinstance(first, (bool, int, float, complex, str, bytes)):
        return (
            first if all(type(other) is type(first) and other == first for other in objects) else MemberObjects(objects)
        )
    if isinstance(first, np.ndarray):
        return first if all(np.array_equal(first, other) for other in objects) else MemberObjects(objects)
    return MemberObjects(objects) if any(hidden_tensors(each) for each in objects) else first


def unstack(tree: Any, size: int) -> list[Any]:
    """The tree of each member."""
    leaves, structure = flatten(tree)
    own = (Tensor, MemberObjects)
    return [
        pytree.tree_unflatten([leaf[i] if isinstance(leaf, own) else leaf for leaf in leaves], structure)
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


def batch_kind(batch: Batch, rows: int | None = None) -> Hashable:
    """What decides how a model treats a batch: shapes and types of its tensors, and all that is no tensor.

    Args:
        rows: so long first dimensions do not count
    """
    leaves, tree = flatten(batch)
    return str(tree), tuple(
        (tuple(leaf.shape[1:] if leaf.ndim and leaf.shape[0] == rows else leaf.shape), leaf.dtype, leaf.device.type)
        if isinstance(leaf, Tensor)
        else repr(leaf)[:100]
        for leaf in leaves
    )


def check_rows_given(action: str, batch: Any, dim: int = 0) -> None:
    """Refuse a batch without rows: the mean of nothing is not a number."""
    first = next((tensor for tensor in tensors_of(batch) if tensor.ndim > dim), None)
    if first is not None and first.shape[dim] == 0:
        raise ValueError(
            f"{action}: a batch must have at least one row, but its first tensor has the shape {tuple(first.shape)}. "
            "Leave empty batches out."
        )


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


def repeat_votes(outputs: Any, votes: Sequence[int] | None) -> Any:
    """Outputs, (members, batch, ...), with each member as often as it counts: (votes, batch, ...)."""
    if votes is None:
        return outputs
    index = [member for member, count in enumerate(votes) for _ in range(count)]
    return map_tensors(outputs, lambda t: t[index])


def logits_of(output: Any) -> Any:
    """What a criterion looks at: the `logits` of an output that has them, otherwise the output."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping):
        return output.get("logits", output)
    return getattr(output, "logits", output)


LABELS = ("labels", "label", "targets", "target", "y")  # what the targets of a batch that is a dict are called


def split_item(item: Any) -> tuple[Any, Any]:
    """The inputs and targets of what a loader gives: x, (x, y), (x, mask, ..., y) or a dict; None for no targets.

    >>> split_item({"x": 1, "labels": 2}), split_item((1, 2, 3)), split_item([1])
    (({'x': 1}, 2), ((1, 2), 3), (1, None))
    """
    if isinstance(item, Mapping):
        name = next((name for name in LABELS if name in item), None)
        return (item, None) if name is None else ({key: item[key] for key in item if key != name}, item[name])
    if not isinstance(item, (tuple, list)) or not item:
        return item, None
    if len(item) > 2:
        return tuple(item[:-1]), item[-1]
    return item[0], item[1] if len(item) > 1 else None


def map_arrays(tree: Any) -> Any:
    """The tree with tensors in place of arrays and data frames."""
    leaves, structure = flatten(tree)
    return pytree.tree_unflatten([_tensor_from(leaf) for leaf in leaves], structure)


def _tensor_from(leaf: Any) -> Any:
    try:
        if hasattr(leaf, "columns") and hasattr(leaf, "to_numpy"):  # a data frame, of numbers and flags
            leaf = leaf.to_numpy(dtype=float)
        elif hasattr(leaf, "to_numpy"):
            leaf = leaf.to_numpy()
        return torch.from_numpy(np.require(leaf, requirements=["C", "W"])) if isinstance(leaf, np.ndarray) else leaf
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"arrays and data frames must hold numbers ({error}). Encode texts first, labels too; pluribus train and "
            "the estimators of pluribus.integrations.sklearn do it themselves."
        ) from None


def name_nan(data: Any) -> str:
    """Where (x, y) in memory hold NaN or a number too large: the row, and the column by its name or number."""
    for name, values in zip(("", " of y"), data if isinstance(data, (tuple, list)) else (), strict=False):
        if not hasattr(values, "shape"):
            continue
        table = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
        if table.ndim not in (1, 2) or table.dtype.kind != "f" or (good := abs(table) < LARGEST).all():
            continue
        row, *column = np.argwhere(~good)[0].tolist()
        where = f"row {row}{name}"
        if column:
            names = getattr(values, "columns", None)
            where += f", column {column[0] if names is None else repr(names[column[0]])}"
        return f" In the data this is {where}."
    return ""


def have_same_numbers(one: Any, other: Any) -> bool:
    """Whether what is no tensor in two outputs is the same, as far as it is numbers and words."""
    plain = ([leaf for leaf in flatten(tree)[0] if isinstance(leaf, (bool, int, float, str))] for tree in (one, other))
    return next(plain) == next(plain)


def clone(batch: Batch) -> Batch:
    """The batch, which a pass may change in place."""
    return cast(Batch, map_tensors(batch, Tensor.clone))
