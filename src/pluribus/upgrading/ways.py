"""Every way from a trained network to an ensemble that keeps its weights: `ways`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from .._common.optional import require
from ..core.ensemble import Ensemble
from ..deploy.feature_distance import KINDS
from ..landscape.checkpoints import Trajectory
from ..landscape.sampling import random_subspace, swag, weight_average
from ..methods import METHODS, multihead, single
from ..methods.method_info import call_method, info_of, takes
from ..methods.warm_start import SHARES, start_near
from ..surgery.copying import duplicate
from ..training.batching import loader
from .outcome import NETWORK

FARTHEST = 0.1  # of the length of the weight vector, where samples around the network begin


@dataclass(frozen=True)
class Given:
    """What a way starts from."""

    model: nn.Module  # the trained network
    size: int
    x: Any  # a batch of inputs like those that it was trained on
    train: Any  # its training data, for statistics of batch normalisation
    seed: int
    task: str = "classification"

    @property
    def generator(self) -> torch.Generator:
        """A new one for each draw, so that no way depends on those before it."""
        return torch.Generator().manual_seed(self.seed)


@dataclass(frozen=True)
class Way:
    """One way to an ensemble.

    Args:
        at_once: the ensemble without any training
        trains: whether that ensemble is then fine-tuned
        rate: its learning rate, relative to that of the network itself
        of_run: the ensemble from the checkpoints of the network's own fine-tuning
        shown: what tables call it, where that is not its name
        distance: the network itself, its uncertainty a `feature_distance` of this kind
    """

    at_once: Callable[[Given], Ensemble] | None = None
    trains: bool = False
    rate: float = 1.0
    of_run: Callable[[Trajectory, Given], Ensemble] | None = None
    shown: str = ""
    distance: str = ""


def ways() -> dict[str, Way]:
    """The ways by name: methods that keep weights, then what needs no training, samples and averages of training."""
    methods = {
        name: Way(partial(_convert, name), trains=True, rate=info_of(method).tuning_rate)
        for name, method in METHODS.items()
        if takes(method, "trained") or info_of(method).for_trained
    }
    return {
        **methods,
        **{kind: Way(distance=kind, shown=f"{NETWORK} + {kind}") for kind in KINDS},
        "laplace": Way(_laplace),
        random_subspace.__name__: Way(_sample),
        "fine_tuned": Way(of_run=lambda run, given: single(run.solution), shown=NETWORK),
        weight_average.__name__: Way(of_run=lambda run, given: weight_average(run, data=given.train)),
        swag.__name__: Way(of_run=_swag),
    }


def _convert(name: str, given: Given) -> Ensemble:
    """The method's ensemble, started near the network."""
    method = METHODS[name]
    wanted: dict[str, Any] = {"trained": given.x, "generator": given.generator}
    settings = {key: value for key, value in wanted.items() if takes(method, key)}
    settings |= info_of(method).study_settings(given.model, None)
    return call_method(method, duplicate(given.model), given.size, settings, given.x)


def _laplace(given: Given) -> Ensemble:
    """Last layers from the Laplace approximation of their posterior (Daxberger et al., NeurIPS 2021)."""
    if given.task != "classification":
        raise ValueError("it is for one class of several for each row")
    package = require("laplace", "last-layer Laplace", "laplace")
    ensemble = multihead(duplicate(given.model), given.size, example=given.x, generator=given.generator)
    (head,) = {name.rpartition(".")[0] for name in ensemble.own}
    found = package.Laplace(
        duplicate(given.model), "classification", subset_of_weights="last_layer", hessian_structure="kron",
        last_layer_name=head,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of predictions, which are not asked for
        found.fit(loader(given.train, LAPLACE_BATCH))
        found.optimize_prior_precision(method="marglik")
    layer = given.model.get_submodule(head)
    drawn = found.sample(given.size, generator=given.generator).split([p.numel() for p in layer.parameters()], 1)
    with torch.no_grad():
        for (name, _), part in zip(layer.named_parameters(), drawn, strict=True):
            stacked = ensemble.module.get_parameter(f"{head}.{name}")
            stacked.copy_(part.view_as(stacked))
    return ensemble


LAPLACE_BATCH = 256


def _sample(given: Given) -> Ensemble:
    """Networks around the given one, as far as they keep its answers."""
    length = torch.cat([p.detach().flatten() for p in given.model.parameters()]).norm().item()
    distances = [share * FARTHEST * length for share in SHARES]

    def make(distance: float) -> Ensemble:
        return random_subspace(given.model, given.size, distance, data=given.x, seed=given.seed)

    return start_near(random_subspace.__name__, given.model, given.x, distances, make)


def _swag(run: Trajectory, given: Given) -> Ensemble:
    return swag(run, given.size, rank=max(min(20, len(run)), 2), last=len(run), data=given.train, seed=given.seed)
