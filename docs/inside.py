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


def plane() -> None:
    """Accuracy and agreement on the plane through three members, of MIMO and of heads, and their courses."""
    train, test = digits(1000, 300)
    methods = {"MIMO": pb.mimo, "naive multihead": pb.multihead}
    figure, axes = plt.subplots(2, 5, figsize=(15, 5.6))
    rows = []
    for seed in range(SEEDS):
        for row, (name, method) in zip(axes, methods.items(), strict=True):
            torch.manual_seed(seed)
            model = pb.models.small_cnn(10, channels=1, image=28, dropout=0.0)
            ensemble = method(model, 3, example=train[0][:2], init="different")
            courses = ls.courses(ensemble, train, test, seed=seed, **TRAINING)
            figures = {**ls.member_figures(ensemble, test), **ls.between_members(ensemble, test)}
            figures["middle minus alone"] = figures["middle_accuracy"] - figures["alone_accuracy"]
            figures["own neighbours"] = own_neighbours([course.answers[-5:] for course in courses])
            rows.append({"setting": name, "seed": seed, **figures})
            if seed == 0:
                draw_plane(figure, row, name, ensemble, test, courses)
    found = ls.Measured(rows)
    for name in methods:
        print(f"{name}:", ", ".join(said(one, found.interval(name, one)) for one in found.figures))
    for one in found.figures:
        print(f"{one}, MIMO minus naive multihead:", said("", found.difference("MIMO", "naive multihead", one)))
    axes[1, 4].legend()
    save(figure, "plane")


def own_neighbours(answers: list[Tensor]) -> float:
    """The share of late checkpoints whose nearest neighbour in function space belongs to the same member."""
    points = torch.cat([part.exp().flatten(1) for part in answers])
    owner = torch.arange(len(answers)).repeat_interleave(len(answers[0]))
    gaps = torch.cdist(points, points).fill_diagonal_(math.inf)
    return (owner[gaps.argmin(1)] == owner).double().mean().item()


def draw_plane(figure: Any, row: Any, name: str, ensemble: Any, test: Any, courses: Any) -> None:
    """A row of the picture: surfaces on the plane, and courses."""
    found = ls.subnetwork_plane(ensemble)
    surface = ls.surface(found, test, grid=13, measures=("accuracy", "agreement"))
    print(f"{name}, seed 0: the origin is {found.origin_distance:.1f} from the plane")
    panels = {"accuracy": surface.accuracy} | {f"disagreement with {k + 1}": 1 - surface.agreement[k] for k in range(3)}
    for axis, (title, values) in zip(row, panels.items(), strict=False):
        low, high = (0.8, 1) if title == "accuracy" else (0, 0.15)
        image = axis.pcolormesh(surface.u, surface.v, values.T, vmin=low, vmax=high, shading="gouraud", cmap="Blues")
        for k, point in enumerate(surface.points):
            axis.plot(*point, "o", color=COLOURS[k + 1], markeredgecolor="white")
        axis.plot(*found.origin, "x", color="black")
        axis.set(title=title, xticks=[], yticks=[], aspect="equal")
        figure.colorbar(image, ax=axis)
    row[0].set_ylabel(name)
    for k, points in enumerate(ls.embedding(courses, "pca")):
        row[4].plot(*points.T, "o-", color=COLOURS[k + 1], markersize=3, label=f"member {k + 1}")
    row[4].set(title="courses (PCA)", xticks=[], yticks=[])


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
    """Accuracy and log-likelihood as L1 or L2 grows, and against the share of weights that L1 leaves."""
    train, test = digits(1000)
    strengths = {"l1": [0.0, 1e-4, 1e-3, 3e-3], "l2": [0.0, 1e-3, 1e-2, 3e-2]}
    figure, axes = plt.subplots(2, 3, figsize=(12, 5.4))
    found = {}
    for size, colour in ((1, COLOURS[0]), (3, COLOURS[1])):
        make = lambda size=size: pb.mimo(perceptron(), size, example=train[0][:2], init="different")  # noqa: E731
        found[size] = path = ls.regularization_path(make, train, test, **strengths, seeds=SEEDS, **TRAINING)
        for setting in path.settings:
            figures = ("accuracy", "log_likelihood", "share")
            print(f"M = {size}, {setting}:", ", ".join(said(name, path.interval(setting, name)) for name in figures))
        for row, name in zip(axes, ("accuracy", "log_likelihood"), strict=True):
            for axis, (kind, values) in zip(row, strengths.items(), strict=False):
                draw_path(axis, path.curve(name, [(kind, value) for value in values]), values, colour, f"M = {size}")
                axis.set(xlabel=kind.upper(), ylabel=name.replace("_", "-"))
            left = [("l1", value) for value in strengths["l1"]]
            row[2].plot(path.curve("share", left)[:, 0], path.curve(name, left)[:, 0], "o-", color=colour)
            row[2].set(xlabel="share of weights above 1e-4, along L1")
    for kind, values in strengths.items():
        for name in ("accuracy", "log_likelihood"):
            falls = {
                size: np.subtract(path.values((kind, values[-1]), name), path.values((kind, 0.0), name))
                for size, path in found.items()
            }
            told = ", ".join(said(f"M = {size}", interval(list(fall))) for size, fall in falls.items())
            gap = said("M = 3 minus M = 1", interval(list(falls[3] - falls[1])))
            print(f"{name} at {kind} = {values[-1]:g} minus that at 0: {told}; {gap}")
    axes[0, 0].legend()
    figure.tight_layout()
    save(figure, "paths")


def draw_path(axis: Any, rows: np.ndarray, values: list[float], colour: str, label: str) -> None:
    """Means with their intervals, one place for each factor."""
    ends = np.abs(rows[:, 1:] - rows[:, :1]).T
    axis.errorbar(range(len(values)), rows[:, 0], ends, fmt="o-", color=colour, label=label, capsize=3)
    axis.set_xticks(range(len(values)), [f"{value:g}" for value in values])


FIGURES = {"bias": bias, "plane": plane, "units": units, "methods": methods, "sizes": sizes, "paths": paths}

if __name__ == "__main__":
    torch.set_num_threads(1)
    for wanted in sys.argv[1:] or list(FIGURES):
        print(f"-- {wanted}")
        FIGURES[wanted]()
