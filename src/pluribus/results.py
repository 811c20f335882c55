"""One file per run: a record (settings, metrics, cost) as JSON, and columns (a value per example). No pickle."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

FORMAT = 1
SUFFIX = ".npz"


@dataclass(frozen=True)
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
        """What all runs of the group have in common stands in the record of the first."""
        return self.runs[0].record

    @property
    def by_seed(self) -> dict[int, Result]:
        """Runs by their seeds, in order."""
        return {run.record["seed"]: run for run in sorted(self.runs, key=lambda run: run.record["seed"])}


class Damaged(ValueError):  # noqa: N818  it is what happened to the file
    """A result file that cannot be trusted; `path` is the file, `reason` what is wrong with it."""

    def __init__(self, path: Path, reason: str):
        super().__init__(f"the result file {str(path)!r} is damaged: {reason}. Delete it, and its run is repeated.")
        self.path, self.reason = path, reason


def write(path: str | os.PathLike[str], record: Mapping[str, Any], columns: Mapping[str, np.ndarray]) -> None:
    """Write one run so that the file is complete or not there; an earlier file stays until the new one is complete.

    Equal runs give equal bytes. The folder is made where it is missing.

    >>> record = dict(run="a", method="deep", label="deep", data="digits", task="classification", seed=0)
    >>> write("results/a.npz", record | {"settings": {}, "metrics": {}, "cost": {}}, {"test/label": np.array([3, 1])})
    >>> read("results/a.npz").columns["test/label"].tolist()
    [3, 1]
    """
    path = Path(path)
    if reason := _wrong(record):
        raise ValueError(f"write: the record of {path.name!r} is incomplete: {reason}.")
    arrays = {name: _array(name, column) for name, column in columns.items()}
    text = json.dumps({**record, "format": FORMAT}, default=_plain)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "xb") as file:
            _store(file, {"record": np.array(text), **arrays})
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        message = f"the result could not be written ({error.strerror or error}); results written earlier are untouched"
        raise OSError(error.errno, message, str(path)) from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read(path: str | os.PathLike[str]) -> Result:
    """The run that `write` wrote. A file that is truncated, changed or of another format raises `Damaged`."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"read: there is no result file {str(path)!r}.")
    try:
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:  # each array has a checksum
            columns = {name: file[name] for name in file.files}
    except OSError as error:
        if error.errno is not None:  # the disk's fault, not the file's
            raise
        raise Damaged(path, f"it is no complete .npz file ({error})") from error
    except Exception as error:  # zipfile, zlib and numpy raise many kinds on damaged bytes
        raise Damaged(path, f"it is no complete .npz file ({error or type(error).__name__})") from error
    record = _record(path, columns.pop("record", None))
    return Result(record, columns, path)


def read_all(folder: str | os.PathLike[str]) -> tuple[list[Result], list[Damaged]]:
    """Every run of a study folder (or of a folder of result files) in the order of names, and what is damaged."""
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"read_all: there is no folder {str(folder)!r}.")
    if (folder / "results").is_dir():
        folder = folder / "results"
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


def grouped(results: Iterable[Result]) -> dict[tuple[str, str], list[Group]]:
    """Groups of runs by data set and model; plain single networks come first, then labels in natural order."""
    found: dict[tuple[str, str], dict[str, list[Result]]] = {}
    for result in results:
        record = result.record
        found.setdefault((record["data"], str(record.get("model", ""))), {}).setdefault(record["label"], []).append(
            result
        )
    groups = {key: [Group(label, tuple(runs)) for label, runs in labels.items()] for key, labels in found.items()}
    return {key: sorted(groups[key], key=_order) for key in sorted(groups)}


def _order(group: Group) -> tuple[bool, list[tuple[bool, float, str]]]:
    parts = [part for part in re.split(r"(\d+(?:\.\d+)?)", group.label) if part]
    numbered = [(part[0].isdigit(), float(part) if part[0].isdigit() else 0.0, part) for part in parts]
    return group.record["method"] != "single", numbered


def _store(file: Any, arrays: Mapping[str, np.ndarray]) -> None:
    """An .npz file without times, so that equal runs give equal bytes."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            with archive.open(_entry(name), "w", force_zip64=True) as part:
                np.lib.format.write_array(part, array, allow_pickle=False)


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(f"{name}.npy")
    entry.compress_type = zipfile.ZIP_DEFLATED
    return entry


def _array(name: str, column: Any) -> np.ndarray:
    array = np.asarray(column)
    if name == "record":
        raise ValueError("write: a column cannot be called 'record', which is the name of the JSON part.")
    if array.dtype.hasobject:
        raise ValueError(
            f"write: the column {name!r} must hold numbers or text, but it holds Python objects ({array.dtype}). "
            "Convert it, for example with np.asarray(column, dtype=str)."
        )
    return array


def _plain(value: Any) -> Any:
    """Numbers of numpy and torch as JSON has them."""
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"write: {value!r} of type {type(value).__name__} cannot be stored as JSON.")


def _record(path: Path, text: np.ndarray | None) -> dict[str, Any]:
    if text is None:
        raise Damaged(path, "it has no entry 'record'")
    try:
        record = json.loads(str(text))
    except ValueError as error:
        raise Damaged(path, f"its record is no JSON ({error})") from error
    if reason := _wrong(record):
        raise Damaged(path, reason)
    found = record.get("format")
    if found != FORMAT:
        raise Damaged(path, f"it has format {found!r}, and this version reads format {FORMAT}")
    return record


def _wrong(record: Any) -> str:
    """What a record lacks, or nothing."""
    if not isinstance(record, Mapping):
        return "its record is no JSON object"
    if missing := [key for key in NEEDED if key not in record]:
        return f"its record has no {', '.join(repr(key) for key in missing)}"
    wrong = [key for key, kind in NEEDED.items() if not isinstance(record[key], kind)]
    return f"its record has an entry of the wrong kind for {', '.join(repr(key) for key in wrong)}" if wrong else ""


NEEDED: dict[str, type | tuple[type, ...]] = {
    "run": str,
    "method": str,
    "label": str,
    "settings": Mapping,
    "data": str,
    "task": str,
    "seed": int,
    "metrics": Mapping,
    "cost": Mapping,
}
