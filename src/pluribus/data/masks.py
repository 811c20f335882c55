"""Segmentation: images/ and masks/ side by side, in which each pixel of a mask holds the number of its class.

An image is resized as a whole, never cropped, so that every pixel of it gets an answer; its mask is resized with it, by
the nearest pixel. Masks are read when they are asked for, as images are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._common.optional import require
from .._common.trees import IGNORED
from .._common.untrusted import open_file
from .dataset import Shape, Split, unlabelled_split
from .image_folders import (
    ImageFiles,
    choose_shape,
    list_images,
    read_header,
    stretch,
    take_readable,
)
from .source import PART_NAMES, ImageParts, Request, argument_path, list_names

VOID = 255  # what masks hold where a pixel has no class
UNKNOWN = -1  # the class of numbers that training has not seen
NAMES = "classes.txt"  # the name of class 0 in its first line, and so on
LOSSY = (".jpg", ".jpeg", ".webp")


def load_masks(request: Request) -> ImageParts:
    """A folder with images/ and masks/, whose names differ in their endings; or train/, val/ and test/ with those."""
    path = argument_path(request)
    notes = list[str]()
    found = list_pairs(request, path, notes)
    first = next(iter(found.values()))
    shape = request.shape or choose_shape(request, [image for image, _ in first], notes, "resized")
    splits = {name: _split(request, path, pairs, shape, notes) for name, pairs in found.items()}
    known = splits.get("train") or next(iter(splits.values()))
    classes, numbers = _read_classes(request, path, _values(known), notes)
    for name, split in splits.items():
        masks = split.targets
        assert isinstance(masks, MaskFiles)
        masks.numbers = numbers
        if unseen := [value for value in _values(split) if numbers[value] == UNKNOWN]:
            raise ValueError(
                f"{request.spec}: every class of the {name} part must occur in training, but the masks hold "
                f"{list_names(list(map(str, unseen)))}. Name all classes in {NAMES}, one a line."
            )
    train, validation, test = (splits.get(part) for part in ("train", "validation", "test"))
    values = [int((numbers == i).nonzero()[0]) for i in range(len(classes))]
    return ImageParts(train, validation, test, classes, notes=notes, mask_values=values)


def list_pairs(request: Request, path: Path, notes: list[str]) -> dict[str, list[tuple[str, str]]]:
    """The images of each part with their masks."""
    named = ((part, path / name) for part, names in PART_NAMES.items() for name in names)
    parts = {part: at for part, at in named if (at / "images").is_dir()}
    parts = parts if "train" in parts else {"train": path}
    return {part: _pairs(request, at, notes) for part, at in parts.items()}


def _pairs(request: Request, path: Path, notes: list[str]) -> list[tuple[str, str]]:
    images, masks = (_by_name(path / folder, notes) for folder in ("images", "masks"))
    if not images or not masks:
        empty = "masks" if images else "images"
        raise ValueError(
            f"{request.spec}: needs images in {path / 'images'} and in {path / 'masks'}; {empty}/ has none."
        )
    if absent := sorted(images.keys() - masks.keys()):
        raise ValueError(
            f"{request.spec}: every image needs a mask of the same name, but {len(absent)} of {len(images)} have none: "
            f"{list_names(absent, 5)}. Put them into {path / 'masks'}, or remove the images."
        )
    if lossy := [masks[name] for name in images if masks[name].lower().endswith(LOSSY)]:
        raise ValueError(
            f"{request.spec}: a mask must be a PNG (or BMP, TIFF), because {lossy[0]} does not keep the numbers of "
            "classes as they were."
        )
    return [(images[name], masks[name]) for name in sorted(images)]


def _by_name(folder: Path, notes: list[str]) -> dict[str, str]:
    """The images under a folder by their names without the endings."""
    found: dict[str, str] = {}
    for at, _ in list_images(folder, notes) if folder.is_dir() else ():
        name = Path(at).relative_to(folder).with_suffix("").as_posix()
        if name in found:
            raise ValueError(f"{folder}: names must differ in more than their endings, but there are two {name}.")
        found[name] = at
    return found


def _split(request: Request, path: Path, pairs: list[tuple[str, str]], shape: Shape, notes: list[str]) -> Split:
    """Pairs that can be read, or an error, as the request says."""
    images = ImageFiles([image for image, _ in pairs], shape, path, request.unpack_limit, resize=stretch)
    masks = MaskFiles([mask for _, mask in pairs], (1, *shape[1:]), path, request.unpack_limit, resize=_read_mask)
    kept = set(range(len(pairs)))
    for one in (images, masks):
        readable = take_readable(request, unlabelled_split(one), notes, always=one is masks)
        kept &= set(readable.rows.tolist())
    for row in kept:
        (height, width, _), (high, wide, _) = (read_header(at) for at in pairs[row])
        if (height, width) != (high, wide):
            raise ValueError(
                f"{request.spec}: a mask must have the size of its image, but {pairs[row][1]} has {wide}x{high} "
                f"pixels and {pairs[row][0]} has {width}x{height}."
            )
    return Split(images, masks, torch.tensor(sorted(kept)))


def _values(split: Split) -> list[int]:
    """The numbers that the masks hold."""
    masks = split.targets
    assert isinstance(masks, MaskFiles)
    found = torch.zeros(256, dtype=torch.bool)
    for row in split.rows.tolist():
        found[masks.read(row).flatten().long()] = True
    return found.nonzero()[:, 0].tolist()


def _read_classes(request: Request, path: Path, there: list[int], notes: list[str]) -> tuple[tuple[str, ...], Tensor]:
    """Names of the classes, and the class of each number that a mask may hold."""
    names = _read_names(path / NAMES)
    numbers = torch.full((256,), UNKNOWN)
    if names:
        values = list(range(len(names)))
    elif there == [0, VOID]:
        values, names = there, ["background", "foreground"]
    else:
        values = [value for value in there if value != VOID]
        names = list(map(str, values))
    if VOID not in values:
        numbers[VOID] = IGNORED
        if VOID in there:
            notes.append(f"{request.spec}: pixels of {VOID} in the masks have no class: they are left out.")
    numbers[values] = torch.arange(len(values))
    if len(values) < 2:
        raise ValueError(
            f"{request.spec}: training needs at least two classes, but the masks hold only {list_names(names) or VOID}."
        )
    return tuple(names), numbers


def _read_names(path: Path) -> list[str]:
    if not path.is_file():
        return []
    with open_file(path) as file:
        text = file.read(2**16)
    names = [line.strip() for line in text.decode(errors="replace").splitlines() if line.strip()]
    if len(text) == 2**16 or len(names) > 256 or len(set(names)) < len(names):
        raise ValueError(f"{path}: must name up to 256 classes, each once and in a line of its own.")
    return names


class MaskFiles(ImageFiles):
    """Masks on disk; an index gives class numbers, (height, width) or (rows, height, width), IGNORED for none."""

    numbers: Tensor = torch.arange(256)  # the class of each number in a mask

    def __getitem__(self, rows: Tensor) -> Tensor:
        if rows.ndim == 0:
            return self.numbers[self.read(int(rows)).long()]
        found = [self.read(row) for row in rows.tolist()]
        return self.numbers[torch.stack(found).long()] if found else torch.empty(0, *self.shape[1:], dtype=torch.int64)

    def read(self, row: int) -> Tensor:
        """The numbers in one mask, (height, width)."""
        return self._decode(row)[0]


def _read_mask(image: Any, shape: Shape) -> Tensor:
    """The numbers in a mask, as bytes: grey values, or the numbers of a palette's colours; opacity is ignored."""
    values = np.asarray(image.convert("L") if image.mode == "1" else image)
    if image.mode in ("RGB", "RGBA", "LA") and (values[..., : len(image.mode.rstrip("A"))] == values[..., :1]).all():
        values = values[..., 0]  # grey that was saved as colours
    if values.ndim != 2 or values.dtype.kind not in "ui":
        raise ValueError(
            f"a mask must have one number for each pixel, but its mode is {image.mode} and it has colours. Save the "
            "numbers of the classes as a grey or palette PNG"
        )
    if values.max(initial=0) > 255 or values.min(initial=0) < 0:
        raise ValueError(f"the numbers of a mask must be from 0 to 255, but one is {values.max()}")
    pillow = require("PIL.Image", "reading images", "data")
    small = pillow.fromarray(values.astype(np.uint8)).resize((shape[2], shape[1]), pillow.Resampling.NEAREST)
    return torch.from_numpy(np.array(small))[None]


def palette(numbers: int = 256) -> np.ndarray:
    """A colour for each number, as Pascal VOC gives them: (numbers, 3), bytes; the first is black.

    >>> palette()[:3].tolist()
    [[0, 0, 0], [128, 0, 0], [0, 128, 0]]
    """
    bits = (np.arange(numbers)[:, None] >> np.arange(8)) & 1  # of red, green and blue in turn, the highest first
    places = 7 - np.arange(8) // 3
    return np.stack([(bits << places)[:, channel::3].sum(1) for channel in range(3)], axis=1).astype(np.uint8)
