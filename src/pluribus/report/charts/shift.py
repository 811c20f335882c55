"""The chart of shifted data, quality against severity: groups of runs in, a figure out; None without shifts."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...results.quantities import quantity
from ...results.store import Group
from ..curves import Curve
from ..figure import Figure, Panel, Styles, curve_panel, finite_range, legend, values
from ..svg import Axis


def shift_chart(groups: Sequence[Group], styles: Styles) -> Figure | None:
    """Accuracy and calibration, or the error of regression, against the severity of corruptions."""
    panels: list[Panel] = []
    rows: list[list[str]] = []
    labels: dict[str, Curve] = {}
    for name in ("accuracy", "ece", "rmse"):
        clean, title = values(groups, name), quantity(name).title
        found = {group.label: curve for group in groups if (curve := _by_severity(group, name, clean))}
        if not found:
            continue

        def summary(label: str, title: str = title, found: dict[str, Curve] = found) -> str:
            return f"{label}: {title} {found[label][1][0]:.3f} at first, {found[label][1][-1]:.3f} at the end"

        across, up = (finite_range(value for curve in found.values() for value in curve[side]) for side in (0, 1))
        axes = Axis(*across, whole=True, room=0.03), Axis(*up)
        panels.append(curve_panel(found, styles, ("severity", title), axes, summary))
        rows += [
            [label, title, "; ".join(f"{severity:g}: {value:.4f}" for severity, value in zip(*curve, strict=True))]
            for label, curve in found.items()
        ]
        labels |= found
    if not panels:
        return None
    corruptions = len({key for group in groups for key in group.record.get("shift") or {}})
    caption = f"Mean over {corruptions} corruptions at each severity; severity 0 is the test data as they are."
    header = ["Method", "Metric", "Mean by severity"]
    return Figure("shift", "Under distribution shift", caption, panels, "wide", legend(labels, styles), header, rows)


def _by_severity(group: Group, name: str, clean: dict[str, float]) -> Curve | None:
    """The mean over corruptions and seeds at each severity, with that of the test data before them."""
    found: dict[int, list[float]] = {0: [clean[group.label]]} if group.label in clean else {}
    for run in group.runs:
        for row in (row for rows in (run.record.get("shift") or {}).values() for row in rows):
            if row["severity"] > 0 and isinstance(row.get(name), (int, float)) and math.isfinite(row[name]):
                found.setdefault(int(row["severity"]), []).append(row[name])
    if not found.keys() - {0}:
        return None
    severities = sorted(found)
    return np.array(severities, dtype=float), np.array([np.mean(found[severity]) for severity in severities])
