"""What a study remembers of its files: a mark of what is in them, whenever they were written."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from ..data.catalogue import locate
from ..data.image_folders import is_image, walk_once

ALWAYS_READ = 2**31  # bytes of one data set; of more, a file that has not changed since it was read is not read again

LARGEST_IMAGE = 2**28  # bytes

SETTLED = 2.0  # seconds after which a file that is changed once more has another time than before

CACHE_VARIABLE = "XDG_CACHE_HOME"


def fingerprints(
    data: Sequence[str], source: Mapping[str, Any], model: str | None, weights: str = ""
) -> dict[str, str]:
    """A mark of each file or folder that a study reads: another content, another mark."""
    specs = [*data, *(spec for key in ("outside", "shifted", "variants") for spec in source.get(key, ()))]
    paths = [path for spec in specs for path in locate(spec, source.get("folder"))]
    images = {path for spec in specs if spec.startswith("folder:") for path in locate(spec, source.get("folder"))}
    if model and model.startswith("python:"):
        paths += [path for path in [Path(model.split(":")[1])] if path.is_file()]
    if model and model.startswith("hf:"):
        paths += [path for path in [Path(model[3:]).expanduser()] if path.is_dir()]
    paths += [path for path in [Path(weights)] if weights and path.is_file()]
    return {str(path): _mark(path, path in images) for path in paths}


def _mark(path: Path, images: bool) -> str:
    """Of names, sizes and contents; of no times, so that a file that is touched but equal keeps its mark."""
    files = [(file, file.stat()) for file in _files(path, images) if file.is_file()]
    known = _Known() if sum(status.st_size for _, status in files) > ALWAYS_READ else None
    digest = hashlib.sha256()
    for file, status in files:
        digest.update(b"%s %d 0\n" % (os.fsencode(file.relative_to(path)), status.st_size))
        digest.update(_digest(file) if known is None else known.digest(file, status))
    if known is not None:
        known.store()
    return digest.hexdigest()[:16]


def _files(path: Path, images: bool) -> Iterator[Path]:
    """The files that a reader of data could read: images anywhere, others up to one folder deep and not behind links.

    A link may lead to a folder of half a disk, of which only images are read.

    Args:
        images: whether the reader reads nothing else anywhere
    """
    if path.is_file():
        yield path
        return
    for at, inside, names in walk_once(path, []):
        others = not images and (not inside or len(inside) == 1 and not os.path.islink(at))
        yield from (Path(at) / name for name in names if others or is_image(name))


def _digest(file: Path) -> bytes:
    with open(file, "rb") as stream:
        if is_image(file.name):  # of which nothing more can be decoded
            return hashlib.sha256(stream.read(LARGEST_IMAGE)).digest()
        return hashlib.file_digest(stream, "sha256").digest()


class _Known:
    """Digests of files that were read before, in the user's cache; without a cache, every file is read again.

    A file is known by its path, number, size and both of its times: no program sets the time of the last change.
    """

    def __init__(self) -> None:
        self.new: list[tuple[str, str, bytes]] = []
        self.old: dict[str, tuple[str, bytes]] = {}
        with suppress(sqlite3.Error, OSError, RuntimeError), closing(self._open()) as cache:
            rows = cache.execute("SELECT path, state, digest FROM files WHERE typeof(digest) = 'blob'")
            self.old = {path: (state, digest) for path, state, digest in rows}

    def digest(self, file: Path, status: os.stat_result) -> bytes:
        """What is in the file, read only where it may have changed."""
        path = os.path.abspath(file)
        key = os.fsencode(path).decode("latin-1")
        parts = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        state, started = " ".join(map(str, parts)), time.time()
        if self.old.get(key, ("", b""))[0] == state:
            return self.old[key][1]
        found = _digest(file)
        if started - max(status.st_mtime, status.st_ctime) > SETTLED:
            self.new.append((key, state, found))
        return found

    def store(self) -> None:
        """Remember what was read."""
        with suppress(sqlite3.Error, OSError, RuntimeError), closing(self._open()) as cache, cache:
            cache.executemany("INSERT OR REPLACE INTO files VALUES (?, ?, ?)", self.new)

    def _open(self) -> sqlite3.Connection:
        home = Path(os.environ.get(CACHE_VARIABLE) or Path.home() / ".cache") / "pluribus"
        home.mkdir(parents=True, exist_ok=True)
        cache = sqlite3.connect(home / "contents.sqlite", timeout=10)
        cache.execute("CREATE TABLE IF NOT EXISTS files (path TEXT PRIMARY KEY, state TEXT, digest BLOB)")
        return cache
