"""The papers' networks, each written once: hidden widths follow `width`, so no thin or wide copy is needed.

A network's `takes_gamma` is a pattern of the layers to which Packed-Ensembles gives gamma groups. Weights
begin as PyTorch's layers draw them: a layer that is reset later comes from the same law as a new one.
"""

from collections.abc import Callable, Sequence
from math import ceil
from typing import Literal, NamedTuple, TypedDict, Unpack

from torch import Tensor, nn


class ResNetOptions(TypedDict, total=False):
    """What every ResNet takes: channels of the images, the stem, the dropout rate."""

    channels: int
    style: Literal["cifar", "imagenet"]
    dropout: float


class WideResNetOptions(ResNetOptions, total=False):
    """What a Wide-ResNet takes besides: biases of convolutions, and which convolution of a block strides."""

    bias: bool
    stride_on: Literal["first", "second"]


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
    _check(num_classes, width)
    network = nn.Sequential()
    network.add_module("flatten", nn.Flatten())
    for i, units in enumerate((scaled(units, width) for units in hidden), start=1):
        _append(network, i, fc=nn.Linear(inputs, units), relu=nn.ReLU(), dropout=_dropout(dropout))
        inputs = units
    network.add_module("fc", nn.Linear(inputs, num_classes))
    return _taking_gamma(network, r"fc([2-9]|\d\d+)")


def lenet(
    num_classes: int = 10, width: float = 1.0, *, channels: int = 3, image: int = 32, dropout: float = 0.0
) -> nn.Sequential:
    """LeNet-5 with ReLU and max pooling, for images of side `image`; dropout in the linear part."""
    _check(num_classes, width)
    side = ((image - 4) // 2 - 4) // 2
    if side < 1:
        raise ValueError(f"lenet: images need a side of 16 or more, but image={image}. Enlarge them, or use mlp.")
    first, second, third, fourth = (scaled(units, width) for units in (6, 16, 120, 84))
    network = nn.Sequential()
    _append(network, 1, conv=nn.Conv2d(channels, first, 5), relu=nn.ReLU(), pool=nn.MaxPool2d(2))
    _append(network, 2, conv=nn.Conv2d(first, second, 5), relu=nn.ReLU(), pool=nn.MaxPool2d(2))
    network.add_module("flatten", nn.Flatten())
    _append(network, 3, fc=nn.Linear(second * side**2, third), relu=nn.ReLU(), dropout=_dropout(dropout))
    _append(network, 4, fc=nn.Linear(third, fourth), relu=nn.ReLU(), dropout=_dropout(dropout))
    network.add_module("fc", nn.Linear(fourth, num_classes))
    return _taking_gamma(network, "conv2|fc3|fc4")


def small_cnn(
    num_classes: int = 10, width: float = 1.0, *, channels: int = 3, image: int = 32, dropout: float = 0.1
) -> nn.Sequential:
    """SmallCNN of Fort et al.: convolutions of 16, 32 and 32 channels, for images of side `image`."""
    return _plain_cnn((16, 32, 32), num_classes, width, channels, image, dropout)


def medium_cnn(
    num_classes: int = 10, width: float = 1.0, *, channels: int = 3, image: int = 32, dropout: float = 0.1
) -> nn.Sequential:
    """MediumCNN of Fort et al.: convolutions of 64, 128, 256 and 256 channels, for images of side `image`."""
    return _plain_cnn((64, 128, 256, 256), num_classes, width, channels, image, dropout)


def resnet18(num_classes: int = 10, width: float = 1.0, **options: Unpack[ResNetOptions]) -> "ResNet":
    """ResNet-18 of He et al.

    Args:
        options: `channels=3`, `style="cifar"` or `"imagenet"`, `dropout=0.0` before the last layer

    >>> resnet18(num_classes=100, width=0.5).fc
    Linear(in_features=256, out_features=100, bias=True)
    """
    return ResNet(BASIC, (2, 2, 2, 2), num_classes, width, **options)


def resnet20(num_classes: int = 10, width: float = 1.0, **options: Unpack[ResNetOptions]) -> "ResNet":
    """ResNet20v1 of Fort et al.: stages of 16, 32 and 64 channels, 1x1 shortcuts; options as `resnet18`."""
    return ResNet(BASIC, (3, 3, 3), num_classes, width, planes=16, **options)


def resnet50(num_classes: int = 10, width: float = 1.0, **options: Unpack[ResNetOptions]) -> "ResNet":
    """ResNet-50, the stride on the 3x3 convolutions; ResNet-50x4 has `width=4`; options as `resnet18`."""
    return ResNet(BOTTLENECK, (3, 4, 6, 3), num_classes, width, **options)


def resnet50v2(num_classes: int = 10, width: float = 1.0, **options: Unpack[ResNetOptions]) -> "ResNet":
    """ResNet50v2 of He et al.: normalisation and ReLU before each convolution; options as `resnet18`."""
    return ResNet(BOTTLENECK, (3, 4, 6, 3), num_classes, width, preactivated=True, **options)


def resnext50(num_classes: int = 10, width: float = 1.0, **options: Unpack[ResNetOptions]) -> "ResNet":
    """ResNeXt-50 (32x4d) of Xie et al., Packed-Ensembles' control for groups; options as `resnet18`."""
    return ResNet(NEXT, (3, 4, 6, 3), num_classes, width, **options)


def wide_resnet28_10(num_classes: int = 10, width: float = 1.0, **options: Unpack[WideResNetOptions]) -> "ResNet":
    """Wide-ResNet-28-10 of Zagoruyko and Komodakis.

    Args:
        options: `channels=3`, `style="cifar"` or `"imagenet"`, `dropout=0.0` inside the blocks;
            Packed-Ensembles' Table 1 counts a network with `bias=True` and `stride_on="second"`
    """
    return _wide_resnet(28, 10, num_classes, width, **options)


def wide_resnet16_4(num_classes: int = 10, width: float = 1.0, **options: Unpack[WideResNetOptions]) -> "ResNet":
    """Wide-ResNet-16-4, Masksembles' network for CIFAR; options as `wide_resnet28_10`."""
    return _wide_resnet(16, 4, num_classes, width, **options)


class Convolution(NamedTuple):
    """One convolution of a residual block: outputs per plane of the stage, kernel, and whether it strides."""

    factor: int
    kernel: int
    strides: bool = False
    groups: int = 1


BASIC = (Convolution(1, 3, strides=True), Convolution(1, 3))
LATE = (Convolution(1, 3), Convolution(1, 3, strides=True))
BOTTLENECK = (Convolution(1, 1), Convolution(1, 3, strides=True), Convolution(4, 1))
NEXT = (Convolution(2, 1), Convolution(2, 3, strides=True, groups=32), Convolution(4, 1))


class ResNet(nn.Module):
    """A stem, stages of residual blocks whose planes double and whose maps halve, and a linear layer.

    Shapes:
        input: (batch, channels, height, width)
        output: (batch, num_classes)
    """

    def __init__(
        self,
        layout: Sequence[Convolution],
        depths: Sequence[int],
        num_classes: int = 10,
        width: float = 1.0,
        *,
        planes: int = 64,
        stem: int | None = None,
        preactivated: bool = False,
        bias: bool = False,
        channels: int = 3,
        style: Literal["cifar", "imagenet"] = "cifar",
        dropout: float = 0.0,
        block_dropout: float = 0.0,
    ):
        super().__init__()
        _check(num_classes, width)
        size = scaled(stem or planes, width)
        self.conv1, self.maxpool = _stem(style, channels, size, bias)
        if not preactivated:
            self.bn1 = nn.BatchNorm2d(size)
        self.preactivated, self.stages = preactivated, tuple(f"layer{i + 1}" for i in range(len(depths)))
        for i, (name, depth) in enumerate(zip(self.stages, depths, strict=True)):
            blocks = nn.Sequential()
            for stride in [2 if i else 1] + [1] * (depth - 1):
                convolutions = _convolutions(layout, size, planes * 2**i, stride, width, bias)
                blocks.append(Preactivated(convolutions, block_dropout) if preactivated else Residual(convolutions))
                size = convolutions[-1].out_channels
            self.add_module(name, blocks)
        if preactivated:
            self.bn1 = nn.BatchNorm2d(size)
        self.relu = nn.ReLU()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.dropout = _dropout(dropout)
        self.fc = nn.Linear(size, num_classes)
        later = [f"conv{i}" for i, conv in enumerate(layout, start=1) if i > 1 and conv.groups == 1]
        self.takes_gamma = _inside_blocks(*later)

    def forward(self, x: Tensor) -> Tensor:
        """The logits of a batch of images."""
        x = self.conv1(x)
        x = self.maxpool(x if self.preactivated else self.relu(self.bn1(x)))
        for name in self.stages:
            x = getattr(self, name)(x)
        x = self.relu(self.bn1(x)) if self.preactivated else x
        return self.fc(self.dropout(self.avgpool(x).flatten(1)))


class Residual(nn.Module):
    """A block of He et al., 2016a: normalisation after each convolution, the last ReLU after the sum."""

    conv1: nn.Module
    conv2: nn.Module
    conv3: nn.Module
    bn1: nn.Module
    bn2: nn.Module
    bn3: nn.Module

    def __init__(self, convolutions: Sequence[nn.Conv2d]):
        super().__init__()
        for i, conv in enumerate(convolutions, start=1):
            self.add_module(f"conv{i}", conv)
            self.add_module(f"bn{i}", nn.BatchNorm2d(conv.out_channels))
        self.relu = nn.ReLU()
        shortcut = _shortcut(convolutions)
        if isinstance(shortcut, nn.Conv2d):
            shortcut = nn.Sequential(shortcut, nn.BatchNorm2d(shortcut.out_channels))
        self.downsample = shortcut

    def forward(self, x: Tensor) -> Tensor:
        """The sum of shortcut and convolutions."""
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        if hasattr(self, "conv3"):
            y = self.bn3(self.conv3(self.relu(y)))
        return self.relu(y + self.downsample(x))


class Preactivated(nn.Module):
    """A block of He et al., 2016b: normalisation before each convolution, dropout before the last."""

    conv1: nn.Module
    conv2: nn.Module
    conv3: nn.Module
    bn1: nn.Module
    bn2: nn.Module
    bn3: nn.Module

    def __init__(self, convolutions: Sequence[nn.Conv2d], dropout: float = 0.0):
        super().__init__()
        for i, conv in enumerate(convolutions, start=1):
            self.add_module(f"bn{i}", nn.BatchNorm2d(conv.in_channels))
            self.add_module(f"conv{i}", conv)
        self.relu = nn.ReLU()
        self.dropout = _dropout(dropout)
        self.downsample = _shortcut(convolutions)

    def forward(self, x: Tensor) -> Tensor:
        """The sum of shortcut and convolutions."""
        y = self.relu(self.bn1(x))
        shortcut = x if isinstance(self.downsample, nn.Identity) else self.downsample(y)
        y = self.relu(self.bn2(self.conv1(y)))
        if hasattr(self, "conv3"):
            y = self.relu(self.bn3(self.conv2(y)))
            return self.conv3(self.dropout(y)) + shortcut
        return self.conv2(self.dropout(y)) + shortcut


def scaled(size: int, width: float, groups: int = 1) -> int:
    """ceil(width * size), rounded up to a multiple of `groups`.

    >>> scaled(64, 0.3), scaled(128, 0.3, groups=32)
    (20, 64)
    """
    rounded = max(1, ceil(round(width * size, 6)))  # 1.1 * 10 is 11.000000000000002
    return ceil(rounded / groups) * groups


def _plain_cnn(
    sizes: Sequence[int], num_classes: int, width: float, channels: int, image: int, dropout: float
) -> nn.Sequential:
    """As in the authors' notebook: each convolution with dropout, pooling and ReLU, the last without ReLU."""
    _check(num_classes, width)
    network = nn.Sequential()
    for i, size in enumerate((scaled(size, width) for size in sizes), start=1):
        relu = nn.ReLU() if i < len(sizes) else nn.Identity()
        conv, pool = nn.Conv2d(channels, size, 3, padding=1), nn.MaxPool2d(2, ceil_mode=True)
        _append(network, i, conv=conv, dropout=_dropout(dropout), pool=pool, relu=relu)
        channels, image = size, ceil(image / 2)
    network.add_module("flatten", nn.Flatten())
    network.add_module("fc", nn.Linear(channels * image**2, num_classes))
    return _taking_gamma(network, r"conv([2-9]|\d\d+)")


def _wide_resnet(
    depth: int,
    factor: int,
    num_classes: int,
    width: float,
    *,
    stride_on: Literal["first", "second"] = "first",
    bias: bool = False,
    dropout: float = 0.0,
    channels: int = 3,
    style: Literal["cifar", "imagenet"] = "cifar",
) -> ResNet:
    layouts = {"first": BASIC, "second": LATE}
    if stride_on not in layouts:
        raise ValueError(f'wide_resnet: stride_on is "first" or "second", not {stride_on!r}. Choose one of them.')
    network = ResNet(
        layouts[stride_on],
        [(depth - 4) // 6] * 3,
        num_classes,
        width,
        planes=16 * factor,
        stem=16,
        preactivated=True,
        bias=bias,
        channels=channels,
        style=style,
        block_dropout=dropout,
    )
    network.takes_gamma = _inside_blocks("conv1", "conv2")
    return network


def _stem(style: str, channels: int, size: int, bias: bool) -> tuple[nn.Conv2d, nn.Module]:
    if style == "cifar":
        return nn.Conv2d(channels, size, 3, padding=1, bias=bias), nn.Identity()
    if style == "imagenet":
        return nn.Conv2d(channels, size, 7, stride=2, padding=3, bias=bias), nn.MaxPool2d(3, stride=2, padding=1)
    raise ValueError(f'ResNet: style is "cifar" or "imagenet", not {style!r}. Choose by the size of the images.')


def _convolutions(
    layout: Sequence[Convolution], inputs: int, planes: int, stride: int, width: float, bias: bool
) -> list[nn.Conv2d]:
    convolutions, multiple = (
        [],
        max(conv.groups for conv in layout),
    )  # inputs and outputs of groups divide alike
    for conv in layout:
        size = scaled(planes * conv.factor, width, multiple if conv is not layout[-1] else 1)
        step, padding = stride if conv.strides else 1, conv.kernel // 2
        convolutions.append(nn.Conv2d(inputs, size, conv.kernel, step, padding, groups=conv.groups, bias=bias))
        inputs = size
    return convolutions


def _shortcut(convolutions: Sequence[nn.Conv2d]) -> nn.Module:
    first, last = convolutions[0], convolutions[-1]
    stride = max(conv.stride[0] for conv in convolutions)
    if first.in_channels == last.out_channels and stride == 1:
        return nn.Identity()
    return nn.Conv2d(first.in_channels, last.out_channels, 1, stride, bias=first.bias is not None)


def _dropout(rate: float) -> nn.Module:
    """No module that never drops: what has dropout should be what uses it."""
    return nn.Dropout(rate) if rate else nn.Identity()


def _inside_blocks(*convolutions: str) -> str:
    return rf"layer\d+\.\d+\.({'|'.join(convolutions)}|downsample(\.0)?)"


def _append(network: nn.Sequential, number: int, **layers: nn.Module) -> None:
    for name, layer in layers.items():
        network.add_module(f"{name}{number}", layer)


def _taking_gamma(network: nn.Sequential, pattern: str) -> nn.Sequential:
    network.takes_gamma = pattern  # type: ignore[assignment]
    return network


def _check(num_classes: int, width: float) -> None:
    if num_classes < 1:
        raise ValueError(
            f"A network needs num_classes of 1 or more, but it is {num_classes}. Give the number of outputs."
        )
    if not width > 0:
        raise ValueError(
            f"A network needs a width above 0, but it is {width}. Use 0.5 for half, 2 for twice the channels."
        )


MODELS: dict[str, Callable[..., nn.Module]] = {
    function.__name__: function
    for function in (
        mlp,
        lenet,
        small_cnn,
        medium_cnn,
        resnet18,
        resnet20,
        resnet50,
        resnet50v2,
        resnext50,
        wide_resnet28_10,
        wide_resnet16_4,
    )
}
