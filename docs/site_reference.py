"""What the site's reference takes from the code: the page of the commands, and a table of the names of each part."""

import importlib
import inspect
import re
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import typer
from mkdocs.structure.files import File, Files

from pluribus.cli.app import app

PAGE = "reference/commands.md"
EXITS = "Exit codes: 0 done, 1 some runs failed or the machine did, 2 bad input, 130 stopped by Ctrl-C."
NAME = re.compile(r"(?m)^::: (?P<path>\S+)\n    options:\n      heading: (?P<name>\S+)\n")


def on_files(files: Files, config: Any) -> Files:
    """Add the page of the commands."""
    files.append(File.generated(config, PAGE, content=commands()))
    return files


def commands() -> str:
    """Every command with its arguments and options, as its `--help` describes them."""
    group: Any = typer.main.get_command(app)
    context = typer.Context(group)
    found = {name: group.get_command(context, name) for name in group.list_commands(context)}
    lines = ["# Commands", "", f"`pluribus COMMAND --help` prints the same in the terminal. {EXITS}", ""]
    lines += ["| command | what it does |", "|---|---|"]
    lines += [f"| [`pluribus {name}`](#pluribus-{name}) | {sentence(one.help)} |" for name, one in found.items()]
    for name, one in found.items():
        usage = " ".join(one.collect_usage_pieces(typer.Context(one)))
        lines += ["", f"## pluribus {name}", "", f"`pluribus {name} {usage}`", "", inspect.cleandoc(one.help or ""), ""]
        lines += ["| argument or option | what it means |", "|---|---|"]
        records = [option.get_help_record(typer.Context(one)) for option in one.params if not option.hidden]
        lines += [f"| `{names}` | {escaped(meaning)} |" for names, meaning in records]
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """A text that stays in its cell of a table, and shows its brackets outside of code."""
    words, codes = (" ".join(text.split()).split("`")[start::2] for start in (0, 1))
    words = [re.sub(r"([|\[\]<>*_])", r"\\\1", part) for part in words]
    codes = [f"`{part}`".replace("|", "\\|") for part in codes]
    return "".join(part for pair in zip_longest(words, codes, fillvalue="") for part in pair)


def sentence(text: str | None) -> str:
    """The first sentence of a docstring."""
    first = " ".join(inspect.cleandoc(text or "").partition("\n\n")[0].split())
    return re.split(r"(?<=[.:])\s(?=[A-Z])", first)[0].replace("|", "\\|")


def on_page_markdown(markdown: str, page: Any, **rest: Any) -> str:
    """Begin each part of a reference page with a table of its names."""
    if not page.file.src_uri.startswith("reference/"):
        return markdown
    return "".join(with_table(part) for part in parts(markdown))


def parts(markdown: str) -> list[str]:
    """Divide a page before each heading of the second level."""
    return re.split(r"(?m)^(?=## )", markdown)


def with_table(part: str) -> str:
    """A part with a table of its names after its first lines, if it has several."""
    rows = [*summaries(part)]
    if len(rows) < 3:
        return part
    first, names, rest = re.split(r"(?m)^(:::)", part, maxsplit=1)
    return "\n".join([first, "| name | what it gives |", "|---|---|", *rows, "", names + rest])


def summaries(part: str) -> Iterator[str]:
    """A line of the table for each name of a part."""
    for match in NAME.finditer(part):
        module, _, name = match["path"].rpartition(".")
        value = getattr(importlib.import_module(module), name)
        said = sentence(inspect.getdoc(value)) if callable(value) else f"A {type(value).__name__} by name."
        yield f"| [`{match['name']}`][{match['path']}] | {said} |"
