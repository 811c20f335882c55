"""Planes in weight space: through networks, along random or principal directions; and surfaces of figures on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .common.batch_statistics import statistics_layers
from .common.examples import Criterion, Examples
from .common.networks import Networks, check_alike, gram, network_of, networks_of
from .common.points import MEASURES, Report, Span, check_grid, make_judge, measure
from .recording import Trajectory

Extent = tuple[tuple[float, float], tuple[float, float]]


class Plane:
    """A plane in weight space: `at(u, v)` is the network there.

    Where buffers are not estimated anew, a network has those of the nearest of `networks`.

    Args:
        networks: those that the plane goes through
        base, tangents: `at(u, v)` has the coefficients base + tangents @ (u, v), of networks and then directions
        points: the coordinates of the networks, (networks, 2)
        shown: coordinates that a picture should show, beside those of the networks, (n, 2)
        axes: what is along u and v, in words
        explained: the shares of variance along u and v, of a plane of principal components
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
        """The coefficients of networks and directions at coordinates, (n, 2)."""
        return self.base + coordinates @ self.tangents.T

    def nearest(self, coordinates: np.ndarray) -> np.ndarray:
        """Which network is nearest to each of the coordinates, (n, 2): ones and zeros, (n, networks)."""
        gaps = coordinates[:, None] - self.points
        squares = np.einsum("nki,ij,nkj->nk", gaps, self._metric, gaps)
        return np.eye(len(self.networks))[squares.argmin(1)]

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
    """
    if b is None:
        parts = [network_of("plane", part) for part in a] if isinstance(a, (list, tuple)) else a
        networks = networks_of("plane", parts)
        if len(networks) not in (2, 3):
            raise ValueError(f"plane: goes through two or three networks, but got {len(networks)}. Give a, b and c.")
    else:
        networks = networks_of("plane", [network_of("plane", part) for part in (a, b, c) if part is not None])
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
        normalise: False: each direction as long as the whole weight vector, without regard to filters
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
    """The plane of the two directions in which a trajectory varies most, through its solution at (0, 0)."""
    checkpoints = networks_of("pca_plane", run)
    if len(checkpoints) < 3:
        raise ValueError(f"pca_plane: needs at least 3 checkpoints, but there are {len(checkpoints)}.")
    networks = network_of("pca_plane", run if isinstance(run, Trajectory) else checkpoints[len(checkpoints) - 1])
    networks.task, networks.class_dim = checkpoints.task, checkpoints.class_dim
    centre = np.eye(len(checkpoints)) - 1 / len(checkpoints)
    values, vectors = np.linalg.eigh(centre @ gram(checkpoints.weights) @ centre)
    values, vectors = np.clip(values[::-1], 0, None), vectors[:, ::-1]
    if values[1] < 1e-12 * max(values[0], 1e-300):
        raise ValueError("pca_plane: the checkpoints lie on one line, so that there is no second direction.")
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
        statistics: how the statistics of batch normalisation came about, in words
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
    normalised: bool = False,
    extent: Extent | None = None,
    margin: float = 0.25,
    cover: Any = None,
    refresh: Any = True,
    criterion: str | Criterion | None = None,
    task: str | None = None,
    batch_size: int = 256,
    memory: float | None = None,
    processes: int = 1,
    path: str | Path | None = None,
    progress: Report = False,
) -> Surface:
    """Loss, accuracy and agreement with the plane's networks at every point of a grid on it.

    The points are run one after the other in one module: a grid costs as many plain passes of one network.

    Args:
        data: (x, y), a data set or a loader; x alone for agreement alone. It is read once and kept
        grid: how many points along u and v
        measures: any of "loss", "accuracy" and "agreement"; in regression the loss alone
        normalised: in place of agreement, disagreement divided by the error (Figure S1)
        extent: ((least u, largest u), (least v, largest v)); by default what shows the networks
        cover: runs or ensembles that the extent should show too
        refresh: True: statistics of batch normalisation are estimated on `data` at every point, for one more pass;
            or the data to estimate them on, such as training data; False: those of the nearest network
        batch_size: rows that are run at once, which bounds the memory of a pass
        memory: the most bytes for data and figures; by default what the machine has left
        processes: how many share the points; each has its copy of data and networks
        path: a file that figures go to as they come; the same call goes on from it after a stop
        progress: True: a line on stderr; or a function of (done, total, seconds left)
    """
    if not isinstance(plane, Plane):
        raise TypeError(f"surface: takes a plane, but got a {type(plane).__name__}. Make one with ls.plane(a, b).")
    count = _checked_grid("surface", grid)
    check_grid("surface", count[0] * count[1], 2 + len(plane.networks), memory)
    (low_u, high_u), (low_v, high_v) = extent or plane.extent(margin, cover)
    u, v = np.linspace(low_u, high_u, count[0]), np.linspace(low_v, high_v, count[1])
    judge = make_judge(
        "surface", plane.networks, data, measures, criterion=criterion, task=task, normalised=normalised,
        batch_size=batch_size, memory=memory,
    )  # fmt: skip
    coordinates = np.stack(np.meshgrid(u, v, indexing="ij"), -1).reshape(-1, 2)
    statistics, said = choose_statistics("surface", plane.networks.model, refresh, judge.examples)
    values = measure(
        "surface", plane.span, plane.mixtures(coordinates), plane.nearest(coordinates), judge,
        refresh=statistics, processes=processes, path=path, progress=progress,
    )  # fmt: skip
    loss, accuracy, agreement = split_columns(values.reshape(*count, -1), judge.measures)
    return Surface(plane, u, v, loss, accuracy, agreement, plane.points, normalised, said)


def choose_statistics(caller: str, model: nn.Module, refresh: Any, examples: Examples) -> tuple[Examples | None, str]:
    """The data on which statistics of normalisation are estimated at each point, if any, and that in words."""
    if not statistics_layers(model):
        return None, "the network keeps no statistics"
    if refresh is False or refresh is None:
        return None, "statistics are those of the nearest network"
    if refresh is True:
        return examples, "statistics are estimated at every point, on the data itself"
    return Examples(caller, refresh), "statistics are estimated at every point, on data given for that"


def split_columns(
    values: np.ndarray, measures: Sequence[str]
) -> tuple[np.ndarray | None, np.ndarray | None, np.ndarray | None]:
    """Loss, accuracy and agreement, (networks, ...), of what a judge gave; None where it was not asked for."""
    return (
        values[..., 0] if "loss" in measures else None,
        values[..., 1] if "accuracy" in measures else None,
        np.moveaxis(values[..., 2:], -1, 0) if "agreement" in measures else None,
    )


def _checked_grid(caller: str, grid: Any) -> tuple[int, int]:
    sides = tuple(grid) if isinstance(grid, (tuple, list)) else (grid, grid)
    if len(sides) != 2 or any(isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 1 for n in sides):
        raise ValueError(f"{caller}: grid must be a number of points, or two, from 1 on, but it is {grid!r}.")
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
