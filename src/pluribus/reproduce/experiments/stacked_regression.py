"""Many regressions at once: the members of all splits of a table are one stacked ensemble, trained side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from ...core.ensemble import Ensemble
from ...training.batching import mix_seeds
from ...uncertainty.outputs import gaussian, gaussian_nll

BATCH = 100  # rows of a step


@dataclass(frozen=True)
class Division:
    """Rows of one division of a table; inputs and targets standardised by the training rows.

    Args:
        x, y: training rows, (rows, features) and (rows)
        other_x, other_y: the rows to judge on
        mean, std: of the targets, to go back to their units
    """

    x: Tensor
    y: Tensor
    other_x: Tensor
    other_y: Tensor
    mean: float
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

    Args:
        same_batches: whether the members of a split see the same batches, as in a packed ensemble, or each its own
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
