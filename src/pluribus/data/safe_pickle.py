"""Pickles of plain values and numpy arrays, read without running anything that a pickle could ask for."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from .source import reading
from .unpacking import Timed, seconds_for


def unpickle(data: bytes, path: Path) -> dict[str, Any]:
    """The dict in a pickle of plain values and numpy arrays; anything else that a pickle can ask for is refused."""
    with reading(path):
        found = _Unpickler(Timed(io.BytesIO(data), path, seconds_for(0)), encoding="bytes").load()
        if not isinstance(found, dict):
            raise ValueError(f"it holds a {type(found).__name__} where a dict was expected")
        names = [key.decode("latin-1") if isinstance(key, bytes) else str(key) for key in found]
        values = [value.array() if isinstance(value, _Array) else value for value in found.values()]
        return dict(zip(names, values, strict=True))


class _Unpickler(pickle._Unpickler):
    """Reads what numpy arrays are made of into classes of our own, and nothing else: not even numpy is called.

    It is the one in Python: that in C makes room for as many objects as a pickle claims to have.
    """

    def find_class(self, module: str, name: str) -> Any:
        """What stands for the function that a pickle names; new each time, because a pickle can change it."""
        found = {
            ("numpy", "ndarray"): _Array,
            ("numpy", "dtype"): _Type,
            ("numpy.core.multiarray", "_reconstruct"): lambda *_: _Array(),
            ("numpy.core.numeric", "_frombuffer"): lambda data, kind, shape, order: _Array(kind, shape, order, data),
            ("_codecs", "encode"): _encode_text,
        }.get((module.replace("numpy._core", "numpy.core"), name))
        return found or _refuse(f"{module}.{name}")


def _refuse(what: str) -> Any:
    raise ValueError(
        f'this pickle asks for "{what}", which could run code, so it is not read: only numbers, text and numpy arrays '
        "are. It is not the published file"
    )


def _encode_text(text: str, encoding: str) -> bytes:
    return text.encode("latin-1") if encoding in ("latin1", "latin-1") else _refuse(f"the encoding {encoding}")


class _Array:
    """What a pickle says about an array."""

    def __init__(self, kind: Any = None, shape: Any = (), order: Any = "C", data: Any = b""):
        self.kind, self.shape, self.order, self.data = kind, shape, order, data

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, self.shape, self.kind, columns_first, self.data = state
        self.order = "F" if columns_first else "C"

    def array(self) -> np.ndarray:
        if not isinstance(self.data, bytes | bytearray | memoryview):
            _refuse("an array of O")
        return np.frombuffer(self.data, self.kind.dtype()).reshape(self.shape, order=self.order)


class _Type:
    """What a pickle says about the type of an array's numbers."""

    def __init__(self, name: Any, *_: Any):
        self.name, self.order = name.decode() if isinstance(name, bytes) else str(name), "="

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = state[1].decode() if isinstance(state[1], bytes) else state[1]

    def dtype(self) -> np.dtype[Any]:
        name = self.name.lstrip("<>|=")
        if name[:1] not in tuple("biuf"):
            _refuse(f"an array of {self.name}")
        return np.dtype(self.order.replace("|", "=") + name)
