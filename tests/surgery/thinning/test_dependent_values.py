"""A thinned model is what its class builds at that width, also in numbers and tables that follow from a width."""

import math

import pytest
import torch
from torch import Tensor, nn

import pluribus as pb


class Halves(nn.Module):
    """A width that is cut at its half, a root, an inverse and a float of it."""

    def __init__(self, d: int = 32):
        super().__init__()
        self.enter, self.head, self.gate = nn.Linear(6, d), nn.Linear(d, 3), nn.Linear(d // 2, d // 2)
        self.half, self.root, self.scale, self.mean = d // 2, math.sqrt(d), d**-0.5, 1 / d

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 6) -> (batch, 3)."""
        x = self.enter(x) * self.root
        a, b = x[..., : self.half], x[..., self.half :]
        return self.head(torch.cat([b * torch.sigmoid(self.gate(a)), -a], -1) * self.scale) * self.mean


class Rotated(nn.Module):
    """Halves that change places, bound by nothing but a cut."""

    def __init__(self, d: int = 32):
        super().__init__()
        self.enter, self.head, self.half = nn.Linear(6, d), nn.Linear(d, 3), d // 2

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 6) -> (batch, 3)."""
        x = self.enter(x)
        return self.head(torch.cat([-x[..., self.half :], x[..., : self.half]], -1))


def sines(length: int, d: int, together: bool) -> Tensor:
    """A table of positions: sines and cosines side by side, or one after the other."""
    angles = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, d, 2) / d)
    parts = angles.sin(), angles.cos()
    return torch.stack(parts, -1).flatten(1) if together else torch.cat(parts, 1)


class Positions(nn.Module):
    """A table of sines."""

    def __init__(self, d: int = 32, together: bool = True):
        super().__init__()
        self.enter, self.head = nn.Linear(6, d), nn.Linear(d, 3)
        self.register_buffer("table", sines(10, d, together))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, time, 6) -> (batch, 3)."""
        return self.head(torch.tanh(self.enter(x) + self.table[: x.shape[1]]).mean(1))


MODELS = {
    "halves": (Halves, (5, 6)),
    "rotated": (Rotated, (5, 6)),
    "pairs of sines": (Positions, (5, 7, 6)),
    "sines, then cosines": (lambda d=32: Positions(d, together=False), (5, 7, 6)),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("alpha", [1, 2])
def test_a_thinned_model_is_what_its_class_builds(name, alpha):
    build, shape = MODELS[name]
    torch.manual_seed(0)
    x = torch.randn(shape)
    member, expected = pb.packed(build(), 4, alpha=alpha, example=x).member(0), build(32 * alpha // 4)
    for key, value in vars(expected).items():
        if isinstance(value, (int, float)):
            assert getattr(member, key) == pytest.approx(value), key
    for key, table in expected.named_buffers():
        torch.testing.assert_close(member.get_buffer(key), table)
    expected.load_state_dict(member.state_dict())
    torch.testing.assert_close(member(x), expected(x))


def test_explain_says_what_was_followed():
    told = pb.packed(Halves(), 4, alpha=2, example=torch.randn(2, 6)).explain()
    assert "'root' of module '' follows as the root of the width 32: 5.65685 becomes 4" in told
    assert "the table 'table'" in pb.packed(Positions(), 4, alpha=2, example=torch.randn(2, 7, 6)).explain()


class Two(Halves):
    """Two widths with one root: which one it follows from cannot be said."""

    def __init__(self, d: int = 32):
        super().__init__(d)
        self.more = nn.Linear(3, 32)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 6) -> (batch, 32)."""
        return self.more(super().forward(x))


def test_explain_names_a_number_that_may_follow_and_stays():
    told = pb.packed(Two(), 4, alpha=2, example=torch.randn(2, 6)).explain()
    assert "'root' of module '' stays 5.65685" in told
