"""Checks of parameter and mult-add columns: every cell to the last printed digit, or why it differs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...report.claims import ClaimVerdict
from ...results.judgements import FAILS, HOLDS, OPEN, plural
from ..experiments.stored_parts import Part, Stored
from ..published.packed import decimals

UNITS = {"parameters": 1e6, "mult_adds": 1e9}

TITLES = {"parameters": "parameters, M", "mult_adds": "mult-adds, G"}


@dataclass(frozen=True)
class Cell:
    """A printed count beside ours: whether they agree, or what is wrong with the printed one."""

    row: str
    column: str
    printed: str
    ours: float
    reason: str = ""

    @property
    def agrees(self) -> bool:
        """Whether the count is printed as it is, rounded or cut off at the last digit."""
        scale = 10 ** decimals(self.printed)
        return float(self.printed) in (round(self.ours, decimals(self.printed)), math.floor(self.ours * scale) / scale)

    @property
    def show_interval(self) -> str:
        """Our count with the digits of the printed one, and one more where they differ."""
        return f"{self.ours:.{decimals(self.printed) + (not self.agrees)}f}"


def count_cells(
    found: Mapping[str, Stored],
    rows: Mapping[str, Part],
    published: Mapping[str, Mapping[str, str]],
    reasons: Mapping[tuple[str, str], str],
) -> list[Cell]:
    """Every printed count of a table beside ours.

    Args:
        rows: the network that each row of the table is
        reasons: what is known to be wrong with a printed count, by row and column
    """
    return [
        Cell(name, column, published[name][column], found[part.name].figures[column] / unit,
             reasons.get((name, column), ""))
        for name, part in rows.items() for column, unit in UNITS.items()
    ]  # fmt: skip


def check_counts(
    rows: Mapping[str, Part],
    reasons: Mapping[tuple[str, str], str],
    contradictions: Callable[[Mapping[str, Mapping[str, float]]], list[str]] = lambda counts: [],
) -> Callable[[Mapping[str, Stored], Mapping[str, Any]], ClaimVerdict]:
    """The check of a table's columns.

    Args:
        contradictions: from our counts to what of the paper's claim about them is not so; where there is none, but a
            count is not explained, it is inconclusive: ours may not be the paper's networks
    """

    def check(found: Mapping[str, Stored], published: Mapping[str, Any]) -> ClaimVerdict:
        counted = {name: part for name, part in rows.items() if part.name in found}
        if not counted:
            return ClaimVerdict(OPEN, ["No row of the table was counted."])
        every = count_cells(found, counted, published["counts"], reasons)
        wrong = contradictions({name: found[part.name].figures for name, part in counted.items()})
        unexplained = [cell for cell in every if not cell.agrees and not cell.reason]
        table = [
            [cell.row, TITLES[cell.column], cell.printed, cell.show_interval]
            + ["agrees" if cell.agrees else cell.reason or "not explained"]
            for cell in every
        ]
        said = [*_summary(every, unexplained, len(counted), len(rows)), *(f"{text}." for text in wrong)]
        header = ["network", "figure", "the paper", "counted", ""]
        return ClaimVerdict(FAILS if wrong else OPEN if unexplained else HOLDS, said, header, table)

    return check


def _summary(every: Sequence[Cell], unexplained: Sequence[Cell], counted: int, rows: int) -> list[str]:
    agreeing = sum(cell.agrees for cell in every)
    said = [f"{agreeing} of {plural(len(every), 'count')} agree with the paper to the last printed digit."]
    if named := len(every) - agreeing - len(unexplained):
        said.append(f"{plural(named, 'printed count')} differ for the reasons given below.")
    if unexplained:
        names = ", ".join(f"{cell.row} ({TITLES[cell.column]})" for cell in unexplained)
        said.append(f"Not explained: {names}.")
    if counted < rows:
        said.append(f"Only {counted} of the table's {rows} rows were counted at this scale.")
    return said
