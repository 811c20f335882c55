"""Packages that only some uses need: imported where they are used, with advice where they cannot be."""

from __future__ import annotations

import importlib
from types import ModuleType


def require(name: str, use: str, extra: str) -> ModuleType:
    """The package or module `name`, or an error that says what it is for and how to install it.

    >>> require("json", "reading", "data").__name__
    'json'
    """
    package = name.partition(".")[0]
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        raise ModuleNotFoundError(
            f"{use} needs {package}, which is not installed. From a clone: pip install '.[{extra}]'",
            name=package,
        ) from None
    except Exception as error:
        if "torchvision" not in str(error):
            raise
        raise ImportError(
            f"{use} needs {package}, which imports torchvision, but the installed torchvision does not match this "
            f"version of torch ({error}). Install the matching torchvision, or remove the one you have: "
            "pip uninstall torchvision",
            name=package,
        ) from error
