"""The first screen of a comparison: one sentence, gain, cost and certainty, and what would change the advice."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ..results.advice import PASS, one_pass
from ..results.comparison_phrases import ComparedGroups, name_of, say_number, say_size, say_times
from ..results.quantities import best, estimate, format_value, quantity
from ..results.store import Group, has_classes
from ..results.verdict import Verdict
from ..uncertainty.resampling import Interval
from .charts.quality import cost_name, is_frozen, say_relative_cost

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
    """The summary of a verdict: the rule of its advice decides, and nothing is judged a second time."""
    found, choice = verdict.found, verdict.choice
    if found is None or found.baseline is None or choice is None or len(found.groups) == 1:
        top, chosen = (found.top, choice) if found and len(found.groups) > 1 else (None, None)
        return FirstScreen(verdict, verdict.sentences[0].text, chosen, top)
    baseline = found.baseline
    training = [sentence.text for sentence in verdict.sentences if sentence.topic == "training"]
    if choice is baseline:
        tiles = [_no_gain(found, baseline), ("Cost", "1x", "one network, as it is"), _power(found, baseline)]
        changes = [*_seeds(found, baseline), *training]
        return FirstScreen(verdict, _keep(found, baseline), baseline, found.top, tiles, changes)
    leader = best(_better(found), found.metric)
    tiles = [_gain(found, choice, baseline), _price(choice), _certainty(found, choice, baseline)]
    changes = [*_budgets(found, choice, leader or choice), *_seeds(found, choice), *training]
    return FirstScreen(verdict, _use(found, choice, baseline), choice, leader, tiles, changes)


def _better(found: ComparedGroups) -> list[Group]:
    """What is shown to beat the single network."""
    return [group for group in found.groups if found.baseline and found.relation(group, found.baseline) == "better"]


# ---------------------------------------------------------------- sentences


def _use(found: ComparedGroups, choice: Group, baseline: Group) -> str:
    verb = "cuts" if quantity(found.metric).better == "lower" else "raises"
    gain = f"it {verb} {name_of(found.metric)} by {_say_gain(found, choice, baseline)}"
    one = " This is one training run of each." if _common_seeds(choice, baseline) == 1 else ""
    return f"Use {choice.label}: {gain}, {_say_price(choice)}.{one}"


def _keep(found: ComparedGroups, baseline: Group) -> str:
    if found.top is baseline:
        way = "lowest" if quantity(found.metric).better == "lower" else "highest"
        return f"Keep the single network: it has the {way} {name_of(found.metric)} of all."
    return f"Keep the single network: nothing here is clearly better. {_detectable(found, baseline)}"


def _detectable(found: ComparedGroups, baseline: Group) -> str:
    """What more seeds could show, if the spread stays what it is."""
    seeds, spread = _common_seeds(found.top, baseline), found.spread(found.top, baseline)
    if seeds < 2 or spread is None or not spread.interval().known:
        return f"Train several seeds to learn more: try --seeds {SEEDS}."
    more = SEEDS if seeds < SEEDS else 2 * seeds
    size = _number(_half(spread.interval(seeds=more)), found.metric)
    return f"With {more} seeds you could detect a difference of {size} in {name_of(found.metric)}."


def _seeds(found: ComparedGroups, choice: Group) -> list[str]:
    """Methods that may be better than the choice, and how many seeds would tell."""
    texts = [
        f"{group.label} may be better than {choice.label}: about {seeds} seeds should decide it."
        for group in found.groups
        if group is not choice and found.is_better(group, choice) and (seeds := found.seeds_to_settle(group, choice))
    ][:3]
    if all(len(group.by_seed) == 1 for group in found.groups):
        texts.append(f"More seeds: with one training run each, a lucky run can win. Try --seeds {SEEDS}.")
    return texts


def _budgets(found: ComparedGroups, choice: Group, leader: Group) -> list[str]:
    """What to use for the cost of one network, and where cost does not matter, if that is something else."""
    texts, metric = [], found.metric
    if not one_pass(choice):
        other = best([group for group in _better(found) if one_pass(group)], metric)
        use = f"use {other.label}, {_say(other, metric)}" if other else "keep the single network"
        texts.append(f"A budget of one network (at most {PASS:g}x its time and mult-adds): {use}.")
    if leader is not choice:
        price = say_relative_cost(leader)
        at = f", at {price} the cost" if price else ""
        texts.append(f"No limit on cost: {leader.label} has the best average, {_say(leader, metric)}{at}.")
    return texts


# ---------------------------------------------------------------- tiles


def _gain(found: ComparedGroups, choice: Group, baseline: Group) -> tuple[str, str, str]:
    sign = "−" if quantity(found.metric).better == "lower" else "+"
    told = f"{_say(choice, found.metric)}; single network: {say_number(baseline, found.metric)}"
    other = "accuracy" if has_classes(choice.record["task"]) else "rmse"
    both = [estimate(group, other).value for group in (choice, baseline)]
    if found.metric != other and all(map(math.isfinite, both)):
        shown = [" ".join(filter(None, (format_value(value, other), quantity(other).unit))) for value in both]
        told += f". {quantity(other).title} {shown[0]}; single network: {shown[1]}"
    return "Gain", f"{sign}{_say_gain(found, choice, baseline)}", told


def _no_gain(found: ComparedGroups, baseline: Group) -> tuple[str, str, str]:
    if found.top is baseline:
        return "Gain", "none", f"the single network has the best {_say(baseline, found.metric)}"
    told = f"{found.top.label} has the best average, {say_number(found.top, found.metric)} against "
    return "Gain", "none shown", f"{told}{say_number(baseline, found.metric)}, but the difference may be noise"


def _price(choice: Group) -> tuple[str, str, str]:
    names = {"relative_latency": "time", "relative_mult_adds": "mult-adds"}
    names |= {"relative_parameters": "parameters", "relative_training": "training"}
    costs = {names[name]: cost for name in names if math.isfinite(cost := estimate(choice, name).value)}
    if not costs:
        return "Cost", "unknown", "the runs stored no costs"
    first, *others = costs
    rest = "".join(f"; {name} {say_times(costs[name])}" for name in others)
    note = "" if is_frozen(choice) else "; not frozen"
    return "Cost", say_times(costs[first]), f"the {first} of a single network{rest}{note}"


def _certainty(found: ComparedGroups, choice: Group, baseline: Group) -> tuple[str, str, str]:
    seeds, gap = _common_seeds(choice, baseline), found.gap(choice, baseline)
    ends = _say_range(found, gap, baseline)
    if seeds == 1:
        return "How sure", "one seed", f"gain {ends} on this test set (95 % interval); another training run may differ"
    return "How sure", "clear", f"gain {ends} (95 % interval over {seeds} seeds)"


def _power(found: ComparedGroups, baseline: Group) -> tuple[str, str, str]:
    """The smallest difference that these runs could show."""
    rival = best([group for group in found.groups if group is not baseline], found.metric)
    gap = found.gap(rival, baseline) if rival else Interval(math.nan)
    if rival is None or not gap.known:
        return "How sure", "unknown", "no interval: no seed in common, or no stored examples"
    seeds = _common_seeds(rival, baseline)
    over = f"{seeds} seeds" if seeds > 1 else "one seed on this test set"
    said = f"{over} cannot show {name_of(found.metric)} differences of {rival.label} below "  # of others they may
    return "How sure", "inconclusive", said + _number(_half(gap), found.metric)


# ---------------------------------------------------------------- numbers in words


def _common_seeds(first: Group, second: Group) -> int:
    return len(first.by_seed.keys() & second.by_seed.keys())


def _half(found: Interval) -> float:
    """Half the width of an interval: the smallest difference that it could show."""
    return (found.high - found.low) / 2


def _say(group: Group, metric: str) -> str:
    return f"{name_of(metric)} {say_number(group, metric)}"


def _in_percent(found: ComparedGroups, baseline: Group) -> float:
    """What differences are divided by to be shares of the single network's value; NaN where that makes no sense."""
    value = estimate(baseline, found.metric).value
    is_error = quantity(found.metric).better == "lower" and quantity(found.metric).unit != "%"
    signed = found.metric == "nll" and not has_classes(baseline.record["task"])  # of densities: zero means nothing
    return value if is_error and value > 0 and not signed else math.nan


def _say_gain(found: ComparedGroups, choice: Group, baseline: Group) -> str:
    gap, whole = found.gap(choice, baseline), _in_percent(found, baseline)
    if math.isfinite(whole):
        return f"{100 * abs(gap.value) / whole:.0f} %"
    return say_size(Interval(gap.value), found.metric)


def _say_range(found: ComparedGroups, gap: Interval, baseline: Group) -> str:
    low, high = sorted((abs(gap.low), abs(gap.high)))
    whole = _in_percent(found, baseline)
    if math.isfinite(whole):
        return f"between {100 * low / whole:.0f} % and {100 * high / whole:.0f} %"
    return f"between {_number(low, found.metric)} and {_number(high, found.metric)}"


def _number(size: float, metric: str) -> str:
    """The size of a difference, with two digits that count."""
    shown = f"{size * quantity(metric).factor:.2g}"
    return f"{shown} points" if quantity(metric).unit == "%" else shown


def _say_price(group: Group) -> str:
    name = cost_name([group])
    cost = estimate(group, name).value
    if not math.isfinite(cost):
        return "at a cost that was not measured"
    much = ("takes {:.2g} times as long" if name == "relative_latency" else "costs {:.2g} times as much").format(cost)
    return f"and a prediction {'costs no more' if cost <= 1.05 else much}"
