"""Does it stand corruptions? Means over kinds and severities, absolute and relative to a baseline."""

from __future__ import annotations

from .._columns import Matrix, read_matrix


def corruption_mean(values: Matrix) -> float:
    """Mean over corruptions and severities: cAcc, cNLL and cECE.

    Shapes:
        values: (corruptions, severities), such as the accuracy on each

    >>> corruption_mean([[0.875, 0.75], [0.75, 0.625]])
    0.75
    """
    return read_matrix("corruption_mean", "values", values, infinite=True).mean().item()


def mean_corruption_error(errors: Matrix, baseline: Matrix) -> float:
    """Mean over corruptions of the error summed over severities, divided by the baseline's: 1 is the baseline.

    Shapes:
        errors, baseline: (corruptions, severities), errors from 0 to 1

    >>> mean_corruption_error(errors=[[0.125, 0.25]], baseline=[[0.25, 0.5]])
    0.5
    """
    ours, theirs = (read_matrix("mean_corruption_error", n, e) for n, e in (("errors", errors), ("baseline", baseline)))
    if ours.shape != theirs.shape:
        raise ValueError(
            "mean_corruption_error: errors and baseline must have the same corruptions and severities, but their "
            f"shapes are {tuple(ours.shape)} and {tuple(theirs.shape)}."
        )
    if bool((theirs.sum(1) <= 0).any()):
        where = int((theirs.sum(1) <= 0).nonzero()[0])
        raise ValueError(
            f"mean_corruption_error: the baseline must make errors, but on corruption {where} it makes none."
        )
    return (ours.sum(1) / theirs.sum(1)).mean().item()
