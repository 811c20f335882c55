"""Batches from tensors, data sets and loaders, in an order that only the seed and the epoch decide."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, RandomSampler, Sampler

from .._common.trees import LABELS, map_arrays, map_rows, map_tensors, rows_of, split_item, tensors_of


def loader(source: Any, batch_size: int, *, shuffle: bool = False, seed: int = 0, workers: int = 0) -> Any:
    """A loader of (x, y): of tensors or arrays (x, y), or of a data set; a loader is given back as it is.

    Shuffled, the order of an epoch depends on `seed` and on the epoch alone, also for a loader of torch's that
    shuffles: training that was cut short goes on with the batches that it would have had.

    >>> batches = loader((torch.arange(5.0), torch.arange(5)), batch_size=3)
    >>> [len(y) for x, y in batches]
    [3, 2]
    """
    if _is_rows(source):
        source = TensorRows(*pair_of(source))
    if isinstance(source, DataLoader) and _shuffles(source):
        order = EpochSampler(len(source.dataset), seed, shuffle=True)  # type: ignore[arg-type]
        kept = ("collate_fn", "num_workers", "pin_memory", "worker_init_fn", "persistent_workers")
        batches = EpochBatchSampler(order, cast(int, source.batch_size))
        return DataLoader(source.dataset, batch_sampler=batches, **{name: getattr(source, name) for name in kept})
    if isinstance(source, list) and source:  # of batches; a trainer takes a list for several loaders
        return DataLoader(source, batch_size=None)  # type: ignore[arg-type]
    indexed = hasattr(source, "__getitem__") and hasattr(source, "__len__")
    if not hasattr(source, "__iter__") and not indexed or isinstance(source, (Tensor, np.ndarray, str, dict)):
        raise TypeError(
            "loader: the data must be (x, y), a data set or a loader of (x, y), but it is a "
            f"{type(source).__name__}. Give the targets too: (x, y)."
        )
    if not indexed or isinstance(source, DataLoader):
        return source
    if batch_size < 1:
        raise ValueError(f"loader: batch_size must be at least 1, but it is {batch_size}.")
    if not len(source):
        raise ValueError("loader: the data must have at least one example, but there is none.")
    batches = EpochBatchSampler(EpochSampler(len(source), seed, shuffle), batch_size)
    if getattr(source, "whole_batches", False):  # it takes a list of row numbers at once
        return DataLoader(source, batch_size=None, sampler=batches, num_workers=workers)
    return DataLoader(source, batch_sampler=batches, num_workers=workers)


def pair_of(batch: Any, dtype: torch.dtype | None = None) -> tuple[Any, Any]:
    """The inputs and targets of a batch: (x, y), (x, mask, ..., y), or a dict with one of LABELS.

    Args:
        dtype: of the weights; floats of another precision, as numpy and pandas have them, are converted to it

    >>> pair_of((torch.zeros(2, 3), torch.ones(2, 3), torch.tensor([0, 1])))[1]
    tensor([0, 1])
    """
    x, y = split_item(batch)
    if y is None:
        what = f"dict of {', '.join(map(str, batch))}" if isinstance(batch, Mapping) else type(batch).__name__
        known = ", ".join(LABELS)
        raise ValueError(f"fit: a batch must be (x, y), or a dict with one of {known}, but a {what} has no labels.")
    if dtype is None:
        return x, y
    return map_tensors(x, lambda t: t.to(dtype) if t.is_floating_point() else t), y


class TensorRows(Dataset[Any]):
    """Tensors or arrays, rows first, as a data set that gives whole batches."""

    whole_batches = True

    def __init__(self, x: Any, y: Any):
        self.x, self.y = map_arrays(x), map_arrays(y)
        self.length = rows_of(self.x)
        if any(tensor.ndim == 0 or len(tensor) != self.length for tensor in tensors_of(self.y)):
            shapes = [tuple(tensor.shape) for tensor in tensors_of(self.y)]
            raise ValueError(
                f"loader: needs one target for each of the {self.length} rows, but the shapes are {shapes}."
            )

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, rows: Any) -> tuple[Any, Any]:
        pick = lambda t: t[rows]  # noqa: E731
        return map_rows(self.x, self.length, pick), map_rows(self.y, self.length, pick)


class EpochSampler(Sampler[int]):
    """The rows in order, or in an order drawn from the seed and the epoch."""

    def __init__(self, length: int, seed: int, shuffle: bool):
        self.length, self.seed, self.shuffle, self.epoch = length, seed, shuffle, 0

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch comes; a trainer calls it."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        if not self.shuffle:
            return iter(range(self.length))
        generator = torch.Generator().manual_seed(mix_seeds(self.seed, self.epoch))
        return iter(torch.randperm(self.length, generator=generator).tolist())


class EpochBatchSampler(Sampler[list[int]]):
    """Lists of the rows of an order; a row that would be left alone goes to the list before it.

    Batch normalisation cannot learn from one row.
    """

    def __init__(self, order: EpochSampler, batch_size: int):
        self.order, self.batch_size, self.set_epoch = order, batch_size, order.set_epoch

    def __len__(self) -> int:
        alone = self.batch_size > 1 and len(self.order) % self.batch_size == 1
        return max(1, -(-len(self.order) // self.batch_size) - alone)

    def __iter__(self) -> Iterator[list[int]]:
        rows, count = list(self.order), len(self)
        for i in range(count):
            end = len(rows) if i == count - 1 else (i + 1) * self.batch_size
            yield rows[i * self.batch_size : end]


class SplitBatches:
    """Each batch of a loader in `parts` batches: what MIMO repeats is drawn from that much less."""

    def __init__(self, batches: Any, parts: int):
        self.batches, self.parts = batches, parts

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch comes."""
        set_epoch(self.batches, epoch)

    def __len__(self) -> int:
        return len(self.batches) * self.parts

    def __iter__(self) -> Iterator[Any]:
        for x, y in map(pair_of, self.batches):
            rows = rows_of(x)
            for piece in torch.arange(rows).chunk(min(self.parts, rows)):
                part = lambda t, piece=piece: t[piece]  # noqa: E731
                yield map_rows(x, rows, part), map_rows(y, rows, part)


def set_epoch(batches: Any, epoch: int) -> None:
    """Tell a loader, or its sampler, which epoch comes."""
    for sampler in (batches, getattr(batches, "sampler", None), getattr(batches, "batch_sampler", None)):
        tell = getattr(sampler, "set_epoch", None)
        if callable(tell):
            tell(epoch)
            return


def mix_seeds(*numbers: int) -> int:
    """One seed out of several numbers, such that near ones give unlike streams."""
    return int(np.random.SeedSequence([number % 2**64 for number in numbers]).generate_state(1, np.uint64)[0]) >> 1


def _shuffles(given: DataLoader[Any]) -> bool:
    """Whether the loader takes the rows in an order that nobody has seeded."""
    sampler = given.sampler
    usual = type(sampler) is RandomSampler and sampler.generator is None and not sampler.replacement
    return usual and sampler.num_samples == len(given.dataset) and not given.drop_last and given.batch_size is not None  # type: ignore[arg-type, attr-defined]


def _is_rows(source: Any) -> bool:
    """(x, y), or tensors or arrays (x, mask, ..., y) with equally many rows; a list of batches is neither."""
    if isinstance(source, list) and len(source) == 2:
        return not isinstance(source[0], (tuple, list)) and not isinstance(source[1], Mapping)
    if not isinstance(source, tuple) or len(source) < 2:
        return False
    shapes = [getattr(part, "shape", None) for part in source]
    return len(source) == 2 or None not in shapes and len({shape[:1] for shape in shapes}) == 1  # type: ignore[index]
