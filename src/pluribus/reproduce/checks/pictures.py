"""Pictures of what was measured with the first seed: planes, trajectories, diversity against accuracy, curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...landscape.diversity_accuracy_plane import family, limits
from ...report.charts.landscape import diversity_chart, heat_map, scatter_chart, strip_chart, surface_chart
from ...report.figure import Figure, Panel, legend
from ...results.intervals import t_interval
from ...uncertainty.resampling import Interval
from ..drawing import curves_figure
from ..experiments.fort_landscape import SUBSPACES
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


def epochs_picture(found: Found) -> list[Figure]:
    """How alike the checkpoints of one run are, in weights and in labels: Figure 2."""
    caption = "The checkpoints of one run, after each epoch; first seed."
    return _similarities(found, "epochs", "Along one trajectory", caption)


def runs_picture(found: Found) -> list[Figure]:
    """How alike the solutions of different initialisations are, in weights and in labels: Figure 3."""
    caption = "The solutions of runs with initialisations of their own; first seed."
    return _similarities(found, "runs", "Different initialisations", caption)


def _similarities(found: Found, of: str, title: str, caption: str) -> list[Figure]:
    part = _first(found, f"{of} cosine")
    if part is None:
        return []
    matrices = {name: part.columns[f"{of} {name}"] for name in ("cosine", "disagreement")}
    count = len(matrices["cosine"])
    names = [("", [f"epoch {i + 1}" for i in range(count)])] if of == "epochs" else [
        (f"run {i + 1}", [""]) for i in range(count)
    ]  # fmt: skip
    titles = {"cosine": "Cosine of the weights", "disagreement": "Share of test rows with different labels"}
    panels = [
        Panel(heat_map(values, names, name, ends=(0.0, 1.0) if name == "cosine" else None), titles[name])
        for name, values in matrices.items()
    ]
    return [Figure(f"{of}-alike", title, caption, panels)]


def embedding_picture(found: Found) -> list[Figure]:
    """Trajectories and the samples around their ends in one plane: Figure 4."""
    part = _first(found, "samples")
    if part is None:
        return []
    runs, samples = part.columns["runs"], part.columns["samples"]
    groups = samples.reshape(len(runs), -1, 2)  # all samples of a run
    paths = {f"run {i + 1}": path for i, path in enumerate(runs)}
    paths |= {f"samples of run {i + 1}": own for i, own in enumerate(groups)}
    styles = {name: 1 + i % len(runs) for i, name in enumerate(paths)}
    hints = {name: [f"epoch {i + 1}" for i in range(len(path))] for name, path in paths.items()}
    for i in range(len(runs)):
        hints[f"samples of run {i + 1}"] = [name for name in SUBSPACES for _ in range(samples.shape[1])]
    caption = (
        "t-SNE of predictions on test rows, first seed: each run's epochs, joined, and the samples of its four "
        "subspaces, in the same colour."
    )
    panel = Panel(scatter_chart(paths, styles, hints))
    names = [f"run {i + 1}" for i in range(len(runs))]
    return [Figure("embedding", "Runs and their subspaces", caption, [panel], legend=legend(names, styles))]


def radial_picture(found: Found) -> list[Figure]:
    """Loss, accuracy and agreement on the plane of the origin and two optima: Figures 5 and S1."""
    part = _first(found, "plane u")
    if part is None:
        return []
    given = {name.removeprefix("plane "): array for name, array in part.columns.items() if name.startswith("plane ")}
    names, styles = ("run 1", "run 2"), {"run 1": 2, "run 2": 3}
    measured = {"accuracy": given["accuracy"], "loss": given["loss"]}
    measured |= {f"agreement with {name}": given["agreement"][i] for i, name in enumerate(names)}
    paths = dict(zip(names, given["paths"], strict=True))
    points = {name: tuple(point) for name, point in zip(names, given["points"].tolist(), strict=True)}
    panels = [
        Panel(
            surface_chart(given["u"], given["v"], values, title, paths=paths, points=points, styles=styles,
                          titles=("along the first optimum", "towards the second"), decades=title == "loss"),
            title.capitalize(),
        )
        for title, values in measured.items()
    ]  # fmt: skip
    caption = "The plane through the origin and two optima, with both trajectories projected onto it; first seed."
    return [Figure("radial", "The plane of two optima", caption, panels, legend=legend(names, styles))]


def diversity_picture(found: Found) -> list[Figure]:
    """Accuracy against diversity, with the limits and, where one was fitted, the family: Figures 6, 7 and S6."""
    figures = []
    for name, part in found.items():
        if not name.endswith("seed-0") or "reference" not in part.columns:
            continue
        reference, classes = float(part.columns["reference"]), part.figures["classes"]
        kinds = [kind for kind in (*SUBSPACES, "independent") if f"diversity {kind}" in part.columns]
        points = {kind: _normalise(part.columns[f"diversity {kind}"]) for kind in kinds}
        a = np.linspace(1 / classes + 1e-3, reference - 1e-3, 60)
        lines = dict(zip(("least", "most"), limits(a, reference, classes), strict=True))
        if "exponent" in part.figures["values"]:
            lines["family"] = family(a, reference, classes, part.figures["values"]["exponent"])
        shown = {key: _finite(np.stack([a, own], 1)) for key, own in lines.items()}
        styles = {kind: i for i, kind in enumerate(kinds, 1)}
        caption = (
            "Disagreement with the first run, divided by the error, against accuracy; first seed"
            f"{', the easier problem' if name.startswith('easier') else ''}. Lines: the least diversity "
            "(randomly flipped labels), the most (independent labels), and the family that fits the samples."
        )
        panel = Panel(diversity_chart(points, styles, shown))
        figures.append(
            Figure(f"diversity-{name}", "Diversity and accuracy", caption, [panel], legend=legend(kinds, styles))
        )
    return figures


def _normalise(points: np.ndarray) -> np.ndarray:
    return np.stack([points[:, 0], points[:, 1] / np.maximum(1 - points[:, 0], 1e-9)], 1)


def _finite(line: np.ndarray) -> np.ndarray:
    return line[np.isfinite(line).all(1)]


def sizes_picture(found: Found) -> list[Figure]:
    """NLL against the number of runs, of plain ensembles and of ensembles of subspaces: Figure 8."""
    caption = "On test rows as they are; first seed. One run: its solution, or samples of a subspace around it."
    return _sizes(found, "nll", "NLL", "Ensembles, subspaces, and both", caption)


def shifted_picture(found: Found) -> list[Figure]:
    """Accuracy under corruptions against the number of runs: Figure 9."""
    caption = "On corrupted test rows; first seed. One run: its solution, or samples of a subspace around it."
    return _sizes(found, "accuracy", "accuracy", "Under corruptions", caption)


def _sizes(found: Found, name: str, axis: str, title: str, caption: str) -> list[Figure]:
    part = _first(found, f"sizes {name}")
    if part is None:
        return []
    kinds = ("solutions", *(f"{name.replace('_', '-')} samples" for name in SUBSPACES))
    values = part.columns[f"sizes {name}"]
    sizes = np.arange(1, values.shape[1] + 1)
    curves = {kind: _curve(sizes, own) for kind, own in zip(kinds, values, strict=True)}
    return [curves_figure(f"sizes-{name}", title, caption, curves, axes=("runs", axis), whole=True)]


def paths_picture(found: Found) -> list[Figure]:
    """The loss along the straight line and along the tunnel: Figure S2."""
    part = _first(found, "tunnel t")
    if part is None:
        return []
    curves = {
        name: _curve(part.columns[f"{way} t"], part.columns[f"{way} loss"])
        for way, name in (("line", "straight line"), ("tunnel", "tunnel"))
    }
    caption = "Loss on test rows along the straight line between two solutions and along the tunnel; first seed."
    return [curves_figure("paths", "Between two solutions", caption, curves, axes=("along the path", "loss"))]


def functions_picture(found: Found) -> list[Figure]:
    """How many labels are those of either end, along the tunnel: Figure S3."""
    part = _first(found, "tunnel t")
    if part is None:
        return []
    names = ("with its beginning", "with its end")
    agreement = dict(zip(names, part.columns["tunnel agreement"], strict=True))
    curves = {name: _curve(part.columns["tunnel t"], values) for name, values in agreement.items()}
    caption = "Share of test rows with the label of the tunnel's beginning and of its end; first seed."
    axes = ("along the path", "agreement")
    return [curves_figure("functions", "Functions along the tunnel", caption, curves, axes=axes)]


def _curve(x: np.ndarray, y: np.ndarray) -> list[tuple[float, Interval]]:
    return [(float(at), Interval(float(value))) for at, value in zip(x, y, strict=True)]


def sources_picture(found: Found) -> list[Figure]:
    """Disagreement against the rate, by what differs between runs: Figure S4."""
    rates: list[float] = next((part.figures["rates"] for part in found.values() if "rates" in part.figures), [])
    curves = {
        kind: [(rate, t_interval([part.figures["apart"][kind][i] for part in found.values()]))
               for i, rate in enumerate(rates)]
        for kind in ("both", "initialisation", "batches") if rates
    }  # fmt: skip
    if not curves:
        return []
    caption = "Share of test rows on which two runs differ, by what differs between them; intervals over seeds."
    return [curves_figure("sources", "What runs differ in", caption, curves, axes=("learning rate", "disagreement"),
                          log=True)]  # fmt: skip


def chains_picture(found: Found) -> list[Figure]:
    """Disagreement within and between chains: Figure S5."""
    groups = {
        title: [value for part in found.values() for value in part.figures.get(key, [])]
        for key, title in (("within", "cycles of one chain"), ("between", "independent chains"))
    }
    if not all(groups.values()):
        return []
    styles = {name: number for number, name in enumerate(groups, 2)}
    caption = "Share of test rows with different labels: cycles of one chain, and ends of independent chains."
    return [Figure("chains", "Cycles against runs", caption, [Panel(strip_chart(groups, styles, "disagreement"))])]


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
