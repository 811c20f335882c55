"""Checks of Fort et al.: each item is judged by some of the findings, with intervals over seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...landscape.studies.findings import Finding
from ..drawing import intervals_figure
from ..experiments.stored_parts import Stored
from ..verdicts import FAILS, HOLDS, OPEN, ClaimVerdict, all_of, plural, show_interval

WORDS = {"holds": HOLDS, "does not hold": FAILS, "open": OPEN}


def check_findings(*names: str) -> Callable[[Mapping[str, Stored], Mapping[str, Any]], ClaimVerdict]:
    """The check of an item: all of these findings must hold."""

    def check(found: Mapping[str, Stored], published: Mapping[str, Any]) -> ClaimVerdict:
        rows = {name: row for part in found.values() for name, row in part.figures["findings"].items() if name in names}
        if missing := [name for name in names if name not in rows]:
            return ClaimVerdict(OPEN, [f"Not measured: {', '.join(missing)}."])
        told = {name: Finding(**rows[name]) for name in names}
        judgements = [WORDS[one.verdict] for one in told.values()]
        counts = {word: judgements.count(word) for word in (HOLDS, FAILS, OPEN)}
        said = [
            f"Of {plural(len(told), 'finding')} {counts[HOLDS]} hold, {counts[FAILS]} do not, and {counts[OPEN]} "
            "cannot be told."
        ]
        for one, judgement in zip(told.values(), judgements, strict=True):
            said.append(
                f"{one.claim[0].upper()}{one.claim[1:]}: {one.figure} {show_interval(one.interval)}, where "
                f"{'below' if one.below else 'above'} {one.bar:g} is asked for: {judgement}."
            )
        table = [
            [one.claim, one.figure, f"{'<' if one.below else '>'} {one.bar:g}", show_interval(one.interval), judgement,
             ", ".join(f"{value:.3g}" for value in one.values)]
            for one, judgement in zip(told.values(), judgements, strict=True)
        ]  # fmt: skip
        header = ["finding", "figure", "asked for", "ours, with its interval over seeds", "", "each seed"]
        picture = intervals_figure(
            "findings", "The findings", "Each figure with its interval over seeds.",
            {"figure": {one.claim[:70]: one.interval for one in told.values()}},
        )  # fmt: skip
        return ClaimVerdict(all_of(judgements), said, header, table, [picture])

    return check
