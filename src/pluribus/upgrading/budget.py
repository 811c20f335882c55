"""How long fine-tuning may take: so many epochs of each way, or so much time for all of them together."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

UNITS = {"s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}

ENDLESS = 1_000_000  # epochs, where time ends training


@dataclass
class Budget:
    """Epochs for each training, or seconds for all of them from the first one on.

    >>> Budget.of(3).epochs, Budget.of("1.5h").seconds
    (3, 5400.0)
    """

    epochs: int | None = None
    seconds: float | None = None
    started: float | None = field(default=None, repr=False)

    @classmethod
    def of(cls, value: Any) -> Budget:
        """From a whole number of epochs, a time such as "90s", "20min" or "1.5h", or a timedelta."""
        if isinstance(value, timedelta):
            value = f"{value.total_seconds()}s"
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return cls(epochs=value)
        if isinstance(value, str):
            found = re.fullmatch(rf"\s*(\d+(?:\.\d*)?|\.\d+)\s*({'|'.join(UNITS)})?\s*", value)
            if found and not found[2] and found[1].isdigit():
                return cls(epochs=int(found[1]))
            if found and found[2] and float(found[1]) > 0:
                return cls(seconds=float(found[1]) * UNITS[found[2]])
        raise ValueError(
            "upgrade: budget must be a whole number of epochs per method (0: no fine-tuning), or a time for all of "
            f'them, such as "20min" or "1.5h", but it is {value!r}.'
        )

    def options(self, left: int) -> dict[str, Any]:
        """Arguments of `fit` for the next of so many trainings that are left: an equal share of the time that is."""
        if self.epochs is not None:
            return {"epochs": self.epochs}
        from lightning.pytorch.callbacks import Timer

        assert self.seconds is not None
        now = time.monotonic()
        self.started = now if self.started is None else self.started
        share = max(self.seconds - (now - self.started), 0.0) / left
        timer = Timer(timedelta(seconds=max(share, 0.001)), interval="step", verbose=False)
        return {"epochs": ENDLESS, "callbacks": [timer]}

    def __str__(self) -> str:
        if self.epochs is None:
            return f"{self.seconds:g} s for all training"
        return f"{self.epochs} epoch{'' if self.epochs == 1 else 's'} per method"
