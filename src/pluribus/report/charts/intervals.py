"""Rows of intervals, one for each label, and curves with an interval at each point."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ...uncertainty.resampling import Interval
from ..figure import Figure, Panel, Styles, finite_range, legend
from ..svg import CHARACTER, Axis, Chart, tick_text

ROW = 26  # height of a line of intervals
TALL_ROW = 44  # the same, with its label above it
WIDTH = 640
Point = tuple[float, Interval]


def intervals_figure(
    name: str,
    title: str,
    caption: str,
    groups: Mapping[str, Mapping[str, Interval]],
    *,
    band: tuple[float, float] | None = None,
    axis: str = "",
    zero: bool = True,
) -> Figure:
    """One line for each label, with a mark and its interval for each group; what lies within the band is shaded.

    Differences are drawn with `zero`, the line of no difference.
    """
    labels = list(dict.fromkeys(label for group in groups.values() for label in group))
    every = [found for group in groups.values() for found in group.values()]
    ends = [end for found in every for end in (found if found.known else found[:1])] + list(band or [0.0] * zero)
    longest = 20 + int(CHARACTER * 12 * max(map(len, labels), default=1))
    above = longest > WIDTH / 3  # labels that would leave too little room stand above their lines
    row, left = (TALL_ROW, 14) if above else (ROW, longest)
    height = row * len(labels) + 52
    chart = Chart(Axis(*finite_range(ends)), Axis(0, len(labels), room=0), (WIDTH, height), (left, 14, 8, 44))
    chart.y.ticks = []
    if band:
        chart.box(band, (0, len(labels)), None, "bubble")
    chart.axes(axis)
    if zero and chart.x.low <= 0 <= chart.x.high:
        chart.line([(0, 0), (0, len(labels))], None, "line diagonal")
    for i, label in enumerate(labels):
        middle = len(labels) - i - (0.72 if above else 0.5)
        if above:
            chart.text(left + 6, chart.at(0, len(labels) - i - 0.3)[1] + 4, label, "start")
        else:
            chart.text(left - 8, chart.at(0, middle)[1] + 4, label, "end")
        for k, (group, found) in enumerate(groups.items()):
            if label in found:
                y = middle + 0.22 * ((len(groups) - 1) / 2 - k)
                draw_interval(
                    chart, found[label], y, k + 1, f"{label}, {group}: {tick_text([0.001])(found[label].value)}"
                )
    header = ["", *(f"{group}: {part}" for group in groups for part in ("value", "low", "high"))]
    rows = [
        [label, *(f"{end:.4g}" for group in groups.values() for end in group.get(label, Interval(math.nan)))]
        for label in labels
    ]
    keys = [(k + 1, group) for k, group in enumerate(groups)] if len(groups) > 1 else []
    svg = chart.svg(f"{title}: {'; '.join(' '.join(row) for row in rows)}")
    return Figure(name, title, caption, [Panel(svg)], "wide", keys, header, rows)


def curves_figure(
    name: str,
    title: str,
    caption: str,
    curves: Mapping[str, Sequence[Point]],
    *,
    axes: tuple[str, str] = ("", ""),
) -> Figure:
    """Lines with an interval at each point, one for each name."""
    points = [point for curve in curves.values() for point in curve]
    ends = [end for _, found in points for end in (found if found.known else found[:1])]
    across = Axis(*finite_range(x for x, _ in points))
    chart = Chart(across, Axis(*finite_range(ends)), (520, 340)).axes(*axes)
    styles = {label: style for style, label in enumerate(curves, 1)}
    draw_lines(chart, curves, styles, lambda label, x, found: f"{label}: {x:g}, {found.value:.4g}")
    header = ["", axes[0] or "x", "value", "low", "high"]
    rows = [
        [label, f"{x:g}", *(f"{end:.4g}" for end in found)] for label, curve in curves.items() for x, found in curve
    ]
    keys = legend(curves, styles)
    return Figure(name, title, caption, [Panel(chart.svg(f"{title}: {', '.join(curves)}"))], "wide", keys, header, rows)


def draw_lines(
    chart: Chart,
    lines: Mapping[str, Sequence[Point]],
    styles: Styles,
    say: Callable[[str, float, Interval], str],
) -> list[str]:
    """A line for each label, with an interval at each point, and what each point says."""
    told = []
    for label, points in lines.items():
        chart.line([(x, found.value) for x, found in points], styles[label])
        for x, found in points:
            if found.known:
                chart.line([(x, found.low), (x, found.high)], styles[label], "whisker")
            told.append(say(label, x, found))
            chart.mark(x, found.value, styles[label], told[-1], 4)
    return told


class IntervalRow(NamedTuple):
    """A line of `row_chart`: its name, the interval, a style, what is said of it, and a cell on the right."""

    label: str
    found: Interval
    style: int
    hint: str
    cell: str = ""


def row_chart(
    rows: Sequence[IntervalRow],
    axis: str,
    summary: str,
    *,
    ends: tuple[float, float],
    cells: str = "",
    marked: str = "",
) -> str:
    """A row for each interval, with a line at zero."""
    height, margin = 58 + ROW * len(rows), (142, 60 if cells else 14, 20 if cells else 6, 40)
    chart = Chart(Axis(*ends, room=0.02), Axis(0, len(rows), room=0), (480, height), margin)
    chart.y.ticks = []
    for place, row in enumerate(rows):
        if row.label == marked:
            top = chart.at(0, len(rows) - place)[1]
            chart.parts.append(f'<rect class="marked" x="2" y="{top:.1f}" width="476" height="{ROW}" rx="5"/>')
    chart.axes(axis)
    chart.text(476, 13, cells, "end")
    chart.line([(0, 0), (0, len(rows))], None, "line zero")
    for place, row in enumerate(rows):
        y = len(rows) - place - 0.5
        draw_interval(chart, row.found, y, row.style, row.hint, 4.5)
        base, label = chart.at(0, y)[1] + 4.5, row.label if len(row.label) <= 19 else f"{row.label[:18]}…"
        chart.text(margin[0] - 8, base, label, "end", "name strong" if row.label == marked else "name")
        chart.text(476, base, row.cell, "end", "name")
    return chart.svg(summary)


def draw_interval(chart: Chart, found: Interval, y: float, style: int, hint: str, size: float = 4) -> None:
    """A mark, and its interval as far as the axis goes."""
    if found.known:
        chart.line([(min(max(end, chart.x.low), chart.x.high), y) for end in found[1:]], style, "whisker")
    chart.mark(found.value, y, style, hint, size)
