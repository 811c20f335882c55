"""The small networks of the papers, MLP to MediumCNN: hidden widths follow `width`."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

from torch import nn


def mlp(
    inputs: int = 3 * 32 * 32,
    num_classes: int = 10,
    hidden: Sequence[int] = (200,),
    dropout: float = 0.0,
    width: float = 1.0,
) -> nn.Sequential:
    """A perceptron with ReLU, by default with the hidden layer of Packed-Ensembles' regression (appendix N).

    Shapes:
        input: (batch, *features), flattened
        output: (batch, num_classes)

    >>> mlp(inputs=8, num_classes=2, hidden=(64, 64), width=0.5).fc2
    Linear(in_features=32, out_features=32, bias=True)
    """
    check_sizes(num_classes, width)
    network = nn.Sequential()
    network.add_module("flatten", nn.Flatten())
    for i, units in enumerate((scale_width(units, width) for units in hidden), start=1):
        _append(network, i, fc=nn.Linear(inputs, units), relu=nn.ReLU(), dropout=dropout_layer(dropout))
        inputs = units
    network.add_module("fc", nn.Linear(inputs, num_classes))
    return _let_take_gamma(network, r"fc([2-9]|\d\d+)")


def lenet(
    num_classes: int = 10, width: float = 1.0, *, channels: int = 3, image: int = 32, dropout: float = 0.0
) -> nn.Sequential:
    """LeNet-5 with ReLU and max pooling, for images of side `image`; dropout in the linear part.

    Shapes:
        input: (batch, channels, image, image)
        output: (batch, num_classes)

    >>> lenet(num_classes=10, channels=1, image=28)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    check_sizes(num_classes, width)
    side = ((image - 4) // 2 - 4) // 2
    if side < 1:
        raise ValueError(
            f"lenet: images need a side of at least 16 pixels, but image={image}. Enlarge them, or use mlp."
        )
    first, second, third, fourth = (scale_width(units, width) for units in (6, 16, 120, 84))
    network = nn.Sequential()
    _append(network, 1, conv=nn.Conv2d(channels, first, 5), relu=nn.ReLU(), pool=nn.MaxPool2d(2))
    _append(network, 2, conv=nn.Conv2d(first, second, 5), relu=nn.ReLU(), pool=nn.MaxPool2d(2))
    network.add_module("flatten", nn.Flatten())
    _append(network, 3, fc=nn.Linear(second * side**2, third), relu=nn.ReLU(), dropout=dropout_layer(dropout))
    _append(network, 4, fc=nn.Linear(third, fourth), relu=nn.ReLU(), dropout=dropout_layer(dropout))
    network.add_module("fc", nn.Linear(fourth, num_classes))
    return _let_take_gamma(network, "conv2|fc3|fc4")


def small_cnn(
    num_classes: int = 10, width: float = 1.0, *, channels: int = 3, image: int = 32, dropout: float = 0.1
) -> nn.Sequential:
    """SmallCNN of Fort et al.: convolutions of 16, 32 and 32 channels, for images of side `image`.

    Shapes:
        input: (batch, channels, image, image)
        output: (batch, num_classes)

    >>> small_cnn(num_classes=10)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    return _plain_cnn((16, 32, 32), num_classes, width, channels, image, dropout)


def medium_cnn(
    num_classes: int = 10, width: float = 1.0, *, channels: int = 3, image: int = 32, dropout: float = 0.1
) -> nn.Sequential:
    """MediumCNN of Fort et al.: convolutions of 64, 128, 256 and 256 channels, for images of side `image`.

    Shapes:
        input: (batch, channels, image, image)
        output: (batch, num_classes)

    >>> medium_cnn(num_classes=10, width=0.25)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    return _plain_cnn((64, 128, 256, 256), num_classes, width, channels, image, dropout)


class ConvolutionSpec(NamedTuple):
    """One convolution of a residual block: outputs per plane of the stage, kernel, and whether it strides."""

    factor: int
    kernel: int
    strides: bool = False
    groups: int = 1


def scale_width(size: int, width: float, groups: int = 1) -> int:
    """ceil(width * size), rounded up to a multiple of `groups`.

    >>> scale_width(64, 0.3), scale_width(128, 0.3, groups=32)
    (20, 64)
    """
    rounded = max(1, ceil(round(width * size, 6)))  # 1.1 * 10 is 11.000000000000002
    return ceil(rounded / groups) * groups


def _plain_cnn(
    sizes: Sequence[int], num_classes: int, width: float, channels: int, image: int, dropout: float
) -> nn.Sequential:
    """As in the authors' notebook: each convolution with dropout, pooling and ReLU, the last without ReLU."""
    check_sizes(num_classes, width)
    network = nn.Sequential()
    for i, size in enumerate((scale_width(size, width) for size in sizes), start=1):
        relu = nn.ReLU() if i < len(sizes) else nn.Identity()
        conv, pool = nn.Conv2d(channels, size, 3, padding=1), nn.MaxPool2d(2, ceil_mode=True)
        _append(network, i, conv=conv, dropout=dropout_layer(dropout), pool=pool, relu=relu)
        channels, image = size, ceil(image / 2)
    network.add_module("flatten", nn.Flatten())
    network.add_module("fc", nn.Linear(channels * image**2, num_classes))
    return _let_take_gamma(network, r"conv([2-9]|\d\d+)")


def dropout_layer(rate: float) -> nn.Module:
    """No module that never drops: what has dropout should be what uses it."""
    return nn.Dropout(rate) if rate else nn.Identity()


def _append(network: nn.Sequential, number: int, **layers: nn.Module) -> None:
    for name, layer in layers.items():
        network.add_module(f"{name}{number}", layer)


def _let_take_gamma(network: nn.Sequential, pattern: str) -> nn.Sequential:
    network.takes_gamma = pattern  # type: ignore[assignment]
    return network


def check_sizes(num_classes: int, width: float) -> None:
    """Refuse numbers of classes and widths that make no network."""
    if num_classes < 1:
        raise ValueError(
            f"A network needs num_classes of at least 1, but it is {num_classes}. Give the number of outputs."
        )
    if not width > 0:
        raise ValueError(
            f"A network needs a width above 0, but it is {width}. Use 0.5 for half the channels, 2 for twice as many."
        )
