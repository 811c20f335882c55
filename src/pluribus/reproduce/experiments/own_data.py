"""Figures on the papers' own data at each scale; they are computed and judged in `landscape/studies/own_data.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...landscape.studies import own_data
from ...report.claims import ClaimVerdict
from .stored_parts import Given, InParts, Part, Stored


@dataclass(frozen=True)
class Computed:
    """What computes a part from its settings; it can be sent to other processes."""

    compute: Callable[..., Given]

    def __call__(self, part: Part, folder: Path | None, needed: Mapping[str, Stored]) -> Given:
        """What the part gives."""
        return self.compute(**part.settings)


def of_one_part(
    check: Callable[..., ClaimVerdict],
) -> Callable[[Mapping[str, Stored], Mapping[str, Any]], ClaimVerdict]:
    """The check of an experiment with one part, by its values and arrays."""

    def judge(found: Mapping[str, Stored], published: Mapping[str, Any]) -> ClaimVerdict:
        part = next(iter(found.values()), Stored({}))
        return check(part.figures, part.columns)

    return judge


def _experiment(
    name: str, part: str, compute: Callable[..., Given], scales: Mapping[str, Mapping[str, Any]]
) -> InParts:
    return InParts(name, lambda scale: [Part(part, scales[scale])], Computed(compute))


SPARSITY = _experiment("packed-sparsity", "curves", own_data.sparsity_bounds, {
    scale: {"deviations": [0.2, 0.5, 1.0], "shares": [round(0.1 * k, 1) for k in range(1, 11)], "draws": draws}
    for scale, draws in (("smoke", 5_000), ("laptop", 50_000), ("paper", 200_000))
})  # fmt: skip

TRANSITION = _experiment("masks-transition", "grid", own_data.measure_sinusoids, {
    "smoke": {"hidden": 20, "points": 9, "seeds": 2, "epochs": 1, "lr": 0.01},
    "laptop": {"hidden": 100, "points": 41, "seeds": 10, "epochs": 60, "lr": 0.01},
    "paper": {"hidden": 100, "points": 41, "seeds": 20, "epochs": 60, "lr": 0.01},
})  # fmt: skip

BIAS = _experiment("mimo-bias", "sizes", own_data.measure_bias, {
    "smoke": {"sizes": 3, "repeats": 4, "steps": 30},
    "laptop": {"sizes": 5, "repeats": 40, "steps": 1000},
    "paper": {"sizes": 5, "repeats": 100, "steps": 1000},
})  # fmt: skip
