"""What the papers print, as data: `tables.toml`, one namespace for each paper; and figures of 2017 for comparison."""

from __future__ import annotations

import tomllib
from importlib import resources
from types import SimpleNamespace
from typing import Any


def printed_rows(text: str, columns: list[str]) -> dict[str, dict[str, str]]:
    """A table as it is printed: row, column, text.

    >>> printed_rows("single: 1.0 2.50", ["a", "b"])
    {'single': {'a': '1.0', 'b': '2.50'}}
    """
    found = {}
    for line in text.strip().splitlines():
        name, _, cells = line.rpartition(": ")
        found[name] = dict(zip(columns, cells.split(), strict=True))
    return found


def parse_printed(text: str) -> tuple[float, float]:
    """A figure and its spread as printed, NaN where there is none.

    >>> parse_printed("2.41+-0.25")
    (2.41, 0.25)
    """
    value, _, spread = text.partition("+-")
    return float(value), float(spread or "nan")


def decimals(text: str) -> int:
    """How many decimals are printed.

    >>> decimals("0.90+-0.1"), decimals("12")
    (2, 0)
    """
    return len(text.partition("+-")[0].partition(".")[2])


def _paper(items: dict[str, Any]) -> SimpleNamespace:
    tables = {name: printed_rows(one["rows"], one["columns"]) for name, one in items.items() if "rows" in one}
    return SimpleNamespace(**{**items, **tables})


_PAPERS = {
    name: _paper(items)
    for name, items in tomllib.loads(
        resources.files(__package__).joinpath("tables.toml").read_text(encoding="utf-8")
    ).items()
}

fort, masksembles, mimo, packed = (_PAPERS[name] for name in ("fort", "masksembles", "mimo", "packed"))
