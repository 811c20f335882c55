"""Parameters and mult-adds of the papers' networks, counted on networks that the methods themselves make."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ... import models
from ...deploy.budget.counting import cost
from ...methods import METHODS
from ...methods.facts import call_method
from .stored_parts import Given, InParts, Part, Stored

SIDES = {"cifar": 32, "imagenet": 224}

LATE = {"stride_on": "second"}  # with which the mult-adds of the paper's Wide-ResNets come out


def counted_row(
    method: str, network: str, classes: int = 10, size: int = 4, options: Any = None, **settings: Any
) -> Part:
    """A network of a method, to be counted."""
    said = "".join(f"-{key}={value}" for key, value in {**(options or {}), **settings}.items())
    given = {"method": method, "network": network, "classes": classes, "size": size}
    name = f"{method}-{size}-{network}-{classes}{said}".replace("*", "").replace("/", "")
    return Part(name, {**given, "options": options or {}, "settings": settings})


def count_network(part: Part, data: Path | None, needed: Mapping[str, Stored]) -> Given:
    """Parameters, mult-adds of one example, and passes of the network for one prediction."""
    given = part.settings
    side = SIDES[given["options"].get("style", "cifar")]
    with torch.device("meta"):
        network: nn.Module = getattr(models, given["network"])(given["classes"], **given["options"])
        x: Tensor = torch.empty(1, 3, side, side)
    ensemble = call_method(METHODS[given["method"]], network, given["size"], given["settings"], x)
    found = cost(ensemble, x)
    return {"parameters": found.parameters, "mult_adds": found.mult_adds, "passes": found.forward_passes}, {}


def counting_experiment(name: str, rows: Mapping[str, Part], smoke: str | tuple[str, ...]) -> InParts:
    """The experiment that counts the rows of a table; at the scale "smoke" those whose names end so."""
    return InParts(name, partial(_plan, dict(rows), smoke), count_network)


def _plan(rows: Mapping[str, Part], smoke: str | tuple[str, ...], scale: str) -> list[Part]:
    chosen = [part for row, part in rows.items() if scale != "smoke" or row.endswith(smoke)]
    return list({part.name: part for part in chosen}.values())
