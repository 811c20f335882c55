"""A figure of a paper as a section of the page: its measurement has the same name.

A picture is drawn from the arrays of a `Measurement` alone, so that stored ones give the same pictures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ...report.claims import Claim, section
from ...report.figure import Curve, Figure, Panel, curve_panel, finite_range
from ...report.svg import Axis
from ..material import Material
from ..studies.findings import tell_values
from ..studies.members import ASKED, MEASURES

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
