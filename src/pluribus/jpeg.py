"""What JPEG does to a batch of images: the arithmetic of libjpeg without its files, equal to the codec's pixels.

Nothing is lost in the entropy coding, so it is left out. The integer steps are those of the standard's reference
library (its accurate integer transform): colours halved in both directions and brought back by its smooth filter.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

BITS = 13  # of the fractions in the integer transform
LUMINANCE = (
    *(16, 11, 10, 16, 24, 40, 51, 61, 12, 12, 14, 19, 26, 58, 60, 55, 14, 13, 16, 24, 40, 57, 69, 56),
    *(14, 17, 22, 29, 51, 87, 80, 62, 18, 22, 37, 56, 68, 109, 103, 77, 24, 35, 55, 64, 81, 104, 113, 92),
    *(49, 64, 78, 87, 103, 121, 120, 101, 72, 92, 95, 98, 112, 100, 103, 99),
)
CHROMINANCE = (
    *(17, 18, 24, 47, 99, 99, 99, 99, 18, 21, 26, 66, 99, 99, 99, 99, 24, 26, 56, 99, 99, 99, 99, 99),
    *(47, 66, 99, 99, 99, 99, 99, 99, *(99,) * 32),
)


def jpeg(x: Tensor, quality: int) -> Tensor:
    """Images (batch, 1 or 3, height, width) in [0, 1] after JPEG at a quality from 1 to 100."""
    pixels = (x.double() * 255).round()
    if x.shape[1] == 1:
        return (coded(pixels - 128, LUMINANCE, quality) + 128).clamp_(0, 255).div_(255).to(x.dtype)
    bright, blue, red = colour_differences(pixels)
    bright = (coded(bright - 128, LUMINANCE, quality) + 128).clamp_(0, 255)
    chroma = coded(halved(torch.cat([blue, red], 1)), CHROMINANCE, quality).clamp_(-128, 127)
    chroma = chroma[..., : (x.shape[-1] + 1) // 2] + 128  # a few columns were there to fill a block
    blue, red = doubled(chroma, *x.shape[-2:]).sub_(128).split(1, 1)
    return colours(bright, blue, red).clamp_(0, 255).div_(255).to(x.dtype)


def coded(planes: Tensor, table: tuple[int, ...], quality: int) -> Tensor:
    """Planes of whole numbers around 0 after transform, quantisation and back; edges are repeated to whole blocks."""
    height, width = planes.shape[-2:]
    planes = F.pad(planes, (0, -width % 8, 0, -height % 8), mode="replicate")
    forward, backward = forward_matrix().to(planes), backward_matrix().to(planes)
    steps = quantisers(table, quality).to(planes).repeat(1, planes.shape[-1] // 8)
    rows = descaled(across(planes, forward), BITS - 2)
    coefficients = descaled(down(rows, forward), BITS + 2)  # (..., 8, width): 8 times the orthonormal ones
    kept = coefficients.div_(8 * steps)
    kept = kept.abs().add_(0.5).floor_().copysign_(kept).mul_(steps)
    columns = descaled(down(kept, backward), BITS - 2)
    decoded = descaled(across(columns, backward), BITS + 5)
    return decoded.view(planes.shape)[..., :height, :width]


def across(planes: Tensor, matrix: Tensor) -> Tensor:
    """The map of 8 numbers on every 8 pixels of a row."""
    return (planes.reshape(-1, 8) @ matrix.T).view(planes.shape)


def down(planes: Tensor, matrix: Tensor) -> Tensor:
    """The map of 8 numbers on every 8 pixels of a column, (blocks, 8, width)."""
    return matrix @ planes.view(-1, 8, planes.shape[-1])


def descaled(x: Tensor, bits: int) -> Tensor:
    """Division by a power of two, halves rounded up."""
    return x.mul_(0.5**bits).add_(0.5).floor_()


@lru_cache(32)
def quantisers(table: tuple[int, ...], quality: int) -> Tensor:
    """The steps of the standard's table at a quality, (8, 8)."""
    scale = 5000 // quality if quality < 50 else 200 - 2 * quality
    return torch.tensor([min(max((step * scale + 50) // 100, 1), 255) for step in table]).double().view(8, 8)


@lru_cache(1)
def forward_matrix() -> Tensor:
    """The transform of 8 numbers, times 2^13, as the reference rounds its constants (Loeffler et al. 1989)."""
    return backward_matrix().T.contiguous()


@lru_cache(1)
def backward_matrix() -> Tensor:
    """The inverse transform, (8 pixels, 8 frequencies): even and odd frequencies by sums and three-step rotations."""
    one = 1 << BITS
    f0, f1, f2, f3, f4, f5, f6, f7 = torch.eye(8, dtype=torch.double)
    even = (f2 + f6) * 4433
    inner, outer = even - f6 * 15137, even + f2 * 6270
    sums, differences = (f0 + f4) * one, (f0 - f4) * one
    evens = sums + outer, differences + inner, differences - inner, sums - outer
    shared = (f7 + f3 + f5 + f1) * 9633
    a, b = (f7 + f1) * -7373, (f5 + f3) * -20995
    c, d = (f7 + f3) * -16069 + shared, (f5 + f1) * -3196 + shared
    odds = f1 * 12299 + a + d, f3 * 25172 + b + c, f5 * 16819 + b + d, f7 * 2446 + a + c
    upper = [e + o for e, o in zip(evens, odds, strict=True)]
    lower = [e - o for e, o in zip(evens, odds, strict=True)]
    return torch.stack([*upper, *reversed(lower)])


def colour_differences(pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Luminance from 0 to 255 and the two colour differences around 0, in 16-bit fractions."""
    r, g, b = pixels.split(1, 1)
    bright = descaled(19595 * r + 38470 * g + 7471 * b, 16)
    blue = ((-11059 * r - 21709 * g + 32768 * b + 32767) / 65536).floor_()
    red = ((32768 * r - 27439 * g - 5329 * b + 32767) / 65536).floor_()
    return bright, blue, red


def colours(bright: Tensor, blue: Tensor, red: Tensor) -> Tensor:
    """Red, green and blue from luminance and colour differences."""
    green = ((-22554 * blue - 46802 * red + 32768) / 65536).floor_()
    return torch.cat([bright + descaled(91881 * red, 16), bright + green, bright + descaled(116130 * blue, 16)], 1)


def halved(planes: Tensor) -> Tensor:
    """Means of 2 x 2 pixels, halves rounded down in even and up in odd columns, edges repeated."""
    height, width = planes.shape[-2:]
    padded = F.pad(planes, (0, -width % 16, 0, -height % 2), mode="replicate")
    sums = padded[..., ::2, :] + padded[..., 1::2, :]
    sums = sums[..., ::2] + sums[..., 1::2]
    bias = 1 + torch.arange(sums.shape[-1], device=planes.device) % 2
    return ((sums + bias) / 4).floor_()


def doubled(planes: Tensor, height: int, width: int) -> Tensor:
    """Each pixel made 2 x 2, three quarters of it and one of its neighbour in each direction."""
    planes = F.pad(planes, (0, 0, 1, 1), mode="replicate")
    own, above, below = 3 * planes[..., 1:-1, :], planes[..., :-2, :], planes[..., 2:, :]
    rows = torch.stack([own + above, own + below], -2).flatten(-3, -2)
    rows = F.pad(rows, (1, 1, 0, 0), mode="replicate")
    own, before, after = 3 * rows[..., 1:-1], rows[..., :-2], rows[..., 2:]
    pairs = torch.stack([((own + before + 8) / 16).floor_(), ((own + after + 7) / 16).floor_()], -1)
    return pairs.flatten(-2)[..., :height, :width]
