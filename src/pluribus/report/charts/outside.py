"""The charts of other data: OOD histograms and ROC curves, and quality against the severity of a shift."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...results.quantities import OOD, format_value, ood_score, quantity
from ...results.store import Group
from ...uncertainty import metrics
from ..figure import (
    GRID,
    Curve,
    Figure,
    Panel,
    Styles,
    column,
    compute_histograms,
    compute_roc,
    curve_panel,
    finite_range,
    legend,
    mean_curve,
    small_chart,
    values,
)
from ..svg import Axis


def outside_histograms_chart(groups: Sequence[Group], styles: Styles) -> Figure | None:
    """Scores of test data and of outside data; all panels have one scale."""
    found: list[tuple[Group, str, list[np.ndarray]]] = []
    for group in groups:
        for name in group.record.get("outside") or {}:
            if pairs := _inside_outside(group, name):
                found.append((group, name, [np.concatenate(part) for part in zip(*pairs, strict=True)]))
    if not found:
        return None
    edges, shares = compute_histograms([part for *_, parts in found for part in parts], bins=20)
    highest = max(map(np.max, shares))
    panels, rows = [], []
    for place, (group, name, parts) in enumerate(found):
        score = ood_score(group.runs[0])
        chart = small_chart(Axis(edges[0], edges[-1], room=0, ticks=4), Axis(0, highest, room=0.02))
        chart.axes(SCORES.get(score, score.replace("_", " ")))
        for kind, share in zip(("inside", "outside"), shares[2 * place : 2 * place + 2], strict=True):
            for i, part in enumerate(share):
                if part:
                    words = f"{'test data' if kind == 'inside' else name}: {part:.1%}"
                    chart.box((edges[i], edges[i + 1]), (0, float(part)), None, f"bar {kind}", words)
        medians = [float(np.median(part)) for part in parts]
        summary = f"{group.label}: median score {medians[0]:.3g} on test data, {medians[1]:.3g} on {name}"
        panels.append(Panel(chart.svg(summary), _heading(group.label, name, groups), styles[group.label]))
        rows.append([group.label, name, *(f"{median:.4g}" for median in medians)])
    caption = (
        "Uncertainty on test data (filled) and on OOD data (hatched), as shares of each. The less they overlap, the "
        "better OOD data are detected. All panels have the same axes."
    )
    header = ["Method", "OOD data", "Median, test", "Median, OOD"]
    return Figure("histograms", "Uncertainty on OOD data", caption, panels, "small", header=header, rows=rows)


SCORES = {"msp": "1 − confidence", "total": "total variance"}


def roc_chart(groups: Sequence[Group], styles: Styles) -> Figure | None:
    """Outside data found against test data rejected."""
    panels, rows, below, labels = list[Panel](), list[list[str]](), list[str](), dict[str, Curve]()
    for name in sorted({name for group in groups for name in group.record.get("outside") or {}}):
        found = dict[str, Curve]()
        for group in groups:
            if parts := _inside_outside(group, name):
                found[group.label] = GRID, np.mean([np.interp(GRID, *compute_roc(*part)) for part in parts], axis=0)
                if np.mean([metrics.auroc(*part) for part in parts]) < CHANCE:
                    below.append(f"{group.label} on {name}")
        if found:
            titles = ("share of test data rejected", f"share of {name} rejected")
            axes = Axis(0, 1, room=0.02), Axis(0, 1, room=0.02)
            panels.append(curve_panel(found, styles, titles, axes, None, True, _heading("", name, groups)))
            labels |= found
            rows += _outside_rows(groups, name)
    if not panels:
        return None
    caption = (
        "Reject every example whose uncertainty exceeds a threshold: the share of OOD data rejected, against the share "
        "of test data rejected. Closer to the top left is better; the diagonal is chance."
    )
    if below:
        caption += f" Worse than chance: {', '.join(below)}."
    header = ["Method", "OOD data", "Score", "AUROC", "AUPR", "FPR95"]
    return Figure("roc", "OOD detection (ROC)", caption, panels, "wide", legend(labels, styles), header, rows)


CHANCE = 0.5  # the AUROC of guessing


def _inside_outside(group: Group, name: str) -> list[tuple[np.ndarray, np.ndarray]]:
    score = ood_score(group.runs[0])
    pairs = [(column(run, f"inside/{score}"), column(run, f"outside/{name}/{score}")) for run in group.runs]
    return [(inner, outer) for inner, outer in pairs if inner is not None and outer is not None]


def _heading(label: str, name: str, groups: Sequence[Group]) -> str:
    """The heading of a panel: the outside set is named where there are several."""
    several = len({key for group in groups for key in group.record.get("outside") or {}}) > 1
    return " · ".join(part for part in (label, name if several or not label else "") if part)


def _outside_rows(groups: Sequence[Group], name: str) -> list[list[str]]:
    rows = []
    for group in groups:
        for score in (group.record.get("outside") or {}).get(name, {}):
            runs = [outside[name][score] for run in group.runs if name in (outside := run.record.get("outside") or {})]
            means = {kind: float(np.mean([run.get(kind, math.nan) for run in runs])) for kind in OOD}
            rows.append([group.label, name, score.replace("_", " "), *(format_value(means[one], one) for one in OOD)])
    return rows


def shift_chart(groups: Sequence[Group], styles: Styles) -> Figure | None:
    """Accuracy and calibration, or the error of regression, against the severity of corruptions."""
    panels, rows, labels = list[Panel](), list[list[str]](), dict[str, Curve]()
    for name in ("accuracy", "ece", "rmse"):
        clean, title = values(groups, name), quantity(name).title
        found = {group.label: curve for group in groups if (curve := _by_severity(group, name, clean))}
        if not found:
            continue
        across, up = (finite_range(value for curve in found.values() for value in curve[side]) for side in (0, 1))
        axes = Axis(*across, whole=True, room=0.03), Axis(*up)
        panels.append(curve_panel(found, styles, ("severity", title), axes))
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
    found: dict[float, list[float]] = {0: [clean[group.label]]} if group.label in clean else {}
    for run in group.runs:
        for row in (row for rows in (run.record.get("shift") or {}).values() for row in rows):
            if row["severity"] > 0 and isinstance(row.get(name), (int, float)) and math.isfinite(row[name]):
                found.setdefault(int(row["severity"]), []).append(row[name])
    return mean_curve(found) if found.keys() - {0} else None
