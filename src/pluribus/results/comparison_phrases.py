"""What sentences about a comparison are made of: groups, who is best, paired differences, and words for them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..uncertainty.resampling import Interval
from .quantities import best, difference, estimate, format_interval, paired_spread, quantity
from .store import Group, has_classes


@dataclass(frozen=True)
class Sentence:
    """A plain sentence, and what it is about: "result", "budget", "accuracy", "calibration", "shift", "outside", ..."""

    topic: str
    text: str


@dataclass(frozen=True)
class ComparedGroups:
    """Groups of runs on one data set, the best of them and the baseline by the main metric, and their differences."""

    groups: list[Group]
    metric: str
    top: Group
    baseline: Group | None
    known: dict[tuple[Group, Group, str], Interval] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, groups: list[Group]) -> ComparedGroups | None:
        """The groups by NLL, or by accuracy or RMSE where more groups have a finite one; None where none has any."""
        spare = "accuracy" if has_classes(groups[0].record["task"]) else "rmse"
        finite = {name: sum(math.isfinite(estimate(one, name).value) for one in groups) for name in ("nll", spare)}
        metric = "nll" if finite["nll"] >= finite[spare] and finite["nll"] else spare
        top = best(groups, metric)
        baseline = next((group for group in groups if group.is_baseline), None)
        return cls(groups, metric, top, baseline) if top else None

    def gap(self, first: Group, second: Group, name: str = "") -> Interval:
        """How much larger a quantity of the first group is, by default the main metric; computed once."""
        key = first, second, name or self.metric
        if key not in self.known:
            self.known[key] = difference(*key)
        return self.known[key]

    def relation(self, first: Group, second: Group, name: str = "") -> str:
        """How the first group compares with the second, in words."""
        return relation(self.gap(first, second, name), name or self.metric)

    def seeds_to_settle(self, first: Group, second: Group) -> int | None:
        """How many seeds would distinguish the two, if the difference is what it seems; None: too many to try."""
        found = paired_spread(first, second, self.metric)
        return found.seeds_to_settle() if found else None

    def is_worth_its_cost(self, group: Group, baseline: Group) -> bool:
        """Whether its gain matters in practice: it is large enough (`practical_size`), or costs nothing more."""
        return self.cost(group) <= PASS or (
            abs(self.gap(group, baseline).value) >= practical_size(baseline, self.metric)
        )

    def cost(self, group: Group) -> float:
        """Mult-adds of a prediction, as deployed, relative to those of one network."""
        return estimate(group, "relative_mult_adds").value

    def say_cost(self, group: Group) -> str:
        """What a prediction costs, as deployed: ", at 4x the cost", or mult-adds and time where these differ."""
        paid, time = self.cost(group), estimate(group, "relative_latency").value
        if not math.isfinite(paid):
            return ""
        if math.isfinite(time) and not 0.8 <= time / paid <= 1.25:
            return f", at {say_times(paid)} the mult-adds and {say_times(time)} the time"
        return ", at the same cost" if say_times(paid) in ("1x", "0.99x") else f", at {say_times(paid)} the cost"

    def is_better(self, first: Group, second: Group) -> bool:
        """Whether the first group's mean is better, shown or not."""
        gap = self.gap(first, second).value
        return gap > 0 if quantity(self.metric).better == "higher" else gap < 0


PASS = 1.25  # of the single network's deployed latency and mult-adds: what counts as the cost of one network
SMALL, SMALL_SHARE = 0.01, 0.001  # of the metric, or of its nats for densities; of shares: 0.1 points


def practical_size(baseline: Group, metric: str) -> float:
    """The smallest gain that matters where it costs more than one network: 1 % of the metric, of shares 0.1 points.

    The NLL of densities has no natural zero: there, 0.01 nats, which is 1 % of the likelihood.
    """
    if quantity(metric).unit == "%":
        return SMALL_SHARE
    if metric == "nll" and not has_classes(baseline.record["task"]):
        return SMALL
    return SMALL * abs(estimate(baseline, metric).value)


def relation(gap: Interval, name: str) -> str:
    """A paired difference of a quantity in words: "better", "worse", "within noise", or "" where nobody can say."""
    if quantity(name).better == "neither" or not gap.known and gap.value != 0:
        return ""
    if not gap.known or gap.low <= 0 <= gap.high:  # without an interval: the same in every row
        return "within noise"
    return "better" if (gap.value > 0) == (quantity(name).better == "higher") else "worse"


# ---------------------------------------------------------------- words


def name_of(metric: str) -> str:
    """The metric's name as it stands in a sentence."""
    title = quantity(metric).title
    return title[0].lower() + title[1:] if title[1:].islower() else title


def say_value(group: Group, name: str, said: str = "") -> str:
    """The quantity's name, where it was not said already, and its value."""
    shown = format_interval(estimate(group, name), name)
    return shown if name_of(name) in said else f"{name_of(name)} {shown}"


def say_number(group: Group, name: str) -> str:
    """The value with its unit, without an interval, with as many decimals as the interval supports."""
    return format_interval(estimate(group, name), name).split(" [")[0]


def say_gap(gap: Interval, name: str) -> str:
    """A difference; between shares it is in points, not in percent of something."""
    return format_interval(gap, name).replace(" %", " points")


def say_size(gap: Interval, metric: str) -> str:
    """The size of a difference, without its sign."""
    if gap.value < 0:
        gap = Interval(-gap.value, -gap.high, -gap.low)
    return say_gap(gap, metric)


def say_times(factor: float) -> str:
    """A factor as people say it.

    >>> say_times(4.0), say_times(3.46), say_times(11.9), say_times(0.27)
    ('4x', '3.5x', '12x', '0.27x')
    """
    return f"{float(f'{factor:.2g}'):g}x"


def join_names(names: Sequence[str]) -> str:
    """Names in a sentence: a, b and c."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
