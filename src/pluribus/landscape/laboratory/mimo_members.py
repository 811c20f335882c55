"""Are the members of one MIMO network different functions, and do they use units of their own?"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ...methods import mimo, multihead
from ...report.charts.landscape import scatter_chart, surface_chart
from ...report.claims import Claim, section
from ...report.figure import Curve, Figure, Panel, curve_panel, legend
from ...report.svg import Axis
from ..analyses.member_trajectories import courses
from ..analyses.separation import separation
from ..analyses.setting_sweeps import member_figures
from ..material import Material, spread
from ..planes import Surface, surface
from ..similarity import embedding
from ..subnetworks import subnetwork_plane

MEMBERS = 3  # of one network, so that a plane goes through them

OWNED = 0.9  # of a unit's variance, from one input: it is separated


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


def subnetworks_apart(material: Material) -> Claim | None:
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
            "Courses: the members' predictions on the test rows during training, in their two principal components."
        )
        anchor = name.replace(" ", "-").lower()
        figures.append(Figure(f"members-{anchor}", name, caption, panels, legend=legend(styles, styles)))
    claim = (
        "Members of MIMO converge to disconnected modes and disagree; those of the naive multihead end in the same "
        "mode and are nearly equal (Havasi et al., Figures 3 and 4)."
    )
    more = apart[0] > apart[1]
    answer = f"{'More' if more else 'Not more'} in MIMO than in the naive multihead: members disagree on "
    found.insert(0, f"{answer}{100 * apart[0]:.1f} % and {100 * apart[1]:.1f} % of the test rows.")
    title = "Do the members of MIMO differ more than those of a multihead?"
    number = f"Disagreement {100 * apart[0]:.1f} % and {100 * apart[1]:.1f} %"
    return section("subnetworks", title, claim, found, figures, "yes" if more else "no", number)


def units_of_members(material: Material) -> Claim | None:
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
    panel = curve_panel(
        curves, styles, ("share of a unit's variance", "units"), (Axis(0, 1), Axis(0, most)),
        lambda label: f"{label}: owns {counts[names.index(label)]} units",
    )  # fmt: skip
    caption = (
        "Conditional variance of each pre-activation with respect to each member's input, as a share of the sum over "
        "inputs; a channel is a unit. Separated units lie at both ends."
    )
    header = ["Layer", "Units", *(f"owned by {k + 1}" for k in range(MEMBERS)), f"above {OWNED:g}"]
    figure = Figure("units", "Whose unit is it?", caption, [panel], "wide", legend(styles, styles), header, rows)
    share = found.separated(OWNED)
    answer = "Mostly" if share > 0.5 else "Not here"
    said = [
        f"{answer}: {100 * share:.1f} % of the units get at least {OWNED:g} of their variance from one input; members "
        f"own {', '.join(map(str, counts))} units."
    ]
    claim = (
        "Almost all pre-activations vary with the input of only one member: the subnetworks separate within the "
        "network (Havasi et al., Figure 4, left)."
    )
    return section("units", "Do the members of one network use units of their own?", claim, said, [figure])


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
        f"On the plane the accuracy near the members is {spread(own, percent=True)}, halfway between "
        f"them {100 * cut.accuracy[centre]:.1f} %."
    )
