"""Checks of experiments that are repeated with several seeds: figures with bars, told by intervals over seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...landscape.studies.findings import Asked, judge_values
from ...report.figure import Figure
from ..experiments.stored_parts import Stored
from ..verdicts import ClaimVerdict

Found = Mapping[str, Stored]

CHANCE: dict[str, Asked] = {
    **{
        f"enough_{name}": (
            f"{title} are enough for diversity", "ratio of mutual information, alone / both", 0.5, False,
        )
        for name, title in (("initialisation", "different initialisations"), ("batches", "different batches"))
    },
    **{
        f"{figure}_{name}": (f"{title} alone are neither better nor worse than both", f"loss of {figure}", bar, None)
        for name, title in (("initialisation", "different initialisations"), ("batches", "different batches"))
        for figure, bar in (("accuracy", 0.01), ("aupr", 0.01))
    },
}  # fmt: skip

MEMBERS: dict[str, Asked] = {
    "mimo_barrier": ("MIMO's subnetworks are in distinct basins", "loss above the chord between them", 0.1, False),
    "multihead_barrier": ("multihead subnetworks share one basin", "loss above the chord between them", 0.1, True),
    "disagree": (
        "MIMO's subnetworks disagree more", "ratio of disagreement, MIMO / multihead", 2.0, False,
    ),
    "sparse_accuracy": (
        "at the same sparsity, more subnetworks lose more accuracy", "loss of accuracy, largest M - M = 1", 0.0, False,
    ),
    "sparse_likelihood": (
        "at the same sparsity, more subnetworks lose more log-likelihood", "loss, largest M - M = 1", 0.0, False,
    ),
    "dropout_accuracy": (
        "with many masks accuracy is MC-Dropout's", "difference of accuracy", 0.02, None,
    ),
    "dropout_information": (
        "with many masks members differ as much as draws of MC-Dropout",
        "log ratio of mutual information", 0.5, None,
    ),
    "deep_accuracy": (
        "with masks that do not overlap accuracy is that of Deep Ensembles", "difference of accuracy", 0.02, None,
    ),
    "deep_information": (
        "with masks that do not overlap members differ as much as those of Deep Ensembles",
        "log ratio of mutual information", 0.5, None,
    ),
    "selection": (
        "selecting the ensemble's epoch is as accurate as selecting each member's", "difference of accuracy",
        0.01, None,
    ),
    "selection_nll": (
        "selecting the ensemble's epoch is as likely as selecting each member's", "NLL, ensemble - member", 0.01, None,
    ),
}  # fmt: skip


def check_seeds(
    asked: Mapping[str, Asked],
    *names: str,
    pictures: Callable[[Found], list[Figure]] = lambda found: [],
) -> Callable[[Found, Mapping[str, Any]], ClaimVerdict]:
    """The check of an item by figures of every seed: all of them must be on the right side of their bars.

    Args:
        asked: what the figures mean, and their bars
        names: those that decide
        pictures: what is drawn beside the figures
    """

    def check(found: Found, published: Mapping[str, Any]) -> ClaimVerdict:
        seeds = [part.figures.get("values", {}) for part in found.values()]
        values = {name: [own[name] for own in seeds if name in own] for name in names}
        return judge_values({name: asked[name] for name in names}, values, pictures(found))

    return check
