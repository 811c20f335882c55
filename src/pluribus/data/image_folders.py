"""Images in files: folders of classes, ImageNet and its variants, textures; each is read when it is asked for."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from .._common.optional import require
from .._common.untrusted import open_file
from .dataset import NO_CLASS, Shape, Split, covering_size, labelled_split, part_in_view
from .source import ImageParts, Request, argument_path, list_names, missing_error, reading
from .unpacking import Limit, Timed, TooLargeError, limit_for, seconds_for

FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM")  # of Pillow's others some start programs, as EPS does
DECODED = 2**28  # bytes of one image when it is decoded
BLOCK = 2**12  # bytes that are decoded at once; the time is looked at in between
LARGE = 2**24  # images of more bytes are decoded one at a time
ENDINGS = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})
TRAINING, VALIDATION, TEST = ("train", "training"), ("val", "valid", "validation"), ("test", "testing")
LARGEST_KEPT = 256  # images of one size up to this keep it
SIZE = 224  # of images that differ in size, or are larger than that
CHECKED_FIRST = 5_000  # more images than these are checked when they are read, not before
CACHE_BYTES = 2**28  # bytes of decoded images that are kept in memory


# ---------------------------------------------------------------- readers that DATA names


def read_image_folder(request: Request, path: Path | None = None) -> ImageParts:
    """The parts that a folder of images has, one folder per class; without train/ and its like, all are one part."""
    path = path or argument_path(request)
    if not path.is_dir():
        raise ValueError(f"{request.spec}: needs a folder of images, but {path} is a file.")
    notes = list[str]()
    parts = {name: path / found for name, found in _part_folders(path).items()}
    found = {name: list_images(at, notes) for name, at in (parts or {"train": path}).items()}
    if "test" in found and not _class_names(found["test"]):  # as ImageNet's, whose labels are secret
        notes.append(f"{request.spec}: the images in {parts['test']} are not in class folders and were left out.")
        del found["test"]
    if set(found) == {"train", "validation"}:  # as ImageNet: what is called val is what is judged on
        found = {"train": found["train"], "test": found["validation"]}
    return build_parts(request, path, found, notes)


def _part_folders(path: Path) -> dict[str, str]:
    here = {child.name.lower(): child.name for child in path.iterdir() if child.is_dir()}
    names = {"train": TRAINING, "validation": VALIDATION, "test": TEST}
    found = {part: next((here[name] for name in known if name in here), None) for part, known in names.items()}
    train = found["train"]
    if train is None or not any(child.is_dir() for child in (path / train).iterdir()):  # or a class of trains
        return {}
    return {part: name for part, name in found.items() if name}


def read_variant(request: Request, path: Path) -> ImageParts:
    """Another test set, such as ImageNet-R: one folder per class, of some of the classes."""
    notes = list[str]()
    return build_parts(request, path, {"test": list_images(path, notes)}, notes)


def read_imagenet_c(request: Request, path: Path) -> ImageParts:
    """ImageNet-C: a folder per corruption (perhaps in a folder per group), severities 1 to 5 inside, classes inside."""
    severities = sorted(at for at in path.glob("**/1") if at.is_dir())
    if not severities:
        raise missing_error(request, ["gaussian_noise/1"], path)
    shifted, classes = {}, _class_names(list_images(severities[0], []))
    for first in severities:
        levels = [at for at in sorted(first.parent.iterdir()) if at.is_dir() and at.name.isdigit()]
        parts = [build_parts(request, at, {"test": list_images(at, [])}, [], classes) for at in levels]
        shifted[first.parent.name] = [part.rows for part in parts]
    return ImageParts(classes=classes, shifted=shifted)


def read_tiny_imagenet(request: Request, path: Path) -> ImageParts:
    """Tiny ImageNet as published: classes in train/, a list of labels for val/."""
    labels = path / "val" / "val_annotations.txt"
    if not labels.is_file():
        return read_image_folder(request, path)
    images = path / "val" / "images"
    with reading(labels):
        there = set(os.listdir(images))
        with open_file(labels) as file:
            lines = file.read().decode("latin-1").splitlines()
        rows = [line.split("\t") for line in lines if line]
        if not all(len(row) > 1 for row in rows):
            raise ValueError("each line must be the name of an image, a tab and its class")
        if absent := next((row[0] for row in rows if row[0] not in there), None):
            raise ValueError(f"it names {absent}, which is not in {images}")
    test, notes = [(str(images / row[0]), row[1]) for row in rows], list[str]()
    return build_parts(request, path, {"train": list_images(path / "train", notes), "test": test}, notes)


# ---------------------------------------------------------------- from files to parts

Listing = list[tuple[str, str]]  # the path of an image and its class; "" for none


def list_images(path: Path, notes: list[str]) -> Listing:
    """The images under a folder, in order, each with the name of the first-level folder that it is in.

    Links are followed, as subsets of ImageNet are often folders of links; but a folder is visited once, and at its own
    place rather than through a link. The notes say what was left out.
    """
    found, left_out = list[tuple[str, str]](), list[str]()
    for at, inside, files in walk_once(path, left_out):
        label = inside[0] if inside else ""
        for name in files:
            if is_image(name):
                found.append((os.path.join(at, name), label))
    if left_out:
        notes.append(
            f"{path}: links were left out that lead to folders that are already read or that contain this one: "
            f"{list_names(left_out, 5)}."
        )
    return sorted(found, key=lambda one: one[1])


def is_image(name: str) -> bool:
    """Whether a file of this name is taken for an image."""
    return os.path.splitext(name)[1].lower() in ENDINGS and not name.startswith(".")


def walk_once(root: Path, left_out: list[str]) -> Iterator[tuple[str, tuple[str, ...], list[str]]]:
    """Each folder under the root once: its path, the names that lead to it, and its files in order.

    A link out of the root is followed, the first to a folder only; one to a folder inside or around the root is not.
    """
    home = os.path.realpath(root)
    seen = {home}
    for at, folders, files in os.walk(root, followlinks=True, onerror=_refuse_folder):
        kept = []
        for name in sorted(folders):
            path = os.path.join(at, name)
            place = os.path.realpath(path)
            if place in seen or os.path.islink(path) and os.path.commonpath([place, home]) in (place, home):
                left_out.append(os.path.relpath(path, root))
                continue
            seen.add(place)
            kept.append(name)
        folders[:] = kept  # what os.walk goes on with
        yield at, Path(at).relative_to(root).parts, sorted(files)


def _refuse_folder(error: OSError) -> None:
    raise ValueError(f"{error.filename}: the folder cannot be read ({error.strerror}).") from None


def _class_names(found: Listing) -> tuple[str, ...]:
    return tuple(sorted({label for _, label in found if label}))


def build_parts(
    request: Request, path: Path, found: dict[str, Listing], notes: list[str], classes: tuple[str, ...] = ()
) -> ImageParts:
    """The parts of listed images, with their classes numbered in order."""
    empty = [name for name, images in found.items() if not images]
    if empty or not found:
        endings = ", ".join(sorted(ENDINGS))
        raise ValueError(f"{request.spec}: {path} has no images for the {empty[0]} part: no file ends in {endings}.")
    classes = classes or _class_names([one for images in found.values() for one in images])
    number = {name: i for i, name in enumerate(classes)}
    shape = request.shape or choose_shape(request, [at for at, _ in next(iter(found.values()))], notes)
    splits = {}
    for name, images in found.items():
        resize = stretch if request.whole else None
        inputs = ImageFiles([at for at, _ in images], shape, path, request.unpack_limit, resize=resize)
        split = labelled_split(inputs, [number.get(label, NO_CLASS) for _, label in images])
        splits[name] = take_readable(request, split, notes)
    return ImageParts(splits.get("train"), splits.get("validation"), splits.get("test"), classes, notes=notes)


def take_readable(request: Request, split: Split, notes: list[str], *, always: bool = False) -> Split:
    """The images that can be read; the others are an error or a note, as the request says.

    Very many are checked only where they are to be left out; otherwise one that is broken is an error when it is read.
    """
    assert isinstance(split.inputs, ImageFiles)
    if request.broken == "stop" and len(split) > CHECKED_FIRST and not always:
        return split
    broken = split.inputs.find_broken()
    if not broken:
        return split
    names = [f"{split.inputs.name(row)} ({why})" for row, why in sorted(broken.items())]
    said = f"{len(names)} of {len(split)} images cannot be read: {', '.join(names)}"
    if request.broken == "stop":
        raise ValueError(
            f'{request.spec}: {said}. Remove them, or leave them out with broken="skip" (command line: --broken skip).'
        )
    kept = [row for row in range(len(split)) if row not in broken]
    if not kept:
        raise ValueError(f"{request.spec}: {said}. None is left.")
    notes.append(f"{request.spec}: {said}. They were left out.")
    return split.take(kept)


CROPPED = "the short side was resized to {size} pixels and the centre cropped"


def choose_shape(request: Request, paths: Sequence[str], notes: list[str], how: str = CROPPED) -> Shape:
    """Channels, height and width of the images, where the request says nothing."""
    sample = [paths[i] for i in range(0, len(paths), max(1, len(paths) // 200))]
    heads = []
    for path in sample:
        with suppress(Exception):  # what is wrong with it is said when it is decoded
            heads.append(read_header(path))
    channels = 1 if heads and all(grey for _, _, grey in heads) else 3
    if request.image_size is not None:
        return (channels, request.image_size, request.image_size)
    sizes = {(height, width) for height, width, _ in heads}
    if len(sizes) == 1 and max(next(iter(sizes))) <= LARGEST_KEPT:
        return (channels, *sizes.pop())
    if sizes:
        why = "have different sizes" if len(sizes) > 1 else f"are larger than {LARGEST_KEPT} pixels"
        notes.append(
            f"{request.spec}: the images {why}: {how.format(size=SIZE)}. "
            "image_size= (command line: --image-size) sets another size."
        )
    return (channels, SIZE, SIZE)


# ---------------------------------------------------------------- reading


@dataclass(eq=False, repr=False)
class ImageFiles:
    """Images on disk, decoded when they are asked for; a set that is small when decoded is decoded once."""

    paths: Sequence[str]
    shape: Shape
    root: Path | None = None
    unpack_limit: Limit = None
    resize: Callable[[Any, Shape], Tensor] | None = None  # by default the short side, and the centre is cut out
    fixed: bool = True  # whether an image is the same each time it is read
    _decoded: dict[int, Tensor] = field(default_factory=dict, init=False)

    def __len__(self) -> int:
        return len(self.paths)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_decoded": {}}

    def with_shape(self, shape: Shape) -> ImageFiles:
        """The same images in another size or number of channels."""
        return replace(self, shape=shape)

    def random_crops(
        self, size: int, scale: Sequence[float] = (0.08, 1), ratio: Sequence[float] = (3 / 4, 4 / 3)
    ) -> ImageFiles:
        """The same images, of each of which another random part is read each time (Szegedy et al. 2015).

        Args:
            scale: the share of an image's area, from and to; ratio: width to height, from and to
        """
        crop = partial(_random_crop, scale=tuple(scale), ratio=tuple(ratio))
        return replace(self, shape=(self.shape[0], size, size), resize=crop, fixed=False)

    def batch(self, rows: Tensor) -> Tensor:
        """These images, (rows, channels, height, width) in [0, 1]."""
        images = [self._decode(row) for row in rows.tolist()]
        return torch.stack(images).float() / 255 if images else torch.empty(0, *self.shape)

    def names(self, rows: Tensor) -> list[str]:
        """The files' names, inside the folder they were found in."""
        return [self.name(row) for row in rows.tolist()]

    def name(self, row: int) -> str:
        """The name of one file, inside the folder it was found in."""
        return os.path.relpath(self.paths[row], self.root) if self.root else self.paths[row]

    def find_broken(self) -> dict[int, str]:
        """The rows that cannot be read, and why."""

        def why(row: int) -> str:
            try:
                self._decode(row)
            except ValueError as error:
                return str(error.__cause__ or error)
            return ""

        with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:  # decoding lets other threads run
            return {row: said for row, said in enumerate(pool.map(why, range(len(self)))) if said}

    def _decode(self, row: int) -> Tensor:
        if row in self._decoded:
            return self._decoded[row]
        image = decode(self.paths[row], self.shape, self.unpack_limit, self.resize)
        if self.fixed and len(self) * math.prod(self.shape) <= CACHE_BYTES:
            self._decoded[row] = image
        return image


def decode(
    path: str | Path, shape: Shape, limit: Limit = None, resize: Callable[[Any, Shape], Tensor] | None = None
) -> Tensor:
    """One image as bytes, (channels, height, width): turned upright and resized.

    Args:
        resize: makes a tensor of the shape of an image; by default `resize_and_crop`
    """
    _pillow()  # without Pillow it is not the image that is broken
    try:
        with open_file(path) as file:
            image = _open_image(file, seconds_for(os.fstat(file.fileno()).st_size, limit))
            size = image.width * image.height * len(image.getbands()) * (4 if image.mode in ("I", "F") else 1)
            allowed = min(DECODED, limit_for(0)) if limit is None else limit_for(0, limit)
            if size > allowed:
                raise TooLargeError(f"its {image.width}x{image.height} pixels", allowed)
            with _ONE_LARGE if size > LARGE else nullcontext():
                require("PIL.ImageOps", "reading images", "data").exif_transpose(image, in_place=True)
                return (resize or resize_and_crop)(image, shape)
    except Exception as error:  # each format of Pillow fails in ways of its own
        raise ValueError(
            f'{path}: the image cannot be read: {str(error).rstrip(".")}. Remove it, or load with broken="skip".'
        ) from error


_ONE_LARGE = threading.Lock()


def _open_image(file: BinaryIO, seconds: float) -> Any:
    """The image in an open file, not yet decoded, in one of our formats whatever its name says.

    Pillow's own `open` tries all formats first where a name is new to it, and warns of sizes that `decode` refuses.
    """
    pillow, start = _pillow(), file.read(16)
    pillow.init()
    for name in FORMATS:
        build, accepts = pillow.OPEN.get(name, (None, None))
        if build is not None and accepts(start) is True:
            file.seek(0)
            image = build(Timed(file, "its content", seconds))
            image.decodermaxblock = BLOCK
            return image
    raise ValueError(f"it is not one of {', '.join(FORMATS)}")


def _pillow() -> Any:
    return require("PIL.Image", "reading images", "data")


def _as_bytes(image: Any, channels: int) -> Any:
    """An image in bytes, grey or colour."""
    if image.mode.startswith("I"):  # 16 bits; Pillow itself would cut off at 255
        values = np.asarray(image).clip(0, 65535).astype(np.uint32)
        image = _pillow().fromarray(((values + 128) // 257).astype(np.uint8))
    if image.mode == "P":
        image = image.convert("RGBA")
    wanted = "L" if channels == 1 else "RGB"
    return image if image.mode == wanted else image.convert(wanted)


def read_header(path: str) -> tuple[int, int, bool]:
    """Height and width of an image when it is turned upright, and whether it is grey, without decoding it."""
    with open_file(path) as file:
        image = _open_image(file, 1.0)
        turned = image.getexif().get(0x0112, 1) in (5, 6, 7, 8)  # the orientation
        size = (image.width, image.height) if turned else (image.height, image.width)
        return *size, image.mode in ("1", "L", "LA", "I", "I;16", "F")


def stretch(image: Any, shape: Shape) -> Tensor:
    """An image resized as a whole, without cutting out the centre."""
    return _as_tensor(_as_bytes(image, shape[0]).resize((shape[2], shape[1]), _pillow().Resampling.BILINEAR))


def _random_crop(image: Any, shape: Shape, scale: Sequence[float], ratio: Sequence[float]) -> Tensor:
    box = _random_box(image.height, image.width, scale, ratio)
    return _as_tensor(_as_bytes(image, shape[0]).resize((shape[2], shape[1]), _pillow().Resampling.BILINEAR, box))


def _random_box(height: int, width: int, scale: Sequence[float], ratios: Sequence[float]) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of a part, as timm draws it; the centre if ten draws do not fit."""
    for _ in range(10):
        share, place = torch.rand(2), torch.rand(2).tolist()
        area = height * width * float(scale[0] + share[0] * (scale[1] - scale[0]))
        low, high = (math.log(end) for end in ratios)
        ratio = math.exp(low + float(share[1]) * (high - low))
        across, down = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < across <= width and 0 < down <= height:
            left, top = int(place[0] * (width - across + 1)), int(place[1] * (height - down + 1))
            return left, top, left + across, top + down
    ratio = min(max(width / height, ratios[0]), ratios[1])
    across, down = min(width, round(height * ratio)), min(height, round(width / ratio))
    left, top = (width - across) // 2, (height - down) // 2
    return left, top, left + across, top + down


def resize_and_crop(image: Any, shape: Shape) -> Tensor:
    """An image whose short side is resized and whose centre is cut out."""
    _, height, width = shape
    image = _as_bytes(image, shape[0])
    top, bottom, left, right = part_in_view(image.height, image.width, height, width)
    image = image.crop((left, top, right, bottom))
    new_height, new_width = covering_size(image.height, image.width, height, width)
    image = image.resize((new_width, new_height), _pillow().Resampling.BILINEAR)
    left, top = (new_width - width) // 2, (new_height - height) // 2
    return _as_tensor(image.crop((left, top, left + width, top + height)))


def _as_tensor(image: Any) -> Tensor:
    values = torch.from_numpy(np.array(image))
    return values[None] if values.ndim == 2 else values.permute(2, 0, 1)
