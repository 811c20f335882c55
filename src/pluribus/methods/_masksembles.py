"""Masksembles: one network, and a fixed binary mask before each layer for every member."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..core.ensemble import Ensemble
from ..core.feeds import SHARE, TILE
from ..surgery.copying import duplicate
from ..surgery.replacing import expose_weights
from ..surgery.selecting import CONVOLUTIONS, dotted_name, exact_pattern, quote_names
from ..surgery.thinning.rescaling import solve_widths
from ..surgery.thinning.widths import Widths, rebuild
from . import mask_sampler as sampler
from .adapted_layers import OWNED, Masked, MemberLayer
from .building import begin_, check_model, check_number, check_size
from .layer_choice import check_all_called, count_input_channels, layers_of, note_left_out
from .method_info import REFUSALS, Candidate, Paper, PlanRequest, first_line, method_info
from .warm_start import SHARES, last_layers, warn_if_trained, weaker


def _nearer(given: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Fewer and fewer of the last layers, then the last one with masks that overlap more and more."""
    if given["capacity"] is not None:
        raise ValueError(
            "masksembles: layers that grow get new weights, so trained= and capacity= exclude each other. Give one of "
            "them."
        )
    view = expose_weights(given["model"])
    meant = layers_of("masksembles", view, given["where"], given["example"], but_first=True, per_row=True)
    for names, share in weaker(last_layers(meant), SHARES):
        yield {"scale": 1 + (given["scale"] - 1) * share, "where": exact_pattern(names), "example": None}


@method_info(
    nearer=_nearer,
    candidates=lambda request: _candidates(request),
    paper=Paper(
        "Durasov, Nikita and Bagautdinov, Timur and Baque, Pierre and Fua, Pascal",
        "Masksembles for Uncertainty Estimation",
        2021,
        "IEEE/CVF Conference on Computer Vision and Pattern Recognition",
    ),
)
def masksembles(
    model: nn.Module,
    size: int,
    scale: float = 2.0,
    capacity: float | None = None,
    example: Any = None,
    *,
    where: str | None = None,
    after: bool = False,
    repeat: bool = False,
    widths: Widths | None = None,
    trained: Any = None,
    generator: torch.Generator | None = None,
) -> Ensemble:
    """One network, and for each member a fixed binary mask before every masked layer (Durasov et al., 2021).

    In training each row goes through one member's masks, chosen at random and balanced over the batch; all layers
    use the same member for a row, and normalisation layers are shared. Activations are not rescaled.

    Shapes:
        input: (batch, *features), as the model takes it
        output of the ensemble: (members, batch, *outputs)
        masks: (members, channels), one for each masked layer

    Args:
        size: how many members
        scale: the paper's S: 1 is a single network; the larger, the less the masks overlap (IoU 1 / (2 S - 1))
        capacity: None: the network keeps its widths and its weights. A number: each mask keeps that fraction of a
            layer's original width, and layers grow to M * S - D channels, with fresh weights
        example: what one call takes; needed with `capacity`, where widths are unknown
        where: the layers to mask; by default every convolution and linear layer but the first
        after: mask what a layer gives instead of what it reads, by default of every convolution; with `repeat`, every
            row goes through all masks in training: Packed-Ensembles' comparison (appendix B). Not with `capacity`
        widths: the grown sizes, where they are known already; then no example is needed
        trained: a batch of inputs says that the model's weights are trained: of the layers meant, only so many of the
            last ones are masked that members keep 95 % of the network's answers on them; False: they are not
        generator: where random numbers come from; by default torch's own generator

    >>> ensemble = masksembles(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), 4, scale=2.0)
    >>> ensemble(torch.zeros(5, 4)).shape, [tuple(mask.shape) for mask in ensemble.buffers()]
    (torch.Size([4, 5, 3]), [(4, 8)])
    """
    size = check_size("masksembles", size)
    scale = check_number("masksembles", "scale", scale, "finite and at least 1", lambda v: 1 <= v < math.inf)
    if capacity is not None:
        capacity = check_number(
            "masksembles", "capacity", capacity, "a positive fraction of a layer's width", lambda v: 0 < v < math.inf
        )
        if after:
            raise ValueError(
                "masksembles: capacity= lets masked layers read more channels, so after= and capacity= exclude each "
                "other. Give one of them."
            )
    model = expose_weights(check_model("masksembles", model))
    if scale > 1:
        warn_if_trained("masksembles", model, trained, "masks drop much of what its layers compute")
    names = layers_of("masksembles", model, where, example, but_first=not after, per_row=True)
    if after and where is None:
        names = [name for name in names if isinstance(model.get_submodule(name), CONVOLUTIONS)] or names
    before = {name: _count_masked(model.get_submodule(name), after) for name in names}
    if capacity is not None:
        model, widths = _grow(model, size, scale, capacity, example, names, widths, generator)
    channels = {name: _count_masked(model.get_submodule(name), after) for name in names}
    ones = None if capacity is None else {name: capacity * before[name] for name in names}
    masks = _draw_masks(channels, size, scale, ones, generator)
    if size > 1 and scale > 1 and all(mask.all() for mask in masks.values()):
        raise ValueError(
            f"masksembles: every mask is all ones, because the widths of {quote_names(names, 6)} cannot grow or are "
            "too small: all members would be the same. Choose other layers with where=, or leave capacity= out."
        )
    settings: dict[str, Any] = {"scale": scale, "capacity": capacity, "where": exact_pattern(names)}
    settings |= {"widths": widths and widths.to_json(), "after": after, "repeat": repeat}
    notes = [f"masks {'after' if after else 'before'} {len(names)} layers: {quote_names(names, 6)}"]
    notes += note_left_out(model, names, example, where)
    own = _add_masks_(model, masks, MaskedAfter if after else Masked)
    return Ensemble(
        model, size, own, method="masksembles", settings=settings, feed=TILE if repeat else SHARE, notes=notes,
        first_look=check_all_called, example=example,
    )  # fmt: skip


# -------------------------------------------------------------------- masks


class MaskedAfter(MemberLayer):
    """A layer whose output channels are dropped by a member's fixed mask."""

    mask: Tensor

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The masked output of the layer; activations are not rescaled."""
        y = super().forward(input, *args, **kwargs)  # type: ignore[misc]
        return y * self.own(self.mask, y)


OWNED[MaskedAfter] = ("mask",)


def _count_masked(layer: nn.Module, after: bool) -> int:
    """The channels that a mask of this layer is for."""
    if not after:
        return count_input_channels(layer)
    return int(getattr(layer, "out_channels", 0) or cast(Tensor, layer.weight).shape[0])


def _grow(
    model: nn.Module, size: int, scale: float, capacity: float, example: Any, names: list[str],
    widths: Widths | None, generator: torch.Generator | None,
) -> tuple[nn.Module, Widths]:  # fmt: skip
    """The model with the masked widths grown to M * S - D."""
    if widths is None:
        if example is None:
            raise ValueError("masksembles: with capacity= layers grow, so the model must be run once. Give example=x.")

        def grow(width: int) -> int:
            return sampler.grow_width(max(1, round(capacity * width)), size, scale, generator)

        widths = solve_widths(model, example, grow, layers=names)
    return rebuild(model, widths, generator), widths


def _draw_masks(
    widths: Mapping[str, int], size: int, scale: float, ones: Mapping[str, float] | None,
    generator: torch.Generator | None,
) -> dict[str, Tensor]:  # fmt: skip
    """Masks of layers of these widths, (members, channels), with as many ones as the scale or `ones` asks for."""
    drawn = {}
    for name, width in widths.items():
        kept = None if ones is None else min(max(round(ones[name]), -(-width // size), 1), width)
        drawn[name] = sampler.masks(width, size, scale if kept is None else None, capacity=kept, generator=generator)
    return drawn


def _add_masks_(model: nn.Module, masks: Mapping[str, Tensor], mixin: type) -> list[str]:
    """Give layers their masks; the names of these."""
    for name, mask in masks.items():
        layer = model.get_submodule(name)
        layer.register_buffer("mask", mask.to(cast(Tensor, layer.weight)))
        begin_(layer, mixin)
    return [dotted_name(name, "mask") for name in masks]


# -------------------------------------------------------------------- for plans


def _candidates(request: PlanRequest) -> Iterator[Candidate]:
    view, scales = expose_weights(request.model), request.options["scales"]
    names = layers_of("masksembles", view, None, request.example, but_first=True, per_row=True)
    parameters = sum(p.numel() for p in request.model.parameters())
    masked = partial(_with_empty_masks, view, names)
    for size, scale in itertools.product(request.sizes, scales):  # the network keeps its widths
        capacity, width = _kept_share(view, names, scale, size, parameters)
        masks = _usual_masks(view, names, size, scale)
        iou = sampler.expected_iou(scale)
        yield Candidate({"scale": scale}, size, family=masked, capacity=capacity, width=width, iou=iou, masks=masks)
    for capacity, size, scale in itertools.product(request.options["capacities"], request.sizes, scales):  # layers grow
        yield _grown_candidate(request, view, names, size, scale, capacity)


def _with_empty_masks(view: nn.Module, names: Sequence[str], size: int) -> Ensemble:
    """As `masksembles`, with masks that have no values."""
    model = duplicate(view)
    ones = {name: torch.ones(size, count_input_channels(model.get_submodule(name))) for name in names}
    return Ensemble(model, size, _add_masks_(model, ones, Masked), method="masksembles", feed=SHARE)


def _usual_masks(
    model: nn.Module, names: Sequence[str], size: int, scale: float, ones: Mapping[str, float] | None = None
) -> dict[str, Tensor]:
    """Masks such as `masksembles` draws, always the same: (members, channels) of each layer."""
    widths = {name: count_input_channels(model.get_submodule(name)) for name in names}
    drawn = _draw_masks(widths, size, scale, ones, torch.Generator().manual_seed(0))
    return {name: mask.bool() for name, mask in drawn.items()}


def _kept_share(view: nn.Module, names: Sequence[str], scale: float, size: int, parameters: int) -> tuple[float, float]:
    """The share of the parameters that a mask lets through, and the mean share of the channels."""
    dropped, ones, channels = 0.0, 0, 0
    for name in names:
        layer = view.get_submodule(name)
        inputs = count_input_channels(layer)
        kept = sampler.ones(inputs, size, scale)
        dropped += cast(Tensor, layer.weight).numel() * (1 - kept / inputs)
        ones, channels = ones + kept, channels + inputs
    return 1 - dropped / parameters, ones / channels


def _grown_candidate(
    request: PlanRequest, view: nn.Module, names: Sequence[str], size: int, scale: float, capacity: float
) -> Candidate:
    """Masks of a given width m: layers grow to an expected m S (1 - (1 - 1/S)^n)."""
    settings = {"scale": scale, "capacity": capacity}

    def grow(width: int) -> int:
        kept = max(1, round(capacity * width))
        return max(kept, round(kept * scale * (1 - (1 - 1 / scale) ** size)))

    try:
        wide = rebuild(view, solve_widths(view, request.example, grow, layers=names))
    except REFUSALS as error:
        return Candidate({"size": size, **settings}, size, reason=first_line(error))
    parameters = sum(p.numel() for p in request.model.parameters())
    share = sum(cast(Tensor, view.get_submodule(name).weight).numel() for name in names) / parameters
    used = 1 + share * (capacity**2 - 1)  # inputs and outputs of the masked layers
    masked = partial(_with_empty_masks, wide, names)
    ones = {name: capacity * count_input_channels(view.get_submodule(name)) for name in names}
    return Candidate(
        settings, size, family=masked, network=wide, capacity=used, width=capacity,
        iou=sampler.expected_iou(scale), masks=_usual_masks(wide, names, size, scale, ones), expected=True,
    )  # fmt: skip
