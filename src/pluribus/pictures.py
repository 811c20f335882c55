"""Pictures in files: folders of classes, ImageNet and its variants, textures. They are read when they are asked for."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .outside import outside
from .sources import Parts, Request, labelled, missing, path_of
from .splits import NO_CLASS, Shape, Split, scaled

ENDINGS = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})
TRAINING, VALIDATION, TEST = ("train", "training"), ("val", "valid", "validation"), ("test", "testing")
SIZE = 224  # of pictures that differ in size, or are larger than KEPT
KEPT = 256
CHECKED = 5_000  # more pictures than these are checked when they are read, not before
REMEMBERED = 2**28  # bytes of decoded pictures that are kept in memory


# ---------------------------------------------------------------- what the table of data names


def folder(request: Request) -> Parts:
    """Any folder of pictures: one folder per class, or train/, val/ and test/ with those inside."""
    return picture_folder(request, path_of(request))


def picture_folder(request: Request, path: Path, page: str = "") -> Parts:
    """The parts that a folder of pictures has; without train/ and its like, all pictures are one part."""
    if not path.is_dir():
        raise ValueError(f"{request.spec}: a folder of pictures is expected, but {path} is a file.")
    parts = {name: path / found for name, found in _part_folders(path).items()}
    found = {name: listed(at) for name, at in (parts or {"train": path}).items()}
    notes = []
    if "test" in found and not _classes_of(found["test"]):  # as ImageNet's, whose labels are secret
        notes.append(f"{request.spec}: the pictures in {parts['test']} are in no class folders and were left out.")
        del found["test"]
    if set(found) == {"train", "validation"}:  # as ImageNet: what is called val is what is judged on
        found = {"train": found["train"], "test": found["validation"]}
    read = _parts(request, path, found)
    return replace(read, notes=notes + read.notes)


def _part_folders(path: Path) -> dict[str, str]:
    here = {child.name.lower(): child.name for child in path.iterdir() if child.is_dir()}
    names = {"train": TRAINING, "validation": VALIDATION, "test": TEST}
    found = {part: next((here[name] for name in known if name in here), None) for part, known in names.items()}
    train = found["train"]
    if train is None or not any(child.is_dir() for child in (path / train).iterdir()):  # or a class of trains
        return {}
    return {part: name for part, name in found.items() if name}


def variant(request: Request, path: Path, page: str = "") -> Parts:
    """Another test set, such as ImageNet-R: one folder per class, of some of the classes."""
    return _parts(request, path, {"test": listed(path)})


def corrupted_folder(request: Request, path: Path, page: str) -> Parts:
    """ImageNet-C: a folder per corruption (perhaps in a folder per group), severities 1 to 5 inside, classes inside."""
    severities = sorted(at for at in path.glob("**/1") if at.is_dir())
    if not severities:
        raise missing(request, ["gaussian_noise/1"], page, path)
    shifted, classes = {}, _classes_of(listed(severities[0]))
    for first in severities:
        levels = [at for at in sorted(first.parent.iterdir()) if at.is_dir() and at.name.isdigit()]
        parts = [_parts(request, at, {"test": listed(at)}, classes) for at in levels]
        shifted[first.parent.name] = [part.rows for part in parts]
    return Parts(classes=classes, shifted=shifted)


def tiny_imagenet(request: Request, path: Path, page: str) -> Parts:
    """Tiny ImageNet as published: classes in train/, a list of labels for val/."""
    labels = path / "val" / "val_annotations.txt"
    if not labels.is_file():
        return picture_folder(request, path)
    rows = [line.split("\t") for line in labels.read_text().splitlines() if line]
    test = [(str(path / "val" / "images" / row[0]), row[1]) for row in rows]
    return _parts(request, path, {"train": listed(path / "train"), "test": test})


# ---------------------------------------------------------------- from files to parts

Found = list[tuple[str, str]]  # the path of a picture and its class; "" for none


def listed(path: Path) -> Found:
    """The pictures under a folder in order, each with the name of the folder on the first level that it is in."""
    found = []
    for at, folders, files in os.walk(path, followlinks=True):  # subsets of ImageNet are often folders of links
        folders.sort()
        inside = Path(at).relative_to(path).parts
        label = inside[0] if inside else ""
        for name in sorted(files):
            if os.path.splitext(name)[1].lower() in ENDINGS and not name.startswith("."):
                found.append((os.path.join(at, name), label))
    return sorted(found, key=lambda one: one[1])


def _classes_of(found: Found) -> tuple[str, ...]:
    return tuple(sorted({label for _, label in found if label}))


def _parts(request: Request, path: Path, found: dict[str, Found], classes: tuple[str, ...] | None = None) -> Parts:
    empty = [name for name, pictures in found.items() if not pictures]
    if empty or not found:
        endings = ", ".join(sorted(ENDINGS))
        raise ValueError(f"{request.spec}: {path} has no pictures for the {empty[0]} part: no file ends in {endings}.")
    classes = classes or _classes_of([one for pictures in found.values() for one in pictures])
    number = {name: i for i, name in enumerate(classes)}
    notes: list[str] = []
    shape = request.shape or _shape(request, [at for at, _ in next(iter(found.values()))], notes)
    splits = {}
    for name, pictures in found.items():
        inputs = Files([at for at, _ in pictures], shape, path)
        split = labelled(inputs, [number.get(label, NO_CLASS) for _, label in pictures])
        splits[name] = split if request.broken == "stop" and len(split) > CHECKED else readable(request, split, notes)
    return Parts(splits.get("train"), splits.get("validation"), splits.get("test"), classes, notes=notes)


def readable(request: Request, split: Split, notes: list[str]) -> Split:
    """The pictures that can be read; what cannot is an error or a note, as was asked for."""
    assert isinstance(split.inputs, Files)
    broken = split.inputs.broken()
    if not broken:
        return split
    names = [f"{split.inputs.name(row)} ({why})" for row, why in sorted(broken.items())]
    said = f"{len(names)} of {len(split)} pictures cannot be read: {', '.join(names)}"
    if request.broken == "stop":
        raise ValueError(
            f'{request.spec}: {said}. Remove them, or leave them out with broken="skip" (command line: --broken skip).'
        )
    kept = [row for row in range(len(split)) if row not in broken]
    if not kept:
        raise ValueError(f"{request.spec}: {said}. None is left.")
    notes.append(f"{request.spec}: {said}. They were left out.")
    return split.take(kept)


def _shape(request: Request, paths: Sequence[str], notes: list[str]) -> Shape:
    """Channels, height and width that pictures get where nothing was asked for."""
    sample = [paths[i] for i in range(0, len(paths), max(1, len(paths) // 200))]
    heads = [head for head in map(_head, sample) if head is not None]
    channels = 1 if heads and all(grey for _, _, grey in heads) else 3
    if request.image_size is not None:
        return (channels, request.image_size, request.image_size)
    sizes = {(height, width) for height, width, _ in heads}
    if len(sizes) == 1 and max(next(iter(sizes))) <= KEPT:
        return (channels, *sizes.pop())
    if sizes:
        why = "have different sizes" if len(sizes) > 1 else f"are larger than {KEPT} pixels"
        notes.append(
            f"{request.spec}: the pictures {why}: the short side became {SIZE} pixels and the centre was cut out. "
            "image_size= (command line: --image-size) chooses another size."
        )
    return (channels, SIZE, SIZE)


def _head(path: str) -> tuple[int, int, bool] | None:
    """Height, width and whether a picture is grey, without decoding it; None where it cannot be opened."""
    try:
        with outside("PIL.Image", "reading pictures", "data").open(path) as picture:
            return picture.height, picture.width, picture.mode in ("1", "L", "LA", "I", "I;16", "F")
    except Exception:  # what is wrong with it is said when it is decoded
        return None


# ---------------------------------------------------------------- reading


class Files:
    """Pictures on disk, decoded when they are asked for; a set that is small when decoded is decoded once."""

    def __init__(self, paths: Sequence[str], shape: Shape, root: Path | None = None):
        self.paths, self.shape, self.root = paths, shape, root
        self._decoded: Tensor | None = None
        self._known: Tensor | None = None

    def __len__(self) -> int:
        return len(self.paths)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_decoded": None, "_known": None}

    def fitted(self, shape: Shape) -> Files:
        """The same pictures in another size or number of channels."""
        return Files(self.paths, shape, self.root)

    def batch(self, rows: Tensor) -> Tensor:
        """These pictures, (rows, channels, height, width) in [0, 1]."""
        self._prepare()
        pictures = [self._one(row) for row in rows.tolist()]
        return torch.stack(pictures).float() / 255 if pictures else torch.empty(0, *self.shape)

    def names(self, rows: Tensor) -> list[str]:
        """The files' names, inside the folder they were found in."""
        return [self.name(row) for row in rows.tolist()]

    def name(self, row: int) -> str:
        """The name of one file, inside the folder it was found in."""
        return os.path.relpath(self.paths[row], self.root) if self.root else self.paths[row]

    def broken(self) -> dict[int, str]:
        """The rows that cannot be read, and why."""

        def why(row: int) -> str:
            try:
                self._one(row)
            except ValueError as error:
                return str(error.__cause__ or error)
            return ""

        self._prepare()
        with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:  # decoding lets other threads run
            return {row: said for row, said in enumerate(pool.map(why, range(len(self)))) if said}

    def _prepare(self) -> None:
        outside("PIL.Image", "reading pictures", "data")
        if self._decoded is None and len(self) * math.prod(self.shape) <= REMEMBERED:
            self._known = torch.zeros(len(self), dtype=torch.bool)
            self._decoded = torch.empty(len(self), *self.shape, dtype=torch.uint8)

    def _one(self, row: int) -> Tensor:
        if self._decoded is None or self._known is None:
            return decoded(self.paths[row], self.shape)
        if not self._known[row]:
            self._decoded[row] = decoded(self.paths[row], self.shape)
            self._known[row] = True
        return self._decoded[row]


def decoded(path: str | Path, shape: Shape) -> Tensor:
    """One picture as bytes, (channels, height, width): turned upright, short side resized, centre cut out."""
    image = outside("PIL.Image", "reading pictures", "data")
    try:
        with image.open(path) as picture:
            upright = outside("PIL.ImageOps", "reading pictures", "data").exif_transpose(picture)
            return _fitted(image, _plain(upright, shape[0]), shape)
    except Exception as error:  # each format of Pillow fails in ways of its own
        raise ValueError(
            f'{path}: the picture cannot be read: {error}. Remove it, or load with broken="skip".'
        ) from error


def _plain(picture: Any, channels: int) -> Any:
    """A picture in bytes, grey or colour."""
    if picture.mode.startswith("I"):  # 16 bits; Pillow itself would cut off at 255
        values = np.asarray(picture).astype(np.float64) / 257
        picture = outside("PIL.Image", "reading pictures", "data").fromarray(
            values.round().clip(0, 255).astype(np.uint8)
        )
    if picture.mode == "P":
        picture = picture.convert("RGBA")
    return picture.convert("L" if channels == 1 else "RGB")


def _fitted(image: Any, picture: Any, shape: Shape) -> Tensor:
    _, height, width = shape
    if picture.size != (width, height):
        new_height, new_width = scaled(picture.height, picture.width, height, width)
        picture = picture.resize((new_width, new_height), image.Resampling.BILINEAR)
        left, top = (new_width - width) // 2, (new_height - height) // 2
        picture = picture.crop((left, top, left + width, top + height))
    values = torch.from_numpy(np.array(picture))
    return values[None] if values.ndim == 2 else values.permute(2, 0, 1)
