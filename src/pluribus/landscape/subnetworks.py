"""The members that live in one network as networks of their own: slices of MIMO, heads, branches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ..core.ensemble import Ensemble
from .common.arguments import SOME_NUMBERS
from .common.networks import Networks, networks_of
from .planes import Plane, plane


class SubnetworkPlane(Plane):
    """A plane through three members of one network; the origin, which lies beside it, is projected onto it.

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

    Shapes:
        plane.points: (3, 2); plane.origin: (2)

    Args:
        ensemble: of `pb.mimo`, `pb.multihead`, `pb.treenet`, or any other whose members have tensors of their own
        members: which three

    >>> network, x = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)), torch.randn(5, 4)
    >>> subnetwork_plane(pb.mimo(network, 3, example=x, init="different")).points.shape
    (3, 2)
    """
    networks = subnetworks(ensemble)
    SOME_NUMBERS.check("subnetwork_plane", "members", members)
    chosen = list(members)
    if len(set(chosen)) != 3:
        raise ValueError(f"subnetwork_plane: needs three different members, but got {chosen}.")
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

    Shapes:
        each network: (batch, *features) in, (batch, *outputs) out

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


def check_joint(caller: str, ensemble: Any) -> Any:
    """The ensemble, if its members answer in one pass, each for an input of its own: that of MIMO."""
    if not isinstance(ensemble, Ensemble) or not ensemble.joint:
        what = f"the method {ensemble.method!r}" if isinstance(ensemble, Ensemble) else f"a {type(ensemble).__name__}"
        raise TypeError(f"{caller}: needs members with inputs of their own, as pb.mimo makes, but got {what}.")
    return ensemble
