"""One function per chart of the page: groups of runs in, a figure out; None where the runs lack what it shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...results.store import Group
from ..figure import Figure, Styles
from .calibration import reliability_chart
from .diversity import agreement_chart, member_diversity_chart, methods_agreement_chart
from .outside import outside_histograms_chart, roc_chart
from .quality import ranking_chart, risk_coverage_chart, trade_off_chart, training_curves_chart
from .regression import coverage_curve_chart, error_by_deviation_chart, predictions_against_targets_chart
from .shift import shift_accuracy_chart, shift_ece_chart, shift_rmse_chart
from .sweeps import sweeps_chart
from .uncertainties import uncertainty_parts_chart


@dataclass(frozen=True)
class Kind:
    """A row of CHARTS: the function, the task it is for ("any": both) and what is said where it is left out."""

    function: Callable[[Sequence[Group], Styles], Figure | None]
    task: str
    absent: str


_NO_SHIFT = "The study has no shifted data, so there are no charts of corruptions."

_NO_OUTSIDE = "The study has no out-of-distribution (OOD) data, so there are no charts of OOD detection: see --outside."

_NO_COLUMNS = "The runs stored no finite values for each example, so charts made from them are left out."

CHARTS: dict[str, Kind] = {
    "ranking": Kind(ranking_chart, "any", ""),
    "trade_off": Kind(trade_off_chart, "any", "No run has both a quality and a cost, so their trade-off is left out."),
    "sweeps": Kind(sweeps_chart, "any", ""),
    "reliability": Kind(reliability_chart, "classification", _NO_COLUMNS),
    "predictions_against_targets": Kind(predictions_against_targets_chart, "regression", _NO_COLUMNS),
    "coverage_curve": Kind(
        coverage_curve_chart, "regression", "No run has variances, so the check of intervals is left out."
    ),
    "error_by_deviation": Kind(error_by_deviation_chart, "regression", ""),
    "shift_accuracy": Kind(shift_accuracy_chart, "classification", _NO_SHIFT),
    "shift_ece": Kind(shift_ece_chart, "classification", _NO_SHIFT),
    "shift_rmse": Kind(shift_rmse_chart, "regression", ""),
    "outside_histograms": Kind(outside_histograms_chart, "any", _NO_OUTSIDE),
    "roc": Kind(roc_chart, "any", _NO_OUTSIDE),
    "risk_coverage": Kind(risk_coverage_chart, "classification", _NO_COLUMNS),
    "diversity": Kind(
        member_diversity_chart,
        "classification",
        "No method has several members with stored labels, so charts of diversity are left out.",
    ),
    "agreement": Kind(agreement_chart, "classification", ""),
    "methods_agreement": Kind(methods_agreement_chart, "classification", ""),
    "uncertainty_parts": Kind(uncertainty_parts_chart, "any", ""),
    "training_curves": Kind(training_curves_chart, "any", "The runs stored no training curves, so they are left out."),
}
