"""A network that computes something from a parameter and keeps it: subclasses say how."""

import torch
from torch import Tensor, nn


class Model(nn.Module):
    """A network with something that is computed from a parameter, and kept from call to call."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave, self.bias = nn.Linear(6, 8), nn.Linear(8, 3), nn.Parameter(torch.randn(8))
        self.begin()

    def begin(self) -> None:
        pass

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(torch.relu(self.enter(x) + self.kept(len(x))))

    def make(self) -> Tensor:
        return 2 * self.bias.detach()
