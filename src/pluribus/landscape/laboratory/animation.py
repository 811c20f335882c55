"""Training on a plane as a moving picture: a GIF, or an SVG that browsers move by themselves."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from ..._common.atomic import atomic_write
from ..._common.optional import require
from ...report.charts.landscape import contour_segments, height_scale, surface_chart
from ..planes import Surface

SECONDS = 6.0  # of one round
SIZE = 480  # pixels of the longer side
COLOURS = {2: (194, 74, 0), 3: (109, 26, 54)}  # as on the page
PALE, DARK = np.array([243, 247, 252]), np.array([33, 102, 172])


def animate(surface: Surface, runs: Mapping[str, Any], styles: Mapping[str, int], file: str | os.PathLike[str]) -> None:
    """Write the trajectories of runs as they grow over the loss on a plane; the end of the name says which format."""
    paths = {name: surface.project(run) for name, run in runs.items()}
    path = Path(file)
    draw = {".gif": _gif, ".svg": _svg}[path.suffix.lower()]
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as temporary:
        temporary.write_bytes(draw(surface, paths, styles))


def _svg(surface: Surface, paths: Mapping[str, np.ndarray], styles: Mapping[str, int]) -> bytes:
    """The chart of the page, its lines uncovered from their beginning on, again and again."""
    assert surface.loss is not None
    chart = surface_chart(
        surface.u, surface.v, surface.loss, "loss", paths=paths, styles=dict(styles), titles=surface.plane.axes,
        decades=True,
    )  # fmt: skip
    lines = r'(<path class="(?:halo|line strong)[^>]*?)(?: stroke-dasharray="[^"]*")?( d="[^"]*")/>'
    growing = _animate_attribute("stroke-dashoffset", "1;0", "0;1", "linear")
    chart = re.sub(lines, rf'\1 pathLength="1" stroke-dasharray="1"\2>{growing}</path>', chart)
    last = {name: max(len(path) - 1, 1) for name, path in paths.items()}

    def appear(mark: re.Match[str]) -> str:
        when = min(int(mark[2]) / last[mark[1]], 0.999)
        return f"{mark[0]}{_animate_attribute('opacity', '0;1', f'0;{when:.3f}', 'discrete')}"

    chart = re.sub(r"<title>([^<,]*), checkpoint (\d+)[^<]*</title>", appear, chart)
    style = resources.files(__package__).joinpath("animation.css").read_text(encoding="utf-8")
    whole = chart.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    return re.sub(r"(<svg [^>]*>)", rf"\1<style>{style}</style>", whole, count=1).encode()


def _animate_attribute(attribute: str, values: str, times: str, mode: str) -> str:
    """A change of an attribute over one round, again and again."""
    return (
        f'<animate attributeName="{attribute}" values="{values}" keyTimes="{times}" calcMode="{mode}" '
        f'dur="{SECONDS:g}s" repeatCount="indefinite"/>'
    )


def _gif(surface: Surface, paths: Mapping[str, np.ndarray], styles: Mapping[str, int]) -> bytes:
    image, draw = require("PIL.Image", "an animation", "data"), require("PIL.ImageDraw", "an animation", "data")
    place = _Placing(surface)
    ground = image.fromarray(_ground(surface)).resize(place.size, image.Resampling.BICUBIC)
    pen = draw.Draw(ground)
    loss = np.asarray(surface.loss)
    for level in height_scale(loss, decades=True).ticks:
        for piece in contour_segments(surface.u, surface.v, loss, level):
            pen.line([place(*point) for point in piece], (110, 120, 130))
    frames = []
    for step in range(1, max(map(len, paths.values())) + 1):
        frame = ground.copy()
        pen = draw.Draw(frame)
        for name, path in paths.items():
            points = [place(*point) for point in path[:step].tolist()]
            pen.line(points, (255, 255, 255), 6)
            pen.line(points, COLOURS[styles[name]], 3)
            x, y = points[-1]
            pen.ellipse((x - 5, y - 5, x + 5, y + 5), COLOURS[styles[name]], (255, 255, 255))
        pen.text((8, 8), f"checkpoint {step - 1}", (0, 0, 0))
        frames.append(frame.quantize(96, dither=image.Dither.NONE))
    pauses = [round(1000 * SECONDS / len(frames))] * (len(frames) - 1) + [1500]
    out = io.BytesIO()
    frames[0].save(out, "GIF", save_all=True, append_images=frames[1:], duration=pauses, loop=0)
    return out.getvalue()


def _ground(surface: Surface) -> np.ndarray:
    """The loss in shades, rows from the top: (v, u, 3)."""
    scale = height_scale(np.asarray(surface.loss), decades=True)
    loss = np.asarray(surface.loss)
    share = np.array([[scale.share(v) if np.isfinite(v) else 1.0 for v in row] for row in loss])
    shade = share.clip(0, 1)[..., None]
    return (PALE * (1 - shade) + DARK * shade).astype(np.uint8).transpose(1, 0, 2)[::-1].copy()


class _Placing:
    """From coordinates on the plane to pixels."""

    def __init__(self, surface: Surface):
        self.low = np.array([surface.u[0], surface.v[0]])
        self.span = np.array([surface.u[-1], surface.v[-1]]) - self.low
        scale = SIZE / self.span.max()
        self.size = tuple(max(round(scale * side), SIZE // 2) for side in self.span)

    def __call__(self, u: float, v: float) -> tuple[float, float]:
        x, y = (np.array([u, v]) - self.low) / self.span
        return float(x * self.size[0]), float((1 - y) * self.size[1])
