"""The check of Packed-Ensembles' Table 11: is Packed as good as Deep on most UCI sets? And is our Deep good enough?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...report.charts.intervals import intervals_figure
from ...report.claims import ClaimVerdict
from ...results.judgements import FAILS, HOLDS, OPEN, all_of, equal, most_of, over_splits, plural, show_interval
from ...uncertainty.resampling import Interval
from ..experiments.stored_parts import Stored
from ..experiments.uci import split_figures, tables_of
from ..published.packed import decimals, parse_printed

TEST_SHARE = 1 / 9  # test rows to training rows in the standard splits

MARGIN = 0.5  # of Deep's spread over splits: differences below it are called equal

EQUAL = {HOLDS: "equal", FAILS: "different", OPEN: "inconclusive"}

NAMES = {"rmse": "RMSE", "nll": "NLL"}


def check_table11(found: Mapping[str, Stored], published: Mapping[str, Any]) -> ClaimVerdict:
    """For each table the paired difference over splits, and whether it is less than half of Deep's spread."""
    splits = {table: table_figures(found, table) for table in tables_of(found)}
    if not splits:
        return ClaimVerdict(OPEN, ["No table was run."])
    gaps = {table: {name: packed_minus_deep(one, name) for name in NAMES} for table, one in splits.items()}
    judged = {
        table: all_of([equal(gap, MARGIN * _spread(splits[table], name)) for name, gap in gaps[table].items()])
        for table in splits
    }
    judgement = most_of(list(judged.values()))
    said = [_summary(judged), *_against_2017(splits, published), *_told_apart(gaps), *_choices(found)]
    rows = [row for table, one in splits.items() for row in _rows(table, one, gaps[table], judged[table], published)]
    header = ["table", "figure", "Packed, ours", "Deep 3, ours", "Deep 5, ours", "Packed - Deep 3", "equal?",
              "Packed, paper", "Deep, paper", "Deep 5, 2017"]  # fmt: skip
    return ClaimVerdict(judgement, said, header, rows, [_picture(splits, gaps)])


def table_figures(found: Mapping[str, Stored], table: str) -> dict[str, dict[str, np.ndarray]]:
    """RMSE and NLL of each split for packed, deep with three and deep with five members."""
    return {
        "packed": split_figures(found, table, "packed"),
        "deep 3": split_figures(found, table, "deep", members=3),
        "deep 5": split_figures(found, table, "deep"),
    }


def packed_minus_deep(one: Mapping[str, Mapping[str, np.ndarray]], name: str) -> Interval:
    """How much larger the figure of packed is than that of three deep members, over splits."""
    return over_splits((one["packed"][name] - one["deep 3"][name]).tolist(), TEST_SHARE)


def _spread(one: Mapping[str, Mapping[str, np.ndarray]], name: str) -> float:
    values = one["deep 3"][name]
    return float(values.std(ddof=1)) if len(values) > 1 else math.nan


def _summary(judged: Mapping[str, str]) -> str:
    groups = {word: [table for table, one in judged.items() if one == word] for word in (HOLDS, FAILS, OPEN)}
    text = f"Packed and Deep with three members are equal on {len(groups[HOLDS])} of {plural(len(judged), 'table')}"
    text += f" ({', '.join(groups[HOLDS])})" if groups[HOLDS] else ""
    text += f", differ on {', '.join(groups[FAILS])}" if groups[FAILS] else ""
    text += f", and are inconclusive on {', '.join(groups[OPEN])}" if groups[OPEN] else ""
    return f"{text}. Equal: the 95 % interval of the paired difference lies within half of Deep's spread over splits."


def _against_2017(splits: Mapping[str, Any], published: Mapping[str, Any]) -> list[str]:
    old = published["lakshminarayanan"]
    known = {table: one for table, one in splits.items() if table in old}
    if not known:
        return []
    worse = {
        table: names
        for table, one in known.items()
        if (names := [name for name in NAMES if not no_worse(one["deep 5"][name], old[table][name])])
    }  # fmt: skip
    text = (
        "Deep with five members is no worse than Lakshminarayanan et al. (2017) by more than half of their spread on "
    )
    text += f"{len(known) - len(worse)} of {plural(len(known), 'table')}"
    missed = ", ".join(f"{table} ({' and '.join(NAMES[name] for name in names)})" for table, names in worse.items())
    return [f"{text}; it is on {missed}." if worse else f"{text}."]


def no_worse(ours: np.ndarray, text: str) -> bool:
    """Whether a mean over splits, at the printed digits, exceeds the printed one by at most half of its spread."""
    value, spread = parse_printed(text)
    return round(float(ours.mean()), decimals(text)) <= value + spread / 2 + 1e-9


def _told_apart(gaps: Mapping[str, Mapping[str, Interval]]) -> list[str]:
    apart = [
        f"{table} {NAMES[name]} {show_interval(gap, _digits(gap.value))}"
        for table, each in gaps.items()
        for name, gap in each.items()
        if gap.known and not gap.low <= 0 <= gap.high
    ]
    rule = "Intervals are those of Nadeau and Bengio (2003), because splits share their training rows"
    if not apart:
        return [f"No difference is distinguishable from zero. {rule}."]
    return [f"Distinguishable from zero, Packed - Deep 3: {'; '.join(apart)}. {rule}."]


def _choices(found: Mapping[str, Stored]) -> list[str]:
    chosen = [
        f"{name.removeprefix('choice-').replace('-', ' ')} {'/'.join(f'{value:g}' for value in part.figures['chosen'])}"
        for name, part in found.items()
        if name.startswith("choice-")
    ]
    return [f"Chosen on validation rows (rate/epochs/L2), test rows unseen: {', '.join(chosen)}."]


def _rows(
    table: str, one: Mapping[str, Any], gaps: Mapping[str, Interval], judged: str, published: Mapping[str, Any]
) -> list[list[str]]:
    rows = []
    for name, title in NAMES.items():
        digits = _digits(float(one["deep 5"][name].mean()))
        paper, old = published["table11"].get(table, {}), published["lakshminarayanan"].get(table, {})
        rows.append([
            table, title, *(_mean(one[kind][name], digits) for kind in ("packed", "deep 3", "deep 5")),
            show_interval(gaps[name], digits), EQUAL[equal(gaps[name], MARGIN * _spread(one, name))],
            *(paper.get(f"{kind} {name}", "–").replace("+-", " ± ") for kind in ("packed", "deep")),
            old.get(name, "–").replace("+-", " ± "),
        ])  # fmt: skip
    return rows


def _mean(values: np.ndarray, digits: int) -> str:
    spread = f" ± {values.std(ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{values.mean():.{digits}f}{spread}"


def _digits(value: float) -> int:
    return 5 if abs(value) < 0.01 else 4 if abs(value) < 0.1 else 3


def _picture(splits: Mapping[str, Any], gaps: Mapping[str, Mapping[str, Interval]]) -> Any:
    scaled = {
        title: {
            table: Interval(*(end / _spread(splits[table], name) for end in gaps[table][name]))
            for table in splits
            if _spread(splits[table], name) > 0
        }
        for name, title in NAMES.items()
    }
    caption = (
        "Left of zero Packed is better. Shaded: half of Deep's spread over splits; within it they are called equal."
    )
    axis = "Packed − Deep 3, in standard deviations of Deep over splits"
    return intervals_figure("packed-deep", "Packed against Deep on each table", caption, scaled,
                            band=(-MARGIN, MARGIN), axis=axis)  # fmt: skip
