"""Augmentation of training batches: flips, padded crops, RandAugment, mixup, cutmix and smoothed labels.

Everything works on whole batches of tensors, on their device, and draws from torch's global generator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .._common.optional import require
from ..data.dataset import Split
from ..data.image_folders import ImageFiles

Augmentation = Callable[[Any, Any], tuple[Any, Any]]


class Augment:
    """A function (x, y) -> (normalised x, y) for training, whose targets are soft where labels are mixed or smoothed.

    Mixing is timm's batch mode: every batch is mixed with itself in reverse order, by one share for the whole batch.
    Soft targets go to the loss of every method as they are: `ensemble.loss(*augment(x, y), F.cross_entropy)`.

    Shapes:
        x: (batch, channels, height, width), from 0 to 1; the output is normalised
        y: (batch,) class numbers, or (batch, classes) probabilities; soft targets come out as (batch, classes)

    Args:
        mean: of each channel, and `std`: what normalisation subtracts and divides by; default: nothing
        resized_crop: {"size": 160, "scale": [0.08, 1], "ratio": [3/4, 4/3]}: a part of each image, of that share of its
            area and of those proportions, resized
        shift: the largest share of its sides by which an image is moved; its border fills what is left, as in Keras
        crop: pixels of zeros added on every side before a window of the old size is taken at random
        rand_augment: {"n": 2, "m": 9, "mstd": 1}: operations for an image, their strength of 10 and its spread
        mixup: the parameter of the Beta distribution of the share, and `cutmix`; 0 is never
        switch: how often cutmix is taken where both are on
        smoothing: the probability that is spread over all classes
        classes: how many there are, or a function of normalised images that tells; needed for soft targets

    >>> augment = Augment(flip=True, mixup=0.5, classes=10)
    >>> x, y = augment(torch.rand(8, 3, 32, 32), torch.arange(8))
    >>> x.shape, y.shape
    (torch.Size([8, 3, 32, 32]), torch.Size([8, 10]))
    """

    def __init__(
        self,
        mean: Tensor | float | None = None,
        std: Tensor | float | None = None,
        *,
        flip: bool = False,
        resized_crop: Mapping[str, Any] | None = None,
        shift: float = 0.0,
        crop: int = 0,
        rand_augment: Mapping[str, float] | None = None,
        mixup: float = 0.0,
        cutmix: float = 0.0,
        switch: float = 0.5,
        smoothing: float = 0.0,
        classes: int | Callable[[Tensor], int] | None = None,
    ):
        self.mean, self.std = _channels(mean, 0.0), _channels(std, 1.0)
        self.resized_crop = None if resized_crop is None else dict(resized_crop)
        self.flip, self.crop, self.classes = flip, crop, classes
        self.shift = shift
        self.rand_augment = None if rand_augment is None else {"n": 2, "m": 9, "mstd": 0, **rand_augment}
        self.mixup, self.cutmix, self.switch, self.smoothing = mixup, cutmix, switch, smoothing
        self._in_range = False  # once it was seen
        self._check_settings()

    @property
    def is_soft(self) -> bool:
        """Whether targets come out as probabilities."""
        return self.mixup > 0 or self.cutmix > 0 or self.smoothing > 0

    def __call__(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The batch augmented; what was given is not changed."""
        self._check(x, y)
        if self.resized_crop is not None:
            x = resized_crop(x, **self.resized_crop)
        if self.flip:
            x = _kornia("flip").RandomHorizontalFlip(p=0.5)(x)
        if self.shift:
            x = random_shift(x, self.shift)
        if self.crop:
            x = random_crop(x, self.crop)
        if self.rand_augment is not None:
            x = rand_augment(x, **self.rand_augment)
        x = (x - self.mean.to(x)) / self.std.to(x)
        if not self.is_soft:
            return x, y
        if callable(self.classes):
            self.classes = self.classes(x)
        y = smooth_labels(y, self.classes, self.smoothing, x.dtype)
        return self._mix(x, y)

    def read_crops(self, split: Split) -> Split:
        """The rows to augment; where images are read from files, `resized_crop` is done on the whole image there."""
        if self.resized_crop is None or not isinstance(split.inputs, ImageFiles):
            return split
        crops, self.resized_crop = self.resized_crop, None
        return Split(split.inputs.random_crops(**crops), split.targets, split.rows)

    def _mix(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if not (self.mixup or self.cutmix):
            return x, y
        cut = self.cutmix > 0 and (self.mixup == 0 or float(torch.rand(())) < self.switch)
        alpha = torch.tensor(self.cutmix if cut else self.mixup)
        share = float(torch.distributions.Beta(alpha, alpha).sample())
        return cutmix(x, y, share) if cut else mixup(x, y, share)

    def _check_settings(self) -> None:
        for name in ("crop", "mixup", "cutmix", "switch", "smoothing", "shift"):
            value, most = getattr(self, name), 1 if name in ("switch", "smoothing", "shift") else math.inf
            if not (0 <= value <= most and value < math.inf):
                raise ValueError(f"Augment: {name} must be from 0 to {most}, but it is {value}.")
        wrong = set(self.rand_augment or ()) - {"n", "m", "mstd"}
        if wrong or self.rand_augment and not 0 <= self.rand_augment["m"] <= 10:
            raise ValueError(f"Augment: rand_augment takes n, m from 0 to 10 and mstd, but got {self.rand_augment}.")

    def _check(self, x: Tensor, y: Tensor) -> None:
        if not isinstance(x, Tensor) or x.dim() != 4 or not x.is_floating_point():
            what = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else f"a {type(x).__name__}"
            raise ValueError(
                "Augment: x must be images as floats from 0 to 1, (batch, channels, height, width), but it is "
                f"{what}. Divide uint8 by 255; tables need no Augment."
            )
        if self.rand_augment is not None and not self._in_range:
            low, high = (float(end) for end in x.aminmax())
            if low < 0 or high > 1:
                raise ValueError(
                    f"Augment: RandAugment takes images from 0 to 1, but these are from {low:.3g} to {high:.3g}. Give "
                    "them as they are, and normalise them after that: Augment(mean, std, ...)."
                )
            self._in_range = True
        if len(x) != len(y):
            raise ValueError(f"Augment: x and y must have equally many rows, but they have {len(x)} and {len(y)}.")
        if self.is_soft and y.dim() == 1 and (y.is_floating_point() or self.classes is None):
            kind = f"but y is {y.dtype}" if y.is_floating_point() else "but classes is not given"
            raise ValueError(
                f"Augment: mixup, cutmix and smoothing make soft targets from class numbers, {kind}. Give classes=10 "
                "and class numbers, or probabilities (batch, classes); for regression leave all three at 0."
            )


def augment_of(
    name: str,
    mean: Tensor | float | None = None,
    std: Tensor | float | None = None,
    classes: int | Callable[[Tensor], int] | None = None,
    **changes: Any,
) -> Augment:
    """The augmentation of that name in `AUGMENTATIONS`, with changes to its settings."""
    if name not in AUGMENTATIONS:
        raise ValueError(f"augment_of: {name!r} is unknown. Choose from {', '.join(AUGMENTATIONS)}.")
    return Augment(mean, std, classes=classes, **{**AUGMENTATIONS[name], **changes})


# ---------------------------------------------------------------- mixing
# kornia's mixup and cutmix give pairs of labels and shares for a loss of their own; probabilities fit every loss.


def mixup(x: Tensor, y: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Each row and its target, mixed with the row at the same place from the end (Zhang et al. 2018)."""
    return share * x + (1 - share) * x.flip(0), share * y + (1 - share) * y.flip(0)


def cutmix(x: Tensor, y: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """A box of each image replaced by that of the row at the same place from the end (Yun et al. 2019).

    The box has a share 1 - share of the area and its centre anywhere; what falls outside does not count for targets.
    """
    height, width = x.shape[-2:]
    down, right = (slice(*_cut(n, math.sqrt(1 - share))) for n in (height, width))
    mixed = x.clone()
    mixed[..., down, right] = x.flip(0)[..., down, right]
    share = 1 - (down.stop - down.start) * (right.stop - right.start) / (height * width)
    return mixed, share * y + (1 - share) * y.flip(0)


def smooth_labels(y: Tensor, classes: int | None, smoothing: float, dtype: torch.dtype) -> Tensor:
    """Probabilities (batch, classes) of which a part is spread over all classes (Szegedy et al. 2016)."""
    if y.dim() == 1:
        assert classes is not None
        y = torch.nn.functional.one_hot(y.long(), classes)
    return y.to(dtype) * (1 - smoothing) + smoothing / y.shape[1]


def resized_crop(
    x: Tensor, size: int, scale: Sequence[float] = (0.08, 1), ratio: Sequence[float] = (3 / 4, 4 / 3)
) -> Tensor:
    """A random part of each image, resized to a square (Szegedy et al. 2015)."""
    crop = _kornia("resized_crop").RandomResizedCrop
    return crop((size, size), tuple(scale), tuple(ratio), cropping_mode="resample")(x)


def random_shift(x: Tensor, share: float) -> Tensor:
    """Each image moved by up to a share of its width and of its height, filled from its border."""
    settings = {"translate": (share, share), "padding_mode": "border", "align_corners": True, "p": 1.0}
    return _kornia("shift").RandomAffine(0.0, **settings)(x)


def random_crop(x: Tensor, padding: int) -> Tensor:
    """A window of the old size, anywhere in each image padded with zeros."""
    return _kornia("crop").RandomCrop(tuple(x.shape[-2:]), padding=padding)(x)


def _kornia(setting: str) -> Any:
    return require("kornia.augmentation", f"Augment({setting}=...)", "augment")


# ---------------------------------------------------------------- RandAugment
# kornia's RandAugment draws operations for the whole batch; the recipe's draws them for each image, each done half
# of the time, at a strength of its own.


def rand_augment(x: Tensor, n: float, m: float, mstd: float) -> Tensor:
    """RandAugment (Cubuk et al. 2020) as in timm's "rand-m9-mstd1-n2": n of 15 operations for each image."""
    for _ in range(int(n)):
        chosen = torch.randint(len(OPERATIONS), (len(x),))
        chosen = torch.where(torch.rand(len(x)) < 0.5, chosen, -1)
        level = (m + mstd * torch.randn(len(x))).clamp_(0, 10) / 10
        sign = torch.where(torch.rand(len(x)) < 0.5, -1.0, 1.0)
        x = x.clone()
        for place, operation in enumerate(OPERATIONS.values()):
            rows = (chosen == place).nonzero()[:, 0]
            if len(rows):
                there = rows.to(x.device)
                x[there] = operation(x[there], level[rows].to(x), sign[rows].to(x)).clamp(0, 1).to(x.dtype)
    return x


def _enhance() -> Any:
    return require("kornia.enhance", "RandAugment", "augment")


def _transform(x: Tensor, transform: str, *args: Any) -> Tensor:
    """A geometric operation; what comes in from outside the image is grey."""
    function = getattr(require("kornia.geometry.transform", "RandAugment", "augment"), transform)
    return function(x - 0.5, *args) + 0.5


def _blend(x: Tensor, plain: Tensor, level: Tensor) -> Tensor:
    """Pillow's enhancement: away from a plain image by the factor 0.1 + 1.8 level."""
    return plain + (x - plain) * (0.1 + 1.8 * level).view(-1, 1, 1, 1)


def _grey(x: Tensor) -> Tensor:
    weights = x.new_tensor([0.299, 0.587, 0.114]) if x.shape[1] == 3 else x.new_full((x.shape[1],), 1 / x.shape[1])
    return (x * weights.view(-1, 1, 1)).sum(1, keepdim=True)


def _autocontrast(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    return torch.where(high > low, (x - low) / (high - low).clamp(min=1e-6), x)


def _shear(x: Tensor, amount: Tensor, axis: int) -> Tensor:
    """x + amount * y, or y + amount * x, about the upper left corner."""
    matrix = torch.eye(2, 3).to(x).repeat(len(x), 1, 1)
    matrix[:, axis, 1 - axis] = amount
    return _transform(x, "warp_affine", matrix, x.shape[-2:])


def _posterize(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """The highest 1 to 4 bits of 8."""
    step = 2.0 ** (8 - (4 * level).floor().clamp(min=1)).view(-1, 1, 1, 1)
    return ((x * 255).round() / step).floor() * step / 255


def _solarize_add(x: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    return torch.where(x < 128 / 255, x + (level * 110 / 255).view(-1, 1, 1, 1), x)


def _translate(x: Tensor, amount: Tensor, axis: int) -> Tensor:
    shift = x.new_zeros(len(x), 2)
    shift[:, axis] = amount * x.shape[-1 - axis]
    return _transform(x, "translate", shift)


def _cut(n: int, ratio: float) -> tuple[int, int]:
    """The ends of a piece of n pixels with a random centre, as far as it is inside."""
    size, centre = int(n * ratio), int(torch.randint(n, ()))
    return max(centre - size // 2, 0), min(centre + (size + 1) // 2, n)


def _channels(value: Tensor | float | None, default: float) -> Tensor:
    return torch.as_tensor(default if value is None else value, dtype=torch.float32).reshape(-1, 1, 1)


OPERATIONS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "autocontrast": _autocontrast,
    "equalize": lambda x, level, sign: _enhance().equalize(x),
    "invert": lambda x, level, sign: 1 - x,
    "rotate": lambda x, level, sign: _transform(x, "rotate", 30 * level * sign),
    "posterize": _posterize,
    "solarize": lambda x, level, sign: torch.where(x >= level.view(-1, 1, 1, 1), 1 - x, x),
    "solarize_add": _solarize_add,
    "color": lambda x, level, sign: _blend(x, _grey(x), level),
    "contrast": lambda x, level, sign: _blend(x, _grey(x).mean((1, 2, 3), keepdim=True), level),
    "brightness": lambda x, level, sign: _blend(x, torch.zeros_like(x), level),
    "sharpness": lambda x, level, sign: _enhance().sharpness(x, 0.1 + 1.8 * level),
    "shear_x": lambda x, level, sign: _shear(x, 0.3 * level * sign, 0),
    "shear_y": lambda x, level, sign: _shear(x, 0.3 * level * sign, 1),
    "translate_x": lambda x, level, sign: _translate(x, 0.45 * level * sign, 0),
    "translate_y": lambda x, level, sign: _translate(x, 0.45 * level * sign, 1),
}

AUGMENTATIONS: dict[str, dict[str, Any]] = {
    "none": {},
    # The columns of Packed-Ensembles' Table 4; the padded crop that is usual for CIFAR is not named there: "crop".
    "hflip": {"flip": True},
    "crop": {"flip": True, "crop": 4},
    "medium": {
        "flip": True,
        "rand_augment": {"n": 2, "m": 9, "mstd": 1},
        "mixup": 0.5,
        "cutmix": 0.2,
        "switch": 0.5,
        "smoothing": 0.1,
    },
}
