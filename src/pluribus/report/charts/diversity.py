"""The charts of diversity: how often members, and methods, give different labels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...results.store import Group
from ...uncertainty import metrics
from ..curves import divide_by_error
from ..figure import SMALL, Figure, Panel, Styles, column, columns_by_group, finite_range, legend
from ..svg import Axis, Chart


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
        "diversity", "Are the members different?", caption, [Panel(chart.svg(summary))], "wide", entries, header, rows
    )


def agreement_chart(groups: Sequence[Group], styles: Styles) -> Figure | None:
    """How often members give the same label, as matrices; and how often methods do."""
    found = columns_by_group(groups, "test/member_label")
    matrices = {
        group.label: np.mean([metrics.agreement(run[0]).numpy() for run in runs], axis=0)
        for group, runs in found
        if len({len(run[0]) for run in runs}) == 1 and len(runs[0][0]) > 1
    }
    low = min((float(matrix.min()) for matrix in matrices.values()), default=0.0)
    panels, rows = [], []
    for label, matrix in matrices.items():
        mean = float(matrix[~np.eye(len(matrix), dtype=bool)].mean())
        names = [str(i) for i in range(len(matrix))]
        picture = _matrix(matrix, names, styles[label], f"{label}: members agree on {mean:.1%} on average", low)
        panels.append(Panel(picture, label, styles[label]))
        rows.append([label, f"{mean:.2%}", f"{matrix.min():.2%}"])
    if not panels:
        return None
    caption = (
        "Share of test examples on which two members give the same label, mean over seeds. Paler is more diverse; all "
        "panels share one scale."
    )
    header = ["Method", "Mean agreement of members", "Least"]
    return Figure("agreement", "Agreement of members", caption, panels, "small", header=header, rows=rows)


def methods_agreement_chart(groups: Sequence[Group], styles: Styles) -> Figure | None:
    """How often the methods themselves give the same label, seed by seed."""
    labels = [group.label for group in groups if column(group.runs[0], "test/label") is not None]
    given = [group.runs[0].columns["test/label"] for group in groups if group.label in labels]
    if len(given) < 2 or len({len(row) for row in given}) > 1:
        return None
    matrix = metrics.agreement(np.stack(given)).numpy()
    low = float(matrix.min())
    keys = [str(number + 1) for number in range(len(labels))]
    picture = _matrix(matrix, keys, 1, f"Agreement of {len(labels)} methods, from {low:.1%} up", low, (420, 400))
    caption = "Share of test examples on which two methods give the same label (first seed). " + ", ".join(
        f"{key} {label}" for key, label in zip(keys, labels, strict=True)
    )
    rows = [[label, *(f"{value:.2%}" for value in row)] for label, row in zip(labels, matrix, strict=True)]
    return Figure(
        "methods", "Agreement of methods", f"{caption}.", [Panel(picture)], header=["Method", *labels], rows=rows
    )


def _matrix(
    matrix: np.ndarray, names: Sequence[str], style: int, summary: str, low: float, size: tuple[int, int] = SMALL
) -> str:
    n = len(matrix)
    margin = (26, 8, 8, 24)
    chart = Chart(Axis(0, n, room=0), Axis(0, n, room=0), size=size, margin=margin, font=12)
    for i in range(n):
        for j in range(n):
            value = float(matrix[i, j])
            shade = (value - low) / (1 - low) if low < 1 else 1.0
            hint = f"{names[i]} and {names[j]}: {value:.1%}"
            chart.box((j, j + 1), (n - i - 1, n - i), style, "cell", hint, 0.06 + 0.38 * shade)
            if n <= 6 or size != SMALL and n <= 16:
                x, y = chart.at(j + 0.5, n - i - 0.5)
                chart.text(x, y + 4, f"{100 * value:.0f}", "middle", "cell-text")
        x, y = chart.at(i + 0.5, 0)
        chart.text(x, y + 15, names[i], "middle")
        chart.text(margin[0] - 6, chart.at(0, n - i - 0.5)[1] + 4, names[i], "end")
    return chart.svg(summary)
