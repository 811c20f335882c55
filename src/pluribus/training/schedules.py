"""What the learning rate is multiplied by in each epoch, by name (SCHEDULES), and since when nothing has improved."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

Rate = Callable[[int], float]  # epoch -> what the learning rate is multiplied by; a partial, so that it can be sent


def constant_schedule(epochs: int) -> Rate:
    """The learning rate stays."""
    return multistep_schedule(epochs, milestones=())


def multistep_schedule(epochs: int, *, milestones: Sequence[int], factors: Sequence[float] | float = 0.1) -> Rate:
    """At each milestone the rate becomes the next of `factors` of its start; one factor: times it at each milestone.

    >>> rate = multistep_schedule(75, milestones=[25, 50], factors=0.1)
    >>> [round(rate(epoch), 3) for epoch in (0, 25, 50)]
    [1.0, 0.1, 0.01]
    """
    each = [factors ** (i + 1) for i in range(len(milestones))] if isinstance(factors, int | float) else list(factors)
    if len(each) != len(milestones) or list(milestones) != sorted(milestones):
        raise ValueError(
            f"multistep: there must be one factor for each milestone, in order, but the milestones are "
            f"{list(milestones)} and the factors {factors}."
        )
    return partial(_factor, milestones=tuple(milestones), factors=tuple(each))


def step_schedule(epochs: int, *, every: float, factor: float = 0.5) -> Rate:
    """Multiplied by `factor` at regular numbers of epochs."""
    return partial(_power, every=every, factor=factor)


def quarters_schedule(epochs: int) -> Rate:
    """Halved at each quarter of training, as Fort et al. (2019) do every 10 of 40 epochs.

    >>> rate = quarters_schedule(40)
    >>> [rate(epoch) for epoch in (0, 9, 10, 39)]
    [1.0, 1.0, 0.5, 0.125]
    """
    return step_schedule(epochs, every=max(epochs, 1) / 4)


def cosine_schedule(epochs: int, *, warmup: int = 0, last: float = 0.0) -> Rate:
    """Half a cosine down to `last`, after a linear rise over `warmup` epochs."""
    return partial(_cosine, epochs=epochs, warmup=warmup, last=last)


def _factor(epoch: int, milestones: Sequence[int], factors: Sequence[float]) -> float:
    return (1.0, *factors)[sum(epoch >= milestone for milestone in milestones)]


def _power(epoch: int, every: float, factor: float) -> float:
    return factor ** int(epoch / every)


def _cosine(epoch: int, epochs: int, warmup: int, last: float) -> float:
    if epoch < warmup:
        return (epoch + 1) / (warmup + 1)
    return last + (1 - last) * 0.5 * (1 + math.cos(math.pi * epoch / max(epochs, 1)))


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


SCHEDULES: dict[str, Callable[..., Rate]] = {
    "constant": constant_schedule,
    "multistep": multistep_schedule,
    "step": step_schedule,
    "quarters": quarters_schedule,
    "cosine": cosine_schedule,
}
