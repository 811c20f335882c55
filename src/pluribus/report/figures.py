"""One function per figure, from stored numbers only: nothing is computed by a model here. FIGURES at the foot.

Methods are dicts from a name to its numbers, in lists or arrays. Each function gives a matplotlib Figure that
belongs to the caller; matplotlib is imported when a figure is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .._common.optional import require
from ..uncertainty import metrics
from .figure import compute_histograms, compute_roc, divide_by_error

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Numbers = Any  # a list, an array or a tensor
Methods = Mapping[str, Mapping[str, Numbers]]


def reliability(methods: Methods, title: str = "") -> Figure:
    """A reliability diagram: accuracy against confidence for each bin, and below it where the examples are.

    Args:
        methods: {name: {"confidence", "accuracy", "examples"}}, one value for each bin, as
            `pluribus.metrics.reliability` gives them; bins without examples are left out

    >>> bins = {"confidence": [0.4, 0.9], "accuracy": [0.5, 0.8], "examples": [20, 80]}
    >>> reliability({"deep": bins}).axes[1].get_xlabel()
    'Confidence'
    """
    found = _read("reliability", methods, "confidence", "accuracy", "examples")
    figure, (top, bottom) = _figure(title, rows=(4, 1), size=(5.2, 6.2), share=True)
    top.plot([0, 1], [0, 1], color=GREY, linestyle="--", linewidth=1, label="perfect")
    for style, (name, bins) in _assign_styles(found):
        full = bins["examples"] > 0
        confidence, accuracy, examples = (bins[key][full] for key in ("confidence", "accuracy", "examples"))
        share = examples / max(examples.sum(), 1)
        ece = float((share * np.abs(confidence - accuracy)).sum())
        top.plot(confidence, accuracy, label=f"{name} (ECE {ece:.3f})", markersize=5, **style)
        bottom.plot(confidence, share, markersize=4, **style)
    _axis(top, "", "Accuracy", (0, 1), (0, 1))
    _axis(bottom, "Confidence", "Share of\nexamples", (0, 1), (0, None))
    top.legend(loc="upper left")
    return figure


def risk_coverage(methods: Methods, title: str = "") -> Figure:
    """Risk-coverage curves: the error on what is kept, when the least certain are rejected.

    Args:
        methods: {name: {"coverage", "risk"}}, two columns, as `pluribus.metrics.risk_coverage` gives them

    >>> len(risk_coverage({"deep": {"coverage": [0.5, 1.0], "risk": [0.0, 0.1]}}).axes[0].lines)
    1
    """
    found = _read("risk_coverage", methods, "coverage", "risk")
    figure, (axes,) = _figure(title)
    for style, (name, curve) in _assign_styles(found):
        order = np.argsort(curve["coverage"], kind="stable")
        coverage, risk = curve["coverage"][order], curve["risk"][order]
        plain = style | {"marker": "", "linewidth": 1.8}
        axes.plot(coverage, risk, label=f"{name} ({risk[-1]:.1%} at full coverage)", **plain)
    _axis(axes, "Coverage (share of examples answered)", "Risk (error on those)", (0, 1), (0, None))
    _percent(axes)
    axes.legend(loc="upper left")
    return figure


def score_histograms(methods: Methods, score: str = "uncertainty", bins: int = 40, title: str = "") -> Figure:
    """Histograms of one score on inside and outside data, one panel for each method.

    Args:
        methods: {name: {"inside", "outside"}}, the scores of all examples, larger = more uncertain
        score: what the score is called

    >>> len(score_histograms({"deep": {"inside": [0.1, 0.2], "outside": [0.4, 0.9]}}, "msp").axes)
    1
    """
    found = _read("score_histograms", methods, "inside", "outside")
    figure, panels = _figure(title, rows=(1,) * len(found), size=(5.8, 1.4 + 2.0 * len(found)), share=True)
    parts = [scores[kind] for scores in found.values() for kind in ("inside", "outside")]
    edges, shares = compute_histograms(parts, bins)
    for axes, name, *pair in zip(panels, found, shares[::2], shares[1::2], strict=True):
        for share, kind, colour, hatch in zip(pair, *zip(*INSIDE_OUTSIDE, strict=True), strict=True):
            line: dict[str, Any] = {"histtype": "stepfilled", "edgecolor": colour, "facecolor": colour + "55"}
            axes.hist(edges[:-1], edges.tolist(), weights=share, label=kind, hatch=hatch, linewidth=1.3, **line)
        axes.set_title(name, loc="left", fontsize=10, fontweight="bold")
        _axis(axes, "", "Share of examples", None, (0, None))
    panels[-1].set_xlabel(f"Score: {score} (further right = less certain)")
    panels[0].legend(loc="lower right", bbox_to_anchor=(1, 1), ncol=2, frameon=False)  # off the histograms
    return figure


def roc(methods: Methods, title: str = "") -> Figure:
    """ROC curves of telling outside from inside data: the outside is the positive class; ties are one step.

    Args:
        methods: {name: {"inside", "outside"}}, the scores of all examples, larger = more uncertain

    >>> figure = roc({"deep": {"inside": [0.1, 0.2], "outside": [0.4, 0.9]}})
    >>> figure.axes[0].get_legend().get_texts()[0].get_text()
    'deep (AUROC 1.000)'
    """
    found = _read("roc", methods, "inside", "outside")
    figure, (axes,) = _figure(title, size=(5.0, 5.0))
    for style, (name, scores) in _assign_styles(found):
        false, true = compute_roc(scores["inside"], scores["outside"])
        area = metrics.auroc(scores["inside"], scores["outside"])
        plain = style | {"marker": "", "linewidth": 1.8}
        axes.plot(false, true, label=f"{name} (AUROC {area:.3f})", **plain)
    axes.plot([0, 1], [0, 1], color=GREY, linestyle="--", linewidth=1, label="chance")
    _axis(axes, "False positive rate (in-distribution rejected as OOD)", "True positive rate", (0, 1), (0, 1))
    axes.set_aspect("equal")
    axes.legend(loc="lower right")
    return figure


def agreement(matrix: Numbers, names: Sequence[str] | None = None, title: str = "") -> Figure:
    """The share of examples on which each pair of members gives the same label, as a square of colours.

    Args:
        matrix: (members, members), as `pluribus.metrics.agreement` gives it
        names: of the members; default: their numbers

    >>> len(agreement([[1.0, 0.8], [0.8, 1.0]]).axes)  # the square and its scale
    2
    """
    shares = np.asarray(matrix, float)
    if shares.ndim != 2 or shares.shape[0] != shares.shape[1] or not len(shares):
        raise ValueError(f"agreement: the matrix must be (members, members), but its shape is {shares.shape}.")
    _check_shares("agreement: shares", shares)
    names = [str(i) for i in range(len(shares))] if names is None else list(names)
    if len(names) != len(shares):
        raise ValueError(f"agreement: {len(shares)} members need as many names, but got {len(names)}.")
    size = min(9.0, 2.6 + 0.5 * len(shares))
    figure, (axes,) = _figure(title, size=(size + 0.6, size))
    off = shares[~np.eye(len(shares), dtype=bool)]
    low, high = (float(off.min()), float(off.max())) if len(off) else (0.0, 1.0)
    shown = np.ma.masked_array(shares, np.eye(len(shares), dtype=bool) & (len(shares) > 1))  # always 1: says nothing
    image = axes.imshow(shown, cmap="cividis", vmin=low, vmax=high if high > low else low + 1e-3)
    axes.set_facecolor("#EEEEEE")  # shows where the diagonal is masked
    if len(shares) <= 12:
        _write_values(axes, shares, (low + high) / 2)
    axes.set_xticks(range(len(names)), names, rotation=45 if max(map(len, names)) > 3 else 0)
    axes.set_yticks(range(len(names)), names)
    _axis(axes, "Member", "Member")
    axes.grid(False)
    figure.colorbar(image, ax=axes, label="Share of equal labels", shrink=0.8)
    return figure


def diversity_accuracy(
    methods: Methods, base_accuracy: float, classes: int, exponent: float | None = None, title: str = ""
) -> Figure:
    """The diversity-accuracy plane of Fort et al. (Figure 6), with its limits (appendix D).

    Across: the accuracy of a sample. Up: its disagreement with the base, divided by 1 - its accuracy.

    Args:
        methods: {name: {"accuracy", "disagreement"}}, one value for each sample; disagreement is the share of
            examples on which it differs from the base
        base_accuracy: of the base solution, drawn as a star
        exponent: draw the one-parameter family, p- = p+ ** exponent, too; Fort et al. fit 0.22

    >>> points = {"accuracy": [0.85, 0.8], "disagreement": [0.12, 0.2]}
    >>> diversity_accuracy({"deep": points}, base_accuracy=0.86, classes=10).axes[0].get_xlabel()
    'Accuracy of the sample'
    """
    found = _read("diversity_accuracy", methods, "accuracy", "disagreement")
    figure, (axes,) = _figure(title, size=(7.6, 4.6))
    least = min(float(points["accuracy"].min()) for points in found.values())
    most = max(base_accuracy, *(float(points["accuracy"].max()) for points in found.values()))
    margin = 0.05 * max(most - least, 0.02)
    line = np.linspace(max(least - margin, 0), min(most + margin, 1 - 1e-6), 300)
    lower, upper = diversity_limits(line, base_accuracy, classes)
    lower = np.where(lower >= 0, lower, np.nan)  # above the base's accuracy there is none
    for limit, dashes, name in ((upper, "--", "independent predictions"), (lower, ":", "random flips")):
        axes.plot(line, limit / (1 - line), color=GREY, linestyle=dashes, label=f"limit: {name}")
    if exponent is not None:
        flips = np.linspace(0, 1, 2000)
        a, d = diversity_family(flips, flips**exponent, base_accuracy, classes)
        seen = (a >= line[0]) & (a < line[-1])
        axes.plot(a[seen], d[seen] / (1 - a[seen]), color=GREY, linestyle="-.", label=f"flips, exponent {exponent:g}")
    for style, (name, points) in _assign_styles(found):
        y = divide_by_error(points["disagreement"], points["accuracy"])
        axes.plot(points["accuracy"], y, label=name, **style | {"linestyle": "", "markersize": 6, "alpha": 0.85})
    axes.plot([base_accuracy], [0], marker="*", markersize=15, color="black", linestyle="", label="base", clip_on=False)
    _axis(axes, "Accuracy of the sample", "Disagreement with the base / (1 - accuracy)", (line[0], line[-1]), (0, None))
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    return figure


def diversity_limits(accuracy: Numbers, base_accuracy: float, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """The least and the most disagreement with the base at an accuracy: Fort et al., D.2 and D.1.

    The lower one, random flips of the base's labels, is negative above the base's accuracy: no flips lead there.

    Shapes: accuracy, both results: (points)

    >>> least, most = diversity_limits([0.8], 0.8, classes=10)
    >>> least.tolist(), most.round(4).tolist()
    ([0.0], [0.3556])
    """
    a = np.asarray(accuracy, float)
    lower = (classes - 1) * (base_accuracy - a) / (classes * base_accuracy - 1)
    both_wrong = (1 - base_accuracy) * (1 - a)
    upper = (1 - base_accuracy) * a + (1 - a) * base_accuracy + both_wrong * (classes - 2) / (classes - 1)
    return lower, upper


def diversity_family(
    flip_right: Numbers, flip_wrong: Numbers, base_accuracy: float, classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Accuracy and disagreement when right and wrong labels flip with these probabilities: Fort et al., D.3.

    Equations 3 and 4 are exchanged and misprinted in the paper; these follow from its text.

    Shapes: flip_right, flip_wrong, both results: (points)

    >>> [values.tolist() for values in diversity_family([0.0, 1.0], [0.0, 1.0], 1.0, classes=10)]
    [[1.0, 0.0], [0.0, 1.0]]
    """
    plus, minus = np.asarray(flip_right, float), np.asarray(flip_wrong, float)
    accuracy = base_accuracy * (1 - plus) + (1 - base_accuracy) * minus / (classes - 1)
    return accuracy, base_accuracy * plus + (1 - base_accuracy) * minus


# ---------------------------------------------------------------- looks: a method has the same one everywhere


class Style(NamedTuple):
    """A colour as #RRGGBB, and a marker as matplotlib names it.

    >>> pb.figures.STYLES["deep"]
    Style(colour='#0072B2', marker='s')
    """

    colour: str
    marker: str


STYLES = {  # colours of Okabe and Ito, which colour-blind readers can tell apart, and some of Tol's
    "single": Style("#000000", "o"),
    "deep": Style("#0072B2", "s"),
    "packed": Style("#D55E00", "^"),
    "masksembles": Style("#009E73", "D"),
    "batch_ensemble": Style("#E69F00", "v"),
    "mc_dropout": Style("#56B4E9", "P"),
    "mimo": Style("#CC79A7", "X"),
    "treenet": Style("#882255", "<"),
    "multihead": Style("#999933", ">"),
    "lora": Style("#332288", "p"),
    "tabm": Style("#117733", "H"),
}

OTHERS = (Style("#44AA99", "h"), Style("#661100", "d"), *STYLES.values())  # for names without one of their own


def assign_styles(names: Iterable[str]) -> dict[str, Style]:
    """A look for each name: its own, or one that no other name here has.

    >>> styles = assign_styles(["mine", "yours"])
    >>> styles["mine"] != styles["yours"]
    True
    """
    names = list(names)
    taken = {STYLES[name] for name in names if name in STYLES}
    free = [style for style in OTHERS if style not in taken]
    others = [name for name in names if name not in STYLES]
    return {name: STYLES.get(name) or free[others.index(name) % len(free)] for name in names}


GREY = "#777777"
INSIDE_OUTSIDE = (("inside", "#0072B2", ""), ("outside", "#D55E00", "///"))  # colours and hatches
LINES = ("-", (0, (5, 1.5)), (0, (1.5, 1)), (0, (6, 1.5, 1.5, 1.5)))


def _assign_styles(methods: Mapping[str, Any]) -> Iterable[tuple[dict[str, Any], tuple[str, Any]]]:
    """Colour, marker and line of each method."""
    styles = assign_styles(methods)
    for i, (name, values) in enumerate(methods.items()):
        look = {"color": styles[name].colour, "marker": styles[name].marker, "linestyle": LINES[i % len(LINES)]}
        yield look, (name, values)


# ---------------------------------------------------------------- drawing


def _figure(
    title: str, rows: tuple[int, ...] = (1,), size: tuple[float, float] = (6.0, 4.2), share: bool = False
) -> tuple[Figure, list[Axes]]:
    figure = require("matplotlib.figure", "pb.figures", "figures").Figure(figsize=size, dpi=150, layout="constrained")
    grid = figure.subplots(len(rows), 1, squeeze=False, sharex=share, gridspec_kw={"height_ratios": rows})
    if title:
        figure.suptitle(title, fontsize=12, fontweight="bold")
    return figure, list(grid[:, 0])


def _axis(axes: Axes, x: str, y: str, across: Any = None, up: Any = None) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if across is not None:
        axes.set_xlim(*across)
    if up is not None:
        axes.set_ylim(*up)
    axes.grid(True, color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _percent(axes: Axes) -> None:
    from matplotlib.ticker import PercentFormatter

    axes.xaxis.set_major_formatter(PercentFormatter(1))
    axes.yaxis.set_major_formatter(PercentFormatter(1))


def _write_values(axes: Axes, shares: np.ndarray, middle: float) -> None:
    for (i, j), value in np.ndenumerate(shares):
        colour = "#555555" if i == j else "black" if value > middle else "white"
        axes.text(j, i, f"{value:.2f}", ha="center", va="center", color=colour, fontsize=8)


# ---------------------------------------------------------------- checking


SHARES = {"accuracy", "confidence", "coverage", "disagreement"}  # columns from 0 to 1


def _read(name: str, methods: Methods, *keys: str) -> dict[str, dict[str, np.ndarray]]:
    """The columns of each method as arrays."""
    found = {}
    for method, values in methods.items():
        if any(key not in values for key in keys):
            raise ValueError(f"{name}: {method!r} must hold {', '.join(keys)}, but it holds {', '.join(values)}.")
        found[method] = {key: np.asarray(values[key], float) for key in keys}
        for key in SHARES & {*keys}:
            _check_shares(f"{name}: {key}", found[method][key])
    if not found or not all(column.size for columns in found.values() for column in columns.values()):
        raise ValueError(f"{name}: needs at least one method, with columns {', '.join(keys)} that are not empty.")
    return found


def _check_shares(what: str, values: np.ndarray) -> None:
    """An empty bin has no mean: what is not a number is left to the drawing."""
    if (values > 1 + 1e-6).any():
        raise ValueError(f"{what} must be from 0 to 1, but one is {np.nanmax(values):g}. Give shares, not percentages.")


FIGURES: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (reliability, risk_coverage, score_histograms, roc, agreement, diversity_accuracy)
}
