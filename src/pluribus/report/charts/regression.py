"""The charts of regression: predictions against targets, and whether the deviations that were predicted are right."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from ...results.quantities import estimate, format_interval, format_value
from ...results.store import Group
from ..curves import Curve
from ..figure import SMALL, SMALL_MARGIN, Figure, Panel, Styles, columns_by_group, curve_panel, finite_range, legend
from ..svg import Axis, Chart

SHOWN = 150  # examples in a panel
LEVELS = np.linspace(0.05, 0.95, 19)


def predictions_against_targets_chart(groups: Sequence[Group], styles: Styles) -> Figure | None:
    """Predictions with their intervals against targets, of the first seed."""
    found = columns_by_group(groups, "test/target", "test/mean")
    if not found:
        return None
    panels = [Panel(_scatter(group, styles[group.label]), group.label, styles[group.label]) for group, _ in found]
    rows = [
        [group.label, *(format_value(estimate(group, name).value, name) for name in ("rmse", "coverage", "width"))]
        for group, _ in found
    ]
    caption = (
        f"Prediction (height) against the true value, for at most {SHOWN} test examples; the line through a point is "
        "its 90 % interval. Points on the diagonal are right."
    )
    header = ["Method", "RMSE", "Coverage, %", "Width of the 90 % interval"]
    return Figure("predicted", "Predictions versus true values", caption, panels, "small", header=header, rows=rows)


def coverage_curve_chart(groups: Sequence[Group], styles: Styles) -> Figure | None:
    """The share of targets inside intervals against the share that they promise."""
    found = {
        group.label: (LEVELS, np.mean([_coverage(*run) for run in runs], axis=0)) for group, runs in _spread(groups)
    }
    if not found:
        return None
    axes = Axis(0, 1, room=0.02), Axis(0, 1, room=0.02)
    panel = curve_panel(found, styles, ("nominal coverage", "share inside"), axes, diagonal=True)
    caption = (
        "Share of targets inside the central intervals, against the nominal share (normal distributions with the "
        "predicted mean and total variance). Below the diagonal the method is overconfident."
    )
    levels = (50, 80, 90, 95)
    rows = [[label, *(f"{100 * np.interp(one / 100, *curve):.1f}" for one in levels)] for label, curve in found.items()]
    header, keys = ["Method", *(f"Inside {level} %" for level in levels)], legend(found, styles)
    return Figure("coverage", "Coverage of the intervals", caption, [panel], "wide", keys, header, rows)


def error_by_deviation_chart(groups: Sequence[Group], styles: Styles) -> Figure | None:
    """The error of examples against the deviation that was predicted for them, in ten parts."""
    found: dict[str, Curve] = {}
    for group, runs in _spread(groups):
        target, mean, total = (np.concatenate(part) for part in zip(*runs, strict=True))
        order = np.argsort(total, kind="stable")
        parts = [part for part in np.array_split(order, 10) if len(part)]
        deviation = np.array([math.sqrt(total[part].mean()) for part in parts])
        found[group.label] = deviation, np.array([math.sqrt(((target - mean)[part] ** 2).mean()) for part in parts])
    if not found:
        return None
    both = finite_range([0.0, *(v for curve in found.values() for side in curve for v in side)])
    titles = ("predicted deviation", "root mean squared error")
    axes = Axis(*both, room=0.03), Axis(*both, room=0.03)
    panel = curve_panel(found, styles, titles, axes, diagonal=True)
    caption = (
        "Test examples in ten groups by predicted standard deviation, and the error in each group. If the curve rises "
        "along the diagonal, the method knows where it is wrong; if it is flat, it does not."
    )
    rows = [[label, f"{y[0]:.4g}", f"{y[-1]:.4g}"] for label, (_, y) in found.items()]
    header, keys = ["Method", "Error of the surest tenth", "Error of the least sure tenth"], legend(found, styles)
    return Figure("deviation", "Error versus predicted deviation", caption, [panel], "wide", keys, header, rows)


def _scatter(group: Group, style: int) -> str:
    columns = next(run.columns for run in group.runs if "test/mean" in run.columns)
    target, mean = (np.ravel(columns[f"test/{name}"]) for name in ("target", "mean"))
    chosen = np.random.default_rng(0).permutation(len(target))[:SHOWN]
    both = finite_range([*target[chosen], *mean[chosen]])
    chart = Chart(Axis(*both, ticks=4), Axis(*both, ticks=4), size=SMALL, margin=SMALL_MARGIN, font=12)
    chart.axes("true")
    chart.line([(both[0], both[0]), (both[1], both[1])], None, "line diagonal")
    ends = [columns.get(f"test/{end}") for end in ("lower", "upper")]
    for i in chosen:
        if ends[0] is not None and ends[1] is not None:
            chart.line([(target[i], ends[0].ravel()[i]), (target[i], ends[1].ravel()[i])], style, "whisker thin")
        chart.mark(target[i], mean[i], style, f"true {target[i]:.3g}, predicted {mean[i]:.3g}", 2.2)
    return chart.svg(f"{group.label}: RMSE {format_interval(estimate(group, 'rmse'), 'rmse')}")


def _spread(groups: Sequence[Group]) -> list[tuple[Group, list[list[np.ndarray]]]]:
    """Groups with targets, means and variances that are not zero; several outputs count as one column."""
    found = columns_by_group(groups, "test/target", "test/mean", "test/total")
    kept = [(group, [[np.ravel(part) for part in run] for run in runs if (run[2] > 0).all()]) for group, runs in found]
    return [(group, runs) for group, runs in kept if runs]


def _coverage(target: np.ndarray, mean: np.ndarray, total: np.ndarray) -> np.ndarray:
    distance = np.abs(target - mean) / np.sqrt(total)
    limits = np.array([NormalDist().inv_cdf((1 + level) / 2) for level in LEVELS])
    return (distance[None] <= limits[:, None]).mean(1)
