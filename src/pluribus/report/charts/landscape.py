"""Charts of weight space and function space: arrays in, SVG out. They know nothing of networks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import Any

import numpy as np

from ..._common.optional import require
from ..figure import Styles, finite_range
from ..svg import CHARACTER, Axis, Chart, short_ticks, tick_text

PLANE = 420  # width of a picture of a plane
LEVELS = 9  # contour lines at most
BAR, BAR_STEPS = 62, 24  # the room for a colour bar, and its shades
Place = tuple[float, float]
NOTHING: Mapping[str, Any] = {}


def surface_chart(
    u: np.ndarray,
    v: np.ndarray,
    values: np.ndarray,
    name: str,
    *,
    others: Mapping[str, np.ndarray] = NOTHING,
    paths: Mapping[str, np.ndarray] = NOTHING,
    points: Mapping[str, Place] = NOTHING,
    rows: Mapping[str, np.ndarray] = NOTHING,
    samples: Mapping[str, np.ndarray] = NOTHING,
    styles: Mapping[str, int] = NOTHING,
    titles: tuple[str, str] = ("", ""),
    decades: bool = False,
    ends: tuple[float, float] | None = None,
    contours: bool = True,
) -> str:
    """A function on a plane: shades, contour lines with their values, and every value when the pointer rests on it.

    >>> chart = surface_chart(np.arange(3.0), np.arange(2.0), np.ones((3, 2)), "loss")
    >>> chart.count("loss 1")
    6
    """
    chart, scale = _plane(u, v).axes(*titles), height_scale(values if ends is None else np.array(ends), decades)
    _patches(chart, u, v, {name: values, **others}, scale)
    if contours:
        _contours(chart, u, v, values, scale)
    for label, places in rows.items():
        for x, y in places.tolist():
            chart.mark(x, y, styles[label], "", 1.6)
    for label, path in paths.items():
        _path(chart, path, styles[label], label)
    for label, places in samples.items():
        for x, y in places.tolist():
            chart.mark(x, y, styles[label], f"{label}: ({x:.3g}, {y:.3g})", 5, filled=False)
    for label, (x, y) in points.items():
        chart.mark(x, y, styles[label], f"{label}: ({x:.3g}, {y:.3g})", 6)
    _bar(chart, scale)
    low, high = finite_range(np.asarray(values, float).flatten())
    return _readable(chart.svg(f"{name} on a plane, from {low:.3g} to {high:.3g}"), 1, len(v))


def fan_chart(
    places: np.ndarray,
    values: np.ndarray,
    name: str,
    *,
    corners: np.ndarray,
    ends: Sequence[str],
    styles: Styles,
    decades: bool = False,
) -> str:
    """A function on triangles side by side, drawn as `surface_chart` draws one on a plane; they meet at (0, 0)."""
    turn = _upright(corners)
    places, corners = places @ turn, corners @ turn
    (left, right), (low, high) = (finite_range([0.0, *places[..., axis].flatten()]) for axis in (0, 1))
    height = round((PLANE - 12 - BAR) * min(max((high - low) / (right - left), 0.4), 1.2)) + 24
    chart = Chart(Axis(left, right, room=0), Axis(low, high, room=0), (PLANE, height), (12, BAR, 12, 12))
    scale = height_scale(values if decades else values[:, values.shape[1] // 2 :], decades)
    _fan_patches(chart, places, {name: values}, scale)
    for x, y in corners.tolist():
        chart.line([(0.0, 0.0), (x, y)], None, "spoke")
    across, out = np.arange(len(places), dtype=float), np.arange(places.shape[1], dtype=float)
    _contours(chart, across, out, values, scale, lambda a, b: chart.at(*_between(places, a, b)))
    chart.line(corners.tolist(), None, "halo")
    chart.line(corners.tolist(), None, "line strong")
    for label, (x, y) in zip(ends, corners[[0, -1]].tolist(), strict=True):
        chart.mark(x, y, styles[label], label, 6)
    chart.mark(0.0, 0.0, 0, "the origin: all weights are zero", 4)
    _bar(chart, scale)
    bottom, top = finite_range(np.asarray(values, float).flatten())
    return _readable(chart.svg(f"{name} along a path, from {bottom:.3g} to {top:.3g}"), 1, len(out))


def strip_chart(groups: Mapping[str, Sequence[float]], styles: Styles, title: str) -> str:
    """Values of several kinds, a row for each: every value a small mark, their mean a large one."""
    longest = max(map(len, groups))
    size, margin = (420, 58 + 34 * len(groups)), (max(150, round(CHARACTER * 13.5 * longest) + 12), 16, 8, 42)
    low, high = finite_range([0.0, *(value for own in groups.values() for value in own)])
    chart = Chart(Axis(low, high), Axis(0, len(groups), room=0), size, margin)
    chart.y.ticks = []
    chart.axes(title)
    for row, (label, own) in enumerate(groups.items()):
        y, mean = len(groups) - row - 0.5, float(np.mean(own))
        chart.line([(min(own), y), (max(own), y)], styles[label], "whisker")
        for value in own:
            chart.mark(value, y, styles[label], f"{label}: {value:.4g}", 3, filled=False)
        chart.mark(mean, y, styles[label], f"{label}, mean: {mean:.4g}", 6)
        chart.text(margin[0] - 10, chart.at(0, y)[1] + 4, label, "end", "name")
    means = "; ".join(f"{label} {np.mean(own):.3g}" for label, own in groups.items())
    return chart.svg(f"{title}, means: {means}")


def heat_map(
    matrix: np.ndarray,
    parts: Sequence[tuple[str, Sequence[str]]],
    name: str,
    *,
    ends: tuple[float, float] | None = None,
) -> str:
    """A matrix between networks as shades, divided where one run ends and the next begins; darker is more."""
    n, names = len(matrix), [", ".join(filter(None, (run, one))) for run, own in parts for one in own]
    scale = height_scale(np.asarray(matrix if ends is None else ends, float))
    each = len(parts) == n  # every row has a name next to it
    room = 20 + round(CHARACTER * 12 * max(len(run) for run, _ in parts)) if each else 34
    room = min(room, 150)
    chart = Chart(Axis(0, n, room=0), Axis(0, n, room=0), (PLANE, PLANE), (room, BAR, 8, room))
    for i in range(n):
        for j in range(n):
            value = float(matrix[i, j])
            share, hint = _share(scale, value), f"{names[i]} and {names[j]}: {name} {value:.3f}"
            _patch(chart, (j, j + 1), (n - i - 1, n - i), share, hint)
            if n <= 8:
                x, y = chart.at(j + 0.5, n - i - 0.5)
                chart.text(x, y + 4, f"{value:.2f}", "middle", "cell-text light" if share > 0.6 else "cell-text")
    edges = np.cumsum([0, *(len(own) for _, own in parts)])
    for edge in [] if each else edges[1:-1]:
        chart.line([(edge, 0), (edge, n)], None, "divide")
        chart.line([(0, n - edge), (n, n - edge)], None, "divide")
    for (run, _), (first, last) in zip(parts, pairwise(edges), strict=True):
        middle = float(first + last) / 2
        (x, bottom), y = chart.at(middle, 0), chart.at(0, n - middle)[1]
        run = run if len(run) <= 18 else f"{run[:17]}…"
        if each:
            chart.text(room - 6, y + 4, run, "end", "name")
            turn = f' transform="rotate(-45 {x + 4:.1f} {bottom + 12:.1f})"'
            chart.text(x + 4, bottom + 12, run, "end", "name", turn)
        else:
            chart.text(x, chart.size[1] - 14, run, "middle", "name")
            chart.text(14, y, run, "middle", "name", f' transform="rotate(-90 14 {y:.1f})"')
    _bar(chart, scale)
    low, high = finite_range(np.asarray(matrix, float).flatten())
    return _readable(chart.svg(f"{name} between {n} networks, from {low:.3g} to {high:.3g}"), -n, 1)


def _bar(chart: Chart, scale: Axis) -> None:
    """What the shades mean, on the right: from the least, pale, to the most, dark."""
    _, right, top, bottom = chart.margin
    left, height = chart.size[0] - right + 12, chart.size[1] - top - bottom
    for step in range(BAR_STEPS):
        y = top + height * (1 - (step + 1) / BAR_STEPS)
        shape = f'x="{left}" y="{y:.1f}" width="12" height="{height / BAR_STEPS + 0.6:.1f}"'
        chart.parts.append(f'<rect class="shade" style="--s:{_strength(step / (BAR_STEPS - 1))}" {shape}/>')
    text = _height_text(scale)
    for tick in scale.ticks[:: max(1, len(scale.ticks) // 4)]:
        chart.text(left + 16, top + height * (1 - scale.share(tick)) + 4, text(tick))


def scatter_chart(
    runs: Mapping[str, np.ndarray],
    styles: Styles,
    hints: Mapping[str, Sequence[str]],
    samples: Mapping[str, Sequence[tuple[float, float, str]]] = NOTHING,
) -> str:
    """Points in two dimensions, one colour for each run, joined from first to last; the last is the larger one."""
    further = {label: np.array([point[:2] for point in own]) for label, own in samples.items()}
    places = np.concatenate([*runs.values(), *further.values()])
    chart = Chart(
        Axis(*finite_range(places[:, 0])), Axis(*finite_range(places[:, 1])), (PLANE, PLANE), (14, 14, 14, 14)
    )
    for label, path in runs.items():
        chart.line(path.tolist(), styles[label], "line thin")
        for (x, y), hint in zip(path.tolist(), hints[label], strict=True):
            chart.mark(x, y, styles[label], f"{label}: {hint}", 3)
        chart.mark(float(path[-1, 0]), float(path[-1, 1]), styles[label], f"{label}: {hints[label][-1]}", 6)
    for label, own in samples.items():
        for x, y, hint in own:
            chart.mark(x, y, styles[label], f"{label}: {hint}", 4.5, filled=False)
    return chart.svg(f"{len(places)} networks of {len(runs)} runs in two dimensions")


def diversity_chart(
    points: Mapping[str, np.ndarray], styles: Styles, limits: Mapping[str, np.ndarray] = NOTHING
) -> str:
    """Accuracy against difference from a reference: Fort et al., Figure 6."""
    given = np.concatenate(list(points.values()))
    x, (_, top) = finite_range(given[:, 0]), finite_range([0.0, *given[:, 1]])
    lines = np.concatenate([given[:0], *limits.values()])
    near = lines[(lines[:, 0] >= x[0]) & (lines[:, 0] <= x[1]) & (lines[:, 1] <= 3 * top), 1]
    chart = Chart(Axis(*x), Axis(0.0, max([top, *near.tolist()])))
    chart.axes("accuracy", "disagreement / error")
    for name, line in limits.items():
        inside = [(a, b) for a, b in line.tolist() if chart.x.low <= a <= chart.x.high and b <= chart.y.high]
        chart.curve(inside, None, f"limit, {name}", ("accuracy", "disagreement"), "line diagonal")
    for label, own in points.items():
        for accuracy, difference in own.tolist():
            hint = f"{label}: accuracy {accuracy:.3f}, by error {difference:.3f}"
            chart.mark(accuracy, difference, styles[label], hint, 4.5)
    means = {label: own.mean(0) for label, own in points.items()}
    return chart.svg("; ".join(f"{label}: accuracy {a:.3f}, difference {d:.3f}" for label, (a, d) in means.items()))


# ---------------------------------------------------------------- the parts of a plane


def _plane(u: np.ndarray, v: np.ndarray) -> Chart:
    """Axes with one unit of length, as far as the page has room."""
    margin = (50, BAR, 14, 44)
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


def _height_text(scale: Axis) -> Callable[[float], str]:
    return short_ticks if scale.log else tick_text(scale.ticks)


def _readable(svg: str, up: int, right: int) -> str:
    """The chart with patches that can be read off: by pointer, by touch, and by arrow keys where it has the focus."""
    steps = f'tabindex="0" data-step-up="{up}" data-step-right="{right}"'
    return svg.replace('class="chart"', f'class="chart readable" {steps}', 1)


def _patch(chart: Chart, x: Any, y: Any, share: float, hint: str) -> None:
    """A shaded rectangle, a little larger than asked for, so that no seam is seen."""
    (left, bottom), (right, top) = chart.at(x[0], y[0]), chart.at(x[1], y[1])
    shape = f'x="{left:.1f}" y="{top:.1f}" width="{right - left + 0.6:.1f}" height="{bottom - top + 0.6:.1f}"'
    chart.parts.append(_shade("rect", shape, share, hint))


def _strength(share: float) -> str:
    """How dark a share of the scale is, in percent: dark is more, in every chart."""
    return f"{100 * min(max(share, 0.0), 1.0):.0f}"


def _shade(element: str, shape: str, share: float, hint: str) -> str:
    """An element with a shade, hatched where there is no number."""
    look, kind = (f'style="--s:{_strength(share)}"', "patch") if math.isfinite(share) else ("", "gap")
    return f'<{element} class="{kind}" {look} {shape}><title>{escape(hint)}</title></{element}>'


def _patches(chart: Chart, u: np.ndarray, v: np.ndarray, values: Mapping[str, np.ndarray], scale: Axis) -> None:
    ends = (u, chart.x.low, chart.x.high), (v, chart.y.low, chart.y.high)
    across, up = (np.concatenate([[low], (a[:-1] + a[1:]) / 2, [high]]) for a, low, high in ends)
    for i, j, share, told in _cells(values, scale):
        _patch(chart, across[i : i + 2], up[j : j + 2], share, f"({u[i]:.3g}, {v[j]:.3g}): {told}")


def _share(scale: Axis, value: float) -> float:
    return scale.share(value) if math.isfinite(value) else math.nan


def _cells(values: Mapping[str, np.ndarray], scale: Axis) -> Iterator[tuple[int, int, float, str]]:
    """Row and column of each cell, how dark the first of its values is, and all of them in words."""
    for (i, j), value in np.ndenumerate(next(iter(values.values()))):
        yield i, j, _share(scale, value), ", ".join(f"{name} {array[i, j]:.4g}" for name, array in values.items())


def _fan_patches(chart: Chart, places: np.ndarray, values: Mapping[str, np.ndarray], scale: Axis) -> None:
    along, out = places.shape[:2]
    sides = [np.concatenate([[0], np.arange(n - 1) + 0.5, [n - 1]]) for n in (along, out)]
    for i, j, share, told in _cells(values, scale):
        corners = (i, j), (i + 1, j), (i + 1, j + 1), (i, j + 1)
        points = [chart.at(*_between(places, sides[0][a], sides[1][b])) for a, b in corners]
        where = f"{i / max(along - 1, 1):.2f} of the way, {j / max(out - 1, 1):.2f} of the radius"
        shape = 'd="M' + "L".join(f"{x:.1f} {y:.1f}" for x, y in points) + 'Z"'
        chart.parts.append(_shade("path", shape, share, f"{where}: {told}"))


def _between(places: np.ndarray, a: float, b: float) -> Place:
    """The place at indices that need not be whole."""
    i, j = min(int(a), len(places) - 2) if len(places) > 1 else 0, min(int(b), max(places.shape[1] - 2, 0))
    k, m = min(i + 1, len(places) - 1), min(j + 1, places.shape[1] - 1)
    near = (1 - (b - j)) * places[i, j] + (b - j) * places[i, m]
    far = (1 - (b - j)) * places[k, j] + (b - j) * places[k, m]
    x, y = (1 - (a - i)) * near + (a - i) * far
    return float(x), float(y)


def _upright(corners: np.ndarray) -> np.ndarray:
    """The rotation, from the right, that puts the middle of a fan upwards and its beginning to the left."""
    angles = np.unwrap(np.arctan2(corners[:, 1], corners[:, 0]))
    middle = (angles[0] + angles[-1]) / 2
    turn = math.pi / 2 - middle
    rotated = np.array([[math.cos(turn), math.sin(turn)], [-math.sin(turn), math.cos(turn)]])
    return rotated @ np.diag([-1.0 if angles[-1] > angles[0] else 1.0, 1.0])


def _contours(chart: Chart, u: Any, v: Any, values: Any, scale: Axis, at: Callable[..., Place] | None = None) -> None:
    at, taken, text = at or chart.at, list[Place](), _height_text(scale)
    for level in scale.ticks:
        pieces = [[at(*point) for point in piece] for piece in contour_segments(u, v, values, level)]
        if not pieces:
            continue
        path = "".join(f"M{a:.1f} {b:.1f}L{c:.1f} {d:.1f}" for (a, b), (c, d) in pieces)
        chart.parts.append(f'<path class="contour" d="{path}"/>')
        spot = _free_spot(chart, pieces, taken)
        if spot:
            taken.append(spot)
            chart.text(spot[0], spot[1] + 4, text(level), "middle", "contour-text")


def _free_spot(chart: Chart, pieces: list[list[Place]], taken: list[Place]) -> Place | None:
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


def contour_segments(u: np.ndarray, v: np.ndarray, z: np.ndarray, level: float) -> list[tuple[Place, Place]]:
    """The pieces of the line on which z, given at (u[i], v[j]), is `level`; none next to NaN and infinities.

    >>> contour_segments(np.array([0.0, 1.0]), np.array([0.0, 1.0]), np.array([[0.0, 0.0], [1.0, 1.0]]), 0.25)
    [((0.25, 1.0), (0.25, 0.0))]
    """
    contourpy = require("contourpy", "a surface", "report")
    generator = contourpy.contour_generator(u, v, np.ma.masked_invalid(z.T), corner_mask=False)
    return [pair for line in generator.lines(level) for pair in pairwise(map(tuple, line.tolist()))]
