"""What threads and caches cost a call: a small MLP with the lock and the checks around its members, and without.

    python benchmarks/checks.py

Both run in turn in one process; the ratio is that of the medians of process time. At most 1.02.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
from timing import interleaved, ratio
from torch import nn

import pluribus as pb


def small_mlp(run: str, checks: bool) -> pb.Ensemble:
    """Four members of an MLP with two hidden layers of 64."""
    torch.manual_seed(0)
    layers = nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
    made = pb.deep(nn.Sequential(*layers), 4).eval()
    made.run = run
    if not checks:
        runner = made.runner
        runner.alone = nullcontext  # type: ignore[method-assign]
        runner._look_at_switches = lambda: None  # type: ignore[method-assign]
        runner._undoing_kept = lambda *_: nullcontext()  # type: ignore[method-assign]
        runner._undo = lambda *_, **__: None  # type: ignore[method-assign]
    return made


def main() -> None:
    """Print a line for each way to run, with gradients and without."""
    torch.set_num_threads(1)
    device, x = torch.device("cpu"), torch.randn(32, 16)
    for run in ("vmap", "loop"):
        for grad in (False, True):
            with torch.set_grad_enabled(grad):
                made = {name: small_mlp(run, name == "with") for name in ("with", "without")}
                runs = {name: lambda e=e: e(x) for name, e in made.items()}
                times = interleaved(runs, device, seconds=15.0, rounds=600)
            print(f"{run}, {'with' if grad else 'without'} gradients: {ratio(times, 'with', 'without'):.3f}")


if __name__ == "__main__":
    main()
