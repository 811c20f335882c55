"""Published file formats: idx, CIFAR's pickles and binaries, SVHN's .mat, CIFAR-10-C's .npy, and .npz archives.

Nothing that a file could contain is executed.
"""

from __future__ import annotations

import gzip
import io
import pickle
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .outside import outside
from .sources import Frames, Parts, Request, labelled, missing, path_of
from .splits import NO_CLASS, Arrays, Split

CIFAR_10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FASHION = (*("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),)
KUZUSHIJI = ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo")
SEVERITIES = 5


# ---------------------------------------------------------------- idx files: MNIST and those in its format


def idx(request: Request) -> Parts | Frames:
    """A folder of four idx files, named as MNIST's."""
    return idx_folder(request, path_of(request), "")


def idx_folder(request: Request, folder: Path, page: str, classes: tuple[str, ...] = ()) -> Parts | Frames:
    """Training and test part from the four files of MNIST, packed or not."""
    train, test = (
        [read_idx(_idx_file(request, folder, f"{part}-{what}", page)) for what in ("images-idx3", "labels-idx1")]
        for part in ("train", "t10k")
    )
    return arrays_of(request, {"x_train": train[0], "y_train": train[1], "x_test": test[0], "y_test": test[1]}, classes)


def _idx_file(request: Request, folder: Path, stem: str, page: str) -> Path:
    names = [f"{name}-ubyte{end}" for name in (stem, stem.replace("-idx", ".idx")) for end in ("", ".gz")]
    found = next((folder / name for name in names if (folder / name).is_file()), None)
    if found is None:
        raise missing(request, names[:2], page, folder)
    return found


def read_idx(path: Path) -> np.ndarray:
    """The array in an idx file, also one packed by gzip."""
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise damaged(path, error) from None
    types = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in types or len(data) < 4 + 4 * data[3]:
        raise damaged(path, "it does not begin as an idx file does")
    shape = np.frombuffer(data, ">i4", data[3], 4)
    values = np.frombuffer(data, types[data[2]], offset=4 + 4 * data[3])
    if values.size != shape.prod(dtype=np.int64):
        raise damaged(path, f"it promises {'x'.join(map(str, shape))} values and holds {values.size}")
    return values.astype(values.dtype.newbyteorder("=")).reshape(shape)


# ---------------------------------------------------------------- CIFAR


def cifar(request: Request, path: Path, page: str) -> Parts | Frames:
    """CIFAR-10 or CIFAR-100 from a folder or a tar file of pickles or binaries."""
    read = opener(path)
    hundred = "100" in path.name
    training = ["train"] if hundred else [f"data_batch_{i}" for i in range(1, 6)]
    test = "test" if hundred else "test_batch"
    names = ["meta", "batches.meta", *training, test, "fine_label_names.txt", "batches.meta.txt"]
    files = read([*names, *(f"{name}.bin" for name in names)])
    binary = f"{test}.bin" in files
    wanted = [f"{name}.bin" if binary else name for name in (*training, test)]
    absent = [name for name in wanted if name not in files]
    if absent:
        raise missing(request, absent[:1], page, path)
    batches = [
        _binary(files[name], path / name, hundred) if binary else _pickled(files[name], path / name) for name in wanted
    ]
    x, y = (np.concatenate([batch[i] for batch in batches[:-1]]) for i in (0, 1))
    classes = _cifar_classes(files, path, hundred)
    return arrays_of(request, {"x_train": x, "y_train": y, "x_test": batches[-1][0], "y_test": batches[-1][1]}, classes)


def opener(path: Path) -> Callable[[list[str]], dict[str, bytes]]:
    """A function that reads those of the named files that exist, from a folder or from a tar file."""

    def from_folder(names: list[str]) -> dict[str, bytes]:
        return {name: (path / name).read_bytes() for name in names if (path / name).is_file()}

    def from_tar(names: list[str]) -> dict[str, bytes]:
        found = {}
        try:
            with tarfile.open(path) as archive:
                for member in archive:
                    name = Path(member.name).name
                    if member.isfile() and name in names:
                        file = archive.extractfile(member)
                        assert file is not None
                        found[name] = file.read()
        except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
            raise damaged(path, error) from None
        return found

    return from_folder if path.is_dir() else from_tar


def _cifar_classes(files: Mapping[str, bytes], path: Path, hundred: bool) -> tuple[str, ...]:
    listed = files.get("fine_label_names.txt" if hundred else "batches.meta.txt")
    if listed is not None:
        return tuple(listed.decode().split())
    meta = files.get("meta" if hundred else "batches.meta")
    if meta is not None:
        names = unpickled(meta, path)["fine_label_names" if hundred else "label_names"]
        return tuple(name.decode() if isinstance(name, bytes) else name for name in names)
    return tuple(map(str, range(100))) if hundred else CIFAR_10


def _binary(data: bytes, path: Path, hundred: bool) -> tuple[np.ndarray, np.ndarray]:
    """Rows of one label (CIFAR-100: coarse and fine) and 3,072 pixels, channels first."""
    labels = 2 if hundred else 1
    if not data or len(data) % (labels + 3072):
        raise damaged(path, f"its {len(data)} bytes are not rows of {labels + 3072}")
    rows = np.frombuffer(data, np.uint8).reshape(-1, labels + 3072)
    return _channels_last(rows[:, labels:]), rows[:, labels - 1]


def _pickled(data: bytes, path: Path) -> tuple[np.ndarray, np.ndarray]:
    batch = unpickled(data, path)
    labels = batch.get("fine_labels", batch.get("labels"))
    pixels = batch.get("data")
    if labels is None or not isinstance(pixels, np.ndarray) or pixels.ndim != 2 or pixels.shape[1] != 3072:
        raise damaged(path, "it has no data of 3,072 columns with labels")
    return _channels_last(pixels.astype(np.uint8)), np.asarray(labels)


def _channels_last(rows: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def unpickled(data: bytes, path: Path) -> dict[str, Any]:
    """The dict in a pickle of plain values and numpy arrays; anything else that a pickle can ask for is refused."""
    try:
        found = _Unpickler(io.BytesIO(data), encoding="bytes").load()
        if isinstance(found, dict):
            found = {key: value.array() if isinstance(value, _Array) else value for key, value in found.items()}
    except _RefusedError as error:
        raise ValueError(
            f'{path}: this pickle asks for "{error}", which could run code, so that it is not read: only numbers, text '
            "and numpy arrays are. It is not the published file: get that again."
        ) from None
    except Exception as error:  # a damaged pickle can fail in any way
        raise damaged(path, error) from None
    if not isinstance(found, dict):
        raise damaged(path, f"it holds a {type(found).__name__} where a dict was expected")
    return {key.decode("latin-1") if isinstance(key, bytes) else str(key): value for key, value in found.items()}


class _RefusedError(Exception):
    """A pickle asked for something that is not on the list."""


class _Unpickler(pickle.Unpickler):
    """Reads what numpy arrays are made of into classes of our own, and nothing else: not even numpy is called."""

    def find_class(self, module: str, name: str) -> Any:
        """What stands for the function that a pickle names, if it is on the list."""
        found = _STAND_INS.get((module.replace("numpy._core", "numpy.core"), name))
        if found is None:
            raise _RefusedError(f"{module}.{name}")
        return found


class _Array:
    """What a pickle says about an array."""

    def __init__(self, *_: Any):
        self.state: tuple[Any, ...] = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state

    def array(self) -> np.ndarray:
        _, shape, number, columns_first, data = self.state
        values = np.frombuffer(data, number.type())
        return values.reshape(shape, order="F" if columns_first else "C")


class _Type:
    """What a pickle says about the type of an array's numbers."""

    def __init__(self, name: Any, *_: Any):
        self.name = name.decode() if isinstance(name, bytes) else str(name)
        self.order = "="

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = state[1].decode() if isinstance(state[1], bytes) else state[1]

    def type(self) -> np.dtype[Any]:
        if self.name.lstrip("<>|=")[:1] not in tuple("biuf"):
            raise _RefusedError(f"an array of {self.name}")
        return np.dtype(self.order.replace("|", "=") + self.name.lstrip("<>|="))


def _from_buffer(data: Any, number: _Type, shape: Any, order: str) -> _Array:
    made = _Array()
    made.state = (1, shape, number, order == "F", data)
    return made


def _encoded(text: str, encoding: str) -> bytes:
    if encoding not in ("latin1", "latin-1"):
        raise _RefusedError(f"the encoding {encoding}")
    return text.encode("latin-1")


def _reconstruct(*_: Any) -> _Array:
    return _Array()


_STAND_INS: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy.core.numeric", "_frombuffer"): _from_buffer,
    ("_codecs", "encode"): _encoded,
}


# ---------------------------------------------------------------- SVHN, CIFAR-10-C


def svhn(request: Request, path: Path, page: str) -> Parts | Frames:
    """SVHN's cropped digits from train_32x32.mat and test_32x32.mat; the label 10 is the digit 0."""
    io_module = outside("scipy.io", "reading .mat files", "data")
    arrays: dict[str, np.ndarray] = {}
    for part in ("train", "test"):
        file = path.parent / f"{part}_32x32.mat"
        if not file.exists():
            continue
        try:
            found = io_module.loadmat(file)
            arrays[f"x_{part}"] = found["X"].transpose(3, 0, 1, 2)
            arrays[f"y_{part}"] = found["y"].reshape(-1).astype(np.int64) % 10
        except (ValueError, TypeError, KeyError, NotImplementedError, OSError, zlib.error) as error:
            raise damaged(file, error) from None
    return arrays_of(request, arrays, tuple("0123456789"))


def corrupted(request: Request, path: Path, page: str) -> Parts:
    """CIFAR-10-C or CIFAR-100-C: one .npy file per corruption, the severities one after the other, and labels.npy."""
    if not (path / "labels.npy").is_file():
        raise missing(request, ["labels.npy"], page, path)
    labels = _npy(path / "labels.npy").astype(np.int64)
    shifted = {}
    for file in sorted(path.glob("*.npy")):
        if file.stem == "labels":
            continue
        x = _npy(file)
        if len(x) == SEVERITIES * len(labels):  # labels of one severity
            labels = np.tile(labels, SEVERITIES)
        if len(x) != len(labels) or len(x) % SEVERITIES:
            raise damaged(file, f"it has {len(x)} pictures for {len(labels)} labels of {SEVERITIES} severities")
        rows = torch.arange(len(x)).chunk(SEVERITIES)
        shifted[file.stem] = [labelled(Arrays(x), labels).take(part) for part in rows]
    if not shifted:
        raise missing(request, ["gaussian_noise.npy"], page, path)
    return Parts(classes=tuple(map(str, range(int(labels.max()) + 1))), shifted=shifted)


def _npy(path: Path) -> np.ndarray:
    """An array mapped from disk: only the rows that are asked for are read."""
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise damaged(path, error) from None


# ---------------------------------------------------------------- arrays by name


def npz(request: Request) -> Parts | Frames:
    """An .npz archive with x_train, y_train, x_test, y_test; only x_test is enough for outside data."""
    return npz_file(request, path_of(request))


def npy(request: Request) -> Parts | Frames:
    """A folder with x_train.npy, y_train.npy and so on, or one file of pictures; they are mapped, not read at once."""
    path = path_of(request)
    if path.is_file():
        return arrays_of(request, {"x_test": _npy(path)})
    arrays = {name: _npy(path / f"{name}.npy") for name in ARRAYS if (path / f"{name}.npy").is_file()}
    if not arrays:
        raise missing(request, ["x_train.npy", "x_test.npy"], "", path)
    return arrays_of(request, arrays)


def npz_file(request: Request, path: Path, page: str = "", classes: tuple[str, ...] = ()) -> Parts | Frames:
    """What an .npz archive holds under the names in ARRAYS."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            keys = list(archive.files)
            arrays = {name: archive[name] for name in ARRAYS if name in keys}
    except (ValueError, OSError, EOFError, AttributeError, zlib.error, zipfile.BadZipFile) as error:
        raise damaged(path, error) from None
    if not any(name.startswith("x_") for name in arrays):
        raise ValueError(
            f"{path}: the archive must have {', '.join(ARRAYS)}, or some of them, but has {', '.join(keys)}."
        )
    return arrays_of(request, arrays, classes)


ARRAYS = ("x_train", "y_train", "x_validation", "y_validation", "x_test", "y_test")


def arrays_of(request: Request, arrays: Mapping[str, np.ndarray], classes: tuple[str, ...] = ()) -> Parts | Frames:
    """Parts from arrays by name; rows of numbers become a table with the columns x0, x1, ..."""
    parts = [part for part in ("train", "validation", "test") if f"x_{part}" in arrays]
    for part in parts:
        _check_lengths(request, part, arrays)
    if arrays[f"x_{parts[0]}"].ndim == 2:
        return _frames(request, {part: arrays[f"x_{part}"] for part in parts}, arrays)
    targets = {part: arrays[f"y_{part}"].reshape(-1) for part in parts if f"y_{part}" in arrays}
    values = _is_regression(request, targets)
    if not values:
        targets, classes = _numbered(targets, classes)
    splits, notes = dict[str, Split](), list[str]()
    for part in parts:
        x = arrays[f"x_{part}"]
        factor = _factor(request, x)
        if factor is not None and factor != 1.0:
            notes.append(
                f"{request.spec}: x_{part} holds floats up to {x.max():g}; they were divided by {1 / factor:g}."
            )
        y = targets.get(part, np.full(len(x), NO_CLASS))
        splits[part] = Split(
            Arrays(x, factor=factor), torch.as_tensor(np.asarray(y)).to(torch.float32 if values else torch.int64)
        )
    train, validation, test = map(splits.get, ("train", "validation", "test"))
    return Parts(train, validation, test, classes=() if values else classes, notes=notes)


def _check_lengths(request: Request, part: str, arrays: Mapping[str, np.ndarray]) -> None:
    x, y = arrays[f"x_{part}"], arrays.get(f"y_{part}")
    if x.ndim not in (2, 3, 4) or len(x) == 0:
        raise ValueError(f"{request.spec}: x_{part} must be rows of numbers or pictures, but is {x.shape}.")
    if y is not None and y.size != len(x):
        raise ValueError(
            f"{request.spec}: there must be one target for each row, but x_{part} is {x.shape} and y_{part} {y.shape}."
        )


def _factor(request: Request, x: np.ndarray) -> float | None:
    """What brings floats into [0, 1]; None for bytes."""
    if x.dtype == np.uint8:
        return None
    sample = np.asarray(x[:: max(1, len(x) // 1000)])
    low, high = float(sample.min()), float(sample.max())
    if not (np.isfinite(low) and np.isfinite(high) and low >= 0 and high <= 255):
        raise ValueError(
            f"{request.spec}: pixels must be in [0, 1] or [0, 255], but reach from {low:g} to {high:g}. Undo the "
            "normalisation: it is done here, with the training part's mean."
        )
    return 1.0 if high <= 1 and x.dtype.kind in "fb" else 1 / 255


def _is_regression(request: Request, targets: Mapping[str, np.ndarray]) -> bool:
    if request.task is not None:
        return request.task == "regression"
    return any(y.dtype.kind == "f" and not (y == y.round()).all() for y in targets.values())


def _numbered(
    targets: Mapping[str, np.ndarray], classes: tuple[str, ...]
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Labels as numbers into the classes: those given, or all labels that occur, sorted."""
    whole = {part: y.astype(np.int64) if y.dtype.kind in "fub" else y for part, y in targets.items()}
    if not whole:
        return {}, classes
    labels = np.unique(np.concatenate(list(whole.values())))
    if classes and labels.dtype.kind == "i" and 0 <= labels[0] and labels[-1] < len(classes):
        return whole, classes
    return {part: np.searchsorted(labels, y) for part, y in whole.items()}, tuple(map(str, labels.tolist()))


def _frames(request: Request, inputs: Mapping[str, np.ndarray], arrays: Mapping[str, np.ndarray]) -> Frames:
    pandas = outside("pandas", "reading tables", "data")
    frames = {}
    for part, x in inputs.items():
        frame = pandas.DataFrame(np.asarray(x), columns=[f"x{i}" for i in range(x.shape[1])])
        if f"y_{part}" in arrays:
            frame["y"] = arrays[f"y_{part}"].reshape(-1)
        frames[part] = frame
    target = "y" if any("y" in frame for frame in frames.values()) else None
    first = frames.pop("train") if "train" in frames else frames.pop(next(iter(frames)))
    return Frames(first, **frames, target=target, task=request.task)


def damaged(path: Path, why: object) -> ValueError:
    """What to raise for a file that cannot be read."""
    return ValueError(
        f"{path}: the file cannot be read ({why}). It is damaged or not what its name says: get it again."
    )
