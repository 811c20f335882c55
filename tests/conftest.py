"""What every test shares: one thread, fixed seeds, and the operators without which timm does not import."""

import random

import hypothesis
import numpy as np
import pytest
import torch

from pluribus.outside import torchvision_operators

torch.set_num_threads(1)
hypothesis.settings.register_profile("pluribus", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("pluribus")


@pytest.fixture(autouse=True)
def fixed_seeds():
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


torchvision_operators()
