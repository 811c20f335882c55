"""The papers, and the items of each: their claims, the papers' numbers, the experiments and the checks."""

from __future__ import annotations

from ..report.claims import COMPUTED
from .experiments.stored_parts import SCALES

PAPERS = {
    "masksembles": "Durasov et al., Masksembles for Uncertainty Estimation",
    "packed": "Laurent et al., Packed-Ensembles for Efficient Uncertainty Estimation",
    "mimo": "Havasi et al., Training independent subnetworks for robust prediction",
    "fort": "Fort et al., Deep Ensembles: A Loss Landscape Perspective",
}

EXACT = dict.fromkeys(SCALES, COMPUTED)
