"""One file per run: a record (settings, metrics, cost) as JSON, and columns (a value per example). No pickle."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .._common.signed_files import write_npz
from .._common.untrusted import Number, check_shape, is_disk_error, parse_json
from ..data.unpacking import read_npz

FORMAT = 1
SUFFIX = ".npz"
BASELINE = "single"  # the method that all others are compared with: one plain network


@dataclass(frozen=True, eq=False)  # a run is equal to itself only, so that groups of runs can be keys
class Result:
    """What one run gave: `record` is the JSON part, `columns` the arrays by name, `path` where it was read."""

    record: dict[str, Any]
    columns: dict[str, np.ndarray] = field(default_factory=dict)
    path: Path | None = None


@dataclass(frozen=True)
class Group:
    """The runs of one label on one data set and model, which differ by their seed only."""

    label: str
    runs: tuple[Result, ...]

    @property
    def record(self) -> dict[str, Any]:
        """The record of the first run, for what all runs of the group have in common."""
        return self.runs[0].record

    @property
    def is_baseline(self) -> bool:
        """Whether these are runs of the plain single network."""
        return self.record["method"] == BASELINE

    @property
    def by_seed(self) -> dict[int, Result]:
        """Runs by their seeds, in order."""
        return {run.record["seed"]: run for run in sorted(self.runs, key=lambda run: run.record["seed"])}

    @property
    def unfrozen(self) -> str:
        """Why its costs are those of the ensemble as trained; nothing where they are those of the frozen network."""
        deployed = [run.record["cost"].get("deployed") or {} for run in self.runs]
        return next((one["why"] for one in deployed if not one.get("frozen", True)), "")


class Damaged(ValueError):  # noqa: N818  it is what happened to the file
    """A result file that cannot be trusted; `path` is the file, `reason` what is wrong with it."""

    def __init__(self, path: Path, reason: str):
        super().__init__(
            f"the result file {str(path)!r} is damaged: {reason}. Delete it, and its run will be repeated."
        )
        self.path, self.reason = path, reason


def has_classes(task: str) -> bool:
    """Whether the answers of a task are classes, of rows, labels or pixels, and not numbers."""
    return task != "regression"


def write(path: str | os.PathLike[str], record: Mapping[str, Any], columns: Mapping[str, np.ndarray]) -> None:
    """Write one run so that the file is complete or not there; an earlier file stays until the new one is complete.

    Equal runs give equal bytes. The folder is made where it is missing.

    >>> record = dict(run="a", method="deep", label="deep", data="digits", task="classification", seed=0)
    >>> write("results/a.npz", record | {"settings": {}, "metrics": {}, "cost": {}}, {"test/label": np.array([3, 1])})
    >>> read("results/a.npz").columns["test/label"].tolist()
    [3, 1]
    """
    path = Path(path)
    text = json.dumps({**record, "format": FORMAT}, default=_plain)
    try:
        _check_record(json.loads(text))
    except ValueError as error:
        raise ValueError(f"write: the record of {path.name!r} is incomplete: {error}.") from None
    arrays = {name: np.asarray(column) for name, column in columns.items()}
    if bad := [name for name, array in arrays.items() if array.dtype.hasobject]:
        raise ValueError(
            f"write: the column {bad[0]!r} must hold numbers or text, but it holds Python objects. Convert it, for "
            "example with np.asarray(column, dtype=str)."
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_npz(path, {"record": np.array(text), **arrays})
    except OSError as error:
        message = f"the result could not be written ({error.strerror or error}); results written earlier are untouched"
        raise OSError(error.errno, message, str(path)) from error


def read(path: str | os.PathLike[str]) -> Result:
    """The run that `write` wrote. A file that is truncated, changed or of another format raises `Damaged`."""
    path = Path(path)
    if not path.exists() and not path.is_symlink():
        raise FileNotFoundError(f"read: there is no result file {str(path)!r}.")
    try:
        columns, _ = read_npz(path, own=True)
        record = _record(columns.pop("record", None))
        _check_columns(record, columns)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and is_disk_error(error):
            raise
        why = getattr(error, "strerror", None) or str(error)
        raise Damaged(path, why.removeprefix(f"{path}: ").rstrip(".")) from error
    return Result(record, columns, path)


def read_all(folder: str | os.PathLike[str]) -> tuple[list[Result], list[Damaged]]:
    """Every run of a study folder (or of a folder of result files) in the order of names, and what is damaged."""
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"read_all: there is no folder {str(folder)!r}.")
    folder = folder / "results" if (folder / "results").is_dir() else folder
    results: list[Result] = []
    damaged: list[Damaged] = []
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        if path.name.startswith("."):
            continue
        try:
            results.append(read(path))
        except Damaged as error:
            damaged.append(error)
    return results, damaged


def group_runs(results: Iterable[Result]) -> dict[tuple[str, str], list[Group]]:
    """Groups of runs by data set and model; plain single networks come first, then labels in natural order."""
    found: dict[tuple[str, str], dict[str, list[Result]]] = {}
    for result in results:
        key = result.record["data"], str(result.record.get("model", ""))
        found.setdefault(key, {}).setdefault(result.record["label"], []).append(result)
    groups = {key: [Group(label, tuple(runs)) for label, runs in labels.items()] for key, labels in found.items()}
    return {key: sorted(groups[key], key=_order) for key in sorted(groups)}


def _order(group: Group) -> tuple[bool, list[tuple[bool, float, str]]]:
    parts = [part for part in re.split(r"(\d+(?:\.\d+)?)", group.label) if part]
    numbered = [(part[0].isdecimal(), float(part) if part[0].isdecimal() else 0.0, part) for part in parts]
    return not group.is_baseline, numbered


def _plain(value: Any) -> Any:
    """Numbers of numpy and torch as JSON has them."""
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"write: {value!r} of type {type(value).__name__} cannot be stored as JSON.")


def _record(text: np.ndarray | None) -> dict[str, Any]:
    if text is None:
        raise ValueError("it has no entry 'record'")
    try:
        record = parse_json(str(text))
    except ValueError as error:
        raise ValueError(f"its record cannot be read: {error}") from None
    if isinstance(record, Mapping) and record.get("format", FORMAT) != FORMAT:
        raise ValueError(f"it has format {record['format']!r}, and this version reads format {FORMAT}")
    _check_record(record)
    return record


def _check_record(record: Any) -> None:
    check_shape(record, RECORD, "its record")
    if record["task"] not in TASKS:
        raise ValueError(f"its task must be one of {', '.join(TASKS)}, but is {record['task']!r}")
    for name, rows in (record.get("shift") or {}).items():
        if not all(0 <= row["severity"] <= MOST_SEVERE for row in rows):
            raise ValueError(f'its severities of "{name}" must be from 0 to {MOST_SEVERE}')


def _check_columns(record: Mapping[str, Any], columns: Mapping[str, np.ndarray]) -> None:
    """An error for columns that no evaluation of a run gives: what reads them relies on it."""
    for name, column in columns.items():
        room, _, kind = name.rpartition("/")
        text, pictures = kind in TEXTS, kind in ("pictures", *MAPS)
        if column.dtype.kind not in ("U" if text else "buif"):
            raise ValueError(f"its column {name!r} must hold {'text' if text else 'numbers'}, but holds {column.dtype}")
        if column.ndim == 0 or kind not in TABLES and column.size != len(column):
            raise ValueError(f"its column {name!r} must be one value for each row, but is {column.shape}")
        if pictures and not (column.dtype == np.uint8 and (column.ndim == 3 or column.shape[3:] in ((3,), (4,)))):
            raise ValueError(f"its column {name!r} must be images, but is {column.shape} of {column.dtype}")
        if kind == "confidence" and (np.abs(column - 0.5) > 0.501).any():
            raise ValueError(f"its column {name!r} must be from 0 to 1, but reaches {np.nanmax(abs(column)):g}")
        first = columns.get({"test": "test/target", "examples": "examples/index"}.get(room, name), column)
        if kind != "member_label" and column.shape[:1] != first.shape[:1]:
            raise ValueError(f"its column {name!r} has {len(column)} rows, and {room!r} has another number of them")


TASKS = ("classification", "regression", "multilabel", "segmentation")
MAPS = ("truth_map", "label_map", "total_map", "epistemic_map")
TABLES = ("member_label", "pictures", "gaps", "both", "either", *MAPS)  # columns with several values for each row
TEXTS = ("reason", "text")
MOST_SEVERE = 100
_FIGURES = {str: (Number, None)}

DEPLOYED = {  # by `pb.freeze`; latencies by the number of rows
    "frozen": bool,
    "why": str,
    "parameters": Number,
    "mult_adds": Number,
    "memory": Number,
    "latency": _FIGURES,
    "relative": {"parameters": Number, "mult_adds": Number, "latency": _FIGURES, "plain_latency": _FIGURES},
}

RECORD = {
    "format": int,
    "run": str,
    "method": str,
    "label": str,
    "settings": {str: Any},
    "data": str,
    "task": str,
    "seed": int,
    "metrics": {str: (None, Number, {"value": (None, Number), "low?": (None, Number), "high?": (None, Number)})},
    "cost": {
        "relative?": (None, _FIGURES),
        "parameters?": (None, Number),
        "mult_adds?": (None, Number),
        "latency?": (None, Number),
        "latency_rows?": (None, int),
        "deployed?": (None, DEPLOYED),
    },
    "cascade?": (None, {"margin": Number, "members": Number, "metrics": _FIGURES, "cost": _FIGURES}),
    "model?": (None, str),
    "size?": (None, int),
    "width?": (None, Number),
    "dropout?": (None, Number),
    "recipe?": (None, str),
    "classes?": (None, [str]),
    "training?": (None, {str: Any}),
    "validation?": (None, _FIGURES),
    "train?": (None, _FIGURES),
    "scaled?": (None, _FIGURES),
    "shift?": (None, {str: [{"severity": int}]}),
    "outside?": (None, {str: {str: _FIGURES}}),
    "variants?": (None, {str: _FIGURES}),
    "seconds?": (None, _FIGURES),
    "versions?": (None, {str: Any}),
    "history?": (None, [_FIGURES]),
    "notes?": (None, [str]),
    "targets?": (None, {str: _FIGURES}),
    "block?": (None, int),
}
