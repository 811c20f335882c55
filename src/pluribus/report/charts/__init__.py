"""One function per chart of the page: groups of runs in, a figure out; None where the runs lack what it shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...results.store import Group
from ..figure import Figure, Styles
from .calibration import reliability
from .diversity import agreement, diversity, methods_agreement
from .outside import outside_histograms, roc
from .quality import ranking, risk_coverage, trade_off, training_curves
from .regression import coverage_curve, error_by_deviation, predictions_against_targets
from .shift import shift_accuracy, shift_ece, shift_rmse
from .sweeps import sweeps


@dataclass(frozen=True)
class Kind:
    """A row of CHARTS: the function, the task it is for ("any": both) and what is said where it is left out."""

    function: Callable[[Sequence[Group], Styles], Figure | None]
    task: str
    absent: str


_NO_SHIFT = "No shifted data were given, so there is nothing about corruptions."

_NO_OUTSIDE = "No outside data were given, so there is nothing about noticing them."

_NO_COLUMNS = "The runs stored no finite values for each example, so charts made from them are left out."

CHARTS: dict[str, Kind] = {
    "ranking": Kind(ranking, "any", ""),
    "trade_off": Kind(trade_off, "any", "No run has both a quality and a cost, so their trade-off is left out."),
    "sweeps": Kind(sweeps, "any", ""),
    "reliability": Kind(reliability, "classification", _NO_COLUMNS),
    "predictions_against_targets": Kind(predictions_against_targets, "regression", _NO_COLUMNS),
    "coverage_curve": Kind(
        coverage_curve, "regression", "No run has variances, so the check of intervals is left out."
    ),
    "error_by_deviation": Kind(error_by_deviation, "regression", ""),
    "shift_accuracy": Kind(shift_accuracy, "classification", _NO_SHIFT),
    "shift_ece": Kind(shift_ece, "classification", _NO_SHIFT),
    "shift_rmse": Kind(shift_rmse, "regression", ""),
    "outside_histograms": Kind(outside_histograms, "any", _NO_OUTSIDE),
    "roc": Kind(roc, "any", _NO_OUTSIDE),
    "risk_coverage": Kind(risk_coverage, "classification", _NO_COLUMNS),
    "diversity": Kind(diversity, "classification", "No method has several members with stored labels: no diversity."),
    "agreement": Kind(agreement, "classification", ""),
    "methods_agreement": Kind(methods_agreement, "classification", ""),
    "training_curves": Kind(training_curves, "any", "The runs stored no training curves."),
}
