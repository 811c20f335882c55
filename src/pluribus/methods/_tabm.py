"""TabM: one network for tables, scaled by each member's own vectors, with a head for each member."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..core.ensemble import Ensemble
from ..core.feeds import TILE
from ..surgery.closures import refuse_hidden
from ..surgery.copying import assign_, state
from ..surgery.initial_laws import Laws, reinitialize
from ..surgery.replacing import expose_weights
from ..surgery.selecting import dotted_name, exact_pattern, pick, quote_names
from .adapted_layers import OwnHead, RankOne
from .building import add_vectors_, begin_, check_choice, check_model, check_number, check_size
from .layer_choice import (
    check_read_inside,
    count_input_channels,
    count_output_channels,
    heads_of,
    layers_of,
    leave_out_read,
    refuse_tied,
)
from .method_info import Paper, method_info
from .warm_start import SHARES, warn_if_trained


@method_info(
    nearer=lambda given: [{"std": 0.5 * share} for share in SHARES],
    for_tables=True,
    study_settings=lambda model, dropout: (
        {"init": "normal", "chunks": model.chunks} if getattr(model, "embeds_numbers", False) else {}
    ),
    paper=Paper(
        "Gorishniy, Yury and Kotelnikov, Akim and Babenko, Artem",
        "TabM: Advancing Tabular Deep Learning with Parameter-Efficient Ensembling",
        2025,
        "International Conference on Learning Representations",
    ),
)
def tabm(
    model: nn.Module,
    size: int = 32,
    *,
    variant: Literal["full", "mini"] = "full",
    init: Literal["signs", "normal"] = "signs",
    chunks: Sequence[int] | None = None,
    std: float | None = None,
    where: str | None = None,
    head: str | None = None,
    trained: Any = None,
    example: Any = None,
    generator: torch.Generator | None = None,
) -> Ensemble:
    """Shared weights scaled by per-member vectors, and a head for each member (TabM, Gorishniy et al., 2025).

    Hidden layers compute y = ((x * r) W) * s + b as in BatchEnsemble, but only the first r is random: all other
    vectors start at one. In training every member sees every row, in one pass; the loss is the mean over members.

    Shapes:
        input: (batch, *features), as the model takes it
        output of the ensemble: (members, batch, *outputs)

    Args:
        size: how many members
        variant: "full", or "mini": the first r is the only vector, all hidden layers are shared
        init: the first r: random signs, or N(0, 1), which the paper uses after embeddings of numbers
        chunks: how many inputs of the first layer belong to each feature: they get the same random number in r (the
            one-hot columns of a category, the embedding of a number); by default every input has its own
        std: the first r is drawn from N(1, std) instead, and heads start as the model's, shaken by std of their spread
        where: the layers that get vectors, the first to run first; by default all linear layers and convolutions but
            the heads
        head: the last layers, which members own; by default as for `multihead`
        trained: a batch of inputs says that the model's weights are trained: std is then the largest under which
            members keep 95 % of the network's answers on them; False: they are not
        example: with one, layers are taken in the order of their calls
        generator: where random numbers come from; by default torch's own generator

    >>> ensemble = tabm(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), 4)
    >>> ensemble(torch.zeros(5, 4)).shape, sum(p.numel() for p in ensemble.parameters())  # one network has 67
    (torch.Size([4, 5, 3]), 220)
    """
    size = check_size("tabm", size)
    check_choice("tabm", "variant", variant, ("full", "mini"))
    check_choice("tabm", "init", init, ("signs", "normal"))
    if std is not None:
        std = check_number("tabm", "std", std, "positive and finite", lambda v: 0 < v < math.inf)
    model = expose_weights(check_model("tabm", model))
    if std is None:
        warn_if_trained("tabm", model, trained, "the signs of its inputs are changed and its last layer is redrawn")
    names, heads = _choose_layers(model, variant, where, head, example)
    first = count_input_channels(model.get_submodule(names[0]))
    if chunks is not None and (sum(chunks) != first or min(chunks) < 1):
        raise ValueError(
            f"tabm: chunks must be positive and add up to the {first} inputs of layer {names[0]!r}, but they are "
            f"{list(chunks)!r}."
        )
    owned = [dotted_name(name, key) for name in heads for key in ("weight", "bias")]
    biases = [dotted_name(name, "bias") for name in names if variant == "full"]
    found = {name: tensor for name, tensor in state(model) if name in (*owned, *biases)}
    refuse_hidden("tabm", model, found)
    start = _draw_first(first, size, init, chunks, std, generator)
    _own_heads_(model, heads, [name for name in owned if name in found], size, std, generator)
    for name in names:
        layer = model.get_submodule(name)
        r = start if name == names[0] else torch.ones(size, count_input_channels(layer))
        add_vectors_(layer, r, torch.ones(size, count_output_channels(layer)) if variant == "full" else None, RankOne)
        layer.fast = ()  # type: ignore[assignment]  # the paper trains them as it trains weights
    own = [dotted_name(name, key) for name in names for key in ("r", "s", "b")]
    own = [*(name for name in own if name in dict(state(model))), *(name for name in owned if name in found)]
    settings = {"variant": variant, "where": exact_pattern(names), "head": exact_pattern(heads)}
    notes = [
        f"r{', s and b' * (variant == 'full')} in {len(names)} layers: {quote_names(names, 6)}",
        f"heads: {quote_names(heads)}",
    ]
    return Ensemble(
        model, size, own, method="tabm", settings=settings, feed=TILE, notes=notes,
        first_look=check_read_inside, example=example,
    )  # fmt: skip


def _choose_layers(
    model: nn.Module, variant: str, where: str | None, head: str | None, example: Any
) -> tuple[list[str], list[str]]:
    """The layers that get vectors, in the order in which they run, and the heads."""
    heads = heads_of(model, head, example, method="tabm")
    if others := [name for name in heads if not isinstance(model.get_submodule(name), nn.Linear)]:
        raise ValueError(
            f"tabm: heads must be linear layers, but {quote_names(others)} is a "
            f"{type(model.get_submodule(others[0])).__name__}. Name a linear layer with head=, or use "
            "pb.batch_ensemble."
        )
    refuse_tied("tabm", model, heads, "Untie them, or use pb.batch_ensemble.")
    names = [name for name in layers_of("tabm", model, None, example, per_row=True) if name not in heads]
    if where is not None:
        names = pick("tabm", where, names)
    names = leave_out_read("tabm", model, names, where, example)
    if not names:
        raise ValueError(
            f"tabm: the model needs a layer before its heads, {quote_names(heads)}, but it has none. Use pb.deep."
        )
    return names if variant == "full" else names[:1], heads


def _draw_first(
    channels: int, size: int, init: str, chunks: Sequence[int] | None, std: float | None,
    generator: torch.Generator | None,
) -> Tensor:  # fmt: skip
    """The only random vectors: (members, channels)."""
    normal = torch.randn(size, channels if chunks is None else len(chunks), generator=generator, device="cpu")
    drawn = 1 + std * normal if std is not None else normal if init == "normal" else (normal >= 0) * 2.0 - 1
    return drawn if chunks is None else drawn.repeat_interleave(torch.tensor(chunks, device="cpu"), 1)


def _own_heads_(
    model: nn.Module, heads: Sequence[str], own: Sequence[str], size: int, std: float | None,
    generator: torch.Generator | None,
) -> None:  # fmt: skip
    """Stack heads for the members: drawn by the law of the model's, or near it."""
    if std is None:
        laws = Laws(model)
        drawn = [dict(state(reinitialize(model, generator, own, revive=True, laws=laws))) for _ in range(size)]
        stacked = {name: torch.stack([each[name].detach() for each in drawn]) for name in own}
    else:
        stacked = {}
        for name, tensor in state(model):
            if name in own:
                value = tensor.detach()
                noise = torch.randn(size, *value.shape, generator=generator, device="cpu").to(value)
                stacked[name] = value + std * (value.std() if value.numel() > 1 else 0.0) * noise
    assign_(model, stacked)
    for name in heads:
        begin_(model.get_submodule(name), OwnHead)
