"""Charts as inline SVG: axes, marks, text. Colours are variables of the page's style, so that light and dark follow.

Drawn here and not by a script: a page without a chart library is small, prints, and shows everything without scripts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape

SHAPES = 8  # marker shapes before they repeat
HUES = 4  # 0 a neutral one; no more, so that colour-blind readers can tell them apart. Shapes and dashes do the rest
CHARACTER = 0.62  # of the font size: mean width of a character


class Axis:
    """A scale from values to positions with round ticks; `log` where the values span decades."""

    def __init__(
        self, low: float, high: float, log: bool = False, room: float = 0.06, ticks: int = 5, whole: bool = False
    ):
        low, high = (low, high) if math.isfinite(low) and math.isfinite(high) else (0.0, 1.0)
        if log and low > 0:
            low, high = math.log10(low), math.log10(high)
        else:
            log = False
        spread = (high - low) or abs(high) * 0.1 or 1.0
        self.low, self.high, self.log = low - room * spread, high + room * spread, log
        self.ticks = _log_ticks(self.low, self.high) if log else _ticks(self.low, self.high, ticks)
        if whole:
            self.ticks = sorted({float(round(tick)) for tick in self.ticks if low <= round(tick) <= high})

    def share(self, value: float) -> float:
        """Where a value lies: 0 at the low end, 1 at the high end, cut off shortly beyond."""
        value = math.log10(max(value, 1e-300)) if self.log else value
        return min(max((value - self.low) / (self.high - self.low), -0.05), 1.05)


class Chart:
    """An SVG under construction: marks are added in the units of the axes.

    Args:
        margin: left, right, top, bottom
    """

    def __init__(
        self,
        x: Axis,
        y: Axis,
        size: tuple[int, int] = (420, 300),
        margin: tuple[int, int, int, int] = (54, 14, 14, 44),
        font: int = 12,
    ):
        self.x, self.y, self.size, self.margin, self.font = x, y, size, margin, font
        self.parts: list[str] = []

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Position of a point in the picture."""
        left, right, top, bottom = self.margin
        width, height = self.size[0] - left - right, self.size[1] - top - bottom
        return left + width * self.x.share(x), top + height * (1 - self.y.share(y))

    def axes(
        self,
        x_title: str = "",
        y_title: str = "",
        x_text: Callable[[float], str] | None = None,
        y_text: Callable[[float], str] | None = None,
        x_labels: Sequence[tuple[float, str]] | None = None,
    ) -> Chart:
        """Grid, ticks and titles."""
        left, right, top, bottom = self.margin
        width, height = self.size
        x_ticks = x_labels or [(tick, (x_text or tick_text(self.x.ticks))(tick)) for tick in self.x.ticks]
        for tick in self.y.ticks:
            y = self.at(0, tick)[1]
            self.parts.append(f'<path class="grid" d="M{left} {y:.1f}H{width - right}"/>')
            self.text(left - 6, y + self.font * 0.35, (y_text or tick_text(self.y.ticks))(tick), "end")
        for tick, label in x_ticks:
            self.text(self.at(tick, 0)[0], height - bottom + self.font + 3, label, "middle")
        self.parts.append(f'<path class="axis" d="M{left} {height - bottom}H{width - right}"/>')
        if x_title:
            self.text((left + width - right) / 2, height - 5, x_title, "middle", "axis-title")
        if y_title:
            middle = (top + height - bottom) / 2
            turn = f' transform="rotate(-90 {self.font} {middle:.1f})"'
            self.text(self.font, middle, y_title, "middle", "axis-title", turn)
        return self

    def text(self, x: float, y: float, words: str, anchor: str = "start", kind: str = "", more: str = "") -> None:
        """Text at a position of the picture."""
        name = f' class="{kind}"' if kind else ""
        anchored = f' text-anchor="{anchor}"' if anchor != "start" else ""
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}"{anchored}{name}{more}>{escape(words)}</text>')

    def curve(
        self,
        points: Iterable[tuple[float, float]],
        style: int | None,
        name: str,
        titles: tuple[str, str],
        kind: str = "line",
    ) -> None:
        """A line whose points can be read off, by pointing at it or by keys, as values of what the titles name."""
        points = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
        read = ",".join(f"{x:.4g} {y:.4g}" for x, y in points)
        names = f'data-name="{escape(name)}" data-across="{escape(titles[0])}" data-up="{escape(titles[1])}"'
        self.line(points, style, kind, f' {names} data-read="{read}"')

    def line(
        self, points: Iterable[tuple[float, float]], style: int | None, kind: str = "line", more: str = ""
    ) -> None:
        """A line through points; without a style it is a neutral one, such as a diagonal."""
        places = [self.at(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
        if places:
            path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
            self.parts.append(f'<path class="{kind} {series_class(style)}"{dash(style)}{more} d="{path}"/>')

    def mark(self, x: float, y: float, style: int, hint: str, size: float = 4.5, filled: bool = True) -> None:
        """A marker; the hint, where there is one, is shown by a browser when the pointer rests on it."""
        if not (math.isfinite(x) and math.isfinite(y)):
            return
        place = self.at(x, y)
        kind = "mark" if filled else "mark open"
        shape = marker(style, *place, size)
        self.parts.append(f'<path class="{kind} {series_class(style)}" d="{shape}">{_title(hint)}</path>')

    def box(self, x: tuple[float, float], y: tuple[float, float], style: int | None, kind: str, hint: str = "") -> None:
        """A rectangle between two values on each axis."""
        (left, bottom), (right, top) = self.at(x[0], y[0]), self.at(x[1], y[1])
        shape = f'x="{left:.1f}" y="{top:.1f}" width="{max(right - left, 0):.1f}" height="{max(bottom - top, 0):.1f}"'
        self.parts.append(f'<rect class="{kind} {series_class(style)}" {shape}>{_title(hint)}</rect>')

    def svg(self, summary: str) -> str:
        """The finished picture; `summary` says in words what it shows."""
        width, height = self.size
        body = "".join(self.parts)
        return (
            f'<svg class="chart" role="img" aria-label="{escape(summary)}" viewBox="0 0 {width} {height}" '
            f'font-size="{self.font}" preserveAspectRatio="xMidYMid meet">{body}</svg>'
        )


def _title(hint: str) -> str:
    return f"<title>{escape(hint)}</title>" if hint else ""


def series_class(style: int | None) -> str:
    """The class of a series: its colour, its number for the legend, and whether it is one of many."""
    return "plain" if style is None else f"c{style % HUES} n{style}" + (" other" if style >= HUES else "")


def dash(style: int | None) -> str:
    """Lines of the same colour differ by their dashes."""
    patterns = ("", "7 3", "2 3", "9 3 2 3", "4 2")
    pattern = "" if style is None else patterns[style // HUES % len(patterns)]
    return f' stroke-dasharray="{pattern}"' if pattern else ""


def marker(style: int, x: float, y: float, size: float) -> str:
    """The path of a marker; neighbouring styles, and those of one colour, have different shapes."""
    return _SHAPES[(style + style // HUES) % SHAPES](x, y, size)


def swatch(style: int) -> str:
    """The small picture of a series in a legend."""
    line = f'<path class="line {series_class(style)}"{dash(style)} d="M1 8H27"/>'
    shape = f'<path class="mark {series_class(style)}" d="{marker(style, 14, 8, 4.5)}"/>'
    return f'<svg class="swatch" viewBox="0 0 28 16" aria-hidden="true">{line}{shape}</svg>'


def place_labels(chart: Chart, points: Sequence[tuple[float, float, float, str]]) -> None:
    """Names next to points (position x, y, radius, name) where there is room; the legend has them all."""
    taken = [(x - r, y - r, x + r, y + r) for x, y, r, _ in points]
    height = chart.font
    room = chart.margin[0], 0, chart.size[0], chart.size[1] - chart.margin[3]
    for x, y, r, name in points:
        name = name if len(name) <= 24 else f"{name[:23]}…"
        width = CHARACTER * chart.font * len(name)
        spots = [
            (x + r + 4, y + 4),
            (x - r - 4 - width, y + 4),
            (x - width / 2, y - r - 5),
            (x - width / 2, y + r + 13),
        ]
        spots += [(x + r + 3, y + 4 + sign * height) for sign in (-1, 1)]
        for left, base in spots:
            box = (left, base - height * 0.8, left + width, base + height * 0.2)
            inside = box[0] > room[0] and box[1] > room[1] and box[2] < room[2] and box[3] < room[3]
            if inside and not any(box[0] < b[2] and b[0] < box[2] and box[1] < b[3] and b[1] < box[3] for b in taken):
                taken.append(box)
                chart.text(left, base, name, kind="name haloed")
                break


def tick_text(ticks: Sequence[float]) -> Callable[[float], str]:
    """How the ticks of an axis are printed: with the decimals that tell them apart."""
    largest = max((abs(tick) for tick in ticks), default=1.0) or 1.0
    digits = next((d for d in range(7) if all(abs(round(t, d) - t) < 1e-6 * largest for t in ticks)), 6)

    def text(value: float) -> str:
        if largest >= 1e4 or largest < 1e-3:
            return f"{value:.3g}".replace("e+0", "e").replace("-", "−")
        return f"{value:.{digits}f}".replace("-", "−")

    return text


def short_ticks(value: float) -> str:
    """A tick of a logarithmic axis."""
    return f"{value:g}"


def _ticks(low: float, high: float, count: int) -> list[float]:
    rough = (high - low) / count
    power = 10 ** math.floor(math.log10(rough))
    step = power * next(nice for nice in (1, 2, 2.5, 5, 10) if nice * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(step * k, 12) + 0.0 for k in range(first, math.floor(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    powers = range(math.floor(low), math.ceil(high) + 1)
    for nice in ((1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        ticks = [digit * 10.0**power for power in powers for digit in nice if low <= math.log10(digit) + power <= high]
        if len(ticks) <= 6:
            return ticks
    return ticks


def _polygon(*corners: tuple[float, float]) -> Callable[[float, float, float], str]:
    def path(x: float, y: float, size: float) -> str:
        return "M" + "L".join(f"{x + size * a:.1f} {y + size * b:.1f}" for a, b in corners) + "Z"

    return path


def _disc(x: float, y: float, size: float) -> str:
    return f"M{x - size:.1f} {y:.1f}a{size} {size} 0 1 0 {2 * size} 0a{size} {size} 0 1 0 {-2 * size} 0Z"


_PLUS = (0.4, 1.1), (0.4, 0.4), (1.1, 0.4), (1.1, -0.4), (0.4, -0.4), (0.4, -1.1)

_SHAPES = (
    _disc,
    _polygon((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
    _polygon((0, -1.2), (1.1, 0.8), (-1.1, 0.8)),
    _polygon((0, -1.3), (1.1, 0), (0, 1.3), (-1.1, 0)),
    _polygon((0, 1.2), (1.1, -0.8), (-1.1, -0.8)),
    _polygon(*_PLUS, *((-a, -b) for a, b in _PLUS)),
    _polygon((-1.2, 0), (0.8, 1.1), (0.8, -1.1)),
    _polygon((0, -1.2), (1.15, -0.35), (0.7, 1.0), (-0.7, 1.0), (-1.15, -0.35)),
)
