"""A study as a grid of runs, checked before anything is trained, and the choice of one setting of each method."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .._common.names import say_unknown
from ..data.dataset import Data
from ..results.quantities import IMAGE_STATISTICS
from ..results.store import Result, has_classes
from ..training.recipes import recipe
from ..uncertainty.metrics import METRICS
from .baselines import check_run, entry, settings_of
from .fingerprints import fingerprints
from .run import load_data
from .settings import Conditions, Run

TRAINING_AXES = ("epochs", "patience", "batch_size", "lr", "weight_decay", "l1", "l2", "clip")

AXES = ("size", "width", "dropout", *TRAINING_AXES)  # of any method


@dataclass(frozen=True)
class Study(Conditions):
    """What is compared: every method, with every setting of the sweep, on every data set, with every seed.

    Args:
        data: names or "kind:path" (see `data.load`)
        model: a name (see `models.by_name.build_network`); None: a small network that fits the data
        methods: names of methods, and of baselines that they state
        settings: arguments of a method, by its name; those of the recipe give way to them, and they to the sweep
        sweep: values by setting: an argument of a method, or one of AXES; a method that does not take a setting
            runs without it
        choose: a metric on the validation part by which one setting of each method is chosen; None: all are shown
    """

    data: Sequence[str] = ("digits",)
    model: str | None = None
    methods: Sequence[str] = ("single", "deep", "packed")
    seeds: Sequence[int] = (0,)
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    sweep: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    choose: str | None = None

    def runs(self) -> list[Run]:
        """Every run, in the order in which they start: all methods with the first seed, then with the next."""
        _check(self)
        runs = (
            run
            for seed, data, method in itertools.product(self.seeds, self.data, self.methods)
            for run in self._sweep_runs(data, method, seed)
        )
        return list({run.name: run for run in runs}.values())  # what is named twice runs once

    def _sweep_runs(self, data: str, method: str, seed: int) -> Iterator[Run]:
        taken = [axis for axis in self.sweep if _takes(method, axis)]
        common = {one.name: getattr(self, one.name) for one in dataclasses.fields(Conditions)}
        for values in itertools.product(*(self.sweep[axis] for axis in taken)):
            chosen = dict(zip(taken, values, strict=True))
            label = " ".join([method, *(f"{axis}={value}" for axis, value in chosen.items())])
            settings = {key: value for key, value in self.settings.get(method, {}).items() if key not in chosen}
            settings |= {axis: value for axis, value in chosen.items() if axis not in AXES}
            training = {axis: value for axis, value in chosen.items() if axis in TRAINING_AXES}
            conditions = {axis: value for axis, value in chosen.items() if axis in common}
            conditions["training"] = {**self.training, **training}
            yield Run(data, self.model or "auto", method, label, settings, seed, **{**common, **conditions})

    def _own(self) -> dict[str, Any]:
        """What every run of the study's folder has in common; runs of more seeds and methods may join them."""
        plain = {key: value for key, value in self.to_json().items() if key not in ("seeds", "methods", "choose")}
        return {**plain, "files": fingerprints(self.data, self.source, self.model, self.weights)}

    def to_json(self) -> dict[str, Any]:
        """The study as plain values, without `settings` where there are none: older folders know nothing of them."""
        return {key: value for key, value in self.plain().items() if key != "settings" or value}

    @property
    def name(self) -> str:
        """A name for the study's folder: the same for the same study of the same files."""
        text = json.dumps({**self._own(), "seeds": list(self.seeds), "methods": list(self.methods)}, sort_keys=True)
        first = self.data[0].partition(":")[0] if self.data else "study"
        return f"{first}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def check_study(study: Study, runs: Sequence[Run]) -> None:
    """Load the data and try the ensemble of every kind of run; what cannot work is an error before any starts."""
    for run in {run.kind: run for run in runs}.values():
        data = load_data(run)
        check_run(run, data)
        if study.choose is not None:
            _check_choice(study.choose, data)


def _check_choice(metric: str, data: Data) -> None:
    kind = "classification" if has_classes(data.task) else "regression"
    dense = data.task == "segmentation" and metric in IMAGE_STATISTICS
    if METRICS[metric].task not in ("any", kind) and not dense:
        raise ValueError(
            f"compare: --choose {metric} is a metric for {METRICS[metric].task}, but {data.name} is {data.task}."
        )
    if not len(data.validation):
        raise ValueError(f"compare: --choose needs validation data, but {data.name} has none.")


def choose_settings(results: Sequence[Result], metric: str) -> list[Result]:
    """Of each method on each data set, the runs of the setting that is best on the validation part.

    The mean over seeds is compared; the test part has no say in it.
    """
    if metric not in METRICS:
        raise ValueError(f"choose: the metric {say_unknown(metric, METRICS)}")
    sign = -1 if METRICS[metric].better == "higher" else 1
    groups: dict[tuple[str, str], dict[str, list[Result]]] = {}
    for result in results:
        record = result.record
        groups.setdefault((record["data"], record["method"]), {}).setdefault(record["label"], []).append(result)

    def score(runs: list[Result]) -> float:
        values = [(run.record.get("validation") or {}).get(metric) for run in runs]
        if None in values:
            raise ValueError(
                f"choose: {metric} was not measured on validation data for {runs[0].record['label']!r}. "
                "Give validation data, or leave choose out."
            )
        return sign * float(np.mean(np.array(values, float)))

    return [run for labels in groups.values() for run in min(labels.values(), key=score)]


def _takes(method: str, axis: str) -> bool:
    """Whether a method's runs differ by this setting."""
    return axis in settings_of(method) or (axis in AXES and axis != "size")


def _check(study: Study) -> None:
    for what, values in (("data", study.data), ("methods", study.methods), ("seeds", study.seeds)):
        if not values:
            raise ValueError(f"compare: no {what} given. Give at least one.")
    for method in study.methods:
        entry(method)
    recipe(study.recipe).changed(**study.training)
    for method, given in study.settings.items():
        if unknown := sorted(set(given) - settings_of(method)):
            raise ValueError(f"compare: {method} does not take {', '.join(unknown)}.")
    for axis in study.sweep:
        if axis not in AXES and not any(axis in settings_of(method) for method in study.methods):
            known = sorted(set(AXES).union(*(settings_of(method) for method in study.methods)))
            raise ValueError(
                f"compare: none of {', '.join(study.methods)} takes {axis!r}. Choose from {', '.join(known)}."
            )
    if study.choose is not None and study.choose not in METRICS:
        raise ValueError(f"compare: the metric {say_unknown(study.choose, METRICS)}")
