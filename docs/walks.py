"""Draws the pictures of architecture.md from real runs: which file of which folder calls which, in their order.

    python docs/walks.py          # writes docs/images/walk-*.svg

A box is a file in the column of its folder, or a folder in the column of its layer where there would be too many
files, with the function through which it was first entered; the line leads to it from where that was called.
`_common` is left out: every file may use it.
"""

from __future__ import annotations

import contextlib
import io
import runpy
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from html import escape
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

import pluribus as pb

ROOT = Path(pb.__file__).parent
IMAGES = Path(__file__).parent / "images"
# From those that use to those that are used: the rule of directions, read from its end.
LAYERS = [
    ("cli",),
    ("reproduce",),
    ("study",),
    ("landscape", "integrations"),
    ("deploy",),
    ("methods", "training", "report"),
    ("core", "models", "results"),
    ("uncertainty", "surgery", "data"),
]
LEFT_OUT = {"_common"}
COLUMN, ROW, HEAD, INDENT = 244, 48, 40, 11
HEIGHT = 38  # of a box


@dataclass(frozen=True)
class Step:
    """The first entry into a file or a folder: from where, and through which function."""

    name: str
    caller: str
    function: str


def record(run: Callable[[], Any], by_folder: bool = False) -> list[Step]:
    """The steps of a run, in their order."""
    found: dict[str, Step] = {}

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        name = place(frame.f_code.co_filename, by_folder) if event == "call" else ""
        if name and name not in found and frame.f_code.co_name[0] != "<":
            caller = frame.f_back
            while caller is not None and place(caller.f_code.co_filename, by_folder) in ("", name):
                caller = caller.f_back
            start = place(caller.f_code.co_filename, by_folder) if caller is not None else ""
            found[name] = Step(name, start, frame.f_code.co_qualname.rpartition("<locals>.")[2])

    sys.setprofile(watch)
    try:
        run()
    finally:
        sys.setprofile(None)
    return list(found.values())


@cache
def place(file: str, by_folder: bool) -> str:
    """The path of a file or its folder within the package; nothing for other code, and for what is left out."""
    if ROOT not in (path := Path(file)).parents:
        return ""
    inside = path.relative_to(ROOT)
    if inside.parts[0] in LEFT_OUT or len(inside.parts) == 1:
        return ""
    return str(inside.parent if by_folder else inside)


def draw(title: str, steps: list[Step], by_folder: bool) -> str:
    """The walk as SVG: a column for each folder, or each layer of folders, that is visited; a row for each step."""
    visited = {step.name.split("/")[0] for step in steps}
    layers = LAYERS if by_folder else [(room,) for layer in LAYERS for room in layer]
    columns = [rooms for layer in layers if (rooms := tuple(room for room in layer if room in visited))]
    width, height = len(columns) * COLUMN + 16, len(steps) * ROW + HEAD + 12
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="system-ui, sans-serif" role="img"><title>{escape(title)}</title>',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for number, rooms in enumerate(columns):
        x = 8 + number * COLUMN
        shape = f'x="{x}" y="8" width="{COLUMN - 8}" height="{height - 16}" rx="6"'
        parts.append(f'<rect {shape} fill="{SHADES[number % 2]}"/>')
        names = " ".join(f"{room}/" for room in rooms)
        parts.append(f'<text x="{x + 9}" y="28" font-size="13" font-weight="700" fill="#333333">{names}</text>')
    boxes = lay_out(steps, columns)
    parts += [line(boxes[step.caller], boxes[step.name]) for step in steps if step.caller in boxes]
    parts += [box(step, boxes[step.name], by_folder) for step in steps]
    return "\n".join([*parts, "</svg>"]) + "\n"


SHADES = "#f3f5f8", "#e9edf2"


@dataclass(frozen=True)
class Box:
    """Where a step stands: its column, how far it is called from within its folder, and the edges of its box."""

    column: int
    depth: int
    y: int

    @property
    def left(self) -> int:
        """Its left edge."""
        return 14 + self.column * COLUMN + INDENT * self.depth

    @property
    def right(self) -> int:
        """Its right edge."""
        return 14 + (self.column + 1) * COLUMN - 20

    @property
    def middle(self) -> int:
        """Half of its height."""
        return self.y + HEIGHT // 2


def lay_out(steps: list[Step], columns: list[tuple[str, ...]]) -> dict[str, Box]:
    """The box of each step: called from its own folder it stands a little to the right of its caller."""
    boxes: dict[str, Box] = {}
    for number, step in enumerate(steps):
        column = next(i for i, rooms in enumerate(columns) if step.name.split("/")[0] in rooms)
        caller = boxes.get(step.caller)
        depth = caller.depth + 1 if caller is not None and caller.column == column else 0
        boxes[step.name] = Box(column, min(depth, 4), HEAD + number * ROW)
    return boxes


def line(start: Box, end: Box) -> str:
    """From below the box of the caller down, then across to the box that is called."""
    x = start.left + 7 if end.column <= start.column else start.right - 7
    side, tip = (end.right, -6) if end.column < start.column else (end.left, 6)
    return (
        f'<path d="M {x} {start.y + HEIGHT} V {end.middle} H {side}" fill="none" stroke="#5a6b7f" stroke-width="1.3"/>'
        f'<path d="M {side} {end.middle} l {-tip} -3.5 v 7 z" fill="#5a6b7f"/>'
    )


def box(step: Step, at: Box, by_folder: bool) -> str:
    """A folder's name, or a file's without its folder, and the function through which it is entered."""
    name, x = f"{step.name}/" if by_folder else step.name.partition("/")[2], at.left + 8
    function = step.function if len(step.function) <= 26 else step.function[:25] + "…"
    shape = f'x="{at.left}" y="{at.y}" width="{at.right - at.left}" height="{HEIGHT}" rx="4"'
    return (
        f'<rect {shape} fill="#ffffff" stroke="#5a6b7f"/>'
        f'<text x="{x}" y="{at.y + 16}" font-size="12" font-weight="600" fill="#14365d">{escape(name)}</text>'
        f'<text x="{x}" y="{at.y + 31}" font-size="11" fill="#444444" font-family="ui-monospace, monospace">'
        f"{escape(function)}</text>"
    )


def walks(folder: str) -> Iterator[tuple[str, Callable[[], Any], bool]]:
    """Name, run, and whether it is drawn by folders."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    x, y = torch.randn(32, 20), torch.randint(10, (32,))
    yield "packed", lambda: pb.packed(model, 4, example=x), False
    ensemble = pb.packed(model, 4, example=x)
    yield "loss", lambda: ensemble.loss(x, y, nn.functional.cross_entropy), False
    yield "predict", lambda: ensemble.predict(x), False
    yield "freeze", lambda: pb.freeze(ensemble, x), False
    numbers = count()
    yield "compare", lambda: compare(f"{folder}/{next(numbers)}"), True


def compare(folder: str) -> None:
    """`pluribus compare` with two methods in one process, without a word."""
    options = "--data moons --model mlp --methods single,packed --epochs 2 --jobs 1 --quiet"
    sys.argv = ["pluribus", "compare", *options.split(), "--out", folder]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        runpy.run_module("pluribus", run_name="__main__")


def main() -> None:
    """Write all the pictures."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        for name, run, by_folder in walks(folder):
            run()  # so that imports, and what is found once, are no steps
            steps = record(run, by_folder)
            title = f"The walk of {name} through the {'folders' if by_folder else 'files'} of Pluribus"
            (IMAGES / f"walk-{name}.svg").write_text(draw(title, steps, by_folder))
            print(f"walk-{name}.svg: {len(steps)} steps")


if __name__ == "__main__":
    main()
