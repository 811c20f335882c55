"""Every measurement of a figure by its name, and what is asked of its numbers: for the page, the court and Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..material import Material, material_of
from . import fort, members
from .findings import Asked
from .fort import Measurement

MEASURES: dict[str, Callable[[Material], Measurement | None]] = {**fort.MEASURES, **members.MEASURES}

ASKED: dict[str, dict[str, Asked]] = {**fort.ASKED, **members.ASKED}


def measure(name: str, runs: Any, data: Any, *, train: Any = None, **settings: Any) -> Measurement:
    """The numbers and arrays of one figure of a paper, measured on networks and data of your own.

    Args:
        name: of Fort et al. weights, functions, map, plane, tunnel, stitched, diversity, size, shift, randomness or
            chain; of MIMO subnetworks, courses, units or sparse; of Masksembles dropout; of Packed-Ensembles selection
            or sources. All but the first nine train networks, and need `training=`
        runs: trajectories or networks: a list, or an Ensemble
        data, train, settings: as for `page`

    >>> x, y = torch.randn(24, 4), torch.arange(24) % 3
    >>> found = measure("weights", [nn.Linear(4, 3), nn.Linear(4, 3)], (x, y))
    >>> found.values["cosine"] < 1, found.arrays["matrix"].shape
    (True, (2, 2))
    """
    if name not in MEASURES:
        raise ValueError(f"measure: {name!r} is unknown. Choose from {', '.join(MEASURES)}.")
    found = MEASURES[name](material_of("measure", runs, data, train=train, **settings))
    if found is None:
        raise ValueError(f"measure: these networks cannot tell {name!r}: it needs recorded training, or training=.")
    return found
