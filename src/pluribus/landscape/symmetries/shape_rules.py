"""Rules of operations that move units and compute nothing: views, cuts, concatenations, picks by an index."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from .axes import UnitAxis, cut_axis, equate, fix, fixed, fresh, joined, nested, settle
from .operations import Axes, OperatorCall, Stack, key_of

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


def unfold(call: OperatorCall) -> list[Axes]:
    """Windows along a dimension."""
    axes, (dim,) = list(call.axes("self")), call.dims("dimension")
    fix(axes[dim])
    axes[dim] = fixed(call.outs[0].shape[dim])
    return [[*axes, fixed(call["size"])]]


def diagonal(call: OperatorCall) -> list[Axes]:
    """The diagonal of two dimensions, last; they are fixed."""
    axes, gone = call.axes("self"), {call.dims("dim1")[0], call.dims("dim2")[0]}
    fix(*(axes[dim] for dim in gone))
    return [[*(axis for dim, axis in enumerate(axes) if dim not in gone), fixed(call.outs[0].shape[-1])]]


def real_view(call: OperatorCall) -> list[Axes]:
    """Complex numbers as pairs of real ones, or the other way."""
    axes = call.axes("self")
    if call.name == "view_as_real":
        return [[*axes, fixed(2)]]
    fix(axes[-1])
    return [axes[:-1]]


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


def channel_shuffle(call: OperatorCall) -> list[Axes]:
    """Groups of channels dealt like cards."""
    batch, channels, *space = call.axes("self")
    group, inner = fresh(call["groups"]), fresh(channels.size // call["groups"])
    equate(channels, nested(group, inner))
    return [[batch, nested(inner, group), *space]]


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


def windows(call: OperatorCall) -> list[Axes]:
    """Windows of an image as columns, or an image of such columns."""
    if call.name == "im2col":
        *batch, channels, height, width = call.axes("self")
        fix(height, width)
        rows, places = call.outs[0].shape[-2:]
        return [[*batch, nested(channels, fixed(rows // channels.size)), fixed(places)]]
    *batch, columns, places_axis = call.axes("self")
    fix(places_axis)
    size, high, wide = call.outs[0].shape[-3:]
    made = fresh(size)
    equate(columns, nested(made, fixed(columns.size // size)))
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
    _equate_ends([*rest[:at], *picked, *rest[at:]], call.axes("values"))
    return [axes]


def index_select(call: OperatorCall) -> list[Axes]:
    """Units of one dimension at given places."""
    axes, (dim,) = call.axes("self"), call.dims()
    fix(axes[dim])
    return [[*axes[:dim], fixed(call.outs[0].shape[dim]), *axes[dim + 1 :]]]


def index_add(call: OperatorCall) -> list[Axes]:
    """Units of a source written or added to given places of one dimension."""
    axes, source, (dim,) = call.axes("self"), call.axes("source"), call.dims()
    fix(axes[dim], source[dim])
    for d, (a, b) in enumerate(zip(axes, source, strict=True)):
        if d != dim:
            equate(a, b)
    return [axes]


def gather(call: OperatorCall) -> list[Axes]:
    """Along one dimension the places that an index says, for each unit of the others."""
    axes, picked, (dim,) = call.axes("self"), call.axes("index"), call.dims()
    fix(axes[dim])
    _equate_others(axes, picked, dim)
    return [picked]


def scatter(call: OperatorCall) -> list[Axes]:
    """Along one dimension a source written to the places that an index says, for each unit of the others."""
    axes, picked, (dim,) = call.axes("self"), call.axes("index"), call.dims()
    fix(axes[dim], picked[dim])
    _equate_others(axes, picked, dim)
    for source in call.others("src"):
        fix(source[dim])
        _equate_others(source, picked, dim)
    return [axes]


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


def _equate_ends(axes: Sequence[UnitAxis], others: Sequence[UnitAxis]) -> None:
    """The last axes of two tensors, one broadcast to the other, are the same."""
    for a, b in zip(reversed(axes), reversed(others), strict=False):
        if b.size > 1 or a.size == 1:
            equate(a, b)


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
