"""Plain tables of text, for what is printed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any


def align_columns(rows: Sequence[Mapping[str, str]], left: Collection[str] = ()) -> str:
    """Rows under their headings, numbers to the right; columns that are empty in all rows are left out.

    Args:
        left: the columns that are aligned to the left

    >>> print(align_columns([{"label": "7", "confidence": "0.98"}, {"label": "12", "confidence": "0.5"}]))
    label  confidence
        7        0.98
       12         0.5
    """
    columns = [name for name in rows[0] if any(row[name] for row in rows)]
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in columns}

    def line(values: Mapping[str, str]) -> str:
        cells = [values[c].ljust(widths[c]) if c in left else values[c].rjust(widths[c]) for c in columns]
        return "  ".join(cells).rstrip()

    return "\n".join([line({c: c for c in columns}), *map(line, rows)])


def some_of(count: int, wanted: int) -> list[int]:
    """So many numbers below `count`, evenly from the first to the last; all of them where they are not more.

    >>> some_of(3, 5), some_of(100, 4)
    ([0, 1, 2], [0, 33, 66, 99])
    """
    if count <= wanted:
        return list(range(count))
    return [round(i * (count - 1) / (wanted - 1)) for i in range(wanted)]


def plural(number: Any, what: str) -> str:
    """A number of things: 1 item, 2 items."""
    return f"{number} {what}{'' if number == 1 else 's'}"
