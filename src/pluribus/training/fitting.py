"""Training an ensemble as its method's paper does: `fit`."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from .._common.atomic import move_aside
from .._common.optional import require
from .._common.text_tables import align_columns, some_of
from .._common.trees import as_batch, logits_of, name_nan
from ..core.ensemble import Ensemble
from ..data.dataset import NormalisedSplit
from ..surgery.calling import evaluation_mode, training_mode
from .augmentation import Augment, Augmentation, augment_of
from .batching import SplitBatches, loader
from .checkpoint import read_checkpoint
from .criteria import CRITERIA, USUAL, Criterion
from .optimizers import OPTIMIZERS, vectors_of
from .recipes import Recipe
from .recipes import recipe as recipe_of
from .schedules import SCHEDULES

if TYPE_CHECKING:
    from .lightning_module import TrainingModule

LAST = "last.ckpt"


@dataclass
class History:
    """The result of training: a row of metrics for each epoch, and the epoch whose weights were kept.

    Args:
        rows: {"epoch", "lr", "loss", "validation_accuracy", ...} for each epoch
        best: the epoch that was kept, by "ensemble" or by "member 0", ...; empty without selection
        seconds: how long it took
        failure: why training stopped before its end, where a loss or a weight was NaN or infinite; otherwise empty

    >>> history = History(rows=[{"epoch": 0, "lr": 0.1, "loss": 1.2}])
    >>> history.rows[-1]["loss"], history.failure
    (1.2, '')
    """

    rows: list[dict[str, float]] = field(default_factory=list)
    best: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    failure: str = ""

    def __str__(self) -> str:
        lines = [f"{len(self.rows)} epoch{'s' * (len(self.rows) != 1)} in {self.seconds:.1f} s"]
        if self.best:
            lines[0] += "; kept: " + ", ".join(f"epoch {epoch} ({by})" for by, epoch in self.best.items())
        if self.rows:
            shown = sorted({*some_of(len(self.rows), 8), *(e for e in self.best.values() if e < len(self.rows))})
            names = list(dict.fromkeys(name for i in shown for name in self.rows[i]))
            lines.append(align_columns([
                {name: f"{self.rows[i][name]:.4g}" if name in self.rows[i] else "" for name in names} for i in shown
            ]))  # fmt: skip
        return "\n".join([*lines, *([f"stopped: {self.failure}"] if self.failure else [])])


def fit(
    ensemble: Ensemble,
    train: Any,
    validation: Any = None,
    *,
    recipe: str | Mapping[str, Any] | Recipe | None = None,
    criterion: str | Criterion | None = None,
    optimizer: str | Callable[[list[dict[str, Any]]], torch.optim.Optimizer] | None = None,
    schedule: str | Callable[[int], float] | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    weight_decay: float | None = None,
    augment: Augmentation | Literal[False] | None = None,
    clip: float | None = None,
    l1: float | None = None,
    l2: float | None = None,
    select: str | None = "ensemble",
    patience: int | None = None,
    precision: Any = None,
    device: torch.device | str | None = None,
    devices: int | str = 1,
    strategy: str = "auto",
    folder: str | Path | None = None,
    resume: bool = True,
    logger: Any = None,
    callbacks: Sequence[Any] = (),
    progress: bool = False,
    seed: int = 0,
) -> History:
    """Train the ensemble in place, as its method's paper does, with lightning.

    The same seed gives the same weights. With `folder`, training that was stopped goes on from its last whole epoch
    and ends as if it had not been stopped. A loss, a weight or an output on validation data that is NaN or infinite
    ends training: the weights are then the best so far, or those of the last whole epoch; a warning and
    `History.failure` say what happened. Train and eval modes are restored afterwards; parts that are in
    eval mode inside an ensemble in training mode, such as a frozen BatchNorm, stay so.

    Shapes:
        train, validation: x (rows, *features) or a tree of such tensors; y (rows), or (rows, outputs) in regression

    Args:
        train: (x, y) of tensors, arrays or data frames, (x, mask, y), a data set, or a loader of these or of dicts with
            "labels"; inputs get the precision of the weights. MIMO's batches are divided by its repetition
        validation: the same; what `select` and `patience` look at
        recipe: a name in RECIPES, or a `Recipe`; the arguments below change what it says
        criterion: criterion(outputs, targets) -> mean over rows, or a name in CRITERIA; default: what the task needs
        optimizer: a name in OPTIMIZERS, or a function that takes parameter groups
        schedule: a name in SCHEDULES, or a function epoch -> what the rate is multiplied by
        epochs: passes over the training data
        batch_size: rows in a step, of data that is no loader
        lr: the rate at the start
        weight_decay: as the optimizer has it
        augment: augment(x, y) -> (x, y), on the training batches only; default: what the recipe has for images; False:
            none. `NormalisedSplit` rows are augmented before they are normalised, others as they come
        clip: the largest norm of each member's gradient, as if it trained alone
        l1, l2: penalties, added to the loss
        select: keep the weights of the epoch in which the "ensemble" was best on the validation data, or those in
            which each "member" was, whose epochs may differ (Packed-Ensembles, appendix K); None: the last epoch's.
            Best is what the recipe's `best` says: most accurate, and of equally accurate ones the likeliest
        patience: stop after so many epochs in which neither accuracy nor likelihood improved on validation data
        precision, devices, strategy, callbacks: lightning's own, such as "bf16-mixed", 2, "ddp"
        device: "cpu", "cuda", ...; by default where the ensemble is
        folder: where checkpoints and logs are kept
        resume: go on from the folder's last whole epoch; False: begin again
        logger: "csv" or "tensorboard" (in `folder`), or one of lightning's
        progress: show lightning's progress bar
        seed: of the order of rows and of everything that is drawn

    >>> x, y = torch.randn(64, 4), torch.randint(3, (64,))
    >>> history = fit(pb.deep(nn.Linear(4, 3), 2), (x, y), epochs=2)
    >>> [row["epoch"] for row in history.rows]
    [0, 1]
    """
    if not isinstance(ensemble, Ensemble):
        raise TypeError(
            f"fit: needs an Ensemble, but got a {type(ensemble).__name__}. Make one with pb.single(model) or pb.deep."
        )
    plan = resolve_recipe(
        recipe, epochs=epochs, batch_size=batch_size, lr=lr, weight_decay=weight_decay, clip=clip, l1=l1, l2=l2,
        patience=patience,
    ).of(ensemble.method)  # fmt: skip
    _check(ensemble, plan, train, validation, select, patience)
    home = next((p.device for p in ensemble.parameters()), torch.device("cpu"))
    batches, augment = apply_recipe(plan, ensemble, train, augment, seed)
    held_out = None if validation is None else loader(validation, plan.batch_size)
    started = time.monotonic()
    with quiet_lightning(), torch.random.fork_rng(devices=[]), training_mode(ensemble):
        module = lightning_module(
            ensemble, plan, criterion=criterion, optimizer=optimizer, schedule=schedule, augment=augment,
            select=select if held_out is not None and plan.best != "last" else None, seed=seed,
        )  # fmt: skip
        trainer = _trainer(module, plan, precision, device or home, devices, strategy, folder, logger, progress)
        trainer.callbacks.extend(callbacks)
        going_on, epoch = _find_checkpoint(folder, module, trainer) if resume and folder is not None else (None, 0)
        module.reseed(epoch)
        try:
            failure = "" if module.stopped else _fit(trainer, module, batches, held_out, going_on)
            module.restore()
        finally:
            ensemble.to(home)
    best = {who: epoch for who, (_, epoch) in module.best.items()}
    history = History(module.rows, best, time.monotonic() - started, failure)
    if failure:
        history.failure += name_nan(train) or name_nan(validation)
        warnings.warn(history.failure, RuntimeWarning, stacklevel=2)
    return history


def lightning_module(
    ensemble: Ensemble,
    recipe: str | Mapping[str, Any] | Recipe | None = None,
    *,
    criterion: str | Criterion | None = None,
    optimizer: str | Callable[[list[dict[str, Any]]], torch.optim.Optimizer] | None = None,
    schedule: str | Callable[[int], float] | None = None,
    augment: Augmentation | Literal[False] | None = None,
    select: str | None = None,
    seed: int = 0,
    **changes: Any,
) -> TrainingModule:
    """The ensemble as a `LightningModule`, for a `lightning.Trainer` of your own; arguments as for `fit`.

    After training, `module.restore()` puts the weights back that `select` kept.

    Shapes:
        batches of the trainer's loader: (x, y), rows first; the loss is a scalar

    Args:
        recipe, criterion, optimizer, schedule, augment, seed: as for `fit`
        changes: further fields of the recipe, such as lr or epochs

    >>> module = lightning_module(pb.deep(nn.Linear(4, 3), 2), lr=1e-2)
    >>> import lightning.pytorch as pl
    >>> isinstance(module, pl.LightningModule)  # for pl.Trainer(...).fit(module, loader)
    True
    """
    from .lightning_module import TrainingModule

    plan = resolve_recipe(recipe, **changes).of(ensemble.method)
    groups = ensemble.parameter_groups(plan.lr, plan.weight_decay, plan.fast_weight_factor)
    groups = groups if plan.decays == "all" else kernels_apart(ensemble, groups)
    if augment is None and plan.augment is not None:
        augment = _augmentation(plan, ensemble)
    return TrainingModule(
        ensemble, plan, _criterion(criterion or plan.criterion, ensemble.task), _optimizer(optimizer, plan), groups,
        rate=_schedule(schedule, plan), augment=augment or None, select=select, seed=seed,
    )  # fmt: skip


def resolve_recipe(recipe: str | Mapping[str, Any] | Recipe | None, **changes: Any) -> Recipe:
    """The recipe with what was changed by hand."""
    return recipe_of(recipe or "default").changed(**{name: v for name, v in changes.items() if v is not None})


def apply_recipe(
    plan: Recipe, ensemble: Ensemble, train: Any, augment: Augmentation | Literal[False] | None = None, seed: int = 0
) -> tuple[Any, Augmentation | Literal[False]]:
    """The batches that a recipe trains on, and the augmentation of each, or False: what every training goes through.

    Rows of a `Data` (`NormalisedSplit`) are augmented as they are and normalised after that; other rows are augmented
    as they come.

    Args:
        augment: a function in place of the recipe's augmentation; False: none
    """
    if augment is None and plan.augment is None:
        augment = False
    elif augment is None:
        _check_images(train)
        known: dict[str, Any] = {}
        if isinstance(train, NormalisedSplit):
            known = {"mean": train.data.mean, "std": train.data.std}
            known |= {"classes": len(train.data.classes)} if train.data.classes else {}
        found = _augmentation(plan, ensemble, **known)
        train, augment = found.read_crops(train.split) if known else train, found
    batches = loader(train, plan.batch_size, shuffle=True, seed=seed)
    repetition = getattr(ensemble, "batch_repetition", 1)
    return SplitBatches(batches, repetition) if repetition > 1 else batches, augment


def _augmentation(plan: Recipe, ensemble: Ensemble, **known: Any) -> Augment:
    known = {"classes": partial(_count_classes, ensemble), **known}
    return (
        augment_of(plan.augment, **known) if isinstance(plan.augment, str) else Augment(**known, **plan.augment or {})
    )


def _check_images(train: Any) -> None:
    """Refuse rows that are known not to be images, which no recipe can augment."""
    if isinstance(train, NormalisedSplit):
        what = "" if train.data.kind == "images" else f"{train.data.name} is a {train.data.kind}"
    else:
        x = train[0] if isinstance(train, tuple) and train else None
        what = f"x is {tuple(x.shape)}" if isinstance(x, torch.Tensor) and x.ndim != 4 else ""
    if what:
        raise ValueError(
            f"fit: the recipe augments images, (rows, channels, height, width), but {what}. Choose another recipe, or "
            "leave its augmentation out with augment=False."
        )


def _count_classes(ensemble: Ensemble, x: Any) -> int:
    """How many classes the members tell apart, where nobody said so: the size of their outputs."""
    with torch.random.fork_rng(devices=[]), evaluation_mode(ensemble):
        args, kwargs = as_batch(x[:1])
        return int(logits_of(ensemble(*args, **kwargs)).shape[-1])


def kernels_apart(ensemble: Ensemble, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Parameter groups in which scales and biases have groups of their own, without decay."""
    vectors, found = vectors_of(ensemble), []
    for group in groups:
        for apart, change in ((False, {}), (True, {"weight_decay": 0.0})):
            if params := [p for p in group["params"] if (id(p) in vectors) == apart]:
                found.append({**group, "params": params, **change})
    return found


# ---------------------------------------------------------------- helpers


def _fit(trainer: Any, module: TrainingModule, batches: Any, held_out: Any, checkpoint: Path | None) -> str:
    """Train, and say why it stopped if a number was not finite."""
    from .lightning_module import NotFinite

    try:
        trainer.fit(module, batches, held_out, ckpt_path=None if checkpoint is None else str(checkpoint))
        return ""
    except NotFinite as error:
        return f"{error}{', the best so far' if module.kept else ''}."
    except SystemExit:
        if trainer.interrupted:  # lightning turns Ctrl-C into an exit
            raise KeyboardInterrupt from None
        raise


def _find_checkpoint(folder: str | Path, module: TrainingModule, trainer: Any) -> tuple[Path | None, int]:
    """The checkpoint to go on from, and the epoch; one that cannot be used is named and left aside."""
    path = Path(folder) / LAST
    if not path.exists():
        return None, 0
    try:
        found = read_checkpoint(path, module, trainer)
    except ValueError as error:
        reason = str(error).removeprefix(f"{path}: ").rstrip(".")
        warnings.warn(
            f"fit: the checkpoint {str(path)!r} cannot be read ({reason}), so training starts from the beginning.",
            stacklevel=4,
        )
        move_aside(path)
        return None, 0
    if found["_extra_state"]["stopped"]:
        module.load_state_dict(found)
    return path, len(found["_extra_state"]["rows"])


def _check(
    ensemble: Ensemble, plan: Recipe, train: Any, validation: Any, select: str | None, patience: int | None
) -> None:
    if isinstance(plan.epochs, bool) or not isinstance(plan.epochs, Integral) or plan.epochs < 1:
        raise ValueError(f"fit: epochs must be a whole number of at least 1, but it is {plan.epochs!r}.")
    for name, source in (("train", train), ("validation", validation)):
        if isinstance(source, Iterator) and plan.epochs > 1:
            raise ValueError(
                f"fit: {name} must be readable once per epoch, but it is a {type(source).__name__}, which is "
                "exhausted after one. Give a list of batches or a loader."
            )
    if select not in ("ensemble", "member", None):
        raise ValueError(f'fit: select must be "ensemble", "member" or None, but it is {select!r}.')
    if not isinstance(train, Iterator) and isinstance(train, Sized) and not len(train):
        raise ValueError(f"fit: train must have at least one batch, but it is an empty {type(train).__name__}.")
    if patience is not None and (validation is None or patience < 1):
        raise ValueError(
            f"fit: patience must be at least 1 and needs validation data, but it is {patience} "
            f"{'without' if validation is None else 'with'} validation data."
        )
    if select == "member":
        if validation is None:
            raise ValueError('fit: select="member" needs validation data. Give validation=, or leave select out.')
        shared = [name for name in ensemble.module.state_dict() if name not in ensemble.own]
        if shared:
            raise ValueError(
                f'fit: select="member" needs members that share nothing, but those of {ensemble.method} share '
                f'{len(shared)} tensors, such as {shared[0]!r}. Use select="ensemble".'
            )


def _criterion(criterion: str | Criterion | None, task: str) -> Criterion:
    if callable(criterion):
        return criterion
    return _named(CRITERIA, "criterion", criterion or USUAL[task])


def _optimizer(optimizer: Any, plan: Recipe) -> Any:
    if optimizer is not None and not isinstance(optimizer, str):
        if isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(
                "fit: optimizer must be a name or a function that takes parameter groups, but it is an optimizer. "
                "Give optimizer=lambda groups: torch.optim.SGD(groups, momentum=0.9)."
            )
        return optimizer
    settings = {"name": optimizer} if optimizer else dict(plan.optimizer)
    function = _named(OPTIMIZERS, "optimizer", settings.pop("name"))
    if not settings:
        return function
    build = partial(function, **settings)
    build.layerwise = getattr(function, "layerwise", False)  # type: ignore[attr-defined]
    return build


def _schedule(schedule: Any, plan: Recipe) -> Callable[[int], float]:
    if callable(schedule):
        return schedule
    settings = {"name": schedule} if schedule else dict(plan.schedule)
    return _named(SCHEDULES, "schedule", settings.pop("name"))(plan.epochs, **settings)


def _named(table: Mapping[str, Any], what: str, name: str) -> Any:
    if name not in table:
        raise ValueError(f"fit: the {what} {name!r} is unknown. Choose from {', '.join(table)}.")
    return table[name]


def _trainer(
    module: TrainingModule, plan: Recipe, precision: Any, device: Any, devices: Any, strategy: str, folder: Any,
    logger: Any, progress: bool,
) -> Any:  # fmt: skip
    pytorch = require("lightning.pytorch", "pb.fit", "train")
    callbacks = []
    if folder is not None:
        from .lightning_module import LastCheckpoint

        callbacks.append(LastCheckpoint(Path(folder) / LAST))
    place = torch.device(device)
    return pytorch.Trainer(
        accelerator={"cuda": "gpu"}.get(place.type, place.type),
        devices=[place.index] if place.index is not None and devices == 1 else devices,
        strategy=strategy,
        precision=precision or "32-true",
        max_epochs=plan.epochs,
        logger=_logger(logger, folder, pytorch),
        callbacks=callbacks,
        enable_checkpointing=folder is not None,
        enable_progress_bar=progress,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        log_every_n_steps=1,
        default_root_dir=folder,
    )


def _logger(logger: Any, folder: Any, pytorch: Any) -> Any:
    if logger is None or logger is False:
        return False
    if not isinstance(logger, str):
        return logger
    known = {"csv": pytorch.loggers.CSVLogger, "tensorboard": pytorch.loggers.TensorBoardLogger}
    if folder is None:
        raise ValueError(f"fit: logger={logger!r} needs a folder to write to. Give folder=.")
    return _named(known, "logger", logger)(str(folder), name="logs")


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Lightning's hints about its own settings, which are ours here, are not shown."""
    require("lightning.pytorch", "pb.fit", "train")  # it sets the levels when it is imported
    talkers = [logging.getLogger(f"lightning.{part}") for part in ("pytorch", "fabric")]
    levels = [talker.level for talker in talkers]
    for talker in talkers:
        talker.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"lightning\.", append=False)
            warnings.filterwarnings("ignore", message=r".*(num_workers|isinstance\(treespec|lr_scheduler\.step).*")
            yield
    finally:
        for talker, level in zip(talkers, levels, strict=True):
            talker.setLevel(level)
