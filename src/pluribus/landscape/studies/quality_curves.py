"""Quality against ensemble size and corruption: subspaces, ensembles, and ensembles of subspaces (Figures 8 to 10)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..._common.trees import rows_of
from ...data.corruptions import corrupt
from ...methods.building import check_whole
from ...methods.method_info import takes
from ...uncertainty.classification import Classification
from ...uncertainty.evaluation import evaluate
from ..common.examples import Examples, is_classifying, target_labels
from ..common.networks import ensemble_of, network_of
from ..sampling import draw_around, find_sampler
from ..similarity import answers_and_targets

BASE = "solutions"  # what a run ends with, without a sampler
ORDERS = 20  # choices of runs that a figure is the mean of


@dataclass(frozen=True)
class Quality:
    """A row for each sampler, number of runs, corruption and severity: means over choices of runs.

    `rows` have "sampler", "size" (runs), "members" (networks in all), "shift", "severity" (0: none), "choices", and
    the figures "accuracy", "brier", "nll", "jsd" (Jensen-Shannon divergence of all networks, in nats) and "entropy";
    those that need labels are missing for data without.

    >>> Quality([{"sampler": "solutions", "size": 1, "shift": "", "severity": 0, "nll": 0.5}]).rows[0]["nll"]
    0.5
    """

    rows: list[dict[str, Any]]

    def curve(
        self, figure: str, sampler: str = BASE, shift: str = "", severity: int = 0
    ) -> tuple[list[int], list[float]]:
        """Sizes and the figure at each; without a shift on the data itself."""
        found = self._pick(sampler=sampler, shift=shift, severity=severity)
        return [row["size"] for row in found], [row[figure] for row in found]

    def by_severity(self, figure: str, sampler: str = BASE, size: int = 1) -> tuple[list[int], list[float]]:
        """Severities from 0, and the figure's mean over corruptions at each."""
        found = self._pick(sampler=sampler, size=size)
        severities = sorted({row["severity"] for row in found})
        return severities, [
            float(np.mean([row[figure] for row in found if row["severity"] == severity])) for severity in severities
        ]

    def _pick(self, **wanted: Any) -> list[dict[str, Any]]:
        found = [row for row in self.rows if all(row[key] == value for key, value in wanted.items())]
        if not found:
            known = {key: sorted({row[key] for row in self.rows}) for key in wanted}
            raise ValueError(f"quality: nothing was measured for {wanted}; there are {known}.")
        return found


def quality(
    runs: Sequence[Any],
    samplers: Mapping[str, Any] | Sequence[Any] = ("diagonal", "low_rank", "weight_average"),
    data: Any = None,
    sizes: Iterable[int] = range(1, 11),
    shifts: Mapping[str, Any] | Sequence[str] = (),
    *,
    samples: int = 10,
    severities: Sequence[int] = (1, 2, 3, 4, 5),
    normalise: Any = None,
    refresh: Any = None,
    task: str | None = None,
    seed: int = 0,
) -> Quality:
    """The curves of Figures 8 to 10: with one run the baseline and the subspaces, with more the ensembles of each.

    Every run is sampled once; a figure for `size` runs is the mean over choices of so many of them.

    Args:
        runs: trajectories
        samplers: names in SAMPLERS, or functions of a run and a size, whose names count; or {name: either}. The
            solutions themselves are always there
        data: (x, y), a data set or a loader
        sizes: numbers of runs; those above the number of runs there are, are left out
        shifts: {name: [data of severity 1, of severity 2, ...]} (one data set, without labels too, is severity 1), or
            names of corruptions, made of `data`, whose images must then be from 0 to 1
        samples: networks of each subspace
        severities: of each corruption that `shifts` names
        normalise: what comes after a corruption, before the network, such as `data.normalise`; `data` is then
            normalised too
        refresh: training data for statistics of batch normalisation
        task: as `Ensemble.task`; by default what the networks, labels and outputs tell
        seed: of all random numbers: the same seed gives the same result

    >>> x, y = torch.randn(24, 4), torch.arange(24) % 3
    >>> runs = [pb.landscape.trajectory(nn.Linear(4, 3), (x, y), epochs=5, seed=seed) for seed in range(2)]
    >>> curves = quality(runs, ["weight_average"], (x, y))
    >>> curves.curve("nll", "solutions")[0]
    [1, 2]
    """
    samples = check_whole("quality", "samples", samples)
    wanted = [size for size in sizes if 1 <= size <= len(runs)]
    if not wanted:
        raise ValueError(f"quality: sizes must be from 1 to the {len(runs)} runs there are, but are {list(sizes)}.")
    ensembles = sample_runs(runs, _samplers_by_name(samplers), samples, refresh, seed)
    rows: list[dict[str, Any]] = []
    for shift, severity, part in _parts(data, shifts, severities, normalise):
        rows += rows_of_part(ensembles, part, wanted, shift, severity, task, seed)
    return Quality(rows)


def rows_of_part(
    ensembles: Mapping[str, Sequence[Any]], part: Any, sizes: Sequence[int], shift: str = "", severity: int = 0,
    task: str | None = None, seed: int = 0,
) -> list[dict[str, Any]]:  # fmt: skip
    """The rows of `Quality` for one set of data; `ensembles` are those of `sample_runs`."""
    rows, examples = [], Examples("quality", part)
    for sampler, members in ensembles.items():
        summaries = [_summary(member, examples, task) for member in members]
        rows += [
            {"sampler": sampler, "size": size, "members": size * summaries[0].members, "shift": shift}
            | {"severity": severity}
            | _mean_figures(summaries, size, seed)
            for size in sizes
        ]
    return rows


class _Summary(NamedTuple):
    """What one run's networks say together."""

    mean: Tensor  # probabilities, (rows, classes)
    entropy: float  # mean over networks and rows
    members: int
    target: Tensor | None


def _summary(ensemble: Any, examples: Examples, task: str | None) -> _Summary:
    said, kind, targets = answers_and_targets("quality", ensemble, examples, task)
    if not is_classifying(kind):
        raise ValueError(f"quality: accuracy, Brier score and divergences need classification, but the task is {kind}.")
    p = said.double().exp()
    target = None if targets is None else target_labels(targets, p.shape[-1])
    return _Summary(p.mean(0), float(_entropy(p).mean()), len(p), target)


def _mean_figures(summaries: Sequence[_Summary], size: int, seed: int) -> dict[str, Any]:
    choices = list(_choices(len(summaries), size, seed))
    figures = [_figures([summaries[i] for i in choice]) for choice in choices]
    means = {name: float(np.mean([figure[name] for figure in figures])) for name in figures[0]}
    return {"choices": len(choices), **means}


def _choices(runs: int, size: int, seed: int) -> Iterator[tuple[int, ...]]:
    every = list(itertools.islice(itertools.combinations(range(runs), size), 10_000))
    if len(every) <= ORDERS:
        yield from every
        return
    picked = np.random.default_rng(seed).choice(len(every), ORDERS, replace=False)
    yield from (every[i] for i in sorted(picked.tolist()))


def _figures(parts: Sequence[_Summary]) -> dict[str, float]:
    mean = torch.stack([part.mean for part in parts]).mean(0)
    total = float(_entropy(mean).mean())
    found = {"entropy": total, "jsd": max(total - float(np.mean([part.entropy for part in parts])), 0.0)}
    target = parts[0].target
    if target is None:
        return found
    figures = evaluate(Classification.from_probabilities(mean[None]), target, metrics=("accuracy", "brier", "nll"))
    return {**figures, **found}


def _entropy(p: Tensor) -> Tensor:
    return -torch.special.xlogy(p, p).sum(-1)


def _samplers_by_name(samplers: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any]:
    if isinstance(samplers, Mapping):
        named = dict(samplers)
    else:
        given: list[Any] = [samplers] if isinstance(samplers, str) or callable(samplers) else list(samplers)
        named = {str(getattr(one, "__name__", one)): one for one in given}
        if len(named) < len(given):
            raise ValueError("quality: two samplers have the same name. Give {name: sampler}.")
    if BASE in named:
        raise ValueError(f"quality: {BASE!r} is the name of the runs' solutions. Give the sampler another name.")
    return {name: find_sampler("quality", sampler) for name, sampler in named.items()}


def sample_runs(
    runs: Sequence[Any], samplers: Mapping[str, Any], samples: int, refresh: Any, seed: int
) -> dict[str, Any]:
    """One ensemble for each run, by sampler; the solutions themselves are BASE."""
    found: dict[str, list[Any]] = {BASE: [ensemble_of(network_of("quality", run)) for run in runs]}
    for name, sampler in samplers.items():
        options = {"data": refresh} if takes(sampler, "data") else {}
        found[name] = [draw_around("quality", sampler, run, samples, seed + i, options) for i, run in enumerate(runs)]
    return found


def _parts(
    data: Any, shifts: Mapping[str, Any] | Sequence[str], severities: Sequence[int], normalise: Any
) -> Iterator[tuple[str, int, Any]]:
    """Every set that is judged on, with its corruption and severity."""
    batches, change = Examples("quality", data, labelled=True).batches, normalise or (lambda x: x)
    yield "", 0, [(change(x), y) for x, y in batches]
    if isinstance(shifts, Mapping):
        for name, parts in shifts.items():
            for severity, part in enumerate(parts if isinstance(parts, list) else [parts], 1):
                yield name, severity, [(change(x), y) for x, y in Examples("quality", part).batches]
        return
    starts = list(itertools.accumulate((rows_of(x) for x, _ in batches), initial=0))
    for name, severity in itertools.product([shifts] if isinstance(shifts, str) else shifts, severities):
        corrupted = (corrupt(x, name, severity, start=i) for i, (x, _) in zip(starts, batches, strict=False))
        yield name, severity, [(change(x), y) for x, (_, y) in zip(corrupted, batches, strict=True)]
