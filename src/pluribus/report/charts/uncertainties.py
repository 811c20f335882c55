"""The charts of predicted uncertainty: calibration, its two parts, and the diversity of members and methods."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..._common.optional import require
from ...results.intervals import t_interval
from ...results.quantities import estimate, format_interval, format_value
from ...results.store import Group
from ...uncertainty import metrics
from ...uncertainty.resampling import Interval
from ..curves import divide_by_error
from ..figure import Figure, Panel, Styles, column, columns_by_group, legend, small_chart
from ..svg import HUES, Axis
from .intervals import IntervalRow, row_chart
from .landscape import diversity_chart, heat_map

STRONG, WEAK = 0.8, 0.5  # rank correlations at least so high, and less than that, are put into words


def uncertainty_parts_chart(groups: Sequence[Group], styles: Styles) -> Figure | None:
    """The rank correlation of aleatoric and epistemic uncertainty over test examples, for each label."""
    found: dict[str, list[float]] = {}
    for group, runs in columns_by_group(groups, "test/aleatoric", "test/epistemic"):
        each = [_rank_correlation(np.ravel(run[0]), np.ravel(run[1])) for run in runs]
        if group.record.get("size") != 1 and np.isfinite(each).all():  # one network has no epistemic part
            found[group.label] = each
    if not found:
        return None
    shown = {label: _within_one(t_interval(each)) for label, each in found.items()}
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


def _within_one(found: Interval) -> Interval:
    return Interval(found.value, max(found.low, -1.0), min(found.high, 1.0))


def _say(shown: dict[str, Interval]) -> str:
    """What was found, and what others found."""
    means = {label: interval.value for label, interval in shown.items()}
    least, most = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
    span = (
        f"from {means[least]:.2f} ({least}) to {means[most]:.2f} ({most})" if least != most else f"{means[least]:.2f}"
    )
    words = "for some methods they are nearly one signal, for others less so"
    if means[least] >= STRONG:
        words = "both rank the examples alike, so they are nearly one signal"
    elif means[most] < STRONG:
        words = "they partly overlap" if means[most] >= WEAK else "they rank the examples quite differently"
    others = "Mucsányi et al. (2024) found no method that separates the two in practice."
    return f"Found here: {span}; {words}. {others}"


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
