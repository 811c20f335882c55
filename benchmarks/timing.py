"""Ratios that a noisy machine does not spoil: everything runs in turn, and medians of process time are compared."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import torch


def interleaved(
    runs: Mapping[str, Callable[[], Any]], device: torch.device, *, seconds: float = 10.0, rounds: int = 400
) -> dict[str, list[float]]:
    """The seconds of every run in every round: the runs take turns, in an order that turns round.

    Process time on one thread, which other processes disturb little; the clock on several threads or on a GPU.
    """
    for run in runs.values():
        start = time.perf_counter()
        run()  # what is done once is done now
        if time.perf_counter() - start < seconds / 10:
            run()
    clock = clock_of(device)
    times: dict[str, list[float]] = {name: [] for name in runs}
    end, names = time.perf_counter() + seconds, list(runs)
    for number in range(rounds):
        for name in names if number % 2 else reversed(names):
            synchronize(device)
            start = clock()
            runs[name]()
            synchronize(device)
            times[name].append(clock() - start)
        if time.perf_counter() > end and number >= 2:
            break
    return times


def ratio(times: Mapping[str, list[float]], name: str, base: str) -> float:
    """The median time relative to another's."""
    return median(times[name]) / median(times[base])


def clock_of(device: torch.device) -> Callable[[], float]:
    """The clock that other processes disturb least."""
    return time.process_time if device.type == "cpu" and torch.get_num_threads() == 1 else time.perf_counter


def synchronize(device: torch.device) -> None:
    """Wait for a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_memory(statement: str) -> int:
    """The most memory that a fresh process has ever used after this statement, in bytes; on Linux."""
    code = (
        f"{statement}\nprint(next(line for line in open('/proc/self/status') if line.startswith('VmHWM')).split()[1])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(answer.stdout.split()[-1]) * 1024
