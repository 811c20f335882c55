"""Judging pixels: sums over each image, exact in little memory, and some pixels of each for charts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .._common.trees import IGNORED
from ..core.ensemble import Ensemble
from ..data.dataset import Data, Split
from ..data.masks import VOID
from ..results.intervals import bootstrap_interval
from ..results.quantities import IMAGE_STATISTICS
from ..uncertainty.classification import Classification
from ..uncertainty.metrics import BINS
from ..uncertainty.resampling import Interval
from ..uncertainty.summary import Summary

PIXELS = 2**19  # of a part of the data whose columns are kept

AT_ONCE = 2**24  # numbers that are predicted at once

Sums = dict[str, np.ndarray]


def image_batches(data: Data, split: Split, members: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Normalised images and their masks, as many at once as memory likes."""
    each = len(data.classes) * data.shape[1] * data.shape[2] * members
    return ((data.normalise(x), y) for x, y in split.batches(max(1, AT_ONCE // each)))


def summarise_images(
    ensemble: Ensemble, pairs: Iterable[tuple[Tensor, Tensor]], images: int, scores: Iterable[str] = ()
) -> tuple[Summary | None, Sums]:
    """The columns of some pixels of each image, None where no pixel has a class; and sums over all its pixels.

    Args:
        pairs: batches of normalised images and their masks
        images: how many there are
        scores: uncertainties of which the mean over each image is wanted, too
    """
    kept, sums, names = max(1, PIXELS // max(images, 1)), list[Sums](), tuple(scores)
    summaries = []
    for x, y in pairs:
        prediction: Any = ensemble.predict(x)
        means = {f"score {name}": prediction.score(name).double().flatten(1).mean(1).numpy() for name in names}
        sums.append(image_sums(prediction, y) | means)
        chosen = spread_judged(y, kept)
        if len(chosen):
            summaries.append(Summary(prediction.flat()[chosen], y.flatten()[chosen]).kept())
    together = {name: np.concatenate([one[name] for one in sums]) for name in sums[0]}
    return Summary.cat(summaries) if summaries else None, together


def spread_judged(masks: Tensor, most: int) -> Tensor:
    """The places, in the flattened masks, of at most so many pixels of each image that have a class, evenly spread.

    >>> spread_judged(torch.tensor([[[0, -100], [1, 1]], [[-100, -100], [-100, 2]]]), 2).tolist()
    [0, 3, 7]
    """
    each, found = masks[0].numel(), []
    for i, mask in enumerate(masks.flatten(1)):
        places = (mask != IGNORED).nonzero()[:, 0]
        some = torch.linspace(0, len(places) - 1, min(most, len(places))).round().long()
        found.append(places[some] + i * each)
    return torch.cat(found)


def image_sums(prediction: Classification, masks: Tensor) -> Sums:
    """What the metrics of `IMAGE_STATISTICS` need of each image; pixels without a class do not count.

    Shapes:
        masks: (images, height, width); results: (images), (images, bins) or (images, classes)
    """
    judged = masks != IGNORED
    target = masks.masked_fill(~judged, 0)
    right = (prediction.label == target) & judged

    def total(values: Tensor) -> Tensor:
        return values.double().masked_fill(~judged, 0).flatten(1).sum(1)

    def by_class(numbers: Tensor, counted: Tensor, classes: int, weight: Tensor | None = None) -> Tensor:
        """Sums of weights by image and class."""
        place = numbers + classes * torch.arange(len(masks))[:, None, None]
        weights = None if weight is None else weight[counted].double()
        return torch.bincount(place[counted], weights, len(masks) * classes).reshape(len(masks), classes)

    classes, confidence = prediction.classes, prediction.confidence.double()
    both = by_class(target, right, classes)
    either = by_class(target, judged, classes) + by_class(prediction.label, judged, classes) - both
    bins = (confidence * BINS).ceil().long().sub(1).clamp(0, BINS - 1)
    found = {
        "pixels": judged.flatten(1).sum(1),
        "log_likelihood": total(prediction.log_likelihood(target)),
        "correct": right.flatten(1).sum(1),
        "squared_error": total(prediction.squared_error(target)),
        "gaps": by_class(bins, judged, BINS, confidence - right.double()),
        "both": both,
        "either": either,
    }
    return {name: values.double().numpy() for name, values in found.items()}


def image_metrics(sums: Sums) -> dict[str, Interval]:
    """The metrics of all pixels, with intervals over the images."""
    found = {}
    for name, (needs, statistic) in IMAGE_STATISTICS.items():
        columns = [sums[need] for need in needs]
        found[name] = bootstrap_interval(partial(_weighted, statistic, columns), len(columns[0]))
    return found


def _weighted(statistic: Any, columns: list[np.ndarray], weights: np.ndarray) -> np.ndarray:
    return statistic(weights, *columns)


# ---------------------------------------------------------------- pictures for the page

LARGEST_SHOWN = 192  # pixels of a side of a picture on the page


def dense_examples(ensemble: Ensemble, data: Data, sums: Sums, wanted: int) -> dict[str, np.ndarray]:
    """The images with most mistakes, and the most uncertain ones: pixels, true and given classes, and uncertainty.

    Uncertainty is in bytes, of which 255 is that of a guess between all classes.
    """
    error = 1 - sums["correct"] / np.maximum(sums["pixels"], 1)
    chosen = {"worst": np.argsort(-error, kind="stable"), "unsure": np.argsort(-sums["score entropy"], kind="stable")}
    index = np.concatenate([order[:wanted] for order in chosen.values()])
    x, y = data.test[torch.from_numpy(index)]
    rows: list[Any] = [ensemble.predict(data.normalise(one[None])) for one in x]
    parts = {name: torch.cat([getattr(row, name) for row in rows]) for name in ("label", "total", "epistemic")}
    found = {"pictures": _shrink(255 * x, smooth=True).permute(0, 2, 3, 1)}
    found |= {"truth_map": _shrink(y.masked_fill(y == IGNORED, VOID)), "label_map": _shrink(parts["label"])}
    for name in ("total", "epistemic"):
        found[f"{name}_map"] = _shrink(255 * parts[name] / math.log(len(data.classes)), smooth=True)
    if found["pictures"].shape[-1] == 1:
        found["pictures"] = found["pictures"][..., 0]
    names = [
        f"{name}, {100 * error[i]:.1f} % of its pixels wrong"
        for name, i in zip(data.test.names(index), index, strict=True)
    ]
    return {f"examples/{name}": pictures.round().clamp(0, 255).byte().numpy() for name, pictures in found.items()} | {
        "examples/index": index,
        "examples/reason": np.array([reason for reason, order in chosen.items() for _ in order[:wanted]]),
        "examples/text": np.array(names),
    }


def _shrink(images: Tensor, smooth: bool = False) -> Tensor:
    """Images, (rows, [channels,] height, width), no larger than a page needs them."""
    size = [math.ceil(side * min(1.0, LARGEST_SHOWN / max(images.shape[-2:]))) for side in images.shape[-2:]]
    if size == list(images.shape[-2:]):
        return images.float()
    with_channels = images.float() if images.ndim == 4 else images.float()[:, None]
    resized = F.interpolate(with_channels, size, mode="area" if smooth else "nearest-exact")
    return resized if images.ndim == 4 else resized[:, 0]
