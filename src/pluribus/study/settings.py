"""What a run depends on, in plain values: what it shares with the runs that it is compared with, and its own."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

PUBLISHED = "published"  # the weights that timm has for its network, from the local cache

MEMBERS = 4  # where neither the study nor its recipe says how many


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What is the same for all runs that are compared.

    Args:
        size: how many members; None: as many as the recipe has for the method, or MEMBERS
        recipe, training: a name in RECIPES, and what is changed in it, such as {"epochs": 5}
        source: further arguments of `data.load`: folder, target, outside, shifted, image_size, broken, ...
        corruptions, severities, shift_rows: how the test part is shifted, and how many of its rows
        threads: of each run; the same for any number of jobs, so that results are the same
        weights: a file of trained weights that runs start from, or PUBLISHED; empty: networks are drawn anew
    """

    size: int | None = None
    width: float = 1.0
    dropout: float | None = None
    recipe: str = "default"
    training: Mapping[str, Any] = field(default_factory=dict)
    source: Mapping[str, Any] = field(default_factory=dict)
    corruptions: Sequence[str] = ()
    severities: Sequence[int] = (1, 2, 3, 4, 5)
    shift_rows: int = 1000
    threads: int = 1
    device: str = "cpu"
    weights: str = ""

    def plain(self) -> dict[str, Any]:
        """As plain values, without `weights` where there are none: folders of before know nothing of them."""
        values = json.loads(json.dumps(dataclasses.asdict(self), default=list))
        return values if self.weights else {key: value for key, value in values.items() if key != "weights"}


def differing_fields(mine: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """The entries that differ, by name; of entries with entries of their own, such as "training", those within.

    >>> differing_fields({"seed": 0, "training": {"lr": 0.1}}, {"seed": 1, "training": {"lr": 0.1, "epochs": 3}})
    ['seed', 'epochs']
    """
    names = []
    for key, value in mine.items():
        other = found.get(key)
        if isinstance(value, dict) and isinstance(other, dict):
            names += [name for name in {**value, **other} if value.get(name) != other.get(name)]
        elif value != other:
            names.append(key)
    return names


@dataclass(frozen=True)
class Run(Conditions):
    """Everything that a result depends on; plain values only.

    Args:
        model: a name (see `models.by_name.build_network`); "auto": a small network that fits the data
        method: the name of a method, or of a baseline that one states
        label: what tables call it; runs that differ by their seed only have the same label
        settings: arguments of the method
    """

    data: str = "digits"
    model: str = "auto"
    method: str = "single"
    label: str = "single"
    settings: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0

    @property
    def name(self) -> str:
        """A name for the run's file: readable, and unlike that of any other run."""
        text = json.dumps(self.plain(), sort_keys=True)
        readable = re.sub(r"[^\w.=+-]+", "-", f"{self.data}-{self.label}-seed={self.seed}").strip("-")[:80]
        return f"{readable}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    @property
    def kind(self) -> str:
        """The name that all runs share that differ by their seed only."""
        return dataclasses.replace(self, seed=0).name
