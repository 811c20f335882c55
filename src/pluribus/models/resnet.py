"""The residual networks of the papers: hidden widths follow `width`, so none needs a thin or wide copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict, Unpack

from torch import Tensor, nn

from .small import ConvolutionSpec, check_sizes, dropout_layer, scale_width


class ResNetOptions(TypedDict, total=False):
    """What every ResNet takes: channels of the images, the stem, the dropout rate."""

    channels: int
    style: Literal["cifar", "imagenet"]
    dropout: float


class WideResNetOptions(ResNetOptions, total=False):
    """What a Wide-ResNet takes besides: biases of convolutions, and which convolution of a block strides."""

    bias: bool
    stride_on: Literal["first", "second"]


def resnet18(num_classes: int = 10, width: float = 1.0, **options: Unpack[ResNetOptions]) -> ResNet:
    """ResNet-18 of He et al.

    Shapes:
        input: (batch, channels, height, width)
        output: (batch, num_classes)

    Args:
        options: `channels=3`, `style="cifar"` or `"imagenet"`, `dropout=0.0` before the last layer

    >>> resnet18(num_classes=100, width=0.5).fc
    Linear(in_features=256, out_features=100, bias=True)
    """
    return ResNet(BASIC, (2, 2, 2, 2), num_classes, width, **options)


def resnet20(num_classes: int = 10, width: float = 1.0, **options: Unpack[ResNetOptions]) -> ResNet:
    """ResNet20v1 of Fort et al., which is that of the Keras example; shapes and options as `resnet18`.

    Stages of 16, 32 and 64 channels; convolutions have biases, and 1x1 shortcuts no normalisation.

    >>> sum(p.numel() for p in resnet20(num_classes=10).parameters())
    273066
    """
    return ResNet(BASIC, (3, 3, 3), num_classes, width, planes=16, bias=True, plain_shortcuts=True, **options)


def resnet50(num_classes: int = 10, width: float = 1.0, **options: Unpack[ResNetOptions]) -> ResNet:
    """ResNet-50, the stride on the 3x3 convolutions; ResNet-50x4 has `width=4`; shapes and options as `resnet18`.

    >>> resnet50(num_classes=10, width=0.25).fc
    Linear(in_features=512, out_features=10, bias=True)
    """
    return ResNet(BOTTLENECK, (3, 4, 6, 3), num_classes, width, **options)


def resnet50v2(num_classes: int = 10, width: float = 1.0, **options: Unpack[ResNetOptions]) -> ResNet:
    """ResNet50v2 of He et al.: normalisation and ReLU before each convolution; shapes and options as `resnet18`.

    >>> resnet50v2(num_classes=10, width=0.25).fc
    Linear(in_features=512, out_features=10, bias=True)
    """
    return ResNet(BOTTLENECK, (3, 4, 6, 3), num_classes, width, preactivated=True, **options)


def resnext50(num_classes: int = 10, width: float = 1.0, **options: Unpack[ResNetOptions]) -> ResNet:
    """ResNeXt-50 (32x4d) of Xie et al., Packed-Ensembles' control for groups; shapes and options as `resnet18`.

    >>> resnext50(num_classes=10, width=0.25).fc
    Linear(in_features=512, out_features=10, bias=True)
    """
    return ResNet(NEXT, (3, 4, 6, 3), num_classes, width, **options)


def wide_resnet28_10(num_classes: int = 10, width: float = 1.0, **options: Unpack[WideResNetOptions]) -> ResNet:
    """Wide-ResNet-28-10 of Zagoruyko and Komodakis; shapes as `resnet18`.

    Args:
        options: `channels=3`, `style="cifar"` or `"imagenet"`, `dropout=0.0` inside the blocks;
            Packed-Ensembles' Table 1 counts a network with `bias=True` and `stride_on="second"`

    >>> wide_resnet28_10(num_classes=10, width=0.1).fc
    Linear(in_features=64, out_features=10, bias=True)
    """
    return _wide_resnet(28, 10, num_classes, width, **options)


def wide_resnet16_4(num_classes: int = 10, width: float = 1.0, **options: Unpack[WideResNetOptions]) -> ResNet:
    """Wide-ResNet-16-4, Masksembles' network for CIFAR; shapes and options as `wide_resnet28_10`.

    >>> wide_resnet16_4(num_classes=10, width=0.25).fc
    Linear(in_features=64, out_features=10, bias=True)
    """
    return _wide_resnet(16, 4, num_classes, width, **options)


BASIC = (ConvolutionSpec(1, 3, strides=True), ConvolutionSpec(1, 3))

LATE = (ConvolutionSpec(1, 3), ConvolutionSpec(1, 3, strides=True))

BOTTLENECK = (ConvolutionSpec(1, 1), ConvolutionSpec(1, 3, strides=True), ConvolutionSpec(4, 1))

NEXT = (ConvolutionSpec(2, 1), ConvolutionSpec(2, 3, strides=True, groups=32), ConvolutionSpec(4, 1))


class ResNet(nn.Module):
    """A stem, stages of residual blocks whose planes double and whose maps halve, and a linear layer."""

    def __init__(
        self,
        layout: Sequence[ConvolutionSpec],
        depths: Sequence[int],
        num_classes: int = 10,
        width: float = 1.0,
        *,
        planes: int = 64,
        stem: int | None = None,
        preactivated: bool = False,
        plain_shortcuts: bool = False,
        bias: bool = False,
        channels: int = 3,
        style: Literal["cifar", "imagenet"] = "cifar",
        dropout: float = 0.0,
        block_dropout: float = 0.0,
    ):
        super().__init__()
        check_sizes(num_classes, width)
        size = scale_width(stem or planes, width)
        self.conv1, self.maxpool = _stem(style, channels, size, bias)
        if not preactivated:
            self.bn1 = nn.BatchNorm2d(size)
        self.preactivated, self.stages = preactivated, tuple(f"layer{i + 1}" for i in range(len(depths)))
        for i, (name, depth) in enumerate(zip(self.stages, depths, strict=True)):
            blocks = nn.Sequential()
            for stride in [2 if i else 1] + [1] * (depth - 1):
                convolutions = _convolutions(layout, size, planes * 2**i, stride, width, bias)
                blocks.append(
                    Preactivated(convolutions, block_dropout)
                    if preactivated
                    else Residual(convolutions, plain_shortcuts)
                )
                size = convolutions[-1].out_channels
            self.add_module(name, blocks)
        if preactivated:
            self.bn1 = nn.BatchNorm2d(size)
        self.relu = nn.ReLU()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.dropout = dropout_layer(dropout)
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

    def __init__(self, convolutions: Sequence[nn.Conv2d], plain_shortcut: bool = False):
        super().__init__()
        for i, conv in enumerate(convolutions, start=1):
            self.add_module(f"conv{i}", conv)
            self.add_module(f"bn{i}", nn.BatchNorm2d(conv.out_channels))
        self.relu, self.depth = nn.ReLU(), len(convolutions)
        shortcut = _shortcut(convolutions)
        if isinstance(shortcut, nn.Conv2d) and not plain_shortcut:
            shortcut = nn.Sequential(shortcut, nn.BatchNorm2d(shortcut.out_channels))
        self.downsample = shortcut

    def forward(self, x: Tensor) -> Tensor:
        """The sum of shortcut and convolutions."""
        y = x
        for i in range(1, self.depth + 1):
            y = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(self.relu(y) if i > 1 else y))
        return self.relu(y + self.downsample(x))


class Preactivated(nn.Module):
    """A block of He et al., 2016b: normalisation before each convolution, dropout before the last."""

    def __init__(self, convolutions: Sequence[nn.Conv2d], dropout: float = 0.0):
        super().__init__()
        for i, conv in enumerate(convolutions, start=1):
            self.add_module(f"bn{i}", nn.BatchNorm2d(conv.in_channels))
            self.add_module(f"conv{i}", conv)
        self.relu, self.depth = nn.ReLU(), len(convolutions)
        self.dropout = dropout_layer(dropout)
        self.downsample = _shortcut(convolutions)

    def forward(self, x: Tensor) -> Tensor:
        """The sum of shortcut and convolutions."""
        y = self.relu(self.get_submodule("bn1")(x))
        shortcut = x if isinstance(self.downsample, nn.Identity) else self.downsample(y)
        for i in range(2, self.depth + 1):
            y = self.relu(getattr(self, f"bn{i}")(getattr(self, f"conv{i - 1}")(y)))
        return getattr(self, f"conv{self.depth}")(self.dropout(y)) + shortcut


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
        raise ValueError(f'wide_resnet: stride_on must be "first" or "second", not {stride_on!r}. Choose one of them.')
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
    raise ValueError(f'ResNet: style must be "cifar" or "imagenet", not {style!r}. Choose by the size of the images.')


def _convolutions(
    layout: Sequence[ConvolutionSpec], inputs: int, planes: int, stride: int, width: float, bias: bool
) -> list[nn.Conv2d]:
    convolutions, multiple = (
        [],
        max(conv.groups for conv in layout),
    )  # inputs and outputs of groups divide alike
    for conv in layout:
        size = scale_width(planes * conv.factor, width, multiple if conv is not layout[-1] else 1)
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


def _inside_blocks(*convolutions: str) -> str:
    return rf"layer\d+\.\d+\.({'|'.join(convolutions)}|downsample(\.0)?)"
