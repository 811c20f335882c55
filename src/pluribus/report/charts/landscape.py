"""Charts of weight space and function space: arrays in, SVG out. They know nothing of networks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import Any

import numpy as np

from ..contours import contour_segments
from ..figure import Styles, finite_range
from ..svg import CHARACTER, Axis, Chart, tick_text

PLANE = 420  # width of a picture of a plane
LEVELS = 9  # contour lines at most

Place = tuple[float, float]


def surface_chart(
    u: np.ndarray,
    v: np.ndarray,
    values: np.ndarray,
    name: str,
    *,
    others: Mapping[str, np.ndarray] | None = None,
    paths: Mapping[str, np.ndarray] | None = None,
    points: Mapping[str, tuple[float, float]] | None = None,
    styles: Styles | None = None,
    titles: tuple[str, str] = ("", ""),
    decades: bool = False,
) -> str:
    """A function on a plane: shades, contour lines with their values, and every value when the pointer rests on it.

    Args:
        values: values[i, j] is at (u[i], v[j])
        others: further values at the same places, told with the first
        paths: trajectories on the plane, (points, 2) each, first to last
        points: networks on the plane, by name
        decades: shades and lines by decades, where the values span more than one

    >>> chart = surface_chart(np.arange(3.0), np.arange(2.0), np.ones((3, 2)), "loss")
    >>> chart.count("loss 1")
    6
    """
    chart, scale = _plane(u, v).axes(*titles), height_scale(values, decades)
    _patches(chart, u, v, {name: values, **(others or {})}, scale)
    _contours(chart, u, v, values, scale)
    for label, path in (paths or {}).items():
        _path(chart, path, (styles or {})[label], label)
    for label, (x, y) in (points or {}).items():
        chart.mark(x, y, (styles or {})[label], f"{label}: ({x:.3g}, {y:.3g})", 6)
    low, high = finite_range(np.asarray(values, float).flatten())
    return chart.svg(f"{name} on a plane, from {low:.3g} to {high:.3g}")


def heat_map(
    matrix: np.ndarray,
    parts: Sequence[tuple[str, Sequence[str]]],
    name: str,
    *,
    ends: tuple[float, float] | None = None,
    style: int = 1,
    size: int = 420,
) -> str:
    """A matrix between networks as shades, divided where one run ends and the next begins.

    Args:
        parts: the runs, each with the names of its networks, in the order of the rows
        ends: the values of the palest and of the darkest shade; by default the least and the largest
    """
    n, names = len(matrix), [f"{run}, {one}" for run, own in parts for one in own]
    low, high = ends or finite_range(np.asarray(matrix, float).flatten())
    chart = Chart(Axis(0, n, room=0), Axis(0, n, room=0), (size, size), (34, 8, 8, 34))
    for i in range(n):
        for j in range(n):
            value = float(matrix[i, j])
            hint = f"{names[i]} and {names[j]}: {name} {value:.3f}"
            _patch(chart, (j, j + 1), (n - i - 1, n - i), style, (value - low) / ((high - low) or 1), hint)
            if n <= 8:
                x, y = chart.at(j + 0.5, n - i - 0.5)
                chart.text(x, y + 4, f"{value:.2f}", "middle", "cell-text")
    edges = np.cumsum([0, *(len(own) for _, own in parts)])
    for edge in edges[1:-1]:
        chart.line([(edge, 0), (edge, n)], None, "divide")
        chart.line([(0, n - edge), (n, n - edge)], None, "divide")
    for (run, _), (first, last) in zip(parts, pairwise(edges), strict=True):
        middle = float(first + last) / 2
        x, y = chart.at(middle, 0)[0], chart.at(0, n - middle)[1]
        chart.text(x, chart.size[1] - 14, run, "middle", "name")
        chart.text(14, y, run, "middle", "name", f' transform="rotate(-90 14 {y:.1f})"')
    return chart.svg(f"{name} between {n} networks, from {low:.3g} to {high:.3g}")


def scatter_chart(runs: Mapping[str, np.ndarray], styles: Styles, hints: Mapping[str, Sequence[str]]) -> str:
    """Points in two dimensions, one colour for each run, joined from first to last; the last is the larger one."""
    places = np.concatenate(list(runs.values()))
    chart = Chart(
        Axis(*finite_range(places[:, 0])), Axis(*finite_range(places[:, 1])), (PLANE, PLANE), (14, 14, 14, 14)
    )
    for label, path in runs.items():
        chart.line(path.tolist(), styles[label], "line thin")
        for (x, y), hint in zip(path.tolist(), hints[label], strict=True):
            chart.mark(x, y, styles[label], f"{label}: {hint}", 3)
        chart.mark(float(path[-1, 0]), float(path[-1, 1]), styles[label], f"{label}: {hints[label][-1]}", 6)
    return chart.svg(f"{len(places)} networks of {len(runs)} runs in two dimensions")


def diversity_chart(
    points: Mapping[str, np.ndarray],
    styles: Styles,
    limits: Mapping[str, np.ndarray] | None = None,
    normalised: bool = True,
) -> str:
    """Accuracy against difference from a reference: Fort et al., Figure 6.

    Args:
        points: for each kind of network, (networks, 2): accuracy and difference
        limits: lines by name, (points, 2): what can be reached at each accuracy
    """
    given = np.concatenate(list(points.values()))
    x, y = finite_range(given[:, 0]), finite_range([0.0, *given[:, 1]])
    chart = Chart(Axis(*x), Axis(y[0], y[1]))
    chart.axes("accuracy", "disagreement / error" if normalised else "disagreement")
    for line in (limits or {}).values():
        inside = [(a, b) for a, b in line.tolist() if chart.x.low <= a <= chart.x.high and b <= chart.y.high]
        chart.line(inside, None, "line diagonal")
    for label, own in points.items():
        for accuracy, difference in own.tolist():
            hint = f"{label}: accuracy {accuracy:.3f}, {'by error' if normalised else 'differs in'} {difference:.3f}"
            chart.mark(accuracy, difference, styles[label], hint, 4.5)
    means = {label: own.mean(0) for label, own in points.items()}
    return chart.svg("; ".join(f"{label}: accuracy {a:.3f}, difference {d:.3f}" for label, (a, d) in means.items()))


# ---------------------------------------------------------------- the parts of a plane


def _plane(u: np.ndarray, v: np.ndarray) -> Chart:
    """Axes with one unit of length, as far as the page has room."""
    margin = (50, 14, 14, 44)
    spans = float(u[-1] - u[0]) or 1.0, float(v[-1] - v[0]) or 1.0
    height = (PLANE - margin[0] - margin[1]) * min(max(spans[1] / spans[0], 0.5), 1.4)
    half = [(float(a[1] - a[0]) / 2 if len(a) > 1 else 0.5) for a in (u, v)]
    x, y = (Axis(float(a[0]) - h, float(a[-1]) + h, room=0) for a, h in zip((u, v), half, strict=True))
    return Chart(x, y, (PLANE, round(height) + margin[2] + margin[3]), margin)


def height_scale(values: np.ndarray, decades: bool = False) -> Axis:
    """From values to shades, with the heights of contour lines as its ticks."""
    low, high = finite_range(np.asarray(values, float).flatten())
    high = high if high > low else low + (abs(low) or 1.0)
    return Axis(low, high, log=decades and low > 0 and high / low > 15, room=0, ticks=LEVELS)


def _patch(chart: Chart, x: Any, y: Any, style: int, share: float, hint: str) -> None:
    """A shaded rectangle, a little larger than asked for, so that no seam is seen; hatched where there is no number."""
    (left, bottom), (right, top) = chart.at(x[0], y[0]), chart.at(x[1], y[1])
    shape = f'x="{left:.1f}" y="{top:.1f}" width="{right - left + 0.6:.1f}" height="{bottom - top + 0.6:.1f}"'
    known = math.isfinite(share)
    look = f'style="--s:{4 + 76 * min(max(share, 0.0), 1.0):.0f}"' if known else ""
    kind = f"patch c{style}" if known else "gap"
    chart.parts.append(f'<rect class="{kind}" {look} {shape}><title>{escape(hint)}</title></rect>')


def _patches(chart: Chart, u: np.ndarray, v: np.ndarray, values: Mapping[str, np.ndarray], scale: Axis) -> None:
    first = next(iter(values.values()))
    ends = (u, chart.x.low, chart.x.high), (v, chart.y.low, chart.y.high)
    across, up = (np.concatenate([[low], (a[:-1] + a[1:]) / 2, [high]]) for a, low, high in ends)
    for i in range(len(u)):
        for j in range(len(v)):
            value = float(first[i, j])
            told = ", ".join(f"{name} {float(array[i, j]):.4g}" for name, array in values.items())
            share = scale.share(value) if math.isfinite(value) else math.nan
            _patch(chart, across[i : i + 2], up[j : j + 2], 1, share, f"({u[i]:.3g}, {v[j]:.3g}): {told}")


def _contours(chart: Chart, u: np.ndarray, v: np.ndarray, values: np.ndarray, scale: Axis) -> None:
    taken: list[Place] = []
    text = tick_text(scale.ticks) if not scale.log else lambda tick: f"{tick:g}"
    for level in scale.ticks:
        pieces = [[chart.at(*point) for point in piece] for piece in contour_segments(u, v, values, level)]
        if not pieces:
            continue
        path = "".join(f"M{a:.1f} {b:.1f}L{c:.1f} {d:.1f}" for (a, b), (c, d) in pieces)
        chart.parts.append(f'<path class="contour" d="{path}"/>')
        spot = _free_spot(chart, pieces, taken)
        if spot:
            taken.append(spot)
            chart.text(spot[0], spot[1] + 4, text(level), "middle", "contour-text")


def _free_spot(
    chart: Chart, pieces: list[list[tuple[float, float]]], taken: list[tuple[float, float]]
) -> tuple[float, float] | None:
    """A place on the line for its value, away from the edges and from other values."""
    left, right, top, bottom = chart.margin
    room = 4 * CHARACTER * chart.font
    for (a, b), (c, d) in pieces[len(pieces) // 3 :] + pieces[: len(pieces) // 3]:
        x, y = (a + c) / 2, (b + d) / 2
        inside = left + room < x < chart.size[0] - right - room and top + 12 < y < chart.size[1] - bottom - 12
        if inside and all(abs(x - p) > room or abs(y - q) > 16 for p, q in taken):
            return x, y
    return None


def _path(chart: Chart, path: np.ndarray, style: int, label: str) -> None:
    """A trajectory with a light edge, so that it stands out from any shade; its checkpoints can be pointed at."""
    chart.line(path.tolist(), None, "halo")
    chart.line(path.tolist(), style, "line strong")
    for number, (x, y) in enumerate(path.tolist()):
        chart.mark(x, y, style, f"{label}, checkpoint {number}: ({x:.3g}, {y:.3g})", 3)
