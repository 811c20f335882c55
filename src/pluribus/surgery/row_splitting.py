"""Which inputs have a row for each row of the batch, and which are the same for all rows, found by trying."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from .._common.trees import Batch, are_close, batches_and_targets, cut_rows, long_tensors, rows_of, tensors_of

Try = Callable[[Batch], list[Tensor]]


def rows_to_predict(
    x: Any,
    batch_size: int | None,
    device: torch.device,
    dtype: torch.dtype,
    trying: Callable[[], AbstractContextManager[Try]],
) -> Iterator[tuple[Batch, Any]]:
    """The batches that `predict` runs, with targets: only what has rows is cut, and what runs as it is is not rounded.

    Args:
        trying: gives the model without chance, rows first, to find out what it takes
    """

    def rows(batch: Batch) -> Sequence[int]:
        with trying() as run:
            return find_rows(batch, run)

    def takes(batch: Batch) -> bool:
        try:
            with trying() as run:
                run(batch)
        except Exception:  # whatever the model's code raises
            return False
        return True

    return batches_and_targets(x, batch_size, device, dtype, rows, takes)


def find_rows(batch: Batch, run: Try) -> Sequence[int]:
    """The numbers of the tensors that have the rows of a batch; others may be as long by accident (a table).

    The rows 0 and 1, and 1 and 2, are run: what row 1 gives must not depend on the row beside it.

    Args:
        run: the model without chance, rows first
    """
    alone = len(tensors_of(batch)) == 1
    for places in _guesses(batch):
        if _parts_add_up(batch, run) if alone else _rows_are_apart(batch, places, run):
            return places
    shapes = [tuple(tensor.shape) for tensor in tensors_of(batch)]
    raise ValueError(
        f"predict: batch_size splits the batch into rows, but the inputs, whose shapes are {shapes}, cannot be split "
        "so that each row keeps its output. Leave batch_size out, or give a loader of batches."
    )


def _guesses(batch: Batch) -> Iterator[Sequence[int]]:
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
