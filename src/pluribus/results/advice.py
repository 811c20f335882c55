"""The main finding in words: what to use, what beats one network, what does not, and what more seeds would settle."""

from __future__ import annotations

import math

from .comparison_phrases import (
    ComparedGroups,
    Sentence,
    join_names,
    name_of,
    say_cost,
    say_gap,
    say_number,
    say_size,
    say_value,
    with_article,
)
from .quantities import best, estimate, format_interval, quantity
from .store import Group
from .undertraining import epochs_of, is_undertrained

PASS = 1.25  # of the single network's deployed latency and mult-adds: what counts as the cost of one network


def one_pass(group: Group) -> bool:
    """Whether a prediction costs what one network's does: at most PASS of its deployed latency and mult-adds."""
    costs = [estimate(group, name).value for name in ("relative_mult_adds", "relative_latency")]
    return costs[0] <= PASS and not costs[1] > PASS  # a time that nobody measured does not speak against it


def advise(found: ComparedGroups) -> list[Sentence]:
    """The headline: what to use, what it gains over one network, and what it costs."""
    top, baseline, metric = found.top, found.baseline, found.metric
    if len(found.groups) == 1:
        value = format_interval(estimate(top, metric), metric)
        text = f"{top.label} has {with_article(metric)} of {value}; there is nothing to compare it with."
    elif baseline is None:
        way = "lowest" if quantity(metric).better == "lower" else "highest"
        text = f"{top.label} has the {way} {name_of(metric)}, {format_interval(estimate(top, metric), metric)}."
    elif (choice := choose(found, baseline)) is None:
        text = _keep_single(found, baseline)
    else:
        one = " (one seed)" if len(choice.by_seed.keys() & baseline.by_seed.keys()) == 1 else ""
        text = (
            f"Use {choice.label}: {name_of(metric)} {say_number(choice, metric)} against "
            f"{say_number(baseline, metric)} of one network{say_cost(found.cost(choice))}{one}."
        )
    return [Sentence("result", text)]


def choose(found: ComparedGroups, baseline: Group) -> Group | None:
    """The cheapest of what beats one network and is not shown to be worse than the best of that."""
    better = [group for group in found.groups if found.relation(group, baseline) == "better"]
    leader = best(better, found.metric)
    if leader is None:
        return None
    near = [group for group in better if group is leader or found.relation(group, leader) != "worse"]
    return min(near, key=lambda group: (_sortable(found.cost(group)), group is not leader))


def _sortable(cost: float) -> float:
    return cost if math.isfinite(cost) else math.inf


def _keep_single(found: ComparedGroups, baseline: Group) -> str:
    top, metric, value = found.top, found.metric, say_number(baseline, found.metric)
    if top is baseline:
        way = "lowest" if quantity(metric).better == "lower" else "highest"
        return f"Keep the single network: its {name_of(metric)}, {value}, is the {way} of all."
    return f"Keep the single network: nothing here is shown to beat its {name_of(metric)} of {value}."


def place(found: ComparedGroups) -> list[Sentence]:
    """Every other network beside the single one: better, worse, not distinguishable, or not settled by these seeds."""
    baseline, metric = found.baseline, found.metric
    if baseline is None or len(found.groups) == 1:
        return []
    others = [group for group in found.groups if group is not baseline]
    kinds: dict[str, list[Group]] = {}
    for group in sorted(others, key=lambda one: abs(found.gap(one, baseline).value), reverse=True):
        kinds.setdefault(_kind(found, group, baseline), []).append(group)
    texts = []
    if better := kinds.get("better"):
        each = [f"{g.label} by {say_size(found.gap(g, baseline), metric)}{say_cost(found.cost(g))}" for g in better]
        texts.append(f"Better than the single network in {name_of(metric)}: {'; '.join(each)}.")
    if unsettled := kinds.get("unsettled"):
        each = [_say_unsettled(found, group, baseline) for group in unsettled]
        texts.append(f"Not settled against the single network ({say_number(baseline, metric)}): {'; '.join(each)}.")
    if same := kinds.get("within noise"):
        each = [f"{group.label} ({say_number(group, metric)})" for group in same]
        texts.append(
            f"Not distinguishable from the single network ({say_number(baseline, metric)}): {join_names(each)}."
        )
    if worse := kinds.get("worse"):
        each = [f"{group.label} by {say_size(found.gap(group, baseline), metric)}" for group in worse]
        texts.append(f"Worse than the single network: {'; '.join(each)}.")
    if unknown := [group.label for group in kinds.get("", [])]:
        texts.append(
            f"How {join_names(unknown)} compares with the single network is unknown: no seed in common, or no "
            "stored examples."
        )
    return [Sentence("result", text) for text in texts]


def _kind(found: ComparedGroups, group: Group, other: Group) -> str:
    """The relation in a word; "unsettled" where a few more seeds would tell."""
    word = found.relation(group, other)
    return "unsettled" if word == "within noise" and found.seeds_to_settle(group, other) else word


def _say_unsettled(found: ComparedGroups, group: Group, other: Group) -> str:
    looks = "better" if found.is_better(group, other) else "worse"
    seeds = found.seeds_to_settle(group, other)
    return f"{group.label} looks {looks}, {say_number(group, found.metric)} (about {seeds} seeds would settle it)"


def warn_of_short_training(found: ComparedGroups) -> list[Sentence]:
    """Whose loss on validation data still fell when training ended: more epochs would do them good."""
    short = [group for group in found.groups if is_undertrained(group)]
    if not short:
        return []
    longer = 2 * max(map(epochs_of, short))
    text = f"Still improving when training ended: {join_names([g.label for g in short])}. Try --epochs {longer}."
    return [Sentence("training", text)]


def match(found: ComparedGroups) -> list[Sentence]:
    """What is not distinguishable from the best, and at what share of its cost; those of one kind in one sentence."""
    top, baseline, metric = found.top, found.baseline, found.metric
    gain = abs(estimate(top, metric).value - estimate(baseline, metric).value) if baseline else 0.0
    margin = gain or 0.1 * abs(estimate(top, metric).value)
    matching, unclear = list[str](), list[str]()
    for group in sorted(found.groups, key=lambda one: _sortable(found.cost(one))):
        if group in (top, baseline) or found.relation(group, top) != "within noise":
            continue
        gap = found.gap(group, top)
        tight = max(abs(gap.low), abs(gap.high)) <= margin
        if not tight and found.seeds_to_settle(group, top):
            continue
        share = found.cost(group) / found.cost(top)
        at = f", {share:.2f} of its cost" if math.isfinite(share) and share < 0.95 else ""
        text = f"{group.label} (difference {say_gap(gap, metric)}{at})"
        (matching if tight else unclear).append(text)
    texts = []
    if matching:
        texts.append(f"Within noise of the best, {top.label}: {join_names(matching)}.")
    if unclear:
        texts.append(f"Not distinguishable from the best, {top.label}, in these runs: {join_names(unclear)}.")
    return [Sentence("result", text) for text in texts]


def advise_by_budget(found: ComparedGroups) -> list[Sentence]:
    """What to use for the cost of one pass, and what if cost does not matter."""
    top, baseline, metric = found.top, found.baseline, found.metric
    cheap = [group for group in found.groups if one_pass(group)]
    if len(found.groups) == 1 or not cheap:
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
        texts.append(f"At the cost of one pass: {choice.label}, {say_value(choice, metric)}.{note}")
    if choice is not top:
        sure = baseline is None or top is baseline or found.relation(top, baseline) == "better"
        caution = "" if sure else ", though it is not shown to beat the single network"
        cost = "" if top is baseline else say_cost(found.cost(top), "the mult-adds of one network")
        texts.append(f"If cost does not matter: {top.label}, {say_value(top, metric)}{cost}{caution}.")
    return [Sentence("budget", text) for text in texts]
