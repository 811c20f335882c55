"""Throughput of a frozen ensemble that two threads call at once: python benchmarks/threads.py.

Two threads are compared with one and with two processes, each with its own network: on a busy machine these show what
two cores give at the moment. The measurements take turns.
"""

from __future__ import annotations

import multiprocessing
import sys
import threading
import time
from statistics import median
from typing import Any

import torch
from torch import Tensor

import pluribus as pb

SECONDS, ROUNDS = 1.5, 5


def build() -> tuple[pb.Frozen, Tensor]:
    """A frozen packed ensemble of four, and a batch for it."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x = torch.randn(32, 3, 32, 32)
    return pb.freeze(pb.packed(pb.models.lenet(num_classes=10, width=4), 4, example=x), x, choose="rule"), x


def count_calls(frozen: pb.Frozen, x: Tensor) -> int:
    """How many calls one thread makes in SECONDS."""
    calls, stop = 0, time.perf_counter() + SECONDS
    while time.perf_counter() < stop:
        frozen(x)
        calls += 1
    return calls


def count_of_threads(frozen: pb.Frozen, x: Tensor, number: int) -> int:
    """How many calls so many threads make together."""
    calls = [0] * number

    def run(i: int) -> None:
        calls[i] = count_calls(frozen, x)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(calls)


def serve(pipe: Any) -> None:
    """A process that counts its calls whenever it is asked."""
    frozen, x = build()
    pipe.send(count_calls(frozen, x))
    while pipe.recv():
        pipe.send(count_calls(frozen, x))


def main() -> None:
    """Print the ratios."""
    frozen, x = build()
    context, pipes = multiprocessing.get_context("spawn"), []
    for _ in range(2):
        ours, theirs = context.Pipe()
        context.Process(target=serve, args=(theirs,)).start()
        pipes.append(ours)
    for pipe in pipes:
        pipe.recv()
    to_one, to_processes = [], []
    for _ in range(ROUNDS):
        one, two = (count_of_threads(frozen, x, number) for number in (1, 2))
        for pipe in pipes:
            pipe.send(True)
        processes = sum(pipe.recv() for pipe in pipes)
        to_one.append(two / one)
        to_processes.append(two / processes)
    for pipe in pipes:
        pipe.send(False)
    print(f"two threads: {median(to_one):.2f} of one thread, {median(to_processes):.2f} of two processes")
    sys.exit(median(to_one) < 1.7 and median(to_processes) < 0.85)


if __name__ == "__main__":
    main()
