"""The 19 corruptions of Hendrycks and Dietterich (2019) at 5 severities, on batches of images.

Small images (up to 64 pixels) get the constants of CIFAR-10-C, larger ones those of ImageNet-C, whose lengths in
pixels are scaled from 224 to the size of the image. Every corruption is one function and one line in `CORRUPTIONS`.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..._common.optional import require
from .filters import (
    ExampleRng,
    apply_separable,
    correlate,
    gaussian_filter,
    motion,
    quantise,
    sample_at,
    zoom_in,
)
from .weather import fog, frost, snow, spatter


@torch.no_grad()
def corrupt(x: Tensor, name: str, severity: int, *, seed: int = 0, start: int = 0) -> Tensor:
    """The images corrupted: the same shape, type and device, in [0, 1].

    What is random about an example depends on the seed, the corruption, the severity and the example's number
    (`start` plus its place in the batch) alone: the same on every device, whatever else is in the batch, and without
    touching torch's global generator. A data set corrupted in batches of any size is the same if `start` is the
    number of each batch's first example.

    Shapes:
        x: (batch, 1 or 3, height, width), from 0 to 1
        output: the same

    >>> x = torch.rand(4, 3, 32, 32)
    >>> corrupt(x, "fog", 3).shape
    torch.Size([4, 3, 32, 32])
    >>> torch.equal(corrupt(x, "snow", 5, seed=1)[2:], corrupt(x[2:], "snow", 5, seed=1, start=2))
    True
    """
    _check(x, name, severity, start)
    if len(x) == 0:
        return x.clone()
    entry = CORRUPTIONS[name]
    images = x if x.dtype in (torch.float32, torch.float64) else x.float()
    rng = ExampleRng(f"{seed} {name} {severity}", range(start, start + len(x)), images)
    return entry.function(images, rng, *entry.constants(severity, min(x.shape[-2:]))).clamp(0, 1).to(x.dtype)


def _check(x: Any, name: str, severity: int, start: int) -> None:
    if name not in CORRUPTIONS:
        raise ValueError(f"corrupt: the corruption {name!r} is unknown. Choose from {', '.join(CORRUPTIONS)}.")
    if isinstance(severity, bool) or severity not in range(1, 6):
        raise ValueError(f"corrupt: the severity must be 1, 2, 3, 4 or 5, but it is {severity!r}.")
    if not isinstance(x, Tensor):
        raise TypeError(f"corrupt: x must be a tensor, but it is a {type(x).__name__}. Give torch.as_tensor(x).")
    if x.dim() != 4 or x.shape[1] not in (1, 3) or min(x.shape[-2:]) < 8:
        raise ValueError(
            "corrupt: x must be (batch, 1 or 3 channels, height, width) with at least 8 x 8 pixels, but its shape is "
            f"{tuple(x.shape)}. Give one image as x[None], grey ones as x[:, None] and channels-last ones as "
            "x.permute(0, 3, 1, 2)."
        )
    if not x.is_floating_point():
        raise TypeError(f"corrupt: x must be floats from 0 to 1, but it is {x.dtype}. Divide by 255: x / 255.")
    if start < 0:
        raise ValueError(f"corrupt: start, the number of the first example, must be at least 0, but it is {start}.")
    low, high = (float(end) for end in x.aminmax()) if x.numel() else (0.0, 0.0)
    if not (low >= 0 and high <= 1):  # NaN is neither
        found = "has NaN" if low != low else f"reaches from {low:.4g} to {high:.4g}"
        raise ValueError(
            f"corrupt: x must be in [0, 1] and without NaN, but it {found}. Corrupt first and normalise afterwards; "
            "divide values up to 255 by 255."
        )


# ---------------------------------------------------------------- noise


def gaussian_noise(x: Tensor, rng: ExampleRng, scale: float) -> Tensor:
    """Normal noise, as of a sensor in low light."""
    return rng.normal(*x.shape[1:]).mul_(scale).add_(x)


def shot_noise(x: Tensor, rng: ExampleRng, photons: float) -> Tensor:
    """Poisson noise, with this many photons for a white pixel."""
    return rng.poisson(x * photons) / photons


def impulse_noise(x: Tensor, rng: ExampleRng, amount: float) -> Tensor:
    """Salt and pepper: a share of all values becomes 0 or 1."""
    number = rng.uniform(*x.shape[1:])
    return x.masked_fill(number < amount / 2, 0.0).masked_fill_(number >= 1 - amount / 2, 1.0)


def speckle_noise(x: Tensor, rng: ExampleRng, scale: float) -> Tensor:
    """Normal noise that grows with the value."""
    return rng.normal(*x.shape[1:]).mul_(scale).add_(1).mul_(x)


# ---------------------------------------------------------------- blur


def defocus_blur(x: Tensor, rng: ExampleRng, radius: float, softness: float) -> Tensor:
    """A disk, as of a lens out of focus, its edge softened by a small Gaussian."""
    return correlate(x, disk(radius, softness))


def glass_blur(x: Tensor, rng: ExampleRng, sigma: float, reach: float, times: int) -> Tensor:
    """Pixels taken from near by, between two blurs, as behind frosted glass.

    The published script exchanges two views of one array, which copies the second pixel to the first and leaves the
    second as it is: so do we. Its order, from the last pixel to the first, is kept by `trace_copies`.
    """
    reach = max(1, round(reach))
    (channels, height, width), pixels = x.shape[1:], quantise(gaussian_filter(x, sigma)).flatten(2)
    rows, columns = (torch.arange(reach + 1, n - reach + 1, device=x.device) for n in (height, width))
    if len(rows) and len(columns):
        place = (rows[:, None] * width + columns).flatten()
        numbers = rng.uniform(times, 2, len(place)).mul_(2 * reach).floor_().long().sub_(reach)
        for right, down in (shift.unbind(1) for shift in numbers.unbind(1)):
            source = trace_copies(place, place + down * width + right, height * width)
            pixels = pixels.gather(2, source[:, None].expand(-1, channels, -1))
    return gaussian_filter(pixels.view(x.shape), sigma)


def trace_copies(place: Tensor, source: Tensor, pixels: int) -> Tensor:
    """Where each pixel's value is from after copies source -> place, done one after another from the last place on.

    A source that lies later was itself written before: its own source counts, found by doubling the steps.

    Shapes:
        place: (places,), increasing
        source: (batch, places)
        output: (batch, pixels)
    """
    batch = len(source)
    still = torch.arange(pixels, device=place.device).expand(batch, -1)
    inside = torch.zeros(pixels, dtype=torch.bool, device=place.device).index_fill_(0, place, True)
    written = (source > place) & inside[source]
    origin = still.index_copy(1, place, source)
    waiting = torch.zeros_like(origin, dtype=torch.bool).index_copy_(1, place, written)
    while waiting.any():
        origin, waiting = torch.where(waiting, origin.gather(1, origin), origin), waiting & waiting.gather(1, origin)
    return origin


def motion_blur(x: Tensor, rng: ExampleRng, radius: float, sigma: float) -> Tensor:
    """A camera that moves in a direction up to 45 degrees from the horizontal."""
    return motion(x, radius, sigma, 90 * rng.uniform(1)[:, 0] - 45)


def zoom_blur(x: Tensor, rng: ExampleRng, stop: float, step: float) -> Tensor:
    """The mean of the image and of enlargements of its middle, as of a camera that approaches."""
    factors = tuple(np.arange(1, stop, step).tolist())
    return (x + sum(zoom_in(x, factor) for factor in factors)) / (len(factors) + 1)


def gaussian_blur(x: Tensor, rng: ExampleRng, sigma: float) -> Tensor:
    """A Gaussian blur."""
    return gaussian_filter(x, sigma)


def disk(radius: float, softness: float) -> Tensor:
    """A disk of whole pixels, blurred by a Gaussian of 3 x 3 pixels, or 5 x 5 where the radius is above 8."""
    reach, soft = math.ceil(radius), 1 if radius <= 8 else 2
    size = max(8, reach)  # the published grid, at whose edge the Gaussian is mirrored
    at = torch.arange(-size, size + 1).double()
    kernel = (at**2 + at[:, None] ** 2 <= radius**2).double()
    weight = torch.exp(-0.5 * (torch.arange(-soft, soft + 1).double() / softness) ** 2)
    kernel = correlate((kernel / kernel.sum())[None, None], torch.outer(weight, weight) / weight.sum() ** 2)[0, 0]
    rest = max(0, size - reach - soft)
    return kernel[rest : 2 * size + 1 - rest, rest : 2 * size + 1 - rest]


# ---------------------------------------------------------------- digital and the rest


def brightness(x: Tensor, rng: ExampleRng, more: float) -> Tensor:
    """Value + more in hue, saturation and value: all channels grow in proportion; black becomes grey."""
    value = x.amax(1, keepdim=True)
    brighter = (value + more).clamp_(max=1)
    return torch.where(value > 0, x * (brighter / value.clamp(min=1e-12)), brighter)


def contrast(x: Tensor, rng: ExampleRng, factor: float) -> Tensor:
    """Values drawn towards the mean of their channel."""
    return torch.lerp(x.mean((2, 3), keepdim=True), x, factor)


def elastic_transform(x: Tensor, rng: ExampleRng, amount: float, sigma: float, shift: float) -> Tensor:
    """A random affine map of the plane, then a smooth random displacement; all lengths are shares of the size."""
    height, width = x.shape[-2:]
    size, pixels = min(height, width), height * width
    numbers = rng.uniform(6 + 2 * pixels).mul_(2).sub_(1)
    down, right = torch.meshgrid(*(torch.arange(n).to(x) for n in (height, width)), indexing="ij")
    matrix = affine_maps(numbers[:, :6].view(-1, 3, 2) * (shift * size), height, width)
    source = torch.stack([right, down, torch.ones_like(down)], -1).flatten(0, 1) @ matrix  # (batch, pixels, 2)
    source = source.view(-1, height, width, 2)
    x = sample_at(x, source[..., 1], source[..., 0], border="mirror")
    if amount == 0:
        return x
    fields = numbers[:, 6:].view(-1, 2, height, width)
    fields = gaussian_filter(fields, sigma * size, border="reflect", truncate=3.0) * (amount * size)
    return sample_at(x, down + fields[:, 1], right + fields[:, 0], border="reflect")


def affine_maps(shift: Tensor, height: int, width: int) -> Tensor:
    """The maps, (batch, 3, 2), that bring three points of a square back from where they were shifted to (x, y)."""
    third = min(height, width) // 3
    corners = torch.tensor([[1, 1], [1, -1], [-1, -1]]).to(shift) * third + shift.new_tensor([width // 2, height // 2])
    shifted = torch.cat([corners + shift, torch.ones_like(shift[..., :1])], -1).double()
    return torch.linalg.solve(shifted, corners.double().expand_as(shift)).to(shift)


def pixelate(x: Tensor, rng: ExampleRng, factor: float) -> Tensor:
    """Made smaller by means over boxes and larger again by repetition."""
    return apply_separable(x, *(boxes(int(n * factor), n) @ boxes(n, int(n * factor)) for n in x.shape[-2:]))


@lru_cache(64)
def boxes(size: int, target: int) -> Tensor:
    """The matrix (target, size) that makes `target` pixels of `size`, each the mean of the centres in its box."""
    scale = size / target
    centre = (torch.arange(target).double() + 0.5) * scale
    distance = (torch.arange(size).double() + 0.5 - centre[:, None]) / max(scale, 1.0)
    inside = ((distance > -0.5) & (distance <= 0.5)).double()
    return inside / inside.sum(1, keepdim=True)


def jpeg_compression(x: Tensor, rng: ExampleRng, quality: int) -> Tensor:
    """What JPEG leaves of the image, by the codec of the published script."""
    codec, images = require("PIL.Image", "JPEG compression", "data"), []
    pixels = (x.double() * 255).round().byte().permute(0, 2, 3, 1)  # channels last
    for image in pixels.squeeze(3).cpu().numpy():
        file = io.BytesIO()
        codec.fromarray(image).save(file, "JPEG", quality=quality)
        images.append(np.asarray(codec.open(file)))
    return torch.from_numpy(np.stack(images)).to(x).div_(255).view(pixels.shape).permute(0, 3, 1, 2).contiguous()


def saturate(x: Tensor, rng: ExampleRng, factor: float, more: float) -> Tensor:
    """Saturation * factor + more. Grey counts as red of no saturation; a grey image is seen as grey again."""
    if x.shape[1] == 1:
        return x * (1 - (1 - 0.299) * more)
    value = x.amax(1, keepdim=True)
    spread = value - x.amin(1, keepdim=True)
    saturation = spread / value.clamp(min=1e-12)
    ratio = (saturation * factor + more).clamp_(max=1) / saturation.clamp(min=1e-12)
    red = value * (1 - more * x.new_tensor([0.0, 1.0, 1.0]).view(3, 1, 1))
    return torch.where(spread > 0, torch.lerp(value, x, ratio), red)


# ---------------------------------------------------------------- the table


class Corruption(NamedTuple):
    """A row of CORRUPTIONS.

    Args:
        small, large: the constants of the 5 severities, for images up to 64 pixels and for larger ones
        lengths: which of the constants are lengths in pixels
        random: whether the function draws random numbers
    """

    function: Callable[..., Tensor]
    small: Sequence[Any]
    large: Sequence[Any]
    lengths: tuple[int, ...] = ()
    random: bool = True

    def constants(self, severity: int, size: int) -> list[Any]:
        """The constants for images of a size: as published for small ones, scaled from 224 for large ones."""
        row = (self.small if size <= 64 else self.large)[severity - 1]
        values = list(row) if isinstance(row, tuple) else [row]
        if size > 64:
            for place in self.lengths:
                values[place] *= size / 224
        return values


CORRUPTIONS: dict[str, Corruption] = {
    "gaussian_noise": Corruption(gaussian_noise, (0.04, 0.06, 0.08, 0.09, 0.10), (0.08, 0.12, 0.18, 0.26, 0.38)),
    "shot_noise": Corruption(shot_noise, (500, 250, 100, 75, 50), (60, 25, 12, 5, 3)),
    "impulse_noise": Corruption(impulse_noise, (0.01, 0.02, 0.03, 0.05, 0.07), (0.03, 0.06, 0.09, 0.17, 0.27)),
    "defocus_blur": Corruption(
        defocus_blur, ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
        ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)), lengths=(0,), random=False),
    "glass_blur": Corruption(
        glass_blur, ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
        ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)), lengths=(0, 1)),
    "motion_blur": Corruption(
        motion_blur, ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
        ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)), lengths=(0, 1)),
    "zoom_blur": Corruption(
        zoom_blur, ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
        ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)), random=False),
    "snow": Corruption(
        snow,
        ((0.1, 0.2, 1, 0.6, 8, 3, 0.95), (0.1, 0.2, 1, 0.5, 10, 4, 0.9), (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
         (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85), (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8)),
        ((0.1, 0.3, 3, 0.5, 10, 4, 0.8), (0.2, 0.3, 2, 0.5, 12, 4, 0.7), (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
         (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65), (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55)),
        lengths=(2, 4, 5)),
    "frost": Corruption(
        frost, ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
        ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75))),
    "fog": Corruption(
        fog, ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
        ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4))),
    "brightness": Corruption(brightness, (0.05, 0.1, 0.15, 0.2, 0.3), (0.1, 0.2, 0.3, 0.4, 0.5), random=False),
    "contrast": Corruption(contrast, (0.75, 0.5, 0.4, 0.3, 0.15), (0.4, 0.3, 0.2, 0.1, 0.05), random=False),
    "elastic_transform": Corruption(
        elastic_transform, ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
        # The published lengths are shares of 244 for images of 224.
        tuple(
            tuple(share * 244 / 224 for share in shares)
            for shares in ((2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02))
        )),
    "pixelate": Corruption(pixelate, (0.95, 0.9, 0.85, 0.75, 0.65), (0.6, 0.5, 0.4, 0.3, 0.25), random=False),
    "jpeg_compression": Corruption(jpeg_compression, (80, 65, 58, 50, 40), (25, 18, 15, 10, 7), random=False),
    "speckle_noise": Corruption(speckle_noise, (0.06, 0.1, 0.12, 0.16, 0.2), (0.15, 0.2, 0.35, 0.45, 0.6)),
    "gaussian_blur": Corruption(gaussian_blur, (0.4, 0.6, 0.7, 0.8, 1), (1, 2, 3, 4, 6), lengths=(0,), random=False),
    "spatter": Corruption(
        spatter,
        ((0.62, 0.1, 0.7, 0.7, 0.5, False), (0.65, 0.1, 0.8, 0.7, 0.5, False), (0.65, 0.3, 1, 0.69, 0.5, False),
         (0.65, 0.1, 0.7, 0.69, 0.6, True), (0.65, 0.1, 0.5, 0.68, 0.6, True)),
        ((0.65, 0.3, 4, 0.69, 0.6, False), (0.65, 0.3, 3, 0.68, 0.6, False), (0.65, 0.3, 2, 0.68, 0.5, False),
         (0.65, 0.3, 1, 0.65, 1.5, True), (0.67, 0.4, 1, 0.65, 1.5, True))),
    "saturate": Corruption(
        saturate, ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
        ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)), random=False),
}  # fmt: skip

BENCHMARK = tuple(CORRUPTIONS)[:15]  # those of CIFAR-10-C and ImageNet-C; the others are for choosing settings
