"""Figures of Masksembles, MIMO and Packed-Ensembles that compare settings of methods: what is varied, what is claimed.

A `Sweep` is written once. `pluribus reproduce` runs it as a study, with the paper's networks and data, and judges each
figure by its `Said`; the laboratory's page and `measure_sweep` run it on networks and data of one's own, and judge by
the same. Settings have the labels of a study: "masksembles scale=2.0 capacity=1.0".
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ...core.ensemble import Ensemble
from ...methods import METHODS
from ...methods.method_info import call_method, info_of, takes
from ...report.claims import ClaimVerdict
from ...results.judgements import all_of
from ...surgery.thinning.rescaling import thin
from ..analyses.settings import Measured, Try, judge_settings, member_figures, train_each, weight_share
from ..material import Material, first_rows
from .comparisons import (
    NOTHING,
    Expectation,
    at_most,
    better,
    detects,
    expect,
    improves,
    more,
    near,
    over_settings,
    sensitivity,
    within,
)  # fmt: skip

TRAINING = ("l1", "l2")  # values of a sweep that are options of training
USUAL = ("accuracy", "nll", "ece", "auroc")


@dataclass(frozen=True)
class Said:
    """What a figure says of a sweep: a sentence, its parts, and the metrics that are shown.

    Args:
        combine: the parts' judgements in one; by default all must hold
    """

    says: str
    parts: tuple[Expectation, ...]
    metrics: tuple[str, ...] = USUAL
    combine: Callable[[Sequence[str]], str] = all_of

    @property
    def check(self) -> Callable[[Mapping[str, Any], Mapping[str, Any]], ClaimVerdict]:
        """The verdict on what was measured, by the name of each study."""
        return expect(*self.parts, metrics=self.metrics, combine=self.combine)


@dataclass(frozen=True)
class Sweep:
    """Methods with settings, and what figures of a paper say of them.

    Args:
        title: the question on the laboratory's page
        source: where the figures are
        values: by the name of a setting; a method that does not take it runs without
        claims: by the item of `pluribus reproduce`
        brief: fewer values for the page and for `--scale smoke`
        settings: of each method
        size: members, where nothing is said
        shifted: whether corrupted images are asked for
        shown: further metrics on the page
    """

    title: str
    source: str
    methods: tuple[str, ...]
    values: Mapping[str, Sequence[Any]]
    claims: Mapping[str, Said]
    brief: Mapping[str, Sequence[Any]] | None = None
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    size: int = 4
    shifted: bool = False
    shown: tuple[str, ...] = ()

    @property
    def short(self) -> Mapping[str, Sequence[Any]]:
        """The values of the page."""
        return self.values if self.brief is None else self.brief

    def labels(self) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Every setting on the page: its label, its method and its values."""
        for method in self.methods:
            taken = [axis for axis in self.short if takes(METHODS[method], axis) or axis in (*TRAINING, "width")]
            for chosen in itertools.product(*(self.short[axis] for axis in taken)):
                own = dict(zip(taken, chosen, strict=True))
                yield " ".join([method, *(f"{axis}={value}" for axis, value in own.items())]), method, own

    def verdict(self, measured: Measured) -> ClaimVerdict:
        """Every part of every figure, on networks of one's own."""
        metrics = dict.fromkeys(metric for one in self.claims.values() for metric in (*one.metrics, *self.shown))
        parts = {part.text: part for one in self.claims.values() for part in one.parts}.values()
        told = [part for part in parts if part.told(measured)[0] is not NOTHING]  # of settings that the page has
        return expect(*told, metrics=[name for name in metrics if name in measured.figures])({"": measured}, {})


def measure_sweep(material: Material, sweep: Sweep) -> Measured | None:
    """Every setting of a sweep with the network and the data of the runs, trained again for several seeds.

    Metrics are those of `measure_settings` and of `member_figures`, and the "share" of weights that are not zero. None
    where it is not known how to train, or fewer than two networks may be trained again.
    """
    training = material.training
    if training is None or material.retrained < 2:
        return None
    epochs = max(training.epochs // 2, 1)
    shifts: dict[int, list[Any]] = {}
    if sweep.shifted:
        for _, severity, rows in material.shifts():
            shifts.setdefault(severity, []).append(rows)
        if not shifts:
            raise ValueError("corruptions need images, and there are none.")
    how = {**{key: getattr(training, key) for key in ("lr", "batch_size", "optimizer", "schedule")}, "epochs": epochs}
    material.say(f"{sweep.title} {material.retrained} seeds of {epochs} epochs")
    tries = []
    for label, method, own in sweep.labels():
        penalty = {axis: value for axis, value in own.items() if axis in TRAINING}
        options = {**how, **penalty, **({"weight_decay": 0.0} if penalty else {})}
        chosen = {**sweep.settings.get(method, {}), **{key: own[key] for key in own if key not in TRAINING}}
        tries.append(Try(label, partial(_make, material, method, sweep.size, chosen), own, options))
    judge = judge_settings(
        "landscape", material.test, material.outside, shifts,
        lambda made, examples: {**member_figures(made, examples), "share": weight_share(made)},
    )  # fmt: skip
    return train_each("landscape", tries, material.train, judge, material.retrained, material.say)


def _make(material: Material, name: str, size: int, settings: Mapping[str, Any]) -> Ensemble:
    assert material.training is not None
    example, chosen, method = first_rows(material.train, 2)[0], dict(settings), METHODS[name]
    model = material.training.build()
    if (width := chosen.pop("width", 1.0)) != 1:
        model = thin(model, width, example)
    chosen = {**info_of(method).study_settings(model, None), **chosen}
    return call_method(method, model, chosen.pop("size", size), chosen, example)


# ---------------------------------------------------------------- Masksembles

BASELINES = ("single", "deep", "masksembles")
HALF = 0.6  # "almost half the size": 2.3 of 4
STAR = "masksembles scale=1.55 capacity=1.0"


def _at(scale: float) -> str:
    return f"masksembles scale={scale} capacity=1.0"


# ---------------------------------------------------------------- Packed-Ensembles

GAMMAS = [(alpha, gamma) for alpha in (1, 2, 3, 4) for gamma in (2, 4) if (alpha, gamma) != (1, 4)]


def _stable(metric: str, pairs: Sequence[tuple[int, int]] = tuple(GAMMAS)) -> list[Expectation]:
    """Each gamma beside gamma 1, at every alpha: less than one point apart."""
    return [within(f"packed alpha={alpha} gamma={gamma}", f"packed alpha={alpha} gamma=1", metric, 0.01)
            for alpha, gamma in pairs]  # fmt: skip


def criteria(label: str) -> list[Expectation]:
    """The maximum logit detects OOD data better than every other criterion: Packed-Ensembles, Table 6."""
    return [detects(label, "max_logit", other, figure) for figure in ("aupr", "auroc")
            for other in ("msp", "entropy", "mutual_information", "variation_ratio")]  # fmt: skip


# ---------------------------------------------------------------- MIMO


_PENALTY = "The more subnetworks, the more performance suffers from {} regularisation."
REPEATED = {"mimo": {"batch_repetition": 4}}
OF_MEMBERS = ("member_accuracy", "member_log_likelihood", "disagreement")

SWEEPS: dict[str, Sweep] = {
    "masks": Sweep(
        "What does the overlap of masks change?", "Durasov et al., Figures 9, 13 and 14", BASELINES,
        {"scale": [1.0, 2.0, 3.0, 4.0, 5.0], "capacity": [1.0]},
        {
            "figure9": Said(
                "With the capacity fixed, ECE, accuracy and OOD detection improve gradually with S.",
                tuple(better(_at(4.0), _at(1.0), metric) for metric in ("ece", "accuracy", "auroc")),
            ),
            "figure13": Said(
                "Diversity rises with S; that of Deep Ensembles is largest.",
                (more(_at(5.0), _at(2.0), "disagreement_by_error"), more("deep", _at(5.0), "disagreement_by_error")),
                ("disagreement_by_error", "accuracy"),
            ),
            "figure14": Said(
                "Members that are less correlated are better calibrated.",
                (improves("masksembles", "scale", "ece", capacity=1.0),), ("ece", "accuracy"),
            ),
        },
        {"scale": [1.0, 2.0, 4.0, 5.0], "capacity": [1.0]}, shown=("parameters",),
    ),
    "thin": Sweep(
        "Are thinner members better calibrated under a corruption?", "Durasov et al., Figure 8", BASELINES,
        {"scale": [1.0, 1.1, 1.4, 2.0, 3.0]},
        {
            "figure8": Said(
                "With the size of the network fixed, calibration under corruptions improves as masks overlap less.",
                (improves("masksembles", "scale", "cece"),), ("cece", "ece", "accuracy"),
            ),
        },
        {"scale": [1.0, 3.0]}, shifted=True,
        shown=("cacc", *(f"{metric} at {level}" for metric in ("ece", "accuracy") for level in (1, 3, 5))),
    ),
    "span": Sweep(
        "What range of behaviours do overlap and capacity give?", "Durasov et al., Figure 7",
        ("single", "mc_dropout", "masksembles", "deep"),
        {"rate": [0.05, 0.1, 0.2, 0.3], "scale": [1.1, 1.55, 2.0, 3.0, 5.0], "capacity": [0.3, 0.5, 1.0, 2.0]},
        {
            "figure7": Said(
                "Some Masksembles of about half the size of an ensemble are as accurate and as well calibrated.",
                (*(near(STAR, "deep", metric, "single") for metric in ("accuracy", "ece")),
                 at_most(STAR, "deep", "parameters", HALF)), ("accuracy", "ece", "parameters"),
            ),
        },
        {"rate": [0.1], "scale": [1.55, 5.0], "capacity": [0.3, 1.0]}, shown=("nll", "disagreement_by_error"),
    ),
    "packing": Sweep(
        "How wide must packed members be?", "Laurent et al., Figure 7, Tables 5 and 6", ("single", "deep", "packed"),
        {"alpha": [1, 2, 3, 4], "gamma": [1, 2, 4]},
        {
            "table5": Said(
                "Accuracy increases with alpha up to a plateau, and results are stable in gamma.",
                (improves("packed", "alpha", "accuracy", gamma=1), *_stable("accuracy")), ("accuracy", "ece", "aupr"),
            ),
            "figure7": Said(
                "Results are stable in gamma.", (*_stable("accuracy"), *_stable("aupr")), ("accuracy", "aupr")
            ),
            "table6": Said(
                "On CIFAR-100 the maximum logit detects OOD data better than softmax probability, entropy, mutual "
                "information and variation ratio.", tuple(criteria("packed alpha=2 gamma=1")), ("auroc", "aupr"),
            ),
        },
        {"alpha": [1, 2, 4], "gamma": [1]}, shown=("nll", "disagreement_by_error", "parameters"),
    ),
    "widths": Sweep(
        "What does more width buy one network?", "Laurent et al., Figure 8", ("single",),
        {"width": [0.25, 0.5, 1, 2]},
        {
            "figure8": Said(
                "Accuracy increases with the width, while AUPR stays about the same.",
                (improves("single", "width", "accuracy"), within("single width=2", "single width=0.5", "aupr", 0.02)),
                ("accuracy", "aupr"),
            ),
        },
        shown=("nll", "ece", "parameters"),
    ),
    "methods": Sweep(
        "Are the members of MIMO more diverse than heads?", "Havasi et al., Figure 4, right",
        ("multihead", "treenet", "batch_ensemble", "mimo", "deep"), {},
        {
            "figure4": Said(
                "MIMO's members are more diverse than those of TreeNet, BatchEnsemble and multihead, and as diverse as "
                "independent networks.",
                (*(more("mimo", other, "disagreement") for other in ("treenet", "batch_ensemble", "multihead")),
                 near("mimo", "deep", "disagreement", "multihead")), ("disagreement", "accuracy"),
            ),
        },
        settings=REPEATED, size=3, shown=("kl", "member_accuracy"),
    ),
    "members": Sweep(
        "What do more members do to one network?", "Havasi et al., Figure 5", ("mimo",), {"size": [1, 2, 3, 4]},
        {
            "figure5": Said(
                "The ensemble is best with two to four subnetworks: better than with one.",
                tuple(better(f"mimo size={size}", "mimo size=1", metric) for metric in ("accuracy", "nll")
                      for size in (2, 3)), ("accuracy", "nll"),
            ),
        },
        settings=REPEATED, shown=OF_MEMBERS,
    ),
    "repetition": Sweep(
        "Does it help if members read the same inputs?", "Havasi et al., Figure 6 a", ("mimo",),
        {"input_repetition": [0.0, 0.3, 0.6, 1.0]},
        {
            "figure6": Said(
                "With limited capacity, some input repetition is better than none or full repetition.",
                tuple(better("mimo input_repetition=0.6", f"mimo input_repetition={other}", "accuracy")
                      for other in (0.0, 1.0)), ("accuracy", "nll"),
            ),
        },
        settings=REPEATED, size=2, shown=OF_MEMBERS,
    ),
    "batches": Sweep(
        "Does it help to repeat rows in a batch?", "Havasi et al., Figure 6 b", ("mimo",),
        {"batch_repetition": [1, 2, 4], "size": [2, 3, 4]},
        {
            "figure6b": Said(
                "More repetitions of a batch typically give a slight boost.",
                (over_settings("mimo", "batch_repetition", "accuracy"),), ("accuracy", "nll"),
            ),
        },
        {"batch_repetition": [1, 4], "size": [2]}, shown=OF_MEMBERS,
    ),
    **{
        axis: Sweep(
            f"Who suffers more from {axis.upper()} regularisation?", f"Havasi et al., Figure {number}", ("mimo",),
            {"size": [1, 2, 3], axis: values},
            {
                f"figure{number}": Said(
                    _PENALTY.format(axis.upper()),
                    tuple(sensitivity("mimo", axis, metric) for metric in ("accuracy", "nll")), ("accuracy", "nll"),
                ),
            },
            {"size": [1, 3], axis: brief}, settings=REPEATED, shown=("share",),
        )
        for axis, number, values, brief in (
            ("l1", 7, [0.0, 1e-7, 1e-6, 1e-5, 1e-4], [0.0, 1e-4, 1e-3]),
            ("l2", 8, [0.0, 1e-5, 1e-4, 1e-3, 1e-2], [0.0, 1e-3, 1e-2]),
        )
    },
}  # fmt: skip
