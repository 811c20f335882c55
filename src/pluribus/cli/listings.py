"""What is known: `pluribus data`, `pluribus recipes` and `pluribus cite`."""

from __future__ import annotations

import json
import os
from typing import Annotated

import typer
from rich.table import Table

from .._common.names import say_unknown
from .common import options
from .common.messages import safe_text, screen


def data_command(
    data_dir: options.Folder = None,
    as_json: options.AsJson = False,
) -> None:
    """List the known data sets, where Pluribus looks for them, and which of them are there."""
    from ..data.catalogue import DATA
    from ..data.source import data_folder

    place = data_folder(data_dir)
    rows = [
        {
            "name": name,
            "here": "built in" if not source.files else str(source.found(place) or "no"),
            "role": source.role,
            "what": source.description,
            "files": list(source.files),
            "from": source.page,
        }
        for name, source in DATA.items()
    ]
    if as_json:
        print(json.dumps({"folder": str(place), "data": rows}, indent=1))
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("name", "here", "what", "from"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        here = row["here"].replace(str(place) + os.sep, "") if isinstance(row["here"], str) else ""
        table.add_row(*(safe_text(str(text or "")) for text in (row["name"], here, row["what"], row["from"])))
    show = screen()
    show.print(table)
    show.print(
        f"searched in {safe_text(str(place))}; choose another folder with --data-dir or PLURIBUS_DATA", soft_wrap=True
    )


def recipes_command() -> None:
    """List the training settings of the papers, by name."""
    from ..training.recipes import RECIPES

    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("name", "epochs", "batch", "optimizer", "rate", "from"):
        table.add_column(name)
    for name, one in RECIPES.items():
        table.add_row(name, str(one.epochs), str(one.batch_size), one.optimizer["name"], f"{one.lr:g}", one.source)
    screen().print(table)


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
