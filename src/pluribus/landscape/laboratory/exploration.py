"""The whole tour: every question that the material can answer, as one page.

A question is a function of the material that gives a `Question`, or None where the material cannot answer it. To add
one, write it in a file of this folder and put it into QUESTIONS, at its place on the page: the command, its `--only`,
its JSON and the page then have it. What several questions need is made by `material.once`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...report.questions import Question, questions_page
from ...surgery.selecting import quote_names
from .alignment import aligned_runs
from .animation import animate
from .between_solutions import connection, cut, plane_between, stitched_cut, trained_curves
from .hessian_spectra import loss_curvature
from .masks import doubt_beyond, many_masks, overlapping_masks, span_of_behaviours, thin_members
from .material import Material
from .mimo_members import subnetworks_apart, units_of_members
from .mimo_settings import bias_of_members, more_members, other_methods, penalties, repetition
from .packing import packed_settings, sparse_layers, widths_of_one
from .sources_of_randomness import one_chain, sources_of_difference
from .subspaces import diversity_plane, ensemble_size
from .weights_and_functions import function_map, function_space, layer_similarity, weight_space

TITLE = "Why do ensembles work?"

QUESTIONS: dict[str, Callable[[Material], Question | None]] = {  # by the anchor on the page, in its order
    "weights": weight_space,
    "functions": function_space,
    "map": function_map,
    "plane": plane_between,
    "tunnel": connection,
    "stitched": stitched_cut,
    "alignment": aligned_runs,
    "diversity": diversity_plane,
    "size": ensemble_size,
    "randomness": sources_of_difference,
    "chain": one_chain,
    "layers": layer_similarity,
    "sparsity": sparse_layers,
}

ON_REQUEST: dict[str, Callable[[Material], Question | None]] = {  # asked by name alone: they take minutes
    "curve": trained_curves,
    "curvature": loss_curvature,
    "subnetworks": subnetworks_apart,
    "units": units_of_members,
    "bias": bias_of_members,
    "methods": other_methods,
    "members": more_members,
    "repetition": repetition,
    "penalties": penalties,
    "masks": overlapping_masks,
    "dropout": many_masks,
    "sinusoids": doubt_beyond,
    "span": span_of_behaviours,
    "thin": thin_members,
    "packing": packed_settings,
    "widths": widths_of_one,
}


def explore(
    material: Material,
    page: str | os.PathLike[str],
    *,
    about: str = "",
    command: str = "",
    settings: Mapping[str, str] | None = None,
    animation: str | os.PathLike[str] | None = None,
    only: Sequence[str] = (),
) -> list[Question]:
    """The questions with what was found, written as a page that opens offline.

    Args:
        animation: a file, .gif or .svg, for training on the plane of the first two runs
        only: names in QUESTIONS or ON_REQUEST; by default all of QUESTIONS
    """
    check_questions(only)
    _check(material, animation)
    chosen = {name: ask for name, ask in (QUESTIONS | ON_REQUEST).items() if name in (only or QUESTIONS)}
    found, refused = _ask(chosen, material)
    notes = [*_notes(material), *refused]
    if not found:
        raise ValueError(f"landscape: these networks cannot answer {quote_names(only)}. {' '.join(notes)}")
    if animation is not None:
        material.say(f"the animation {os.fspath(animation)}")
        shown = dict(zip(material.names, material.runs[:2], strict=False))
        animate(material.once(cut), shown, material.styles, animation)
    questions_page(TITLE, found, page, about=about, command=command, settings=settings, notes=notes)
    return found


def _ask(
    chosen: Mapping[str, Callable[[Material], Question | None]], material: Material
) -> tuple[list[Question], list[str]]:
    """What was answered, and why others were not: one network that a method refuses leaves the other answers."""
    found, refused = [], []
    for name, ask in chosen.items():
        try:
            question = ask(material)
        except ValueError as error:
            refused.append(f"The question {name!r} was not answered: {error}")
            material.say(refused[-1])
        else:
            found += [] if question is None else [question]
    return found, refused


def check_questions(names: Sequence[str]) -> None:
    """Refuse the name of an unknown question."""
    every = QUESTIONS | ON_REQUEST
    if unknown := [name for name in names if name not in every]:
        raise ValueError(f"landscape: the question {unknown[0]!r} is unknown. Choose from {quote_names(every)}.")


def _check(material: Material, animation: Any) -> None:
    if len(material.runs) < 2:
        raise ValueError(f"landscape: needs at least 2 runs to compare, but there is {len(material.runs)}.")
    check_animation(animation, material.recorded)


def check_animation(animation: str | os.PathLike[str] | None, recorded: bool) -> None:
    """Refuse formats other than .gif and .svg, and networks without recorded training."""
    if animation is None:
        return
    if os.path.splitext(os.fspath(animation))[1].lower() not in (".gif", ".svg"):
        raise ValueError(f"landscape: an animation must be a .gif or .svg file, but it is {os.fspath(animation)!r}.")
    if not recorded:
        raise ValueError(
            "landscape: an animation shows training, but these networks have no training "
            "history. Leave it out, or train networks with pluribus landscape --data."
        )


def _notes(material: Material) -> list[str]:
    notes = []
    if not material.recorded:
        notes.append(
            "The networks have no checkpoints of their training, so questions about trajectories, Gaussian subspaces, "
            "ensemble size and training schemes are left out."
        )
    elif material.images is None:
        notes.append("The inputs are not images, so corruptions are left out.")
    return notes
