"""Lets torchvision be imported beside a torch that it was not built for; Python runs this in every process.

timm needs torchvision, whose wheel registers shapes for two operators that only its own library defines. Where that
library does not load, the operators are declared just before torchvision is imported, in the tests and in the
commands that they start. Nothing of this is in the package.
"""

import importlib.abc
import importlib.util
import sys
from pathlib import Path

_kept = []  # definitions of operators last as long as the object that made them


class DeclaresOperators(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "torchvision":
            sys.meta_path.remove(self)
            declare_operators()
        return None  # the ordinary finders go on


def declare_operators() -> None:
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None:
        return
    import torch

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


sys.meta_path.insert(0, DeclaresOperators())
