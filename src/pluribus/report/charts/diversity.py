"""The charts of diversity: how often members, and methods, give different labels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...results.store import Group
from ...uncertainty import metrics
from ..curves import divide_by_error
from ..figure import Figure, Panel, Styles, column, columns_by_group, finite_range, legend
from ..svg import Axis, Chart
from .landscape import heat_map


def member_diversity_chart(groups: Sequence[Group], styles: Styles) -> Figure | None:
    """Disagreement with the first member, divided by the error, against accuracy: Fort et al. 2019, Figure 6."""
    points = []
    for group, runs in columns_by_group(groups, "test/member_label", "test/target"):
        for members, target in runs:
            accuracy = (members == target).mean(-1)
            heights = divide_by_error((members != members[0]).mean(-1), accuracy)
            points += [
                (group.label, number, float(accuracy[number]), float(heights[number]))
                for number in range(1, len(members))
                if accuracy[number] < 1
            ]
    if not points:
        return None
    x, y = finite_range(p[2] for p in points), finite_range([0.0, *(p[3] for p in points)])
    chart = Chart(Axis(*x), Axis(*y))
    chart.axes("accuracy of a member", "disagreement / error")
    for label, number, accuracy, differs in points:
        hint = f"{label}, member {number}: accuracy {accuracy:.3f}, disagreement by error {differs:.2f}"
        chart.mark(accuracy, differs, styles[label], hint, 4, filled=False)
    labels = list(dict.fromkeys(p[0] for p in points))
    means = {label: np.mean([p[2:] for p in points if p[0] == label], axis=0) for label in labels}
    summary = "; ".join(
        f"{label}: accuracy {mean[0]:.3f}, disagreement by error {mean[1]:.2f}" for label, mean in means.items()
    )
    caption = (
        "One point for each member except the first: its own accuracy, and how often it differs from the first "
        "member, divided by its error. Higher is more diverse at the same accuracy; 0 is a copy."
    )
    rows = [[label, f"{mean[0]:.4f}", f"{mean[1]:.3f}"] for label, mean in means.items()]
    header = ["Method", "Mean accuracy of members", "Mean disagreement / error"]
    entries = legend(labels, styles)
    return Figure(
        "diversity", "Diversity of members", caption, [Panel(chart.svg(summary))], "wide", entries, header, rows
    )


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
