"""Docstrings on the pages of the reference: examples, which begin with >>>, as blocks of code, and shapes as a list."""

import re
from typing import Any

import griffe

BLOCK = re.compile(r"^>>> .*(?:\n.+)*", re.M)
TOGETHER = re.compile(r"^[ ]{4}(\w+(?:, \w+)+):(.*(?:\n[ ]{5,}.+)*)", re.M)
SHAPES = re.compile(r"^Shapes:(.*(?:\n[ ]{4}.+)*)", re.M)


class DoctestBlocks(griffe.Extension):
    """Puts a fence around each example and a point before each shape; arguments told together get a row each."""

    def on_object(self, *, obj: griffe.Object, **rest: Any) -> None:
        """Change the docstring before it is read."""
        if obj.docstring is not None and "```" not in obj.docstring.value:
            text = SHAPES.sub(lambda found: "**Shapes**\n\n" + points(found[1]), obj.docstring.value)
            text = TOGETHER.sub(lambda found: "\n".join(f"    {n}:{found[2]}" for n in found[1].split(", ")), text)
            obj.docstring.value = BLOCK.sub(lambda found: f"```pycon\n{found[0]}\n```", text)


def points(shapes: str) -> str:
    """Give the lines as points of a list; a line that is indented further goes on with the one before."""
    return re.sub(r"^[ ]{4}(?=\S)", "- ", shapes.strip("\n"), flags=re.M) if "\n" in shapes else f"- {shapes.strip()}"
