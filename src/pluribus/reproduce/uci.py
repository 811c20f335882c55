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
from torch import Tensor
from torch.func import functional_call, vmap

from ..core.ensemble import Ensemble
from ..data.catalogue import load
from ..data.source import data_folder
from ..data.tables import UCI_PAGE
from ..methods import METHODS
from ..models.small import mlp
from ..report.charts.intervals import intervals_figure
from ..report.claims import ClaimVerdict
from ..results.intervals import t_interval
from ..results.judgements import FAILS, HOLDS, OPEN, all_of, equal, most_of, plural, show_interval
from ..training.batching import mix_seeds
from ..uncertainty.outputs import gaussian, gaussian_nll
from ..uncertainty.resampling import Interval
from .parts import Given, InParts, Part, Stored
from .published import decimals, parse_printed

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
    for (name, table), kind in itertools.product((SMOKE if scale == "smoke" else TABLES).items(), KINDS):
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
            f"reproduce: not found in {root}: {', '.join(absent)} (folders with data.txt and index_train_0.txt to "
            f"index_test_19.txt). Get them from {UCI_PAGE}, and say where they are with "
            "--data-dir; or try --scale smoke, which needs no files."
        )


UCI = InParts("uci", plan_tables, compute_tables, check_tables)


def split_figures(
    found: Mapping[str, Stored], table: str, kind: str, members: int | None = None
) -> dict[str, np.ndarray]:
    """RMSE and NLL of each split, from stored predictions alone; `members`: of only that many, the first."""
    parts = [part for name, part in found.items() if name.startswith(f"{table}-{kind}-")]
    means, variances, target = (  # (splits, members, rows) twice, (splits, rows)
        torch.from_numpy(np.concatenate([part.columns[name] for part in parts])).double()
        for name in ("means", "variances", "target")
    )
    means, variances = means[:, :members], variances[:, :members]
    return {"rmse": split_rmse(means, target).numpy(), "nll": one_gaussian_nll(means, variances, target).numpy()}


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
    optimizer = torch.optim.Adam(ensemble.parameters(), recipe.lr, weight_decay=recipe.decay, fused=True)
    steps = -(-rows // BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, recipe.epochs * steps)
    run = stacked_forward(ensemble)
    for _ in range(recipe.epochs):
        order = torch.rand(orders, rows, generator=generator).argsort(1)
        order = order.repeat_interleave(members, 0) if same_batches else order
        for step in range(steps):
            picked = order[:, step * BATCH : (step + 1) * BATCH]
            output = run(x[owner[:, None], picked])
            optimizer.zero_grad()
            # the mean over all rows times the members: the sum over members of the mean over rows
            (gaussian_nll(output.flatten(0, 1), y[owner[:, None], picked].flatten()) * ensemble.size).backward()
            optimizer.step()
            schedule.step()


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


TEST_SHARE = 1 / 9  # test rows to training rows in the standard splits
MARGIN = 0.5  # of Deep's spread over splits: differences below it are called equal
EQUAL = {HOLDS: "equal", FAILS: "different", OPEN: "inconclusive"}
NAMES = {"rmse": "RMSE", "nll": "NLL"}


def check_table11(found: Mapping[str, Stored], published: Mapping[str, Any]) -> ClaimVerdict:
    """For each table the paired difference over splits, and whether it is less than half of Deep's spread."""
    tables = [name.removeprefix("choice-").removesuffix("-deep") for name in found if name.endswith("-deep")]
    splits = {table: table_figures(found, table) for table in tables}
    if not splits:
        return ClaimVerdict(OPEN, ["No table was run."])
    gaps = {  # how much larger the figure of packed is than that of three deep members
        table: {
            name: t_interval((one["packed"][name] - one["deep 3"][name]).tolist(), overlap=TEST_SHARE) for name in NAMES
        }
        for table, one in splits.items()
    }
    judged = {
        table: all_of([equal(gap, MARGIN * _spread(splits[table], name)) for name, gap in gaps[table].items()])
        for table in splits
    }
    judgement = most_of(list(judged.values()))
    said = [_summary(judged), *_against_2017(splits, published)]
    rows = [row for table, one in splits.items() for row in _rows(table, one, gaps[table], judged[table], published)]
    header = ["table", "figure", "Packed, ours", "Deep 3, ours", "Deep 5, ours", "Packed - Deep 3", "equal?",
              "Packed, paper", "Deep, paper", "Deep 5, 2017"]  # fmt: skip
    return ClaimVerdict(judgement, said, header, rows, [_picture(splits, gaps)])


def table_figures(found: Mapping[str, Stored], table: str) -> dict[str, dict[str, np.ndarray]]:
    """RMSE and NLL of each split for packed, deep with three and deep with five members."""
    return {
        "packed": split_figures(found, table, "packed"),
        "deep 3": split_figures(found, table, "deep", members=3),
        "deep 5": split_figures(found, table, "deep"),
    }


def _spread(one: Mapping[str, Mapping[str, np.ndarray]], name: str) -> float:
    values = one["deep 3"][name]
    return float(values.std(ddof=1)) if len(values) > 1 else math.nan


def _summary(judged: Mapping[str, str]) -> str:
    groups = {word: [table for table, one in judged.items() if one == word] for word in (HOLDS, FAILS, OPEN)}
    text = f"Packed and Deep with three members are equal on {len(groups[HOLDS])} of {plural(len(judged), 'table')}"
    text += f" ({', '.join(groups[HOLDS])})" if groups[HOLDS] else ""
    text += f", differ on {', '.join(groups[FAILS])}" if groups[FAILS] else ""
    text += f", and are inconclusive on {', '.join(groups[OPEN])}" if groups[OPEN] else ""
    return f"{text}. Equal: the 95 % interval of the paired difference lies within half of Deep's spread over splits."


def _against_2017(splits: Mapping[str, Any], published: Mapping[str, Any]) -> list[str]:
    old = published["lakshminarayanan"]
    known = {table: one for table, one in splits.items() if table in old}
    if not known:
        return []
    worse = {
        table: names
        for table, one in known.items()
        if (names := [name for name in NAMES if not no_worse(one["deep 5"][name], old[table][name])])
    }  # fmt: skip
    text = (
        "Deep with five members is no worse than Lakshminarayanan et al. (2017) by more than half of their spread on "
    )
    text += f"{len(known) - len(worse)} of {plural(len(known), 'table')}"
    missed = ", ".join(f"{table} ({' and '.join(NAMES[name] for name in names)})" for table, names in worse.items())
    return [f"{text}; it is on {missed}." if worse else f"{text}."]


def no_worse(ours: np.ndarray, text: str) -> bool:
    """Whether a mean over splits, at the printed digits, exceeds the printed one by at most half of its spread."""
    value, spread = parse_printed(text)
    return round(float(ours.mean()), decimals(text)) <= value + spread / 2 + 1e-9


def _rows(
    table: str, one: Mapping[str, Any], gaps: Mapping[str, Interval], judged: str, published: Mapping[str, Any]
) -> list[list[str]]:
    rows = []
    for name, title in NAMES.items():
        digits = _digits(float(one["deep 5"][name].mean()))
        paper, old = published["table11"].get(table, {}), published["lakshminarayanan"].get(table, {})
        rows.append([
            table, title, *(_mean(one[kind][name], digits) for kind in ("packed", "deep 3", "deep 5")),
            show_interval(gaps[name], digits), EQUAL[equal(gaps[name], MARGIN * _spread(one, name))],
            *(paper.get(f"{kind} {name}", "–").replace("+-", " ± ") for kind in ("packed", "deep")),
            old.get(name, "–").replace("+-", " ± "),
        ])  # fmt: skip
    return rows


def _mean(values: np.ndarray, digits: int) -> str:
    spread = f" ± {values.std(ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{values.mean():.{digits}f}{spread}"


def _digits(value: float) -> int:
    return 5 if abs(value) < 0.01 else 4 if abs(value) < 0.1 else 3


def _picture(splits: Mapping[str, Any], gaps: Mapping[str, Mapping[str, Interval]]) -> Any:
    scaled = {
        title: {
            table: Interval(*(end / _spread(splits[table], name) for end in gaps[table][name]))
            for table in splits
            if _spread(splits[table], name) > 0
        }
        for name, title in NAMES.items()
    }
    caption = (
        "Left of zero Packed is better. Shaded: half of Deep's spread over splits; within it they are called equal."
    )
    axis = "Packed − Deep 3, in standard deviations of Deep over splits"
    return intervals_figure("packed-deep", "Packed against Deep on each table", caption, scaled,
                            band=(-MARGIN, MARGIN), axis=axis)  # fmt: skip
