"""Where the members of any ensemble go in function space while it is trained (MIMO, section 3.2)."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ...core.ensemble import Ensemble
from ...training.fitting import fit
from ..checkpoints import Course
from ..common.examples import Examples, naming_data
from ..similarity import answers_and_targets


def courses(
    ensemble: Ensemble, train: Any, probe: Any, *, every: str | int = "epoch", start: bool = False, **options: Any
) -> list[Course]:
    """What each member predicted during training, one course each, for `embedding`, `disagreement` and `divergence`.

    The ensemble is trained in place, as by `pb.fit`. Members need not be networks of their own: those of MIMO are
    asked as in a prediction, where all of them read the same input.

    Shapes:
        outputs of each: (checkpoints, rows, classes)

    Args:
        train: (x, y), a data set or a loader
        probe: the same, or x alone: where members are asked
        every: "epoch", or a number of steps
        start: ask before the first step, too
        options: as for `pb.fit`

    >>> x, y = torch.randn(64, 4), torch.arange(64) % 3
    >>> found = courses(pb.mimo(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3)), 3, example=x), (x, y), x, epochs=2)
    >>> len(found), found[0].outputs.shape
    (3, torch.Size([2, 64, 3]))
    """
    from ..recorder import Recorder

    class Listener(Recorder):
        """Writes down what members say, in place of weights."""

        def record(self, model: nn.Module, step: int) -> None:
            steps.append(step)
            with torch.random.fork_rng(devices=[]):
                said.append(answers_and_targets("courses", model, examples)[0])

        def _last(self) -> int | None:
            return steps[-1] if steps else None

    if not isinstance(ensemble, Ensemble):
        raise TypeError(
            f"courses: needs an Ensemble, but got a {type(ensemble).__name__}. Make one, for example with pb.mimo."
        )
    examples, steps, said = Examples("courses", probe), [], []  # type: ignore[var-annotated]
    listener = Listener(None, every, start=start)
    listener.records = []
    callbacks = [*options.pop("callbacks", ()), listener]
    with naming_data("courses", ensemble, train):
        fit(ensemble, train, callbacks=callbacks, **{"select": None, **options})
    if not said:
        raise ValueError(f"courses: training had fewer than every={every} steps. Use a smaller every=.")
    answers = torch.stack(said, 1)  # (members, checkpoints, rows, ...)
    return [Course(own, list(steps), examples.targets, ensemble.task) for own in answers]
