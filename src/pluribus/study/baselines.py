"""What can be compared, every method and the papers' baselines made of one, and the untrained ensemble of a run."""

from __future__ import annotations

import inspect
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .._common.names import say_unknown
from ..core.ensemble import Ensemble
from ..data.dataset import Data
from ..data.tables import feature_groups
from ..methods import METHODS
from ..methods.method_info import REFUSALS, Baseline, call_method, info_of, keeps_weights, takes
from ..models.by_name import ModelSpec, published_network, usual
from ..surgery.calling import evaluation_mode
from ..surgery.copying import duplicate_mapped
from ..training.recipes import Recipe, recipe
from .settings import MEMBERS, PUBLISHED, Run
from .trained_weights import read_weights

DENSE_BATCH = 8  # images with masks that a step sees, where nobody says so: each has thousands of targets

LOOKED_AT = 256  # rows on which a converted network must keep its answers


class Entry(NamedTuple):
    """The method that is trained, and how."""

    method: str
    baseline: Baseline


def entries() -> dict[str, Entry]:
    """Everything that can be compared by its name: the methods, then the baselines that they state."""
    methods = {name: Entry(name, Baseline("")) for name in METHODS}
    others = {
        name: Entry(method, baseline)
        for method, function in METHODS.items()
        for name, baseline in info_of(function).baselines.items()
    }
    return {**methods, **others}


def entry(name: str, asked_by: str = "compare") -> Entry:
    """The method or baseline of this name."""
    if name in METHODS:
        return Entry(name, Baseline(""))
    known = entries()
    if name not in known:
        raise ValueError(f"{asked_by}: the method {say_unknown(name, known)}")
    return known[name]


def settings_of(name: str) -> set[str]:
    """The settings that a method or baseline takes."""
    takes = inspect.signature(METHODS[entry(name).method]).parameters
    return set(takes) - {"model", "example", "generator", "widths"}


def recipe_of(run: Run, data: Data) -> Recipe:
    """The recipe that the run's method gets; where nobody says how long to train, the size of the data does."""
    plan = recipe(run.recipe).changed(**run.training)
    if run.recipe == "default" and "batch_size" not in run.training and data.task == "segmentation":
        plan = plan.changed(batch_size=DENSE_BATCH)
    if run.recipe == "default" and "epochs" not in run.training:
        plan = plan.changed(**{**usual_length(len(data.train), plan.batch_size), **run.training})
    return plan.of(entry(run.method).method)


def usual_length(rows: int, batch_size: int) -> dict[str, int]:
    """How long a network is trained on this many rows, the same for every method.

    About 2,000 steps, at least 20 epochs and at most 200; fewer where nothing improves on validation data for a fifth
    of them (10 epochs at least).

    >>> usual_length(630, 128), usual_length(45_000, 128)
    ({'epochs': 200, 'patience': 40}, {'epochs': 20, 'patience': 10})
    """
    epochs = min(max(math.ceil(2000 / math.ceil(rows / batch_size)), 20), 200)
    return {"epochs": epochs, "patience": max(10, epochs // 5)}


def model_spec(run: Run, data: Data) -> ModelSpec:
    """The network that the methods of the study have in common; "auto" is a small one that fits the data."""
    name = usual(data.shape, data.task == "segmentation") if run.model == "auto" else run.model
    return ModelSpec(name, tuple(data.shape), count_outputs(data), run.width, run.dropout)


def own_model_spec(run: Run, data: Data) -> ModelSpec:
    """The network that the run's ensemble is made of: a baseline may have another width."""
    return model_spec(run, data).widen(entry(run.method).baseline.width)


def count_outputs(data: Data) -> int:
    """How many numbers a network gives for a row or pixel: the classes or labels, or a mean and a variance a target."""
    each = {"classification": len(data.classes), "segmentation": len(data.classes), "multilabel": len(data.targets)}
    return each.get(data.task, 2 * max(len(data.targets), 1))


def build_ensemble(run: Run, data: Data) -> Ensemble:
    """The run's ensemble, untrained, drawn from torch's own generator."""
    return _make(run, data, start_network(run, data), _example(data))


def check_run(run: Run, data: Data) -> Ensemble:
    """The ensemble of a run as it was tried; one that cannot be made, or whose outputs do not fit the data, is refused.

    It is tried on the meta device, where nothing is allocated; with values only where the network looks at them, or
    to refuse it in the right words.
    """
    with torch.random.fork_rng(devices=[]):
        model, x = start_network(run, data), _example(data)
        try:
            hollow = duplicate_mapped(model, lambda tensor: tensor.detach().to("meta"))
            ensemble = _make(run, data, hollow, x.to("meta"))
            outputs = ensemble.eval()(x.to("meta"))
        except REFUSALS:
            _check_takes_rows(run.model, model, x)
            ensemble = _make(run, data, model, x)
            outputs = ensemble.eval()(x)
    _check_outputs(run, data, outputs)
    return ensemble


def _check_takes_rows(name: str, model: nn.Module, x: Tensor) -> None:
    """Refuse a network that does not take rows of the data."""
    try:
        with torch.no_grad(), evaluation_mode(model):
            model(x)
    except Exception as error:  # whatever the code of a network raises
        said = f"{type(error).__name__}: {error}".splitlines()[0].rstrip(".")
        raise ValueError(
            f"model: {name} cannot take rows of this data, whose shape is {tuple(x.shape[1:])} "
            f"({said}). Choose another --model, or other --data."
        ) from error


def start_network(run: Run, data: Data) -> nn.Module:
    """The network that the run's ensemble is made of, drawn anew or with trained weights."""
    spec = own_model_spec(run, data)
    if not run.weights:
        return spec.build()
    method = METHODS[entry(run.method).method]
    if not keeps_weights(method):
        raise ValueError(
            f"compare: {run.method} draws new weights, so it cannot start from trained ones. Leave it out, or "
            f"choose from {', '.join(name for name, one in METHODS.items() if keeps_weights(one))}."
        )
    return published_network(spec) if run.weights == PUBLISHED else read_weights("--weights", run.weights, spec.build())


def _example(data: Data) -> Tensor:
    return data.normalise(data.train[:2][0])


def _make(run: Run, data: Data, model: nn.Module, example: Tensor) -> Ensemble:
    name, baseline = entry(run.method)
    said = {} if run.size is None else {"size": run.size}
    method, settings = METHODS[name], {**recipe(run.recipe).settings(name), **said, **run.settings}
    size = settings.pop("size", MEMBERS) if baseline.size is None else baseline.size
    for key, value in info_of(method).study_settings(model, run.dropout).items():
        if settings.get(key) is None:
            settings[key] = value
    if takes(method, "chunks") and run.model in ("auto", "mlp") and _is_table(data):
        settings.setdefault("chunks", [*map(len, feature_groups(data.encoding))])  # type: ignore[arg-type]
        if any("bins" in column for column in data.encoding["columns"]):  # type: ignore[index]
            settings.setdefault("init", "normal")  # as the paper draws after embeddings of numbers
    if run.weights and takes(method, "trained"):
        settings["trained"] = data.normalise(data.train[:LOOKED_AT][0])
    ensemble = call_method(method, model, size, settings, example)
    ensemble.task = TASKS[data.task]
    if data.task == "segmentation":
        ensemble.class_dim = 1
    return ensemble


def _is_table(data: Data) -> bool:
    return data.kind == "table" and bool(data.encoding) and data.encoding["columns"][0]["kind"] != "text"  # type: ignore[index]


TASKS = {
    "classification": "classification",
    "segmentation": "classification",
    "multilabel": "binary",
    "regression": "gaussian",
}  # of ensembles, by the task of the data


def _check_outputs(run: Run, data: Data, outputs: Any) -> None:
    wanted = (count_outputs(data), *(data.shape[1:] if data.task == "segmentation" else ()))
    if not isinstance(outputs, Tensor) or tuple(outputs.shape[2:]) != wanted:
        shape = tuple(outputs.shape[2:]) if isinstance(outputs, Tensor) else type(outputs).__name__
        what = f"{len(data.classes)} classes" if data.classes else "a mean and a variance of each target"
        what = f"{len(data.targets)} labels" if data.task == "multilabel" else what
        number = f"{wanted[0]} numbers for each row" if len(wanted) == 1 else f"the shape {wanted} for each image"
        raise ValueError(f"model: {run.model} must give {number} ({what}), but it gives {shape}.")
