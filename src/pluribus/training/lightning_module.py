"""Training with lightning: the module that users of lightning take, and what `fit` runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .._common.atomic import atomic_write
from .._common.optional import require
from .._common.signed_files import sign
from .._common.trees import LARGEST, as_batch, logits_of, rows_of, tensors_of
from ..core.ensemble import Ensemble
from ..uncertainty.classification import Classification, judged_examples
from ..uncertainty.prediction import Prediction, prediction_of
from .batching import mix_seeds, pair_of, set_epoch
from .criteria import check_target_values, class_places, cross_entropy
from .optimizers import optimizer_of, vectors_of
from .recipes import Recipe
from .schedules import epochs_without_improvement

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule
    from lightning.pytorch.callbacks import Checkpoint
else:
    LightningModule = require("lightning.pytorch", "pb.fit", "train").LightningModule
    Checkpoint = require("lightning.pytorch.callbacks", "pb.fit", "train").Checkpoint

State = dict[str, Tensor]


class NotFinite(ArithmeticError):  # noqa: N818
    """Training cannot go on: a loss, the weights or an output on validation data is NaN or infinite."""


class TrainingModule(LightningModule):
    """An ensemble as a `LightningModule`: its loss, per-member clipping, validation, and the best weights so far.

    Logs "loss", and with validation batches "validation/<figure>" of the ensemble and "member <i>/<figure>" of each.
    The figure is accuracy for classification, otherwise the negative log-likelihood or squared error.
    Once a loss or a weight is NaN or infinite, the weights of the last whole epoch are put back: `NotFinite`.

    Args:
        recipe: penalties, clipping, patience, and which epoch is the best one
        build: takes parameter groups and gives an optimizer
        rate: rate(epoch), what the learning rate is multiplied by
        select: "ensemble" keeps the weights of the best epoch, "member" each member's best (see `pb.fit`)
    """

    def __init__(
        self,
        ensemble: Ensemble,
        recipe: Recipe,
        criterion: Callable[[Any, Any], Tensor],
        build: Callable[[list[dict[str, Any]]], torch.optim.Optimizer],
        groups: list[dict[str, Any]],
        *,
        rate: Callable[[int], float],
        augment: Callable[[Any, Any], tuple[Any, Any]] | None = None,
        select: str | None = None,
        seed: int = 0,
    ):
        super().__init__()
        self.ensemble, self.recipe, self.criterion = ensemble, recipe, criterion
        self.build, self.groups, self.rate, self.augment = build, groups, rate, augment
        kinds = {p.dtype for p in ensemble.module.parameters() if p.is_floating_point()}
        self.precise = kinds.pop() if len(kinds) == 1 else None  # what inputs are converted to
        self.select, self.seed = select, seed
        self.rows: list[dict[str, float]] = []  # one for each finished epoch
        self.best: dict[str, tuple[list[float], int]] = {}  # figures and epoch of the ensemble and of each member
        self.kept: State = {}
        self.stopped = False  # before its last epoch, for want of improvement
        self._sums: dict[str, Tensor] = {}
        self._rate = 0.0
        self._good: State = {}  # the weights before this epoch; empty where nothing is trained

    # ---------------------------------------------------------------- training

    def configure_optimizers(self) -> Any:
        """The optimizer, and the schedule once for each epoch."""
        optimizer = optimizer_of(self.ensemble, self.build, self.groups)
        return [optimizer], [torch.optim.lr_scheduler.LambdaLR(optimizer, self.rate)]

    def on_train_epoch_start(self) -> None:
        """An epoch's chance depends on the seed and its number alone, so that training can go on after a stop."""
        self.on_train_start()
        self.reseed(self.current_epoch)

    def on_train_start(self) -> None:
        """Lightning leaves `on_train_epoch_start` out when it goes on after a whole epoch; `fit` has reseeded then."""
        self._good = {key: tensor.detach().clone() for key, tensor in self.ensemble.module.state_dict().items()}
        set_epoch(self.trainer.train_dataloader, self.current_epoch)
        self._sums, self._rate = {}, self.trainer.optimizers[0].param_groups[0]["lr"]

    def reseed(self, epoch: int, part: int = 0) -> None:
        """Chance for the loader of an epoch (part 0), or for its steps (part 1).

        They are apart because lightning makes the loader's iterator before or after the epoch's start.
        """
        rank = self.global_rank if self._trainer is not None else 0
        torch.manual_seed(mix_seeds(self.seed, epoch, rank, part))

    def training_step(self, batch: Any, index: int) -> Tensor:
        """The loss that the method's paper minimises, and the penalties."""
        if index == 0:
            self.reseed(self.current_epoch, part=1)
        x, y = pair_of(batch, self.precise)
        if index == 0:
            check_target_values(self.criterion, y)
        if self.augment is not None:
            x, y = self.augment(x, y)
        loss = self._loss(x, y)
        if self.trainer.precision != "16-mixed":  # there the scaler leaves such a step out
            self._check(bool(loss.detach().isfinite()), f"the loss is NaN or infinite in step {index}", x, y)
        self._add({"loss": loss.detach()}, rows_of(as_batch(x)))
        self.log("loss", loss.detach(), prog_bar=True)
        plan = self.recipe
        return loss + weight_penalty(self.ensemble, plan.l1, plan.l2, plan.decays) if plan.l1 or plan.l2 else loss

    def _criterion_for(self, x: Any) -> Callable[[Any, Any], Tensor]:
        """The criterion; the usual one asks the model where its classes are if outputs and labels leave it open."""
        if self.criterion is not cross_entropy:
            return self.criterion

        def criterion(output: Tensor, target: Tensor) -> Tensor:
            if output.ndim > 2 and len(class_places(output, target)) != 1:
                self.ensemble.locate_classes(as_batch(x))
            return cross_entropy(output, target, self.ensemble.class_dim)

        return criterion

    def _loss(self, x: Any, y: Any) -> Tensor:
        try:
            return self.ensemble.loss(x, y, self._criterion_for(x))
        except (IndexError, RuntimeError) as error:
            if "same dtype" in str(error) and not any(t.is_floating_point() for t in tensors_of(x)):
                raise ValueError(f"fit: the network takes no whole numbers ({error}). Give x.float().") from error
            if "out of bounds" not in str(error) or not isinstance(y, Tensor):  # labels that are none of the classes
                raise
            raise ValueError(
                "fit: labels must be whole numbers from 0 to the model's outputs - 1, but those of this batch are from "
                f"{y.min().item()} to {y.max().item()} ({error}). Number them again, or give the model more outputs."
            ) from error

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        """Each member's gradient is clipped by itself, or all as one network's."""
        most = gradient_clip_val or self.recipe.clip
        if most and self.recipe.clip_by == "all":
            nn.utils.clip_grad_norm_(self.ensemble.parameters(), most)
        elif most:
            self.ensemble.clip_grad_norm_(most)

    # ---------------------------------------------------------------- validation

    def on_validation_epoch_start(self) -> None:
        """Forget the sums of the last validation; weights that are not finite are not judged."""
        self._check_weights()
        self._sums = {name: total for name, total in self._sums.items() if name in ("loss", "rows loss")}

    def validation_step(self, batch: Any, index: int) -> None:
        """Judge the ensemble and each member."""
        x, y = pair_of(batch, self.precise)
        args, kwargs = as_batch(x)
        outputs = logits_of(self.ensemble(*args, **kwargs))
        what = f"batch {index} of the validation data gives NaN or infinity at the end"
        good = all(bool((tensor < math.inf).all()) for tensor in tensors_of(outputs))
        self._check(good and all(bool(tensor.isfinite().all()) for tensor in tensors_of(y)), what, x, y)
        dim = self.ensemble.locate_classes((args, kwargs), outputs)
        whole, y, labels = judged_part(prediction_of(self.ensemble.task, outputs, dim), y, rows_of((args, kwargs)))
        if not labels:
            return
        figures = {f"validation/{name}": value for name, value in validation_scores(whole, y).items()}
        self._check(not any(bool(value.isnan()) for value in figures.values()), what, x, y)
        for i in range(self.ensemble.size if self.select == "member" else 0):
            figures |= {f"member {i}/{name}": value for name, value in validation_scores(whole.member(i), y).items()}
        self._add(figures, labels)

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
        """Keep the weights if they are better: by accuracy and then likelihood, or by likelihood alone."""
        prefix = "validation/" if who == "ensemble" else f"{who}/"
        own = [name for name in figures if name.startswith(prefix)]
        if self.recipe.best == "likeliest":
            own = [name for name in own if name.endswith("nll")] or own
        better = [-figures[name] if name.endswith("accuracy") else figures[name] for name in own]
        if who in self.best and not better < self.best[who][0]:
            return
        self.best[who] = (better, self.current_epoch)
        rows = ... if who == "ensemble" else int(who.removeprefix("member "))
        for key, tensor in self.ensemble.module.state_dict().items():
            self.kept.setdefault(key, tensor.detach().clone())[rows] = tensor[rows]

    def on_train_epoch_end(self) -> None:
        """Write the epoch's row, if the weights are worth keeping."""
        self._check_weights()
        names = {name: name.replace("validation/", "validation_") for name in self._sums if "rows" not in name}
        self.rows.append(
            {"epoch": self.current_epoch, "lr": self._rate} | {names[n]: v for n, v in self._means().items()}
        )
        most = self.recipe.patience
        if most and names.keys() - {"loss"} and epochs_without_improvement(self.rows) >= most:
            self.trainer.should_stop = self.stopped = True

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

    # ---------------------------------------------------------------- what cannot go on

    def _check_weights(self) -> None:
        """What was finite before the epoch must be so after it; a mask may hold infinities from the beginning on."""
        state = self.ensemble.module.state_dict() if self._good else {}
        bad = [name for name, t in state.items() if not bool((t.isfinite() | ~self._good[name].isfinite()).all())]
        self._check(not bad, f"{bad[0] if bad else 'a weight'} is NaN or infinite after the last step")

    def _check(self, good: bool, what: str, *data: Any) -> None:
        """Put the last good weights back and stop, unless everything is good in all processes."""
        if self.trainer.world_size > 1:
            good = self.trainer.strategy.reduce_boolean_decision(good)
        if good:
            return
        if self._good:
            self.ensemble.module.load_state_dict(self._good)
        epoch = self.current_epoch
        kept = "those before training" if epoch == 0 else f"those after epoch {epoch - 1}"
        raise NotFinite(
            f"fit: in epoch {epoch}, {what}: {_diagnose(data)}. Training has stopped, and the weights are {kept}"
        )

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


class LastCheckpoint(Checkpoint):
    """Keeps a checkpoint of the last whole epoch: complete, or the one before it."""

    def __init__(self, path: Path):
        self.path = path

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Training that stops early is over, and is not taken up again."""
        early = trainer.current_epoch < trainer.max_epochs and bool(trainer.early_stopping_callbacks)
        if early and not pl_module.stopped:
            pl_module.stopped = True
            self.on_train_epoch_end(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Write after everything else that an epoch's end does."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not trainer.is_global_zero:
            trainer.save_checkpoint(self.path)  # takes part, and leaves the writing to the first process
            return
        with atomic_write(self.path) as temporary:
            trainer.save_checkpoint(temporary)
            sign(temporary)


def _diagnose(data: tuple[Any, ...]) -> str:
    """What is wrong with a batch (x, y), or with training if nothing is."""
    for name, tree in zip(("x", "y"), data, strict=False):
        for tensor in tensors_of(tree):
            for bad, advice in (~tensor.isfinite(), "leave such rows out"), (tensor.abs() > LARGEST, "scale the data"):
                if bool(bad.any()):
                    where = bad.nonzero()[0].tolist()
                    return f"{name} holds {tensor[tuple(where)].item():g} at {where} of that batch; {advice}"
    return "it diverges although the data are finite; use a smaller lr, or give clip="


def judged_part(prediction: Prediction, y: Any, rows: int) -> tuple[Any, Tensor, int]:
    """The prediction and targets that are judged, and how many: rows, or labels other than -100."""
    if not isinstance(prediction, Classification):
        return prediction, y, rows
    soft = y.is_floating_point() and y.ndim == prediction.label.ndim + 1
    target = y.argmax(prediction.class_dim) if soft else y
    found = judged_examples(prediction, target.reshape(prediction.label.shape).long())
    return found.prediction, found.target, len(found.target)


def validation_scores(prediction: Prediction, y: Tensor) -> dict[str, Tensor]:
    """What a model is chosen by, first; then the loss that it has as a whole."""
    if isinstance(prediction, Classification):
        accuracy = (prediction.label == y).double().mean()
        return {"accuracy": accuracy, "nll": -prediction.log_likelihood(y).mean()}
    target = y.reshape(prediction.mean.shape)
    error = (prediction.mean - target).square().mean()
    if prediction.variances is None:
        return {"mse": error}
    return {"nll": -prediction.log_likelihood(target).mean(), "mse": error}


def weight_penalty(ensemble: Ensemble, l1: float, l2: float, decays: str = "all") -> Tensor:
    """l1 * sum |w| + l2 * sum w^2 over all parameters, or kernels alone, but BatchEnsemble's r and s."""
    left_out = vectors_of(ensemble) if decays == "kernels" else set()
    named = [(name, p) for name, p in ensemble.module.named_parameters() if id(p) not in left_out]
    weights = [p for name, p in named if name not in ensemble.fast and p.requires_grad]
    total = torch.zeros((), device=weights[0].device)
    for weight in weights:
        total = total + (l1 * weight.abs().sum() if l1 else 0) + (l2 * weight.square().sum() if l2 else 0)
    return total
