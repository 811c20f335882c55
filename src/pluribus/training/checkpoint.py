"""The checkpoint that a stopped training goes on from: read without running anything in it, and checked as a whole.

Lightning takes up a checkpoint piece by piece; one that lacks a piece would fail halfway, with the rest taken up.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .._common.signed_files import check_digest, read_checkpoint_file
from .._common.untrusted import Number, check_shape, is_plain_tensor, shorten_value
from .patience import epochs_without_improvement

if TYPE_CHECKING:
    from .lightning_module import TrainingModule

EXTRA = {"rows": [{str: Number}], "stopped": bool, "best": {str: Any}, "kept": {str: Any}}

PIECES = {
    "epoch": int,
    "global_step": int,
    "pytorch-lightning_version": str,
    "state_dict": {str: Any},
    "loops": {"fit_loop": {str: Any}},
    "optimizer_states": [{str: Any}],
    "lr_schedulers": [{str: Any}],
    "callbacks?": {str: Any},
}


def read_checkpoint(path: Path, module: TrainingModule, trainer: Any) -> dict[str, Any]:
    """The checkpoint's own state of the module; a `ValueError` says why training cannot go on from it."""
    try:
        found = read_checkpoint_file(path)
        check_shape(found, PIECES, "the checkpoint")
        if not re.fullmatch(r"[0-9]+(\.[0-9]+)+[0-9a-z.+-]*", found["pytorch-lightning_version"]):
            raise ValueError(f"its version is not one: {shorten_value(found['pytorch-lightning_version'])}")
        check_shape(found["state_dict"].get("_extra_state"), EXTRA, "its state")
        _check_weights(found["state_dict"], module)
        _check_optimizer(found, module)
        _check_alike(found["loops"]["fit_loop"], trainer.fit_loop.state_dict(), "its loop")
        for callback in trainer.callbacks:
            if (state := (found.get("callbacks") or {}).get(callback.state_key)) is not None:
                _check_alike(state, callback.state_dict(), f"its {type(callback).__name__}")
        _check_counters(found, module, trainer)
        check_digest(path, note=True)
    except UserWarning:
        raise
    except Exception as error:  # whatever a damaged file makes torch raise
        raise ValueError(str(error) or type(error).__name__) from None
    return found["state_dict"]


def _check_weights(found: Mapping[str, Any], module: TrainingModule) -> None:
    """The weights, and those of the best epoch, are tensors of the module's own names and shapes."""
    own = {name: tensor for name, tensor in module.state_dict().items() if name != "_extra_state"}
    _check_tensors({name: tensor for name, tensor in found.items() if name != "_extra_state"}, own, "weights")
    extra = found["_extra_state"]
    if extra["kept"]:
        _check_tensors(extra["kept"], module.ensemble.module.state_dict(), "weights of the best epoch")
    for who, value in extra["best"].items():
        if not isinstance(value, list | tuple) or len(value) != 2:
            raise ValueError(f"its best epoch of {who} is not a pair")
        check_shape(list(value[0]), [Number], f"its figures of {who}")
        check_shape(value[1], int, f"its best epoch of {who}")


def _check_tensors(found: Mapping[str, Any], own: Mapping[str, Tensor], what: str) -> None:
    if differing := sorted(map(str, found.keys() ^ own.keys())):
        raise ValueError(f"its {what} belong to another model: they differ in {', '.join(differing[:3])}")
    for name, tensor in own.items():
        given = found[name]
        if not is_plain_tensor(given) or given.shape != tensor.shape or given.is_complex() != tensor.is_complex():
            raise ValueError(f"its {what} belong to another model: they differ in {name}")


def _check_optimizer(found: Mapping[str, Any], module: TrainingModule) -> None:
    """Tried on an optimizer and a schedule that are thrown away."""
    (optimizer,), (schedule,) = module.configure_optimizers()
    if len(found["optimizer_states"]) != 1 or len(found["lr_schedulers"]) != 1:
        raise ValueError("it must have one optimizer and one schedule")
    _check_alike(found["lr_schedulers"][0], schedule.state_dict(), "its schedule")
    for name, value in schedule.state_dict().items():
        if isinstance(value, list) and len(found["lr_schedulers"][0][name]) != len(value):
            raise ValueError(f"its schedule must have {len(value)} {name}")
    stored, own = found["optimizer_states"][0], optimizer.state_dict()
    for one, other in zip(stored["param_groups"], own["param_groups"], strict=True):
        _check_alike(one, other, "its optimizer")
        for name, value in other.items():  # what is no number is the optimizer's own way, and not learned
            if not isinstance(value, float | list) and (type(one[name]), one[name]) != (type(value), value):
                raise ValueError(f"its optimizer has a different {name}: {shorten_value(one[name])}")
    if any(
        isinstance(value, Tensor) and value.is_complex() for kept in stored["state"].values() for value in kept.values()
    ):
        raise ValueError("its optimizer keeps complex numbers")
    optimizer.load_state_dict(stored)
    _check_kept(optimizer, found["global_step"])


def _check_kept(optimizer: torch.optim.Optimizer, steps: int) -> None:
    """What it keeps as a tensor is one for every parameter, of its shape or a number, and counts no more steps."""
    tensors = {name for state in optimizer.state.values() for name, value in state.items() if isinstance(value, Tensor)}
    of_shape = _kept_by_element(optimizer)
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if name in tensors and not is_plain_tensor(value):
                raise ValueError(f"its optimizer's {name} must be a plain tensor, but is {shorten_value(value)}")
            if name in of_shape and value.shape != parameter.shape:
                raise ValueError(f"its optimizer's {name} is {tuple(value.shape)}, not {tuple(parameter.shape)}")
            if name in tensors and name not in of_shape and (value.numel() != 1 or not bool(value.isfinite())):
                raise ValueError(f"its optimizer's {name} must be a finite number")
        if isinstance(step := state.get("step"), Tensor) and not 1 <= step.item() <= steps:
            raise ValueError(f"its optimizer counts {step.item()} steps of {steps}")


def _kept_by_element(optimizer: torch.optim.Optimizer) -> set[str]:
    """The names of what it keeps for every element of a parameter, found by a step of another one of its kind."""
    probe = torch.nn.Parameter(torch.ones(2, 3))
    probe.grad = torch.ones_like(probe)
    try:
        twin = type(optimizer)([probe], **optimizer.defaults)
        twin.step()
        return {name for name, value in twin.state[probe].items() if isinstance(value, Tensor) and value.ndim == 2}
    except Exception:  # an optimizer of the user's own, made in another way
        kept = [(name, value) for state in optimizer.state.values() for name, value in state.items()]
        return {name for name, value in kept if isinstance(value, Tensor) and value.ndim}


def _check_counters(found: Mapping[str, Any], module: TrainingModule, trainer: Any) -> None:
    """Every counter says the same number of whole epochs; training would otherwise end too soon, without a word."""
    extra, loop = found["state_dict"]["_extra_state"], found["loops"]["fit_loop"]
    epochs, batches = len(extra["rows"]), loop["epoch_loop.batch_progress"]
    if not 1 <= epochs <= trainer.max_epochs or [row.get("epoch") for row in extra["rows"]] != list(range(epochs)):
        raise ValueError(f"its rows are not those of 1 to {trainer.max_epochs} epochs")
    schedule, progress = found["lr_schedulers"][0], loop["epoch_progress"]
    told = [schedule["last_epoch"], schedule["_step_count"] - 1]
    told += [] if extra["stopped"] and found["epoch"] == epochs else [found["epoch"] + 1]  # after the end, or before it
    told += [count[name] for count in progress.values() for name in ("ready", "started", "processed")]
    told += [count["completed"] for count in progress.values() if count["completed"] != epochs - 1]
    if any(one != epochs for one in told):
        raise ValueError(f"its counters say {sorted(set(told))} epochs, its rows say {epochs}")
    steps = loop["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]["step"]["total"]
    if not batches["is_last_batch"] or batches["current"]["ready"] != batches["current"]["completed"]:
        raise ValueError("it was not written at the end of an epoch")
    if steps["completed"] != found["global_step"] or found["global_step"] < epochs:
        raise ValueError(f"its counters say {found['global_step']} and {steps['completed']} steps")
    if any(epoch >= epochs or epoch < 0 for _, epoch in extra["best"].values()):
        raise ValueError(f"its best epoch is not one of its {epochs}")
    if extra["stopped"] and not _may_have_stopped(extra["rows"], module, trainer):
        raise ValueError("it says that training stopped early, but its rows give no reason for that")


def _may_have_stopped(rows: Sequence[Mapping[str, float]], module: TrainingModule, trainer: Any) -> bool:
    waited = bool(module.patience) and epochs_without_improvement(rows) >= (module.patience or 0)
    return waited or bool(trainer.early_stopping_callbacks) and len(rows) < trainer.max_epochs


def _check_alike(found: Any, own: Any, what: str) -> None:
    """The same keys and kinds of values as ours, at any depth."""
    if isinstance(own, Mapping):
        if not isinstance(found, Mapping) or found.keys() != own.keys():
            raise ValueError(f"{what} does not have the entries {', '.join(map(str, own))}")
        for key, value in own.items():
            _check_alike(found[key], value, f"{what}, {key}")
    elif isinstance(own, bool | int | float) and not _is_number_like(found, own):
        raise ValueError(f"{what} must be a number, but is {shorten_value(found)}")
    elif isinstance(own, list | str | Tensor) and not isinstance(found, type(own)):
        raise ValueError(f"{what} must be a {type(own).__name__}, but is {shorten_value(found)}")
    elif isinstance(own, list) and own:  # of any length: what is learned may have grown
        for value in found:
            _check_alike(value, own[0], f"an entry of {what}")
    elif own is None and isinstance(found, Mapping | list):
        raise ValueError(f"{what} must be one value, but is {shorten_value(found)}")


def _is_number_like(found: Any, own: bool | int | float) -> bool:
    """Whether it is true or false, a whole number, or a finite one where ours is."""
    if isinstance(own, float) and not isinstance(found, bool):
        whole = isinstance(found, int) and abs(found) < 2**53
        return whole or isinstance(found, float) and math.isfinite(own) <= math.isfinite(found)
    return type(found) is type(own) and (isinstance(own, bool) or abs(found) < 2**63)
