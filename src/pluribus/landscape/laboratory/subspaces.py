"""Is sampling around one solution as good as training another? Diversity against accuracy, and quality against size."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...report.charts.landscape import diversity_chart
from ...report.figure import Curve, Figure, Panel, curve_panels, finite_range, legend
from ...report.questions import Question
from ...report.svg import Axis
from ..diversity_accuracy_plane import diversity_accuracy, limits
from ..sampling import SAMPLERS
from ..studies.quality_curves import BASE, Quality, quality
from .material import Material, spread

SUBSPACES = {"random": "random", "dropout": "dropout", "diagonal": "diagonal Gaussian", "low_rank": "low-rank Gaussian"}

STYLES = {"independent runs": 2, "random": 3, "dropout": 4, "diagonal Gaussian": 5, "low-rank Gaussian": 6}

CURVES = {BASE: "solutions", "random": "random", "diagonal": "diagonal Gaussian", "low_rank": "low-rank Gaussian",
          "weight_average": "weight averages"}  # fmt: skip

FIGURES = {"accuracy": "accuracy", "brier": "Brier score", "jsd": "Jensen-Shannon divergence, nats"}


def diversity_plane(material: Material) -> Question:
    """Samples of subspaces and other solutions by accuracy and by difference from one solution: Figure 6."""
    material.say("samples around one solution")
    base = material.runs[0]
    samples = {SUBSPACES[name]: _sample(name, base, material) for name in _possible(material)}
    groups = {"independent runs": material.solutions[1:], **samples}
    found = {name: diversity_accuracy(base, others, material.test) for name, others in groups.items()}
    points = {name: np.stack([one.accuracy, one.diversity], 1) for name, one in found.items()}
    points = {name: kept for name, own in points.items() if len(kept := own[np.isfinite(own).all(1)])}
    if not points:
        return Question(
            "diversity", TITLE, CLAIM, ["No network makes an error on the test rows, so there is nothing to divide by."]
        )
    first = found["independent runs"]
    panel = Panel(diversity_chart(points, STYLES, _limits(points, first.reference_accuracy, first.classes)))
    caption = (
        "One point for each network: its accuracy, and how often it differs from the solution of run 1, divided by its "
        "own error. Dashed: what random flips of that solution's labels give (lower) and independent labels (upper)."
    )
    rows = [[name, str(len(own)), *(f"{value:.4f}" for value in own.mean(0))] for name, own in points.items()]
    header = ["Networks", "How many", "Mean accuracy", "Mean disagreement / error"]
    figure = Figure(
        "diversity", "Diversity against accuracy", caption, [panel], "wide", legend(points, STYLES), header, rows
    )
    return Question("diversity", TITLE, CLAIM, _judge(points), [figure])


TITLE = "Are samples around one solution as diverse as other solutions?"

CLAIM = (
    "Independent solutions are more diverse at the same accuracy than anything sampled around one solution "
    "(Fort et al., Figures 6 and 7)."
)


def ensemble_size(material: Material) -> Question | None:
    """Quality against the number of runs and the severity of a corruption: Figures 8 and 9."""
    if not material.recorded:
        return None
    material.say("quality against the number of runs")
    shifted = material.images is not None
    found = quality(
        material.runs, [name for name in CURVES if name != BASE],
        material.images if shifted else material.test, range(1, len(material.runs) + 1),
        material.corruptions if shifted else (), samples=material.samples, severities=material.severities,
        normalise=material.normalise if shifted else None, refresh=material.train, seed=material.seed,
    )  # fmt: skip
    styles = {name: number for number, name in enumerate(CURVES.values(), 2)}
    panels = [_panel(title, _curves(found, figure), "runs", styles) for figure, title in FIGURES.items()]
    caption = (
        f"With one run: its solution, or {material.samples} samples around it; with more: the same of each run, all "
        "averaged. Means over the choices of runs."
    )
    rows = [[CURVES[row["sampler"]], str(row["size"]), str(row["members"]), *(f"{row[f]:.4f}" for f in FIGURES)]
            for row in found.rows if not row["severity"]]  # fmt: skip
    header = ["Kind", "Runs", "Networks", *FIGURES.values()]
    figures = [
        Figure("size", "Against the number of runs", caption, panels, "wide", legend(styles, styles), header, rows)
    ]
    if shifted:
        figures.append(_severity_figure(material, found, styles))
    return Question(
        "size", "What do runs and samples each buy?", SIZE_CLAIM, _gains(found, len(material.runs)), figures
    )


SIZE_CLAIM = (
    "Ensembles gain more than subspaces, the gains add up, and the difference grows with the severity of a corruption "
    "(Fort et al., Figures 8 and 9)."
)


# ---------------------------------------------------------------- helpers


def _possible(material: Material) -> list[str]:
    """What needs no past, and what needs several checkpoints."""
    return list(SUBSPACES) if material.recorded else ["random", "dropout"]


def _sample(name: str, base: Any, material: Material) -> Any:
    return SAMPLERS[name](base, size=material.samples, data=material.train, seed=material.seed)


def _limits(points: dict[str, np.ndarray], reference: float, classes: int) -> dict[str, np.ndarray]:
    low, high = finite_range(value for own in points.values() for value in own[:, 0])
    room = 0.1 * (high - low or 0.1)
    accuracy = np.linspace(max(low - room, 1 / classes), min(high + room, 0.999), 60)
    lower, upper = limits(accuracy, reference, classes)
    return {"lower": np.stack([accuracy, lower], 1), "upper": np.stack([accuracy, upper], 1)}


def _judge(points: dict[str, np.ndarray]) -> list[str]:
    other = points.get("independent runs")
    if other is None:
        return ["The other solutions make no error on the test rows, so there is nothing to compare with."]
    sampled = {name: own for name, own in points.items() if name != "independent runs"}
    most = max(sampled, key=lambda name: sampled[name][:, 1].mean()) if sampled else ""
    said = f"for solutions of other runs disagreement with the first, divided by their error, is {spread(other[:, 1])}"
    if not most:
        return [f"{said.capitalize()}."]
    value, accuracy = sampled[most][:, 1].mean(), sampled[most][:, 0].mean()
    worse = accuracy < other[:, 0].mean()
    answer = "No" if other[:, 1].mean() > value else "Yes, but less accurate" if worse else "Yes"
    lines = [
        f"{answer}: {said}, at an accuracy of {spread(other[:, 0], percent=True)}; for the most different samples, "
        f"{most}, it is {spread(sampled[most][:, 1])} at {spread(sampled[most][:, 0], percent=True)}."
    ]
    return lines + [
        f"{name[0].upper()}{name[1:]}: {spread(own[:, 1])} at {spread(own[:, 0], percent=True)}."
        for name, own in sampled.items()
        if name != most
    ]


def _curves(found: Quality, figure: str) -> dict[str, Curve]:
    return {label: tuple(map(np.array, found.curve(figure, name))) for name, label in CURVES.items()}  # type: ignore[misc]


def _panel(title: str, curves: dict[str, Curve], across: str, styles: dict[str, int]) -> Panel:
    x = finite_range(value for own, _ in curves.values() for value in own)
    y = finite_range(value for _, own in curves.values() for value in own)
    axes = Axis(*x, whole=True), Axis(*y)
    panels, _ = curve_panels(curves, styles, (across, title), axes, lambda label: f"{title}: {label}")
    return panels[0]


def _severity_figure(material: Material, found: Quality, styles: dict[str, int]) -> Figure:
    size = len(material.runs)
    panels = []
    for figure, title in FIGURES.items():
        curves: dict[str, Curve] = {}
        for name, label in CURVES.items():
            severities, values = found.by_severity(figure, name, size)
            curves[label] = np.array(severities), np.array(values)
        panels.append(_panel(title, curves, "severity", styles))
    what = " and ".join(name.replace("_", " ") for name in material.corruptions)
    caption = f"Under {what}, with all {size} runs; severity 0 is the test data as they are."
    return Figure("severity", "Under a corruption", caption, panels, "wide", legend(styles, styles))


def _gains(found: Quality, runs: int) -> list[str]:
    one = dict(zip(*found.curve("accuracy"), strict=True))
    brier = {name: dict(zip(*found.curve("brier", name), strict=True)) for name in CURVES}
    subspaces = {name: brier[name][1] for name in CURVES if name not in (BASE, "weight_average")}
    best = min(subspaces, key=lambda name: subspaces[name])
    both = min(brier, key=lambda name: brier[name][runs])
    gain, own = brier[BASE][1] - brier[BASE][runs], brier[BASE][1] - subspaces[best]
    more = "The ensemble" if gain > own else f"The {CURVES[best]} subspace"
    return [
        f"{more} gains more: {runs} runs lower the Brier score of one network, {brier[BASE][1]:.4f}, by {gain:.4f}, "
        f"the best subspace of one run ({CURVES[best]}) by {own:.4f}.",
        f"With all {runs} runs the Brier score is lowest for {CURVES[both]}, {brier[both][runs]:.4f}"
        + ("." if both == BASE else f"; the solutions alone have {brier[BASE][runs]:.4f}."),
        f"Accuracy of one network {100 * one[1]:.1f} %, of {runs} runs together {100 * one[runs]:.1f} %.",
    ]
