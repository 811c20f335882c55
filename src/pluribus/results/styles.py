"""The look of a method in charts: one that it states itself, or one that is free."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Style(NamedTuple):
    """A colour as #RRGGBB, and a marker as matplotlib names it."""

    colour: str
    marker: str


BLACK = Style("#000000", "o")

PALETTE = (  # of Okabe and Ito, which colour-blind readers can tell apart, and some of Tol's
    BLACK,
    Style("#0072B2", "s"),
    Style("#D55E00", "^"),
    Style("#009E73", "D"),
    Style("#E69F00", "v"),
    Style("#56B4E9", "P"),
    Style("#CC79A7", "X"),
    Style("#882255", "<"),
    Style("#999933", ">"),
    Style("#332288", "p"),
    Style("#44AA99", "h"),
    Style("#661100", "d"),
)

STYLES: dict[str, Style] = {}  # by method; a method that states one is entered when it is defined


def assign_styles(names: Iterable[str]) -> dict[str, Style]:
    """A look for each name: the one that it states, or one that nobody else here has.

    >>> styles = assign_styles(["mine", "yours"])
    >>> styles["mine"] != styles["yours"]
    True
    """
    names = list(names)
    here, all_stated = {STYLES[name] for name in names if name in STYLES}, set(STYLES.values())
    free = sorted(PALETTE, key=lambda style: (style in here, style == BLACK, style in all_stated))
    others = [name for name in names if name not in STYLES]
    return {name: STYLES.get(name) or free[others.index(name) % len(free)] for name in names}
