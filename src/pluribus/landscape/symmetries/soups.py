"""Averages of networks that were trained apart, once their units are in one order."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from ...core.ensemble import Ensemble
from ..averaging import weight_average
from ..common.arguments import check_arguments
from ..common.networks import networks_of
from .matching import align
from .symmetry_search import permutations

ROUNDS = 10


@check_arguments()
def soup(
    models: Any,
    example: Any,
    by: Literal["weights", "activations"] = "weights",
    *,
    data: Any = None,
    generator: torch.Generator | None = None,
) -> Ensemble:
    """An ensemble of one: the mean of networks whose units were brought into the order of the first (Git Re-Basin).

    With three networks or more, by weights, each is then aligned with the mean of the others, until no order changes.
    Networks that were trained from one start have one order already: for those, `weight_average` is enough.

    Shapes:
        output of the ensemble: (1, batch, *outputs)

    Args:
        models: networks of one architecture: a list, an Ensemble or a Trajectory
        example, by: as for `align`
        data: training data on which statistics of batch normalisation are estimated anew
        generator: where random numbers come from; by default torch's own generator

    >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
    <torch._C.Generator object at ...>
    >>> x = torch.randn(16, 3)
    >>> models = [nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)) for _ in range(3)]
    >>> soup(models, x).predict(x).members.shape
    torch.Size([1, 16, 2])
    """
    held = networks_of("soup", models)
    if len(held) < 2:
        raise ValueError(f"soup: needs at least 2 networks to average, but there is {len(held)}.")
    networks = list(held)
    groups = permutations(networks[0], example)
    options: Any = {"groups": groups, "generator": generator}
    aligned = [networks[0], *(align(one, networks[0], example, by, **options) for one in networks[1:])]
    if by == "weights" and len(aligned) > 2:
        aligned = _align_to_mean(aligned, example, options)
    made = weight_average(aligned, len(aligned), data=data)
    made.task, made.class_dim = held.task or made.task, held.class_dim
    made.notes.append(f"soup of {len(aligned)} networks, aligned by {by}")
    return made


def _align_to_mean(networks: list[nn.Module], example: Any, options: Any) -> list[nn.Module]:
    """The networks when each is in the order that fits the mean of the others best, or nearly so."""
    for _ in range(ROUNDS):
        before = _spread(networks)
        for i in range(len(networks)):
            others = networks_of("soup", [one for k, one in enumerate(networks) if k != i])
            mean = others.build(others.mix(np.full(len(others), 1 / len(others))))
            networks[i] = align(networks[i], mean, example, **options)
        if not _spread(networks) < before * (1 - 1e-6):
            break
    return networks


def _spread(networks: list[nn.Module]) -> float:
    weights = networks_of("soup", networks).weights
    return float((weights - weights.mean(0)).square().sum())
