"""The charts of outside data, histograms and ROC curves: groups of runs in, a figure out; None without such data."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...results.quantities import format_value, ood_score
from ...results.store import Group
from ...uncertainty import metrics
from ..curves import Curve, compute_histograms, compute_roc
from ..figure import GRID, Figure, Panel, Styles, column, curve_panels, legend, small_chart
from ..svg import Axis


def outside_histograms_chart(groups: Sequence[Group], styles: Styles) -> Figure | None:
    """Scores of test data and of outside data."""
    panels, rows, scores = [], [], set()
    for group in groups:
        score = ood_score(group.runs[0])
        scores.add(score)
        for name in group.record.get("outside") or {}:
            parts = _inside_outside(group, name, score)
            if not parts:
                continue
            inner, outer = (np.concatenate(part) for part in zip(*parts, strict=True))
            edges, shares = compute_histograms([inner, outer], bins=20)
            chart = small_chart(
                Axis(edges[0], edges[-1], room=0, ticks=4), Axis(0, max(map(np.max, shares)), room=0.02)
            )
            chart.axes(score.replace("_", " "))
            for kind, share in zip(("inside", "outside"), shares, strict=True):
                for i, part in enumerate(share):
                    if part:
                        chart.box(
                            (edges[i], edges[i + 1]), (0, float(part)), None, f"bar {kind}", f"{kind}: {part:.1%}"
                        )
            medians = [float(np.median(part)) for part in (inner, outer)]
            summary = f"{group.label}: median score {medians[0]:.3g} on test data, {medians[1]:.3g} on {name}"
            panels.append(Panel(chart.svg(summary), _beside(group.label, name, groups), styles[group.label]))
            rows.append([group.label, name, *(f"{median:.4g}" for median in medians)])
    caption = (
        "How uncertain the method is about test data (filled) and about OOD data (outlined, hatched), as shares of "
        "each. The less they overlap, the better OOD data are detected. Each panel has its own scale."
    )
    header = ["Method", "OOD data", "Median, test", "Median, OOD"]
    figure = Figure(
        "histograms",
        "Does it notice out-of-distribution (OOD) data?",
        caption,
        panels,
        "small",
        header=header,
        rows=rows,
    )
    return figure if panels else None


def roc_chart(groups: Sequence[Group], styles: Styles) -> Figure | None:
    """Outside data found against test data refused."""
    panels, layout, rows = [], "wide", []
    labels: dict[str, Curve] = {}
    for name in sorted({name for group in groups for name in group.record.get("outside") or {}}):
        found, areas = {}, {}
        for group in groups:
            parts = _inside_outside(group, name, ood_score(group.runs[0]))
            if parts:
                found[group.label] = GRID, np.mean([np.interp(GRID, *compute_roc(*part)) for part in parts], axis=0)
                areas[group.label] = float(np.mean([metrics.auroc(*part) for part in parts]))
        if not found:
            continue

        def summary(label: str, name: str = name, areas: dict[str, float] = areas) -> str:
            return f"{label} on {name}: AUROC {areas[label]:.3f}"

        titles = ("share of test data refused", f"share of {name} refused")
        axes = Axis(0, 1, room=0.02), Axis(0, 1, room=0.02)
        more, layout = curve_panels(found, styles, titles, axes, summary, diagonal=True)
        panels += [Panel(panel.svg, _beside(panel.heading, name, groups), panel.style) for panel in more]
        labels |= found
        rows += _outside_rows(groups, name)
    if not panels:
        return None
    caption = (
        "Refuse every example that is more uncertain than a limit: the share of OOD data refused, against the share of "
        "test data refused. The closer to the top left, the better; the diagonal is chance."
    )
    entries = legend(labels, styles) if layout == "wide" else []
    header = ["Method", "OOD data", "Score", "AUROC", "AUPR", "FPR95"]
    return Figure("roc", "What refusing OOD data costs", caption, panels, layout, entries, header, rows)


def _inside_outside(group: Group, name: str, score: str) -> list[tuple[np.ndarray, np.ndarray]]:
    pairs = [(column(run, f"inside/{score}"), column(run, f"outside/{name}/{score}")) for run in group.runs]
    return [(inner, outer) for inner, outer in pairs if inner is not None and outer is not None]


def _beside(label: str, name: str, groups: Sequence[Group]) -> str:
    """The heading of a panel: the outside set is named where there are several."""
    several = len({key for group in groups for key in group.record.get("outside") or {}}) > 1
    return " · ".join(part for part in (label, name if several or not label else "") if part)


def _outside_rows(groups: Sequence[Group], name: str) -> list[list[str]]:
    rows = []
    for group in groups:
        for score in (group.record.get("outside") or {}).get(name, {}):
            cells = []
            for kind in ("auroc", "aupr", "fpr95"):
                found = [
                    run.record["outside"][name][score].get(kind, math.nan)
                    for run in group.runs
                    if name in (run.record.get("outside") or {})
                ]
                cells.append(format_value(float(np.mean(found)), kind))
            rows.append([group.label, name, score.replace("_", " "), *cells])
    return rows
