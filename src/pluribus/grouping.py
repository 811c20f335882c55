"""Packed-Ensembles' gamma: layers of a member split into groups that do not mix."""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import nn

from .layers import GroupedLinear
from .redraw import redraw
from .surgery import CONVOLUTIONS, listed, matches, pick, weighted


def groups_of(model: nn.Module, factor: float, gamma: int, where: str | None, least: int) -> dict[str, int]:
    """How many groups gamma makes in each chosen layer of a member that is `factor` as wide as the model."""
    if gamma == 1:
        return {}
    given, where = where, where or getattr(model, "takes_gamma", None)
    if not isinstance(where, str):
        raise ValueError(
            f"packed: gamma {gamma} needs to know which layers take groups, and the model does not say. "
            f"Choose with where= among: {listed(weighted(model))}."
        )
    if given is None and not any(matches(where, name) for name in weighted(model)):
        return {}  # a small model of ours, which has no layer that takes groups
    layers = {name: model.get_submodule(name) for name in pick("packed", where, weighted(model))}
    return {name: _lowered(layer, factor, gamma, least) for name, layer in layers.items()}


def _lowered(layer: nn.Module, factor: float, gamma: int, least: int) -> int:
    """Gamma, lowered until a group of a convolution has at least `least` inputs."""
    if not isinstance(layer, CONVOLUTIONS):
        return gamma
    inputs = math.ceil(layer.in_channels * factor - 1e-9) / layer.groups
    return max((g for g in range(1, gamma + 1) if inputs / g >= least), default=1)


def group_(model: nn.Module, groups: dict[str, int], generator: torch.Generator | None) -> nn.Module:
    """The model with its layers split into groups, in place."""
    for name, gamma in groups.items():
        layer = model.get_submodule(name)
        if gamma == 1:
            continue
        weight = cast(nn.Parameter, layer.weight)
        if isinstance(layer, nn.Linear):
            model.set_submodule(name, _grouped(layer, gamma, generator))
            continue
        assert isinstance(layer, CONVOLUTIONS)
        layer.groups *= gamma
        if layer.in_channels % layer.groups or layer.out_channels % layer.groups:
            raise ValueError(
                f'packed: {layer.groups} groups must divide the channels of layer "{name}", but it has '
                f"{layer.in_channels} and {layer.out_channels}. Choose another gamma, or leave it out with where=."
            )
        shape = (weight.shape[0], weight.shape[1] // gamma, *weight.shape[2:])
        layer.weight = nn.Parameter(redraw(weight, shape, generator).detach(), weight.requires_grad)
    return model


def _grouped(layer: nn.Linear, gamma: int, generator: torch.Generator | None) -> GroupedLinear:
    new = GroupedLinear(layer.in_features, layer.out_features, gamma, layer.bias is not None)
    shape = (layer.out_features, layer.in_features // gamma)
    new.weight = nn.Parameter(redraw(layer.weight, shape, generator), layer.weight.requires_grad)
    if layer.bias is not None:
        new.bias = nn.Parameter(redraw(layer.bias, generator=generator), layer.bias.requires_grad)
    return new.train(layer.training)
