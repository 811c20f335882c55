"""Examples on the page: what each method was surest of and got wrong, and what it was least sure of."""

from __future__ import annotations

import base64
import io
import math
from typing import Any

import numpy as np

from .._common.optional import require
from ..results.store import Group, Result
from .figure import Styles

REASONS = {"mistake": "Most certain mistakes", "uncertain": "Most uncertain examples"}


def group_examples(groups: list[Group], styles: Styles, top: Group | None) -> list[dict[str, Any]]:
    """The examples of each label's first run that stored some: most certain mistakes and most uncertain ones."""
    found = []
    for group in groups:
        run = next((run for run in group.runs if run.columns.get("examples/index", np.empty(0)).size), None)
        if run is None:
            continue
        kinds: dict[str, list[dict[str, str]]] = {}
        for place in range(len(run.columns["examples/index"])):
            reason = _at(run, "examples/reason", place) or "uncertain"
            kinds.setdefault(REASONS.get(reason, reason), []).append(_example(run, place))
        found.append({"label": group.label, "style": styles[group.label], "open": group is top, "kinds": kinds})
    return found


def _example(run: Result, place: int) -> dict[str, str]:
    row = int(run.columns["examples/index"][place])
    if run.record["task"] == "classification":
        true, given = (_class(run, f"test/{name}", row) for name in ("target", "label"))
        sure = _at(run, "test/confidence", row)
        words = f"{true} mistaken for {given}" if true != given else f"{true}, recognised"
        words += f", confidence {100 * float(sure):.1f} %" if sure else ""
    else:
        numbers = [float(_at(run, f"test/{name}", row) or "nan") for name in ("target", "mean", "total")]
        words = f"true {numbers[0]:.4g}, predicted {numbers[1]:.4g} ± {math.sqrt(max(numbers[2], 0)):.2g}"
    images = run.columns.get("examples/pictures")
    image = png_address(images[place]) if images is not None and len(images) > place else ""
    return {"words": words, "image": image, "text": _at(run, "examples/text", place), "row": str(row)}


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
