"""Small models of every kind, on which each method is tested in full."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from inspect import Parameter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pluribus as pb

CLASSES = 3


class Residual(nn.Module):
    """A block with normalisation, dropout and a shortcut."""

    def __init__(self, width: int):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.drop = nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        """Same shape."""
        return x + self.drop(torch.relu(self.norm(self.conv(x))))


def mlp() -> nn.Module:
    """A chain."""
    return nn.Sequential(
        nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, CLASSES)
    )


def plain_mlp(width: int = 16) -> nn.Module:
    """A chain without dropout."""
    return nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, CLASSES))


def cnn() -> nn.Module:
    """Convolutions, a residual block, batch normalisation."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        Residual(8),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, CLASSES),
    )


class Encoder(nn.Module):
    """Attention that has time first inside, and dropout called as a function."""

    def __init__(self, layers: int = 1, classes: int = CLASSES) -> None:
        super().__init__()
        self.enter = nn.Linear(5, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, time, 5) -> (batch, classes)."""
        x = self.encoder(self.enter(x).transpose(0, 1)).mean(0)
        return self.head(F.dropout(x, 0.2, self.training))


class Recurrent(nn.Module):
    """Words, an LSTM, and a hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 6)
        self.lstm = nn.LSTM(6, 8, num_layers=2, batch_first=True, dropout=0.3)
        self.head = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, CLASSES))

    def forward(self, words: Tensor) -> Tensor:
        """(batch, time) -> (batch, classes)."""
        return self.head(self.lstm(self.words(words))[0][:, -1])


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(6, 8)
        self.one = nn.Linear(8, 8)
        self.two = nn.Linear(8, 8, bias=False)
        self.two.weight = self.one.weight
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 6) -> (batch, classes)."""
        return self.head(self.drop(self.two(torch.relu(self.one(torch.relu(self.enter(x)))))))


@dataclass(frozen=True)
class Small:
    """A model, its input of `rows` rows, the pattern of its end."""

    build: Callable[[], nn.Module]
    batch: Callable[[int], Tensor]
    branch: str


SMALL = {
    "mlp": Small(mlp, lambda rows: torch.randn(rows, 6), "3|5"),
    "cnn": Small(cnn, lambda rows: torch.randn(rows, 3, 8, 8), "3|6"),
    "encoder": Small(Encoder, lambda rows: torch.randn(rows, 4, 5), "head"),
    "recurrent": Small(Recurrent, lambda rows: torch.randint(11, (rows, 4)), "head"),
    "tied": Small(Tied, lambda rows: torch.randn(rows, 6), "head"),
}


def make(method: str, name: str, size: int = 3, **options: Any) -> tuple[pb.Ensemble, Tensor]:
    """An ensemble of a small model in eval mode, and five rows for it."""
    if options:
        return _made(method, name, size, **options)
    return copy.deepcopy(_remembered(method, name, size))


@cache
def _remembered(method: str, name: str, size: int) -> tuple[pb.Ensemble, Tensor]:
    return _made(method, name, size)


def _made(method: str, name: str, size: int, **options: Any) -> tuple[pb.Ensemble, Tensor]:
    torch.manual_seed(0)
    case = SMALL[name]
    x, model = case.batch(5), case.build()
    options = {**needed(method, x, case.branch), **options}
    sizes = () if method == "single" else (size,)
    return pb.METHODS[method](model, *sizes, **options).eval(), x


def needed(method: str, x: Any, branch: str) -> dict[str, Any]:
    """What the method cannot do without: an example, where it is no mere option, and a branch."""
    takes = inspect.signature(pb.METHODS[method]).parameters
    options = {"example": x} if "example" in takes and takes["example"].kind is not Parameter.KEYWORD_ONLY else {}
    return {**options, "branch": branch} if "branch" in takes else options


def targets(rows: int = 5) -> Tensor:
    """Class labels."""
    return torch.randint(CLASSES, (rows,))


def close(a: Tensor, b: Tensor, **tolerance: float) -> None:
    """Equal to float tolerance."""
    torch.testing.assert_close(a, b, **{"rtol": 1e-4, "atol": 1e-5, **tolerance})
