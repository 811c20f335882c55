"""`pluribus predict`: what a trained ensemble says of files."""

from __future__ import annotations

import csv
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.cells import cell_len
from rich.text import Text

from .._common.untrusted import printable
from .common import options
from .common.messages import say_notes, screen

NO_THRESHOLD = "without validation data there is no threshold for abstaining, so no answer is accepted"
NO_INTERVAL = "without validation data nothing is promised: intervals are those that the members predict"


def predict_command(
    folder: Annotated[Path, typer.Argument(help="The folder that `pluribus train` or `pluribus upgrade` wrote.")],
    files: options.Files,
    form: Annotated[str, typer.Option("--format", help="The output format: table, jsonl or csv.")] = "table",
    broken: options.Broken = "stop",
    device: options.Device = "cpu",
    abstained: Annotated[bool, typer.Option(help="Show only the answers that a person should check.")] = False,
    model: options.OwnModel = None,
    unpack_limit: options.UnpackLimit = None,
    out: Annotated[Path | None, typer.Option(help="The folder for the pictures of a segmentation.")] = None,
    risk: Annotated[
        float | None, typer.Option(help="Accept answers with an error rate of at most this, instead of train's.")
    ] = None,
    coverage: Annotated[
        float | None, typer.Option(help="How often sets and intervals contain the truth, instead of train's.")
    ] = None,
) -> None:
    """Predict images or rows: label, confidence, aleatoric and epistemic uncertainty, and whether to accept the answer.

    A segmentation writes three pictures for each image: labels, numbered as in the masks of training, and its total and
    epistemic uncertainty, from black (none) to white (a guess between all classes).

    Examples:

        pluribus predict digits/ scans/*.png

        pluribus predict houses/ new.csv --coverage 0.95 --format csv > answers.csv

        pluribus predict streets/ photos/*.jpg --out answers/
    """
    from ..deploy.predictor import load_predictor

    if form not in ("table", "jsonl", "csv"):
        raise ValueError(f"--format: must be table, jsonl or csv, but it is {form!r}.")
    options.check_device(device)
    predictor = load_predictor(folder, device, model=model)
    if risk is not None or coverage is not None:
        predictor = predictor.promising(risk=risk, coverage=coverage)
    for path in files:
        if not path.exists():
            raise FileNotFoundError(f"predict: file not found: {str(path)!r}.")
    if abstained and predictor.task != "classification":
        raise ValueError("--abstained: only classification has a threshold. For regression, use the intervals.")
    if (out is None) == (predictor.task == "segmentation"):
        needs = "is needed: a segmentation writes its pictures there" if out is None else "is for segmentation only"
        raise ValueError(f"--out: a folder {needs}.")
    say_notes(_missing_promises(predictor))
    given = {"broken": broken, "unpack_limit": unpack_limit, **({} if out is None else {"out": out})}
    answers = _beside_columns if form == "csv" and predictor.record["encoding"]["kind"] == "table" else _answers
    rows = (row for source in _sources(files) for row in answers(predictor, source, len(files) > 1, **given))
    wanted = (row for row in rows if not abstained or row["decision"] == "abstain")
    if form == "jsonl":
        for row in wanted:
            print(json.dumps(row))
    else:
        (_print_table if form == "table" else _print_csv)(wanted)


def _missing_promises(predictor: Any) -> list[str]:
    """Why answers are not accepted, or why intervals promise nothing."""
    record = predictor.record
    if predictor.task == "classification" and (predictor.threshold is None or "no_threshold" in record):
        return [record.get("no_threshold", NO_THRESHOLD)]
    if predictor.task == "regression" and predictor.conformal is None:
        return [record.get("no_conformal", NO_INTERVAL)]
    return []


def _answers(predictor: Any, source: Path | list[Path], several: bool, **given: Any) -> Iterator[dict[str, Any]]:
    """The answers to one source; rows of one table among several files are named after it."""
    of_table = several and isinstance(source, Path) and predictor.record["encoding"]["kind"] == "table"
    for row in predictor.answers(source, **given):
        yield {**row, "name": f"{source}: {row['name']}"} if of_table else row


def _beside_columns(predictor: Any, source: Any, several: bool, **given: Any) -> Iterator[dict[str, Any]]:
    """The rows of a table as they were, each with its answer behind it."""
    from ..data.tables import read_table

    if not isinstance(source, Path):
        yield from _answers(predictor, source, several, **given)
        return
    frame = read_table(source, given["unpack_limit"], predictor.record["encoding"].get("missing", ()))
    for name, values in frame.items():
        if values.isna().any():
            frame[name] = values.astype(object).where(values.notna(), None)  # an empty field stays one
    rows = frame.itertuples(index=False, name=None)
    for fields, answer in zip(rows, _answers(predictor, source, several, **given), strict=True):
        row = dict(zip(frame.columns, fields, strict=True))
        answer = {f"predicted_{name}" if name in row else name: value for name, value in answer.items()}
        yield {"name": answer.pop("name", answer.get("predicted_name")), **row, **answer}


def _sources(files: list[Path]) -> Iterator[Path | list[Path]]:
    """Images that stand together as one list; folders, arrays and tables one by one."""
    kind = lambda path: path.is_file() and path.suffix.lower() not in (".npz", ".npy", ".csv", ".tsv", ".parquet")  # noqa: E731
    for images, group in itertools.groupby(files, kind):
        together = list(group)
        yield from [together] if images else together


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """The row with a set of classes as one text."""
    return {name: " | ".join(value) if isinstance(value, list) else value for name, value in row.items()}


def _print_csv(rows: Iterator[dict[str, Any]]) -> None:
    writer = None
    for row in map(_flat, rows):
        if writer is None:
            writer = csv.DictWriter(sys.stdout, row)
            writer.writerow({name: _harmless(name) for name in row})
        writer.writerow({name: _harmless(value) for name, value in row.items()})


def _harmless(value: Any) -> Any:
    """A text that no spreadsheet takes for a formula: one that begins as formulas do gets an apostrophe before it.

    On a terminal, none that steers it either; a file gets the text as it is.
    """
    if not isinstance(value, str):
        return value
    value = f"'{value}" if value.lstrip(" ").startswith(FORMULA) else value
    return printable(value) if _is_terminal() else value


def _is_terminal() -> bool:
    return sys.stdout.isatty()


FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def _print_table(rows: Iterator[dict[str, Any]]) -> None:
    """Write each row as it comes, in columns that are as wide as the first rows need."""
    first = list(itertools.islice(rows, MEASURED))
    if not first:
        return
    head = [printable(name).replace("\n", "\\n") for name in first[0]]
    cells = [[_as_cell(value) for value in row.values()] for row in map(_flat, first)]
    widths = [max(map(cell_len, column)) for column in zip(head, *cells, strict=True)]
    left = [isinstance(value, str) for value in _flat(first[0]).values()]

    def line(texts: list[str]) -> str:
        spaces = [" " * (width - cell_len(text)) for width, text in zip(widths, texts, strict=True)]
        parts = [t + gap if to_left else gap + t for t, gap, to_left in zip(texts, spaces, left, strict=True)]
        return "  ".join(parts).rstrip()

    screen().print(Text(line(head), style="bold"), soft_wrap=True)
    for texts in itertools.chain(cells, ([_as_cell(value) for value in row.values()] for row in map(_flat, rows))):
        print(line(texts))


MEASURED = 256  # rows that are read before the first is written


def _as_cell(value: Any) -> str:
    """A value in a table: a text that steers no terminal, or a number with four digits."""
    return printable(value).replace("\n", "\\n") if isinstance(value, str) else f"{value:.4g}"
