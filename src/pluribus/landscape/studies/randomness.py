"""What makes runs differ: initialisation, the order of batches, both, or neither (appendices B and C)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from ...methods import deep
from ...uncertainty.classification import Classification
from ...uncertainty.evaluation import evaluate, ood
from ..checkpoints import Trajectory
from ..common.examples import Examples, target_labels
from ..cycles import csgmcmc
from ..diversity_accuracy_plane import diversity_accuracy
from ..recorded_training import trajectories
from ..sampling import solutions
from ..similarity import answers_and_targets, disagreement

KINDS = {  # kind: what differs between runs
    "both": ("different", "different"),
    "initialisation": ("different", "same"),
    "batches": ("same", "different"),
    "neither": ("same", "same"),
}


@dataclass(frozen=True)
class Randomness:
    """How often two runs give different labels, by what differs between them and by learning rate.

    Args:
        rows: {"kind", "lr", "disagreement" (mean over pairs of runs), "pairs" (that of each)} for each, and figures of
            the ensemble of the runs as Table 7 of Packed-Ensembles has them: "mutual_information"; where there are
            labels "accuracy", "nll" and "ece"; where there is outside data "aupr" and "outside", its mutual information
        note: what this device adds of its own

    >>> Randomness([{"kind": "both", "lr": 0.1, "disagreement": 0.2, "pairs": [0.2]}], "").rows[0]["disagreement"]
    0.2
    """

    rows: list[dict[str, Any]]
    note: str

    def mean(self, kind: str, lr: float | None = None) -> float:
        """The mean disagreement of a kind, at a rate or over all."""
        found = [r["disagreement"] for r in self.rows if r["kind"] == kind and lr in (None, r["lr"])]
        if not found:
            raise ValueError(f"randomness: nothing was measured for {kind!r} at {lr}. Kinds are {', '.join(KINDS)}.")
        return float(np.mean(found))


def randomness(
    model: Any,
    train: Any,
    probe: Any,
    *,
    runs: int = 3,
    rates: Sequence[float] = (1.6e-3,),
    kinds: Sequence[str] = tuple(KINDS),
    outside: Any = None,
    seed: int = 0,
    **options: Any,
) -> Randomness:
    """How different runs become by initialisation, by shuffling, by both and by neither (Figure S4).

    With a member of a packed ensemble, `pb.packed(model, 4, example=x).member(0)`, it is Table 7 of Packed-Ensembles.

    Args:
        model: a model, or a function without arguments that builds one
        train: (x, y), a data set or a loader
        probe: (x, y), where labels are compared; x alone will do
        runs: of each kind, at each rate
        rates: learning rates: shuffling counts for more at high ones
        kinds: what differs between the runs of a pair
        outside: x of other data, on which the ensembles should be less sure
        seed: of all random numbers: the same seed gives the same result
        options: as for `trajectories`

    >>> x, y = torch.randn(24, 4), torch.arange(24) % 3
    >>> found = randomness(nn.Linear(4, 3), (x, y), x, runs=2, kinds=["both", "neither"], epochs=1)
    >>> [row["kind"] for row in found.rows]
    ['both', 'neither']
    """
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise ValueError(f"randomness: the kind {unknown[0]!r} is unknown. Choose from {', '.join(KINDS)}.")
    if runs < 2:
        raise ValueError("randomness: needs at least 2 runs to compare, but runs is 1.")
    examples, other = Examples("randomness", probe), None if outside is None else Examples("randomness", outside)
    rows = []
    for lr in rates:
        for kind in kinds:
            init, batches = KINDS[kind]
            found = trajectories(
                model, train, examples, runs=runs, init=init, batches=batches, lr=lr, seed=seed, keep=1, **options
            )
            apart = disagreement(found)[np.triu_indices(runs, 1)]
            row = {"kind": kind, "lr": lr, "disagreement": float(apart.mean()), "pairs": apart.tolist()}
            rows.append(row | _figures(found, examples, other))
    return Randomness(rows, _note(model))


def _figures(runs: Sequence[Trajectory], inside: Examples, outside: Examples | None) -> dict[str, float]:
    """What the ensemble of the runs is worth."""
    said, _, targets = answers_and_targets("randomness", runs, None)
    prediction = Classification(said.double())
    names = ["mutual_information"] + (["accuracy", "nll", "ece"] if targets is not None else [])
    target = None if targets is None else target_labels(targets, said.shape[-1])
    found = evaluate(prediction, target, metrics=names)
    if outside is None:
        return found
    other = answer_together("randomness", solutions(runs), outside)
    return {**found, "aupr": ood(prediction, other)["aupr"], "outside": shared_information(other)}


def answer_together(caller: str, held: Any, part: Any) -> Classification:
    """What several networks say of data, as one prediction."""
    return Classification(answers_and_targets(caller, held, part)[0].double())


def shared_information(prediction: Classification) -> float:
    """The mean mutual information, in nats: the Jensen-Shannon divergence of the members."""
    return float(evaluate(prediction, metrics=["mutual_information"])["mutual_information"])


def chain_against_runs(
    model: Any,
    train: Any,
    probe: Any,
    *,
    chains: int = 3,
    cycles: int = 3,
    epochs: int = 30,
    lr: float = 0.1,
    temperature: float = 1.0,
    seed: int = 0,
    **options: Any,
) -> dict[str, list[float]]:
    """Disagreement between the cycles of one cSG-MCMC run, and between independent runs of it (Figure S5).

    Args:
        model, train, probe, seed: as for `randomness`
        chains: independent runs, each from an initialisation of its own
        cycles: of each; the last sample of a cycle stands for it
        epochs: of each run, in all its cycles
        lr: at the start of each cycle
        temperature: of the posterior; 1 is Bayes'
        options: as for `csgmcmc`

    Returns "within": one value for each chain, the mean over pairs of its cycles; "between": one for each pair of
    chains, between their last samples; and, where the probe has labels, "accuracy": one for each sample.

    >>> x, y = torch.randn(24, 4), torch.arange(24) % 3
    >>> found = chain_against_runs(nn.Linear(4, 3), (x, y), x, chains=2, cycles=2, epochs=2, batch_size=8)
    >>> len(found["within"]), len(found["between"])
    (2, 1)
    """
    if min(chains, cycles) < 2:
        raise ValueError(
            f"chain_against_runs: compares at least 2 chains of at least 2 cycles, but there are {chains} of {cycles}."
        )
    starts = deep(model, chains, generator=torch.Generator().manual_seed(seed))
    starts.task = options.get("task") or "classification"
    made = [
        csgmcmc(
            starts.member(i), train, cycles, cycles=cycles, epochs=epochs, lr=lr, temperature=temperature,
            seed=seed + i, **options,
        )
        for i in range(chains)
    ]  # fmt: skip
    examples, pairs = Examples("chain_against_runs", probe), np.triu_indices(cycles, 1)
    within = [float(disagreement(chain, data=examples)[pairs].mean()) for chain in made]
    last = solutions([chain.member(cycles - 1) for chain in made])
    between = disagreement(last, data=examples)[np.triu_indices(chains, 1)]
    found = {"within": within, "between": between.tolist()}
    if examples.labelled:
        figures = [diversity_accuracy(chain.member(0), chain, examples).accuracy for chain in made]
        found["accuracy"] = np.concatenate(figures).tolist()
    return found


def _note(model: Any) -> str:
    device = next((p.device.type for p in model.parameters()), "cpu") if isinstance(model, nn.Module) else "cpu"
    if device == "cpu":
        return "On a CPU backpropagation is deterministic: runs with the same start and batches are the same."
    return (
        f"On {device} backpropagation may be non-deterministic; with the same start and batches nothing else differs."
    )
