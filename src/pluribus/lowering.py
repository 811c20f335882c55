"""The two ways to write a frozen ensemble as one graph: a loop over the members, or the members side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, fx, nn

from .folding import Layer, Network, Plain, attribute
from .graphs import without_dead
from .kernels import Affine, Apart, Constant, Convolution, Linear, Same, StackedLinear, Take, WideLinear
from .liveness import Channels, axes_of, cut, kind_of, layouts_of, steps, wanted


class Unable(Exception):  # noqa: N818
    """Why a network cannot be written in one of the ways."""


class Writer:
    """Writes a graph whose operations are modules of its own."""

    def __init__(self, network: Network, alike: bool):
        self.network = network
        self.graph, self.root = fx.Graph(), nn.Module()
        self.layouts = layouts_of(network, alike)
        self.axes = axes_of(network)

    def add(self, name: str, module: nn.Module, *args: Any, **kwargs: Any) -> fx.Node:
        """A call of the module, which gets a name like this one."""
        return self.graph.call_module(self.install(name, module), args, kwargs)

    def install(self, name: str, module: nn.Module) -> str:
        """The name under which the module is held."""
        name = name.replace(".", "_").removeprefix("module_") or "whole"
        unique, number = name, 1
        while hasattr(self.root, unique):
            unique, number = f"{name}_{number}", number + 1
        self.root.add_module(unique, module)
        return unique

    def finish(self, outputs: Sequence[Any]) -> fx.GraphModule:
        """The module that runs the graph."""
        self.graph.output(list(outputs))
        without_dead(self.graph)
        self.graph.lint()
        made = fx.GraphModule(self.root, self.graph)
        for name in set(dict(made.named_children())) - {str(n.target) for n in self.graph.nodes}:
            delattr(made, name)
        return made

    def same(self, value: Any) -> Any:
        """An output that no member owns, as that of all; where one pass answers for all members it stays as it is."""
        return self.add("same", Same(self.network.size), value) if not self.network.joint else value

    def places(self) -> dict[fx.Node, fx.Node]:
        """The placeholders; images enter in the format that convolutions like."""
        found = {}
        for node in self.network.graph.nodes:
            if node.op == "placeholder":
                found[node] = self.graph.placeholder(node.name)
        return found


# -------------------------------------------------------------------- a loop over the members


def looped(network: Network) -> fx.GraphModule:
    """What no member owns once, then the rest once per member."""
    return _Loop(network).written()


class _Loop(Writer):
    def __init__(self, network: Network):
        super().__init__(network, alike=False)
        self.shared: dict[fx.Node, Any] = {}
        self.member: dict[fx.Node, Any] = {}
        self.made: dict[tuple[Any, ...], str] = {}
        self.taken: dict[tuple[fx.Node, tuple[int, ...]], fx.Node] = {}
        self.i = 0

    def written(self) -> fx.GraphModule:
        self.shared.update(self.places())
        output = next(iter(reversed(self.network.graph.nodes)))
        nodes = [n for n in self.network.graph.nodes if n not in self.network.absorbed and n is not output]
        for node in nodes:
            if node not in self.network.own and node not in self.shared:
                self.shared[node] = self.lower(node)
        leaves = cast(Sequence[Any], output.args[0])
        columns: list[list[Any]] = [[] for _ in leaves]
        for i in range(self.network.size):
            self.i, self.member, self.taken = i, {}, {}
            for node in nodes:
                if node in self.network.own:
                    self.member[node] = self.lower(node)
            for column, leaf in zip(columns, leaves, strict=True):
                column.append(self.member.get(leaf) if isinstance(leaf, fx.Node) else leaf)
        return self.finish([self._stacked(leaf, column) for leaf, column in zip(leaves, columns, strict=True)])

    def _stacked(self, leaf: Any, column: list[Any]) -> Any:
        if isinstance(leaf, fx.Node) and leaf in self.network.own:
            return self.graph.call_function(torch.stack, (column,))
        return self.same(self.shared[leaf]) if isinstance(leaf, fx.Node) else leaf

    def lower(self, node: fx.Node) -> Any:
        """The operations of a node, for member i or for all."""
        network, own = self.network, node in self.network.own
        channels = self.layouts[self.i].get(node) if own else None
        if node in network.layers:
            return self._layer(network.layers[node], channels, own)
        if node in network.norms:
            return self._norm(node, channels, own)
        if node.op == "get_attr":
            value = attribute(network.trees[self.i if len(network.trees) > 1 else 0], cast(str, node.target))
            return self.add(cast(str, node.target), Constant(value))
        value = lambda source: self.value(source, channels, self.axes.get(node))  # noqa: E731
        if channels is not None and kind_of(node, network) == "flatten":
            return self.graph.call_function(torch.flatten, (self.value(node.all_input_nodes[0], None, None, True), 1))
        args, kwargs = fx.map_arg((node.args, node.kwargs), value)
        if node.op == "call_module":
            name = self._kept(node, own)
            return self.graph.call_module(name, args, kwargs)
        return self.graph.create_node(node.op, node.target, args, kwargs)

    def value(self, source: fx.Node, channels: Channels, axis: int | None, as_is: bool = False) -> Any:
        """The value of a node with these channels."""
        mine = source in self.network.own
        value = self.member[source] if mine else self.shared[source]
        given = self.layouts[self.i].get(source) if mine else None
        if as_is or (given is None and channels is None):
            return value
        places = steps(given, channels)
        if places is None:
            return value
        key = (source, tuple(places.tolist()))
        if key not in self.taken:
            assert axis is not None
            places = places.to(next(iter(self.network.trees[0].parameters())).device)
            self.taken[key] = self.add(f"take_{source.name}", Take(places, axis), value)
        return self.taken[key]

    def _layer(self, layer: Layer, channels: Channels, own: bool) -> fx.Node:
        plain = layer.plain(self.i)
        reads = wanted(plain.mask)
        axis = len(self.network.shapes[layer.source]) - 1 if layer.is_linear else 1
        args = [self.value(layer.source, reads, axis)]
        if layer.added is not None:
            args.append(self.value(layer.added, channels, self.axes[layer.last]))
        whole = len(layer.members) == 1 and channels is None and reads is None
        key = ("layer", layer.node, None if whole else self.i)
        if key not in self.made:
            weight, bias = sliced(plain, reads, channels)
            self.made[key] = self.install(str(layer.node.target), kernel(layer, weight, bias))
        return self.graph.call_module(self.made[key], tuple(args))

    def _norm(self, node: fx.Node, channels: Channels, own: bool) -> fx.Node:
        norm = self.network.norms[node]
        scale, shift = (cut(vector, 0, channels) for vector in norm.plain(self.i))
        x = self.value(norm.node.all_input_nodes[0], channels, 1)
        key = ("norm", norm.node, None if len(norm.members) == 1 and channels is None else self.i)
        if key not in self.made:
            self.made[key] = self.install(str(norm.node.target), Affine(scale, shift, norm.relu))
        return self.graph.call_module(self.made[key], (x,))

    def _kept(self, node: fx.Node, own: bool) -> str:
        """A module that stays as it was: the member's, or the one that all share."""
        i = self.i if own and self.network.holds_own(self.network.module(node)) else 0
        key = ("kept", node.target, i)
        if key not in self.made:
            self.made[key] = self.install(str(node.target), pure(self.network.module(node, i)))
        return self.made[key]


def sliced(plain: Plain, reads: Channels, channels: Channels) -> tuple[Tensor, Tensor | None]:
    """Weight and bias for some of the inputs and outputs."""
    weight = plain.weight
    if plain.mask is not None:
        weight = weight * plain.mask.to(weight).reshape(1, -1, *[1] * (weight.ndim - 2))
    weight = cut(cut(weight, 1, reads), 0, channels)
    return weight, None if plain.bias is None else cut(plain.bias, 0, channels)


def kernel(layer: Layer, weight: Tensor, bias: Tensor | None, times: int = 1) -> nn.Module:
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


def beside(network: Network) -> fx.GraphModule:
    """All members at once: convolutions in groups, (batch, members * channels, ...), linear layers as one product."""
    return _Beside(network).written()


class _Beside(Writer):
    """Values are shared, "beside": (batch, members * channels, ...), or "stacked": (members, batch, features)."""

    def __init__(self, network: Network):
        super().__init__(network, alike=True)
        self.values: dict[fx.Node, Any] = {}
        self.forms: dict[fx.Node, str] = {}

    def written(self) -> fx.GraphModule:
        for node, place in self.places().items():
            self.values[node], self.forms[node] = place, "shared"
        output = next(iter(reversed(self.network.graph.nodes)))
        for node in self.network.graph.nodes:
            if node is not output and node not in self.network.absorbed and node not in self.values:
                self.values[node], self.forms[node] = self.lower(node)
        return self.finish([self._leaf(leaf) for leaf in cast(Sequence[Any], output.args[0])])

    def _leaf(self, leaf: Any) -> Any:
        if not isinstance(leaf, fx.Node):
            return leaf
        return self.stacked(leaf) if leaf in self.network.own else self.same(self.values[leaf])

    def lower(self, node: fx.Node) -> tuple[Any, str]:
        """The operation of a node, and the form of its value."""
        network, kind = self.network, kind_of(node, self.network)
        if node not in network.own:
            return self._shared(node), "shared"
        if node in network.layers:
            layer = network.layers[node]
            return self._linear(layer) if layer.is_linear else (self._convolution(layer), "beside")
        if node in network.norms:
            return self._norm(node), "beside"
        if kind == "flatten":
            source = node.all_input_nodes[0]
            if len(network.shapes[source]) == 2 or self.forms[source] == "stacked":
                raise Unable(f"{node} flattens what is stacked")
            return self.graph.call_function(torch.flatten, (self.beside(source, None, as_is=True), 1)), "beside"
        if kind not in ("elementwise", "pool") or self.axes.get(node) is None:
            raise Unable(f"{node} is no operation that works on members side by side")
        return self._elementwise(node, kind)

    def _shared(self, node: fx.Node) -> Any:
        network = self.network
        if node in network.layers:
            layer = network.layers[node]
            read = [self.values[n] for n in (layer.source, layer.added) if n is not None]
            return self.add(str(layer.node.target), kernel(layer, *sliced(layer.plain(0), None, None)), *read)
        if node in network.norms:
            norm = network.norms[node]
            source = self.values[norm.node.all_input_nodes[0]]
            return self.add(str(norm.node.target), Affine(*norm.plain(0), norm.relu), source)
        if node.op == "get_attr":
            return self.add(str(node.target), Constant(attribute(network.trees[0], cast(str, node.target))))
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: self.values[n])
        if node.op == "call_module":
            return self.add(str(node.target), pure(network.module(node)), *args, **kwargs)
        return self.graph.create_node(node.op, node.target, args, kwargs)

    def _elementwise(self, node: fx.Node, kind: str) -> tuple[Any, str]:
        network = self.network
        forms = {self.forms[n] for n in node.all_input_nodes if n in network.own}
        form = "stacked" if forms == {"stacked"} else "beside"
        if len(forms) != 1 or (form == "stacked" and kind == "pool"):
            raise Unable(f"{node} reads values in several forms")
        layouts = [layout.get(node) for layout in self.layouts]

        def value(n: fx.Node) -> Any:
            return self.stacked(n, layouts) if form == "stacked" else self.beside(n, layouts)

        args, kwargs = fx.map_arg((node.args, node.kwargs), value)
        if node.op == "call_module":
            return self.add(str(node.target), pure(network.module(node)), *args, **kwargs), form
        return self.graph.create_node(node.op, node.target, args, kwargs), form

    def _convolution(self, layer: Layer) -> Any:
        plains = [layer.plain(i) for i in range(self.network.size)]
        reads = [wanted(plain.mask) for plain in plains]
        if len({None if r is None else len(r) for r in reads}) > 1:
            raise Unable("the members read different numbers of channels")
        channels = [layout.get(layer.last) for layout in self.layouts]
        tensors = [sliced(*each) for each in zip(plains, reads, channels, strict=True)]
        weight = torch.cat([weight for weight, _ in tensors])
        bias = None if tensors[0][1] is None else torch.cat([cast(Tensor, b) for _, b in tensors])
        one = self.forms[layer.source] == "shared" and reads[0] is None and layer.groups == 1
        source = self.values[layer.source] if one else self.beside(layer.source, reads)
        args = [source] if layer.added is None else [source, self.beside(layer.added, channels)]
        times = 1 if one else self.network.size
        return self.add(str(layer.node.target), kernel(layer, weight, bias, times), *args)

    def _linear(self, layer: Layer) -> tuple[Any, str]:
        if len(self.network.shapes[layer.source]) != 2:
            raise Unable(f"{layer.node} is a linear layer of more than rows")
        plains = [layer.plain(i) for i in range(self.network.size)]
        reads = [wanted(plain.mask) for plain in plains]
        channels = [layout.get(layer.last) for layout in self.layouts]
        tensors = [sliced(*each) for each in zip(plains, reads, channels, strict=True)]
        if len({weight.shape for weight, _ in tensors}) > 1:
            raise Unable("the members read different numbers of features")
        shared = self.forms[layer.source] == "shared" and reads[0] is None
        if shared and layer.added is None and self.network.shapes[layer.source][0] == 1:  # one row: one product
            weight = torch.cat([weight for weight, _ in tensors])
            bias = None if tensors[0][1] is None else torch.cat([cast(Tensor, b) for _, b in tensors])
            wide = WideLinear(weight, bias, layer.relu)
            return self.add(str(layer.node.target), wide, self.values[layer.source]), "beside"
        args = [self.values[layer.source] if shared else self.stacked(layer.source, reads)]
        if layer.added is not None:
            args.append(self.stacked(layer.added, channels))
        made = StackedLinear([w for w, _ in tensors], [b for _, b in tensors], layer.relu)
        return self.add(str(layer.node.target), made, *args), "stacked"

    def _norm(self, node: fx.Node) -> Any:
        norm = self.network.norms[node]
        source = norm.node.all_input_nodes[0]
        if self.forms[source] == "stacked":
            raise Unable(f"{node} normalises what is stacked")
        layouts = [layout.get(node) for layout in self.layouts]
        each = [[cut(v, 0, c) for v in norm.plain(i)] for i, c in enumerate(layouts)]
        scale, shift = (torch.cat(list(vectors)) for vectors in zip(*each, strict=True))
        return self.add(str(norm.node.target), Affine(scale, shift, norm.relu), self.beside(source, layouts))

    def beside(self, node: fx.Node, layouts: Sequence[Channels] | None, as_is: bool = False) -> Any:
        """The value of a node as (batch, members * channels, ...), each member with its channels."""
        size, form, value = self.network.size, self.forms[node], self.values[node]
        if form == "stacked":
            raise Unable(f"{node} is stacked")
        if as_is and form == "beside":
            return value
        wants = list(layouts) if layouts is not None else [None] * size
        given = [layout.get(node) if form == "beside" else None for layout in self.layouts]
        places = [steps(*pair) for pair in zip(given, wants, strict=True)]
        total = self.network.shapes[node][1]
        if form == "beside" and all(p is None for p in places):
            return value
        width = 0 if form == "shared" else total if given[0] is None else len(given[0])
        held = [total if g is None else len(g) for g in given]
        pairs = enumerate(zip(places, held, strict=True))
        index = [(torch.arange(length) if place is None else place) + width * i for i, (place, length) in pairs]
        return self._take(node, torch.cat(index), 1)

    def stacked(self, node: fx.Node, layouts: Sequence[Channels] | None = None) -> Any:
        """The value of a node as (members, batch, features)."""
        form = self.forms[node]
        wants = list(layouts) if layouts is not None else [None] * self.network.size
        if form in ("beside", "shared"):
            return self.add("apart", Apart(self.network.size), self.beside(node, wants))
        given = [layout.get(node) for layout in self.layouts]
        if any(steps(*pair) is not None for pair in zip(given, wants, strict=True)):
            raise Unable(f"{node} is stacked with other channels")
        return self.values[node]

    def _take(self, node: fx.Node, index: Tensor, dim: int) -> Any:
        index = index.to(next(iter(self.network.trees[0].parameters())).device)
        return self.add(f"take_{node.name}", Take(index, dim), self.values[node])


FORMS: dict[str, Callable[..., fx.GraphModule]] = {"loop": looped, "beside": beside}
