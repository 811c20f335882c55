"""Operations on all members at once: a value is (members, batch, ...) where that of one member is (batch, ...).

Each rule writes one operation. For y = softmax(x, dim=1) of one member it writes softmax(x, dim=2): dimensions move by
one, as the members come first. For y = a + b, where b is shared and has fewer dimensions than a, b gets dimensions of
length 1 between the members and its own. What works on rows (pooling, attention) gets all members' rows as one batch:

    (members, batch, ...) -> flatten -> (members * batch, ...) -> the operation -> unflatten -> (members, batch, ...)

What has no rule runs member by member, which is always right.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, cast

import torch
import torch.nn.functional as F
from torch import fx, nn

from ...methods.adapted_layers import RankOne
from .folding import Network, arguments, plain_type, read_attribute
from .kernels import Convolution, Linear
from .live_channels import ELEMENTWISE, ELEMENTWISE_MODULES, POOL_MODULES, POOLS
from .module_code import known_name


class NoRule(Exception):  # noqa: N818
    """The operation has no rule, or not for such arguments."""


class NewValue(NamedTuple):
    """A value of the new graph, and how it is arranged: "stacked", or "shared" by all members."""

    value: Any
    arrangement: str = "stacked"


class _Writer(Protocol):  # of lowering.py
    graph: fx.Graph
    network: Network

    def add(self, name: str, module: nn.Module, *args: Any) -> Any: ...  # a call of a new module
    def first(self, node: fx.Node) -> Any: ...  # the value with the members first; what they share as it is
    def expand(self, node: fx.Node) -> Any: ...  # the same, but with the members first where they share it too
    def own(self, name: str, tensors: Sequence[Any]) -> Any: ...  # a constant of each member, stacked
    def is_shared(self, node: fx.Node) -> bool: ...  # whether all members have the same value
    def repeat(
        self, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any] | None = None
    ) -> Any: ...  # its operation


Rule = Callable[[_Writer, fx.Node], NewValue]


def stack_members(writer: _Writer, node: fx.Node) -> NewValue:
    """The node for all members at once; `NoRule` where nothing is known about it."""
    network = writer.network
    if node.op == "get_attr":
        path = cast(str, node.target)
        tensors = [read_attribute(tree, path) for tree in network.trees]
        return NewValue(writer.own(path, tensors))
    if node.op == "call_module":
        kind = RankOne if isinstance(network.module(node), RankOne) else network.kind(node)
        rule = MODULES.get(kind)
    else:
        rule = RULES.get(known_name(node))
    if rule is None:
        raise NoRule
    return rule(writer, node)


# -------------------------------------------------------------------- arguments


def _map_arguments(writer: _Writer, node: fx.Node) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of an operation on one value with the members first."""
    if writer.is_shared(node.all_input_nodes[0]):
        raise NoRule
    args, kwargs = fx.map_arg((node.args, node.kwargs), writer.first)
    return list(args), dict(kwargs)


def _move(dim: Any) -> Any:
    """A dimension, or several, counted with the members first."""
    if isinstance(dim, Sequence) and not isinstance(dim, str):
        return tuple(_move(each) for each in dim)
    if isinstance(dim, bool) or not isinstance(dim, int):
        raise NoRule
    return dim + 1 if dim >= 0 else dim


def _several(values: Sequence[Any]) -> list[Any]:
    """What is given as f(a, b) or as f((a, b))."""
    return list(values[0]) if len(values) == 1 and isinstance(values[0], Sequence) else list(values)


def _align(writer: _Writer, node: fx.Node, rank: int) -> Any:
    """The value, ready to be broadcast against values of one member that have this many dimensions."""
    value = writer.first(node)
    missing = rank - len(writer.network.shapes.get(node, ()))
    if writer.is_shared(node) or missing <= 0:
        return value
    return writer.graph.call_function(operator.getitem, (value, (slice(None), *[None] * missing)))


# -------------------------------------------------------------------- rules


def _along(*places: tuple[int, str, int | None]) -> Rule:
    """An operation with dimensions among its arguments: where, under which name, and what they are if not given."""

    def rule(writer: _Writer, node: fx.Node) -> NewValue:
        args, kwargs = _map_arguments(writer, node)
        if "axis" in kwargs:
            kwargs["dim"] = kwargs.pop("axis")
        for place, name, default in places:
            if len(args) > place:
                args[place] = _move(args[place])
            elif name in kwargs or default is not None:
                kwargs[name] = _move(kwargs.get(name, default))
            else:
                raise NoRule
        return NewValue(writer.repeat(node, args, kwargs))

    return rule


def _join(writer: _Writer, node: fx.Node) -> NewValue:
    """Several tensors along a dimension."""
    given = arguments(node, ("tensors", "dim"))
    tensors, dim = given["tensors"], _move(given.get("dim", given.get("axis", 0)))
    parts = writer.first(tensors) if isinstance(tensors, fx.Node) else [writer.expand(part) for part in tensors]
    return NewValue(writer.repeat(node, (parts, dim)))


def _reorder(writer: _Writer, node: fx.Node) -> NewValue:
    if node.kwargs:
        raise NoRule
    args, _ = _map_arguments(writer, node)
    dims = _several(args[1:])
    moved = (0, *(_move(dim % len(dims)) for dim in dims))
    return NewValue(writer.graph.call_function(torch.permute, (args[0], moved)))


def _resize(method: str, first: int | None) -> Rule:
    """An operation whose arguments are the sizes of its result; the members' comes first."""

    def rule(writer: _Writer, node: fx.Node) -> NewValue:
        args, _ = _map_arguments(writer, node)
        sizes = _several(args[1:])
        if node.kwargs or (len(sizes) == 1 and isinstance(sizes[0], fx.Node)):  # perhaps all sizes of another tensor
            raise NoRule
        value = args[0] if method == "reshape" else _align(writer, node.all_input_nodes[0], len(sizes))
        size = writer.network.size if first is None else first
        return NewValue(writer.graph.call_method(method, (value, size, *sizes)))

    return rule


def _pointwise(writer: _Writer, node: fx.Node) -> NewValue:
    if node not in writer.network.shapes or "memory_format" in node.kwargs:
        raise NoRule
    rank = len(writer.network.shapes[node])
    drawn = all(writer.is_shared(source) for source in node.all_input_nodes)  # for each member again
    give = writer.expand if drawn else lambda source: _align(writer, source, rank)
    args, kwargs = fx.map_arg((node.args, node.kwargs), give)
    return NewValue(writer.repeat(node, args, kwargs))


def _product(writer: _Writer, node: fx.Node) -> NewValue:
    """A product of matrices; whatever is before their two dimensions is broadcast."""
    shapes, factors = writer.network.shapes, node.all_input_nodes
    if len(node.args) != 2 or len(factors) != 2 or any(len(shapes.get(factor, ())) < 2 for factor in factors):
        raise NoRule
    rank = len(shapes[node])
    first, second = (_align(writer, cast(fx.Node, factor), rank) for factor in node.args)
    return NewValue(writer.graph.call_function(torch.matmul, (first, second)))


def _linear(writer: _Writer, node: fx.Node) -> NewValue:
    """A linear layer as a function."""
    given = arguments(node, ("input", "weight", "bias"))
    rank = len(writer.network.shapes[node])
    x, weight = (_align(writer, given[name], rank) for name in ("input", "weight"))
    value = writer.graph.call_function(torch.matmul, (x, writer.graph.call_function(getattr, (weight, "mT"))))
    if given.get("bias") is None:
        return NewValue(value)
    return NewValue(writer.graph.call_function(torch.add, (value, _align(writer, given["bias"], rank))))


def _rows(writer: _Writer, node: fx.Node) -> NewValue:
    """An operation on each row by itself: all members' rows are one batch."""
    source = node.all_input_nodes[0]
    if len(node.all_input_nodes) != 1 or node.args[:1] != (source,) or node not in writer.network.shapes:
        raise NoRule
    flat = writer.graph.call_function(torch.flatten, (writer.expand(source), 0, 1))
    return NewValue(_apart(writer, writer.repeat(node, (flat, *node.args[1:]), dict(node.kwargs))))


def _apart(writer: _Writer, value: Any) -> Any:
    return writer.graph.call_method("unflatten", (value, 0, (writer.network.size, -1)))


def _attention(writer: _Writer, node: fx.Node) -> NewValue:
    """Query, key and value with all members' rows in one batch; masks that all rows share."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given = arguments(node, names)
    qkv, mask, shapes = [given.pop(name) for name in names[:3]], given.get("attn_mask"), writer.network.shapes
    if any(len(shapes.get(each, ())) != 4 for each in qkv):
        raise NoRule
    if isinstance(mask, fx.Node):
        one = len(shapes[mask]) < 4 or shapes[mask][0] == 1
        if not writer.is_shared(mask) or not one:
            raise NoRule
    if not all(writer.is_shared(value) for value in given.values() if isinstance(value, fx.Node)):
        raise NoRule
    given = {name: writer.first(value) if isinstance(value, fx.Node) else value for name, value in given.items()}
    flat = [writer.graph.call_function(torch.flatten, (writer.expand(each), 0, 1)) for each in qkv]
    value = writer.graph.call_function(F.scaled_dot_product_attention, tuple(flat), given)
    return NewValue(_apart(writer, value))


def _normalise(writer: _Writer, node: fx.Node) -> NewValue:
    """Layer normalisation as a function: each member has its scale and shift, or all share them."""
    given = arguments(node, ("input", "normalized_shape", "weight", "bias", "eps"))
    weight, bias = given.get("weight"), given.get("bias")
    if weight is None and bias is not None:
        raise NoRule
    rank = len(writer.network.shapes[node])
    affine = [None if each is None else _align(writer, each, rank) for each in (weight, bias)]
    return NewValue(_normal(writer, given["input"], given["normalized_shape"], given.get("eps", 1e-5), affine))


def _normal(writer: _Writer, source: fx.Node, shape: Any, eps: float, affine: Sequence[Any]) -> Any:
    scale, shift = affine
    value = writer.graph.call_function(F.layer_norm, (writer.first(source), shape, None, None, eps))
    return value if scale is None else _affine(writer, value, scale, shift)


def _affine(writer: _Writer, value: Any, scale: Any, shift: Any) -> Any:
    if shift is None:
        return writer.graph.call_function(torch.mul, (value, scale))
    return writer.graph.call_function(torch.addcmul, (shift, value, scale))


def _norm_module(writer: _Writer, node: fx.Node) -> NewValue:
    """Layer normalisation as a module."""
    network, source = writer.network, node.all_input_nodes[0]
    module = cast(nn.LayerNorm, network.module(node))
    shape, eps = module.normalized_shape, module.eps
    if not network.holds_own(module):
        return NewValue(writer.repeat(node, (writer.first(source),)))
    lead = [1] * (len(network.shapes[node]) - len(shape))
    affine = [_vectors(writer, node, name, [*lead, *shape]) for name in ("weight", "bias")]
    return NewValue(_normal(writer, source, list(shape), eps, affine))


def _vectors(writer: _Writer, node: fx.Node, name: str, shape: Sequence[int]) -> Any:
    """A tensor of the module that each member has for itself, in this shape; None, if the module has none."""
    tensors = [getattr(writer.network.module(node, i), name) for i in range(writer.network.size)]
    return None if tensors[0] is None else writer.own(f"{node.target}.{name}", [t.reshape(shape) for t in tensors])


def _rank_one(writer: _Writer, node: fx.Node) -> NewValue:
    """One layer for all members, between the vectors that scale what each of them reads and gives."""
    network, source = writer.network, node.all_input_nodes[0]
    first: Any = network.module(node)
    if plain_type(first) is None or len(node.args) != 1 or node.kwargs:
        raise NoRule
    linear, rank = isinstance(first, nn.Linear), len(network.shapes[node])
    shape = [1] * (rank - 1) + [-1] if linear else [1, -1] + [1] * (rank - 2)  # of a vector
    r, s, b = (_vectors(writer, node, name, shape) for name in ("r", "s", "b"))
    value = writer.graph.call_function(torch.mul, (writer.first(source), r))
    if linear:
        value = writer.add(str(node.target), Linear(first.weight, first.bias), value)
    else:
        options = first.stride, first.padding, first.dilation, first.groups
        value = writer.graph.call_function(torch.flatten, (value, 0, 1))
        value = _apart(writer, writer.add(str(node.target), Convolution(first.weight, first.bias, *options), value))
    return NewValue(value if s is None else _affine(writer, value, s, b))


def _dims_of_module(function: Callable[..., Any], *names: str) -> Rule:
    """A module that is a function of its input and of some dimensions."""

    def rule(writer: _Writer, node: fx.Node) -> NewValue:
        dims = [_move(getattr(writer.network.module(node), name)) for name in names]
        return NewValue(writer.graph.call_function(function, (writer.first(node.all_input_nodes[0]), *dims)))

    return rule


def _pad(writer: _Writer, node: fx.Node) -> NewValue:
    """Around the last dimensions."""
    args, kwargs = _map_arguments(writer, node)
    mode = args[2] if len(args) > 2 else kwargs.get("mode", "constant")
    if mode != "constant":
        raise NoRule
    return NewValue(writer.repeat(node, args, kwargs))


def _item(writer: _Writer, node: fx.Node) -> NewValue:
    """One of several tensors, or a part of one."""
    source, index = node.args
    value = writer.first(cast(fx.Node, source))
    places = index if isinstance(index, tuple) else (index,)
    if not all(place is None or place is Ellipsis or type(place) in (int, slice) for place in places):
        raise NoRule
    if source not in writer.network.shapes:  # several tensors
        return NewValue(writer.graph.call_function(operator.getitem, (value, index)))
    places = fx.map_arg(places, writer.first)
    return NewValue(writer.graph.call_function(operator.getitem, (value, (slice(None), *places))))


def _property(writer: _Writer, node: fx.Node) -> NewValue:
    """What a tensor knows about itself."""
    source, name = node.args
    if source not in writer.network.shapes:
        raise NoRule
    shape, value = writer.network.shapes[cast(fx.Node, source)], writer.first(cast(fx.Node, source))
    if name == "shape":
        return NewValue(_without_members(writer, writer.repeat(node, (value, "shape"))), "shared")
    if name == "ndim":
        return NewValue(len(shape), "shared")
    if name in ("dtype", "device"):
        return NewValue(writer.repeat(node, (value, name)), "shared")
    if name == "mT" or (name == "T" and len(shape) == 2):
        return NewValue(writer.repeat(node, (value, "mT")))
    raise NoRule


def _size(writer: _Writer, node: fx.Node) -> NewValue:
    args, kwargs = _map_arguments(writer, node)
    if kwargs:
        raise NoRule
    if len(args) == 1:
        return NewValue(_without_members(writer, writer.repeat(node, args)), "shared")
    return NewValue(writer.repeat(node, (args[0], _move(args[1]))), "shared")


def _without_members(writer: _Writer, sizes: Any) -> Any:
    return writer.graph.call_function(operator.getitem, (sizes, slice(1, None)))


POINTWISE = {
    *("pow", "sqrt", "rsqrt", "exp", "log", "log1p", "sin", "cos", "erf", "sign", "reciprocal", "where", "masked_fill"),
    *("eq", "ne", "lt", "le", "gt", "ge", "maximum", "minimum", "contiguous", "clone", "float", "double", "to"),
    *("type_as", "truediv", "neg", "detach", "clamp_min", "clamp_max", "logical_not", "logical_and", "bool", "div"),
    *ELEMENTWISE,
}

ONE = (1, "dim", None)  # a dimension that must be given

RULES: dict[str, Rule] = {
    **dict.fromkeys(POINTWISE, _pointwise),
    **dict.fromkeys(
        ("mean", "sum", "amax", "amin", "std", "var", "argmax", "argmin", "cumsum", "logsumexp"), _along(ONE)
    ),
    **dict.fromkeys(("softmax", "log_softmax", "unsqueeze", "squeeze", "select", "narrow", "unflatten"), _along(ONE)),
    **dict.fromkeys(("chunk", "split", "tensor_split"), _along((2, "dim", 0))),
    **dict.fromkeys(("cat", "concat", "concatenate", "stack"), _join),
    **dict.fromkeys(("matmul", "bmm"), _product),
    **dict.fromkeys((*POOLS, "interpolate"), _rows),
    **dict.fromkeys(("view", "reshape"), _resize("reshape", None)),
    "expand": _resize("expand", -1),
    "repeat": _resize("repeat", 1),
    "unbind": _along((1, "dim", 0)),
    "flatten": _along((1, "start_dim", 0), (2, "end_dim", -1)),
    "transpose": _along((1, "dim0", None), (2, "dim1", None)),
    "movedim": _along((1, "source", None), (2, "destination", None)),
    "glu": _along((1, "dim", -1)),
    "normalize": _along((2, "dim", 1)),
    "roll": _along((2, "dims", None)),
    "pad": _pad,
    "permute": _reorder,
    "linear": _linear,
    "layer_norm": _normalise,
    "scaled_dot_product_attention": _attention,
    "getitem": _item,
    "getattr": _property,
    "size": _size,
}

MODULES: dict[type | None, Rule] = {
    **dict.fromkeys(ELEMENTWISE_MODULES, _pointwise),
    **dict.fromkeys(POOL_MODULES, _rows),
    RankOne: _rank_one,
    nn.LayerNorm: _norm_module,
    nn.Flatten: _dims_of_module(torch.flatten, "start_dim", "end_dim"),
    nn.Softmax: _dims_of_module(torch.softmax, "dim"),
}
