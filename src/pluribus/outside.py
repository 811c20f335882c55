"""Outside packages that need help before they can be imported."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

_kept: list[Any] = []  # definitions of operators last as long as the object that made them


def outside(name: str, use: str, extra: str) -> ModuleType:
    """The package `name`, or an error that says what it is for and how to install it.

    >>> outside("json", "reading", "data").__name__
    'json'
    """
    torchvision_operators()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        package = name.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        raise ModuleNotFoundError(
            f"{use} needs {package}, which is not installed. Install it with: pip install 'pluribus[{extra}]'",
            name=package,
        ) from None


def torchvision_operators() -> None:
    """Define the operators that torchvision registers shapes for, where its own library does not load.

    A torchvision built for CUDA fails to import beside a CPU-only torch, and so does every package that softly
    imports it: timm, torchmetrics, lightning.
    """
    found = importlib.util.find_spec("torchvision")
    if _kept or found is None or found.origin is None:
        return
    try:
        for library in Path(found.origin).parent.glob("_C*"):
            torch.ops.load_library(str(library))
            return
    except OSError:
        pass
    operators = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        operators.define(f"{name}(Tensor boxes, Tensor scores, float threshold) -> Tensor")
    _kept.append(operators)
