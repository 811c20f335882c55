"""The checkpoint that a stopped training goes on from: read without running anything in it, and checked as a whole.

Its digest says that it is as it was written; what is checked beside it is whether it was written for this model, these
settings and this version of Lightning, which takes a checkpoint up piece by piece and would fail halfway.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from .._common.signed_files import check_digest, read_checkpoint_file
from .._common.untrusted import is_plain_tensor

if TYPE_CHECKING:
    from .lightning_module import TrainingModule


def read_checkpoint(path: Path, module: TrainingModule, trainer: Any) -> dict[str, Any]:
    """The checkpoint's own state of the module; a `ValueError` says why training cannot go on from it."""
    try:
        found = read_checkpoint_file(path)
        for what, stored, own in _pieces(found, module, trainer):
            if _outline(stored) != _outline(own):
                raise ValueError(f"its {what} belong to another model, other settings or another version of Lightning")
        epochs = len(found["state_dict"]["_extra_state"]["rows"])
        if not 1 <= epochs <= trainer.max_epochs or found["epoch"] not in (epochs - 1, epochs):
            raise ValueError(
                f"it tells of {epochs} epochs, the last {found['epoch']}, not of 1 to {trainer.max_epochs}"
            )
        check_digest(path, note=True)
    except UserWarning:
        raise
    except Exception as error:  # whatever a damaged file makes torch raise
        raise ValueError(f"{type(error).__name__}: {error}" if isinstance(error, LookupError) else str(error)) from None
    return found["state_dict"]


def _pieces(found: Mapping[str, Any], module: TrainingModule, trainer: Any) -> Iterator[tuple[str, Any, Any]]:
    """What the checkpoint holds, with what training would begin with in its place."""
    weights, own = dict(found["state_dict"]), module.state_dict()
    extra, own_extra = weights.pop("_extra_state"), own.pop("_extra_state")
    yield "weights", weights, own
    yield "epochs", dict.fromkeys(extra), dict.fromkeys(own_extra)
    yield "best weights", extra["kept"], module.ensemble.module.state_dict() if extra["kept"] else {}
    (optimizer,), (schedule,) = module.configure_optimizers()
    (stored,), (rate,) = found["optimizer_states"], found["lr_schedulers"]
    groups, own_groups = stored["param_groups"], optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict(stored)  # tried on one that is thrown away
    yield "settings of the optimizer", groups, own_groups
    yield "ways to step", list(map(_flags, groups)), list(map(_flags, own_groups))
    yield "rates", rate, schedule.state_dict()
    yield "loops", found["loops"]["fit_loop"], trainer.fit_loop.state_dict()
    known = found.get("callbacks") or {}
    for callback in trainer.callbacks:
        if callback.state_key in known:
            yield "callbacks", dict.fromkeys(known[callback.state_key]), dict.fromkeys(callback.state_dict())


def _outline(value: Any) -> Any:
    """What a value is, at any depth, without its numbers: keys, kinds, and the shapes of tensors."""
    if isinstance(value, Mapping):
        return {key: _outline(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_outline(inner) for inner in value if isinstance(inner, Mapping)]
    if isinstance(value, Tensor) and is_plain_tensor(value):
        return tuple(value.shape), value.is_complex()
    return "number" if isinstance(value, bool | int | float) else type(value)


def _flags(group: Mapping[str, Any]) -> dict[str, None]:
    """The settings of a group that are no numbers, as keys, which an outline keeps."""
    return {f"{key}={value}": None for key, value in group.items() if isinstance(value, bool | str | None)}
