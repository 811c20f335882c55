"""Networks of different architectures as one ensemble: nothing is stacked, each keeps all its tensors."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from .._common.trees import Batch, clone, stack_trees, unstack
from ..core.ensemble import Ensemble
from ..core.execution import Runner
from ..surgery.copying import duplicate, state


class MixedEnsemble(Ensemble):
    """Networks of unlike architectures, each with all its tensors, run by the loop."""

    stacked = False

    def __init__(self, models: Sequence[nn.Module], method: str):
        together = nn.ModuleList(duplicate(model) for model in models)
        together.training = any(model.training for model in models)
        super().__init__(together, len(models), [name for name, _ in state(together)], method=method)

    def _make_runner(self) -> Runner:
        return MixedRunner(self.module, self.size, self.own, self.method)

    def _take_(self, index: list[int]) -> None:
        modules = list(self.module.children())
        self.module = nn.ModuleList(modules[i] for i in index)
        self.own = frozenset(name for name, _ in state(self.module))

    def explain(self) -> str:
        """As `Ensemble.explain`; the members differ in what they own."""
        counts = [f"{sum(p.numel() for p in member.parameters()):,}" for member in self.module.children()]
        return "\n".join(
            [
                f"{self.method}: {self.size} members, {self.task}",
                f"  of different architectures with {', '.join(counts)} parameters; nothing is shared",
                *self.runner.explain(),
                f"  in training each member sees: {self.feed.sees}",
            ]
        )

    def _gradients(self) -> tuple[list[list[Tensor]], list[Tensor]]:
        members = self.module.children()
        return [[p.grad for p in member.parameters() if p.grad is not None] for member in members], []


class MixedRunner(Runner):
    """Runs networks of different architectures, each with all its tensors."""

    BACKENDS = ("loop",)
    RULE = '"loop" for members of different architectures'

    def preferred_backend(self) -> tuple[str, str]:
        """There is nothing to stack."""
        return "loop", "the members have different architectures"

    def members(self) -> list[nn.Module]:
        """The networks themselves."""
        return list(self.module.children())

    def copy_member(self, i: int) -> nn.Module:
        """A copy of network i."""
        return duplicate(self.members()[i])

    def follow_modes(self) -> None:
        """The networks have modes of their own."""

    def _by_loop(self, batch: Batch, per_member: bool) -> Any:
        quiet = not (self.module.training or torch.is_grad_enabled() or self.busy)
        with nullcontext() if quiet else self.lock:
            return self._traced(batch, per_member)

    def _traced(self, batch: Batch, per_member: bool) -> Any:
        batches = unstack(batch, self.size) if per_member else [clone(batch) for _ in range(self.size)]
        pairs = zip(self.members(), batches, strict=True)
        return stack_trees([member(*args, **kwargs) for member, (args, kwargs) in pairs])
