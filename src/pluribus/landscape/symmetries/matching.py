"""The order of a network's units that brings it nearest to another, and averages of networks in one order.

With the groups of `symmetry_search`, an order is one permutation for each group. `Search` goes from group to group:
while all others stay, how well each unit of one network fits each of the other is a matrix of gains (sums of products
of all tensors that hold the group), and the best permutation is a linear assignment (scipy). It ends when no group
changes, and starts again from random orders. What is compared are the weights, or what the units compute for the rows
of an example, each unit's activations with mean 0 and length 1. Heads of attention hold groups inside their units:
every pair of heads is worth what the best orders inside them give.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from ..._common.torch_operators import OperatorMode
from ..._common.torch_private import SlowPath
from ..._common.trees import Batch, as_batch, rows_of, tensors_of
from ...core.ensemble import Ensemble
from ...methods.building import check_choice, check_whole
from ...surgery.row_splitting import cut_rows, long_tensors
from ..common.examples import map_arrays
from ..common.networks import networks_of, real
from ..sampling import weight_average
from .axis_tracing import lasting_state
from .exact_test import as_precise, precisely
from .groups import DimensionPart, Groups, Orders, elsewhere, reorder, units_at
from .rules import PRODUCERS, operator_name
from .symmetry_search import check_groups, one_network, permutations, reorder_network

Layout = Mapping[Any, tuple[DimensionPart, ...]]
SWEEPS = 100  # over all groups, at most; a descent ends when none changes


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

    Args:
        model, reference: networks of one architecture
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
    check_choice("align", "by", by, ("weights", "activations"))
    count = 1 + (check_whole("align", "restarts", restarts) if restarts else 0)
    groups = permutations(model, example) if groups is None else groups
    check_groups("align", model, groups)
    if by == "weights":
        search = Search(groups, groups.layout, _weights(model, groups), _weights(reference, groups))
    else:
        recorded = record_activations("align", model, reference, groups, example)
        search = Search(groups, *recorded)
    return reorder_network("align", model, groups, search.best(count, generator))


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
    return {name: real(t.detach()).cpu().double() for name, t in named.items() if name in groups.layout}


def soup(
    models: Any,
    example: Any,
    by: Literal["weights", "activations"] = "weights",
    *,
    data: Any = None,
    generator: torch.Generator | None = None,
) -> Ensemble:
    """An ensemble of one: the mean of networks whose units were brought into the order of the first (Git Re-Basin).

    Networks that were trained from one start have one order already: for those, `weight_average` is enough.

    Args:
        models: networks of one architecture: a list, an Ensemble or a Trajectory
        example, by: as for `align`
        data: training data on which statistics of batch normalisation are estimated anew
        generator: where random numbers come from; by default torch's own generator

    >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
    <torch._C.Generator object at ...>
    >>> x = torch.randn(16, 3)
    >>> models = [nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)) for _ in range(3)]
    >>> soup(models, x).predict(x).members.shape
    torch.Size([1, 16, 2])
    """
    held = networks_of("soup", models)
    if len(held) < 2:
        raise ValueError(f"soup: needs at least 2 networks to average, but there is {len(held)}.")
    networks = list(held)
    groups = permutations(networks[0], example)
    options: Any = {"groups": groups, "generator": generator}
    aligned = [networks[0], *(align(one, networks[0], example, by, **options) for one in networks[1:])]
    made = weight_average(aligned, len(aligned), data=data)
    made.task, made.class_dim = held.task or made.task, held.class_dim
    made.notes.append(f"soup of {len(aligned)} networks, aligned by {by}")
    return made


MOST_CHUNKS = 128  # of the few rows that the groups were found with
MOST_NUMBERS = 2**20  # of one tensor that are compared
ActivationLayout = dict[int, tuple[DimensionPart, ...]]  # by the turn of an operation among those that make activations


def record_activations(
    caller: str, model: nn.Module, reference: nn.Module, groups: Groups, example: Any
) -> tuple[ActivationLayout, dict[int, Tensor], dict[int, Tensor]]:
    """Where units stand in the activations, and those of both networks, each unit with mean 0 and length 1."""
    chunks = list(_chunks(as_batch(map_arrays(example)), groups))[:MOST_CHUNKS]
    layout = {key: (DimensionPart(len(chunks)), *parts) for key, parts in groups.activations.items()}
    if rows_of(as_batch(example)) < 2 or not layout:
        raise ValueError(
            f'{caller}: by="activations" compares units on the rows of the example, but there is '
            f"{'1 row' if layout else 'no activation to compare'}. "
            + ("Give many rows." if layout else 'Use by="weights".')
        )
    found = []
    for network in (model, reference):
        network = as_precise(network)
        runs = [precisely(_record, network, chunk, groups.activations) for chunk in chunks]
        if any(set(run) != set(layout) for run in runs):
            raise ValueError(
                f"{caller}: for some rows of the example the networks run other code than for the rows that the groups "
                'were found with, so their activations cannot be compared. Use by="weights".'
            )
        found.append({key: _standardise(layout[key], [run[key] for run in runs]) for key in layout})
    layout = {key: tuple(_shorten(layout[key], found[0][key].shape)) for key in layout}
    return layout, found[0], found[1]


def _chunks(batch: Batch, groups: Groups) -> Iterator[Batch]:
    """The rows of the example, as many at a time as the groups were found with."""
    size, rows = groups.rows, rows_of(batch)
    if rows <= size:
        yield batch
        return
    for start in range(0, rows - size + 1, size):
        yield cut_rows(batch, slice(start, start + size), long_tensors(batch))


def _record(model: nn.Module, batch: Batch, layout: ActivationLayout) -> dict[int, Tensor]:
    with torch.no_grad(), SlowPath(), _Recorder(layout) as recorder:
        model(*batch[0], **batch[1])
    return recorder.found


class _Recorder(OperatorMode):
    """Keeps the outputs of some operations of a run, as many of their numbers as are needed."""

    def __init__(self, layout: ActivationLayout):
        super().__init__()
        self.layout, self.turn = layout, 0
        self.found: dict[int, Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and keep what it gives if it is one of those."""
        out = func(*args, **(kwargs or {}))
        if operator_name(func) in PRODUCERS:
            self.turn += 1
            first, parts = tensors_of(out)[0], self.layout.get(self.turn)
            if parts is not None and tuple(first.shape) == tuple(part.size for part in parts):
                self.found[self.turn] = _thin(first.detach(), parts)
        return out


def _thin(tensor: Tensor, parts: Sequence[DimensionPart]) -> Tensor:
    """Every so many of the places that hold no units, so that not too many numbers are left; rows are all kept."""
    plain = [dim for dim, part in enumerate(parts) if dim and not part.groups]
    while tensor.numel() > MOST_NUMBERS // 16 and any(tensor.shape[dim] > 1 for dim in plain):
        dim = max(plain, key=lambda d: tensor.shape[d])
        tensor = tensor.index_select(dim, torch.arange(0, tensor.shape[dim], 2))
    return tensor.float().clone()


def _standardise(parts: Sequence[DimensionPart], chunks: Sequence[Tensor]) -> Tensor:
    """The activations of all chunks, (chunks, ...), each unit with mean 0 and length 1 over all its places."""
    most = max(1, MOST_NUMBERS // chunks[0].numel())
    values = torch.stack(list(chunks[: max(most, 16)]))
    labels, count = _labels(parts, values.shape)
    flat, places = values.reshape(-1).double(), labels.reshape(-1)
    times = torch.zeros(count, dtype=torch.float64).index_add_(0, places, torch.ones_like(flat))
    mean = torch.zeros(count, dtype=torch.float64).index_add_(0, places, flat) / times.clamp(min=1)
    flat = flat - mean[places]
    length = torch.zeros(count, dtype=torch.float64).index_add_(0, places, flat.square()).sqrt()
    silent = length <= 1e-9 * math.sqrt(len(flat) / count) * (1 + mean.abs())
    return (flat / torch.where(silent, torch.inf, length)[places]).reshape(values.shape).float()


def _labels(parts: Sequence[DimensionPart], shape: Sequence[int]) -> tuple[Tensor, int]:
    """A number for each place of a tensor, the same where the same units stand, and how many numbers there are."""
    labels, count = torch.zeros((), dtype=torch.long), 1
    for dim, part in enumerate(parts):
        size, own, most = shape[dim], torch.zeros(shape[dim], dtype=torch.long), 1
        for group in sorted(part.groups):
            units = units_at(part, group) + 1
            most = int(units.max()) + 1
            own = torch.unique(own * most + units, return_inverse=True)[1]
        most = int(own.max()) + 1 if len(own) else 1
        labels = labels * most + own.reshape([size, *[1] * (len(shape) - dim - 1)])
        count *= most
    return labels.expand(*shape), count


def _shorten(parts: Sequence[DimensionPart], shape: Sequence[int]) -> Iterator[DimensionPart]:
    """The dimensions when every so many places are left of those without units."""
    for part, size in zip(parts, shape, strict=True):
        yield part if part.size == size else DimensionPart(size)
