"""Training with lightning: the module that users of lightning take, and what `fit` runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .ensemble import Ensemble
from .loading import mixed, set_epoch
from .optimizers import optimizer_of
from .outside import outside
from .prediction import Classification, Prediction, predicted
from .trees import answer, as_batch, rows_of

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule
    from lightning.pytorch.callbacks import Checkpoint
else:
    LightningModule = outside("lightning.pytorch", "pb.fit", "train").LightningModule
    Checkpoint = outside("lightning.pytorch.callbacks", "pb.fit", "train").Checkpoint

State = dict[str, Tensor]


class Training(LightningModule):
    """An ensemble as a `LightningModule`: its loss, per-member clipping, validation, and the best weights so far.

    Logs "loss", and with validation batches "validation/<figure>" of the ensemble and "member <i>/<figure>" of each.
    The figure is accuracy for classification, otherwise the negative log-likelihood or squared error.

    Args:
        build: takes parameter groups and gives an optimizer
        rate: rate(epoch), what the learning rate is multiplied by
        select: "ensemble" keeps the weights of the best epoch, "member" each member's best (see `pb.fit`)
    """

    def __init__(
        self,
        ensemble: Ensemble,
        criterion: Callable[[Any, Any], Tensor],
        build: Callable[[list[dict[str, Any]]], torch.optim.Optimizer],
        groups: list[dict[str, Any]],
        *,
        rate: Callable[[int], float],
        augment: Callable[[Any, Any], tuple[Any, Any]] | None = None,
        clip: float | None = None,
        l1: float = 0.0,
        l2: float = 0.0,
        select: str | None = None,
        seed: int = 0,
    ):
        super().__init__()
        self.ensemble, self.criterion, self.build, self.groups = ensemble, criterion, build, groups
        self.rate, self.augment, self.clip, self.l1, self.l2 = rate, augment, clip, l1, l2
        self.select, self.seed = select, seed
        self.rows: list[dict[str, float]] = []  # one for each finished epoch
        self.best: dict[str, tuple[list[float], int]] = {}  # figures and epoch of the ensemble and of each member
        self.kept: State = {}
        self.stopped = False  # before its last epoch, for want of improvement
        self._sums: dict[str, Tensor] = {}
        self._rate = 0.0

    # ---------------------------------------------------------------- training

    def configure_optimizers(self) -> Any:
        """The optimizer, and the schedule once for each epoch."""
        optimizer = optimizer_of(self.ensemble, self.build, self.groups)
        return [optimizer], [torch.optim.lr_scheduler.LambdaLR(optimizer, self.rate)]

    def on_train_start(self) -> None:
        """Lightning leaves `on_train_epoch_start` out when it goes on after a whole epoch; `fit` has reseeded then."""
        self._begin()

    def on_train_epoch_start(self) -> None:
        """An epoch's chance depends on the seed and its number alone, so that training can go on after a stop."""
        self._begin()
        self.reseed(self.current_epoch)

    def _begin(self) -> None:
        set_epoch(self.trainer.train_dataloader, self.current_epoch)
        self._sums, self._rate = {}, self.trainer.optimizers[0].param_groups[0]["lr"]

    def reseed(self, epoch: int, part: int = 0) -> None:
        """Chance for the loader of an epoch (part 0), or for its steps (part 1).

        They are apart because lightning makes the loader's iterator before or after the epoch's start.
        """
        rank = self.global_rank if self._trainer is not None else 0
        torch.manual_seed(mixed(self.seed, epoch, rank, part))

    def training_step(self, batch: Any, index: int) -> Tensor:
        """The loss that the method's paper minimises, and the penalties."""
        if index == 0:
            self.reseed(self.current_epoch, part=1)
        x, y = batch
        if self.augment is not None:
            x, y = self.augment(x, y)
        loss = self.ensemble.loss(x, y, self.criterion)
        self._add({"loss": loss.detach()}, rows_of(as_batch(x)))
        self.log("loss", loss.detach(), prog_bar=True)
        return loss + penalty(self.ensemble, self.l1, self.l2) if self.l1 or self.l2 else loss

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        """Each member's gradient is clipped by itself."""
        most = gradient_clip_val or self.clip
        if most:
            self.ensemble.clip_grad_norm_(most)

    # ---------------------------------------------------------------- validation

    def on_validation_epoch_start(self) -> None:
        """Forget the sums of the last validation."""
        self._sums = {name: total for name, total in self._sums.items() if name in ("loss", "rows loss")}

    def validation_step(self, batch: Any, index: int) -> None:
        """Judge the ensemble and each member."""
        x, y = batch
        args, kwargs = as_batch(x)
        outputs = answer(self.ensemble(*args, **kwargs))
        whole = predicted(self.ensemble.task, outputs, self.ensemble.class_dim)
        figures = {f"validation/{name}": value for name, value in judged(whole, y).items()}
        for i in range(self.ensemble.size if self.select == "member" else 0):
            figures |= {f"member {i}/{name}": value for name, value in judged(whole.member(i), y).items()}
        self._add(figures, rows_of((args, kwargs)))

    def on_validation_epoch_end(self) -> None:
        """Log the figures, and keep what is best so far."""
        if self.trainer.sanity_checking:
            return
        figures = {name: value for name, value in self._means().items() if name != "loss"}
        self.log_dict(figures, sync_dist=self.trainer.world_size > 1)
        for who in ["ensemble"] if self.select == "ensemble" else [f"member {i}" for i in range(self.ensemble.size)]:
            if self.select is not None:
                self._keep(who, figures)

    def _keep(self, who: str, figures: dict[str, float]) -> None:
        """Keep the weights if they are better; of equal accuracy, the likelier ones are."""
        prefix = "validation/" if who == "ensemble" else f"{who}/"
        better = [-v if name.endswith("accuracy") else v for name, v in figures.items() if name.startswith(prefix)]
        if who in self.best and not better < self.best[who][0]:
            return
        self.best[who] = (better, self.current_epoch)
        rows = ... if who == "ensemble" else int(who.removeprefix("member "))
        for key, tensor in self.ensemble.module.state_dict().items():
            self.kept.setdefault(key, tensor.detach().clone())[rows] = tensor[rows]

    def on_train_epoch_end(self) -> None:
        """Write the epoch's row."""
        names = {name: name.replace("validation/", "validation_") for name in self._sums if "rows" not in name}
        self.rows.append(
            {"epoch": self.current_epoch, "lr": self._rate} | {names[n]: v for n, v in self._means().items()}
        )

    def restore(self) -> None:
        """Put the best weights back."""
        if self.kept:
            self.ensemble.module.load_state_dict(self.kept)

    # ---------------------------------------------------------------- stopping and going on

    def get_extra_state(self) -> dict[str, Any]:
        """What the epochs so far have given; it goes where the weights go: to checkpoints and between processes."""
        return {"rows": self.rows, "best": self.best, "kept": self.kept, "stopped": self.stopped}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Take up what earlier epochs have given."""
        self.rows, self.kept, self.stopped = list(state["rows"]), dict(state["kept"]), state["stopped"]
        self.best = {who: (list(value[0]), value[1]) for who, value in state["best"].items()}

    # ---------------------------------------------------------------- helpers

    def _add(self, figures: dict[str, Tensor], rows: int) -> None:
        for name, value in figures.items():
            count = torch.as_tensor(float(rows), device=value.device, dtype=torch.float64)
            self._sums[name] = self._sums.get(name, 0) + value.double() * count
            self._sums[f"rows {name}"] = self._sums.get(f"rows {name}", 0) + count

    def _means(self) -> dict[str, float]:
        """Means over the rows of all processes."""
        totals = {name: self.trainer.strategy.reduce(t.clone(), reduce_op="sum") for name, t in self._sums.items()}
        return {name: float(t / totals[f"rows {name}"]) for name, t in totals.items() if not name.startswith("rows ")}


class Last(Checkpoint):
    """Keeps a checkpoint of the last whole epoch: complete, or the one before it."""

    def __init__(self, path: Path):
        self.path = path

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Write after everything else that an epoch's end does."""
        self._write(trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Training that stops early is over, and is not taken up again."""
        pl_module.stopped = trainer.current_epoch < trainer.max_epochs and bool(trainer.early_stopping_callbacks)
        if pl_module.stopped:
            self._write(trainer)

    def _write(self, trainer: Any) -> None:
        temporary = self.path.with_name(f".{self.path.name}.part")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            trainer.save_checkpoint(temporary)
            if trainer.is_global_zero:
                os.replace(temporary, self.path)
        finally:
            if trainer.is_global_zero:
                temporary.unlink(missing_ok=True)


def judged(prediction: Prediction, y: Any) -> dict[str, Tensor]:
    """What a model is chosen by, first; then the loss that it has as a whole."""
    if isinstance(prediction, Classification):
        target = y.argmax(-1) if y.is_floating_point() and y.ndim == prediction.label.ndim + 1 else y
        target = target.reshape(prediction.label.shape).long()
        likelihood = prediction.log_likelihood(target)
        return {"accuracy": (prediction.label == target).double().mean(), "nll": -likelihood.mean()}
    target = y.reshape(prediction.mean.shape)
    error = (prediction.mean - target).square().mean()
    if prediction.variances is None:
        return {"mse": error}
    return {"nll": -prediction.log_likelihood(target).mean(), "mse": error}


def penalty(ensemble: Ensemble, l1: float, l2: float) -> Tensor:
    """l1 * sum |w| + l2 * sum w^2 over all parameters but BatchEnsemble's r and s."""
    weights = [p for name, p in ensemble.module.named_parameters() if name not in ensemble.fast and p.requires_grad]
    total = torch.zeros((), device=weights[0].device)
    for weight in weights:
        total = total + (l1 * weight.abs().sum() if l1 else 0) + (l2 * weight.square().sum() if l2 else 0)
    return total
