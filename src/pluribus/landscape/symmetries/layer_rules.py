"""Rules of operations that compute: products of matrices, convolutions, normalisation, attention, pooling."""

from __future__ import annotations

import itertools

from torch import Tensor

from .axes import UnitAxis, equate, fix, fixed, fresh, nested
from .operations import Axes, OperatorCall, Places, Rule


def pointwise(call: OperatorCall) -> list[Axes]:
    """Each unit by itself: axes that meet are the same."""
    shape = call.outs[0].shape
    found: list[UnitAxis | None] = [None] * len(shape)
    for tensor in call.tensors:
        for i, axis in enumerate(reversed(call.of(tensor)), start=1):
            if 1 < axis.size == shape[-i]:
                equate(found[-i] or axis, axis)
                found[-i] = found[-i] or axis
    axes = [axis or fixed(size) for axis, size in zip(found, shape, strict=True)]
    return [list(axes) for _ in call.outs]


def constant(call: OperatorCall) -> list[Axes]:
    """The same number everywhere."""
    return [[fresh(size) for size in call.outs[0].shape]]


def reduce(call: OperatorCall) -> list[Axes]:
    """A sum, or what else does not ask for the order of what it is made of."""
    return [_without(call, out) for out in call.outs]


def ordered(call: OperatorCall) -> list[Axes]:
    """What depends on the order along some dimensions."""
    name = "dims" if "dims" in call.named else "dim"
    fix(*(call.axes("self")[dim] for dim in call.dims(name)))
    return [_without(call, out) for out in call.outs]


def ranked(call: OperatorCall) -> list[Axes]:
    """Some units by their size: the values do not ask for the order, the places that are told beside them do."""
    if len(call.outs) == 1 or call.name == "aminmax":
        return reduce(call)  # without places
    axes, values = call.axes("self"), call.outs[0]
    dim = call.get("dim", -1) % len(axes)
    rank = [fixed(values.shape[dim])] if values.ndim == len(axes) else []
    found = [*axes[:dim], *rank, *axes[dim + 1 :]]
    return [list(found), Places(axes[dim], found)]


def _without(call: OperatorCall, out: Tensor) -> list[UnitAxis]:
    axes, gone = call.axes("self"), set(call.dims())
    if out.ndim != len(axes):
        return [axis for dim, axis in enumerate(axes) if dim not in gone]
    pairs = enumerate(zip(axes, out.shape, strict=True))
    return [a if a.size == size and (dim not in gone or size > 1) else fixed(size) for dim, (a, size) in pairs]


# ---------------------------------------------------------------- products

FACTORS = {
    "mm": ("self", "mat2"),
    "bmm": ("self", "mat2"),
    "addmm": ("mat1", "mat2"),
    "baddbmm": ("batch1", "batch2"),
    "mv": ("self", "vec"),
    "addmv": ("mat", "vec"),
    "dot": ("self", "tensor"),
    "vdot": ("self", "other"),
}


def matmul(call: OperatorCall) -> list[Axes]:
    """A product of matrices: what is summed over is one axis."""
    one, other = (call.axes(name) for name in FACTORS[call.name])
    batch = int("bmm" in call.name)
    if batch:
        equate(one[0], other[0])
    equate(one[-1], other[batch])
    found = one[:-1] + other[batch + 1 :]
    if "add" in call.name:
        _broadcast(call.axes("self"), found)
    return [found]


def convolution(call: OperatorCall) -> list[Axes]:
    """A convolution: channels are summed over in groups, places keep their order unless each is by itself."""
    (batch, channels, *space), weight = call.axes("input"), call.axes("weight")
    groups, outputs = call["groups"], call.outs[0].shape[1]
    group, inner, outer = fresh(groups), fresh(channels.size // groups), fresh(outputs // groups)
    equate(channels, nested(group, inner))
    equate(weight[0], nested(group, inner if call["transposed"] else outer))
    equate(weight[1], outer if call["transposed"] else inner)
    made = nested(group, outer)
    for bias in call.others("bias"):
        equate(bias[0], made)
    fix(*weight[2:])
    steps = zip(weight[2:], itertools.cycle(call["stride"]), itertools.cycle(call["padding"]), strict=False)
    single = [kernel.size == stride == 1 and padding == 0 for kernel, stride, padding in steps]
    fix(*(axis for axis, alone in zip(space, single, strict=True) if not alone))
    sizes = call.outs[0].shape[2:]
    places = [axis if alone else fixed(size) for axis, alone, size in zip(space, single, sizes, strict=True)]
    return [[batch, made, *places]]


def attention(call: OperatorCall) -> list[Axes]:
    """Attention in one operation, (batch, heads, rows, width): one head of keys may serve several of queries."""
    query, key, value = (call.axes(name) for name in ("query", "key", "value"))
    for a, b in ((query[0], key[0]), (key[0], value[0]), (query[3], key[3]), (key[2], value[2]), (key[1], value[1])):
        equate(a, b)
    equate(query[1], nested(key[1], fresh(query[1].size // key[1].size)))
    for mask in call.others("attn_mask", "attn_bias"):
        _broadcast(mask, [query[0], query[1], query[2], key[2]])
    made = [query[0], query[1], query[2], value[3]]
    return [made, *([fixed(size) for size in out.shape] for out in call.outs[1:])]


def _broadcast(axes: list[UnitAxis], onto: list[UnitAxis]) -> None:
    for a, b in zip(reversed(axes), reversed(onto), strict=False):
        if a.size > 1:
            equate(a, b)


# ---------------------------------------------------------------- normalisation


def batch_norm(call: OperatorCall) -> list[Axes]:
    """Each channel by itself."""
    axes = call.axes("input")
    for own in call.others("weight", "bias", "running_mean", "running_var"):
        equate(axes[1], own[0])
    sizes = axes[1].size
    return [
        axes,
        *([axes[1]] if tuple(out.shape) == (sizes,) else [fixed(n) for n in out.shape] for out in call.outs[1:]),
    ]


def layer_norm(call: OperatorCall) -> list[Axes]:
    """Mean and variance over the last dimensions, which no order changes."""
    axes = call.axes("input")
    for own in call.others("weight", "bias"):
        for a, b in zip(axes[-len(own) :], own, strict=True):
            equate(a, b)
    kept = axes[: len(axes) - len(call["normalized_shape"])]
    return [axes, *(kept + [fixed(1)] * (out.ndim - len(kept)) for out in call.outs[1:])]


def group_norm(call: OperatorCall) -> list[Axes]:
    """Mean and variance over groups of channels."""
    axes, groups = call.axes("input"), call["group"]
    group = fresh(groups)
    equate(axes[1], nested(group, fresh(axes[1].size // groups)))
    for own in call.others("weight", "bias"):
        equate(axes[1], own[0])
    return [axes, [axes[0], group], [axes[0], group]]


def weight_norm(call: OperatorCall) -> list[Axes]:
    """A direction times a length for each unit."""
    direction = call.axes("v")
    _broadcast(call.axes("g"), direction)
    return [direction, *([fixed(size) for size in out.shape] for out in call.outs[1:])]


# ---------------------------------------------------------------- places in space


def spatial(dimensions: int) -> Rule:
    """The rule of pooling, resizing and padding along the last dimensions: their order counts."""

    def rule(call: OperatorCall) -> list[Axes]:
        axes = call.of(call.tensors[0])
        fix(*axes[-dimensions:])
        for other in call.tensors[1:]:
            if not any(other is out for out in call.outs):
                fix(*call.of(other))
        return [[*axes[:-dimensions], *map(fixed, out.shape[-dimensions:])] for out in call.outs]

    return rule
