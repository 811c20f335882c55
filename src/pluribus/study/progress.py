"""How far a run is, said by the run and read by whoever waits for it: a small file in the folder of its training."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

from .._common.atomic import atomic_write
from .._common.optional import require
from .._common.untrusted import open_file

MARK = "progress"

CENTURY = 3.2e9  # seconds


class Progress(NamedTuple):
    """How many epochs are done, after how many seconds of training, earlier starts included."""

    epoch: int
    epochs: int
    seconds: float


def read_progress(folder: Path) -> Progress | None:
    """How far a run is; None before its first epoch, and where nothing readable stands."""
    try:
        with open_file(folder / MARK) as file:
            epoch, epochs, seconds = file.read(80).decode().split()
        found = Progress(int(epoch), int(epochs), float(seconds))
    except (OSError, ValueError):
        return None
    return found if 0 <= found.epoch <= found.epochs > 0 and 0 <= found.seconds < CENTURY else None


def progress_callback(folder: Path, earlier: float) -> Any:
    """A callback of lightning that says after each epoch how far the run is.

    Args:
        earlier: the seconds of training before this start
    """
    started = time.monotonic()

    def say(trainer: Any, module: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        seconds = earlier + time.monotonic() - started
        with atomic_write(folder / MARK) as temporary:  # not through a link that somebody put there
            temporary.write_text(f"{trainer.current_epoch + 1} {trainer.max_epochs} {seconds:.3f}")

    return require("lightning.pytorch.callbacks", "pb.fit", "train").LambdaCallback(on_train_epoch_end=say)
