"""Data by name: built in, from a folder in the published formats, or your own images and tables. `DATA` lists it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from .._common.names import say_unknown
from .._common.optional import require
from . import builtin, masks, tables
from . import image_archives as archives
from . import image_folders as folders
from . import imagenet_variants as others
from .dataset import NO_CLASS, Data, ImageArrays, Split, mix, unlabelled_split, without_targets
from .encoding import check_encoding
from .preparation import (
    TEST_SHARE,
    build_image_data,
    build_table_data,
    encode_answers,
    encode_labelled_rows,
    encode_rows,
    renumber,
    take_known_classes,
    with_shape,
)
from .source import (
    NUMBERS,
    Broken,
    ImageParts,
    Request,
    Source,
    SourceParts,
    TableParts,
    Task,
    data_folder,
    first_existing,
    missing_error,
)
from .texts import LONG
from .unpacking import parse_bytes

__all__ = ["DATA", "Data", "Source", "Split", "data_folder", "encoded", "load"]


def load(
    spec: str = "digits",
    *,
    folder: str | Path | None = None,
    target: str | Sequence[str] | None = None,
    task: Literal["classification", "regression", "multilabel", "segmentation"] | None = None,
    outside: Sequence[str] = (),
    shifted: Sequence[str] = (),
    variants: Sequence[str] = (),
    seed: int = 0,
    validation: float = 0.1,
    split: int = 0,
    image_size: int | None = None,
    broken: Broken = "stop",
    unpack_limit: int | str | None = None,
    train_rows: int | None = None,
    tokenizer: str | Path | None = None,
    long_texts: str = "cut",
    missing: Sequence[str] = (),
    numbers: str = "standard",
) -> Data:
    """A data set, divided into training, validation and test part; the same for the same seed.

    A part that the data has is kept. What it does not have is taken from its training rows, at random, from each
    class alike: the share `validation` of them, and 0.2 of them for the test part. The rows of each part come in an
    order of chance, so that the first hundred are of all classes; shifted sets keep theirs.

    Shapes:
        rows of a part: images (rows, channels, height, width) from 0 to 1, or tables (rows, columns); targets (rows)

    Args:
        spec: a name in `DATA`, or a kind and a path: "folder:photos", "table:houses.csv", "npz:x.npz", "uci:concrete"
        folder: where named sets are looked for; default: the environment variable PLURIBUS_DATA, else ./data
        target: the column of a table that is to be predicted; or several, in a list or with commas: numbers, or labels
            of two values each ("multilabel")
        task: default: decided by the values of the target
        outside: specs of data of other classes, brought to the shape of this data
        shifted: specs of corrupted test sets, such as "cifar10_c"
        variants: specs of other test sets of the same classes or some of them, such as "imagenet_r"
        split: which of the standard splits of a UCI set
        image_size: height and width of images; default: their own if it is the same for all, at most 256, else 224
        broken: "stop" at images that cannot be read, or "skip" them with a note; the message names all of them
        unpack_limit: bytes that a packed file may unpack to, or "8G"; default: 20 times its size, at least 537 MB (of
            tables 17 MB, of one image 268 MB), at most half of the memory
        train_rows: train on so many rows only, from each class alike; the other parts stay as they are
        tokenizer: the folder of the model whose tokenizer reads the texts of "text:reviews.csv"
        long_texts: "cut" texts that are longer than that model takes, with a note, or "refuse" them
        missing: words that stand for a missing value in a table, besides empty fields
        numbers: how numbers of a table are scaled: "standard"; "quantile", to a normal distribution; or "piecewise", a
            piecewise-linear encoding in 48 bins (extra `tables`); each by the training rows alone

    >>> load("moons")
    Data('moons': table of shape (2,), 2 classes; 700 training, 100 validation and 200 test rows)
    """
    for name, value, known in (
        ("task", task or "regression", get_args(Task)), ("broken", broken, get_args(Broken)),
        ("long_texts", long_texts, LONG), ("numbers", numbers, NUMBERS),
    ):  # fmt: skip
        if value not in known:
            raise ValueError(f"load, {name}: {say_unknown(str(value), known)}")
    if unpack_limit is not None:
        parse_bytes(unpack_limit)
    if not 0 <= validation < 1 - TEST_SHARE:
        raise ValueError(f"load: validation must be a share in [0, {1 - TEST_SHARE}), but is {validation}.")
    for name, least, count in (("image_size", 1, image_size), ("train_rows", 2, train_rows)):
        if count is not None and count < least:
            raise ValueError(f"load: {name} must be at least {least}, but is {count}.")
    outside, shifted, variants, missing = (
        (given,) if isinstance(given, str) else tuple(given) for given in (outside, shifted, variants, missing)
    )
    request = Request(
        "", "", data_folder(folder), target, task, seed, split, image_size, broken,
        unpack_limit=unpack_limit, train_rows=train_rows, tokenizer=None if tokenizer is None else str(tokenizer),
        long_texts=long_texts, missing=missing, numbers=numbers,
    )  # fmt: skip
    request, found = _read_spec(request, spec, "data")
    if isinstance(found, TableParts):
        data = build_table_data(request, found, validation)
    else:
        data = build_image_data(request, found, validation)
    data = replace(data, name=spec)
    if data.task == "segmentation" and (shifted or variants):
        raise ValueError(f"load: shifted sets and variants have one label for each image, but {spec} has masks.")
    shape = tuple(data.encoding["shape"]) if data.encoding and data.kind == "images" else None
    more = replace(request, shape=shape, whole=data.task == "segmentation")
    return _mix_rows(_with_variants(_add_shifted(_with_ood(data, more, outside), more, shifted), more, variants), seed)


def locate(spec: str, folder: str | Path | None = None) -> list[Path]:
    """The files and folders that a spec reads; none for what is built in, or not there."""
    place = data_folder(folder)
    name, argument = _parse_spec(spec, place)
    if argument and DATA[name].argument == "path":
        path = Path(argument).expanduser()
        return [candidate for candidate in (path, place / path) if candidate.exists()][:1]
    found = DATA[name].found(folder)
    if found is None:
        return []
    return [found / argument] if argument and (found / argument).exists() else [found, *archives.beside(found)]


def encoded(
    encoding: dict[str, Any], source: Any, *, broken: Broken = "stop", unpack_limit: int | str | None = None
) -> Split:
    """The rows of new files in the form that a network was trained on; targets where the files have them.

    Args:
        encoding: `Data.encoding`, also read back from JSON
        source: for a table a CSV or Parquet file or a pandas table; for images an image, a list of them, a folder,
            an .npz or .npy file, or an array of (rows, height, width[, channels])

    >>> data = load("moons")
    >>> encoded(data.encoding, {"x": [0.0, 2.0], "y": [1.0, 0.5]})[:]
    (tensor([[0.0000, 1.0000],
            [2.0000, 0.5000]]), tensor([-1, -1]))
    """
    check_encoding(encoding)
    if encoding["kind"] == "table":
        if isinstance(source, str | Path):
            try:
                words = encoding.get("missing", ())
                return tables.encode_table(encoding, tables.read_table(Path(source), unpack_limit, words))
            except ValueError as error:
                raise error if str(error).startswith(str(source)) else ValueError(f"{source}: {error}") from None
        if isinstance(source, list) and source and isinstance(source[0], str | Path):
            raise ValueError(f"{source[0]}: this predictor takes tables (CSV or Parquet), not images or texts.")
        return tables.encode_table(encoding, require("pandas", "reading tables", "data").DataFrame(source))
    channels, height, width = encoding["shape"]
    whole = encoding["task"] == "segmentation"
    if isinstance(source, np.ndarray):
        return unlabelled_split(ImageArrays(source, (channels, height, width)))
    shape = channels, height, width
    request = Request("images", "", Path(), broken=broken, shape=shape, unpack_limit=unpack_limit, whole=whole)
    parts = _read_images(request, source)
    for note in parts.notes:
        warnings.warn(note, stacklevel=2)
    number = {name: i for i, name in enumerate(encoding["classes"])}
    rows = with_shape(parts.rows, (channels, height, width))
    return renumber(rows, [number.get(name, NO_CLASS) for name in parts.classes])


def _read_images(request: Request, source: Any) -> ImageParts:
    paths = [source] if isinstance(source, str | Path) else list(source)
    absent = [str(path) for path in paths if not Path(path).exists()]
    if absent or not paths:
        raise FileNotFoundError(f"encoded: not found: {', '.join(absent) or 'images'}.")
    first = Path(paths[0])
    if first.is_dir():
        return folders.read_variant(request, first)
    if first.suffix in (".npz", ".npy"):
        load_arrays = archives.load_npz if first.suffix == ".npz" else archives.load_npy
        found = load_arrays(replace(request, argument=str(first.absolute())))
        if isinstance(found, TableParts):
            raise ValueError(f"encoded: needs images, but {first} holds rows of numbers.")
        return found
    assert request.shape is not None
    named, notes = list(map(str, paths)), list[str]()
    resize = folders.stretch if request.whole else None
    inputs = folders.ImageFiles(named, request.shape, None, request.unpack_limit, resize=resize)
    return ImageParts(test=folders.take_readable(request, unlabelled_split(inputs), notes, always=True), notes=notes)


# ---------------------------------------------------------------- from a spec to rows


def _parse_spec(spec: str, folder: Path) -> tuple[str, str]:
    """The name in DATA and what stands after the colon; another name may be that of an archive in the folder."""
    name, _, argument = spec.partition(":")
    archive = folder / f"{name}.npz"
    if name not in DATA and not argument and archive.is_file():
        return "npz", str(archive)
    if name not in DATA:
        file = "/" in name or "." in name
        hint = " A file or folder needs its kind, as in table:houses.csv or folder:photos." if file else ""
        raise ValueError(f"load: {say_unknown(name, DATA)}{hint}")
    return name, argument


def _read_spec(request: Request, spec: str, role: str) -> tuple[Request, SourceParts]:
    """What a spec names, read for a role: "data", or the "outside", "shifted" or "variant" data of some."""
    name, argument = _parse_spec(spec, request.folder)
    source = DATA[name]
    if argument and not source.argument:
        raise ValueError(f'load: "{name}" takes nothing after a colon, but got "{argument}".')
    if source.role != role and (role == "data" or source.role == "shifted"):
        where = "variants" if source.role == "variant" else source.role
        raise ValueError(f'load: "{name}" cannot be used as {role}. Name it with {where}=["{name}"] with other data.')
    request = replace(request, name=name, argument=argument, page=source.page)
    return request, source.function(request)


# ---------------------------------------------------------------- outside, shifted and variant data


def _with_ood(data: Data, request: Request, specs: Sequence[str]) -> Data:
    found = dict(data.outside)
    for spec in dict.fromkeys(specs):
        if spec in data.outside:  # the data brings it along: it counts once
            continue
        rows = encode_rows(data, *_read_spec(request, spec, "outside"))
        found[_free_name(_short_name(spec), found)] = without_targets(rows)
    return replace(data, outside=found)


def _add_shifted(data: Data, request: Request, specs: Sequence[str]) -> Data:
    found, notes = dict(data.shifted), list(data.notes)
    for spec in specs:
        own, parts = _read_spec(request, spec, "shifted")
        if isinstance(parts, ImageParts) and parts.shifted and own.shape:
            notes += parts.notes
            for name, severities in parts.shifted.items():
                mapped = [take_known_classes(data, own, part, parts.classes, notes) for part in severities]
                found[_free_name(name, found)] = [with_shape(part, own.shape) for part in mapped]
        else:
            found[_free_name(_short_name(spec), found)] = [encode_labelled_rows(data, own, parts, notes)]
    return replace(data, shifted=found, notes=list(dict.fromkeys(notes)))


def _with_variants(data: Data, request: Request, specs: Sequence[str]) -> Data:
    found, subsets, notes = dict(data.variants), dict(data.subsets), list(data.notes)
    keys = dict(data.answer_keys)
    for spec in specs:
        name = _free_name(_short_name(spec), found)
        own, parts = _read_spec(request, spec, "variant")
        if isinstance(parts, ImageParts) and parts.answers is not None:
            found[name], keys[name] = encode_answers(data, own, parts, notes)
            continue
        found[name] = encode_labelled_rows(data, own, parts, notes)
        subsets[name] = found[name].y.unique().tolist() if data.classes else []
    return replace(data, variants=found, subsets=subsets, answer_keys=keys, notes=notes)


def _mix_rows(data: Data, seed: int) -> Data:
    """Most sources have their rows class by class; here they are mixed, so that any slice is a fair sample."""
    videos = {name for name, key in data.answer_keys.items() if key.sets is not None}  # whose sets stay together
    outside = {name: mix(part, seed) for name, part in data.outside.items()}
    variants = {name: part if name in videos else mix(part, seed) for name, part in data.variants.items()}
    train, validation, test = (mix(part, seed) for part in (data.train, data.validation, data.test))
    return replace(data, train=train, validation=validation, test=test, outside=outside, variants=variants)


def _short_name(spec: str) -> str:
    name, _, argument = spec.partition(":")
    return Path(argument).name.partition(".")[0] or name


def _free_name(name: str, taken: dict[str, Any]) -> str:
    """The name, followed by a number if it is taken."""
    return next(free for free in (name, *(f"{name} {i}" for i in range(2, 1000))) if free not in taken)


# ---------------------------------------------------------------- the table


def file_source(
    description: str, page: str, reader: Callable[..., SourceParts], *files: str, role: Any = "data",
    classes: tuple[str, ...] = (),
) -> Source:  # fmt: skip
    """A source that reads whichever of these files or folders exists; an .npz archive of any source alike.

    Args:
        classes: of an archive that holds their numbers
    """

    def read(request: Request) -> SourceParts:
        path = first_existing(request.folder, files)
        if path is None:
            raise missing_error(request, files)
        if path.suffix == ".npz":
            return archives.read_npz_images(request, path, classes)
        return reader(request, path)

    return Source(read, description, files=files, page=page, role=role)


def _mnist_like(name: str, folder: str, page: str, description: str, classes: tuple[str, ...]) -> Source:
    reader = partial(archives.read_idx_folder, classes=classes)
    return file_source(description, page, reader, f"{folder}/raw", folder, name, f"{name}.npz", classes=classes)


_CIFAR = "The CIFAR-10 and CIFAR-100 data sets (https://www.cs.toronto.edu/~kriz/cifar.html)"
_IMAGENET_A = "ImageNet-A and ImageNet-O (https://github.com/hendrycks/natural-adv-examples)"
_VIDEOS = "ImageNet-Vid-Robust and YTBB-Robust (https://modestyachts.github.io/robust-vid)"

DATA: dict[str, Source] = {
    "digits": Source(builtin.digits, "5,000 digits of MNIST, 28x28; outside: letters"),
    "sklearn_digits": Source(builtin.sklearn_digits, "1,797 digits, 8x8"),
    "letters": Source(builtin.letters, "1,092 letters in matplotlib's fonts, 28x28", role="outside"),
    "noise": Source(builtin.noise, "1,000 images of noise, of any shape", role="outside"),
    "moons": Source(builtin.moons, "two half circles in the plane; outside: around", "table"),
    "sinusoids": Source(builtin.sinusoids, "two noisy sinusoids (Masksembles, Figure 4); outside: around", "table"),
    "blundell": Source(builtin.blundell, "a noisy curve, 64 training rows (MIMO, Figure 2); outside: beyond", "table"),
    "iris": Source(builtin.sklearn_table("iris"), "150 flowers, 4 numbers, 3 classes", "table"),
    "wine": Source(builtin.sklearn_table("wine"), "178 wines, 13 numbers, 3 classes", "table"),
    "breast_cancer": Source(builtin.sklearn_table("breast_cancer"), "569 tumours, 30 numbers, 2 classes", "table"),
    "diabetes": Source(
        builtin.sklearn_table("diabetes", "regression"), "442 patients, 10 numbers, regression", "table"),
    "mnist": _mnist_like(
        "mnist", "MNIST", "The MNIST database (http://yann.lecun.com/exdb/mnist/)",
        "70,000 handwritten digits, 28x28", builtin.DIGITS),
    "fashion_mnist": _mnist_like(
        "fashion_mnist", "FashionMNIST", "Fashion-MNIST (https://github.com/zalandoresearch/fashion-mnist)",
        "70,000 garments, 28x28", archives.FASHION),
    "kmnist": _mnist_like(
        "kmnist", "KMNIST", "Kuzushiji-MNIST (https://github.com/rois-codh/kmnist)",
        "70,000 Japanese letters, 28x28", archives.KUZUSHIJI),
    "notmnist": file_source(
        "letters A to J in many fonts, 28x28", "notMNIST (http://yaroslavvb.blogspot.com/2011/09/notmnist-dataset.html)",
        folders.read_image_folder, "notMNIST_small", "notmnist.npz"),
    "cifar10": file_source(
        "60,000 images in 10 classes, 32x32", _CIFAR, archives.read_cifar, "cifar-10-batches-py",
        "cifar-10-batches-bin", "cifar-10-python.tar.gz", "cifar-10-binary.tar.gz", "cifar10.npz",
        classes=archives.CIFAR_10),
    "cifar100": file_source(
        "60,000 images in 100 classes, 32x32", _CIFAR, archives.read_cifar, "cifar-100-python", "cifar-100-binary",
        "cifar-100-python.tar.gz", "cifar-100-binary.tar.gz", "cifar100.npz"),
    "cifar10_c": file_source(
        "CIFAR-10's test part, corrupted 19 ways", "CIFAR-10-C (https://zenodo.org/records/2535967)",
        archives.read_cifar_c, "CIFAR-10-C", role="shifted"),
    "cifar100_c": file_source(
        "CIFAR-100's test part, corrupted 19 ways", "CIFAR-100-C (https://zenodo.org/records/3555552)",
        archives.read_cifar_c, "CIFAR-100-C", role="shifted"),
    "svhn": file_source(
        "99,289 house numbers, 32x32",
        "The Street View House Numbers (http://ufldl.stanford.edu/housenumbers/), format 2", archives.read_svhn,
        "svhn/test_32x32.mat", "SVHN/test_32x32.mat", "test_32x32.mat", "svhn.npz", classes=builtin.DIGITS),
    "tiny_imagenet": file_source(
        "120,000 images in 200 classes, 64x64", "Tiny ImageNet (http://cs231n.stanford.edu/tiny-imagenet-200.zip)",
        folders.read_tiny_imagenet, "tiny-imagenet-200", "tiny_imagenet.npz", "tiny_imagenet32.npz"),
    "imagenet": file_source(
        "1.3 million photographs in 1,000 classes",
        "ImageNet (https://www.image-net.org), ILSVRC 2012, the validation images moved into class folders",
        folders.read_image_folder, "imagenet", "ILSVRC/Data/CLS-LOC", "ILSVRC2012"),
    "imagenet_c": file_source(
        "ImageNet's validation part, corrupted", "ImageNet-C (https://zenodo.org/records/2235448)",
        folders.read_imagenet_c, "ImageNet-C", role="shifted"),
    "imagenet_r": file_source(
        "art and renditions of 200 classes of ImageNet", "ImageNet-R (https://github.com/hendrycks/imagenet-r)",
        folders.read_variant, "imagenet-r", role="variant"),
    "imagenet_a": file_source(
        "difficult photographs of 200 classes of ImageNet", _IMAGENET_A, folders.read_variant, "imagenet-a",
        role="variant"),
    "imagenet_v2": file_source(
        "10,000 new photographs of ImageNet's classes",
        "ImageNetV2 (https://github.com/modestyachts/ImageNetV2), matched frequency", others.read_imagenet_v2,
        "imagenetv2-matched-frequency-format-val", "ImageNetV2-matched-frequency", role="variant"),
    "objectnet": file_source(
        "objects in unusual places and poses, 113 classes of ImageNet", "ObjectNet (https://objectnet.dev)",
        others.read_objectnet, "objectnet-1.0", "objectnet", role="variant"),
    "imagenet_vid_robust": file_source(
        "1,109 sets of similar video frames, 30 classes", _VIDEOS, others.read_vid_robust, "imagenet-vid-robust",
        "imagenet_vid_ytbb_robust/imagenet-vid-robust", role="variant"),
    "ytbb_robust": file_source(
        "2,530 sets of similar frames from Youtube-BB, 24 classes", _VIDEOS, others.read_ytbb_robust, "ytbb-robust",
        "imagenet_vid_ytbb_robust/ytbb-robust", role="variant"),
    "imagenet_o": file_source(
        "photographs of classes not in ImageNet", _IMAGENET_A, folders.read_variant, "imagenet-o", role="outside"),
    "textures": file_source(
        "5,640 textures in 47 classes",
        "The Describable Textures Dataset (https://www.robots.ox.ac.uk/~vgg/data/dtd/)",
        folders.read_image_folder, "dtd/images", "textures.npz"),
    "uci": Source(
        tables.load_uci, "nine regression tables with their standard splits", "table", ("uci",), tables.UCI_PAGE,
        "name"),
    "folder": Source(
        folders.read_image_folder, "one folder of images per class, optionally in train, val and test",
        argument="path"),
    "masks": Source(masks.load_masks, "images/ and masks/ side by side, for segmentation", argument="path"),
    "idx": Source(archives.load_idx, "a folder of idx files, like MNIST's", argument="path"),
    "npz": Source(archives.load_npz, "an archive with x_train, y_train, x_test, y_test", "any", argument="path"),
    "npy": Source(archives.load_npy, "a folder with x_train.npy and so on, mapped from disk", "any", argument="path"),
    "table": Source(
        tables.load_table, "a CSV or Parquet file, or train and test in a folder", "table", argument="path"),
    "text": Source(tables.load_text, "a table with a column of texts, for hf:PATH", "table", argument="path"),
}  # fmt: skip
