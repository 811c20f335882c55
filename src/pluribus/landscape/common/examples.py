"""Data that is read once, so that every network sees the same rows in the same order, and what a network says of it."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..._common.trees import as_batch, logits_of, map_arrays, map_tensors, rows_of, split_item, tensors_of
from ...core.ensemble import TASKS
from ...data.unpacking import format_bytes, memory
from ...surgery.calling import evaluation_mode, find_class_dim
from ...surgery.copying import state
from ...surgery.selecting import quote_names
from ...training.batching import loader, set_epoch
from ...training.criteria import CRITERIA, USUAL
from ...uncertainty.outputs import class_dim_of, gaussian, one_tensor, two_classes, wide

Criterion = Callable[[Any, Any], Tensor]


class Examples:
    """Batches of (x, y) that stay as they are; y is None where there are no labels.

    Args:
        limit: the most bytes to keep; by default what the machine has left
    """

    def __init__(
        self, caller: str, data: Any, *, labelled: bool = False, batch_size: int = 256, limit: float | None = None
    ):
        if isinstance(data, Examples):
            self.batches: list[tuple[Any, Any]] = data.batches
        else:
            self.batches = _keep(caller, read_batches(caller, data, batch_size), limit)
        self.rows = sum(rows_of(x) for x, _ in self.batches)
        self.labelled = all(y is not None for _, y in self.batches)
        if labelled and not self.labelled:
            raise ValueError(f"{caller}: needs labels, but the data has none. Give (x, y), or a loader of (x, y).")

    @property
    def targets(self) -> Tensor | None:
        """All the labels or values, rows first."""
        return torch.cat([torch.as_tensor(y).cpu() for _, y in self.batches]) if self.labelled else None

    def fingerprint(self) -> str:
        """A number that other data would not have."""
        digest = hashlib.sha256()
        for tensor in tensors_of(self.batches):
            digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()


def read_batches(caller: str, data: Any, batch_size: int = 256) -> Iterator[tuple[Any, Any]]:
    """The batches of (x, y), or of x alone with None: of tensors or arrays, a data set or a loader."""
    if isinstance(data, Examples):
        yield from data.batches
        return
    if data is None:
        raise ValueError(f"{caller}: needs data: (x, y), a data set or a loader.")
    alone = isinstance(data, (Tensor, np.ndarray, Mapping)) or (isinstance(data, tuple) and len(data) != 2)
    if alone:
        data = (map_arrays(data), torch.arange(rows_of(map_arrays(data))))
    for item in loader(data, batch_size):
        x, y = split_item(item)
        yield map_arrays(x), None if alone or y is None else torch.as_tensor(y)


def shuffled(caller: str, data: Any, batch_size: int, seed: int) -> Iterator[tuple[Any, Tensor]]:
    """Batches of (x, y) without end, shuffled again for each epoch."""
    return endless(caller, loader(data, batch_size, shuffle=True, seed=seed))


def endless(caller: str, batches: Any) -> Iterator[tuple[Any, Tensor]]:
    """The batches of a loader, epoch after epoch."""
    for epoch in itertools.count():
        set_epoch(batches, epoch)
        empty = True
        for item in batches:
            x, y = split_item(item)
            if y is None:
                raise ValueError(f"{caller}: needs labels, but the data has none. Give (x, y), or a loader of (x, y).")
            empty = False
            yield map_arrays(x), torch.as_tensor(y)
        if empty:
            raise ValueError(f"{caller}: there must be at least one batch of data, but there is none.")


def loss_of(caller: str, networks: Any, examples: Examples, criterion: str | Criterion | None, task: str | None) -> Any:
    """The criterion for networks on examples: as told, or what the task needs that is told, known or inferred."""
    kind = task or networks.task or ("regression" if callable(criterion) else None)
    return choose_criterion(caller, criterion, choose_task(caller, kind, None, examples, networks[0]))


def ready(model: nn.Module, x: Any) -> Any:
    """The inputs where the model is, and in its precision."""
    first = next((t for _, t in state(model) if t.is_floating_point()), None)
    if first is None:
        return x
    return map_tensors(x, lambda t: t.to(first.device, first.dtype if t.is_floating_point() else None))


def answer_of(model: nn.Module, x: Any) -> Any:
    """The model's answer for one batch; inputs that it does not take are the caller's error."""
    args, kwargs = as_batch(ready(model, x))
    try:
        return logits_of(model(*args, **kwargs))
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise ValueError(
            f"the network does not run on the data, whose inputs have the shapes {_shapes((args, kwargs))}: "
            f"{str(error).strip().splitlines()[0]}. Give data that the network accepts."
        ) from error


@contextmanager
def naming_data(caller: str, model: nn.Module, data: Any) -> Iterator[None]:
    """Passes of a model over data by somebody else; where they fail because the two do not fit, the error says so."""
    try:
        yield
    except RuntimeError:
        if not isinstance(data, Iterator):
            x, _ = next(read_batches(caller, data))
            with evaluation_mode(model), torch.random.fork_rng(devices=[]):
                answer_of(model, x)
        raise


def run(model: nn.Module, examples: Examples) -> Iterator[tuple[Any, Any]]:
    """The model's answers batch by batch, in eval mode, each with its targets on the same device."""
    for x, y in examples.batches:
        with evaluation_mode(model):
            output = answer_of(model, x)
        device = next((t.device for t in tensors_of(output)), torch.device("cpu"))
        yield output, y if y is None else y.to(device)


def answers(model: nn.Module, examples: Examples, task: str, class_dim: int | None = None) -> Tensor:
    """What one network says: logarithms of probabilities, (rows, classes), or values, (rows, ...), on the CPU."""
    class_dim = locate_classes(model, examples, task, class_dim)
    return torch.cat([log_probabilities(task, output, class_dim).cpu() for output, _ in run(model, examples)])


def locate_classes(model: nn.Module, examples: Examples, task: str, class_dim: int | None) -> int | None:
    """Where a network's output has its classes: as told, or as the network shows where it has further dimensions."""
    if class_dim is not None or task != "classification":
        return class_dim
    x, _ = next(iter(examples.batches))
    with evaluation_mode(model), torch.random.fork_rng(devices=[]):
        output = answer_of(model, x)
    return find_class_dim(model, as_batch(x)) if isinstance(output, Tensor) and output.ndim > 2 else None


def log_probabilities(task: str, output: Any, class_dim: int | None) -> Tensor:
    """The logarithms of probabilities, (rows, classes), of one output; in regression its values, or means."""
    if task == "regression":
        return wide(one_tensor(output))
    if task == "gaussian":
        return wide(gaussian(output)[0])
    stacked = wide(one_tensor(output))[None]
    logits, dim = (two_classes(stacked), -1) if task == "binary" else (stacked, class_dim_of(stacked, class_dim))
    if logits.shape[dim] < 2:
        raise ValueError(
            "there must be at least two classes, but the network gives one number for each row. "
            'Say task="binary" or task="regression".'
        )
    last = logits[0].movedim(dim - 1 if dim > 0 else dim, -1)
    return last.flatten(0, -2).log_softmax(-1)


def labels_of(log_p: Tensor) -> Tensor:
    """The label of each row; -1, which is nobody's, where the network gives no numbers any more."""
    return log_p.argmax(-1).masked_fill(log_p.isnan().any(-1), -1)


def target_labels(y: Tensor, classes: int) -> Tensor:
    """The right label of each row; of soft labels the likeliest."""
    soft = y.is_floating_point() and y.ndim > 1 and y.shape[-1] == classes
    return (y.argmax(-1) if soft else y).reshape(-1).long()


def is_classifying(task: str) -> bool:
    """Whether the outputs are labels."""
    return task in ("classification", "binary")


def choose_task(caller: str, task: str | None, known: str | None, examples: Examples, model: nn.Module) -> str:
    """The task that was said, or that the networks' holder knows, or that labels and outputs tell."""
    found = task or known
    if found is None:
        found = _infer_task(examples, model)
    if found not in TASKS:
        raise ValueError(f"{caller}: task must be one of {quote_names(TASKS)}, but it is {found!r}.")
    return found


def choose_criterion(caller: str, criterion: str | Criterion | None, task: str) -> Criterion:
    """The criterion that was given or named, or what the task needs."""
    if callable(criterion):
        return criterion
    if not criterion and task not in USUAL:
        raise ValueError(f"{caller}: task must be one of {quote_names(TASKS)}, but it is {task!r}.")
    name = criterion or USUAL[task]
    if name not in CRITERIA:
        raise ValueError(f"{caller}: the criterion {name!r} is unknown. Choose from {quote_names(CRITERIA)}.")
    return partial(_loss, caller, name)


def _loss(caller: str, name: str, output: Any, target: Tensor) -> Tensor:
    """A criterion by its name, which says what of the labels does not fit."""
    try:
        return CRITERIA[name](output, target)
    except (IndexError, RuntimeError) as error:
        ends = f"from {target.min():g} to {target.max():g}" if target.numel() else "without a row"
        raise ValueError(
            f"{caller}: the labels do not fit {name} with the network's outputs, {_shapes(output)}: they are "
            f"{str(target.dtype).removeprefix('torch.')} of the shape {tuple(target.shape)}, {ends} ({error}). "
            "Give other labels, or say task= or criterion=."
        ) from error


def _shapes(output: Any) -> str:
    return " and ".join(str(tuple(tensor.shape)) for tensor in tensors_of(output))


def check_memory(caller: str, needed: float, what: str, limit: float | None, way_out: str) -> None:
    """Refuse what would need more memory than there is, or than the limit that was given."""
    most = memory() if limit is None else limit
    if needed > most:
        there = "there are" if limit is None else "memory= allows"
        raise ValueError(
            f"{caller}: {what} needs {format_bytes(int(needed))}, but {there} {format_bytes(int(most))}. {way_out}"
        )


def _keep(caller: str, batches: Iterable[tuple[Any, Any]], limit: float | None) -> list[tuple[Any, Any]]:
    kept: list[tuple[Any, Any]] = []
    size = 0
    most = memory() if limit is None else limit
    for batch in batches:
        size += sum(t.numel() * t.element_size() for t in tensors_of(batch))
        if size > most:
            check_memory(caller, size, f"the data, read up to batch {len(kept)},", limit, "Give fewer examples.")
        kept.append(batch)
    if not kept:
        raise ValueError(f"{caller}: there must be at least one batch of data, but there is none.")
    return kept


def _infer_task(examples: Examples, model: nn.Module) -> str:
    y = examples.batches[0][1]
    if y is None:
        return "classification"
    output = next(run(model, examples))[0]
    if not isinstance(output, Tensor) or not output.ndim or len(output) != rows_of(examples.batches[0][0]):
        return "regression"  # no row of its own for each example: nothing that could be a label
    columns = output.shape[-1] if output.ndim > 1 else 1
    if not y.is_floating_point():
        return "classification" if columns > 1 else "binary" if int(y.max()) <= 1 else "regression"
    soft = y.ndim > 1 and y.shape[-1] == columns > 1 and bool((y.sum(-1) - 1).abs().max() < 1e-3 and y.min() >= 0)
    return "classification" if soft else "regression"
