"""Draws the pictures of docs/masks-and-packing.md and prints its tables: python docs/masks_and_packing.py [part ...].

The parts are the functions in PARTS. Each takes up to a few minutes on one core; all of them are small versions of the
papers' experiments, on digits and on two sinusoids.
"""

from __future__ import annotations

import sys
from functools import cache, partial
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import torch

import pluribus as pb
from pluribus import landscape as ls
from pluribus.data.catalogue import load
from pluribus.data.corruptions.catalogue import corrupt

plt.switch_backend("svg")
matplotlib.rcParams |= {"svg.hashsalt": "pluribus", "svg.fonttype": "none"}

IMAGES = Path(__file__).parent / "images"
CORRUPTIONS = ("gaussian_noise", "motion_blur", "contrast")
TRAINING = {"epochs": 12, "lr": 2e-3, "batch_size": 64, "schedule": "cosine"}
COLOURS = {"single": "#000000", "deep": "#0072B2", "mc_dropout": "#56B4E9", "masks": "#009E73", "packed": "#D55E00"}


@cache
def digits() -> dict[str, Any]:
    """1,000 training and 1,000 test digits, 500 validation digits, letters as outside data, and shifted digits."""
    data = load("digits")
    parts = {name: split[:rows] for name, split, rows in (
        ("train", data.train, 1000), ("test", data.test, 1000), ("validation", data.validation, 500)
    )}  # fmt: skip
    x, y = data.test[:500]
    shifts = {
        severity: [(data.normalise(corrupt(x, name, severity)), y) for name in CORRUPTIONS] for severity in (1, 3, 5)
    }
    outside = data.normalise(data.outside["letters"][:500][0])
    return {
        **{name: (data.normalise(x), y) for name, (x, y) in parts.items()}, "outside": outside, "shifts": shifts
    }  # fmt: skip


def perceptron(width: float = 1.0) -> Any:
    """Two hidden layers of 100 units."""
    return pb.models.mlp(inputs=784, num_classes=10, hidden=(100, 100), width=width)


def measured(
    function: Any, *given: Any, test: str = "test", seeds: int = 3, shifts: bool = False, **options: Any
) -> Any:
    """What an analysis of `landscape` gives for the digits."""
    data = digits()
    more = {"shifts": data["shifts"]} if shifts else {}
    torch.manual_seed(0)
    return function(
        *given,
        data["train"],
        data[test],
        outside=data["outside"],
        seeds=seeds,
        progress=say,
        **TRAINING,
        **more,
        **options,
    )


def say(text: str) -> None:
    """A line of progress."""
    print(text, file=sys.stderr, flush=True)


# ---------------------------------------------------------------- the parts


def overlap() -> None:
    """Masksembles, Figures 3 and 12."""
    sizes, scales = (2, 4, 8, 16), np.array([1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0])
    found = ls.mask_overlap(sizes, scales.tolist(), ones=64, draws=30)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6))
    for i, size in enumerate(sizes):
        colour = f"C{i}"
        left.plot(scales, found["size_paper"][i], color=colour, label=f"N = {size}")
        left.plot(scales, found["size"][i, :, 0], "o", color=colour)
        right.plot(scales, found["iou"][i, :, 0], "o", color=colour, label=f"N = {size}")
    right.plot(scales, found["iou_paper"], color="black", label="1 / (2 S - 1)")
    label(left, "S", "width, relative to M")
    label(right, "S", "mean IoU of two masks")
    save(figure, "masks-overlap")
    print("| S | IoU, N = 4 | 1 / (2 S - 1) | exact | size, N = 4 | closed form |\n|---|---|---|---|---|---|")
    for j, scale in enumerate(scales):
        iou, size = found["iou"][1, j], found["size"][1, j]
        print(f"| {scale:g} | {span(iou, 3)} | {found['iou_paper'][j]:.3f} | {found['iou_exact'][j]:.3f} | "
              f"{span(size, 2)} | {found['size_paper'][1, j]:.2f} |")  # fmt: skip


def sinusoids() -> None:
    """Masksembles, Figure 4: entropy in the plane, and its mean beyond the data."""
    data = load("sinusoids")
    train, test = data.train[:], data.test[:]
    far = torch.cartesian_prod(torch.cat([torch.linspace(-10, -6.1, 20), torch.linspace(6.1, 10, 20)]),
                               torch.linspace(-4, 4, 21))  # fmt: skip
    model, scales = pb.models.mlp(inputs=2, num_classes=2, hidden=(100, 100)), (1.1, 2.0, 3.0, 10.0)
    torch.manual_seed(0)
    found = ls.mask_transition(model, train, test, scales=scales, outside=far, seeds=4, progress=say,
                               epochs=40, lr=0.01, batch_size=64)  # fmt: skip
    print(found.table(["accuracy", "outside entropy", "outside mutual_information", "parameters"]))
    for setting in ("S 1.1", "S 2", "S 3", "S 10", "deep"):
        gap = found.difference(setting, "single", "outside entropy")
        print(f"{setting} - single, outside entropy: {gap.value:.4f} [{gap.low:.4f}, {gap.high:.4f}]")
    axis = torch.linspace(-10, 10, 101)
    grid = torch.cartesian_prod(axis, torch.linspace(-4, 4, 61))
    figure, axes = plt.subplots(2, 3, figsize=(9, 4.6), sharex=True, sharey=True)
    example = train[0][:2]
    makers = {"single": lambda: pb.single(model)}
    makers |= {f"S = {s:g}": partial(pb.masksembles, model, 4, s, 1.0, example) for s in scales}
    makers["independent networks"] = lambda: pb.deep(model, 4)
    for axes_of, (name, make) in zip(axes.flat, makers.items(), strict=True):
        torch.manual_seed(1)
        ensemble = make()
        pb.fit(ensemble, train, epochs=40, lr=0.01, batch_size=64)
        entropy = ensemble.predict(grid).total.reshape(101, 61)
        shown = axes_of.pcolormesh(axis, torch.linspace(-4, 4, 61), entropy.T, vmin=0, vmax=0.7, rasterized=True)
        x, y = train
        axes_of.scatter(*x.T, c=["#d62728" if one else "#ffffff" for one in y], s=1)
        axes_of.set_title(name, fontsize=9)
    figure.colorbar(shown, ax=axes, label="entropy, nats")
    save(figure, "masks-sinusoids.png", tight=False)


def capacity() -> None:
    """Masksembles, Figures 9, 13 and 14: fixed capacity."""
    found = measured(ls.mask_transition, perceptron(), scales=(1.1, 2.0, 3.0, 5.0), capacity=1.0, seeds=4)
    print(found.table(["accuracy", "nll", "ece", "auroc msp", "disagreement", "disagreement_by_error", "parameters"]))
    for figure_name in ("accuracy", "nll", "ece", "auroc msp", "disagreement_by_error"):
        gaps = {s: found.difference(s, "deep", figure_name) for s in found.settings if s.startswith("S")}
        print(
            figure_name,
            "minus that of deep:",
            {s: f"{g.value:+.4f} [{g.low:+.4f}, {g.high:+.4f}]" for s, g in gaps.items()},
        )
    names = [name for name in found.settings if name.startswith("S")]
    scales = [float(name[2:]) for name in names]
    figure, axes = plt.subplots(1, 4, figsize=(12, 3.2))
    shown = (
        ("accuracy", "accuracy"),
        ("ece", "ECE"),
        ("auroc msp", "AUROC, letters"),
        ("disagreement_by_error", "diversity, eq. 7"),
    )
    for axes_of, (figure_name, title) in zip(axes, shown, strict=True):
        transition(axes_of, found, figure_name, scales, names)
        label(axes_of, "S", title, legend=axes_of is axes[0])
    save(figure, "masks-capacity")
    calibration(found, ["single", "S 1.1", "S 2", "S 5", "deep"], "masks-calibration")


def width() -> None:
    """Masksembles, Figure 8: fixed width, under corruption."""
    found = measured(ls.mask_transition, perceptron(), scales=(1.1, 1.4, 2.0, 3.0), capacity=None, shifts=True)
    print(found.table(["accuracy", "nll", "ece", "ece at 1", "ece at 3", "ece at 5", "accuracy at 5"]))
    figure, axes_of = plt.subplots(figsize=(5.5, 3.6))
    for i, name in enumerate(found.settings):
        colour = COLOURS.get(name) or plt.cm.YlGn(0.35 + 0.15 * i)
        rows = np.array(
            [tuple(found.interval(name, figure_name)) for figure_name in ("ece", "ece at 1", "ece at 3", "ece at 5")]
        )
        at = np.array([0, 1, 3, 5]) + 0.04 * (i - 2)
        axes_of.errorbar(at, rows[:, 0], abs(rows[:, 1:] - rows[:, :1]).T, color=colour, marker="o", ms=4, label=name)
    label(axes_of, "severity (0: none)", "ECE")
    save(figure, "masks-width")


def dropout() -> None:
    """Masksembles, Figure 5 and section 4.2: many masks and MC-Dropout; the rate chosen on validation data."""
    best, grid = measured(ls.dropout_grid, perceptron(), rates=(0.05, 0.1, 0.2, 0.4), test="validation")
    print("chosen rate", best)
    print(grid.table(["nll", "accuracy", "ece"]))
    found = measured(ls.dropout_transition, perceptron(), sizes=(2, 8, 32), scale=2.0)
    print(found.table(["accuracy", "nll", "ece", "mutual_information", "disagreement_by_error"]))
    names = [name for name in found.settings if name.startswith("N")]
    figure, axes = plt.subplots(1, 3, figsize=(10, 3.2))
    for axes_of, (figure_name, title) in zip(
        axes, (("nll", "NLL"), ("ece", "ECE"), ("disagreement_by_error", "diversity, eq. 7")), strict=True
    ):
        transition(axes_of, found, figure_name, [int(name[2:]) for name in names], names, ("deep", "mc_dropout"))
        axes_of.set_xscale("log", base=2)
        label(axes_of, "N, masks", title, legend=axes_of is axes[0])
    save(figure, "masks-dropout")


def span_of_behaviours() -> None:
    """Masksembles, Figure 7: accuracy and ECE of every overlap and capacity."""
    found = measured(ls.mask_grid, perceptron(), scales=(2.0, 4.0), capacities=(0.3, 1.0, 2.0))
    print(found.table(["accuracy", "ece", "nll", "parameters"]))
    base = found.values("single", "parameters")[0]
    figure, axes_of = plt.subplots(figsize=(6, 4))
    sizes = {name: found.interval(name, "parameters").value / base for name in found.settings}
    for name in found.settings:
        row = next(row for row in found.rows if row["setting"] == name)
        marker, area = {"deep": ("o", 90), "mc_dropout": ("s", 90), "single": ("X", 90)}.get(
            name, ("*", 60 + 260 * row.get("iou", 0))
        )
        x, y = found.interval(name, "accuracy"), found.interval(name, "ece")
        dot = axes_of.scatter(x.value, y.value, s=area, marker=marker, c=[sizes[name]], cmap="viridis",
                              norm=matplotlib.colors.LogNorm(0.2, 10), edgecolors="black", linewidths=0.5)  # fmt: skip
        shift = {
            "single": (-32, -3),
            "mc_dropout": (-58, -4),
            "deep": (8, -2),
            "S 2, M 1": (-40, 5),
            "S 2, M 2": (4, 8),
            "S 4, M 2": (7, -8),
        }
        axes_of.annotate(
            name, (x.value, y.value), fontsize=7, xytext=shift.get(name, (7, 5)), textcoords="offset points"
        )
    axes_of.set_yscale("log")
    axes_of.set_xlim(None, 0.905)
    figure.colorbar(dot, ax=axes_of, label="parameters, relative to the network")
    label(axes_of, "accuracy", "ECE", legend=False)
    save(figure, "masks-span")


def sparsity() -> None:
    """Packed-Ensembles, Figure 5."""
    found = ls.sparsity_curves((0.2, 0.5, 1.0, 2.0))
    figure, axes_of = plt.subplots(figsize=(5.5, 3.8))
    for i, deviation in enumerate(found["deviations"].tolist()):
        axes_of.plot(found["shares"][:-1], found["bound"][i, :-1], "--", color=f"C{i}")
        axes_of.plot(found["shares"][:-1], found["divergence"][i, :-1], color=f"C{i}", label=f"deviation {deviation:g}")
        axes_of.plot(found["shares"][:-1], found["measured"][i, :-1], ".", color=f"C{i}")
    axes_of.set_yscale("log")
    label(axes_of, "p, share of the weights that stay", "divergence, nats")
    save(figure, "packing-sparsity")
    inside = found["measured"][:, :-1]
    print("largest measured / bound:", (inside / found["bound"][:, :-1]).max().item())
    print(
        "largest |measured / equation 17 - 1| for p up to 0.5:",
        (found["measured"] / found["divergence"] - 1)[:, :10].abs().max().item(),
    )


def packing() -> None:
    """Packed-Ensembles, Figures 6 and 7, Tables 5 and 6."""
    found = measured(ls.packing, perceptron(), alphas=(1, 2, 4), gammas=(1, 2), sizes=(4,), seeds=4)
    more = measured(ls.packing, perceptron(), alphas=(2,), sizes=(2, 8), seeds=4)
    rows = found.rows + [row for row in more.rows if row["setting"] not in ("single", "deep")]
    every = ls.Measured(rows)
    print(every.table(["accuracy", "nll", "ece", "aupr msp", "parameters"]))
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4))
    for axes_of, (figure_name, title) in zip(
        axes, (("accuracy", "accuracy"), ("aupr msp", "AUPR, letters")), strict=True
    ):
        for gamma, style in ((1, "-"), (2, "--")):
            names = [f"alpha {alpha}, gamma {gamma}, M 4" for alpha in (1, 2, 4)]
            errors(
                axes_of,
                np.array([1, 2, 4]) + 0.05 * (gamma - 1),
                every.curve(figure_name, names),
                COLOURS["packed"],
                f"M 4, gamma {gamma}",
                style,
            )
        for size, colour in ((2, "C4"), (8, "C5")):
            names = [f"alpha {alpha}, gamma 1, M {size}" for alpha in (2,)]
            errors(
                axes_of,
                np.array([2]) - 0.02 * size,
                every.curve(figure_name, names),
                colour,
                f"M {size}, gamma 1",
                ":",
            )
        for name in ("single", "deep"):
            axes_of.axhline(every.interval(name, figure_name).value, color=COLOURS[name], lw=1, label=name)
        label(axes_of, "alpha", title, legend=axes_of is axes[0])
    save(figure, "packing-alpha")
    criteria = ls.ood_criteria(every, "aupr")
    print("| setting | " + " | ".join(next(iter(criteria.values()))) + " |\n" + "|---" * 6 + "|")
    for setting, found_of in criteria.items():
        print(f"| {setting} | " + " | ".join(span(one, 3) for one in found_of.values()) + " |")


def widths() -> None:
    """Packed-Ensembles, Figure 8."""
    found = measured(ls.network_widths, perceptron, widths=(0.125, 0.25, 0.5, 1.0, 2.0))
    print(found.table(["accuracy", "aupr msp", "nll", "parameters"]))
    figure, axes = plt.subplots(1, 2, figsize=(8, 3.2))
    for axes_of, (figure_name, title) in zip(
        axes, (("accuracy", "accuracy"), ("aupr msp", "AUPR, letters")), strict=True
    ):
        errors(
            axes_of,
            np.array([0.125, 0.25, 0.5, 1.0, 2.0]),
            found.curve(figure_name),
            COLOURS["single"],
            "one network",
            "-",
        )
        axes_of.set_xscale("log", base=2)
        label(axes_of, "width", title, legend=False)
    save(figure, "packing-widths")


# ---------------------------------------------------------------- drawing


def transition(axes: Any, found: Any, figure: str, at: Any, names: Any, ends: Any = ("single", "deep")) -> None:
    """A curve over settings, and the methods at its ends as lines with their intervals."""
    errors(axes, np.asarray(at, float), found.curve(figure, names), COLOURS["masks"], "masksembles", "-")
    for name in ends:
        value, low, high = found.interval(name, figure)
        axes.axhline(value, color=COLOURS[name], lw=1, ls="--", label=name)
        axes.axhspan(low, high, color=COLOURS[name], alpha=0.08, lw=0)


def errors(axes: Any, at: np.ndarray, rows: np.ndarray, colour: str, name: str, style: str) -> None:
    """Means with intervals."""
    axes.errorbar(
        at, rows[:, 0], abs(rows[:, 1:] - rows[:, :1]).T, color=colour, marker="o", ms=4, ls=style, label=name
    )


def calibration(found: Any, names: Any, picture: str) -> None:
    """Accuracy against confidence, all seeds together, for bins with 20 examples or more."""
    figure, axes_of = plt.subplots(figsize=(4.4, 4))
    axes_of.plot([0, 1], [0, 1], color="grey", lw=1)
    for i, name in enumerate(names):
        parts = np.array([row["reliability"] for row in found.rows if row["setting"] == name])  # seeds, 3, bins
        confidence, accuracy, count = np.nan_to_num(parts[:, 0]), np.nan_to_num(parts[:, 1]), parts[:, 2]
        total = count.sum(0)
        kept = total >= 20
        x, y = ((value * count).sum(0)[kept] / total[kept] for value in (confidence, accuracy))
        colour = COLOURS.get(name) or plt.cm.YlGn(0.4 + 0.15 * i)
        axes_of.plot(x, y, marker="o", ms=4, color=colour, label=name)
    label(axes_of, "confidence", "accuracy")
    save(figure, picture)


def label(axes: Any, x: str, y: str, legend: bool = True) -> None:
    """Names of the axes."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[["top", "right"]].set_visible(False)
    if legend:
        axes.legend(fontsize=8, frameon=False)


def save(figure: Any, name: str, tight: bool = True) -> None:
    """The picture in docs/images, an SVG unless its name says otherwise."""
    if tight:
        figure.tight_layout()
    at = IMAGES / name if "." in name else IMAGES / f"{name}.svg"
    figure.savefig(at, metadata={"Date": None} if at.suffix == ".svg" else None, dpi=100)
    plt.close(figure)


def span(found: Any, digits: int) -> str:
    """A value and the ends of its interval."""
    value, low, high = found
    return f"{value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


PARTS = {part.__name__: part for part in (
    overlap, sinusoids, capacity, width, dropout, span_of_behaviours, sparsity, packing, widths
)}  # fmt: skip

if __name__ == "__main__":
    for chosen in sys.argv[1:] or PARTS:
        print(f"\n## {chosen}\n")
        PARTS[chosen]()
