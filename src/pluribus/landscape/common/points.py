"""Figures of many networks that are mixtures of a few: one after the other in one module, over processes, resumable.

A point of a plane or a path is a row of coefficients. On the line between two networks a and b:

    mixtures = [[1, 0], [0.5, 0.5], [0, 1]]    a, the network halfway, b: (points, networks)

`Span` makes the weights of a row, and `Judge` measures the network that has them: loss, accuracy, agreement with
others. `Work.carry_out` does so for some rows: it writes the weights into one module, estimates its statistics of batch
normalisation, and runs it on all examples. `_carry_out_all` goes over all rows, in this process or in several, and
keeps what is done in a file, so that a surface that was stopped goes on from there.
"""

from __future__ import annotations

import hashlib
import pickle
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from ..._common.signed_files import write_npz
from ..._common.trees import rows_of
from ...data.unpacking import read_npz
from ...surgery.copying import duplicate
from ...surgery.selecting import quote_names
from ...training.executors import run_in_processes
from ..similarity import ratios
from .batch_statistics import refresh_, statistics_layers
from .examples import (
    Criterion,
    Examples,
    answers,
    check_memory,
    choose_criterion,
    choose_task,
    is_classifying,
    labels_of,
    locate_classes,
    log_probabilities,
    run,
    target_labels,
)
from .networks import Buffers, Networks, gram, put_

MEASURES = ("loss", "accuracy", "agreement")
SAVED_EVERY = 5.0  # seconds
Report = bool | Callable[[int, int, float], None]


class Measuring(TypedDict, total=False):
    """How figures are measured at many points: what `surface`, `stitched`, `along` and `barrier` take beside data.

    Args:
        normalised: in place of agreement, disagreement divided by the error (Figure S1)
        refresh: True: statistics of batch normalisation are estimated on the data at every point, for one more pass;
            or the data to estimate them on, such as training data; False: those of the nearest network
        criterion: the loss, by name or as a function of outputs and targets; by default what the task needs
        task: what the outputs are; by default what the networks' holder says, or what labels and outputs tell
        batch_size: rows that are run at once, which bounds the memory of a pass
        memory: the most bytes for data and figures; by default what the machine has left
        processes: how many share the points; each has its copy of data and networks
        progress: True: a line on stderr; or a function of (done, total, seconds left)
    """

    normalised: bool
    refresh: Any
    criterion: str | Criterion | None
    task: str | None
    batch_size: int
    memory: float | None
    processes: int
    progress: Report


class PointFigures(NamedTuple):
    """What was measured at many points, None where it was not, and how statistics of normalisation came about."""

    loss: np.ndarray | None
    accuracy: np.ndarray | None
    agreement: np.ndarray | None
    statistics: str


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
    """What is measured of a network on examples."""

    examples: Examples
    task: str
    class_dim: int | None
    criterion: Criterion
    measures: tuple[str, ...]
    references: Tensor  # the labels of the networks that others are compared with, (networks, rows)
    normalised: bool = False  # in place of agreement, disagreement divided by the error, as Figure S1

    @property
    def columns(self) -> int:
        """How many numbers it gives for a network."""
        return 2 + len(self.references)

    def __call__(self, model: nn.Module) -> np.ndarray:
        """Loss, accuracy, and agreement with each reference; what is not measured is not a number."""
        loss, classes, labels = 0.0, 0, []
        for output, y in run(model, self.examples):
            if "loss" in self.measures:
                rows = len(y) if isinstance(y, Tensor) and y.ndim else rows_of(output)
                loss += float(self.criterion(output, y)) * rows
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


def measure_points(
    caller: str,
    span: Span,
    mixtures: np.ndarray,
    buffers: np.ndarray,
    data: Any,
    measures: Sequence[str] = MEASURES,
    references: Networks | None = None,
    file: str | Path | None = None,
    **how: Unpack[Measuring],
) -> PointFigures:
    """Loss, accuracy and agreement with the references at every mixture of networks and directions.

    Shapes:
        loss, accuracy: shape
        agreement: (references, *shape)
    """
    shape, points = mixtures.shape[:-1], int(np.prod(mixtures.shape[:-1]))
    check_measuring(caller, points, 2 + len(span.networks if references is None else references), how)
    judged = {key: value for key, value in how.items() if key not in ("refresh", "processes", "progress")}
    judge = make_judge(caller, span.networks, data, measures, references=references, **judged)  # type: ignore[arg-type]
    examples, said = _statistics(caller, span.networks.model, how.get("refresh", True), judge.examples)
    work = Work(span, mixtures.reshape(points, -1), buffers.reshape(points, -1), judge, examples)
    values = _carry_out_all(caller, work, how.get("processes", 1), file, how.get("progress", False))
    values = values.reshape(*shape, -1)
    return PointFigures(
        values[..., 0] if "loss" in judge.measures else None,
        values[..., 1] if "accuracy" in judge.measures else None,
        np.moveaxis(values[..., 2:], -1, 0) if "agreement" in judge.measures else None,
        said,
    )


def check_measuring(caller: str, points: int, columns: int, how: Mapping[str, Any]) -> None:
    """Refuse unknown options, and a grid whose figures would not fit, before anything is read or computed."""
    needed = points * (columns * 2 + 8) * 8
    check_memory(caller, needed, f"a grid of {points:,} points", how.get("memory"), "Use a smaller grid.")


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
        raise ValueError(f"{caller}: the measure {unknown[0]!r} is unknown. Choose from {quote_names(MEASURES)}.")
    wanted = tuple(measures)
    needed = "loss" in wanted or "accuracy" in wanted or normalised
    examples = Examples(caller, data, labelled=needed, batch_size=batch_size, limit=memory)
    only_loss = wanted == ("loss",) and criterion is not None
    kind = task or "regression" if only_loss else choose_task(caller, task, networks.task, examples, networks[0])
    if not is_classifying(kind):
        if wanted != MEASURES and wanted != ("loss",):
            raise ValueError(
                f'{caller}: labels are compared only in classification, but the task is {kind}. Use "loss".'
            )
        wanted = ("loss",)
    dim = locate_classes(networks[0], examples, kind, networks.class_dim)
    judge = Judge(
        examples, kind, dim, choose_criterion(caller, criterion, kind), wanted,
        torch.zeros(0, examples.rows, dtype=torch.long), normalised,
    )  # fmt: skip
    if "agreement" not in wanted:
        return judge
    others = networks if references is None else references
    return replace(
        judge, references=torch.stack([labels_of(answers(network, examples, kind, dim)) for network in others])
    )


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


def _carry_out_all(caller: str, work: Work, processes: int, file: str | Path | None, progress: Report) -> np.ndarray:
    """What the judge gives for each point: (points, columns); what the file has of it is not computed again."""
    kept = None if file is None else _File(Path(file), _fingerprint(work))
    values = np.full((len(work.mixtures), work.judge.columns), np.nan)
    done = np.zeros(len(values), bool)
    if kept is not None:
        values, done = kept.read(caller, values, done)
    before, start, said, saved = int(done.sum()), time.monotonic(), 0.0, time.monotonic()
    for rows, found in _figures(caller, work, np.flatnonzero(~done).tolist(), processes):
        values[rows], done[rows] = found, True
        now, count, total = time.monotonic(), int(done.sum()), len(values)
        left = (now - start) / (count - before) * (total - count)
        if callable(progress):
            progress(count, total, left)
        elif progress and (now > said + 0.5 or count == total):
            said, end = now, "\n" if count == total else ""
            print(f"\r{caller}: {count} of {total}, {left:.0f} s left ", end=end, file=sys.stderr, flush=True)
        if kept is not None and now > saved + SAVED_EVERY:
            kept.write(values, done)
            saved = now
    if kept is not None:
        kept.write(values, done)
    return values


def _statistics(caller: str, model: nn.Module, refresh: Any, examples: Examples) -> tuple[Examples | None, str]:
    """The data on which statistics of normalisation are estimated at each point, if any, and that in words."""
    if not statistics_layers(model):
        return None, "the network has no batch normalisation statistics to fit"
    if refresh is False or refresh is None:
        return None, "statistics are those of the nearest network"
    if refresh is True:
        return examples, "statistics are estimated at every point, on the data itself"
    return Examples(caller, refresh), "statistics are estimated at every point, on the data given for them"


class _Job(NamedTuple):
    name: str
    rows: list[int]


def _figures(caller: str, work: Work, rows: list[int], processes: int) -> Iterator[tuple[list[int], np.ndarray]]:
    """Points and their figures as they come."""
    if processes == 1:
        module = duplicate(work.span.networks.model).eval()
        yield from (([row], work.carry_out([row], module)) for row in rows)
        return
    size = max(1, min(16, len(rows) // (4 * processes)))
    jobs = [_Job(str(rows[i]), rows[i : i + size]) for i in range(0, len(rows), size)]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "work"
        try:
            torch.save(work, path)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ValueError(
                f"{caller}: processes={processes} needs a model and a criterion that can be pickled, but: {error}. "
                "Use processes=1."
            ) from error
        compute = partial(_carry_out, str(path), max(1, torch.get_num_threads() // processes))
        for kind, job, result in run_in_processes(compute, jobs, processes):
            if kind == "failed":
                raise RuntimeError(f"{caller}: {result}")
            if kind == "done":
                yield job.rows, result


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
            found, _ = read_npz(self.path, ["fingerprint", "values", "done"], own=True)
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
        write_npz(self.path, {"values": values, "done": done, "fingerprint": np.array(self.fingerprint)})


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
