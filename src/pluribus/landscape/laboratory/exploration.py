"""The whole tour: every question that the material can answer, as one page."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ...report.questions import Question, questions_page
from .alignment import aligned_runs
from .animation import animate
from .material import Material
from .spaces import function_map, function_space, weight_space
from .subspaces import diversity_plane, ensemble_size
from .terrain import connection, cut, plane_between

TITLE = "Why do ensembles work?"


def explore(
    material: Material,
    page: str | os.PathLike[str],
    *,
    about: str = "",
    command: str = "",
    settings: Mapping[str, str] | None = None,
    animation: str | os.PathLike[str] | None = None,
) -> list[Question]:
    """The questions with what was found, written as a page that opens offline.

    Args:
        animation: a file, .gif or .svg, for training on the plane of the first two runs
    """
    _check(material, animation)
    surface = cut(material)
    asked = [
        weight_space(material), function_space(material), function_map(material), plane_between(material, surface),
        connection(material), aligned_runs(material), diversity_plane(material), ensemble_size(material),
    ]  # fmt: skip
    if animation is not None:
        material.say(f"the animation {os.fspath(animation)}")
        animate(surface, dict(zip(material.names, material.runs[:2], strict=False)), material.styles, animation)
    found = [question for question in asked if question is not None]
    questions_page(TITLE, found, page, about=about, command=command, settings=settings, notes=_notes(material))
    return found


def _check(material: Material, animation: Any) -> None:
    if len(material.runs) < 2:
        raise ValueError(f"landscape: needs at least 2 runs to compare, but there is {len(material.runs)}.")
    check_animation(animation, material.recorded)


def check_animation(animation: str | os.PathLike[str] | None, recorded: bool) -> None:
    """Refuse another format, and networks without a past."""
    if animation is None:
        return
    if os.path.splitext(os.fspath(animation))[1].lower() not in (".gif", ".svg"):
        raise ValueError(f"landscape: an animation is a .gif or .svg file, but it is {os.fspath(animation)!r}.")
    if not recorded:
        raise ValueError(
            "landscape: an animation shows training, but these networks come without their past. "
            "Leave the animation out, or train: pluribus landscape --data."
        )


def _notes(material: Material) -> list[str]:
    notes = []
    if not material.recorded:
        notes.append(
            "The networks come without checkpoints of their training, so there is nothing about trajectories, Gaussian "
            "subspaces and quality against size."
        )
    elif material.images is None:
        notes.append("The inputs are no images, so nothing is said about corruptions.")
    return notes
