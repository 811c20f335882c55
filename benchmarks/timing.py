"""Ratios that a noisy machine does not spoil: everything runs in turn, and medians of process time are compared."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import torch

from pluribus._common.timing import choose_clock, synchronize

TURN = 0.01  # seconds


def interleaved(
    runs: Mapping[str, Callable[[], Any]], device: torch.device, *, seconds: float = 10.0, rounds: int = 400
) -> dict[str, list[float]]:
    """The seconds of every run in every round: the runs take turns, in an order that turns round.

    Process time on one thread, which other processes disturb little; the clock on several threads or on a GPU. What
    is shorter than `TURN` is repeated until its turn is that long: a server's caches hold its own network, and not
    the one that it is compared with.
    """
    times_a_turn = {name: _times_a_turn(run, device, seconds) for name, run in runs.items()}
    clock = choose_clock(device)
    times: dict[str, list[float]] = {name: [] for name in runs}
    end, names = time.perf_counter() + seconds, list(runs)
    for number in range(rounds):
        for name in names if number % 2 else reversed(names):
            synchronize(device)
            start = clock()
            for _ in range(times_a_turn[name]):
                runs[name]()
            synchronize(device)
            times[name].append((clock() - start) / times_a_turn[name])
        if time.perf_counter() > end and number >= 2:
            break
    return times


def _times_a_turn(run: Callable[[], Any], device: torch.device, seconds: float) -> int:
    """How often a turn calls it; what is done once is done now."""
    needed = float("inf")
    for _ in range(3):
        synchronize(device)
        start = time.perf_counter()
        run()
        synchronize(device)
        needed = min(needed, time.perf_counter() - start)
        if needed > seconds / 10:
            break
    return max(1, round(TURN / needed))


def ratio(times: Mapping[str, list[float]], name: str, base: str) -> float:
    """The median time relative to another's."""
    return median(times[name]) / median(times[base])


def peak_memory(statement: str) -> int:
    """The most memory that a fresh process has ever used after this statement, in bytes; on Linux."""
    code = (
        f"{statement}\nprint(next(line for line in open('/proc/self/status') if line.startswith('VmHWM')).split()[1])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(answer.stdout.split()[-1]) * 1024
