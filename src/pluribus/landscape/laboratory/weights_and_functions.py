"""Are they the same network, layers and function? Weights, predictions and layers of runs beside each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ...report.charts.landscape import heat_map, scatter_chart
from ...report.figure import Figure, Panel, legend
from ...report.questions import Question
from ..representations import cka, layer_names
from ..similarity import cosine, disagreement, embedding
from .material import Material, pairs_of, pooled_accuracy, spread

ORTHOGONAL = 0.1  # cosines below it are called nearly so


def weight_space(material: Material) -> Question:
    """Cosines between the weights of checkpoints, within and across runs: Figures 2 (a) and 3."""
    material.say("cosines between weights")
    matrix = material.matrix(cosine)
    within, across = pairs_of(matrix, [_length(run) for run in material.runs])
    near = np.abs(across).max() < ORTHOGONAL
    found = [
        f"{'Yes' if near else 'No'}: the cosine between solutions is {spread(across)}"
        + (", so they are nearly orthogonal." if near else f", and not within {ORTHOGONAL:g} of orthogonal.")
    ]
    if len(within):
        found.append(f"Between a solution and the later half of its own run it is {spread(within)}.")
    caption = "Cosine of the angle between two networks, all parameters in one vector. The bluer, the more alike."
    figure = _matrix_figure(material, matrix, "cosine", caption, (min(0.0, float(matrix.min())), 1.0))
    claim = (
        "The weight vectors of two different initialisations are essentially orthogonal, while those along one "
        "trajectory point in similar directions (Fort et al., Figures 2 and 3)."
    )
    return Question("weights", "Do runs end in different places in weight space?", claim, found, [figure])


def function_space(material: Material) -> Question:
    """How often checkpoints give different labels, within and across runs: Figures 2 (b), 3 and S1."""
    material.say("disagreement of predictions")
    data = None if material.recorded else material.test
    matrix = material.matrix(lambda a, b: disagreement(a, b, data=data))
    within, across = pairs_of(matrix, [_length(run) for run in material.runs])
    found = [_compare(within, across)]
    error = disagreement(material.solutions, data=material.test, normalised=True)
    apart = error[~np.eye(len(error), dtype=bool)]
    if np.isfinite(apart).all():
        found.append(f"Divided by the error of one of the two, disagreement is {spread(apart)} (Figure S1).")
    found.append(_accuracies(material))
    ends = (0.0, _late(matrix, [_length(run) for run in material.runs]))
    caption = (
        "Share of test rows on which two networks give different labels. The bluer, the more they differ; the "
        f"strongest shade is {100 * ends[1]:.1f} % or more, the most among networks of the second half of training."
    )
    figure = _matrix_figure(material, matrix, "disagreement", caption, ends)
    claim = (
        "Checkpoints of one trajectory are similar functions; functions of different initialisations disagree on many "
        "more predictions at the same accuracy (Fort et al., Figures 2 and 3)."
    )
    return Question("functions", "Are they the same function?", claim, found, [figure])


def function_map(material: Material) -> Question | None:
    """t-SNE of the predictions along training: Figure 2 (c)."""
    if not material.recorded:
        return None
    material.say("t-SNE of predictions")
    points = embedding(material.runs, seed=material.seed)
    share = _own_neighbours(points)
    named = dict(zip(material.names, points, strict=True))
    hints = {name: material.steps_of(run) for name, run in zip(material.names, material.runs, strict=True)}
    panel = Panel(scatter_chart(named, material.styles, hints))
    caption = (
        "The predictions of every checkpoint for all test rows, in two dimensions by t-SNE; neighbours are alike, "
        "long distances mean little. The large marker is where a run ended."
    )
    figure = Figure("tsne", "Training in function space", caption, [panel], legend=legend(named, material.styles))
    found = [
        f"In the second half of training, the nearest network in the picture belongs to the same run for "
        f"{100 * share:.0f} % of the checkpoints."
    ]
    claim = "Different initialisations explore different modes in function space (Fort et al., Figure 2 c)."
    return Question("map", "Where does training go in function space?", claim, found, [figure])


def layer_similarity(material: Material) -> Question:
    """CKA between the layers of two runs."""
    material.say("layers of two solutions")
    first, second = material.solutions[:2]
    names = layer_names(first, material.test)
    across = cka(first, second, material.test, debiased=True)
    own = cka(first, data=material.test, debiased=True)
    same = np.diag(across)
    nearest = int((np.nanargmax(across, 1) == np.arange(len(names))).sum()) if np.isfinite(across).all() else 0
    ends = (min(0.0, float(np.nanmin(across))), 1.0)
    short = len(names) <= 8 and max(map(len, names)) <= 60 // len(names)  # names beside the rows, where there is room
    parts = [(name, [""]) for name in names] if short else [("layers", names)]
    panels = [
        Panel(heat_map(matrix, parts, "CKA", ends=ends), title)
        for matrix, title in ((across, "run 1 (rows) and run 2"), (own, "run 1 with itself"))
    ]
    found = [
        f"CKA of a layer with the same layer of the other run is {spread(same)}; for {nearest} of {len(names)} layers "
        "that is also the most similar layer.",
        f"Layer by layer: {', '.join(f'{name} {value:.2f}' for name, value in zip(names, same, strict=True))}.",
    ]
    caption = (
        "Linear CKA, debiased, on test rows: 1 where outputs are equal up to a rotation and a scale. The bluer, the"
        " more alike."
    )
    figure = Figure("layers", "Layers of two runs", caption, panels)
    claim = (
        "Layers of networks trained from different initialisations correspond to each other, early layers "
        "more than late ones (Kornblith et al., 2019)."
    )
    return Question("layers", "Do the layers of two runs represent the same thing?", claim, found, [figure])


# ---------------------------------------------------------------- helpers


def _length(run: Any) -> int:
    return len(run) if hasattr(run, "steps") else 1


def _matrix_figure(
    material: Material, matrix: np.ndarray, name: str, caption: str, ends: tuple[float, float] | None = None
) -> Figure:
    chosen, parts, start = [], [], 0
    for label, run in zip(material.names, material.runs, strict=True):
        own = material.checkpoints(run)
        chosen += [start + i for i in own]
        parts.append((label, [material.steps_of(run)[i] for i in own]))
        start += _length(run)
    shown = matrix[np.ix_(chosen, chosen)]
    last = np.cumsum([_length(run) for run in material.runs]) - 1
    rows = [[a, *(f"{matrix[i, j]:.4f}" for j in last)] for a, i in zip(material.names, last, strict=True)]
    panel = Panel(heat_map(shown, parts, name, ends=ends))
    title = f"{name.capitalize()} between checkpoints" if material.recorded else f"{name.capitalize()} of solutions"
    return Figure(name, title, caption, [panel], header=["Solution of", *material.names], rows=rows)


def _late(matrix: np.ndarray, lengths: list[int]) -> float:
    """The largest value between networks of the second halves of the runs."""
    starts = np.cumsum([0, *lengths[:-1]])
    late = [
        i for start, length in zip(starts, lengths, strict=True) for i in range(start + length // 2, start + length)
    ]
    return float(matrix[np.ix_(late, late)].max()) or 1.0


def _compare(within: np.ndarray, across: np.ndarray) -> str:
    between = f"two solutions disagree on {spread(across, percent=True)} of the test rows"
    if not len(within):
        return f"{between.capitalize()}."
    ratio = across.mean() / within.mean() if within.mean() > 0 else float("inf")
    answer = "No" if ratio >= 2 else "Hardly different" if ratio < 1.2 else "Somewhat different"
    return (
        f"{answer}: {between}, a solution and the later half of its own run on {spread(within, percent=True)}: "
        f"{ratio:.1f} times as often across runs as within one."
    )


def _accuracies(material: Material) -> str:
    with torch.no_grad():
        answers = torch.stack([network.eval()(material.test[0]).softmax(-1) for network in material.solutions])
    own = np.array([pooled_accuracy(one[None], material.test[1]) for one in answers])
    together = pooled_accuracy(answers, material.test[1])
    return f"Alone they reach an accuracy of {spread(own, percent=True)}, together {100 * together:.1f} %."


def _own_neighbours(points: list[np.ndarray]) -> float:
    """The share of later checkpoints whose nearest network is of the same run."""
    late = [path[len(path) // 2 :] for path in points]
    everything, owner = np.concatenate(late), np.repeat(np.arange(len(late)), [len(path) for path in late])
    distances = np.linalg.norm(everything[:, None] - everything[None], axis=-1)
    np.fill_diagonal(distances, np.inf)
    return float((owner[distances.argmin(1)] == owner).mean())
