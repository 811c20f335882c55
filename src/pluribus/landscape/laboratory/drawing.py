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
from ..studies.findings import tell_values
from ..studies.fort import CURVES, SPREADS, SUBSPACES
from ..studies.members import ASKED, MEASURES, MEMBERS, OWNED

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Section:
    """A question, what the paper says, how its arrays are drawn, and numbers without a bar in words."""

    title: str
    says: str
    draw: Callable[[Arrays], list[Figure]]
    told: Mapping[str, str]

    def answer(self, name: str, material: Material) -> Claim | None:
        """The section, with what was found; None where the material cannot tell."""
        found = MEASURES[name](material)
        if found is None:
            return None
        said = tell_values(ASKED[name], self.told, found.values)
        pictures = self.draw(found.arrays)
        return section(name, self.title, self.says, said.found, pictures, said.judgement, said.number)


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
    caption = (
        "Cosine of the angle between two networks: weight matrices and filters, no biases or scales of normalisation."
    )
    return [_matrix(arrays, "cosine", caption, (min(0.0, float(arrays["matrix"].min())), 1.0))]


def draw_functions(arrays: Arrays) -> list[Figure]:
    """The matrix of disagreements; the darkest shade is the most among networks of the second half of training."""
    run, matrix = arrays["run"], arrays["matrix"]
    late = [i for k in np.unique(run) for own in [np.flatnonzero(run == k)] for i in own[len(own) // 2 :]]
    top = float(matrix[np.ix_(late, late)].max()) or 1.0
    caption = (
        "Share of test rows on which two networks give different labels. The darkest shade is "
        f"{100 * top:.1f} % or more, the most among networks of the second half of training."
    )
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
    caption = (
        "Predictions on all test rows in two dimensions by t-SNE: each run's checkpoints, joined, its end the large "
        "mark; "
        f"open marks are samples of {len(kinds)} subspaces around it ({', '.join(kinds)}). Long distances mean little."
    )
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
    caption = (
        "The plane through the origin, where all weights are zero, and the solutions of two runs; axes are distances "
        "in weight space. Lines join equal values; point at a place to read its value. Runs, and samples of a low-rank "
        "Gaussian along run 1, are projected: they do not lie in the plane."
    )
    shown = [*names, *samples]
    return [Figure("plane", "A cut through the landscape", caption, panels, legend=legend(shown, styles))]


def draw_tunnel(arrays: Arrays) -> list[Figure]:
    """Loss, accuracy and agreement along the line and the tunnel."""
    ways, measures = {"straight line": "line", "tunnel": "tunnel"}, ("loss on training rows", "accuracy")
    panels: dict[str, dict[str, Curve]] = {
        title: {name: (arrays["t"], arrays[f"{way} {title.split()[0]}"]) for name, way in ways.items()}
        for title in measures
    }
    panels["agreement with run 1"] = {name: (arrays["t"], arrays[f"{way} agreement"][0]) for name, way in ways.items()}
    caption = (
        "From the solution of run 1 (0) to that of run 2 (1); accuracy and agreement are on test rows. The tunnel "
        "starts as the line and is optimised on training rows at each of 9 points, orthogonally to the line."
    )
    return [lines_figure("paths", "Along two paths", caption, panels, "place on the path", ("Path", "at {:.2f}"))]


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
    caption = (
        "Each piece of the tunnel makes a triangle with the origin, where all weights are zero; thin lines divide "
        "them. The strong line is the tunnel; further out the weights grow to 1.25 times their size. Shades of "
        "accuracy and agreement cover the outer half, because near the origin everything is chance."
    )
    return [Figure("stitched", "A cut along the tunnel", caption, panels, legend=legend(names, styles))]


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
    caption = (
        "One point for each network: its accuracy, and how often it differs from the solution of run 1, divided by its "
        "own error. Dashed: what random flips of that solution's labels give (least), independent labels (most), and "
        "the family with one parameter that fits the samples."
    )
    rows = [[name, str(len(own)), *(f"{value:.4f}" for value in own.mean(0))] for name, own in points.items()]
    header = ["Networks", "How many", "Mean accuracy", "Mean disagreement / error"]
    panel = Panel(diversity_chart(points, styles, lines))
    return [Figure("diversity", "Diversity against accuracy", caption, [panel], "wide", legend(points, styles), header,
                   rows)]  # fmt: skip


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
    caption = (
        "With one run: its solution, or samples around it; with more: the same of each run, all averaged. Means over "
        "the choices of runs."
    )
    return [_metrics(arrays, METRICS, "size", "Against the number of runs", caption, "runs")]


METRICS = {"accuracy": "accuracy", "brier": "Brier score"}


def draw_shift(arrays: Arrays) -> list[Figure]:
    """Accuracy, Brier score and divergence against the severity of corruptions."""
    if "jsd" not in arrays:
        return []
    one = {f"one {key}": f"{title}, one run" for key, title in METRICS.items()}
    caption = "Means over corruptions; severity 0 is the test data as they are. {}"
    figures = [
        _metrics(arrays, METRICS, "severity", "Under corruptions, all runs", caption.format("All runs."), "severity"),
        _metrics(arrays, one, "severity-one", "Under corruptions, one run", caption.format("One run."), "severity"),
    ]
    severities, *jsd = arrays["jsd"]
    curves: dict[str, Curve] = {title: (severities, own) for title, own in zip(SPREADS.values(), jsd, strict=True)}
    told = caption.format("The divergence of as many networks of every kind.")
    panels = {"Jensen-Shannon divergence, nats": curves}
    return [*figures, lines_figure("divergence", "Divergence", told, panels, "severity", ("Networks", "severity {:g}"))]


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
    caption = (
        "Share of test rows on which two runs give different labels, by what differs between them: means over pairs."
    )
    panels, heads = {"disagreement of two runs": curves}, ("What differs", "at {:g}")
    return [
        lines_figure("randomness", "What runs differ in", caption, panels, "learning rate", heads, log=True, zero=True)
    ]


def draw_chain(arrays: Arrays) -> list[Figure]:
    """Disagreement within and between chains."""
    groups = {"cycles of one chain": arrays["within"].tolist(), "different chains": arrays["between"].tolist()}
    panel = Panel(strip_chart(groups, _styles(list(groups)), "disagreement"))
    caption = (
        "Share of test rows on which two networks give different labels: the ends of the cycles of one chain (the mean "
        "of each chain), and the ends of different chains. The temperature is 1/N, as in the authors' code, which the "
        "paper used."
    )
    rows = [[name, *(f"{f(own):.4f}" for f in (np.mean, np.min, np.max))] for name, own in groups.items()]
    header = ["Networks", "Mean disagreement", "Least", "Largest"]
    return [Figure("chain", "Cycles against runs", caption, [panel], "wide", [], header, rows)]


FORT_SECTIONS: dict[str, Section] = {
    "weights": Section(
        "Do runs end in different places in weight space?",
        "The weight vectors of two different initialisations are essentially orthogonal, while those along one "
        "trajectory point in similar directions (Fort et al., Figures 2 and 3).", draw_cosines,
        {"cosine_mean": "mean cosine between solutions", "cosine_within": "cosine within the last quarter of a run"},
    ),
    "functions": Section(
        "Do different runs learn different functions?",
        "Checkpoints of one trajectory are similar functions; functions of different initialisations disagree on many "
        "more predictions at the same accuracy (Fort et al., Figures 2 and 3).", draw_functions,
        {"apart": "disagreement of two solutions", "within": "disagreement within the last quarter of a run",
         "accuracy": "mean accuracy of one solution", "together": "accuracy of all solutions together"},
    ),
    "map": Section(
        "Does each run keep to its own region of function space?",
        "Different initialisations explore different modes in function space, and functions sampled from a subspace "
        "stay near their own run (Fort et al., Figures 2 c and 4).", draw_map, {},
    ),
    "plane": Section(
        "Does each run end in a valley of its own?",
        "On the plane of two independent optima each lies in its own valley; networks along a trajectory, and samples "
        "around it, agree with the optimum it leads to, not with the other (Fort et al., Figures 5 and S1).",
        draw_plane,
        {"ridge": "loss halfway between two solutions, above that at them"},
    ),
    "tunnel": Section(
        "Does a low-loss path connect two solutions?",
        "A straight line between two optima crosses a region of high loss, but a low-loss tunnel connects them "
        "(Fort et al., Figure S2; Fort and Jastrzebski, 2019).", draw_tunnel, {},
    ),
    "stitched": Section(
        "Does the function change along that path?",
        "Along the tunnel accuracy stays the same, but predictions do not: the two optima are connected and remain "
        "different functions (Fort et al., Figure S3).", draw_stitched,
        {"lowest": "lowest accuracy along the tunnel"},
    ),
    "diversity": Section(
        "Are independent runs more diverse than samples around one?",
        "Independent solutions are more diverse at the same accuracy than anything sampled around one solution "
        "(Fort et al., Figures 6, 7 and S6).", draw_diversity,
        {f"share_{name}": f"share of the attainable diversity, {title}"
         for name, title in {"independent": "independent runs", **SUBSPACES}.items()},
    ),
    "size": Section(
        "Do independent runs gain more than samples around one?",
        "Ensembles gain more than subspaces, and the gains add up (Fort et al., Figure 8).", draw_size,
        {f"{which}_{key}": f"{title} of {words}" for key, title in METRICS.items()
         for which, words in (("one", "one network"), ("all", "all runs together"))},
    ),
    "shift": Section(
        "Does that hold under corruptions?",
        "Ensembles and subspaces are complementary under corruptions as well; independent runs diverge most, the more "
        "so the more severe the corruption (Fort et al., Figures 9 and 10).", draw_shift,
        {f"jsd_{name}": f"divergence on OOD data in nats, {title}" for name, title in SPREADS.items()},
    ),
    "randomness": Section(
        "Does initialisation matter more than the order of batches?",
        "Initialisation and the order of batches are complementary sources of difference; initialisation is the "
        "stronger one, and the order counts for more at high learning rates (Fort et al., Figure S4).",
        draw_randomness, {},
    ),
    "chain": Section(
        "Are independent runs more diverse than one cyclic run?",
        "The cycles of one run of cSG-MCMC give less diverse functions than independent initialisations do "
        "(Fort et al., Figure S5).", draw_chain, {"chain_accuracy": "mean accuracy of the chains' networks"},
    ),
}  # fmt: skip


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
        caption = (
            f"{title}. The plane goes through three members; what they share is the same everywhere on it. The origin, "
            f"where all weights are zero, is {float(given['away']):.3g} away from the plane and is projected onto it. "
            f"{'A member is shown while the others read zeros.' if kind == next(iter(KINDS)) else ''}"
        )
        figures.append(Figure(f"members-{kind}", title, caption.strip(), panels, legend=legend(STYLES, STYLES)))
    return figures


def draw_courses(arrays: Arrays) -> list[Figure]:
    """The members' predictions during training, in two principal components."""
    hints = {name: [f"step {step:,}" for step in arrays["step"]] for name in NAMES}
    panels = [
        Panel(scatter_chart(dict(zip(NAMES, arrays[f"{kind} points"], strict=True)), STYLES, hints), title)
        for kind, title in KINDS.items()
    ]
    caption = "The members' predictions on test rows during training, in their two principal components."
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
        caption = (
            "Conditional variance of each pre-activation with respect to each member's input, as a share of the sum "
            "over inputs; a channel is a unit. Separated units lie at both ends."
        )
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
    caption = "One point for each strength of L1; sparsity is the share of weights below 1e-4."
    return [Figure("sparse", "Against sparsity", caption, drawn, "wide", legend(styles, styles))]


def draw_table(arrays: Arrays) -> list[Figure]:
    """Metrics of each setting."""
    rows = [[str(name), *(f"{value:.4f}" for value in own)]
            for name, own in zip(arrays["rows"], arrays["values"], strict=True)]  # fmt: skip
    header = ["", *(str(name).replace("_", " ") for name in arrays["metrics"])]
    return [Figure("settings", "Every setting", "", [], "wide", [], header, rows)]


def _told(**words: str) -> dict[str, str]:
    return {f"{kind}_{key}": f"{title}: {text}" for kind, title in KINDS.items() for key, text in words.items()}


MEMBERS_SECTIONS: dict[str, Section] = {
    "subnetworks": Section(
        "Do the members of MIMO differ more than those of a multihead?",
        "MIMO's subnetworks end in distinct basins and disagree; those of the naive multihead end in one and agree "
        "(Havasi et al., Figure 3).", draw_subnetworks,
        _told(apart="disagreement of two members", alone="mean accuracy of one member", together="accuracy of all"),
    ),
    "courses": Section(
        "Where do the members of one network go while it is trained?",
        "The members of MIMO converge to different functions, those of the naive multihead to the same "
        "(Havasi et al., Figure 4, middle).", draw_courses, {},
    ),
    "units": Section(
        "Do the members of one network use units of their own?",
        "Almost all pre-activations vary with the input of only one member: the subnetworks separate within the "
        "network (Havasi et al., Figure 4, left).", draw_units, {},
    ),
    "sparse": Section(
        "What does sparsity cost more members?",
        "At the same sparsity, more subnetworks lose more performance (Havasi et al., Figure 9).", draw_sparse, {},
    ),
    "dropout": Section(
        "Do many masks become dropout?",
        "With many masks, Masksembles behave like MC-Dropout; with masks that do not overlap, like Deep Ensembles "
        "(Durasov et al., Figure 5).", draw_table, {},
    ),
    "selection": Section(
        "Which epoch should be kept?",
        "Selecting the epoch that is best for the ensemble is as good as selecting the best epoch of each member "
        "(Laurent et al., appendix K).", draw_table, {},
    ),
    "sources": Section(
        "What makes packed members differ?",
        "Any one of non-deterministic algorithms, different initialisations and different batches is enough for "
        "diversity, and no set of them is clearly best (Laurent et al., Table 7).", draw_table, {},
    ),
}  # fmt: skip
