"""Every table and figure of the papers, by name: "packed/table11"."""

from __future__ import annotations

from ..report.claims import Claim
from . import fort, masksembles, mimo, packed

CLAIMS: dict[str, Claim] = {claim.name: claim for paper in (masksembles, packed, mimo, fort) for claim in paper.ITEMS}

PAPERS = {
    "masksembles": "Durasov et al., Masksembles for Uncertainty Estimation",
    "packed": "Laurent et al., Packed-Ensembles for Efficient Uncertainty Estimation",
    "mimo": "Havasi et al., Training independent subnetworks for robust prediction",
    "fort": "Fort et al., Deep Ensembles: A Loss Landscape Perspective",
}
