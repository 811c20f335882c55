"""What makes packed members differ (Packed-Ensembles, Table 7): initialisation, batches, the algorithms of a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...landscape.studies.randomness import randomness
from ...methods import packed
from ...training.batching import mix_seeds
from .fort_landscape import LAPTOP, PAPER, TINY
from .seeded_experiment import few, fit_options, in_seeds, prepare_rows, seed_parts
from .stored_parts import Given, Part

SOURCES = ("both", "initialisation", "batches", "neither")  # neither: on a GPU its algorithms alone, on a CPU nothing


def compute_packed_sources(given: Mapping[str, Any], folder: Path | None) -> Given:
    """The columns of the table for members that are trained one by one, by what differs between them, for one seed."""
    own = prepare_rows(given, folder)
    member = packed(own.model, 4, alpha=2, gamma=given["gamma"], example=own.example).member(0)
    found = randomness(
        member, own.train, own.test, runs=given["runs"], rates=[given["lr"]], kinds=SOURCES, outside=own.outside,
        seed=mix_seeds(given["seed"], 5), **fit_options(given, rate=False, schedule="cosine"),
    )  # fmt: skip
    rows = {row["kind"]: row for row in found.rows}
    both, values = rows["both"], {}
    for kind in ("initialisation", "batches"):
        values[f"enough_{kind}"] = rows[kind]["mutual_information"] / max(both["mutual_information"], 1e-9)
        for figure in ("accuracy", "aupr"):
            values[f"{figure}_{kind}"] = both[figure] - rows[kind][figure]
    kept = ("accuracy", "nll", "ece", "aupr", "mutual_information", "outside")
    return {"values": values, "rows": {kind: {name: row[name] for name in kept} for kind, row in rows.items()}}, {}


PAPER_SOURCES = {
    name: few(PAPER, data="cifar100", model=name, runs=4, gamma=2, lr=lr, recipe=f"packed/cifar100/{name}")
    for name, lr in (("resnet18", 0.05), ("resnet50", 0.1))
}


def plan_packed_sources(scale: str) -> list[Part]:
    """A part for each seed, and at the paper's scale for each of its two networks."""
    if scale == "paper":
        return [part for name, given in PAPER_SOURCES.items() for part in seed_parts(given, f"{name}-")]
    small = few(TINY, runs=4, epochs=3, gamma=1) if scale == "smoke" else few(LAPTOP, runs=4, epochs=8, gamma=1)
    return seed_parts(small)


PACKED_SOURCES = in_seeds("packed-sources", plan_packed_sources, compute_packed_sources)
