"""Planes in weight space: through networks, along random or principal directions; and surfaces of figures on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from .checkpoints import Trajectory
from .common.networks import Networks, check_alike, gram, network_of, networks_of
from .common.points import MEASURES, Measuring, Span, check_measuring, measure_points

Extent = tuple[tuple[float, float], tuple[float, float]]


class Plane:
    """A plane in weight space: `at(u, v)` is the network there.

    Where buffers are not estimated anew, a network has those of the nearest of `networks`.

    Shapes:
        points: (networks, 2), the coordinates of the networks

    Args:
        networks: those that the plane goes through
        base, tangents: `at(u, v)` has the coefficients base + tangents @ (u, v), of networks and then directions
        shown: coordinates that a picture should show, beside those of the networks, (n, 2)
        axes: what is along u and v, in words
        explained: the shares of variance along u and v, of a plane of principal components

    >>> a, b = nn.Linear(4, 3), nn.Linear(4, 3)
    >>> found = plane(a, b)
    >>> torch.allclose(found.at(*found.points[1]).weight, b.weight, atol=1e-5)
    True
    """

    def __init__(
        self,
        networks: Networks,
        base: Any,
        tangents: Any,
        *,
        directions: Tensor | None = None,
        shown: Any = (),
        axes: tuple[str, str] = ("u", "v"),
        explained: tuple[float, float] | None = None,
    ):
        self.networks, self.span = networks, Span(networks, directions)
        self.base, self.tangents = np.asarray(base, float), np.asarray(tangents, float)
        self.axes, self.explained = axes, explained
        products = self.span.products()
        self._metric = self.tangents.T @ products @ self.tangents
        self._start = self.tangents.T @ products @ self.base
        self.points = self.project(networks)
        self.shown = np.concatenate([self.points, np.asarray(shown, float).reshape(-1, 2)])

    def at(self, u: float, v: float) -> nn.Module:
        """The network at these coordinates, in eval mode; `refresh_` fits its statistics to it."""
        mixture = self.mixtures(np.array([[u, v]]))[0]
        buffers = self.networks.mix_buffers(self.nearest(np.array([[u, v]]))[0])
        return self.networks.build(self.span.weights(mixture), buffers)

    def project(self, holder: Any) -> np.ndarray:
        """The coordinates of the points of the plane that are nearest to the networks: (networks, 2)."""
        others = networks_of("project", holder)
        check_alike("project", self.networks, others)
        right = self.tangents.T @ self.span.products(others.weights) - self._start[:, None]
        return np.linalg.solve(self._metric, right).T

    def distance(self, holder: Any) -> np.ndarray:
        """How far the networks are from the plane: (networks)."""
        others = networks_of("distance", holder)
        gaps = [
            (self.span.weights(mixture).double() - row.double()).norm().item()
            for mixture, row in zip(self.mixtures(self.project(others)), others.weights, strict=True)
        ]
        return np.array(gaps)

    def mixtures(self, coordinates: np.ndarray) -> np.ndarray:
        """The coefficients of networks and directions at coordinates, (..., 2)."""
        return self.base + coordinates @ self.tangents.T

    def nearest(self, coordinates: np.ndarray) -> np.ndarray:
        """Which network is nearest to each of the coordinates, (..., 2): ones and zeros, (..., networks)."""
        gaps = coordinates[..., None, :] - self.points
        squares = np.einsum("...ki,ij,...kj->...k", gaps, self._metric, gaps)
        return np.eye(len(self.networks))[squares.argmin(-1)]

    def extent(self, margin: float = 0.25, cover: Any = None) -> Extent:
        """The ranges of u and v that show the networks, and those of `cover`, with a margin around them."""
        shown = self.shown if cover is None else np.concatenate([self.shown, self.project(cover)])
        low, high = shown.min(0), shown.max(0)
        room = margin * np.maximum(high - low, 1e-12 + 0.1 * (high - low).max())
        return tuple(zip((low - room).tolist(), (high + room).tolist(), strict=True))  # type: ignore[return-value]


def plane(a: Any, b: Any = None, c: Any = None) -> Plane:
    """The plane through the origin and two networks, or through three networks; u and v are distances.

    Through the origin: u is along the first network. Through three: the first is at (0, 0), u is towards the second.

    Args:
        a, b, c: networks; a trajectory stands for its solution. One holder of two or three networks will do

    >>> a, b = nn.Linear(4, 3), nn.Linear(4, 3)
    >>> plane(a, b).points.shape
    (2, 2)
    """
    held = a if b is None else [part for part in (a, b, c) if part is not None]
    networks = networks_of(
        "plane", [network_of("plane", one) for one in held] if isinstance(held, (list, tuple)) else held
    )
    if len(networks) not in (2, 3):
        raise ValueError(f"plane: needs two or three networks, but got {len(networks)}. Give a, b and c.")
    products = gram(networks.weights)
    if len(networks) == 2:
        edges, base, axes = np.eye(2), np.zeros(2), ("along the first network", "towards the second")
    else:
        edges, base = np.array([[-1.0, 1, 0], [-1, 0, 1]]).T, np.array([1.0, 0, 0])
        axes = ("from the first network to the second", "towards the third")
    metric = edges.T @ products @ edges
    sizes = np.sqrt(np.clip(np.diag(metric), 0, None))
    if not sizes.all() or metric[0, 1] ** 2 > (1 - 1e-10) * metric[0, 0] * metric[1, 1]:
        what = "the origin and two networks" if len(networks) == 2 else "three networks"
        raise ValueError(f"plane: {what} must not lie on one line, but they do. Give networks that differ more.")
    upper = np.linalg.cholesky(metric).T  # edges = orthonormal directions @ upper
    shown = np.zeros((1, 2)) if len(networks) == 2 else ()
    return Plane(networks, base, edges @ np.linalg.inv(upper), shown=shown, axes=axes)


def random_plane(model: Any, *, normalise: bool = True, seed: int = 0) -> Plane:
    """The plane of two random directions through a network, which is at (0, 0).

    Filter-normalised (Li et al., 2018): the direction has in every filter the norm of the network's own, so that
    u = 1 changes each as much as it weighs; biases and normalisation, whose filters are single numbers, stay.

    Args:
        model: a network
        normalise: False: each direction as long as the whole weight vector, without regard to filters
        seed: of the two directions

    >>> found = random_plane(nn.Linear(4, 3))
    >>> found.at(0.5, -0.5).weight.shape, found.points
    (torch.Size([3, 4]), array([[0., 0.]]))
    """
    networks = network_of("random_plane", model)
    generator = torch.Generator().manual_seed(seed)
    layout, row = networks.layout, networks.weights[0].to(networks.layout.dtype)
    directions = []
    for _ in range(2):
        drawn = torch.randn(layout.length, generator=generator, dtype=torch.float32).to(layout.dtype) * layout.mask()
        directions.append(_by_filter(networks, drawn, row) if normalise else drawn * (row.norm() / drawn.norm()))
    words = "filter-normalised random direction" if normalise else "random direction"
    return Plane(
        networks, [1.0, 0, 0], [[0.0, 0], [1, 0], [0, 1]], directions=torch.stack(directions),
        shown=[[-1, -1], [1, 1]], axes=(f"first {words}", f"second {words}"),
    )  # fmt: skip


def pca_plane(run: Any) -> Plane:
    """The plane of the two directions in which a trajectory varies most, through its solution at (0, 0).

    Args:
        run: a trajectory, or checkpoints in their order

    >>> checkpoints = [nn.Linear(4, 3) for _ in range(5)]
    >>> sum(pca_plane(checkpoints).explained) <= 1 + 1e-6
    True
    """
    checkpoints = networks_of("pca_plane", run)
    if len(checkpoints) < 3:
        raise ValueError(f"pca_plane: needs at least 3 checkpoints, but there are {len(checkpoints)}.")
    networks = network_of("pca_plane", run if isinstance(run, Trajectory) else checkpoints[len(checkpoints) - 1])
    networks.task, networks.class_dim = checkpoints.task, checkpoints.class_dim
    centre = np.eye(len(checkpoints)) - 1 / len(checkpoints)
    values, vectors = np.linalg.eigh(centre @ gram(checkpoints.weights) @ centre)
    values, vectors = np.clip(values[::-1], 0, None), vectors[:, ::-1]
    if values[1] < 1e-12 * max(values[0], 1e-300):
        raise ValueError("pca_plane: the checkpoints lie on one line, so there is no second direction.")
    directions = torch.stack([checkpoints.mix(centre @ vectors[:, i] / np.sqrt(values[i])) for i in range(2)])
    share = values[:2] / values.sum()
    found = Plane(
        networks, [1.0, 0, 0], [[0.0, 0], [1, 0], [0, 1]], directions=directions,
        axes=("first principal component", "second principal component"), explained=(float(share[0]), float(share[1])),
    )  # fmt: skip
    found.shown = np.concatenate([found.shown, found.project(checkpoints)])
    return found


# ---------------------------------------------------------------- surfaces


@dataclass(frozen=True)
class Surface:
    """Figures on a grid of a plane: entry [i, j] is at (u[i], v[j]); None where it was not measured.

    Shapes:
        u, v: (points along the axis)
        loss, accuracy: (len(u), len(v))
        agreement: (networks, len(u), len(v)): the share of rows with the label of network k; with `normalised`
            disagreement divided by the error at the point, as Figure S1
        points: (networks, 2), the networks' coordinates

    Args:
        plane: what was cut through the landscape
        normalised: whether `agreement` is disagreement divided by the error
        statistics: how the statistics of batch normalisation came about, in words

    >>> a, b = nn.Linear(4, 3), nn.Linear(4, 3)
    >>> x, y = torch.randn(12, 4), torch.arange(12) % 3
    >>> found = surface(plane(a, b), (x, y), grid=3, measures=["loss"])
    >>> found.u.shape, found.loss.shape, found.accuracy is None
    ((3,), (3, 3), True)
    """

    plane: Any
    u: np.ndarray
    v: np.ndarray
    loss: np.ndarray | None
    accuracy: np.ndarray | None
    agreement: np.ndarray | None
    points: np.ndarray
    normalised: bool
    statistics: str

    def project(self, holder: Any) -> np.ndarray:
        """The coordinates of the networks of a run or an Ensemble, seen from above: (networks, 2)."""
        found: np.ndarray = self.plane.project(holder)
        return found


def surface(
    plane: Plane,
    data: Any,
    grid: int | tuple[int, int] = 25,
    measures: Sequence[str] = MEASURES,
    *,
    extent: Extent | None = None,
    margin: float = 0.25,
    cover: Any = None,
    path: str | Path | None = None,
    **how: Unpack[Measuring],
) -> Surface:
    """Loss, accuracy and agreement with the plane's networks at every point of a grid on it.

    The points are run one after the other in one module: a grid costs as many plain passes of one network.

    Args:
        data: (x, y), a data set or a loader; x alone for agreement alone. It is read once and kept
        grid: how many points along u and v
        measures: any of "loss", "accuracy" and "agreement"; in regression the loss alone
        extent: ((least u, largest u), (least v, largest v)); by default what shows the networks
        margin: how far the default extent goes beyond the networks, relative to their spread
        cover: runs or ensembles that the extent should show too
        path: a file that figures go to as they come; the same call goes on from it after a stop
        how: normalised, refresh, criterion, task, batch_size, memory, processes and progress: see `Measuring`

    >>> a, b = nn.Linear(4, 3), nn.Linear(4, 3)
    >>> x, y = torch.randn(12, 4), torch.arange(12) % 3
    >>> found = surface(plane(a, b), (x, y), grid=(4, 3))
    >>> found.loss.shape, found.agreement.shape
    ((4, 3), (2, 4, 3))
    """
    count = check_grid("surface", grid)
    check_measuring("surface", count[0] * count[1], 2 + len(plane.networks), how)
    u, v = (np.linspace(*ends, side) for ends, side in zip(extent or plane.extent(margin, cover), count, strict=True))
    places = np.stack(np.meshgrid(u, v, indexing="ij"), -1)
    normalised = how.get("normalised", False)
    found = measure_points(
        "surface", plane.span, plane.mixtures(places), plane.nearest(places), data, measures, file=path, **how
    )
    return Surface(plane, u, v, *found[:3], plane.points, normalised, found.statistics)


def check_grid(caller: str, grid: Any) -> tuple[int, int]:
    """How many points there are along each side."""
    sides = tuple(grid) if isinstance(grid, (tuple, list)) else (grid, grid)
    if len(sides) != 2 or any(isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 1 for n in sides):
        raise ValueError(f"{caller}: grid must be one or two numbers of points, each at least 1, but it is {grid!r}.")
    return int(sides[0]), int(sides[1])


def _by_filter(networks: Networks, drawn: Tensor, row: Tensor) -> Tensor:
    """The direction with each filter, the first dimension of a weight, as long as the network's own."""
    parts = []
    pairs = zip(networks.layout.pieces(drawn), networks.layout.pieces(row), strict=True)
    for (_, direction), (_, weight) in pairs:
        if weight.ndim < 2:
            parts.append(torch.zeros(weight.numel(), dtype=drawn.dtype))
            continue
        lengths = [t.flatten(1).norm(dim=1, keepdim=True) for t in (weight, direction)]
        parts.append((direction.flatten(1) * (lengths[0] / lengths[1].clamp_min(1e-12))).reshape(-1))
    return torch.cat(parts)
