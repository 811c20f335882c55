"""Which inputs have a row for each row of the batch, and which are the same for all rows, found by trying."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .._common.torch_private import pytree
from .._common.trees import (
    Batch,
    are_close,
    as_batch,
    check_rows_given,
    flatten,
    map_arrays,
    map_tensors,
    rows_of,
    split_item,
    tensors_of,
)

Try = Callable[[Batch], list[Tensor]]


def place_of(module: nn.Module, device: torch.device | str | None) -> Tensor:
    """A tensor where a frozen network or a cascade runs, of its type; another device is refused."""
    first = next((p for p in module.parameters() if p.is_floating_point()), torch.zeros(()))
    if device is not None and torch.device(device).type != first.device.type:
        raise ValueError(
            f"predict: this runs where it was made, on {first.device}, not on {torch.device(device)}. Make it again "
            "from an ensemble that is there."
        )
    return first


def rows_to_predict(
    x: Any,
    batch_size: int | None,
    device: torch.device,
    dtype: torch.dtype,
    trying: Callable[[], AbstractContextManager[Try]],
) -> Iterator[tuple[Batch, Any]]:
    """The batches of a tensor, an array, a tree of them or a loader, with the targets that a loader gives, or None.

    Only what has rows is cut, and what runs as it is keeps its precision.

    Args:
        dtype: of the model's weights, to which other floats are rounded where the model does not take them
        trying: gives the model without chance, rows first, to find out what it takes
    """
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"predict: batch_size must be at least 1, but it is {batch_size}. Leave it out for all rows.")
    if isinstance(x, (Tensor, np.ndarray, Mapping, tuple)) or hasattr(x, "to_numpy"):  # as data frames have
        items: Iterable[tuple[Any, Any]] = [(x, None)]
    elif isinstance(x, Iterable):
        items = (split_item(item) for item in x)
    else:
        raise TypeError(
            f"predict: x must be a tensor, an array, a tuple, a dict or a loader, but it is a {type(x).__name__}. Of a "
            "data set, give the inputs: x, y = data.test[:]."
        )
    for given, targets in items:
        batch = map_tensors(map_arrays(as_batch(given)), lambda t: t.to(device))
        check_rows_given("predict", batch)
        others = any(t.is_floating_point() and t.dtype != dtype for t in tensors_of(batch))
        if others and not _runs(cut_rows(batch, slice(0, 2), long_tensors(batch)), trying):
            batch = map_tensors(batch, lambda t: t.to(dtype) if t.is_floating_point() else t)
        rows = rows_of(batch)
        if batch_size is None or batch_size >= rows:
            yield batch, targets
            continue
        with trying() as run:
            places = find_rows(batch, run)
        for some in (slice(start, start + batch_size) for start in range(0, rows, batch_size)):
            yield cut_rows(batch, some, places), targets if targets is None else targets[some]


def _runs(batch: Batch, trying: Callable[[], AbstractContextManager[Try]]) -> bool:
    try:
        with trying() as run:
            run(batch)
    except Exception:  # whatever the model's code raises
        return False
    return True


def find_rows(batch: Batch, run: Try) -> Sequence[int]:
    """The numbers of the tensors that have the rows of a batch; others may be as long by accident (a table).

    The rows 0 and 1, and 1 and 2, are run: what row 1 gives must not depend on the row beside it.

    Args:
        run: the model without chance, rows first
    """
    alone = len(tensors_of(batch)) == 1
    for places in guess_rows(batch):
        if _parts_add_up(batch, run) if alone else _rows_are_apart(batch, places, run):
            return places
    shapes = [tuple(tensor.shape) for tensor in tensors_of(batch)]
    raise ValueError(
        f"predict: batch_size splits the batch into rows, but the inputs, whose shapes are {shapes}, cannot be split "
        "so that each row keeps its output. Leave batch_size out, or give a loader of batches."
    )


def guess_rows(batch: Batch) -> Iterator[Sequence[int]]:
    """The numbers of the tensors that may have the rows, all that are long enough first."""
    long = long_tensors(batch)
    for size in range(len(long), 0, -1):
        yield from combinations(long, size)


def _parts_add_up(batch: Batch, run: Try) -> bool:
    """Whether some rows in two parts give what they give together: not if they are steps of a sequence."""
    part = 2 if rows_of(batch) >= 4 else 1
    some = (slice(0, 2 * part), slice(0, part), slice(part, 2 * part))
    try:
        whole, first, second = (run(cut_rows(batch, rows, [0])) for rows in some)
    except (RuntimeError, ValueError, IndexError, TypeError):
        return True  # not for so few rows: if the model takes no part of the batch, it says so itself
    parts = zip(first, second, strict=True)
    return are_close([t for t in whole if t.ndim], [torch.cat(pair) for pair in parts if pair[0].ndim])


def _rows_are_apart(batch: Batch, places: Sequence[int], run: Try) -> bool:
    last = rows_of(batch) >= 3
    try:
        first, second = (run(cut_rows(batch, rows, places)) for rows in (slice(0, 2), slice(1, 3 if last else 2)))
    except (RuntimeError, ValueError, IndexError, TypeError):
        return False
    counts = {(len(a), len(b)) for a, b in zip(first, second, strict=True) if a.ndim and b.ndim}
    if counts != {(2, 2 if last else 1)}:
        return False
    return are_close([t[1] for t in first if t.ndim], [t[0] for t in second if t.ndim])


def long_tensors(batch: Batch) -> list[int]:
    """The numbers of the tensors of a batch that are as long as the first."""
    rows = rows_of(batch)
    return [i for i, tensor in enumerate(tensors_of(batch)) if tensor.ndim and tensor.shape[0] == rows]


def cut_rows(batch: Batch, some: slice, places: Sequence[int]) -> Batch:
    """Some rows of the tensors with these numbers; the others are the same for all rows."""
    leaves, structure = flatten(batch)
    tensors = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    chosen = {tensors[place] for place in places}
    return pytree.tree_unflatten([leaf[some] if i in chosen else leaf for i, leaf in enumerate(leaves)], structure)
