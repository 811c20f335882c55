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
        (optimizer,), (schedule,) = module.configure_optimizers()
        (stored,), (rate,) = found["optimizer_states"], found["lr_schedulers"]
        _check_alike(stored["param_groups"], optimizer.state_dict()["param_groups"], "its optimizer", exact=True)
        optimizer.load_state_dict(stored)  # tried on one that is thrown away
        _check_alike(rate, schedule.state_dict(), "its schedule")
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
    kept = found["_extra_state"]["kept"]
    for given, own in ((found, module.state_dict()), (kept, module.ensemble.module.state_dict() if kept else {})):
        names = given.keys() | own.keys()
        if differing := sorted(str(name) for name in names if not _is_same_kind(given.get(name), own.get(name))):
            raise ValueError(f"its weights belong to another model: they differ in {', '.join(differing[:3])}")


def _is_same_kind(given: Any, own: Any) -> bool:
    if not isinstance(own, Tensor):
        return type(given) is type(own)
    return is_plain_tensor(given) and given.shape == own.shape and given.is_complex() == own.is_complex()


def _check_alike(found: Any, own: Any, what: str, exact: bool = False) -> None:
    """The same keys and kinds of values as ours, at any depth; with `exact`, the same values of what is no number."""
    if isinstance(own, Mapping):
        if not isinstance(found, Mapping) or found.keys() != own.keys():
            raise ValueError(f"{what} does not have the entries {', '.join(map(str, own))}")
        for key, value in own.items():
            _check_alike(found[key], value, f"{what}, {key}", exact)
    elif isinstance(own, list | tuple) and isinstance(found, list | tuple) and len(own) == len(found):
        for one, other in zip(found, own, strict=True):
            _check_alike(one, other, what, exact)
    elif exact and isinstance(own, bool | str | None) and (type(found) is not type(own) or found != own):
        raise ValueError(f"{what} is different: {shorten_value(found)}")
    elif isinstance(own, bool | int | float) and not isinstance(found, bool | int | float):
        raise ValueError(f"{what} must be a number, but is {shorten_value(found)}")
    elif isinstance(own, list | tuple | str | Tensor) and not isinstance(found, type(own)):
        raise ValueError(f"{what} must be a {type(own).__name__}, but is {shorten_value(found)}")
