"""What two runs have in common inside, how the loss bends at them, and the members of one MIMO network."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ...methods import mimo, multihead
from ...report.charts.landscape import heat_map, scatter_chart, surface_chart
from ...report.figure import Curve, Figure, Panel, curve_panels, finite_range, legend
from ...report.questions import Question
from ...report.svg import Axis
from ..analyses.courses import courses
from ..analyses.members import member_figures
from ..analyses.separation import separation
from ..curvature import Spectrum, spectrum
from ..curves import curve
from ..paths import along, barrier, line
from ..planes import Surface, surface
from ..representations import cka, layer_names
from ..similarity import embedding
from ..subnetworks import subnetwork_plane
from .material import Material, spread

MEMBERS = 3  # of one network, so that a plane goes through them

OWNED = 0.9  # of a unit's variance, from one input: it is separated


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
    answer = [f"{'Yes' if lower else 'Not by these'}: above its ends the loss rises by: {told}."]
    caption = (
        f"Loss on test rows from the solution of run 1 (0) to that of run 2 (1). Both curves have one bend, trained by "
        f"{5 * material.steps} steps on training rows, each at a place drawn along the curve."
    )
    header = ["Place", *ways]
    rows = [
        [f"{t:.2f}", *(f"{np.asarray(one.loss)[i]:.4f}" for one in found.values())] for i, t in enumerate(found[best].t)
    ]
    figure = Figure("curves", "Along trained curves", caption, panels, "wide", legend(ways, styles), header, rows)
    claim = "Two optima are connected by simple curves over which loss is nearly constant (Garipov et al., 2018)."
    return Question("curve", "Is there a simple curve of low loss between two runs?", claim, answer, [figure])


def layers(material: Material) -> Question:
    """CKA between the layers of two runs."""
    material.say("layers of two solutions")
    first, second = material.solutions[:2]
    names = layer_names(first, material.test)
    across = cka(first, second, material.test, debiased=True)
    own = cka(first, data=material.test, debiased=True)
    same = np.diag(across)
    nearest = int((np.nanargmax(across, 1) == np.arange(len(names))).sum()) if np.isfinite(across).all() else 0
    ends = (min(0.0, float(np.nanmin(across))), 1.0)
    short = len(names) <= 8 and max(map(len, names)) <= 60 // len(names)  # names beside the rows, where there is room
    parts = [(name, [""]) for name in names] if short else [("layers", names)]
    panels = [
        Panel(heat_map(matrix, parts, "CKA", ends=ends), title)
        for matrix, title in ((across, "run 1 (rows) and run 2"), (own, "run 1 with itself"))
    ]
    found = [
        f"CKA of a layer with the same layer of the other run is {spread(same)}; for {nearest} of {len(names)} layers "
        "it is the layer's nearest one.",
        f"Layer by layer: {', '.join(f'{name} {value:.2f}' for name, value in zip(names, same, strict=True))}.",
    ]
    caption = (
        "Linear CKA, debiased, on test rows: 1 where outputs are equal up to a rotation and a scale. The bluer, the"
        " more alike."
    )
    figure = Figure("layers", "Layers of two runs", caption, panels)
    claim = (
        "Layers of networks that are trained from different initialisations correspond to each other, early layers "
        "more than late ones (Kornblith et al., 2019)."
    )
    return Question("layers", "Do the layers of two runs hold the same?", claim, found, [figure])


def bending(material: Material) -> Question:
    """The spectra of the loss's Hessian at two solutions."""
    material.say("curvature at two solutions")
    train = tuple(part[:200] for part in material.train)
    spectra: dict[str, Spectrum] = {
        name: spectrum(run, train, top=5, probes=3, steps=30, tolerance=1e-2, exact=False, seed=material.seed)
        for name, run in zip(material.names[:2], material.runs, strict=False)
    }
    low = min(float(one.nodes.min()) for one in spectra.values())
    high = max(float(one.nodes.max()) for one in spectra.values())
    points = np.linspace(low - 0.05 * (high - low), high + 0.05 * (high - low), 200)
    curves: dict[str, Curve] = {name: (points, np.maximum(one.density(points), 1e-7)) for name, one in spectra.items()}
    top = max(float(values.max()) for _, values in curves.values())
    panels, _ = curve_panels(
        curves, material.styles, ("eigenvalue", "density"), (Axis(points[0], points[-1]), Axis(1e-7, top, log=True)),
        lambda label: f"{label}: largest eigenvalue {spectra[label].values[0]:.3g}",
    )  # fmt: skip
    found = [
        f"{name}: the largest eigenvalues are {', '.join(f'{value:.3g}' for value in one.values)}, the least that was "
        f"seen {one.lowest:.3g}; the trace is {one.trace:.4g} with a standard error of {one.trace_error:.2g}."
        for name, one in spectra.items()
    ]
    shares = [float(one.weights[np.abs(one.nodes) < 0.01 * one.values[0]].sum()) for one in spectra.values()]
    few = min(shares) > 0.9
    found.insert(
        0,
        f"{'In few' if few else 'Not in few alone'}: a share of {spread(np.array(shares))} of all directions has less "
        "than a hundredth of the largest curvature.",
    )
    caption = (
        f"Density of the eigenvalues of the Hessian of the mean loss on {len(train[1])} training rows, by stochastic "
        "Lanczos quadrature; each eigenvalue is blurred by a hundredth of the range."
    )
    figure = Figure("bending", "Spectra at two solutions", caption, panels, "wide", legend(spectra, material.styles))
    claim = (
        "The Hessian has a bulk of eigenvalues around zero and few large ones beside it (Sagun et al., 2017; Ghorbani "
        "et al., 2019)."
    )
    return Question("curvature", "In how many directions does the loss bend?", claim, found, [figure])


# ---------------------------------------------------------------- the members of one network


def members_of_one(material: Material) -> dict[str, Any]:
    """MIMO and the naive multihead, trained as the runs were, and where their members went."""
    training = material.training
    assert training is not None
    made: dict[str, Any] = {}
    for name, method in (("MIMO", mimo), ("naive multihead", multihead)):
        material.say(f"{MEMBERS} members in one network: {name}")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(material.seed)
            ensemble = method(training.build(), MEMBERS, example=material.train[0][:2], init="different")
        options = {key: getattr(training, key) for key in ("epochs", "lr", "batch_size", "optimizer", "schedule")}
        told = courses(ensemble, material.train, material.test, seed=material.seed, **options)
        made[name] = (ensemble, told)
    return made


def subnetworks_apart(material: Material) -> Question | None:
    """Accuracy and agreement on the plane of three members of one network, and their courses: MIMO, Figures 3 and 4."""
    if material.training is None:
        return None
    figures: list[Figure] = []
    found: list[str] = []
    apart: list[float] = []
    names = [f"member {k + 1}" for k in range(MEMBERS)]
    styles = {name: number for number, name in enumerate([*names, "origin, projected"], 2)}
    for name, (ensemble, told) in material.once(members_of_one).items():
        material.say(f"a surface of {material.grid} x {material.grid} networks: {name}")
        plane = subnetwork_plane(ensemble)
        cut = surface(plane, material.test, material.grid, refresh=material.train)
        quality = member_figures(ensemble, material.test)
        apart.append(quality["disagreement"])
        found.append(
            f"{name}: members disagree on {100 * quality['disagreement']:.1f} % of the test rows; each has an accuracy "
            f"of {100 * quality['member_accuracy']:.1f} %, together {100 * quality['accuracy']:.1f} %. "
            f"{_between(cut)}"
        )
        hints = {label: [f"step {step:,}" for step in own.steps] for label, own in zip(names, told, strict=True)}
        points = dict(zip(names, embedding(told, "pca"), strict=True))
        panels = [*_panels(cut, plane.origin, names, styles), Panel(scatter_chart(points, styles, hints), "Courses")]
        caption = (
            f"{name}. The plane goes through three members; what they share is the same everywhere on it. The origin, "
            f"where all weights are zero, is {plane.origin_distance:.3g} away from the plane and is projected onto it. "
            f"{'A member is shown while the others read zeros. ' if ensemble.joint else ''}Here {cut.statistics}. "
            "Courses: what members said on the test rows along training, in the two principal components."
        )
        anchor = name.replace(" ", "-").lower()
        figures.append(Figure(f"members-{anchor}", name, caption, panels, legend=legend(styles, styles)))
    claim = (
        "Members of MIMO converge to disconnected modes and disagree, those of the naive multihead end in the same "
        "mode and are nearly equal (Havasi et al., Figures 3 and 4)."
    )
    more = apart[0] > apart[1]
    answer = f"{'More' if more else 'Not more'} in MIMO than in the naive multihead: members disagree on "
    found.insert(0, f"{answer}{100 * apart[0]:.1f} % and {100 * apart[1]:.1f} % of the test rows.")
    title = "Are the members of one network different functions?"
    return Question("subnetworks", title, claim, found, figures)


def units_of_members(material: Material) -> Question | None:
    """Which units of the MIMO network vary with whose input: MIMO, Figure 4 (left)."""
    if material.training is None:
        return None
    ensemble = material.once(members_of_one)["MIMO"][0]
    found = separation(ensemble, material.test)
    shares = found.variance / np.where(found.variance.sum(0) > 0, found.variance.sum(0), 1)
    counts = [int((found.owner == member).sum()) for member in range(MEMBERS)]
    rows = []
    for number, name in enumerate(found.layers):
        here = found.layer == number
        own = found.share[here & (found.owner >= 0)]
        rows.append([
            name, str(int(here.sum())),
            *(str(int((found.owner[here] == member).sum())) for member in range(MEMBERS)),
            f"{float((own >= OWNED).mean()) if len(own) else float('nan'):.3f}",
        ])  # fmt: skip
    names = [f"input {k + 1}" for k in range(MEMBERS)]
    styles = {name: number for number, name in enumerate(names, 2)}
    edges = np.linspace(0, 1, 21)
    curves: dict[str, Curve] = {
        name: ((edges[:-1] + edges[1:]) / 2, np.histogram(shares[k], edges)[0].astype(float))
        for k, name in enumerate(names)
    }
    most = max(float(values.max()) for _, values in curves.values())
    panels, _ = curve_panels(
        curves, styles, ("share of a unit's variance", "units"), (Axis(0, 1), Axis(0, most)),
        lambda label: f"{label}: owns {counts[names.index(label)]} units",
    )  # fmt: skip
    caption = (
        "Conditional variance of each pre-activation with respect to each member's input, as a share of the sum over "
        "inputs; a channel is a unit. Separated units lie at both ends."
    )
    header = ["Layer", "Units", *(f"owned by {k + 1}" for k in range(MEMBERS)), f"above {OWNED:g}"]
    figure = Figure("units", "Whose unit is it?", caption, panels, "wide", legend(styles, styles), header, rows)
    share = found.separated(OWNED)
    answer = "Mostly" if share > 0.5 else "Not here"
    said = [
        f"{answer}: {100 * share:.1f} % of the units have {OWNED:g} of their variance from one input; members own "
        f"{', '.join(map(str, counts))} units."
    ]
    claim = (
        "Almost all pre-activations vary with the input of one member alone: the subnetworks separate within the "
        "network (Havasi et al., Figure 4, left)."
    )
    return Question("units", "Do the members of one network use units of their own?", claim, said, [figure])


def _panels(cut: Surface, origin: np.ndarray, names: list[str], styles: dict[str, int]) -> list[Panel]:
    assert cut.accuracy is not None and cut.agreement is not None
    measured = {"accuracy": cut.accuracy}
    measured |= {f"disagreement with {name}": 1 - part for name, part in zip(names, cut.agreement, strict=True)}
    shown = dict(zip(names, map(tuple, cut.points.tolist()), strict=True))
    shown["origin, projected"] = tuple(origin.tolist())
    panels = []
    for title, values in measured.items():
        others = {other: array for other, array in measured.items() if other != title}
        picture = surface_chart(
            cut.u, cut.v, values, title, others=others, points=shown, styles=styles, titles=cut.plane.axes
        )
        panels.append(Panel(picture, title.capitalize()))
    return panels


def _between(cut: Surface) -> str:
    """How accurate networks are at the members and in their middle."""
    assert cut.accuracy is not None
    at = [(int(np.abs(cut.u - u).argmin()), int(np.abs(cut.v - v).argmin())) for u, v in cut.points]
    middle = cut.points.mean(0)
    centre = int(np.abs(cut.u - middle[0]).argmin()), int(np.abs(cut.v - middle[1]).argmin())
    own = np.array([cut.accuracy[place] for place in at])
    return (
        f"On the plane the accuracy near the members is {spread(own, percent=True)}, in their middle "
        f"{100 * cut.accuracy[centre]:.1f} %."
    )
