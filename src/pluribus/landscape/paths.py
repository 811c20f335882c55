"""Paths between two networks: the line, a tunnel, trained curves, and what is measured along and around them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from ..methods.building import check_choice, check_number, check_whole
from ..surgery.copying import state
from .common.batch_statistics import refresh_, statistics_layers
from .common.examples import Criterion, Examples, answer_of, loss_of, shuffled
from .common.networks import Networks, network_of, networks_of, put_, rest_of
from .common.points import Measuring, Span, check_measuring, measure_points
from .planes import Surface, check_grid


class Path:
    """A path of straight pieces through networks: `at(t)` is the network at t, from 0 to 1.

    Args:
        networks: the corners, the ends included
        t: where each corner is

    >>> halfway = line(nn.Linear(4, 3), nn.Linear(4, 3)).at(0.5)
    >>> halfway(torch.zeros(2, 4)).shape
    torch.Size([2, 3])
    """

    def __init__(self, networks: Networks, t: Any):
        self.networks, self.t, self.span = networks, np.asarray(t, float), Span(networks)

    def at(self, t: float) -> nn.Module:
        """The network at t, in eval mode; buffers are mixed as the weights are, and `refresh_` fits them."""
        mixture = self.mixtures(np.array([t]))[0]
        return self.networks.build(self.span.weights(mixture), self.networks.mix_buffers(mixture))

    def mixtures(self, t: np.ndarray) -> np.ndarray:
        """The coefficients of the corners at each t: (len(t), corners)."""
        self.check(t)
        corners = np.eye(len(self.t))
        return np.stack([np.interp(t, self.t, corner) for corner in corners], -1)

    def check(self, t: np.ndarray) -> None:
        """Refuse places beyond the ends."""
        if t.min() < 0 or t.max() > 1:
            raise ValueError(f"path: t must be from 0 to 1, but it is {t[(t < 0) | (t > 1)][0]:g}.")

    def ends(self) -> Networks:
        """The two networks that the path connects."""
        return self.networks.take([0, len(self.networks) - 1])


def line(a: Any, b: Any) -> Path:
    """The straight line from a to b, two networks of one architecture; a trajectory stands for its solution.

    >>> a, b = nn.Linear(4, 3), nn.Linear(4, 3)
    >>> torch.equal(line(a, b).at(0.0).weight, a.weight)
    True
    """
    return Path(networks_of("line", [network_of("line", part) for part in (a, b)]), [0.0, 1.0])


def tunnel(
    a: Any,
    b: Any,
    data: Any,
    *,
    points: int = 9,
    steps: int = 80,
    lr: float = 1e-3,
    batch_size: int = 128,
    criterion: str | Criterion | None = None,
    task: str | None = None,
    seed: int = 0,
) -> Path:
    """A path of low loss between two networks, by the simplified procedure of Fort and Jastrzebski (2019).

    Points spread evenly on the straight line are moved by gradient steps on the loss, orthogonally to the line; the
    path goes through them. All see the same batches, so that neighbours stay neighbours. Dropout is off.

    Args:
        a, b: the two networks; they are not changed
        data: training data: (x, y), a data set or a loader
        points: how many are moved, each by `steps` steps of the optimizer
        lr, batch_size: of these steps, by Adam
        criterion, task: as for `surface`
        seed: of the order of rows, and of a tiny first step off the line

    >>> a, b = nn.Linear(4, 3), nn.Linear(4, 3)
    >>> x, y = torch.randn(12, 4), torch.arange(12) % 3
    >>> around = tunnel(a, b, (x, y), points=3, steps=2)
    >>> len(around.networks), torch.equal(around.at(1.0).weight, b.weight)
    (5, True)
    """
    ends = networks_of("tunnel", [network_of("tunnel", part) for part in (a, b)])
    points, steps = check_whole("tunnel", "points", points), check_whole("tunnel", "steps", steps)
    check_number("tunnel", "lr", lr, "positive", lambda value: value > 0)
    first = Examples("tunnel", [next(shuffled("tunnel", data, batch_size, seed))], labelled=True)
    loss = loss_of("tunnel", ends, first, criterion, task)
    along = (ends.weights[1] - ends.weights[0]).double()
    if not along.norm() > 0:
        raise ValueError("tunnel: the two networks are the same. Give two that differ.")
    shift, path = _first_shift(ends, along, seed), _straight(ends, "polygon", points)
    corners = path.networks
    corners.task = ends.task or task
    for i in range(1, points + 1):
        module, base = corners[i], corners.weights[i]
        corners.weights[i] = _descend(module, ends, base, shift, along, loss, data, steps, lr, batch_size, seed)
        refresh_(module, data)
        for name, value in rest_of(ends.layout, dict(state(module))).items():
            corners.buffers[name][i] = value
    return path


@dataclass(frozen=True)
class Along:
    """Figures along a path; None where they were not measured.

    Shapes:
        t, loss, accuracy: (points)
        agreement: (2, points), the share of rows with the label of the path's beginning and of its end

    Args:
        t: places on the path, from 0 to 1
        statistics: how statistics of batch normalisation came about, in words

    >>> a, b = nn.Linear(4, 3), nn.Linear(4, 3)
    >>> x, y = torch.randn(12, 4), torch.arange(12) % 3
    >>> along(line(a, b), (x, y), points=3).t
    array([0. , 0.5, 1. ])
    """

    t: np.ndarray
    loss: np.ndarray | None
    accuracy: np.ndarray | None
    agreement: np.ndarray | None
    statistics: str

    @property
    def barrier(self) -> float:
        """The largest loss above the chord between the losses of the ends; 0 where it stays below."""
        if self.loss is None:
            raise ValueError("barrier: needs the loss, which was not measured. Give data with labels.")
        return float(np.max(self.loss - (1 - self.t) * self.loss[0] - self.t * self.loss[-1]))


def along(path: Path, data: Any, points: int = 25, **how: Unpack[Measuring]) -> Along:
    """Loss, accuracy and agreement with both ends at evenly spread points of a path.

    Args:
        data: (x, y), a data set or a loader
        points: how many, the ends included; a single one is the middle
        how: as for `surface`

    >>> a, b = nn.Linear(4, 3), nn.Linear(4, 3)
    >>> x, y = torch.randn(12, 4), torch.arange(12) % 3
    >>> found = along(line(a, b), (x, y), points=5)
    >>> found.loss.shape, found.agreement.shape, float(found.agreement[0, 0])
    ((5,), (2, 5), 1.0)
    """
    points = check_whole("along", "points", points)
    t = np.linspace(0, 1, points) if points > 1 else np.array([0.5])
    mixtures = path.mixtures(t)
    return Along(t, *measure_points("along", path.span, mixtures, mixtures, data, references=path.ends(), **how))


def barrier(path: Path, data: Any, points: int = 25, **how: Unpack[Measuring]) -> float:
    """The largest loss along a path above the chord between the losses of its ends; 0 where it stays below.

    Args:
        data: as for `along`
        points: where the loss is measured, the ends included
        how: as for `surface`

    >>> a, b = nn.Linear(4, 3), nn.Linear(4, 3)
    >>> x, y = torch.randn(12, 4), torch.arange(12) % 3
    >>> barrier(line(a, a), (x, y), points=3)
    0.0
    """
    if check_whole("barrier", "points", points) < 3:
        raise ValueError(f"barrier: needs at least 3 points, the ends included, but points is {points}.")
    return along(path, data, points, **how).barrier


def stitched(
    path: Path,
    data: Any,
    grid: int | tuple[int, int] = 25,
    *,
    reach: float = 1.25,
    **how: Unpack[Measuring],
) -> Fan:
    """The cut of Figure S3: triangles of the origin and each piece of the path, side by side.

    Shapes:
        data: x (rows, *features) and y (rows); figures: (points along the path, points along a radius)

    Args:
        data: (x, y), a data set or a loader
        grid: how many points along the path and along each radius
        reach: radii go from 0, the origin, to so many times the path's
        how: as for `surface`

    >>> a, b = nn.Linear(4, 3), nn.Linear(4, 3)
    >>> x, y = torch.randn(12, 4), torch.arange(12) % 3
    >>> cut = stitched(line(a, b), (x, y), grid=(5, 3))
    >>> cut.loss.shape, cut.fan.shape
    ((5, 3), (5, 3, 2))
    """
    rows, columns = check_grid("stitched", grid)
    check_measuring("stitched", rows * columns, 4, how)
    check_number("stitched", "reach", reach, "positive", lambda value: 0 < value < np.inf)
    t, r = np.linspace(0, 1, rows), np.linspace(0, reach, columns)
    corners, angles = _unfold(path, path.t), _unfold(path, t)
    mixtures = np.repeat(path.mixtures(t)[:, None], columns, 1)
    radii, normalised = r[None, :, None], how.get("normalised", False)
    found = measure_points("stitched", path.span, mixtures * radii, mixtures, data, references=path.ends(), **how)
    ends, fan = corners[[0, -1]], angles[:, None] * radii
    return Fan(path, t, r, *found[:3], ends, normalised, found.statistics, fan, corners)


@dataclass(frozen=True)
class Fan(Surface):
    """A surface over triangles side by side: u is t along the path, v the radius relative to the path's.

    Shapes:
        fan: (len(u), len(v), 2), where each point is when the triangles lie flat beside each other, the origin at 0
        corners: (corners of the path, 2), where the path's own are then; `points` are its ends
        loss, accuracy, agreement: as for `Surface`

    Args:
        plane: the path
        normalised, statistics: as for `Surface`

    >>> a, b = nn.Linear(4, 3), nn.Linear(4, 3)
    >>> x, y = torch.randn(12, 4), torch.arange(12) % 3
    >>> stitched(line(a, b), (x, y), grid=3).corners.shape
    (2, 2)
    """

    fan: np.ndarray
    corners: np.ndarray


def _unfold(path: Path, t: np.ndarray) -> np.ndarray:
    """Where points of the path are in the plane when the triangles with the origin lie beside each other."""
    places, inverse = np.unique(np.concatenate([path.t, t]), return_inverse=True)
    mixtures = path.mixtures(places)  # neighbours on a straight piece are in the plane of its triangle
    products = mixtures @ path.span.products() @ mixtures.T
    lengths = np.sqrt(np.clip(np.diag(products), 0, None))
    cosines = [products[i, i + 1] / (lengths[i] * lengths[i + 1]) for i in range(len(lengths) - 1)]
    angles = np.concatenate([[0], np.cumsum(np.arccos(np.clip(cosines, -1, 1)))])
    points = lengths[:, None] * np.stack([np.cos(angles), np.sin(angles)], -1)
    found: np.ndarray = points[inverse[len(path.t) :]]
    return found


def _first_shift(ends: Networks, along: Tensor, seed: int) -> Tensor:
    """A tiny step off the line, the same for all points: on a ridge the slope across it is exactly 0."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(len(along), generator=generator).double() * ends.layout.mask()
    drawn -= along * (drawn @ along) / (along @ along)
    size = drawn.norm()
    return (drawn * (1e-3 * along.norm() / size) if size > 0 else drawn).to(ends.layout.dtype)


def _descend(
    module: nn.Module, ends: Networks, base: Tensor, shift: Tensor, along: Tensor, loss: Criterion, data: Any,
    steps: int, lr: float, batch_size: int, seed: int,
) -> Tensor:  # fmt: skip
    """The weights after this many steps orthogonal to the line; the module is left with them."""
    layout = ends.layout
    put_(module, layout, base + shift, {})
    own = dict(state(module))
    moving = [own[name].requires_grad_() for name, moves in zip(layout.names, layout.moves, strict=True) if moves]
    made = torch.optim.Adam(moving, lr)
    for layer in statistics_layers(module):
        layer.training = True
    moved = base + shift
    for step, (x, y) in enumerate(shuffled("tunnel", data, batch_size, seed)):
        if step == steps:
            break
        made.zero_grad()
        with torch.enable_grad():
            output = answer_of(module, x)
            loss(output, y.to(moving[0].device)).backward()
        made.step()
        offset = layout.vector(own).double() - base.double()
        offset -= along * ((offset @ along) / (along @ along))
        moved = (base.double() + offset).to(layout.dtype)
        put_(module, layout, moved, {})
    if not bool(moved.isfinite().all()):
        raise ValueError(f"tunnel: the weights are no longer finite after {steps} steps of {lr:g}. Use a smaller lr.")
    module.eval()
    return moved


DRAWN = 17  # points that a picture of a Bezier curve goes through


class Bezier(Path):
    """A Bezier curve: `at(t)` is the network at t, from 0 to 1; it goes through the first and the last network.

    Args:
        networks: the ends, and between them what bends the curve, in order

    >>> found = curve(nn.Linear(4, 3), nn.Linear(4, 3), (torch.randn(12, 4), torch.arange(12) % 3), steps=1)
    >>> isinstance(found, Bezier), found.at(0.5).weight.shape
    (True, torch.Size([3, 4]))
    """

    def __init__(self, networks: Networks):
        super().__init__(networks, np.linspace(0, 1, DRAWN))

    def mixtures(self, t: np.ndarray) -> np.ndarray:
        """The coefficients of the networks at each t, Bernstein's polynomials: (len(t), networks)."""
        self.check(t)
        degree = len(self.networks) - 1
        terms = [math.comb(degree, k) * t**k * (1 - t) ** (degree - k) for k in range(degree + 1)]
        return np.stack(terms, -1)


def curve(
    a: Any,
    b: Any,
    data: Any,
    kind: Literal["bezier", "polygon"] = "bezier",
    *,
    bends: int = 1,
    steps: int = 500,
    lr: float = 1e-2,
    weight_decay: float = 0.0,
    batch_size: int = 128,
    criterion: str | Criterion | None = None,
    task: str | None = None,
    seed: int = 0,
) -> Path:
    """A trained curve of low loss between two networks, as a path for `along`, `barrier` and `stitched`.

    Its bends start on the straight line. Each step takes a batch and a place drawn evenly along the curve, and moves
    the bends against the gradient of the loss there; the ends stay. The rate is constant in the first half, then
    falls to a hundredth. Dropout is off; normalisation uses the batch, and its statistics are refreshed where the curve
    is measured.

    Args:
        a, b: the two networks; they are not changed
        data: training data: (x, y), a data set or a loader
        kind: "bezier": a Bezier curve, quadratic with one bend; "polygon": a chain of straight pieces
        bends: how many are trained
        steps, lr, weight_decay, batch_size: of training by Adam, all bends together
        criterion, task: as for `surface`
        seed: of the order of rows, and of the places on the curve

    >>> a, b = nn.Linear(4, 3), nn.Linear(4, 3)
    >>> x, y = torch.randn(12, 4), torch.arange(12) % 3
    >>> found = curve(a, b, (x, y), steps=2)
    >>> torch.allclose(found.at(0.0).weight, a.weight)
    True
    """
    ends = networks_of("curve", [network_of("curve", part) for part in (a, b)])
    check_choice("curve", "kind", kind, ("bezier", "polygon"))
    bends, steps = check_whole("curve", "bends", bends), check_whole("curve", "steps", steps)
    check_number("curve", "lr", lr, "positive", lambda value: value > 0)
    if torch.equal(ends.weights[0], ends.weights[1]):
        raise ValueError("curve: the two networks are the same. Give two that differ.")
    path = _straight(ends, kind, bends)
    first = Examples("curve", [next(shuffled("curve", data, batch_size, seed))], labelled=True)
    loss = loss_of("curve", ends, first, criterion, task)
    trained = nn.Parameter(path.networks.weights[1:-1].clone())
    made = torch.optim.Adam([trained], lr, weight_decay=weight_decay)
    module = path.at(0.5)
    for layer in statistics_layers(module):
        layer.training = True
    draws = np.random.default_rng(seed).random(steps)
    for step, (t, batch) in enumerate(zip(draws, shuffled("curve", data, batch_size, seed), strict=False)):
        for group in made.param_groups:
            done = (step + 1) / steps  # the rate is constant, then falls along a line to a hundredth
            group["lr"] = lr if done <= 0.5 else lr * max(0.01, 1 - 0.99 * (done - 0.5) / 0.4)
        path.networks.weights[1:-1] = trained.detach()
        trained.grad = _slope(path, module, t, loss, *batch)
        made.step()
    if not bool(trained.isfinite().all()):
        raise ValueError(f"curve: the weights are no longer finite after {steps} steps of {lr:g}. Use a smaller lr.")
    path.networks.weights[1:-1] = trained.detach()
    return path


def _straight(ends: Networks, kind: str, bends: int) -> Path:
    """The straight line with its bends, evenly spread."""
    t = np.linspace(0, 1, bends + 2)
    rows = torch.stack([ends.weights[0], *(ends.mix([1 - s, s]) for s in t[1:-1]), ends.weights[1]])
    parts = [ends.buffers_of(0), *(ends.mix_buffers([1 - s, s]) for s in t[1:-1]), ends.buffers_of(1)]
    buffers = {name: torch.stack([part[name] for part in parts]) for name in ends.buffers}
    networks = Networks(ends.model, rows.to(ends.layout.dtype), buffers, ends.task, ends.class_dim)
    return Bezier(networks) if kind == "bezier" else Path(networks, t)


def _slope(path: Path, module: nn.Module, t: float, loss: Criterion, x: Any, y: Any) -> Tensor:
    """The gradient of the loss at t with respect to the path's bends: (bends, parameters)."""
    layout, own, shares = path.networks.layout, dict(state(module)), path.mixtures(np.array([t]))[0]
    put_(module, layout, path.span.weights(shares), {})
    every = [own[name].requires_grad_() for name in layout.names]
    with torch.enable_grad():
        value = loss(answer_of(module, x), y.to(every[0].device))
        slopes = torch.autograd.grad(value, every, materialize_grads=True)
    whole = layout.vector(dict(zip(layout.names, slopes, strict=True))) * layout.mask()
    return torch.outer(torch.as_tensor(shares[1:-1], dtype=whole.dtype), whole)
