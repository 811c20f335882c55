"""Draw what `pluribus compare` prints into a terminal, from a finished study: python docs/terminal.py STUDY.

The command runs in a pseudo-terminal of its own, so that colours and columns are those that people see; the runs of the
study are kept, and the lines that say so are left out.
"""

import io
import os
import pty
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

COLUMNS = 100
TARGET = Path(__file__).resolve().parent / "images" / "terminal.svg"


def main(study: str) -> None:
    """Write docs/images/terminal.svg."""
    text = recorded([sys.executable, "-m", "pluribus", "compare", "--out", study])
    lines = [line for line in text.splitlines() if not re.search(r"kept|note:|Report:", line)]
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text("$ pluribus compare", style="bold"))
    for line in lines:
        console.print(Text.from_ansi(line.rstrip()))
    drawn = console.export_svg(title="pluribus compare", code_format=template(), unique_id="pluribus")
    TARGET.write_text("\n".join(line.rstrip() for line in drawn.splitlines()) + "\n")


def recorded(command: list[str]) -> str:
    """Give what the command prints into a terminal of COLUMNS columns, with its colours."""
    os.environ["COLUMNS"] = str(COLUMNS)
    parts = []

    def read(descriptor: int) -> bytes:
        part = os.read(descriptor, 1 << 16)
        parts.append(part)
        return part

    if pty.spawn(command, read):
        sys.exit("the command failed")
    return b"".join(parts).decode().replace("\r", "")


def template() -> str:
    """Give rich's picture without the fonts that it would fetch, and without addresses."""
    from rich._export_format import CONSOLE_SVG_FORMAT

    plain = re.sub(r"@font-face \{\{.*?\}\}|<!--.*?-->", "", CONSOLE_SVG_FORMAT, flags=re.S)
    return plain.replace("Fira Code", "ui-monospace")


if __name__ == "__main__":
    main(sys.argv[1])
