"""What a comparison found, in words: what won, by how much, at what cost, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ..uncertainty.resampling import Interval
from .quantities import Differences, best, estimate, format_interval, ood_score, over_seeds, quantity, relative_cost
from .store import Group, Result, group_runs

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
        to_baseline, to_best: the paired difference of the metric
        beside_baseline, beside_best: the same in words, "better", "worse" or "within noise"
    """

    label: str
    mean: Interval
    cost: float
    to_baseline: Interval | None
    to_best: Interval | None
    beside_baseline: str
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


def verdicts(results: Iterable[Result], differences: Differences | None = None) -> list[Verdict]:
    """One verdict for each data set and model, in words and as a table, from nothing but stored results.

    Methods are ordered by NLL where every run has one, and by accuracy or RMSE otherwise. A method is called better or
    worse than another only where the 95 % interval of the paired difference leaves zero out.

    Args:
        differences: those computed so far, which are not computed again

    >>> record = dict(run="a", method="single", label="single", data="digits", task="classification", seed=0)
    >>> run = Result(record | {"settings": {}, "metrics": {"nll": {"value": 0.1}}, "cost": {}})
    >>> verdicts([run])[0].sentences[0].text
    'single has an NLL of 0.100; there is nothing to compare it with.'
    """
    differences = differences or Differences()
    return [_judge(data, model, groups, differences) for (data, model), groups in group_runs(results).items()]


def relation(gap: Interval, name: str) -> str:
    """A paired difference of a quantity in words: "better", "worse", "within noise", or "" where nobody can say."""
    if not gap.known or quantity(name).better == "neither":
        return ""
    if gap.low <= 0 <= gap.high:
        return "within noise"
    return "better" if (gap.value > 0) == (quantity(name).better == "higher") else "worse"


@dataclass(frozen=True)
class _Comparison:
    """What the sentences are made of: groups, the best of them and the baseline by the main metric, differences."""

    groups: list[Group]
    metric: str
    top: Group
    baseline: Group | None
    differences: Differences

    def gap(self, first: Group, second: Group) -> Interval:
        """How much larger the main metric of the first group is."""
        return self.differences.between(first, second, self.metric)

    def relation(self, first: Group, second: Group) -> str:
        """How the first group stands beside the second, in words."""
        return relation(self.gap(first, second), self.metric)


def _judge(data: str, model: str, groups: list[Group], differences: Differences) -> Verdict:
    task, metric = groups[0].record["task"], _metric(groups)
    top = best(groups, metric)
    if top is None:
        text = "No run has a finite NLL, accuracy or error: there is nothing to compare."
        return Verdict(data, model, task, metric, [Sentence("result", text)], [])
    baseline = next((group for group in groups if group.is_baseline), None)
    found = _Comparison(groups, metric, top, baseline, differences)
    sentences = [sentence for part in PARTS for sentence in part(found)]
    return Verdict(data, model, task, metric, sentences, [_row(found, group) for group in groups])


def _metric(groups: Sequence[Group]) -> str:
    """NLL, unless some group has none or an infinite one (regression without variances)."""
    spare = "accuracy" if groups[0].record["task"] == "classification" else "rmse"
    finite = {name: sum(math.isfinite(estimate(group, name).value) for group in groups) for name in ("nll", spare)}
    return "nll" if finite["nll"] >= finite[spare] and finite["nll"] else spare


def _row(found: _Comparison, group: Group) -> Row:
    metric, baseline = found.metric, found.baseline
    to_baseline = None if baseline is None or group is baseline else found.gap(group, baseline)
    to_best = None if group is found.top else found.gap(group, found.top)
    return Row(
        group.label,
        estimate(group, metric),
        relative_cost(group, found.groups),
        to_baseline,
        to_best,
        relation(to_baseline, metric) if to_baseline else "",
        relation(to_best, metric) if to_best else "best",
    )


# ---------------------------------------------------------------- sentences about the main metric


def _winner(found: _Comparison) -> list[Sentence]:
    top, baseline, metric = found.top, found.baseline, found.metric
    way = "lowest" if quantity(metric).better == "lower" else "highest"
    shown = format_interval(estimate(top, metric), metric)
    unsure = baseline is not None and baseline is not top and found.relation(top, baseline) == "within noise"
    but = ", but is not shown to beat the single network" if unsure else ""
    texts = [f"{top.label} has the {way} {_name(metric)}, {shown}{_at_cost(top, found.groups)}{but}."]
    if len(found.groups) == 1:
        texts = [f"{top.label} has {_article(metric)} {_name(metric)} of {shown}; there is nothing to compare it with."]
    elif baseline is not None:
        texts += _against_baseline(found, baseline)
    return [Sentence("result", text) for text in texts]


def _against_baseline(found: _Comparison, baseline: Group) -> list[str]:
    top, metric = found.top, found.metric
    others = [group for group in found.groups if group is not baseline]
    gaps = {group.label: found.gap(group, baseline) for group in others}
    words = {label: relation(gap, metric) for label, gap in gaps.items()}
    better = [label for label in words if words[label] == "better"]
    texts = []
    if not better:
        texts.append("Nothing here is shown to beat the single network.")
    elif len(better) == len(others) > 1:
        texts.append("Everything here beats the single network.")
    if top is not baseline and words[top.label] == "better":
        texts.append(f"{top.label} beats the single network by {_size(gaps[top.label], metric)}.")
    for label, gap in gaps.items():
        if words[label] == "worse":
            texts.append(f"{label} is worse than the single network by {_size(gap, metric)}.")
    if better and (unclear := [label for label in words if words[label] == "within noise"]):
        texts.append(f"{_join(unclear)} cannot be told from the single network.")
    if unknown := [label for label in words if not words[label]]:
        texts.append(
            f"How {_join(unknown)} compares with the single network cannot be said: no seed in common, or no "
            "stored examples."
        )
    return texts


def _peers(found: _Comparison) -> list[Sentence]:
    """Who matches the winner, and at what share of its cost."""
    groups, top, baseline, metric = found.groups, found.top, found.baseline, found.metric
    gain = abs(estimate(top, metric).value - estimate(baseline, metric).value) if baseline else 0.0
    margin = gain or 0.1 * abs(estimate(top, metric).value)
    texts = []
    for group in sorted(groups, key=lambda one: relative_cost(one, groups)):
        if group is top:
            continue
        gap = found.gap(group, top)
        if relation(gap, metric) != "within noise":
            continue
        share = relative_cost(group, groups) / relative_cost(top, groups)
        tight = group is not baseline and max(abs(gap.low), abs(gap.high)) <= margin
        verb = f"matches {top.label} within noise" if tight else f"cannot be told from {top.label}"
        at = f" at {share:.2f} of its cost" if math.isfinite(share) and share < 0.95 else ""
        texts.append(f"{group.label} {verb} (difference {_gap(gap, metric)}){at}.")
    return [Sentence("result", text) for text in texts]


def _budget(found: _Comparison) -> list[Sentence]:
    """What to use for the cost of one pass, and what if cost does not matter."""
    groups, top, baseline, metric = found.groups, found.top, found.baseline, found.metric
    cheap = [group for group in groups if relative_cost(group, groups) <= PASS]
    if len(groups) == 1 or not cheap:
        return []
    choice = best(cheap, metric)
    if choice is None:
        return []
    texts = []
    if choice is baseline:
        texts.append("At the cost of one pass: the single network; nothing as cheap has a better mean.")
    elif baseline is not None and found.relation(choice, baseline) != "better":
        texts.append(
            f"At the cost of one pass: the single network will do. {choice.label} has the best mean of those, but it "
            "is not shown to be better."
        )
    else:
        note = " It is also the best of all." if choice is top else ""
        texts.append(f"At the cost of one pass: {choice.label}, {_value(choice, metric)}.{note}")
    if choice is not top:
        sure = baseline is None or top is baseline or found.relation(top, baseline) == "better"
        caution = "" if sure else ", though it is not shown to beat the single network"
        texts.append(f"If cost does not matter: {top.label}, {_value(top, metric)}{_at_cost(top, groups)}{caution}.")
    return [Sentence("budget", text) for text in texts]


# ---------------------------------------------------------------- sentences about everything else


def _also(topic: str, name: str, praise: str) -> Callable[[_Comparison], list[Sentence]]:
    """A part that speaks of another quantity: who is best in it, and whether it beats the single network."""

    def part(found: _Comparison) -> list[Sentence]:
        leader, baseline = best(found.groups, name), found.baseline
        if leader is None or name == found.metric or len(found.groups) == 1:
            return []
        text = f"{leader.label} {praise}, {_value(leader, name, praise)}"
        if baseline is None or baseline is leader:
            return [Sentence(topic, f"{text}.")]
        gap = found.differences.between(leader, baseline, name)
        word = relation(gap, name)
        if word == "better":
            text += f"; the single network has {_value(baseline, name, praise)}, a difference of {_gap(gap, name)}"
        elif word == "within noise":
            text += f", which cannot be told from the single network (difference {_gap(gap, name)})"
        else:
            text += f"; the single network has {_value(baseline, name, praise)} (one seed: no interval)"
        return [Sentence(topic, f"{text}.")]

    return part


def _ood_note(found: _Comparison) -> list[Sentence]:
    groups = found.groups
    sets = sorted({name for group in groups for name in group.record.get("outside") or {}})
    score = ood_score(groups[0].runs[0])
    if not sets or len(groups) == 1:
        return []
    mean = ", mean over these sets" if len(sets) > 1 else ""
    return [Sentence("outside", f"Outside data here are {_join(sets)}; the score is {score.replace('_', ' ')}{mean}.")]


def _diversity(found: _Comparison) -> list[Sentence]:
    values = {
        group.label: estimate(group, "disagreement").value
        for group in found.groups
        if group is not found.baseline and int(group.record.get("size") or 1) > 1
    }
    values = {label: number for label, number in values.items() if math.isfinite(number)}
    if len(values) < 2:
        return []
    most, least = max(values, key=values.__getitem__), min(values, key=values.__getitem__)
    text = f"The members of {most} disagree most, on {100 * values[most]:.1f} % of the test examples; "
    return [Sentence("diversity", f"{text}those of {least} least, on {100 * values[least]:.1f} %.")]


def _certainty(found: _Comparison) -> list[Sentence]:
    groups = found.groups
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
    shown = format_interval(estimate(group, name), name)
    return shown if _name(name) in said else f"{_name(name)} {shown}"


def _gap(gap: Interval, name: str) -> str:
    """A difference; between shares it is in points, not in percent of something."""
    return format_interval(gap, name).replace(" %", " points")


def _size(gap: Interval, metric: str) -> str:
    """The size of a difference, without its sign."""
    if gap.value < 0:
        gap = Interval(-gap.value, -gap.high, -gap.low)
    return _gap(gap, metric)


def _at_cost(group: Group, groups: Sequence[Group]) -> str:
    times = relative_cost(group, groups)
    if not math.isfinite(times) or group.is_baseline:
        return ""
    return f", at {times:.2f} times the mult-adds of one network"


def _join(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


PARTS: list[Callable[[_Comparison], list[Sentence]]] = [
    _winner,
    _peers,
    _budget,
    _also("accuracy", "accuracy", "has the highest accuracy"),
    _also("error", "rmse", "has the lowest error"),
    _also("calibration", "ece", "is calibrated best"),
    _also("shift", "cacc", "is the most accurate under shift"),
    _also("shift", "cece", "is calibrated best under shift"),
    _also("outside", "auroc", "tells outside data best"),
    _ood_note,
    _diversity,
    _certainty,
]
