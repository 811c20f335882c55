"""An ensemble's one answer for each row."""

from __future__ import annotations

from typing import Any

from torch import nn

from .prediction import pool
from .trees import answer


class Pooled(nn.Module):
    """An ensemble's one answer for each row; see `Ensemble.pooled`."""

    def __init__(self, ensemble: Any):
        super().__init__()
        self.ensemble = ensemble

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The members pooled: (batch, ...)."""
        return pool(self.ensemble.task, answer(self.ensemble(*args, **kwargs)), self.ensemble.class_dim)
