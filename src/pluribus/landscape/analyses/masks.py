"""Masksembles between one network, MC-Dropout and independent ones; packed members of every width; widths of one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from ...core.ensemble import Ensemble
from ...methods import deep, masksembles, mc_dropout, packed, single
from ...methods import mask_sampler as sampler
from ...methods.building import check_whole
from ...results.intervals import t_interval
from ...surgery.selecting import exact_pattern
from ...uncertainty.resampling import Interval
from .trained_settings import CRITERIA, Measured, example_of, measure_settings, redraw


def mask_overlap(
    sizes: Sequence[int] = (2, 4, 8, 16),
    scales: Sequence[float] = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0),
    *,
    ones: int = 64,
    draws: int = 20,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """Overlap and size of drawn masks beside their closed forms (Figures 3 and 12).

    Args:
        ones: the paper's M, of every mask
        draws: sets of masks for each size and scale
        seed: of the masks

    Shapes:
        "iou", "size": measured: (sizes, scales, 3), the mean and the ends of its interval over draws; "size" is the
            width that the masks need, relative to `ones`
        "iou_paper": 1 / (2 S - 1), "iou_exact": the expected value itself: (scales)
        "size_paper": S (1 - (1 - 1/S)^N): (sizes, scales)

    >>> found = mask_overlap(sizes=(4,), scales=(1.0, 2.0), ones=16, draws=5)
    >>> found["iou"][0, 0].tolist(), found["iou_paper"].round(3).tolist()
    ([1.0, 1.0, 1.0], [1.0, 0.333])
    """
    ones, draws = check_whole("mask_overlap", "ones", ones), check_whole("mask_overlap", "draws", draws)
    generator = torch.Generator().manual_seed(seed)
    iou, size = np.empty((len(sizes), len(scales), 3)), np.empty((len(sizes), len(scales), 3))
    for i, members in enumerate(sizes):
        for j, scale in enumerate(scales):
            drawn = [_draw(ones, members, scale, generator) for _ in range(draws)]
            iou[i, j] = t_interval([one[0] for one in drawn])
            size[i, j] = t_interval([one[1] for one in drawn])
    every, counts = np.asarray(scales, float), np.asarray(sizes)[:, None]
    return {
        "iou": iou,
        "iou_paper": 1 / (2 * every - 1),
        "iou_exact": np.array([exact_iou(ones, round(ones * s)) for s in scales]),
        "size": size,
        "size_paper": every * (1 - (1 - 1 / every) ** counts),
    }


def exact_iou(ones: int, positions: int) -> float:
    """The exact expected intersection over union of two masks with this many ones at random positions.

    The paper divides the expected intersection by the expected union, which is 1 / (2 S - 1) and a little less.

    >>> round(exact_iou(2, 4), 4), round(exact_iou(200, 400), 4)
    (0.3889, 0.3337)
    """
    common = range(max(0, 2 * ones - positions), ones + 1)
    ways = [math.comb(ones, c) * math.comb(positions - ones, ones - c) for c in common]
    return sum(w / math.comb(positions, ones) * (c / (2 * ones - c)) for w, c in zip(ways, common, strict=True))


def _draw(ones: int, members: int, scale: float, generator: torch.Generator) -> tuple[float, float]:
    """IoU and relative width of one set of masks."""
    width = sampler.grow_width(ones, members, scale, generator)
    return sampler.mean_mask_iou(sampler.masks(width, members, capacity=ones, generator=generator)), width / ones


def mask_transition(
    model: nn.Module,
    train: Any,
    test: Any,
    *,
    scales: Sequence[float] = (1.1, 2.0, 3.0, 5.0),
    size: int = 4,
    capacity: float | None = 1.0,
    where: str | None = None,
    **options: Any,
) -> Measured:
    """From one network to independent ones, as the masks overlap less (Figures 4, 8, 9, 13 and 14).

    Settings are "single", "S 1.1", ..., "deep".

    Args:
        train, test: (x, y), a data set or a loader
        model: the network that masks are put into
        scales: values of S
        size: how many members
        capacity: every mask keeps that fraction of the widths, and layers grow (Figures 4, 9, 13); None: the network
            keeps its widths, and members get thinner (Figure 8)
        where: the layers that are masked; by default all but the first
        options: outside, shifts, seeds, progress, and as for `pb.fit`

    >>> x, y = torch.randn(24, 4), torch.arange(24) % 3
    >>> network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> mask_transition(network, (x, y), (x, y), scales=[2.0], capacity=None, seeds=1, epochs=1).settings
    ['single', 'S 2', 'deep']
    """
    example = example_of(train)
    entries: dict[str, Callable[[], Ensemble]] = {"single": lambda: single(redraw(model))}
    about: dict[str, dict[str, Any]] = {}
    for scale in scales:
        entries[f"S {scale:g}"] = partial(_build_masksembles, model, size, scale, capacity, example, where)
        about[f"S {scale:g}"] = {"scale": scale, "iou": sampler.expected_iou(scale)}
    entries["deep"] = lambda: deep(model, size)
    return measure_settings(entries, train, test, about=about, **options)


def dropout_transition(
    model: nn.Module,
    train: Any,
    test: Any,
    *,
    sizes: Sequence[int] = (2, 4, 8, 16, 32),
    scale: float = 2.0,
    where: str | None = None,
    **options: Any,
) -> Measured:
    """From independent networks to MC-Dropout, as masks become many (Figure 5).

    Settings are "deep", with as many members as the first size, "N 2", "N 4", ..., and "mc_dropout" with the rate
    1 - 1/S before the same layers, and as many draws as the last size. All have the widths of the model.

    Args:
        sizes: numbers of masks to try
        scale: S of the masks
        model, where, train, test, options: as for `mask_transition`

    >>> x, y = torch.randn(24, 4), torch.arange(24) % 3
    >>> network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> dropout_transition(network, (x, y), (x, y), sizes=[2, 4], seeds=1, epochs=1).settings
    ['deep', 'N 2', 'N 4', 'mc_dropout']
    """
    if not scale > 1:
        raise ValueError(f"dropout_transition: a dropout rate of 1 - 1/S needs a scale above 1, but it is {scale}.")
    example = example_of(train)
    entries: dict[str, Callable[[], Ensemble]] = {"deep": lambda: deep(model, sizes[0])}
    for size in sizes:
        entries[f"N {size}"] = partial(_build_masksembles, model, size, scale, None, example, where)
    layers = where or masked_layers(model, example)
    entries["mc_dropout"] = partial(_build_dropout, model, sizes[-1], 1 - 1 / scale, example, layers)
    return measure_settings(entries, train, test, about={f"N {size}": {"size": size} for size in sizes}, **options)


def mask_grid(
    model: nn.Module,
    train: Any,
    test: Any,
    *,
    scales: Sequence[float] = (1.0, 2.0, 3.0, 5.0),
    capacities: Sequence[float] = (0.3, 1.0, 2.0),
    size: int = 4,
    rate: float = 0.1,
    where: str | None = None,
    **options: Any,
) -> Measured:
    """Every overlap with every capacity, beside one network, MC-Dropout and independent ones (Figure 7).

    Settings are "single", "mc_dropout", "deep" and "S 2, M 1" for a scale of 2 and a capacity of 1.

    Args:
        capacities: what each mask keeps, relative to the original widths
        rate: of MC-Dropout; `dropout_grid` chooses one on validation data
        model, train, test, scales, size, where, options: as for `mask_transition`

    >>> x, y = torch.randn(24, 4), torch.arange(24) % 3
    >>> network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> mask_grid(network, (x, y), (x, y), scales=[2.0], capacities=[1.0], seeds=1, epochs=1).settings
    ['single', 'mc_dropout', 'deep', 'S 2, M 1']
    """
    example = example_of(train)
    entries: dict[str, Callable[[], Ensemble]] = {
        "single": lambda: single(redraw(model)),
        "mc_dropout": partial(_build_dropout, model, size, rate, example, where),
        "deep": lambda: deep(model, size),
    }
    about = {}
    for scale in scales:
        for capacity in capacities:
            name = f"S {scale:g}, M {capacity:g}"
            entries[name] = partial(_build_masksembles, model, size, scale, capacity, example, where)
            about[name] = {"scale": scale, "capacity": capacity, "iou": sampler.expected_iou(scale)}
    return measure_settings(entries, train, test, about=about, **options)


def dropout_grid(
    model: nn.Module,
    train: Any,
    validation: Any,
    *,
    rates: Sequence[float] = (0.05, 0.1, 0.2, 0.3, 0.5),
    size: int = 4,
    figure: str = "nll",
    where: str | None = None,
    **options: Any,
) -> tuple[float, Measured]:
    """The dropout rate that is best on validation data, as a mean over seeds, and what each gave (section 4.2).

    Args:
        rates: dropout rates to try
        size: samples of a prediction
        figure: what is smallest at the best rate, or largest if it is "accuracy"
        model, train, where, options: as for `mask_transition`

    >>> x, y = torch.randn(24, 4), torch.arange(24) % 3
    >>> network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> rate, measured = dropout_grid(network, (x, y), (x, y), rates=[0.1, 0.5], seeds=1, epochs=1)
    >>> rate in (0.1, 0.5)
    True
    """
    example = example_of(train)
    entries = {f"rate {rate:g}": partial(_build_dropout, model, size, rate, example, where) for rate in rates}
    about: Mapping[str, Mapping[str, Any]] = {f"rate {rate:g}": {"rate": rate} for rate in rates}
    measured = measure_settings(entries, train, validation, about=about, **options)
    sign = -1 if figure == "accuracy" else 1
    best = min(rates, key=lambda rate: sign * measured.interval(f"rate {rate:g}", figure).value)
    return best, measured


def _build_masksembles(
    model: nn.Module, size: int, scale: float, capacity: float | None, example: Any, where: str | None
) -> Ensemble:
    return masksembles(redraw(model), size, scale, capacity, example, where=where)


def _build_dropout(model: nn.Module, size: int, rate: float, example: Any, where: str | None) -> Ensemble:
    return mc_dropout(redraw(model), size, rate, where=where, example=example)


def masked_layers(model: nn.Module, example: Any) -> str:
    """The layers before which masks are by default, as a pattern."""
    made = masksembles(model, 2, example=example)
    return exact_pattern([name.removesuffix(".mask") for name in made.own])


def packing(
    model: nn.Module,
    train: Any,
    test: Any,
    *,
    alphas: Sequence[float] = (1, 2, 3, 4),
    gammas: Sequence[int] = (1,),
    sizes: Sequence[int] = (4,),
    where: str | None = None,
    min_channels: int = 64,
    **options: Any,
) -> Measured:
    """Packed-Ensembles for every alpha, gamma and M, beside one network and independent ones (Figures 6, 7; Table 5).

    Settings are "single", "deep", with the first size, and "alpha 2, gamma 1, M 4".

    Args:
        train, test: (x, y), a data set or a loader
        model: the network that is packed
        alphas: how wide all members together are
        gammas: numbers of groups
        sizes: numbers of members
        where, min_channels: as for `pb.packed`: which layers take groups, and how small those may be
        options: outside, shifts, seeds, progress, and as for `pb.fit`

    >>> x, y = torch.randn(24, 4), torch.arange(24) % 3
    >>> network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> packing(network, (x, y), (x, y), alphas=[2], sizes=[2], seeds=1, epochs=1).settings
    ['single', 'deep', 'alpha 2, gamma 1, M 2']
    """
    example = example_of(train)
    entries: dict[str, Callable[[], Ensemble]] = {
        "single": lambda: single(redraw(model)),
        "deep": lambda: deep(model, sizes[0]),
    }
    about = {}
    for alpha, gamma, size in ((a, g, m) for m in sizes for g in gammas for a in alphas):
        name = f"alpha {alpha:g}, gamma {gamma}, M {size}"
        layers = where if gamma > 1 else None
        entries[name] = partial(packed, model, size, alpha, gamma, example, where=layers, min_channels=min_channels)
        about[name] = {"alpha": alpha, "gamma": gamma, "size": size}
    return measure_settings(entries, train, test, about=about, **options)


def ood_criteria(measured: Measured, figure: str = "auroc") -> dict[str, dict[str, Interval]]:
    """How well each criterion notices outside data: {setting: {criterion: interval}} (Table 6).

    Args:
        measured: what `packing` or `measure_settings` gave with outside data
        figure: "auroc", "aupr" or "fpr95"

    >>> x, y = torch.randn(24, 4), torch.arange(24) % 3
    >>> entries = {"one": lambda: pb.single(nn.Linear(4, 3))}
    >>> measured = pb.landscape.measure_settings(entries, (x, y), (x, y), outside=5 * x, seeds=2, epochs=1)
    >>> sorted(ood_criteria(measured)["one"])[:2]
    ['entropy', 'max_logit']
    """
    return {
        setting: {name: t_interval(measured.values(setting, f"{figure} {name}")) for name in CRITERIA}
        for setting in measured.settings
    }


def network_widths(
    build: Callable[[float], nn.Module],
    train: Any,
    test: Any,
    *,
    widths: Sequence[float] = (0.25, 0.5, 1.0, 2.0),
    **options: Any,
) -> Measured:
    """One network at several widths: what splitting a width costs (Figure 8). Settings are "width 0.5", ...

    Args:
        build: the network with its hidden widths multiplied by a number, as `pb.models` take `width=`
        train, test, options: as for `packing`

    >>> x, y = torch.randn(24, 4), torch.arange(24) % 3
    >>> build = lambda width: nn.Sequential(nn.Linear(4, round(8 * width)), nn.Linear(round(8 * width), 3))
    >>> network_widths(build, (x, y), (x, y), widths=[0.5, 1.0], seeds=1, epochs=1).settings
    ['width 0.5', 'width 1']
    """
    entries = {f"width {width:g}": partial(_single_of_width, build, width) for width in widths}
    about = {f"width {width:g}": {"width": width} for width in widths}
    return measure_settings(entries, train, test, about=about, **options)


def _single_of_width(build: Callable[[float], nn.Module], width: float) -> Ensemble:
    return single(build(width))
