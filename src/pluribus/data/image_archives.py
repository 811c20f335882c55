"""Published file formats: idx, CIFAR's pickles and binaries, SVHN's .mat, CIFAR-10-C's .npy, and .npz archives.

Nothing that a file could contain is executed.
"""

from __future__ import annotations

import io
import math
import struct
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from .._common.optional import require
from .._common.untrusted import open_file
from . import unpacking
from .dataset import NO_CLASS, ImageArrays, Split, labelled_split
from .safe_pickle import unpickle
from .source import ImageParts, Request, SourceParts, TableParts, argument_path, check_columns, missing_error, reading
from .unpacking import Limit, TooLargeError

CIFAR_10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
KUZUSHIJI = ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo")
SEVERITIES = 5
MOST = 100_000  # classes of a published set
LARGEST = 2.0**63  # no whole number from there on has its own place among labels


# ---------------------------------------------------------------- idx files: MNIST and those in its format


def load_idx(request: Request) -> SourceParts:
    """A folder of four idx files, named as MNIST's."""
    return read_idx_folder(request, argument_path(request))


def read_idx_folder(request: Request, folder: Path, classes: tuple[str, ...] = ()) -> SourceParts:
    """Training and test part from the four files of MNIST, packed or not."""
    arrays = {
        f"{name}_{part}": read_idx(_idx_file(request, folder, f"{stem}-{what}"), request.unpack_limit)
        for part, stem in (("train", "train"), ("test", "t10k"))
        for name, what in (("x", "images-idx3"), ("y", "labels-idx1"))
    }
    return parts_from_arrays(request, arrays, classes)


def _idx_file(request: Request, folder: Path, stem: str) -> Path:
    names = [f"{name}-ubyte{end}" for name in (stem, stem.replace("-idx", ".idx")) for end in ("", ".gz")]
    found = next((folder / name for name in names if (folder / name).is_file()), None)
    if found is None:
        raise missing_error(request, names[:2], folder)
    return found


def read_idx(path: Path, limit: Limit = None) -> np.ndarray:
    """The array in an idx file, also one that is packed."""
    data = _read_bytes(path, limit)
    types = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
    with reading(path):
        if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in types:
            raise ValueError("it does not start like an idx file")
        shape, number = struct.unpack_from(f">{data[3]}i", data, 4), np.dtype(types[data[2]])
        there = len(data) - 4 - 4 * data[3]
        if math.prod(shape) * number.itemsize != there or min(shape, default=0) < 0:
            claim = f"{'x'.join(map(str, shape))} values of {number.itemsize} bytes"
            raise ValueError(f"it claims {claim} but holds {there} bytes")
        return np.frombuffer(data, number, offset=4 + 4 * data[3]).astype(number.newbyteorder("=")).reshape(shape)


def _read_bytes(path: Path, limit: Limit) -> bytes:
    """What is in a file, unpacked if it is packed."""
    with reading(path), open_file(path) as file:
        return unpacking.unpack(file, path, unpacking.limit_for(path.stat().st_size, limit)).read()


# ---------------------------------------------------------------- CIFAR


def read_cifar(request: Request, path: Path) -> SourceParts:
    """CIFAR-10 or CIFAR-100 from a folder or a tar file of pickles or binaries."""
    hundred = "100" in path.name
    training = ["train"] if hundred else [f"data_batch_{i}" for i in range(1, 6)]
    test = "test" if hundred else "test_batch"
    names = ["meta", "batches.meta", *training, test, "fine_label_names.txt", "batches.meta.txt"]
    files = read_files(path, [*names, *(f"{name}.bin" for name in names)], request.unpack_limit)
    binary = f"{test}.bin" in files
    wanted = [f"{name}.bin" if binary else name for name in (*training, test)]
    if absent := [name for name in wanted if name not in files]:
        raise missing_error(request, absent[:1], path)
    batches = []
    for name in wanted:
        with reading(path / name):
            batches.append(_read_binary(files[name], hundred) if binary else _read_pickle(files[name], path / name))
    x, y = (np.concatenate([batch[i] for batch in batches[:-1]]) for i in (0, 1))
    arrays = {"x_train": x, "y_train": y, "x_test": batches[-1][0], "y_test": batches[-1][1]}
    return parts_from_arrays(request, arrays, _cifar_classes(files, path, hundred))


def read_files(path: Path, names: list[str], limit: Limit = None) -> dict[str, bytes]:
    """The contents of those of the named files that are in a folder or a tar file; nothing is written to disk."""
    if path.is_dir():
        return {name: _read_bytes(path / name, limit) for name in names if (path / name).is_file()}
    found, size = {}, path.stat().st_size
    allowed = unpacking.limit_for(size, limit)
    with reading(path), open_file(path) as file:
        stream = unpacking.Timed(unpacking.unpack(file, path, allowed), path, unpacking.seconds_for(size, limit))
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                if member.isfile() and Path(member.name).name in names:
                    if member.size > allowed or member.issparse():  # a hole takes no room in the archive
                        raise TooLargeError(path, allowed)
                    content = archive.extractfile(member)
                    assert content is not None
                    found[Path(member.name).name] = content.read()
    return found


def _cifar_classes(files: Mapping[str, bytes], path: Path, hundred: bool) -> tuple[str, ...]:
    lines = files.get("fine_label_names.txt" if hundred else "batches.meta.txt")
    if lines is not None:
        return tuple(lines.decode("latin-1").split())
    meta, key = files.get("meta" if hundred else "batches.meta"), "fine_label_names" if hundred else "label_names"
    if meta is None:
        return tuple(map(str, range(100))) if hundred else CIFAR_10
    with reading(path):
        return tuple(name.decode("latin-1") if isinstance(name, bytes) else name for name in unpickle(meta, path)[key])


def _read_binary(data: bytes, hundred: bool) -> tuple[np.ndarray, np.ndarray]:
    """Rows of one label (CIFAR-100: coarse and fine) and 3,072 pixels, channels first."""
    labels = 2 if hundred else 1
    rows = np.frombuffer(data, np.uint8).reshape(-1, labels + 3072)
    return _channels_last(rows[:, labels:]), rows[:, labels - 1]


def _read_pickle(data: bytes, path: Path) -> tuple[np.ndarray, np.ndarray]:
    batch = unpickle(data, path)
    pixels, labels = batch["data"], np.asarray(batch.get("fine_labels", batch.get("labels")))
    if pixels.dtype.kind not in "iu" or pixels.size and not 0 <= pixels.min() <= pixels.max() <= 255:
        raise ValueError(f"its pixels must be whole numbers from 0 to 255, but are {pixels.dtype}")
    return _channels_last(pixels.astype(np.uint8)), _check_labels(path, labels)


def _check_labels(path: Path, labels: np.ndarray) -> np.ndarray:
    with reading(path):
        if labels.ndim != 1 or labels.dtype.kind not in "iu" or not 0 <= labels.min() <= labels.max() < MOST:
            raise ValueError(f"its labels are {labels.shape} of {labels.dtype}, not one row of numbers below {MOST}")
    return labels.astype(np.int64)


def _channels_last(rows: np.ndarray) -> np.ndarray:
    if rows.ndim != 2 or not len(rows):
        raise ValueError("it has no rows of 3,072 pixels")
    return np.ascontiguousarray(rows.reshape(len(rows), 3, 32, 32).transpose(0, 2, 3, 1))


# ---------------------------------------------------------------- SVHN, CIFAR-10-C


def beside(path: Path) -> list[Path]:
    """The other files that are read with this one: SVHN's training part."""
    other = path.with_name("train_32x32.mat")
    return [other] if path.name == "test_32x32.mat" and other.exists() else []


def read_svhn(request: Request, path: Path) -> SourceParts:
    """SVHN's cropped digits from train_32x32.mat and test_32x32.mat; the label 10 is the digit 0."""
    arrays: dict[str, np.ndarray] = {}
    for part in ("train", "test"):
        file = path.parent / f"{part}_32x32.mat"
        if file.exists():
            arrays |= {f"{name}_{part}": values for name, values in _read_mat(file, request.unpack_limit).items()}
    return parts_from_arrays(request, arrays, tuple("0123456789"))


def _read_mat(path: Path, limit: Limit) -> dict[str, np.ndarray]:
    read = require("scipy.io", "reading .mat files", "data").loadmat
    with reading(path):
        with open_file(path) as file:
            content = file.read()
        _check_growth(content, path, unpacking.limit_for(len(content), limit))
        found = read(io.BytesIO(content), variable_names=["X", "y"])
        x, y = found["X"].transpose(3, 0, 1, 2), found["y"].reshape(-1)
        if x.dtype != np.uint8 or y.dtype.kind not in "iuf":
            raise ValueError(f"X and y must be bytes and numbers, but are {x.dtype} and {y.dtype}")
        return {"x": x, "y": y.astype(np.int64) % 10}


def _check_growth(content: bytes, path: Path, allowed: int) -> None:
    """Refuse a .mat file whose packed elements unpack to more than is allowed: what its headers say may be a lie."""
    place, left = 128, allowed  # after the file's header
    tag = ">II" if content[126:128] == b"MI" else "<II"
    while place + 8 <= len(content):
        kind, size = struct.unpack_from(tag, content, place)
        inflate, packed = zlib.decompressobj(), content[place + 8 : place + 8 + size]
        while kind == 15 and packed:
            left -= len(inflate.decompress(packed, 2**20))
            if left < 0:
                raise TooLargeError(path, allowed)
            packed = inflate.unconsumed_tail
        place += 8 + size


def read_cifar_c(request: Request, path: Path) -> ImageParts:
    """CIFAR-10-C or CIFAR-100-C: one .npy file per corruption, the severities one after the other, and labels.npy."""
    if not (path / "labels.npy").is_file():
        raise missing_error(request, ["labels.npy"], path)
    labels, shifted = _check_labels(path / "labels.npy", _map_npy(path / "labels.npy")), {}
    for file in sorted(path.glob("*.npy")):
        if file.stem == "labels":
            continue
        x = _map_npy(file)
        if x.ndim and len(x) == SEVERITIES * len(labels):  # labels of one severity
            labels = np.tile(labels, SEVERITIES)
        with reading(file):
            if x.ndim != 4 or 0 in x.shape or x.dtype != np.uint8 or len(x) != len(labels) or len(x) % SEVERITIES:
                wanted = f"images for {len(labels)} labels of {SEVERITIES} severities"
                raise ValueError(f"it is {x.shape} of {x.dtype}: {wanted}")
        rows = torch.arange(len(x)).chunk(SEVERITIES)
        shifted[file.stem] = [labelled_split(ImageArrays(x), labels).take(part) for part in rows]
    if not shifted:
        raise missing_error(request, ["gaussian_noise.npy"], path)
    return ImageParts(classes=tuple(map(str, range(int(labels.max()) + 1))), shifted=shifted)


def _map_npy(path: Path) -> np.ndarray:
    """An array mapped from disk: only the rows that are asked for are read."""
    with reading(path):
        open_file(path).close()  # a pipe would be waited for
        return np.load(path, mmap_mode="r", allow_pickle=False)


# ---------------------------------------------------------------- arrays by name


def load_npz(request: Request) -> SourceParts:
    """An .npz archive with x_train, y_train, x_test, y_test; only x_test is enough for outside data."""
    return read_npz_images(request, argument_path(request))


def load_npy(request: Request) -> SourceParts:
    """A folder with x_train.npy, y_train.npy and so on, or one file of images; they are mapped, not read at once."""
    path = argument_path(request)
    if path.is_file():
        return parts_from_arrays(request, {"x_test": _map_npy(path)})
    arrays = {name: _map_npy(path / f"{name}.npy") for name in ARRAYS if (path / f"{name}.npy").is_file()}
    if not arrays:
        raise missing_error(request, ["x_train.npy", "x_test.npy"], path)
    return parts_from_arrays(request, arrays)


def read_npz_images(request: Request, path: Path, classes: tuple[str, ...] = ()) -> SourceParts:
    """What an .npz archive holds under the names in ARRAYS."""
    with reading(path):
        arrays, keys = unpacking.read_npz(path, ARRAYS, request.unpack_limit)
    if not any(name.startswith("x_") for name in arrays):
        raise ValueError(
            f"{path}: the archive must have {', '.join(ARRAYS)}, or some of them, but has {', '.join(keys[:20])}."
        )
    return parts_from_arrays(request, arrays, classes)


ARRAYS = ("x_train", "y_train", "x_validation", "y_validation", "x_test", "y_test")


def parts_from_arrays(request: Request, arrays: Mapping[str, np.ndarray], classes: tuple[str, ...] = ()) -> SourceParts:
    """The parts in arrays by name; rows of numbers become a table with the columns x0, x1, ..."""
    parts = [part for part in ("train", "validation", "test") if f"x_{part}" in arrays]
    for part in parts:
        _check_arrays(request, part, arrays[f"x_{part}"], arrays.get(f"y_{part}"))
    if arrays[f"x_{parts[0]}"].ndim == 2:
        return _table_parts(request, parts, arrays)
    targets = {part: arrays[f"y_{part}"].reshape(-1) for part in parts if f"y_{part}" in arrays}
    values = _is_regression(request, targets)
    if not values:
        targets, classes = _number_labels(request, targets, classes)
    splits, notes = dict[str, Split](), list[str]()
    for part in parts:
        x = arrays[f"x_{part}"]
        factor = _factor(request, x)
        if factor is not None and factor != 1.0:
            notes.append(
                f"{request.spec}: x_{part} holds floats up to {x.max():g}; they were divided by {1 / factor:g}."
            )
        y = torch.as_tensor(np.asarray(targets.get(part, np.full(len(x), NO_CLASS))))
        splits[part] = Split(ImageArrays(x, factor=factor), y.to(torch.float32 if values else torch.int64))
    train, validation, test = map(splits.get, ("train", "validation", "test"))
    return ImageParts(train, validation, test, classes=() if values else classes, notes=notes)


def _check_arrays(request: Request, part: str, x: np.ndarray, y: np.ndarray | None) -> None:
    if x.ndim not in (2, 3, 4) or 0 in x.shape or x.dtype.kind not in "buif" or x.dtype.itemsize > 8:
        raise ValueError(
            f"{request.spec}: x_{part} must be rows of numbers or images, of at most 8 bytes each, but is {x.shape} of "
            f"{x.dtype}."
        )
    if y is None:
        return
    several = x.ndim == y.ndim == 2 and len(x) == len(y) and y.shape[1] > 1
    if y.dtype.kind not in "buifUS" or y.size != len(x) and not several:
        raise ValueError(
            f"{request.spec}: needs one target per row, a number or text (rows of numbers may have several), but "
            f"x_{part} is {x.shape} and y_{part} {y.shape} of {y.dtype}."
        )
    if several and y.dtype.kind in "buif" and np.isin(y, (0, 1)).all() and (y.sum(1) == 1).all():
        raise ValueError(
            f"{request.spec}: y_{part} is one-hot, which would be {y.shape[1]} labels that do not exclude each other. "
            "Give the numbers of the classes, y.argmax(1)."
        )


def _factor(request: Request, x: np.ndarray) -> float | None:
    """What brings floats into [0, 1]; None for bytes."""
    if x.dtype == np.uint8:
        return None
    sample = np.asarray(x[:: max(1, len(x) // 1000)])
    low, high = float(sample.min()), float(sample.max())
    if not 0 <= low <= high <= 255:  # NaN is neither
        raise ValueError(
            f"{request.spec}: pixels must be in [0, 1] or [0, 255], but range from {low:g} to {high:g}. Undo the "
            "normalisation: Pluribus normalises by the mean of the training part."
        )
    return 1.0 if high <= 1 and x.dtype.kind in "fb" else 1 / 255


def _is_regression(request: Request, targets: Mapping[str, np.ndarray]) -> bool:
    found = request.task == "regression"
    if found and any(y.dtype.kind in "US" for y in targets.values()):
        raise ValueError(f"{request.spec}: regression targets must be numbers, but they are text.")
    return found or not request.task and any(y.dtype.kind == "f" and (y != y.round()).any() for y in targets.values())


def _number_labels(
    request: Request, targets: Mapping[str, np.ndarray], classes: tuple[str, ...]
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Labels as numbers into the classes: those given, or all labels that occur, sorted."""
    for part, y in targets.items():
        if y.dtype.kind in "fu" and not (np.isfinite(y) & (abs(y) < LARGEST)).all():
            raise ValueError(f"{request.spec}: y_{part} must be finite and below {LARGEST:.0g}, but has others.")
    whole = {part: y.astype(np.int64) if y.dtype.kind in "fub" else y for part, y in targets.items()}
    if not whole:
        return {}, classes
    labels = np.unique(np.concatenate(list(whole.values())))
    if classes and labels.dtype.kind == "i" and 0 <= labels[0] and labels[-1] < len(classes):
        return whole, classes
    return {part: np.searchsorted(labels, y) for part, y in whole.items()}, tuple(map(str, labels.tolist()))


def _table_parts(request: Request, parts: list[str], arrays: Mapping[str, np.ndarray]) -> TableParts:
    pandas = require("pandas", "reading tables", "data")
    frames, targets = {}, list[str]()
    for part in parts:
        x = arrays[f"x_{part}"]
        y = arrays.get(f"y_{part}", np.empty((len(x), 0))).reshape(len(x), -1)
        check_columns(f"{request.spec}, {part}", x.shape[1] + y.shape[1])
        targets = ["y"] if y.shape[1] == 1 else [f"y{i}" for i in range(y.shape[1])] or targets
        inputs = pandas.DataFrame(np.asarray(x), columns=[f"x{i}" for i in range(x.shape[1])])
        frames[part] = pandas.concat([inputs, pandas.DataFrame(y, columns=targets[: y.shape[1]])], axis=1)
    first = frames.pop(parts[0])
    return TableParts(first, **frames, target=targets or None)
