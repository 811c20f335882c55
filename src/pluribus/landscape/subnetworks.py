"""The members that live in one network: as networks of their own, and which units belong to which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .._common.torch_private import pytree
from .._common.trees import as_batch, flatten, map_tensors, rows_of, tensors_of
from ..core.ensemble import Ensemble
from ..methods.building import check_whole
from ..surgery.calling import evaluation_mode
from ..surgery.selecting import READERS, channel_dim
from .common.examples import Examples, naming_data, ready
from .common.networks import Networks, networks_of
from .planes import Plane, plane


class SubnetworkPlane(Plane):
    """A plane through three members of one network; the origin is not on it and is projected onto it.

    Attributes:
        origin: the coordinates of the point that is nearest to the network of zeros, (2)
        origin_distance: how far that network is from the plane

    Args:
        found: the plane through the members' weights

    >>> ensemble = pb.multihead(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)), 3)
    >>> len(subnetwork_plane(ensemble).origin)
    2
    """

    def __init__(self, found: Plane):
        super().__init__(found.networks, found.base, found.tangents, axes=found.axes)
        networks = found.networks
        zeros = Networks(networks.model, torch.zeros_like(networks.weights[:1]), networks.take([0]).buffers)
        self.origin = self.project(zeros)[0]
        self.origin_distance = float(self.distance(zeros)[0])
        self.shown = np.concatenate([self.shown, self.origin[None]])


def subnetwork_plane(ensemble: Ensemble, members: Sequence[int] = (0, 1, 2)) -> SubnetworkPlane:
    """The plane through three members of one network, for `surface` (MIMO, Figure 3).

    Of MIMO, a member is its slices of the first and last layers around the body that all share: a network with one
    input, which answers as the member does while the inputs of the others are zero. Of heads and branches, it is what
    it owns on the trunk that all share. What is shared is the same everywhere on the plane, so that only input and
    output layers, heads or branches are interpolated. Four points do not lie in one plane: it goes through the members,
    and `origin` is where the origin is projected to.

    Args:
        ensemble: of `pb.mimo`, `pb.multihead`, `pb.treenet`, or any other whose members have tensors of their own
        members: which three

    >>> network, x = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)), torch.randn(5, 4)
    >>> subnetwork_plane(pb.mimo(network, 3, example=x, init="different")).points.shape
    (3, 2)
    """
    networks = subnetworks(ensemble)
    chosen = list(members)
    if len(networks) < 3 or not all(-len(networks) <= i < len(networks) for i in chosen):
        raise ValueError(
            f"subnetwork_plane: needs members {chosen}, but there are {len(networks)}. "
            "Build the ensemble with at least size=3."
        )
    return SubnetworkPlane(plane(networks.take(chosen)))


def subnetworks(ensemble: Ensemble) -> Networks:
    """The members of one network as networks of one architecture; see `subnetwork_plane`.

    Of MIMO each gives what the member gives while all other members read zeros, which is not what it gives in a
    prediction, where all read the same input: that is `ensemble(x)[i]`.

    >>> ensemble = pb.mimo(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)), 3, example=torch.randn(5, 4))
    >>> [network(torch.randn(5, 4)).shape for network in subnetworks(ensemble)]
    [torch.Size([5, 2]), torch.Size([5, 2]), torch.Size([5, 2])]
    """
    if isinstance(ensemble, Ensemble) and ensemble.joint:
        parts = [ensemble.subnetwork(i) for i in range(ensemble.size)]  # type: ignore[operator]
        found = networks_of("subnetworks", parts)
        found.task, found.class_dim = ensemble.task, ensemble.class_dim
        return found
    if not isinstance(ensemble, Ensemble):
        raise TypeError(
            "subnetworks: needs an ensemble whose members live in one network, as pb.mimo and pb.multihead make, but "
            f"got a {type(ensemble).__name__}."
        )
    return networks_of("subnetworks", ensemble)


@dataclass(frozen=True)
class Separation:
    """How much each unit of a MIMO network varies with the input of each member.

    Shapes:
        variance: (members, units), the conditional variance of the unit's pre-activation with respect to each input
        owner: (units), the member whose input it varies most with; -1 where it varies with none
        layer: (units), which of `layers` the unit is in

    >>> ensemble = pb.mimo(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)), 3, example=torch.randn(5, 4))
    >>> found = separation(ensemble, torch.randn(20, 4))
    >>> found.owner.shape, found.layers
    ((8,), ['0'])
    """

    variance: np.ndarray
    owner: np.ndarray
    layer: np.ndarray
    layers: list[str]

    @property
    def share(self) -> np.ndarray:
        """The owner's share of the variance over all inputs, (units): 1 where a unit is separated; NaN without one."""
        total = self.variance.sum(0)
        return np.divide(self.variance.max(0), total, out=np.full(len(total), np.nan), where=total > 0)

    def separated(self, least: float = 0.9) -> float:
        """The share of units, of those that vary at all, whose owner has at least this share of the variance."""
        known = self.share[self.owner >= 0]
        return float((known >= least).mean()) if len(known) else float("nan")


def separation(mimo: Ensemble, data: Any, *, repeats: int = 1, batch_size: int = 256, seed: int = 0) -> Separation:
    """The conditional variance of every pre-activation with respect to each member's input, and each unit's owner.

    E[Var(a | the other inputs)]: in every row the members read examples of their own; then one of them reads another,
    and half the mean square of the change is what varies with that input. Pre-activations are the outputs of
    convolutions and linear layers, but the last; a channel is a unit, whose variance is the mean over its places. In
    eval mode.

    Args:
        mimo: what `pb.mimo` gave, trained
        data: (x, y), a data set or a loader, or x alone
        repeats: how often the rows are dealt out anew
        batch_size: rows in one pass; it changes memory and time, not the result
        seed: of the examples that are dealt out

    >>> ensemble = pb.mimo(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)), 3, example=torch.randn(5, 4))
    >>> separation(ensemble, torch.randn(20, 4)).variance.shape
    (3, 8)
    """
    if not isinstance(mimo, Ensemble) or not mimo.joint:
        what = f"the method {mimo.method!r}" if isinstance(mimo, Ensemble) else f"a {type(mimo).__name__}"
        raise TypeError(f"separation: needs members with inputs of their own, as pb.mimo makes, but got {what}.")
    ensemble, repeats = mimo, check_whole("separation", "repeats", repeats)
    x = _join_batches([x for x, _ in Examples("separation", data).batches])
    rows = rows_of(x)
    if rows < 2:
        raise ValueError(f"separation: needs at least 2 rows, so that inputs can differ, but there is {rows}.")
    generator = torch.Generator().manual_seed(seed)
    names = [name for name, part in ensemble.module.named_modules() if name not in ensemble.last]
    names = [name for name in names if name and isinstance(ensemble.module.get_submodule(name), READERS)]
    if not names:
        raise ValueError("separation: the network has no layer before its last one.")
    sums: dict[str, Tensor] = {}
    count: dict[str, int] = {}
    for _ in range(repeats):
        orders = [torch.randperm(rows, generator=generator) for _ in range(ensemble.size)]
        for start in range(0, rows, batch_size):
            some = slice(start, start + batch_size)
            with naming_data("separation", ensemble, data):
                base = _run(ensemble, names, x, [order[some] for order in orders])
            for member in range(ensemble.size):
                moved = [order.roll(1)[some] if m == member else order[some] for m, order in enumerate(orders)]
                for name, output in _run(ensemble, names, x, moved).items():
                    change = (output - base[name]).double().square().flatten(1).sum(1) / 2
                    total = sums.setdefault(name, torch.zeros(ensemble.size, len(change), dtype=torch.float64))
                    total[member] += change
            for name, output in base.items():
                count[name] = count.get(name, 0) + output.numel() // len(output)
    parts = [(sums[name] / count[name]).numpy() for name in sums]
    variance = np.concatenate(parts, 1)
    owner = np.where(variance.max(0) > 0, variance.argmax(0), -1)
    return Separation(variance, owner, np.repeat(np.arange(len(parts)), [part.shape[1] for part in parts]), list(sums))


def _run(ensemble: Any, names: list[str], x: Any, rows: list[Tensor]) -> dict[str, Tensor]:
    """What the layers give when member m reads the rows rows[m] of x: each as (channels, everything else)."""
    module = ensemble.module
    seen: dict[str, Tensor] = {}

    def note(name: str, layer: nn.Module, args: Any, output: Any) -> None:
        found = tensors_of(output)[0].detach()
        flat = found.movedim(channel_dim(layer), 0).flatten(1).cpu()
        seen[name] = torch.cat([seen[name], flat], 1) if name in seen else flat

    hooks = [module.get_submodule(name).register_forward_hook(partial(note, name)) for name in names]
    # Passes that only look for inputs come before the one that counts.
    hooks.append(module.register_forward_pre_hook(lambda *_: seen.clear()))
    inputs = [as_batch(ready(module, map_tensors(x, lambda t, own=own: t[own]))) for own in rows]
    with evaluation_mode(ensemble, *hooks):
        ensemble.answer_apart(inputs)
    return seen


def _join_batches(batches: list[Any]) -> Any:
    """All rows in one tree."""
    flat = [flatten(batch) for batch in batches]
    columns = zip(*(leaves for leaves, _ in flat), strict=True)
    return pytree.tree_unflatten([torch.cat(list(column)) for column in columns], flat[0][1])
