"""How rows of files become inputs, as plain JSON that nobody vouches for: what it must be before it is used."""

from __future__ import annotations

import itertools
from typing import Any

from .._common.untrusted import Finite, check_shape
from .source import MOST_COLUMNS
from .tables import feature_names
from .texts import LONG, TEXT_COLUMN

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
    several = None if isinstance(encoding["target"], str) else len(encoding["target"])
    if encoding["task"] == "classification" and several is not None:
        raise ValueError("the encoding has several targets, but one set of classes")
    if encoding["task"] == "multilabel":
        check_shape(encoding, {"target": [str], "values": [[str]]}, "the encoding")
        if not several or [len(pair) for pair in encoding["values"]] != several * [2]:
            raise ValueError("the encoding must have two values for each label")
    elif encoding["task"] == "regression":
        kind = Finite if several is None else [Finite]
        check_shape(encoding, {"target_mean": kind, "target_std": kind}, "the encoding")
        mean, std = ([encoding[key]] if several is None else encoding[key] for key in ("target_mean", "target_std"))
        if not len(mean) == len(std) == (several or 1) or min(std, default=0) <= 0:
            raise ValueError("the encoding has a target_std that is not above 0, or not one for each target")


def _check_column(column: dict[str, Any]) -> None:
    where = f'the encoding, column "{column["name"]}"'
    if column["kind"] == "category":
        return check_shape(column, _CATEGORY, where)
    if column["kind"] == "text":
        check_shape(column, TEXT_COLUMN, where)
        if not 1 <= column["length"] <= column["most"] <= LARGEST_SIDE or column["long"] not in LONG:
            raise ValueError(f"{where}: {column['length']} of {column['most']} tokens make no sense")
        return None
    if column["kind"] not in ("number", "flag", "date"):
        raise ValueError(f"{where}: the kind {column['kind']!r} is unknown")
    check_shape(column, _SCALED, where)
    if column["std"] <= 0:
        raise ValueError(f"{where}: its std must be above 0, but is {column['std']}")
    knots = column.get("knots", [0.0])
    if len(knots) != len(column.get("scores", [0.0])) or any(a >= b for a, b in itertools.pairwise(knots)) or not knots:
        raise ValueError(f"{where}: its knots must increase, with a score for each")
    bins = column.get("bins", [0.0, 1.0])
    if len(bins) < 2 or any(a >= b for a, b in itertools.pairwise(bins)):
        raise ValueError(f"{where}: its bins must increase")


def encoded_shape(encoding: dict[str, Any]) -> tuple[int, ...]:
    """The shape of one input."""
    return tuple(encoding["shape"]) if encoding["kind"] == "images" else (len(feature_names(encoding)),)
