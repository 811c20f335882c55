"""What threads and caches cost a call: a small MLP with the lock and the checks around its members, and without.

    python benchmarks/checks.py

The MLP is an `nn.Sequential`, and once more a class of one's own, whose attributes are watched for what it may keep.
Both run in turn in one process; the ratio is that of the medians of process time. At most 1.02.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
from timing import interleaved, ratio
from torch import Tensor, nn

import pluribus as pb


class Perceptron(nn.Module):
    """The same layers in a class of one's own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(16, 64), nn.Linear(64, 64), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        x = torch.relu(self.first(x))
        x = torch.relu(self.second(x))
        logits: Tensor = self.last(x)
        return logits


def sequential() -> nn.Module:
    """Two hidden layers of 64, of torch's own classes."""
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def four_members(model: nn.Module, run: str, checks: bool) -> pb.Ensemble:
    """Four members, with the lock and the checks or without them."""
    made = pb.deep(model, 4).eval()
    made.run = run
    if not checks:
        runner = made.runner
        runner.alone = nullcontext  # type: ignore[method-assign]
        runner._look = nullcontext  # type: ignore[method-assign, assignment]
        runner._one_by_one = lambda *given: runner._traced_one_by_one(*given[:3])  # type: ignore[method-assign]
        runner._look_for_stale_caches = lambda *_: None  # type: ignore[method-assign]
    return made


def main() -> None:
    """Print a line for each model and way to run, with gradients and without."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    device, x = torch.device("cpu"), torch.randn(32, 16)
    for name, model in (("Sequential", sequential()), ("own class", Perceptron())):
        for run in ("vmap", "loop"):
            for grad in (False, True):
                with torch.set_grad_enabled(grad):
                    made = {checks: four_members(model, run, checks == "with") for checks in ("with", "without")}
                    runs = {checks: lambda e=e: e(x) for checks, e in made.items()}
                    times = interleaved(runs, device, seconds=15.0, rounds=600)
                way = f"{name}, {run}, {'with' if grad else 'without'} gradients"
                print(f"{way}: {ratio(times, 'with', 'without'):.3f}", flush=True)


if __name__ == "__main__":
    main()
