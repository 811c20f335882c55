"""Whether a frozen network gives what the ensemble gives: for several numbers of rows, before anyone uses it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from ..._common.trees import Batch, are_close, map_tensors, tensors_of
from ...surgery.dropout import no_dropout
from .call_signature import Example, run_on_copies

MOST = 64  # rows of the example that are compared

Network = Callable[..., Any]


@torch.no_grad()
def agrees(made: Network, ensemble: Network, example: Example) -> bool:
    """Whether both give the same for one, two and three rows, for the example and for more rows than it has."""
    counts = {1, 2, 3, min(example.rows, MOST), min(2 * example.rows + 1, max(example.rows, 17), MOST)}
    with torch.random.fork_rng(devices=[]), _without_chance(ensemble, example) as repeats:
        if not repeats:
            return True  # random in a way that cannot be stilled
        for rows in sorted(counts):
            batch = _vary(example.repeat(rows)) if rows != example.rows else example.batch
            wanted = _result(ensemble, batch)
            if isinstance(wanted, Exception):  # the model refuses so many rows
                continue
            given = _result(made, batch)
            if isinstance(given, Exception) or not close(given, wanted):
                return False
    return True


@torch.no_grad()
def runs_by_rows(made: Network, example: Example) -> bool:
    """Whether each row's outputs follow from that row alone, so that rows may run in parts."""
    with torch.random.fork_rng(devices=[]), _without_chance(made, example):
        first, more = (tensors_of(run_on_copies(made, _vary(example.repeat(rows)))) for rows in (2, 4))
    pairs = list(zip(first, more, strict=True))
    by_rows = all(a.ndim > 1 and b.ndim > 1 and (a.shape[1], b.shape[1]) == (2, 4) for a, b in pairs)
    return by_rows and all(close(b[:, :2], a) for a, b in pairs)


@contextmanager
def _without_chance(network: Network, example: Example) -> Iterator[bool]:
    """Nothing drops where something does; whether the network repeats itself then."""
    batch = _vary(example.repeat(2))
    for context in (nullcontext, no_dropout):  # torch has other ways to compute where a mode watches: only if need be
        with context():
            if context is no_dropout or close(run_on_copies(network, batch), run_on_copies(network, batch)):
                yield context is nullcontext or close(run_on_copies(network, batch), run_on_copies(network, batch))
                return


def _result(network: Network, batch: Batch) -> Any:
    try:
        return run_on_copies(network, batch)
    except Exception as error:  # whatever the model's code raises
        return error


def _vary(batch: Batch) -> Batch:
    """Numbers in place of tensors of one number, on which wrong networks can agree; rows after the second flipped."""
    generator = torch.Generator().manual_seed(0)

    def change(t: Tensor) -> Tensor:
        if not t.is_floating_point() or t.ndim < 2 or t.is_meta:
            return t
        if t.numel() > 1 and bool((t == t.flatten()[0]).all()):
            rows = max(len(t), MOST)  # the first ones are the same for any number
            return torch.randn((rows, *t.shape[1:]), generator=generator)[: len(t)].to(t)
        return torch.cat([t[:2], t[2:].flip(-1)])

    return map_tensors(batch, change)


def close(a: Any, b: Any) -> bool:
    """Whether two trees of outputs are alike to 1e-5 of their size."""
    return are_close(tensors_of(a), tensors_of(b), 1e-5)
