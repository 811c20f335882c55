"""Runs of one method that differ in a setting: quality and cost against that setting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ...results.quantities import difference, estimate, format_interval, format_short, format_value, quantity
from ...results.store import BASELINE, Group
from ...uncertainty.resampling import Interval
from ..figure import Figure, Panel, Styles, finite_range, legend, values
from ..svg import Axis, Chart


def sweeps_chart(groups: Sequence[Group], styles: Styles) -> Figure | None:
    """A panel for each swept method and quantity, a line for each combination of the other settings."""
    panels: list[Panel] = []
    rows: list[list[str]] = []
    entries: list[tuple[int, str]] = []
    for method, members in _find_sweeps(groups).items():
        axis, series = _series(members)
        names = [name for name in ("accuracy", "rmse", "nll", "ece", "mult_adds") if len(values(members, name)) > 1]
        numbers = {name: i + 1 for i, name in enumerate(series)}
        if len(series) > 1:
            entries += legend(series, numbers)
        panels += [
            Panel(_panel(method, axis, series, numbers, name), f"{method} · {quantity(name).title}") for name in names
        ]
        for group in members:
            shown = [f"{name} {format_interval(estimate(group, name), name)}" for name in names]
            rows.append([group.label, _text(_settings(group).get(axis)), "; ".join(shown)])
    if not panels:
        return None
    caption = "Runs of one method that differ in a setting; bars are intervals."
    header = ["Method", "Setting", "Measured"]
    return Figure("sweeps", "Effect of the settings", caption, panels, "small", entries, header, rows)


def capacity_chart(groups: Sequence[Group], styles: Styles) -> Figure | None:
    """The gain of every method over the single network of the same width, against the width."""
    names = [name for name in ("nll", "ece", "accuracy") if compute_gains(groups, name)]
    curves = {name: compute_gains(groups, name) for name in names}
    if not curves:
        return None
    series = list(next(iter(curves.values())))
    numbers = {one: styles.get(one, i + 1) for i, one in enumerate(series)}
    panels = [Panel(_gains_panel(found, numbers, name), quantity(name).title) for name, found in curves.items()]
    rows = [[one, f"{width:g}", quantity(name).title, format_interval(gain, name)]
            for name, found in curves.items() for one, line in found.items() for width, gain in line]  # fmt: skip
    caption = (
        "Above zero: better than one network of the same width. An efficient ensemble divides the network among its "
        "members: it gains where the network has capacity to spare. The thin network is a single one of half the width."
    )
    header = ["Method", "Width", "Metric", "Gain"]
    return Figure("capacity", "Capacity to spare", caption, panels, "small", legend(series, numbers), header, rows)


def compute_gains(groups: Sequence[Group], name: str) -> dict[str, list[tuple[float, Interval]]]:
    """How much better than the single network of the same width: by method, at each width; none without a sweep."""
    found: dict[str, dict[float, Group]] = {}
    for group in groups:
        if isinstance(width := group.record.get("width"), (int, float)) and values([group], name):
            method = " ".join(part for part in group.label.split() if not part.startswith("width="))
            found.setdefault(method, {})[float(width)] = group
    single = found.pop(BASELINE, {})
    if len(single) < 2:
        return {}
    found["thin single"] = {width: single[width / 2] for width in single if width / 2 in single}
    sign = -1 if quantity(name).better == "lower" else 1
    gains: dict[str, list[tuple[float, Interval]]] = {}
    for method, by_width in found.items():
        for width in sorted(by_width.keys() & single.keys()):
            gap = difference(by_width[width], single[width], name)
            ends = sorted((sign * gap.low, sign * gap.high)) if gap.known else (math.nan, math.nan)
            gains.setdefault(method, []).append((width, Interval(sign * gap.value, *ends)))
    return gains


def _gains_panel(found: dict[str, list[tuple[float, Interval]]], numbers: Styles, name: str) -> str:
    widths, factor = sorted({width for line in found.values() for width, _ in line}), quantity(name).factor
    ends = [end * factor for line in found.values() for _, gain in line for end in gain if math.isfinite(end)]
    x, y = Axis(0, max(len(widths) - 1, 1), room=0.1), Axis(*finite_range([*ends, 0.0]))
    chart = Chart(x, y, size=(240, 200), margin=(52, 8, 8, 40), font=12)
    chart.axes("width", x_labels=[(float(i), f"{width:g}") for i, width in enumerate(widths)])
    chart.line([(0, 0), (max(len(widths) - 1, 1), 0)], None, "zero")
    words = []
    for method, line in found.items():
        number = numbers[method]
        chart.line([(widths.index(width), gain.value * factor) for width, gain in line], number)
        for width, gain in line:
            if gain.known:
                chart.line([(widths.index(width), end * factor) for end in (gain.low, gain.high)], number, "whisker")
            told = f"{method}, width {width:g}: {format_value(gain.value, name)}"
            chart.mark(widths.index(width), gain.value * factor, number, told, 4)
            words.append(told)
    return chart.svg(f"Gain in {quantity(name).title} over the single network. {'; '.join(words)}")


def _find_sweeps(groups: Sequence[Group]) -> dict[str, list[Group]]:
    found: dict[str, list[Group]] = {}
    for group in groups:
        found.setdefault(group.record["method"], []).append(group)
    return {method: members for method, members in found.items() if len(members) > 1 and _find_varying(members)}


def _settings(group: Group) -> dict[str, Any]:
    record = group.record
    network = {name: record[name] for name in ("width", "dropout", "size") if name in record}
    return {**(record.get("training") or {}), **network, **record["settings"]}


def _find_varying(members: Sequence[Group]) -> dict[str, list[Any]]:
    """The settings that differ, with their values in order."""
    given = [_settings(group) for group in members]
    names = dict.fromkeys(name for settings in given for name in settings)
    found = {name: list(dict.fromkeys(_text(settings.get(name)) for settings in given)) for name in names}
    return {name: texts for name, texts in found.items() if len(texts) > 1}


def _series(members: Sequence[Group]) -> tuple[str, dict[str, list[tuple[Any, Group]]]]:
    """The setting of the x-axis (numbers first, then the most values), and points by the other settings."""
    varying = _find_varying(members)

    def rank(name: str) -> tuple[bool, int]:
        return all(_number(_settings(group).get(name)) for group in members), len(varying[name])

    axis = max(varying, key=rank)
    found: dict[str, list[tuple[Any, Group]]] = {}
    for group in members:
        settings = _settings(group)
        others = ", ".join(f"{name}={_text(settings.get(name))}" for name in varying if name != axis)
        found.setdefault(others or group.record["method"], []).append((settings.get(axis), group))
    return axis, found


def _panel(method: str, axis: str, series: dict[str, list[tuple[Any, Group]]], styles: Styles, name: str) -> str:
    points = [point for line in series.values() for point in line]
    numeric = all(_number(x) for x, _ in points)
    texts = list(dict.fromkeys(_text(x) for x, _ in points))
    ends = [end for _, group in points for end in estimate(group, name) if math.isfinite(end)]
    factor = quantity(name).factor
    place = {_text(x): float(x) if numeric else float(texts.index(_text(x))) for x, _ in points}
    chart = Chart(
        Axis(*finite_range(place.values()), room=0.1),
        Axis(*finite_range(end * factor for end in ends)),
        size=(240, 200),
        margin=(52, 8, 8, 40),
        font=12,
    )
    large = max((abs(end) for end in ends), default=0) >= 1e4
    labels = [(place[text], text) for text in texts] if len(texts) <= 8 else None
    chart.axes(axis.replace("_", " "), x_labels=labels, y_text=_large if large else None)
    words = []
    for label, line in series.items():
        number = styles[label]
        found = sorted(((place[_text(x)], estimate(group, name)) for x, group in line), key=lambda pair: pair[0])
        chart.line([(x, value.value * factor) for x, value in found], number)
        for x, value in found:
            if value.known:
                chart.line([(x, value.low * factor), (x, value.high * factor)], number, "whisker")
            chart.mark(x, value.value * factor, number, f"{label}, {axis}={x:g}: {format_value(value.value, name)}", 4)
            words.append(f"{x:g}: {format_value(value.value, name)}")
    return chart.svg(f"{method}: {quantity(name).title} against {axis}. {'; '.join(words)}")


def _large(value: float) -> str:
    return format_short(value).replace(".00", "")


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _text(value: Any) -> str:
    return f"{value:g}" if _number(value) else str(value)
