"""What the members see in training: one object for each way, with its rows and its reduction.

| feed | rows each member sees | reduction |
|---|---|---|
| `EVERY` | all | sum over members of the mean over rows: one joint step equals separate steps |
| `SHARE` | its random, balanced share of the batch | mean over rows |
| `TILE` | all, in one batch of members * rows | mean over members and rows |
| `ONCE` | all rows, one random draw each | mean over rows |
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from .._common.trees import Batch, device_of, logits_of, map_tensors, rows_of, tile, unstack
from .execution import Runner
from .target_checks import check_targets

Criterion = Callable[[Any, Any], Tensor]


class Feed(ABC):
    """What each member sees of a training batch, and how the members' losses become one."""

    sees: ClassVar[str]  # the end of "in training each member sees: ..."
    passes_once: ClassVar[bool] = True  # one pass of the module, with the members as rows of its batch
    keeps_one_pass: ClassVar[bool] = True  # a training step keeps what one pass of the batch makes

    @abstractmethod
    def loss(self, runner: Runner, batch: Batch, y: Any, criterion: Criterion, per_member: bool) -> Tensor:
        """The scalar to minimise; with `per_member` batch and y are (members, batch, ...)."""


class Every(Feed):
    """Every member sees every row; the losses are summed."""

    sees = "every row"
    passes_once = keeps_one_pass = False

    def loss(self, runner: Runner, batch: Batch, y: Any, criterion: Criterion, per_member: bool) -> Tensor:
        """The sum over members of the mean over rows."""
        outputs = [logits_of(member) for member in unstack(runner.run_each(batch, per_member), runner.size)]
        targets = unstack(y, runner.size) if per_member else [y] * runner.size
        return sum_losses(criterion, outputs, targets)


class OnePass(Feed):
    """One pass in which each row belongs to a member; the loss is the mean over its rows."""

    def loss(self, runner: Runner, batch: Batch, y: Any, criterion: Criterion, per_member: bool) -> Tensor:
        """The mean over all rows of the pass; the mean over members where they cannot be rows of one batch."""
        one = unstack(batch, runner.size)[0] if per_member else batch
        index: Tensor | None
        if per_member:
            index = row_members(batch, rows_of(batch, 1), runner.size)
            rows, targets = (map_tensors(tree, lambda t: t.flatten(0, 1)) for tree in (batch, y))
        else:
            rows, targets, index = self.assign(batch, y, runner.size)
        tiled = per_member or not self.keeps_one_pass
        if index is not None and not runner.rows_agree(one, tiled):
            return EVERY.loss(runner, batch, y, criterion, per_member) / runner.size
        return sum_losses(criterion, [logits_of(runner.run_rows(rows, index, tiled))], [targets])

    @abstractmethod
    def assign(self, batch: Batch, y: Any, size: int) -> tuple[Batch, Any, Tensor | None]:
        """The rows of the pass, their targets, and the member of each row; None: the same for all members."""


class Share(OnePass):
    """Each row is seen by one member, chosen at random and balanced over the batch."""

    sees = "its random share of the rows, in one pass of the batch"

    def assign(self, batch: Batch, y: Any, size: int) -> tuple[Batch, Any, Tensor | None]:
        """The batch itself, and a random member for each row."""
        order = torch.randperm(rows_of(batch)) + torch.randint(size, ())  # balanced, the remainder at random
        return batch, y, (order % size).to(device_of(batch))


class Tile(OnePass):
    """The batch once per member, members outermost."""

    sees = "every row, in one pass of members x rows"
    keeps_one_pass = False

    def assign(self, batch: Batch, y: Any, size: int) -> tuple[Batch, Any, Tensor | None]:
        """The batch `size` times, with its targets."""
        rows = rows_of(batch)
        return tile(batch, rows, size), tile(y, rows, size), row_members(batch, rows, size)


class Once(OnePass):
    """Each row once, with one random draw: members differ by chance alone."""

    sees = "every row with one random draw each, in one pass of the batch"

    def assign(self, batch: Batch, y: Any, size: int) -> tuple[Batch, Any, Tensor | None]:
        """The batch itself; its rows belong to nobody."""
        return batch, y, None


EVERY, SHARE, TILE, ONCE = Every(), Share(), Tile(), Once()


def row_members(batch: Batch, rows: int, size: int) -> Tensor:
    """The member of each row of a batch that is tiled, members outermost."""
    return torch.arange(size, device=device_of(batch)).repeat_interleave(rows)


def sum_losses(criterion: Criterion, outputs: Sequence[Any], targets: Sequence[Any]) -> Tensor:
    """The sum of the criterion over members."""
    check_targets(criterion, outputs[0], targets[0])
    losses = [criterion(output, target) for output, target in zip(outputs, targets, strict=True)]
    if losses[0].ndim:
        raise ValueError(
            "loss: criterion(outputs, targets) must give the mean over rows, a scalar, but it gives the shape "
            f'{tuple(losses[0].shape)}. Use reduction="mean".'
        )
    return torch.stack(losses).sum()
