"""Convolutions of 3 x 3 with four times fewer multiplications (Winograd; Lavin and Gray, 2016, F(4x4, 3x3)).

A tile of 4 x 4 outputs takes 36 products where the direct way takes 144. Inputs, weights and outputs are transformed by
products with small matrices, which pays where a layer has many channels. The weight takes four times the memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..._common.torch_private import convolve, is_onednn_enabled, reorder_weight

TILE = 4  # outputs along one axis

SIDE = TILE + 2  # inputs along one axis that they read

PRODUCTS = SIDE * SIDE

GROWTH = PRODUCTS / 9  # of the weight

BUFFER = 2_500_000  # bytes of tiles at a time, which stay near the processor; at least 128 tiles

# Where the polynomials behind the transformation are evaluated, beside infinity; 1 must be the second (see `Tiled`).
# These points round two to four times less than the published 0, 1, -1, 2, -2.
POINTS = (0.0, 1.0, -1.0, 0.5, -2.0)


@cache
def matrices() -> tuple[Tensor, Tensor, Tensor]:
    """What transforms the weight, (6, 3), the input, (6, 6), and the products, (4, 6), along one axis.

    >>> of_weight, of_input, of_output = matrices()
    >>> weight, x = torch.tensor([1.0, 2.0, 3.0]).double(), torch.arange(6).double()
    >>> (of_output @ ((of_weight @ weight) * (of_input @ x))).round()  # 0 + 2 + 6, 1 + 4 + 9, ...
    tensor([ 8., 14., 20., 26.], dtype=torch.float64)
    """
    others = [[q for q in POINTS if q != p] for p in POINTS]
    of_input = torch.stack([_polynomial(roots) for roots in (*others, POINTS)])
    size = of_input.abs().amax(1, keepdim=True)  # balanced, so that nothing grows
    slopes = torch.tensor([*(math.prod(p - q for q in roots) for p, roots in zip(POINTS, others, strict=True)), 1.0])
    return _powers(3) * size / slopes[:, None], of_input / size, _powers(TILE).T


def _polynomial(roots: Sequence[float]) -> Tensor:
    """The coefficients of the product of (x - root), the constant first."""
    made = F.one_hot(torch.tensor(0), SIDE).double()
    for root in roots:
        made = made.roll(1) - root * made
    return made


def _powers(number: int) -> Tensor:
    """The powers of each point, from 0 on; infinity has only the last."""
    points = torch.tensor(POINTS, dtype=torch.float64)
    last = F.one_hot(torch.tensor([number - 1]), number).double()
    return torch.cat([points[:, None] ** torch.arange(number), last])


class Tiled:
    """A convolution of 3 x 3 with padding 1 and stride 1 by tiles, on oneDNN's operators.

    Args:
        weight: (outputs, inputs / groups, 3, 3)
        shape: of the inputs that it is fastest for
        buffer: memory to work in, of the size of the transformed weight or larger
    """

    def __init__(
        self, weight: Tensor, bias: Tensor | None, groups: int, shape: Sequence[int], buffer: Tensor | None = None
    ):
        self.outputs, self.options = len(weight), ([0, 0], [1, 1], [1, 1], PRODUCTS * groups)
        self.shape = tuple(shape)
        self._reorder_(_products(matrices()[0], weight, buffer))
        self.bias: Tensor | None = None
        if bias is not None:  # what is added where both points are 1 reaches every output of the tile once
            self.bias = torch.zeros(SIDE, SIDE, len(bias), dtype=bias.dtype)
            self.bias[1, 1] = bias
            self.bias = self.bias.flatten()

    def _reorder_(self, products: Tensor) -> None:
        """Take the transformed weight, (products * outputs, inputs / groups, 1, 1), in the order of the kernel."""
        rows, inputs, height, width = self.shape
        tiles = _tiles(height) * _tiles(width)
        rows = min(rows, self._rows_at_once(inputs, tiles))
        self.weight = reorder_weight(products, self.options, [1, PRODUCTS * inputs, rows * tiles, 1])

    def _rows_at_once(self, inputs: int, tiles: int) -> int:
        number = max(128, BUFFER // (4 * PRODUCTS * max(inputs, self.outputs)))
        return max(1, number // tiles)

    def __call__(self, x: Tensor) -> Tensor:
        """(batch, inputs, height, width) to (batch, outputs, height, width), channels-last."""
        inputs, height, width = x.shape[1:]
        h, w = _tiles(height), _tiles(width)
        given, made = transformations(height, width)
        rows = self._rows_at_once(inputs, h * w)
        x = x.permute(0, 2, 3, 1)
        if (h, w) == (1, 1):
            y = torch.cat([self._convolve(part.flatten(1, 2), given, made) for part in x.split(rows)])
            return y.view(len(x), height, width, -1).permute(0, 3, 1, 2)
        outputs = x.new_empty(len(x), h, TILE, w, TILE, self.outputs)
        padding = 0, 0, 1, w * TILE - width + 1, 1, h * TILE - height + 1
        for part, out in zip(x.split(rows), outputs.split(rows), strict=True):
            tiles = F.pad(part, padding).unfold(1, SIDE, TILE).unfold(2, SIDE, TILE).permute(0, 1, 2, 4, 5, 3)
            y = self._convolve(tiles.reshape(-1, PRODUCTS, inputs), given, made)
            out.copy_(y.view(-1, h, w, TILE, TILE, self.outputs).transpose(2, 3))
        y = outputs.view(len(x), h * TILE, w * TILE, -1)[:, :height, :width].contiguous()
        return y.permute(0, 3, 1, 2)

    def _convolve(self, tiles: Tensor, given: Tensor, made: Tensor) -> Tensor:
        """(tiles, pixels that are read, inputs) to (tiles, pixels that are written, outputs)."""
        y = torch.matmul(given, tiles).view(1, len(tiles), 1, -1).permute(0, 3, 1, 2)
        y = convolve(y, self.weight, self.bias, self.options)
        return torch.matmul(made, y.permute(0, 2, 3, 1).view(-1, PRODUCTS, self.outputs))

    def plain(self) -> Tensor:
        """The weight that it was made of, up to its rounding."""
        back = np.linalg.pinv(matrices()[0].numpy())  # by numpy, so that nobody who counts operations counts these
        products = self.weight.to_dense().view(SIDE, SIDE, self.outputs, -1).numpy()
        return torch.from_numpy(np.einsum("ai,bj,ijkc->kcab", back, back, products, optimize=True)).float()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "weight": self.weight.to_dense()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if is_onednn_enabled():
            self._reorder_(self.weight)


@lru_cache(maxsize=64)
def transformations(height: int, width: int) -> tuple[Tensor, Tensor]:
    """What transforms the pixels of a tile, and what transforms its products back, for images of this size."""
    given, made = (torch.kron(m, m).float() for m in matrices()[1:])
    if max(height, width) > TILE:
        return given, made
    # The whole map is one tile: what lies outside of it need not be read or written.
    inside = given.view(PRODUCTS, SIDE, SIDE)[:, 1 : height + 1, 1 : width + 1]
    return inside.reshape(PRODUCTS, -1), made.view(TILE, TILE, PRODUCTS)[:height, :width].reshape(-1, PRODUCTS)


def _products(of_weight: Tensor, weight: Tensor, buffer: Tensor | None) -> Tensor:
    """The transformed weight, (products * outputs, inputs / groups, 1, 1), in `buffer` if there is one."""
    outputs, inputs = weight.shape[:2]
    made = weight.new_empty(PRODUCTS * outputs * inputs) if buffer is None else buffer
    made = made[: PRODUCTS * outputs * inputs].view(SIDE, SIDE, outputs, inputs)
    for start in range(0, outputs, 16):  # in double precision, which all at once would take much memory
        part = weight[start : start + 16].double()
        made[:, :, start : start + 16] = torch.einsum("ia,jb,kcab->ijkc", of_weight, of_weight, part)
    return made.view(-1, inputs, 1, 1).contiguous(memory_format=torch.channels_last)


def _tiles(size: int) -> int:
    """How many cover one axis."""
    return -(-size // TILE)


def can_tile(kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]) -> bool:
    """Whether a convolution can be run this way."""
    return (*kernel, *stride, *padding, *dilation) == (3, 3, 1, 1, 1, 1, 1, 1)
