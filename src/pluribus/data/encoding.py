"""How rows of files become inputs, as plain JSON that nobody vouches for: what it must be before it is used."""

from __future__ import annotations

from typing import Any

from .._common.untrusted import Finite, check_shape
from .source import MOST_COLUMNS
from .tables import feature_names
from .texts import TEXT_COLUMN

_SCALED = {
    "name": str, "kind": str, "mean": Finite, "std": Finite, "missing": bool, "knots?": [Finite], "scores?": [Finite],
    "bins?": [Finite],
}  # fmt: skip

_CATEGORY = {"name": str, "kind": str, "levels": [str]}
_TARGETS = {"task": str, "classes": [str]}
IMAGES = {"kind": str, "shape": [int], **_TARGETS}
TABLE = {"kind": str, "target": (str, [str]), "columns": [{"name": str, "kind": str}], "missing?": [str], **_TARGETS}
TABLE_TASKS = ("classification", "regression", "multilabel")
LARGEST_SIDE = 2**14  # pixels of an image that is made of another


def check_encoding(encoding: Any) -> None:
    """Refuse an encoding that `load` never gives."""
    check_shape(encoding, {"kind": str, **_TARGETS}, "the encoding")
    tasks = {"images": ("classification", "regression", "segmentation"), "table": TABLE_TASKS}
    if encoding["task"] not in tasks.get(encoding["kind"], ()):
        raise ValueError(f"the encoding has an unknown kind, {encoding['kind']!r}, {encoding['task']!r}")
    if encoding["kind"] == "images":
        check_shape(encoding, IMAGES, "the encoding")
        shape = encoding["shape"]
        if len(shape) != 3 or shape[0] not in (1, 3, 4) or not all(1 <= side <= LARGEST_SIDE for side in shape):
            raise ValueError(f"the encoding has the shape {shape}, which images cannot have")
        if encoding["task"] == "segmentation":
            check_shape(encoding, {"values": [int]}, "the encoding")
            values = encoding["values"]
            if len(values) != len(encoding["classes"]) or not all(0 <= value < 256 for value in values):
                raise ValueError("the encoding must have a number below 256 for each class of masks")
        return
    check_shape(encoding, TABLE, "the encoding")
    for column in encoding["columns"]:
        _check_column(column)
    if len(encoding["columns"]) > 1 and any(column["kind"] == "text" for column in encoding["columns"]):
        raise ValueError("the encoding has columns besides the texts")
    _check_targets(encoding)
    if not 1 <= len(feature_names(encoding)) <= 100 * MOST_COLUMNS:
        raise ValueError("the encoding has no columns, or too many")


def _check_targets(encoding: dict[str, Any]) -> None:
    several = not isinstance(encoding["target"], str)
    count = len(encoding["target"]) if several else 1
    if encoding["task"] == "regression":
        check_shape(
            encoding, dict.fromkeys(("target_mean", "target_std"), [Finite] if several else Finite), "its target"
        )
        fits = not several or len(encoding["target_mean"]) == len(encoding["target_std"]) == count > 0
    elif encoding["task"] == "multilabel":
        check_shape(encoding, {"values": [[str]]}, "the encoding")
        fits = several and [len(pair) for pair in encoding["values"]] == count * [2] != []
    else:
        fits = not several
    if not fits:
        raise ValueError(f"the encoding does not have what {count} targets of {encoding['task']} need")


def _check_column(column: dict[str, Any]) -> None:
    where = f'the encoding, column "{column["name"]}"'
    shapes = {"category": _CATEGORY, "text": TEXT_COLUMN, "number": _SCALED, "flag": _SCALED, "date": _SCALED}
    if column["kind"] not in shapes:
        raise ValueError(f"{where}: the kind {column['kind']!r} is unknown")
    check_shape(column, shapes[column["kind"]], where)
    if column["kind"] == "text" and not 1 <= column["length"] <= column["most"] <= LARGEST_SIDE:
        raise ValueError(f"{where}: {column['length']} of {column['most']} tokens make no sense")
    knots = column.get("knots", [])
    if len(knots) != len(column.get("scores", [])) or sorted(set(knots)) != knots:
        raise ValueError(f"{where}: its knots must increase, with a score for each")
    bins = column.get("bins", [0.0, 1.0])
    if len(bins) < 2 or sorted(set(bins)) != bins:
        raise ValueError(f"{where}: its bins must increase")


def encoded_shape(encoding: dict[str, Any]) -> tuple[int, ...]:
    """The shape of one input."""
    return tuple(encoding["shape"]) if encoding["kind"] == "images" else (len(feature_names(encoding)),)
