"""Pictures of what was measured, and the sections of a page that show them.

A figure of a paper is a section of the page with the name of its measurement. A picture is drawn from the arrays of a
`Measurement` alone, so that stored ones give the same pictures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from ...report.charts.landscape import diversity_chart, fan_chart, heat_map, scatter_chart, strip_chart, surface_chart
from ...report.claims import Claim, section
from ...report.figure import Curve, Figure, Panel, curve_panel, finite_range, legend
from ...report.svg import Axis
from ..diversity_accuracy_plane import family, limits
from ..material import Material, run_names
from ..studies.findings import QUESTIONS, tell_values
from ..studies.fort import CURVES, SPREADS, SUBSPACES
from ..studies.members import MEASURES, MEMBERS, OWNED

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Section:
    """A question whose answer is measured: its name, and how its arrays are drawn."""

    name: str
    draw: Callable[[Arrays], list[Figure]]

    def answer(self, material: Material) -> Claim | None:
        """The section, with what was found; None where the material cannot tell."""
        found = MEASURES[self.name](material)
        if found is None:
            return None
        said = tell_values(QUESTIONS[self.name], found.values)
        return answered(self.name, said.found, self.draw(found.arrays), said.judgement, said.number)


def answered(
    name: str, found: Sequence[str], figures: Sequence[Figure] = (), answer: str = "", number: str = ""
) -> Claim:
    """A question of `questions.toml` with what was found."""
    return section(name, QUESTIONS[name].title, QUESTIONS[name].says, found, figures, answer, number)


def caption_of(name: str, **values: object) -> str:
    """How the picture of a question is read, with these values filled in."""
    return QUESTIONS[name].caption.format(**values)


def curves_panel(
    curves: dict[str, Curve], styles: dict[str, int], across: str, title: str, log: bool = False, zero: bool = False
) -> Panel:
    """Curves in one panel, however many."""
    x = finite_range(value for own, _ in curves.values() for value in own)
    low, high = finite_range(value for _, own in curves.values() for value in own)
    axes = (
        Axis(*x, log=log, whole=across in ("runs", "severity"), room=0.02),
        Axis(min(low, 0.0) if zero else low, high),
    )
    return curve_panel(curves, styles, (across, title), axes, lambda label: f"{title}: {label}")


def lines_figure(
    name: str, title: str, caption: str, panels: Mapping[str, dict[str, Curve]], across: str, heads: tuple[str, str],
    **how: bool,
) -> Figure:  # fmt: skip
    """Curves of the same kinds, a panel for each metric, and their values as a table; `heads` name kinds and places."""
    (one, *others) = panels.values()
    styles = _styles(list(one))
    rows = [
        [label, *([metric] if others else []), *(f"{value:.4f}" for value in own)]
        for metric, curves in panels.items()
        for label, (_, own) in curves.items()
    ]
    header = [heads[0], *(["Metric"] if others else []), *(heads[1].format(at) for at in next(iter(one.values()))[0])]
    drawn = [curves_panel(curves, styles, across, metric, **how) for metric, curves in panels.items()]
    return Figure(name, title, caption, drawn, "wide", legend(styles, styles), header, rows)


SOURCES = {"both": "initialisation and order", "initialisation": "initialisation", "batches": "order of batches",
         "neither": "nothing"}  # fmt: skip


def _styles(names: Sequence[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(names, 2)}


def _matrix(arrays: Arrays, name: str, caption: str, ends: tuple[float, float]) -> Figure:
    matrix, run = arrays["matrix"], arrays["run"]
    names, recorded = run_names(int(run.max()) + 1), len(run) > int(run.max()) + 1
    parts = [
        (label, [f"step {step:,}" if recorded else "" for step in arrays["step"][run == i]])
        for i, label in enumerate(names)
    ]
    last = [int(np.flatnonzero(run == i)[-1]) for i in range(len(names))]
    rows = [[label, *(f"{matrix[i, j]:.4f}" for j in last)] for label, i in zip(names, last, strict=True)]
    panel = Panel(heat_map(matrix, parts, name, ends=ends))
    title = f"{name.capitalize()} between checkpoints" if recorded else f"{name.capitalize()} of solutions"
    return Figure(name, title, caption, [panel], header=["Solution of", *names], rows=rows)


def draw_cosines(arrays: Arrays) -> list[Figure]:
    """The matrix of cosines."""
    return [_matrix(arrays, "cosine", caption_of("weights"), (min(0.0, float(arrays["matrix"].min())), 1.0))]


def draw_functions(arrays: Arrays) -> list[Figure]:
    """The matrix of disagreements; the darkest shade is the most among networks of the second half of training."""
    run, matrix = arrays["run"], arrays["matrix"]
    late = [i for k in np.unique(run) for own in [np.flatnonzero(run == k)] for i in own[len(own) // 2 :]]
    top = float(matrix[np.ix_(late, late)].max()) or 1.0
    caption = caption_of("functions", top=100 * top)
    return [_matrix(arrays, "disagreement", caption, (0.0, top))]


def draw_map(arrays: Arrays) -> list[Figure]:
    """Trajectories as lines, and samples of subspaces around their ends, in one plane."""
    run, samples = arrays["run"], arrays["samples"]  # samples: (subspaces, runs, samples, 2)
    names = run_names(samples.shape[1])
    kinds = list(SUBSPACES.values())[: len(samples)]
    paths = {name: arrays["points"][run == i] for i, name in enumerate(names)}
    hints = {name: [f"step {step:,}" for step in arrays["step"][run == i]] for i, name in enumerate(names)}
    samples_of = {
        f"{name}, samples": [(x, y, kind) for k, kind in enumerate(kinds) for x, y in samples[k, i].tolist()]
        for i, name in enumerate(names)
    }
    styles = _styles(names)
    chart = scatter_chart(paths, styles | {f"{name}, samples": styles[name] for name in names}, hints, samples_of)
    caption = caption_of("map", count=len(kinds), kinds=", ".join(kinds))
    return [Figure("tsne", "Runs and their subspaces", caption, [Panel(chart)], legend=legend(names, styles))]


def _on_a_cut(arrays: Arrays, names: Sequence[str], **further: np.ndarray) -> dict[str, np.ndarray]:
    """What is drawn of a cut through the landscape, by its title."""
    agreements = {f"agreement with {name}": arrays["agreement"][i] for i, name in enumerate(names)}
    return {"accuracy": arrays["accuracy"], "loss": arrays["loss"], **further, **agreements}


def draw_plane(arrays: Arrays) -> list[Figure]:
    """Accuracy, losses and agreement on the plane, with trajectories and samples on it."""
    names = run_names(2)
    styles = {**_styles(names), "Gaussian samples": 6}
    error = np.maximum(1 - arrays["accuracy"], 1e-3)
    measured = _on_a_cut(arrays, names, **{"training loss": arrays["train loss"]})
    measured |= {
        f"disagreement with {name} / error": (1 - arrays["agreement"][i]) / error for i, name in enumerate(names)
    }
    paths = {name: arrays[f"path {i}"] for i, name in enumerate(names) if f"path {i}" in arrays}
    points = dict(zip(names, map(tuple, arrays["points"].tolist()), strict=True))
    samples = {"Gaussian samples": arrays["samples"]} if "samples" in arrays else {}
    panels = [
        Panel(
            surface_chart(arrays["u"], arrays["v"], values, title, paths=paths, points=points, samples=samples,
                          styles=styles,
                          titles=("along the first optimum", "towards the second"), decades="loss" in title),
            title.capitalize(),
        )
        for title, values in measured.items()
    ]  # fmt: skip
    shown = [*names, *samples]
    return [Figure("plane", "A cut through the landscape", caption_of("plane"), panels, legend=legend(shown, styles))]


def draw_tunnel(arrays: Arrays) -> list[Figure]:
    """Loss, accuracy and agreement along the line and the tunnel."""
    ways, measures = {"straight line": "line", "tunnel": "tunnel"}, ("loss on training rows", "accuracy")
    panels: dict[str, dict[str, Curve]] = {
        title: {name: (arrays["t"], arrays[f"{way} {title.split()[0]}"]) for name, way in ways.items()}
        for title in measures
    }
    panels["agreement with run 1"] = {name: (arrays["t"], arrays[f"{way} agreement"][0]) for name, way in ways.items()}
    heads = "Path", "at {:.2f}"
    return [lines_figure("paths", "Along two paths", caption_of("tunnel"), panels, "place on the path", heads)]


def draw_stitched(arrays: Arrays) -> list[Figure]:
    """Triangles of the tunnel's pieces and the origin."""
    names = run_names(2)
    measured = _on_a_cut(arrays, names)
    styles = _styles(names)
    panels = [
        Panel(
            fan_chart(arrays["fan"], values, title, corners=arrays["corners"], ends=names, styles=styles,
                      decades=title == "loss"),
            title.capitalize(),
        )
        for title, values in measured.items()
    ]  # fmt: skip
    return [Figure("stitched", "A cut along the tunnel", caption_of("stitched"), panels, legend=legend(names, styles))]


def draw_diversity(arrays: Arrays) -> list[Figure]:
    """Accuracy against diversity, with the limits and the family that fits the samples."""
    titles = {"independent": "independent runs", **SUBSPACES}
    styles = _styles(list(titles.values()))
    reference, classes = float(arrays["reference"][0]), int(arrays["reference"][1])
    points: dict[str, np.ndarray] = {}
    for name, title in titles.items():
        if name in arrays:
            accuracy, apart = arrays[name].T
            own = np.stack([accuracy, apart / np.maximum(1 - accuracy, 1e-9)], 1)[accuracy < 1]
            points |= {title: own} if len(own) else {}
    if not points:
        return []
    lines = _limits(points, reference, classes, arrays.get("exponent")) if reference > 1 / classes else {}
    rows = [[name, str(len(own)), *(f"{value:.4f}" for value in own.mean(0))] for name, own in points.items()]
    header = ["Networks", "How many", "Mean accuracy", "Mean disagreement / error"]
    panel = Panel(diversity_chart(points, styles, lines))
    caption, keys = caption_of("diversity"), legend(points, styles)
    return [Figure("diversity", "Diversity against accuracy", caption, [panel], "wide", keys, header, rows)]


def _limits(
    points: Mapping[str, np.ndarray], reference: float, classes: int, exponent: np.ndarray | None
) -> dict[str, np.ndarray]:
    low, high = finite_range(value for own in points.values() for value in own[:, 0])
    room = 0.1 * (high - low or 0.1)
    accuracy = np.linspace(max(low - room, 1 / classes), min(high + room, 0.999), 60)
    lines = dict(zip(("least", "most"), limits(accuracy, reference, classes), strict=True))
    if exponent is not None:
        lines[f"family, exponent {float(exponent):.2g}"] = family(accuracy, reference, classes, float(exponent))
    found = {name: np.stack([accuracy, own], 1) for name, own in lines.items()}
    return {name: own[np.isfinite(own).all(1)] for name, own in found.items()}


def draw_size(arrays: Arrays) -> list[Figure]:
    """Accuracy and Brier score against the number of runs."""
    return [_metrics(arrays, METRICS, "size", "Against the number of runs", caption_of("size"), "runs")]


METRICS = {"accuracy": "accuracy", "brier": "Brier score"}


def draw_shift(arrays: Arrays) -> list[Figure]:
    """Accuracy, Brier score and divergence against the severity of corruptions."""
    if "jsd" not in arrays:
        return []
    one = {f"one {key}": f"{title}, one run" for key, title in METRICS.items()}
    every, alone, spread = (
        caption_of("shift", which=which)
        for which in ("All runs.", "One run.", "The divergence of as many networks of every kind.")
    )
    figures = [
        _metrics(arrays, METRICS, "severity", "Under corruptions, all runs", every, "severity"),
        _metrics(arrays, one, "severity-one", "Under corruptions, one run", alone, "severity"),
    ]
    severities, *jsd = arrays["jsd"]
    curves: dict[str, Curve] = {title: (severities, own) for title, own in zip(SPREADS.values(), jsd, strict=True)}
    panels = {"Jensen-Shannon divergence, nats": curves}
    return [
        *figures,
        lines_figure("divergence", "Divergence", spread, panels, "severity", ("Networks", "severity {:g}")),
    ]


def _metrics(arrays: Arrays, titles: Mapping[str, str], name: str, title: str, caption: str, axis: str) -> Figure:
    panels: dict[str, dict[str, Curve]] = {}
    for key, words in titles.items():
        places, *values = arrays[key]
        named = zip(CURVES.values(), values, strict=True)
        panels[words] = {label: (places, own) for label, own in named if np.isfinite(own).all()}
    return lines_figure(name, title, caption, panels, axis, ("Kind", f"{axis} {{:g}}"))


def draw_randomness(arrays: Arrays) -> list[Figure]:
    """Disagreement against the rate, by what differs between runs."""
    curves: dict[str, Curve] = {
        title: (arrays["rates"], arrays[kind]) for kind, title in SOURCES.items() if kind in arrays
    }
    panels, heads = {"disagreement of two runs": curves}, ("What differs", "at {:g}")
    caption, how = caption_of("randomness"), {"log": True, "zero": True}
    return [lines_figure("randomness", "What runs differ in", caption, panels, "learning rate", heads, **how)]


def draw_chain(arrays: Arrays) -> list[Figure]:
    """Disagreement within and between chains."""
    groups = {"cycles of one chain": arrays["within"].tolist(), "different chains": arrays["between"].tolist()}
    panel = Panel(strip_chart(groups, _styles(list(groups)), "disagreement"))
    rows = [[name, *(f"{f(own):.4f}" for f in (np.mean, np.min, np.max))] for name, own in groups.items()]
    header = ["Networks", "Mean disagreement", "Least", "Largest"]
    return [Figure("chain", "Cycles against runs", caption_of("chain"), [panel], "wide", [], header, rows)]


KINDS = {"mimo": "MIMO", "multihead": "Naive multihead"}
NAMES = [f"member {k + 1}" for k in range(MEMBERS)]
STYLES = _styles([*NAMES, "origin, projected"])


def draw_subnetworks(arrays: Arrays) -> list[Figure]:
    """Accuracy and disagreement on the plane of three members, for MIMO and the multihead."""
    figures = []
    for kind, title in KINDS.items():
        given = {key.removeprefix(f"{kind} "): own for key, own in arrays.items() if key.startswith(f"{kind} ")}
        measured = {"accuracy": given["accuracy"]}
        measured |= {f"disagreement with {name}": 1 - given["agreement"][i] for i, name in enumerate(NAMES)}
        points = {name: tuple(point) for name, point in zip(NAMES, given["points"].tolist(), strict=True)}
        points["origin, projected"] = tuple(given["origin"].tolist())
        panels = [
            Panel(surface_chart(given["u"], given["v"], values, name, points=points, styles=STYLES,
                                titles=(str(given["axes"][0]), str(given["axes"][1])),
                                others={other: own for other, own in measured.items() if other != name}),
                  name.capitalize())
            for name, values in measured.items()
        ]  # fmt: skip
        caption = caption_of("subnetworks", title=title, away=float(given["away"]))
        caption += " A member is shown while the others read zeros." if kind == "mimo" else ""
        figures.append(Figure(f"members-{kind}", title, caption, panels, legend=legend(STYLES, STYLES)))
    return figures


def draw_courses(arrays: Arrays) -> list[Figure]:
    """The members' predictions during training, in two principal components."""
    hints = {name: [f"step {step:,}" for step in arrays["step"]] for name in NAMES}
    panels = [
        Panel(scatter_chart(dict(zip(NAMES, arrays[f"{kind} points"], strict=True)), STYLES, hints), title)
        for kind, title in KINDS.items()
    ]
    caption = caption_of("courses")
    return [Figure("courses", "Courses of the members", caption, panels, legend=legend(NAMES, STYLES))]


def draw_units(arrays: Arrays) -> list[Figure]:
    """How much of a unit's variance each input has, and whose units the layers have."""
    figures, edges = [], np.linspace(0, 1, 21)
    for size in (2, MEMBERS):
        shares, owner, layer = (arrays[f"{key} {size}"] for key in ("shares", "owner", "layer"))
        names = [f"input {k + 1}" for k in range(size)]
        counts = {name: int((owner == k).sum()) for k, name in enumerate(names)}
        curves: dict[str, Curve] = {
            name: ((edges[:-1] + edges[1:]) / 2, np.histogram(shares[k], edges)[0].astype(float))
            for k, name in enumerate(names)
        }
        styles = _styles(names)
        top = finite_range(value for _, values in curves.values() for value in values)[1]
        panel = curve_panel(
            curves, styles, ("share of a unit's variance", "units"), (Axis(0, 1), Axis(0, top)), partial(_owns, counts)
        )
        rows = []
        for number, name in enumerate(arrays["layers"]):
            here = layer == number
            own = shares.max(0)[here & (owner >= 0)]
            rows.append([str(name), str(int(here.sum())), *(str(int((owner[here] == k).sum())) for k in range(size)),
                         f"{float((own >= OWNED).mean()) if len(own) else float('nan'):.3f}"])  # fmt: skip
        caption = caption_of("units")
        header = ["Layer", "Units", *(f"owned by {k + 1}" for k in range(size)), f"above {OWNED:g}"]
        title = f"Whose unit is it? M = {size}"
        figures.append(Figure(f"units-{size}", title, caption, [panel], "wide", legend(styles, styles), header, rows))
    return figures


def _owns(counts: dict[str, int], label: str) -> str:
    return f"{label}: owns {counts[label]} units"


def draw_sparse(arrays: Arrays) -> list[Figure]:
    """Accuracy and log-likelihood against sparsity, for each number of members."""
    panels: dict[str, dict[str, Curve]] = {
        title: {name: (own[:, 0], own[:, column]) for name, own in arrays.items()}
        for column, title in ((1, "accuracy"), (2, "log-likelihood"))
    }
    styles = _styles(list(arrays))
    drawn = [curves_panel(curves, styles, "sparsity", title) for title, curves in panels.items()]
    return [Figure("sparse", "Against sparsity", caption_of("sparse"), drawn, "wide", legend(styles, styles))]


def draw_table(arrays: Arrays) -> list[Figure]:
    """Metrics of each setting."""
    rows = [[str(name), *(f"{value:.4f}" for value in own)]
            for name, own in zip(arrays["rows"], arrays["values"], strict=True)]  # fmt: skip
    header = ["", *(str(name).replace("_", " ") for name in arrays["metrics"])]
    return [Figure("settings", "Every setting", "", [], "wide", [], header, rows)]


DRAWN: dict[str, Callable[[Arrays], list[Figure]]] = {
    "weights": draw_cosines,
    "functions": draw_functions,
    "map": draw_map,
    "plane": draw_plane,
    "tunnel": draw_tunnel,
    "stitched": draw_stitched,
    "diversity": draw_diversity,
    "size": draw_size,
    "shift": draw_shift,
    "randomness": draw_randomness,
    "chain": draw_chain,
    "subnetworks": draw_subnetworks,
    "courses": draw_courses,
    "units": draw_units,
    "sparse": draw_sparse,
    "dropout": draw_table,
    "selection": draw_table,
    "sources": draw_table,
}

SECTIONS = {name: Section(name, draw) for name, draw in DRAWN.items()}
