"""What a paper claims, as numbers with bars: judged by intervals over seeds, or told of one measurement.

The claims and the bars stand in `questions.toml`, with all other words of the laboratory's questions.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np

from ...report.charts.intervals import intervals_figure
from ...report.claims import ClaimVerdict, yes_or_no
from ...report.figure import Figure
from ...results.intervals import t_interval
from ...results.judgements import OPEN, above, all_of, below, count_judgements, equal, show_interval
from ...uncertainty.resampling import Interval

Asked = tuple[str, str, float, bool | None]  # claim, what the number is, bar; below it, above, or None: within it
SIDES = {True: "below", False: "above", None: "within"}


@dataclass(frozen=True)
class Finding:
    """A claim of the paper, the number that decides it, and that number for every seed.

    Args:
        claim: what the paper says
        figure: what the number is, in words; of what begins with "ratio", the geometric mean is taken
        values: one for each seed
        bar: what the number is above if the claim holds; below it if `below`, within it on both sides if that is None

    >>> finding = Finding("runs differ", "disagreement", [0.30, 0.32, 0.31], bar=0.1)
    >>> finding.verdict
    'holds'
    """

    claim: str
    figure: str
    values: list[float]
    bar: float
    below: bool | None = False

    @property
    def interval(self) -> Interval:
        """The mean over seeds with its interval by Student's t; of ratios the geometric mean."""
        if not self.figure.startswith("ratio"):
            return t_interval(self.values)
        found = t_interval(np.log(self.values).tolist())
        return Interval(*np.exp(found).tolist())

    @property
    def judgement(self) -> str:
        """Whether the interval lies beyond the bar, in the words of `pluribus reproduce`."""
        return {True: below, False: above, None: equal}[self.below](self.interval, self.bar)

    @property
    def verdict(self) -> str:
        """ "holds", "does not hold", or "open" where the bar is inside the interval."""
        return "open" if self.judgement == OPEN else self.judgement

    def __str__(self) -> str:
        found, sign = self.interval, SIDES[self.below]
        spread = f" ({found.low:.3g} to {found.high:.3g})" if found.known else ""
        return f"{self.verdict:13} {self.claim}: {self.figure} {found.value:.3g}{spread}, {sign} {self.bar:g}"


@dataclass(frozen=True)
class Question:
    """A question in words: what the paper says, how to read the picture, which numbers are judged, which only told."""

    title: str
    says: str
    caption: str
    asked: Mapping[str, Asked]
    told: Mapping[str, str]


def _read_questions() -> dict[str, Question]:
    text = resources.files(__package__).joinpath("questions.toml").read_text(encoding="utf-8")
    sides, found = {word: below for below, word in SIDES.items()}, {}
    for name, given in tomllib.loads(text).items():
        words = (" ".join(given.get(key, "").split()) for key in ("title", "says", "caption"))
        asked = {key: (*one[:2], one[3], sides[one[2]]) for key, one in given.get("asked", {}).items()}
        found[name] = Question(*words, asked, given.get("told", {}))
    return found


QUESTIONS = _read_questions()
ASKED = {name: question.asked for name, question in QUESTIONS.items() if question.asked}


def judge_values(
    asked: Mapping[str, Asked],
    values: Mapping[str, Sequence[float]],
    pictures: Sequence[Figure] = (),
    printed: Mapping[str, str] | None = None,
) -> ClaimVerdict:
    """The verdict on numbers of every seed: all of them must be on the right side of their bars."""
    told = {name: Finding(one[0], one[1], list(values.get(name, ())), *one[2:]) for name, one in asked.items()}
    if not told:
        return ClaimVerdict(OPEN, ["Nothing was measured."])
    if missing := [one.claim for one in told.values() if not one.values]:
        return ClaimVerdict(OPEN, [f"Not measured: {'; '.join(missing)}."])
    judgements = [one.judgement for one in told.values()]
    said = [count_judgements(judgements, "finding")] + [
        f"{_begin(one.claim)}: {one.figure} {show_interval(one.interval)}, where {SIDES[one.below]} {one.bar:g} is "
        f"required: {judgement}."
        for one, judgement in zip(told.values(), judgements, strict=True)
    ]
    table = [
        [one.claim, one.figure, f"{SIDES[one.below]} {one.bar:g}", (printed or {}).get(name, "–"),
         show_interval(one.interval), judgement, ", ".join(f"{value:.3g}" for value in one.values)]
        for (name, one), judgement in zip(told.items(), judgements, strict=True)
    ]  # fmt: skip
    header = ["finding", "number", "asked for", "paper", "ours, with its interval over seeds", "", "each seed"]
    return ClaimVerdict(all_of(judgements), said, header, table, [*pictures, *_intervals(list(told.values()))])


def tell_values(question: Question, values: Mapping[str, float]) -> ClaimVerdict:
    """The numbers of one measurement in sentences: those with bars first, then those that are only told.

    The answer is yes where all numbers are on the right side of their bars; the first number stands for them.

    >>> tell_values(QUESTIONS["weights"], {"cosine": 0.02}).number
    'Largest |cosine| 0.02 (below 0.1 expected)'
    """
    said, held, first = list[str](), list[bool](), ""
    for name, (claim, number, bar, side) in question.asked.items():
        if name in values:
            value = values[name]
            holds = abs(value) <= bar if side is None else (value < bar) == side and value != bar
            held.append(holds)
            first = first or f"{number} {value:.3g} ({SIDES[side]} {bar:g} expected)"
            required = f"{number} {value:.3g}, where {SIDES[side]} {bar:g} is required"
            said.append(f"{'Holds' if holds else 'Does not hold'} here: {claim} ({required}).")
    if len(said) > 1:
        first = f"{sum(held)} of {len(held)} findings; {first}"
        said.insert(0, f"{sum(held)} of {len(said)} findings hold here.")
    said += [f"{_begin(words)}: {values[name]:.3g}." for name, words in question.told.items() if name in values]
    return ClaimVerdict(yes_or_no(held), said, number=_begin(first) if first else "")


def _begin(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}"


def _intervals(told: Sequence[Finding]) -> list[Figure]:
    """One picture for numbers of each kind; where the claim holds is shaded."""
    kinds: dict[tuple[Any, ...], dict[str, Interval]] = {}
    for one in told:
        kinds.setdefault((one.figure, one.bar, one.below), {})[one.claim] = one.interval
    drawn = []
    for number, ((figure, bar, side), found) in enumerate(kinds.items()):
        ends = [bar, *(end for interval in found.values() for end in (interval if interval.known else interval[:1]))]
        room = 0.05 * (max(ends) - min(ends))
        band = {True: (min(ends) - room, bar), False: (bar, max(ends) + room), None: (-bar, bar)}[side]
        caption = f"{_begin(figure)}, with intervals over seeds. Shaded: where the claim holds."
        drawn.append(intervals_figure(f"findings-{number}", "The findings", caption, {"value": found}, band=band))
    return drawn
