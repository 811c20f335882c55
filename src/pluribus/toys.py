"""Small sets that can be drawn: the toy problems of the papers, and the tables that scikit-learn ships."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .outside import outside
from .sources import Frames, Request

ROWS = 1000
REGRESSION = ("diabetes",)


def sinusoids(request: Request) -> Frames:
    """Two noisy sinusoids in the plane to tell apart, x in [-5, 5] (Durasov et al. 2021, Figure 4).

    The paper gives neither amplitude nor noise: here sin x - 1.5 and sin x + 1.5 with a standard deviation of 0.4.
    """
    generator = np.random.default_rng(request.seed)
    label = np.arange(ROWS) % 2
    x = generator.uniform(-5, 5, ROWS)
    y = np.sin(x) + np.where(label, 1.5, -1.5) + 0.4 * generator.standard_normal(ROWS)
    far = _around(generator, np.stack([x, y], axis=1), low=(-10, -8), high=(10, 8), distance=2.0)
    return _plane(np.stack([x, y], axis=1), label, far)


def moons(request: Request) -> Frames:
    """Two interleaving half circles with noise of 0.15, as scikit-learn's `make_moons`."""
    x, label = outside("sklearn.datasets", "the moons", "data").make_moons(ROWS, noise=0.15, random_state=request.seed)
    far = _around(np.random.default_rng(request.seed), x, low=(-4, -4), high=(5, 4.5), distance=1.0)
    return _plane(x, label, far)


def _around(generator: np.random.Generator, points: np.ndarray, low: Any, high: Any, distance: float) -> np.ndarray:
    """Points in a box that are at least this far away from every point of the data."""
    tried = generator.uniform(low, high, (4 * ROWS, 2))
    squares = ((tried[:, None] - points[None]) ** 2).sum(axis=2).min(axis=1)
    return tried[squares > distance**2][:ROWS]


def _plane(points: np.ndarray, label: np.ndarray, far: np.ndarray) -> Frames:
    pandas = outside("pandas", "reading tables", "data")
    frame = pandas.DataFrame(points, columns=["x", "y"]).assign(label=label)
    around = pandas.DataFrame(far, columns=["x", "y"])
    return Frames(frame, target="label", task="classification", outside={"around": around}, scale=False)


def blundell(request: Request) -> Frames:
    """A curve with noise in its input (Blundell et al. 2015): 64 training and 3,000 test rows, x in [0, 0.5].

    y = x + 0.3 sin(2 pi (x + e)) + 0.3 sin(4 pi (x + e)) + e with e from N(0, 0.02^2). The rows are those of MIMO's
    Figure 2 (Havasi et al. 2021); the outside data is the curve's continuation in [-0.5, -0.1] and [0.6, 1].
    """
    pandas = outside("pandas", "reading tables", "data")
    generator = np.random.default_rng(request.seed)
    train, validation, test = (_curve(generator.uniform(0, 0.5, rows), generator) for rows in (64, 64, 3000))
    left, right = generator.uniform(-0.5, -0.1, ROWS // 2), generator.uniform(0.6, 1, ROWS // 2)
    beyond = {"beyond": pandas.DataFrame({"x": np.concatenate([left, right])})}
    return Frames(train, validation, test, "y", "regression", beyond, scale=False)


def _curve(x: np.ndarray, generator: np.random.Generator) -> Any:
    noise = 0.02 * generator.standard_normal(len(x))
    angle = 2 * np.pi * (x + noise)
    y = x + 0.3 * np.sin(angle) + 0.3 * np.sin(2 * angle) + noise
    return outside("pandas", "reading tables", "data").DataFrame({"x": x, "y": y})


def shipped(name: str) -> Callable[[Request], Frames]:
    """The function of a table that scikit-learn ships, such as "iris"."""

    def read(request: Request) -> Frames:
        found = getattr(outside("sklearn.datasets", f"the table {name}", "data"), f"load_{name}")(as_frame=True)
        frame = found.frame
        if name in REGRESSION:
            return Frames(frame, target="target", task="regression")
        frame["target"] = np.asarray(found.target_names)[found.target]
        return Frames(frame, target="target", task="classification")

    return read
