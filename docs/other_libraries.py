"""Check the table of docs/other-libraries.md against the wheels in a folder: python docs/other_libraries.py WHEELS."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pluribus as pb

PAGE = Path(__file__).parent / "other-libraries.md"
SOURCE = Path(pb.__file__).parent
WHEELS = ["torch_uncertainty", "probly", "laplace_torch", "mapie", "lightning_uq_box"]
TOKEN = re.compile(r"`([^`]+)`")


def main(folder: Path) -> int:
    """Print every cell that is not true, and return how many there are."""
    sources = [ours(), *(wheel(folder, name) for name in WHEELS)]
    wrong = 0
    for fact, searched, *cells in rows():
        for name, source, cell in zip(["pluribus", *WHEELS], sources, cells, strict=True):
            found = faults(searched, cell, source)
            wrong += bool(found)
            print(*(f"{fact}, {name}: {fault}\n" for fault in found), sep="", end="")
    newer = [line for name in WHEELS if (line := newer_release(folder, name))]
    print(*newer, f"{wrong} cells are wrong, {len(newer)} releases are newer than described", sep="\n")
    return wrong + len(newer)


def faults(searched: str, cell: str, source: dict[str, str]) -> list[str]:
    """Say what is not true of a cell: a dash where the words occur, or a name that is not there."""
    if cell == "-":
        pattern = re.compile("|".join(TOKEN.findall(searched)), re.I)
        return [f"the words occur in {path}" for path in seen(pattern, source)]
    return [f"{token} is not there" for token in TOKEN.findall(cell) if not defined(token, source)]


def newer_release(folder: Path, name: str) -> str:
    """Say which release is out, if it is not the one in the folder or the page does not describe that one."""
    version = next(folder.glob(f"{name}-*.whl")).name.split("-")[1]
    heading = next(line for line in PAGE.read_text().splitlines() if line.startswith("| | searched for"))
    if f" {version} |" not in heading:
        return f"{name}: the wheel is {version}, which the page does not describe"
    asked = [sys.executable, "-m", "pip", "index", "versions", name, "--python-version", "3.13", "--only-binary=:all:"]
    newest = re.search(r"\(([^)]+)\)", subprocess.run(asked, capture_output=True, text=True, check=True).stdout)
    if newest is None or newest[1] == version:
        return ""
    return f"{name}: {newest[1]} is out, the page describes {version}"


def rows() -> list[list[str]]:
    """Give the cells of each line of the table."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")][1:]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def wheel(folder: Path, name: str) -> dict[str, str]:
    """Give the Python files of a wheel, and its commands, by path."""
    with zipfile.ZipFile(next(folder.glob(f"{name}-*.whl"))) as archive:
        paths = [p for p in archive.namelist() if p.endswith((".py", "entry_points.txt")) and "/tests/" not in p]
        return {path: archive.read(path).decode() for path in paths}


def ours() -> dict[str, str]:
    """Give our own files."""
    return {f"pluribus/{p.relative_to(SOURCE)}": p.read_text() for p in SOURCE.rglob("*.py")}


def seen(pattern: re.Pattern, source: dict[str, str]) -> list[str]:
    """Name the files in which the words occur."""
    return [path for path, text in source.items() if pattern.search(text)]


def defined(token: str, source: dict[str, str]) -> bool:
    """Tell whether a name of ours is there, a class or function is defined, or another word occurs."""
    module, _, name = token.rpartition(".")
    if module:
        return hasattr(pb if module == "pb" else getattr(pb, module), name)
    definition = re.compile(rf"^(class|def) {token}\b" if token.isidentifier() else re.escape(token), re.M)
    return any(definition.search(text) for text in source.values())


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])) > 0)
