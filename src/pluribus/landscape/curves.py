"""Curves of low loss between two networks, trained as a whole (Garipov et al., 2018)."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from ..methods.building import check_number, check_whole
from ..surgery.copying import state
from ..surgery.selecting import quote_names
from ..training.optimizers import OPTIMIZERS
from .common.arguments import check_arguments
from .common.batch_statistics import statistics_layers
from .common.examples import Criterion, Examples, answer_of, choose_criterion, choose_task, endless
from .common.networks import Networks, network_of, networks_of, put_
from .paths import Path

DRAWN = 17  # points that a picture of a Bezier curve goes through


class Bezier(Path):
    """A Bezier curve: `at(t)` is the network at t, from 0 to 1; it goes through the first and the last network.

    Shapes:
        at(t): a network of the same shapes, t a number from 0 to 1

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


@check_arguments()
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
    optimizer: str = "adam",
    criterion: str | Criterion | None = None,
    task: str | None = None,
    seed: int = 0,
) -> Path:
    """A trained curve of low loss between two networks, as a path for `along`, `barrier` and `stitched`.

    Its bends start on the straight line. Each step takes a batch and a place drawn evenly along the curve, and moves
    the bends against the gradient of the loss there; the ends stay. The rate is constant in the first half, then
    falls to a hundredth. Dropout is off; normalisation uses the batch, and its statistics are refreshed where the curve
    is measured.

    Shapes:
        data: x (rows, *features) and y (rows)

    Args:
        a, b: the two networks; they are not changed
        data: training data: (x, y), a data set or a loader
        kind: "bezier": a Bezier curve, quadratic with one bend; "polygon": a chain of straight pieces
        bends: how many are trained
        steps: of the optimizer, all bends together
        lr: of the optimizer
        weight_decay: of the optimizer, on the bends
        batch_size: rows in a step
        criterion: a name or a function of outputs and targets that gives a mean over rows; by default what the task
            needs
        task: "classification", "binary", "regression" or "gaussian"; by default what the networks, labels and outputs
            tell
        seed: of the order of rows, and of the places on the curve

    >>> a, b = nn.Linear(4, 3), nn.Linear(4, 3)
    >>> x, y = torch.randn(12, 4), torch.arange(12) % 3
    >>> found = curve(a, b, (x, y), steps=2)
    >>> torch.allclose(found.at(0.0).weight, a.weight)
    True
    """
    ends = networks_of("curve", [network_of("curve", part) for part in (a, b)])
    if kind not in ("bezier", "polygon"):
        raise ValueError(f'curve: kind must be "bezier" or "polygon", but it is {kind!r}.')
    if optimizer not in OPTIMIZERS:
        raise ValueError(f"curve: the optimizer {optimizer!r} is unknown. Choose from {quote_names(OPTIMIZERS)}.")
    bends, steps = check_whole("curve", "bends", bends), check_whole("curve", "steps", steps)
    check_number("curve", "lr", lr, "positive", lambda value: value > 0)
    if torch.equal(ends.weights[0], ends.weights[1]):
        raise ValueError("curve: the two networks are the same. Give two that differ.")
    path = _straight(ends, kind, bends)
    loss = _criterion(ends, criterion, task, next(endless("curve", data, batch_size, seed)))
    trained = nn.Parameter(path.networks.weights[1:-1].clone())
    made = OPTIMIZERS[optimizer]([{"params": [trained], "lr": lr, "weight_decay": weight_decay}])
    walk = _Walk(path, loss)
    draws = np.random.default_rng(seed).random(steps)
    for step, (t, batch) in enumerate(zip(draws, endless("curve", data, batch_size, seed), strict=False)):
        for group in made.param_groups:
            group["lr"] = lr * _rate((step + 1) / steps)
        trained.grad = walk.gradient(t, trained.detach(), *batch)
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


class _Walk:
    """The loss at places of a path and its gradients, in one module."""

    def __init__(self, path: Path, loss: Criterion):
        self.path, self.loss, self.layout = path, loss, path.networks.layout
        self.module = path.at(0.5)
        own = dict(state(self.module))
        self.moving = [own[name].requires_grad_() for name in self.layout.names]
        self.free = self.layout.mask()
        for layer in statistics_layers(self.module):
            layer.training = True

    def gradient(self, t: float, bends: Tensor, x: Any, y: Any) -> Tensor:
        """With respect to the bends, of the loss at t: (bends, parameters)."""
        self.path.networks.weights[1:-1] = bends
        shares = self.path.mixtures(np.array([t]))[0]
        put_(self.module, self.layout, self.path.span.weights(shares), {})
        with torch.enable_grad():
            value = self.loss(answer_of(self.module, x), y.to(self.moving[0].device))
            slopes = torch.autograd.grad(value, self.moving, materialize_grads=True)
        whole = self.layout.vector(dict(zip(self.layout.names, slopes, strict=True))) * self.free
        return torch.outer(torch.as_tensor(shares[1:-1], dtype=whole.dtype), whole)


def _criterion(ends: Networks, criterion: Any, task: str | None, batch: Any) -> Criterion:
    kind = task or ends.task or ("regression" if callable(criterion) else None)
    first = Examples("curve", [batch], labelled=True)
    return choose_criterion("curve", criterion, choose_task("curve", kind, None, first, ends[0]))


def _rate(done: float) -> float:
    """What the rate is multiplied by when this share of the steps is done: 1, then a line down to 0.01."""
    return 1.0 if done <= 0.5 else max(0.01, 1 - 0.99 * (done - 0.5) / 0.4)
