"""Since when nothing has improved: what early stopping waits for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence


def epochs_without_improvement(rows: Sequence[Mapping[str, float]]) -> int:
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
