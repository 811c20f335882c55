"""What each operation says about the axes of its tensors: the rules, by the table `rules.toml`.

A rule gets an `OperatorCall`, whose output is there already, and gives the axes of each output. It may equate axes, fix
them, cut or join them. The rule of `mm`, (a, b) x (b, c): `equate(one[-1], other[0])`, and the result has the axes
`[one[0], other[1]]`. An operation without a rule fixes all that it touches; a new rule is a function here and a name
in the table.

Two kinds of outputs have more to say than a list of axes: a `Stack` (queries, keys and values as layers of one tensor,
each with axes of its own) and `Places` (the indices of `max` or `topk`, which fix the units that they count once
anything looks at them).
"""

from __future__ import annotations

import itertools
import math
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import torch
from torch import Tensor

from ..._common.torch_operators import changes_inputs, named_arguments
from ..._common.trees import tensors_of
from .axes import UnitAxis, cut_axis, equate, fix, fixed, fresh, joined, nested, settle

Key = tuple[int, int, tuple[int, ...], tuple[int, ...]]


@dataclass
class Stack:
    """The axes of a tensor that is a stack, along one dimension, of tensors with axes of their own."""

    dim: int
    layers: list[list[UnitAxis]]


@dataclass
class Places:
    """The axes of a tensor of places along an axis, whose units keep theirs once anything looks at that tensor."""

    along: UnitAxis
    axes: list[UnitAxis]


Axes = list[UnitAxis] | Stack | Places
Rule = Callable[["OperatorCall"], Sequence[Axes]]  # the axes of each output


class OperatorCall:
    """An operation with its arguments; the outputs come when it has run.

    Args:
        look_up: gives the axes of a tensor that is found under a key
    """

    def __init__(self, operator: Any, args: Any, kwargs: Any, look_up: Callable[[Tensor, Key], list[UnitAxis]]):
        self.operator, self.look_up = operator, look_up
        self.named = named_arguments(operator, args, kwargs)
        self.tensors = tensors_of((args, kwargs))
        self.keys = {id(tensor): key_of(tensor) for tensor in self.tensors}  # as they were before the operation
        self.writes = changes_inputs(operator)
        self.name = operator_name(operator)
        self.outs: list[Tensor] = []

    def __getitem__(self, name: str) -> Any:
        return self.named[name]

    def get(self, name: str, default: Any = None) -> Any:
        """The argument of that name, where the operation has one."""
        return self.named.get(name, default)

    def axes(self, name: str) -> list[UnitAxis]:
        """The axes of the argument of that name."""
        return self.of(self.named[name])

    def of(self, tensor: Tensor) -> list[UnitAxis]:
        """The axes of a tensor among the arguments."""
        return self.look_up(tensor, self.keys[id(tensor)])

    def others(self, *names: str) -> list[list[UnitAxis]]:
        """The axes of those of the named arguments that were given."""
        return [self.axes(name) for name in names if isinstance(self.named.get(name), Tensor)]

    def dims(self, name: str = "dim") -> list[int]:
        """The dimensions that an argument names; all, where it names none."""
        value, count = self.named.get(name), self.named["self"].ndim
        given = [value] if isinstance(value, int) else value
        return [dim % count for dim in given] if given and count else list(range(count))

    def fix_all(self) -> list[Axes]:
        """All that goes in or out keeps its order: the rule of an operation that has none."""
        for tensor in self.tensors:
            fix(*self.of(tensor))
        return [[fixed(size) for size in out.shape] for out in self.outs]


def operator_name(operator: Any) -> str:
    """What an operation is called, without the mark of one that writes to its input; others' have their namespace."""
    name = operator.overloadpacket.__name__ if operator.namespace == "aten" else str(operator)
    return name.removesuffix("_") if changes_inputs(operator) else name


def memory_of(tensor: Tensor) -> int:
    """Where a tensor's numbers are: the same for all views of it."""
    return tensor.untyped_storage().data_ptr() or -id(tensor)


def key_of(tensor: Tensor) -> Key:
    """A tensor by the numbers that it shows, whichever object shows them."""
    strides = (stride if size != 1 else 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return memory_of(tensor), int(tensor.storage_offset()), tuple(tensor.shape), tuple(strides)


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
    """The last axes of a tensor are those of the one that it is broadcast to."""
    for a, b in zip(reversed(axes), reversed(onto), strict=False):
        if a.size > 1 or b.size == 1:
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
    _broadcast(call.axes("g"), call.axes("v"))
    return [call.axes("v"), *([fixed(size) for size in out.shape] for out in call.outs[1:])]


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


# ---------------------------------------------------------------- views


def view(call: OperatorCall) -> list[Axes]:
    """The same numbers in the same order in another shape."""
    return [_reshape(call.axes("self"), call.outs[0].shape)]


def transposed(call: OperatorCall) -> list[Axes]:
    """Dimensions in another order."""
    axes = call.axes("self")
    return [[axes[dim] for dim in _order(call)]]


def expand(call: OperatorCall) -> list[Axes]:
    """One unit, as often as is asked for: all are equal, in any order."""
    axes, shape = call.axes("self"), call.outs[0].shape
    axes = [fixed(1)] * (len(shape) - len(axes)) + axes
    return [[axis if axis.size == size else fresh(size) for axis, size in zip(axes, shape, strict=True)]]


def repeat(call: OperatorCall) -> list[Axes]:
    """All units several times, one copy after the other."""
    axes, times = call.axes("self"), call["repeats"]
    axes = [fixed(1)] * (len(times) - len(axes)) + axes
    return [[nested(fresh(count), axis) for axis, count in zip(axes, times, strict=True)]]


def as_strided(call: OperatorCall) -> list[Axes]:
    """A view by strides; one that shows everything as it was changes nothing."""
    same = key_of(call.outs[0]) == call.keys[id(call["self"])]
    return [call.axes("self")] if same else call.fix_all()


def _order(call: OperatorCall) -> list[int]:
    count = call["self"].ndim
    if call.name == "permute":
        return [dim % count for dim in call["dims"]]
    order = list(range(count))
    if count > 1:
        i, j = (call["dim0"] % count, call["dim1"] % count) if call.name == "transpose" else (0, count - 1)
        order[i], order[j] = order[j], order[i]
    return order


def _reshape(axes: Sequence[UnitAxis], shape: Sequence[int]) -> Axes:
    """The axes of a view, piece by piece of dimensions that hold the same numbers."""
    found: list[UnitAxis] = []
    stacked: tuple[int, list[UnitAxis], int] | None = (
        None  # where, the layers, and over how many more dimensions each goes
    )
    for old, new in _pieces([axis for axis in axes if axis.size != 1], [size for size in shape if size != 1]):
        if len(old) == len(new) == 1:
            found += old
        elif stacked is None and (layers := _as_layers(old, new)):
            stacked = len(found), layers, len(new) - 1
            found += [fixed(size) for size in new]
        else:
            made = [fresh(size) for size in new]
            equate(nested(*old), nested(*made))
            found += made
    rest = iter(found)
    result = [fixed(1) if size == 1 else next(rest) for size in shape]
    return result if stacked is None else _stack_of(result, shape, *stacked)


def _pieces(old: list[UnitAxis], new: list[int]) -> list[tuple[list[UnitAxis], list[int]]]:
    """The shortest runs of dimensions before and after that hold equally many numbers."""
    found = []
    while old or new:
        a, n = [old.pop(0)], [new.pop(0)]
        while (have := math.prod(axis.size for axis in a)) != (want := math.prod(n)):
            if have < want:
                a.append(old.pop(0))
            else:
                n.append(new.pop(0))
        found.append((a, n))
    return found


def _as_layers(old: list[UnitAxis], new: list[int]) -> list[UnitAxis]:
    """The axes of their own that a dimension gives to a view as layers: of a sum of as many parts of equal sizes."""
    whole = settle(old[0])
    parts = whole.parts if len(old) == 1 and whole.kind == "sum" else ()
    alike = len({part.size for part in parts}) == 1 and len({id(part) for part in parts}) == len(parts) == new[0]
    return list(parts) if alike else []


def _stack_of(axes: list[UnitAxis], shape: Sequence[int], place: int, layers: list[UnitAxis], length: int) -> Axes:
    real = [dim for dim, size in enumerate(shape) if size != 1]
    dim, inner = real[place], real[place + 1 : place + 1 + length]
    made = []
    for layer in layers:
        own, pieces = list(axes), _reshape([layer], [shape[i] for i in inner])
        assert isinstance(pieces, list)
        for i, axis in zip(inner, pieces, strict=True):
            own[i] = axis
        made.append(own[:dim] + own[dim + 1 :])
    return Stack(dim, made)


# ---------------------------------------------------------------- joining and cutting


def cat(call: OperatorCall) -> list[Axes]:
    """Tensors one after the other."""
    parts = [call.of(tensor) for tensor in call["tensors"] if tuple(tensor.shape) != (0,)]
    dim = call["dim"] % len(parts[0])
    for other in parts[1:]:
        for d, (a, b) in enumerate(zip(parts[0], other, strict=True)):
            if d != dim:
                equate(a, b)
    return [[joined(*(part[d] for part in parts)) if d == dim else axis for d, axis in enumerate(parts[0])]]


def stacked(call: OperatorCall) -> list[Axes]:
    """Tensors as layers along a new dimension."""
    layers = [call.of(tensor) for tensor in call["tensors"]]
    return [Stack(call["dim"] % (len(layers[0]) + 1), layers)]


def slices(call: OperatorCall) -> list[Axes]:
    """One piece of a dimension, or pieces one after the other."""
    axes, (dim,) = call.axes("self"), call.dims()
    if call.get("step", 1) != 1:
        fix(axes[dim])
        return [[*axes[:dim], fixed(call.outs[0].shape[dim]), *axes[dim + 1 :]]]
    rest = axes[dim]
    start = call.get("start", 0) or 0
    rest = cut_axis(rest, min(max(start + rest.size if start < 0 else start, 0), rest.size))[1]
    found: list[Axes] = []
    for out in call.outs:
        piece, rest = cut_axis(rest, out.shape[dim])
        found.append([*axes[:dim], piece, *axes[dim + 1 :]])
    return found


def select_slices(call: OperatorCall) -> list[Axes]:
    """One unit of a dimension, which has no other place; or all of them, each by itself."""
    axes, (dim,) = call.axes("self"), call.dims()
    if call.name == "select":
        cut_axis(cut_axis(axes[dim], call["index"] % axes[dim].size)[1], 1)
    else:
        fix(axes[dim])
    return [axes[:dim] + axes[dim + 1 :] for _ in call.outs]


def glu(call: OperatorCall) -> list[Axes]:
    """The first half times a gate from the second."""
    axes, (dim,) = call.axes("self"), call.dims()
    value, gate = cut_axis(axes[dim], axes[dim].size // 2)
    equate(value, gate)
    return [[*axes[:dim], value, *axes[dim + 1 :]]]


def pad(call: OperatorCall) -> list[Axes]:
    """Constants before and after, or fewer units where the number is negative."""
    axes, widths = list(call.axes("self")), call["pad"]
    for i in range(len(widths) // 2):
        before, after = widths[2 * i], widths[2 * i + 1]
        axis = axes[-1 - i]
        axis = cut_axis(axis, -before)[1] if before < 0 else axis
        axis = cut_axis(axis, axis.size + after)[0] if after < 0 else axis
        axes[-1 - i] = joined(fresh(max(before, 0)), axis, fresh(max(after, 0)))
    return [axes]


def pixel_shuffle(call: OperatorCall) -> list[Axes]:
    """Channels as pixels, or pixels as channels; a channel takes its pixels along."""
    *batch, channels, height, width = call.axes("self")
    fix(height, width)
    *_, size, high, wide = call.outs[0].shape
    if call.name == "pixel_unshuffle":
        return [[*batch, nested(channels, fixed(size // channels.size)), fixed(high), fixed(wide)]]
    made = fresh(size)
    equate(channels, nested(made, fixed(channels.size // size)))
    return [[*batch, made, fixed(high), fixed(wide)]]


# ---------------------------------------------------------------- picks by an index


def index(call: OperatorCall) -> list[Axes]:
    """Units at given places: the dimensions that are indexed are fixed."""
    rest, picked, at = _indexed(call)
    return [[*rest[:at], *picked, *rest[at:]]]


def index_put(call: OperatorCall) -> list[Axes]:
    """Values written to given places."""
    axes = call.axes("self")
    rest, picked, at = _indexed(call)
    _broadcast(call.axes("values"), [*rest[:at], *picked, *rest[at:]])
    return [axes]


def gather(call: OperatorCall) -> list[Axes]:
    """Along one dimension the places that an index says, for each unit of the others."""
    axes, picked, (dim,) = call.axes("self"), call.axes("index"), call.dims()
    fix(axes[dim])
    _equate_others(axes, picked, dim)
    return [picked]


def table_rows(call: OperatorCall) -> list[Axes]:
    """Rows of a table."""
    rows, *rest = call.axes("weight")
    fix(rows)
    return [call.axes("indices") + rest]


def _indexed(call: OperatorCall) -> tuple[list[UnitAxis], list[UnitAxis], int]:
    """The axes that are not indexed, those of the picks, and where among the former the latter stand."""
    axes, indices = call.axes("self"), list(call["indices"])
    used, dim = [], 0
    rest: list[UnitAxis] = []
    shapes = []
    for given in indices:
        if given is None:
            rest.append(axes[dim])
            dim += 1
            continue
        is_mask = given.dtype in (torch.bool, torch.uint8)
        covered = given.ndim if is_mask else 1
        fix(*axes[dim : dim + covered], *call.of(given))
        shapes.append((int(given.count_nonzero()),) if is_mask else tuple(given.shape))
        used.append((len(rest), dim))
        dim += covered
    rest += axes[dim:]
    picked = [fixed(size) for size in torch.broadcast_shapes(*shapes)]
    together = len({place for place, _ in used}) == 1  # nothing that is not indexed stands between
    return rest, picked, used[0][0] if together else 0


def _equate_others(axes: Sequence[UnitAxis], others: Sequence[UnitAxis], dim: int) -> None:
    """All axes but one are the same; of one that is only begun, the rest keeps its place."""
    for d, (a, b) in enumerate(zip(axes, others, strict=True)):
        if d != dim:
            equate(a if a.size == b.size else cut_axis(a, b.size)[0], b)


# ---------------------------------------------------------------- stacks


def same_stack(call: OperatorCall, held: Stack) -> list[Axes] | None:
    """As it was, where no other tensor takes part."""
    return [held] if len(call.tensors) == 1 else None


def moved_stack(call: OperatorCall, held: Stack) -> list[Axes]:
    """Dimensions in another order."""
    order = _order(call)
    kept = [dim - (dim > held.dim) for dim in order if dim != held.dim]
    return [Stack(order.index(held.dim), [[layer[dim] for dim in kept] for layer in held.layers])]


def picked_stack(call: OperatorCall, held: Stack) -> list[Axes] | None:
    """One layer, or each by itself."""
    if call.dims() != [held.dim]:
        return None
    return [held.layers[call["index"]]] if call.name == "select" else list(held.layers)


def viewed_stack(call: OperatorCall, held: Stack) -> list[Axes] | None:
    """With more or fewer dimensions of one unit."""
    old, new = list(call["self"].shape), list(call.outs[0].shape)
    if old[held.dim] == 1 or [size for size in old if size != 1] != [size for size in new if size != 1]:
        return None
    real = [dim for dim, size in enumerate(new) if size != 1]
    dim, layers = real[sum(size != 1 for size in old[: held.dim])], []
    for layer in held.layers:
        rest = iter([axis for axis in layer if axis.size != 1])
        layers.append([fixed(1) if size == 1 else next(rest) for d, size in enumerate(new) if d != dim])
    return [Stack(dim, layers)]


# ---------------------------------------------------------------- the table


def rule_of(call: OperatorCall) -> Rule | None:
    """What the operation says about axes; None where nothing is known of it."""
    if torch.Tag.pointwise in call.operator.tags:
        return pointwise
    if call.name in RULES:
        return RULES[call.name]
    if _is_pointwise_elsewhere(call):
        return pointwise
    return next((rule for pattern, rule in PATTERNS.items() if re.fullmatch(pattern, call.name)), None)


def _is_pointwise_elsewhere(call: OperatorCall) -> bool:
    """Whether torch says so of the operation that does the same without writing to its input."""
    packet = getattr(torch.ops.aten, call.name, None) if call.writes else None
    return packet is not None and any(torch.Tag.pointwise in getattr(packet, one).tags for one in packet.overloads())


TABLE = tomllib.loads(resources.files(__package__).joinpath("rules.toml").read_text(encoding="utf-8"))


def _by_operation(rules: Mapping[str, str]) -> dict[str, Any]:
    return {name: globals()[rule] for rule, names in rules.items() for name in names.split()}


RULES: dict[str, Rule] = _by_operation(TABLE["rules"])
PATTERNS: dict[str, Rule] = {rf".*(pool|upsample_|_pad|grid_sampler_).*{n}d.*": spatial(n) for n in (1, 2, 3)}
STACK_RULES: dict[str, Callable[[OperatorCall, Stack], list[Axes] | None]] = _by_operation(TABLE["stacks"])
PRODUCERS = set(TABLE["activations"]["producers"].split())
