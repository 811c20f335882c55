"""What more members, repetition and a penalty do to one MIMO network, and how far members differ in other methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import nn

from ...core.ensemble import Ensemble
from ...methods import batch_ensemble, deep, mimo, multihead, treenet
from ...methods.facts import facts_of
from ...report.charts.landscape import strip_chart
from ...report.claims import Claim, section
from ...report.figure import Figure, Panel, Styles, legend
from ...results.intervals import t_interval
from ..analyses.bias_variance import mimo_on_a_curve
from ..analyses.setting_sweeps import regularization_path, sweep
from ..analyses.trained_settings import Measured
from ..material import Material
from .transitions import interval_chart, interval_text, measure_anew

SIZES = (1, 2, 3, 4)
SHARES = (0.0, 0.5, 1.0)  # of the batch, in which members read the same
REPETITIONS = (1, 4)
PENALTIES = {"l1": (0.0, 1e-4, 1e-3), "l2": (0.0, 1e-3, 1e-2)}
MEMBERS = 3

QUALITY = {"accuracy": "accuracy", "log_likelihood": "log-likelihood"}

BOTH: Styles = {"ensemble": 2, "members": 3}


def more_members(material: Material) -> Claim | None:
    """Members and ensemble as the number of members grows: MIMO, Figure 5."""
    found = _swept(material, "more and more members", lambda size: _mimo(material, size), SIZES)
    if found is None:
        return None
    best = {name: max(SIZES, key=lambda size: found.interval(size, name).value) for name in QUALITY}
    fall = found.difference(SIZES[-1], SIZES[0], "member_accuracy")
    answer = "They decline" if fall.high < 0 else "They do not decline" if fall.low > 0 else "Undecided"
    gain = found.difference(best["log_likelihood"], SIZES[0], "log_likelihood")
    said = [
        f"{answer}: from M = {SIZES[0]} to {SIZES[-1]} the accuracy of members changes by {interval_text(fall)}.",
        f"The ensemble has its largest accuracy at M = {best['accuracy']} and its largest log-likelihood at M = "
        f"{best['log_likelihood']}; that is {interval_text(gain)} more than at M = {SIZES[0]}.",
    ]
    figure = _both("members", "More and more members", found, SIZES, "M", material)
    claim = (
        "As M grows, the subnetworks slowly get worse, because they share one network; the ensemble is best at a "
        "small M (Havasi et al., Figure 5)."
    )
    return section("members", "What do more members do to one network?", claim, said, [figure])


def repetition(material: Material) -> Claim | None:
    """Shared inputs, and rows that a batch repeats, for two members: MIMO, Figure 6."""
    shared = _swept(material, "shared inputs", lambda rho: _mimo(material, 2, rho), SHARES)
    if shared is None:
        return None
    more = _swept(material, "repeated rows", lambda times: _mimo(material, 2, 0.0, times), REPETITIONS)
    assert more is not None
    best = max(SHARES, key=lambda rho: shared.interval(rho, "log_likelihood").value)
    gain = shared.difference(SHARES[1], SHARES[0], "log_likelihood")
    boost = more.difference(REPETITIONS[-1], REPETITIONS[0], "accuracy")
    answer = "It helps" if gain.low > 0 else "It hurts" if gain.high < 0 else "Undecided"
    said = [
        f"{answer}: with half of the inputs shared, the log-likelihood changes by {interval_text(gain)}; it is largest "
        f"at {best:g}.",
        f"With every row {REPETITIONS[-1]} times in a batch, the accuracy changes by {interval_text(boost)}.",
    ]
    figures = [
        _both("shared", "Shared inputs", shared, SHARES, "input repetition", material),
        _both("repeated", "Repeated rows", more, REPETITIONS, "batch repetition", material),
    ]
    claim = (
        "Members that read the same input for part of the batch share features and use the network better; repeating "
        "rows in a batch helps a little (Havasi et al., Figure 6)."
    )
    return section("repetition", "Does it help if members read the same inputs?", claim, said, figures)


def penalties(material: Material) -> Claim | None:
    """Quality and the share of weights left as L1 or L2 grows, for one member and for three: MIMO, Figures 7 to 9."""
    paths: dict[str, Measured] = {}
    for size in (1, MEMBERS):

        def measure(model: nn.Module, train: Any, test: Any, outside: Any, size: int = size, **how: Any) -> Measured:
            return regularization_path(
                lambda: _mimo(material, size), train, test, PENALTIES["l1"], PENALTIES["l2"], **how
            )

        found = measure_anew(material, measure, f"penalties, M = {size}")
        if found is None:
            return None
        paths[f"M = {size}"] = found
    styles = {name: number for number, name in enumerate(paths, 2)}
    figures, said = [], []
    for kind, strengths in PENALTIES.items():
        settings = [(kind, value) for value in strengths]
        places = [(float(i), f"{value:g}") for i, value in enumerate(strengths)]
        panels = [
            Panel(interval_chart({name: own.curve(figure, settings) for name, own in paths.items()},
                                 [x for x, _ in places], kind.upper(), title, styles, labels=places))
            for figure, title in {**QUALITY, "share": "share of weights left"}.items()
        ]  # fmt: skip
        rows = [
            [name, f"{value:g}", *(interval_text(own.interval((kind, value), f)) for f in (*QUALITY, "share"))]
            for name, own in paths.items() for value in strengths
        ]  # fmt: skip
        header = ["Members", kind.upper(), *QUALITY.values(), "Share of weights above 1e-4"]
        caption = f"Means over {material.retrained} seeds; vertical lines are 95 % intervals."
        figures.append(
            Figure(kind, f"As {kind.upper()} grows", caption, panels, "wide", legend(paths, styles), header, rows)
        )
        falls = [
            np.subtract(own.values(settings[-1], "log_likelihood"), own.values(settings[0], "log_likelihood"))
            for own in paths.values()
        ]
        gap = t_interval((falls[1] - falls[0]).tolist())  # seed by seed
        told = "; ".join(
            f"{name}: {interval_text(t_interval(one.tolist()))}" for name, one in zip(paths, falls, strict=True)
        )
        answer = "Three members do" if gap.high < 0 else "One network does" if gap.low > 0 else "Undecided"
        said.append(
            f"{answer}, along {kind.upper()}: from 0 to {strengths[-1]:g} the log-likelihood changes by: {told}; the "
            f"second minus the first: {interval_text(gap)}."
        )
    claim = (
        "MIMO uses more of the network's capacity, so it is more sensitive to L1, L2 and sparsity, increasingly so "
        "with more members (Havasi et al., Figures 7 to 9)."
    )
    return section("penalties", "Who suffers more from a penalty on the weights?", claim, said, figures)


def bias_of_members(material: Material) -> Claim | None:
    """Bias, variance and error of MIMO on the paper's curve, as members become more: MIMO, Figure 2."""
    if material.retrained < 2:
        return None
    material.say(f"bias and variance on a curve: {CURVE_SETS} training sets for each of {len(CURVE_SIZES)} sizes")
    found = mimo_on_a_curve(CURVE_SIZES, CURVE_SETS, CURVE_STEPS, material.say)
    first, last = CURVE_SIZES[0], CURVE_SIZES[-1]
    changes = {name: found.difference(name, last, first) for name in ("variance", "bias")}
    falls, rises = changes["variance"].high < 0, changes["bias"].low > 0
    wrong = changes["variance"].low > 0 or changes["bias"].high < 0
    best = found.sizes[int(found.error.argmin())]
    said = [
        f"{'Yes' if falls and rises else 'No' if wrong else 'Undecided'}: from M = {first} to {last} the "
        f"variance changes by {interval_text(changes['variance'])} and the squared bias by "
        f"{interval_text(changes['bias'])}.",
        f"The error is lowest at M = {best}"
        + (f": {interval_text(found.difference('error', best, first))} from M = {first}." if best != first else "."),
    ]
    styles: Styles = {name: number for number, name in enumerate(CURVE_PARTS, 2)}
    curves = {name: np.array([found.interval(name, size) for size in CURVE_SIZES]) for name in CURVE_PARTS}
    at = list(map(float, CURVE_SIZES))
    panels = [Panel(interval_chart({name: own}, at, "M", CURVE_PARTS[name], styles)) for name, own in curves.items()]
    rows = [[str(size), *(interval_text(found.interval(name, size)) for name in CURVE_PARTS)] for size in CURVE_SIZES]
    caption = (
        f"Over {CURVE_SETS} training sets; vertical lines are 95 % intervals. The data are the paper's, not those of "
        "the runs: 64 rows of a noisy curve, a perceptron of 32 and 128 units. The noise of the test rows is part of "
        "the squared bias."
    )
    header = ["M", *(words.capitalize() for words in CURVE_PARTS.values())]
    figure = Figure("bias", "Bias and variance", caption, panels, "wide", [], header, rows)
    claim = "As M grows, variance falls and bias rises, and the best M is larger than 1 (Havasi et al., Figure 2)."
    return section("bias", "What do more members trade off?", claim, said, [figure])


CURVE_SIZES, CURVE_SETS, CURVE_STEPS = (1, 2, 3, 4, 5), 20, 1000
CURVE_PARTS = {"bias": "squared bias", "variance": "variance", "error": "squared error"}


def other_methods(material: Material) -> Claim | None:
    """How far members differ in MIMO and beside it: MIMO, Figure 4 (right)."""
    example = material.train[0][:2]
    ways: dict[str, Callable[[nn.Module], Ensemble]] = {
        "naive multihead": lambda model: multihead(model, MEMBERS, example=example, init="different"),
        "TreeNet": lambda model: treenet(
            model, MEMBERS, **facts_of(treenet).study_settings(model, None), init="different"
        ),
        "BatchEnsemble": lambda model: batch_ensemble(model, MEMBERS),
        "MIMO": lambda model: mimo(model, MEMBERS, example=example, init="different"),
        "independent networks": lambda model: deep(model, MEMBERS),
    }
    found = _swept(material, "members of other methods", lambda name: ways[name](_build(material)), list(ways))
    if found is None:
        return None
    styles = {name: number for number, name in enumerate(ways, 2)}
    panels = [
        Panel(strip_chart({name: found.values(name, figure) for name in ways}, styles, title))
        for figure, title in (("disagreement", "disagreement of members"), ("kl", "KL between members, nats"))
    ]
    shown = {"disagreement": "Disagreement", "kl": "KL", "accuracy": "Accuracy", "member_accuracy": "Of members"}
    rows = [[name, *(interval_text(found.interval(name, figure)) for figure in shown)] for name in ways]
    heads, *_, independent = ways
    gap, ahead = (found.difference("MIMO", name, "disagreement") for name in (heads, independent))
    answer = "Yes" if gap.low > 0 else "No" if gap.high < 0 else "Undecided"
    said = [
        f"{answer}: the disagreement of MIMO's members minus that of the heads is {interval_text(gap)}.",
        f"Minus that of independent networks: {interval_text(ahead)}.",
    ]
    caption = f"{MEMBERS} members; small marks are the {material.retrained} seeds, the large one is their mean."
    figure = Figure("methods", "How far members differ", caption, panels, "wide", [], ["Method", *shown.values()], rows)
    claim = (
        "The members of MIMO are as diverse as independent networks; those of the naive multihead and TreeNet "
        "hardly differ (Havasi et al., Figure 4, right)."
    )
    return section("methods", "Are the members of MIMO more diverse than heads?", claim, said, [figure])


# ---------------------------------------------------------------- helpers


def _build(material: Material) -> nn.Module:
    assert material.training is not None
    return material.training.build()


def _mimo(material: Material, size: int, shared: float = 0.0, times: int = 1) -> Ensemble:
    return mimo(_build(material), size, shared, times, example=material.train[0][:2], init="different")


def _swept(material: Material, what: str, make: Callable[[Any], Ensemble], settings: Sequence[Any]) -> Measured | None:
    """Members and ensemble for each setting, trained anew for each seed."""

    def measure(model: nn.Module, train: Any, test: Any, outside: Any, **options: Any) -> Measured:
        return sweep(make, settings, train, test, **options)

    return measure_anew(material, measure, what)


def _both(anchor: str, title: str, found: Measured, settings: Sequence[float], axis: str, material: Material) -> Figure:
    """Accuracy and log-likelihood of the ensemble and of its members."""
    panels = []
    for name, words in QUALITY.items():
        curves = {
            label: found.curve(kind + name, settings) for label, kind in (("ensemble", ""), ("members", "member_"))
        }
        panels.append(Panel(interval_chart(curves, list(map(float, settings)), axis, words, BOTH)))
    shown: Mapping[str, str] = {
        **QUALITY, **{f"member_{name}": f"{words} of members" for name, words in QUALITY.items()},
        "disagreement": "disagreement",
    }  # fmt: skip
    rows = [[f"{one:g}", *(interval_text(found.interval(one, name)) for name in shown)] for one in settings]
    caption = f"Means over {material.retrained} seeds; vertical lines are 95 % intervals."
    return Figure(anchor, title, caption, panels, "wide", legend(BOTH, BOTH), [axis, *shown.values()], rows)
