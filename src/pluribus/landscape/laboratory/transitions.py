"""Settings of a method, trained anew and judged alike, as figures with intervals: what several questions share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...report.figure import Figure, Panel, Styles, finite_range, legend, room_for_ticks
from ...report.svg import Axis, Chart
from ...uncertainty.resampling import Interval
from ..analyses.trained_settings import Measured
from ..material import Material

TITLES = {"accuracy": "accuracy", "nll": "NLL", "ece": "ECE", "auroc msp": "AUROC, outside",
          "disagreement_by_error": "disagreement / error"}  # fmt: skip

LINES = {"deep": "independent networks", "single": "one network", "mc_dropout": "MC-Dropout"}


def measure_anew(material: Material, measure: Any, what: str, **settings: Any) -> Measured | None:
    """What an analysis finds with the network and data of the runs, for as many seeds as are trained anew."""
    training = material.training
    if training is None or material.retrained < 2:
        return None
    epochs = max(training.epochs // 2, 1)
    material.say(f"{what}: {material.retrained} seeds of {epochs} epochs")
    how = {key: getattr(training, key) for key in ("lr", "batch_size", "optimizer", "schedule")}
    found: Measured = measure(
        training.build(), material.train, material.test, outside=material.outside, seeds=material.retrained,
        progress=material.say, epochs=epochs, **how, **settings,
    )  # fmt: skip
    return found


def transition_figure(
    anchor: str, title: str, found: Measured, names: Sequence[str], at: Sequence[float], axis: str,
    ends: Sequence[str], about: str, method: str, titles: Mapping[str, str] = TITLES,
) -> Figure:  # fmt: skip
    """A panel for each figure: settings of a method with intervals, and the methods at both ends as lines."""
    styles = {name: number for number, name in enumerate([method, *(LINES[end] for end in ends)], 2)}
    known = {name: words for name, words in titles.items() if name in found.figures}
    panels = [Panel(_chart(found, name, words, names, at, axis, ends, styles)) for name, words in known.items()]
    seeds = len(found.values(names[0], "nll"))
    caption = f"{about} Means over {seeds} seeds; vertical lines are 95 % intervals."
    rows = [
        [str(setting), *(interval_text(found.interval(setting, name)) for name in known),
         f"{found.interval(setting, 'parameters').value:,.0f}"]
        for setting in found.settings
    ]  # fmt: skip
    header = ["Setting", *known.values(), "parameters"]
    return Figure(anchor, title, caption, panels, "wide", legend(styles, styles) if ends else [], header, rows)


def _chart(
    found: Measured, figure: str, title: str, names: Sequence[str], at: Sequence[float], axis: str,
    ends: Sequence[str], styles: Styles,
) -> str:  # fmt: skip
    levels = {LINES[end]: found.interval(end, figure) for end in ends}
    return interval_chart({next(iter(styles)): found.curve(figure, names)}, at, axis, title, styles, levels)


def interval_chart(
    curves: Mapping[str, np.ndarray], at: Sequence[float], axis: str, title: str, styles: Styles,
    levels: Mapping[str, Interval] | None = None, labels: Sequence[tuple[float, str]] | None = None,
) -> str:  # fmt: skip
    """Means with their intervals against a setting, and levels as lines across.

    Args:
        curves: by label, (settings, 3): mean, low and high
        at: where each setting stands
        labels: what stands at the axis, where it is not the numbers
    """
    levels, every = levels or {}, np.concatenate(list(curves.values())).flatten().tolist()
    y = Axis(*finite_range([*every, *(value for one in levels.values() for value in one)]))
    chart = Chart(Axis(at[0], at[-1], log=at[-1] > 4 * at[0] > 0, room=0.08), y, margin=(room_for_ticks(y), 14, 14, 44))
    chart.axes(axis, title, x_labels=labels)
    for name, level in levels.items():
        chart.line([(at[0], level.value), (at[-1], level.value)], styles[name])
        chart.mark(at[-1], level.value, styles[name], f"{name}: {interval_text(level)}", 3.5)
    words = dict(labels or [])
    for name, rows in curves.items():
        chart.line(zip(at, rows[:, 0], strict=True), styles[name])
        for x, (value, low, high) in zip(at, rows, strict=True):
            chart.line([(x, low), (x, high)], styles[name], "whisker")
            place = f"{axis} = {words.get(x, f'{x:g}')}"
            chart.mark(x, value, styles[name], f"{name}, {place}: {value:.4g} [{low:.4g}, {high:.4g}]")
    means = {name: ", ".join(f"{value:.4g}" for value in rows[:, 0]) for name, rows in curves.items()}
    told = "; ".join(f"{name}: {values}" for name, values in means.items())
    return chart.svg(f"{title} against {axis}. {told}")


def interval_text(found: Any) -> str:
    """The mean and the ends of its interval: "0.02 [0.01, 0.03]"."""
    return f"{found.value:.4g} [{found.low:.4g}, {found.high:.4g}]"
