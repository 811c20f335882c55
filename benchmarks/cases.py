"""What `speed.py` measures: for each row a plain network, what stands against it, the limit and the bar."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pluribus as pb
from pluribus import models

Run = Callable[[], Any]
IMAGE = (3, 32, 32)


@dataclass
class Row:
    """A measurement: `runs` take turns; the ratio is that of "this" to the faster of those in `base`."""

    name: str
    rows: int
    build: Callable[[torch.device], dict[str, Run]]
    base: Sequence[str] = ("plain", "plain, channels-last")
    limit: Callable[[], float] | None = None
    bar: float | None = None
    quick: bool = True
    notes: list[str] = field(default_factory=list)


def batch_of(rows: int, shape: Sequence[int], device: torch.device) -> Tensor:
    """Random inputs."""
    return torch.randn(rows, *shape, generator=torch.Generator().manual_seed(0)).to(device)


def plain(build: Callable[[], nn.Module], x: Tensor) -> dict[str, Run]:
    """The single network in both memory formats."""
    torch.manual_seed(0)
    network = build().eval().to(x.device)
    last = build().eval().to(x.device, memory_format=torch.channels_last) if x.ndim == 4 else network
    y = x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x
    runs = {"plain": lambda: network(x)}
    return {**runs, "plain, channels-last": lambda: last(y)} if x.ndim == 4 else runs


def frozen(
    name: str,
    rows: int,
    build: Callable[[], nn.Module],
    method: Callable[[nn.Module, Tensor], pb.Ensemble],
    bar: float | None = None,
    shape: Sequence[int] = IMAGE,
    **options: Any,
) -> Row:
    """A frozen ensemble against the plain network, and against that network frozen."""

    def runs(device: torch.device) -> dict[str, Run]:
        x = batch_of(rows, shape, device)
        made = pb.freeze(method(build(), x[:2]).to(device), x)
        single = pb.freeze(pb.single(build()).to(device), x)
        return {**plain(build, x), "this": lambda: made(x), "frozen single": lambda: single(x)}

    def limit() -> float:
        x = torch.randn(1, *shape)
        made = pb.freeze(method(build(), x), x, choose="rule")
        return made.mult_adds[1] / pb.cost(build(), x).mult_adds

    return Row(name, rows, runs, limit=limit, bar=bar, **options)


def unfrozen(
    name: str, rows: int, build: Callable[[], nn.Module], method: Any, bar: float | None = None, **options: Any
) -> Row:
    """An ensemble as it is, run the way that is measured to be best."""

    def runs(device: torch.device) -> dict[str, Run]:
        x = batch_of(rows, IMAGE, device)
        made = method(build(), x[:2]).to(device).eval()
        made.run = "auto"
        return {**plain(build, x), "this": lambda: made(x)}

    return Row(name, rows, runs, bar=bar, **options)


def tree(rows: int) -> Row:
    """A TreeNet against one trunk and four suffixes, each measured alone."""
    suffix = "layer4|fc"

    def runs(device: torch.device) -> dict[str, Run]:
        x = batch_of(rows, IMAGE, device).contiguous(memory_format=torch.channels_last)
        made = pb.freeze(pb.treenet(models.resnet18(), 4, suffix).to(device), x)
        network = models.resnet18().eval().to(device, memory_format=torch.channels_last)
        trunk = nn.Sequential(network.conv1, network.bn1, network.relu, network.layer1, network.layer2, network.layer3)
        end = nn.Sequential(network.layer4, network.avgpool, nn.Flatten(), network.fc)
        middle = trunk(x)
        return {"parts": lambda: (trunk(x), [end(middle) for _ in range(4)]), "this": lambda: made(x)}

    return Row("treenet from layer4, frozen, of trunk + 4 suffixes", rows, runs, ("parts",), bar=1.1)


def training(
    name: str, rows: int, method: Any, bar: float | None, build: Callable[[], nn.Module] = models.resnet18
) -> Row:
    """A step with its optimizer against that of the plain network."""

    def step(network: nn.Module, loss: Callable[[], Tensor]) -> Run:
        optimizer = torch.optim.SGD(network.parameters(), 0.01, momentum=0.9, weight_decay=5e-4)

        def run() -> None:
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()

        return torch.enable_grad()(run)

    def runs(device: torch.device) -> dict[str, Run]:
        torch.manual_seed(0)
        x = batch_of(rows, IMAGE, device)
        y = torch.randint(10, (rows,), device=device)
        xc = x.contiguous(memory_format=torch.channels_last)
        one, last = build().to(device), build().to(device, memory_format=torch.channels_last)
        made = method(build(), x[:2]).to(device).train()
        made.run = "auto"
        return {
            "plain": step(one, lambda: F.cross_entropy(one(x), y)),
            "plain, channels-last": step(last, lambda: F.cross_entropy(last(xc), y)),
            "this": step(made, lambda: made.loss(x, y, F.cross_entropy)),
        }

    return Row(f"training step: {name}", rows, runs, bar=bar)


def loop(width: int, size: int, rows: int, bar: float) -> Row:
    """A deep ensemble of MLPs, frozen, against a Python loop over separate modules."""

    def runs(device: torch.device) -> dict[str, Run]:
        x = batch_of(rows, (width,), device)
        members = [models.mlp(width, 10, hidden=(width,) * 3).eval().to(device) for _ in range(size)]
        made = pb.freeze(pb.deep(members), x)
        return {
            "separate": lambda: torch.stack([member(x) for member in members]),
            "this": lambda: made(x),
        }

    return Row(f"MLP 3 x {width}, deep, {size} members, of a loop", rows, runs, ("separate",), bar=bar)


def compiled(name: str, rows: int, method: Any, bar: float) -> Row:
    """A frozen ensemble, not compiled, against the single network compiled by Inductor."""

    def runs(device: torch.device) -> dict[str, Run]:
        x = batch_of(rows, IMAGE, device)
        made = pb.freeze(method(models.resnet18(), x[:2]).to(device), x)
        single = torch.compile(models.resnet18().eval().to(device, memory_format=torch.channels_last))
        xc = x.contiguous(memory_format=torch.channels_last)
        with torch.no_grad():
            single(xc)
        return {"compiled": lambda: single(xc), "this": lambda: made(x)}

    return Row(f"{name}, frozen, of the compiled single", rows, runs, ("compiled",), bar=bar, quick=False)


def packed(model: nn.Module, x: Tensor, gamma: int = 1, size: int = 4, alpha: float = 2) -> pb.Ensemble:
    """Packed (alpha, size, gamma)."""
    return pb.packed(model, size, alpha, gamma, example=x)


def masks(model: nn.Module, x: Tensor) -> pb.Ensemble:
    """Four masks of scale 2."""
    return pb.masksembles(model, 4, 2.0, example=x)


def lenet(width: int) -> Callable[[], nn.Module]:
    """A LeNet of several times the width."""
    return lambda: models.lenet(num_classes=10, width=width)


def cnn() -> nn.Module:
    """A plain chain of convolutions, each followed by normalisation and ReLU."""
    layers: list[nn.Module] = []
    for inputs, outputs, stride in ((3, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1)):
        conv = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        layers += [conv, nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10))


def mlp() -> nn.Module:
    """A perceptron with three hidden layers of 1,024."""
    return models.mlp(3 * 32 * 32, 10, hidden=(1024, 1024, 1024))


def vit() -> nn.Module:
    """A small vision transformer, with attention as torch has it."""
    return Transformer()


class Transformer(nn.Module):
    """Patches of 8 x 8, six blocks of width 192 with three heads."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 192, 8, 8)
        self.positions = nn.Parameter(0.02 * torch.randn(1, 64, 192))
        self.blocks = nn.Sequential(*(Block(192, 3) for _ in range(6)))
        self.norm, self.head = nn.LayerNorm(192), nn.Linear(192, 10)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 3, 64, 64) -> (batch, 10)."""
        x = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        return self.head(self.norm(self.blocks(x)).mean(1))


class Block(nn.Module):
    """Attention and a perceptron, each after its normalisation."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, time, width), the same shape."""
        q, k, v = (t.unflatten(2, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, 2))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.out(y)
        return x + self.mlp(self.norm2(x))
