"""What locks and checks cost a call: a small MLP with them around its members, and without.

    python benchmarks/checks.py                 all of them together
    python benchmarks/checks.py --each          and each alone
    python benchmarks/checks.py --seconds 60    longer: on a busy machine

The MLP has three hidden layers of 64, as in `docs/speed.md`. It is an `nn.Sequential`, and once more a class of one's
own, whose attributes are watched for what it may keep. Two ensembles of the same module, so that they have the same
memory, run in turn in one process; the ratio is that of the medians of process time. At most 1.02.
"""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from typing import Any

import torch
from timing import interleaved, ratio
from torch import Tensor, nn

import pluribus as pb
from pluribus.core import ensemble as core
from pluribus.core.execution import Runner
from pluribus.core.kept_attributes import Attributes


class Perceptron(nn.Module):
    """The same layers in a class of one's own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(64, 64) for _ in range(3))
        self.last = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        x = torch.relu(self.first(x))
        x = torch.relu(self.second(x))
        logits: Tensor = self.last(torch.relu(self.third(x)))
        return logits


class Unwatched(Attributes):
    """Attributes that are taken for what they were."""

    def hold(self) -> bool:
        """Not looked at."""
        return True

    def are_unchanged(self) -> bool:
        """Not looked at."""
        return True

    def __enter__(self) -> Unwatched:
        return self

    def __exit__(self, *_: Any) -> None:
        return None


def look(runner: Runner) -> Attributes:
    """What is known of the module, found once."""
    if runner._attributes is None:
        runner._attributes = Unwatched(runner.module)
    return runner._attributes


CHECKS: dict[str, dict[str, Any]] = {
    "lock": {"alone": lambda _: nullcontext()},
    "what modules keep": {"_look": look},
    "what members change": {"_one_by_one": lambda runner, *given: runner._traced_one_by_one(*given[:3])},
    "precision": {"_needs_loop": lambda *_: False},
}


def four_ways(model: nn.Module, size: int, run: str, each: bool) -> dict[str, pb.Ensemble]:
    """Ensembles of one module: with all locks and checks, without any, and without each."""
    made = pb.deep(model, size).eval()
    names = ["with", "without", *(CHECKS if each else ())]
    ensembles = {name: core.Ensemble(made.module, size, made.own, method="deep").eval() for name in names}
    for name, ensemble in ensembles.items():
        left_out = CHECKS if name == "without" else {name: CHECKS[name]} if name in CHECKS else {}
        ensemble.run = run
        changed = {key: value for methods in left_out.values() for key, value in methods.items()}
        ensemble.runner.__class__ = type("Unchecked", (Runner,), changed) if changed else Runner
    return ensembles


def main() -> None:
    """Print a line for each model, way to run and size, with gradients and without."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15.0, help="for each line")
    parser.add_argument("--each", action="store_true", help="each lock or check alone, too")
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sequential = pb.models.mlp(64, 10, hidden=(64,) * 3)
    for name, model in (("Sequential", sequential), ("own class", Perceptron())):
        for size, rows in ((4, 32), (16, 64), (32, 8)):
            for run in ("vmap", "loop"):
                for grad in (False, True):
                    with torch.set_grad_enabled(grad):
                        x, made = torch.randn(rows, 64), four_ways(model, size, run, given.each)
                        runs = {way: lambda e=e, x=x: e(x) for way, e in made.items()}
                        times = interleaved(runs, x.device, seconds=given.seconds, rounds=10_000)
                    way = f"{name}, {size} members, {rows} rows, {run}, {'with' if grad else 'without'} gradients"
                    alone = (f"{check} {ratio(times, 'with', check):.3f}" for check in CHECKS if check in made)
                    print(f"{way}: {ratio(times, 'with', 'without'):.3f}", *alone, sep="  ", flush=True)


if __name__ == "__main__":
    main()
