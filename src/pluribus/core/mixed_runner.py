"""Running networks of unlike architectures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from .._common.trees import Batch, map_tensors, tensors_of
from .execution import Runner, Tensors
from .kept_attributes import Attributes


class MixedRunner(Runner):
    """Runs networks of unlike architectures, one after the other."""

    BACKENDS = ("loop",)
    RULE = '"loop" for members of different architectures'

    def preferred_backend(self) -> tuple[str, str]:
        """There is nothing to stack."""
        return "loop", "the members have different architectures"

    def run_member(self, i: int, batch: Batch, statistics: Tensors, pieces: Mapping[str, Any] | None = None) -> Any:
        """Network i's output."""
        return self.module[i](*batch[0], **batch[1])  # type: ignore[index]

    def _undo(self, before: Attributes, lost: set[str], batch: Batch, i: int, left: dict[int, Any]) -> None:
        """Each network keeps what it keeps: no other one sees it."""

    def _look_for_stale_caches(self, batch: Batch, per_member: bool) -> None:
        """Each network has its own weights, and what it has cached of them."""

    def try_member(self, batch: Batch, shared: dict[str, Tensor] | None = None, seed: int = 0) -> list[Tensor]:
        """What network 0 gives."""
        return tensors_of(self.run_member(0, map_tensors(batch, lambda t: t.clone()), {}))
