"""The two parts of uncertainty: whether they tell different things."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...results.intervals import t_interval
from ...results.store import Group
from ...uncertainty.resampling import Interval
from ..curves import rank_correlation
from ..figure import Figure, Panel, Styles, columns_by_group
from ..svg import HUES
from .intervals import IntervalRow, row_chart

STRONG, WEAK = 0.8, 0.5  # rank correlations at least so high, and less than that, are put into words


def uncertainty_parts_chart(groups: Sequence[Group], styles: Styles) -> Figure | None:
    """The rank correlation of aleatoric and epistemic uncertainty over test examples, for each label."""
    found: dict[str, list[float]] = {}
    for group, runs in columns_by_group(groups, "test/aleatoric", "test/epistemic"):
        each = [rank_correlation(np.ravel(run[0]), np.ravel(run[1])) for run in runs]
        if group.record.get("size") != 1 and np.isfinite(each).all():  # one network has no epistemic part
            found[group.label] = each
    if not found:
        return None
    shown = {label: _interval(each) for label, each in found.items()}
    order = sorted(shown, key=lambda label: -shown[label].value)
    caption = (
        "Spearman's rank correlation of the two over the test examples: at 1 both rank the examples in the same order, "
        f"at 0 they are unrelated. With several seeds, the line is the 95 % interval of the mean. {_say(shown)}"
    )
    rows = [[label, *(f"{end:.3f}" if np.isfinite(end) else "–" for end in shown[label])] for label in order]
    header = ["Method", "Rank correlation", "Low", "High"]
    colours = {label: style if style < HUES else 0 for label, style in styles.items()}  # all rows are always shown
    lines = [
        IntervalRow(row[0], shown[row[0]], colours[row[0]], f"{row[0]}: {row[1]} [{row[2]}, {row[3]}]") for row in rows
    ]
    low = min(0.0, *(interval.value for interval in shown.values()))
    summary = "; ".join(f"{label} {shown[label].value:.2f}" for label in order)
    panels = [Panel(row_chart(lines, "rank correlation", summary, ends=(low, 1.0)))]
    title = "Aleatoric versus epistemic uncertainty"
    return Figure("uncertainties", title, caption, panels, header=header, rows=rows)


def _interval(each: Sequence[float]) -> Interval:
    found = t_interval(each)
    return Interval(found.value, max(found.low, -1.0), min(found.high, 1.0))


def _say(shown: dict[str, Interval]) -> str:
    """What was found, and what others found."""
    means = {label: interval.value for label, interval in shown.items()}
    least, most = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
    span = (
        f"from {means[least]:.2f} ({least}) to {means[most]:.2f} ({most})" if least != most else f"{means[least]:.2f}"
    )
    if means[least] >= STRONG:
        words = "both rank the examples alike, so they are nearly one signal"
    elif means[most] < WEAK:
        words = "they rank the examples quite differently"
    elif means[most] < STRONG:
        words = "they partly overlap"
    else:
        words = "for some methods they are nearly one signal, for others less so"
    others = "Mucsányi et al. (2024) found no method that separates the two in practice."
    return f"Found here: {span}; {words}. {others}"
