"""Every table and figure of the papers, by name: "packed/table11"."""

from __future__ import annotations

from ..report.claims import Claim
from . import fort, masksembles, mimo, packed

CLAIMS: dict[str, Claim] = {claim.name: claim for paper in (masksembles, packed, mimo, fort) for claim in paper.ITEMS}
