"""The whole tour: every question that the material can answer, as one page.

A question is a function of the material that gives a `Claim` with what was found, or None where the material cannot
answer it. To add one, write it in a file of this folder and put it into QUESTIONS, at its place on the page: the
command, its `--only`, its JSON and the page then have it. What several questions need is made by `material.once`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ...report.claims import Claim, claims_page
from ...surgery.selecting import quote_names
from ..material import Material, material_of
from ..studies.fort import cut
from .animation import animate
from .drawing import SECTIONS
from .questions import QUESTIONS as OF_SETTINGS
from .questions import (
    aligned_runs,
    bias_question,
    layer_similarity,
    loss_curvature,
    settings_question,
    sinusoid_question,
    sparse_layers,
    trained_curves,
)

TITLE = "Why do ensembles work?"
Ask = Callable[[Material], Claim | None]

QUESTIONS: dict[str, Ask] = {  # by the anchor on the page, in its order
    **{name: SECTIONS[name].answer for name in ("weights", "functions", "map", "plane", "tunnel", "stitched")},
    "alignment": aligned_runs,
    **{name: SECTIONS[name].answer for name in ("diversity", "size", "shift", "randomness", "chain")},
    "layers": layer_similarity,
    "sparsity": sparse_layers,
}

ON_REQUEST: dict[str, Ask] = {  # asked by name alone: they take minutes
    "curve": trained_curves,
    "curvature": loss_curvature,
    **{name: section.answer for name, section in SECTIONS.items() if name not in QUESTIONS},
    "bias": bias_question,
    "sinusoids": sinusoid_question,
    **{name: partial(settings_question, name) for name in OF_SETTINGS},
}


def page(
    runs: Any,
    data: Any,
    path: str | os.PathLike[str],
    *,
    train: Any = None,
    only: Sequence[str] = (),
    animation: str | os.PathLike[str] | None = None,
    title: str = "",
    **settings: Any,
) -> list[Claim]:
    """Write the report of `pluribus landscape` about your own networks to `path`.

    Args:
        runs: trajectories or networks of one architecture: a list, or an Ensemble. Questions about training are asked
            of trajectories alone; `Trajectory.of` makes one of checkpoints
        data: a `Data`, as `pb.data.load` gives it; or (x, y) that nobody was trained on, inputs as the networks take
            them
        train: with (x, y): rows that they were trained on, for statistics of batch normalisation and for paths of low
            loss; without them the first half of `data` is used for that, and the rest to evaluate on
        only: questions by name; by default all that are quick
        animation: a file, .gif or .svg, for training on the plane of the first two runs
        title: what was looked at, in a line under the page's title
        settings: of `Material`: grid, samples, steps, outside (x of other data), images (test inputs from 0 to 1 with
            their labels) and normalise for corruptions, training (how to train more, a `RunTraining`), seed, say, ...

    Gives the sections: each has `name`, `title`, `says`, `found` and `figures`.

    >>> x, y = torch.randn(24, 4), torch.arange(24) % 3
    >>> sections = page([nn.Linear(4, 3), nn.Linear(4, 3)], (x, y), "landscape.html", only=["weights"])
    >>> sections[0].title
    'Do runs end in different places in weight space?'
    """
    check_questions(only)
    material = material_of("page", runs, data, train=train, **settings)
    return explore(material, path, about=title, animation=animation, only=only)


def explore(
    material: Material,
    page: str | os.PathLike[str],
    *,
    about: str = "",
    command: str = "",
    settings: Mapping[str, str] | None = None,
    animation: str | os.PathLike[str] | None = None,
    only: Sequence[str] = (),
) -> list[Claim]:
    """The questions with what was found, written as a page that opens offline."""
    check_questions(only)
    if len(material.runs) < 2:
        raise ValueError(f"landscape: needs at least 2 runs to compare, but there is {len(material.runs)}.")
    check_animation(animation, material.recorded)
    chosen = {name: ask for name, ask in (QUESTIONS | ON_REQUEST).items() if name in (only or QUESTIONS)}
    found, refused = _ask(chosen, material)
    notes = [*_notes(material), *refused]
    if not found:
        raise ValueError(f"landscape: these networks cannot answer {quote_names(only)}. {' '.join(notes)}")
    if animation is not None:
        material.say(f"the animation {os.fspath(animation)}")
        shown = dict(zip(material.names, material.runs[:2], strict=False))
        animate(material.once(cut), shown, material.styles, animation)
    said = _headline(found)
    claims_page(TITLE, found, page, headline=said, about=about, command=command, settings=settings, notes=notes)
    return found


def _headline(found: Sequence[Claim]) -> str:
    """What the answers come to; nothing where one question was asked."""
    answers = [claim.verdict.judgement for claim in found if claim.verdict.judgement]
    if len(answers) < 2:
        return ""
    counts = ", ".join(f"{answers.count(word)} {word}" for word in dict.fromkeys(answers))
    why = {claim.item: claim.verdict.judgement for claim in found}.get("functions", "")
    because = {
        "yes": "Because independent runs learn different functions. ",
        "partly": "Partly because independent runs learn different functions. ",
        "no": "Not because runs learn different functions: these do not. ",
    }.get(why, "")
    return f"{because}{len(answers)} questions answered: {counts}."


def _ask(chosen: Mapping[str, Ask], material: Material) -> tuple[list[Claim], list[str]]:
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
