"""Packed-Ensembles: independent thin networks, whose layers may be split into groups that do not mix."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..core.ensemble import Ensemble
from ..surgery.calling import check_example
from ..surgery.closures import refuse_hidden
from ..surgery.copying import duplicate, state
from ..surgery.dataflow import find_exits
from ..surgery.initial_laws import Laws, draw_anew_
from ..surgery.initialization import resize_evenly
from ..surgery.selecting import CONVOLUTIONS, dotted_name, matches, pick, quote_names, weighted_layers
from ..surgery.thinning.attributes import named_tensors
from ..surgery.thinning.rescaling import solve_widths
from ..surgery.thinning.widths import Widths, rebuild
from .adapted_layers import GroupedLinear
from .building import (
    INITS,
    Init,
    call_builder,
    check_choice,
    check_model,
    check_number,
    check_size,
    check_whole,
    members_of,
    note_guesses,
    refuse_alike,
    stack,
)
from .method_info import REFUSALS, Candidate, Paper, PlanRequest, first_line, method_info


def groups_of(model: nn.Module, factor: float, gamma: int, where: str | None, least: int) -> dict[str, int]:
    """How many groups gamma makes in each chosen layer of a member that is `factor` as wide as the model."""
    if gamma == 1:
        return {}
    given, where = where, where or getattr(model, "takes_gamma", None)
    if not isinstance(where, str):
        raise ValueError(
            f"packed: gamma {gamma} needs to know which layers take groups, but the model does not say. "
            f"Choose with where= among: {quote_names(weighted_layers(model))}."
        )
    if given is None and not any(matches(where, name) for name in weighted_layers(model)):
        return {}  # a small model of ours, which has no layer that takes groups
    layers = {name: model.get_submodule(name) for name in pick("packed", where, weighted_layers(model))}
    return {name: _lower_gamma(layer, factor, gamma, least) for name, layer in layers.items()}


def _lower_gamma(layer: nn.Module, factor: float, gamma: int, least: int) -> int:
    """Gamma, lowered until a group of a convolution has at least `least` inputs."""
    if not isinstance(layer, CONVOLUTIONS):
        return gamma
    inputs = math.ceil(layer.in_channels * factor - 1e-9) / layer.groups
    return max((g for g in range(1, gamma + 1) if inputs / g >= least), default=1)


def group_(model: nn.Module, groups: dict[str, int], generator: torch.Generator | None) -> nn.Module:
    """The model with its layers split into groups, in place, and the weights of those drawn anew."""
    laws = Laws(model) if any(gamma > 1 for gamma in groups.values()) else None
    if laws is not None:
        split_into_groups_(model, groups)
        names = [dotted_name(name, key) for name, gamma in groups.items() if gamma > 1 for key in ("weight", "bias")]
        draw_anew_(model, laws, generator, names)
    return model


def split_into_groups_(model: nn.Module, groups: dict[str, int]) -> None:
    """Split layers into groups, in place; their weights then follow no law of initialization."""
    for name, gamma in groups.items():
        layer = model.get_submodule(name)
        if gamma == 1:
            continue
        if isinstance(layer, nn.Linear):
            grouped = GroupedLinear(layer.in_features, layer.out_features, gamma, layer.bias is not None)
            for key, parameter in layer.named_parameters(recurse=False):
                fresh = grouped.get_parameter(key).to(parameter)
                setattr(grouped, key, nn.Parameter(fresh.detach(), parameter.requires_grad))
            model.set_submodule(name, grouped.train(layer.training))
            continue
        assert isinstance(layer, CONVOLUTIONS)
        layer.groups *= gamma
        if layer.in_channels % layer.groups or layer.out_channels % layer.groups:
            raise ValueError(
                f'packed: {layer.groups} groups must divide the channels of layer "{name}", but it has '
                f"{layer.in_channels} and {layer.out_channels}. Choose another gamma, or leave it out with where=."
            )
        weight = layer.weight
        shape = (weight.shape[0], weight.shape[1] // gamma, *weight.shape[2:])
        layer.weight = nn.Parameter(resize_evenly(weight, shape), weight.requires_grad)


def _candidates(request: PlanRequest) -> Iterator[Candidate]:
    """Thinner members only; gamma where the model says which layers take it, and where it makes a difference."""

    @cache
    def member(factor: float, groups: tuple[tuple[str, int], ...]) -> nn.Module | str:
        try:
            widths = solve_widths(request.model, request.example, factor, multiples=dict(groups))
            if all(widths.sizes[name] == tuple(t.shape) for name, t in request.model.named_parameters()):
                return f"no hidden width of the model can be multiplied by {factor:g}"
            return rebuild(request.model, widths, change=partial(split_into_groups_, groups=dict(groups)))
        except REFUSALS as error:
            return first_line(error)

    gammas = request.options["gammas"] if getattr(request.model, "takes_gamma", None) else (1,)
    for size, alpha, gamma in itertools.product(request.sizes, request.options["alphas"], gammas):
        groups = groups_of(request.model, alpha / size, gamma, None, 64) if alpha < size else {}
        if alpha >= size or (gamma > 1 and not any(g > 1 for g in groups.values())):
            continue  # not thinner than the model, or the same network as with gamma 1
        settings = {"alpha": alpha, "gamma": gamma}
        made = member(alpha / size, tuple(sorted(groups.items())))
        if isinstance(made, str):
            yield Candidate({"size": size, **settings}, size, reason=made)
        else:
            yield Candidate(settings, size, member=made, width=alpha / size)


@method_info(
    candidates=_candidates,
    paper=Paper(
        "Laurent, Olivier and Lafage, Adrien and Tartaglione, Enzo and Daniel, Geoffrey and Martinez, Jean-Marc and "
        "Bursuc, Andrei and Franchi, Gianni",
        "Packed-Ensembles for Efficient Uncertainty Estimation",
        2023,
        "International Conference on Learning Representations",
    ),
)
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

    Shapes:
        input: (batch, *features), as the model takes it
        output of the ensemble: (members, batch, *outputs)

    Args:
        model: a model (then `example` is needed), or a function width_factor -> nn.Module
        size: how many members
        alpha: how wide all members together are, relative to the model
        gamma: groups in the layers that `where` chooses (a model of ours says itself which); lowered where a group
            of a convolution would have fewer than `min_channels` inputs
        example: what one call takes, by which widths are followed through the model
        where: the layers that get groups, a pattern of names
        strict: refuse widths that do not divide, instead of rounding them up
        init: "different": each member's tensors are drawn anew; "same": all start with the first member's
        widths: the members' sizes, where they are known already; then no example is needed
        generator: where random numbers come from; by default torch's own generator

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> ensemble = packed(model, 4, alpha=2, example=torch.randn(5, 4))
    >>> ensemble.member(0)[0], ensemble(torch.zeros(5, 4)).shape  # half of the eight hidden units
    (Linear(in_features=4, out_features=4, bias=True), torch.Size([4, 5, 3]))
    """
    size = check_size("packed", size)
    alpha = check_number("packed", "alpha", alpha, "a positive number", lambda v: 0 < v < math.inf)
    gamma = check_whole("packed", "gamma", gamma)
    min_channels = check_whole("packed", "min_channels", min_channels)
    factor = alpha / size
    settings: dict[str, Any] = {"alpha": alpha, "gamma": gamma, "where": where, "min_channels": min_channels}
    if callable(model) and not isinstance(model, nn.Module):
        return _packed_builder(model, size, factor, gamma, settings, generator, init)
    model = duplicate(check_model("packed", model))  # a weight that is read may change, as spectral norms do
    refuse_hidden("packed", model, dict(state(model)))
    groups = groups_of(model, factor, gamma, where, min_channels)
    if example is not None:
        check_example("packed", model, example)
    if widths is None and not math.isclose(factor, 1):
        widths = _solve_thin_widths(model, example, factor, groups)
    notes = _thinning_notes(model, widths)
    followed = [*widths.followed, *_note_kept_outputs(model, widths, example)] if widths else []
    if strict and notes:
        raise ValueError(
            f"packed: size {size} with alpha {alpha:g} and gamma {gamma} needs divisible hidden widths, but "
            f"{notes[0]}. Choose alpha={size}, change that layer, or leave strict=True out."
        )
    members, guesses = _members(model, size, widths, groups, init, generator, example)
    notes += followed + guesses + [f"gamma {g} in {name!r}" for name, g in groups.items() if g > 1]
    settings |= {"init": "same", "widths": widths and widths.to_json()}
    made = stack("packed", members, settings=settings, notes=notes)
    if kept := [note for note in notes if KEPT in note]:
        made.runner.hint = (
            f"Of the model's layers, {kept[0]}. If the example did not reach that layer, give an example that does, or "
            "a function width_factor -> nn.Module."
        )
    return made


def _members(
    model: nn.Module, size: int, widths: Widths | None, groups: dict[str, int], init: str,
    generator: torch.Generator | None, example: Any,
) -> tuple[list[nn.Module], list[str]]:  # fmt: skip
    """Thin models, each drawn by the laws of the given one, and notes about what was guessed."""
    check_choice("packed", "init", init, INITS)
    if widths is None and init == "same":
        return members_of("packed", group_(model, groups, generator), size, init, generator), []
    laws = Laws(model)
    sizes = widths or Widths({name: tuple(tensor.shape) for name, tensor in named_tensors(model).items()})

    def thin() -> nn.Module:
        return rebuild(model, sizes, generator, laws=laws, change=partial(split_into_groups_, groups=groups))

    members = [thin() for _ in range(size)] if init == "different" else [thin()] * size
    refuse_alike("packed", members, list(dict(state(members[0]))), init)
    if example is not None:
        _check_runs(members[0], example)
    return members, note_guesses(laws)


def _check_runs(member: nn.Module, example: Any) -> None:
    """Sizes that fit in a dry run may not fit what a model computes of its weights (orthogonal parametrizations)."""
    try:
        check_example("packed", member, example)
    except ValueError as error:
        raise ValueError(
            f"packed: with new widths the model does not run: {error.__cause__}. "
            "Give a function width_factor -> nn.Module instead of the model."
        ) from error


def _packed_builder(
    builder: Callable[[float], nn.Module], size: int, factor: float, gamma: int, settings: dict[str, Any],
    generator: torch.Generator | None, init: str,
) -> Ensemble:  # fmt: skip
    def thin() -> nn.Module:
        model = call_builder("packed", builder, None, factor)
        groups = groups_of(model, 1.0, gamma, settings["where"], settings["min_channels"])
        return group_(model, groups, generator)

    members = members_of("packed", thin, size, init, generator)
    return stack("packed", members, settings={**settings, "init": "same"})


def _solve_thin_widths(model: nn.Module, example: Any, factor: float, groups: dict[str, int]) -> Widths:
    if example is None:
        raise ValueError(
            "packed: the model must be run once to make it thinner, but there is no example. Give example=x, the "
            "input of one call, or a function width_factor -> nn.Module instead of the model."
        )
    widths = solve_widths(model, example, factor, multiples=groups)
    if all(widths.sizes[name] == tuple(tensor.shape) for name, tensor in model.named_parameters()):
        raise ValueError(
            f"packed: no hidden width of the model can be multiplied by {factor:g}: each is tied to its inputs, its "
            f"outputs or a number in its code. The layers are {quote_names(weighted_layers(model))}. "
            "Give a function width_factor -> nn.Module instead of the model."
        )
    return widths


KEPT = "keeps its widths"


def _thinning_notes(model: nn.Module, widths: Widths | None) -> list[str]:
    """What did not come out as asked for."""
    if widths is None:
        return []
    notes = [
        f"layer {r.layer!r} has width {r.width}, which was rounded up from {r.exact:g} to {r.chosen}"
        for r in widths.rounded
    ]
    for name, layer in weighted_layers(model).items():
        if widths.sizes.get(dotted_name(name, "weight")) == tuple(cast(Tensor, layer.weight).shape):
            notes.append(f"layer {name!r} {KEPT}, tied to numbers in the model's code or not reached by the example")
    return notes


def _note_kept_outputs(model: nn.Module, widths: Widths, example: Any) -> list[str]:
    """A line about layers that read fewer channels but make as many, although they do not give the model's output."""
    kept = []
    for name, layer in weighted_layers(model).items():
        before, after = tuple(cast(Tensor, layer.weight).shape), widths.sizes.get(dotted_name(name, "weight"))
        dim = 1 if getattr(layer, "transposed", False) else 0
        ranked = any(note.startswith(f"{before[dim]} outputs that the model ranks") for note in widths.followed)
        if after is not None and after != before and after[dim] == before[dim] > 1 and not ranked:
            kept.append(name)
    if len(kept) < 2 or example is None:  # one gives the output
        return []
    exits = find_exits(model, example)
    names = [name for name in kept if name not in exits]
    return [f"{quote_names(names, 6)} keep their outputs, tied to numbers in the model's code"] if names else []
