"""What makes networks differ: sources of chance, for whole networks and packed members, and the cycles of a chain."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...landscape.studies.randomness import chain_against_runs, randomness
from ...training.batching import mix_seeds
from .fort_landscape import LAPTOP, PAPER, TINY
from .seeded_experiment import experiment_by_seed, few, fit_options, prepare_rows
from .stored_parts import Given

SOURCES = ("both", "initialisation", "batches")  # without any, training on a CPU gives the same network again

# ---------------------------------------------------------------- Fort et al., Figure S4


def compute_sources(given: Mapping[str, Any], folder: Path | None) -> Given:
    """Disagreement by initialisation, by shuffling and by both, at each rate, for one seed."""
    own = prepare_rows(given, folder)
    found = randomness(
        own.model, own.train, own.test, runs=given["runs"], rates=given["rates"], kinds=SOURCES,
        seed=mix_seeds(given["seed"], 3), **fit_options(given, rate=False),
    )  # fmt: skip
    half, rates = 0.5 / len(own.test[1]), given["rates"]
    apart = {kind: [found.mean(kind, rate) for rate in rates] for kind in SOURCES}
    values = {
        "initialisation": float(np.mean(apart["initialisation"])),
        "batches": float(np.mean(apart["batches"])),
        "dominant": float((np.mean(apart["initialisation"]) + half) / (np.mean(apart["batches"]) + half)),
        "higher": float((apart["batches"][-1] + half) / (apart["batches"][0] + half)),
    }
    return {"values": values, "rates": list(rates), "apart": apart}, {}


SOURCES_OF_CHANCE = experiment_by_seed(
    "fort-sources",
    {
        "smoke": few(TINY, runs=2, epochs=3, rates=[1e-3, 1e-2]),
        "laptop": few(LAPTOP, runs=2, epochs=8, rows=3000, rates=[4e-4, 3.2e-3]),
        "paper": few(PAPER, runs=5, recipe="fort/cifar10/medium_cnn", rates=[1e-4, 4e-4, 1.6e-3, 6.4e-3]),
    },
    compute_sources,
)

# ---------------------------------------------------------------- Fort et al., Figure S5


def compute_chains(given: Mapping[str, Any], folder: Path | None) -> Given:
    """Disagreement between the cycles of one chain, and between independent chains, for one seed."""
    own = prepare_rows(given, folder)
    found = chain_against_runs(
        own.model, own.train, own.test, chains=given["chains"], cycles=3, epochs=3 * given["epochs"],
        temperature=1 / len(own.train), batch_size=given["batch_size"], seed=mix_seeds(given["seed"], 9),
    )  # fmt: skip
    half = 0.5 / len(own.test[1])
    ratio = (np.mean(found["between"]) + half) / (np.mean(found["within"]) + half)
    return {"values": {"runs": float(ratio)}, **found}, {}


CHAINS = experiment_by_seed(
    "fort-chains",
    {
        "smoke": few(TINY, chains=2, epochs=2),
        "laptop": few(LAPTOP, chains=2, epochs=6),
        "paper": few(PAPER, model="resnet18", chains=3, epochs=50, seeds=4),
    },
    compute_chains,
)
