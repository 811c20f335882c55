"""UCI regression (Packed-Ensembles, Table 11): Packed against Deep on nine tables with their standard splits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from ...core.ensemble import Ensemble
from ...data.catalogue import load
from ...data.source import data_folder
from ...data.tables import UCI_PAGE
from ...methods import METHODS
from ...models.small import mlp
from ...training.batching import mix_seeds
from ...uncertainty.outputs import gaussian, gaussian_nll
from .stored_parts import Given, InParts, Part, Stored

VALIDATION = 0.2  # of the training rows: hyper-parameters are chosen on them, and test rows have no say

SPREAD_SMALL = ((0.01, 10, 0.0), (0.01, 20, 0.0), (0.01, 40, 0.0), (0.01, 40, 0.01), (0.01, 40, 0.03))

SMALL = (*SPREAD_SMALL, (0.01, 160, 0.01), (0.01, 160, 0.03))  # candidates: rate, epochs, L2

LARGE = ((0.01, 20, 0.0), (0.01, 40, 0.0), (0.01, 40, 0.001))

AT_ONCE = 10  # splits trained as one stacked ensemble: more of them leave the processor's caches


class Table(NamedTuple):
    """A table: its folder, how many splits are judged, how many the choice is made on, the hidden layer."""

    folder: str
    splits: int = 20
    chosen_on: int = 10
    hidden: int = 200
    candidates: tuple[tuple[float, int, float], ...] = SMALL


TABLES = {
    "yacht": Table("yacht"),
    "boston": Table("bostonHousing"),
    "energy": Table("energy"),
    "concrete": Table("concrete"),
    "wine": Table("wine-quality-red"),
    "kin8nm": Table("kin8nm", chosen_on=2, candidates=LARGE),
    "power": Table("power-plant", chosen_on=2, candidates=LARGE),
    "naval": Table("naval-propulsion-plant", chosen_on=2, candidates=LARGE),
    "protein": Table("protein-tertiary-structure", 5, 1, 400, LARGE),
}

SMOKE = {"diabetes": Table("", 4, 2, 20, ((0.01, 3, 0.0), (0.01, 6, 0.0)))}  # built in: no folder


class EnsembleKind(NamedTuple):
    """An ensemble of a split: how many members, whether they see the same batches, and how many splits are stacked."""

    members: int
    same_batches: bool
    build: Callable[[int, int, int], Ensemble]


def _deep(features: int, hidden: int, splits: int) -> Ensemble:
    return METHODS["deep"](lambda: mlp(features, 2, (hidden,)), 5 * splits)


def _packed(features: int, hidden: int, splits: int) -> Ensemble:
    """Alpha 2 and 3 members for each split: every member is 2/3 as wide, however many are stacked."""
    return METHODS["packed"](lambda width: mlp(features, 2, (hidden,), width=width), 3 * splits, alpha=2 * splits)


KINDS = {"deep": EnsembleKind(5, False, _deep), "packed": EnsembleKind(3, True, _packed)}


def plan_tables(scale: str) -> list[Part]:
    """For each table and kind of ensemble, the choice of a recipe, then training on all splits, some at a time."""
    parts = []
    for (name, table), kind in itertools.product(_tables(scale).items(), KINDS):
        same = {"table": name, "kind": kind, "hidden": table.hidden}
        candidates = table.candidates if scale != "paper" else SMALL
        on = table.chosen_on if scale != "paper" else table.splits
        choice = f"choice-{name}-{kind}"
        parts.append(Part(choice, {**same, "splits": on, "candidates": [list(one) for one in candidates]}))
        for first in range(0, table.splits, AT_ONCE):
            last = min(first + AT_ONCE, table.splits)
            parts.append(Part(f"{name}-{kind}-{first}", {**same, "first": first, "last": last}, (choice,)))
    return parts


def compute_tables(part: Part, data: Path | None, needed: Mapping[str, Stored]) -> Given:
    """The choice of a recipe on validation rows, or predictions for the test rows of some splits."""
    if not needed:
        return _choose(part.settings, data)
    (choice,) = needed.values()
    return _judge(part.settings, Hyperparameters(*choice.figures["chosen"]), data)


def check_tables(scale: str, data: Path | None) -> None:
    """Refuse a folder in which tables are missing, with their names and where to get them."""
    if scale == "smoke":
        return
    root = data_folder(data) / "uci"
    places = {table.folder: (root / table.folder, root / table.folder / "data") for table in TABLES.values()}
    absent = [name for name, at in places.items() if not any((one / "data.txt").is_file() for one in at)]
    if absent:
        raise FileNotFoundError(
            f"reproduce: looked for {', '.join(absent)} (each a folder with data.txt and index_train_0.txt to "
            f"index_test_19.txt) in {root}, which are not there. Get them from {UCI_PAGE}, and say where they are with "
            "--data-dir; or try --scale smoke, which needs no files."
        )


UCI = InParts("uci", plan_tables, compute_tables, check_tables)


def stored_predictions(found: Mapping[str, Stored], table: str, kind: str) -> dict[str, Tensor]:
    """Stored means and variances, (splits, members, rows), and targets, (splits, rows), of a table."""
    parts = [part for name, part in found.items() if name.startswith(f"{table}-{kind}-")]
    return {
        name: torch.from_numpy(np.concatenate([part.columns[name] for part in parts])).double()
        for name in ("means", "variances", "target")
    }


def split_figures(
    found: Mapping[str, Stored], table: str, kind: str, members: int | None = None
) -> dict[str, np.ndarray]:
    """RMSE and NLL of each split, from stored predictions alone; `members`: of only that many, the first."""
    said = stored_predictions(found, table, kind)
    means, variances = said["means"][:, :members], said["variances"][:, :members]
    return {
        "rmse": split_rmse(means, said["target"]).numpy(),
        "nll": one_gaussian_nll(means, variances, said["target"]).numpy(),
    }


def tables_of(found: Mapping[str, Stored]) -> list[str]:
    """The tables that were run, in their order."""
    return [name.removeprefix("choice-").removesuffix("-deep") for name in found if name.endswith("-deep")]


def _tables(scale: str) -> dict[str, Table]:
    return SMOKE if scale == "smoke" else TABLES


def _choose(settings: Mapping[str, Any], data: Path | None) -> Given:
    """The recipe with the lowest mean NLL on validation rows; all are told."""
    splits = [_split(settings["table"], split, data, VALIDATION) for split in range(settings["splits"])]
    rows = []
    for candidate in settings["candidates"]:
        means, variances, target = _train(settings, splits, Hyperparameters(*candidate), seed=1)
        rows.append([float(one_gaussian_nll(means, variances, target).mean()), float(split_rmse(means, target).mean())])
    best = int(np.argmin([nll for nll, _ in rows]))
    return {"chosen": settings["candidates"][best], "validation": rows}, {}


def _judge(settings: Mapping[str, Any], recipe: Hyperparameters, data: Path | None) -> Given:
    """Training on all training rows; predictions for the test rows, in the units of the target."""
    splits = [_split(settings["table"], split, data, 0.0) for split in range(settings["first"], settings["last"])]
    means, variances, target = _train(settings, splits, recipe, seed=settings["first"])
    columns = {"means": means.float().numpy(), "variances": variances.float().numpy(), "target": target.numpy()}
    return {"rows": len(splits[0].x), "features": splits[0].x.shape[1]}, columns


def _train(
    settings: Mapping[str, Any], splits: Sequence[Division], recipe: Hyperparameters, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    kind = KINDS[settings["kind"]]
    torch.manual_seed(mix_seeds(seed, 5))
    ensemble = kind.build(splits[0].x.shape[1], settings["hidden"], len(splits))
    train_stacked_(ensemble, splits, recipe, same_batches=kind.same_batches, seed=seed)
    return *predict_stacked(ensemble, splits), torch.stack([split.other_y for split in splits])


def _split(table: str, number: int, folder: Path | None, validation: float) -> Division:
    """A split of a table; the rows to judge on are validation rows, taken from the training rows, or test rows."""
    known = TABLES.get(table)
    if known is None:
        data = load(table, seed=number, validation=validation)
    else:
        data = load(f"uci:{known.folder}", folder=folder, split=number, validation=validation)
    (x, y), (other_x, other_y) = data.train[:], (data.validation if validation else data.test)[:]
    assert isinstance(data.target_mean, float) and isinstance(data.target_std, float)
    mean, std = data.target_mean, data.target_std
    return Division(x, y, other_x, other_y.double() * std + mean, mean, std)


BATCH = 100  # rows of a step


@dataclass(frozen=True)
class Division:
    """Rows of one division of a table; inputs and targets standardised by the training rows."""

    x: Tensor  # x, y: training rows, (rows, features) and (rows)
    y: Tensor
    other_x: Tensor  # other_x, other_y: the rows to judge on
    other_y: Tensor
    mean: float  # mean, std: of the targets, to go back to their units
    std: float


@dataclass(frozen=True)
class Hyperparameters:
    """How a network is trained: Adam, the rate falling to 0 along a cosine."""

    lr: float
    epochs: int
    decay: float = 0.0


def train_stacked_(
    ensemble: Ensemble, splits: Sequence[Division], recipe: Hyperparameters, *, same_batches: bool, seed: int = 0
) -> None:
    """Train the ensemble, in place, whose members belong to the splits in turn: the first few to the first split.

    One step is one step of every member alone, with a batch of its split: `ensemble.loss(..., per_member=True)`.
    """
    members, rows = ensemble.size // len(splits), len(splits[0].x)
    x, y = torch.stack([split.x for split in splits]), torch.stack([split.y for split in splits])
    owner = torch.arange(len(splits)).repeat_interleave(members)  # the split of each member
    orders = len(splits) if same_batches else ensemble.size
    generator = torch.Generator().manual_seed(mix_seeds(seed, 3))
    optimizer = torch.optim.Adam(_groups_with_decay(ensemble, recipe.decay), lr=recipe.lr, fused=True)
    steps = -(-rows // BATCH)
    run = stacked_forward(ensemble)
    for epoch in range(recipe.epochs):
        order = torch.rand(orders, rows, generator=generator).argsort(1)
        order = order.repeat_interleave(members, 0) if same_batches else order
        for step in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = recipe.lr * _cosine((epoch * steps + step) / (recipe.epochs * steps))
            picked = order[:, step * BATCH : (step + 1) * BATCH]
            output = run(x[owner[:, None], picked])
            optimizer.zero_grad()
            # the mean over all rows times the members: the sum over members of the mean over rows
            (gaussian_nll(output.flatten(0, 1), y[owner[:, None], picked].flatten()) * ensemble.size).backward()
            optimizer.step()


def stacked_forward(ensemble: Ensemble) -> Callable[[Tensor], Tensor]:
    """What gives each member's outputs on rows of its own: (members, rows, features) to (members, rows, outputs)."""
    member = ensemble.member(0)
    tensors = dict(ensemble.module.named_parameters())

    def one(own: Any, x: Tensor) -> Any:
        return functional_call(member, own, (x,))

    return lambda x: vmap(one)(tensors, x)


@torch.no_grad()
def predict_stacked(ensemble: Ensemble, splits: Sequence[Division]) -> tuple[Tensor, Tensor]:
    """Means and variances of the rows to judge on, in the units of the targets: (splits, members, rows) each."""
    members = ensemble.size // len(splits)
    x = torch.stack([split.other_x for split in splits]).repeat_interleave(members, 0)
    means, variances = gaussian(stacked_forward(ensemble)(x).double())
    shape = (len(splits), members, -1)
    mean, std = (torch.tensor([getattr(split, name) for split in splits])[:, None, None] for name in ("mean", "std"))
    return means.reshape(shape) * std + mean, variances.reshape(shape) * std.square()


def one_gaussian_nll(means: Tensor, variances: Tensor, target: Tensor) -> Tensor:
    """The NLL of one Gaussian with the mixture's moments, as Lakshminarayanan et al. report it: (...).

    Shapes: means and variances (..., members, rows), target (..., rows).
    """
    mean = means.mean(-2)  # members
    variance = (variances + means.square()).mean(-2) - mean.square()
    return 0.5 * (torch.log(2 * math.pi * variance) + (target - mean).square() / variance).mean(-1)


def split_rmse(means: Tensor, target: Tensor) -> Tensor:
    """The root of the mean squared error of the members' mean: (...); shapes as for `one_gaussian_nll`."""
    return (means.mean(-2) - target).square().mean(-1).sqrt()


def _groups_with_decay(ensemble: nn.Module, decay: float) -> list[dict[str, Any]]:
    return [{"params": list(ensemble.parameters()), "weight_decay": decay}]


def _cosine(share: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * share))
