"""What a comparison found, in words: what won, by how much, at what cost, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..uncertainty.resampling import Interval
from ..uncertainty.summary import LEVEL
from .comparison_phrases import (
    PASS,
    ComparedGroups,
    Sentence,
    join_names,
    name_of,
    practical_size,
    say_gap,
    say_number,
    say_size,
    say_value,
)
from .quantities import FEW, best, distance_groups, estimate, format_interval, ood_score, quantity
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


# ---------------------------------------------------------------- what to use


def one_pass(group: Group) -> bool:
    """Whether a prediction costs what one network's does: at most PASS of its deployed latency and mult-adds."""
    costs = [estimate(group, name).value for name in ("relative_mult_adds", "relative_latency")]
    return costs[0] <= PASS and not costs[1] > PASS  # a time that nobody measured does not speak against it


def advise(found: ComparedGroups) -> list[Sentence]:
    """The headline: what to use, what it gains over one network, and what it costs."""
    top, baseline, metric = found.top, found.baseline, found.metric
    best_value = f"{name_of(metric)} {format_interval(estimate(top, metric), metric)}"
    if len(found.groups) == 1:
        text = f"Only one method ran: {top.label}, {best_value}."
    elif baseline is None:
        text = f"Best: {top.label}, {best_value}. There is no single network to compare it with."
    elif (choice := _choice(found, baseline)) is None:
        text = _keep_single(found, baseline)
    else:
        one = " (one seed)" if len(choice.by_seed.keys() & baseline.by_seed.keys()) == 1 else ""
        way = "down" if quantity(metric).better == "lower" else "up"
        text = (
            f"Use {choice.label}: {name_of(metric)} {say_number(choice, metric)}, {way} from "
            f"{say_number(baseline, metric)} for a single network{found.say_cost(choice)}{one}."
        )
    return [Sentence("result", text)]


def recommend(found: ComparedGroups) -> Group:
    """What to use: the cheapest that clearly beats one network, or that network; without one, the best."""
    return found.top if found.baseline is None else _choice(found, found.baseline) or found.baseline


def _choice(found: ComparedGroups, baseline: Group) -> Group | None:
    """The cheapest of what beats one network by enough to matter and is not clearly worse than the best of that."""
    better = [
        group
        for group in found.groups
        if found.relation(group, baseline) == "better" and found.is_worth_its_cost(group, baseline)
    ]
    leader = best(better, found.metric)
    if leader is None:
        return None
    near = [group for group in better if group is leader or found.relation(group, leader) != "worse"]
    return min(near, key=lambda group: (_known_first(found.cost(group)), group is not leader))


def _known_first(cost: float) -> float:
    return math.inf if math.isnan(cost) else cost


def _keep_single(found: ComparedGroups, baseline: Group) -> str:
    metric, value = name_of(found.metric), say_number(baseline, found.metric)
    if found.top is baseline:
        way = "lowest" if quantity(found.metric).better == "lower" else "highest"
        return f"Keep the single network: it has the {way} {metric}, {value}."
    if any(found.relation(group, baseline) == "better" for group in found.groups):
        return f"Keep the single network, {metric} {value}: what is better gains too little for its cost."
    return f"Keep the single network: no method is clearly better than its {metric} of {value}."


def place(found: ComparedGroups) -> list[Sentence]:
    """Every other network next to the single one: better, worse, no clear difference, or inconclusive so far."""
    baseline, metric = found.baseline, found.metric
    if baseline is None or len(found.groups) == 1:
        return []
    said: dict[str, list[str]] = {}
    others = [group for group in found.groups if group is not baseline]
    for group in sorted(others, key=lambda one: abs(found.gap(one, baseline).value), reverse=True):
        kind, size = found.relation(group, baseline), say_size(found.gap(group, baseline), metric)
        seeds = found.seeds_to_settle(group, baseline) if kind == "within noise" else None
        if kind == "better" and not found.is_worth_its_cost(group, baseline):
            kind, text = "small", f"{group.label} (better by {size}{found.say_cost(group)})"
        elif kind == "better":
            text = f"{group.label} by {size}{found.say_cost(group)}"
        elif seeds:
            looks = "better" if found.is_better(group, baseline) else "worse"
            kind = "unsettled"
            text = f"{group.label} looks {looks}, {say_number(group, metric)} (about {seeds} seeds should decide it)"
        elif kind == "within noise":
            text = f"{group.label} ({say_number(group, metric)})"
        else:
            text = f"{group.label} by {size}" if kind == "worse" else group.label
        said.setdefault(kind, []).append(text)
    reference = f"the single network ({name_of(metric)} {say_number(baseline, metric)})"
    least = say_size(Interval(practical_size(baseline, metric)), metric)
    starts = {
        "better": f"Better than {reference}: ",
        "unsettled": f"Inconclusive against {reference}: ",
        "within noise": f"No clear difference from {reference}: ",
        "small": f"No practical difference from {reference}, less than {least}: ",
        "worse": f"Worse than {reference}: ",
        "": f"Not compared with {reference} (no common seed, or fewer than {FEW} stored examples): ",
    }
    return [Sentence("result", f"{start}{'; '.join(said[kind])}.") for kind, start in starts.items() if kind in said]


def warn_of_short_training(found: ComparedGroups) -> list[Sentence]:
    """The groups of which half of the runs or more still improved when training ended."""
    histories = {group.label: [run.record.get("history") or [] for run in group.runs] for group in found.groups}
    short = {label: own for label, own in histories.items() if 2 * sum(map(still_improving, own)) >= len(own)}
    if not short:
        return []
    longer = 2 * max(len(history) for own in short.values() for history in own)
    return [
        Sentence("training", f"Still improving when training ended: {join_names([*short])}. Try --epochs {longer}.")
    ]


def match(found: ComparedGroups) -> list[Sentence]:
    """What is tied with the best, or not clearly different, and at what share of its cost."""
    top, baseline, metric = found.top, found.baseline, found.metric
    gain = abs(estimate(top, metric).value - estimate(baseline, metric).value) if baseline else 0.0
    margin = gain or 0.1 * abs(estimate(top, metric).value)
    tied, unclear = list[str](), list[str]()
    for group in sorted(found.groups, key=lambda one: _known_first(found.cost(one))):
        if group in (top, baseline) or found.relation(group, top) != "within noise":
            continue
        gap = found.gap(group, top)
        tight = not gap.known or max(abs(gap.low), abs(gap.high)) <= margin
        if not tight and found.seeds_to_settle(group, top):
            continue
        share = found.cost(group) / found.cost(top)
        at = f", {100 * share:.0f} % of its cost" if math.isfinite(share) and share < 0.95 else ""
        (tied if tight else unclear).append(f"{group.label} (difference {say_gap(gap, metric)}{at})")
    texts = [f"Statistically tied with the best, {top.label}: {join_names(tied)}."] if tied else []
    texts += [f"No clear difference from the best, {top.label}: {join_names(unclear)}."] if unclear else []
    return [Sentence("result", text) for text in texts]


def advise_by_budget(found: ComparedGroups) -> list[Sentence]:
    """What to use for the cost of one network, and what if cost does not matter."""
    top, baseline, metric = found.top, found.baseline, found.metric
    choice = best([group for group in found.groups if one_pass(group)], metric)
    if len(found.groups) == 1 or choice is None:
        return []
    rule = f"single-network cost (up to {PASS:g}x its mult-adds and time)"
    if choice is baseline:
        texts = [f"At {rule}, no method does better than the single network."]
    elif baseline is not None and found.relation(choice, baseline) != "better":
        texts = [
            f"At {rule}, no method is clearly better: {choice.label} has the best average, but the difference may be "
            "noise."
        ]
    else:
        also = " It is also the best overall." if choice is top else ""
        texts = [f"Best at {rule}: {choice.label}, {say_value(choice, metric)}.{also}"]
    if choice is not top:
        sure = baseline is None or top is baseline or found.relation(top, baseline) == "better"
        caution = "" if sure else "; its gain over the single network may be noise"
        cost = "" if top is baseline else found.say_cost(top)
        texts.append(f"Best at any cost: {top.label}, {say_value(top, metric)}{cost}{caution}.")
    return [Sentence("budget", text) for text in texts]


LATE = 5  # the last part of training is a fifth of its epochs
LEAST = 4  # epochs, below which nothing can be said


def still_improving(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the loss on validation data fell markedly in the last fifth of the epochs.

    The lowest loss of those epochs is compared with the lowest before. Markedly is by more than 0.01 and 2 %: less is
    what chance gives, and what a rate that decays to nothing still squeezes out.

    >>> still_improving([{"validation_nll": 1 / (i + 1)} for i in range(10)])
    True
    >>> still_improving([{"validation_nll": 1 / min(i + 1, 5)} for i in range(10)])
    False
    """
    losses = [row.get("validation_nll", row.get("validation_mse", math.nan)) for row in rows]
    if len(losses) < LEAST or not all(map(math.isfinite, losses)):
        return False
    late = max(1, len(losses) // LATE)
    before, after = min(losses[:-late]), min(losses[-late:])
    return before - after > 0.01 + 0.02 * abs(before)


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
