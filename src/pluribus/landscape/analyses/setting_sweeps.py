"""Members and ensemble as a setting changes: size, repetition, method, regularisation (MIMO, Figures 4 to 9)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import Any, Unpack

import numpy as np
import torch

from ...core.ensemble import Ensemble
from ...methods.building import check_whole
from ...training.batching import mix_seeds
from ...uncertainty.classification import Classification
from ...uncertainty.evaluation import evaluate
from ..common.examples import Examples, target_labels
from ..common.points import Measuring, Span, measure_points
from ..similarity import answers_and_targets, disagreement, divergence
from ..subnetworks import subnetworks
from .trained_settings import Measured, Try, train_each

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

    Shapes:
        train, data: x (rows, *features) and y (rows); values(setting, figure): (seeds); curve(figure): (settings, 3)

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
        train, data, seeds: as for `sweep`
        make: an ensemble to be trained; what it draws is seeded
        l1, l2: factors of the sum of absolute values, and of squares, of all weights; what is added to the loss
        progress: called with a line of text when a part is done
        options: as for `pb.fit`: epochs, lr, schedule, ... A rate that falls to 0 lets weights come to rest at zero

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
    quality = [_quality(part, y) for part in (p, *(member[None] for member in p))]
    pairs = ~np.eye(len(p), dtype=bool)
    return {
        **quality[0],
        **{f"member_{name}": float(np.mean([one[name] for one in quality[1:]])) for name in quality[0]},
        "disagreement": float(disagreement(ensemble, data=examples)[pairs].mean()) if len(p) > 1 else 0.0,
        "kl": float(divergence(ensemble, data=examples)[pairs].mean()) if len(p) > 1 else 0.0,
    }


def between_members(ensemble: Ensemble, data: Any, points: int = 9, **how: Unpack[Measuring]) -> dict[str, float]:
    """How good the networks between the members of one network are: are they modes of their own (MIMO, Figure 3)?

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


def _quality(p: torch.Tensor, y: torch.Tensor) -> dict[str, float]:
    found = evaluate(Classification.from_probabilities(p), y, metrics=("accuracy", "nll"))
    return {"accuracy": found["accuracy"], "log_likelihood": -found["nll"]}


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

    return train_each(
        caller, tries, train, judge, seeds, progress, lambda seed: (mix_seeds(0, seed), mix_seeds(0, seed, 1))
    )
