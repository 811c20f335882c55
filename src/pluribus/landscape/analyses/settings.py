"""One method with many settings, or many methods: each trained from several seeds and evaluated alike.

The analyses of Masksembles, MIMO and Packed-Ensembles are tables of this kind: a function names the settings, and
`measure_settings` or `sweep` trains and evaluates them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any, NamedTuple, Unpack

import numpy as np
import torch
from torch import nn

from ...core.ensemble import Ensemble
from ...methods import deep, masksembles, mc_dropout, packed, single
from ...methods import mask_sampler as sampler
from ...methods.building import check_whole
from ...results.intervals import t_interval
from ...surgery.selecting import exact_pattern, quote_names
from ...training.batching import mix_seeds
from ...training.fitting import fit
from ...uncertainty.classification import Classification
from ...uncertainty.evaluation import evaluate, ood
from ...uncertainty.metrics import reliability
from ...uncertainty.resampling import Interval
from ..common.examples import Examples, naming_data, read_batches, target_labels
from ..common.points import Measuring, Span, measure_points
from ..similarity import answers_and_targets, disagreement, divergence
from ..subnetworks import subnetworks

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
        return [name for name, value in first.items() if isinstance(value, float)]

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
    """Every setting, built and trained for each seed, and evaluated on the same data.

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
    return train_each("measure_settings", tries, train, judge, seeds, progress)


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
    progress: Callable[[str], None] | None,
) -> Measured:  # fmt: skip
    """Every try, made, trained and judged for every seed."""
    rows = []
    for seed in range(check_whole(caller, "seeds", seeds)):
        for setting, make, columns, options in tries:
            if progress is not None:
                progress(f"{setting}, seed {seed + 1} of {seeds}")
            own = mix_seeds(seed, 11), mix_seeds(seed, 12)  # of what is drawn, and of training
            made = train_from_seeds(caller, setting, make, train, own, options)
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


SMALL = 1e-4  # a weight that is no larger counts as zero (MIMO, appendix C)


def sweep(
    make: Callable[[Any], Ensemble],
    settings: Sequence[Any],
    train: Any,
    data: Any,
    *,
    further: Callable[[Ensemble, Any], Mapping[str, float]] | None = None,
    seeds: int = 3,
    progress: Callable[[str], None] | None = None,
    **options: Any,
) -> Measured:
    """Quality of members and of the ensemble, and how far members differ, for each setting, trained for each seed.

    Figures are "accuracy" and "log_likelihood" (a row's mean) of the ensemble, "member_accuracy" and
    "member_log_likelihood", "disagreement" and "kl" (means over pairs of members; 0 of one), and the "share" of weights
    above 1e-4.

    With sizes of MIMO this is Figure 5; with input repetitions or batch repetitions, Figure 6; with methods by name,
    Figure 4 (right), and with `further=between_members` Figure 3.

    Args:
        make: an ensemble for a setting, to be trained; what it draws is seeded
        settings: sizes, repetitions, names of methods, ...
        train: (x, y), a data set or a loader
        data: what is judged on: (x, y), a data set or a loader
        further: more figures of a trained ensemble on the data, such as `between_members` gives
        seeds: independent repetitions
        progress: called with a line of text when a part is done
        options: as for `pb.fit`: epochs, lr, schedule, ...

    >>> x, y = torch.randn(64, 4), torch.arange(64) % 3
    >>> found = sweep(lambda size: pb.deep(nn.Linear(4, 3), size), [1, 2], (x, y), (x, y), seeds=2, epochs=1)
    >>> found.settings, found.curve("accuracy").shape
    ([1, 2], (2, 3))
    """
    chosen = list(settings)
    tries = [Try(setting, partial(make, setting), {}, options) for setting in chosen]
    return _sweep("sweep", tries, train, data, seeds, progress, further)


def regularization_path(
    make: Callable[[], Ensemble],
    train: Any,
    data: Any,
    l1: Sequence[float] = (),
    l2: Sequence[float] = (),
    *,
    seeds: int = 3,
    progress: Callable[[str], None] | None = None,
    **options: Any,
) -> Measured:
    """Accuracy, log-likelihood and the share of weights that are not zero, as regularisation grows (Figures 7 to 9).

    Along one path l1 grows and l2 is 0, along the other the other way round. Settings are ("l1", 1e-4), ("l2", 1e-3),
    and so on; `share` is that of all weights with an absolute value above 1e-4, figure 9's axis.

    Args:
        make, train, data, seeds, progress: as for `sweep`
        l1, l2: factors of the sum of absolute values, and of squares, of all weights; what is added to the loss
        options: as for `pb.fit`. A rate that falls to 0 lets weights come to rest at zero

    >>> x, y = torch.randn(24, 4), torch.arange(24) % 3
    >>> found = regularization_path(lambda: pb.deep(nn.Linear(4, 3), 2), (x, y), (x, y), l1=[0.1], seeds=1, epochs=1)
    >>> found.settings
    [('l1', 0.1)]
    """
    if wrong := [name for name in ("l1", "l2", "weight_decay") if name in options]:
        raise ValueError(f"regularization_path: {wrong[0]} is what the path varies, so it cannot also be fixed.")
    paths = {"l1": list(l1), "l2": list(l2)}
    tries = []
    for name, values in paths.items():
        for value in values:
            own = {"l1": 0.0, "l2": 0.0, name: float(value)}
            tries.append(Try((name, float(value)), make, own, {**options, **own, "weight_decay": 0.0}))
    return _sweep("regularization_path", tries, train, data, seeds, progress)


def member_figures(ensemble: Ensemble, data: Any) -> dict[str, float]:
    """Quality of an ensemble and of its members, and how far the members differ, on labelled data.

    >>> x, y = torch.randn(24, 4), torch.arange(24) % 3
    >>> figures = member_figures(pb.deep(nn.Linear(4, 3), 2), (x, y))
    >>> 0 <= figures["disagreement"] <= 1
    True
    """
    examples = Examples("member_figures", data, labelled=True)
    answers, _, targets = answers_and_targets("member_figures", ensemble, examples)
    assert targets is not None
    p, y = answers.double().exp(), target_labels(targets, answers.shape[-1])
    every = (Classification.from_probabilities(part) for part in (p, *(member[None] for member in p)))
    together, *alone = [evaluate(part, y, metrics=("accuracy", "nll")) for part in every]
    pairs = ~np.eye(len(p), dtype=bool)
    return {
        "accuracy": together["accuracy"],
        "log_likelihood": -together["nll"],
        "member_accuracy": float(np.mean([one["accuracy"] for one in alone])),
        "member_log_likelihood": -float(np.mean([one["nll"] for one in alone])),
        "disagreement": float(disagreement(ensemble, data=examples)[pairs].mean()) if len(p) > 1 else 0.0,
        "kl": float(divergence(ensemble, data=examples)[pairs].mean()) if len(p) > 1 else 0.0,
    }


def between_members(ensemble: Ensemble, data: Any, points: int = 9, **how: Unpack[Measuring]) -> dict[str, float]:
    """How good the networks between the members of one network are: are the members separate modes (MIMO, Figure 3)?

    Members are those of `subnetworks`: of MIMO, each while the others read zeros. "alone_accuracy" and
    "alone_disagreement" are theirs; "middle_accuracy" is that of the mean of all; "dip" is the largest fall of the
    accuracy below the chord on the straight line between two members, a mean over pairs: 0 where there is no valley.

    Args:
        ensemble: of `pb.mimo`, `pb.multihead`, or any other whose members have tensors of their own
        data: (x, y), a data set or a loader
        points: on each line, its ends included
        how: as for `surface`

    >>> x, y = torch.randn(64, 4), torch.arange(64) % 3
    >>> found = between_members(pb.mimo(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3)), 3, example=x), (x, y))
    >>> list(found)
    ['alone_accuracy', 'alone_disagreement', 'middle_accuracy', 'dip']
    """
    members, examples = subnetworks(ensemble), Examples("between_members", data, labelled=True)
    count, points = len(members), check_whole("between_members", "points", points)
    t, own = np.linspace(0, 1, points), np.eye(count)
    pairs = [np.outer(1 - t, own[a]) + np.outer(t, own[b]) for a, b in combinations(range(count), 2)]
    mixtures = np.concatenate([*pairs, own, own.mean(0)[None]])
    accuracy = measure_points(
        "between_members", Span(members), mixtures, mixtures, examples, ("accuracy",), **how
    ).accuracy  # fmt: skip
    assert accuracy is not None
    lines, alone = accuracy[: len(pairs) * points].reshape(-1, points), accuracy[-count - 1 : -1]
    chords = np.outer(lines[:, 0], 1 - t) + np.outer(lines[:, -1], t)
    return {
        "alone_accuracy": float(alone.mean()),
        "alone_disagreement": float(disagreement(members, data=examples)[~np.eye(count, dtype=bool)].mean()),
        "middle_accuracy": float(accuracy[-1]),
        "dip": float((chords - lines).max(1).mean()),
    }


def weight_share(ensemble: Ensemble) -> float:
    """The share of weights that are not zero: above 1e-4 in absolute value."""
    weights = [p.detach().abs() for p in ensemble.module.parameters()]
    return sum(int((w > SMALL).sum()) for w in weights) / sum(w.numel() for w in weights)


def _sweep(
    caller: str, tries: Sequence[Try], train: Any, data: Any, seeds: int, progress: Any, further: Any = None
) -> Measured:
    examples = Examples(caller, data, labelled=True)

    def judge(made: Ensemble) -> dict[str, Any]:
        figures = {**member_figures(made, examples), "share": weight_share(made)}
        return figures if further is None else {**figures, **further(made, examples)}

    return train_each(caller, tries, train, judge, seeds, progress)


def mask_overlap(
    sizes: Sequence[int] = (2, 4, 8, 16),
    scales: Sequence[float] = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0),
    *,
    ones: int = 64,
    draws: int = 20,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """Overlap and size of drawn masks, with their closed forms (Figures 3 and 12).

    Args:
        ones: the paper's M, of every mask
        draws: sets of masks for each size and scale
        seed: of the masks

    Shapes:
        "iou", "size": measured: (sizes, scales, 3), the mean and the ends of its interval over draws (NaN where all
            draws are the same); "size" is the width that the masks need, relative to `ones`
        "iou_paper": 1 / (2 S - 1), "iou_exact": the expected value itself: (scales)
        "size_paper": S (1 - (1 - 1/S)^N): (sizes, scales)

    >>> found = mask_overlap(sizes=(4,), scales=(1.0, 2.0), ones=16, draws=5)
    >>> found["iou"][0, 0].tolist(), found["iou_paper"].round(3).tolist()
    ([1.0, nan, nan], [1.0, 0.333])
    """
    ones, draws = check_whole("mask_overlap", "ones", ones), check_whole("mask_overlap", "draws", draws)
    generator = torch.Generator().manual_seed(seed)
    iou, size = np.empty((len(sizes), len(scales), 3)), np.empty((len(sizes), len(scales), 3))
    for i, members in enumerate(sizes):
        for j, scale in enumerate(scales):
            widths = [sampler.grow_width(ones, members, scale, generator) for _ in range(draws)]
            drawn = [sampler.masks(width, members, capacity=ones, generator=generator) for width in widths]
            iou[i, j] = t_interval([sampler.mean_mask_iou(masks) for masks in drawn])
            size[i, j] = t_interval([width / ones for width in widths])
    every, counts = np.asarray(scales, float), np.asarray(sizes)[:, None]
    return {
        "iou": iou,
        "iou_paper": 1 / (2 * every - 1),
        "iou_exact": np.array([exact_iou(ones, round(ones * s)) for s in scales]),
        "size": size,
        "size_paper": every * (1 - (1 - 1 / every) ** counts),
    }


def exact_iou(ones: int, positions: int) -> float:
    """The exact expected intersection over union of two masks with this many ones at random positions.

    The paper divides the expected intersection by the expected union, which is 1 / (2 S - 1) and a little less.

    >>> round(exact_iou(2, 4), 4), round(exact_iou(200, 400), 4)
    (0.3889, 0.3337)
    """
    common = range(max(0, 2 * ones - positions), ones + 1)
    ways = [math.comb(ones, c) * math.comb(positions - ones, ones - c) for c in common]
    return sum(w / math.comb(positions, ones) * (c / (2 * ones - c)) for w, c in zip(ways, common, strict=True))


def mask_transition(
    model: nn.Module,
    train: Any,
    test: Any,
    *,
    scales: Sequence[float] = (1.1, 2.0, 3.0, 5.0),
    size: int = 4,
    capacity: float | None = 1.0,
    where: str | None = None,
    **options: Any,
) -> Measured:
    """From one network to independent ones, as the masks overlap less (Figures 4, 8, 9, 13 and 14).

    Settings are "single", "S 1.1", ..., "deep".

    Args:
        train, test: (x, y), a data set or a loader
        model: the network that masks are put into
        scales: values of S
        size: how many members
        capacity: every mask keeps that fraction of the widths, and layers grow (Figures 4, 9, 13); None: the network
            keeps its widths, and members get thinner (Figure 8)
        where: the layers that are masked; by default all but the first
        options: outside, shifts, seeds, progress, and as for `pb.fit`

    >>> x, y = torch.randn(24, 4), torch.arange(24) % 3
    >>> network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> mask_transition(network, (x, y), (x, y), scales=[2.0], capacity=None, seeds=1, epochs=1).settings
    ['single', 'S 2', 'deep']
    """
    example = example_of(train)
    entries: dict[str, Callable[[], Ensemble]] = {"single": lambda: single(redraw(model))}
    about: dict[str, dict[str, Any]] = {}
    for scale in scales:
        entries[f"S {scale:g}"] = partial(_build_masksembles, model, size, scale, capacity, example, where)
        about[f"S {scale:g}"] = {"scale": scale, "iou": sampler.expected_iou(scale)}
    entries["deep"] = lambda: deep(model, size)
    return measure_settings(entries, train, test, about=about, **options)


def dropout_transition(
    model: nn.Module,
    train: Any,
    test: Any,
    *,
    sizes: Sequence[int] = (2, 4, 8, 16, 32),
    scale: float = 2.0,
    where: str | None = None,
    **options: Any,
) -> Measured:
    """From independent networks to MC-Dropout, as masks become many (Figure 5).

    Settings are "deep", with as many members as the first size, "N 2", "N 4", ..., and "mc_dropout" with the rate
    1 - 1/S before the same layers, and as many draws as the last size. All have the widths of the model.

    Args:
        sizes: numbers of masks to try
        scale: S of the masks
        model, where, train, test, options: as for `mask_transition`

    >>> x, y = torch.randn(24, 4), torch.arange(24) % 3
    >>> network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> dropout_transition(network, (x, y), (x, y), sizes=[2, 4], seeds=1, epochs=1).settings
    ['deep', 'N 2', 'N 4', 'mc_dropout']
    """
    if not scale > 1:
        raise ValueError(f"dropout_transition: a dropout rate of 1 - 1/S needs a scale above 1, but it is {scale}.")
    example = example_of(train)
    entries: dict[str, Callable[[], Ensemble]] = {"deep": lambda: deep(model, sizes[0])}
    for size in sizes:
        entries[f"N {size}"] = partial(_build_masksembles, model, size, scale, None, example, where)
    layers = where or masked_layers(model, example)
    entries["mc_dropout"] = partial(_build_dropout, model, sizes[-1], 1 - 1 / scale, example, layers)
    return measure_settings(entries, train, test, about={f"N {size}": {"size": size} for size in sizes}, **options)


def mask_grid(
    model: nn.Module,
    train: Any,
    test: Any,
    *,
    scales: Sequence[float] = (1.0, 2.0, 3.0, 5.0),
    capacities: Sequence[float] = (0.3, 1.0, 2.0),
    size: int = 4,
    rate: float = 0.1,
    where: str | None = None,
    **options: Any,
) -> Measured:
    """Every overlap with every capacity, and one network, MC-Dropout and independent networks (Figure 7).

    Settings are "single", "mc_dropout", "deep" and "S 2, M 1" for a scale of 2 and a capacity of 1.

    Args:
        capacities: what each mask keeps, relative to the original widths
        rate: of MC-Dropout; `dropout_grid` chooses one on validation data
        model, train, test, scales, size, where, options: as for `mask_transition`

    >>> x, y = torch.randn(24, 4), torch.arange(24) % 3
    >>> network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> mask_grid(network, (x, y), (x, y), scales=[2.0], capacities=[1.0], seeds=1, epochs=1).settings
    ['single', 'mc_dropout', 'deep', 'S 2, M 1']
    """
    example = example_of(train)
    entries: dict[str, Callable[[], Ensemble]] = {
        "single": lambda: single(redraw(model)),
        "mc_dropout": partial(_build_dropout, model, size, rate, example, where),
        "deep": lambda: deep(model, size),
    }
    about = {}
    for scale in scales:
        for capacity in capacities:
            name = f"S {scale:g}, M {capacity:g}"
            entries[name] = partial(_build_masksembles, model, size, scale, capacity, example, where)
            about[name] = {"scale": scale, "capacity": capacity, "iou": sampler.expected_iou(scale)}
    return measure_settings(entries, train, test, about=about, **options)


def dropout_grid(
    model: nn.Module,
    train: Any,
    validation: Any,
    *,
    rates: Sequence[float] = (0.05, 0.1, 0.2, 0.3, 0.5),
    size: int = 4,
    where: str | None = None,
    **options: Any,
) -> tuple[float, Measured]:
    """The dropout rate with the best NLL on validation data, as a mean over seeds, and what each gave (section 4.2).

    Args:
        rates: dropout rates to try
        size: samples of a prediction
        model, train, where, options: as for `mask_transition`

    >>> x, y = torch.randn(24, 4), torch.arange(24) % 3
    >>> network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> rate, measured = dropout_grid(network, (x, y), (x, y), rates=[0.1, 0.5], seeds=1, epochs=1)
    >>> rate in (0.1, 0.5)
    True
    """
    example = example_of(train)
    entries = {f"rate {rate:g}": partial(_build_dropout, model, size, rate, example, where) for rate in rates}
    about: Mapping[str, Mapping[str, Any]] = {f"rate {rate:g}": {"rate": rate} for rate in rates}
    measured = measure_settings(entries, train, validation, about=about, **options)
    return min(rates, key=lambda rate: measured.interval(f"rate {rate:g}", "nll").value), measured


def _build_masksembles(
    model: nn.Module, size: int, scale: float, capacity: float | None, example: Any, where: str | None
) -> Ensemble:
    return masksembles(redraw(model), size, scale, capacity, example, where=where)


def _build_dropout(model: nn.Module, size: int, rate: float, example: Any, where: str | None) -> Ensemble:
    return mc_dropout(redraw(model), size, rate, where=where, example=example)


def masked_layers(model: nn.Module, example: Any) -> str:
    """The layers before which masks are by default, as a pattern."""
    made = masksembles(model, 2, example=example)
    return exact_pattern([name.removesuffix(".mask") for name in made.own])


def packing(
    model: nn.Module,
    train: Any,
    test: Any,
    *,
    alphas: Sequence[float] = (1, 2, 3, 4),
    gammas: Sequence[int] = (1,),
    sizes: Sequence[int] = (4,),
    where: str | None = None,
    min_channels: int = 64,
    **options: Any,
) -> Measured:
    """Packed-Ensembles for every alpha, gamma and M, and one network and independent ones (Figures 6, 7; Table 5).

    Settings are "single", "deep", with the first size, and "alpha 2, gamma 1, M 4".

    Args:
        train, test: (x, y), a data set or a loader
        model: the network that is packed
        alphas: how wide all members together are
        gammas: numbers of groups
        sizes: numbers of members
        where, min_channels: as for `pb.packed`: which layers take groups, and how small those may be
        options: outside, shifts, seeds, progress, and as for `pb.fit`

    >>> x, y = torch.randn(24, 4), torch.arange(24) % 3
    >>> network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> packing(network, (x, y), (x, y), alphas=[2], sizes=[2], seeds=1, epochs=1).settings
    ['single', 'deep', 'alpha 2, gamma 1, M 2']
    """
    example = example_of(train)
    entries: dict[str, Callable[[], Ensemble]] = {
        "single": lambda: single(redraw(model)),
        "deep": lambda: deep(model, sizes[0]),
    }
    about = {}
    for alpha, gamma, size in ((a, g, m) for m in sizes for g in gammas for a in alphas):
        name = f"alpha {alpha:g}, gamma {gamma}, M {size}"
        layers = where if gamma > 1 else None
        entries[name] = partial(packed, model, size, alpha, gamma, example, where=layers, min_channels=min_channels)
        about[name] = {"alpha": alpha, "gamma": gamma, "size": size}
    return measure_settings(entries, train, test, about=about, **options)


def ood_criteria(measured: Measured, figure: str = "auroc") -> dict[str, dict[str, Interval]]:
    """How well each criterion detects outside (OOD) data: {setting: {criterion: interval}} (Table 6).

    Args:
        measured: what `packing` or `measure_settings` gave with outside data
        figure: "auroc", "aupr" or "fpr95"

    >>> x, y = torch.randn(24, 4), torch.arange(24) % 3
    >>> entries = {"one": lambda: pb.single(nn.Linear(4, 3))}
    >>> measured = pb.landscape.measure_settings(entries, (x, y), (x, y), outside=5 * x, seeds=2, epochs=1)
    >>> sorted(ood_criteria(measured)["one"])[:2]
    ['entropy', 'max_logit']
    """
    return {
        setting: {name: t_interval(measured.values(setting, f"{figure} {name}")) for name in CRITERIA}
        for setting in measured.settings
    }


def network_widths(
    build: Callable[[float], nn.Module],
    train: Any,
    test: Any,
    *,
    widths: Sequence[float] = (0.25, 0.5, 1.0, 2.0),
    **options: Any,
) -> Measured:
    """One network at several widths: what splitting a width costs (Figure 8). Settings are "width 0.5", ...

    Args:
        build: the network with its hidden widths multiplied by a number, as `pb.models` take `width=`
        train, test, options: as for `packing`

    >>> x, y = torch.randn(24, 4), torch.arange(24) % 3
    >>> build = lambda width: nn.Sequential(nn.Linear(4, round(8 * width)), nn.Linear(round(8 * width), 3))
    >>> network_widths(build, (x, y), (x, y), widths=[0.5, 1.0], seeds=1, epochs=1).settings
    ['width 0.5', 'width 1']
    """
    entries = {f"width {width:g}": partial(lambda width: single(build(width)), width) for width in widths}
    about = {f"width {width:g}": {"width": width} for width in widths}
    return measure_settings(entries, train, test, about=about, **options)
