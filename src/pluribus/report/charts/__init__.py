"""One function per chart of the page: groups of runs in, a figure out; None where the runs lack what it shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...results.store import Group
from ..figure import Figure, Styles
from .outside import outside_histograms_chart, roc_chart, shift_chart
from .quality import risk_coverage_chart, training_curves_chart
from .sweeps import capacity_chart, sweeps_chart
from .uncertainties import (
    coverage_curve_chart,
    error_by_deviation_chart,
    member_diversity_chart,
    methods_agreement_chart,
    predictions_against_targets_chart,
    reliability_chart,
    uncertainty_parts_chart,
)


@dataclass(frozen=True)
class Kind:
    """A row of CHARTS: the function, the task it is for ("any": both) and what is said where it is left out."""

    function: Callable[[Sequence[Group], Styles], Figure | None]
    task: str
    absent: str


_NO_COLUMNS = "The runs stored no finite values for each example, so charts made from them are left out."
_NO_OUTSIDE = "The study has no out-of-distribution (OOD) data, so there are no charts of OOD detection: see --outside."

CHARTS: dict[str, Kind] = {
    "reliability": Kind(reliability_chart, "classification", _NO_COLUMNS),
    "predictions_against_targets": Kind(predictions_against_targets_chart, "regression", _NO_COLUMNS),
    "coverage_curve": Kind(
        coverage_curve_chart, "regression", "No run has variances, so the check of intervals is left out."
    ),
    "error_by_deviation": Kind(error_by_deviation_chart, "regression", ""),
    "risk_coverage": Kind(risk_coverage_chart, "classification", _NO_COLUMNS),
    "roc": Kind(roc_chart, "any", _NO_OUTSIDE),
    "outside_histograms": Kind(outside_histograms_chart, "any", _NO_OUTSIDE),
    "shift": Kind(shift_chart, "any", "The study has no shifted data, so there is no chart of corruptions."),
    "diversity": Kind(
        member_diversity_chart,
        "classification",
        "No method has several members with stored labels, so the chart of diversity is left out.",
    ),
    "methods_agreement": Kind(methods_agreement_chart, "classification", ""),
    "uncertainty_parts": Kind(uncertainty_parts_chart, "any", ""),
    "capacity": Kind(capacity_chart, "any", ""),
    "sweeps": Kind(sweeps_chart, "any", ""),
    "training_curves": Kind(training_curves_chart, "any", "The runs stored no training curves, so they are left out."),
}
