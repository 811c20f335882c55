"""Figures on data of the papers' own, each computed and judged once: the court and the laboratory's page show the same.

Two sinusoids (Masksembles, Figure 4), a noisy curve (MIMO, Figure 2), a layer of equal weights (Packed-Ensembles,
Figure 5). What is computed are plain values and arrays, so that it can be stored; a check takes them to a verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from ...core.ensemble import Ensemble
from ...data.catalogue import load
from ...methods import deep, masksembles, single
from ...models.small import mlp
from ...report.charts.intervals import curves_figure, intervals_figure
from ...report.charts.landscape import surface_chart
from ...report.claims import ClaimVerdict
from ...report.figure import Figure, Panel
from ...results.intervals import t_interval
from ...results.judgements import FAILS, HOLDS, OPEN, above, all_of, below, equal, show_interval
from ...uncertainty.resampling import Interval
from ..analyses.bias_variance import mimo_on_a_curve
from ..analyses.settings import Try, judge_settings, redraw, train_each
from ..analyses.sparsity import sparsity_curves
from .comparisons import NEAR

Given = tuple[dict[str, Any], dict[str, np.ndarray]]
Say = Callable[[str], None]
CLOSE = 0.1  # relative: how near the divergence of drawn masks must be to the formula, or there were too few draws
YES = {HOLDS: "yes", FAILS: "no", OPEN: "inconclusive"}

# ---------------------------------------------------------------- Packed-Ensembles, Figure 5


def sparsity_bounds(deviations: Sequence[float], shares: Sequence[float], draws: int) -> Given:
    """Bound, divergence and what drawn masks give, against the share of the weights."""
    found = sparsity_curves(deviations, shares, draws=draws)
    return {name: values.tolist() for name, values in found.items()}, {}


def check_sparsity(figures: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> ClaimVerdict:
    """Whether the divergence stays below the bound, by its formula and by drawn masks."""
    if not figures:
        return ClaimVerdict(OPEN, ["Nothing was computed."])
    bound, exact, drawn = (np.array(figures[name]) for name in ("bound", "divergence", "measured"))
    scale = float(exact.max())
    rows = [
        [f"{deviation:g}", f"{share:g}", f"{bound[i, j]:.4f}", f"{exact[i, j]:.4f}", f"{drawn[i, j]:.4f}"]
        for i, deviation in enumerate(figures["deviations"])
        for j, share in enumerate(figures["shares"])
    ]
    header = ["deviation of the output", "p", "bound (8)", "divergence (17)", "with drawn masks"]
    apart = float(np.abs(drawn - exact).max()) / scale
    if not np.isfinite([bound, exact, drawn]).all() or apart > CLOSE:
        said = [f"Drawn masks and the formula differ by {apart:.0%} of the largest divergence: too few draws."]
        return ClaimVerdict(OPEN, said, header, rows)
    above_bound = int((exact > bound + 1e-12).sum())
    said = [
        f"The divergence is above the bound in {above_bound} of {exact.size} cases; "
        f"drawn masks agree with its formula within {apart:.1%} of the largest."
    ]
    shares = figures["shares"]
    curves = {
        f"{name}, deviation {deviation:g}": [(p, Interval(float(v))) for p, v in zip(shares, row, strict=True)]
        for i, deviation in enumerate(figures["deviations"])
        for name, row in (("bound", bound[i]), ("divergence", exact[i]))
    }
    picture = curves_figure("sparsity", "The bound and the divergence", "In nats, against the share p of the weights.",
                            curves, axes=("p", "nats"))  # fmt: skip
    return ClaimVerdict(FAILS if above_bound else HOLDS, said, header, rows, [picture])


# ---------------------------------------------------------------- Masksembles, Figure 4

OVERLAPS = (1.1, 2.0, 3.0, 10.0)
SIZE = 4


def measure_sinusoids(hidden: int, points: int, seeds: int, epochs: int, lr: float, say: Say | None = None) -> Given:
    """Entropy on a grid around the training rows and beyond them, for each overlap and seed; maps are of the first.

    A masked member sees a quarter of the rows of an epoch, so masks train for four times as many epochs: each member
    is trained on as many rows as the single network and those of a deep ensemble.
    """
    data, model = load("sinusoids"), mlp(2, 2, hidden=(hidden, hidden))
    train, test = data.train[:], data.test[:]
    across, up = torch.linspace(-10, 10, points), torch.linspace(-4, 4, points // 2 + 1)
    grid = torch.cartesian_prod(across, up)
    makers: dict[str, Callable[[], Ensemble]] = {"single": lambda: single(redraw(model))}
    makers |= {f"S {scale:g}": partial(masksembles, model, SIZE, scale, 1.0, train[0][:2]) for scale in OVERLAPS}
    makers["deep"] = lambda: deep(model, SIZE)
    tries = [
        Try(name, make, {}, {"lr": lr, "epochs": epochs * (SIZE if name.startswith("S ") else 1)})
        for name, make in makers.items()
    ]

    def entropy(ensemble: Ensemble, _: Any) -> dict[str, Any]:
        return {"map": ensemble.predict(grid).total.reshape(len(across), -1).numpy().astype(np.float32)}

    judge = judge_settings("sinusoids", test, grid[grid[:, 0].abs() > 6], None, entropy)
    rows = train_each("sinusoids", tries, train, judge, seeds, say).rows
    kept = ("setting", "seed", "accuracy", "inside entropy", "outside entropy", "outside mutual_information")
    arrays = {
        "across": across.numpy(),
        "up": up.numpy(),
        "rows": train[0][:40].numpy(),
        "labels": train[1][:40].numpy(),
    }
    arrays |= {f"entropy {row['setting']}": row["map"] for row in rows if row["seed"] == 0}
    return {"rows": [{name: row[name] for name in kept} for row in rows]}, arrays


def entropy_maps(arrays: Mapping[str, np.ndarray]) -> list[Figure]:
    """Entropy around the training rows, from one network over masks to independent ones."""
    if "across" not in arrays:
        return []
    marks = {f"class {label}": arrays["rows"][arrays["labels"] == label] for label in (0, 1)}
    styles = {name: number for number, name in enumerate(marks, 2)}
    panels = [
        Panel(surface_chart(arrays["across"], arrays["up"], values, "entropy", ends=(0, float(np.log(2))),
                            contours=False, rows=marks, styles=styles, titles=("x", "y")),
              name.removeprefix("entropy "))
        for name, values in arrays.items() if name.startswith("entropy ")
    ]  # fmt: skip
    caption = "Entropy in nats of each prediction, for the first seed; the marks are training rows."
    keys = list(zip((2, 3), marks, strict=True))
    return [Figure("maps", "Entropy around the training rows", caption, panels, legend=keys)]


def check_transition(figures: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> ClaimVerdict:
    """Whether the entropy outside rises from one network over less and less overlap to independent networks."""
    rows = figures.get("rows", [])
    settings = list(dict.fromkeys(row["setting"] for row in rows))
    if len(settings) < 3:
        return ClaimVerdict(OPEN, ["Needs one network, masks and independent networks."])
    values = {
        figure: {name: np.array([row[figure] for row in rows if row["setting"] == name]) for name in settings}
        for figure in ("outside entropy", "outside mutual_information")
    }
    entropy, (single, *masked, deep) = values["outside entropy"], settings
    steps = [*zip([single, *masked], masked, strict=False)]
    gaps = {
        f"{second} above {first}": t_interval((entropy[second] - entropy[first]).tolist()) for first, second in steps
    }
    whole = t_interval((entropy[masked[-1]] - entropy[single]).tolist())
    fallen = [name for name, gap in gaps.items() if below(gap) == HOLDS]
    rises = FAILS if fallen else above(whole)
    told = [name for name, gap in gaps.items() if above(gap) == HOLDS]
    last = t_interval((entropy[masked[-1]] - entropy[deep]).tolist())
    margin = NEAR * abs(float((entropy[deep] - entropy[single]).mean()))
    ends = equal(last, margin)
    said = [
        f"From one network to {masked[-1]} the mean entropy outside changes by {show_interval(whole)} nats; of "
        f"{len(gaps)} steps, {len(told)} clearly rise and {len(fallen)} clearly fall.",
        f"Whether it rises: {YES[rises]}. Whether it ends where Deep Ensembles are: {YES[ends]}; "
        f"{masked[-1]} minus Deep Ensembles is {show_interval(last)}, where less than {margin:.3f}, half of their "
        "gain over one network, is required.",
    ]
    table = [
        [name, *(show_interval(t_interval(values[figure][name].tolist()), 4) for figure in values)] for name in settings
    ]
    picture = intervals_figure(
        "entropy", "Entropy outside the training range", "Mean over 6 < |x| <= 10, with intervals over seeds.",
        {"entropy": {name: t_interval(entropy[name].tolist()) for name in settings}}, axis="nats",
    )  # fmt: skip
    header = ["", "entropy outside", "mutual information outside"]
    return ClaimVerdict(all_of([rises, ends]), said, header, table, [*entropy_maps(arrays), picture])


# ---------------------------------------------------------------- MIMO, Figure 2


def measure_bias(sizes: int, repeats: int, steps: int, say: Say | None = None) -> Given:
    """Bias, variance and error of each number of members, each over the same training sets, with intervals."""
    every = list(range(1, sizes + 1))
    found = mimo_on_a_curve(every, repeats, steps, say)
    names = ("bias", "variance", "error", "members")
    means = {name: {str(size): list(found.interval(name, size)) for size in every} for name in names}
    changes = {name: {str(size): list(found.difference(name, size, 1)) for size in every[1:]} for name in names}
    arrays = {"predictions": found.predictions.astype(np.float32), "target": found.target.astype(np.float32)}
    return {"sizes": every, "figures": means, "changes": changes}, arrays


def check_bias(found: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> ClaimVerdict:
    """Whether variance falls and bias rises with M, and some M is better than 1."""
    if not found:
        return ClaimVerdict(OPEN, ["Nothing was trained."])
    figures, changes = found["figures"], found["changes"]
    last = str(found["sizes"][-1])
    gaps = {name: {size: Interval(*ends) for size, ends in changes[name].items()} for name in changes}
    best = min(figures["error"], key=lambda size: figures["error"][size][0])
    falls, rises = below(gaps["variance"][last]), above(gaps["bias"][last])
    better = [below(gap) for gap in gaps["error"].values()]
    improved = HOLDS if HOLDS in better else all_of(better) if OPEN not in better else OPEN
    said = [
        f"From M = 1 to {last} the variance changes by {_small(gaps['variance'][last])} ({_word(falls, 'it falls')}), "
        f"the squared bias by {_small(gaps['bias'][last])} ({_word(rises, 'it rises')}); the lowest error is "
        f"at M = {best}; whether another M is better than 1: {_word(improved, 'yes')}.",
        f"Single members change by {_small(gaps['members'][last])}. All in 1/1000, intervals over training sets.",
    ]
    table = [[size, *(_small(Interval(*figures[name][size])) for name in figures)] for size in figures["error"]]
    curves = {
        name: [(float(size), Interval(*(1000 * end for end in ends))) for size, ends in figures[name].items()]
        for name in figures
    }
    picture = curves_figure("bias", "Bias, variance and error against M", "With intervals over training sets.",
                            curves, axes=("M", "1/1000"))  # fmt: skip
    return ClaimVerdict(all_of([falls, rises, improved]), said, ["M", *figures], table, [picture])


def _small(found: Interval) -> str:
    return show_interval(Interval(*(1000 * end for end in found)))


def _word(judgement: str, word: str) -> str:
    return {HOLDS: word, FAILS: "the contrary", OPEN: "inconclusive"}[judgement]
