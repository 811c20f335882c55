"""How each convolution of a frozen network runs: measured once for its shape, and remembered."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._common.timing import race
from ..._common.trees import Batch
from .kernels import Convolution, channels_last
from .winograd import GROWTH

GAIN = 0.85  # fewer multiplications need more memory: they must take less than this share of the time

ROOM = 0.75  # how much more memory they may take in all, relative to the weights of the convolutions

FEW = 96  # channels below which they are not tried: with 64 they saved nothing, with 128 a quarter to a third

MEASURED: dict[tuple[Any, ...], dict[str, float]] = {}


class Seen(NamedTuple):
    """A convolution and what it was called with."""

    part: Convolution
    shape: tuple[int, ...]
    added: bool

    @property
    def weights(self) -> int:
        """How many there are."""
        return math.prod(self.part.shape)


def tune_(network: Any, batch: Batch, measure: bool, larger: bool) -> None:
    """Choose the way of every convolution for a batch like this one, and put its weight into the form for that.

    Args:
        measure: run each way on inputs of the same shape; otherwise a rule decides
        larger: weights may take more memory than the plain ones
    """
    seen = convolutions(network, batch)
    saved: dict[Seen, float] = {}
    for each in seen:
        times = _measure(each) if measure else _guess(each)
        direct = min((time, way) for way, time in times.items() if way != "winograd")
        each.part.way = direct[1]
        if times.get("winograd", math.inf) < GAIN * direct[0]:
            saved[each] = direct[0] - times["winograd"]
    room = ROOM * sum(each.weights for each in seen) if larger else 0
    for each in sorted(saved, key=lambda each: saved[each] / each.weights, reverse=True):
        more = (GROWTH - 1) * each.weights
        if more <= room:
            each.part.way, room = "winograd", room - more
    pack_(seen)


def convolutions(network: Any, batch: Batch) -> list[Seen]:
    """The convolutions that a batch meets, each once."""
    seen: dict[Convolution, Seen] = {}

    def note(part: Any, args: Any) -> None:
        seen[part] = Seen(part, tuple(args[0].shape), len(args) > 1)

    hooks = [part.register_forward_pre_hook(note) for part in network.modules() if isinstance(part, Convolution)]
    try:
        with torch.random.fork_rng(devices=[]):  # chance goes on as if nothing had run
            network(*batch[0], **batch[1])
    finally:
        for hook in hooks:
            hook.remove()
    return list(seen.values())


def pack_(seen: Sequence[Seen]) -> None:
    """Put the weights into the forms that the chosen ways read; one buffer serves all that are transformed."""
    large = (each.weights for each in seen if each.part.way == "winograd")
    buffer = torch.empty(int(GROWTH * max(large, default=0)))
    for each in seen:
        each.part.pack_(each.shape, buffer)


def without_winograd_(network: Any) -> bool:
    """Where fewer multiplications round too much, do them all; whether there were any such convolutions."""
    parts = [part for part in network.modules() if isinstance(part, Convolution) and part.way == "winograd"]
    for part in parts:
        part.unpack_()
        part.way = "packed"
        part.pack_()
    return bool(parts)


def _guess(each: Seen) -> dict[str, float]:
    """Mult-adds, weighted by how fast each way usually does them."""
    part, shape = each.part, each.shape
    ways = part.ways(shape)
    work = each.weights * shape[0] * math.prod(shape[2:])
    many = min(part.shape[:2]) >= 128 and shape[0] * shape[-1] * shape[-2] >= 512
    factors = {"plain": 1.0, "packed": 0.95, "winograd": 0.65 if many else 2.0}
    return {way: factors[way] * work for way in ways}


def _measure(each: Seen) -> dict[str, float]:
    """The seconds of each way."""
    part, shape = each.part, each.shape
    options = tuple(part.stride), tuple(part.padding), tuple(part.dilation), part.groups
    sizes = tuple(-(-size // 8) for size in (shape[1], *part.shape[:2]))  # nearly alike is measured once
    key = (shape[0], *shape[2:], *sizes, part.shape[2:], *options, each.added, torch.get_num_threads())
    if key not in MEASURED:
        MEASURED[key] = _times(part, shape, each.added)
    return MEASURED[key]


def _times(part: Convolution, shape: tuple[int, ...], added: bool) -> dict[str, float]:
    x = channels_last(torch.randn(shape))
    candidates = {}
    for way in part.ways(shape):
        if way == "winograd" and min(part.shape[:2]) < FEW:
            continue
        made = Convolution(part.weight, part.bias, part.stride, part.padding, part.dilation, part.groups, part.relu)
        made.way = way
        made.pack_(shape)
        candidates[way] = made
    first: Tensor = next(iter(candidates.values()))(x)
    other = [torch.randn_like(first)] if added else []
    runs = {way: (lambda made=made: made(x, *other)) for way, made in candidates.items()}
    return race(runs, x.device, rounds=5, seconds=0.15)
