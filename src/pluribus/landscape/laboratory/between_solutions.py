"""Curves between two solutions that are trained as a whole, against the straight line."""

from __future__ import annotations

import numpy as np

from ...report.claims import Claim, section
from ...report.figure import Curve, Figure, curve_panel, finite_range, legend
from ...report.svg import Axis
from ..curves import curve
from ..material import Material
from ..paths import along, barrier, line


def trained_curves(material: Material) -> Claim:
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
    panel = curve_panel(
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
    figure = Figure("curves", "Along trained curves", caption, [panel], "wide", legend(ways, styles), header, rows)
    claim = "Two optima are connected by simple curves along which the loss is nearly constant (Garipov et al., 2018)."
    title = "Is there a simple curve of low loss between two runs?"
    number = f"Rise of the loss {heights[best]:.3g}, {heights['straight line']:.3g} on the straight line"
    return section("curve", title, claim, answer, [figure], "yes" if lower else "no", number)
