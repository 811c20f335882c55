"""What the rows of a history say: since when nothing has improved, and whether training ended too early."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

LATE = 5  # the last part of training is a fifth of its epochs

LEAST = 4  # epochs, below which nothing can be said

Row = Mapping[str, float]


def epochs_without_improvement(rows: Sequence[Row]) -> int:
    """How many epochs ago any figure on validation data was last better than ever before.

    >>> rows = [{"epoch": i, "validation_accuracy": a, "validation_nll": 1.0} for i, a in enumerate([0.5, 0.7, 0.6])]
    >>> epochs_without_improvement(rows)
    1
    """
    best: dict[str, float] = {}
    last = 0
    for epoch, row in enumerate(rows):
        for name, figure in row.items():
            if name.startswith("validation_"):
                loss = -figure if name.endswith("accuracy") else figure
                if loss < best.get(name, math.inf):
                    best[name], last = loss, epoch
    return len(rows) - 1 - last if rows else 0


def still_improving(rows: Sequence[Row]) -> bool:
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
