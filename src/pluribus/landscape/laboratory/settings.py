"""Settings of Masksembles, MIMO and Packed-Ensembles on one's own network and data, trained again for several seeds.

A question is a `Swept`: which analysis measures it, what the paper claims as contrasts between settings, and which
metrics are shown. Sentences, intervals, charts and the table follow from that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from ...core.ensemble import Ensemble
from ...data.catalogue import load
from ...methods import batch_ensemble, deep, mimo, multihead, treenet
from ...methods.facts import facts_of
from ...models.small import mlp
from ...report.charts.intervals import intervals_figure
from ...report.charts.landscape import surface_chart
from ...report.claims import Claim, section
from ...report.figure import Curve, Figure, Panel, curve_panel, finite_range, legend, room_for_ticks
from ...report.svg import Axis, Chart
from ...results.judgements import FAILS, HOLDS, OPEN
from ...surgery.thinning.rescaling import thin
from ..analyses.bias_variance import mimo_on_a_curve
from ..analyses.masks import dropout_transition, mask_grid, mask_overlap, mask_transition
from ..analyses.packing import network_widths, ood_criteria, packing
from ..analyses.setting_sweeps import regularization_path, sweep
from ..analyses.trained_settings import Measured
from ..material import Material
from ..studies.findings import Asked, judge_values

SCALES, MASKS, CAPACITIES, ALPHAS = (1.1, 2.0, 3.0), (2, 8, 32), (0.5, 1.0, 2.0), (1, 2, 4)
WIDTHS, SIZES, SHARES, REPETITIONS = (0.25, 0.5, 1.0, 2.0), (1, 2, 3, 4), (0.0, 0.5, 1.0), (1, 4)
PENALTIES = {"l1": (0.0, 1e-4, 1e-3), "l2": (0.0, 1e-3, 1e-2)}
MEMBERS = 4  # of masks and of packed networks
INSIDE = 3  # members of one MIMO network

LINES = {"deep": "independent networks", "single": "one network", "mc_dropout": "MC-Dropout"}

USUAL = {"accuracy": "accuracy", "nll": "NLL", "ece": "ECE", "auroc msp": "AUROC, outside",
         "disagreement_by_error": "disagreement / error"}  # fmt: skip

MEMBER = {"accuracy": "accuracy", "log_likelihood": "log-likelihood", "member_accuracy": "accuracy of members",
          "member_log_likelihood": "log-likelihood of members", "disagreement": "disagreement"}  # fmt: skip


@dataclass(frozen=True)
class Contrast:
    """A claim about a sum of settings with factors, such as one minus another, seed by seed: above 0, or below."""

    claim: str
    factors: Mapping[Any, float]
    metric: str
    below: bool = False


ANSWERS = {HOLDS: "yes", FAILS: "no", OPEN: "inconclusive"}


@dataclass(frozen=True)
class Swept:
    """A question about settings of a method.

    Args:
        measure: what is measured of the material; None where it cannot be
        axis: what the settings differ in
        shown: metrics with their titles
        further: more pictures
    """

    name: str
    title: str
    says: str
    measure: Callable[[Material], Measured | None]
    contrasts: Sequence[Contrast]
    axis: str
    caption: str
    shown: Mapping[str, str] = field(default_factory=lambda: USUAL)
    further: Callable[[Measured], list[Figure]] = lambda found: []

    def __call__(self, material: Material) -> Claim | None:
        """The question with what was found."""
        found = self.measure(material)
        if found is None:
            return None
        asked: dict[str, Asked] = {}
        values = {}
        for one in self.contrasts:
            if one.metric in found.figures:
                told = [np.array(found.values(setting, one.metric)) * by for setting, by in one.factors.items()]
                asked[one.claim] = (one.claim, f"{one.metric}, {_difference(one.factors)}", 0.0, one.below)
                values[one.claim] = np.sum(told, 0).tolist()
        verdict = judge_values(asked, values)
        pictures = [self._figure(found), *self.further(found)]
        number = f"{verdict.rows[0][1]}: {verdict.rows[0][4]}" if verdict.rows else ""
        return section(self.name, self.title, self.says, verdict.found, pictures, ANSWERS[verdict.judgement], number)

    def _figure(self, found: Measured) -> Figure:
        known = {name: words for name, words in self.shown.items() if name in found.figures}
        names = [setting_name(setting) for setting in found.settings]
        panels = [Panel(interval_chart(found, metric, words, self.axis)) for metric, words in known.items()]
        sizes = {"parameters": "parameters"} if "parameters" in found.figures else {}
        rows = [
            [name, *(interval_text(found.interval(setting, metric)) for metric in {**known, **sizes})]
            for name, setting in zip(names, found.settings, strict=True)
        ]
        seeds = len(found.values(found.settings[0], next(iter(known))))
        caption = f"{self.caption} Means over {seeds} seeds; vertical lines are 95 % intervals."
        header = ["Setting", *known.values(), *sizes]
        return Figure(self.name, self.axis.capitalize(), caption, panels, "wide", [], header, rows)


def setting_name(setting: Any) -> str:
    """What a setting is called on the page."""
    return LINES.get(setting, setting) if isinstance(setting, str) else f"{setting:g}"


def _difference(factors: Mapping[Any, float]) -> str:
    parts = [f"{'+' if by > 0 else '-'} {setting_name(setting)}" for setting, by in factors.items()]
    return " ".join(parts).removeprefix("+ ")


def interval_text(found: Any) -> str:
    """The mean and the ends of its interval: "0.02 [0.01, 0.03]"."""
    return f"{found.value:.4g} [{found.low:.4g}, {found.high:.4g}]"


def interval_chart(found: Measured, metric: str, title: str, axis: str) -> str:
    """The mean of every setting with its interval, in their order."""
    rows = found.curve(metric)
    y, at = Axis(*finite_range(rows.flatten().tolist())), np.arange(len(rows), dtype=float)
    chart = Chart(Axis(0, len(rows) - 1, room=0.08), y, margin=(room_for_ticks(y), 14, 14, 44))
    names = [setting_name(setting) for setting in found.settings]
    short = [(x, name if len(rows) <= 4 else str(i + 1)) for i, (x, name) in enumerate(zip(at, names, strict=True))]
    chart.axes(axis if len(rows) <= 4 else f"{axis}, as numbered in the table", title, x_labels=short)
    chart.line(zip(at, rows[:, 0], strict=True), 2)
    for x, name, (value, low, high) in zip(at, names, rows, strict=True):
        chart.line([(x, low), (x, high)], 2, "whisker")
        chart.mark(x, value, 2, f"{name}: {value:.4g} [{low:.4g}, {high:.4g}]")
    told = ", ".join(f"{name} {value:.4g}" for name, value in zip(names, rows[:, 0], strict=True))
    return chart.svg(f"{title} against {axis}: {told}")


# ---------------------------------------------------------------- what is trained


def _analysis(analysis: Any, what: str, **settings: Any) -> Callable[[Material], Measured | None]:
    """What an analysis finds with the network and data of the runs, for as many seeds as are trained again."""

    def measure(material: Material) -> Measured | None:
        training = material.training
        if training is None or material.retrained < 2:
            return None
        epochs = max(training.epochs // 2, 1)
        material.say(f"{what}: {material.retrained} seeds of {epochs} epochs")
        how = {key: getattr(training, key) for key in ("lr", "batch_size", "optimizer", "schedule")}
        given = {key: value(material) if callable(value) else value for key, value in settings.items()}
        found: Measured = analysis(
            training.build(), material.train, material.test, outside=material.outside, seeds=material.retrained,
            progress=material.say, epochs=epochs, **how, **given,
        )  # fmt: skip
        return found

    return measure


def _inside(what: str, make: Callable[[Material, Any], Ensemble], settings: Sequence[Any]) -> Any:
    """Members and ensemble for each setting."""

    def analysis(model: nn.Module, train: Any, test: Any, outside: Any, material: Material, **how: Any) -> Measured:
        return sweep(lambda setting: make(material, setting), settings, train, test, **how)

    return _analysis(analysis, what, material=lambda material: material)


def _mimo(material: Material, size: int, shared: float = 0.0, times: int = 1) -> Ensemble:
    assert material.training is not None
    return mimo(material.training.build(), size, shared, times, example=material.train[0][:2], init="different")


def _method(material: Material, name: str) -> Ensemble:
    assert material.training is not None
    model, example = material.training.build(), material.train[0][:2]
    ways: dict[str, Callable[[], Ensemble]] = {
        "naive multihead": lambda: multihead(model, INSIDE, example=example, init="different"),
        "TreeNet": lambda: treenet(model, INSIDE, **facts_of(treenet).study_settings(model, None), init="different"),
        "BatchEnsemble": lambda: batch_ensemble(model, INSIDE),
        "MIMO": lambda: _mimo(material, INSIDE),
        "independent networks": lambda: deep(model, INSIDE),
    }
    return ways[name]()


METHODS = ("naive multihead", "TreeNet", "BatchEnsemble", "MIMO", "independent networks")


def _paths(model: nn.Module, train: Any, test: Any, outside: Any, material: Material, **how: Any) -> Measured:
    """Both penalties, for one member and for several."""
    rows = []
    for size in (1, INSIDE):
        make = partial(_mimo, material, size)
        found = regularization_path(make, train, test, PENALTIES["l1"], PENALTIES["l2"], **how)
        rows += [{**row, "setting": _penalty(size, *row["setting"])} for row in found.rows]
    return Measured(rows)


def _penalty(size: int, kind: str, strength: float) -> str:
    return f"M = {size}, {kind.upper()} {strength:g}"


def _suffers(kind: str) -> Contrast:
    least, most = PENALTIES[kind][0], PENALTIES[kind][-1]
    factors = {_penalty(size, kind, strength): by * sign for size, by in ((INSIDE, 1.0), (1, -1.0))
               for strength, sign in ((most, 1.0), (least, -1.0))}  # fmt: skip
    return Contrast(
        f"along {kind.upper()} three members lose more log-likelihood than one", factors, "log_likelihood", True
    )


def _widths(model: nn.Module, train: Any, test: Any, **options: Any) -> Measured:
    return network_widths(lambda width: thin(model, width, train[0][:2]), train, test, widths=WIDTHS, **options)


def _shifts(material: Material) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {}
    for _, severity, rows in material.shifts():
        found.setdefault(severity, []).append(rows)
    if not found:
        raise ValueError("corruptions need images, and there are none.")
    return found


def _sinusoids(material: Material) -> Measured | None:
    """The paper's own data and network: two sinusoids with x from -5 to 5, a perceptron of 100 and 100 units."""
    if material.retrained < 2:
        return None
    material.say(f"two sinusoids: {material.retrained} seeds of {SINUSOID_EPOCHS} epochs")
    data, grid = load("sinusoids"), torch.cartesian_prod(ACROSS, UP)
    return mask_transition(
        mlp(inputs=2, num_classes=2, hidden=(100, 100)), data.train[:], data.test[:], scales=(*SCALES, 10.0),
        size=MEMBERS, outside=grid[grid[:, 0].abs() > 6], seeds=material.retrained, epochs=SINUSOID_EPOCHS, lr=0.01,
        batch_size=64,
        further=lambda ensemble, examples: {"map": ensemble.predict(grid).total.reshape(len(ACROSS), -1).numpy()},
    )  # fmt: skip


SINUSOID_EPOCHS = 30

ACROSS, UP = torch.linspace(-10, 10, 41), torch.linspace(-4, 4, 17)

# ---------------------------------------------------------------- further pictures


def _entropy_maps(found: Measured) -> list[Figure]:
    """Entropy over the plane of the sinusoids for the first seed (Masksembles, Figure 4)."""
    first, (x, y) = {row["setting"]: row["map"] for row in reversed(found.rows)}, load("sinusoids").train[:]
    marks = {f"class {label}": x[y == label][:60].numpy() for label in (0, 1)}
    styles = {name: number for number, name in enumerate(marks, 2)}
    panels = [
        Panel(surface_chart(ACROSS.numpy(), UP.numpy(), first[setting], "entropy", ends=(0, float(np.log(2))),
                            contours=False, rows=marks, styles=styles, titles=("x", "y")), setting_name(setting))
        for setting in found.settings
    ]  # fmt: skip
    caption = "Entropy of each prediction, in nats, for the first seed; the marks are some training rows."
    return [Figure("entropy", "Entropy in the plane", caption, panels, legend=list(zip((2, 3), marks, strict=True)))]


def _reliability_and_overlap(found: Measured) -> list[Figure]:
    """Accuracy against confidence for every setting (Figure 14), and the overlap of drawn masks (Figures 3 and 12)."""
    curves: dict[str, Curve] = {}
    for setting in found.settings:
        parts = np.nan_to_num([row["reliability"] for row in found.rows if row["setting"] == setting])  # seeds, 3, bins
        total = parts[:, 2].sum(0)
        kept = total >= max(1, 0.005 * total.sum())
        confidence, accuracy = ((parts[:, i] * parts[:, 2]).sum(0)[kept] / total[kept] for i in (0, 1))
        curves[setting_name(setting)] = confidence, accuracy
    caption = "Accuracy against confidence, all seeds together, for bins with at least half a percent of the rows."
    scales, sizes = (1.0, 1.25, 1.5, 2.0, 3.0, 4.0), (2, 4, 8)
    drawn = mask_overlap(sizes, scales, ones=64, draws=5)
    overlap: dict[str, Curve] = {"1 / (2 S - 1)": (np.array(scales), drawn["iou_paper"])}
    overlap |= {f"N = {size}": (np.array(scales), drawn["iou"][i, :, 0]) for i, size in enumerate(sizes)}
    return [
        _curves("calibration", "Calibration", caption, curves, ("confidence", "accuracy"), Axis(0, 1), True),
        _curves("overlap", "Overlap of masks", "Drawn masks with 64 ones, and the closed form.", overlap,
                ("S", "IoU of two masks"), Axis(1, scales[-1])),
    ]  # fmt: skip


def _curves(
    name: str,
    title: str,
    caption: str,
    curves: dict[str, Curve],
    axes: tuple[str, str],
    x: Axis,
    diagonal: bool = False,
) -> Figure:
    styles = {label: number for number, label in enumerate(curves, 2)}
    panel = curve_panel(curves, styles, axes, (x, Axis(0, 1)), str, diagonal)
    return Figure(name, title, caption, [panel], legend=legend(curves, styles))


def _criteria(found: Measured) -> list[Figure]:
    """How well each criterion detects outside rows (Packed-Ensembles, Table 6)."""
    if "auroc msp" not in found.figures:
        return []
    told = ood_criteria(found, "auroc")
    header = ["Setting", *(name.replace("_", " ") for name in next(iter(told.values())))]
    rows = [[setting_name(setting), *(interval_text(one) for one in own.values())] for setting, own in told.items()]
    caption = "How well each criterion detects out-of-distribution (OOD) rows: AUROC with its interval (Table 6)."
    return [Figure("criteria", "Criteria for OOD data", caption, header=header, rows=rows)]


def bias_of_members(material: Material) -> Claim | None:
    """Bias, variance and error of MIMO on the paper's curve, as members become more: MIMO, Figure 2."""
    if material.retrained < 2:
        return None
    material.say(f"bias and variance on a curve: {CURVE_SETS} training sets for each of {len(CURVE_SIZES)} sizes")
    found = mimo_on_a_curve(CURVE_SIZES, CURVE_SETS, CURVE_STEPS, material.say)
    first, last, parts = CURVE_SIZES[0], CURVE_SIZES[-1], ("bias", "variance", "error")
    falls, rises = (found.difference(name, last, first) for name in ("variance", "bias"))
    wrong = falls.low > 0 or rises.high < 0
    said = [
        f"{'Holds' if falls.high < 0 < rises.low else 'Does not hold' if wrong else 'Inconclusive'} here: from M = "
        f"{first} to {last} the variance changes by {interval_text(falls)} and the squared bias by "
        f"{interval_text(rises)}.",
        f"The error is lowest at M = {found.sizes[int(found.error.argmin())]}.",
    ]
    groups = {name: {f"M = {size}": found.interval(name, size) for size in CURVE_SIZES} for name in parts}
    caption = (
        f"Over {CURVE_SETS} training sets, with 95 % intervals. The data are the paper's, not those of the runs: 64 "
        "rows of a noisy curve, a perceptron of 32 and 128 units. The noise of the test rows is part of the bias."
    )
    says = "As M grows, variance falls and bias rises, and the best M is larger than 1 (Havasi et al., Figure 2)."
    figure = intervals_figure("bias", "Bias and variance", caption, groups)
    return section("bias", "What do more members trade off?", says, said, [figure])


CURVE_SIZES, CURVE_SETS, CURVE_STEPS = (1, 2, 3, 4, 5), 20, 1000

# ---------------------------------------------------------------- the questions


def _minus(claim: str, first: Any, second: Any, metric: str, below: bool = False) -> Contrast:
    return Contrast(claim, {first: 1.0, second: -1.0}, metric, below)


PACKED = [f"alpha {alpha:g}, gamma 1, M {MEMBERS}" for alpha in ALPHAS]

SWEPT = [
    Swept(
        "masks", "What does the overlap of masks change?",
        "As masks overlap less, Masksembles go from the behaviour of one network to that of independent ones: more "
        "diverse, better calibrated (Durasov et al., Figures 9, 13 and 14).",
        _analysis(mask_transition, "masks that overlap less and less", scales=SCALES, size=MEMBERS),
        [_minus("less overlap makes members more diverse", "S 3", "S 1.1", "disagreement_by_error"),
         _minus("less overlap calibrates better", "S 3", "S 1.1", "ece", True),
         _minus("the least overlap is better than one network", "S 3", "single", "nll", True)],
        "overlap", f"{MEMBERS} members; every mask keeps the network's widths, and layers grow.",
        further=_reliability_and_overlap,
    ),
    Swept(
        "dropout", "Do many masks become dropout?",
        "With more and more masks, Masksembles approach MC-Dropout (Durasov et al., Figure 5).",
        _analysis(dropout_transition, "more and more masks", sizes=MASKS, scale=2.0),
        [_minus("many masks are worse than few, towards MC-Dropout", "N 32", "N 2", "nll")],
        "number of masks", f"Scale 2, the network's widths; MC-Dropout has the rate 1/2, and {MASKS[0]} networks are "
        "independent.",
    ),
    Swept(
        "sinusoids", "Does uncertainty beyond the data grow as masks overlap less?",
        "With much overlap Masksembles behave almost like one network, and with less overlap increasingly like an "
        "ensemble: the region of high entropy beyond the data grows (Durasov et al., Figure 4).", _sinusoids,
        [_minus("entropy beyond the data grows", "S 10", "single", "outside entropy"),
         _minus("it grows as masks overlap less", "S 10", "S 1.1", "outside entropy")],
        "overlap", "Two noisy sinusoids, |x| above 6 is beyond the data.",
        {"accuracy": "accuracy", "outside entropy": "entropy beyond the data",
         "outside mutual_information": "mutual information there"}, _entropy_maps,
    ),
    Swept(
        "span", "What range of behaviours do overlap and capacity give?",
        "Varying overlap and capacity, Masksembles span the behaviours from one network through MC-Dropout to "
        "independent networks, and come as close to the last as the budget allows (Durasov et al., Figure 7).",
        _analysis(mask_grid, "masks of several capacities", scales=SCALES[1:], capacities=CAPACITIES, size=MEMBERS),
        [_minus("more capacity is better", "S 3, M 2", "S 3, M 0.5", "nll", True),
         _minus("less overlap is better", "S 3, M 1", "S 2, M 1", "nll", True)],
        "overlap and capacity", f"{MEMBERS} members; capacities are shares of the network's widths that a mask keeps.",
    ),
    Swept(
        "thin", "Are thinner members better calibrated under a corruption?",
        "In a network that keeps its widths, less overlap improves calibration under corruptions towards that of "
        "independent networks (Durasov et al., Figure 8).",
        _analysis(mask_transition, "masks in a network that keeps its widths", scales=SCALES, size=MEMBERS,
                  capacity=None, shifts=_shifts),
        [_minus("less overlap calibrates better than one network", "S 3", "single", f"ece at {level}", True)
         for level in (5,)],
        "overlap", "The network keeps its widths, so that members get thinner as S grows.",
        {"ece": "ECE", "accuracy": "accuracy", **{f"{metric} at {level}": f"{words}, severity {level}"
         for metric, words in (("ece", "ECE"), ("accuracy", "accuracy")) for level in (1, 3, 5)}},
    ),
    Swept(
        "packing", "How wide must packed members be?",
        "Packed-Ensembles with alpha = 2 match independent networks; a larger alpha helps little once members are "
        "wide enough (Laurent et al., Figures 6 and 7, Table 5).",
        _analysis(packing, "packed networks", alphas=ALPHAS, sizes=(MEMBERS,)),
        [_minus("packed members with alpha 2 are better than one network", PACKED[1], "single", "nll", True),
         _minus("wider members are better", PACKED[-1], PACKED[0], "nll", True)],
        "alpha", f"{MEMBERS} members, gamma 1.", further=_criteria,
    ),
    Swept(
        "widths", "What does more width buy one network?",
        "Accuracy increases with the width of a network, but not by much, while AUPR is nearly constant: the width "
        "can be split between members (Laurent et al., Figure 8).", _analysis(_widths, "one network at several widths"),
        [_minus("accuracy increases with the width", "width 2", "width 0.25", "accuracy")],
        "width", "One network with its hidden widths multiplied by a factor.",
        {"accuracy": "accuracy", "aupr msp": "AUPR, outside", "nll": "NLL", "ece": "ECE"},
    ),
    Swept(
        "members", "What do more members do to one network?",
        "As M grows, the subnetworks slowly get worse, because they share one network; the ensemble is best at a "
        "small M (Havasi et al., Figure 5).", _inside("more and more members", _mimo, SIZES),
        [_minus("members get worse", SIZES[-1], SIZES[0], "member_accuracy", True),
         _minus("a small M is better than one network", 2, 1, "log_likelihood")],
        "members", "MIMO.", MEMBER,
    ),
    Swept(
        "repetition", "Does it help if members read the same inputs?",
        "Members that read the same input for part of the batch share features and use the network better "
        "(Havasi et al., Figure 6 a).", _inside("shared inputs", lambda m, rho: _mimo(m, 2, rho), SHARES),
        [_minus("sharing half of the inputs helps", SHARES[1], SHARES[0], "log_likelihood")],
        "input repetition", "MIMO with two members.", MEMBER,
    ),
    Swept(
        "batches", "Does it help to repeat rows in a batch?",
        "Repeating rows in a batch helps a little (Havasi et al., Figure 6 b).",
        _inside("repeated rows", lambda m, times: _mimo(m, 2, 0.0, times), REPETITIONS),
        [_minus("repeated rows help", REPETITIONS[-1], REPETITIONS[0], "accuracy")],
        "batch repetition", "MIMO with two members.", MEMBER,
    ),
    Swept(
        "penalties", "Who suffers more from a penalty on the weights?",
        "MIMO uses more of the network's capacity, so it is more sensitive to L1, L2 and sparsity, increasingly so "
        "with more members (Havasi et al., Figures 7 to 9).",
        _analysis(_paths, "penalties", material=lambda material: material), [_suffers("l1"), _suffers("l2")],
        "penalty", "One member and three.",
        {"accuracy": "accuracy", "log_likelihood": "log-likelihood", "share": "share of weights above 1e-4"},
    ),
    Swept(
        "methods", "Are the members of MIMO more diverse than heads?",
        "The members of MIMO are as diverse as independent networks; those of the naive multihead and TreeNet "
        "hardly differ (Havasi et al., Figure 4, right).", _inside("members of other methods", _method, METHODS),
        [_minus("members of MIMO are more diverse than heads", "MIMO", "naive multihead", "disagreement")],
        "method", f"{INSIDE} members.",
        {"disagreement": "disagreement of members", "kl": "KL between members, nats", "accuracy": "accuracy",
         "member_accuracy": "accuracy of members"},
    ),
]  # fmt: skip
