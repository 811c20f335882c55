"""What a frozen network is called with: tensors, by place or by name; what is no tensor is as in the example."""

from __future__ import annotations

import enum
import inspect
import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from ..._common.torch_private import pytree
from ..._common.trees import Batch, as_batch, clone, flatten, rows_of, tensors_of
from ...surgery.row_splitting import guess_rows


class Unfit(Exception):  # noqa: N818
    """Why a network cannot be written as a graph of operations without side effects."""


class Example:
    """A call that a network is frozen for, and which of its tensors have a row for each row of the first one."""

    def __init__(self, example: Any):
        self.batch: Batch = as_batch(example)
        self.rows = rows_of(self.batch)
        self.has_rows = [t.ndim > 0 and t.shape[0] == self.rows for t in tensors_of(self.batch)]

    def find_rows_(self, network: Callable[..., Any]) -> Batch:
        """Settle which tensors have rows, as one that all rows share can be as long by chance; two rows that run."""
        given = self.has_rows
        for places in guess_rows(self.batch):
            self.has_rows = [i in places for i in range(len(given))]
            if places[0] == given.index(True):
                with suppress(Exception):  # whatever the model's code raises for rows that do not fit
                    run_on_copies(network, self.first(2))
                    return self.first(2)
        self.has_rows = given
        return self.batch

    def first(self, rows: int) -> Batch:
        """The first rows of the example."""
        return self.map_rows(lambda t: t[:rows])

    def repeat(self, rows: int) -> Batch:
        """The example's rows, repeated up to the wanted number."""
        index = torch.arange(rows) % self.rows
        return self.map_rows(lambda t: t[index.to(t.device)])

    def stretch(self, rows: int) -> Batch:
        """So many rows, all the example's first one, in no more memory."""
        return self.map_rows(lambda t: t[:1].expand(rows, *t.shape[1:]))

    def map_rows(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """The example with every tensor that has rows changed."""
        leaves, tree = flatten(self.batch)
        has_rows = iter(self.has_rows)
        return pytree.tree_unflatten(
            [change(leaf) if isinstance(leaf, Tensor) and next(has_rows) else leaf for leaf in leaves], tree
        )


def run_on_copies(network: Callable[..., Any], batch: Batch) -> Any:
    """What a network gives for copies of the batch's tensors, which it may change."""
    args, kwargs = clone(batch)
    return network(*args, **kwargs)


class Place:
    """Where a tensor of the example stands among the inputs of the graph."""

    def __init__(self, number: int):
        self.number = number


class Call:
    """Finds the inputs of a graph in the arguments of a call, however they are given: by place or by name.

    What is no tensor is part of the graph: a call that gives another value is refused.

    Args:
        modules: the networks that take the call
    """

    def __init__(self, modules: Sequence[nn.Module], example: Example):
        self.signature = _common_signature(modules)
        leaves, tree = flatten(example.batch)
        if objects := [type(leaf).__name__ for leaf in leaves if not isinstance(leaf, (Tensor, *VALUES))]:
            raise Unfit(f"a call takes a {objects[0]} object, whose content may change")
        numbers = itertools.count()
        marked = [Place(next(numbers)) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self.leaves = self._by_path(*pytree.tree_unflatten(marked, tree))
        tensors = tensors_of(example.batch)
        self.has_rows, self.ndims = example.has_rows, [t.ndim for t in tensors]
        self.dtypes: list[torch.dtype] | None = None  # where the inputs must have these
        self.sizes: list[tuple[int, ...]] | None = None  # of the inputs without their rows, where they must be these
        alone = len(example.batch[0]) == 1 and not example.batch[1]
        self.is_plain = alone and isinstance(example.batch[0][0], Tensor)

    def expect_(self, example: Example, sizes: bool, dtypes: bool) -> None:
        """Take inputs of the example's sizes, or data types, only."""
        tensors = tensors_of(example.batch)
        self.sizes = self._sizes(tensors) if sizes else self.sizes
        self.dtypes = [t.dtype for t in tensors] if dtypes else self.dtypes

    def tensors(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        """The inputs of the graph."""
        if self.is_plain and len(args) == 1 and not kwargs and isinstance(args[0], Tensor):  # the usual call
            found = [args[0]]
        else:
            found = self._match(args, kwargs)
        for what, wanted, given in (
            ("dimensions", self.ndims, [t.ndim for t in found]),
            ("types of its inputs", self.dtypes, self.dtypes and [t.dtype for t in found]),
            ("sizes of a row", self.sizes, self.sizes and self._sizes(found)),
        ):
            if given != wanted:
                raise ValueError(
                    f"frozen: the network was traced for {wanted} {what}, as in the example, but got {given}. Freeze "
                    "the ensemble again with such an example."
                )
        return found

    def split(self, tensors: Sequence[Tensor], rows: int) -> list[list[Tensor]]:
        """The inputs in parts of at most this many rows."""
        total = len(tensors[0])
        cut = [has and len(t) == total for t, has in zip(tensors, self.has_rows, strict=True)]
        return [
            [t[start : start + rows] if c else t for t, c in zip(tensors, cut, strict=True)]
            for start in range(0, total, rows)
        ]

    def _match(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        found: dict[int, Tensor] = {}
        given = self._by_path(args, kwargs)
        if others := given.keys() ^ self.leaves.keys():
            raise ValueError(
                f"frozen: the arguments must have the structure of the example, but {', '.join(sorted(others))} is in "
                "only one of the two. Freeze the ensemble again with an example like this call."
            )
        for path, wanted in self.leaves.items():
            leaf = given[path]
            if isinstance(wanted, Place) and isinstance(leaf, Tensor):
                found[wanted.number] = leaf
            elif leaf is not wanted and (type(wanted) is not type(leaf) or bool(wanted != leaf)):
                was = "a tensor" if isinstance(wanted, Place) else repr(wanted)
                now = "a tensor" if isinstance(leaf, Tensor) else repr(leaf)
                raise ValueError(
                    f"frozen: the argument {path} was {was} in the example that the network was frozen for, but in "
                    f"this call it is {now}. Freeze the ensemble again with an example like this call."
                )
        return [found[number] for number in sorted(found)]

    def _by_path(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Every leaf by where it is, such as 'mask' or 'images'[0]; what is not given has its default."""
        named: dict[str, Any] = {"args": args, "kwargs": kwargs}
        if self.signature is not None:
            bound = self.signature.bind(*args, **kwargs)
            bound.apply_defaults()
            named = dict(bound.arguments)
        flatten(named)  # which makes dataclasses known to torch
        pairs = pytree.tree_flatten_with_path(named)[0]
        return {pytree.keystr(path).removeprefix("[").replace("]", "", 1): leaf for path, leaf in pairs}

    def _sizes(self, tensors: Sequence[Tensor]) -> list[tuple[int, ...]]:
        return [tuple(t.shape[1:] if has else t.shape) for t, has in zip(tensors, self.has_rows, strict=True)]


def _common_signature(modules: Sequence[nn.Module]) -> inspect.Signature | None:
    """The arguments that all networks take, without annotations, which need not be storable; None: they differ."""
    try:
        given = [inspect.signature(module.forward) for module in modules]
    except (TypeError, ValueError):  # written in C
        return None
    bare = [inspect.Signature([p.replace(annotation=p.empty) for p in one.parameters.values()]) for one in given]
    return bare[0] if all(signature == bare[0] for signature in bare) else None


VALUES = (
    *(type(None), bool, int, float, complex, str, bytes, enum.Enum, slice, range, type(Ellipsis)),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)
