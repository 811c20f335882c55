"""Write, then replace: a file is there whole, or as it was before."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ModuleNotFoundError:  # Windows
    fcntl = None  # type: ignore[assignment]

HERE = hashlib.sha256(platform.node().encode()).hexdigest()[:8]  # a folder may be shared by machines

PART = re.compile(r"(?:\..+\.)?pluribus-([0-9a-f]{8})-([0-9]+)-[0-9a-f]{8}(-folder)?")

DAY = 86400  # seconds after which a part is stale wherever it was written


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A new path beside `path` to write to; the file written there takes the place of `path` at the end.

    If anything fails, or the process is interrupted, `path` stays as it was and nothing is left beside it. What a
    killed process left there is removed by the next that writes to the folder.

    >>> with atomic_write("settings.json") as temporary:
    ...     temporary.write_text("{}")
    2
    >>> Path("settings.json").read_text()
    '{}'
    """
    path = Path(path)
    remove_stale_parts(path.parent)
    temporary = path.with_name(f".{path.name}.{_mark()}")
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())  # or a power cut could leave an empty file under the new name
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


@contextmanager
def temporary_folder(beside: Path | None = None) -> Iterator[Path]:
    """A new private folder, removed at the end; leftovers of our own killed processes are removed first.

    Args:
        beside: where something is to be moved to from there; by default the folder is where the system has such

    >>> with temporary_folder() as folder:
    ...     (folder / "work").touch()
    >>> folder.exists()
    False
    """
    place = Path(tempfile.gettempdir()) if beside is None else beside.parent
    remove_stale_parts(place)
    folder = place / f"{'' if beside is None else f'.{beside.name}.'}{_mark()}-folder"
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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


def remove_stale_parts(folder: Path) -> None:
    """Remove what our own processes were still writing to a folder when they died, and nothing else."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            found = PART.fullmatch(entry.name)
            if found and _is_stale(entry, found[1], int(found[2])):
                if found[3] and entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                elif not found[3] and entry.is_file(follow_symlinks=False):
                    with suppress(OSError):
                        os.unlink(entry.path)


def _mark() -> str:
    """What a part is recognised by once its process is gone."""
    return f"pluribus-{HERE}-{os.getpid()}-{secrets.token_hex(4)}"


def _is_stale(entry: os.DirEntry[str], machine: str, process: int) -> bool:
    if machine == HERE and not _is_alive(process):
        return True
    return time.time() - entry.stat(follow_symlinks=False).st_mtime > DAY


def _is_alive(process: int) -> bool:
    if os.name == "nt":  # asking would end the process
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # it belongs to somebody else
        return True
    return True
