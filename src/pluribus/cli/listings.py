"""What is known: `pluribus data`, `pluribus recipes` and `pluribus cite`."""

from __future__ import annotations

import json
import os
from typing import Annotated, Any

import typer

from .._common.names import say_unknown
from .common import options
from .common.messages import plain_table, safe_text, screen


def data_command(data_dir: options.Folder = None, as_json: options.AsJson = False) -> None:
    """List the known data sets, where Pluribus looks for them, and which of them are there."""
    from ..data.catalogue import DATA
    from ..data.source import data_folder

    place = data_folder(data_dir)
    rows: list[dict[str, Any]] = [
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
    head, show = ("name", "here", "what", "from"), screen()
    shown = [row | {"here": row["here"].replace(str(place) + os.sep, "")} for row in rows]
    show.print(plain_table(head, [[row[name] or "" for name in head] for row in shown], overflow="fold"))
    show.print(
        f"Searched in {safe_text(str(place))}; choose another folder with --data-dir or PLURIBUS_DATA.", soft_wrap=True
    )


def recipes_command() -> None:
    """List the training settings of the papers, by name."""
    from ..training.recipes import RECIPES

    table = plain_table(("name", "epochs", "batch", "optimizer", "rate", "from"), [])
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
    from ..methods.method_info import info_of

    for name in methods or ():
        if name not in METHODS:
            raise ValueError(f"cite: the method {say_unknown(name, METHODS)}")
    papers = [info_of(METHODS[name]).paper for name in methods or METHODS]
    print("\n\n".join(dict.fromkeys(paper.bibtex for paper in papers if paper is not None)))
