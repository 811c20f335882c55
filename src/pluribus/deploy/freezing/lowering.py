"""The two forms of a frozen ensemble: a loop over the members, or the members side by side.

Take y = fc(relu(conv(x))) with two members that own everything, and a batch of n images. As a loop the graph is

    y0 = fc0(conv0(x))    y1 = fc1(conv1(x))    stack([y0, y1])

where `conv0` is a `Convolution` with its ReLU, and what no member owns would run once before. Side by side it is

    conv(x)               one convolution with the channels of both: (n, 2 * channels, ...), arranged "beside"
    fc(apart(...))        one product of matrices for both: (2, n, classes), arranged "stacked"

A node of the traced graph becomes nodes of the new one (`lower`); `Network` has folded what can be folded by then, and
`live_channels` says which channels each member computes. What has no rule side by side runs member by member ("each").
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, fx, nn

from .batching_rules import NoRule, stack_members
from .call_signature import Unfit
from .folding import Layer, Network, read_attribute
from .kernels import Affine, Convolution, Linear, StackedLinear, Take, TakeEach, frozen_parameter, max_pool2d
from .live_channels import Channels, axes_of, kind_of, layouts_of, read_channels, slice_channels, slice_layer, steps
from .module_code import known_name
from .tracing import without_dead

Slices = tuple[Tensor, Tensor | None]  # weight and bias of one member


class Writer:
    """Writes a graph whose operations are modules of its own."""

    def __init__(self, network: Network, alike: bool):
        self.network = network
        *nodes, output = network.graph.nodes
        self.nodes = [node for node in nodes if node not in network.absorbed]
        self.leaves = cast(Sequence[Any], output.args[0])
        self.graph, self.root = fx.Graph(), nn.Module()
        self.axes = axes_of(network)
        self.layouts = layouts_of(network, self.axes, alike)
        self.made: dict[tuple[Any, ...], str] = {}  # the names of modules that are called more than once

    def add(self, name: str, module: nn.Module, *args: Any, **kwargs: Any) -> fx.Node:
        """A call of the module, which gets a name like this one."""
        return self.graph.call_module(self.install(name, module), args, kwargs)

    def install(self, name: str, module: nn.Module) -> str:
        """The name under which the module is held."""
        self.root.add_module(unique := self._free_name(name), module)
        return unique

    def constant(self, name: str, value: Tensor) -> fx.Node:
        """A tensor that no input changes."""
        self.root.register_parameter(unique := self._free_name(name), frozen_parameter(value))
        return self.graph.get_attr(unique)

    def _free_name(self, name: str) -> str:
        name = name.replace(".", "_").removeprefix("module_") or "whole"
        unique, number = name, 1
        while hasattr(self.root, unique):
            unique, number = f"{name}_{number}", number + 1
        return unique

    def keep(self, node: fx.Node, i: int = 0) -> str:
        """The name of the module that the node calls, which stays as it was, as member i has it."""
        key = ("kept", node.target, i if self.network.holds_own(self.network.module(node)) else 0)
        if key not in self.made:
            self.made[key] = self.install(str(node.target), pure(self.network.module(node, i)))
        return self.made[key]

    def again(self, node: fx.Node, value: Callable[[fx.Node], Any], i: int = 0) -> fx.Node:
        """The node's own operation on these values, with the module that member i has."""
        return self.repeat(node, *fx.map_arg((node.args, node.kwargs), value), i)

    def repeat(self, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any] | None = None, i: int = 0) -> fx.Node:
        """The node's own operation with these arguments."""
        args, kwargs = tuple(args), kwargs or {}
        if node.op != "call_module":
            own = max_pool2d if known_name(node) == "max_pool2d" else node.target
            return self.graph.create_node(node.op, own, args, kwargs)
        if self.network.kind(node) is nn.MaxPool2d:
            pool: Any = self.network.module(node)
            options = (pool.kernel_size, pool.stride, pool.padding, pool.dilation, pool.ceil_mode, pool.return_indices)
            return self.graph.call_function(max_pool2d, (*args, *options), kwargs)
        return self.graph.call_module(self.keep(node, i), args, kwargs)

    def lower_shared(self, node: fx.Node, values: dict[fx.Node, Any]) -> Any:
        """The operation of a node that all members share."""
        network = self.network
        if node in network.layers:
            layer = network.layers[node]
            read = [values[n] for n in (network.source(layer)[0], layer.added) if n is not None]
            return self.add(str(layer.node.target), make_kernel(layer, *slice_layer(layer.plain(0), None, None)), *read)
        if node in network.norms:
            norm = network.norms[node]
            scale, shift = norm.plain(0)
            return self.add(norm.name, Affine(scale, shift, norm.relu), values[norm.node.all_input_nodes[0]])
        if node.op == "get_attr":
            return self.constant(str(node.target), read_attribute(network.trees[0], cast(str, node.target)))
        return self.again(node, values.__getitem__)

    def finish(self, outputs: Sequence[Any]) -> fx.GraphModule:
        """The module that runs the graph."""
        self.graph.output(list(outputs))
        without_dead(self.graph)
        self.graph.lint()
        made = fx.GraphModule(self.root, self.graph)
        for name in set(dict(made.named_children())) - {str(n.target) for n in self.graph.nodes}:
            delattr(made, name)
        return made

    def same(self, node: fx.Node, value: Any) -> Any:
        """The value of a node that no member owns, once per member and without a copy."""
        return self.graph.call_method("expand", (value, self.network.size, *[-1] * len(self.network.shapes[node])))

    def output(self, node: fx.Node, value: Any) -> Any:
        """An output that no member owns; where one pass answers for all members it stays as it is."""
        return value if self.network.joint else self.same(node, value)

    def here(self, index: Tensor) -> Tensor:
        """The index on the network's device."""
        return index.to(next(iter(self.network.trees[0].parameters())).device)

    def places(self) -> dict[fx.Node, fx.Node]:
        """The placeholders."""
        return {node: self.graph.placeholder(node.name) for node in self.nodes if node.op == "placeholder"}


# -------------------------------------------------------------------- a loop over the members


def write_loop(network: Network) -> fx.GraphModule:
    """What no member owns once, then the rest once per member."""
    return _Loop(network).write()


class _Loop(Writer):
    def __init__(self, network: Network):
        super().__init__(network, alike=False)
        self.values: dict[fx.Node, Any] = {}  # of what all share, and of member i
        self.taken: dict[tuple[fx.Node, tuple[int, ...]], fx.Node] = {}
        self.i = 0

    def write(self) -> fx.GraphModule:
        shared: dict[fx.Node, Any] = {**self.places()}
        for node in self.nodes:
            if node not in self.network.own and node not in shared:
                shared[node] = self.lower_shared(node, shared)
        members = []
        for i in range(self.network.size):
            self.i, self.values, self.taken = i, dict(shared), {}
            for node in self.nodes:
                if node in self.network.own:
                    self.values[node] = self.lower(node)
            members.append(self.values)
        return self.finish([self._leaf(leaf, members) for leaf in self.leaves])

    def _leaf(self, leaf: Any, members: Sequence[dict[fx.Node, Any]]) -> Any:
        if not isinstance(leaf, fx.Node):
            return leaf
        if leaf.meta.get("plain"):  # None, a number: as the first member has it
            return members[0][leaf]
        if leaf in self.network.own:
            return self.graph.call_function(torch.stack, ([values[leaf] for values in members],))
        return self.output(leaf, members[0][leaf])

    def lower(self, node: fx.Node) -> Any:
        """The operations of a node for member i."""
        network, channels = self.network, self.layouts[self.i].get(node)
        if node in network.layers:
            return self._layer(network.layers[node], channels)
        if node in network.norms:
            return self._norm(node, channels)
        if node.op == "get_attr":
            path = cast(str, node.target)
            return self.constant(path, read_attribute(network.trees[self.i if len(network.trees) > 1 else 0], path))
        if channels is not None and kind_of(node, network) == "flatten":
            return self.graph.call_function(torch.flatten, (self.values[node.all_input_nodes[0]], 1))
        return self.again(node, lambda source: self.value(source, self.axes.get(node), channels), self.i)

    def value(self, source: fx.Node, axis: int | None, channels: Channels) -> Any:
        """The value of a node with these channels."""
        value, given = self.values[source], self.layouts[self.i].get(source)
        if source not in self.network.shapes or (given is None and channels is None):
            return value
        places = steps(given, channels)
        if places is None:
            return value
        key = (source, tuple(places.tolist()))
        if key not in self.taken:
            assert axis is not None
            width = self.network.shapes[source][axis] if given is None else len(given)
            self.taken[key] = self.add(f"take_{source.name}", Take(self.here(places), axis, width), value)
        return self.taken[key]

    def _layer(self, layer: Layer, channels: Channels) -> fx.Node:
        plain = layer.plain(self.i)
        reads = read_channels(plain.mask)
        args = [self.value(*self.network.source(layer), reads)]
        if layer.added is not None:
            args.append(self.value(layer.added, self.axes[layer.last], channels))
        whole = len(layer.members) == 1 and channels is None and reads is None
        key = ("layer", layer.node, None if whole else self.i)
        if key not in self.made:
            weight, bias = slice_layer(plain, reads, channels)
            self.made[key] = self.install(str(layer.node.target), make_kernel(layer, weight, bias))
        return self.graph.call_module(self.made[key], tuple(args))

    def _norm(self, node: fx.Node, channels: Channels) -> fx.Node:
        norm = self.network.norms[node]
        scale, shift = (slice_channels(vector, 0, channels) for vector in norm.plain(self.i))
        x = self.value(norm.node.all_input_nodes[0], 1, channels)
        key = ("norm", norm.node, None if len(norm.members) == 1 and channels is None else self.i)
        if key not in self.made:
            self.made[key] = self.install(norm.name, Affine(scale, shift, norm.relu))
        return self.graph.call_module(self.made[key], (x,))


def make_kernel(layer: Layer, weight: Tensor, bias: Tensor | None, times: int = 1) -> nn.Module:
    """The operation of a layer with this weight; `times` as many groups."""
    if layer.is_linear:
        return Linear(weight, bias, layer.relu)
    conv = cast(nn.Conv2d, layer.module)
    padding = cast(tuple[int, ...], conv.padding)
    return Convolution(weight, bias, conv.stride, padding, conv.dilation, conv.groups * times, layer.relu)


def pure(module: nn.Module) -> nn.Module:
    """The module, which does not change its input in place."""
    if vars(module).get("inplace"):
        module.inplace = False  # type: ignore[assignment]
    return module


# -------------------------------------------------------------------- the members side by side


def write_beside(network: Network) -> fx.GraphModule:
    """All members at once: convolutions in groups, (batch, members * channels, ...), linear layers as one product."""
    return _Beside(network).write()


class _Beside(Writer):
    """A value is arranged as "shared"; "beside", (batch, members * channels, ...); "stacked", (members, batch, ...); or
    "each", a list with one for each member."""

    def __init__(self, network: Network):
        super().__init__(network, alike=True)
        self.values: dict[fx.Node, Any] = {}
        self.arrangement: dict[fx.Node, str] = {}
        self.whole: dict[fx.Node, Any] = {}  # stacked

    def write(self) -> fx.GraphModule:
        for node, place in self.places().items():
            self.values[node], self.arrangement[node] = place, "shared"
        for node in self.nodes:
            if node not in self.values:
                self.values[node], self.arrangement[node] = self.lower(node)
        return self.finish([self._leaf(leaf) for leaf in self.leaves])

    def _leaf(self, leaf: Any) -> Any:
        if not isinstance(leaf, fx.Node):
            return leaf
        if leaf.meta.get("plain"):  # None, a number: as the first member has it
            return self._part(0, leaf)
        return self.stack(leaf) if leaf in self.network.own else self.output(leaf, self.values[leaf])

    def lower(self, node: fx.Node) -> tuple[Any, str]:
        """The operation of a node, and how its value is arranged."""
        network, kind = self.network, kind_of(node, self.network)
        if node not in network.own:
            return self.lower_shared(node, self.values), "shared"
        if node in network.layers:
            layer = network.layers[node]
            return self._linear(layer) if layer.is_linear else (self._convolution(layer), "beside")
        if node in network.norms:
            return self._norm(node), "beside"
        if self._is_alike(node):
            return self.lower_shared(node, self.values), "shared"
        if kind == "flatten" and self.arrangement[node.all_input_nodes[0]] == "beside":
            return self.graph.call_function(torch.flatten, (self.values[node.all_input_nodes[0]], 1)), "beside"
        if kind in ("elementwise", "pool") and self.axes.get(node) is not None:
            return self._elementwise(node, kind)
        try:
            return stack_members(self, node)
        except NoRule:
            return self._each(node), "each"

    def _is_alike(self, node: fx.Node) -> bool:
        """Whether all members have the same, such as the sizes of their values."""
        sources = node.all_input_nodes
        return bool(sources) and all(map(self.is_shared, sources)) and not self.network.starts_own(node)

    def _each(self, node: fx.Node) -> list[Any]:
        return [self.again(node, partial(self._part, i), i) for i in range(self.network.size)]

    def _part(self, i: int, node: fx.Node) -> Any:
        if self.arrangement[node] in ("shared", "each"):
            return self.values[node] if self.arrangement[node] == "shared" else self.values[node][i]
        if node not in self.network.shapes:
            raise Unfit(f"{node} gives several values for all members")
        return self.graph.call_function(operator.getitem, (self.first(node), i))

    def _elementwise(self, node: fx.Node, kind: str) -> tuple[Any, str]:
        network, axis = self.network, self.axes[node]
        given = {self.arrangement[n] for n in node.all_input_nodes if n in network.own}
        arrangement = "beside" if kind == "pool" or given == {"beside"} else "stacked"
        layouts = [layout.get(node) for layout in self.layouts]

        def value(n: fx.Node) -> Any:
            if n not in network.shapes:
                return self.values[n]
            return self.stack(n, layouts, axis) if arrangement == "stacked" else self.beside(n, layouts)

        return self.again(node, value), arrangement

    def _slices(self, layer: Layer) -> tuple[list[Channels], list[Channels], list[Slices]]:
        """For each member the channels that the layer reads and makes, and its weight and bias for these."""
        plains = [layer.plain(i) for i in range(self.network.size)]
        reads = [read_channels(plain.mask) for plain in plains]
        channels = [layout.get(layer.last) for layout in self.layouts]
        return reads, channels, [slice_layer(*each) for each in zip(plains, reads, channels, strict=True)]

    def _convolution(self, layer: Layer) -> Any:
        reads, channels, tensors = self._slices(layer)
        if len({None if r is None else len(r) for r in reads}) > 1:
            raise Unfit("the members read different numbers of channels")
        weight = torch.cat([weight for weight, _ in tensors])  # the members' outputs one after the other
        bias = None if tensors[0][1] is None else torch.cat([cast(Tensor, bias) for _, bias in tensors])
        source, _ = self.network.source(layer)
        one = self.arrangement[source] == "shared" and reads[0] is None and layer.groups == 1
        source = self.values[source] if one else self.beside(source, reads)
        args = [source] if layer.added is None else [source, self.beside(layer.added, channels)]
        times = 1 if one else self.network.size
        return self.add(str(layer.node.target), make_kernel(layer, weight, bias, times), *args)

    def _linear(self, layer: Layer) -> tuple[Any, str]:
        source, axis = self.network.source(layer)
        reads, channels, tensors = self._slices(layer)
        if axis < 1:
            raise Unfit(f"{layer.node} does not read rows")
        if len({weight.shape for weight, _ in tensors}) > 1:
            raise Unfit("the members read different numbers of features")
        shared = self.is_shared(source) and reads[0] is None
        args = [self.values[source] if shared else self.stack(source, reads, axis)]
        if layer.added is not None:
            args.append(self.stack(layer.added, channels, axis))
        made = StackedLinear([w for w, _ in tensors], [b for _, b in tensors], layer.relu, shared)
        return self.add(str(layer.node.target), made, *args), "stacked"

    def _norm(self, node: fx.Node) -> Any:
        norm = self.network.norms[node]
        layouts = [layout.get(node) for layout in self.layouts]
        each = [[slice_channels(v, 0, c) for v in norm.plain(i)] for i, c in enumerate(layouts)]
        scale, shift = (torch.cat(list(vectors)) for vectors in zip(*each, strict=True))
        source = self.beside(norm.node.all_input_nodes[0], layouts)
        return self.add(norm.name, Affine(scale, shift, norm.relu), source)

    # ---------------------------------------------------------------- arrangements of values

    def is_shared(self, node: fx.Node) -> bool:
        """Whether all members have the same value."""
        return self.arrangement[node] == "shared"

    def own(self, name: str, tensors: Sequence[Tensor]) -> Any:
        """A constant of each member, stacked."""
        return self.constant(name, torch.stack(list(tensors)))

    def first(self, node: fx.Node) -> Any:
        """The value with the members first; what they share as it is."""
        held, value = self.arrangement[node], self.values[node]
        if held in ("shared", "stacked"):
            return value
        if node not in self.network.shapes:
            raise NoRule  # each member has several
        if node not in self.whole:
            beside = held == "beside"
            self.whole[node] = self._apart(value) if beside else self.graph.call_function(torch.stack, (value,))
        return self.whole[node]

    def _apart(self, value: Any) -> Any:
        """Of (batch, members * channels, ...): (members, batch, channels, ...)."""
        value = self.graph.call_method("unflatten", (value, 1, (self.network.size, -1)))
        return self.graph.call_method("transpose", (value, 0, 1))

    def expand(self, node: fx.Node) -> Any:
        """The value with the members first, also where they share it."""
        return self.same(node, self.values[node]) if self.is_shared(node) else self.first(node)

    def stack(self, node: fx.Node, layouts: Sequence[Channels] | None = None, axis: int = 1) -> Any:
        """The value of a node as (members, batch, ...), each member with its channels, which are along this axis."""
        places = self._places(node, layouts)
        if all(place is None for place in places):
            return self.expand(node)
        if self.arrangement[node] in ("shared", "beside") and axis == 1:
            return self._apart(self.beside(node, layouts))
        given = None if self.is_shared(node) else self.layouts[0].get(node)
        width = self.network.shapes[node][axis] if given is None else len(given)
        index = torch.stack([torch.arange(width) if place is None else place for place in places])
        return self.add(f"take_{node.name}", TakeEach(self.here(index), axis, width), self.expand(node))

    def beside(self, node: fx.Node, layouts: Sequence[Channels] | None) -> Any:
        """The value of a node as (batch, members * channels, ...), each member with its channels."""
        held_as, places = self.arrangement[node], self._places(node, layouts)
        total = self.network.shapes[node][1]
        given = [layout.get(node) if held_as != "shared" else None for layout in self.layouts]
        held = [total if g is None else len(g) for g in given]
        if held_as in ("shared", "beside"):
            value = self.values[node]
        else:  # the opposite of `_apart`
            value = self.graph.call_method(
                "flatten", (self.graph.call_method("transpose", (self.first(node), 0, 1)), 1, 2)
            )
        if held_as != "shared" and all(place is None for place in places):
            return value
        width = 0 if held_as == "shared" else held[0]
        pairs = enumerate(zip(places, held, strict=True))
        index = [(torch.arange(length) if place is None else place) + width * i for i, (place, length) in pairs]
        whole = total if held_as == "shared" else sum(held)
        return self.add(f"take_{node.name}", Take(self.here(torch.cat(index)), 1, whole), value)

    def _places(self, node: fx.Node, layouts: Sequence[Channels] | None) -> list[Tensor | None]:
        """Where each member finds the wanted channels in what it has; None: just so."""
        wants = list(layouts) if layouts is not None else [None] * self.network.size
        given = [layout.get(node) if not self.is_shared(node) else None for layout in self.layouts]
        return [steps(*pair) for pair in zip(given, wants, strict=True)]


FORMS: dict[str, Callable[[Network], fx.GraphModule]] = {"loop": write_loop, "beside": write_beside}
