"""Axes of tensors as ordered sets of units, and the equations between them.

    a, b = fresh(3), fresh(5)
    both = joined(a, b)                  # 8 units: those of a, then those of b
    equate(both, other := fresh(8))      # settle(other) is that sum
    cut_axis(other, 3)                   # (a, b) again

A shape check says which sizes are equal; here the same is said of axes. Where a size is a sum or a product of sizes, an
axis is so with order: a "sum" is one axis after the other (a concatenation), a "product" is an outer axis with an inner
one inside each of its units (a view). What no equation fixes may be permuted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(eq=False)
class UnitAxis:
    """Some units in order: free to change places, fixed, made of other axes, or known to be the same as another."""

    size: int
    is_fixed: bool = False
    kind: str = ""  # "sum": parts one after the other; "product": parts from outer to inner
    parts: tuple[UnitAxis, ...] = ()
    same: UnitAxis | None = None

    @property
    def is_free(self) -> bool:
        """Whether its units may change places, and it is not made of others."""
        return not (self.is_fixed or self.kind or self.same)


def fixed(size: int) -> UnitAxis:
    """An axis whose units keep their places."""
    return UnitAxis(size, is_fixed=True)


def fresh(size: int) -> UnitAxis:
    """An axis of which nothing is known yet; a single unit has no other place."""
    return UnitAxis(size, is_fixed=size <= 1)


def joined(*parts: UnitAxis) -> UnitAxis:
    """Axes one after the other."""
    return _compose("sum", parts)


def nested(*parts: UnitAxis) -> UnitAxis:
    """Axes inside one another, the outer first."""
    return _compose("product", parts)


def settle(axis: UnitAxis) -> UnitAxis:
    """The axis as it is by all that is known now."""
    while axis.same is not None:
        axis = axis.same
    if axis.kind and any(part.same or part.kind or part.is_fixed for part in axis.parts):
        new = _compose(axis.kind, axis.parts)
        if new.kind != axis.kind or len(new.parts) != len(axis.parts):
            axis.same = new
            return settle(new)
        axis.parts = new.parts
    return axis


def fix(*axes: UnitAxis) -> None:
    """Let all units of these axes keep their places."""
    for axis in map(settle, axes):
        if axis.kind:
            fix(*axis.parts)
        else:
            axis.is_fixed = True


def equate(one: UnitAxis, other: UnitAxis) -> None:
    """Take note that two axes are the same; where they are not made alike, both are refined, or fixed."""
    one, other = settle(one), settle(other)
    if one is other:
        return
    if one.size != other.size:
        raise ValueError(f"axes of {one.size} and {other.size} units cannot be the same")
    if one.is_fixed or other.is_fixed:
        fix(one, other)
    elif one.is_free:
        one.same = other
    elif other.is_free:
        other.same = one
    elif one.kind == other.kind == "product":
        _equate_products(one, other)
    else:
        _equate_sums(one, other)


def cut_axis(axis: UnitAxis, count: int) -> tuple[UnitAxis, UnitAxis]:
    """The first units of an axis, and the rest."""
    axis = settle(axis)
    if count in (0, axis.size):
        return (axis, fixed(0)) if count else (fixed(0), axis)
    if axis.is_fixed:
        return fixed(count), fixed(axis.size - count)
    if axis.kind == "sum":
        return _cut_sum(axis, count)
    if axis.kind == "product":
        return _cut_product(axis, count)
    head, tail = fresh(count), fresh(axis.size - count)
    axis.same = joined(head, tail)
    return head, tail


def split_inner(axis: UnitAxis, size: int) -> tuple[UnitAxis, UnitAxis] | None:
    """The axis as an outer one with an inner one of `size` units in each of its units; None where it cannot be."""
    axis = settle(axis)
    if axis.size == size:
        return fixed(1), axis
    if not size or axis.size % size:
        return None
    if axis.is_fixed:
        return fixed(axis.size // size), fixed(size)
    if axis.kind == "sum":
        return _split_sum(axis, size)
    if axis.kind == "product":
        return _split_product(axis, size)
    outer, inner = fresh(axis.size // size), fresh(size)
    axis.same = nested(outer, inner)
    return outer, inner


def free_axes(axis: UnitAxis) -> Iterator[UnitAxis]:
    """The free axes that an axis is made of, as often as it holds them."""
    axis = settle(axis)
    for part in axis.parts if axis.kind else ():
        yield from free_axes(part)
    if axis.is_free:
        yield axis


# ---------------------------------------------------------------- sums and products


def _compose(kind: str, parts: Iterable[UnitAxis]) -> UnitAxis:
    """A sum or product without sums in sums, single units in products, or fixed parts side by side."""
    neutral = int(kind == "product")
    flat: list[UnitAxis] = []
    for part in map(settle, parts):
        flat += part.parts if part.kind == kind else [part] if part.size != neutral else []
    merged: list[UnitAxis] = []
    for part in flat:
        if part.is_fixed and merged and merged[-1].is_fixed:
            merged[-1] = fixed(_size(kind, [merged[-1], part]))
        else:
            merged.append(part)
    if len(merged) < 2:
        return merged[0] if merged else fixed(neutral)
    return UnitAxis(_size(kind, merged), kind=kind, parts=tuple(merged))


def _size(kind: str, parts: Iterable[UnitAxis]) -> int:
    sizes = [part.size for part in parts]
    return sum(sizes) if kind == "sum" else math.prod(sizes)


def _equate_products(one: UnitAxis, other: UnitAxis) -> None:
    size = min(one.parts[-1].size, other.parts[-1].size)
    halves, others = split_inner(one, size), split_inner(other, size)
    if halves is None or others is None:
        fix(one, other)
        return
    equate(halves[1], others[1])
    equate(halves[0], others[0])


def _equate_sums(one: UnitAxis, other: UnitAxis) -> None:
    while one.size:
        one, other = settle(one), settle(other)
        size = min((axis.parts[0].size for axis in (one, other) if axis.kind == "sum"), default=one.size)
        (first, one), (second, other) = cut_axis(one, size), cut_axis(other, size)
        equate(first, second)


def _cut_sum(axis: UnitAxis, count: int) -> tuple[UnitAxis, UnitAxis]:
    i = 0
    while count >= axis.parts[i].size:
        count -= axis.parts[i].size
        i += 1
    head, tail = cut_axis(axis.parts[i], count)
    return joined(*axis.parts[:i], head), joined(tail, *axis.parts[i + 1 :])


def _cut_product(axis: UnitAxis, count: int) -> tuple[UnitAxis, UnitAxis]:
    outer, inner = axis.parts[0], nested(*axis.parts[1:])
    whole, left = divmod(count, inner.size)
    before, after = cut_axis(outer, whole)
    if not left:
        return nested(before, inner), nested(after, inner)
    _, after = cut_axis(after, 1)  # the unit that the cut goes through
    head, tail = cut_axis(inner, left)
    return joined(nested(before, inner), head), joined(tail, nested(after, inner))


def _split_sum(axis: UnitAxis, size: int) -> tuple[UnitAxis, UnitAxis] | None:
    found = [split_inner(part, size) for part in axis.parts]
    halves = [half for half in found if half is not None]
    if len(halves) < len(found):
        return None
    inner = halves[0][1]
    for _, other in halves[1:]:
        equate(inner, other)
    return joined(*(outer for outer, _ in halves)), inner


def _split_product(axis: UnitAxis, size: int) -> tuple[UnitAxis, UnitAxis] | None:
    *rest, last = axis.parts
    if last.size >= size:
        half = split_inner(last, size)
        return half and (nested(*rest, half[0]), half[1])
    half = split_inner(nested(*rest), size // last.size) if size % last.size == 0 else None
    return half and (half[0], nested(half[1], last))
