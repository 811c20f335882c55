"""What corruptions are made of: random numbers for each example, and blurs, zooms and warps of batches of images."""

from __future__ import annotations

import math
from functools import lru_cache
from zlib import crc32

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


class ExampleRng:
    """Random numbers for a batch, each example's from a stream of its own.

    An example's stream depends on the key and on its number alone, not on the other examples, the device or torch's
    global generator: the numbers are drawn on the CPU and then moved.
    """

    def __init__(self, key: str, examples: range, like: Tensor):
        draw = torch.Generator().manual_seed(crc32(key.encode()))
        seeds = torch.randint(2**31, (examples.stop,), generator=draw)[examples.start :]
        self.streams = [torch.Generator().manual_seed(seed) for seed in seeds.tolist()]
        self.device, self.dtype = like.device, like.dtype

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers, (batch, *shape)."""
        numbers = torch.empty(len(self.streams), *shape)
        for row, stream in zip(numbers, self.streams, strict=True):
            row.normal_(generator=stream)
        return numbers.to(self.device, self.dtype)

    def uniform(self, *shape: int) -> Tensor:
        """Numbers in [0, 1), (batch, *shape)."""
        numbers = torch.empty(len(self.streams), *shape)
        for row, stream in zip(numbers, self.streams, strict=True):
            row.uniform_(generator=stream)
        return numbers.to(self.device, self.dtype)

    def poisson(self, rates: Tensor) -> Tensor:
        """Poisson counts with the rates, (batch, ...)."""
        rows = zip(rates.cpu().float(), self.streams, strict=True)
        return torch.stack([torch.poisson(row, generator=stream) for row, stream in rows]).to(self.device, self.dtype)


def gaussian_filter(x: Tensor, sigma: float, *, border: str = "nearest", truncate: float = 4.0) -> Tensor:
    """Gaussian blur of (..., height, width); border "nearest" or "reflect" (d c b a | a b c d), as in scipy."""
    if sigma == 0:
        return x
    return apply_separable(x, *(gaussian_matrix(n, sigma, border, truncate) for n in x.shape[-2:]))


def apply_separable(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """The images under a linear map of their rows and one of their columns: rows @ x @ columns^T."""
    return rows.to(x) @ (x @ columns.to(x).T)


@lru_cache(64)
def gaussian_matrix(n: int, sigma: float, border: str, truncate: float) -> Tensor:
    """The blur of n pixels as a matrix, borders included, so that no radius is too large for an image."""
    radius = int(truncate * sigma + 0.5)
    offset = torch.arange(-radius, radius + 1)
    weight = torch.exp(-0.5 * (offset.double() / sigma) ** 2)
    source = torch.arange(n)[:, None] + offset  # (n, taps)
    if border == "nearest":
        source = source.clamp(0, n - 1)
    else:
        source = source.remainder(2 * n)
        source = torch.minimum(source, 2 * n - 1 - source)
    matrix = torch.zeros(n, n, dtype=torch.double)
    return matrix.scatter_add_(1, source, (weight / weight.sum()).expand(n, -1))


def correlate(x: Tensor, kernel: Tensor) -> Tensor:
    """Correlation of every channel with one small kernel, the border mirrored (d c b | a b c d)."""
    reach = [size // 2 for size in kernel.shape]
    padded = F.pad(x, (reach[1], reach[1], reach[0], reach[0]), mode="reflect")
    return F.conv2d(padded.flatten(0, 1)[:, None], kernel.to(x)[None, None]).view(x.shape)


def motion(x: Tensor, radius: float, sigma: float, degrees: Tensor) -> Tensor:
    """ImageMagick's motion blur: a half Gaussian along a line of whole pixels, with an angle for each example.

    Examples are sorted by angle, so that those whose line passes through the same pixel are one slice.
    """
    taps = np.arange(2 * math.ceil(radius) + 1)
    weights = np.exp(-(taps**2) / (2 * sigma**2))
    weights /= weights.sum()
    order = degrees.cpu().argsort()
    angles = np.deg2rad(degrees.cpu().double().numpy()[order.numpy()])[:, None]
    down = np.ceil(taps * np.sin(angles) - 0.5).astype(int)  # (batch, taps)
    right = np.ceil(taps * np.cos(angles) - 0.5).astype(int)
    reach = int(max(abs(down).max(), abs(right).max()))
    height, width = x.shape[-2:]
    padded = F.pad(x, (reach,) * 4, mode="replicate")[order.to(x.device)]
    blurred = x[order.to(x.device)].mul_(float(weights[0]))
    for tap in taps[1:][weights[1:] > 1e-5]:
        for start, stop in runs(down[:, tap], right[:, tap]):
            top, left = reach + down[start, tap], reach + right[start, tap]
            window = padded[start:stop, :, top : top + height, left : left + width]
            blurred[start:stop].add_(window, alpha=float(weights[tap]))
    return blurred[order.argsort().to(x.device)]


def runs(*columns: np.ndarray) -> list[tuple[int, int]]:
    """Start and stop of every run of rows in which no column changes."""
    changes = np.any([np.diff(column) != 0 for column in columns], axis=0).nonzero()[0] + 1
    ends = [0, *changes.tolist(), len(columns[0])]
    return list(zip(ends, ends[1:], strict=False))


def zoom_in(x: Tensor, factor: float) -> Tensor:
    """The middle of each image, enlarged bilinearly to the size of the image."""
    height, width = x.shape[-2:]
    crops = [math.ceil(n / factor) for n in x.shape[-2:]]
    sizes = [round(crop * factor) for crop in crops]
    for axis, crop in zip((-2, -1), crops, strict=True):
        x = x.narrow(axis, (x.shape[axis] - crop) // 2, crop)
    enlarged = F.interpolate(x, size=sizes, mode="bilinear", align_corners=True)
    top, left = (sizes[0] - height) // 2, (sizes[1] - width) // 2  # a few pixels may be too many
    return enlarged[..., top : top + height, left : left + width]


def sample_at(x: Tensor, down: Tensor, right: Tensor, *, border: str) -> Tensor:
    """Bilinear samples of each image at coordinates (batch, height, width) in pixels.

    Args:
        border: "mirror" (d c b | a b c d) or "reflect" (d c b a | a b c d), as scipy names them
    """
    height, width = x.shape[-2:]
    corners = border == "mirror"
    sizes = (width, right), (height, down)
    if corners:
        grid = torch.stack([2 * at / max(n - 1, 1) - 1 for n, at in sizes], -1)
    else:
        grid = torch.stack([(2 * at + 1) / n - 1 for n, at in sizes], -1)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="reflection", align_corners=corners)


def quantise(x: Tensor) -> Tensor:
    """Values rounded down to whole 255ths; the summand keeps those that are whole already."""
    return (x.clamp(0, 1) * 255 + 1e-4).floor() / 255
