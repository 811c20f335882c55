"""Examples on the page: what each method was surest of and got wrong, and what it was least sure of."""

from __future__ import annotations

import base64
import io
import math
from typing import Any

import numpy as np

from .._common.optional import require
from ..data.masks import palette
from ..results.store import Group, Result, has_classes
from .figure import Styles

REASONS = {
    "mistake": "Most certain mistakes",
    "uncertain": "Most uncertain examples",
    "worst": "Images with the most mistakes",
    "unsure": "Most uncertain images",
}

MAPS = {"truth": "True classes", "label": "Given classes", "total": "Total uncertainty", "epistemic": "Epistemic"}
HEAT = np.array([[243, 247, 252], [33, 102, 172]])  # from pale to dark, as all shades of the page


def group_examples(groups: list[Group], styles: Styles) -> list[dict[str, Any]]:
    """The examples of each label's first run that stored some: most certain mistakes and most uncertain ones."""
    found = []
    for group in groups:
        run = next((run for run in group.runs if run.columns.get("examples/index", np.empty(0)).size), None)
        if run is None:
            continue
        kinds: dict[str, list[dict[str, Any]]] = {}
        for place in range(len(run.columns["examples/index"])):
            reason = _at(run, "examples/reason", place) or "uncertain"
            kinds.setdefault(REASONS.get(reason, reason), []).append(_example(run, place))
        found.append({"label": group.label, "style": styles[group.label], "kinds": kinds})
    return found


def _example(run: Result, place: int) -> dict[str, Any]:
    row = int(run.columns["examples/index"][place])
    images = run.columns.get("examples/pictures")
    image = png_address(images[place]) if images is not None and len(images) > place else ""
    text = _at(run, "examples/text", place)
    if run.record["task"] == "segmentation":
        maps = {"Image": image, **_maps(run, place)} if image else {}
        return {"maps": maps, "words": text, "image": "", "text": "", "row": str(row)}
    if has_classes(run.record["task"]):
        true, given = (_class(run, f"test/{name}", row) for name in ("target", "label"))
        sure = _at(run, "test/confidence", row)
        words = f"{true} mistaken for {given}" if true != given else f"{true}, recognised"
        words += f", confidence {100 * float(sure):.1f} %" if sure else ""
    else:
        numbers = [float(_at(run, f"test/{name}", row) or "nan") for name in ("target", "mean", "total")]
        words = f"true {numbers[0]:.4g}, predicted {numbers[1]:.4g} ± {math.sqrt(max(numbers[2], 0)):.2g}"
    return {"maps": {}, "words": words, "image": image, "text": text, "row": str(row)}


def _maps(run: Result, place: int) -> dict[str, str]:
    """Pictures of the true and the given classes, and of uncertainty."""
    shades = np.linspace(HEAT[0], HEAT[1], 256).round().astype(np.uint8)
    found = {}
    for name, title in MAPS.items():
        maps = run.columns.get(f"examples/{name}_map")
        if maps is not None and len(maps) > place:
            colours = palette() if name in ("truth", "label") else shades
            found[title] = png_address(colours[np.asarray(maps[place], dtype=np.uint8)])
    return found


def class_colours(classes: list[str]) -> list[tuple[str, str]]:
    """The names of classes with the colours that pictures give them."""
    return [(name, "#{:02x}{:02x}{:02x}".format(*colour)) for name, colour in zip(classes, palette(), strict=False)]


def _at(run: Result, name: str, place: int) -> str:
    column = run.columns.get(name)
    return str(np.ravel(column)[place]) if column is not None and column.size > place else ""


def _class(run: Result, name: str, row: int) -> str:
    number, names = _at(run, name, row), run.record.get("classes") or []
    return str(names[int(number)]) if number.isdecimal() and int(number) < len(names) else number


def png_address(pixels: np.ndarray) -> str:
    """An image, (height, width) or (height, width, 3) of bytes, as a data address."""
    image = require("PIL.Image", "report", "report").fromarray(np.ascontiguousarray(pixels, dtype=np.uint8))
    content = io.BytesIO()
    image.save(content, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(content.getvalue()).decode()
