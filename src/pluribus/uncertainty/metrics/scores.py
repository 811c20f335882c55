"""Is it right? Accuracy, likelihood and squared error of classes."""

from __future__ import annotations

import torch

from .._columns import Column, read_columns


def accuracy(label: Column, target: Column) -> float:
    """Share of examples whose label is the target.

    Shapes:
        label, target: (batch), or (batch, *pixels), whole numbers

    >>> accuracy(label=[0, 1, 1, 2], target=[0, 1, 2, 2])
    0.75
    """
    label, target = read_columns("accuracy", label=label, target=target)
    return (label == target).double().mean().item()


def top_k(rank: Column, k: int = 5) -> float:
    """Share of examples with fewer than `k` classes before the target; 1 when there are at most k classes.

    Shapes:
        rank: (batch), how many classes are held likelier than the target

    >>> top_k(rank=[0, 0, 1, 7], k=5)
    0.75
    """
    if k < 1:
        raise ValueError(f"top_k: k must be at least 1, but it is {k}.")
    (rank,) = read_columns("top_k", rank=rank)
    return (rank < k).double().mean().item()


def nll(log_likelihood: Column) -> float:
    """Negative log-likelihood of the targets, in nats; infinite where a target was given probability 0.

    Shapes:
        log_likelihood: (batch), the logarithm of the probability (regression: density) that each target was given

    >>> nll(torch.tensor([0.5, 0.25]).log())  # (log 2 + log 4) / 2
    1.0397...
    """
    (log_likelihood,) = read_columns("nll", infinite=True, log_likelihood=log_likelihood)
    return -log_likelihood.mean().item()


def brier(squared_error: Column) -> float:
    """Squared distance between probabilities and the one-hot target, summed over classes: from 0 to 2.

    Many libraries divide it by the number of classes: their figures are that much smaller.

    Shapes:
        squared_error: (batch), summed over classes

    >>> probability, target = torch.tensor([[0.5, 0.5], [1.0, 0.0]]), torch.tensor([[1, 0], [1, 0]])
    >>> brier((probability - target).square().sum(1))
    0.25
    """
    (squared_error,) = read_columns("brier", squared_error=squared_error)
    return squared_error.mean().item()


def mean_iou(label: Column, target: Column) -> float:
    """Intersection over union, averaged over the classes that occur in labels or targets.

    Shapes:
        label, target: (batch, *pixels), whole numbers from 0

    >>> mean_iou(label=[0, 1, 1, 2], target=[0, 1, 2, 2])  # of three classes: 1, 1/2 and 1/2
    0.66...
    """
    label, target = read_columns("mean_iou", label=label, target=target)
    if min(label.min(), target.min()) < 0:
        raise ValueError(f"mean_iou: classes must not be negative, but one is {min(label.min(), target.min()):.0f}.")
    label, target = label.long(), target.long()
    size = int(max(label.max(), target.max())) + 1
    both = torch.bincount(label[label == target], minlength=size)
    either = torch.bincount(label, minlength=size) + torch.bincount(target, minlength=size) - both
    return (both[either > 0] / either[either > 0].double()).mean().item()
