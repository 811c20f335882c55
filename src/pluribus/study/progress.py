"""How far a run is, said by the run and read by whoever waits for it: a small file in the folder of its training."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any, NamedTuple

from .._common.optional import require
from .._common.signed_files import read_signed_json, write_signed_json

MARK = "progress"


class Progress(NamedTuple):
    """How many epochs are done, after how many seconds of training, earlier starts included."""

    epoch: int
    epochs: int
    seconds: float


def read_progress(folder: Path) -> Progress | None:
    """How far a run is; None before its first epoch, and where nothing readable stands."""
    try:
        found = Progress(**read_signed_json(folder / MARK))
        return found if 0 <= found.epoch <= found.epochs > 0 and 0 <= found.seconds < math.inf else None
    except (OSError, ValueError, TypeError):
        return None


def progress_callback(folder: Path, earlier: float) -> Any:
    """A callback of lightning that says after each epoch how far the run is.

    Args:
        earlier: the seconds of training before this start
    """
    started = time.monotonic()

    def say(trainer: Any, module: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        seconds = earlier + time.monotonic() - started
        done = {"epoch": trainer.current_epoch + 1, "epochs": trainer.max_epochs, "seconds": round(seconds, 3)}
        write_signed_json(folder / MARK, done)  # not through a link that somebody put there

    return require("lightning.pytorch.callbacks", "pb.fit", "train").LambdaCallback(on_train_epoch_end=say)
