"""What lies between solutions: the plane through two of them, the straight line, a tunnel and trained curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...report.charts.landscape import fan_chart, surface_chart
from ...report.figure import Curve, Figure, Panel, curve_panels, finite_range, legend
from ...report.questions import Question
from ...report.svg import Axis
from ..curves import curve
from ..paths import Path, along, barrier, line, stitched, tunnel
from ..planes import Surface, plane, surface
from .material import Material


def cut(material: Material) -> Surface:
    """The plane through the origin and the solutions of the first two runs, with all that is measured on it."""
    material.say(f"a surface of {material.grid} x {material.grid} networks")
    first, second = material.runs[:2]
    cover = material.runs[:2] if material.recorded else None
    return surface(plane(first, second), material.test, material.grid, cover=cover, refresh=material.train)


def plane_between(material: Material) -> Question:
    """Loss, accuracy and agreement on the plane of two solutions: Figure 5."""
    found = material.once(cut)
    names, styles = material.names[:2], material.styles
    paths = {name: found.project(run) for name, run in zip(names, material.runs, strict=False)}
    shown = dict(zip(names, map(tuple, found.points.tolist()), strict=True))
    measured = _surface_figures(found, names)
    panels = []
    for title, values in measured.items():
        others = {other: array for other, array in measured.items() if other != title}
        drawn = paths if material.recorded else None
        picture = surface_chart(
            found.u, found.v, values, title, others=others, paths=drawn, points=shown, styles=styles,
            titles=found.plane.axes, decades=title == "loss",
        )  # fmt: skip
        panels.append(Panel(picture, title.capitalize()))
    caption = (
        "The plane through the origin, where all weights are zero, and the solutions of two runs; axes are distances "
        "in weight space. Lines join equal values; point at a place to read its values. The training runs are "
        f"projected: they do not lie in the plane. Here {found.statistics}."
    )
    figure = Figure("plane", "A cut through the landscape", caption, panels, legend=legend(names, styles))
    claim = (
        "On the plane of two independent optima each lies in its own valley, and networks along a trajectory agree "
        "with the optimum it leads to, not with the other (Fort et al., Figure 5)."
    )
    return Question("plane", "What does the landscape look like between two runs?", claim, _valleys(found), [figure])


def _valleys(found: Surface) -> list[str]:
    """How high it is between the solutions, and whose labels each gives."""
    loss, agreement = found.loss, found.agreement
    assert loss is not None and agreement is not None
    first, second = (_nearest(found, point) for point in found.points)
    halfway = _nearest(found, found.points.mean(0))
    apart = loss[halfway] > 1.5 * max(loss[first], loss[second])
    return [
        f"{'Two valleys' if apart else 'No clear ridge'}: halfway between the two solutions the loss is "
        f"{loss[halfway]:.3g}, at them {loss[first]:.3g} and {loss[second]:.3g}.",
        f"The solution of run 2 gives the label of run 1 for {100 * agreement[0][second]:.0f} % of the test rows, the "
        f"network halfway for {100 * agreement[0][halfway]:.0f} %.",
    ]


def _nearest(found: Surface, point: np.ndarray) -> tuple[int, int]:
    """The place of the grid that is nearest to a point of the plane."""
    return int(np.abs(found.u - point[0]).argmin()), int(np.abs(found.v - point[1]).argmin())


def dig(material: Material) -> Path:
    """The tunnel between the solutions of the first two runs."""
    material.say("a tunnel between two solutions")
    first, second = material.runs[:2]
    return tunnel(first, second, material.train, steps=material.steps, seed=material.seed)


def connection(material: Material) -> Question:
    """Loss, accuracy and agreement along the straight line and along a tunnel: Figure S2."""
    ways = {"straight line": line(*material.runs[:2]), "tunnel": material.once(dig)}
    found: dict[str, Any] = {name: along(way, material.test, refresh=material.train) for name, way in ways.items()}
    styles = {"straight line": 2, "tunnel": 3}
    panels = [
        _profile("loss", {name: (one.t, one.loss) for name, one in found.items()}, styles),
        _profile("accuracy", {name: (one.t, one.accuracy) for name, one in found.items()}, styles),
        _profile("agreement with run 1", {name: (one.t, one.agreement[0]) for name, one in found.items()}, styles),
    ]
    labels = found["tunnel"].agreement[0]
    heights = {name: max(one.barrier, 0.0) for name, one in found.items()}
    low = heights["tunnel"] < 0.25 * heights["straight line"]
    sentences = [
        f"{'Yes' if low else 'Not by this path'}: along the tunnel the loss rises {heights['tunnel']:.3g} above its "
        f"ends, along the straight line {heights['straight line']:.3g}.",
        f"From its start to its end, the share of rows with the label of run 1 goes from "
        f"{100 * labels[0]:.0f} % to {100 * labels[-1]:.0f} %, and is never below {100 * labels.min():.0f} %.",
    ]
    caption = (
        "From the solution of run 1 (0) to that of run 2 (1), on test rows. The tunnel starts as the line and is "
        f"optimised with {material.steps} steps at each of 9 points, orthogonally to it, on training rows."
    )
    measured = [array for part in ("loss", "accuracy") for one in found.values() for array in [getattr(one, part)]]
    rows = [[f"{t:.2f}", *(f"{array[i]:.4f}" for array in measured)] for i, t in enumerate(found["tunnel"].t)]
    header = ["Place", *(f"loss, {name}" for name in found), *(f"accuracy, {name}" for name in found)]
    figure = Figure("paths", "Along two paths", caption, panels, "wide", legend(found, styles), header, rows)
    claim = (
        "A straight line between two optima crosses a region of high loss, but a low-loss tunnel connects them, and "
        "the function still changes along it (Fort et al., appendix; Fort and Jastrzebski, 2019)."
    )
    return Question("tunnel", "Can you walk from one solution to another?", claim, sentences, [figure])


def stitched_cut(material: Material) -> Question:
    """Loss, accuracy and agreement on the triangles of the tunnel's pieces and the origin: Figure S3."""
    path, names = material.once(dig), material.names[:2]
    grid = material.grid, material.grid // 2 + 1
    material.say(f"a stitched cut of {grid[0]} x {grid[1]} networks")
    found = stitched(path, material.test, grid, refresh=material.train)
    measured = _surface_figures(found, names)
    panels = []
    for title, values in measured.items():
        others = {other: array for other, array in measured.items() if other != title}
        picture = fan_chart(
            found.fan, values, title, others=others, corners=found.corners, ends=names, styles=material.styles,
            decades=title == "loss",
        )  # fmt: skip
        panels.append(Panel(picture, title.capitalize()))
    caption = (
        "Each piece of the tunnel makes a triangle with the origin, where all weights are zero; the triangles lie side "
        "by side, divided by thin lines. The strong line is the tunnel; further out the weights grow to 1.25 times "
        "their size. Lines join equal values; those of accuracy and agreement, and their shades, cover the outer half, "
        f"because near the origin everything is chance. Point at a place to read its values. Here {found.statistics}."
    )
    figure = Figure("stitched", "A cut along the tunnel", caption, panels, legend=legend(names, material.styles))
    claim = (
        "Along the tunnel accuracy stays the same, but predictions do not: the two optima are connected and remain "
        "different functions (Fort et al., Figure S3)."
    )
    title = "Is it the same function all along the tunnel?"
    return Question("stitched", title, claim, _along_the_tunnel(material, path), [figure])


def trained_curves(material: Material) -> Question:
    """Loss along curves that are trained as a whole, beside the straight line."""
    material.say("curves between two solutions")
    first, second = material.runs[:2]
    ways = {"straight line": line(first, second)}
    for kind in ("bezier", "polygon"):
        ways[f"{kind} curve"] = curve(
            first, second, material.train, kind, steps=5 * material.steps, lr=1e-3, seed=material.seed
        )
    found = {name: along(way, material.test, refresh=material.train) for name, way in ways.items()}
    heights = {name: barrier(way, material.test, refresh=material.train) for name, way in ways.items()}
    styles = {name: number for number, name in enumerate(ways, 2)}
    curves: dict[str, Curve] = {name: (one.t, np.asarray(one.loss)) for name, one in found.items()}
    low, high = finite_range(value for _, values in curves.values() for value in values)
    panels, _ = curve_panels(
        curves, styles, ("place on the path", "loss"), (Axis(0, 1, room=0.02), Axis(min(low, 0.0), high)),
        lambda label: f"{label}: {heights[label]:.3g} above its ends",
    )  # fmt: skip
    best = min(list(ways)[1:], key=lambda name: heights[name])
    lower = heights[best] < 0.25 * heights["straight line"]
    told = ", ".join(f"{name} {height:.3g}" for name, height in heights.items())
    answer = [f"{'Yes' if lower else 'Not by these'}: the loss rises above its ends by: {told}."]
    caption = (
        "Loss on test rows from the solution of run 1 (0) to that of run 2 (1). Both curves have one bend, trained "
        f"for {5 * material.steps} steps on training rows, each at a random place on the curve."
    )
    header = ["Place", *ways]
    rows = [
        [f"{t:.2f}", *(f"{np.asarray(one.loss)[i]:.4f}" for one in found.values())] for i, t in enumerate(found[best].t)
    ]
    figure = Figure("curves", "Along trained curves", caption, panels, "wide", legend(ways, styles), header, rows)
    claim = "Two optima are connected by simple curves along which the loss is nearly constant (Garipov et al., 2018)."
    return Question("curve", "Is there a simple curve of low loss between two runs?", claim, answer, [figure])


def _along_the_tunnel(material: Material, path: Path) -> list[str]:
    """How accuracy and labels change from one end of the tunnel to the other."""
    found = along(path, material.test, points=len(path.t), refresh=material.train)
    accuracy, agreement = np.asarray(found.accuracy), np.asarray(found.agreement)
    middle, ends = 1 - agreement[:, len(found.t) // 2], 1 - agreement[0, -1]
    answer = "No" if middle.min() >= 0.5 * ends > 0 else "Nearly" if ends else "Yes"
    return [
        f"{answer}: in the middle of the tunnel {100 * middle[0]:.1f} % of the labels are not those of run 1 and "
        f"{100 * middle[1]:.1f} % not those of run 2, which differ from each other in {100 * ends:.1f} %.",
        f"Accuracy along the tunnel is between {100 * accuracy.min():.1f} and {100 * accuracy.max():.1f} %, at its "
        f"ends {100 * accuracy[0]:.1f} and {100 * accuracy[-1]:.1f} %.",
    ]


def _surface_figures(found: Surface, names: Sequence[str]) -> dict[str, np.ndarray]:
    """What was measured on a surface, by the title of its picture."""
    agreement = zip(names, np.asarray(found.agreement), strict=True)
    with_each = {f"agreement with {name}": values for name, values in agreement}
    return {"loss": np.asarray(found.loss), "accuracy": np.asarray(found.accuracy), **with_each}


def _profile(name: str, curves: dict[str, Curve], styles: dict[str, int]) -> Panel:
    low, high = finite_range(value for _, values in curves.values() for value in values)
    axes = Axis(0, 1, room=0.02), Axis(min(low, 0.0) if name == "loss" else low, high)
    panels, _ = curve_panels(curves, styles, ("place on the path", name), axes, lambda label: f"{name}: {label}")
    return panels[0]
