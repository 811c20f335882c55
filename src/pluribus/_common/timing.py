"""Seconds of several runs that take turns, so that a noisy machine is noisy for all of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import torch

Run = Callable[[], Any]


def race(runs: Mapping[str, Run], device: torch.device, *, rounds: int = 7, seconds: float = 2.0) -> dict[str, float]:
    """The shortest seconds of each run by name, the fastest first; one that is far behind thrice is not repeated."""
    for run in runs.values():
        run()  # what is done once is done now
    best = {name: time_once(run, device) for name, run in runs.items()}
    spent = sum(best.values())
    for number in range(1, rounds):
        leader = min(best.values())
        for name, run in runs.items():
            if number < 3 or best[name] <= 1.3 * leader:  # a busy machine may disturb the first ones
                took = time_once(run, device)
                best[name], spent = min(best[name], took), spent + took
        if spent > seconds:
            break
    return dict(sorted(best.items(), key=lambda item: item[1]))


SHORT = 0.01  # seconds; what takes less depends on what ran just before


def medians(runs: Sequence[Run], device: torch.device) -> list[float]:
    """The median seconds of each run, timed for about a tenth of a second together, from 7 to 31 times.

    The first rounds choose kernels and fill caches, and do not count. A short run is run just before it is timed too:
    otherwise the one that follows its like would find the caches full.
    """

    def time_all(before: Sequence[float]) -> list[float]:
        found = []
        for run, took in zip(runs, before, strict=True):
            if took < SHORT:
                run()
            found.append(time_once(run, device))
        return found

    last = [math.inf] * len(runs)
    for _ in range(2):
        last = time_all(last)
    rounds = min(max(int(0.1 / max(sum(last), 1e-9)), 7), 31)
    laps = [time_all(last) for _ in range(rounds)]
    return [median(times) for times in zip(*laps, strict=True)]


def time_once(run: Run, device: torch.device) -> float:
    """The seconds of one run: time of the processor where one thread works, of the clock otherwise."""
    clock = choose_clock(device)
    synchronize(device)
    start = clock()
    run()
    synchronize(device)
    return clock() - start


def choose_clock(device: torch.device) -> Callable[[], float]:
    """The clock that other processes disturb least; that of the whole process stands still where `ulimit -t` is set."""
    return time.thread_time if device.type == "cpu" and torch.get_num_threads() == 1 else time.perf_counter


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
