"""The two parts of uncertainty: whether they tell different things."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...results.intervals import t_interval
from ...results.store import Group
from ...uncertainty.resampling import Interval
from ..curves import rank_correlation
from ..figure import Figure, Panel, Styles, columns_by_group
from ..svg import Axis, Chart

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
        "Spearman's rank correlation of the two parts of uncertainty over the test examples: 1 means that both rank "
        "the examples in the same order, 0 that the two are unrelated. With several seeds, the line is "
        f"the 95 % interval of the mean. {_say(shown)}"
    )
    rows = [[label, *(f"{end:.3f}" if np.isfinite(end) else "–" for end in shown[label])] for label in order]
    header = ["Method", "Rank correlation", "Low", "High"]
    panels = [Panel(_draw(shown, order, styles))]
    title = "Are aleatoric and epistemic uncertainty two things?"
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
        words = "what is uncertain by one is uncertain by the other, so they are nearly one signal"
    elif means[most] < WEAK:
        words = "they rank the examples quite differently"
    elif means[most] < STRONG:
        words = "they overlap in part"
    else:
        words = "for some methods they are nearly one signal, for others less so"
    others = "Mucsányi et al. (2024) found no method that separates the two in practice."
    return f"Found here: {span}; {words}. {others}"


def _draw(shown: dict[str, Interval], order: Sequence[str], styles: Styles) -> str:
    low = min(0.0, *(interval.value for interval in shown.values()))
    size, margin = (420, 56 + 24 * len(order)), (138, 14, 6, 44)
    chart = Chart(Axis(low, 1.0, room=0.03), Axis(0, len(order), room=0), size, margin)
    chart.y.ticks = []
    chart.axes("rank correlation")
    for row, label in enumerate(order):
        y, interval = len(order) - row - 0.5, shown[label]
        if interval.known:
            chart.line([(interval.low, y), (interval.high, y)], styles[label], "whisker")
        ends = f" [{interval.low:.2f}, {interval.high:.2f}]" if interval.known else ""
        chart.mark(interval.value, y, styles[label], f"{label}: {interval.value:.2f}{ends}")
        chart.text(
            margin[0] - 8, chart.at(0, y)[1] + 4.5, label if len(label) <= 19 else f"{label[:18]}…", "end", "name"
        )
    return chart.svg("; ".join(f"{label} {shown[label].value:.2f}" for label in order))
