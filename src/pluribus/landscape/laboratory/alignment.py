"""Is it one valley but for the order of units? The straight line between two runs before and after alignment."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from torch import nn

from ...report.claims import Claim, section
from ...report.figure import Curve, Figure, Panel, curve_panel, finite_range, legend
from ...report.svg import Axis
from ..material import Material
from ..paths import Along, along, line
from ..symmetries.groups import Groups
from ..symmetries.matching import align
from ..symmetries.symmetry_search import permutations

STYLES = {"as trained": 2, "aligned by weights": 3, "aligned by activations": 4}

TITLE = "Is it one valley, up to the order of units?"

CLAIM = (
    "Hidden units can be permuted without changing the function; once the units of two networks are aligned, the "
    "straight line between them crosses a lower ridge, or none (Ainsworth et al., Git Re-Basin, 2023)."
)


def aligned_runs(material: Material) -> Claim:
    """The straight line between the solutions of two runs, as they are and with their units in one order."""
    material.say("the order of units")
    first, second = material.solutions[:2]
    try:
        groups = permutations(first, material.train[0])
    except ValueError as error:
        return section("alignment", TITLE, CLAIM, [f"There is nothing to align: {error}"])
    ways = {"as trained": first, "aligned by weights": align(first, second, material.train[0], groups=groups)}
    with suppress(ValueError):  # of networks whose activations cannot be compared, such as one row at a time
        ways["aligned by activations"] = align(first, second, material.train[0], "activations", groups=groups)
    return alignment_question(ways, second, groups, material.test, material.train)


def alignment_question(
    ways: Mapping[str, nn.Module], reference: nn.Module, groups: Groups, data: Any, refresh: Any, points: int = 25
) -> Claim:
    """Loss and accuracy along the lines from several forms of one network to another, and the ridge on each.

    Args:
        ways: names in STYLES, each with the network in that order; the first is as it was trained
        refresh: training data, for the statistics of batch normalisation along the line
    """
    found = {name: along(line(model, reference), data, points, refresh=refresh) for name, model in ways.items()}
    heights = {name: max(one.barrier, 0.0) for name, one in found.items()}
    before, *after = heights.items()
    best = min(after, key=lambda pair: pair[1])
    answer = "yes" if best[1] < 0.1 * before[1] else "partly" if best[1] < 0.5 * before[1] else "no"
    said = [
        f"{answer.capitalize()}: along the straight line the loss rises {before[1]:.3g} above its ends, and "
        + ", ".join(f"{value:.3g} once units are {name}" for name, value in after)
        + ".",
        f"{groups.number_in_words} of hidden units can be permuted, in 10^{groups.log10_orders:.0f} orders.",
    ]
    caption = (
        "From the first network (0), with its units in their trained order or in that of the second, to the second "
        f"(1). The function at 0 is the same in every case. Here {found[before[0]].statistics}."
    )
    panels = [_panel(name, found) for name in ("loss", "accuracy") if getattr(found[before[0]], name) is not None]
    rows = [[name, f"{one.loss[0]:.4f}", f"{one.loss.max():.4f}", f"{heights[name]:.4f}"]
            for name, one in found.items() if one.loss is not None]  # fmt: skip
    header = ["Order of units", "Loss of the first", "Largest loss", "Ridge"]
    figure = Figure("alignment", "Along the line", caption, panels, "wide", legend(found, STYLES), header, rows)
    number = f"Rise of the loss {best[1]:.3g} once aligned, {before[1]:.3g} before"
    return section("alignment", TITLE, CLAIM, said, [figure], answer, number)


def _panel(name: str, found: Mapping[str, Along]) -> Panel:
    curves: dict[str, Curve] = {label: (one.t, getattr(one, name)) for label, one in found.items()}
    y = finite_range(value for _, values in curves.values() for value in values)
    return curve_panel(
        curves, STYLES, ("from the first network to the second", name), (Axis(0, 1), Axis(*y)),
        lambda label: f"{name}, {label}: at most {max(curves[label][1]):.3g}",
    )  # fmt: skip
