"""Two networks in one order of units: by what their weights have in common, or by what their units say to data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from ...methods.building import check_whole
from ..common.arguments import FROM_ZERO, check_arguments
from ..common.networks import networks_of
from .activations import record_activations
from .axis_tracing import lasting_state
from .groups import DimensionPart, Groups, Orders, elsewhere, reorder, units_at
from .symmetry_search import check_groups, one_network, permutations, reorder_network

Layout = Mapping[Any, tuple[DimensionPart, ...]]

SWEEPS = 100  # over all groups, at most; a descent ends when none changes


@check_arguments(restarts=FROM_ZERO)
def align(
    model: Any,
    reference: Any,
    example: Any,
    by: Literal["weights", "activations"] = "weights",
    *,
    groups: Groups | None = None,
    restarts: int = 3,
    generator: torch.Generator | None = None,
) -> nn.Module:
    """A copy of a network whose units are in the order that brings it nearest to another; its function is the same.

    By "weights" the sum of products of all weights with those of the reference becomes largest (Ainsworth et al.,
    "Git Re-Basin", 2023); by "activations" the correlation of what the units of both compute for the rows of the
    example, which is the better guide for transformers. Group after group gets its best order while the others wait,
    until none changes.

    Shapes:
        model, reference: networks of one architecture; the result has their shapes

    Args:
        example: what one call takes; by activations, as many rows as can be had: they are what units are compared on
        groups: of `permutations`, where they are known already
        restarts: descents from random orders, besides the one that starts with the order as it is; the best counts
        generator: where random numbers come from; by default torch's own generator

    >>> from pluribus.landscape import permute
    >>> model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> x = torch.randn(4, 3)
    >>> groups = permutations(model, x)
    >>> back = align(permute(model, groups), model, x, groups=groups)
    >>> all(torch.equal(one, other) for one, other in zip(back.parameters(), model.parameters()))
    True
    """
    model, reference = one_network("align", model), one_network("align", reference)
    networks_of("align", [model, reference])  # of one architecture
    if by not in ("weights", "activations"):
        raise ValueError(f'align: by must be "weights" or "activations", but it is {by!r}.')
    count = 1 + (check_whole("align", "restarts", restarts) if restarts else 0)
    groups = permutations(model, example) if groups is None else groups
    check_groups("align", model, groups)
    for name, network in {"model": model, "reference": reference}.items():
        _check_finite(name, network)
    if by == "weights":
        search = Search(groups, groups.layout, _weights(model, groups), _weights(reference, groups))
    else:
        recorded = record_activations("align", model, reference, groups, example)
        search = Search(groups, *_with_silent(groups, recorded, _weights(model, groups), _weights(reference, groups)))
    return reorder_network("align", model, groups, search.best(count, generator))


def _with_silent(groups: Groups, recorded: Any, own: Mapping[Any, Tensor], goal: Mapping[Any, Tensor]) -> Any:
    """Activations, and the weights of groups that stand in none of them, too small to outweigh any activation."""
    layout, first, second = recorded
    heard = {group for parts in layout.values() for part in parts for group in part.groups}
    silent = set(range(len(groups))) - heard
    for name, parts in groups.layout.items():
        if silent & {group for part in parts for group in part.groups}:
            size = 30 * goal[name].norm().clamp(min=1e-12)
            layout[name], first[name], second[name] = parts, own[name] / size, goal[name] / size
    return layout, first, second


class Search:
    """The orders of a network's units in which its tensors are nearest to those of another.

    Args:
        layout: where the groups stand in each tensor
        own, goal: the tensors of the network, and of the other, by the same keys
    """

    def __init__(self, groups: Groups, layout: Layout, own: Mapping[Any, Tensor], goal: Mapping[Any, Tensor]):
        self.groups, self.layout, self.own, self.goal = groups, layout, own, goal
        self.uses: list[list[tuple[Any, int]]] = [[] for _ in groups.sizes]
        for key in goal:
            for dim, part in enumerate(layout[key]):
                for g in part.groups:
                    self.uses[g].append((key, dim))
        self.inner = [[c for c, outer in enumerate(groups.outer) if outer == g] for g in range(len(groups))]

    def best(self, descents: int, generator: torch.Generator | None = None) -> Orders:
        """The best orders of several descents, the first from the order as it is."""
        generator = generator or torch.Generator().manual_seed(0)
        found = []
        for number in range(descents):
            found.append(self.descend(self.groups.random(generator) if number else self.groups.identity(), generator))
        return max(found, key=lambda pair: pair[1])[0]

    def descend(self, orders: Orders, generator: torch.Generator) -> tuple[Orders, float]:
        """The orders when no group has a better one while the others stay, and what they are worth."""
        self.orders, self.now = orders, {key: self._reorder(key, orders) for key in self.own}
        self.small = 1e-9 * max(1.0, sum(float(t.square().sum()) for t in self.goal.values()))
        for _ in range(SWEEPS):
            turns = torch.randperm(len(self.groups), generator=generator).tolist()
            if not any([self._improve(g) for g in turns]):  # a list: every group has its turn
                break
        return self.orders, sum(float((self.now[key] * goal).sum()) for key, goal in self.goal.items())

    def _improve(self, g: int) -> bool:
        """Give a group, and those inside it, their best orders while the others stay; whether that helped."""
        tried = list(self.orders)
        if self.groups.outer[g] is not None:
            sizes = self.groups.sizes[self.groups.outer[g] or 0], self.groups.sizes[g], self.groups.sizes[g]
            gains = self._gain(g, sizes, lambda a, b: a @ b.mT)
            tried[g] = torch.stack([order[_assign(gain)[0]] for order, gain in zip(tried[g], gains, strict=True)])
        else:
            self._order_with_inner(g, tried)
        touched = {key for c in (g, *self.inner[g]) for key, _ in self.uses[c]}
        new = {key: self._reorder(key, tried) for key in touched}
        if sum(float(((new[key] - self.now[key]) * self.goal[key]).sum()) for key in touched) <= self.small:
            return False
        self.orders, self.now = tried, {**self.now, **new}
        return True

    def _order_with_inner(self, g: int, tried: Orders) -> None:
        """The best order of a group whose every pair of units is worth what the best orders inside them are."""
        count = self.groups.sizes[g]
        gain = self._gain(g, (count, count), lambda a, b: a @ b.T, self.inner[g])
        inside: dict[int, list[list[Tensor]]] = {}
        for c in self.inner[g]:
            size = self.groups.sizes[c]
            pairs = self._gain(c, (count, count, size, size), lambda a, b: a[:, None] @ b[None].mT)
            solved = [[_assign(pairs[i, j]) for j in range(count)] for i in range(count)]
            inside[c] = [[order for order, _ in row] for row in solved]
            gain = gain + np.array([[value for _, value in row] for row in solved])
        order, _ = _assign(gain)
        tried[g] = tried[g][order]
        for c, orders in inside.items():
            tried[c] = torch.stack([tried[c][j][orders[i][j]] for i, j in enumerate(order.tolist())])

    def _gain(
        self, g: int, shape: Sequence[int], compare: Callable[[Tensor, Tensor], Tensor], inner: Sequence[int] = ()
    ) -> np.ndarray:
        """How well each unit of the network fits each of the reference, over all tensors that hold the group."""
        total = torch.zeros(*shape, dtype=torch.float64)
        for key, dim in self.uses[g]:
            parts = self.layout[key]
            if any(_lies_across(parts, c, dim, self.groups.outer) for c in inner):
                continue  # that is counted with the groups inside
            a, b = (unit_rows(parts, tensors[key], dim, g, self.groups, inner) for tensors in (self.goal, self.now))
            if a.numel():
                total += compare(a, b).double()
        return total.numpy()

    def _reorder(self, key: Any, orders: Orders) -> Tensor:
        return reorder(self.layout[key], self.own[key], orders, self.groups.outer)


def unit_rows(
    parts: Sequence[DimensionPart], tensor: Tensor, dim: int, g: int, groups: Groups, inner: Sequence[int] = ()
) -> Tensor:
    """What a tensor has for each unit of a group along a dimension, without places of the groups `inner`.

    Shapes:
        (units, values), or (units of the outer group, units, values)
    """
    order, outer, size = units_at(parts[dim], g), groups.outer[g], groups.sizes[g]
    for child in inner:
        order = torch.where(units_at(parts[dim], child) >= 0, -1, order)
    if outer is None:
        return tensor.index_select(dim, _places(order)).movedim(dim, 0).reshape(size, -1)
    count, other = groups.sizes[outer], elsewhere(parts, dim, groups.outer)
    if other is None:
        order = torch.where(order >= 0, units_at(parts[dim], outer) * size + order, -1)
        return tensor.index_select(dim, _places(order)).movedim(dim, 0).reshape(count, size, -1)
    above = _places(other[1][outer])
    picked = tensor.index_select(other[0], above).index_select(dim, _places(order)).movedim((other[0], dim), (0, 1))
    times = len(above) // count
    return picked.reshape(count, times, size, -1).transpose(1, 2).reshape(count, size, -1)


def _places(order: Tensor) -> Tensor:
    """The places that hold units, those of the first unit first."""
    return torch.argsort(order, stable=True)[int((order < 0).sum()) :]


def _lies_across(parts: Sequence[DimensionPart], child: int, dim: int, outer: Sequence[int | None]) -> bool:
    """Whether a group stands in another dimension, inside of the units of this one."""
    others = [other for other, part in enumerate(parts) if other != dim and child in part.groups]
    return any((found := elsewhere(parts, other, outer)) is not None and found[0] == dim for other in others)


def _assign(gain: Any) -> tuple[Tensor, float]:
    rows, columns = linear_sum_assignment(gain, maximize=True)
    return torch.as_tensor(columns), float(np.asarray(gain)[rows, columns].sum())


def _weights(model: nn.Module, groups: Groups) -> dict[str, Tensor]:
    """The parameters that hold units, without statistics of normalisation."""
    named = {name: t for name, t in lasting_state(model).items() if isinstance(t, nn.Parameter)}
    return {name: _real(t.detach()).cpu().double() for name, t in named.items() if name in groups.layout}


def _check_finite(what: str, model: nn.Module) -> None:
    for name, tensor in lasting_state(model).items():
        if not bool(tensor.isfinite().all()):
            raise ValueError(
                f"align: the weights must be finite, but some in {name!r} of the {what} are not. Give a network "
                "whose training did not diverge."
            )


def _real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor
