"""Outside data that needs no download: letters rendered from the fonts that matplotlib ships, and noise."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .outside import outside
from .sources import Parts, Request
from .splits import NO_CLASS, Arrays, Split

# Left out, because in some font or hand they are a digit: B C D G I J L O Q S T U Z and b c g h i j l o q s t u z.
LETTERS = "AEFHKMNPRVWXYadefkmnprvwxy"
FONTS = (
    *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSansMono", "DejaVuSerif", "DejaVuSerif-Bold"),
    *("DejaVuSerif-Italic", "STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "cmr10", "cmss10", "cmtt10", "cmb10"),
)
SIDE, BOX = 28, 20  # MNIST: the ink fits a box of 20 pixels, its centre of mass is the centre of 28
VERSIONS = 3
PIXELS = (3, 28, 28)


def letters(request: Request) -> Parts:
    """White Latin letters on black, centred as MNIST's digits are; those that could be read as a digit are left out."""
    x = _letters()
    return Parts(test=unlabelled(Arrays(x)))


def noise(request: Request) -> Parts:
    """Pictures of noise: half of them uniform, half Gaussian around grey with a width of its own each."""
    generator = np.random.default_rng(request.seed)
    channels, height, width = request.shape or PIXELS
    uniform = generator.random((500, channels, height, width))
    spread = generator.uniform(0.05, 0.5, (500, 1, 1, 1))
    normal = 0.5 + spread * generator.standard_normal((500, channels, height, width))
    x = np.concatenate([uniform, normal.clip(0, 1)])
    x = (255 * x + 0.5).astype(np.uint8).transpose(0, 2, 3, 1)
    return Parts(test=unlabelled(Arrays(np.ascontiguousarray(x))))


def unlabelled(inputs: Arrays) -> Split:
    """A part of pictures of no known class."""
    return Split(inputs, torch.full((len(inputs),), NO_CLASS))


@cache
def _letters() -> np.ndarray:
    generator = np.random.default_rng(0)
    folder = Path(outside("matplotlib", "the fonts of the letters", "data").get_data_path()) / "fonts" / "ttf"
    face = outside("PIL.ImageFont", "rendering letters", "data").truetype
    fonts = [face(str(folder / f"{name}.ttf"), 96) for name in FONTS]
    return np.stack([_letter(letter, font, generator) for font in fonts for letter in LETTERS for _ in range(VERSIONS)])


def _letter(letter: str, font: Any, generator: np.random.Generator) -> np.ndarray:
    """One letter, slanted a little and of a size of its own: (28, 28) bytes."""
    image = outside("PIL.Image", "rendering letters", "data")
    draw = outside("PIL.ImageDraw", "rendering letters", "data").Draw
    size, slant = int(generator.integers(15, BOX + 1)), generator.uniform(-0.25, 0.25)
    canvas, middle = image.new("L", (160, 160)), 80
    left, top, right, bottom = font.getbbox(letter)
    draw(canvas).text((middle - (left + right) / 2, middle - (top + bottom) / 2), letter, fill=255, font=font)
    slanted = (1, slant, -middle * slant, 0, 1, 0)
    canvas = canvas.transform(canvas.size, image.Transform.AFFINE, slanted, image.Resampling.BILINEAR)
    canvas = canvas.crop(canvas.getbbox())
    factor = size / max(canvas.size)
    canvas = canvas.resize([max(1, round(factor * side)) for side in canvas.size], image.Resampling.BILINEAR)
    return _centred(np.asarray(canvas))


def _centred(ink: np.ndarray) -> np.ndarray:
    """The ink on a black square, its centre of mass in the middle."""
    height, width = ink.shape
    weight = ink.sum()
    row = (ink.sum(axis=1) * np.arange(height)).sum() / weight
    column = (ink.sum(axis=0) * np.arange(width)).sum() / weight
    top = int(np.clip(round((SIDE - 1) / 2 - row), 0, SIDE - height))
    left = int(np.clip(round((SIDE - 1) / 2 - column), 0, SIDE - width))
    square = np.zeros((SIDE, SIDE), np.uint8)
    square[top : top + height, left : left + width] = ink
    return square
