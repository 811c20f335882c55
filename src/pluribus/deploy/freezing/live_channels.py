"""Which channels a member's masks let through: a channel that none of its layers reads is not computed.

Backwards through the graph: a masked layer reads the channels of its mask; what keeps channels apart (ReLU, sums,
pooling, normalisation with fixed statistics, and so the residual stream) needs of its inputs what is needed of it;
everything else needs all. The paper of Masksembles names this as future work.

    conv1 (3 outputs) -> relu -> conv2, whose mask of this member is 1 0 1

conv2 reads channels 0 and 2, ReLU keeps channels apart, so conv1 computes these two: its layout is [0, 2]. Side by side
all members need equally many channels: one whose mask is 1 0 0 gets the layout [0, -1], where -1 stands for zeros.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from .folding import Network, Plain
from .module_code import known_name

Channels = Tensor | None  # the channels that are computed, in order, -1 for padding; None: all


def axes_of(network: Network) -> dict[fx.Node, int]:
    """The dimension of each value that holds a layer's channels, as far as they are kept apart."""
    axes: dict[fx.Node, int] = {}
    for node in network.graph.nodes:
        if node not in network.shapes:
            continue
        ndim = len(network.shapes[node])
        if node in network.layers:
            axes[node] = ndim - 1 if network.layers[node].is_linear else 1
            continue
        kind, sources = kind_of(node, network), [n for n in node.all_input_nodes if n in network.shapes]
        known = {axes[source] for source in sources if source in axes}
        if kind in ("elementwise", "norm") and len(known) == 1:
            if all(network.shapes[source] == network.shapes[node] for source in sources):
                axes[node] = known.pop()
        elif kind in ("pool", "flatten") and known == {1}:
            axes[node] = 1
    return axes


def live(network: Network, axes: dict[fx.Node, int], i: int) -> dict[fx.Node, Tensor]:
    """For member i, the channels of each value that are read: booleans; values that are not listed: all."""
    need: dict[fx.Node, Tensor] = {}
    whole: set[fx.Node] = set()

    def ask(node: fx.Node, channels: Tensor | None, axis: int | None) -> None:
        if channels is None or axes.get(node) != axis or len(channels) != network.shapes[node][axes[node]]:
            whole.add(node)
        elif node in need:
            need[node] = need[node] | channels
        else:
            need[node] = channels

    for node in reversed(network.graph.nodes):
        if node in network.absorbed:
            continue
        grouped = node in network.layers and network.layers[node].groups > 1
        if node not in network.own or node in whole or grouped:
            need.pop(node, None)
            whole.add(node)
        _ask_inputs(network, axes, i, node, need.get(node), ask)
    return {node: need[node] for node in need if node not in whole}


def _ask_inputs(
    network: Network, axes: dict[fx.Node, int], i: int, node: fx.Node, wanted: Tensor | None, ask: Any
) -> None:
    axis = axes.get(node)
    if node in network.layers:
        layer = network.layers[node]
        source, source_axis = network.source(layer)
        ask(source, layer.plain(i).mask, source_axis)
        if layer.added is not None:
            ask(layer.added, wanted, axis)
        return
    if node in network.norms:
        ask(network.norms[node].node.all_input_nodes[0], wanted, axis)
        return
    kind = kind_of(node, network)
    for source in node.all_input_nodes:
        if kind == "size":
            continue
        if wanted is None or axis is None or kind == "other":
            ask(source, None, None)
        elif kind == "flatten":
            ask(source, wanted.reshape(network.shapes[source][1], -1).any(1), 1)
        else:
            ask(source, wanted, axis)


def widen_to_features(network: Network, need: dict[fx.Node, Tensor]) -> dict[fx.Node, Tensor]:
    """What is needed, with all features of a channel behind a flattening: they come together."""
    wide = dict(need)
    for node in network.graph.nodes:
        if node in wide and node not in network.layers and kind_of(node, network) == "flatten":
            source = node.all_input_nodes[0]
            if source in wide:
                each = network.shapes[node][1] // network.shapes[source][1]
                wide[node] = wide[source].repeat_interleave(each)
            else:
                del wide[node]
    return wide


def layouts_of(network: Network, axes: dict[fx.Node, int], alike: bool = False) -> list[dict[fx.Node, Tensor]]:
    """For each member the channels that each value holds; values that are not listed hold all.

    Args:
        axes: as `axes_of` gives them
        alike: add channels of zeros until all members have equally many
    """
    if not any(plain.mask is not None for layer in network.layers.values() for plain in layer.members):
        return [{} for _ in range(network.size)]  # masks alone leave channels out
    needs = [widen_to_features(network, live(network, axes, i)) for i in range(network.size)]
    found: list[dict[fx.Node, Tensor]] = [{} for _ in needs]
    for node in network.graph.nodes:
        masks = [need.get(node) for need in needs]
        if all(mask is None for mask in masks):
            continue
        total = network.shapes[node][axes[node]]
        counts = [total if mask is None else int(mask.sum()) for mask in masks]
        for member, mask, count in zip(found, masks, counts, strict=True):
            length = max(counts) if alike else max(count, 1)
            if mask is not None and length < total:
                member[node] = number_channels(mask, length)
    if alike:  # a value is sliced for all members or for none
        for node in set().union(*found):
            if not all(node in member for member in found):
                for member in found:
                    member.pop(node, None)
    return found


def number_channels(mask: Tensor, length: int) -> Tensor:
    """The numbers of the channels, padded with -1."""
    numbers = mask.nonzero().flatten()
    return F.pad(numbers, (0, max(0, length - len(numbers))), value=-1)


def read_channels(mask: Tensor | None) -> Channels:
    """The channels that a layer with this mask reads, as `layouts_of` numbers them; None: all."""
    length = 0 if mask is None else max(int(mask.sum()), 1)
    return None if mask is None or length == len(mask) else number_channels(mask, length)


def slice_channels(tensor: Tensor, dim: int, channels: Channels) -> Tensor:
    """The slices of these channels; zeros for padding."""
    if channels is None:
        return tensor
    taken, padding = tensor.index_select(dim, channels.clamp(min=0).to(tensor.device)), channels < 0
    if padding.any():
        shape = [-1 if d == dim else 1 for d in range(tensor.ndim)]
        taken = taken.masked_fill(padding.to(tensor.device).reshape(shape), 0.0)
    return taken


def slice_layer(plain: Plain, reads: Channels, channels: Channels) -> tuple[Tensor, Tensor | None]:
    """Weight and bias for some of the inputs and outputs."""
    weight = plain.weight
    if plain.mask is not None:
        weight = weight * plain.mask.to(weight).reshape(1, -1, *[1] * (weight.ndim - 2))
    weight = slice_channels(slice_channels(weight, 1, reads), 0, channels)
    return weight, None if plain.bias is None else slice_channels(plain.bias, 0, channels)


def steps(given: Channels, wanted: Channels) -> Tensor | None:
    """Where the wanted channels are in a value that holds the given ones; None: just so."""
    if wanted is None:
        assert given is None, "a value that is read whole is held whole"
        return None
    if given is None:
        return wanted.clamp(min=0)
    if torch.equal(given, wanted):
        return None
    places = {int(channel): place for place, channel in enumerate(given)}
    return torch.tensor([places.get(int(channel), 0) if channel >= 0 else 0 for channel in wanted])


def kind_of(node: fx.Node, network: Network) -> str:
    """How a node treats channels: "layer", "elementwise", "norm", "pool", "flatten", "size" or "other"."""
    if node in network.norms or node in network.layers:
        return "norm" if node in network.norms else "layer"
    if node.op == "call_module":
        return _kind_of_module(node, network)
    return _kind_of_function(node, network) if node.op in ("call_function", "call_method") else "other"


def _kind_of_module(node: fx.Node, network: Network) -> str:
    module: Any = network.module(node)
    kind = network.kind(node)
    if kind in ELEMENTWISE_MODULES:
        return "elementwise"
    if kind in POOL_MODULES and _ndim(node, network) > 2:
        return "pool"
    flattens = kind is nn.Flatten and module.start_dim == 1 and module.end_dim == -1
    return "flatten" if flattens else "other"


def _kind_of_function(node: fx.Node, network: Network) -> str:
    name = known_name(node)
    if name in ELEMENTWISE:
        return "elementwise"
    if _is_size(node, name):
        return "size"
    if name in ("flatten", "view", "reshape") and _flattens(node, network):
        return "flatten"
    pools = name.lstrip("_") in POOLS and _ndim(node, network) > 2
    return "pool" if pools or (name == "mean" and _is_spatial_mean(node, network)) else "other"


def _is_size(node: fx.Node, name: str) -> bool:
    """Whether only the number of rows is read."""
    if name == "size":
        return bool(node.args[1:] == (0,))
    firsts = (user.target is operator.getitem and user.args[1] == 0 for user in node.users)
    return name == "getattr" and node.args[1] == "shape" and all(firsts)


def _ndim(node: fx.Node, network: Network) -> int:
    return len(network.shapes.get(node.all_input_nodes[0], ()))


def _flattens(node: fx.Node, network: Network) -> bool:
    source = node.all_input_nodes[0]
    before, after = network.shapes.get(source, ()), network.shapes.get(node, ())
    dynamic = node.target in (torch.flatten, "flatten") or (len(node.args) == 3 and node.args[2] == -1)
    return bool(dynamic and len(before) > 2 and after == (before[0], prod(before[1:])))


def _is_spatial_mean(node: fx.Node, network: Network) -> bool:
    before, after = network.shapes.get(node.all_input_nodes[0], ()), network.shapes.get(node, ())
    dims: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", ())
    dims = dims if isinstance(dims, Sequence) else (dims,)
    if not all(isinstance(d, int) for d in dims) or len(before) < 3 or len(node.all_input_nodes) != 1:
        return False
    return {d % len(before) for d in dims} == set(range(2, len(before))) and after[:2] == before[:2]


ELEMENTWISE_MODULES = {
    *(nn.ReLU, nn.ReLU6, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.LeakyReLU, nn.ELU, nn.Hardswish, nn.Hardsigmoid),
    *(nn.Mish, nn.Softplus, nn.Hardtanh, nn.SELU, nn.CELU, nn.Dropout),
}

POOL_MODULES = {
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
    *(nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d),
}

ELEMENTWISE = {  # functions, operators and methods by name
    *("add", "sub", "mul", "div", "truediv", "neg", "square", "abs", "clamp", "relu", "relu6", "gelu", "silu"),
    *("hardswish", "hardsigmoid", "leaky_relu", "elu", "mish", "tanh", "sigmoid", "softplus", "hardtanh", "selu"),
    "dropout",
}

POOLS = {f"{kind}_pool{n}d" for kind in ("max", "avg", "adaptive_avg", "adaptive_max") for n in (1, 2, 3)}
