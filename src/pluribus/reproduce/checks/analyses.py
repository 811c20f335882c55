"""Checks of analyses: the sparsity bound, the transition of masks, bias and variance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...results.intervals import t_interval
from ...uncertainty.resampling import Interval
from ..drawing import curves_figure, intervals_figure
from ..experiments.stored_parts import Stored
from ..verdicts import FAILS, HOLDS, OPEN, ClaimVerdict, above, all_of, below, equal, show_interval
from .comparisons import NEAR
from .pictures import entropy_maps

CLOSE = 0.1  # relative: how near the divergence of drawn masks must be to the formula, or there were too few draws


YES = {HOLDS: "yes", FAILS: "no", OPEN: "cannot be told"}


def check_sparsity(found: Mapping[str, Stored], published: Mapping[str, Any]) -> ClaimVerdict:
    """Whether the divergence stays below the bound, by its formula and by drawn masks."""
    if not found:
        return ClaimVerdict(OPEN, ["Nothing was computed."])
    (part,) = found.values()
    bound, exact, drawn = (np.array(part.figures[name]) for name in ("bound", "divergence", "measured"))
    scale = float(exact.max())
    rows = [
        [f"{deviation:g}", f"{share:g}", f"{bound[i, j]:.4f}", f"{exact[i, j]:.4f}", f"{drawn[i, j]:.4f}"]
        for i, deviation in enumerate(part.figures["deviations"])
        for j, share in enumerate(part.figures["shares"])
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
    shares = part.figures["shares"]
    curves = {
        f"{name}, deviation {deviation:g}": [(p, Interval(float(v))) for p, v in zip(shares, row, strict=True)]
        for i, deviation in enumerate(part.figures["deviations"])
        for name, row in (("bound", bound[i]), ("divergence", exact[i]))
    }
    picture = curves_figure("sparsity", "The bound and the divergence", "In nats, against the share p of the weights.",
                            curves, axes=("p", "nats"))  # fmt: skip
    return ClaimVerdict(FAILS if above_bound else HOLDS, said, header, rows, [picture])


def check_transition(found: Mapping[str, Stored], published: Mapping[str, Any]) -> ClaimVerdict:
    """Whether the entropy outside rises from one network over less and less overlap to independent networks."""
    rows = [row for part in found.values() for row in part.figures.get("rows", [])]
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
    return ClaimVerdict(all_of([rises, ends]), said, header, table, [*entropy_maps(found), picture])


def check_bias(found: Mapping[str, Stored], published: Mapping[str, Any]) -> ClaimVerdict:
    """Whether variance falls and bias rises with M, and some M is better than 1."""
    if not found:
        return ClaimVerdict(OPEN, ["Nothing was trained."])
    (part,) = found.values()
    figures, changes = part.figures["figures"], part.figures["changes"]
    last = str(part.figures["sizes"][-1])
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
    return {HOLDS: word, FAILS: "the contrary", OPEN: "cannot be told"}[judgement]
