"""Questions and what was found, as one HTML page that opens offline: the claim, the pictures, the answer."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .figure import Figure
from .page import render, write_page


@dataclass(frozen=True)
class Question:
    """A section of the page.

    Args:
        name: its anchor
        title: the question
        claim: what the paper says, in a sentence, and where
        found: what was found here, a sentence each; the first is the answer
    """

    name: str
    title: str
    claim: str
    found: list[str] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)


def questions_page(
    title: str,
    questions: Sequence[Question],
    path: str | os.PathLike[str] | None = None,
    *,
    about: str = "",
    command: str = "",
    settings: Mapping[str, str] | None = None,
    notes: Sequence[str] = (),
) -> str:
    """The page as HTML, complete in itself: no network, no other file. Written to `path` where one is given.

    Args:
        about: what was looked at, in a line under the title
        command: how to repeat it
        settings: how it was done, by name
        notes: what is left out, and why

    >>> html = questions_page("Landscape", [Question("same", "Are they the same function?", "No.", ["No."])])
    >>> "Are they the same function?" in html
    True
    """
    if not questions:
        raise ValueError("questions_page: there must be at least one question, but there is none.")
    context = {"title": title, "questions": list(questions), "about": about, "command": command}
    html = render("questions.html", context | {"settings": dict(settings or {}), "notes": list(notes)})
    if path is not None:
        write_page(Path(path), html)
    return html
