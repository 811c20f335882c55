"""May it be trusted where it is sure? The risk of the examples that are kept when the least certain are refused."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .._columns import Column, read_columns, sort_with_ties


def risk_coverage(uncertainty: Column, loss: Column) -> tuple[Tensor, Tensor]:
    """Coverage k/n and the mean loss of the k most certain examples, k = 1 to n.

    Where examples tie, the expected value over all their orders.

    Shapes:
        uncertainty: (n), any score that is larger for what is less certain; loss: (n), such as 1 for an error
        results: (n) each

    >>> coverage, risk = risk_coverage(uncertainty=[0.1, 0.2, 0.3, 0.4], loss=[0, 0, 0, 1])
    >>> coverage.tolist(), risk.tolist()
    ([0.25, 0.5, 0.75, 1.0], [0.0, 0.0, 0.0, 0.25])
    """
    uncertainty, loss = read_columns("risk_coverage", uncertainty=uncertainty, loss=loss)
    return _risk_coverage(uncertainty, loss)


def aurc(uncertainty: Column, loss: Column) -> float:
    """Area under the risk-coverage curve: the mean of `risk_coverage` over k = 1 to n.

    Shapes:
        uncertainty, loss: (n)

    >>> aurc(uncertainty=[0.1, 0.2, 0.3, 0.4], loss=[0, 0, 0, 1])  # (0 + 0 + 0 + 1/4) / 4
    0.0625
    """
    uncertainty, loss = read_columns("aurc", uncertainty=uncertainty, loss=loss)
    return _risk_coverage(uncertainty, loss)[1].mean().item()


def e_aurc(uncertainty: Column, loss: Column) -> float:
    """Excess of `aurc` over that of the best possible order of the same losses; 0 if all errors are the least certain.

    Shapes:
        uncertainty, loss: (n)

    >>> e_aurc([0.1, 0.2, 0.3, 0.4], [0, 0, 0, 1]), e_aurc([0.1, 0.2, 0.3, 0.4], [0, 1, 0, 0])
    (0.0, 0.2083...)
    """
    uncertainty, loss = read_columns("e_aurc", uncertainty=uncertainty, loss=loss)
    curves = [_risk_coverage(order, loss)[1].mean() for order in (uncertainty, loss)]
    return (curves[0] - curves[1]).clamp_min(0).item()


def risk_at_coverage(uncertainty: Column, loss: Column, coverage: float = 0.9) -> float:
    """Mean loss of the `coverage` most certain share of the examples, rounded up to at least one.

    Shapes:
        uncertainty, loss: (n)

    >>> risk_at_coverage([0.1, 0.2, 0.3, 0.4], [0, 1, 0, 0], coverage=0.5)  # one error in the two that are kept
    0.5
    """
    if not 0 < coverage <= 1:
        raise ValueError(f"risk_at_coverage: coverage must be above 0 and at most 1, but it is {coverage}.")
    uncertainty, loss = read_columns("risk_at_coverage", uncertainty=uncertainty, loss=loss)
    kept = max(math.ceil(coverage * len(loss) - 1e-9), 1)
    return _risk_coverage(uncertainty, loss)[1][kept - 1].item()


def _risk_coverage(uncertainty: Tensor, loss: Tensor) -> tuple[Tensor, Tensor]:
    _, loss = sort_with_ties(uncertainty, loss)
    kept = torch.arange(1, len(loss) + 1, device=loss.device, dtype=loss.dtype)
    return kept / len(loss), loss.cumsum(0) / kept
