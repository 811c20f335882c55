"""A layer with code of its own is run as it is: by every method, by each member, and frozen."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from freezing import alike, frozen, trained
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

import pluribus as pb

WIDTH = 32  # channels


class Standardised(nn.Conv2d):
    """Weight standardisation, as in NFNets."""

    def forward(self, x: Tensor) -> Tensor:
        """As of a convolution."""
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        weight = 2 * weight / (weight.std((1, 2, 3), keepdim=True) + 1e-3)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class Inside(nn.Conv2d):
    """Changes what the forward of torch calls."""

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(x, weight.abs(), bias)


class Shifted(nn.BatchNorm2d):
    """A normalisation that does more."""

    def forward(self, x: Tensor) -> Tensor:
        """As of normalisation."""
        return super().forward(x).flip(1) + 1


class Halved(nn.Module):
    """A parametrization."""

    def forward(self, weight: Tensor) -> Tensor:
        """Half of it."""
        return weight / 2


def chain(conv: nn.Module, norm: nn.Module, relu: nn.Module, head: nn.Module, flat: nn.Module | None = None):
    return nn.Sequential(
        nn.Conv2d(3, WIDTH, 3), nn.ReLU(), conv, norm, relu, nn.AdaptiveAvgPool2d(1), flat or nn.Flatten(), head
    )


def plain() -> nn.Sequential:
    return chain(nn.Conv2d(WIDTH, WIDTH, 3), nn.BatchNorm2d(WIDTH), nn.ReLU(), nn.Linear(WIDTH, 4))


def replaced(place: int, layer: Callable[[], nn.Module]) -> nn.Module:
    model = plain()
    model[place] = layer()
    return model


def changed(place: int, change: Callable[[nn.Module], object]) -> nn.Module:
    model = plain()
    change(model[place])
    return model


def with_forward(layer: nn.Module) -> None:
    """A forward of this one layer."""
    layer.forward = Twice(layer)


class Twice:
    """What some tools put in place of a layer's forward."""

    def __init__(self, layer: nn.Module):
        self.layer = layer

    def __call__(self, x: Tensor) -> Tensor:
        return 2 * type(self.layer).forward(self.layer, x).roll(1, 1)


def hook(module: nn.Module, args: tuple, output: Tensor) -> Tensor:
    return output.roll(1, 1) * 2


CASES: dict[str, Callable[[], nn.Module]] = {
    "conv": lambda: replaced(2, lambda: Standardised(WIDTH, WIDTH, 3)),
    "conv_inside": lambda: replaced(2, lambda: Inside(WIDTH, WIDTH, 3)),
    "norm": lambda: replaced(3, lambda: Shifted(WIDTH)),
    "parametrization": lambda: changed(2, lambda c: parametrize.register_parametrization(c, "weight", Halved())),
    "weight_norm": lambda: changed(7, parametrizations.weight_norm),
    **{
        f"{name}_{kind}": lambda place=place, change=change: changed(place, change)
        for kind, change in (("forward", with_forward), ("hook", lambda m: m.register_forward_hook(hook)))
        for name, place in (("conv", 2), ("relu", 4), ("pool", 5), ("linear", 7))
    },
}


@pytest.fixture(scope="module")
def x() -> Tensor:
    return torch.randn(3, 3, 9, 9, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", CASES)
def test_networks_built_apart_give_the_same_frozen(name, x):
    networks = []
    for seed in range(3):
        torch.manual_seed(seed)
        networks.append(trained(CASES[name]()))
    made = frozen(pb.deep(networks), x)
    with torch.no_grad():
        alike(made(x), torch.stack([network(x) for network in networks]))


def masked_by_hand(model: nn.Module, ensemble: pb.Ensemble, i: int, x: Tensor) -> Tensor:
    """Member i of Masksembles: the model itself, with its inputs multiplied before each layer that has a mask."""
    masks = {name[:-5]: mask[i] for name, mask in ensemble.module.named_buffers() if name.endswith(".mask")}
    assert masks
    for name, layer in model.named_children():
        if name in masks:
            x = x * masks[name].reshape(1, -1, *[1] * (x.ndim - 2))
        x = layer(x)
    return x


@pytest.mark.parametrize("name", CASES)
def test_a_masked_layer_runs_its_own_code(name, x):
    torch.manual_seed(0)
    model = trained(CASES[name]())
    ensemble = pb.masksembles(model, 3, example=x).eval()
    with torch.no_grad():
        wanted = torch.stack([masked_by_hand(model, ensemble, i, x) for i in range(3)])
        alike(frozen(ensemble, x)(x), wanted)
        for run in ("loop", "vmap"):
            ensemble.run = run
            alike(ensemble(x), wanted)
        alike(torch.stack([ensemble.member(i)(x) for i in range(3)]), wanted)
