"""Members of one network: their basins, what sparsity costs them, masks as dropout, and which epoch is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...core.ensemble import Ensemble
from ...landscape.analyses.setting_sweeps import member_figures, weight_share
from ...landscape.analyses.trained_settings import train_from_seeds
from ...landscape.paths import along, line
from ...landscape.planes import surface
from ...landscape.subnetworks import subnetwork_plane, subnetworks
from ...methods import deep, masksembles, mc_dropout, mimo, multihead, packed
from ...training.batching import mix_seeds
from ...uncertainty.evaluation import evaluate
from .fort_landscape import LAPTOP, PAPER, TINY
from .seeded_experiment import Prepared, experiment_by_seed, few, fit_options, prepare_rows
from .stored_parts import Given


def _train(name: str, make: Any, own: Prepared, given: Mapping[str, Any], **options: Any) -> Ensemble:
    """What `make` gives, trained by the settings with a rate that falls to zero."""
    seeds = mix_seeds(given["seed"], 21), mix_seeds(given["seed"], 22)
    return train_from_seeds(
        "reproduce", name, make, own.train, seeds, {**fit_options(given, schedule="cosine"), **options}
    )


# ---------------------------------------------------------------- MIMO, Figure 3


def compute_basins(given: Mapping[str, Any], folder: Path | None) -> Given:
    """How high it is between three subnetworks, how often they disagree, and the plane through them, for one seed."""
    own, values, columns = prepare_rows(given, folder), dict[str, float](), dict[str, np.ndarray]()
    few, apart = (own.test[0][:500], own.test[1][:500]), {}
    example = own.example
    for name, make in (
        ("mimo", partial(mimo, own.model, 3, example=example, batch_repetition=given["repetition"], init="different")),
        ("multihead", partial(multihead, own.model, 3, example=example)),
    ):
        made = _train(name, make, own, given)
        parts = subnetworks(made)
        pairs = [(0, 1), (0, 2), (1, 2)]
        heights = [along(line(parts.take([i]), parts.take([j])), few, points=9).barrier for i, j in pairs]
        values[f"{name}_barrier"] = float(np.mean(heights))
        apart[name] = member_figures(made, own.test)["disagreement"]
        found = surface(subnetwork_plane(made), few, given["grid"])
        columns |= {f"{name} {key}": getattr(found, key) for key in ("u", "v", "accuracy", "agreement", "points")}
    half = 0.5 / len(own.test[1])
    values["disagree"] = (apart["mimo"] + half) / (apart["multihead"] + half)
    return {"values": values, "disagreement": apart}, columns


BASINS = experiment_by_seed(
    "mimo-basins",
    {
        "smoke": few(TINY, grid=5, repetition=1, epochs=3),
        "laptop": few(LAPTOP, grid=9, repetition=4, epochs=15),
        "paper": few(PAPER, model="small_cnn", grid=25, repetition=4, recipe="fort/cifar10/small_cnn"),
    },
    compute_basins,
)

# ---------------------------------------------------------------- MIMO, Figure 9


def compute_sparsity_path(given: Mapping[str, Any], folder: Path | None) -> Given:
    """Sparsity, accuracy and log-likelihood for each number of members and strength of L1, for one seed."""
    own, curves = prepare_rows(given, folder), {}
    for size in given["sizes"]:
        make = partial(
            mimo, own.model, size, example=own.example, batch_repetition=given["repetition"], init="different"
        )
        rows = []
        for l1 in given["l1"]:
            made = _train(f"M = {size}", make, own, given, l1=l1, weight_decay=0.0)
            figures = member_figures(made, own.test)
            rows.append([1 - weight_share(made), figures["accuracy"], figures["log_likelihood"]])
        curves[str(size)] = rows
    values = {
        f"sparse_{name}": lost
        for column, name in ((1, "accuracy"), (2, "likelihood"))
        if (lost := lost_more(curves[str(given["sizes"][-1])], curves[str(given["sizes"][0])], column)) is not None
    }
    return {"values": values, "curves": curves}, {}


def lost_more(many: Sequence[Sequence[float]], one: Sequence[Sequence[float]], column: int) -> float | None:
    """How much more is lost by many members than by one, on average over the sparsity that both reach.

    Rows are (sparsity, figures, ...), the first without L1; a loss is relative to that row. None where the paths have
    no sparsity in common.

    >>> lost_more([[0.0, 0.9], [0.5, 0.7]], [[0.0, 0.9], [0.5, 0.8]], 1)
    0.05
    """
    paths = [np.array(sorted(map(tuple, path))) for path in (many, one)]
    low, high = max(path[0, 0] for path in paths), min(path[-1, 0] for path in paths)
    if not low < high:
        return None
    places = np.linspace(low, high, 21)
    losses = [start[0][column] - np.interp(places, path[:, 0], path[:, column])
              for start, path in zip((many, one), paths, strict=True)]  # fmt: skip
    return round(float((losses[0] - losses[1]).mean()), 12)


SPARSE = experiment_by_seed(
    "mimo-sparsity-path",
    {
        "smoke": few(TINY, sizes=[1, 3], l1=[0.0, 1e-3, 1e-2], epochs=3, repetition=1),
        "laptop": few(LAPTOP, sizes=[1, 3], l1=[0.0, 1e-4, 5e-4, 2e-3], epochs=10, repetition=4),
        "paper": few(PAPER, model="wide_resnet28_10", sizes=[1, 2, 3, 4], repetition=4,
                     recipe="mimo/cifar/wide_resnet28_10", l1=[0.0, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3]),
    },
    compute_sparsity_path,
)  # fmt: skip

# ---------------------------------------------------------------- Masksembles, Figure 5


def compute_extremes(given: Mapping[str, Any], folder: Path | None) -> Given:
    """Many masks beside MC-Dropout, and masks without overlap beside independent networks, for one seed."""
    own = prepare_rows(given, folder)
    example, masks = own.example, given["masks"]
    many = partial(masksembles, own.model, masks, 2.0, example=example)
    layers = "|".join(name.removesuffix(".mask").replace(".", r"\.") for name in many().own)
    makers = {
        "dropout": (many, partial(mc_dropout, own.model, masks, 0.5, where=layers, example=example)),
        "deep": (partial(masksembles, own.model, 4, 10.0, 1.0, example), partial(deep, own.model, 4)),
    }
    values, rows = dict[str, float](), dict[str, dict[str, float]]()
    for name, pair in makers.items():
        ours, theirs = (_judge(_train(name, make, own, given), own) for make in pair)
        values[f"{name}_accuracy"] = ours["accuracy"] - theirs["accuracy"]
        spread = [max(one["mutual_information"], 1e-9) for one in (ours, theirs)]
        values[f"{name}_information"] = float(np.log(spread[0] / spread[1]))
        rows |= {f"masks like {name}": ours, name: theirs}
    return {"values": values, "rows": rows}, {}


def _judge(ensemble: Ensemble, own: Prepared) -> dict[str, float]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # of the draws of MC-Dropout
        prediction = ensemble.predict(own.test[0], batch_size=500)
    return evaluate(prediction, own.test[1], metrics=["accuracy", "nll", "ece", "mutual_information"])


EXTREMES = experiment_by_seed(
    "masks-extremes",
    {
        "smoke": few(TINY, masks=8, epochs=3),
        "laptop": few(LAPTOP, masks=16, epochs=15),
        "paper": few(PAPER, model="wide_resnet16_4", masks=64, recipe="masksembles/cifar10/wide_resnet16_4"),
    },
    compute_extremes,
)

# ---------------------------------------------------------------- Packed-Ensembles, appendix K


def compute_selection(given: Mapping[str, Any], folder: Path | None) -> Given:
    """Accuracy and NLL with the epoch that is best for the ensemble, and with each member's best, for one seed."""
    own = prepare_rows(given, folder)
    make = partial(packed, own.model, 4, alpha=2, gamma=given["gamma"], example=own.example)
    rows = {
        select: _judge(_train(select, make, own, given, validation=own.validation, select=select), own)
        for select in ("ensemble", "member")
    }
    values = {
        "selection": rows["ensemble"]["accuracy"] - rows["member"]["accuracy"],
        "selection_nll": rows["ensemble"]["nll"] - rows["member"]["nll"],
    }
    return {"values": values, "rows": rows}, {}


SELECTION = experiment_by_seed(
    "packed-selection",
    {
        "smoke": few(TINY, gamma=1, epochs=4),
        "laptop": few(LAPTOP, gamma=1, epochs=15),
        "paper": few(PAPER, model="resnet18", gamma=2, recipe="packed/cifar10/resnet18"),
    },
    compute_selection,
)
