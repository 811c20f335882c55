"""What every test shares: one thread, fixed seeds, and the operators without which timm does not import."""

import importlib.util
import random
from pathlib import Path

import hypothesis
import numpy as np
import pytest
import torch

torch.set_num_threads(1)
hypothesis.settings.register_profile("pluribus", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("pluribus")


@pytest.fixture(autouse=True)
def fixed_seeds():
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


def torchvision_operators() -> torch.library.Library | None:
    """Define the operators that torchvision registers shapes for, where its own library does not load.

    A torchvision built for CUDA fails to import beside a CPU-only torch, and timm imports torchvision.
    """
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None:
        return None
    try:
        for library in Path(found.origin).parent.glob("_C*"):
            torch.ops.load_library(str(library))
            return None
    except OSError:
        pass
    operators = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        operators.define(f"{name}(Tensor boxes, Tensor scores, float threshold) -> Tensor")
    return operators


OPERATORS = torchvision_operators()  # the definitions last as long as this object
