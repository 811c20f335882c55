"""TIFF files read without the lines that libtiff writes about damage, beside what is said of it here."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

_LOCK, _STATE = threading.Lock(), {"readers": 0}

_BEFORE: dict[str, Any] = {}

HANDLERS = ("TIFFSetErrorHandler", "TIFFSetWarningHandler")


@contextmanager
def quiet_tiff() -> Iterator[None]:
    """Within it libtiff writes nothing; afterwards it does as before. Pillow's errors are raised as ever."""
    library = _libtiff()
    if library is None:
        yield
        return
    with _LOCK:
        _STATE["readers"] += 1
        if _STATE["readers"] == 1:
            _BEFORE.update({name: getattr(library, name)(None) for name in HANDLERS})
    try:
        yield
    finally:
        with _LOCK:
            _STATE["readers"] -= 1
            if not _STATE["readers"]:
                for name in HANDLERS:
                    getattr(library, name)(_BEFORE.pop(name))


@cache
def _libtiff() -> Any:
    """The libtiff that Pillow has loaded; None where it cannot be found."""
    with contextlib.suppress(OSError, AttributeError, ImportError):
        from PIL import _imaging

        loaded = Path("/proc/self/maps")
        if loaded.exists():
            paths = [line.split(maxsplit=5)[-1] for line in loaded.read_text().splitlines() if "libtiff" in line]
        else:  # where wheels for macOS keep it
            paths = [str(path) for path in Path(_imaging.__file__).parent.glob(".dylibs/libtiff*")]
        if paths and sys.platform != "win32":
            library = ctypes.CDLL(paths[0])
            for name in HANDLERS:
                getattr(library, name).argtypes, getattr(library, name).restype = [ctypes.c_void_p], ctypes.c_void_p
            return library
    return None
