"""Pickles of plain values and numpy arrays, read without running anything that a pickle could ask for."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .source import damaged_error
from .unpacking import Timed, TooSlowError, seconds_for


def unpickle(data: bytes, path: Path) -> dict[str, Any]:
    """The dict in a pickle of plain values and numpy arrays; anything else that a pickle can ask for is refused."""
    try:
        found = _Unpickler(Timed(io.BytesIO(data), path, seconds_for(0)), encoding="bytes").load()
        if isinstance(found, dict):
            found = {key: value.array() if isinstance(value, _Array) else value for key, value in found.items()}
    except _RefusedError as error:
        raise ValueError(
            f'{path}: this pickle asks for "{error}", which could run code, so it is not read: only numbers, text and '
            "numpy arrays are. It is not the published file. Download that again."
        ) from None
    except TooSlowError:
        raise
    except Exception as error:  # a damaged pickle can fail in any way
        raise damaged_error(path, error) from None
    if not isinstance(found, dict):
        raise damaged_error(path, f"it holds a {type(found).__name__} where a dict was expected")
    return {key.decode("latin-1") if isinstance(key, bytes) else str(key): value for key, value in found.items()}


class _RefusedError(Exception):
    """A pickle asked for something that is not on the list."""


class _Unpickler(pickle._Unpickler):
    """Reads what numpy arrays are made of into classes of our own, and nothing else: not even numpy is called.

    It is the one in Python: that in C makes room for as many objects as a pickle claims to have.
    """

    def find_class(self, module: str, name: str) -> Any:
        """What stands for the function that a pickle names, if it is on the list."""
        found = _STAND_INS.get((module.replace("numpy._core", "numpy.core"), name))
        if found is None:
            raise _RefusedError(f"{module}.{name}")
        return found


class _Array:
    """What a pickle says about an array."""

    def __init__(self, *_: Any):
        self.state: tuple[Any, ...] = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state

    def array(self) -> np.ndarray:
        _, shape, number, columns_first, data = self.state
        values = np.frombuffer(data, number.dtype())
        return values.reshape(shape, order="F" if columns_first else "C")


class _Type:
    """What a pickle says about the type of an array's numbers."""

    def __init__(self, name: Any, *_: Any):
        self.name = name.decode() if isinstance(name, bytes) else str(name)
        self.order = "="

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = state[1].decode() if isinstance(state[1], bytes) else state[1]

    def dtype(self) -> np.dtype[Any]:
        if self.name.lstrip("<>|=")[:1] not in tuple("biuf"):
            raise _RefusedError(f"an array of {self.name}")
        return np.dtype(self.order.replace("|", "=") + self.name.lstrip("<>|="))


class _Function:
    """A function that a pickle may call, and can change in no way."""

    def __init__(self, function: Callable[..., Any]):
        self.function = function

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)

    def __setstate__(self, state: Any) -> None:
        raise _RefusedError("a change of a function")


def _from_buffer(data: Any, number: _Type, shape: Any, order: str) -> _Array:
    made = _Array()
    made.state = (1, shape, number, order == "F", data)
    return made


def _encode_text(text: str, encoding: str) -> bytes:
    if encoding not in ("latin1", "latin-1"):
        raise _RefusedError(f"the encoding {encoding}")
    return text.encode("latin-1")


def _reconstruct(*_: Any) -> _Array:
    return _Array()


_STAND_INS: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
    ("numpy.core.multiarray", "_reconstruct"): _Function(_reconstruct),
    ("numpy.core.numeric", "_frombuffer"): _Function(_from_buffer),
    ("_codecs", "encode"): _Function(_encode_text),
}
