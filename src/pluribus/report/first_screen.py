"""The first screen of a comparison: one sentence, gain, cost and certainty, and what would change the advice."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from .._common.optional import require
from ..results.advice import PASS, one_pass
from ..results.comparison_phrases import ComparedGroups, name_of, say_number, say_size, say_times
from ..results.quantities import Differences, best, estimate, format_value, quantity
from ..results.store import Group, has_classes
from ..results.verdict import Verdict
from ..uncertainty.resampling import LEVEL, Interval
from .charts.quality import cost_name, is_frozen, say_relative_cost

SEEDS = 5  # what is proposed to who has fewer


@dataclass(frozen=True)
class FirstScreen:
    """What stands first on the page.

    Args:
        groups: those of the data set
        metric: what they are ordered by
        choice: the recommended one; None where there is nothing to choose from
        top: the one with the best mean of what the advice considers
        found: the groups with their differences; None where there is no single network to compare with
        tiles: title, value and explanation of gain, cost and certainty
        changes: what would change the advice, a sentence each
    """

    groups: list[Group]
    metric: str
    sentence: str
    choice: Group | None = None
    top: Group | None = None
    found: ComparedGroups | None = None
    tiles: list[tuple[str, str, str]] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)

    def stands_out(self, group: Group) -> bool:
        """Whether the details show it before all methods are unfolded."""
        return group.is_baseline or group in (self.choice, self.top)


def compose_screen(verdict: Verdict, groups: list[Group], differences: Differences) -> FirstScreen:
    """The summary of a verdict: the rule of its advice decides, and nothing is judged a second time."""
    baseline, top = next((group for group in groups if group.is_baseline), None), best(groups, verdict.metric)
    choice = next((group for group in groups if group.label == verdict.recommended and len(groups) > 1), None)
    if top is None or baseline is None or choice is None:
        return FirstScreen(groups, verdict.metric, verdict.sentences[0].text, choice, top)
    found = ComparedGroups(groups, verdict.metric, top, baseline, differences)
    training = [sentence.text for sentence in verdict.sentences if sentence.topic == "training"]
    if choice is baseline:
        tiles = [_no_gain(found, baseline), ("Cost", "1x", "one network, as it is"), _power(found, baseline)]
        changes = [*_seeds(found, baseline), *training]
        return FirstScreen(groups, verdict.metric, _keep(found, baseline), baseline, top, found, tiles, changes)
    leader = best(_better(found), verdict.metric)
    tiles = [_gain(found, choice, baseline), _price(choice), _certainty(found, choice, baseline)]
    changes = [*_budgets(found, choice, leader or choice), *_seeds(found, choice), *training]
    return FirstScreen(groups, verdict.metric, _use(found, choice, baseline), choice, leader, found, tiles, changes)


def _better(found: ComparedGroups) -> list[Group]:
    """What is shown to beat the single network."""
    return [group for group in found.groups if found.baseline and found.relation(group, found.baseline) == "better"]


# ---------------------------------------------------------------- sentences


def _use(found: ComparedGroups, choice: Group, baseline: Group) -> str:
    verb = "cuts" if quantity(found.metric).better == "lower" else "raises"
    gain = f"it {verb} {name_of(found.metric)} by {_say_gain(found, choice, baseline)}"
    one = " One training run each: see how sure this is." if _common_seeds(choice, baseline) == 1 else ""
    return f"Use {choice.label}: {gain}, {_say_price(choice)}.{one}"


def _keep(found: ComparedGroups, baseline: Group) -> str:
    if found.top is baseline:
        way = "lowest" if quantity(found.metric).better == "lower" else "highest"
        return f"Keep the single network: it has the {way} {name_of(found.metric)} of all."
    return f"Keep the single network: nothing here is clearly better. {_detectable(found, baseline)}"


def _detectable(found: ComparedGroups, baseline: Group) -> str:
    """What more seeds could show, if the spread stays what it is."""
    seeds, gap = _common_seeds(found.top, baseline), found.gap(found.top, baseline)
    if seeds < 2 or not gap.known:
        return f"Train several seeds to learn more: try --seeds {SEEDS}."
    more = SEEDS if seeds < SEEDS else 2 * seeds
    size = _detectable_size(gap, seeds, more)
    return (
        f"With {more} seeds you could detect a difference of {_number(size, found.metric)} in {name_of(found.metric)}."
    )


def _seeds(found: ComparedGroups, choice: Group) -> list[str]:
    """Methods that may be better than the choice, and how many seeds would tell."""
    near = [
        (group.label, seeds)
        for group in found.groups
        if group is not choice and found.is_better(group, choice) and (seeds := found.seeds_to_settle(group, choice))
    ][:3]
    texts = [
        f"{label} may be better than {choice.label}: about {seeds} seeds should decide it." for label, seeds in near
    ]
    if all(len(group.by_seed) == 1 for group in found.groups):
        texts.append(f"More seeds: with one training run each, a lucky run can win. Try --seeds {SEEDS}.")
    return texts


def _budgets(found: ComparedGroups, choice: Group, leader: Group) -> list[str]:
    """What to use for the cost of one network, and where cost does not matter, if that is something else."""
    texts, metric = [], found.metric
    if not one_pass(choice):
        other = best([group for group in _better(found) if one_pass(group)], metric)
        named = f"use {other.label}, {name_of(metric)} {say_number(other, metric)}" if other else ""
        use = named or "keep the single network"
        texts.append(f"A budget of one network (at most {PASS:g}x its time and mult-adds): {use}.")
    if leader is not choice:
        price = say_relative_cost(leader)
        at = f", at {price} the cost" if price else ""
        best_value = f"{name_of(metric)} {say_number(leader, metric)}"
        texts.append(f"No limit on cost: {leader.label} has the best average, {best_value}{at}.")
    return texts


# ---------------------------------------------------------------- tiles


def _gain(found: ComparedGroups, choice: Group, baseline: Group) -> tuple[str, str, str]:
    sign = "−" if quantity(found.metric).better == "lower" else "+"
    told = (
        f"{name_of(found.metric)} {say_number(choice, found.metric)}, one network {say_number(baseline, found.metric)}"
    )
    other = "accuracy" if has_classes(choice.record["task"]) else "rmse"
    both = [estimate(group, other).value for group in (choice, baseline)]
    if found.metric != other and all(map(math.isfinite, both)):
        unit = f" {quantity(other).unit}" if quantity(other).unit else ""
        shown = [f"{format_value(value, other)}{unit}" for value in both]
        told += f"; {name_of(other)} {shown[0]}, one network {shown[1]}"
    return "Gain", f"{sign}{_say_gain(found, choice, baseline)}", told


def _no_gain(found: ComparedGroups, baseline: Group) -> tuple[str, str, str]:
    if found.top is baseline:
        return (
            "Gain",
            "none",
            f"the single network has the best {name_of(found.metric)}, {say_number(baseline, found.metric)}",
        )
    told = f"{found.top.label} has the best average, {say_number(found.top, found.metric)} against "
    return "Gain", "none shown", f"{told}{say_number(baseline, found.metric)}, but the difference may be noise"


def _price(choice: Group) -> tuple[str, str, str]:
    names = {"relative_latency": "time", "relative_mult_adds": "mult-adds", "relative_parameters": "parameters"}
    names |= {"relative_training": "training"}
    costs = {names[name]: cost for name in names if math.isfinite(cost := estimate(choice, name).value)}
    if not costs:
        return "Cost", "unknown", "the runs stored no costs"
    first, *others = costs
    rest = "".join(f"; {name} {say_times(costs[name])}" for name in others)
    note = "" if is_frozen(choice) else "; not frozen"
    return "Cost", say_times(costs[first]), f"the {first} of one network{rest}{note}"


def _certainty(found: ComparedGroups, choice: Group, baseline: Group) -> tuple[str, str, str]:
    seeds, gap = _common_seeds(choice, baseline), found.gap(choice, baseline)
    ends = _say_range(found, gap, baseline)
    if seeds == 1:
        return "How sure", "one seed", f"gain {ends} on this test set (95 % interval); another training run may differ"
    return "How sure", "clear", f"gain {ends} (95 % interval over {seeds} seeds)"


def _power(found: ComparedGroups, baseline: Group) -> tuple[str, str, str]:
    """The smallest difference that these runs could show."""
    rival = (
        found.top if found.top is not baseline else best([g for g in found.groups if g is not baseline], found.metric)
    )
    gap = found.gap(rival, baseline) if rival else Interval(math.nan)
    if rival is None or not gap.known:
        return "How sure", "unknown", "no interval: no seed in common, or no stored examples"
    seeds = _common_seeds(rival, baseline)
    half = _number((gap.high - gap.low) / 2, found.metric)
    over = f"{seeds} seeds" if seeds > 1 else "one seed on this test set"
    said = f"{over} cannot show {name_of(found.metric)} differences of {rival.label} below {half}"  # of others they may
    return "How sure", "inconclusive", said


# ---------------------------------------------------------------- numbers in words


def _common_seeds(first: Group, second: Group) -> int:
    return len(first.by_seed.keys() & second.by_seed.keys())


def _detectable_size(gap: Interval, seeds: int, more: int) -> float:
    """Half the width that the interval would have with more seeds of the same spread."""
    quantile = require("scipy.special", "an interval over seeds", "report").stdtrit
    now, then = (float(quantile(n - 1, (1 + LEVEL) / 2)) / math.sqrt(n) for n in (seeds, more))
    return (gap.high - gap.low) / 2 * then / now


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
    cost, verb = (
        estimate(group, name).value,
        "takes {} times as long" if name == "relative_latency" else "costs {} times as much",
    )
    if not math.isfinite(cost):
        return "at a cost that was not measured"
    return "and a prediction costs no more" if cost <= 1.05 else f"and a prediction {verb.format(f'{cost:.2g}')}"
