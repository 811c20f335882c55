"""The charts of shifted images, quality against severity: groups of runs in, a figure out; None without shifts."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...results.quantities import quantity
from ...results.store import Group
from ..figure import Figure, Panel, Styles, finite_range, small_chart, values
from ..svg import Axis


def shift_accuracy_chart(groups: Sequence[Group], styles: Styles) -> Figure | None:
    """Accuracy against the severity of corruptions."""
    return _shift(groups, styles, "accuracy", "Accuracy under shift")


def shift_ece_chart(groups: Sequence[Group], styles: Styles) -> Figure | None:
    """ECE against the severity of corruptions."""
    return _shift(groups, styles, "ece", "Calibration under shift")


def shift_rmse_chart(groups: Sequence[Group], styles: Styles) -> Figure | None:
    """The error of regression against the severity of shifts."""
    return _shift(groups, styles, "rmse", "Error under shift")


def _shift(groups: Sequence[Group], styles: Styles, name: str, title: str) -> Figure | None:
    found = {group.label: boxes for group in groups if (boxes := _severities(group, name))}
    if not found:
        return None
    numbers = [v for boxes in found.values() for box in boxes.values() for v in box]
    clean = values(groups, name)
    y = Axis(*finite_range([*numbers, *clean.values()]))
    last = max(severity for boxes in found.values() for severity in boxes)
    panels, rows = [], []
    for label, boxes in found.items():
        chart = small_chart(Axis(-0.5, last + 0.5, room=0), y)
        chart.axes("severity", x_labels=[(severity, str(severity)) for severity in range(last + 1)])
        chart.line([(s, float(np.median(box))) for s, box in next(iter(found.values())).items()], None, "line faint")
        for severity, box in boxes.items():
            low, first, middle, third, high = np.quantile(box, [0, 0.25, 0.5, 0.75, 1])
            hint = f"severity {severity}: median {middle:.3f}, from {low:.3f} to {high:.3f}"
            chart.line([(severity, low), (severity, high)], styles[label], "whisker")
            chart.box((severity - 0.3, severity + 0.3), (first, third), styles[label], "bar box", hint)
            chart.line([(severity - 0.3, middle), (severity + 0.3, middle)], styles[label], "whisker median")
        if label in clean:
            chart.mark(0, clean[label], styles[label], f"test data: {clean[label]:.3f}", 4)
        medians = [float(np.median(box)) for box in boxes.values()]
        panels.append(
            Panel(
                chart.svg(f"{label}: median {name} {medians[0]:.3f} at severity 1, {medians[-1]:.3f} at {last}"),
                label,
                styles[label],
            )
        )
        rows.append([label, *(f"{median:.4f}" for median in (clean.get(label, math.nan), *medians))])
    corruptions = len({key for group in groups for key in group.record.get("shift") or {}})
    caption = (
        f"{quantity(name).title} over {corruptions} corruptions: the box spans the quartiles and marks the median, the "
        "line spans the range; severity 0 is the uncorrupted test data. The grey line is "
        f"{next(iter(found))}."
    )
    header = ["Method", "Test data", *(f"Median at {severity}" for severity in next(iter(found.values())))]
    return Figure(f"shift-{name}", title, caption, panels, "small", header=header, rows=rows)


def _severities(group: Group, name: str) -> dict[int, np.ndarray]:
    """For each severity the mean over seeds of every corruption."""
    found: dict[int, dict[str, list[float]]] = {}
    for run in group.runs:
        for corruption, rows in (run.record.get("shift") or {}).items():
            for row in rows:
                if isinstance(row.get(name), (int, float)) and math.isfinite(row[name]):
                    found.setdefault(int(row["severity"]), {}).setdefault(corruption, []).append(row[name])
    return {s: np.array([np.mean(v) for v in found[s].values()]) for s in sorted(found) if s > 0}
