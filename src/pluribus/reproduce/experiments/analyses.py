"""Analyses of the landscape as experiments: the sparsity bound, the transition of masks, bias and variance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...core.ensemble import Ensemble
from ...data.catalogue import load
from ...landscape.analyses.bias_variance import mimo_on_a_curve
from ...landscape.analyses.sparsity import sparsity_curves
from ...landscape.analyses.trained_settings import measure_settings, redraw, train_from_seeds
from ...methods import deep, masksembles, single
from ...models.small import mlp
from .stored_parts import Given, InParts, Part, Stored

# ---------------------------------------------------------------- Packed-Ensembles, Figure 5


def compute_sparsity(part: Part, folder: Path | None, needed: Mapping[str, Stored]) -> Given:
    """Bound, divergence and what drawn masks give, against the share of the weights."""
    found = sparsity_curves(part.settings["deviations"], part.settings["shares"], draws=part.settings["draws"])
    return {name: values.tolist() for name, values in found.items()}, {}


def plan_sparsity(scale: str) -> list[Part]:
    """One part; more draws at larger scales."""
    draws = {"smoke": 5_000, "laptop": 50_000, "paper": 200_000}[scale]
    shares = [round(0.1 * k, 1) for k in range(1, 11)]
    return [Part("curves", {"deviations": [0.2, 0.5, 1.0], "shares": shares, "draws": draws})]


SPARSITY = InParts("packed-sparsity", plan_sparsity, compute_sparsity)

# ---------------------------------------------------------------- Masksembles, Figure 4

MASK_SCALES = (1.1, 2.0, 3.0, 10.0)

MEMBERS = 4


def compute_transition(part: Part, folder: Path | None, needed: Mapping[str, Stored]) -> Given:
    """Entropy and mutual information on a grid beyond the training range, for each overlap and seed.

    A masked member sees a quarter of the rows of an epoch, so masks train for four times as many epochs: each member
    is trained on as many rows as the single network and those of a deep ensemble.
    """
    given = part.settings
    if part.name == "maps":
        return compute_maps(given)
    data, rows = load("sinusoids"), []
    train, test = data.train[:], data.test[:]
    entries = transition_entries(given["hidden"], train[0][:2])
    for names, epochs in (("single",), 1), (list(entries)[1:-1], MEMBERS), (("deep",), 1):
        rows += measure_settings(
            {name: entries[name] for name in names}, train, test, outside=_beyond(given["points"]),
            seeds=given["seeds"], epochs=epochs * given["epochs"], lr=given["lr"],
        ).rows  # fmt: skip
    kept = ("setting", "seed", "accuracy", "inside entropy", "outside entropy", "outside mutual_information")
    return {"rows": [{name: row[name] for name in kept} for row in rows]}, {}


def transition_entries(hidden: int, example: Tensor) -> dict[str, Callable[[], Ensemble]]:
    """One network, masks of less and less overlap whose members have its capacity, and independent networks."""
    model = mlp(2, 2, hidden=(hidden, hidden))
    makers: dict[str, Callable[[], Ensemble]] = {"single": lambda: single(redraw(model))}
    for scale in MASK_SCALES:
        makers[f"S {scale:g}"] = partial(masksembles, model, MEMBERS, scale, 1.0, example)
    makers["deep"] = lambda: deep(model, MEMBERS)
    return makers


def compute_maps(given: Mapping[str, Any]) -> Given:
    """Entropy on a grid around the training rows, as the figure shows it: one network of each kind, and the rows."""
    x, y = load("sinusoids").train[:]
    across, up = torch.linspace(-10, 10, given["points"]), torch.linspace(-4, 4, given["points"])
    places = torch.stack([part.flatten() for part in torch.meshgrid(across, up, indexing="ij")], 1)
    columns = {"across": across.numpy(), "up": up.numpy(), "rows": x[:200].numpy(), "labels": y[:200].numpy()}
    for name, make in transition_entries(given["hidden"], x[:2]).items():
        epochs = given["epochs"] * (MEMBERS if name.startswith("S ") else 1)
        made = train_from_seeds("reproduce", name, make, (x, y), (0, 0), {"epochs": epochs, "lr": given["lr"]})
        entropy = made.predict(places).total.reshape(len(across), len(up))
        columns[f"entropy {name}"] = entropy.numpy().astype(np.float32)
    return {}, columns


def _beyond(points: int) -> Tensor:
    """A grid of 6 < |x| <= 10, |y| <= 4, where no training row lies."""
    side = torch.linspace(6.2, 10, points)
    x, y = torch.meshgrid(torch.cat([-side, side]), torch.linspace(-4, 4, points), indexing="ij")
    return torch.stack([x.flatten(), y.flatten()], 1)


TRANSITION_SETTINGS: dict[str, dict[str, Any]] = {
    "smoke": {"hidden": 20, "points": 5, "seeds": 2, "epochs": 1, "lr": 0.01},
    "laptop": {"hidden": 100, "points": 20, "seeds": 10, "epochs": 60, "lr": 0.01},
    "paper": {"hidden": 100, "points": 20, "seeds": 20, "epochs": 60, "lr": 0.01},
}


def plan_transition(scale: str) -> list[Part]:
    """Figures over seeds, and the maps of one."""
    settings = TRANSITION_SETTINGS[scale]
    maps = {name: settings[name] for name in ("hidden", "epochs", "lr")}
    return [Part("grid", settings), Part("maps", {**maps, "points": 6 if scale == "smoke" else 40})]


TRANSITION = InParts("masks-transition", plan_transition, compute_transition)

# ---------------------------------------------------------------- MIMO, Figure 2


def compute_bias(part: Part, folder: Path | None, needed: Mapping[str, Stored]) -> Given:
    """Bias, variance and error of each number of members, each over the same training sets, with intervals."""
    given = part.settings
    sizes = list(range(1, given["sizes"] + 1))

    found = mimo_on_a_curve(sizes, given["repeats"], given["steps"])
    names = ("bias", "variance", "error", "members")
    figures: dict[str, Any] = {name: {str(size): list(found.interval(name, size)) for size in sizes} for name in names}
    changes = {name: {str(size): list(found.difference(name, size, 1)) for size in sizes[1:]} for name in names}
    columns = {"predictions": found.predictions.astype(np.float32), "target": found.target.astype(np.float32)}
    return {"sizes": sizes, "figures": figures, "changes": changes}, columns


BIAS_SETTINGS: dict[str, dict[str, Any]] = {
    "smoke": {"sizes": 3, "repeats": 4, "steps": 30},
    "laptop": {"sizes": 5, "repeats": 40, "steps": 1000},
    "paper": {"sizes": 5, "repeats": 100, "steps": 1000},
}

BIAS = InParts("mimo-bias", lambda scale: [Part("sizes", BIAS_SETTINGS[scale])], compute_bias)
