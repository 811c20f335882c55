"""Pictures of what was measured with the first seed: planes and curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...report.charts.landscape import surface_chart
from ...report.figure import Figure, Panel, legend
from ...results.intervals import t_interval
from ..drawing import curves_figure
from ..experiments.stored_parts import Stored

Found = Mapping[str, Stored]


def _first(found: Found, column: str) -> Stored | None:
    """The first part that has the array."""
    return next((part for part in found.values() if column in part.columns), None)


def entropy_maps(found: Found) -> list[Figure]:
    """Entropy around the training rows, from one network over masks to independent ones: Masksembles, Figure 4."""
    part = _first(found, "across")
    if part is None:
        return []
    given = part.columns
    rows = list(zip(given["rows"].tolist()[:40], given["labels"].tolist()[:40], strict=True))
    points = {f"class {label}, row {i}": (x, y) for i, ((x, y), label) in enumerate(rows)}
    styles = {f"class {label}, row {i}": 2 + label for i, (_, label) in enumerate(rows)}
    panels = [
        Panel(surface_chart(given["across"], given["up"], values, "entropy", points=points, styles=styles),
              name.removeprefix("entropy "))
        for name, values in given.items() if name.startswith("entropy ")
    ]  # fmt: skip
    caption = "Entropy in nats, dark where it is high, of one network of each kind; points are training rows."
    keys = [(2, "class 0"), (3, "class 1")]
    return [Figure("maps", "Entropy around the training rows", caption, panels, legend=keys)]


def basins_picture(found: Found) -> list[Figure]:
    """Accuracy and agreement on the plane of three subnetworks, for MIMO and the multihead: MIMO, Figure 3."""
    part = _first(found, "mimo u")
    if part is None:
        return []
    names = [f"subnetwork {i + 1}" for i in range(3)]
    styles = {name: i for i, name in enumerate(names, 1)}
    figures = []
    for method in ("mimo", "multihead"):
        given = {key: part.columns[f"{method} {key}"] for key in ("u", "v", "accuracy", "agreement", "points")}
        measured = {"accuracy": given["accuracy"]} | {
            f"agreement with {name}": given["agreement"][i] for i, name in enumerate(names)
        }
        points = {name: tuple(point) for name, point in zip(names, given["points"].tolist(), strict=True)}
        panels = [
            Panel(
                surface_chart(given["u"], given["v"], values, title, points=points, styles=styles), title.capitalize()
            )
            for title, values in measured.items()
        ]
        caption = f"The plane through the three subnetworks of {method}; first seed."
        figures.append(Figure(f"basins-{method}", f"Subnetworks of {method}", caption, panels,
                              legend=legend(names, styles)))  # fmt: skip
    return figures


def sparsity_picture(found: Found) -> list[Figure]:
    """Accuracy against sparsity, for each number of members: MIMO, Figure 9."""
    curves: dict[str, list[Any]] = {}
    for part in found.values():
        for size, rows in part.figures.get("curves", {}).items():
            curves.setdefault(size, []).append(rows)
    if not curves:
        return []
    drawn = {f"M = {size}": _mean_path(paths) for size, paths in curves.items()}
    caption = "Means over seeds at each strength of L1; sparsity is the share of weights below 1e-4."
    return [curves_figure("sparsity", "Accuracy against sparsity", caption, drawn, axes=("sparsity", "accuracy"))]


def _mean_path(paths: Sequence[Any]) -> list[Any]:
    array = np.array(paths)  # seeds, strengths, (sparsity, accuracy, log-likelihood)
    return [(float(array[:, i, 0].mean()), t_interval(array[:, i, 1].tolist())) for i in range(array.shape[1])]


def rows_table(found: Found) -> list[Figure]:
    """The figures of each setting, as means over seeds, as a table."""
    parts = [part.figures["rows"] for part in found.values() if "rows" in part.figures]
    if not parts:
        return []
    names = list(next(iter(parts[0].values())))
    rows = [[kind, *(f"{np.mean([part[kind][name] for part in parts]):.4f}" for name in names)] for kind in parts[0]]
    return [Figure("settings", "Means over seeds", "", [], "wide", [], ["", *names], rows)]
