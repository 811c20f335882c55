"""What is asked of a source of data, what it gives back, and what it says when a file is missing."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from .._common.untrusted import is_disk_error
from .dataset import Shape, Split
from .unpacking import Limit

Task = Literal["classification", "regression", "multilabel", "segmentation"]

Broken = Literal["stop", "skip"]

FOLDER_VARIABLE = "PLURIBUS_DATA"
DEFAULT_FOLDER = "data"
MOST_COLUMNS = 100_000
MOST_OTHER_COLUMNS = 5_000  # of texts, dates and flags: each takes a millisecond or more
COLUMNS_VARIABLE = "PLURIBUS_COLUMN_LIMIT"


NUMBERS = ("standard", "quantile", "piecewise")  # ways to scale numbers of tables


@dataclass(frozen=True)
class Request:
    """What was asked for: the arguments of `load`, with the spec in two parts and the folder found.

    Args:
        shape: of the data that this is to be outside data for, or a variant of; None for the data itself
        whole: whether images are resized as a whole instead of cropped
        page: name and address of the page to get the data from
    """

    name: str
    argument: str
    folder: Path
    target: str | Sequence[str] | None = None
    task: Task | None = None
    seed: int = 0
    split: int = 0
    image_size: int | None = None
    broken: Broken = "stop"
    shape: Shape | None = None
    unpack_limit: Limit = None
    train_rows: int | None = None
    tokenizer: str | None = None
    long_texts: str = "cut"
    missing: tuple[str, ...] = ()
    numbers: str = "standard"
    whole: bool = False
    page: str = ""

    @property
    def spec(self) -> str:
        """The two parts as the user wrote them."""
        return f"{self.name}:{self.argument}" if self.argument else self.name


@dataclass
class ImageParts:
    """Images as a source holds them, before anything is divided; targets are numbers into `classes`, or values.

    Args:
        numbered: whether classes are named by their numbers among ImageNet's 1,000, or `answers` are such numbers
        answers: for each class here the classes of other data that count as right for it
        wnids: the WordNet ids of those numbers, where the source has them
        sets: the set of similar frames that each row of `test` belongs to, its anchor first
        mask_values: for segmentation, what masks hold for each class; targets are masks
    """

    train: Split | None = None
    validation: Split | None = None
    test: Split | None = None
    classes: tuple[str, ...] = ()
    ood: dict[str, Split] = field(default_factory=dict)
    shifted: dict[str, list[Split]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    numbered: bool = False
    answers: list[list[int]] | None = None
    wnids: dict[int, str] = field(default_factory=dict)
    sets: list[int] | None = None
    mask_values: list[int] = field(default_factory=list)

    @property
    def rows(self) -> Split:
        """The part to judge other data's networks on: the test part, or whatever there is."""
        first = next((part for part in (self.test, self.validation, self.train) if part is not None), None)
        assert first is not None
        return first


@dataclass
class TableParts:
    """Tables as a source holds them, before anything is divided or encoded.

    Args:
        target, task: where the source itself says what is predicted; None: the request says it
        scale: whether numbers are standardised; the toys' coordinates stay as they are
        texts: whether one column holds texts for a tokenizer
    """

    train: Any
    validation: Any = None
    test: Any = None
    target: str | Sequence[str] | None = None
    task: Task | None = None
    ood: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    scale: bool = True
    texts: bool = False

    @property
    def rows(self) -> Any:
        """The part to judge other data's networks on: the test part, or whatever there is."""
        return next(part for part in (self.test, self.validation, self.train) if part is not None)


SourceParts = ImageParts | TableParts


@dataclass(frozen=True)
class Source:
    """A row of DATA.

    Args:
        function: gives the data from a `Request`
        files: any one of these, in the folder, is the data; () where it is built in
        page: name and address of the page to get it from
        argument: what stands after the colon of the spec, such as "path"; "" for nothing
        role: what it can be: "data" or only "outside", "shifted" or "variant"

    >>> pb.data.DATA["cifar10"].files[0], pb.data.DATA["moons"].files
    ('cifar-10-batches-py', ())
    """

    function: Callable[[Request], SourceParts]
    description: str
    kind: Literal["images", "table", "any"] = "images"
    files: tuple[str, ...] = ()
    page: str = ""
    argument: str = ""
    role: Literal["data", "outside", "shifted", "variant"] = "data"

    def found(self, folder: str | Path | None = None) -> Path | None:
        """The file or folder that would be read, or None if there is none (or none is needed)."""
        return first_existing(data_folder(folder), self.files)


def data_folder(folder: str | Path | None = None) -> Path:
    """Where data is looked for: `folder`, else the environment variable PLURIBUS_DATA, else ./data.

    >>> data_folder("somewhere").name
    'somewhere'
    """
    return Path(folder or os.environ.get(FOLDER_VARIABLE) or DEFAULT_FOLDER).expanduser().absolute()


def first_existing(folder: Path, names: Sequence[str]) -> Path | None:
    """The first of these files or folders that exists."""
    return next((folder / name for name in names if (folder / name).exists()), None)


def missing_error(request: Request, names: Sequence[str], folder: Path | None = None) -> FileNotFoundError:
    """The error to raise when none of these files is there."""
    looked = " or ".join(f'"{name}"' for name in names)
    source = f"Download it from {request.page} and put it there" if request.page else "Put it there"
    return FileNotFoundError(
        f"{request.spec}: {looked} not found in {folder or request.folder}. {source}, or say "
        f"where it is with folder= (command line: --data-dir) or the environment variable {FOLDER_VARIABLE}."
    )


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Whatever a damaged file makes its reader raise becomes a `ValueError` that names the file."""
    try:
        yield
    except Exception as error:
        said = f"it has no entry {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__
        if isinstance(error, ModuleNotFoundError) or isinstance(error, OSError) and is_disk_error(error):
            raise
        if isinstance(error, ValueError) and said.startswith(f"{path}: "):  # it says so itself
            raise
        raise ValueError(
            f"{path}: the file cannot be read ({said}). It is damaged, or not what its name says. Download it again."
        ) from None


def check_columns(what: object, columns: int, most: int = MOST_COLUMNS, kind: str = "") -> None:
    """Refuse a table with more columns than any that people make; each takes its time."""
    given = os.environ.get(COLUMNS_VARIABLE, "")
    most = max(most, int(given)) if re.fullmatch("[0-9]{1,9}", given) else most
    if columns > most:
        raise ValueError(
            f"{what}: a table may have {most} columns{kind}, but this one has {columns}. Choose those that matter, or "
            f"raise the limit with the environment variable {COLUMNS_VARIABLE}."
        )


def argument_path(request: Request) -> Path:
    """The path after the colon: as it stands, or inside the folder."""
    if not request.argument:
        raise ValueError(
            f'{request.name}: needs a path after the name, but there is none. Write "{request.name}:path/to/it".'
        )
    path = Path(request.argument).expanduser()
    for candidate in (path, request.folder / path):
        if candidate.exists():
            return candidate.absolute()
    places = str(path.absolute()) if path.is_absolute() else f"{path.absolute()} or {request.folder / path}"
    raise FileNotFoundError(f"{request.spec}: {places} not found. Check the path.")


def list_names(names: Sequence[str], most: int = 100) -> str:
    """Names with commas; of very many the first, and how many more.

    >>> list_names(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
