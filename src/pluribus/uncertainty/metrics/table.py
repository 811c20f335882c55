"""METRICS: every metric under its name, with the columns that it needs, which way is better, and its source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from .calibration_errors import adaptive_ece, classwise_ece, ece, mce
from .detection import aupr, auroc, fpr95
from .diversity import (
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
from .selection import aurc, e_aurc, risk_at_coverage


@dataclass(frozen=True)
class Metric:
    """A row of METRICS.

    Args:
        needs: the columns it is a function of, in order
        task: "classification", "dense", "regression", "any"; "ood" and "shift" compare several predictions
        paper: where it comes from, or the convention that is followed
        each: for a mean over examples, what it is the mean of: columns in, (examples) out

    >>> METRICS["ece"].needs, METRICS["ece"].better
    (('confidence', 'correct'), 'lower')
    """

    function: Callable[..., float]
    needs: tuple[str, ...]
    better: Literal["higher", "lower", "neither"]
    task: Literal["classification", "dense", "regression", "any", "ood", "shift"]
    paper: str
    each: Callable[..., Tensor] | None = None


_SELECTIVE = ("msp", "error")

METRICS: dict[str, Metric] = {
    "accuracy": Metric(accuracy, ("label", "target"), "higher", "classification", "share of correct labels", torch.eq),
    "top_5": Metric(top_k, ("rank",), "higher", "classification", "Russakovsky et al. 2015"),
    "nll": Metric(
        nll, ("log_likelihood",), "lower", "any", "Lakshminarayanan et al. 2017; of the mean probability", torch.neg
    ),
    "brier": Metric(
        brier, ("squared_error",), "lower", "classification", "Brier 1950; summed over classes", Tensor.double
    ),
    "ece": Metric(ece, ("confidence", "correct"), "lower", "classification", "Guo et al. 2017; 15 equal-width bins"),
    "adaptive_ece": Metric(
        adaptive_ece, ("confidence", "correct"), "lower", "classification", "Nguyen and O'Connor 2015; 15 bins"
    ),
    "classwise_ece": Metric(
        classwise_ece, ("class_bins",), "lower", "classification", "Kull et al. 2019; Nixon et al. 2019; 15 bins"
    ),
    "mce": Metric(mce, ("confidence", "correct"), "lower", "classification", "Naeini et al. 2015; 15 bins"),
    "aurc": Metric(aurc, _SELECTIVE, "lower", "classification", "Geifman and El-Yaniv 2017"),
    "e_aurc": Metric(e_aurc, _SELECTIVE, "lower", "classification", "Geifman et al. 2019; the exact best order"),
    "risk_at_90": Metric(risk_at_coverage, _SELECTIVE, "lower", "classification", "Geifman and El-Yaniv 2017"),
    "entropy": Metric(entropy, ("total",), "neither", "classification", "entropy of the mean"),
    "aleatoric": Metric(aleatoric, ("aleatoric",), "neither", "classification", "mean entropy; Depeweg et al. 2018"),
    "mutual_information": Metric(
        mutual_information, ("epistemic",), "neither", "classification", "Fort et al. 2019, JSD; IDMI and OODMI"
    ),
    "disagreement": Metric(disagreement, ("member_label",), "neither", "classification", "Havasi et al. 2021"),
    "disagreement_by_error": Metric(
        disagreement_by_error, ("member_label", "target"), "neither", "classification", "Durasov et al. 2021, eq. 7"
    ),
    "disagreement_with_base": Metric(
        disagreement_with_base, ("member_label", "target"), "neither", "classification", "Fort et al. 2019, section 4.3"
    ),
    "pairwise_kl": Metric(pairwise_kl, ("pairwise_kl",), "neither", "classification", "Havasi et al. 2021"),
    "mean_iou": Metric(mean_iou, ("label", "target"), "higher", "dense", "Everingham et al. 2010"),
    "auroc": Metric(auroc, ("inside", "outside"), "higher", "ood", "Hendrycks and Gimpel 2017"),
    "aupr": Metric(aupr, ("inside", "outside"), "higher", "ood", "Hendrycks and Gimpel 2017; average precision"),
    "fpr95": Metric(fpr95, ("inside", "outside"), "lower", "ood", "Liang et al. 2018"),
    "cacc": Metric(corruption_mean, ("values",), "higher", "shift", "Hendrycks and Dietterich 2019"),
    "cnll": Metric(corruption_mean, ("values",), "lower", "shift", "Ovadia et al. 2019"),
    "cece": Metric(corruption_mean, ("values",), "lower", "shift", "Ovadia et al. 2019"),
    "mean_corruption_error": Metric(
        mean_corruption_error, ("errors", "baseline"), "lower", "shift", "mCE; Hendrycks and Dietterich 2019"
    ),
    "rmse": Metric(rmse, ("mean", "target"), "lower", "regression", "root of the mean squared error"),
    "mae": Metric(mae, ("mean", "target"), "lower", "regression", "mean absolute error"),
    "crps": Metric(
        crps, ("crps",), "lower", "regression", "Grimit et al. 2006; closed form of a Gaussian mixture", Tensor.double
    ),
    "coverage": Metric(
        coverage, ("lower", "upper", "target"), "neither", "regression", "of 90 % intervals: 0.9 is right"
    ),
    "width": Metric(width, ("lower", "upper"), "lower", "regression", "of 90 % intervals"),
    "quantile_calibration": Metric(
        quantile_calibration, ("cumulative",), "lower", "regression", "Kuleshov et al. 2018; 19 quantiles"
    ),
}
