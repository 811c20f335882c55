"""Are its values near, and its intervals right? Metrics of regression."""

from __future__ import annotations

import torch

from .._columns import Column, check_bins, check_probabilities, read_columns


def rmse(mean: Column, target: Column) -> float:
    """Root of the mean squared error.

    Shapes:
        mean, target: (batch), or (batch, outputs)

    >>> rmse(mean=[1.0, 5.0], target=[1.0, 3.0])
    1.4142...
    """
    mean, target = read_columns("rmse", mean=mean, target=target)
    return (mean - target).square().mean().sqrt().item()


def mae(mean: Column, target: Column) -> float:
    """Mean absolute error.

    Shapes:
        mean, target: (batch), or (batch, outputs)

    >>> mae(mean=[1.0, 5.0], target=[1.0, 3.0])
    1.0
    """
    mean, target = read_columns("mae", mean=mean, target=target)
    return (mean - target).abs().mean().item()


def crps(crps: Column) -> float:
    """Continuous ranked probability score of the mixture, in the unit of the target; |error| for a point.

    Shapes:
        crps: (batch), the score of each example, as `Summary` gives it

    >>> points = pb.Regression(torch.tensor([[[1.0], [5.0]]]))  # one member, without a variance
    >>> crps(pb.Summary(points, torch.tensor([1.0, 3.0])).crps)
    1.0
    """
    (crps,) = read_columns("crps", crps=crps)
    return crps.mean().item()


def coverage(lower: Column, upper: Column, target: Column) -> float:
    """Share of targets inside their interval, ends included.

    Shapes:
        lower, upper, target: (batch), or (batch, outputs)

    >>> coverage(lower=[0.0, 0.0], upper=[1.0, 1.0], target=[0.5, 2.0])
    0.5
    """
    lower, upper, target = read_columns("coverage", infinite=True, lower=lower, upper=upper, target=target)
    return ((lower <= target) & (target <= upper)).double().mean().item()


def width(lower: Column, upper: Column) -> float:
    """Mean width of the intervals.

    Shapes:
        lower, upper: (batch), or (batch, outputs)

    >>> width(lower=[0.0, 0.0], upper=[1.0, 3.0])
    2.0
    """
    lower, upper = read_columns("width", lower=lower, upper=upper)
    return (upper - lower).mean().item()


def quantile_calibration(cumulative: Column, levels: int = 19) -> float:
    """Mean |share of targets below the q-quantile - q| over q = 1/20 to 19/20; `cumulative` is the mixture's CDF there.

    The default levels are those of 19 quantiles; 0 is perfect, 1/2 the worst.

    Shapes:
        cumulative: (batch), from 0 to 1: the probability that was given to values below the target

    >>> quantile_calibration([0.25, 0.75], levels=3)  # shares 1/2, 1/2 and 1 at 1/4, 1/2 and 3/4
    0.16...
    >>> quantile_calibration([0.5, 0.5], levels=3)  # every target at the median: intervals are too wide
    0.33...
    """
    (cumulative,) = read_columns("quantile_calibration", cumulative=cumulative)
    cumulative = check_probabilities("quantile_calibration", "cumulative", cumulative)
    check_bins("quantile_calibration", levels)
    level = torch.arange(1, levels + 1, device=cumulative.device).double() / (levels + 1)
    below = torch.searchsorted(cumulative.sort().values, level, right=True).double()
    return (below / len(cumulative) - level).abs().mean().item()
