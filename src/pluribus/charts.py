"""One function per chart of the page: groups of runs in, a figure out; None where the runs lack what it shows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from . import metrics
from .diversity_charts import agreement, diversity, methods_agreement
from .drawing import Axis, Chart, place_labels, short_ticks
from .measures import estimate, outside_score, over_seeds, printed, quantity, with_interval
from .panels import (
    OVERLAID,
    SMALL,
    SMALL_MARGIN,
    Curve,
    Figure,
    Panel,
    Styles,
    column,
    curves,
    legend,
    span,
    values,
    with_columns,
)
from .regression_charts import coverage_curve, error_by_deviation, predicted_and_true
from .results import Group
from .sweeps import sweeps

GRID = np.linspace(0, 1, 61)


def ranking(groups: Sequence[Group], style: Styles) -> Figure | None:
    """Every label with its interval, the best on top."""
    names = [name for name in ("nll", "accuracy", "rmse") if len(values(groups, name)) > 1][:2]
    if not names:
        return None
    panels = [Panel(_forest(groups, style, name), _title(name)) for name in names]
    one = "over seeds" if over_seeds(groups) else "over the test examples, or over seeds where there are several"
    ways = " and ".join(f"{quantity(name).title} ({quantity(name).better} is better)" for name in names)
    caption = (
        f"{ways}: the mean and its 95 % interval {one}, the best on top. The dotted line is the single network. "
        "Differences are paired, so methods may differ clearly although their intervals overlap: the words above say."
    )
    rows = [[group.label, *(with_interval(estimate(group, name), name) for name in names)] for group in groups]
    header = ["Method", *(_title(name) for name in names)]
    return Figure("ranking", "Who is best, and how sure is that?", caption, panels, header=header, rows=rows)


def trade_off(groups: Sequence[Group], style: Styles) -> Figure | None:
    """Quality against cost, with the parameters as areas: Figure 1 of Packed-Ensembles (Laurent et al. 2023)."""
    first = "accuracy" if values(groups, "accuracy") else "rmse"
    pairs = [pair for pair in ((first, "latency"), ("nll", "mult_adds")) if _both(groups, *pair)]
    if not pairs:
        return None
    panels = [Panel(_bubbles(groups, style, *pair)) for pair in pairs]
    names = ["parameters", "mult_adds", "latency", first, "nll"]
    rows = [[group.label, *(printed(estimate(group, name).value, name) for name in names)] for group in groups]
    rows_timed = groups[0].record["cost"].get("latency_rows")
    timed = f" Latency is the time of one batch of {rows_timed} rows." if rows_timed else ""
    corner = "top" if first == "accuracy" else "bottom"
    caption = (
        f"The area of a circle is the number of parameters. Left: good and fast is at the {corner} left. Right: good "
        f"and cheap is at the bottom left. Bars are intervals.{timed}"
    )
    header = ["Method", *(_title(name) for name in names)]
    entries = legend([group.label for group in groups], style)
    return Figure("trade-off", "What quality costs", caption, panels, "wide", entries, header, rows)


def reliability(groups: Sequence[Group], style: Styles) -> Figure | None:
    """Accuracy against confidence in 15 bins, over all seeds together."""
    found = with_columns(groups, "test/confidence", "test/label", "test/target")
    if not found:
        return None
    panels, rows = [], []
    for group, runs in found:
        confidence = np.concatenate([run[0] for run in runs])
        correct = np.concatenate([run[1] == run[2] for run in runs])
        bins = metrics.reliability(confidence, correct)
        chart = _small(Axis(0, 1, room=0), Axis(0, 1, room=0))
        chart.axes("confidence")
        for i, count in enumerate(bins.examples.tolist()):
            if not count:
                continue
            edges = (float(bins.edges[i]), float(bins.edges[i + 1]))
            sure, right = float(bins.confidence[i]), float(bins.accuracy[i])
            hint = f"{int(count)} examples: confidence {sure:.2f}, accuracy {right:.2f}"
            chart.box(edges, (0, right), style[group.label], "bar", hint)
            chart.box(edges, (min(sure, right), max(sure, right)), None, "gap", hint)
        chart.line([(0, 0), (1, 1)], None, "line diagonal")
        ece, gap = estimate(group, "ece"), float(confidence.mean() - correct.mean())
        lean = "too sure" if gap > 0.005 else "too modest" if gap < -0.005 else "about right on average"
        panels.append(
            Panel(chart.svg(f"{group.label}: ECE {printed(ece.value, 'ece')}, {lean}"), group.label, style[group.label])
        )
        rows.append([group.label, with_interval(ece, "ece"), f"{confidence.mean():.3f}", f"{correct.mean():.3f}", lean])
    caption = (
        "Share of right answers (height) at each confidence. On the diagonal the network is as often right as it says; "
        "the hatched part is the gap. Below the diagonal it is too sure."
    )
    header = ["Method", "ECE", "Mean confidence", "Accuracy", "On average"]
    return Figure("reliability", "Is it as often right as it says?", caption, panels, "small", header=header, rows=rows)


def shift_accuracy(groups: Sequence[Group], style: Styles) -> Figure | None:
    """Accuracy against the severity of corruptions."""
    return _shift(groups, style, "accuracy", "Accuracy under shift")


def shift_ece(groups: Sequence[Group], style: Styles) -> Figure | None:
    """ECE against the severity of corruptions."""
    return _shift(groups, style, "ece", "Calibration under shift")


def shift_rmse(groups: Sequence[Group], style: Styles) -> Figure | None:
    """The error of regression against the severity of shifts."""
    return _shift(groups, style, "rmse", "Error under shift")


def outside_histograms(groups: Sequence[Group], style: Styles) -> Figure | None:
    """Scores of test data and of outside data."""
    panels, rows, scores = [], [], set()
    for group in groups:
        score = outside_score(group.runs[0])
        scores.add(score)
        for name in group.record.get("outside") or {}:
            parts = _inside_outside(group, name, score)
            if not parts:
                continue
            inner, outer = (np.concatenate(part) for part in zip(*parts, strict=True))
            edges = np.linspace(*span([*np.quantile(inner, [0, 1]), *np.quantile(outer, [0, 1])]), 21)
            shares = [np.histogram(part, edges)[0] / len(part) for part in (inner, outer)]
            chart = _small(Axis(edges[0], edges[-1], room=0, ticks=4), Axis(0, max(map(np.max, shares)), room=0.02))
            chart.axes(score.replace("_", " "))
            for kind, share in zip(("inside", "outside"), shares, strict=True):
                for i, part in enumerate(share):
                    if part:
                        chart.box(
                            (edges[i], edges[i + 1]), (0, float(part)), None, f"bar {kind}", f"{kind}: {part:.1%}"
                        )
            medians = [float(np.median(part)) for part in (inner, outer)]
            summary = f"{group.label}: median score {medians[0]:.3g} on test data, {medians[1]:.3g} on {name}"
            panels.append(Panel(chart.svg(summary), _beside(group.label, name, groups), style[group.label]))
            rows.append([group.label, name, *(f"{median:.4g}" for median in medians)])
    caption = (
        "How uncertain the method is about test data (filled) and about outside data (outlined, hatched), as shares of "
        "each. The less they overlap, the better outside data are noticed. Each panel has its own scale."
    )
    header = ["Method", "Outside data", "Median, test", "Median, outside"]
    figure = Figure("histograms", "Does it notice outside data?", caption, panels, "small", header=header, rows=rows)
    return figure if panels else None


def roc(groups: Sequence[Group], style: Styles) -> Figure | None:
    """Outside data found against test data refused."""
    panels, layout, rows = [], "wide", []
    labels: dict[str, Curve] = {}
    for name in sorted({name for group in groups for name in group.record.get("outside") or {}}):
        found, areas = {}, {}
        for group in groups:
            parts = _inside_outside(group, name, outside_score(group.runs[0]))
            if parts:
                found[group.label] = GRID, np.mean([_roc(*part) for part in parts], axis=0)
                areas[group.label] = float(np.mean([metrics.auroc(*part) for part in parts]))
        if not found:
            continue

        def summary(label: str, name: str = name, areas: dict[str, float] = areas) -> str:
            return f"{label} on {name}: AUROC {areas[label]:.3f}"

        titles = ("share of test data refused", f"share of {name} refused")
        axes = Axis(0, 1, room=0.02), Axis(0, 1, room=0.02)
        more, layout = curves(found, style, titles, axes, summary, diagonal=True)
        panels += [Panel(panel.svg, _beside(panel.heading, name, groups), panel.style) for panel in more]
        labels |= found
        rows += _outside_rows(groups, name)
    if not panels:
        return None
    caption = (
        "Refuse whatever is more uncertain than a limit: how much of the outside data is refused, against how much of "
        "the test data. The nearer to the top left, the better; the diagonal is chance."
    )
    entries = legend(labels, style) if layout == "wide" else []
    header = ["Method", "Outside data", "Score", "AUROC", "AUPR", "FPR95"]
    return Figure("roc", "What refusing outside data costs", caption, panels, layout, entries, header, rows)


def risk_coverage(groups: Sequence[Group], style: Styles) -> Figure | None:
    """The error of what is kept when the least certain are refused."""
    found = {}
    for group, runs in with_columns(groups, "test/confidence", "test/label", "test/target"):
        risks = []
        for confidence, label, target in runs:
            coverage, risk = metrics.risk_coverage(1 - confidence, (label != target).astype(float))
            risks.append(np.interp(GRID[1:], coverage.numpy(), risk.numpy()))
        found[group.label] = GRID[1:], np.mean(risks, axis=0)
    if not found:
        return None

    def at(label: str, coverage: float) -> str:
        return f"{100 * np.interp(coverage, *found[label]):.2f}"

    def summary(label: str) -> str:
        return f"{label}: error {at(label, 0.5)} % of the surest half, {at(label, 1)} % of all"

    top = max(float(y.max()) for _, y in found.values())
    titles = ("share that is answered", "error of the answers")
    panels, layout = curves(found, style, titles, (Axis(0, 1, room=0.02), Axis(0, top or 1, room=0.02)), summary)
    caption = (
        "Answer only what is surest: the error among the answers, against the share that is answered. Lower is better."
    )
    rows = [[label, *(at(label, share) for share in (0.5, 0.8, 0.9, 0.95, 1))] for label in found]
    header = ["Method", *(f"Error %, {share} % answered" for share in (50, 80, 90, 95, 100))]
    entries = legend(found, style) if layout == "wide" else []
    return Figure("risk-coverage", "What abstaining buys", caption, panels, layout, entries, header, rows)


def training_curves(groups: Sequence[Group], style: Styles) -> Figure | None:
    """What was measured after each epoch, mean over seeds."""
    judged = ("validation_accuracy", "validation_nll", "validation_loss", "validation_rmse")
    keys = [next((key for key in judged if any(_history(group, key) for group in groups)), ""), "loss"]
    panels, layout = [], "wide"
    labels: dict[str, Curve] = {}
    for key in keys if len(groups) <= OVERLAID else [keys[0] or "loss"]:
        found = {group.label: curve for group in groups if (curve := _history(group, key))}
        if not found:
            continue

        def summary(label: str, key: str = key, found: dict = found) -> str:
            return f"{label}: {key.replace('_', ' ')} {found[label][1][-1]:.4g} at the end"

        x, y = (
            span(v for curve in found.values() for v in curve[0]),
            span(v for curve in found.values() for v in curve[1]),
        )
        more, layout = curves(found, style, ("epoch", key.replace("_", " ")), (Axis(*x, whole=True), Axis(*y)), summary)
        panels += [Panel(p.svg, f"{p.heading} · {key.replace('_', ' ')}" if p.heading else "", p.style) for p in more]
        labels |= found
    if not panels:
        return None
    caption = (
        "After each epoch, mean over seeds. Losses of methods are not comparable with each other: a method that trains "
        "several members may add up theirs."
    )
    entries = legend(labels, style) if layout == "wide" else []
    return Figure("training", "Training", caption, panels, layout, entries)


# ---------------------------------------------------------------- helpers


def _title(name: str) -> str:
    kind = quantity(name)
    return f"{kind.title}, {kind.unit}" if kind.unit else kind.title


def _both(groups: Sequence[Group], first: str, second: str) -> bool:
    return bool(values(groups, first).keys() & values(groups, second).keys())


def _bubbles(groups: Sequence[Group], style: Styles, name: str, price: str) -> str:
    good, paid = values(groups, name), values(groups, price)
    shown = [group for group in groups if group.label in good and group.label in paid]
    factors = quantity(price).factor, quantity(name).factor
    x = span(paid[group.label] * factors[0] for group in shown)
    ends = [end for group in shown for end in estimate(group, name) if math.isfinite(end)]
    log = x[0] > 0 and x[1] / x[0] > 5
    chart = Chart(Axis(*x, log=log, room=0.14), Axis(*span(end * factors[1] for end in ends), room=0.1))
    count = x[1] >= 1e4
    chart.axes(_title(price), _title(name), x_text=_large if count else short_ticks if log else None)
    size = values(groups, "parameters")
    most = max(size.values(), default=1.0)
    places = []
    for group in shown:
        number = style[group.label]
        px, interval = paid[group.label] * factors[0], estimate(group, name)
        if interval.known:
            chart.line([(px, interval.low * factors[1]), (px, interval.high * factors[1])], number, "whisker thin")
        radius = max(3.0, 20 * math.sqrt(size.get(group.label, most) / most))
        hint = f"{group.label}: {printed(good[group.label], name)}, {printed(paid[group.label], price)}"
        chart.circle(px, good[group.label] * factors[1], number, radius, hint)
        chart.mark(px, good[group.label] * factors[1], number, hint, 3.5)
        places.append((*chart.at(px, good[group.label] * factors[1]), min(radius, 9), group.label))
    place_labels(chart, places)
    unit = f" {quantity(price).unit}" if quantity(price).unit else ""
    parts = [
        f"{g.label}: {with_interval(estimate(g, name), name)} at {printed(paid[g.label], price)}{unit}" for g in shown
    ]
    return chart.svg(f"{_title(name)} against {_title(price)}. {'; '.join(parts)}")


def _forest(groups: Sequence[Group], style: Styles, name: str) -> str:
    kind, found = quantity(name), values(groups, name)
    shown = [group for group in groups if group.label in found]
    shown.sort(key=lambda group: found[group.label], reverse=kind.better == "higher")
    ends = [end * kind.factor for group in shown for end in estimate(group, name) if math.isfinite(end)]
    size, margin = (420, 44 + 24 * len(shown)), (138, 14, 6, 32)
    chart = Chart(Axis(*span(ends)), Axis(0, len(shown), room=0), size, margin)
    chart.y.ticks = []
    chart.axes()
    for group in shown:
        if group.record["method"] == "single":
            place = found[group.label] * kind.factor
            chart.line([(place, 0), (place, len(shown))], None, "line diagonal")
    for row, group in enumerate(shown):
        y, value = len(shown) - row - 0.5, estimate(group, name)
        if value.known:
            chart.line([(value.low * kind.factor, y), (value.high * kind.factor, y)], style[group.label], "whisker")
        hint = f"{group.label}: {with_interval(value, name)}"
        chart.mark(value.value * kind.factor, y, style[group.label], hint)
        label = group.label if len(group.label) <= 19 else f"{group.label[:18]}…"
        chart.text(margin[0] - 8, chart.at(0, y)[1] + 4.5, label, "end", "name")
    parts = "; ".join(f"{group.label} {with_interval(estimate(group, name), name)}" for group in shown)
    return chart.svg(f"{kind.title}, the best first: {parts}")


def _large(value: float) -> str:
    for step, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= step:
            return f"{value / step:g} {letter}"
    return f"{value:g}"


def _small(x: Axis, y: Axis) -> Chart:
    return Chart(x, y, size=SMALL, margin=SMALL_MARGIN, font=12)


def _shift(groups: Sequence[Group], style: Styles, name: str, title: str) -> Figure | None:
    found = {group.label: boxes for group in groups if (boxes := _severities(group, name))}
    if not found:
        return None
    numbers = [v for boxes in found.values() for box in boxes.values() for v in box]
    clean = values(groups, name)
    y = Axis(*span([*numbers, *clean.values()]))
    last = max(severity for boxes in found.values() for severity in boxes)
    panels, rows = [], []
    for label, boxes in found.items():
        chart = _small(Axis(-0.5, last + 0.5, room=0), y)
        chart.axes("severity", x_labels=[(severity, str(severity)) for severity in range(last + 1)])
        chart.line([(s, float(np.median(box))) for s, box in next(iter(found.values())).items()], None, "line faint")
        for severity, box in boxes.items():
            low, first, middle, third, high = np.quantile(box, [0, 0.25, 0.5, 0.75, 1])
            hint = f"severity {severity}: median {middle:.3f}, from {low:.3f} to {high:.3f}"
            chart.line([(severity, low), (severity, high)], style[label], "whisker")
            chart.box((severity - 0.3, severity + 0.3), (first, third), style[label], "bar box", hint)
            chart.line([(severity - 0.3, middle), (severity + 0.3, middle)], style[label], "whisker median")
        if label in clean:
            chart.mark(0, clean[label], style[label], f"test data: {clean[label]:.3f}", 4)
        medians = [float(np.median(box)) for box in boxes.values()]
        panels.append(
            Panel(
                chart.svg(f"{label}: median {name} {medians[0]:.3f} at severity 1, {medians[-1]:.3f} at {last}"),
                label,
                style[label],
            )
        )
        rows.append([label, *(f"{median:.4f}" for median in (clean.get(label, math.nan), *medians))])
    corruptions = len({key for group in groups for key in group.record.get("shift") or {}})
    caption = (
        f"{quantity(name).title} over {corruptions} corruptions: box from the lower to the upper quartile with the "
        "median, line from the least to the most; 0 is the test data as they are. The grey line is "
        f"{next(iter(found))}."
    )
    header = ["Method", "Test data", *(f"Median at {severity}" for severity in next(iter(found.values())))]
    return Figure(f"shift-{name}", title, caption, panels, "small", header=header, rows=rows)


def _severities(group: Group, name: str) -> dict[int, np.ndarray]:
    """For each severity the mean over seeds of every corruption."""
    found: dict[int, dict[str, list[float]]] = {}
    for run in group.runs:
        for corruption, rows in (run.record.get("shift") or {}).items():
            for row in rows:
                if isinstance(row.get(name), (int, float)) and math.isfinite(row[name]):
                    found.setdefault(int(row["severity"]), {}).setdefault(corruption, []).append(row[name])
    return {s: np.array([np.mean(v) for v in found[s].values()]) for s in sorted(found) if s > 0}


def _inside_outside(group: Group, name: str, score: str) -> list[tuple[np.ndarray, np.ndarray]]:
    pairs = [(column(run, f"inside/{score}"), column(run, f"outside/{name}/{score}")) for run in group.runs]
    return [(inner, outer) for inner, outer in pairs if inner is not None and outer is not None]


def _beside(label: str, name: str, groups: Sequence[Group]) -> str:
    """The heading of a panel: the outside set is named where there are several."""
    several = len({key for group in groups for key in group.record.get("outside") or {}}) > 1
    return " · ".join(part for part in (label, name if several or not label else "") if part)


def _outside_rows(groups: Sequence[Group], name: str) -> list[list[str]]:
    rows = []
    for group in groups:
        for score in (group.record.get("outside") or {}).get(name, {}):
            cells = []
            for kind in ("auroc", "aupr", "fpr95"):
                found = [
                    run.record["outside"][name][score].get(kind, math.nan)
                    for run in group.runs
                    if name in (run.record.get("outside") or {})
                ]
                cells.append(printed(float(np.mean(found)), kind))
            rows.append([group.label, name, score.replace("_", " "), *cells])
    return rows


def _roc(inner: np.ndarray, outer: np.ndarray) -> np.ndarray:
    """The share of outside data above a limit, at shares of inside data above it; ties by straight lines."""
    limits = np.unique(np.concatenate([inner, outer]))[::-1]
    above = [1 - np.searchsorted(np.sort(part), limits, side="left") / len(part) for part in (inner, outer)]
    return np.interp(GRID, np.concatenate([[0.0], above[0]]), np.concatenate([[0.0], above[1]]))


def _history(group: Group, key: str) -> tuple[np.ndarray, np.ndarray] | None:
    found: dict[float, list[float]] = {}
    for run in group.runs:
        for number, row in enumerate(run.record.get("history") or []):
            if isinstance(row.get(key), (int, float)) and math.isfinite(row[key]):
                found.setdefault(row.get("epoch", number), []).append(row[key])
    if not found:
        return None
    epochs = sorted(found)
    return np.array(epochs, dtype=float) + 1, np.array([np.mean(found[epoch]) for epoch in epochs])


@dataclass(frozen=True)
class Kind:
    """A row of CHARTS: the function, the task it is for ("any": both) and what is said where it is left out."""

    function: Callable[[Sequence[Group], Styles], Figure | None]
    task: str
    absent: str


_NO_SHIFT = "No shifted data were given, so there is nothing about corruptions."
_NO_OUTSIDE = "No outside data were given, so there is nothing about noticing them."
_NO_COLUMNS = "The runs stored no finite values for each example, so charts made from them are left out."
CHARTS: dict[str, Kind] = {
    "ranking": Kind(ranking, "any", ""),
    "trade_off": Kind(trade_off, "any", "No run has both a quality and a cost, so their trade-off is left out."),
    "sweeps": Kind(sweeps, "any", ""),
    "reliability": Kind(reliability, "classification", _NO_COLUMNS),
    "predicted_and_true": Kind(predicted_and_true, "regression", _NO_COLUMNS),
    "coverage_curve": Kind(
        coverage_curve, "regression", "No run has variances, so the check of intervals is left out."
    ),
    "error_by_deviation": Kind(error_by_deviation, "regression", ""),
    "shift_accuracy": Kind(shift_accuracy, "classification", _NO_SHIFT),
    "shift_ece": Kind(shift_ece, "classification", _NO_SHIFT),
    "shift_rmse": Kind(shift_rmse, "regression", ""),
    "outside_histograms": Kind(outside_histograms, "any", _NO_OUTSIDE),
    "roc": Kind(roc, "any", _NO_OUTSIDE),
    "risk_coverage": Kind(risk_coverage, "classification", _NO_COLUMNS),
    "diversity": Kind(diversity, "classification", "No method has several members with stored labels: no diversity."),
    "agreement": Kind(agreement, "classification", ""),
    "methods_agreement": Kind(methods_agreement, "classification", ""),
    "training_curves": Kind(training_curves, "any", "The runs stored no training curves."),
}
