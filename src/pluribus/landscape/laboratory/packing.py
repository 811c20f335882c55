"""What Packed-Ensembles look at, asked about one's own network and data: sparse layers, alpha, criteria, widths."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

from ...report.claims import Claim, section
from ...report.figure import Curve, Figure, Panel, curve_panels, finite_range, legend
from ...report.svg import Axis
from ...surgery.thinning.rescaling import thin
from ..analyses.packing import network_widths, ood_criteria, packing
from ..analyses.sparsity import layer_sparsity
from ..analyses.trained_settings import Measured
from ..material import Material
from .transitions import interval_text, measure_anew, transition_figure

ALPHAS = (1, 2, 4)
MEMBERS = 4
WIDTHS = (0.25, 0.5, 1.0, 2.0)


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
        pair, _ = curve_panels(
            curves, styles, ("share of weights that stay", f"{kind}, nats"),
            (Axis(0, 1), Axis(max(low, 1e-5), high, log=True)), str,
        )  # fmt: skip
        panels.append(Panel(pair[0].svg, kind.capitalize()))
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
    return section("sparsity", SPARSE, SPARSE_CLAIM, [answer, f"With half the weights, in nats: {told}."], [figure])


COLUMNS = ("measured", "divergence", "bound")

SPARSE = "How far is a layer from a sparse version of itself?"

SPARSE_CLAIM = (
    "The divergence of a layer's outputs from those of its sparse approximation is bounded, and the bound falls fast "
    "as more weights stay (Laurent et al., Packed-Ensembles, Proposition C.1 and Figure 5)."
)


def packed_settings(material: Material) -> Claim | None:
    """Packed-Ensembles for several alpha, and criteria for outside data: Figures 6 and 7, Tables 5 and 6."""
    found = measure_anew(material, packing, "packed networks", alphas=ALPHAS, sizes=(MEMBERS,))
    if found is None:
        return None
    names = [f"alpha {alpha:g}, gamma 1, M {MEMBERS}" for alpha in ALPHAS]
    figures = [
        transition_figure(
            "packing",
            "Wider and wider members",
            found,
            names,
            list(map(float, ALPHAS)),
            "alpha",
            ("single", "deep"),
            f"{MEMBERS} members, gamma 1.",
            "Packed-Ensembles",
        )  # fmt: skip
    ]
    best = max(ALPHAS, key=lambda alpha: found.interval(f"alpha {alpha:g}, gamma 1, M {MEMBERS}", "accuracy").value)
    said = [
        f"The accuracy is largest at alpha = {best:g}; at alpha = 2 it is "
        f"{interval_text(found.difference(names[1], 'deep', 'accuracy'))} from that of independent networks, and "
        f"{interval_text(found.difference(names[1], 'single', 'accuracy'))} from that of one.",
    ]
    if material.outside is not None:
        criteria = ood_criteria(found, "auroc")
        header = ["Setting", *(name.replace("_", " ") for name in next(iter(criteria.values())))]
        rows = [[setting, *(interval_text(one) for one in own.values())] for setting, own in criteria.items()]
        caption = "How well each criterion detects out-of-distribution (OOD) rows: AUROC with its interval (Table 6)."
        figures.append(Figure("criteria", "Criteria for OOD data", caption, header=header, rows=rows))
        wins = {setting: max((one.value, name) for name, one in own.items())[1] for setting, own in criteria.items()}
        said.append(
            "Best criterion for OOD data: "
            + "; ".join(f"{setting}: {name.replace('_', ' ')}" for setting, name in wins.items())
            + "."
        )
    claim = (
        "Packed-Ensembles with alpha = 2 match independent networks; a larger alpha helps little once members are "
        "wide enough (Laurent et al., Figures 6 and 7, Table 5)."
    )
    return section("packing", "How wide must packed members be?", claim, said, figures)


def widths_of_one(material: Material) -> Claim | None:
    """Accuracy and outside data for one network at several widths: Packed-Ensembles, Figure 8."""

    def measure(model: nn.Module, train: Any, test: Any, **options: Any) -> Measured:
        return network_widths(lambda width: thin(model, width, train[0][:2]), train, test, widths=WIDTHS, **options)

    found = measure_anew(material, measure, "one network at several widths")
    if found is None:
        return None
    names = [f"width {width:g}" for width in WIDTHS]
    titles = {"accuracy": "accuracy", "aupr msp": "AUPR, outside", "nll": "NLL", "ece": "ECE"}
    figure = transition_figure(
        "widths", "Wider and wider", found, names, list(WIDTHS), "width", (),
        "One network with its hidden widths multiplied by a factor.", "one network", titles,
    )  # fmt: skip
    gain, loss = (found.difference(a, b, "accuracy") for a, b in ((names[-1], names[0]), (names[1], names[2])))
    answer = "It rises" if gain.low > 0 else "It falls" if gain.high < 0 else "Undecided"
    said = [
        f"{answer}: from {WIDTHS[0]:g} to {WIDTHS[-1]:g} of the width the accuracy changes by {interval_text(gain)}; "
        f"half the width against the full width: {interval_text(loss)}."
    ]
    if "aupr msp" in found.figures:
        change = found.difference(names[-1], names[0], "aupr msp")
        told = "tells them apart" if change.low > 0 or change.high < 0 else "does not tell widths apart"
        said.append(f"The AUPR of OOD data {told}: it changes by {interval_text(change)}.")
    claim = (
        "Accuracy increases with the width of a network, but not by much, while AUPR is nearly constant: the width "
        "can be split between members (Laurent et al., Figure 8)."
    )
    return section("widths", "What does more width buy one network?", claim, said, [figure])
