"""The charts of quality, rankings, costs, risk and training: groups of runs in, a figure out; None without figures."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...results.quantities import estimate, format_interval, format_value, over_seeds, quantity
from ...results.store import Group
from ...uncertainty import metrics
from ..curves import Curve
from ..figure import GRID, OVERLAID, Figure, Panel, Styles, columns_by_group, curve_panels, finite_range, legend, values
from ..svg import Axis, Chart, place_labels, short_ticks


def ranking_chart(groups: Sequence[Group], styles: Styles) -> Figure | None:
    """Every label with its interval, the best on top."""
    names = [name for name in ("nll", "accuracy", "rmse") if len(values(groups, name)) > 1][:2]
    if not names:
        return None
    panels = [Panel(_forest(groups, styles, name), _title(name)) for name in names]
    one = "over seeds" if over_seeds(groups) else "over the test examples, or over seeds where there are several"
    ways = " and ".join(f"{quantity(name).title} ({quantity(name).better} is better)" for name in names)
    caption = (
        f"{ways}: the mean and its 95 % interval {one}, the best on top; on the right, the cost of a prediction "
        "relative to one plain network. The dotted line is the single network. "
        "Differences are paired, so methods may differ clearly although their intervals overlap: see the verdict above."
    )
    rows = [[group.label, *(format_interval(estimate(group, name), name) for name in names)] for group in groups]
    header = ["Method", *(_title(name) for name in names)]
    return Figure(
        "ranking", "Which is best, how sure is that, and what does it cost?", caption, panels, header=header, rows=rows
    )


def trade_off_chart(groups: Sequence[Group], styles: Styles) -> Figure | None:
    """Quality against cost, with the parameters as areas: Figure 1 of Packed-Ensembles (Laurent et al. 2023)."""
    first = "accuracy" if values(groups, "accuracy") else "rmse"
    pairs = [pair for pair in ((first, "latency"), ("nll", "mult_adds")) if _both(groups, *pair)]
    if not pairs:
        return None
    panels = [Panel(_bubbles(groups, styles, *pair)) for pair in pairs]
    names = ["parameters", "mult_adds", "latency", first, "nll"]
    rows = [[group.label, *(format_value(estimate(group, name).value, name) for name in names)] for group in groups]
    rows_timed = groups[0].record["cost"].get("latency_rows")
    timed = f" Latency is the time of one batch of {rows_timed} rows." if rows_timed else ""
    corner = "top" if first == "accuracy" else "bottom"
    caption = (
        f"The area of a circle is the number of parameters. Left: good and fast is at the {corner} left. Right: good "
        f"and cheap is at the bottom left. Bars are intervals.{timed}"
    )
    header = ["Method", *(_title(name) for name in names)]
    entries = legend([group.label for group in groups], styles)
    return Figure("trade-off", "What quality costs", caption, panels, "wide", entries, header, rows)


def risk_coverage_chart(groups: Sequence[Group], styles: Styles) -> Figure | None:
    """The error of what is kept when the least certain are refused."""
    found = {}
    for group, runs in columns_by_group(groups, "test/confidence", "test/label", "test/target"):
        risks = []
        for confidence, label, target in runs:
            coverage, risk = metrics.risk_coverage(1 - confidence, (label != target).astype(float))
            risks.append(np.interp(GRID[1:], coverage.numpy(), risk.numpy()))
        found[group.label] = GRID[1:], np.mean(risks, axis=0)
    if not found:
        return None

    def at(label: str, coverage: float) -> str:
        return f"{100 * np.interp(coverage, *found[label]):.2f}"

    def summary(label: str) -> str:
        return f"{label}: error {at(label, 0.5)} % of the surest half, {at(label, 1)} % of all"

    top = max(float(y.max()) for _, y in found.values())
    titles = ("share answered", "error of the answers")
    panels, layout = curve_panels(found, styles, titles, (Axis(0, 1, room=0.02), Axis(0, top or 1, room=0.02)), summary)
    caption = (
        "Answer only the most certain examples: the error of the answers, against the share answered. Lower is better."
    )
    rows = [[label, *(at(label, share) for share in (0.5, 0.8, 0.9, 0.95, 1))] for label in found]
    header = ["Method", *(f"Error %, {share} % answered" for share in (50, 80, 90, 95, 100))]
    entries = legend(found, styles) if layout == "wide" else []
    return Figure("risk-coverage", "What abstaining buys", caption, panels, layout, entries, header, rows)


def training_curves_chart(groups: Sequence[Group], styles: Styles) -> Figure | None:
    """What was measured after each epoch, mean over seeds."""
    judged = ("validation_accuracy", "validation_nll", "validation_loss", "validation_rmse")
    keys = [next((key for key in judged if any(_history(group, key) for group in groups)), ""), "loss"]
    panels, layout = [], "wide"
    labels: dict[str, Curve] = {}
    for key in keys if len(groups) <= OVERLAID else [keys[0] or "loss"]:
        found = {group.label: curve for group in groups if (curve := _history(group, key))}
        if not found:
            continue

        def summary(label: str, key: str = key, found: dict = found) -> str:
            return f"{label}: {key.replace('_', ' ')} {found[label][1][-1]:.4g} at the end"

        x, y = (finite_range(number for curve in found.values() for number in curve[side]) for side in (0, 1))
        titles, axes = ("epoch", key.replace("_", " ")), (Axis(*x, whole=True), Axis(*y))
        more, layout = curve_panels(found, styles, titles, axes, summary)
        panels += [Panel(p.svg, f"{p.heading} · {key.replace('_', ' ')}" if p.heading else "", p.style) for p in more]
        labels |= found
    if not panels:
        return None
    caption = (
        "After each epoch, mean over seeds. Do not compare losses across methods: a method that trains several members "
        "may sum their losses."
    )
    entries = legend(labels, styles) if layout == "wide" else []
    return Figure("training", "Training", caption, panels, layout, entries)


# ---------------------------------------------------------------- helpers


def _title(name: str) -> str:
    kind = quantity(name)
    return f"{kind.title}, {kind.unit}" if kind.unit else kind.title


def _both(groups: Sequence[Group], first: str, second: str) -> bool:
    return bool(values(groups, first).keys() & values(groups, second).keys())


def _bubbles(groups: Sequence[Group], styles: Styles, name: str, price: str) -> str:
    good, paid = values(groups, name), values(groups, price)
    shown = [group for group in groups if group.label in good and group.label in paid]
    factors = quantity(price).factor, quantity(name).factor
    x = finite_range(paid[group.label] * factors[0] for group in shown)
    ends = [end for group in shown for end in estimate(group, name) if math.isfinite(end)]
    log = x[0] > 0 and x[1] / x[0] > 5
    chart = Chart(Axis(*x, log=log, room=0.14), Axis(*finite_range(end * factors[1] for end in ends), room=0.1))
    count = x[1] >= 1e4
    chart.axes(_title(price), _title(name), x_text=_large if count else short_ticks if log else None)
    size = values(groups, "parameters")
    most = max(size.values(), default=1.0)
    places = []
    for group in shown:
        number = styles[group.label]
        px, interval = paid[group.label] * factors[0], estimate(group, name)
        if interval.known:
            chart.line([(px, interval.low * factors[1]), (px, interval.high * factors[1])], number, "whisker thin")
        radius = max(3.0, 20 * math.sqrt(size.get(group.label, most) / most))
        hint = f"{group.label}: {format_value(good[group.label], name)}, {format_value(paid[group.label], price)}"
        chart.circle(px, good[group.label] * factors[1], number, radius, hint)
        chart.mark(px, good[group.label] * factors[1], number, hint, 3.5)
        places.append((*chart.at(px, good[group.label] * factors[1]), min(radius, 9), group.label))
    place_labels(chart, places)
    unit = f" {quantity(price).unit}" if quantity(price).unit else ""
    parts = [
        f"{g.label}: {format_interval(estimate(g, name), name)} at {format_value(paid[g.label], price)}{unit}"
        for g in shown
    ]
    return chart.svg(f"{_title(name)} against {_title(price)}. {'; '.join(parts)}")


def _forest(groups: Sequence[Group], styles: Styles, name: str) -> str:
    kind, found = quantity(name), values(groups, name)
    shown = [group for group in groups if group.label in found]
    shown.sort(key=lambda group: found[group.label], reverse=kind.better == "higher")
    ends = [end * kind.factor for group in shown for end in estimate(group, name) if math.isfinite(end)]
    paid = values(groups, "relative_mult_adds")
    size, margin = (420, 60 + 24 * len(shown)), (138, 64 if paid else 14, 22, 32)
    chart = Chart(Axis(*finite_range(ends)), Axis(0, len(shown), room=0), size, margin)
    chart.y.ticks = []
    chart.axes()
    if paid:
        chart.text(size[0] - 4, 13, "cost", "end")
    for group in shown:
        if group.is_baseline:
            place = found[group.label] * kind.factor
            chart.line([(place, 0), (place, len(shown))], None, "line diagonal")
    for row, group in enumerate(shown):
        y, value = len(shown) - row - 0.5, estimate(group, name)
        if value.known:
            chart.line([(value.low * kind.factor, y), (value.high * kind.factor, y)], styles[group.label], "whisker")
        price = f"{format_value(paid[group.label], 'relative_mult_adds')} ×" if group.label in paid else ""
        hint = f"{group.label}: {format_interval(value, name)}" + (f", cost {price}" if price else "")
        chart.mark(value.value * kind.factor, y, styles[group.label], hint)
        chart.text(size[0] - 4, chart.at(0, y)[1] + 4.5, price, "end", "name")
        label = group.label if len(group.label) <= 19 else f"{group.label[:18]}…"
        chart.text(margin[0] - 8, chart.at(0, y)[1] + 4.5, label, "end", "name")
    parts = "; ".join(f"{group.label} {format_interval(estimate(group, name), name)}" for group in shown)
    return chart.svg(f"{kind.title}, the best first: {parts}")


def _large(value: float) -> str:
    for step, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= step:
            return f"{value / step:g} {letter}"
    return f"{value:g}"


def _history(group: Group, key: str) -> tuple[np.ndarray, np.ndarray] | None:
    found: dict[float, list[float]] = {}
    for run in group.runs:
        for number, row in enumerate(run.record.get("history") or []):
            if isinstance(row.get(key), (int, float)) and math.isfinite(row[key]):
                found.setdefault(row.get("epoch", number), []).append(row[key])
    if not found:
        return None
    epochs = sorted(found)
    return np.array(epochs, dtype=float) + 1, np.array([np.mean(found[epoch]) for epoch in epochs])
