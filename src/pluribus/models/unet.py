"""A small U-Net (Ronneberger et al. 2015) for segmentation: an answer for every pixel."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .small import check_sizes, dropout_layer, scale_width

WIDTHS = (16, 32, 64, 128)  # of the levels, each half as high and wide as the one before


class UNet(nn.Module):
    """Down by halves and up again; each level on the way up also sees the one of its size on the way down."""

    def __init__(self, num_classes: int, width: float, channels: int, dropout: float):
        super().__init__()
        sizes = [scale_width(size, width) for size in WIDTHS]
        below = [channels, *sizes]
        self.down = nn.ModuleList(_convolution(a, b) for a, b in zip(below, sizes, strict=False))
        pairs = list(zip(sizes[:-1], sizes[1:], strict=True))
        self.up = nn.ModuleList(_convolution(fine + coarse, fine) for fine, coarse in reversed(pairs))
        self.dropout = dropout_layer(dropout)
        self.head = nn.Conv2d(sizes[0], num_classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of every pixel: (batch, num_classes, height, width)."""
        levels: list[Tensor] = []
        for i, layer in enumerate(self.down):
            x = layer(F.max_pool2d(x, 2, ceil_mode=True) if i else x)
            levels.append(x)
        for layer, level in zip(self.up, reversed(levels[:-1]), strict=True):
            x = layer(torch.cat([level, F.interpolate(x, size=level.shape[2:])], 1))
        return self.head(self.dropout(x))


def unet(num_classes: int = 10, width: float = 1.0, *, channels: int = 3, dropout: float = 0.1) -> UNet:
    """A small U-Net for images of any size: four levels of 16 to 128 channels, with batch normalisation.

    Shapes:
        input: (batch, channels, height, width)
        output: (batch, num_classes, height, width)

    >>> unet(num_classes=3)(torch.zeros(2, 3, 30, 45)).shape
    torch.Size([2, 3, 30, 45])
    """
    check_sizes(num_classes, width)
    return UNet(num_classes, width, channels, dropout)


def _convolution(inputs: int, outputs: int) -> nn.Sequential:
    layers = [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(
        *layers, nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()
    )
