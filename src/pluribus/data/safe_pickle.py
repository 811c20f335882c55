"""Pickles of plain values and numpy arrays: a pickle that asks for anything else is not read."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from .source import damaged_error

ARRAYS = {  # what pickles of numpy arrays name; none of these runs code that a file could choose
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
}


def unpickle(data: bytes, path: Path) -> dict[str, Any]:
    """The dict in a pickle of plain values and numpy arrays; anything else that a pickle can ask for is refused."""
    try:
        found = _Unpickler(io.BytesIO(data), encoding="bytes").load()
    except _RefusedError as error:
        raise ValueError(
            f'{path}: this pickle asks for "{error}", which could run code, so it is not read: only numbers, text and '
            "numpy arrays are. It is not the published file. Download that again."
        ) from None
    except Exception as error:  # a damaged pickle can fail in any way
        raise damaged_error(path, error) from None
    if not isinstance(found, dict):
        raise damaged_error(path, f"it holds a {type(found).__name__} where a dict was expected")
    if any(isinstance(value, np.ndarray) and value.dtype.hasobject for value in found.values()):
        raise damaged_error(path, "it holds an array of Python objects")
    return {key.decode("latin-1") if isinstance(key, bytes) else str(key): value for key, value in found.items()}


class _RefusedError(Exception):
    """A pickle asked for something that is not on the list."""


class _Unpickler(pickle._Unpickler):
    """The one in Python: that in C makes room for as many objects as a pickle claims to have."""

    def find_class(self, module: str, name: str) -> Any:
        """What a pickle names, if it is on the list; texts of Python 3 that stand for bytes are encoded by us."""
        if (module, name) == ("_codecs", "encode"):
            return _encode
        if (module.replace("numpy._core", "numpy.core"), name) not in ARRAYS:
            raise _RefusedError(f"{module}.{name}")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def _encode(text: str, encoding: str) -> bytes:
    if encoding not in ("latin1", "latin-1"):
        raise _RefusedError(f"the encoding {encoding}")
    return text.encode("latin-1")
