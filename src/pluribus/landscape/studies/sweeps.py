"""Figures of Masksembles, MIMO and Packed-Ensembles that compare settings of methods: what is varied, what is claimed.

A `Sweep` is written once, in `sweeps.toml`. `pluribus reproduce` runs it as a study, with the paper's networks and
data, and judges each figure by its `Said`; the laboratory's page and `measure_sweep` run it on networks and data of
one's own, and judge by the same. Settings have the labels of a study: "masksembles scale=2.0 capacity=1.0".
"""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import resources
from typing import Any

from ...core.ensemble import Ensemble
from ...methods import METHODS
from ...methods.method_info import call_method, info_of, takes
from ...report.claims import ClaimVerdict
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
    """What a figure says of a sweep: a sentence, its parts, all of which must hold, and the metrics that are shown."""

    says: str
    parts: tuple[Expectation, ...]
    metrics: Sequence[str] = USUAL

    @property
    def check(self) -> Callable[[Mapping[str, Any], Mapping[str, Any]], ClaimVerdict]:
        """The verdict on what was measured, by the name of each study."""
        return expect(*self.parts, metrics=self.metrics)


@dataclass(frozen=True)
class Sweep:
    """Methods with settings, and what figures of a paper say of them; the fields are those of `sweeps.toml`."""

    title: str
    source: str
    methods: Sequence[str]
    claims: Mapping[str, Said]
    values: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    brief: Mapping[str, Sequence[Any]] | None = None
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    size: int = 4
    shifted: bool = False
    shown: Sequence[str] = ()

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


# ---------------------------------------------------------------- the table

HALF = 0.6  # of an ensemble's size, "almost half": 2.3 of 4


def stable(metric: str) -> list[Expectation]:
    """Each gamma beside gamma 1, at every alpha: less than one point apart."""
    settings = [(alpha, gamma) for alpha in (1, 2, 3, 4) for gamma in (2, 4) if (alpha, gamma) != (1, 4)]
    return [within(f"packed alpha={a} gamma={g}", f"packed alpha={a} gamma=1", metric, 0.01) for a, g in settings]


def criteria(label: str) -> list[Expectation]:
    """The maximum logit detects OOD data better than every other criterion: Packed-Ensembles, Table 6."""
    return [detects(label, "max_logit", other, figure) for figure in ("aupr", "auroc")
            for other in ("msp", "entropy", "mutual_information", "variation_ratio")]  # fmt: skip


PARTS: dict[str, Callable[..., Any]] = {
    one.__name__: one
    for one in (better, more, within, near, at_most, improves, over_settings, sensitivity, stable, criteria)
}


def _read_sweep(given: dict[str, Any]) -> Sweep:
    claims = {}
    for item, one in given.pop("claims").items():
        parts: list[Expectation] = []
        for name, *arguments in one.pop("parts"):
            fixed = arguments.pop() if isinstance(arguments[-1], dict) else {}
            made = PARTS[name](*arguments, **fixed)
            parts += made if isinstance(made, list) else [made]
        claims[item] = Said(parts=tuple(parts), **one)
    return Sweep(claims=claims, **given)


SWEEPS: dict[str, Sweep] = {
    name: _read_sweep(given)
    for name, given in tomllib.loads(
        resources.files(__package__).joinpath("sweeps.toml").read_text(encoding="utf-8")
    ).items()
}
