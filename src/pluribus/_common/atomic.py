"""Write, then replace: a file is there whole, or as it was before."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

HERE = hashlib.sha256(platform.node().encode()).hexdigest()[:8]  # a folder may be shared by machines

PART = re.compile(r"\..+\.pluribus-([0-9a-f]{8})-([0-9]+)-[0-9a-f]{8}")

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
    temporary = path.with_name(f".{path.name}.pluribus-{HERE}-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())  # or a power cut could leave an empty file under the new name
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def remove_stale_parts(folder: Path) -> None:
    """Remove what processes of ours that are gone left in a folder while they were writing; nothing else."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            found = PART.fullmatch(entry.name)
            if found and entry.is_file(follow_symlinks=False) and _is_stale(entry, found[1], int(found[2])):
                with suppress(OSError):
                    os.unlink(entry.path)


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
