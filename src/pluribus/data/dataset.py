"""What a data set is here: three parts of rows that come as tensors, and what was measured on the training part."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import Dataset

Shape = tuple[int, int, int]  # channels, height, width

Index = int | Sequence[int] | np.ndarray | Tensor | slice

CHANNELS = (1, 3, 4)  # that an image may have
LARGEST_RESIZED = 2**26  # pixels of one that is enlarged before its centre is cut out
NO_CLASS = -1  # the label of a row whose class is unknown or none of those trained on


class Inputs(Protocol):
    """Rows that become tensors when they are asked for: `Points`, `Tokens`, `ImageArrays` or `ImageFiles`."""

    def __len__(self) -> int: ...

    def batch(self, rows: Tensor) -> Tensor:
        """These rows, (rows, ...), as float32; of tokens as int64."""
        ...

    def names(self, rows: Tensor) -> list[str]:
        """What to call each of these rows."""
        ...


class Split(Dataset[tuple[Tensor, Tensor]]):
    """Rows with targets: one part of a data set.

    One index gives one row, as a `DataLoader` wants it; a list, tensor or slice of indices gives a whole batch.

    Shapes:
        images: (channels, height, width) or (batch, channels, height, width), float32 in [0, 1]
        tables: (features) or (batch, features), float32
        targets: int64 class numbers, -1 for none, or float32 standardised values; for segmentation (batch, height,
            width), -100 for none, read when they are asked for

    >>> split = Split(Points(torch.eye(3)), torch.tensor([0, 1, 1]))
    >>> split[2]
    (tensor([0., 0., 1.]), tensor(1))
    >>> split[:2][0].shape
    torch.Size([2, 3])
    """

    whole_batches = True  # loaders ask for a list of rows at once

    def __init__(self, inputs: Inputs, targets: Any, rows: Tensor | None = None):
        assert len(inputs) == len(targets)
        self.inputs, self.targets = inputs, targets
        self.rows = torch.arange(len(targets)) if rows is None else rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: Index) -> tuple[Tensor, Tensor]:
        chosen = self.rows[rows]
        if chosen.ndim == 0:
            return self.inputs.batch(chosen[None])[0], self.targets[chosen]
        return self.inputs.batch(chosen), self.targets[chosen]

    def __getitems__(self, rows: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        return list(zip(*self[rows], strict=True))

    def __repr__(self) -> str:
        return f"Split({len(self)} rows)"

    @property
    def y(self) -> Tensor:
        """The targets of all rows, without reading any input."""
        return self.targets[self.rows]

    def names(self, rows: Index = slice(None)) -> list[str]:
        """What to call these rows in a message or on a page: the file's name, or the row's number."""
        return self.inputs.names(torch.atleast_1d(self.rows[rows]))

    def take(self, rows: Index) -> Split:
        """A part of the same rows; nothing is read or copied."""
        return Split(self.inputs, self.targets, torch.atleast_1d(self.rows[rows]))

    def with_targets(self, targets: Any) -> Split:
        """The same rows with other targets, one for each row of the inputs."""
        return Split(self.inputs, targets, self.rows)

    def batches(self, size: int = 512) -> Iterator[tuple[Tensor, Tensor]]:
        """All rows in order, `size` at a time."""
        for start in range(0, len(self), size):
            yield self[start : start + size]


def labelled_split(inputs: Inputs, targets: Any) -> Split:
    """Rows of known classes."""
    return Split(inputs, torch.as_tensor(targets).long())


def unlabelled_split(inputs: Inputs) -> Split:
    """Rows of no known class."""
    return Split(inputs, torch.full((len(inputs),), NO_CLASS))


def without_targets(split: Split) -> Split:
    """The same rows as data of no known class."""
    return split.with_targets(torch.full((len(split.targets),), NO_CLASS))


@dataclass(frozen=True, eq=False)
class AnswerKey:
    """What counts as right in a variant whose classes are not those of the data, as ObjectNet's and videos' are not.

    Args:
        answers: whether a class of the data is right for a row whose target is this class of the variant:
            (classes of the variant, classes), bool
        sets: for videos, the set of similar frames that each row belongs to, its anchor first: (rows)
    """

    answers: Tensor
    sets: Tensor | None = None


@dataclass(frozen=True, eq=False, repr=False)
class Data:
    """A data set, divided and measured.

    Shapes:
        data.train[:n]: (n, channels, height, width) or (n, columns), and targets (n)

    Args:
        train, validation, test: the three parts; `validation` may be empty where no share was asked for
        classes: names of the classes, by number; () for regression and multi-label tables
        targets: names of the columns where several are predicted; () for one
        outside: data of other classes, by name
        shifted: corruption -> one part per severity, of published sets such as CIFAR-10-C
        variants: other test sets, such as ImageNet-R, judged like `test` among the classes in `subsets`
        subsets: the class numbers that occur in a variant, for `Classification.restrict`
        answer_keys: of variants with classes of their own, what counts as right: for `answered` and `stability`
        mean, std: of the training images, per channel, (channels, 1, 1); of tables 0 and 1: they are encoded already
        target_mean, target_std: of the training targets: targets of regression are (value - mean) / std; of several
            targets lists
        encoding: how `encoded` makes inputs of files of this kind; plain JSON
        notes: what was decided on the way: rows that were dropped, images that were left out

    >>> data = pb.data.load("iris")
    >>> x, y = data.train[:8]
    >>> x.shape, y.shape, data.classes
    (torch.Size([8, 4]), torch.Size([8]), ('setosa', 'versicolor', 'virginica'))
    """

    name: str
    task: Literal["classification", "regression", "multilabel", "segmentation"]
    kind: Literal["images", "table"]
    train: Split
    validation: Split
    test: Split
    classes: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    outside: Mapping[str, Split] = field(default_factory=dict)
    shifted: Mapping[str, list[Split]] = field(default_factory=dict)
    variants: Mapping[str, Split] = field(default_factory=dict)
    subsets: Mapping[str, list[int]] = field(default_factory=dict)
    answer_keys: Mapping[str, AnswerKey] = field(default_factory=dict)
    mean: Tensor = field(default_factory=lambda: torch.zeros(1))
    std: Tensor = field(default_factory=lambda: torch.ones(1))
    target_mean: float | list[float] = 0.0
    target_std: float | list[float] = 1.0
    encoding: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one input: (channels, height, width) or (features,)."""
        return tuple(self.train[0][0].shape)

    @property
    def selection(self) -> Split:
        """The validation rows that choose the epoch and the settings: those that `calibration` leaves."""
        return self.validation.take(self._divided_validation()[1])

    @property
    def calibration(self) -> Split:
        """The validation rows that nothing is chosen on: variances, sets, intervals and thresholds are fitted to them.

        Half of the validation rows, 19 at least where there are so many, and always 10 k - 1: then 90 % intervals are
        met exactly, ceil((n + 1) 0.9) / (n + 1) = 0.9, and not exceeded. Data without promises (segmentation, several
        labels) has none: all of its validation rows choose.

        >>> data = pb.data.load("diabetes")
        >>> len(data.validation), len(data.calibration), len(data.selection)
        (45, 19, 26)
        """
        return self.validation.take(self._divided_validation()[0])

    def _divided_validation(self) -> tuple[Tensor, Tensor]:
        """Random row numbers of both parts, the same for the same number of rows."""
        rows = len(self.validation)
        wanted = 0 if self.task in ("segmentation", "multilabel") else min(rows - 1, max(rows // 2, 19))
        count = (wanted + 1) // 10 * 10 - 1 if wanted >= 9 else 0
        order = torch.randperm(rows, generator=torch.Generator().manual_seed(0))
        return order[:count].sort().values, order[count:].sort().values

    def normalise(self, x: Tensor) -> Tensor:
        """Inputs with the mean 0 and the standard deviation 1 of the training part; tokens stay what they are."""
        return (x - self.mean.to(x)) / self.std.to(x) if x.is_floating_point() else x

    def __repr__(self) -> str:
        rows = f"{len(self.train)} training, {len(self.validation)} validation and {len(self.test)} test rows"
        what = f"{len(self.classes)} classes" if self.classes else self.task
        what += f" of {len(self.targets)} targets" if self.targets else ""
        return f"Data({self.name!r}: {self.kind} of shape {self.shape}, {what}; {rows})"


class NormalisedSplit(Dataset[tuple[Tensor, Tensor]]):
    """A part of the data with its inputs normalised, read a whole batch at a time.

    A recipe's augmentation works on the rows as they are, before they are normalised (`pb.fit` sees to that).
    """

    whole_batches = True

    def __init__(self, split: Split, data: Data):
        self.split, self.data = split, data

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, rows: Sequence[int] | np.ndarray | Tensor | slice) -> tuple[Tensor, Tensor]:
        if isinstance(rows, int):
            raise TypeError(f"NormalisedSplit: rows come as batches, but {rows} is one row. Give [{rows}], or a slice.")
        x, y = self.split[rows]
        return self.data.normalise(x), y


class Points:
    """Rows of numbers, (rows, features), in memory."""

    def __init__(self, values: Tensor, names: Sequence[str] | None = None):
        self.values, self.labels = values.float(), names

    def __len__(self) -> int:
        return len(self.values)

    def batch(self, rows: Tensor) -> Tensor:
        """These rows, (rows, features)."""
        return self.values[rows]

    def names(self, rows: Tensor) -> list[str]:
        """The numbers of these rows in their file, from 0, or the names they were given."""
        return [str(row) if self.labels is None else self.labels[row] for row in rows.tolist()]


class Tokens(Points):
    """Rows of the numbers of tokens, (rows, tokens), whole and never scaled."""

    def __init__(self, values: Tensor, names: Sequence[str] | None = None):
        self.values, self.labels = values.long(), names


class ImageArrays:
    """Images in an array, in memory or mapped from disk: (rows, height, width[, channels]) or channels first.

    Bytes are kept as bytes and become float32 in [0, 1] when they are asked for.
    """

    def __init__(self, values: np.ndarray, shape: Shape | None = None, factor: float | None = None):
        self.channels_first = values.ndim == 4 and values.shape[3] not in CHANNELS and values.shape[1] in CHANNELS
        if not (values.ndim == 3 or self.channels_first or values.ndim == 4 and values.shape[3] in CHANNELS):
            raise ValueError(
                "images must be (rows, height, width), (rows, height, width, channels) or (rows, channels, height, "
                f"width) with 1, 3 or 4 channels, but the array is {values.shape}."
            )
        self.values, one = values, values.shape[1:] if values.ndim == 4 else (*values.shape[1:], 1)
        self.factor = (1 / 255 if values.dtype == np.uint8 else 1.0) if factor is None else factor
        self.shape: Shape = shape or ((one[0], one[1], one[2]) if self.channels_first else (one[2], one[0], one[1]))

    def __len__(self) -> int:
        return len(self.values)

    def with_shape(self, shape: Shape) -> ImageArrays:
        """The same images in another size or number of channels."""
        return ImageArrays(self.values, shape, self.factor)

    def batch(self, rows: Tensor) -> Tensor:
        """These images, (rows, channels, height, width) in [0, 1]."""
        chosen = np.ascontiguousarray(self.values[rows.numpy()])
        x = torch.from_numpy(chosen.astype(chosen.dtype.newbyteorder("="), copy=False)).float() * self.factor
        if x.ndim == 3:
            x = x[:, None]
        elif not self.channels_first:
            x = x.permute(0, 3, 1, 2)
        return conform(x, self.shape)

    def names(self, rows: Tensor) -> list[str]:
        """The numbers of these rows, from 0."""
        return [str(row) for row in rows.tolist()]


def conform(x: Tensor, shape: Shape) -> Tensor:
    """Images in this shape: the short side resized (bilinear, antialiased), the centre cut out, grey or colour.

    Shapes:
        x: (batch, channels, height, width) in [0, 1]
        output: (batch, *shape)
    """
    channels, height, width = shape
    if x.shape[1] == 4:  # opacity is not looked at
        x = x[:, :3]
    if x.shape[1] != channels:
        x = x.expand(-1, channels, -1, -1) if x.shape[1] == 1 else luminance(x)
    if x.shape[2:] != (height, width) and len(x) == 0:
        x = x.new_empty(0, channels, height, width)
    elif x.shape[2:] != (height, width):
        size = covering_size(x.shape[2], x.shape[3], height, width)
        x = F.interpolate(x, size=size, mode="bilinear", antialias=True).clamp(0, 1)
        top, left = (size[0] - height) // 2, (size[1] - width) // 2
        x = x[:, :, top : top + height, left : left + width]
    return x.contiguous()


def covering_size(height: int, width: int, new_height: int, new_width: int) -> tuple[int, int]:
    """The smallest size of the same proportions that covers the new height and width.

    A strip of one pixel by a million would take gigabytes, and is refused.

    >>> covering_size(300, 200, 32, 32)
    (48, 32)
    """
    factor = max(new_height / height, new_width / width)
    size = max(new_height, round(height * factor)), max(new_width, round(width * factor))
    if math.prod(size) > LARGEST_RESIZED and factor > 1:
        raise ValueError(f"an image of {width}x{height} pixels is too thin to be resized to {new_width}x{new_height}")
    return size


def luminance(x: Tensor) -> Tensor:
    """The grey images of colour images, (batch, 1, height, width), as ITU-R 601 and Pillow; grey images as they are."""
    if x.shape[1] == 1:
        return x
    return (x * x.new_tensor([0.299, 0.587, 0.114]).view(3, 1, 1)).sum(1, keepdim=True)  # channels


def mix(split: Split, seed: int) -> Split:
    """The same rows in an order of chance, the same for the same seed."""
    return split.take(torch.randperm(len(split), generator=torch.Generator().manual_seed(seed)))


def divide(targets: Tensor, shares: Sequence[float], seed: int, *, stratified: bool) -> list[Tensor]:
    """Random rows for each share, and the rest last; each in order.

    With `stratified`, every share has the classes in the proportion of the whole, as nearly as whole rows allow, and
    a class always keeps a row in the rest, so that training sees it.

    >>> [len(rows) for rows in divide(torch.arange(100) % 2, [0.2, 0.1], 0, stratified=True)]
    [20, 10, 70]
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(targets), generator=generator)
    kept = len(targets) - 1
    if stratified:
        # The rows of each class are spread evenly over (0, 1), its last row goes behind all others.
        place = torch.empty(len(targets), dtype=torch.float64)
        grouped = order[targets[order].argsort(stable=True)]
        for rows in grouped.split(targets.unique(return_counts=True)[1].tolist()):
            offset = torch.rand((), generator=generator, dtype=torch.float64)
            place[rows] = (torch.arange(len(rows)) + offset) / len(rows)
            place[rows[-1]] = 2.0
        order, kept = place.argsort(stable=True), int((place < 2).sum())
    ends = [min(int(sum(shares[: i + 1]) * len(targets) + 0.5), kept) for i in range(len(shares))]
    return [order[start:end].sort().values for start, end in zip([0, *ends], [*ends, len(targets)], strict=True)]


def moments(split: Split) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of images per channel, (channels, 1, 1) each."""
    total, squares, count = torch.zeros(()), torch.zeros(()), 0
    for x, _ in split.batches():
        x = x.double()
        total, squares = total + x.sum(dim=(0, 2, 3)), squares + x.square().sum(dim=(0, 2, 3))
        count += x.shape[0] * x.shape[2] * x.shape[3]
    mean = total / count
    std = (squares / count - mean.square()).clamp(min=0).sqrt()
    std[std < 1e-6] = 1.0  # a channel of one value
    return mean.float()[:, None, None], std.float()[:, None, None]
