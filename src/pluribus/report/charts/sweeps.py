"""Runs of one method that differ in a setting: quality and cost against that setting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ...results.quantities import estimate, format_interval, format_short, format_value, quantity
from ...results.store import Group
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
