"""What a comparison found, in words: what won, by how much, at what cost, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..uncertainty.summary import LEVEL
from .advice import advise, advise_by_budget, match, place, recommend, warn_of_short_training
from .comparison_phrases import ComparedGroups, Sentence, join_names, say_gap, say_value
from .quantities import best, distance_groups, estimate, format_interval, ood_score
from .store import Group, Result, group_runs


@dataclass(frozen=True)
class Verdict:
    """What was found on one data set with one model; the first sentence is the headline.

    Args:
        found: the groups as they were compared; None where no run has a finite metric
        choice: what to use; None where nothing can be recommended
    """

    data: str
    model: str
    groups: list[Group]
    sentences: list[Sentence]
    found: ComparedGroups | None = None
    choice: Group | None = None

    @property
    def task(self) -> str:
        """The task of the data."""
        return str(self.groups[0].record["task"])

    @property
    def recommended(self) -> str:
        """The label of what to use, or nothing."""
        return self.choice.label if self.choice else ""


def verdicts(results: Iterable[Result]) -> list[Verdict]:
    """One verdict for each data set and model, in words and as a table, from nothing but stored results.

    Methods are ordered by NLL where every run has one, and by accuracy or RMSE otherwise. A method is called better or
    worse than another only where the 95 % interval of the paired difference leaves zero out.

    >>> record = dict(run="a", method="single", label="single", data="digits", task="classification", seed=0)
    >>> run = Result(record | {"settings": {}, "metrics": {"nll": {"value": 0.1}}, "cost": {}})
    >>> verdicts([run])[0].sentences[0].text
    'Only one method ran: single, NLL 0.100.'
    """
    given = []
    for (data, model), groups in group_runs(results).items():
        if found := ComparedGroups.of(groups):
            sentences = [sentence for part in PARTS for sentence in part(found)]
            given.append(Verdict(data, model, groups, sentences, found, recommend(found)))
        else:
            text = "No run has a finite NLL, accuracy or error: there is nothing to compare."
            given.append(Verdict(data, model, groups, [Sentence("result", text)]))
    return given


# ---------------------------------------------------------------- sentences about everything else


def _also(topic: str, name: str, praise: str) -> Callable[[ComparedGroups], list[Sentence]]:
    """A part that speaks of another quantity: who is best in it, and whether it beats the single network."""

    def part(found: ComparedGroups) -> list[Sentence]:
        alone = distance_groups(found.groups) if name == "auroc" else []
        leader, baseline = best([*found.groups, *alone], name), found.baseline
        if leader is None or name == found.metric or len(found.groups) == 1:
            return []
        value = say_value(leader, name, praise)
        if name == "auroc" and estimate(leader, name).value < 0.5:
            text = f"No method detects OOD data: the best, {leader.label}, has {value}, worse than chance."
            return [Sentence(topic, text)]
        text = f"{leader.label} {praise}, {value}"
        if baseline is None or baseline is leader:
            return [Sentence(topic, f"{text}.")]
        gap, other = found.gap(leader, baseline, name), say_value(baseline, name, praise)
        compared = {
            "better": f"the single network has {other}, a difference of {say_gap(gap, name)}",
            "within noise": f"no clear difference from the single network ({say_gap(gap, name)})",
        }
        unknown = f"the single network has {other} (one seed: no interval)"
        text += f"; {compared.get(found.relation(leader, baseline, name), unknown)}"
        if leader in alone:
            text += "; for that, one network and a distance in its features are enough"
        return [Sentence(topic, f"{text}.")]

    return part


def _coverage(found: ComparedGroups) -> list[Sentence]:
    """Whose 90 % intervals clearly cover less than they say."""
    estimates = {group.label: estimate(group, "coverage") for group in found.groups}
    short = [f"{label} ({format_interval(one, 'coverage')})" for label, one in estimates.items() if one.high < LEVEL]
    if not short:
        return []
    text = f"The {100 * LEVEL:.0f} % intervals of some methods cover too few test examples: {join_names(short)}."
    return [Sentence("coverage", text)]


def _ood_note(found: ComparedGroups) -> list[Sentence]:
    groups = found.groups
    sets = sorted({name for group in groups for name in group.record.get("outside") or {}})
    if not sets or len(groups) == 1:
        return []
    score = ood_score(groups[0].runs[0])
    data = f"OOD set: {sets[0]}." if len(sets) == 1 else f"OOD sets: {join_names(sets)} (averaged)."
    return [Sentence("outside", f"{data} Score: {SCORES.get(score, score.replace('_', ' '))}.")]


SCORES = {"msp": "1 − confidence (MSP)", "total": "total variance"}


def _diversity(found: ComparedGroups) -> list[Sentence]:
    several = [one for one in found.groups if not one.is_baseline and int(one.record.get("size") or 1) > 1]
    values = sorted((estimate(group, "disagreement").value, group.label) for group in several)
    values = [one for one in values if math.isfinite(one[0])]
    if len(values) < 2:
        return []
    (low, least), (high, most) = values[0], values[-1]
    text = f"The members of {most} disagree most, on {100 * high:.1f} % of test examples; those of {least} least, on "
    return [Sentence("diversity", f"{text}{100 * low:.1f} %.")]


def _certainty(found: ComparedGroups) -> list[Sentence]:
    groups = found.groups
    seeds = {len(group.by_seed) for group in groups}
    number = str(min(seeds)) if len(seeds) == 1 else f"{min(seeds)} to {max(seeds)}"
    if seeds == {1}:
        text = (
            "One seed: intervals of differences (95 %) cover the choice of test examples and assume that training "
            "varies them as much. Run at least three seeds before you rely on small differences."
        )
    else:
        text = f"Intervals (95 %) cover the choice of test examples and how training varies over {number} seeds."
        text += " Differences are paired over common seeds." if len(seeds) > 1 else ""
    if len(groups) > 2:
        text += " Intervals are not corrected for multiple comparisons."
    return [Sentence("certainty", text)]


PARTS: list[Callable[[ComparedGroups], list[Sentence]]] = [
    advise,
    place,
    warn_of_short_training,
    match,
    _coverage,
    advise_by_budget,
    _also("accuracy", "accuracy", "has the highest accuracy"),
    _also("accuracy", "mean_iou", "has the highest mIoU"),
    _also("error", "rmse", "has the lowest error"),
    _also("calibration", "ece", "is the best calibrated"),
    _also("shift", "cacc", "is the most accurate under shift"),
    _also("shift", "cece", "is the best calibrated under shift"),
    _also("outside", "auroc", "detects OOD data best"),
    _ood_note,
    _diversity,
    _certainty,
]
