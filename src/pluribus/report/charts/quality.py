"""The charts of gain, cost, risk and training: groups of runs in, a figure out; None where nothing can be drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...results.comparison_phrases import ComparedGroups, say_gap, say_times
from ...results.quantities import estimate, format_interval, format_value, quantity
from ...results.store import Group
from ...uncertainty import metrics
from ...uncertainty.resampling import Interval
from ..figure import (
    GRID,
    Curve,
    Figure,
    Panel,
    Styles,
    columns_by_group,
    curve_panel,
    finite_range,
    legend,
    mean_curve,
    room_for_ticks,
    values,
)
from ..svg import Axis, Chart, place_labels, short_ticks
from .intervals import IntervalRow, row_chart


def gain_chart(found: ComparedGroups, choice: Group | None) -> Figure | None:
    """The paired difference of every label from the single network: right of zero is better."""
    baseline, metric = found.baseline, found.metric
    kind, sign = quantity(metric), 1 if quantity(metric).better == "higher" else -1
    rows, table = [], []
    for group in found.groups:
        if baseline is None or group is baseline or not math.isfinite(found.gap(group, baseline).value):
            continue
        gap, word = found.gap(group, baseline), found.relation(group, baseline)
        gain = Interval(*(sign * kind.factor * end for end in (gap.value, *(gap[1:] if sign > 0 else gap[:0:-1]))))
        told = say_gap(Interval(*(end / kind.factor for end in gain)), metric)
        cost, word = say_relative_cost(group), WORDS[word]
        hint = f"{group.label}: gain {told}, {word}" + (f", cost {cost}" if cost else "")
        rows.append(IntervalRow(group.label, gain, GAINS[word], hint, cost))
        table.append([group.label, told, word, cost or "–"])
    if not rows:
        return None
    order = sorted(range(len(rows)), key=lambda i: -rows[i].found.value)
    unit = "points" if kind.unit == "%" else ""
    way = "lower" if sign < 0 else "higher"
    axis = f"{kind.title}: how much {way} than one network{f', {unit}' if unit else ''} →"
    summary = f"Gain in {kind.title} over one network: {'; '.join(rows[i].hint for i in order)}"
    marked = choice.label if choice else ""
    ends = _ends(rows)
    svg = row_chart([rows[i] for i in order], axis, summary, ends=ends, cells="cost", marked=marked)
    far = any(row.found.low < ends[0] or row.found.high > ends[1] for row in rows)
    caption = (
        "Mean paired difference from the single network, and its 95 % interval: better or worse only if that excludes "
        f"0.{' Lines that end at the edge go on.' if far else ''} Cost: {say_meaning(found.groups)}."
    )
    header = ["Method", f"Gain in {kind.title}", "Result", "Cost"]
    key = [(style, word) for word, style in GAINS.items()]
    rows_shown = [table[i] for i in order]
    return Figure("gain", "Gain over one network", caption, [Panel(svg)], header=header, rows=rows_shown, key=key)


WORDS = {"better": "better", "worse": "worse", "within noise": "unclear", "": "unclear"}
GAINS = {"better": 1, "unclear": 0, "worse": 2}  # styles


def _ends(rows: Sequence[IntervalRow]) -> tuple[float, float]:
    """Of the axis: all means, zero, and as much of the intervals as leaves the means apart."""
    means = [row.found.value for row in rows]
    reach = 3 * max(map(abs, means)) or 1.0
    ends = [min(max(end, -reach), reach) for row in rows for end in row.found if math.isfinite(end)]
    return finite_range([0.0, *means, *ends])


def cost_name(groups: Sequence[Group]) -> str:
    """What the cost of a prediction is told by: its time where that was measured."""
    return "relative_latency" if values(groups, "relative_latency") else "relative_mult_adds"


def say_meaning(groups: Sequence[Group]) -> str:
    """What the cost of a prediction is."""
    what = "time of 32 rows" if cost_name(groups) == "relative_latency" else "mult-adds"
    frozen = "neither" if all(group.unfrozen for group in groups) else "both"
    return f"{what} relative to the single network, {frozen} frozen"


def say_relative_cost(group: Group) -> str:
    """The cost of a prediction, relative to one network; nothing where it is not known."""
    cost = estimate(group, cost_name([group])).value
    return say_times(cost) if math.isfinite(cost) else ""


def trade_off_chart(groups: Sequence[Group], styles: Styles, metric: str = "") -> Figure | None:
    """Quality against the cost of a prediction, with the frontier: nothing is both better and cheaper."""
    price, metric = cost_name(groups), metric or next((n for n in ("nll", "rmse", "accuracy") if values(groups, n)), "")
    good, paid = values(groups, metric) if metric else {}, values(groups, price)
    kind = quantity(metric)
    points = {group: (paid[group.label], good[group.label] * kind.factor)
              for group in groups if group.label in good and group.label in paid}  # fmt: skip
    if len(points) < 2:
        return None
    x, y = (finite_range(side) for side in zip(*points.values(), strict=True))
    log = x[0] > 0 and x[1] / x[0] > 4
    axes = Axis(*x, log=log, room=0.1), Axis(*y, room=0.12)
    chart = Chart(*axes, size=(560, 300), margin=(room_for_ticks(axes[1]), 14, 14, 44))
    what = "time" if price == "relative_latency" else "mult-adds"
    chart.axes(f"{what} of a prediction, × one network", _title(metric), x_text=short_ticks if log else None)
    chart.line(frontier([*points.values()], kind.better == "higher"), None, "line frontier")
    places = []
    for group in sorted(points, key=lambda one: styles[one.label], reverse=True):
        hint = f"{group.label}: {format_interval(estimate(group, metric), metric)} at {say_times(paid[group.label])}"
        chart.mark(*points[group], styles[group.label], hint, 5)
        places.append((*chart.at(*points[group]), 5, group.label))
    place_labels(chart, places[::-1])
    names = [metric, "parameters", "mult_adds", "latency", "memory", price]
    names = [name for name in dict.fromkeys(names) if values(groups, name)]
    rows = [[group.label, *(format_value(estimate(group, name).value, name) for name in names)] for group in groups]
    good_corner = "bottom" if kind.better == "lower" else "top"
    caption = (
        f"Good and cheap is at the {good_corner} left. The line is the frontier: the best average at each cost. "
        f"Cost: {say_meaning(groups)}."
    )
    summary = "; ".join(
        f"{g.label} {format_value(good[g.label], metric)} at {say_times(x)}" for g, (x, _) in points.items()
    )
    header = ["Method", *(_title(name) for name in names)]
    panels = [Panel(chart.svg(f"{_title(metric)} against cost. {summary}"))]
    return Figure("trade-off", "Quality versus cost", caption, panels, header=header, rows=rows)


def frontier(points: Sequence[tuple[float, float]], higher: bool = False) -> list[tuple[float, float]]:
    """The points that no other beats at the same cost or less, from the cheapest on, joined by steps.

    >>> frontier([(1.0, 0.3), (2.0, 0.4), (4.0, 0.2)])
    [(1.0, 0.3), (4.0, 0.3), (4.0, 0.2)]
    """
    sign, steps = -1 if higher else 1, list[tuple[float, float]]()
    for cost, value in sorted(points, key=lambda point: (point[0], sign * point[1])):
        if not steps:
            steps = [(cost, value)]
        elif sign * value < sign * steps[-1][1]:
            steps += [(cost, steps[-1][1]), (cost, value)]
    return steps


def risk_coverage_chart(groups: Sequence[Group], styles: Styles) -> Figure | None:
    """The error of what is answered when the least certain examples are left out."""
    found = {}
    for group, runs in columns_by_group(groups, "test/confidence", "test/label", "test/target"):
        risks = []
        for confidence, label, target in runs:
            coverage, risk = metrics.risk_coverage(1 - confidence, (label != target).astype(float))
            risks.append(np.interp(GRID[1:], coverage.numpy(), risk.numpy()))
        found[group.label] = GRID[1:], np.mean(risks, axis=0)
    if not found:
        return None

    top = max(float(y.max()) for _, y in found.values())
    titles = ("share answered", "error of the answers")
    panel = curve_panel(found, styles, titles, (Axis(0, 1, room=0.02), Axis(0, top or 1, room=0.02)))
    caption = (
        "Answer only the most certain examples: the error of the answers, against the share answered. Lower is better."
    )
    shares = (50, 80, 90, 95, 100)
    rows = [[label, *(f"{100 * np.interp(one / 100, *curve):.2f}" for one in shares)] for label, curve in found.items()]
    header, keys = ["Method", *(f"Error %, {share} % answered" for share in shares)], legend(found, styles)
    return Figure("risk-coverage", "Error versus coverage", caption, [panel], "wide", keys, header, rows)


def training_curves_chart(groups: Sequence[Group], styles: Styles) -> Figure | None:
    """What was measured after each epoch, mean over seeds."""
    validation = ("validation_accuracy", "validation_nll", "validation_loss", "validation_rmse")
    keys = [next((key for key in validation if any(_history(group, key) for group in groups)), ""), "loss"]
    panels: list[Panel] = []
    labels: dict[str, Curve] = {}
    for key in keys:
        found = {group.label: curve for group in groups if (curve := _history(group, key))}
        if not found:
            continue
        x, y = (finite_range(number for curve in found.values() for number in curve[side]) for side in (0, 1))
        axes = Axis(*x, whole=True), Axis(*y)
        panels.append(curve_panel(found, styles, ("epoch", key.replace("_", " ")), axes))
        labels |= found
    if not panels:
        return None
    caption = (
        "Mean over seeds after each epoch. Do not compare losses across methods: some sum the losses of their members."
    )
    return Figure("training", "Training curves", caption, panels, "wide", legend(labels, styles))


def _title(name: str) -> str:
    kind = quantity(name)
    return f"{kind.title}, {kind.unit}" if kind.unit else kind.title


def _history(group: Group, key: str) -> Curve | None:
    found: dict[float, list[float]] = {}
    for run in group.runs:
        for number, row in enumerate(run.record.get("history") or []):
            if isinstance(row.get(key), (int, float)) and math.isfinite(row[key]):
                found.setdefault(row.get("epoch", number) + 1, []).append(row[key])
    return mean_curve(found) if found else None
