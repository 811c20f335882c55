"""Packed layers: thin members side by side in the channels, in groups that do not mix (Laurent et al., 2023)."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from torch import Tensor, nn

from ..methods.adapted_layers import GroupedLinear
from ..methods.building import check_number, check_size, check_whole


class _Widths(NamedTuple):
    """Inputs, outputs and groups of a packed layer, of all members together."""

    inputs: int
    outputs: int
    groups: int


def _widths(
    name: str, inputs: int, outputs: int, size: int, alpha: float, gamma: int, first: bool, last: bool, least: int
) -> _Widths:
    """The widths of M networks of alpha / M the width (section 3.2), rounded up to what their groups need.

    Gamma is lowered until a group has at least `least` inputs (appendix B); a first layer has no groups at all, because
    all members read the same input (Figure 3, c).
    """
    inputs, outputs = check_whole(name, "the inputs", inputs), check_whole(name, "the outputs", outputs)
    size, gamma = check_size(name, size), check_whole(name, "gamma", gamma)
    alpha = check_number(name, "alpha", alpha, "a positive number", lambda v: 0 < v < math.inf)
    thin_in, thin_out = (max(1, math.ceil(width * alpha / size - 1e-9)) for width in (inputs, outputs))
    thin_out = outputs if last else thin_out
    if first:
        return _Widths(inputs, size * thin_out, 1)
    gamma = max((g for g in range(1, gamma + 1) if thin_in / g >= least), default=1)
    if last and outputs % gamma:
        raise ValueError(
            f"{name}: gamma {gamma} must divide the {outputs} outputs of each member in a last layer. Choose gamma=1."
        )
    thin_in, thin_out = (-(-width // gamma) * gamma for width in (thin_in, thin_out))
    return _Widths(size * thin_in, size * thin_out, size * gamma)


class PackedLinear(GroupedLinear):
    """The linear layers of `size` thin networks in one, members side by side in the features.

    Shapes:
        input: (..., members * inputs); of a first layer (..., in_features)
        output: (..., members * outputs); of a last layer (..., members * out_features): see `split_channels`

    Args:
        in_features, out_features: of the single network's layer
        size: how many members
        alpha: how wide all members together are, relative to the single network
        gamma: groups inside each member
        first: all members read the same input, which is not divided
        last: each member has all outputs, which are not divided

    >>> layer = PackedLinear(64, 128, size=4, alpha=2)
    >>> layer(torch.zeros(5, 128)).shape, layer.weight.shape  # four members of 32 inputs and 64 outputs
    (torch.Size([5, 256]), torch.Size([256, 32]))
    """

    def __init__(
        self, in_features: int, out_features: int, size: int, alpha: float = 2, gamma: int = 1, *,
        first: bool = False, last: bool = False, bias: bool = True,
    ):  # fmt: skip
        widths = _widths("PackedLinear", in_features, out_features, size, alpha, gamma, first, last, 1)
        super().__init__(*widths, bias)
        self.size = size


class _PackedConv:
    """What a packed convolution adds to torch's own: widths and groups from size, alpha and gamma."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Any, size: int, alpha: float = 2, gamma: int = 1, *,
        first: bool = False, last: bool = False, min_channels: int = 64, **options: Any,
    ):  # fmt: skip
        name = type(self).__name__
        if "groups" in options:
            raise ValueError(f"{name}: groups follow from size and gamma, but groups={options['groups']} was given.")
        least = check_whole(name, "min_channels", min_channels)
        widths = _widths(name, in_channels, out_channels, size, alpha, gamma, first, last, least)
        super().__init__(widths.inputs, widths.outputs, kernel_size, groups=widths.groups, **options)  # type: ignore[call-arg]
        self.size = size


class PackedConv1d(_PackedConv, nn.Conv1d):
    """As `PackedConv2d`, for sequences.

    >>> PackedConv1d(16, 32, 3, size=4, alpha=2).weight.shape
    torch.Size([64, 8, 3])
    """


class PackedConv2d(_PackedConv, nn.Conv2d):
    """The convolutions of `size` thin networks as one grouped convolution, members side by side in the channels.

    Shapes:
        input: (batch, members * inputs, height, width); of a first layer (batch, in_channels, height, width)
        output: (batch, members * outputs, height, width): normalise with `nn.BatchNorm2d(layer.out_channels)`

    Args:
        in_channels, out_channels, kernel_size: of the single network's layer
        size, alpha, gamma, first, last: as for `PackedLinear`; not gamma in a network's first layer
        min_channels: gamma is lowered until a group has so many input channels
        options: as for `nn.Conv2d`: stride, padding, dilation, bias, ...

    >>> stem = PackedConv2d(3, 64, 3, size=4, alpha=2, first=True, padding=1)
    >>> stem(torch.zeros(1, 3, 8, 8)).shape, PackedConv2d(64, 64, 3, size=4, alpha=2).groups
    (torch.Size([1, 128, 8, 8]), 4)
    """


class PackedConv3d(_PackedConv, nn.Conv3d):
    """As `PackedConv2d`, for volumes.

    >>> PackedConv3d(16, 32, 3, size=4, alpha=2).weight.shape
    torch.Size([64, 8, 3, 3, 3])
    """


def split_channels(outputs: Tensor, size: int) -> Tensor:
    """The outputs of a packed network by member.

    Shapes:
        outputs: (batch, members * classes, ...); given back: (members, batch, classes, ...)

    >>> split_channels(torch.zeros(5, 12), size=4).shape
    torch.Size([4, 5, 3])
    """
    size = check_size("split_channels", size)
    if outputs.ndim < 2 or outputs.shape[1] % size:
        raise ValueError(
            f"split_channels: dimension 1 must hold outputs of {size} members, but the shape is {tuple(outputs.shape)}."
        )
    return outputs.unflatten(1, (size, -1)).movedim(1, 0)
