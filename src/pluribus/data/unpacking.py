"""What a file that nobody vouches for may cost: memory and time, by its size, in one place.

A few bytes can ask for more of both than there is. Streams count what they give (`Bounded`) and how long they are read
(`Timed`); what a file only claims is held against the same limits before it is built (`check_claim`).
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import math
import os
import re
import time
import zipfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from .._common.signed_files import check_digest
from .._common.untrusted import is_disk_error, open_file

VARIABLE = "PLURIBUS_UNPACK_LIMIT"
ALWAYS = 2**29  # bytes that any file may unpack to
GROWTH = 20  # times its own size that a file may unpack to; images and tables shrink to a tenth at best
SECONDS, BYTES_A_SECOND = 5.0, 2**23  # of decoding; honest files need a tenth of it
MEMBERS = 10_000  # of an archive

Limit = int | str | None  # bytes, or a text such as "4G"; None: what `limit_for` says


TRUST = (
    "If you trust it, raise the limit with unpack_limit= (command line: --unpack-limit, such as 8G) or the "
    f"environment variable {VARIABLE}."
)


class TooLargeError(ValueError):
    """A file that unpacks to more than is allowed."""

    def __init__(self, path: Any, limit: int):
        allowed = f"{format_bytes(limit)}, the limit for a file of its size on this machine"
        super().__init__(f"{path}: it unpacks to more than {allowed}. {TRUST}")


class TooSlowError(ValueError):
    """A file that takes longer to decode than is allowed."""

    def __init__(self, path: Any, limit: float):
        super().__init__(f"{path}: it takes more than {limit:.0f} seconds, the limit for a file of its size. {TRUST}")


def limit_for(packed: int, given: Limit = None, always: int = ALWAYS) -> int:
    """How many bytes a file of `packed` bytes may unpack to.

    What is given, or the environment variable PLURIBUS_UNPACK_LIMIT; else 20 times its size, at least `always`, at
    most half of the memory.
    """
    given = given if given is not None else os.environ.get(VARIABLE)
    if given is not None:
        return parse_bytes(given)
    return min(memory() // 2, max(always, GROWTH * packed))


def seconds_for(packed: int, given: Limit = None) -> float:
    """How long a file of `packed` bytes may be decoded: 5 seconds of the processor, and one more for each 8 MB.

    Whoever raises the limit of bytes trusts the file.
    """
    trusted = given is not None or os.environ.get(VARIABLE) is not None
    return math.inf if trusted else SECONDS + packed / BYTES_A_SECOND


def check_claim(what: str, claimed: int, held: int) -> None:
    """Refuse what needs far more memory than the file that claims it holds: it may be 20 times that, or 537 MB."""
    if claimed > (allowed := limit_for(held)):
        raise ValueError(
            f"{what} of {format_bytes(claimed)} for weights of {format_bytes(held)}, but at most "
            f"{format_bytes(allowed)} are allowed. If you trust it, raise that with the environment variable {VARIABLE}"
        )


def parse_bytes(given: int | str) -> int:
    """A number of bytes: 4000000000, "4G", "500M".

    >>> parse_bytes("1.5G")
    1500000000
    """
    found = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([kMGT]?)B?", str(given).strip())
    size = float(found[1]) * {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}[found[2]] if found else 0.0
    if size < 1:
        raise ValueError(f"unpack_limit: must be a number of bytes such as 500M or 8G, but it is {given!r}.")
    return int(size)


def format_bytes(size: int) -> str:
    """A number of bytes for people.

    >>> format_bytes(536870912)
    '537 MB'
    """
    step = max(0, min(4, (len(str(size)) - 1) // 3))
    return f"{size / 1000**step:.3g} {('bytes', 'kB', 'MB', 'GB', 'TB')[step]}"


def memory() -> int:
    """Bytes of memory that this process may use: the machine's, or what its container or shell allows."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")] if hasattr(os, "sysconf") else [2**32]
    for place in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = Path(place).read_text().strip() if os.path.isfile(place) else ""
        found += [int(text)] if text.isdigit() else []
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return min(found)
    limits = [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    return min([*found, *(limit for limit in limits if limit != resource.RLIM_INFINITY)])


# ---------------------------------------------------------------- streams


class Bounded(io.RawIOBase):
    """A stream that stops with `TooLargeError` once it has given more than `limit` bytes.

    Args:
        check: called with each block before it is given on
    """

    def __init__(self, stream: Any, path: Any, limit: int, check: Callable[[bytes], None] = lambda block: None):
        self.stream, self.path, self.limit, self.check, self.given = stream, path, limit, check, 0

    def readable(self) -> bool:
        """Yes."""
        return True

    def readinto(self, target: Any) -> int:
        """Fill the target as far as there are bytes."""
        block = self.stream.read(min(len(target), self.limit + 1 - self.given))
        self.given += len(block)
        if self.given > self.limit:
            raise TooLargeError(self.path, self.limit)
        self.check(block)
        target[: len(block)] = block
        return len(block)


class Timed:
    """A file that is read for as long as one of its size may take; the rest is the file's own.

    A decoder can need minutes for some kilobytes, but it asks for byte after byte, or block after block. What counts is
    the time of the thread, so that a busy machine refuses nothing.
    """

    def __init__(self, file: Any, path: Any, seconds: float):
        self.file, self.path, self.limit, self.started = file, path, seconds, time.thread_time()

    def read(self, size: int = -1) -> bytes:
        """The next bytes."""
        if time.thread_time() - self.started > self.limit:
            raise TooSlowError(self.path, self.limit)
        return self.file.read(size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


OPENERS: dict[bytes, Callable[[Any], Any]] = {
    b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\0": lzma.LZMAFile,
    b"PK\x03\x04": lambda file: _only_member(file),
}


def unpack(file: BinaryIO, path: Any, limit: int) -> BinaryIO:
    """The content of an open file, unpacked where it begins as gzip, bzip2, xz or zip files do, up to the limit."""
    head = file.read(8)
    file.seek(0)
    opener = next((opener for start, opener in OPENERS.items() if head.startswith(start)), None)
    return io.BufferedReader(Bounded(opener(file), path, limit), 2**16) if opener else file


def _only_member(file: BinaryIO) -> Any:
    archive = zipfile.ZipFile(file)
    if len(archive.infolist()) != 1:
        raise zipfile.BadZipFile(f"it must hold exactly one file, but holds {len(archive.infolist())}")
    return archive.open(archive.infolist()[0])


# ---------------------------------------------------------------- archives of arrays


def read_npz(
    path: str | os.PathLike[str], wanted: Collection[str] | None = None, limit: Limit = None, *, own: bool = False
) -> tuple[dict[str, np.ndarray], list[str]]:
    """The wanted arrays of an .npz archive (None: all) and the names of all; damage is a `ValueError` that says what.

    The sizes that the archive claims are held against the limit before anything is unpacked.
    A note says where one of our `own` has no digest.
    """
    with open_file(path) as file:
        allowed = limit_for(os.fstat(file.fileno()).st_size, limit)
        try:
            with zipfile.ZipFile(file) as archive:
                members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
                if len(archive.infolist()) > MEMBERS or len(members) < len(archive.infolist()):
                    raise ValueError(f"it must hold at most {MEMBERS} arrays, each only once")
                taken = [name for name in members if wanted is None or name in wanted]
                if sum(members[name].file_size for name in taken) > allowed:
                    raise TooLargeError(path, allowed)
                arrays = {name: _read_array(archive, members[name]) for name in taken}
            check_digest(path, note=own)
            return arrays, list(members)
        except Exception as error:  # zipfile, zlib and numpy raise many kinds on damaged bytes
            if isinstance(error, TooLargeError | Warning) or isinstance(error, OSError) and is_disk_error(error):
                raise
            raise ValueError(f"it is not a complete .npz file ({error or type(error).__name__})") from None


def _read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    """An array cannot be larger than its member: numpy takes room for what a header claims, but fills none of it."""
    with archive.open(member) as stream:
        array = np.lib.format.read_array(stream, allow_pickle=False)
        if stream.read(1):  # this also compares the checksum
            raise ValueError(f"{member.filename} holds more than it claims")
    return array
