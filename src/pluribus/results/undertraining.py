"""What the history of a run says: whether its training ended too early."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .store import Group

LATE = 5  # the last part of training is a fifth of its epochs

LEAST = 4  # epochs, below which nothing can be said


def still_improving(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the loss on validation data fell markedly in the last fifth of the epochs.

    The lowest loss of those epochs is compared with the lowest before. Markedly is by more than 0.01 and 2 %: less is
    what chance gives, and what a rate that decays to nothing still squeezes out.

    >>> still_improving([{"validation_nll": 1 / (i + 1)} for i in range(10)])
    True
    >>> still_improving([{"validation_nll": 1 / min(i + 1, 5)} for i in range(10)])
    False
    """
    losses = [row.get("validation_nll", row.get("validation_mse", math.nan)) for row in rows]
    if len(losses) < LEAST or not all(map(math.isfinite, losses)):
        return False
    late = max(1, len(losses) // LATE)
    before, after = min(losses[:-late]), min(losses[-late:])
    return before - after > 0.01 + 0.02 * abs(before)


def is_undertrained(group: Group) -> bool:
    """Whether the validation loss of half of the group's runs or more still fell when training ended."""
    told = [still_improving(run.record.get("history") or []) for run in group.runs]
    return 2 * sum(told) >= len(told)


def epochs_of(group: Group) -> int:
    """How many epochs the longest run of the group had."""
    return max(len(run.record.get("history") or []) for run in group.runs)
