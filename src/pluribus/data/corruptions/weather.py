"""The corruptions by weather: snow, frost, fog and spatter, made without any image file."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from ..dataset import luminance
from .filters import ExampleRng, correlate, gaussian_filter, motion, quantise, zoom_in

WATER, MUD = (175 / 255, 238 / 255, 238 / 255), (63 / 255, 42 / 255, 20 / 255)
FROST_IMAGES = 5


def snow(
    x: Tensor, rng: ExampleRng, mean: float, scale: float, zoom: float, least: float, radius: float, sigma: float,
    keep: float,
) -> Tensor:  # fmt: skip
    """Flakes blurred by their fall, on an image that is partly whitened."""
    height, width = x.shape[-2:]
    numbers = rng.normal(height * width).view(-1, 1, height, width)
    flakes = zoom_in(numbers * scale + mean, max(zoom, 1.0))
    flakes = quantise(flakes.masked_fill(flakes < least, 0.0))
    flakes = motion(flakes, radius, sigma, 90 * rng.uniform(1)[:, 0] - 135)
    whitened = torch.maximum(x, luminance(x) * 1.5 + 0.5)
    return torch.lerp(whitened, x, keep) + (flakes + flakes.rot90(2, (2, 3)))


def frost(x: Tensor, rng: ExampleRng, own: float, ice: float) -> Tensor:
    """A piece of an image of frost laid over a darker image; the frost is made, not photographed."""
    channels, height, width = x.shape[1:]
    side = 3 * max(height, width)
    numbers = rng.uniform(3).cpu().double()
    number = (numbers[:, 0] * FROST_IMAGES).long().tolist()
    top, left = ((numbers[:, k] * (side - n)).long().tolist() for k, n in ((1, height), (2, width)))
    frosts = frost_images(side, channels)
    places = zip(number, top, left, strict=True)
    frozen = torch.stack([frosts[k, :, row : row + height, at : at + width] for k, row, at in places])
    return own * x + ice * frozen.to(x)


def fog(x: Tensor, rng: ExampleRng, amount: float, decay: float) -> Tensor:
    """A cloud of plasma added, and the whole scaled back to the image's range."""
    height, width = x.shape[-2:]
    cloud = plasma(rng, 1 << (max(height, width) - 1).bit_length(), decay)[:, None, :height, :width].to(x)
    brightest = x.amax((1, 2, 3), keepdim=True)
    return (x + amount * cloud) * (brightest / (brightest + amount))


def spatter(
    x: Tensor, rng: ExampleRng, mean: float, scale: float, sigma: float, least: float, amount: float, mud: bool
) -> Tensor:
    """Drops of water, lit at their edges, or blots of mud (where the amount is the blur of their edges)."""
    height, width = x.shape[-2:]
    sigma = sigma * min(height, width) / 224 if min(height, width) > 64 else sigma
    colour = x.new_tensor(MUD if mud else WATER).view(1, 3, 1, 1)
    colour = luminance(colour) if x.shape[1] == 1 else colour
    liquid = gaussian_filter(rng.normal(height * width).view(-1, 1, height, width) * scale + mean, sigma)
    if mud:
        cover = gaussian_filter((liquid > least).to(x), amount)
        cover = cover.masked_fill(cover < 0.8, 0.0)
        return torch.lerp(x, colour.expand_as(x), cover)
    drops = (liquid.masked_fill(liquid < least, 0.0).clamp(0, 1) * 255).floor_()
    shine = drops * shading(drops)
    return x + amount * colour * shine / shine.amax((1, 2, 3), keepdim=True).clamp(min=1e-12)


# ---------------------------------------------------------------- fog


def plasma(rng: ExampleRng, side: int, decay: float) -> Tensor:
    """Clouds (batch, side, side) from 0 to 1 by diamond and square (Fournier et al. 1982); side is a power of two.

    From level to level the step is halved and the noise divided by the decay; as published, the noise is the square
    of what decays.
    """
    levels = side.bit_length() - 1
    numbers = rng.uniform(3 * sum(4**level for level in range(levels))).mul_(2).sub_(1)
    cloud, noise, used = numbers.new_zeros(len(numbers), side, side), 100.0, 0
    for level in range(levels):
        step, count = side >> level, 4**level
        half, shape = step // 2, (3, 1 << level, 1 << level)
        new = numbers[:, used : used + 3 * count].view(-1, *shape) * noise**2
        corner = cloud[:, ::step, ::step]
        pair = corner + corner.roll(-1, 1)
        middle = (pair + pair.roll(-1, 2)) / 4 + new[:, 0]
        cloud[:, half::step, half::step] = middle
        cloud[:, ::step, half::step] = (middle + middle.roll(1, 1) + corner + corner.roll(-1, 2)) / 4 + new[:, 1]
        cloud[:, half::step, ::step] = (middle + middle.roll(1, 2) + corner + corner.roll(-1, 1)) / 4 + new[:, 2]
        noise, used = noise / decay, used + 3 * count
    low, high = cloud.amin((1, 2), keepdim=True), cloud.amax((1, 2), keepdim=True)
    return (cloud - low) / (high - low)


# ---------------------------------------------------------------- frost


@lru_cache(8)
def frost_images(side: int, channels: int) -> Tensor:
    """Five images of frost, (5, channels, side, side), always the same."""
    ice = F.interpolate(sheets(), size=(side, side), mode="bilinear", align_corners=False, antialias=True)
    colour = (ice * torch.tensor([0.88, 0.98, 1.1]).view(3, 1, 1)).clamp(0, 1)
    return colour if channels == 3 else luminance(colour)


@lru_cache(1)
def sheets(side: int = 512) -> Tensor:
    """Sheets of ice, (5, 1, side, side): clouds with ridges, and bunches of needles, each in a part of its own."""
    generator = torch.Generator().manual_seed(0)
    clouds = torch.sigmoid(2 * field(side, generator, 0.01, 1.5))
    ridges = [(1 - field(side, generator, width, 0.5).abs()).clamp(min=0) ** 2 for width in (0.05, 0.02)]
    place = 3 * field(side, generator, 0.2, 0.0)
    needles = [bunch(side, generator) * torch.sigmoid(4 * torch.cos(place + 2 * math.pi * k / 8)) for k in range(8)]
    return (0.1 + clouds * (0.45 + 0.3 * sum(ridges)) + 0.5 * torch.stack(needles).amax(0))[:, None]


def field(side: int, generator: torch.Generator, length: float, slope: float) -> Tensor:
    """Random fields with mean 0 and variance 1: waves longer than a share of the side, the more so the steeper."""
    waves = torch.fft.rfft2(torch.randn(FROST_IMAGES, side, side, generator=generator))
    down, right = frequencies(side)
    size = (down**2 + right**2).sqrt() * length
    values = torch.fft.irfft2(waves * (torch.exp(-(size**2)) / (size + 0.02) ** slope))
    return (values - values.mean((1, 2), keepdim=True)) / values.std((1, 2), keepdim=True)


def bunch(side: int, generator: torch.Generator) -> Tensor:
    """Parallel needles from 0 to 1, of another direction in each image."""
    angle = math.pi * torch.rand(FROST_IMAGES, 1, 1, generator=generator)
    points = (torch.rand(FROST_IMAGES, side, side, generator=generator) < 400 / side**2).float()
    down, right = frequencies(side)
    along, across = down * angle.sin() + right * angle.cos(), right * angle.sin() - down * angle.cos()
    shape = torch.exp(-((along * 0.1) ** 2) - (across * 0.005) ** 2)
    needles = torch.fft.irfft2(torch.fft.rfft2(points) * shape)
    return (needles / needles.amax((1, 2), keepdim=True)).clamp(min=0)


def frequencies(side: int) -> tuple[Tensor, Tensor]:
    """Waves per image, down and to the right."""
    return torch.fft.fftfreq(side, 1 / side)[:, None], torch.fft.rfftfreq(side, 1 / side)


# ---------------------------------------------------------------- water


def shading(drops: Tensor) -> Tensor:
    """How bright each pixel of drops is, 0 to 255: by its distance to an edge, embossed from the upper left."""
    box = torch.full((3, 3), 1 / 9)
    near = correlate(distance(edges(drops)).clamp(max=20), box).floor_()
    emboss = torch.tensor([[-2.0, -1, 0], [-1, 1, 1], [0, 1, 2]])
    return correlate(correlate(equalise(near), emboss).clamp(0, 255), box).round_()


def edges(x: Tensor, low: float = 50, high: float = 150) -> Tensor:
    """Canny's edges (1986) of images from 0 to 255: ridges of the gradient above `low` that touch one above `high`."""
    padded = F.pad(x, (1, 1, 1, 1), mode="replicate")
    right = sobel(padded[..., 2:] - padded[..., :-2], -2)
    down = sobel(padded[..., 2:, :] - padded[..., :-2, :], -1)
    size = right.abs() + down.abs()
    around = F.pad(size, (1, 1, 1, 1))
    height, width = x.shape[-2:]

    def beside(rows: int, columns: int) -> Tensor:
        return around[..., 1 + rows : 1 + rows + height, 1 + columns : 1 + columns + width]

    across = (size > beside(0, -1)) & (size >= beside(0, 1))
    along = (size > beside(-1, 0)) & (size >= beside(1, 0))
    falling = (size > beside(-1, -1)) & (size > beside(1, 1))
    rising = (size > beside(-1, 1)) & (size > beside(1, -1))
    tangent = math.sqrt(2) - 1  # of 22.5 degrees
    flat, steep = down.abs() < tangent * right.abs(), down.abs() > (tangent + 2) * right.abs()
    ridge = torch.where(flat, across, along.where(steep, falling.where(right * down >= 0, rising))) & (size > low)
    found = ridge & (size > high)
    while True:
        grown = (F.max_pool2d(found.to(x), 3, 1, 1) > 0) & ridge
        if torch.equal(grown, found):
            return found
        found = grown


def sobel(difference: Tensor, axis: int) -> Tensor:
    """Sums of three neighbours with weights 1, 2, 1."""
    n = difference.shape[axis] - 2
    return sum(difference.narrow(axis, k, n) * weight for k, weight in enumerate((1, 2, 1)))  # type: ignore[return-value]


def distance(marked: Tensor, most: int = 21) -> Tensor:
    """Euclidean distance of each pixel to the next marked one, up to `most`: down the columns, then along the rows."""
    height, width = marked.shape[-2:]
    place = torch.arange(height, device=marked.device, dtype=torch.float)[:, None]
    above = place.where(marked, -1e3).cummax(-2).values
    below = -(-place).where(marked, -1e3).flip(-2).cummax(-2).values.flip(-2)
    squares = torch.minimum(place - above, below - place).clamp(max=1e3) ** 2
    padded = F.pad(squares, (most, most), value=1e6)
    nearest = squares
    for shift in range(-most, most + 1):
        nearest = torch.minimum(nearest, padded[..., most + shift : most + shift + width] + shift**2)
    return nearest.sqrt()


def equalise(x: Tensor) -> Tensor:
    """Whole numbers from 0 to 255, changed so that each image uses the range evenly; one value alone stays."""
    flat = x.flatten(1).long()
    counts = flat.new_zeros(len(flat), 256).scatter_add_(1, flat, torch.ones_like(flat))
    lowest = counts.gather(1, flat.amin(1, keepdim=True))
    rest = flat.shape[1] - lowest
    table = ((counts.cumsum(1) - lowest) * (255 / rest.clamp(min=1))).round()
    return torch.where(rest > 0, table.gather(1, flat).to(x), flat.to(x)).view(x.shape)
