"""One method with many settings, or many methods: each trained from several seeds and judged alike.

The analyses of Masksembles and of Packed-Ensembles are tables of this kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from ...core.ensemble import Ensemble
from ...methods import deep
from ...methods.building import check_whole
from ...results.intervals import t_interval
from ...surgery.selecting import quote_names
from ...training.batching import mix_seeds
from ...training.fitting import fit
from ...uncertainty.classification import Classification
from ...uncertainty.evaluation import evaluate, ood
from ...uncertainty.metrics import reliability
from ...uncertainty.resampling import Interval
from ..common.examples import Examples, naming_data, read_batches

Entries = Mapping[str, Callable[[], Ensemble]]

METRICS = ("accuracy", "nll", "brier", "ece", "entropy", "mutual_information", "disagreement", "disagreement_by_error")

CRITERIA = ("msp", "max_logit", "entropy", "mutual_information", "variation_ratio")  # of Packed-Ensembles' Table 6


@dataclass(frozen=True)
class Measured:
    """The figures of every setting for every seed.

    `rows` have "setting", "seed", what the setting consists of, and the figures: metrics of the test data by their
    names; "parameters"; "inside entropy", "outside entropy", "outside mutual_information"; "auroc msp", "aupr msp",
    "fpr95 msp" and so on for each criterion, those of MSP also as "auroc", "aupr", "fpr95"; "ece at 3", "accuracy at
    3", "nll at 3" for shifted data of severity 3, and their means over severities as "cece", "cacc", "cnll";
    "reliability": confidence, accuracy and examples of each bin.

    Args:
        rows: one for each setting and seed
        notes: sentences about how they came about

    >>> measured = Measured([{"setting": "one", "seed": seed, "nll": 0.5} for seed in range(2)])
    >>> measured.settings, measured.values("one", "nll")
    (['one'], [0.5, 0.5])
    """

    rows: list[dict[str, Any]]
    notes: tuple[str, ...] = ()

    @property
    def settings(self) -> list[Any]:
        """The settings, in the order in which they were measured."""
        return list(dict.fromkeys(row["setting"] for row in self.rows))

    @property
    def figures(self) -> list[str]:
        """The figures that are numbers."""
        first = self.rows[0]
        return [name for name, value in first.items() if isinstance(value, float) and name != "seed"]

    def values(self, setting: Any, figure: str) -> list[float]:
        """The figure of a setting for every seed."""
        found = [row.get(figure) for row in self.rows if row["setting"] == setting]
        if not found or None in found or figure not in self.figures:
            raise ValueError(
                f"measured: there is no {figure!r} of {setting!r}. Settings are {quote_names(self.settings)}; figures "
                f"are {quote_names(self.figures)}."
            )
        return [float(value) for value in found if value is not None]

    def seeds(self, setting: Any) -> int:
        """How many seeds a setting was trained with."""
        return sum(row["setting"] == setting for row in self.rows)

    def interval(self, setting: Any, figure: str) -> Interval:
        """The mean over seeds with its 95 % interval by Student's t."""
        return t_interval(self.values(setting, figure))

    def difference(self, first: Any, second: Any, figure: str) -> Interval:
        """The mean of first - second, seed by seed, with its interval."""
        pairs = zip(self.values(first, figure), self.values(second, figure), strict=True)
        return t_interval([one - two for one, two in pairs])

    def curve(self, figure: str, settings: Sequence[Any] | None = None) -> np.ndarray:
        """Mean and ends of the interval for each setting: (settings, 3)."""
        return np.array([tuple(self.interval(one, figure)) for one in settings or self.settings])

    def table(self, figures: Sequence[str]) -> str:
        """A table in Markdown: a row for each setting, mean and half the interval of each figure."""
        lines = ["| setting | " + " | ".join(figures) + " |", "|---" * (len(figures) + 1) + "|"]
        for setting in self.settings:
            cells = [_cell(self.interval(setting, figure)) for figure in figures]
            lines.append(f"| {setting} | " + " | ".join(cells) + " |")
        return "\n".join(lines)


def measure_settings(
    entries: Entries,
    train: Any,
    test: Any,
    *,
    outside: Any = None,
    shifts: Mapping[int, Sequence[Any]] | None = None,
    seeds: int = 3,
    about: Mapping[str, Mapping[str, Any]] | None = None,
    further: Callable[[Ensemble, Any], Mapping[str, Any]] | None = None,
    progress: Callable[[str], None] | None = None,
    **options: Any,
) -> Measured:
    """Every entry, made and trained anew for each seed, and judged on the same data.

    Args:
        entries: functions that make an untrained ensemble, by the name of the setting; what they draw is seeded
        train, test: (x, y), a data set or a loader
        outside: x of other classes, which the criteria should notice
        shifts: for each severity, shifted test sets: figures are means over them
        seeds: independent repetitions
        about: further columns of each setting's rows
        further: more of a trained ensemble on the test data, for its row
        progress: called with a line of text when a part is done
        options: as for `pb.fit`: epochs, lr, optimizer, schedule, batch_size, ...

    >>> x, y = torch.randn(64, 4), torch.randint(3, (64,))
    >>> entries = {"one": lambda: pb.single(nn.Linear(4, 3)), "four": lambda: pb.deep(nn.Linear(4, 3), 4)}
    >>> measured = measure_settings(entries, (x, y), (x, y), seeds=2, epochs=1)
    >>> measured.settings, len(measured.values("four", "nll"))
    (['one', 'four'], 2)
    """
    judge = judge_settings("measure_settings", test, outside, shifts, further)
    tries = [Try(name, make, (about or {}).get(name, {}), options) for name, make in entries.items()]
    return train_each("measure_settings", tries, train, judge, seeds, progress, seeds_of)


def seeds_of(seed: int) -> tuple[int, int]:
    """The seeds of what is drawn, and of training."""
    return mix_seeds(seed, 11), mix_seeds(seed, 12)


def judge_settings(
    caller: str, test: Any, outside: Any, shifts: Mapping[int, Sequence[Any]] | None,
    further: Callable[[Ensemble, Any], Mapping[str, Any]] | None,
) -> Callable[[Ensemble], dict[str, Any]]:  # fmt: skip
    """What gives the figures of a trained ensemble; arguments as for `measure_settings`."""
    inside = Examples(caller, test, labelled=True)
    others = None if outside is None else Examples(caller, outside)
    shifted = {
        level: [Examples(caller, one, labelled=True) for one in given] for level, given in (shifts or {}).items()
    }

    def judge(ensemble: Ensemble) -> dict[str, Any]:
        figures = _figures(ensemble, inside, others, shifted)
        return figures if further is None else {**figures, **further(ensemble, inside)}

    return judge


class Try(NamedTuple):
    """A setting, what makes its untrained ensemble, further columns of its rows, and how it is trained."""

    setting: Any
    make: Callable[[], Ensemble]
    columns: Mapping[str, Any]
    options: Mapping[str, Any]


def train_each(
    caller: str, tries: Sequence[Try], train: Any, judge: Callable[[Ensemble], Mapping[str, Any]], seeds: int,
    progress: Callable[[str], None] | None, chance: Callable[[int], tuple[int, int]],
) -> Measured:  # fmt: skip
    """Every try, made, trained and judged for every seed; `chance` gives the seeds of what is drawn and of training."""
    rows = []
    for seed in range(check_whole(caller, "seeds", seeds)):
        for setting, make, columns, options in tries:
            if progress is not None:
                progress(f"{setting}, seed {seed + 1} of {seeds}")
            made = train_from_seeds(caller, setting, make, train, chance(seed), options)
            with torch.random.fork_rng(devices=[]):
                rows.append({"setting": setting, "seed": seed, **columns, **judge(made)})
    return Measured(rows)


def redraw(model: nn.Module) -> nn.Module:
    """The model with weights drawn anew, by the laws of its layers."""
    return deep(model, 1).member(0)


def example_of(train: Any) -> Any:
    """A few rows of the training data, for methods that run the model once."""
    for x, _ in read_batches("analyses", train, 2):
        return x
    raise ValueError("there must be at least one batch of data to train on, but there is none.")


def train_from_seeds(
    caller: str, name: Any, make: Callable[[], Ensemble], train: Any, seeds: tuple[int, int], options: Mapping[str, Any]
) -> Ensemble:
    """What `make` gives, trained; what it draws follows the first seed, training the second."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seeds[0])
        ensemble = make()
        if not isinstance(ensemble, Ensemble):
            raise TypeError(f"{caller}: make must give an Ensemble to train, but gave a {type(ensemble).__name__}.")
        with naming_data(caller, ensemble, train):
            history = fit(ensemble, train, seed=seeds[1], **options)
    if history.failure:
        raise ValueError(f"{caller}: training of {name!r} failed: {history.failure}")
    return ensemble


def _figures(
    ensemble: Ensemble, inside: Examples, outside: Examples | None, shifted: Mapping[int, Sequence[Examples]]
) -> dict[str, Any]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # of the draws of MC-Dropout
        prediction, target = _predict(ensemble, inside), inside.targets
        assert target is not None
        figures: dict[str, Any] = dict(evaluate(prediction, target, metrics=METRICS))
        figures["parameters"] = float(sum(p.numel() for p in ensemble.parameters()))
        bins = reliability(prediction.confidence, prediction.label == target)
        figures["reliability"] = [part.tolist() for part in (bins.confidence, bins.accuracy, bins.examples)]
        if outside is not None:
            figures |= _outside_figures(prediction, _predict(ensemble, outside))
        for severity, sets in shifted.items():
            judged = [
                evaluate(_predict(ensemble, one), one.targets, metrics=["accuracy", "nll", "ece"]) for one in sets
            ]
            figures |= {f"{name} at {severity}": float(np.mean([row[name] for row in judged])) for name in judged[0]}
        for short, name in (("cacc", "accuracy"), ("cnll", "nll"), ("cece", "ece")) if shifted else ():
            figures[short] = float(np.mean([figures[f"{name} at {severity}"] for severity in shifted]))
    return figures


def _predict(ensemble: Ensemble, examples: Examples) -> Classification:
    with naming_data("measure_settings", ensemble, examples):
        found = [ensemble.predict(x) for x, _ in examples.batches]
    if not all(isinstance(part, Classification) for part in found):
        raise ValueError(f"measure_settings: judges labels, but the ensemble's task is {ensemble.task!r}.")
    return Classification.cat(found)  # type: ignore[arg-type]


def _outside_figures(inside: Classification, outside: Classification) -> dict[str, float]:
    figures = {
        "inside entropy": inside.total.mean().item(),
        "outside entropy": outside.total.mean().item(),
        "outside mutual_information": outside.epistemic.mean().item(),
    }
    for criterion in CRITERIA:
        figures |= {f"{figure} {criterion}": value for figure, value in ood(inside, outside, criterion).items()}
    return figures | {figure: figures[f"{figure} msp"] for figure in ("auroc", "aupr", "fpr95")}


def _cell(found: Interval) -> str:
    half = f" ± {(found.high - found.low) / 2:.2g}" if found.known else ""
    return f"{found.value:.4g}{half}"
