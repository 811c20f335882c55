"""Masks of Masksembles, drawn exactly (Durasov et al., 2021, section 3.2).

A set of masks is uniform over all tuples of equally large subsets of the channels that together use every
channel. It is drawn by counting, without rejection, so every width, size and scale returns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from .building import check_number, check_whole


def masks(
    width: int,
    size: int,
    scale: float | None = None,
    *,
    capacity: int | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """A binary mask per member: equal numbers of ones, every channel used, all such sets equally likely.

    Shapes: the masks are (members, width), zeros and ones of torch's default dtype, on the CPU.

    Args:
        scale: the paper's S, at least 1; the larger, the less the masks overlap. `ones` says how many ones.
        capacity: the ones per mask, instead of a scale; from ceil(width / size) to width.
        generator: where the draws come from, on the CPU; torch's global generator if None.

    >>> masks(8, 4, scale=2.0).sum(dim=1)
    tensor([4., 4., 4., 4.])
    """
    width, size = check_whole("masks", "width", width), check_whole("masks", "size", size)
    if (scale is None) == (capacity is None):
        given = "neither" if scale is None else "both"
        raise ValueError(f"masks: takes either scale or capacity, but got {given}. Give, say, scale=2.0.")
    chosen = ones(width, size, scale) if scale is not None else _feasible(width, size, capacity)
    drawn = torch.zeros(size, width, device="cpu")
    order = torch.randperm(width, generator=generator, device="cpu")
    used, free = order[:chosen], order[chosen:]
    drawn[0, used] = 1
    for member in range(1, size):
        later = _log_finishes(width, chosen, size)[size - 1 - member, len(used) - chosen :][: chosen + 1]
        new = _draw(_log_ways([len(used)], width, chosen)[0] + later, generator)
        used, free = _shuffle(used, generator), _shuffle(free, generator)
        drawn[member, free[:new]] = 1
        drawn[member, used[: chosen - new]] = 1
        used, free = torch.cat([used, free[:new]]), free[new:]
    return drawn


def ones(width: int, size: int, scale: float) -> int:
    """Give the ones per mask that a scale asks for, within what masks of this width can have.

    The paper's floor(width / (S (1 - (1 - 1/S)^size))), and at least ceil(width / size): fewer could not use
    every channel.

    >>> ones(64, 4, 2.0)
    34
    """
    width, size, scale = check_whole("ones", "width", width), check_whole("ones", "size", size), _scale("ones", scale)
    # S (1 - (1 - 1/S)^size) as a geometric sum: nothing cancels, however large S is.
    growth = sum((1 - 1 / scale) ** power for power in range(size))
    asked = math.floor(width / growth + 1e-9)  # 16 / (4/3) is 12, also in floats
    return min(max(asked, -(-width // size)), width)


def grow_width(capacity: int, size: int, scale: float, generator: torch.Generator | None = None) -> int:
    """Draw the width to which a layer grows when every mask keeps `capacity` ones.

    The masks are uniform on round(capacity * scale) positions; the ones that no mask uses are dropped.
    `masks(grow_width(...), size, capacity=capacity)` then draws masks for that width.

    >>> grow_width(64, 4, 1.0)
    64
    """
    capacity, size = check_whole("grow_width", "capacity", capacity), check_whole("grow_width", "size", size)
    positions = float(round(capacity * _scale("grow_width", scale)))
    used = capacity
    for _ in range(1, size):
        used += _draw(_log_ways([used], positions, capacity)[0], generator)
    return used


def expected_iou(scale: float) -> float:
    """Give the intersection over union that two masks of a scale have when the width is large: 1 / (2S - 1).

    >>> expected_iou(2.0)
    0.3333333333333333
    """
    return 1 / (2 * _scale("expected_iou", scale) - 1)


def mean_mask_iou(masks: Tensor) -> float:
    """Give the mean intersection over union of all pairs of masks.

    Shapes: the masks are (members, width), zeros and ones.

    >>> mean_mask_iou(torch.tensor([[1., 1., 0.], [0., 1., 1.]]))
    0.3333333333333333
    """
    if masks.ndim != 2 or len(masks) < 2:
        shape = tuple(masks.shape)
        raise ValueError(
            f"mean_mask_iou: compares two or more masks in one tensor (members, width), but got shape {shape}. "
            "Stack the masks along dim 0."
        )
    rows = masks.double()
    common = rows @ rows.T
    counts = rows.sum(dim=1)
    union = counts[:, None] + counts[None, :] - common
    first, second = torch.triu_indices(len(rows), len(rows), offset=1)
    return float((common / union)[first, second].mean())


@lru_cache(maxsize=32)
def _log_finishes(width: int, chosen: int, size: int) -> np.ndarray:
    """Give, at [k, u - chosen], the log of in how many ways k more masks use every position when u are used.

    F_0(width) = 1, F_0(u) = 0, F_k(u) = sum_j C(width - u, j) C(u, chosen - j) F_{k-1}(u + j).
    The last `chosen` columns stand for more than all positions: -inf.
    """
    states = width - chosen + 1
    logs = np.full((size, states + chosen), -np.inf)
    logs[0, width - chosen] = 0.0
    rows = max(1, 2**21 // (chosen + 1))  # bounds the memory
    # F_k(u) needs F_{k-1} at u and above only: from the top down, a block's ways serve every k.
    for start in reversed(range(0, states, rows)):
        used = np.arange(start, min(start + rows, states)) + chosen
        ways = _log_ways(used, width, chosen)
        for left in range(1, size):
            later = logs[left - 1, start : start + len(used) + chosen]
            windows = np.lib.stride_tricks.sliding_window_view(later, chosen + 1)
            logs[left, start : start + len(used)] = _log_sum(ways + windows)
    logs.setflags(write=False)
    return logs


def _log_ways(used: Sequence[int] | np.ndarray, positions: float, chosen: int) -> np.ndarray:
    """Give the log of C(positions - used, j) C(used, chosen - j) for j = 0 .. chosen; (used, chosen + 1)."""
    counts = np.asarray(used, dtype=np.float64)
    return _log_choose(positions - counts, chosen) + _log_choose(counts, chosen)[:, ::-1]


def _log_choose(total: np.ndarray, most: int) -> np.ndarray:
    """Give log C(total, j) for j = 0 .. most; (total, most + 1), with -inf where j exceeds the total."""
    step = np.arange(most, dtype=np.float64)
    left = np.maximum(total[:, None] - step, 0.0)
    logs = np.zeros((len(total), most + 1))
    with np.errstate(divide="ignore"):
        np.cumsum(np.log(left / (step + 1)), axis=1, out=logs[:, 1:])
    return logs


def _log_sum(logs: np.ndarray) -> np.ndarray:
    """Give log(sum(exp(logs))) over the last axis; -inf where all are."""
    peak = np.maximum(logs.max(axis=-1, keepdims=True), -1e300)
    with np.errstate(divide="ignore"):
        return (peak + np.log(np.exp(logs - peak).sum(axis=-1, keepdims=True)))[..., 0]


def _draw(logs: np.ndarray, generator: torch.Generator | None) -> int:
    """Draw an index with probability proportional to exp(logs)."""
    weights = torch.from_numpy(np.exp(logs - logs.max()))
    return int(torch.multinomial(weights, 1, generator=generator))


def _shuffle(positions: Tensor, generator: torch.Generator | None) -> Tensor:
    return positions[torch.randperm(len(positions), generator=generator, device="cpu")]


def _scale(function: str, value: float) -> float:
    rule = "finite and at least 1 (1: masks keep everything; 2: about half of the channels; more: less overlap)"
    return float(check_number(function, "scale", value, rule, lambda v: 1 <= v < math.inf))


def _feasible(width: int, size: int, capacity: int | None) -> int:
    count = check_whole("masks", "capacity", capacity)
    least = -(-width // size)
    if not least <= count <= width:
        raise ValueError(
            f"masks: {size} masks that use all {width} channels need a capacity of {least} to {width} ones "
            f"each, but capacity is {count}. Choose a value in that range, or give a scale instead."
        )
    return count
