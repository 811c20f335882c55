"""What a command says on the side: consoles, notes about the data, and how to go on after Ctrl-C."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..._common.untrusted import printable

WIDE = 150  # columns, where the output is no terminal
LONGEST = 2500  # letters of a message: a file can give things any name
INTERRUPTED = 130  # what shells give for Ctrl-C
messages = Console(stderr=True, highlight=False, emoji=False)


def screen(stderr: bool = False) -> Console:
    """A console that is as wide as the terminal, or wide enough for a table in a file."""
    console = Console(stderr=stderr, highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = WIDE
    return console


def say(what: str, text: str) -> None:
    """Write a line to stderr: what it is, and a text in which names from files can do no harm."""
    text = text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
    one_line = safe_text(text).replace("\n", "\\n")  # names of files may hold several
    messages.print(f"{what} {one_line}", soft_wrap=not messages.is_terminal)


def say_lines(console: Console, texts: Iterable[str]) -> None:
    """Write sentences: on a terminal lines break between words, in a file each sentence is a line."""
    for text in texts:
        console.print(safe_text(text), soft_wrap=not console.is_terminal)


def safe_text(text: str) -> str:
    """A text that rich writes as it is, and in which no letter steers the terminal."""
    return escape(printable(text))


def plain_table(head: Sequence[str], rows: Iterable[Sequence[str]], **column: Any) -> Table:
    """A table without lines; `column` as rich has it, for all columns."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in head:
        table.add_column(name, **column)
    for row in rows:
        table.add_row(*map(safe_text, row))
    return table


def next_prediction(out: Path, record: Mapping[str, Any], *more: str) -> str:
    """The command that asks a predictor; code of its network is named, since a folder cannot name it."""
    code = ["--model", record["model"]] if record["model"].startswith("python:") else []
    return shlex.join(["pluribus", "predict", str(out), *code, *more, "FILES"])


def say_notes(notes: Iterable[str]) -> None:
    """Say what was decided about the data."""
    for note in notes:
        say("[yellow]note:[/]", note)


def timed_lines(silent: bool) -> Callable[[str], None]:
    """What says a line with the seconds since now; nothing where the command is to be silent."""
    started = time.monotonic()

    def tell(text: str) -> None:
        if not silent:
            messages.print(f"{time.monotonic() - started:5.0f} s  {safe_text(text)}", soft_wrap=True)

    return tell


def check_writable(command: str, *paths: Path | None) -> None:
    """Refuse a file that could not be written, before anything is computed."""
    for path in paths:
        if path is None:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir() or not os.access(path.parent, os.W_OK):
            raise ValueError(f"{command}: {str(path)!r} cannot be written. Choose a file in another folder.")


@contextmanager
def say_how_to_go_on(kept: Callable[[], str]) -> Iterator[None]:
    """On Ctrl-C say what is kept, and end the command."""
    try:
        yield
    except KeyboardInterrupt:
        say("stopped;", f"{kept()}. Run the same command to resume.")
        raise typer.Exit(INTERRUPTED) from None
