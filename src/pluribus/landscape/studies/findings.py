"""The paper's findings on one's own data and model: each a figure with an interval over seeds, whichever way it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ...methods.building import check_whole
from ...results.intervals import t_interval
from ...training.batching import mix_seeds
from ...uncertainty.classification import Classification
from ...uncertainty.evaluation import evaluate
from ...uncertainty.resampling import Interval
from ..checkpoints import Trajectory
from ..common.arguments import COUNT, check_arguments
from ..common.examples import Examples
from ..paths import Path, along, line, tunnel
from ..recorded_training import trajectories
from ..sampling import diagonal_gaussian, low_rank_gaussian, of_subspaces, random_subspace, solutions
from ..similarity import answers_and_targets, cosine, disagreement

NETWORKS = 3  # of each kind whose divergence is compared: like with like


@dataclass(frozen=True)
class Finding:
    """A claim of the paper, the figure that it is judged by, and that figure for every seed.

    Args:
        values: one for each seed
        bar: what the figure is above if the claim holds, or below it if `below`

    >>> finding = Finding("runs differ", "disagreement", [0.30, 0.32, 0.31], bar=0.1)
    >>> finding.verdict
    'holds'
    """

    claim: str
    figure: str
    values: list[float]
    bar: float
    below: bool = False

    @property
    def interval(self) -> Interval:
        """The mean over seeds with its interval by Student's t; of ratios the geometric mean."""
        if not self.figure.startswith("ratio"):
            return t_interval(self.values)
        found = t_interval(np.log(self.values).tolist())
        return Interval(*np.exp(found).tolist())

    @property
    def verdict(self) -> str:
        """ "holds", "does not hold", or "open" where the bar is inside the interval."""
        found = self.interval
        if not found.known or found.low <= self.bar <= found.high:
            return "open"
        return "holds" if (found.high < self.bar) == self.below else "does not hold"

    def __str__(self) -> str:
        found, sign = self.interval, "below" if self.below else "above"
        spread = f" ({found.low:.3g} to {found.high:.3g})" if found.known else ""
        return f"{self.verdict:13} {self.claim}: {self.figure} {found.value:.3g}{spread}, {sign} {self.bar:g}"


@check_arguments(seeds=COUNT, runs=COUNT, epochs=COUNT)
def findings(
    model: Any,
    train: Any,
    validation: Any,
    test: Any,
    outside: Any,
    *,
    seeds: int = 3,
    runs: int = 3,
    epochs: int = 10,
    lr: float = 1.6e-3,
    distance: float | tuple[float, float] | None = None,
    floor: float = 0.92,
    progress: Callable[[str], None] | None = None,
    **options: Any,
) -> list[Finding]:
    """The findings of Fort et al., judged with intervals over seeds; the rate is halved at each quarter of training.

    With a constant rate, disagreement within a trajectory is as large as across trajectories.

    Shapes:
        data: x (rows, *features) and y (rows); outside: (rows, *features); a value for each seed in each finding

    Args:
        model: a model, or a function without arguments that builds one
        train: (x, y): what the runs are trained on
        validation: what random samples are accepted by: at `floor` of the solution's accuracy
        test: (x, y): what they are judged on
        outside: x of other data, where divergences are measured
        seeds: independent repetitions, each with `runs` runs
        epochs: of each run
        lr: at the start
        distance: of random samples; by default up to a fifth of the length of the weight vector
        progress: called with a line of text when a part is done
        options: as for `trajectories`

    >>> x, y = torch.randn(24, 4), torch.arange(24) % 3
    >>> rows = (x, y), (x, y), (x, y), 5 * x
    >>> found = findings(nn.Linear(4, 3), *rows, seeds=2, runs=2, epochs=6, floor=0.0)
    >>> {finding.verdict for finding in found} <= {"holds", "does not hold", "open"}
    True
    """
    seeds, runs = check_whole("findings", "seeds", seeds), check_whole("findings", "runs", runs)
    parts = [Examples("findings", part) for part in (train, validation, test, outside)]
    options = {"schedule": "quarters", **options}
    found: list[dict[str, float]] = []
    for seed in range(seeds):
        if progress is not None:
            progress(f"seed {seed + 1} of {seeds}")
        made = trajectories(
            model, train, parts[2], runs=runs, epochs=epochs, lr=lr, seed=mix_seeds(seed, 7), keep=None, **options
        )
        found.append(finding_figures(made, *parts, distance=distance, floor=floor, seed=seed))
    return [
        Finding(claim, figure, [row[name] for row in found], bar, below)
        for name, (claim, figure, bar, below) in CLAIMS.items()
    ]


CLAIMS = {  # figure by name: (claim, what it is, bar, below)
    "across": (
        "functions differ more across initialisations than along a trajectory",
        "ratio of disagreement, across / within", 2.0, False,
    ),
    "independent": (
        "independent runs are more diverse on OOD data than a trajectory",
        "ratio of divergence", 1.0, False,
    ),
    "random": ("independent runs are more diverse on OOD data than random samples", "ratio of divergence", 1.0, False),
    "trajectory": ("a trajectory is more diverse on OOD data than low-rank samples", "ratio of divergence", 1.0, False),
    "random_low_rank": ("random samples are more diverse there than low-rank ones", "ratio of divergence", 1.0, False),
    "low_rank": ("low-rank samples are more diverse on OOD data than diagonal ones", "ratio of divergence", 1.0, False),
    "ensemble": ("ensembles gain more than subspaces", "gain in NLL, ensemble - best subspace", 0.0, False),
    "both": ("ensembles of subspaces are better than ensembles", "NLL, ensemble - ensemble of subspaces", 0.0, False),
    "cosine": ("solutions of different initialisations are nearly orthogonal", "largest |cosine|", 0.1, True),
    "barrier": ("the straight line between solutions has a barrier", "loss above the chord", 0.1, False),
    "tunnel": ("a tunnel avoids it", "barrier of the tunnel / of the line", 0.5, True),
    "along": (
        "functions differ along the tunnel",
        "ratio of disagreement, its middle with the nearer end / of the ends", 0.5, False,
    ),
}  # fmt: skip


def finding_figures(
    runs: Sequence[Trajectory],
    train: Any,
    validation: Any,
    test: Any,
    outside: Any,
    *,
    distance: float | tuple[float, float] | None = None,
    floor: float = 0.92,
    path: Path | None = None,
    seed: int = 0,
) -> dict[str, float]:
    """The figure of each of CLAIMS for runs that were trained already, with checkpoints and test rows as their probe.

    Args:
        distance, floor: as for `findings`
        path: a tunnel between the first two, where one is known
    """
    parts = (Examples("finding_figures", part) for part in (train, validation, test, outside))
    train, validation, test, outside = parts
    pairs, half = np.triu_indices(len(runs), 1), 0.5 / test.rows  # half a row: a ratio to no difference is finite
    ends = solutions(runs)
    apart = disagreement(ends, data=test)
    late = [np.mean(disagreement(run)[-max(len(run) // 4, 2) : -1, -1]) for run in runs]
    subspaces = {
        "random": _random(runs[0], distance, floor, train, validation, seed),
        "low_rank": low_rank_gaussian(runs[0], NETWORKS, data=train, seed=seed),
        "diagonal": diagonal_gaussian(runs[0], NETWORKS, data=train, seed=seed),
        "trajectory": runs[0].take(range(len(runs[0]) - NETWORKS, len(runs[0]))),
        "independent": [run.solution for run in runs[:NETWORKS]],
    }
    spread = {name: _divergence(held, outside) for name, held in subspaces.items()}
    return {
        "across": float((apart[pairs].mean() + half) / (np.mean(late) + half)),
        "independent": spread["independent"] / spread["trajectory"],
        "random": spread["independent"] / spread["random"],
        "trajectory": spread["trajectory"] / spread["low_rank"],
        "random_low_rank": spread["random"] / spread["low_rank"],
        "low_rank": spread["low_rank"] / spread["diagonal"],
        "cosine": float(np.abs(cosine(ends)[pairs]).max()),
        **_gains(runs, test, train, seed),
        **_connection(runs, train, test, path or find_tunnel(runs, train), half),
    }


def _gains(runs: Sequence[Trajectory], test: Examples, train: Examples, seed: int) -> dict[str, float]:
    """How much likelier the test labels become: by an ensemble, by subspaces, by both."""
    base = float(np.mean([_nll(run.solution, test) for run in runs]))
    both = []
    alone = []
    for sampler in ("diagonal", "low_rank"):
        alone.append(np.mean([_nll(of_subspaces([run], sampler, 5, data=train, seed=seed), test) for run in runs]))
        both.append(_nll(of_subspaces(runs, sampler, 5, data=train, seed=seed), test))
    ensemble = _nll(solutions(runs), test)
    return {"ensemble": float((base - ensemble) - (base - min(alone))), "both": float(ensemble - min(both))}


def find_tunnel(runs: Sequence[Trajectory], train: Any) -> Path:
    """A path of low loss between the first two."""
    return tunnel(runs[0], runs[1], Examples("finding_figures", train).batches, points=7, steps=100)


def _connection(
    runs: Sequence[Trajectory], train: Examples, test: Examples, path: Path, half: float
) -> dict[str, float]:
    straight, curved = along(line(runs[0], runs[1]), train, points=9), along(path, train, points=9)
    middle = disagreement([path.at(0.5), runs[0].solution, runs[1].solution], data=test)
    return {
        "barrier": straight.barrier,
        "tunnel": curved.barrier / max(straight.barrier, 1e-12),
        "along": float((middle[0, 1:].min() + half) / (middle[1, 2] + half)),
    }


def _random(run: Trajectory, distance: Any, floor: float, train: Examples, validation: Examples, seed: int) -> Any:
    said, _, targets = answers_and_targets("findings", run.solution, validation)
    assert targets is not None
    least = floor * float((said[0].argmax(-1) == targets.reshape(-1)).double().mean())
    length = float(run.solution_row().weights[0].norm())
    reach = (0.02 * length, 0.2 * length) if distance is None else distance
    return random_subspace(run, NETWORKS, reach, (validation, least), tries=200, data=train, seed=seed)


def _divergence(held: Any, outside: Examples) -> float:
    """The Jensen-Shannon divergence of all networks, in nats."""
    said, _, _ = answers_and_targets("findings", held, outside)
    found = evaluate(Classification(said.double()), metrics=["mutual_information"])["mutual_information"]
    return max(float(found), 1e-9)  # so that ratios are finite


def _nll(held: Any, test: Examples) -> float:
    said, _, targets = answers_and_targets("findings", held, test)
    assert targets is not None
    return float(evaluate(Classification(said.double()), torch.as_tensor(targets), metrics=["nll"])["nll"])
