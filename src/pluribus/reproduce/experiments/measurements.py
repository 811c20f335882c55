"""Figures that are measured on networks of one seed: with which networks, data and settings at each scale.

What is measured, and how, stands in `landscape/studies` (`fort.py`, `members.py`); a part is one seed. For Fort et al.
runs are trained once for each network and seed, and every figure of the paper is measured on them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from ...data.catalogue import load
from ...data.corruptions import CORRUPTIONS
from ...data.dataset import Data, NormalisedSplit
from ...landscape.material import Material, RunTraining
from ...landscape.recorded_training import trajectories
from ...landscape.studies.members import MEASURES
from ...models.by_name import ModelSpec
from ...training.augmentation import Augment
from ...training.batching import mix_seeds
from .stored_parts import Given, InParts, Part, Stored

Rows = tuple[Tensor, Tensor]

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


def measure_part(part: Part, folder: Path | None, needed: Mapping[str, Stored]) -> Given:
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


def train_runs(given: Mapping[str, Any], own: Prepared) -> list[Any]:
    """Independent runs with all their checkpoints, by the recipe, or with a rate that is halved at each quarter."""
    how: dict[str, Any] = {"recipe": given["recipe"]} if "recipe" in given else {
        **{name: given[name] for name in ("epochs", "batch_size", "lr")}, "schedule": "quarters",
    }  # fmt: skip
    return list(trajectories(
        own.build(), own.train, own.test, runs=given["runs"], seed=mix_seeds(given["seed"], 7), keep=None, **how,
    ))  # fmt: skip


def prepare_material(given: Mapping[str, Any], own: Prepared, runs: Sequence[Any], folder: Path | None) -> Material:
    """Runs and data for the measures; published corrupted sets where the settings name one."""
    shifted = load(given["data"], folder=folder, shifted=given["shifted"]).shifted if "shifted" in given else {}
    training = RunTraining(
        own.build, given["epochs"], given["lr"], given["batch_size"], schedule=given.get("schedule", "constant"),
        recipe=given.get("recipe"),
    )  # fmt: skip
    chain = dict(given.get("chain", {}))
    if "augment" in chain:
        chain["augment"] = partial(_augment_normalised, own.data, chain["augment"])
    images = own.plain if len(own.data.shape) == 3 else None
    return Material(
        list(runs), own.train, own.validation, own.test, images=images, normalise=own.data.normalise,
        outside=own.outside, shifted=shifted, training=training, grid=given.get("grid", 5),
        samples=given.get("samples", 5), least=given.get("least"), steps=100, retrained=given.get("retrained", 2),
        rates=tuple(given.get("rates", ())),
        chain=chain, extra={name: given[name] for name in EXTRA if name in given},
        corruptions=tuple(given.get("corruptions", ())), severities=tuple(given.get("severities", ())),
        seed=given["seed"],
    )  # fmt: skip


EXTRA = ("repetition", "sizes", "l1", "masks", "gamma", "runs")


def _augment_normalised(data: Data, settings: Mapping[str, Any], x: Any, y: Any) -> Any:
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


def prepare_rows(given: Mapping[str, Any], folder: Path | None) -> Prepared:
    """What the settings name: data, outside, model, how many rows."""
    data = load(given["data"], folder=folder, outside=[given["outside"]], validation=0.1)
    train = NormalisedSplit(data.train.take(slice(given["rows"])), data)
    most = max(1, min(given["rows"], HELD // (4 * math.prod(data.shape))))
    plain, validation = data.test[:most], data.validation[:most]
    test, held_out = ((data.normalise(x), y) for x, y in (plain, validation))
    outside = data.normalise(next(iter(data.outside.values()))[:500][0])
    build = ModelSpec(given["model"], tuple(data.shape), len(data.classes)).build
    return Prepared(data, build, train, held_out, test, plain, outside)


def seed_parts(settings: Mapping[str, Any], start: str = "") -> list[Part]:
    """A part for each seed of the settings; `start` begins their names."""
    own = {key: value for key, value in settings.items() if key != "seeds"}
    return [Part(f"{start}seed-{seed}", {**own, "seed": seed}) for seed in range(settings["seeds"])]


def few(base: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """What every experiment needs of the settings of another, with changes."""
    kept = ("data", "outside", "model", "rows", "epochs", "batch_size", "seeds", "lr")
    return {**{key: base[key] for key in kept}, **changes}


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


def _retrained(scales: Mapping[str, Mapping[str, Any]], scale: str) -> list[Part]:
    """A part for each seed of each data set."""
    given = dict(scales[scale])
    sets = given.pop("sets", None)
    if sets is None:
        return seed_parts(given)
    return [part for name, own in sets.items() for part in seed_parts({**given, **own}, f"{name}-")]


def retraining(name: str, scales: Mapping[str, Mapping[str, Any]]) -> InParts:
    """An experiment that trains networks of its own."""
    return _in_parts(name, partial(_retrained, scales))


SOURCES_OF_CHANCE = retraining("fort-sources", {
    "smoke": few(TINY, measures=["randomness"], epochs=3, rates=[1e-3, 1e-2]),
    "laptop": few(LAPTOP, measures=["randomness"], epochs=8, rows=3000, rates=[4e-4, 3.2e-3]),
    "paper": few(PAPER, measures=["randomness"], retrained=5, recipe="fort/cifar10/medium_cnn",
                  rates=[1e-4, 4e-4, 1.6e-3, 6.4e-3]),
})  # fmt: skip

CHAINS = retraining("fort-chains", {
    "smoke": few(TINY, measures=["chain"], chain={"epochs": 2}),
    "laptop": few(LAPTOP, measures=["chain"], chain={"epochs": 6}),
    "paper": few(
        PAPER, measures=["chain"], model="resnet18", retrained=3, seeds=4,
        chain={"epochs": 50, "lr": 0.5, "weight_decay": 5e-4, "batch_size": 64, "exploration": 0.9,
               "augment": {"flip": True, "crop": 4}},
        sets={"cifar10": {}, "cifar100": {"data": "cifar100"}},
    ),
})  # fmt: skip

# ---------------------------------------------------------------- members of one network


def _members(name: str, measures: Sequence[str], smoke: Mapping[str, Any], laptop: Mapping[str, Any],
             paper: Mapping[str, Any]) -> InParts:  # fmt: skip
    """An experiment on members of one network, whose rate falls to zero where no recipe says otherwise."""
    common = {"measures": list(measures), "schedule": "cosine"}
    scales = {"smoke": few(TINY, **common, **smoke), "laptop": few(LAPTOP, **common, **laptop),
              "paper": few(PAPER, **common, **paper)}  # fmt: skip
    return retraining(name, scales)


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
