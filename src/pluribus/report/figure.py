"""What every chart of the page shares: figures and their panels, one style for each label, curves in one panel."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..results.quantities import estimate
from ..results.store import Group, Result
from .svg import CHARACTER, HUES, Axis, Chart, tick_text

Styles = dict[str, int]
Curve = tuple[np.ndarray, np.ndarray]
SMALL = (220, 190)
SMALL_MARGIN = (42, 13, 8, 40)


@dataclass(frozen=True)
class Panel:
    """One picture of a figure; `style` is that of the label in its heading."""

    svg: str
    heading: str = ""
    style: int | None = None


@dataclass(frozen=True)
class Figure:
    """A figure of the page: panels, how to read them, and the same numbers as a table.

    Args:
        layout: "wide" panels stand one or two in a row, "small" ones as many as fit
        legend: (style, name) of the series; those with a panel of their own need none
        key: what colours mean where they are not those of series
    """

    name: str
    title: str
    caption: str
    panels: list[Panel] = field(default_factory=list)
    layout: str = "wide"
    legend: list[tuple[int, str]] = field(default_factory=list)
    header: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    key: list[tuple[int, str]] = field(default_factory=list)


def number_styles(groups: Iterable[Group], recommended: str = "", best: str = "") -> Styles:
    """The style of each label, the same in every chart, by its part in the advice: colours are for those that matter.

    0 is the single network, 1 what is recommended, 3 what is best; all others are grey, and differ by their markers.
    """
    found: Styles = {}
    others = itertools.count(HUES, HUES)
    for group in groups:
        given = {best: 3, recommended: 1}.get(group.label, 0 if group.is_baseline else None)
        if group.label not in found:
            found[group.label] = next(others) if given is None or given in found.values() else given
    return found


def column(run: Result, name: str) -> np.ndarray | None:
    """A stored column, or None where it is missing, empty or not finite."""
    found = run.columns.get(name)
    if found is None or not found.size or not np.isfinite(found).all():
        return None
    return found


def columns(run: Result, *names: str) -> list[np.ndarray]:
    """Stored columns, or nothing unless all are there with one length."""
    found = [array for name in names if (array := column(run, name)) is not None]
    return found if len(found) == len(names) and len({array.shape[-1] for array in found}) == 1 else []


def columns_by_group(groups: Sequence[Group], *names: str) -> list[tuple[Group, list[list[np.ndarray]]]]:
    """Groups that have these columns, with those of each of their runs."""
    found = [(group, [given for run in group.runs if (given := columns(run, *names))]) for group in groups]
    return [(group, runs) for group, runs in found if runs]


def values(groups: Sequence[Group], name: str) -> dict[str, float]:
    """The mean of a quantity by label, where it is finite."""
    found = {group.label: estimate(group, name).value for group in groups}
    return {label: number for label, number in found.items() if math.isfinite(number)}


def mean_curve(found: Mapping[float, Sequence[float]]) -> Curve:
    """The mean of the values at each place, from the first place on."""
    places = sorted(found)
    return np.array(places, dtype=float), np.array([np.mean(found[place]) for place in places])


def curve_panel(
    found: dict[str, Curve],
    styles: Styles,
    titles: tuple[str, str],
    axes: tuple[Axis, Axis],
    summary: Callable[[str], str] | None = None,
    diagonal: bool = False,
    heading: str = "",
) -> Panel:
    """Curves in one panel; `summary` says what one of them shows, by default where it begins and ends."""

    def describe(label: str) -> str:
        points = [f"{y:.3g} at {x:.3g}" for x, y in np.stack(found[label], 1)[[0, -1]]]
        return f"{label}: {titles[1]} {' to '.join(points)}"

    said = [(summary or describe)(label) for label in found]
    chart = Chart(*axes, margin=(room_for_ticks(axes[1]), 14, 14, 44))
    if diagonal:
        ends = [(end, end) for end in (max(chart.x.low, chart.y.low), min(chart.x.high, chart.y.high))]
        chart.line(ends, None, "line diagonal")
    chart.axes(*titles)
    for label in sorted(found, key=styles.__getitem__, reverse=True):  # the first styles on top
        x, y = found[label]
        chart.curve(zip(x, y, strict=True), styles[label], label, titles)
        for i in _marker_indices(len(x)):
            chart.mark(x[i], y[i], styles[label], "", 3.5)  # the curve tells its values
    return Panel(chart.svg(f"{titles[1]} against {titles[0]}. {'; '.join(said)}"), heading)


def room_for_ticks(axis: Axis) -> int:
    """The margin that fits the title of a vertical axis next to its tick labels."""
    text = tick_text(axis.ticks)
    longest = max((len(text(tick)) for tick in axis.ticks), default=0)
    return max(54, round(CHARACTER * 12 * longest + 30))


def _marker_indices(points: int) -> Iterable[int]:
    """Where a curve gets markers: everywhere when it has few points, else at six places."""
    return range(points) if points <= 12 else np.linspace(0, points - 1, 8).astype(int)[1:-1].tolist()


def legend(labels: Iterable[str], styles: Styles) -> list[tuple[int, str]]:
    """Entries of a legend in the order of the labels."""
    return [(styles[label], label) for label in labels]


def finite_range(numbers: Iterable[float]) -> tuple[float, float]:
    """The least and the largest finite number; (0, 1) where there is none."""
    finite = [float(number) for number in numbers if math.isfinite(number)]
    return (min(finite), max(finite)) if finite else (0.0, 1.0)


GRID = np.linspace(0, 1, 61)


def small_chart(x: Axis, y: Axis) -> Chart:
    """A small chart, one of several in a row."""
    return Chart(x, y, size=SMALL, margin=SMALL_MARGIN, font=12)


# ---------------------------------------------------------------- what figures of matplotlib draw too


def compute_roc(inside: np.ndarray, outside: np.ndarray) -> Curve:
    """The shares of inside and of outside data at or above each score that occurs, from the highest on: 0 to 1.

    Inside and outside examples with the same score are one step, which a straight line draws.

    >>> compute_roc(np.array([0.1, 0.2]), np.array([0.2, 0.9]))
    (array([0. , 0. , 0.5, 1. ]), array([0. , 0.5, 1. , 1. ]))
    """
    scores = np.unique(np.concatenate([inside, outside]))[::-1]
    false, true = (1 - np.searchsorted(np.sort(part), scores, side="left") / len(part) for part in (inside, outside))
    return np.concatenate([[0.0], false]), np.concatenate([[0.0], true])


def compute_histograms(parts: list[np.ndarray], bins: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """The edges of bins that hold all parts, and the share of each part in every bin.

    >>> compute_histograms([np.array([0.0, 1.0]), np.array([1.0])], bins=2)
    (array([0. , 0.5, 1. ]), [array([0.5, 0.5]), array([0., 1.])])
    """
    edges = np.histogram_bin_edges(np.concatenate(parts), bins)
    return edges, [np.histogram(part, edges)[0] / len(part) for part in parts]


def divide_by_error(disagreement: np.ndarray, accuracy: np.ndarray) -> np.ndarray:
    """The height of the diversity-accuracy plane of Fort et al. (2019), Figure 6; NaN where there is no error.

    >>> divide_by_error(np.array([0.1, 0.1]), np.array([0.8, 1.0]))
    array([0.5, nan])
    """
    error = 1 - np.asarray(accuracy, float)
    return np.divide(disagreement, error, out=np.full_like(error, np.nan), where=error > 0)
