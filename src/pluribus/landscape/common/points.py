"""Figures of many networks that are mixtures of a few: one after the other in one module, over processes, resumable."""

from __future__ import annotations

import hashlib
import pickle
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..._common.atomic import atomic_write
from ..._common.executors import run_in_processes
from ..._common.trees import rows_of
from ..._common.unpacking import read_npz
from ...surgery.copying import duplicate
from ...surgery.selecting import quote_names
from ..similarity import ratios
from .batch_statistics import refresh_, statistics_layers
from .examples import (
    Criterion,
    Examples,
    check_memory,
    choose_criterion,
    choose_task,
    is_classifying,
    labels_of,
    log_probabilities,
    run,
    target_labels,
)
from .networks import Buffers, Networks, gram, put_

MEASURES = ("loss", "accuracy", "agreement")
SAVED_EVERY = 5.0  # seconds
Report = bool | Callable[[int, int, float], None]


class Span:
    """All sums of networks, and of directions, with coefficients: (networks + directions)."""

    def __init__(self, networks: Networks, directions: Tensor | None = None):
        self.networks = networks
        self.directions = networks.weights[:0] if directions is None else directions

    def weights(self, coefficients: np.ndarray) -> Tensor:
        """The weight vector with these coefficients."""
        count = len(self.networks)
        total = self.networks.mix(coefficients[:count])
        for coefficient, row in zip(coefficients[count:].tolist(), self.directions, strict=True):
            total.add_(row.to(total.dtype), alpha=coefficient)
        return total

    def products(self, rows: Tensor | None = None) -> np.ndarray:
        """Inner products of networks and directions with the rows, by default with themselves."""
        parts = [self.networks.weights, self.directions]
        if rows is not None:
            return np.concatenate([gram(part, rows) for part in parts if len(part)])
        return np.block([[gram(a, b) for b in parts] for a in parts])


@dataclass(frozen=True)
class Judge:
    """What is measured of a network on examples.

    Args:
        references: the labels of the networks that others are compared with, (networks, rows)
        normalised: in place of agreement, disagreement divided by the error, as Figure S1
    """

    examples: Examples
    task: str
    class_dim: int | None
    criterion: Criterion
    measures: tuple[str, ...]
    references: Tensor
    normalised: bool = False

    @property
    def columns(self) -> int:
        """How many numbers it gives for a network."""
        return 2 + len(self.references)

    def __call__(self, model: nn.Module) -> np.ndarray:
        """Loss, accuracy, and agreement with each reference; what is not measured is not a number."""
        loss, classes, labels = 0.0, 0, []
        for output, y in run(model, self.examples):
            if "loss" in self.measures:
                loss += float(self.criterion(output, y)) * _rows(output, y)
            if "accuracy" in self.measures or "agreement" in self.measures:
                log_p = log_probabilities(self.task, output, self.class_dim)
                classes = log_p.shape[-1]
                labels.append(labels_of(log_p).cpu())
        found = np.full(self.columns, np.nan)
        if "loss" in self.measures:
            found[0] = loss / self.examples.rows
        if not labels:
            return found
        label = torch.cat(labels)
        targets = self.examples.targets
        if targets is not None and ("accuracy" in self.measures or self.normalised):
            found[1] = (label == target_labels(targets, classes)).double().mean()
        if "agreement" in self.measures:
            agree = (label == self.references).double().mean(1).numpy()
            found[2:] = ratios(1 - agree, 1 - found[1]) if self.normalised else agree
        return found


def make_judge(
    caller: str,
    networks: Networks,
    data: Any,
    measures: Sequence[str] = MEASURES,
    *,
    references: Networks | None = None,
    criterion: str | Criterion | None = None,
    task: str | None = None,
    normalised: bool = False,
    batch_size: int = 256,
    memory: float | None = None,
) -> Judge:
    """A judge for networks of this architecture; its references are judged by themselves first."""
    if unknown := [name for name in measures if name not in MEASURES] or (not measures and ["nothing"]):
        raise ValueError(f"{caller}: measures are {quote_names(MEASURES)}, but {unknown[0]!r} was asked for.")
    wanted = tuple(measures)
    needed = "loss" in wanted or "accuracy" in wanted or normalised
    examples = Examples(caller, data, labelled=needed, batch_size=batch_size, limit=memory)
    only_loss = wanted == ("loss",) and criterion is not None
    kind = task or "regression" if only_loss else choose_task(caller, task, networks.task, examples, networks[0])
    if not is_classifying(kind):
        if wanted != MEASURES and wanted != ("loss",):
            raise ValueError(
                f'{caller}: labels are compared in classification alone, but the task is {kind}: use "loss".'
            )
        wanted = ("loss",)
    if normalised and "agreement" not in wanted:
        raise ValueError(f'{caller}: normalised=True divides disagreement by the error: measure "agreement" too.')
    judge = Judge(
        examples, kind, networks.class_dim, choose_criterion(caller, criterion, kind), wanted,
        torch.zeros(0, examples.rows, dtype=torch.long), normalised,
    )  # fmt: skip
    if "agreement" not in wanted:
        return judge
    others = networks if references is None else references
    return replace(judge, references=torch.stack([_labels(judge, network) for network in others]))


def measure(
    caller: str,
    span: Span,
    mixtures: np.ndarray,
    buffers: np.ndarray,
    judge: Judge,
    *,
    refresh: Examples | None = None,
    processes: int = 1,
    path: str | Path | None = None,
    progress: Report = False,
) -> np.ndarray:
    """What the judge gives for each mixture: (points, columns).

    Args:
        mixtures: coefficients of the span, (points, networks + directions)
        buffers: how the buffers are mixed, (points, networks)
        refresh: data that statistics of normalisation are estimated on at each point
        path: a file that the figures go to as they come, and that is gone on from
    """
    if processes < 1:
        raise ValueError(f"{caller}: processes must be at least 1, but it is {processes}.")
    if not statistics_layers(span.networks.model):
        refresh = None
    work = Work(span, mixtures, buffers, judge, refresh)
    file = None if path is None else _File(Path(path), _fingerprint(work))
    values = np.full((len(mixtures), judge.columns), np.nan)
    done = np.zeros(len(mixtures), bool)
    if file is not None:
        values, done = file.read(caller, values, done)
    said, saved = _Progress(caller, len(mixtures), int(done.sum()), progress), time.monotonic()
    for rows, found in _figures(caller, work, np.flatnonzero(~done), processes):
        values[rows], done[rows] = found, True
        said.tell(int(done.sum()))
        if file is not None and time.monotonic() > saved + SAVED_EVERY:
            file.write(values, done)
            saved = time.monotonic()
    if file is not None:
        file.write(values, done)
    return values


def check_grid(caller: str, points: int, columns: int, memory: float | None) -> None:
    """Refuse a grid whose figures, and what they are computed from, would not fit, before anything is computed."""
    needed = points * (columns * 2 + 8) * 8
    check_memory(caller, needed, f"a grid of {points:,} points", memory, "Use a smaller grid.")


# ---------------------------------------------------------------- work


@dataclass(frozen=True)
class Work:
    """All that is needed for any of the points."""

    span: Span
    mixtures: np.ndarray
    buffers: np.ndarray
    judge: Judge
    refresh: Examples | None

    def carry_out(self, rows: Sequence[int], module: nn.Module) -> np.ndarray:
        """The figures of these points, each put into the module in turn."""
        networks, found = self.span.networks, []
        for row in rows:
            mixed: Buffers = networks.mix_buffers(self.buffers[row])
            put_(module, networks.layout, self.span.weights(self.mixtures[row]), mixed)
            if self.refresh is not None:
                refresh_(module, self.refresh)
            found.append(self.judge(module))
        return np.stack(found)


@dataclass(frozen=True)
class _Job:
    name: str
    rows: tuple[int, ...]


def _figures(caller: str, work: Work, rows: np.ndarray, processes: int) -> Iterator[tuple[list[int], np.ndarray]]:
    if not len(rows):
        return
    size = 1 if processes == 1 else max(1, min(16, len(rows) // (4 * processes)))
    parts = [tuple(rows[i : i + size].tolist()) for i in range(0, len(rows), size)]
    jobs = [_Job(str(part[0]), part) for part in parts]
    if processes == 1:
        module = duplicate(work.span.networks.model).eval()
        for job in jobs:
            yield list(job.rows), work.carry_out(job.rows, module)
        return
    with tempfile.TemporaryDirectory(prefix="pluribus-") as folder:
        path = Path(folder) / "work"
        try:
            torch.save(work, path)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ValueError(
                f"{caller}: processes={processes} needs a model and a criterion that can be pickled, but: {error}. "
                "Use processes=1."
            ) from error
        threads = max(1, torch.get_num_threads() // processes)
        compute = partial(_carry_out, str(path), threads)
        for kind, job, result in run_in_processes(compute, jobs, processes):
            if kind == "failed":
                raise RuntimeError(f"{caller}: {result}")
            if kind == "done":
                yield list(job.rows), result


def _carry_out(path: str, threads: int, job: _Job) -> np.ndarray:
    torch.set_num_threads(threads)
    work, module = _open(path)
    return work.carry_out(job.rows, module)


@lru_cache(maxsize=1)
def _open(path: str) -> tuple[Work, nn.Module]:
    work = torch.load(path, weights_only=False)  # our own file, written a moment ago
    return work, duplicate(work.span.networks.model).eval()


# ---------------------------------------------------------------- going on after a stop


class _File:
    """Figures of some points in a file, with what they are figures of."""

    def __init__(self, path: Path, fingerprint: str):
        self.path, self.fingerprint = path, fingerprint
        if not path.parent.is_dir():
            raise FileNotFoundError(f"the folder {str(path.parent)!r} does not exist. Create it first.")

    def read(self, caller: str, values: np.ndarray, done: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if not self.path.exists():
            return values, done
        try:
            found, _ = read_npz(self.path, ["fingerprint", "values", "done"])
            fingerprint, *stored = str(found["fingerprint"]), found["values"], found["done"]
            if [(one.shape, one.dtype) for one in stored] != [(one.shape, one.dtype) for one in (values, done)]:
                raise ValueError(f"its arrays are {stored[0].shape} and {stored[1].shape}")
        except (ValueError, KeyError, OSError) as error:
            raise ValueError(f"{caller}: {str(self.path)!r} holds no figures ({error}). Give another path.") from error
        if fingerprint != self.fingerprint:
            raise ValueError(
                f"{caller}: {str(self.path)!r} holds figures of other networks, data or settings. Give another path, "
                "or remove the file."
            )
        return stored[0], stored[1]

    def write(self, values: np.ndarray, done: np.ndarray) -> None:
        with atomic_write(self.path) as temporary, open(temporary, "wb") as file:
            np.savez(file, values=values, done=done, fingerprint=np.array(self.fingerprint))


def _fingerprint(work: Work) -> str:
    digest = hashlib.sha256()
    networks, judge = work.span.networks, work.judge
    for tensor in (networks.weights, work.span.directions, judge.references, *networks.buffers.values()):
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    for array in (work.mixtures, work.buffers):
        digest.update(np.ascontiguousarray(array).tobytes())
    criterion = getattr(judge.criterion, "__qualname__", repr(judge.criterion))
    told = (judge.task, judge.class_dim, judge.measures, judge.normalised, criterion, judge.examples.fingerprint())
    digest.update(repr((told, work.refresh and work.refresh.fingerprint(), str(networks.model))).encode())
    return digest.hexdigest()


class _Progress:
    """Says how far it is and how long it will take."""

    def __init__(self, caller: str, total: int, done: int, report: Report):
        self.caller, self.total, self.report = caller, total, report
        self.first, self.start, self.said = done, time.monotonic(), 0.0

    def tell(self, done: int) -> None:
        now = time.monotonic()
        left = (now - self.start) / max(done - self.first, 1) * (self.total - done)
        if callable(self.report):
            self.report(done, self.total, left)
        elif self.report and (now > self.said + 0.5 or done == self.total):
            self.said = now
            end = "\n" if done == self.total else ""
            print(f"\r{self.caller}: {done} of {self.total}, {left:.0f} s left ", end=end, file=sys.stderr, flush=True)


def _rows(output: Any, y: Any) -> int:
    return len(y) if isinstance(y, Tensor) and y.ndim else rows_of(output)


def _labels(judge: Judge, network: nn.Module) -> Tensor:
    parts = [labels_of(log_probabilities(judge.task, out, judge.class_dim)) for out, _ in run(network, judge.examples)]
    return torch.cat(parts).cpu()
