"""Is it as sure as it is right? Confidence against accuracy, in bins."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .._columns import (
    Column,
    Matrix,
    bin_of,
    bin_outcomes,
    check_bins,
    check_outcomes,
    check_probabilities,
    read_columns,
    read_matrix,
    sort_with_ties,
    tensor_of,
)

BINS = 15


class Reliability(NamedTuple):
    """What a reliability diagram shows, bin by bin; confidence and accuracy are NaN where there are no examples.

    Shapes:
        edges: (bins + 1); confidence, accuracy, examples: (bins)

    >>> reliability([0.3, 0.9, 0.9, 1.0], [False, True, True, True], bins=2).examples.tolist()
    [1.0, 3.0]
    """

    edges: Tensor
    confidence: Tensor
    accuracy: Tensor
    examples: Tensor


def reliability(confidence: Column, correct: Column, bins: int = BINS) -> Reliability:
    """Mean confidence and accuracy in equal-width bins over (0, 1]; a confidence of 0 counts in the first.

    Shapes:
        confidence: (batch), from 0 to 1; correct: (batch), true or false

    >>> reliability([0.3, 0.9, 0.9, 1.0], [False, True, True, True], bins=2).accuracy.tolist()
    [0.0, 1.0]
    """
    count, confident, right = bin_outcomes("reliability", confidence, correct, bins)
    return Reliability(torch.linspace(0, 1, bins + 1, dtype=torch.float64), confident / count, right / count, count)


def ece(confidence: Column, correct: Column, bins: int = BINS) -> float:
    """Expected calibration error: |accuracy - confidence| over equal-width bins, weighted by their examples.

    Shapes:
        confidence: (batch), from 0 to 1; correct: (batch), true or false

    >>> ece([1.0, 0.75, 0.625, 0.625], [True, True, False, True], bins=10)  # gaps 0, 1/4 and, of two, 1/8
    0.125
    """
    count, confident, right = bin_outcomes("ece", confidence, correct, bins)
    return ((confident - right).abs().sum() / count.sum()).item()


def mce(confidence: Column, correct: Column, bins: int = BINS) -> float:
    """Maximum calibration error: the largest |accuracy - confidence| of a bin that has examples.

    Shapes:
        confidence: (batch), from 0 to 1; correct: (batch), true or false

    >>> mce([0.9, 0.75, 0.6, 0.6], [True, True, False, True], bins=10)
    0.25
    """
    count, confident, right = bin_outcomes("mce", confidence, correct, bins)
    return ((confident - right).abs() / count.clamp_min(1)).max().item()


def adaptive_ece(confidence: Column, correct: Column, bins: int = BINS) -> float:
    """Expected calibration error over at most `bins` bins with equally many examples each.

    Examples of the same confidence share their accuracy, so that it does not matter on which side of an edge they are.

    Shapes:
        confidence: (batch), from 0 to 1; correct: (batch), true or false

    >>> adaptive_ece([1.0, 0.75, 0.625, 0.625], [True, True, False, True], bins=2)  # two gaps of 1/8
    0.125
    """
    confidence, correct = read_columns("adaptive_ece", confidence=confidence, correct=correct)
    confidence, correct = check_outcomes("adaptive_ece", confidence, correct)
    check_bins("adaptive_ece", bins)
    confidence, correct = sort_with_ties(confidence, correct)
    gaps = torch.cat([confidence.new_zeros(1), (confidence - correct).cumsum(0)])
    edges = torch.arange(bins + 1) * len(confidence) // bins  # fewer examples than bins: some bins are empty
    return (gaps[edges].diff().abs().sum() / len(confidence)).item()


def class_bins(probability: Matrix, target: Column, bins: int = BINS) -> Tensor:
    """Sums for `classwise_ece`, which add up over batches: count, probability and hits of each class and bin.

    Shapes:
        probability: (batch, classes); target: (batch)
        result: (3, classes, bins)

    >>> count, probability, hits = class_bins([[0.9, 0.1], [0.2, 0.8]], [0, 1], bins=2)
    >>> count.tolist(), hits.tolist()  # each class: one low and one high probability, and it was the high one
    ([[1.0, 1.0], [1.0, 1.0]], [[0.0, 1.0], [0.0, 1.0]])
    """
    values = check_probabilities("class_bins", "probability", read_matrix("class_bins", "probability", probability))
    (target,) = read_columns("class_bins", target=target)
    batch, classes = values.shape
    if len(target) != batch or target.min() < 0 or target.max() >= classes:
        raise ValueError(
            f"class_bins: needs one target from 0 to {classes - 1} for each of {batch} rows, but there are "
            f"{len(target)}, from {target.min():.0f} to {target.max():.0f}."
        )
    cell = (
        bin_of("class_bins", values, bins, tensor_of(probability).dtype)
        + torch.arange(classes, device=values.device) * bins
    )
    hit = cell.gather(1, target.long()[:, None]).flatten()
    size = classes * bins
    sums = [
        torch.bincount(cell.flatten(), minlength=size).double(),
        torch.bincount(cell.flatten(), values.flatten(), minlength=size).double(),
        torch.bincount(hit, minlength=size).double(),
    ]
    return torch.stack(sums).unflatten(1, (classes, bins))


def classwise_ece(class_bins: Tensor) -> float:
    """Calibration error of every class's probability, averaged over classes; takes what `class_bins` gives.

    Shapes:
        class_bins: (3, classes, bins), or the sum of such tensors over batches

    >>> sums = class_bins([[0.75, 0.25]], [0]) + class_bins([[0.25, 0.75]], [1])
    >>> classwise_ece(sums)  # every probability is a quarter too careful
    0.25
    """
    count, confident, right = tensor_of(class_bins).double()
    return ((confident - right).abs().sum() / count.sum()).item()  # count.sum() is examples * classes
