"""What a segmentation says of images, as pictures: labels as masks have them, and uncertainty in grey."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from .._common.atomic import atomic_write
from .._common.optional import require
from ..data.image_folders import ImageFiles, read_header
from ..data.masks import palette


def write_pictures(predictor: Any, split: Any, folder: Path) -> Iterator[dict[str, Any]]:
    """One dict for each image, after its pictures were written: NAME.label.png, NAME.total.png, NAME.epistemic.png.

    Pictures have the size of the image. Labels are the numbers of the masks of training, with colours as Pascal VOC has
    them; uncertainty is from 0 to 255, the entropy of a guess between all classes.
    """
    record, taken = predictor.record, set[str]()
    values = np.array(record["encoding"]["values"], dtype=np.uint8)
    most, inputs = math.log(len(values)), split.inputs
    folder.mkdir(parents=True, exist_ok=True)
    for row, name in enumerate(split.names()):
        prediction = predictor.predict_batch(split[[row]][0])
        size = tuple(record["shape"][1:])
        if isinstance(inputs, ImageFiles):
            height, width, _ = read_header(inputs.paths[int(split.rows[row])])
            size = (height, width)
        stem = _free_stem(name, taken)
        means = {part: float(getattr(prediction, part).mean()) for part in ("confidence", "aleatoric", "epistemic")}
        label = _resize(prediction.label, size, "nearest-exact").long()[0].numpy()
        files = {"label": folder / f"{stem}.label.png"}
        _write(files["label"], values[label], palette())
        for part in ("total", "epistemic"):
            grey = _resize(255 * getattr(prediction, part) / most, size, "bilinear").round().clamp(0, 255)
            files[part] = folder / f"{stem}.{part}.png"
            _write(files[part], grey[0].byte().numpy())
        yield {"name": name, **means, **{f"{part}_picture": str(path) for part, path in files.items()}}


def _resize(image: Tensor, size: tuple[int, ...], mode: str) -> Tensor:
    given = image[:, None].float()
    return (given if given.shape[2:] == size else F.interpolate(given, size, mode=mode))[:, 0]


def _free_stem(name: str, taken: set[str]) -> str:
    """The name of a file without its folders and ending, or with a number where two are called alike."""
    stem = Path(name).stem or "image"
    free = next(one for i in range(len(taken) + 1) if (one := f"{stem}_{i + 1}" if i else stem) not in taken)
    taken.add(free)
    return free


def _write(path: Path, pixels: np.ndarray, colours: np.ndarray | None = None) -> None:
    image = require("PIL.Image", "writing pictures", "data").fromarray(pixels)
    if colours is not None:
        image.putpalette(colours.tobytes())
    content = io.BytesIO()
    image.save(content, "PNG", optimize=True)
    with atomic_write(path) as temporary:
        temporary.write_bytes(content.getvalue())
