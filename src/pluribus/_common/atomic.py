"""Write, then replace: a file is there whole, or as it was before."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ModuleNotFoundError:  # Windows
    fcntl = None  # type: ignore[assignment]


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A new path beside `path` to write to; the file written there takes the place of `path` at the end.

    If anything fails, or the process is interrupted, `path` stays as it was and nothing is left beside it. A process
    that is killed leaves a file whose name begins with a dot and says pluribus.

    >>> with atomic_write("settings.json") as temporary:
    ...     temporary.write_text("{}")
    2
    >>> Path("settings.json").read_text()
    '{}'
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.pluribus-{secrets.token_hex(8)}")
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())  # or a power cut could leave an empty file under the new name
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def check_place(caller: str, path: Path) -> None:
    """Refuse a path where no file can be written: its folder is missing, or it is a folder itself."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{caller}: the folder {str(path.parent)!r} does not exist. Create it first.")
    if path.is_dir():
        raise IsADirectoryError(f"{caller}: {str(path)!r} is a folder. Give the name of a file in it.")


def refuse_links(caller: str, folder: Path, *names: str) -> None:
    """Refuse a folder in which one of these, in which files are to be written, is a link to elsewhere."""
    if found := next((folder / name for name in names if (folder / name).is_symlink()), None):
        raise ValueError(
            f"{caller}: {str(found)!r} is a link, and nothing is written outside of the folder. Remove the link, or "
            "give the place that it leads to as --out."
        )


@contextmanager
def only_process(caller: str, folder: Path) -> Iterator[None]:
    """Refuse a folder that another process is writing to; the system ends the claim of one that dies."""
    if fcntl is None:
        yield
        return
    claimed = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(claimed, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"{caller}: another process is writing to {str(folder)!r}. Wait for it, or choose another --out."
            ) from None
        yield
    finally:
        os.close(claimed)


def move_aside(path: Path) -> None:
    """Move a folder out of the way where a file should be; its content may be somebody's."""
    if path.is_dir() and not path.is_symlink():
        path.rename(next(to for i in range(1000) if not (to := path.with_name(f"{path.name}.damaged-{i}")).exists()))
