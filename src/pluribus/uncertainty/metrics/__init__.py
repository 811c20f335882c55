"""One function per metric, on columns: one value for each example, as `Summary` holds them; METRICS is their table.

Columns are tensors, arrays or lists of one shape; pixels count as examples. Every result is the same in any order
of the examples, ties included. NaN, an empty column and values out of range are errors, never a plausible number.

The files are the questions that are asked: is it right (`scores`), is it as sure as it is right (`calibration_errors`),
does it notice what is foreign (`detection`), may it be trusted where it is sure (`selection`), do members differ
(`diversity`), does it stand corruptions (`robustness`), are its intervals right (`regression_scores`).
"""

from .calibration_errors import (
    BINS,
    Reliability,
    adaptive_ece,
    class_bins,
    classwise_ece,
    ece,
    mce,
    reliability,
)
from .detection import aupr, auroc, fpr95
from .diversity import (
    agreement,
    aleatoric,
    disagreement,
    disagreement_by_error,
    disagreement_with_base,
    entropy,
    mutual_information,
    pairwise_kl,
)
from .regression_scores import coverage, crps, mae, quantile_calibration, rmse, width
from .robustness import corruption_mean, mean_corruption_error
from .scores import accuracy, brier, mean_iou, nll, top_k
from .selection import aurc, e_aurc, risk_at_coverage, risk_coverage
from .table import METRICS, Metric

__all__ = [
    "BINS",
    "METRICS",
    "Metric",
    "Reliability",
    "accuracy",
    "adaptive_ece",
    "agreement",
    "aleatoric",
    "aupr",
    "auroc",
    "aurc",
    "brier",
    "class_bins",
    "classwise_ece",
    "corruption_mean",
    "coverage",
    "crps",
    "disagreement",
    "disagreement_by_error",
    "disagreement_with_base",
    "e_aurc",
    "ece",
    "entropy",
    "fpr95",
    "mae",
    "mce",
    "mean_corruption_error",
    "mean_iou",
    "mutual_information",
    "nll",
    "pairwise_kl",
    "quantile_calibration",
    "reliability",
    "risk_at_coverage",
    "risk_coverage",
    "rmse",
    "top_k",
    "width",
]
