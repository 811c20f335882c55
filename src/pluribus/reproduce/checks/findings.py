"""Checks of what is measured for several seeds: numbers with bars, told by intervals over seeds, for every network."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...landscape.laboratory.exploration import SECTIONS
from ...landscape.studies import members as measures
from ...landscape.studies.findings import judge_values
from ...report.claims import ClaimVerdict
from ...report.figure import Figure
from ..experiments.stored_parts import Stored

Found = Mapping[str, Stored]

ASKED = {name: one for own in measures.ASKED.values() for name, one in own.items()} | {
    "harder": (
        "on a harder problem independent solutions stand out more from the best subspace",
        "share of the attainable diversity, independent - best subspace, harder - easier problem", 0.0, False,
    ),
}  # fmt: skip

NETWORKS = {
    "small_cnn": "SmallCNN",
    "medium_cnn": "MediumCNN",
    "resnet20": "ResNet20v1",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "imagenet": "ImageNet",
}


def check_measured(
    names: tuple[str, ...],
    shown: tuple[str, ...],
    printed: Mapping[str, str] | None = None,
    derive: Callable[[Found], Found] = lambda found: found,
) -> Callable[[Found, Mapping[str, Any]], ClaimVerdict]:
    """The check of an item: every number on its side of the bar, for every network; pictures are of the first seed."""

    def check(found: Found, published: Mapping[str, Any]) -> ClaimVerdict:
        asked, values = {}, {}
        for network, parts in by_network(derive(found)).items():
            where = f", {NETWORKS.get(network, network)}" if network else ""
            for name in names:
                claim, *rest = ASKED[name]
                asked[f"{name}{where}"] = (f"{claim}{where}", *rest)
                own = [part.figures.get("values", {}) for part in parts.values()]
                values[f"{name}{where}"] = [one[name] for one in own if name in one]
        return judge_values(asked, values, _pictures(found, shown), printed)  # type: ignore[arg-type]

    return check


def by_network(found: Found) -> dict[str, dict[str, Stored]]:
    """Parts by what stands before "seed" in their names."""
    groups: dict[str, dict[str, Stored]] = {}
    for name, part in found.items():
        groups.setdefault(name.rpartition("seed")[0].rstrip("-"), {})[name] = part
    return groups


AVERAGED = ("sparse", "dropout", "selection", "sources")  # whose pictures are of means over seeds


def _arrays(parts: Sequence[Stored], start: str, averaged: bool) -> dict[str, np.ndarray]:
    """What the first seed measured, or the mean over seeds."""
    found = {key.removeprefix(start): own for key, own in parts[0].columns.items() if key.startswith(start)}
    if averaged:
        found = {key: np.mean([part.columns[start + key] for part in parts], 0) if own.dtype.kind == "f" else own
                 for key, own in found.items()}  # fmt: skip
    return found


def _pictures(found: Found, shown: tuple[str, ...]) -> list[Figure]:
    """What was measured on each network, drawn as on the laboratory's page."""
    figures = []
    for network, parts in by_network(found).items():
        for measure in shown:
            arrays = _arrays(list(parts.values()), f"{measure} ", measure in AVERAGED)
            for figure in SECTIONS[measure].draw(arrays) if arrays else []:
                where = f", {NETWORKS.get(network, network)}" if network else ""
                name = f"{figure.name}{network and '-'}{network}"
                figures.append(dataclasses.replace(figure, name=name, title=f"{figure.title}{where}"))
    return figures
