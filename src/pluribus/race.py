"""Which of several ways is fastest, found by running them in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch


def race(
    ways: Mapping[str, Callable[[], Any]], device: torch.device, *, rounds: int = 7, seconds: float = 2.0
) -> dict[str, float]:
    """The seconds that each way takes, the fastest first.

    All run in turn, so that a noisy machine is noisy for all; the shortest of the runs counts. A way that is far
    behind is not run again. Time of the process where one thread works, of the clock otherwise.
    """
    for way in ways.values():
        way()  # what is done once is done now
    best = {name: timed(way, device) for name, way in ways.items()}
    spent = sum(best.values())
    for _ in range(rounds - 1):
        leader = min(best.values())
        for name, way in ways.items():
            if best[name] <= 1.3 * leader:
                took = timed(way, device)
                best[name], spent = min(best[name], took), spent + took
        if spent > seconds:
            break
    return dict(sorted(best.items(), key=lambda item: item[1]))


def timed(way: Callable[[], Any], device: torch.device) -> float:
    """The seconds of one run."""
    clock = clock_of(device)
    synchronize(device)
    start = clock()
    way()
    synchronize(device)
    return clock() - start


def clock_of(device: torch.device) -> Callable[[], float]:
    """The clock that another process disturbs least."""
    return time.process_time if device.type == "cpu" and torch.get_num_threads() == 1 else time.perf_counter


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
