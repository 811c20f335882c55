"""Runs of one method that differ in a setting: quality and cost against that setting."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ...results.quantities import difference, estimate, format_interval, format_short, format_value, quantity
from ...results.store import BASELINE, Group
from ...uncertainty.resampling import Interval
from ..figure import Figure, Panel, Styles, finite_range, legend, values
from ..svg import Axis, Chart
from .intervals import Point, draw_lines

Lines = Mapping[str, Sequence[Point]]


def sweeps_chart(groups: Sequence[Group], styles: Styles) -> Figure | None:
    """A panel for each swept method and quantity, a line for each combination of the other settings."""
    panels, rows, entries = list[Panel](), list[list[str]](), list[tuple[int, str]]()
    for method, members in _find_sweeps(groups).items():
        axis, series = _series(members)
        names = [name for name in ("accuracy", "rmse", "nll", "ece", "mult_adds") if len(values(members, name)) > 1]
        numbers = {name: i + 1 for i, name in enumerate(series)}
        if len(series) > 1:
            entries += legend(series, numbers)
        found = list(dict.fromkeys(x for line in series.values() for x, _ in line))
        numeric = all(map(_number, found))
        place = {_text(x): float(x) if numeric else float(i) for i, x in enumerate(found)}
        texts = {at: text for text, at in place.items()}
        for name in names:
            lines = {label: sorted((place[_text(x)], estimate(one, name)) for x, one in line)
                     for label, line in series.items()}  # fmt: skip
            title = quantity(name).title
            svg = _panel(lines, numbers, name, axis.replace("_", " "), texts, f"{method}: {title} against {axis}")
            panels.append(Panel(svg, f"{method} · {title}"))
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
    curves = {name: gains for name in ("nll", "ece", "accuracy") if (gains := compute_gains(groups, name))}
    if not curves:
        return None
    series = list(next(iter(curves.values())))
    numbers = {one: styles.get(one, i + 1) for i, one in enumerate(series)}
    panels, rows = list[Panel](), list[list[str]]()
    for name, found in curves.items():
        title, widths = quantity(name).title, sorted({width for line in found.values() for width, _ in line})
        texts = {float(i): f"{width:g}" for i, width in enumerate(widths)}
        lines = {one: [(float(widths.index(width)), gain) for width, gain in line] for one, line in found.items()}
        start = f"Gain in {title} over the single network"
        panels.append(Panel(_panel(lines, numbers, name, "width", texts, start, zero=True), title))
        for one, line in found.items():
            rows += [[one, f"{width:g}", title, format_interval(gain, name)] for width, gain in line]
    caption = (
        "Above zero: better than one network of the same width. An efficient ensemble divides the network among its "
        "members: it gains where the network has capacity to spare. The thin network is a single one of half the width."
    )
    header = ["Method", "Width", "Metric", "Gain"]
    return Figure("capacity", "Capacity to spare", caption, panels, "small", legend(series, numbers), header, rows)


def compute_gains(groups: Sequence[Group], name: str) -> dict[str, list[Point]]:
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
    gains: dict[str, list[Point]] = {}
    for method, by_width in found.items():
        for width in sorted(by_width.keys() & single.keys()):
            gap = difference(by_width[width], single[width], name)
            ends = sorted((sign * gap.low, sign * gap.high)) if gap.known else (math.nan, math.nan)
            gains.setdefault(method, []).append((width, Interval(sign * gap.value, *ends)))
    return gains


def _find_sweeps(groups: Sequence[Group]) -> dict[str, list[Group]]:
    found: dict[str, list[Group]] = {}
    for group in groups:
        found.setdefault(group.record["method"], []).append(group)
    return {method: members for method, members in found.items() if _find_varying(members)}


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


def _panel(
    lines: Lines, styles: Styles, name: str, axis: str, texts: Mapping[float, str], start: str, zero: bool = False
) -> str:
    """Lines of a quantity with their intervals; `texts` says how the places on the x-axis are called."""
    factor = quantity(name).factor
    scaled = {
        label: [(x, Interval(*(factor * end for end in found))) for x, found in line] for label, line in lines.items()
    }
    points = [point for line in scaled.values() for point in line]
    ends = [end for _, found in points for end in found if math.isfinite(end)] + [0.0] * zero
    across, up = finite_range(x for x, _ in points), finite_range(ends)
    chart = Chart(Axis(*across, room=0.1), Axis(*up), size=(240, 200), margin=(52, 8, 8, 40))
    labels = list(texts.items()) if len(texts) <= 8 else None
    large = max(map(abs, up)) >= 1e4
    chart.axes(axis, x_labels=labels, y_text=(lambda y: format_short(y).replace(".00", "")) if large else None)
    if zero:
        chart.line([(x, 0.0) for x in across], None, "zero")

    def say(label: str, x: float, found: Interval) -> str:
        return f"{label}, {axis} {texts[x]}: {format_value(found.value / factor, name)}"

    return chart.svg(f"{start}. {'; '.join(draw_lines(chart, scaled, styles, say))}")


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _text(value: Any) -> str:
    return f"{value:g}" if _number(value) else str(value)
