"""Packed-Ensembles: alpha, gamma and M, criteria for outside data, widths (Laurent et al., 2023, appendices D to G)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import nn

from ...core.ensemble import Ensemble
from ...methods import deep, packed, single
from ...results.intervals import t_interval
from ...uncertainty.resampling import Interval
from ..common.arguments import FUNCTION, NUMBERS, check_arguments
from .trained_settings import CRITERIA, Measured, example_of, measure_settings, redraw


@check_arguments(alphas=NUMBERS, gammas=NUMBERS, sizes=NUMBERS)
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

    Shapes:
        train, test: x (rows, *features) and y (rows); values(setting, figure): (seeds)

    Args:
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

    Shapes:
        each interval: mean, low and high over (seeds)

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


@check_arguments(build=FUNCTION, widths=NUMBERS)
def network_widths(
    build: Callable[[float], nn.Module],
    train: Any,
    test: Any,
    *,
    widths: Sequence[float] = (0.25, 0.5, 1.0, 2.0),
    **options: Any,
) -> Measured:
    """One network at several widths: what splitting a width costs (Figure 8). Settings are "width 0.5", ...

    Shapes:
        train, test: x (rows, *features) and y (rows); values(setting, figure): (seeds)

    Args:
        build: the network with its hidden widths multiplied by a number, as `pb.models` take `width=`
        options: as for `packing`

    >>> x, y = torch.randn(24, 4), torch.arange(24) % 3
    >>> build = lambda width: nn.Sequential(nn.Linear(4, round(8 * width)), nn.Linear(round(8 * width), 3))
    >>> network_widths(build, (x, y), (x, y), widths=[0.5, 1.0], seeds=1, epochs=1).settings
    ['width 0.5', 'width 1']
    """
    entries = {f"width {width:g}": partial(_single, build, width) for width in widths}
    about = {f"width {width:g}": {"width": width} for width in widths}
    return measure_settings(entries, train, test, about=about, **options)


def _single(build: Callable[[float], nn.Module], width: float) -> Ensemble:
    return single(build(width))
