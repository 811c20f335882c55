"""Checks of studies: what the paper says of methods beside each other, told by paired differences over seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..._common.optional import require
from ...results.intervals import t_interval
from ...results.quantities import format_interval, quantity
from ...uncertainty.resampling import LEVEL, Interval
from ..drawing import intervals_figure
from ..experiments.study_experiment import Compared, sweep_labels
from ..verdicts import OPEN, ClaimVerdict, above, all_of, count_judgements, equal, show_interval

NEAR = 0.5  # of the gain over the baseline: what is nearer than that to the better method is "similar"

NOTHING = Interval(math.nan)


@dataclass(frozen=True)
class Expectation:
    """A part of a claim.

    Args:
        text: what is expected, as a clause
        figure: the difference that decides
        judge: from it to a judgement
    """

    text: str
    figure: Callable[[Compared], Interval]
    judge: Callable[[Interval, Compared], str]

    def told(self, compared: Compared) -> tuple[Interval, str]:
        """The difference and the judgement; where a method is missing it cannot be told."""
        try:
            found = self.figure(compared)
        except KeyError:
            return NOTHING, OPEN
        return found, self.judge(found, compared)


def better(first: str, second: str, metric: str) -> Expectation:
    """The first method is better than the second."""

    def gap(compared: Compared) -> Interval:
        return _gain(compared, first, second, metric)

    return Expectation(f"{first} is better than {second} in {_name(metric)}", gap, lambda found, _: above(found))


def near(first: str, second: str, metric: str, base: str) -> Expectation:
    """The first method is like the second: it differs by less than half of what the second gains over a baseline.

    Where the second does not beat the baseline in NLL and ECE there is no positive control, and nothing can be said.
    """

    def judge(found: Interval, compared: Compared) -> str:
        if not all(_gain(compared, second, base, control).value > 0 for control in ("nll", "ece")):
            return OPEN
        margin = NEAR * abs(compared.gap(second, base, metric).value)
        return equal(found, margin) if math.isfinite(margin) else OPEN

    text = f"{first} is as good as {second} in {_name(metric)}, within half of what {second} gains over {base}"
    return Expectation(text, lambda compared: compared.gap(first, second, metric), judge)


def within(first: str, second: str, metric: str, margin: float) -> Expectation:
    """Two methods differ by less than a margin."""
    text = f"{first} and {second} differ by less than {margin:g} in {_name(metric)}"
    return Expectation(
        text, lambda compared: compared.gap(first, second, metric), lambda found, _: equal(found, margin)
    )


def improves(method: str, axis: str, metric: str, **fixed: float) -> Expectation:
    """The last value of a sweep is better than the first."""

    def gap(compared: Compared) -> Interval:
        labels = list(sweep_labels(compared.labels(method), axis, **fixed).values())
        return _gain(compared, labels[-1], labels[0], metric) if len(labels) > 1 else NOTHING

    return Expectation(f"{method} gets better in {_name(metric)} with {axis}", gap, lambda found, _: above(found))


def more(first: str, second: str, metric: str) -> Expectation:
    """The quantity of the first method is larger."""
    return Expectation(
        f"{first} has more {_name(metric)} than {second}",
        lambda compared: compared.gap(first, second, metric), lambda found, _: above(found),
    )  # fmt: skip


def cheaper(first: str, second: str, metric: str) -> Expectation:
    """The first method takes less, as a ratio of the means over seeds; the interval is that of the log ratio."""

    def ratio(compared: Compared) -> Interval:
        one, other = (np.log(compared.values(label, metric)) for label in (first, second))
        gaps = [a - b for a, b in zip(one.tolist(), other.tolist(), strict=False)]
        return t_interval(gaps) if gaps else NOTHING

    def judge(found: Interval, compared: Compared) -> str:
        return above(Interval(-found.value, -found.high, -found.low))

    return Expectation(f"{first} takes less {_name(metric)} than {second} (log ratio)", ratio, judge)


def at_most(first: str, second: str, metric: str, share: float) -> Expectation:
    """The first method takes at most a share of what the second takes, as a ratio of the means over seeds."""

    def ratio(compared: Compared) -> Interval:
        one, other = (np.log(compared.values(label, metric)) for label in (first, second))
        gaps = [a - b - math.log(share) for a, b in zip(one.tolist(), other.tolist(), strict=False)]
        if gaps and max(gaps) == min(gaps):  # counts that no seed changes
            return Interval(gaps[0], gaps[0], gaps[0])
        return t_interval(gaps) if gaps else NOTHING

    text = f"{first} takes at most {share:g} times the {_name(metric)} of {second} (log ratio)"
    return Expectation(text, ratio, lambda found, _: above(Interval(-found.value, -found.high, -found.low)))


def steadier(first: str, second: str, metric: str) -> Expectation:
    """The first method varies less over seeds: the log of the ratio of variances, with its F-interval."""

    def ratio(compared: Compared) -> Interval:
        one, other = (np.array(compared.values(label, metric)) for label in (first, second))
        if min(len(one), len(other)) < 2 or not one.var() or not other.var():
            return NOTHING
        value = float(np.log(other.var(ddof=1) / one.var(ddof=1)))
        f = require("scipy.stats", "an interval of a ratio of variances", "report").f
        ends = [f.ppf(share, len(other) - 1, len(one) - 1) for share in ((1 - LEVEL) / 2, (1 + LEVEL) / 2)]
        return Interval(value, value - math.log(ends[1]), value - math.log(ends[0]))

    text = f"{first} varies less over seeds than {second} in {_name(metric)} (log ratio of variances)"
    return Expectation(text, ratio, lambda found, _: above(found))


def detects(label: str, first: str, second: str, figure: str) -> Expectation:
    """One score detects OOD data better than another, for the same predictions."""

    def gap(compared: Compared) -> Interval:
        runs = compared.groups[label].runs
        gaps = [
            scores[first][figure] - scores[second][figure]
            for run in runs for scores in (run.record.get("outside") or {}).values()
        ]  # fmt: skip
        return t_interval(gaps) if gaps else NOTHING

    text = f"{first.replace('_', ' ')} detects OOD data better than {second.replace('_', ' ')} ({figure}, {label})"
    return Expectation(text, gap, lambda found, _: above(found))


def sensitivity(method: str, axis: str, metric: str) -> Expectation:
    """The largest ensemble of a sweep loses more by regularisation than the smallest, on average over the path.

    A loss is relative to the same number of members without regularisation, paired over seeds.
    """

    def gap(compared: Compared) -> Interval:
        sizes = list(sweep_labels(compared.labels(method), "size"))
        if len(sizes) < 2:
            return NOTHING
        losses = []
        for size in (sizes[0], sizes[-1]):
            path = sweep_labels(compared.labels(method), axis, size=size)
            values = [np.array(compared.values(label, metric)) for label in path.values()]
            if len(values) < 2:
                return NOTHING
            losses.append(values[0] - np.mean(values[1:], axis=0))
        sign = -1 if quantity(metric).better == "lower" else 1
        return t_interval((sign * (losses[1] - losses[0])).tolist())

    text = f"{method} with more members loses more {_name(metric)} to {axis}, on average over its path"
    return Expectation(text, gap, lambda found, _: above(found))


def over_settings(method: str, axis: str, metric: str) -> Expectation:
    """The largest value of a setting is better than the smallest, on average over all others and seeds, paired."""

    def gap(compared: Compared) -> Interval:
        labels = compared.labels(method)
        values = sorted({float(part.split("=")[1]) for label in labels for part in label.split()
                         if part.startswith(f"{axis}=")})  # fmt: skip
        if len(values) < 2:
            return NOTHING
        low, high = (f"{axis}={values[i]:g}" for i in (0, -1))
        pairs = [(label, " ".join(high if part == low else part for part in label.split()))
                 for label in labels if low in label.split()]  # fmt: skip
        sign = -1 if quantity(metric).better == "lower" else 1
        gaps = [sign * (b - a) for one, other in pairs
                for a, b in zip(compared.values(one, metric), compared.values(other, metric), strict=True)]  # fmt: skip
        return t_interval(gaps)

    text = f"{method} gets better in {_name(metric)} with {axis}, on average over other settings"
    return Expectation(text, gap, lambda found, _: above(found))


def expect(
    *expectations: Expectation,
    metrics: Sequence[str] = ("accuracy", "nll", "ece", "auroc"),
    combine: Callable[[Sequence[str]], str] = all_of,
) -> Callable[[Mapping[str, Compared], Mapping[str, Any]], ClaimVerdict]:
    """The check of a claim that consists of expectations, on every study of the experiment.

    Args:
        metrics: of the table, beside those of the paper
        combine: the parts' judgements in one; by default all must hold
    """

    def check(found: Mapping[str, Compared], published: Mapping[str, Any]) -> ClaimVerdict:
        told = [
            (f"{where}: " if len(found) > 1 else "", one, *one.told(compared))
            for where, compared in found.items()
            for one in expectations
        ]
        judgements = [judgement for *_, judgement in told]
        said = [count_judgements(judgements, "part")]
        said += [f"{where}{one.text}: {show_interval(gap)}, {judgement}." for where, one, gap, judgement in told]
        said.append(_certainty(list(found.values())))
        said += [note for compared in found.values() for note in compared.notes]
        header, rows = _table(found, metrics, published.get("table") or {})
        return ClaimVerdict(combine(judgements), said, header, rows, _pictures(told))

    return check


def _pictures(told: Sequence[tuple[str, Expectation, Interval, str]]) -> list[Any]:
    scaled = {
        f"{where}{one.text} ({judgement})"[:90]: Interval(*(end / _size(gap) for end in gap))
        for where, one, gap, judgement in told
        if gap.known and _size(gap) > 0
    }
    if not scaled:
        return []
    caption = "Each difference with its 95 % interval over seeds, in units of its own largest end."
    return [intervals_figure("parts", "The parts of the claim", caption, {"difference": scaled})]


def _size(gap: Interval) -> float:
    return max(abs(gap.low), abs(gap.high), abs(gap.value))


def _table(
    found: Mapping[str, Compared], metrics: Sequence[str], published: Mapping[str, Mapping[str, str]]
) -> tuple[list[str], list[list[str]]]:
    rows = []
    for where, compared in found.items():
        for label in compared.groups:
            ours = [format_interval(compared.figure(label, metric), metric) for metric in metrics]
            paper = [published.get(label, {}).get(metric, "–") for metric in metrics]
            rows.append([where, label, *(cell for pair in zip(ours, paper, strict=True) for cell in pair)])
    heads = [cell for metric in metrics for cell in (quantity(metric).title, "paper")]
    return ["study", "method", *heads], rows


def _certainty(compared: Sequence[Compared]) -> str:
    seeds = {len(group.by_seed) for one in compared for group in one.groups.values()}
    number = f"{min(seeds)}" if len(seeds) == 1 else f"{min(seeds)} to {max(seeds)}"
    return f"Differences are paired over {number} seeds; their 95 % intervals are Student's."


def _gain(compared: Compared, first: str, second: str, metric: str) -> Interval:
    """How much better the first is: positive is better, whichever way the metric goes."""
    gap = compared.gap(first, second, metric)
    return gap if quantity(metric).better != "lower" else Interval(-gap.value, -gap.high, -gap.low)


def _name(metric: str) -> str:
    title = quantity(metric).title
    return title if not title[1:].islower() else title.lower()
