"""What the units of two networks compute for the same rows, so that they can be compared."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..._common.torch_private import OperatorMode, SlowPath
from ..._common.trees import Batch, as_batch, rows_of, tensors_of
from ...surgery.row_splitting import cut_rows, long_tensors
from ..common.examples import map_arrays
from .exact_test import as_precise, precisely
from .groups import DimensionPart, Groups, units_at
from .operations import PRODUCERS, operator_name

MOST_CHUNKS = 128  # of the few rows that the groups were found with
MOST_NUMBERS = 2**20  # of one tensor that are compared

Layout = dict[int, tuple[DimensionPart, ...]]  # by the turn of an operation among those that make activations


def record_activations(
    caller: str, model: nn.Module, reference: nn.Module, groups: Groups, example: Any
) -> tuple[Layout, dict[int, Tensor], dict[int, Tensor]]:
    """Where units stand in the activations, and those of both networks, each unit with mean 0 and length 1."""
    chunks = list(_chunks(as_batch(map_arrays(example)), groups))[:MOST_CHUNKS]
    layout = {key: (DimensionPart(len(chunks)), *parts) for key, parts in groups.activations.items()}
    if rows_of(as_batch(example)) < 2 or not layout:
        raise ValueError(
            f'{caller}: by="activations" compares units on the rows of the example, but there is '
            f"{'1 row' if layout else 'no activation to compare'}. "
            + ("Give many rows." if layout else 'Use by="weights".')
        )
    found = []
    for network in (model, reference):
        network = as_precise(network, groups.is_exact)
        runs = [precisely(_record, network, chunk, groups.is_exact, groups.activations) for chunk in chunks]
        if any(set(run) != set(layout) for run in runs):
            raise ValueError(
                f"{caller}: for some rows of the example the networks run other code than for the rows that the groups "
                'were found with, so their activations cannot be compared. Use by="weights".'
            )
        found.append({key: _standardise(layout[key], [run[key] for run in runs]) for key in layout})
    layout = {key: tuple(_shorten(layout[key], found[0][key].shape)) for key in layout}
    return layout, found[0], found[1]


def _chunks(batch: Batch, groups: Groups) -> Iterator[Batch]:
    """The rows of the example, as many at a time as the groups were found with."""
    size, rows = groups.rows, rows_of(batch)
    if rows <= size:
        yield batch
        return
    for start in range(0, rows - size + 1, size):
        yield cut_rows(batch, slice(start, start + size), long_tensors(batch))


def _record(model: nn.Module, batch: Batch, layout: Layout) -> dict[int, Tensor]:
    recorder = _Recorder(layout)
    with torch.no_grad(), SlowPath(), recorder:
        model(*batch[0], **batch[1])
    return recorder.found


class _Recorder(OperatorMode):
    """Keeps the outputs of some operations of a run, as many of their numbers as are needed."""

    def __init__(self, layout: Layout):
        super().__init__()
        self.layout, self.turn = layout, 0
        self.found: dict[int, Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and keep what it gives if it is one of those."""
        out = func(*args, **(kwargs or {}))
        if operator_name(func) in PRODUCERS:
            self.turn += 1
            first, parts = tensors_of(out)[0], self.layout.get(self.turn)
            if parts is not None and tuple(first.shape) == tuple(part.size for part in parts):
                self.found[self.turn] = _thin(first.detach(), parts)
        return out


def _thin(tensor: Tensor, parts: Sequence[DimensionPart]) -> Tensor:
    """Every so many of the places that hold no units, so that not too many numbers are left; rows are all kept."""
    plain = [dim for dim, part in enumerate(parts) if dim and not part.groups]
    while tensor.numel() > MOST_NUMBERS // 16 and any(tensor.shape[dim] > 1 for dim in plain):
        dim = max(plain, key=lambda d: tensor.shape[d])
        tensor = tensor.index_select(dim, torch.arange(0, tensor.shape[dim], 2))
    return tensor.float().clone()


def _standardise(parts: Sequence[DimensionPart], chunks: Sequence[Tensor]) -> Tensor:
    """The activations of all chunks, (chunks, ...), each unit with mean 0 and length 1 over all its places."""
    most = max(1, MOST_NUMBERS // chunks[0].numel())
    values = torch.stack(list(chunks[: max(most, 16)]))
    labels, count = _labels(parts, values.shape)
    flat, places = values.reshape(-1).double(), labels.reshape(-1)
    times = torch.zeros(count, dtype=torch.float64).index_add_(0, places, torch.ones_like(flat))
    mean = torch.zeros(count, dtype=torch.float64).index_add_(0, places, flat) / times.clamp(min=1)
    flat = flat - mean[places]
    length = torch.zeros(count, dtype=torch.float64).index_add_(0, places, flat.square()).sqrt()
    silent = length <= 1e-9 * math.sqrt(len(flat) / count) * (1 + mean.abs())
    return (flat / torch.where(silent, torch.inf, length)[places]).reshape(values.shape).float()


def _labels(parts: Sequence[DimensionPart], shape: Sequence[int]) -> tuple[Tensor, int]:
    """A number for each place of a tensor, the same where the same units stand, and how many numbers there are."""
    labels, count = torch.zeros((), dtype=torch.long), 1
    for dim, part in enumerate(parts):
        size, own, most = shape[dim], torch.zeros(shape[dim], dtype=torch.long), 1
        for group in sorted(part.groups):
            units = units_at(part, group) + 1
            most = int(units.max()) + 1
            own = torch.unique(own * most + units, return_inverse=True)[1]
        most = int(own.max()) + 1 if len(own) else 1
        labels = labels * most + own.reshape([size, *[1] * (len(shape) - dim - 1)])
        count *= most
    return labels.expand(*shape), count


def _shorten(parts: Sequence[DimensionPart], shape: Sequence[int]) -> Iterator[DimensionPart]:
    """The dimensions when every so many places are left of those without units."""
    for part, size in zip(parts, shape, strict=True):
        yield part if part.size == size else DimensionPart(size)
