"""The chart of calibration, the reliability diagram: groups of runs in, a figure out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...results.quantities import estimate, format_interval, format_value
from ...results.store import Group
from ...uncertainty import metrics
from ..figure import Figure, Panel, Styles, columns_by_group, small_chart
from ..svg import Axis


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
    title = "Calibration"
    return Figure("reliability", title, caption, panels, "small", header=header, rows=rows)
