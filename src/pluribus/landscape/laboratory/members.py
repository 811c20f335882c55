"""Figures about the members of one network as sections of a page, drawn from the arrays of their measurements."""

from __future__ import annotations

from functools import partial

import numpy as np

from ...report.charts.landscape import scatter_chart, surface_chart
from ...report.figure import Curve, Figure, Panel, curve_panel, finite_range, legend
from ...report.svg import Axis
from ..studies.members import MEMBERS, OWNED
from .sections import Arrays, Section, curves_panel

KINDS = {"mimo": "MIMO", "multihead": "Naive multihead"}

NAMES = [f"member {k + 1}" for k in range(MEMBERS)]

STYLES = {name: number for number, name in enumerate([*NAMES, "origin, projected"], 2)}


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
        styles = {name: number for number, name in enumerate(names, 2)}
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
    styles = {name: number for number, name in enumerate(arrays, 2)}
    panels = [
        curves_panel({name: (own[:, 0], own[:, column]) for name, own in arrays.items()}, styles, "sparsity", title)
        for column, title in ((1, "accuracy"), (2, "log-likelihood"))
    ]
    caption = "One point for each strength of L1; sparsity is the share of weights below 1e-4."
    return [Figure("sparse", "Against sparsity", caption, panels, "wide", legend(styles, styles))]


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
