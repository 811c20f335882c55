"""Draws the pictures of inside.md and prints its figures: MIMO's analyses in small.

    python docs/inside.py                       # everything, a few minutes
    python docs/inside.py bias units plane      # some of it

Networks are small and seeds few, so that all of it fits a laptop; intervals are over seeds, or over training sets.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib import pyplot as plt
from torch import Tensor, nn

import pluribus as pb
from pluribus import landscape as ls

IMAGES = Path(__file__).parent / "images"
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7"]
TRAINING: dict[str, Any] = {"epochs": 20, "lr": 2e-3, "batch_size": 64, "schedule": "cosine"}
SEEDS = 3


def digits(rows: int, tested: int = 1000) -> tuple[Any, Any]:
    """Training and test rows, drawn at random, normalised."""
    data, generator = pb.data.load("digits"), torch.Generator().manual_seed(0)
    parts = []
    for split, count in ((data.train, rows), (data.test, tested)):
        x, y = split[torch.randperm(len(split), generator=generator)[:count]]
        parts.append((data.normalise(x), y))
    return parts[0], parts[1]


def perceptron() -> nn.Module:
    """784-128-128-10."""
    return pb.models.mlp(784, 10, (128, 128))


def said(name: str, found: Any) -> str:
    """A figure with its interval."""
    return f"{name} {found.value:.4g} [{found.low:.4g}, {found.high:.4g}]"


def save(figure: Any, name: str) -> None:
    """Write a picture."""
    figure.savefig(IMAGES / f"inside-{name}.png", dpi=90, bbox_inches="tight")
    plt.close(figure)


# ---------------------------------------------------------------- Figure 2


def noisy_curve(seed: int) -> tuple[Tensor, Tensor]:
    """64 points of the function of Blundell et al. (2015)."""
    generator = torch.Generator().manual_seed(seed)
    x = 0.5 * torch.rand(64, 1, generator=generator)
    noise = 0.02 * torch.randn(64, 1, generator=generator)
    inner = 2 * math.pi * (x + noise)
    return x, x + 0.3 * inner.sin() + 0.3 * (2 * inner).sin() + noise


def standardised_curve(seed: int) -> tuple[Tensor, Tensor]:
    """The same points, with inputs of mean 0 and variance 1."""
    x, y = noisy_curve(seed)
    return (x - 0.25) * math.sqrt(48), y


def bias() -> None:
    """Bias and variance of MIMO on the regression example, with inputs as they are and standardised."""
    figure, axes = plt.subplots(1, 4, figsize=(13, 2.8))
    names = {"bias": "squared bias", "variance": "variance", "error": "error", "members": "error of members"}
    sizes = [1, 2, 3, 4, 5]
    make = lambda size: pb.mimo(  # noqa: E731
        pb.models.mlp(1, 1, (32, 128)), size, example=torch.zeros(2, 1), init="different"
    )
    ways = {"inputs from 0 to 0.5": (noisy_curve, 20), "standardised inputs": (standardised_curve, 40)}
    for (way, (draw, repeats)), colour in zip(ways.items(), COLOURS, strict=False):
        found = ls.bias_variance(make, draw, sizes, repeats)
        for size in sizes:
            figures = ", ".join(said(name, found.interval(name, size)) for name in names)
            print(f"{way}, M = {size}: {figures}")
        for name in names:
            changes = (said(f"M = {size}", found.difference(name, size, 1)) for size in sizes[1:])
            print(f"{way}, {name} minus that of M = 1:", ", ".join(changes))
        for axis, (name, title) in zip(axes, names.items(), strict=True):
            rows = np.array([found.interval(name, size) for size in sizes]) * 1e3
            ends = np.abs(rows[:, 1:] - rows[:, :1]).T
            axis.errorbar(sizes, rows[:, 0], ends, fmt="o-", color=colour, capsize=3, label=way)
            axis.set(title=f"{title}, in 1/1000", xlabel="M", xticks=sizes)
    axes[0].legend()
    save(figure, "bias")


# ---------------------------------------------------------------- Figures 3 and 4


def small_cnns() -> tuple[Any, Any, Any]:
    """MIMO and the naive multihead of SmallCNN on digits, untrained, and the data."""
    train, test = digits(1000, 300)
    torch.manual_seed(0)
    model = pb.models.small_cnn(10, channels=1, image=28, dropout=0.0)
    options = {"example": train[0][:2], "init": "different"}
    return pb.mimo(model, 3, **options), pb.multihead(model, 3, **options), (train, test)


def plane() -> None:
    """Accuracy and agreement on the plane through three members, of MIMO and of heads, and their courses."""
    mimo, heads, (train, test) = small_cnns()
    figure, axes = plt.subplots(2, 5, figsize=(15, 5.6))
    for row, (name, ensemble) in zip(axes, {"MIMO": mimo, "naive multihead": heads}.items(), strict=True):
        courses = ls.courses(ensemble, train, test, **TRAINING)
        found = ls.subnetwork_plane(ensemble)
        surface = ls.surface(found, test, grid=13, measures=("accuracy", "agreement"))
        own = [surface.accuracy[nearest(surface, point)] for point in surface.points]
        middle = surface.accuracy[nearest(surface, surface.points.mean(0))]
        quality = ls.member_figures(ensemble, test)
        print(
            f"{name}: accuracy near the members {[round(float(a), 3) for a in own]}, in their middle {middle:.3f}; as "
            f"predicted {quality['member_accuracy']:.3f}, together {quality['accuracy']:.3f}; disagreement of members "
            f"{quality['disagreement']:.4f}; the origin is {found.origin_distance:.1f} from the plane"
        )
        panels = {"accuracy": surface.accuracy} | {
            f"disagreement with {k + 1}": 1 - surface.agreement[k] for k in range(3)
        }
        for axis, (title, values) in zip(row, panels.items(), strict=False):
            low, high = (0.8, 1) if title == "accuracy" else (0, 0.15)
            image = axis.pcolormesh(
                surface.u, surface.v, values.T, vmin=low, vmax=high, shading="gouraud", cmap="Blues"
            )
            for k, point in enumerate(surface.points):
                axis.plot(*point, "o", color=COLOURS[k + 1], markeredgecolor="white")
            axis.plot(*found.origin, "x", color="black")
            axis.set(title=title, xticks=[], yticks=[], aspect="equal")
            figure.colorbar(image, ax=axis)
        row[0].set_ylabel(name)
        for k, points in enumerate(ls.embedding(courses, "pca")):
            row[4].plot(*points.T, "o-", color=COLOURS[k + 1], markersize=3, label=f"member {k + 1}")
        row[4].set(title="courses (PCA)", xticks=[], yticks=[])
    axes[1, 4].legend()
    save(figure, "plane")


def nearest(surface: Any, point: np.ndarray) -> tuple[int, int]:
    """The place of the grid that is nearest to a point."""
    return int(np.abs(surface.u - point[0]).argmin()), int(np.abs(surface.v - point[1]).argmin())


def units() -> None:
    """Which units belong to which member, as training goes on and with inputs that are repeated."""
    train, test = digits(1000)
    figure, axes = plt.subplots(1, 3, figsize=(10, 3), sharex=True, sharey=True)
    kinds = {"untrained": (0, 0.0), "trained": (40, 0.0), "trained, half the inputs repeated": (40, 0.5)}
    for axis, (title, (epochs, repeated)) in zip(axes, kinds.items(), strict=True):
        shares = []
        for seed in range(SEEDS):
            torch.manual_seed(seed)
            ensemble = pb.mimo(perceptron(), 2, repeated, example=train[0][:2], init="different")
            if epochs:
                pb.fit(ensemble, train, seed=seed, **{**TRAINING, "epochs": epochs})
            found = ls.separation(ensemble, test)
            shares.append(found.separated(0.9))
        print(f"{title}: {said('share of units with 0.9 of their variance from one input', interval(shares))}")
        normal = found.variance / found.variance.sum(0).clip(1e-12)
        axis.hist(normal[0], bins=np.linspace(0, 1, 21), color=COLOURS[0])
        axis.set(title=title, xlabel="share of variance with input 1")
    axes[0].set_ylabel("units")
    save(figure, "units")


def interval(values: list[float]) -> Any:
    """The mean over seeds with its interval."""
    return ls.Measured([{"setting": "", "value": value} for value in values]).interval("", "value")


def methods() -> None:
    """Diversity of the members of several methods."""
    train, test = digits(1000)
    x = train[0][:2]
    made = {
        "multihead": lambda: pb.multihead(perceptron(), 3, example=x),
        "treenet": lambda: pb.treenet(perceptron(), 3, "fc2|fc"),
        "batch_ensemble": lambda: pb.batch_ensemble(perceptron(), 3),
        "mimo": lambda: pb.mimo(perceptron(), 3, example=x, init="different"),
        "deep": lambda: pb.deep(perceptron(), 3),
    }
    found = ls.sweep(lambda name: made[name](), list(made), train, test, seeds=SEEDS, **TRAINING)
    for name in made:
        figures = ("disagreement", "kl", "accuracy", "member_accuracy")
        print(f"{name}:", ", ".join(said(figure, found.interval(name, figure)) for figure in figures))
    print("disagreement, mimo minus deep:", said("", found.difference("mimo", "deep", "disagreement")))
    figure, axes = plt.subplots(1, 2, figsize=(9, 2.8))
    for axis, name in zip(axes, ("disagreement", "kl"), strict=True):
        rows = found.curve(name)
        axis.barh(list(made), rows[:, 0], xerr=np.abs(rows[:, 1:] - rows[:, :1]).T, color=COLOURS[0], capsize=3)
        axis.set_xlabel(f"{name} between members")
    figure.tight_layout()
    save(figure, "methods")


# ---------------------------------------------------------------- Figures 5 and 6


def sizes() -> None:
    """Members and ensemble as M grows, and input and batch repetition."""
    train, test = digits(1000)
    x = train[0][:2]

    def make(size: int = 2, rho: float = 0.0, repetition: int = 1) -> Any:
        return pb.mimo(perceptron(), size, rho, repetition, example=x, init="different")

    ways = {
        "M": (lambda size: make(size=size), [1, 2, 3, 4]),
        "input repetition, M = 2": (lambda rho: make(rho=rho), [0.0, 0.5, 1.0]),
        "batch repetition, M = 2": (lambda repetition: make(repetition=repetition), [1, 4]),
    }
    figure, axes = plt.subplots(2, 3, figsize=(11, 5.4))
    for column, (title, (build, settings)) in enumerate(ways.items()):
        found = ls.sweep(build, settings, train, test, seeds=SEEDS, **TRAINING)
        for setting in settings:
            figures = ("accuracy", "member_accuracy", "log_likelihood", "member_log_likelihood", "disagreement")
            print(f"{title}, {setting}:", ", ".join(said(name, found.interval(setting, name)) for name in figures))
        for name in ("accuracy", "member_accuracy", "log_likelihood"):
            change = found.difference(settings[-1], settings[0], name)
            print(f"{title}, {name}, {settings[-1]} minus {settings[0]}:", said("", change))
        for axis, name in zip(axes[:, column], ("accuracy", "log_likelihood"), strict=True):
            for kind, colour in (("", COLOURS[0]), ("member_", COLOURS[1])):
                rows = found.curve(kind + name)
                ends = np.abs(rows[:, 1:] - rows[:, :1]).T
                label = "members" if kind else "ensemble"
                axis.errorbar(settings, rows[:, 0], ends, fmt="o-", color=colour, label=label, capsize=3)
            axis.set(xlabel=title, ylabel=name.replace("_", "-"))
    axes[0, 0].legend()
    figure.tight_layout()
    save(figure, "sizes")


# ---------------------------------------------------------------- Figures 7 to 9


def paths() -> None:
    """Accuracy and log-likelihood as L1 grows, against it and against the share of weights that are left."""
    train, test = digits(1000)
    strengths = [0.0, 1e-4, 1e-3, 3e-3]
    figure, axes = plt.subplots(2, 2, figsize=(9, 5.4))
    for size, colour in ((1, COLOURS[0]), (3, COLOURS[1])):
        make = lambda size=size: pb.mimo(perceptron(), size, example=train[0][:2], init="different")  # noqa: E731
        found = ls.regularization_path(make, train, test, l1=strengths, seeds=2, **TRAINING)
        for setting in found.settings:
            figures = ("accuracy", "log_likelihood", "share")
            print(f"M = {size}, {setting}:", ", ".join(said(name, found.interval(setting, name)) for name in figures))
        shares = found.curve("share")[:, 0]
        for row, name in zip(axes, ("accuracy", "log_likelihood"), strict=True):
            rows = found.curve(name)
            row[0].plot(range(len(strengths)), rows[:, 0], "o-", color=colour, label=f"M = {size}")
            row[0].set(xlabel="L1", ylabel=name.replace("_", "-"))
            row[0].set_xticks(range(len(strengths)), [f"{value:g}" for value in strengths])
            row[1].plot(shares, rows[:, 0], "o-", color=colour)
            row[1].set(xlabel="share of weights above 1e-4")
    axes[0, 0].legend()
    figure.tight_layout()
    save(figure, "paths")


FIGURES = {"bias": bias, "plane": plane, "units": units, "methods": methods, "sizes": sizes, "paths": paths}

if __name__ == "__main__":
    torch.set_num_threads(1)
    for wanted in sys.argv[1:] or list(FIGURES):
        print(f"-- {wanted}")
        FIGURES[wanted]()
