"""BatchEnsemble: shared weights, scaled by each member's own rank-1 matrix."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..core.ensemble import Ensemble
from ..core.feeds import TILE
from ..surgery.closures import refuse_hidden
from ..surgery.copying import state
from ..surgery.replacing import expose_weights
from ..surgery.selecting import dotted_name, exact_pattern, quote_names
from .adapted_layers import RankMany, RankOne
from .building import add_vectors_, check_choice, check_model, check_number, check_size, check_whole
from .layer_choice import (
    check_read_inside,
    count_input_channels,
    count_output_channels,
    layers_of,
    leave_out_read,
    note_left_out,
)
from .method_info import Paper, method_info
from .warm_start import SHARES, warn_if_trained

FAR = 0.2  # a larger spread of r and s takes a trained network to chance


def _nearer(given: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if given["init"] != "normal":
        raise ValueError(f'batch_ensemble: with trained= init must be "normal", but it is {given["init"]!r}.')
    yield {}
    yield from ({"std": given["std"] * share} for share in SHARES[1:])


@method_info(
    nearer=_nearer,
    paper=Paper(
        "Wen, Yeming and Tran, Dustin and Ba, Jimmy",
        "BatchEnsemble: An Alternative Approach to Efficient Ensemble and Lifelong Learning",
        2020,
        "International Conference on Learning Representations",
    ),
)
def batch_ensemble(
    model: nn.Module,
    size: int,
    *,
    rank: int = 1,
    init: Literal["normal", "signs"] = "normal",
    std: float = 0.5,
    where: str | None = None,
    trained: Any = None,
    example: Any = None,
    generator: torch.Generator | None = None,
) -> Ensemble:
    """Shared weights, scaled by each member's own rank-1 matrix: y = ((x * r) W) * s + b (Wen et al., 2020).

    The model's weights are kept. In training the batch is tiled once per member, in one pass, so that
    normalisation layers, which are shared, see all members; the loss is the mean over members and rows.

    Shapes:
        input: (batch, *features), as the model takes it
        output of the ensemble: (members, batch, *outputs)

    Args:
        size: how many members
        rank: r and s are so many pairs of vectors, y = sum_k ((x * r_k) W) * s_k + b: the weight is scaled by a matrix
            of this rank, for as many passes of each layer. It starts as BatchEnsemble does: further s_k are zero
        init: r and s are drawn from N(1, std), as in published recipes, or are random signs, as in the paper
        where: the layers that get r, s and b; by default every convolution and linear layer
        trained: a batch of inputs says that the model's weights are trained: std is then the largest, from the given
            one down, under which members keep 95 % of the network's answers on them; False: they are not
        example: with one, layers whose weights or biases the model reads itself are left as they are
        generator: where random numbers come from; by default torch's own generator

    >>> ensemble = batch_ensemble(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), 4)
    >>> ensemble(torch.zeros(5, 4)).shape, sum(p.numel() for p in ensemble.parameters())  # one network has 67
    (torch.Size([4, 5, 3]), 192)
    """
    size, rank = check_size("batch_ensemble", size), check_whole("batch_ensemble", "rank", rank)
    check_choice("batch_ensemble", "init", init, ("normal", "signs"))
    rule = "positive, because members that start alike on a tiled batch stay alike for ever (choose 0.5)"
    std = check_number("batch_ensemble", "std", std, rule, lambda v: 0 < v < math.inf)
    model = expose_weights(check_model("batch_ensemble", model))
    if std > FAR or init == "signs":
        warn_if_trained("batch_ensemble", model, trained, "its layers are scaled by factors far from 1")
    names = layers_of("batch_ensemble", model, where, example, per_row=True)
    names = leave_out_read("batch_ensemble", model, names, where, example)
    biases = {dotted_name(name, "bias") for name in names}
    refuse_hidden("batch_ensemble", model, {name: tensor for name, tensor in state(model) if name in biases})
    drawn = {name: _draw_pair(model.get_submodule(name), size, init, std, generator) for name in names}
    for name, (r, s) in drawn.items():  # further pairs after all of the first ones, which are then those of rank 1
        layer = model.get_submodule(name)
        if rank > 1:
            r, s = _add_pairs(r, s, rank, init, std, generator)
        add_vectors_(layer, r, s, RankOne if rank == 1 else RankMany)
    own = [dotted_name(name, key) for name in names for key in ("r", "s")]
    own += [dotted_name(name, "b") for name in names if model.get_submodule(name).b is not None]
    settings = {"rank": rank, "init": init, "std": std, "where": exact_pattern(names)}
    notes = [f"r, s and b in {len(names)} layers: {quote_names(names, 6)}"]
    notes += note_left_out(model, names, example, where)
    return Ensemble(
        model, size, own, method="batch_ensemble", settings=settings, feed=TILE, notes=notes,
        first_look=check_read_inside, example=example,
    )  # fmt: skip


# -------------------------------------------------------------------- rank-1 vectors


def _draw_pair(
    layer: nn.Module, size: int, init: str, std: float, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """r and s of a layer, (members, channels)."""
    channels = count_input_channels(layer), count_output_channels(layer)
    r, s = (torch.randn(size, count, generator=generator) for count in channels)
    return (1 + std * r, 1 + std * s) if init == "normal" else (r.sign(), s.sign())


def _add_pairs(
    r: Tensor, s: Tensor, rank: int, init: str, std: float, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Further pairs below the first, (members, rank, channels): s_k = 0, so that they begin to count as they learn."""
    normal = torch.randn(r.shape[0], rank - 1, r.shape[1], generator=generator)
    more = std * normal if init == "normal" else normal.sign()
    return torch.cat([r[:, None], more], 1), torch.cat([s[:, None], s.new_zeros(s.shape[0], rank - 1, s.shape[1])], 1)
