"""The checkpoint that a stopped training goes on from: read without running anything in it, and checked as a whole.

Its digest says that it is as it was written; what is checked beside it is whether it was written for this model, these
settings and this version of Lightning, which takes a checkpoint up piece by piece and would fail halfway.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from .._common.signed_files import check_digest, read_checkpoint_file
from .._common.untrusted import Number, check_shape, is_plain_tensor, shorten_value

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
        check_shape(found["state_dict"].get("_extra_state"), EXTRA, "its state")
        _check_weights(found["state_dict"], module)
        _check_optimizer(found, module)
        _check_alike(found["loops"]["fit_loop"], trainer.fit_loop.state_dict(), "its loop")
        for callback in trainer.callbacks:
            if (state := (found.get("callbacks") or {}).get(callback.state_key)) is not None:
                _check_alike(state, callback.state_dict(), f"its {type(callback).__name__}")
        epochs = len(found["state_dict"]["_extra_state"]["rows"])
        if not 1 <= epochs <= trainer.max_epochs or found["epoch"] not in (epochs - 1, epochs):
            raise ValueError(
                f"it tells of {epochs} epochs, the last {found['epoch']}, not of 1 to {trainer.max_epochs}"
            )
        check_digest(path, note=True)
    except UserWarning:
        raise
    except Exception as error:  # whatever a damaged file makes torch raise
        raise ValueError(str(error) or type(error).__name__) from None
    return found["state_dict"]


def _check_weights(found: Mapping[str, Any], module: TrainingModule) -> None:
    """The weights, and those of the best epoch, are tensors of the module's own names and shapes."""
    extra = found["_extra_state"]
    own = {name: tensor for name, tensor in module.state_dict().items() if name != "_extra_state"}
    pairs = [({name: tensor for name, tensor in found.items() if name != "_extra_state"}, own)]
    pairs += [(extra["kept"], module.ensemble.module.state_dict())] if extra["kept"] else []
    for given, wanted in pairs:
        differing = sorted(map(str, given.keys() ^ wanted.keys())) or [
            name for name, tensor in wanted.items() if not _is_alike(given[name], tensor)
        ]
        if differing:
            raise ValueError(f"its weights belong to another model: they differ in {', '.join(differing[:3])}")


def _is_alike(given: Any, own: Tensor) -> bool:
    return is_plain_tensor(given) and given.shape == own.shape and given.is_complex() == own.is_complex()


def _check_optimizer(found: Mapping[str, Any], module: TrainingModule) -> None:
    """They are of the kind and the settings of the module's own; tried on some that are thrown away."""
    (optimizer,), (schedule,) = module.configure_optimizers()
    if len(found["optimizer_states"]) != 1 or len(found["lr_schedulers"]) != 1:
        raise ValueError("it must have one optimizer and one schedule")
    _check_alike(found["lr_schedulers"][0], schedule.state_dict(), "its schedule")
    stored, own = found["optimizer_states"][0], optimizer.state_dict()
    for one, other in zip(stored["param_groups"], own["param_groups"], strict=True):
        _check_alike(one, other, "its optimizer")
        for name, value in other.items():  # what is no number is the optimizer's own way, and not learned
            if not isinstance(value, float | list) and (type(one[name]), one[name]) != (type(value), value):
                raise ValueError(f"its optimizer has a different {name}: {shorten_value(one[name])}")
    optimizer.load_state_dict(stored)


def _check_alike(found: Any, own: Any, what: str) -> None:
    """The same keys and kinds of values as ours, at any depth."""
    if isinstance(own, Mapping):
        if not isinstance(found, Mapping) or found.keys() != own.keys():
            raise ValueError(f"{what} does not have the entries {', '.join(map(str, own))}")
        for key, value in own.items():
            _check_alike(found[key], value, f"{what}, {key}")
    elif isinstance(own, bool | int | float) and not isinstance(found, bool | int | float):
        raise ValueError(f"{what} must be a number, but is {shorten_value(found)}")
    elif isinstance(own, list | str | Tensor) and not isinstance(found, type(own)):
        raise ValueError(f"{what} must be a {type(own).__name__}, but is {shorten_value(found)}")
