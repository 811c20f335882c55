"""What a paper says and what was found here, as one HTML page that opens offline: claim, answer, pictures."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

from .figure import Figure
from .page import render, write_page

COMPUTED = "seconds: only computed, nothing is trained"  # what exact claims cost at every scale


@dataclass(frozen=True)
class ClaimVerdict:
    """A judgement and what it rests on."""

    judgement: str  # whether it holds, or the answer to a question; "" where nothing is judged
    found: list[str]  # sentences; the first says why
    header: list[str] = field(default_factory=list)  # header, rows: the paper's numbers next to ours
    rows: list[list[str]] = field(default_factory=list)
    pictures: list[Figure] = field(default_factory=list)  # what came out, drawn
    number: str = ""  # the number that decides, in a few words
    scope: str = ""  # the networks, data and seeds that it is about


@dataclass(frozen=True)
class Claim:
    """What a paper says, how it is run and judged, and, once that is done, what was found: a section of a page.

    Args:
        paper, item: "packed" and "table11"; without a paper it is a question of the laboratory
        title: where it stands and what it shows
        says: the claim as a sentence
        experiment: what is run: has a `name`, and `carry_out(context)` gives what the check is given
        check: from what the experiment gave to a verdict
        published: the paper's numbers
        settings: how the paper did it: what `--scale paper` runs
        costs: what each scale costs, by its name
        reduced: the scales at which networks or data are smaller than the paper's
        notes: where the paper contradicts itself or is silent, and what is done about it
        verdict: what was found

    >>> Claim("fort", "figure8", "Figure 8", "Ensembles gain more than subspaces.").name
    'fort/figure8'
    """

    paper: str
    item: str
    title: str
    says: str
    _: KW_ONLY
    experiment: Any = None
    check: Callable[[Any, Mapping[str, Any]], ClaimVerdict] | None = None
    published: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    costs: Mapping[str, str] = field(default_factory=dict)
    reduced: tuple[str, ...] = ("smoke", "laptop")
    notes: tuple[str, ...] = ()
    verdict: ClaimVerdict = field(default_factory=lambda: ClaimVerdict("", []))

    @property
    def name(self) -> str:
        """How it is asked for: "packed/table11"."""
        return f"{self.paper}/{self.item}" if self.paper else self.item

    @property
    def exact(self) -> bool:
        """Whether it is computed, and nothing is trained."""
        return set(self.costs.values()) == {COMPUTED}

    @property
    def anchor(self) -> str:
        """Its place on a page."""
        return self.name.replace("/", "-")

    @property
    def found(self) -> list[str]:
        """What was found, a sentence each; the first is the answer."""
        return self.verdict.found

    @property
    def figures(self) -> list[Figure]:
        """The pictures, and the numbers as a table."""
        rows = self.verdict.rows
        table = [Figure("figures", "The numbers", "", [], "wide", [], self.verdict.header, rows)] if rows else []
        return [*self.verdict.pictures, *table]

    def judge(self, found: Any) -> ClaimVerdict:
        """The verdict on what the experiment gave."""
        assert self.check is not None
        return self.check(found, self.published)

    def answered(self, verdict: ClaimVerdict, **changes: Any) -> Claim:
        """The claim with what was found."""
        return dataclasses.replace(self, verdict=verdict, **changes)


def section(
    name: str,
    title: str,
    says: str,
    found: Sequence[str] = (),
    figures: Sequence[Figure] = (),
    answer: str = "",
    number: str = "",
) -> Claim:
    """A question of the laboratory with what was found: its answer, "yes", "no" or "partly", and the number for it."""
    verdict = ClaimVerdict(answer, list(found), pictures=list(figures), number=number)
    return Claim("", name, title, says, verdict=verdict)


def yes_or_no(held: Sequence[bool]) -> str:
    """An answer that several findings give together.

    >>> yes_or_no([True, True]), yes_or_no([True, False]), yes_or_no([False])
    ('yes', 'partly', 'no')
    """
    return "" if not held else "yes" if all(held) else "partly" if any(held) else "no"


def claims_page(
    title: str,
    claims: Sequence[Claim],
    path: str | os.PathLike[str] | None = None,
    *,
    headline: str = "",
    about: str = "",
    command: str = "",
    settings: Mapping[str, str] | None = None,
    notes: Sequence[str] = (),
) -> str:
    """The page as HTML, complete in itself: no network, no other file. Written to `path` where one is given.

    >>> html = claims_page("Landscape", [section("same", "Are they the same function?", "No.", ["No."])])
    >>> "Are they the same function?" in html
    True
    """
    if not claims:
        raise ValueError("claims_page: there must be at least one claim, but there is none.")
    context = {"title": title, "claims": list(claims), "headline": headline, "about": about, "command": command}
    html = render("claims.html", context | {"settings": dict(settings or {}), "notes": list(notes)})
    if path is not None:
        write_page(Path(path), html)
    return html
