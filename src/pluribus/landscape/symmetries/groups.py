"""Groups of units that may change places: where each stands in a network's tensors, and tensors in another order.

In `nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))` the 8 hidden units are group 0. A layout says of each
dimension of each tensor which units stand there:

    0.weight   (units of group 0, fixed)        rows change places with the units
    0.bias     (units of group 0)
    2.weight   (fixed, units of group 0)        columns follow

An order is a permutation for each group, and `reorder` puts a tensor into it by indexing each dimension. A dimension
may hold several groups: one after the other (a "sum"), or one inside the units of another (a "product"), as the width
of attention stands inside its heads. A group inside another has an order of its own in each unit of the outer one:
`orders[inner]` then has a row for each outer unit, and moving a head takes its own order along.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from ...results.judgements import plural

Orders = list[Tensor]  # of each group: which unit comes to each place, (units), or (units of the outer group, units)


@dataclass(frozen=True)
class DimensionPart:
    """A dimension of a tensor, or a part: units of a group, units that are fixed, or a sum or product of parts."""

    size: int
    group: int | None = None
    kind: str = ""  # "sum": parts one after the other; "product": parts inside one another, the outer first
    parts: tuple[DimensionPart, ...] = ()

    @property
    def groups(self) -> set[int]:
        """The groups that have units here."""
        return {group for group, _ in _paths(self, ())}

    def renumber(self, numbers: Mapping[int, int]) -> DimensionPart:
        """The same with new numbers of groups; those that have none are fixed."""
        group = None if self.group is None else numbers.get(self.group)
        return replace(self, group=group, parts=tuple(part.renumber(numbers) for part in self.parts))


@dataclass(frozen=True)
class UnitGroup:
    """Hidden units that can be permuted.

    Args:
        number: its place in `Groups`
        size: how many units it has
        places: the tensors, and the dimension of each, in which the units stand
        outer: the number of another group, in each of whose units these have an order of their own
        outer_size: how many units that one has; 1 without one

    >>> UnitGroup(0, 8, (("0.weight", 0), ("2.weight", 1))).size
    8
    """

    number: int
    size: int
    places: tuple[tuple[str, int], ...]
    outer: int | None = None
    outer_size: int = 1

    @property
    def name(self) -> str:
        """The first place of the units."""
        return f"{self.places[0][0]}[{self.places[0][1]}]"

    @property
    def log10_orders(self) -> float:
        """The logarithm, to base 10, of the number of orders."""
        return self.outer_size * math.lgamma(self.size + 1) / math.log(10)

    def __str__(self) -> str:
        places = ", ".join(f"{name}[{dim}]" for name, dim in self.places[:4])
        more = f" and {len(self.places) - 4} more" if len(self.places) > 4 else ""
        each = "" if self.outer is None else f" in each of the {self.outer_size} units of group {self.outer}"
        return f"group {self.number}: {self.size} units{each}: {places}{more}"


@dataclass(frozen=True, repr=False)
class Groups(Sequence[UnitGroup]):
    """The groups of hidden units of a network that can be permuted without changing its function.

    Made by `permutations`. `groups[i]` says where the units of group i stand, and `groups.explain()` says it of all.

    Args:
        layout: of each tensor that holds units, its dimensions
        sizes: units of each group
        outer: of each group the group in each of whose units it has an order of its own, or None
        shapes: of the tensors by name
        without_rule: operations of the model that have no rule: what they touch keeps its order
        dropped: what the test of the function did not confirm, in words
        activations: where units stand in what is computed in a run, by the turn of the operation
        example: what the function is checked on
        rows: of the example that the groups were found with

    >>> model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> groups = pb.landscape.permutations(model, torch.randn(4, 3))
    >>> groups.sizes, groups[0].places
    ((8,), (('0.weight', 0), ('0.bias', 0), ('2.weight', 1)))
    """

    layout: dict[str, tuple[DimensionPart, ...]]
    sizes: tuple[int, ...]
    outer: tuple[int | None, ...]
    shapes: dict[str, tuple[int, ...]]
    without_rule: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    activations: dict[int, tuple[DimensionPart, ...]] = field(default_factory=dict)
    example: Any = None
    rows: int = 0  # of the example, that the groups were found with

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, number: Any) -> Any:
        return self._described[number]

    @functools.cached_property
    def _described(self) -> list[UnitGroup]:
        every = range(len(self))
        places = {
            g: tuple((name, dim) for name, parts in self.layout.items() for dim, p in enumerate(parts) if g in p.groups)
            for g in every
        }
        inside = [1 if outer is None else self.sizes[outer] for outer in self.outer]
        return [UnitGroup(g, self.sizes[g], places[g], self.outer[g], inside[g]) for g in every]

    def __repr__(self) -> str:
        return f"Groups({plural(len(self), 'group')} in {len(self.layout)} of {len(self.shapes)} tensors)"

    def explain(self) -> str:
        """What may change places, and what may not and why, in words."""
        number = plural(len(self), "group")
        lines = [f"{number} of hidden units; 10^{self.log10_orders:.0f} orders give the same function."]
        lines += [f"  {group}" for group in self]
        if kept := [name for name in self.shapes if name not in self.layout]:
            more = f" and {len(kept) - 6} more" if len(kept) > 6 else ""
            lines.append(f"Kept in place: {', '.join(kept[:6])}{more}.")
        if self.without_rule:
            said = ", ".join(self.without_rule)
            lines.append(f"Operations without a rule, which keep what they touch in place: {said}.")
        return "\n".join([*lines, *(f"Left out: {text}." for text in self.dropped)])

    @property
    def log10_orders(self) -> float:
        """The logarithm, to base 10, of the number of orders of all groups."""
        return sum(group.log10_orders for group in self)

    # ---------------------------------------------------------------- orders

    def identity(self) -> Orders:
        """The orders that change nothing."""
        return self._orders(lambda g: torch.arange(self.sizes[g]))

    def random(self, generator: torch.Generator | None = None, only: Collection[int] | None = None) -> Orders:
        """A random order of every group, or of some."""
        moved = range(len(self)) if only is None else only
        return self._orders(
            lambda g: torch.randperm(self.sizes[g], generator=generator) if g in moved else torch.arange(self.sizes[g])
        )

    def _orders(self, draw: Callable[[int], Tensor]) -> Orders:
        return [
            draw(g) if outer is None else torch.stack([draw(g) for _ in range(self.sizes[outer])])
            for g, outer in enumerate(self.outer)
        ]

    def reorder(self, name: str, tensor: Tensor, orders: Orders) -> Tensor:
        """A tensor of the network with its units in these orders."""
        return reorder(self.layout[name], tensor, orders, self.outer) if name in self.layout else tensor

    def without(self, reasons: Mapping[int, str]) -> Groups:
        """All groups but these, and those inside them; the reasons are noted."""
        inside = {g: reasons[outer] for g, outer in enumerate(self.outer) if outer is not None and outer in reasons}
        gone = {**inside, **reasons}
        kept = [g for g in range(len(self)) if g not in gone]
        new = {g: i for i, g in enumerate(kept)}
        said = [f"{self.sizes[g]} units of {self[g].name}, {reason}" for g, reason in sorted(gone.items())]
        return replace(
            self, layout=_renumber(self.layout, new), activations=_renumber(self.activations, new),
            sizes=tuple(self.sizes[g] for g in kept), dropped=(*self.dropped, *said),
            outer=tuple(None if (outer := self.outer[g]) is None else new[outer] for g in kept),
        )  # fmt: skip


Key = TypeVar("Key")


def _renumber(
    layout: Mapping[Key, tuple[DimensionPart, ...]], numbers: Mapping[int, int]
) -> dict[Key, tuple[DimensionPart, ...]]:
    """The layout with new numbers of groups, without tensors that hold none any more."""
    made = {key: tuple(part.renumber(numbers) for part in parts) for key, parts in layout.items()}
    return {key: parts for key, parts in made.items() if any(part.groups for part in parts)}


# ---------------------------------------------------------------- tensors in another order


def reorder(parts: Sequence[DimensionPart], tensor: Tensor, orders: Orders, outer: Sequence[int | None]) -> Tensor:
    """A tensor with the units of its dimensions in these orders."""
    crossed = []
    for dim, part in enumerate(parts):
        if not part.groups:
            continue
        other = elsewhere(parts, dim, outer)
        if other is not None:
            crossed.append((dim, *other))
        else:
            tensor = tensor.index_select(dim, _sources(part, orders, outer, {}, 1)[0].to(tensor.device))
    for dim, other_dim, above in crossed:  # the order in one dimension depends on the place in another
        sources = _sources(parts[dim], orders, outer, above, tensor.shape[other_dim]).to(tensor.device)
        rows = torch.arange(len(sources), device=tensor.device)[:, None]
        tensor = tensor.movedim((other_dim, dim), (0, 1))[rows, sources].movedim((0, 1), (other_dim, dim))
    return tensor


def units_at(part: DimensionPart, group: int) -> Tensor:
    """Which unit of a group stands at each place of a dimension; -1 where none does."""
    if part.kind == "sum":
        return torch.cat([units_at(own, group) for own in part.parts])
    found = torch.full((part.size,), -1)
    if part.kind == "product":
        below = part.size
        for own in part.parts:
            below //= own.size
            units = units_at(own, group)[torch.arange(part.size) // below % own.size]
            found = torch.where(units >= 0, units, found)
    elif part.group == group:
        found = torch.arange(part.size)
    return found


def elsewhere(
    parts: Sequence[DimensionPart], dim: int, outer: Sequence[int | None]
) -> tuple[int, dict[int, Tensor]] | None:
    """Another dimension that holds the outer group of a group in this one, and its unit at each place there."""
    inside = dict(_paths(parts[dim], ()))
    for group in parts[dim].groups:
        above = outer[group]
        if above is None or above in inside[group]:
            continue
        for other, part in enumerate(parts):
            if other != dim and above in whole_groups(part):
                return other, {above: units_at(part, above)}
    return None


def whole_groups(part: DimensionPart) -> set[int]:
    """The groups of which every place holds a unit."""
    return {p.group for p in (part.parts if part.kind == "product" else [part]) if p.group is not None}


def _paths(part: DimensionPart, above: tuple[int, ...]) -> Iterator[tuple[int, set[int]]]:
    """Each group here, with those in whose units it lies."""
    for own in part.parts:
        yield from _paths(own, above)
        if part.kind == "product" and own.group is not None:
            above = *above, own.group
    if part.group is not None:
        yield part.group, set(above)


def _sources(
    part: DimensionPart, orders: Orders, outer: Sequence[int | None], above: Mapping[int, Tensor], copies: int
) -> Tensor:
    """Where each unit of a dimension comes from, (copies, size): in each copy at other units of outer groups."""
    if part.kind == "sum":
        starts = itertools.accumulate((own.size for own in part.parts), initial=0)
        pieces = [_sources(p, orders, outer, above, copies) + s for p, s in zip(part.parts, starts, strict=False)]
        return torch.cat(pieces, 1)
    if part.kind == "product":
        found = torch.zeros(copies, 1, dtype=torch.long)
        for own in part.parts:
            rows = found.numel()
            found = found.reshape(-1, 1) * own.size + _sources(own, orders, outer, above, rows)
            above = {group: units.repeat_interleave(own.size) for group, units in above.items()}
            if own.group is not None:
                above[own.group] = torch.arange(own.size).repeat(rows)
        return found.reshape(copies, -1)
    if part.group is None:
        return torch.arange(part.size).expand(copies, -1)
    order, parent = orders[part.group], outer[part.group]
    return order.expand(copies, -1) if parent is None else order[above[parent]]


def outer_groups(count: int, tensors: Iterable[Sequence[DimensionPart]]) -> list[int | None]:
    """Of each group another one in each of whose units it may have an order of its own, as heads are for their width.

    That is so where no tensor of the run holds a unit of the group without one of the other.
    """
    allowed: dict[int, set[int]] = {}
    twice: set[int] = set()  # of which one place may hold several units
    for parts in tensors:
        whole, held = [whole_groups(part) for part in parts], Counter[int]()
        for i, part in enumerate(parts):
            held.update(_most_at_a_place(part))
            others = set[int]().union(*whole[:i], *whole[i + 1 :])
            for group, above in _paths(part, ()):
                allowed[group] = allowed.get(group, others | above) & (others | above)
        twice |= {group for group, times in held.items() if times > 1}
    found: list[int | None] = []
    for group in range(count):
        near = [
            key for key in allowed[group] - twice - {group}
            if group not in allowed[key] and not allowed[key] - twice - {key}
        ]  # fmt: skip
        found.append(min(near, default=None))
    return found


def _most_at_a_place(part: DimensionPart) -> Counter[int]:
    """How many units of each group one place may hold."""
    if not part.kind:
        return Counter(part.groups)
    together = operator.add if part.kind == "product" else operator.or_
    return functools.reduce(together, map(_most_at_a_place, part.parts))
