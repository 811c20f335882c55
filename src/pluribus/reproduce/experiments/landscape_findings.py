"""The findings of Fort et al. as one experiment, run once for the items that are judged by them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...data.catalogue import load
from ...landscape.studies.findings import CLAIMS, findings
from ...models.by_name import ModelSpec
from .stored_parts import Given, InParts, Part, Stored

SETTINGS: dict[str, dict[str, Any]] = {
    "smoke": {
        "data": "sklearn_digits", "outside": "noise", "model": "mlp", "rows": 300, "runs": 3, "epochs": 8, "lr": 3e-3,
        "batch_size": 32, "seeds": 2,
    },
    "laptop": {
        "data": "cifar10", "outside": "svhn", "model": "small_cnn", "rows": 5000, "runs": 3, "epochs": 20, "lr": 1.6e-3,
        "batch_size": 128, "seeds": 3,
    },
    "paper": {
        "data": "cifar10", "outside": "svhn", "model": "medium_cnn", "rows": 50_000, "runs": 5, "epochs": 40,
        "lr": 1.6e-3, "batch_size": 128, "seeds": 5,
    },
}  # fmt: skip


def plan_findings(scale: str) -> list[Part]:
    """One part: the figures of all seeds."""
    return [Part("findings", SETTINGS[scale])]


def compute_findings(part: Part, folder: Path | None, needed: Mapping[str, Stored]) -> Given:
    """The figure of every finding for every seed, with the bar that it is judged by."""
    given = part.settings
    data = load(given["data"], folder=folder, outside=[given["outside"]], validation=0.1)
    splits = (data.train, data.validation, data.test)
    rows = (split[: min(given["rows"], len(split))] for split in splits)
    train, validation, test = ((data.normalise(x), y) for x, y in rows)
    outside = data.normalise(next(iter(data.outside.values()))[:500][0])
    model = ModelSpec(given["model"], tuple(data.shape), len(data.classes)).build()
    options = {key: given[key] for key in ("seeds", "runs", "epochs", "lr", "batch_size")}
    found = findings(model, train, validation, test, outside, **options)
    figures = {
        name: {"claim": one.claim, "figure": one.figure, "values": one.values, "bar": one.bar, "below": one.below}
        for name, one in zip(CLAIMS, found, strict=True)
    }
    return {"findings": figures}, {}


FINDINGS = InParts("fort-findings", plan_findings, compute_findings)
