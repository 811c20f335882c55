"""Every way to make an ensemble. A method is one function, (model, size, ...) -> Ensemble, and a line in `METHODS`.

No method changes the model that it is given. Patterns (`where`, `branch`) are regular expressions that match whole
parts of the dotted module names; `example` is what one call of the model takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from . import masks as sampler
from .choosing import check_all_called, check_heads, heads_of, inputs_of, layers_of, outputs_of
from .dropout import awaken, dropout_modules, set_rate_
from .ensemble import Ensemble
from .grouping import group_, groups_of
from .joint import Joint, check_rows, ends, widen_
from .layers import Dropped, Masked, PerMember, RankOne
from .members import (
    Init,
    Several,
    Source,
    alike,
    branched,
    build,
    checked_model,
    checked_number,
    checked_size,
    members_of,
    stack,
)
from .surgery import adapt_, aliases, call_quietly, duplicate, exactly, listed, matches, opened, pick, weighted, within
from .thinning import Widths, rebuild, solve
from .trees import as_batch


def single(model: nn.Module) -> Ensemble:
    """One member, with the weights that are given: the baseline, so that everything else works on it too.

    >>> single(nn.Linear(4, 3))(torch.zeros(5, 4)).shape
    torch.Size([1, 5, 3])
    """
    return stack("single", [checked_model("single", model)])


def deep(
    model: Source | Sequence[nn.Module],
    size: int | None = None,
    *,
    init: Init = "different",
    generator: torch.Generator | None = None,
) -> Ensemble:
    """Independent networks: every tensor is a member's own (Lakshminarayanan et al., 2017).

    In training every member sees every row, and the losses are summed: a joint step equals separate steps.

    Args:
        model: a model, a function without arguments that builds one, or a list of trained models: alike ones
            are stacked, unlike ones are run by the loop
        init: "different": each member's tensors are drawn anew, in law like the model's (a builder is called for
            each member instead); "same": every member starts with the model's weights
    """
    if isinstance(model, (list, tuple, nn.ModuleList)):
        return _of_models(list(model), size)
    size = checked_size("deep", size)
    members = members_of("deep", cast(Source, model), size, init, generator)
    return stack("deep", members, settings={"init": "same"})


def packed(
    model: nn.Module | Callable[[float], nn.Module],
    size: int,
    alpha: float = 2,
    gamma: int = 1,
    example: Any = None,
    *,
    where: str | None = None,
    strict: bool = False,
    min_channels: int = 64,
    init: Init = "different",
    widths: Widths | None = None,
    generator: torch.Generator | None = None,
) -> Ensemble:
    """Independent thin networks, each `alpha / size` as wide as the model (Packed-Ensembles, Laurent et al., 2023).

    In training every member sees every row, and the losses are summed: a joint step equals separate steps.

    Args:
        model: a model (then `example` is needed), or a function width_factor -> nn.Module
        alpha: how wide all members together are, relative to the model
        gamma: groups in the layers that `where` chooses (a model of ours says itself which); lowered where a group
            of a convolution would have fewer than `min_channels` inputs
        strict: refuse widths that do not divide, instead of rounding them up
        widths: the members' sizes, where they are known already; then no example is needed
    """
    size = checked_size("packed", size)
    alpha = checked_number("packed", "alpha", alpha, "a positive number", lambda v: 0 < v < math.inf)
    gamma = _whole("packed", "gamma", gamma)
    min_channels = _whole("packed", "min_channels", min_channels)
    factor = alpha / size
    settings: dict[str, Any] = {"alpha": alpha, "gamma": gamma, "where": where, "min_channels": min_channels}
    if callable(model) and not isinstance(model, nn.Module):
        return _packed_builder(model, size, factor, gamma, settings, generator, init)
    checked_model("packed", model)
    groups = groups_of(model, factor, gamma, where, min_channels)
    if example is not None:
        call_quietly("packed", model, example)
    if widths is None and not math.isclose(factor, 1):
        widths = _thinned(model, example, factor, groups)
    notes = _thinning_notes(model, widths)
    if strict and notes:
        raise ValueError(
            f"packed: size {size} with alpha {alpha:g} and gamma {gamma} needs hidden widths that divide, but "
            f"{notes[0]}. Choose alpha={size}, change that layer, or leave strict=True out."
        )
    thin = duplicate(model) if widths is None else rebuild(model, widths, generator)
    members = members_of("packed", group_(thin, groups, generator), size, init, generator)
    notes += [f"gamma {g} in {name!r}" for name, g in groups.items() if g > 1]
    settings |= {"init": "same", "widths": widths and widths.to_json()}
    return stack("packed", members, settings=settings, notes=notes)


def masksembles(
    model: nn.Module,
    size: int,
    scale: float = 2.0,
    capacity: float | None = None,
    example: Any = None,
    *,
    where: str | None = None,
    widths: Widths | None = None,
    generator: torch.Generator | None = None,
) -> Ensemble:
    """One network, and for each member a fixed binary mask before every masked layer (Durasov et al., 2021).

    In training each row goes through one member's masks, chosen at random and balanced over the batch; all layers
    use the same member for a row, and normalisation layers are shared. Activations are not rescaled.

    Args:
        scale: the paper's S: 1 is a single network; the larger, the less the masks overlap (IoU 1 / (2 S - 1))
        capacity: None: the network keeps its widths and its weights. A number: each mask keeps that fraction of a
            layer's original width, and layers grow to M * S - D channels, with fresh weights
        where: the layers to mask; by default every convolution and linear layer but the first
        widths: the grown sizes, where they are known already; then no example is needed
    """
    size = checked_size("masksembles", size)
    scale = checked_number("masksembles", "scale", scale, "finite and at least 1", lambda v: 1 <= v < math.inf)
    if capacity is not None:
        capacity = checked_number(
            "masksembles", "capacity", capacity, "a positive fraction of a layer's width", lambda v: 0 < v < math.inf
        )
    model = opened(checked_model("masksembles", model))
    names = layers_of("masksembles", model, where, example, but_first=True, per_row=True)
    before = {name: inputs_of(model.get_submodule(name)) for name in names}
    if capacity is not None:
        model, widths = _grown(model, size, scale, capacity, example, names, widths, generator)
    full: list[bool] = []
    for name in names:
        layer = model.get_submodule(name)
        inputs = inputs_of(layer)
        ones = None if capacity is None else _ones(capacity * before[name], inputs, size)
        mask = sampler.masks(inputs, size, scale if ones is None else None, capacity=ones, generator=generator)
        full.append(bool(mask.all()))
        layer.register_buffer("mask", mask.to(cast(Tensor, layer.weight)))
        _begin_(layer, Masked)
    if size > 1 and scale > 1 and all(full):
        raise ValueError(
            f"masksembles: every mask is all ones, because the widths of {listed(names, 6)} cannot grow or are too "
            "small: the members would be alike. Choose other layers with where=, or leave capacity= out."
        )
    settings: dict[str, Any] = {"scale": scale, "capacity": capacity, "where": exactly(names)}
    settings["widths"] = widths and widths.to_json()
    notes = [f"masks before {len(names)} layers: {listed(names, 6)}"]
    own = [within(name, "mask") for name in names]
    return Ensemble(model, size, own, method="masksembles", settings=settings, feed="share", notes=notes)


def batch_ensemble(
    model: nn.Module,
    size: int,
    *,
    init: Literal["normal", "signs"] = "normal",
    std: float = 0.5,
    where: str | None = None,
    example: Any = None,
    generator: torch.Generator | None = None,
) -> Ensemble:
    """Shared weights, scaled by each member's own rank-1 matrix: y = ((x * r) W) * s + b (Wen et al., 2020).

    The model's weights are kept. In training the batch is tiled once per member, in one pass, so that
    normalisation layers, which are shared, see all members; the loss is the mean over members and rows.

    Args:
        init: r and s are drawn from N(1, std), as in published recipes, or are random signs, as in the paper
        where: the layers that get r, s and b; by default every convolution and linear layer
        example: with one, layers whose weights are read without being called are left as they are
    """
    size = checked_size("batch_ensemble", size)
    if init not in ("normal", "signs"):
        raise ValueError(f'batch_ensemble: init must be "normal" or "signs", but it is {init!r}.')
    rule = "positive, because members that start alike on a tiled batch stay alike for ever (choose 0.5)"
    std = checked_number("batch_ensemble", "std", std, rule, lambda v: 0 < v < math.inf)
    model = opened(checked_model("batch_ensemble", model))
    names = layers_of("batch_ensemble", model, where, example, per_row=True)
    for name in names:
        _rank_one_(model.get_submodule(name), size, init, std, generator)
    fast = [within(name, key) for name in names for key in ("r", "s")]
    own = [*fast, *(within(name, "b") for name in names if model.get_submodule(name).b is not None)]
    settings = {"init": init, "std": std, "where": exactly(names)}
    notes = [f"r, s and b in {len(names)} layers: {listed(names, 6)}"]
    return Ensemble(
        model, size, own, method="batch_ensemble", settings=settings, feed="tile", fast=fast, notes=notes,
        check=check_all_called if example is None else None,
    )  # fmt: skip


def mc_dropout(
    model: nn.Module,
    size: int,
    rate: float | None = None,
    *,
    where: str | None = None,
    example: Any = None,
) -> Ensemble:
    """One network, `size` draws of its dropout: a member owns nothing but chance (Gal and Ghahramani, 2016).

    The model's weights are kept. Dropout stays on in eval mode: modules, dropout called as a function in a forward,
    inside attention and between the layers of an RNN. In training each row is seen once, with one draw.

    Args:
        rate: None: the model's own dropout. A number: its dropout modules drop at this rate; a model without any,
            or one with `where`, gets dropout before the chosen layers
        where: the layers that get dropout before them; by default every convolution and linear layer but the first
        example: with one, dropout that is called as a function is found now, and not on the first batch
    """
    size = checked_size("mc_dropout", size)
    if rate is not None:
        rate = checked_number("mc_dropout", "rate", rate, "between 0 and 1 (such as 0.1)", lambda v: 0 < v < 1)
    if where is not None and rate is None:
        raise ValueError(f"mc_dropout: where={where!r} says where to insert dropout, so rate= is needed too.")
    model = opened(checked_model("mc_dropout", model))
    own_dropout = dropout_modules(model)
    notes = []
    if rate is not None and (where is not None or not own_dropout):
        names = layers_of("mc_dropout", model, where, example, but_first=True)
        for name in names:
            adapt_(model.get_submodule(name), Dropped)
            model.get_submodule(name).rate = rate  # type: ignore[assignment]
        notes.append(f"dropout {rate} before {len(names)} layers: {listed(names, 6)}")
        where = exactly(names)
    elif rate is not None:
        for name in own_dropout:
            set_rate_(model.get_submodule(name), rate)
        notes.append(f"dropout {rate} in {len(own_dropout)} modules: {listed(own_dropout, 6)}")
    settings = {"rate": rate, "where": where}
    made = Ensemble(model, size, method="mc_dropout", settings=settings, feed="once", notes=notes, check=awaken)
    if example is not None:
        made.check_once(as_batch(example))
    return made


def mimo(
    model: nn.Module,
    size: int,
    input_repetition: float = 0.0,
    batch_repetition: int = 1,
    example: Any = None,
    *,
    first: str | None = None,
    last: str | None = None,
    init: Init = "same",
    generator: torch.Generator | None = None,
) -> Ensemble:
    """One network that reads `size` inputs side by side and answers for each (MIMO, Havasi et al., 2021).

    The first layers get `size` times their input channels, the last ones `size` times their outputs. In training
    each member has its own order of the batch; a prediction gives every member the same input.

    Args:
        input_repetition: the paper's rho: the exact fraction of rows in which all members see the same example
        batch_repetition: how often each example of a batch is used in one training pass
        first, last: patterns for the layers to widen; by default found by running the example
        init: "same": first and last layers are tiled, so that each member starts as the given model;
            "different": they are drawn anew, which is what to choose when training from scratch
    """
    size = checked_size("mimo", size)
    input_repetition = checked_number(
        "mimo", "input_repetition", input_repetition, "from 0 to 1", lambda v: 0 <= v <= 1
    )
    batch_repetition = _whole("mimo", "batch_repetition", batch_repetition)
    if init not in ("different", "same"):
        raise ValueError(f'mimo: init must be "different" or "same", but it is {init!r}.')
    model = opened(checked_model("mimo", model))
    starts, stops = ends(model, first, last, example)
    reference = duplicate(model)
    widen_(model, size, starts, stops, init == "different", generator)
    settings = {
        "input_repetition": input_repetition,
        "batch_repetition": batch_repetition,
        "first": exactly(starts),
        "last": exactly(stops),
    }
    made = Joint(
        model, size, starts, stops,
        input_repetition=input_repetition, batch_repetition=batch_repetition, settings=settings,
    )  # fmt: skip
    if example is not None:
        check_rows(made, reference, example, exact=init == "same")
    return made


def treenet(
    model: nn.Module,
    size: int,
    branch: str,
    *,
    freeze_trunk: bool = False,
    init: Init = "different",
    generator: torch.Generator | None = None,
) -> Ensemble:
    """A shared trunk under each member's own branch of the network (TreeNet, Lee et al., 2015).

    The trunk's weights are kept. In training every member sees every row, the trunk runs once, and the losses
    are summed.

    Args:
        branch: what each member owns, such as "layer4|fc"
        freeze_trunk: keep a pretrained trunk as it is: no gradients, statistics not updated
        init: "different": the branches are drawn anew; "same": they start with the model's weights
    """
    size = checked_size("treenet", size)
    model = checked_model("treenet", model)
    every = aliases(model)
    empty = [name for name, module in model.named_modules() if name and not any(True for _ in module.parameters())]
    pick("treenet", branch, [*sorted(set().union(*every.values())), *empty], "tensors")
    own = [name for name, names in every.items() if all(matches(branch, n) for n in names)]
    notes = [
        f"{name!r} is tied to a tensor of the trunk and stays shared"
        for name, names in every.items()
        if name not in own and any(matches(branch, n) for n in names)
    ]
    return branched("treenet", model, size, own, {"branch": branch}, notes, init, generator, freeze_trunk)


def multihead(
    model: nn.Module,
    size: int,
    *,
    where: str | None = None,
    example: Any = None,
    freeze_trunk: bool = False,
    init: Init = "different",
    generator: torch.Generator | None = None,
) -> Ensemble:
    """One network with a last layer for each member (naive multihead, Havasi et al., 2021).

    The weights of everything before it are kept. In training every member sees every row, and the losses are summed.

    Args:
        where: the last layer; by default the one that the example shows; without an example what the model's
            `get_classifier` says, or else the last layer that it defines (checked on the first batch)
    """
    size = checked_size("multihead", size)
    model = checked_model("multihead", model)
    heads = heads_of(model, where, example)
    own = [n for n, names in aliases(model).items() if all(name.rpartition(".")[0] in heads for name in names)]
    if not own:
        raise ValueError(
            f"multihead: the last layer, {listed(heads)}, is tied to the rest of the model, so no member can own it. "
            "Untie it, or choose another layer with where=."
        )
    settings = {"where": exactly(heads)}
    made = branched("multihead", model, size, own, settings, [], init, generator, freeze_trunk)
    made.notes.append(f"heads: {listed(heads)}")
    if where is None and example is None:
        made.check = partial(check_heads, heads=heads)
    return made


# -------------------------------------------------------------------- deep and packed


def _of_models(models: list[nn.Module], size: int | None) -> Ensemble:
    if size is not None and size != len(models):
        raise ValueError(f"deep: size is the number of models, {len(models)}, but it is {size}. Leave it out.")
    if not models:
        raise ValueError("deep: there must be at least one model, but the list is empty.")
    for model in models:
        checked_model("deep", model)
    if all(alike(models[0], model) for model in models):
        return stack("deep", models, settings={"init": "same"})
    return Several(models, "deep")


def _packed_builder(
    builder: Callable[[float], nn.Module], size: int, factor: float, gamma: int, settings: dict[str, Any],
    generator: torch.Generator | None, init: str,
) -> Ensemble:  # fmt: skip
    def thin() -> nn.Module:
        model = build("packed", builder, None, factor)
        groups = groups_of(model, 1.0, gamma, settings["where"], settings["min_channels"])
        return group_(model, groups, generator)

    members = members_of("packed", thin, size, init, generator)
    return stack("packed", members, settings={**settings, "init": "same"})


def _thinned(model: nn.Module, example: Any, factor: float, groups: dict[str, int]) -> Widths:
    if example is None:
        raise ValueError(
            "packed: to make a model thinner it must be run once, but there is no example. Give example=x, as one "
            "call of the model takes it, or a function width_factor -> nn.Module instead of the model."
        )
    widths = solve(model, example, factor, multiples=groups)
    if all(widths.sizes[name] == tuple(tensor.shape) for name, tensor in model.named_parameters()):
        raise ValueError(
            f"packed: no hidden width of the model can be multiplied by {factor:g}: every one is bound to its inputs, "
            f"its outputs or a number in its code. The layers are {listed(weighted(model))}. "
            "Give a function width_factor -> nn.Module instead of the model."
        )
    return widths


def _thinning_notes(model: nn.Module, widths: Widths | None) -> list[str]:
    """What did not come out as asked for."""
    if widths is None:
        return []
    notes = [
        f"layer {r.layer!r} has width {r.width}, which was rounded up from {r.exact:g} to {r.chosen}"
        for r in widths.rounded
    ]
    for name, layer in weighted(model).items():
        if widths.sizes.get(within(name, "weight")) == tuple(cast(Tensor, layer.weight).shape):
            notes.append(f"layer {name!r} keeps its widths, which are bound to numbers in the model's code")
    return notes


# -------------------------------------------------------------------- masks


def _grown(
    model: nn.Module, size: int, scale: float, capacity: float, example: Any, names: list[str],
    widths: Widths | None, generator: torch.Generator | None,
) -> tuple[nn.Module, Widths]:  # fmt: skip
    """The model with the masked widths grown to M * S - D."""
    if widths is None:
        if example is None:
            raise ValueError("masksembles: with capacity= layers grow, and the model must be run once. Give example=x.")

        def grow(width: int) -> int:
            return sampler.grown(max(1, round(capacity * width)), size, scale, generator)

        widths = solve(model, example, grow, layers=names)
    return rebuild(model, widths, generator), widths


def _ones(wanted: float, width: int, size: int) -> int:
    return min(max(round(wanted), -(-width // size), 1), width)


# -------------------------------------------------------------------- rank-1 vectors


def _rank_one_(layer: nn.Module, size: int, init: str, std: float, generator: torch.Generator | None) -> None:
    weight = cast(Tensor, layer.weight)
    outputs = outputs_of(layer)

    def draw(channels: int) -> nn.Parameter:
        normal = torch.randn(size, channels, generator=generator)
        drawn = 1 + std * normal if init == "normal" else normal.sign()
        return nn.Parameter(drawn.to(weight.device, weight.dtype))

    layer.r, layer.s = draw(inputs_of(layer)), draw(outputs)
    bias = cast("nn.Parameter | None", layer.bias)
    layer.register_parameter(
        "b", None if bias is None else nn.Parameter(bias.detach().repeat(size, 1), bias.requires_grad)
    )
    layer.register_parameter("bias", None)
    _begin_(layer, RankOne)


def _whole(method: str, name: str, value: Any) -> int:
    return int(checked_number(method, name, value, "a whole number from 1 on", lambda v: v >= 1 and v == v // 1))


def _begin_(layer: nn.Module, mixin: type) -> None:
    adapt_(layer, mixin)
    cast(PerMember, layer).begin_()


METHODS: dict[str, Callable[..., Ensemble]] = {
    method.__name__: method
    for method in (single, deep, packed, masksembles, batch_ensemble, mc_dropout, mimo, treenet, multihead)
}
