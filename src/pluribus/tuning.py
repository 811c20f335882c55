"""How each convolution of a frozen network runs: measured once for its shape, and remembered."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .kernels import Convolution, channels_last
from .race import race
from .trees import Batch

GAIN = 0.85  # fewer multiplications need more memory: they must save this much time
MEASURED: dict[tuple[Any, ...], dict[str, float]] = {}


def tune_(network: Any, batch: Batch, measure: bool, larger: bool) -> None:
    """Choose the way of every convolution for a batch like this one.

    Args:
        measure: run each way on inputs of the same shape; otherwise a rule decides
        larger: weights may take more memory than the plain ones
    """
    seen: list[tuple[Convolution, tuple[int, ...], bool]] = []
    hooks = [
        part.register_forward_pre_hook(lambda part, args: seen.append((part, tuple(args[0].shape), len(args) > 1)))
        for part in network.modules()
        if isinstance(part, Convolution)
    ]
    try:
        packs, network.packs = network.packs, False
        network(*batch[0], **batch[1])
    finally:
        network.packs = packs
        for hook in hooks:
            hook.remove()
    for part, shape, added in seen:
        part.way = _best(part, shape, added, larger) if measure else _ruled(part, shape, larger)


def _ruled(part: Convolution, shape: tuple[int, ...], larger: bool) -> str:
    ways = part.ways(torch.empty(shape, device="meta"))
    many = min(part.shape[:2]) >= 256 and shape[0] * shape[-1] * shape[-2] >= 512
    if "winograd" in ways and larger and many:
        return "winograd"
    return "packed" if "packed" in ways else "plain"


def _best(part: Convolution, shape: tuple[int, ...], added: bool, larger: bool) -> str:
    options = tuple(part.stride), tuple(part.padding), tuple(part.dilation), part.groups
    sizes = tuple(-(-size // 8) for size in (shape[1], *part.shape[:2]))  # nearly alike is measured once
    key = (shape[0], *shape[2:], *sizes, part.shape[2:], *options, added, torch.get_num_threads())
    if key not in MEASURED:
        MEASURED[key] = _times(part, shape, added)
    times = {way: time for way, time in MEASURED[key].items() if larger or way != "winograd"}
    direct = "packed" if times.get("packed", float("inf")) < 1.05 * times["plain"] else "plain"
    return "winograd" if times.get("winograd", float("inf")) < GAIN * times[direct] else direct


def _times(part: Convolution, shape: tuple[int, ...], added: bool) -> dict[str, float]:
    """The seconds of each way."""
    x = channels_last(torch.randn(shape))
    assert part.weight is not None
    candidates = {}
    for way in part.ways(x):
        if way == "winograd" and min(part.shape[:2]) < 192:
            continue
        made = Convolution(part.weight, part.bias, part.stride, part.padding, part.dilation, part.groups, part.relu)
        made.way = way
        made.pack_(x)
        candidates[way] = made
    first: Tensor = next(iter(candidates.values()))(x)
    other = [torch.randn_like(first)] if added else []
    runs = {way: (lambda made=made: made(x, *other)) for way, made in candidates.items()}
    return race(runs, x.device, rounds=5, seconds=0.15)
