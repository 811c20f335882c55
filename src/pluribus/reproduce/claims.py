"""An item of a paper: its claim as a sentence, the paper's figures, the experiment, and the check."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Protocol

from .experiments.stored_parts import SCALES, Context
from .verdicts import ClaimVerdict

PAPERS = {
    "masksembles": "Durasov et al., Masksembles for Uncertainty Estimation",
    "packed": "Laurent et al., Packed-Ensembles for Efficient Uncertainty Estimation",
    "mimo": "Havasi et al., Training independent subnetworks for robust prediction",
    "fort": "Fort et al., Deep Ensembles: A Loss Landscape Perspective",
}


class Experiment(Protocol):
    """What an item runs: computed where it is not stored yet."""

    @property
    def name(self) -> str:
        """Of its folder."""

    def carry_out(self, context: Context) -> Any:
        """What the check is given."""


@dataclass(frozen=True)
class Claim:
    """An item.

    Args:
        paper, item: "packed" and "table11"
        title: where it stands and what it shows
        says: the claim as a sentence
        published: the paper's figures
        settings: how the paper did it: what `--scale paper` runs
        costs: what each scale costs, by its name
        experiment: what is run
        check: from what the experiment gave to a verdict
        reduced: the scales at which networks or data are smaller than the paper's
        notes: where the paper contradicts itself or is silent, and what is done about it
    """

    paper: str
    item: str
    title: str
    says: str
    _: KW_ONLY
    experiment: Experiment
    check: Callable[[Any, Mapping[str, Any]], ClaimVerdict]
    published: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    costs: Mapping[str, str] = field(default_factory=dict)
    reduced: tuple[str, ...] = ("smoke", "laptop")
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """How it is asked for: "packed/table11"."""
        return f"{self.paper}/{self.item}"

    @property
    def exact(self) -> bool:
        """Whether it is computed, and nothing is trained."""
        return self.costs is EXACT

    def judge(self, found: Any) -> ClaimVerdict:
        """The verdict on what the experiment gave."""
        return self.check(found, self.published)


EXACT = dict.fromkeys(SCALES, "seconds: only computed, nothing is trained")
