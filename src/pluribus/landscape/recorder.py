"""Recording while somebody trains: weights or what members say, by a callback of lightning or one call."""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .._common.optional import require
from ..core.ensemble import Ensemble
from ..training.fitting import fit
from .checkpoints import Course, Record, Trajectory
from .common.examples import Examples, naming_data
from .common.networks import networks_of
from .similarity import answers_and_targets

if TYPE_CHECKING:
    from lightning.pytorch import Callback
else:
    try:
        Callback = require("lightning.pytorch", "ls.Recorder", "train").Callback
    except ImportError:
        Callback = object  # loops of one's own need no lightning


class Recorder(Callback):
    """Records weights and predictions during training: a lightning callback, and `record` for loops of your own.

    An ensemble with members of its own gives one trajectory for each member.

    Args:
        probe: (x, y), a data set or a loader, or x alone: where predictions are recorded; None: weights alone
        every: "epoch", or a number of steps
        keep: only the last so many checkpoints
        start: write the network before the first step down, too
        dtype: how weights are kept: "float32", "float16", "bfloat16" or "float64"
        task, class_dim: what the outputs are; by default what an Ensemble says, or what labels and outputs tell
        model: where a lightning module of one's own has the network, such as "net"; by default the module itself

    >>> recorder = Recorder(probe=torch.randn(8, 4), every=1)
    >>> recorder.record(nn.Linear(4, 3), step=0)
    >>> recorder.trajectory.outputs.shape
    torch.Size([1, 8, 3])
    """

    def __init__(
        self,
        probe: Any = None,
        every: str | int = "epoch",
        keep: int | None = None,
        *,
        start: bool = False,
        dtype: str = "float32",
        task: str | None = None,
        class_dim: int | None = None,
        model: str | None = None,
    ):
        steps = isinstance(every, Integral) and not isinstance(every, bool) and every >= 1
        if every != "epoch" and not steps:
            raise ValueError(f'Recorder: every must be "epoch" or a positive number of steps, but it is {every!r}.')
        self.every, self.start, self.model, self.task, self.class_dim = every, start, model, task, class_dim
        self.options: dict[str, Any] = {"keep": keep, "dtype": dtype}
        first = Record(probe, **self.options)  # reads the probe once, and refuses bad options now
        self.probe = first.probe
        self.records: list[Record] = []

    def record(self, model: nn.Module, step: int) -> None:
        """Record the network, or each member of an ensemble, as it is now."""
        members = list(networks_of("record", model)) if isinstance(model, Ensemble) else [model]
        if not self.records:
            self.records = [self._new(model) for _ in members]
        for record, member in zip(self.records, members, strict=True):
            record.add(member, step)

    @property
    def trajectory(self) -> Trajectory:
        """What was recorded so far of one network."""
        if len(self.records) > 1:
            raise ValueError(
                f"trajectory: needs one network, but {len(self.records)} members were recorded. Use "
                "recorder.trajectories."
            )
        return self.trajectories[0]

    @property
    def trajectories(self) -> list[Trajectory]:
        """What was recorded so far of each member."""
        if not self.records:
            raise ValueError("trajectory: nothing has been recorded yet. Call record(model, step), or train first.")
        return [record.trajectory() for record in self.records]

    # ---------------------------------------------------------------- lightning

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps, so that training that goes on after a stop has its whole trajectory."""
        return {"records": [record.state() for record in self.records], "task": self.task}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up what was recorded before the stop."""
        self.records = [Record(self.probe, task=self.task, class_dim=self.class_dim, **self.options)
                        for _ in state_dict["records"]]  # fmt: skip
        for record, state in zip(self.records, state_dict["records"], strict=True):
            record.restore(state)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """The network as it begins."""
        if self.start and not self.records:
            self.record(self._network(pl_module), trainer.global_step)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Record every few steps of the optimizer, as asked for."""
        step = trainer.global_step
        if self.every != "epoch" and step % int(self.every) == 0 and self._last() != step:
            self.record(self._network(pl_module), step)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Every epoch."""
        if self.every == "epoch":
            self.record(self._network(pl_module), trainer.global_step)

    def _new(self, model: nn.Module) -> Record:
        task, dim = self.task, self.class_dim
        if isinstance(model, Ensemble):
            task, dim = task or model.task, model.class_dim if dim is None else dim
        return Record(self.probe, task=task, class_dim=dim, **self.options)

    def _last(self) -> int | None:
        return self.records[0].steps[-1] if self.records else None

    def _network(self, module: Any) -> nn.Module:
        if self.model is not None:
            return module.get_submodule(self.model)
        ensemble = getattr(module, "ensemble", None)
        return ensemble if isinstance(ensemble, Ensemble) else module


class Listener(Recorder):
    """Writes down what the members of an ensemble say, in place of their weights."""

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self.asked: Any = None
        self.steps: list[int] = []
        self.said: list[Tensor] = []

    def record(self, model: nn.Module, step: int) -> None:
        """Ask every member as it is now."""
        self.steps.append(step)
        with torch.random.fork_rng(devices=[]):
            self.said.append(answers_and_targets("courses", model, self.asked)[0])

    def _last(self) -> int | None:
        return self.steps[-1] if self.steps else None


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
    listener, examples = Listener(None, every, start=start), Examples("courses", probe)
    listener.asked = examples
    callbacks = [*options.pop("callbacks", ()), listener]
    with naming_data("courses", ensemble, train):
        fit(ensemble, train, callbacks=callbacks, **{"select": None, **options})
    if not listener.said:
        raise ValueError(f"courses: training had fewer than every={every} steps. Use a smaller every=.")
    answers = torch.stack(listener.said, 1)  # (members, checkpoints, rows, ...)
    return [Course(own, list(listener.steps), examples.targets, ensemble.task) for own in answers]
