"""Files that nobody vouches for: opened only where they are files, and read to a value or a message, never a raw error.

JSON is checked against a shape before anything is done with it: a type, a list of shapes, alternatives or keys.
"""

from __future__ import annotations

import errno
import json
import math
import os
import stat
import unicodedata
from collections.abc import Mapping
from typing import Any, BinaryIO

LONGEST_JSON = 2**26  # bytes; what we write ourselves has a few thousand

KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_file(path: str | os.PathLike[str]) -> BinaryIO:
    """The file at `path`, open for reading; pipes, devices and folders are refused, where others would wait for ever.

    >>> open_file(".")
    Traceback (most recent call last):
    ValueError: .: it must be a file, but it is a folder.
    """
    path = os.fspath(path)
    if os.path.islink(path) and not os.path.exists(path):
        raise FileNotFoundError(f"{path}: it is a link to nothing.")
    _check_is_file(path, os.stat(path))
    file = open(path, "rb", opener=_open_without_waiting)
    try:
        found = os.fstat(file.fileno())  # it may have been replaced meanwhile
        _check_is_file(path, found)
        if not found.st_size:  # as are those that the system generates, of which some have no end
            raise ValueError(f"{path}: it is empty.")
    except BaseException:
        file.close()
        raise
    return file


def _check_is_file(path: str, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise ValueError(f"{path}: it must be a file, but it is {KINDS.get(stat.S_IFMT(found.st_mode), 'none')}.")


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def is_disk_error(error: OSError) -> bool:
    """Whether it is the machine that failed, and not what is in the file."""
    return error.errno in (errno.EIO, errno.ENOSPC, errno.EMFILE, errno.ENFILE, errno.EACCES, errno.ESTALE)


def printable(text: str) -> str:
    r"""The text without what would steer a terminal or hide letters: control codes are written as escapes.

    >>> printable("cat\x1b[2J.png")
    'cat\\x1b[2J.png'
    """
    return "".join(
        letter if letter in "\n\t" or unicodedata.category(letter) not in ("Cc", "Cf", "Cs") else ascii(letter)[1:-1]
        for letter in text
    )


def is_plain_tensor(value: Any) -> bool:
    """Whether it is a tensor with a value in each place: not sparse, nested, quantized or without any."""
    if not all(hasattr(value, name) for name in ("layout", "is_nested", "is_quantized", "device")):
        return False
    strided = str(value.layout) == "torch.strided" and not value.is_nested
    return strided and not value.is_quantized and value.device.type != "meta"


# ---------------------------------------------------------------- JSON


def read_json(path: str | os.PathLike[str]) -> Any:
    """The value in a JSON file; what is wrong with it is a `ValueError` that says so."""
    with open_file(path) as file:
        content = file.read(LONGEST_JSON + 1)
    return parse_json(content)


def parse_json(content: str | bytes) -> Any:
    """The value of a JSON text; a key that occurs twice is refused, since neither of its values would be the right one.

    >>> parse_json("[" * 100_000)
    Traceback (most recent call last):
    ValueError: it is not JSON: brackets are nested too deeply
    """
    if len(content) > LONGEST_JSON:
        raise ValueError(f"it is longer than {LONGEST_JSON // 2**20} MB, which none of our JSON files is")
    try:
        return json.loads(content, object_pairs_hook=_unique_keys)
    except RecursionError:
        raise ValueError("it is not JSON: brackets are nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from None


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key occurs twice")
    return found


Number = float  # as a shape: a whole number or a float, NaN and infinity too
Finite = complex  # as a shape: a number that is neither (no JSON value is complex)

NAMES = {int: "a whole number", Number: "a number", Finite: "a finite number", str: "text", bool: "true or false"}

LARGEST = 2**63  # larger whole numbers fit no tensor


def check_shape(value: Any, shape: Any, where: str = "it") -> None:
    """Refuse a JSON value that does not have this shape.

    Args:
        shape: a type; `Any`; None; [shape of every entry]; {str: shape of every value}; {"key": shape, "more?": shape
            where it is there}, and other keys are not looked at; or a tuple of shapes, of which one must fit

    >>> check_shape({"size": "4"}, {"size": int, "notes?": [str]})
    Traceback (most recent call last):
    ValueError: its "size" must be a whole number, but is '4'
    """
    if isinstance(shape, tuple):
        _check_alternatives(value, shape, where)
    elif isinstance(shape, list):
        _check_kind(value, list, "a list", where)
        for i, entry in enumerate(value):
            check_shape(entry, shape[0], f"{where}[{i}]")
    elif isinstance(shape, Mapping):
        _check_kind(value, Mapping, "an object", where)
        _check_keys(value, shape, where)
    elif shape is not Any and not _is(value, shape):
        raise ValueError(f"{where} must be {NAMES.get(shape, shape)}, but is {shorten_value(value)}")


def _check_alternatives(value: Any, shapes: tuple[Any, ...], where: str) -> None:
    errors = []
    for shape in shapes:
        try:
            return check_shape(value, shape, where)
        except ValueError as error:
            errors.append(error)
    raise errors[-1]


def _check_keys(value: Mapping[str, Any], shape: Mapping[Any, Any], where: str) -> None:
    place = "its" if where == "it" else f"{where}:"
    if str in shape:
        for key, entry in value.items():
            check_shape(entry, shape[str], f'{place} "{key}"')
        return
    for key, inner in shape.items():
        name = key.removesuffix("?")
        if name in value:
            check_shape(value[name], inner, f'{place} "{name}"')
        elif name == key:
            raise ValueError(f'{where} has no "{name}"')


def _check_kind(value: Any, kind: type, name: str, where: str) -> None:
    if not isinstance(value, kind):
        raise ValueError(f"{where} must be {name}, but is {shorten_value(value)}")


def _is(value: Any, kind: Any) -> bool:
    if kind is None:
        return value is None
    if kind in (int, Number, Finite) and isinstance(value, int):
        return not isinstance(value, bool) and abs(value) < LARGEST
    if kind in (Number, Finite):
        return isinstance(value, float) and (kind is Number or math.isfinite(value))
    return isinstance(value, kind)


def shorten_value(value: Any) -> str:
    """A value for a message; of what holds others the kind only: a pickle can hold one list in itself a billion times.

    >>> shorten_value([[1]])
    'a list'
    """
    text = repr(value) if value is None or isinstance(value, str | int | float) else f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:59]}…"
