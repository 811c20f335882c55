"""Figures that are measured on networks of one seed, or computed on the papers' own data: settings, parts and checks.

What is measured, and how, stands in `landscape/studies` (`fort.py`, `members.py`, `own_data.py`); here is with which
networks, data and settings at each scale. A part is one seed. For Fort et al. runs are trained once for each network
and seed, and every figure of the paper is measured on them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from ..data.catalogue import load
from ..data.corruptions import CORRUPTIONS
from ..data.dataset import Data, NormalisedSplit
from ..landscape.laboratory.exploration import SECTIONS
from ..landscape.material import Material, RunTraining
from ..landscape.recorded_training import trajectories
from ..landscape.studies import findings, own_data
from ..landscape.studies.findings import judge_values
from ..landscape.studies.members import MEASURES
from ..models.by_name import ModelSpec
from ..report.claims import ClaimVerdict
from ..report.figure import Figure
from ..training.augmentation import Augment
from ..training.batching import mix_seeds
from .parts import TITLES, InParts, Part, Stored
from .parts import Given as Computed

Rows = tuple[Tensor, Tensor]
Given = Mapping[str, Any]  # settings

# Bytes of test rows that are kept in memory: all of CIFAR, 891 rows of ImageNet. Reading more of them would not help:
# the probabilities of several hundred networks are kept as well, 200 MB each for all of ImageNet.
HELD = 2**29
RUNS_ALONE = ("weights", "functions", "map", "plane", "tunnel", "stitched", "diversity", "size", "shift")

TINY: dict[str, Any] = {
    "data": "sklearn_digits", "outside": "noise", "model": "mlp", "rows": 300, "runs": 3, "epochs": 8, "lr": 3e-3,
    "batch_size": 32, "seeds": 2, "grid": 5, "samples": 3, "corruptions": ["gaussian_noise"], "severities": [1, 5],
}  # fmt: skip

LAPTOP: dict[str, Any] = {
    "data": "cifar10", "outside": "svhn", "model": "small_cnn", "rows": 5000, "runs": 3, "epochs": 20, "lr": 1.6e-3,
    "batch_size": 128, "seeds": 3, "grid": 13, "samples": 5, "severities": [1, 3, 5],
    "corruptions": ["gaussian_noise", "motion_blur", "contrast"],
}  # fmt: skip

PAPER: dict[str, Any] = {
    **LAPTOP, "model": "medium_cnn", "rows": 50_000, "runs": 10, "epochs": 40, "seeds": 5, "grid": 25, "samples": 10,
    "severities": [1, 2, 3, 4, 5], "corruptions": list(CORRUPTIONS), "shifted": "cifar10_c", "least": 0.65,
    "recipe": "fort/cifar10/medium_cnn",
}  # fmt: skip

SETTINGS = {"smoke": TINY, "laptop": LAPTOP, "paper": PAPER}

NETWORKS: dict[str, dict[str, Any]] = {  # of the paper's scale: what each changes, and what is measured on it
    "small_cnn": {"model": "small_cnn", "recipe": "fort/cifar10/small_cnn", "runs": 3,
                  "measures": ["weights", "functions", "map", "diversity"]},
    "medium_cnn": {"measures": list(RUNS_ALONE)},
    "resnet20": {"model": "resnet20", "recipe": "fort/cifar10/resnet20", "runs": 3,
                 "measures": ["weights", "functions", "diversity"]},
    "cifar100": {"data": "cifar100", "model": "resnet20", "recipe": "fort/cifar100/resnet20", "runs": 3,
                 "measures": ["diversity"]},
    "imagenet": {"data": "imagenet", "outside": "textures", "shifted": "imagenet_c", "model": "resnet50v2",
                 "rows": 1_281_167, "runs": 5, "seeds": 2, "least": None, "recipe": "fort/imagenet/resnet50v2",
                 "measures": ["diversity", "size", "shift"]},
}  # fmt: skip

EASIER: dict[str, dict[str, Any]] = {  # a problem that is easier than the first; the rest of the settings is the same
    "smoke": {"data": "digits", "outside": "letters", "measures": ["diversity"]},
    "laptop": {"data": "fashion_mnist", "outside": "notmnist", "measures": ["diversity"]},
}


def measure_part(part: Part, folder: Path | None, needed: Mapping[str, Stored]) -> Computed:
    """The numbers of one seed by name, and the arrays that pictures are drawn from, by "measure name"."""
    given = part.settings
    own = prepare_rows(given, folder)
    alone = [name for name in given["measures"] if name in RUNS_ALONE]
    material = prepare_material(given, own, train_runs(given, own) if alone else [], folder)
    values, columns = dict[str, float](), dict[str, np.ndarray]()
    for name in given["measures"]:
        found = MEASURES[name](material)
        if found is not None:
            values |= found.values
            columns |= {f"{name} {key}": array for key, array in found.arrays.items()}
    return {"values": values, "measures": given["measures"]}, columns


def train_runs(given: Given, own: Prepared) -> list[Any]:
    """Independent runs with all their checkpoints, by the recipe, or with a rate that is halved at each quarter."""
    how: dict[str, Any] = {"recipe": given["recipe"]} if "recipe" in given else {
        **{name: given[name] for name in ("epochs", "batch_size", "lr")}, "schedule": "quarters",
    }  # fmt: skip
    return list(trajectories(
        own.build(), own.train, own.test, runs=given["runs"], seed=mix_seeds(given["seed"], 7), keep=None, **how,
    ))  # fmt: skip


def prepare_material(given: Given, own: Prepared, runs: Sequence[Any], folder: Path | None) -> Material:
    """Runs and data for the measures; published corrupted sets where the settings name one."""
    shifted = load(given["data"], folder=folder, shifted=given["shifted"]).shifted if "shifted" in given else {}
    training = RunTraining(
        own.build, given["epochs"], given["lr"], given["batch_size"], schedule=given.get("schedule", "constant"),
        recipe=given.get("recipe"),
    )  # fmt: skip
    chosen = {"grid": 5, "retrained": 2, "corruptions": (), **{name: given[name] for name in SPENT if name in given}}
    if "augment" in (chain := dict(given.get("chain", {}))):
        chain["augment"] = partial(_augment_normalised, own.data, chain["augment"])
    return Material(
        list(runs), own.train, own.validation, own.test, images=own.plain if len(own.data.shape) == 3 else None,
        normalise=own.data.normalise, outside=own.outside, shifted=shifted, training=training, steps=100, chain=chain,
        extra={name: given[name] for name in EXTRA if name in given}, seed=given["seed"], **chosen,
    )  # fmt: skip


SPENT = ("grid", "samples", "least", "retrained", "rates", "corruptions", "severities")
EXTRA = ("repetition", "sizes", "l1", "masks", "gamma", "runs")


def _augment_normalised(data: Data, settings: Given, x: Any, y: Any) -> Any:
    """Rows that are normalised already, augmented as images and normalised again."""
    return Augment(data.mean, data.std, **settings)(x * data.std.to(x) + data.mean.to(x), y)


class Prepared(NamedTuple):
    """Data and a network for a part.

    Training rows are read a batch at a time; validation and test rows are normalised tensors, as many as HELD bytes
    hold; `plain` are the same test rows as images from 0 to 1; `build` draws a network.
    """

    data: Data
    build: Callable[[], Any]
    train: NormalisedSplit
    validation: Rows
    test: Rows
    plain: Rows
    outside: Tensor


def prepare_rows(given: Given, folder: Path | None) -> Prepared:
    """What the settings name: data, outside, model, how many rows."""
    data = load(given["data"], folder=folder, outside=[given["outside"]], validation=0.1)
    train = NormalisedSplit(data.train.take(slice(given["rows"])), data)
    most = max(1, min(given["rows"], HELD // (4 * math.prod(data.shape))))
    plain, validation = data.test[:most], data.validation[:most]
    test, held_out = ((data.normalise(x), y) for x, y in (plain, validation))
    outside = data.normalise(next(iter(data.outside.values()))[:500][0])
    build = ModelSpec(given["model"], tuple(data.shape), len(data.classes)).build
    return Prepared(data, build, train, held_out, test, plain, outside)


def seed_parts(settings: Given, start: str = "") -> list[Part]:
    """A part for each seed of the settings; `start` begins their names."""
    own = {key: value for key, value in settings.items() if key != "seeds"}
    return [Part(f"{start}seed-{seed}", {**own, "seed": seed}) for seed in range(settings["seeds"])]


# ---------------------------------------------------------------- the experiments

NAME = "fort-landscape"  # one folder: what one item has computed, the others read


def plan_networks(scale: str, *networks: str) -> list[Part]:
    """A part for each seed of each network at the paper's scale; at smaller ones of the same small network for all."""
    if scale != "paper":
        return seed_parts({**SETTINGS[scale], "measures": list(RUNS_ALONE)})
    return [part for name in networks for part in seed_parts({**PAPER, **NETWORKS[name]}, f"{name}-")]


def plan_harder(scale: str) -> list[Part]:
    """A harder problem and an easier one: CIFAR-100 and ImageNet against CIFAR-10 at the paper's scale."""
    if scale == "paper":
        return plan_networks(scale, "resnet20", "cifar100", "imagenet")
    return [*plan_networks(scale), *seed_parts({**SETTINGS[scale], **EASIER[scale]}, "easier-")]


def landscape(*networks: str) -> InParts:
    """The experiment on these networks."""
    return _in_parts(NAME, lambda scale: plan_networks(scale, *networks))


def _in_parts(name: str, plan: Callable[[str], list[Part]]) -> InParts:
    return InParts(name, plan, measure_part, lambda scale, folder: _check_data(plan(scale), folder))


def _check_data(parts: Sequence[Part], folder: Path | None) -> None:
    """Refuse data that is missing, with where to get it, before anything is trained."""
    names = ("data", "outside", "shifted")
    for data, outside, *shifted in dict.fromkeys(
        tuple(str(part.settings[name]) for name in names if name in part.settings) for part in parts
    ):
        load(data, folder=folder, outside=[outside], shifted=shifted, validation=0.1)


HARDER = _in_parts(NAME, plan_harder)


def _seeds_of_sets(scales: Mapping[str, Mapping[str, Any]], scale: str) -> list[Part]:
    """A part for each seed of each data set."""
    given = dict(scales[scale])
    sets = given.pop("sets", {"": {}})
    return [part for name, own in sets.items() for part in seed_parts({**given, **own}, f"{name}-" if name else "")]


def _retraining(
    name: str, measures: Sequence[str], smoke: Given, laptop: Given, paper: Given, **common: Any
) -> InParts:
    """An experiment that trains networks of its own, of the usual data, with changes at each scale."""
    bases = {"smoke": (TINY, smoke), "laptop": (LAPTOP, laptop), "paper": (PAPER, paper)}
    scales = {
        scale: {**{key: base[key] for key in USUAL}, "measures": list(measures), **common, **own}
        for scale, (base, own) in bases.items()
    }
    return _in_parts(name, partial(_seeds_of_sets, scales))


USUAL = ("data", "outside", "model", "rows", "epochs", "batch_size", "seeds", "lr")

SOURCES_OF_CHANCE = _retraining(
    "fort-sources", ["randomness"], {"epochs": 3, "rates": [1e-3, 1e-2]},
    {"epochs": 8, "rows": 3000, "rates": [4e-4, 3.2e-3]},
    {"retrained": 5, "recipe": "fort/cifar10/medium_cnn", "rates": [1e-4, 4e-4, 1.6e-3, 6.4e-3]},
)  # fmt: skip

CHAINS = _retraining(
    "fort-chains", ["chain"], {"chain": {"epochs": 2}}, {"chain": {"epochs": 6}},
    {"model": "resnet18", "retrained": 3, "seeds": 4,
     "chain": {"epochs": 50, "lr": 0.5, "weight_decay": 5e-4, "batch_size": 64, "exploration": 0.9,
               "augment": {"flip": True, "crop": 4}},
     "sets": {"cifar10": {}, "cifar100": {"data": "cifar100"}}},
)  # fmt: skip

# Members of one network: their rate falls to zero where no recipe says otherwise.

_members = partial(_retraining, schedule="cosine")

SUBNETWORKS = _members(  # MIMO, Figures 3 and 4
    "mimo-members", ("subnetworks", "courses", "units"),
    {"grid": 5, "repetition": 1, "epochs": 4}, {"grid": 9, "repetition": 4, "epochs": 15},
    {"model": "small_cnn", "grid": 25, "repetition": 4, "recipe": "fort/cifar10/small_cnn"},
)  # fmt: skip

SPARSE = _members(  # MIMO, Figure 9
    "mimo-sparsity-path", ("sparse",),
    {"sizes": [1, 3], "l1": [0.0, 1e-3, 1e-2], "epochs": 3, "repetition": 1},
    {"sizes": [1, 3], "l1": [0.0, 1e-4, 5e-4, 2e-3], "epochs": 10, "repetition": 4},
    {"model": "wide_resnet28_10", "sizes": [1, 2, 3, 4], "repetition": 4, "recipe": "mimo/cifar/wide_resnet28_10",
     "l1": [0.0, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3]},
)  # fmt: skip

EXTREMES = _members(  # Masksembles, Figure 5
    "masks-extremes", ("dropout",), {"masks": [8], "epochs": 3}, {"masks": [16], "epochs": 15},
    {"model": "wide_resnet16_4", "masks": [64], "recipe": "masksembles/cifar10/wide_resnet16_4"},
)  # fmt: skip

SELECTION = _members(  # Packed-Ensembles, appendix K
    "packed-selection", ("selection",), {"gamma": 1, "epochs": 4}, {"gamma": 1, "epochs": 15},
    {"model": "resnet18", "gamma": 2, "recipe": "packed/cifar10/resnet18"},
)  # fmt: skip

PACKED_SOURCES = _members(  # Packed-Ensembles, Table 7
    "packed-sources", ("sources",), {"runs": 4, "epochs": 3, "gamma": 1}, {"runs": 4, "epochs": 8, "gamma": 1},
    {"data": "cifar100", "runs": 4, "gamma": 2,
     "sets": {name: {"model": name, "lr": lr, "recipe": f"packed/cifar100/{name}"}
              for name, lr in (("resnet18", 0.05), ("resnet50", 0.1))}},
)  # fmt: skip


def _compute(
    compute: Callable[..., Computed], part: Part, folder: Path | None, needed: Mapping[str, Stored]
) -> Computed:
    return compute(**part.settings)


def of_one_part(
    check: Callable[..., ClaimVerdict],
) -> Callable[[Mapping[str, Stored], Mapping[str, Any]], ClaimVerdict]:
    """The check of an experiment with one part, by its values and arrays."""

    def judge(found: Mapping[str, Stored], published: Mapping[str, Any]) -> ClaimVerdict:
        part = next(iter(found.values()), Stored({}))
        return check(part.figures, part.columns)

    return judge


def _experiment(
    name: str, part: str, compute: Callable[..., Computed], scales: Mapping[str, Mapping[str, Any]]
) -> InParts:
    return InParts(name, lambda scale: [Part(part, scales[scale])], partial(_compute, compute))


SPARSITY = _experiment("packed-sparsity", "curves", own_data.sparsity_bounds, {
    scale: {"deviations": [0.2, 0.5, 1.0], "shares": [round(0.1 * k, 1) for k in range(1, 11)], "draws": draws}
    for scale, draws in (("smoke", 5_000), ("laptop", 50_000), ("paper", 200_000))
})  # fmt: skip

TRANSITION = _experiment("masks-transition", "grid", own_data.measure_sinusoids, {
    "smoke": {"hidden": 20, "points": 9, "seeds": 2, "epochs": 1, "lr": 0.01},
    "laptop": {"hidden": 100, "points": 41, "seeds": 10, "epochs": 60, "lr": 0.01},
    "paper": {"hidden": 100, "points": 41, "seeds": 20, "epochs": 60, "lr": 0.01},
})  # fmt: skip

BIAS = _experiment("mimo-bias", "sizes", own_data.measure_bias, {
    "smoke": {"sizes": 3, "repeats": 4, "steps": 30},
    "laptop": {"sizes": 5, "repeats": 40, "steps": 1000},
    "paper": {"sizes": 5, "repeats": 100, "steps": 1000},
})  # fmt: skip


Found = Mapping[str, Stored]

ASKED = {name: one for own in findings.ASKED.values() for name, one in own.items()} | {
    "harder": (
        "on a harder problem independent solutions stand out more from the best subspace",
        "share of the attainable diversity, independent - best subspace, harder - easier problem", 0.0, False,
    ),
}  # fmt: skip


def check_measured(
    names: tuple[str, ...],
    shown: tuple[str, ...],
    printed: Mapping[str, str] | None = None,
    derive: Callable[[Found], Found] = lambda found: found,
) -> Callable[[Found, Mapping[str, Any]], ClaimVerdict]:
    """The check of an item: every number on its side of the bar, for every network; pictures are of the first seed."""

    def check(found: Found, published: Mapping[str, Any]) -> ClaimVerdict:
        asked, values = {}, {}
        for network, parts in by_network(derive(found)).items():
            where = f", {TITLES.get(network, network)}" if network else ""
            for name in names:
                claim, *rest = ASKED[name]
                asked[f"{name}{where}"] = (f"{claim}{where}", *rest)
                own = [part.figures.get("values", {}) for part in parts.values()]
                values[f"{name}{where}"] = [one[name] for one in own if name in one]
        return judge_values(asked, values, _pictures(found, shown), printed)  # type: ignore[arg-type]

    return check


def by_network(found: Found) -> dict[str, dict[str, Stored]]:
    """Parts by what stands before "seed" in their names."""
    groups: dict[str, dict[str, Stored]] = {}
    for name, part in found.items():
        groups.setdefault(name.rpartition("seed")[0].rstrip("-"), {})[name] = part
    return groups


AVERAGED = ("sparse", "dropout", "selection", "sources")  # whose pictures are of means over seeds


def _arrays(parts: Sequence[Stored], start: str, averaged: bool) -> dict[str, np.ndarray]:
    """What the first seed measured, or the mean over seeds."""
    found = {key.removeprefix(start): own for key, own in parts[0].columns.items() if key.startswith(start)}
    if averaged:
        found = {key: np.mean([part.columns[start + key] for part in parts], 0) if own.dtype.kind == "f" else own
                 for key, own in found.items()}  # fmt: skip
    return found


def _pictures(found: Found, shown: tuple[str, ...]) -> list[Figure]:
    """What was measured on each network, drawn as on the laboratory's page."""
    figures = []
    for network, parts in by_network(found).items():
        for measure in shown:
            arrays = _arrays(list(parts.values()), f"{measure} ", measure in AVERAGED)
            for figure in SECTIONS[measure].draw(arrays) if arrays else []:
                where = f", {TITLES.get(network, network)}" if network else ""
                name = f"{figure.name}{network and '-'}{network}"
                figures.append(dataclasses.replace(figure, name=name, title=f"{figure.title}{where}"))
    return figures
