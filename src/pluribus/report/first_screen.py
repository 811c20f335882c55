"""The first screen of a comparison: one sentence, gain, cost and certainty, and what would change the advice."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ..results.comparison_phrases import ComparedGroups, join_names, name_of, say_number, say_size, say_times
from ..results.quantities import best, estimate, format_value, paired_spread, quantity
from ..results.store import Group, has_classes
from ..results.verdict import Verdict, one_pass
from ..uncertainty.resampling import Interval
from .charts.quality import cost_name

SEEDS = 5  # what is proposed to who has fewer


@dataclass(frozen=True)
class FirstScreen:
    """What stands first on the page.

    Args:
        choice: the recommended one; None where there is nothing to choose from
        top: the one with the best mean of what the advice considers
        tiles: title, value and explanation of gain, cost and certainty
        changes: what would change the advice, a sentence each
    """

    verdict: Verdict
    sentence: str
    choice: Group | None = None
    top: Group | None = None
    tiles: list[tuple[str, str, str]] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)

    def stands_out(self, group: Group) -> bool:
        """Whether the details show it before all methods are unfolded."""
        return group.is_baseline or group in (self.choice, self.top)


def compose_screen(verdict: Verdict) -> FirstScreen:
    """The summary of a verdict: the rule of its advice decides, and nothing is decided a second time."""
    found, choice = verdict.found, verdict.choice
    if found is None or found.baseline is None or choice is None or len(found.groups) == 1:
        top, chosen = (found.top, choice) if found and len(found.groups) > 1 else (None, None)
        return FirstScreen(verdict, verdict.sentences[0].text, chosen, top)
    compose = _keep if choice is found.baseline else _use
    sentence, top, tiles = compose(found, choice, found.baseline)
    said = {topic: [one.text for one in verdict.sentences if one.topic == topic] for topic in ("budget", "training")}
    budget = said["budget"]  # the best at the cost of one network, and at any cost
    if choice in (found.baseline, found.top):
        budget = budget[:1]
    if one_pass(choice):
        budget = budget[1:]
    changes = budget + _seeds(found, choice) + said["training"]
    return FirstScreen(verdict, sentence, choice, top, tiles, changes)


Parts = tuple[str, Group, list[tuple[str, str, str]]]  # the sentence, the best, and the tiles


def _use(found: ComparedGroups, choice: Group, baseline: Group) -> Parts:
    """Where something is shown to beat the single network."""
    metric, lower = found.metric, quantity(found.metric).better == "lower"
    gap, seeds = found.gap(choice, baseline), _common_seeds(choice, baseline)
    gain = _share(found, abs(gap.value)) or say_size(Interval(gap.value), metric)
    cost = estimate(choice, name := cost_name([choice])).value
    takes = "takes {:.2g} times as long" if name == "relative_latency" else "costs {:.2g} times as much"
    price = "at a cost that was not measured"
    if math.isfinite(cost):
        price = f"and a prediction {'costs no more' if cost <= 1.05 else takes.format(cost)}"
    one = " This is one training run of each." if seeds == 1 else ""
    sentence = f"Use {choice.label}: it {'cuts' if lower else 'raises'} {_plain(found)} by {gain}, {price}.{one}"
    low, high = (_share(found, end) or _number(end, metric) for end in sorted((abs(gap.low), abs(gap.high))))
    sure = ("clear", f"gain between {low} and {high} (95 % interval over {seeds} seeds)")
    if seeds == 1:
        told = f"gain between {low} and {high} on this test set (95 % interval); another training run may differ"
        sure = ("one seed", told)
    tiles = [("Gain", f"{'−' if lower else '+'}{gain}", _before_and_after(found, choice, baseline))]
    tiles += [_price(choice), ("How sure", *sure)]
    better = [group for group in found.groups if found.relation(group, baseline) == "better"]
    leader = best(better, metric) or choice
    return sentence, leader, tiles


def _keep(found: ComparedGroups, choice: Group, baseline: Group) -> Parts:
    """Where nothing is shown to be better: what more seeds could show, if the spread stays what it is."""
    name, top, metric = name_of(found.metric), found.top, found.metric
    if top is baseline:
        way = "lowest" if quantity(metric).better == "lower" else "highest"
        sentence = f"Keep the single network: it has the {way} {_plain(found)} of all."
        gain = ("none", f"the single network has the best {_say(baseline, metric)}")
    else:
        seeds, spread = _common_seeds(top, baseline), paired_spread(top, baseline, metric)
        advice = f"Train several seeds to learn more: try --seeds {SEEDS}."
        if seeds >= 2 and spread is not None and spread.interval().known:
            more = SEEDS if seeds < SEEDS else 2 * seeds
            size = _number(_half(spread.interval(seeds=more)), metric)
            advice = f"With {more} seeds you could detect a difference of {size} in {_plain(found)}."
        sentence = f"Keep the single network: nothing here is clearly better. {advice}"
        values = f"{say_number(top, metric)} against {say_number(baseline, metric)}"
        gain = ("none shown", f"{top.label} has the best average, {values}, but the difference may be noise")
    rival = best([group for group in found.groups if group is not baseline], metric)
    sure = ("unknown", "no interval: no seed in common, or no stored examples")
    if rival is not None and (gap := found.gap(rival, baseline)).known:
        runs = _common_seeds(rival, baseline)
        over = f"{runs} seeds" if runs > 1 else "one seed on this test set"
        size = _number(_half(gap), metric)  # differences of other methods may vary less, and be shown
        sure = ("inconclusive", f"{over} can only show differences of {rival.label} in {name} above {size}")
    tiles = [("Gain", *gain), ("Cost", "1x", "the single network itself"), ("How sure", *sure)]
    return sentence, top, tiles


# ---------------------------------------------------------------- what would change the advice


def _seeds(found: ComparedGroups, choice: Group) -> list[str]:
    """Methods that may be better than the choice, and how many seeds would tell."""
    rivals = {
        group.label: seeds
        for group in found.groups
        if group is not choice and found.is_better(group, choice) and (seeds := found.seeds_to_settle(group, choice))
    }
    texts = []
    if rivals:
        names, seeds = join_names([*rivals]), max(rivals.values())
        texts.append(f"{names} may be better than {choice.label}: about {seeds} seeds should decide it.")
    if all(len(group.by_seed) == 1 for group in found.groups):
        texts.append(f"More seeds: with one training run each, a lucky run can win. Try --seeds {SEEDS}.")
    return texts


# ---------------------------------------------------------------- tiles


def _before_and_after(found: ComparedGroups, choice: Group, baseline: Group) -> str:
    """The metric of both, and the accuracy (or error) of both."""
    told = f"{_say(choice, found.metric)}; single network: {say_number(baseline, found.metric)}"
    other = "accuracy" if has_classes(choice.record["task"]) else "rmse"
    both = [estimate(group, other).value for group in (choice, baseline)]
    if found.metric == other or not all(map(math.isfinite, both)):
        return told
    shown = [" ".join(filter(None, (format_value(value, other), quantity(other).unit))) for value in both]
    return f"{told}. {quantity(other).title} {shown[0]}; single network: {shown[1]}"


def _price(choice: Group) -> tuple[str, str, str]:
    names = {"relative_latency": "time", "relative_mult_adds": "mult-adds"}
    names |= {"relative_parameters": "parameters", "relative_training": "training"}
    costs = {names[name]: cost for name in names if math.isfinite(cost := estimate(choice, name).value)}
    if not costs:
        return "Cost", "unknown", "the runs stored no costs"
    first, *others = costs
    rest = "".join(f"; {name} {say_times(costs[name])}" for name in others)
    note = "; not frozen" if choice.unfrozen else ""
    return "Cost", say_times(costs[first]), f"the {first} of a single network{rest}{note}"


# ---------------------------------------------------------------- numbers in words


def _common_seeds(first: Group, second: Group) -> int:
    return len(first.by_seed.keys() & second.by_seed.keys())


def _half(found: Interval) -> float:
    """Half the width of an interval: the smallest difference that it could show."""
    return (found.high - found.low) / 2


def _say(group: Group, metric: str) -> str:
    return f"{name_of(metric)} {say_number(group, metric)}"


def _plain(found: ComparedGroups) -> str:
    """The metric for a reader who does not know its short name."""
    is_log_loss = found.metric == "nll" and has_classes(found.groups[0].record["task"])
    return "log-loss (NLL)" if is_log_loss else name_of(found.metric)


def _share(found: ComparedGroups, size: float) -> str:
    """The size of a difference in percent of the single network's value; nothing where that makes no sense."""
    value = estimate(found.baseline, found.metric).value if found.baseline else math.nan
    is_error = quantity(found.metric).better == "lower" and quantity(found.metric).unit != "%"
    signed = found.metric == "nll" and not has_classes(found.groups[0].record["task"])  # of densities
    return f"{100 * size / value:.0f} %" if is_error and value > 0 and not signed else ""


def _number(size: float, metric: str) -> str:
    """The size of a difference, with two digits that count."""
    shown = f"{size * quantity(metric).factor:.2g}"
    return f"{shown} points" if quantity(metric).unit == "%" else shown
