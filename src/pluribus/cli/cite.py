"""`pluribus cite`: the papers behind the methods, for a bibliography."""

from __future__ import annotations

from typing import Annotated

import typer

from .._common.names import say_unknown


def cite_command(
    methods: Annotated[list[str] | None, typer.Argument(help="The methods; by default all of them.")] = None,
) -> None:
    """Print the papers behind the methods in BibTeX, each once.

    Examples:

        pluribus cite

        pluribus cite packed mimo >> references.bib
    """
    from ..methods import METHODS
    from ..methods.facts import facts_of

    for name in methods or ():
        if name not in METHODS:
            raise ValueError(f"cite: the method {say_unknown(name, METHODS)}")
    papers = [facts_of(METHODS[name]).paper for name in methods or METHODS]
    print("\n\n".join(dict.fromkeys(paper.bibtex for paper in papers if paper is not None)))
