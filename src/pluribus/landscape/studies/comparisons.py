"""What a paper says of methods next to each other, as differences that are paired over seeds.

The same expectations are judged on stored studies (`pluribus reproduce`) and on one's own networks (`Measured`, which
the laboratory's page shows): whatever has `settings`, `values`, `interval`, `difference`, `seeds` and `notes`.

    better("packed", "single", "nll")              packed is better than single in NLL: the paired gain is above 0
    near("packed", "deep", "accuracy", "single")   the difference lies within half of what deep gains over single

A new kind of expectation is one function: a text, and what gives the interval that decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from ..._common.optional import require
from ...report.charts.intervals import intervals_figure
from ...report.claims import ClaimVerdict
from ...report.figure import Figure
from ...results.intervals import t_interval
from ...results.judgements import HOLDS, OPEN, above, all_of, count_judgements, equal, show_interval
from ...results.quantities import format_interval, quantity
from ...uncertainty.resampling import LEVEL, Interval

NEAR = 0.5  # of the gain over the baseline: what is nearer than that to the better method is "similar"
NOTHING = Interval(math.nan)


class SettingsBySeed(Protocol):
    """Settings of methods, each with its metrics for every seed; what is missing raises a KeyError or ValueError."""

    @property
    def settings(self) -> list[Any]:
        """The labels, such as "packed alpha=2"."""

    @property
    def notes(self) -> Sequence[str]:
        """Sentences about how they came about."""

    def values(self, setting: Any, figure: str) -> list[float]:
        """A metric of every seed."""

    def interval(self, setting: Any, figure: str) -> Interval:
        """Its mean with an interval."""

    def difference(self, first: Any, second: Any, figure: str) -> Interval:
        """How much larger that of the first is, paired."""

    def seeds(self, setting: Any) -> int:
        """How many."""


@dataclass(frozen=True)
class Expectation:
    """A part of a claim: what is expected, as a clause, the difference that decides, and from it to a judgement."""

    text: str
    figure: Callable[[SettingsBySeed], Interval]
    judge: Callable[[Interval, SettingsBySeed], str] = lambda found, compared: above(found)

    def told(self, compared: SettingsBySeed) -> tuple[Interval, str]:
        """The difference and the judgement; where a method is missing it is inconclusive."""
        try:
            found = self.figure(compared)
            return found, self.judge(found, compared)
        except (KeyError, ValueError):
            return NOTHING, OPEN


def better(first: str, second: str, metric: str) -> Expectation:
    """The first method is better than the second."""
    text = f"{first} is better than {second} in {_name(metric)}"
    return Expectation(text, lambda compared: _gain(compared, first, second, metric))


def not_worse(first: str, second: str, metric: str, margin: float) -> Expectation:
    """The first method is worse than the second by less than a margin, or better."""
    text = f"{first} is less than {margin:g} worse than {second} in {_name(metric)}"
    gap = better(first, second, metric).figure
    return Expectation(text, gap, lambda found, _: above(found, -margin))


def more(first: str, second: str, metric: str) -> Expectation:
    """The quantity of the first method is larger."""
    text = f"{first} has more {_name(metric)} than {second}"
    return Expectation(text, lambda compared: compared.difference(first, second, metric))


def within(first: str, second: str, metric: str, margin: float) -> Expectation:
    """Two methods differ by less than a margin."""
    text = f"{first} and {second} differ by less than {margin:g} in {_name(metric)}"
    return Expectation(text, more(first, second, metric).figure, lambda found, _: equal(found, margin))


def near(first: str, second: str, metric: str, base: str) -> Expectation:
    """The first method is like the second: it differs by less than half of what the second gains over a baseline.

    Where the second does not beat the baseline in NLL and ECE there is no positive control, and nothing can be said.
    """

    def judge(found: Interval, compared: SettingsBySeed) -> str:
        if not positive_control(compared, second, base):
            return OPEN
        margin = NEAR * abs(compared.difference(second, base, metric).value)
        return equal(found, margin) if math.isfinite(margin) else OPEN

    text = f"{first} is as good as {second} in {_name(metric)}, within half of what {second} gains over {base}"
    return Expectation(text, more(first, second, metric).figure, judge)


def positive_control(compared: SettingsBySeed, ensemble: str, base: str) -> bool:
    """Whether the effect is there to be seen: the ensemble is shown to beat the baseline in NLL and in ECE."""
    return all(better(ensemble, base, metric).told(compared)[1] == HOLDS for metric in ("nll", "ece"))


def keeps_half(first: str, second: str, metric: str, base: str) -> Expectation:
    """The first method keeps at least half of what the second gains over a baseline, for each seed; more is welcome."""

    def surplus(compared: SettingsBySeed) -> Interval:
        one, two, zero = (_values(compared, label, metric) for label in (first, second, base))
        return t_interval(((one - zero) - NEAR * (two - zero)).tolist())

    text = f"{first} keeps at least half of what {second} gains over {base} in {_name(metric)} (surplus over half)"
    return Expectation(text, surplus)


def closes(first: str, second: str, metric: str, axis: str, low: float, high: float) -> Expectation:
    """From one value of a setting to another, the first method gains on the second; labels hold "{}" for the value."""

    def gap(compared: SettingsBySeed) -> Interval:
        before, after = (
            _values(compared, first.format(value), metric) - _values(compared, second.format(value), metric)
            for value in (low, high)
        )
        return t_interval((after - before).tolist())

    text = f"from {axis} {low:g} to {high:g}, {first.split()[0]} gains on {second.split()[0]} in {_name(metric)}"
    return Expectation(text, gap)


def improves(method: str, axis: str, metric: str, **fixed: float) -> Expectation:
    """The last value of a sweep is better than the first."""

    def gap(compared: SettingsBySeed) -> Interval:
        labels = list(sweep_labels(_of(compared, method), axis, **fixed).values())
        return _gain(compared, labels[-1], labels[0], metric) if len(labels) > 1 else NOTHING

    return Expectation(f"{method} gets better in {_name(metric)} with {axis}", gap)


def cheaper(first: str, second: str, metric: str) -> Expectation:
    """The first method takes less, as a ratio of the means over seeds; the interval is that of the log ratio."""
    return at_most(first, second, metric, 1.0, f"{first} takes less {_name(metric)} than {second} (log ratio)")


def at_most(first: str, second: str, metric: str, share: float, text: str = "") -> Expectation:
    """The first method takes at most a share of what the second takes, as a ratio of the means over seeds."""

    def ratio(compared: SettingsBySeed) -> Interval:
        one, other = (np.log(compared.values(label, metric)) for label in (first, second))
        gaps = [a - b - math.log(share) for a, b in zip(one.tolist(), other.tolist(), strict=False)]
        if gaps and max(gaps) == min(gaps):  # counts that no seed changes
            return Interval(gaps[0], gaps[0], gaps[0])
        return t_interval(gaps) if gaps else NOTHING

    text = text or f"{first} takes at most {share:g} times the {_name(metric)} of {second} (log ratio)"
    return Expectation(text, ratio, lambda found, _: above(_negative(found)))


def steadier(first: str, second: str, metric: str) -> Expectation:
    """The first method varies less over seeds: the log of the ratio of variances, with its F-interval."""

    def ratio(compared: SettingsBySeed) -> Interval:
        one, other = (_values(compared, label, metric) for label in (first, second))
        if min(len(one), len(other)) < 2 or not one.var() or not other.var():
            return NOTHING
        value = float(np.log(other.var(ddof=1) / one.var(ddof=1)))
        f = require("scipy.stats", "an interval of a ratio of variances", "report").f
        ends = [f.ppf(share, len(other) - 1, len(one) - 1) for share in ((1 - LEVEL) / 2, (1 + LEVEL) / 2)]
        return Interval(value, value - math.log(ends[1]), value - math.log(ends[0]))

    return Expectation(
        f"{first} varies less over seeds than {second} in {_name(metric)} (log ratio of variances)", ratio
    )


def detects(label: str, first: str, second: str, figure: str) -> Expectation:
    """One score detects OOD data better than another, for the same predictions."""

    def gap(compared: SettingsBySeed) -> Interval:
        one, other = (compared.values(label, f"{figure} {score}") for score in (first, second))
        return t_interval([a - b for a, b in zip(one, other, strict=True)])

    text = f"{first.replace('_', ' ')} detects OOD data better than {second.replace('_', ' ')} ({figure}, {label})"
    return Expectation(text, gap)


def sensitivity(method: str, axis: str, metric: str) -> Expectation:
    """The largest ensemble of a sweep loses more by regularisation than the smallest, on average over the path.

    A loss is relative to the same number of members without regularisation, paired over seeds.
    """

    def gap(compared: SettingsBySeed) -> Interval:
        labels = _of(compared, method)
        sizes = list(sweep_labels(labels, "size"))
        paths = [list(sweep_labels(labels, axis, size=size).values()) for size in (*sizes[:1], *sizes[1:][-1:])]
        if len(paths) < 2 or min(map(len, paths)) < 2:
            return NOTHING
        small, large = ([_values(compared, label, metric) for label in path] for path in paths)
        losses = [np.mean(values[1:], axis=0) - values[0] for values in (small, large)]
        return t_interval((losses[0] - losses[1]).tolist())

    return Expectation(
        f"{method} with more members loses more {_name(metric)} to {axis}, on average over its path", gap
    )


def over_settings(method: str, axis: str, metric: str) -> Expectation:
    """The largest value of a setting is better than the smallest, on average over all others and seeds, paired."""

    def gap(compared: SettingsBySeed) -> Interval:
        labels = _of(compared, method)
        values = list(sweep_labels(labels, axis))
        if len(values) < 2:
            return NOTHING
        low, high = (f"{axis}={values[i]:g}" for i in (0, -1))
        pairs = [
            (label, " ".join(high if part == low else part for part in label.split()))
            for label in labels
            if low in label.split()
        ]
        gaps = [_values(compared, other, metric) - _values(compared, one, metric) for one, other in pairs]
        return t_interval(np.concatenate(gaps).tolist())

    return Expectation(f"{method} gets better in {_name(metric)} with {axis}, on average over other settings", gap)


def expect(
    *expectations: Expectation,
    metrics: Sequence[str] = ("accuracy", "nll", "ece", "auroc"),
    combine: Callable[[Sequence[str]], str] = all_of,
    control: tuple[str, str] | None = None,
) -> Callable[[Mapping[str, SettingsBySeed], Mapping[str, Any]], ClaimVerdict]:
    """The check of a claim that consists of expectations, on every study of the experiment.

    Args:
        metrics: of the table, beside those of the paper
        combine: the parts' judgements in one; by default all must hold
        control: an ensemble and a single network; where the first is not shown to beat the second, nothing can be said
    """

    def check(found: Mapping[str, SettingsBySeed], published: Mapping[str, Any]) -> ClaimVerdict:
        blind = [where for where, compared in found.items() if control and not positive_control(compared, *control)]
        told = [
            (f"{where}: " if len(found) > 1 else "", one, gap, OPEN if where in blind else judgement)
            for where, compared in found.items()
            for one in expectations
            for gap, judgement in [one.told(compared)]
        ]
        judgements = [judgement for *_, judgement in told]
        said = [count_judgements(judgements, "part")]
        if control:
            shown = "is not" if blind else "is"
            said.append(f"Positive control: {control[0]} {shown} shown to beat {control[1]} in NLL and ECE.")
        said += [f"{where}{one.text}: {show_interval(gap)}, {judgement}." for where, one, gap, judgement in told]
        said.append(_certainty(list(found.values())))
        said += [note for compared in found.values() for note in compared.notes]
        header, rows = _table(found, metrics, published.get("table") or {})
        drawn = [_settings_figure(where, compared, metrics) for where, compared in found.items()]
        pictures = [*(one for one in drawn if one.panels), *_pictures(told)]
        return ClaimVerdict(combine(judgements), said, header, rows, pictures)

    return check


def _pictures(told: Sequence[tuple[str, Expectation, Interval, str]]) -> list[Any]:
    scaled = {}
    for where, one, gap, judgement in told:
        if gap.known and (size := max(map(abs, gap))) > 0:
            scaled[f"{where}{one.text} ({judgement})"[:90]] = Interval(*(end / size for end in gap))
    caption = "Each difference with its 95 % interval over seeds, in units of its own largest end."
    return [intervals_figure("parts", "The parts of the claim", caption, {"difference": scaled})] if scaled else []


def _table(
    found: Mapping[str, SettingsBySeed], metrics: Sequence[str], published: Mapping[str, Mapping[str, str]]
) -> tuple[list[str], list[list[str]]]:
    """Every setting; which study it belongs to and what the paper prints, where there is such a thing."""
    rows = []
    for where, compared in found.items():
        for label in compared.settings:
            ours = [format_interval(_interval(compared, label, metric), metric) for metric in metrics]
            paper = [published.get(label, {}).get(metric, "–") for metric in metrics]
            cells = [cell for pair in zip(ours, paper, strict=True) for cell in pair] if published else ours
            rows.append([*([where] if where else []), label, *cells])
    titles = [quantity(metric).title for metric in metrics]
    heads = [cell for title in titles for cell in (title, "paper")] if published else titles
    return [*(["study"] if all(found) else []), "method", *heads], rows


def _settings_figure(where: str, compared: SettingsBySeed, metrics: Sequence[str]) -> Figure:
    """A panel for each metric that was measured: the mean of every setting with its interval."""
    panels = []
    for metric in metrics:
        shown = quantity(metric)
        found = {str(setting): _interval(compared, setting, metric) for setting in compared.settings}
        if all(math.isfinite(one.value) for one in found.values()):
            found = {setting: Interval(*(end * shown.factor for end in one)) for setting, one in found.items()}
            chart = intervals_figure("", shown.title, "", {shown.title: found}, axis=shown.unit, zero=False)
            panels += [replace(one, heading=shown.title) for one in chart.panels]
    title = f"Every setting, {where}" if where else "Every setting"
    return Figure("settings", title, "Means over seeds with 95 % intervals.", panels, "wide")


def _interval(compared: SettingsBySeed, label: Any, metric: str) -> Interval:
    """The interval, within what the metric can be: no share is below 0 or above 1."""
    try:
        found = compared.interval(label, metric)
    except ValueError:  # it was not measured
        return NOTHING
    low = -math.inf if metric.endswith("log_likelihood") else 0.0
    high = 1.0 if quantity(metric).unit == "%" else math.inf
    return Interval(found.value, max(found.low, low), min(found.high, high)) if found.known else found


def _certainty(compared: Sequence[SettingsBySeed]) -> str:
    seeds = {one.seeds(label) for one in compared for label in one.settings}
    number = f"{min(seeds)}" if len(seeds) == 1 else f"{min(seeds)} to {max(seeds)}"
    return f"Differences are paired over {number} seeds; their 95 % intervals are Student's."


def sweep_labels(labels: Sequence[str], axis: str, **fixed: float) -> dict[float, str]:
    """Labels of a sweep by the value of one of its settings, in its order, with others held.

    >>> sweep_labels(["packed alpha=1", "packed alpha=2"], "alpha")
    {1.0: 'packed alpha=1', 2.0: 'packed alpha=2'}
    """
    found = {}
    for label in labels:
        given = dict(part.split("=", 1) for part in label.split() if "=" in part)
        if axis in given and all(float(given.get(key, "nan")) == value for key, value in fixed.items()):
            found[float(given[axis])] = label
    return dict(sorted(found.items()))


def _of(compared: SettingsBySeed, method: str) -> list[str]:
    return [label for label in compared.settings if label == method or label.startswith(f"{method} ")]


def _values(compared: SettingsBySeed, label: str, metric: str) -> np.ndarray:
    """A metric of every seed, turned so that larger is better."""
    return np.array(compared.values(label, metric)) * (-1 if quantity(metric).better == "lower" else 1)


def _gain(compared: SettingsBySeed, first: str, second: str, metric: str) -> Interval:
    """How much better the first is: positive is better, whichever way the metric goes."""
    gap = compared.difference(first, second, metric)
    return gap if quantity(metric).better != "lower" else _negative(gap)


def _negative(found: Interval) -> Interval:
    return Interval(-found.value, -found.high, -found.low)


def _name(metric: str) -> str:
    title = quantity(metric).title
    return title if not title[1:].islower() else title.lower()
