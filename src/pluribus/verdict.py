"""What a comparison found, in words: what won, by how much, at what cost, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from .intervals import Interval
from .measures import best, cost, difference, estimate, outside_score, over_seeds, quantity, with_interval
from .results import Group, Result, grouped

PASS = 1.15  # what still counts as the cost of one pass


@dataclass(frozen=True)
class Sentence:
    """A plain sentence, and what it is about: "result", "budget", "accuracy", "calibration", "shift", "outside", ..."""

    topic: str
    text: str


@dataclass(frozen=True)
class Row:
    """One label of the table.

    Args:
        mean: the metric, mean over seeds, with its interval
        cost: mult-adds relative to the single network
        to_single, to_best: the paired difference of the metric, and in words "better", "worse" or "within noise"
    """

    label: str
    mean: Interval
    cost: float
    to_single: Interval | None
    to_best: Interval | None
    beside_single: str
    beside_best: str


@dataclass(frozen=True)
class Verdict:
    """What was found on one data set with one model; the first sentence is the headline."""

    data: str
    model: str
    task: str
    metric: str
    sentences: list[Sentence]
    rows: list[Row]


def verdict(results: Iterable[Result]) -> list[Verdict]:
    """One verdict for each data set and model, in words and as a table, from nothing but stored results.

    Methods are ordered by NLL where every run has one, and by accuracy or RMSE otherwise. A method is called better or
    worse than another only where the 95 % interval of the paired difference leaves zero out.

    >>> record = dict(run="a", method="single", label="single", data="digits", task="classification", seed=0)
    >>> run = Result(record | {"settings": {}, "metrics": {"nll": {"value": 0.1}}, "cost": {}})
    >>> verdict([run])[0].sentences[0].text
    'single has an NLL of 0.100; there is nothing to compare it with.'
    """
    return [_verdict(data, model, groups) for (data, model), groups in grouped(results).items()]


def relation(gap: Interval, name: str) -> str:
    """A paired difference of a quantity in words: "better", "worse", "within noise", or "" where nobody can say."""
    if not gap.known or quantity(name).better == "neither":
        return ""
    if gap.low <= 0 <= gap.high:
        return "within noise"
    return "better" if (gap.value > 0) == (quantity(name).better == "higher") else "worse"


def _verdict(data: str, model: str, groups: list[Group]) -> Verdict:
    task, metric = groups[0].record["task"], _metric(groups)
    top = best(groups, metric)
    if top is None:
        text = "No run has a finite NLL, accuracy or error: there is nothing to compare."
        return Verdict(data, model, task, metric, [Sentence("result", text)], [])
    single = _single(groups)
    rows = [_row(group, top, single, groups, metric) for group in groups]
    sentences = [sentence for part in PARTS for sentence in part(groups, top, single, metric)]
    return Verdict(data, model, task, metric, sentences, rows)


def _metric(groups: Sequence[Group]) -> str:
    """NLL, unless some group has none or an infinite one (regression without variances)."""
    spare = "accuracy" if groups[0].record["task"] == "classification" else "rmse"
    finite = {name: sum(math.isfinite(estimate(group, name).value) for group in groups) for name in ("nll", spare)}
    return "nll" if finite["nll"] >= finite[spare] and finite["nll"] else spare


def _single(groups: Sequence[Group]) -> Group | None:
    found = [group for group in groups if group.record["method"] == "single"]
    return found[0] if found else None


def _row(group: Group, top: Group, single: Group | None, groups: Sequence[Group], metric: str) -> Row:
    to_single = None if single is None or group is single else difference(group, single, metric)
    to_best = None if group is top else difference(group, top, metric)
    beside_single = relation(to_single, metric) if to_single else ""
    beside_best = relation(to_best, metric) if to_best else "best"
    return Row(
        group.label, estimate(group, metric), cost(group, groups), to_single, to_best, beside_single, beside_best
    )


# ---------------------------------------------------------------- sentences about the main metric


def _winner(groups: list[Group], top: Group, single: Group | None, metric: str) -> list[Sentence]:
    way = "lowest" if quantity(metric).better == "lower" else "highest"
    shown = with_interval(estimate(top, metric), metric)
    unsure = (
        single is not None and single is not top and relation(difference(top, single, metric), metric) == "within noise"
    )
    but = ", but is not shown to beat the single network" if unsure else ""
    texts = [f"{top.label} has the {way} {_name(metric)}, {shown}{_at_cost(top, groups)}{but}."]
    if len(groups) == 1:
        texts = [f"{top.label} has {_article(metric)} {_name(metric)} of {shown}; there is nothing to compare it with."]
    elif single is not None:
        texts += _against_single(groups, top, single, metric)
    return [Sentence("result", text) for text in texts]


def _against_single(groups: list[Group], top: Group, single: Group, metric: str) -> list[str]:
    others = [group for group in groups if group is not single]
    found = {group.label: difference(group, single, metric) for group in others}
    words = {label: relation(gap, metric) for label, gap in found.items()}
    better = [label for label in words if words[label] == "better"]
    texts = []
    if not better:
        texts.append("Nothing here is shown to beat the single network.")
    elif len(better) == len(others) > 1:
        texts.append("Everything here beats the single network.")
    if top is not single and words[top.label] == "better":
        texts.append(f"{top.label} beats the single network by {_by(found[top.label], metric)}.")
    for label, gap in found.items():
        if words[label] == "worse":
            texts.append(f"{label} is worse than the single network by {_by(gap, metric)}.")
    if better and (unclear := [label for label in words if words[label] == "within noise"]):
        texts.append(f"{_listed(unclear)} cannot be told from the single network.")
    if unknown := [label for label in words if not words[label]]:
        texts.append(
            f"How {_listed(unknown)} compares with the single network cannot be said: no seed in common, or no "
            "stored examples."
        )
    return texts


def _peers(groups: list[Group], top: Group, single: Group | None, metric: str) -> list[Sentence]:
    """Who matches the winner, and at what share of its cost."""
    gain = abs(estimate(top, metric).value - estimate(single, metric).value) if single else 0.0
    margin = gain or 0.1 * abs(estimate(top, metric).value)
    texts = []
    for group in sorted(groups, key=lambda one: cost(one, groups)):
        if group is top:
            continue
        gap = difference(group, top, metric)
        if relation(gap, metric) != "within noise":
            continue
        share = cost(group, groups) / cost(top, groups)
        tight = group is not single and max(abs(gap.low), abs(gap.high)) <= margin
        verb = f"matches {top.label} within noise" if tight else f"cannot be told from {top.label}"
        at = f" at {share:.2f} of its cost" if math.isfinite(share) and share < 0.95 else ""
        texts.append(f"{group.label} {verb} (difference {_gap(gap, metric)}){at}.")
    return [Sentence("result", text) for text in texts]


def _budget(groups: list[Group], top: Group, single: Group | None, metric: str) -> list[Sentence]:
    """What to use for the cost of one pass, and what if cost does not matter."""
    cheap = [group for group in groups if cost(group, groups) <= PASS]
    if len(groups) == 1 or not cheap:
        return []
    choice = best(cheap, metric)
    if choice is None:
        return []
    texts = []
    if choice is single:
        texts.append("At the cost of one pass: the single network; nothing as cheap has a better mean.")
    elif single is not None and relation(difference(choice, single, metric), metric) != "better":
        texts.append(
            f"At the cost of one pass: the single network will do. {choice.label} has the best mean of those, but it "
            "is not shown to be better."
        )
    else:
        note = " It is also the best of all." if choice is top else ""
        texts.append(f"At the cost of one pass: {choice.label}, {_value(choice, metric)}.{note}")
    if choice is not top:
        sure = single is None or top is single or relation(difference(top, single, metric), metric) == "better"
        caution = "" if sure else ", though it is not shown to beat the single network"
        texts.append(f"If cost does not matter: {top.label}, {_value(top, metric)}{_at_cost(top, groups)}{caution}.")
    return [Sentence("budget", text) for text in texts]


# ---------------------------------------------------------------- sentences about everything else


def _also(topic: str, name: str, praise: str) -> Callable[..., list[Sentence]]:
    """A part that speaks of another quantity: who is best in it, and whether it beats the single network."""

    def part(groups: list[Group], top: Group, single: Group | None, metric: str) -> list[Sentence]:
        leader = best(groups, name)
        if leader is None or name == metric or len(groups) == 1:
            return []
        text = f"{leader.label} {praise}, {_value(leader, name, praise)}"
        if single is None or single is leader:
            return [Sentence(topic, f"{text}.")]
        gap = difference(leader, single, name)
        word = relation(gap, name)
        if word == "better":
            text += f"; the single network has {_value(single, name, praise)}, a difference of {_gap(gap, name)}"
        elif word == "within noise":
            text += f", which cannot be told from the single network (difference {_gap(gap, name)})"
        else:
            text += f"; the single network has {_value(single, name, praise)} (one seed: no interval)"
        return [Sentence(topic, f"{text}.")]

    return part


def _outside_note(groups: list[Group], top: Group, single: Group | None, metric: str) -> list[Sentence]:
    sets = sorted({name for group in groups for name in group.record.get("outside") or {}})
    score = outside_score(groups[0].runs[0])
    if not sets or len(groups) == 1:
        return []
    mean = ", mean over these sets" if len(sets) > 1 else ""
    return [
        Sentence("outside", f"Outside data here are {_listed(sets)}; the score is {score.replace('_', ' ')}{mean}.")
    ]


def _diversity(groups: list[Group], top: Group, single: Group | None, metric: str) -> list[Sentence]:
    values = {
        group.label: estimate(group, "disagreement").value
        for group in groups
        if group is not single and int(group.record.get("size") or 1) > 1
    }
    values = {label: number for label, number in values.items() if math.isfinite(number)}
    if len(values) < 2:
        return []
    most, least = max(values, key=values.__getitem__), min(values, key=values.__getitem__)
    text = f"The members of {most} disagree most, on {100 * values[most]:.1f} % of the test examples; "
    return [Sentence("diversity", f"{text}those of {least} least, on {100 * values[least]:.1f} %.")]


def _how_sure(groups: list[Group], top: Group, single: Group | None, metric: str) -> list[Sentence]:
    seeds = {len(group.by_seed) for group in groups}
    number = str(min(seeds)) if len(seeds) == 1 else f"{min(seeds)} to {max(seeds)}"
    if over_seeds(groups):
        text = (
            f"Intervals are 95 % t-intervals over {number} seeds: they say how much training varies, on this one "
            "test set."
        )
    elif seeds == {1}:
        text = (
            "There is one seed: intervals are 95 % bootstrap intervals over the test examples and say nothing about "
            "how much training varies. Run three seeds or more before you rely on small differences."
        )
    else:
        text = (
            f"The methods have {number} seeds: differences are paired over the seeds they have in common (95 % "
            "t-intervals), or over test examples where that is one seed."
        )
    if len(groups) > 2:
        text += " They are not adjusted for the number of comparisons."
    return [Sentence("certainty", text)]


# ---------------------------------------------------------------- words


def _name(metric: str) -> str:
    title = quantity(metric).title
    return title[0].lower() + title[1:] if title[1:].islower() else title


def _article(metric: str) -> str:
    return "an" if _name(metric)[0] in "aNR" else "a"


def _value(group: Group, name: str, said: str = "") -> str:
    """The quantity's name, where it was not said already, and its value."""
    shown = with_interval(estimate(group, name), name)
    return shown if _name(name) in said else f"{_name(name)} {shown}"


def _gap(gap: Interval, name: str) -> str:
    """A difference; between shares it is in points, not in percent of something."""
    return with_interval(gap, name).replace(" %", " points")


def _by(gap: Interval, metric: str) -> str:
    """The size of a difference, without its sign."""
    if gap.value < 0:
        gap = Interval(-gap.value, -gap.high, -gap.low)
    return _gap(gap, metric)


def _at_cost(group: Group, groups: Sequence[Group]) -> str:
    times = cost(group, groups)
    if not math.isfinite(times) or group.record["method"] == "single":
        return ""
    return f", at {times:.2f} times the mult-adds of one network"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


PARTS: list[Callable[[list[Group], Group, Group | None, str], list[Sentence]]] = [
    _winner,
    _peers,
    _budget,
    _also("accuracy", "accuracy", "has the highest accuracy"),
    _also("error", "rmse", "has the lowest error"),
    _also("calibration", "ece", "is calibrated best"),
    _also("shift", "cacc", "is the most accurate under shift"),
    _also("shift", "cece", "is calibrated best under shift"),
    _also("outside", "auroc", "tells outside data best"),
    _outside_note,
    _diversity,
    _how_sure,
]
