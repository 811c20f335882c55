"""Examples in docstrings, which begin with >>>, as blocks of code on the pages of the reference."""

import re
from typing import Any

import griffe

BLOCK = re.compile(r"^>>> .*(?:\n.+)*", re.M)


class DoctestBlocks(griffe.Extension):
    """Puts a fence around each example."""

    def on_object(self, *, obj: griffe.Object, **rest: Any) -> None:
        """Change the docstring before it is read."""
        if obj.docstring is not None and "```" not in obj.docstring.value:
            obj.docstring.value = BLOCK.sub(lambda found: f"```pycon\n{found[0]}\n```", obj.docstring.value)
