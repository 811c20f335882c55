"""Layers of the runs: do they represent the same thing, and how far is one from a sparse version of itself?"""

from __future__ import annotations

import numpy as np

from ...report.charts.landscape import heat_map
from ...report.claims import Claim, section, yes_or_no
from ...report.figure import Curve, Figure, Panel, curve_panel, finite_range, legend
from ...report.svg import Axis
from ..analyses.sparsity import layer_sparsity
from ..material import Material, spread
from ..representations import cka, layer_names


def layer_similarity(material: Material) -> Claim:
    """CKA between the layers of two runs."""
    material.say("layers of two solutions")
    first, second = material.solutions[:2]
    names = layer_names(first, material.test)
    across = cka(first, second, material.test, debiased=True)
    own = cka(first, data=material.test, debiased=True)
    same = np.diag(across)
    nearest = int((np.nanargmax(across, 1) == np.arange(len(names))).sum()) if np.isfinite(across).all() else 0
    ends = (min(0.0, float(np.nanmin(across))), 1.0)
    parts = [(name, [""]) for name in names] if len(names) <= 20 else [("layers", names)]
    panels = [
        Panel(heat_map(matrix, parts, "CKA", ends=ends), title)
        for matrix, title in ((across, "run 1 (rows) and run 2"), (own, "run 1 with itself"))
    ]
    found = [
        f"CKA of a layer with the same layer of the other run is {spread(same)}; for {nearest} of {len(names)} layers "
        "that is also the most similar layer.",
        f"Layer by layer: {', '.join(f'{name} {value:.2f}' for name, value in zip(names, same, strict=True))}.",
    ]
    caption = "Linear CKA, debiased, on test rows: 1 where outputs are equal up to a rotation and a scale."
    figure = Figure("layers", "Layers of two runs", caption, panels)
    claim = (
        "Layers of networks trained from different initialisations correspond to each other, early layers "
        "more than late ones (Kornblith et al., 2019)."
    )
    answer = yes_or_no([nearest == len(names), nearest > 0])
    number = f"The same layer is the most similar one for {nearest} of {len(names)} layers"
    return section("layers", "Do the layers of two runs correspond?", claim, found, [figure], answer, number)


def sparse_layers(material: Material) -> Claim | None:
    """How far each layer is from itself with a share of its weights: Packed-Ensembles, Proposition C.1 and Figure 5."""
    material.say("layers with a share of their weights")
    try:
        found = layer_sparsity(material.solutions[0], material.test, seed=material.seed)
    except ValueError as error:
        return section("sparsity", SPARSE, SPARSE_CLAIM, [f"There is nothing to look at: {error}"])
    shown = {name: one for name, one in list(found.items())[:6]}
    styles = {name: number for number, name in enumerate(shown, 2)}
    low, high = finite_range(value for one in shown.values() for kind in COLUMNS for value in one[kind])
    panels = []
    for kind in ("measured", "bound"):
        curves: dict[str, Curve] = {name: (one["shares"], one[kind]) for name, one in shown.items()}
        axes = Axis(0, 1), Axis(max(low, 1e-5), high, log=True)
        titles = "share of weights that stay", f"{kind}, nats"
        panels.append(curve_panel(curves, styles, titles, axes, str, heading=kind.capitalize()))
    above = {name: float((one["measured"] > one["bound"]).mean()) for name, one in found.items()}
    worst = max(float((one["measured"] / one["bound"]).max()) for one in found.values())
    over = [name for name, share in above.items() if share > 0]
    answer = (
        f"Not below the bound in every layer: {', '.join(over)} exceed it, by a factor of {worst:.2g} at most; the "
        "proposition assumes that the inputs of a layer are independent, which they are not here."
        if over
        else f"Below the bound in all {len(found)} layers: the measured divergence is at most {worst:.2g} of it."
    )
    half = {name: float(np.interp(0.5, one["shares"], one["measured"])) for name, one in found.items()}
    told = ", ".join(f"{name} {value:.3g}" for name, value in half.items())
    caption = (
        "Divergence of a layer's outputs from those with a random share of its weights, between Gaussians with "
        "their moments, on test rows; and the bound from the mean and variance of each input. Means over the units of "
        f"a layer{f'; the first {len(shown)} of {len(found)} layers' if len(shown) < len(found) else ''}."
    )
    rows = [
        [name, *(f"{np.interp(p, one['shares'], one[kind]):.4g}" for p in (0.25, 0.5) for kind in COLUMNS)]
        for name, one in found.items()
    ]
    header = ["Layer", *(f"{kind} at p = {p:g}" for p in (0.25, 0.5) for kind in COLUMNS)]
    figure = Figure(
        "sparsity", "Layers and their sparse approximations", caption, panels, "wide", legend(shown, styles),
        header, rows,
    )  # fmt: skip
    held = yes_or_no([name not in over for name in found])
    number = f"At most {worst:.2g} of the bound"
    said = [answer, f"With half the weights, in nats: {told}."]
    return section("sparsity", SPARSE, SPARSE_CLAIM, said, [figure], held, number)


COLUMNS = ("measured", "divergence", "bound")

SPARSE = "Does the bound for sparse layers hold?"

SPARSE_CLAIM = (
    "The divergence of a layer's outputs from those of its sparse approximation is bounded, and the bound falls fast "
    "as more weights stay (Laurent et al., Packed-Ensembles, Proposition C.1 and Figure 5)."
)
