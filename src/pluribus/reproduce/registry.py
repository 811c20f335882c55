"""Every table and figure of the papers, by name: "packed/table11"."""

from __future__ import annotations

from . import fort, masksembles, mimo, packed
from .claims import Claim

CLAIMS: dict[str, Claim] = {claim.name: claim for paper in (masksembles, packed, mimo, fort) for claim in paper.ITEMS}
