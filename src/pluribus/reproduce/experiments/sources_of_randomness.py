"""What makes packed members differ: sources of chance, one by one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...landscape.studies.randomness import randomness
from ...methods import packed
from ...training.batching import mix_seeds
from .fort_landscape import LAPTOP, PAPER, TINY
from .seeded_experiment import experiment_by_seed, few, fit_options, prepare_rows
from .stored_parts import Given

SOURCES = ("both", "initialisation", "batches")  # without any, training on a CPU gives the same network again

# ---------------------------------------------------------------- Packed-Ensembles, Table 7


def compute_packed_sources(given: Mapping[str, Any], folder: Path | None) -> Given:
    """The columns of the table for members that are trained one by one, by what differs between them, for one seed."""
    own = prepare_rows(given, folder)
    member = packed(own.model, 4, alpha=2, gamma=given["gamma"], example=own.train[0][:2]).member(0)
    found = randomness(
        member, own.train, own.test, runs=given["runs"], rates=[given["lr"]], kinds=SOURCES, outside=own.outside,
        seed=mix_seeds(given["seed"], 5), **fit_options(given, rate=False, schedule="cosine"),
    )  # fmt: skip
    rows = {row["kind"]: row for row in found.rows}
    both, values = rows["both"], {}
    for kind in SOURCES[1:]:
        values[f"enough_{kind}"] = rows[kind]["mutual_information"] / max(both["mutual_information"], 1e-9)
        for figure in ("accuracy", "aupr"):
            values[f"{figure}_{kind}"] = both[figure] - rows[kind][figure]
    kept = ("accuracy", "nll", "ece", "aupr", "mutual_information", "outside")
    return {"values": values, "rows": {kind: {name: row[name] for name in kept} for kind, row in rows.items()}}, {}


PACKED_SOURCES = experiment_by_seed(
    "packed-sources",
    {
        "smoke": few(TINY, runs=4, epochs=3, gamma=1),
        "laptop": few(LAPTOP, runs=4, epochs=8, gamma=1),
        "paper": few(
            PAPER, data="cifar100", model="resnet18", runs=4, gamma=2, lr=0.05, recipe="packed/cifar100/resnet18"
        ),
    },
    compute_packed_sources,
)
