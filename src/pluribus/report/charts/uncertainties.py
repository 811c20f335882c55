"""The charts of predicted uncertainty: whether it is right, its two parts, and the diversity of members and methods."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from ..._common.optional import require
from ...results.intervals import t_interval
from ...results.quantities import estimate, format_interval, format_value
from ...results.store import Group
from ...uncertainty import metrics
from ...uncertainty.resampling import Interval
from ..figure import (
    Curve,
    Figure,
    Panel,
    Styles,
    column,
    columns_by_group,
    curve_panel,
    divide_by_error,
    finite_range,
    legend,
    small_chart,
)
from ..svg import HUES, Axis
from .intervals import IntervalRow, row_chart
from .landscape import diversity_chart, heat_map


def uncertainty_parts_chart(groups: Sequence[Group], styles: Styles) -> Figure | None:
    """The rank correlation of aleatoric and epistemic uncertainty over test examples, for each label."""
    found: dict[str, list[float]] = {}
    for group, runs in columns_by_group(groups, "test/aleatoric", "test/epistemic"):
        each = [_rank_correlation(np.ravel(run[0]), np.ravel(run[1])) for run in runs]
        if group.record.get("size") != 1 and np.isfinite(each).all():  # one network has no epistemic part
            found[group.label] = each
    if not found:
        return None
    intervals = {label: t_interval(each) for label, each in found.items()}
    shown = {label: Interval(one.value, max(one.low, -1.0), min(one.high, 1.0)) for label, one in intervals.items()}
    order = sorted(shown, key=lambda label: -shown[label].value)
    caption = (
        "Spearman's rank correlation of the two over the test examples: at 1 both rank the examples in the same order, "
        f"at 0 they are unrelated. With several seeds, the line is the 95 % interval of the mean. {_say(shown)}"
    )
    rows = [[label, *(f"{end:.3f}" if np.isfinite(end) else "–" for end in shown[label])] for label in order]
    header = ["Method", "Rank correlation", "Low", "High"]
    colours = {label: style if style < HUES else 0 for label, style in styles.items()}  # all rows are always shown
    lines = [
        IntervalRow(row[0], shown[row[0]], colours[row[0]], f"{row[0]}: {row[1]} [{row[2]}, {row[3]}]") for row in rows
    ]
    low = min(0.0, *(interval.value for interval in shown.values()))
    summary = "; ".join(f"{label} {shown[label].value:.2f}" for label in order)
    panels = [Panel(row_chart(lines, "rank correlation", summary, ends=(low, 1.0)))]
    title = "Aleatoric versus epistemic uncertainty"
    return Figure("uncertainties", title, caption, panels, header=header, rows=rows)


def _rank_correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Spearman's; NaN where one of them is constant."""
    if not np.ptp(first) or not np.ptp(second):
        return float("nan")
    return float(require("scipy.stats", "report", "report").spearmanr(first, second).statistic)


def _say(shown: dict[str, Interval]) -> str:
    """What was found, and what others found."""
    means = {label: interval.value for label, interval in shown.items()}
    least, most = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
    upper = f" to {means[most]:.2f} ({most})" if least != most else ""
    others = "Mucsányi et al. (2024) found no method that separates the two in practice."
    return f"Found here: {means[least]:.2f} ({least}){upper}. {others}"


def reliability_chart(groups: Sequence[Group], styles: Styles) -> Figure | None:
    """Accuracy against confidence in 15 bins, over all seeds together."""
    found = columns_by_group(groups, "test/confidence", "test/label", "test/target")
    if not found:
        return None
    panels, rows = [], []
    for group, runs in found:
        confidence = np.concatenate([run[0] for run in runs])
        correct = np.concatenate([run[1] == run[2] for run in runs])
        bins = metrics.reliability(confidence, correct)
        chart = small_chart(Axis(0, 1, room=0), Axis(0, 1, room=0))
        chart.axes("confidence")
        for i, count in enumerate(bins.examples.tolist()):
            if not count:
                continue
            edges = (float(bins.edges[i]), float(bins.edges[i + 1]))
            sure, right = float(bins.confidence[i]), float(bins.accuracy[i])
            hint = f"{int(count)} examples: confidence {sure:.2f}, accuracy {right:.2f}"
            chart.box(edges, (0, right), styles[group.label], "bar", hint)
            chart.box(edges, (min(sure, right), max(sure, right)), None, "gap", hint)
        chart.line([(0, 0), (1, 1)], None, "line diagonal")
        ece, gap = estimate(group, "ece"), float(confidence.mean() - correct.mean())
        lean = "overconfident" if gap > 0.005 else "underconfident" if gap < -0.005 else "about right on average"
        summary = f"{group.label}: ECE {format_value(ece.value, 'ece')}, {lean}"
        panels.append(Panel(chart.svg(summary), group.label, styles[group.label]))
        means = [f"{mean:.3f}" for mean in (confidence.mean(), correct.mean())]
        rows.append([group.label, format_interval(ece, "ece"), *means, lean])
    caption = (
        "Accuracy at each confidence; on the diagonal the two are equal. The hatched part is the gap. Bars below the "
        "diagonal are overconfident."
    )
    header = ["Method", "ECE", "Mean confidence", "Accuracy", "On average"]
    return Figure("reliability", "Calibration", caption, panels, "small", header=header, rows=rows)


def member_diversity_chart(groups: Sequence[Group], styles: Styles) -> Figure | None:
    """Disagreement with the first member, divided by the error, against accuracy: Fort et al. 2019, Figure 6."""
    points: dict[str, np.ndarray] = {}
    for group, runs in columns_by_group(groups, "test/member_label", "test/target"):
        found = []
        for members, target in runs:
            accuracy = (members == target).mean(-1)
            heights = divide_by_error((members != members[0]).mean(-1), accuracy)
            found.append(np.stack([accuracy, heights], 1)[1:][accuracy[1:] < 1])
        if len(both := np.concatenate(found)):
            points[group.label] = both
    if not points:
        return None
    caption = (
        "One point for each member except the first: its own accuracy, and how often it differs from the first "
        "member, divided by its error. Higher is more diverse at the same accuracy; 0 is a copy."
    )
    rows = [[label, *(f"{mean:.4f}" for mean in own.mean(0))] for label, own in points.items()]
    header = ["Method", "Mean accuracy of members", "Mean disagreement / error"]
    panels, entries = [Panel(diversity_chart(points, styles))], legend(points, styles)
    return Figure("diversity", "Diversity of members", caption, panels, "wide", entries, header, rows)


def methods_agreement_chart(groups: Sequence[Group], styles: Styles) -> Figure | None:
    """How often methods give the same label, in their first seed."""
    labels = [group.label for group in groups if column(group.runs[0], "test/label") is not None]
    given = [group.runs[0].columns["test/label"] for group in groups if group.label in labels]
    if len(given) < 2 or len({len(row) for row in given}) > 1:
        return None
    matrix = metrics.agreement(np.stack(given)).numpy()
    picture = heat_map(matrix, [(label, [""]) for label in labels], "agreement")
    caption = "Share of test examples on which two methods give the same label (first seed)."
    rows = [[label, *(f"{value:.2%}" for value in row)] for label, row in zip(labels, matrix, strict=True)]
    header = ["Method", *labels]
    return Figure("methods", "Agreement of methods", caption, [Panel(picture)], header=header, rows=rows)


# ---------------------------------------------------------------- regression


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
    chart = small_chart(Axis(*both, ticks=4), Axis(*both, ticks=4))
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
