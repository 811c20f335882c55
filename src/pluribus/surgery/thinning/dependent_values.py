"""Numbers and tables that follow from a width without being one: its root, its inverse, a table of sines."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping

from torch import nn

from ..initialization import is_random
from .attributes import Attribute, named_tensors

LEAST = 8  # the smallest width whose root is told from other numbers

OTHERS = re.compile("drop|prob|momentum|eps|rate|temperature|slope|decay|^p$|std|loss|smooth|thresh|weight|noise")

FORMS = {  # what a model may compute from a width
    "the root": lambda width: math.sqrt(width),
    "the inverse of the root": lambda width: 1 / math.sqrt(width),
    "the inverse": lambda width: 1 / width,
    "the value": lambda width: float(width),
}


def follow_floats(
    model: nn.Module, own: Mapping[str, Mapping[int, set[int]]], known: Collection[Attribute]
) -> tuple[list[Attribute], list[str]]:
    """The floats of modules that are a simple function of one width of theirs, for the new width, and notes.

    Args:
        own: for each module the sizes of its tensors, and what becomes of them
        known: attributes that change already
    """
    taken = {(attribute.module, attribute.path[0]) for attribute in known}
    found: list[Attribute] = []
    notes: list[str] = []
    for path, module in model.named_modules():
        for key, value in vars(module).items():
            if type(value) is not float or (path, key) in taken or OTHERS.search(key):
                continue
            forms = _forms(value, own.get(path, {}))
            if not forms:
                continue
            place = f"{key!r} of module {path!r}"
            if len({new for _, _, new in forms}) > 1:
                notes.append(f"{place} stays {value:g}, although it may follow from a width that changes")
            elif (new := forms[0][2]) != value:
                found.append(Attribute(path, None, (key,), new))
                notes.append(f"{place} follows as {forms[0][0]} of the width {forms[0][1]}: {value:g} becomes {new:g}")
    return found, notes


def _forms(value: float, sizes: Mapping[int, set[int]]) -> list[tuple[str, int, float]]:
    """The ways in which the value follows from one of the sizes: form, width and new value."""
    return [
        (name, width, form(after))
        for width, new in sizes.items()
        for name, form in FORMS.items()
        for after in new
        if width >= LEAST and math.isclose(value, form(width), rel_tol=1e-6)
    ]


def note_ranked(sizes: Collection[int]) -> list[str]:
    """A line for each size whose entries the model ranks, as a router does that chooses among experts."""
    return [f"{size} outputs that the model ranks (argmax, topk) stay {size}" for size in sorted(sizes)]


def note_tables(model: nn.Module, sizes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """A line for each table (positions, frequencies) of which evenly spaced entries are kept."""
    cut = [
        name
        for name, tensor in named_tensors(model).items()
        if tuple(tensor.shape) != sizes[name] and tensor.is_floating_point() and not tensor.is_meta
        and bool((tensor != tensor.flatten()[0]).any()) and not is_random(tensor)
    ]  # fmt: skip
    return [f"the table {name!r} keeps evenly spaced entries, with pairs of sines and cosines together" for name in cut]
