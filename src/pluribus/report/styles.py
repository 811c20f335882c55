"""The look of a method in figures of matplotlib: the same in all of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Style(NamedTuple):
    """A colour as #RRGGBB, and a marker as matplotlib names it."""

    colour: str
    marker: str


STYLES = {  # colours of Okabe and Ito, which colour-blind readers can tell apart, and some of Tol's
    "single": Style("#000000", "o"),
    "deep": Style("#0072B2", "s"),
    "packed": Style("#D55E00", "^"),
    "masksembles": Style("#009E73", "D"),
    "batch_ensemble": Style("#E69F00", "v"),
    "mc_dropout": Style("#56B4E9", "P"),
    "mimo": Style("#CC79A7", "X"),
    "treenet": Style("#882255", "<"),
    "multihead": Style("#999933", ">"),
    "lora": Style("#332288", "p"),
    "tabm": Style("#117733", "H"),
}

OTHERS = (Style("#44AA99", "h"), Style("#661100", "d"), *STYLES.values())  # for names without one of their own


def assign_styles(names: Iterable[str]) -> dict[str, Style]:
    """A look for each name: its own, or one that no other name here has.

    >>> styles = assign_styles(["mine", "yours"])
    >>> styles["mine"] != styles["yours"]
    True
    """
    names = list(names)
    taken = {STYLES[name] for name in names if name in STYLES}
    free = [style for style in OTHERS if style not in taken]
    others = [name for name in names if name not in STYLES]
    return {name: STYLES.get(name) or free[others.index(name) % len(free)] for name in names}
