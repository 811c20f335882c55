"""What an upgrade gave: every way with its figures, the best with its intervals, and what answers from now on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from .._common.text_tables import align_columns
from ..core.ensemble import Ensemble
from ..deploy.feature_distance import FeatureDistance
from ..deploy.freezing.frozen import Frozen
from ..deploy.promises import Evidence
from ..uncertainty.abstention import Threshold
from ..uncertainty.calibration import Calibrated
from ..uncertainty.conformal_prediction import Conformal
from ..uncertainty.evaluation import Comparison
from ..uncertainty.regression import Regression

NETWORK, SCALED, TUNED = "your network", "your network, scaled", "your network, fine-tuned"

GOALS = {"likelihood": "NLL", "abstain": "AURC", "ood": "OOD error (1 - AUROC)"}  # what is to be low


@dataclass
class Tried:
    """One way with what it gave."""

    name: str  # of the way
    stage: str = "at once"  # "at once" or "fine-tuned"
    members: int = 1
    chosen_by: float = float("inf")  # the goal's metric after scaling, on the rows that choose
    figures: Mapping[str, float] = field(default_factory=dict)  # metrics after scaling, on the rows that judge
    cost: float = 1.0  # mult-adds of one prediction, relative to the network's
    seconds: float = 0.0
    reason: str = ""  # why the way cannot be gone; then there are no figures


@dataclass
class Upgrade:
    """The result of `pb.upgrade`; `print(upgraded)` shows what was gained.

    `upgraded.predict(x)` gives the calibrated prediction and `upgraded.sets(x)` or `upgraded.intervals(x)` what holds
    the truth with the promised probability.

    Args:
        best: the way that is best on the rows that choose
        enough: whether the network itself, as it is or with its scale fitted, is not shown to be worse: then it is
            `ensemble`
        ensemble: what answers, in eval mode: for `pb.save`, `pb.export`, more training
        frozen: the same for inference alone, as fast as it gets; None where it cannot be frozen
        calibrated, conformal, threshold: around it, each fitted on validation rows
        gains: the paired differences of the goal's metric on the rows that judge: the best way less "your
            network", "your network, scaled" and, where it was tried, "your network, fine-tuned", with its scale fitted
        table: everything that was tried
        notes: what could not be done, and why
        rows: how many rows chose, promised and judged
        goal: what the best is best at: "likelihood", "ood" or "abstain"
        distance: where the best is the network with a `pb.feature_distance`, that distance
        limit: with outside data, the uncertainty that at most 5 % of rows like the validation rows exceed
        evidence: what the rows that promise say, for other promises; None where they say nothing

    >>> x = torch.randn(300, 4)
    >>> rows = x, x[:, :3].argmax(1)
    >>> upgraded = pb.upgrade(nn.Linear(4, 3), rows, rows, budget=0, methods=["multihead"])
    >>> upgraded.predict(x).mean.shape, list(upgraded.rows)
    (torch.Size([300, 3]), ['choose', 'promise', 'judge'])
    """

    best: str
    enough: bool
    ensemble: Ensemble
    frozen: Frozen | None
    calibrated: Calibrated
    conformal: Conformal | None
    threshold: Threshold | None
    gains: dict[str, Comparison]
    table: list[Tried]
    notes: list[str]
    rows: dict[str, int]
    goal: str = "likelihood"
    distance: FeatureDistance | None = None
    limit: float | None = None
    evidence: Evidence | None = None

    def predict(self, x: Any, batch_size: int | None = None) -> Any:
        """The calibrated prediction, for what `ensemble.predict` takes."""
        source: Any = self.calibrated.ensemble
        return self.calibrated.apply(source.predict(x, batch_size=batch_size))

    def sets(self, x: Any, batch_size: int | None = None) -> Tensor:
        """Which classes may be the true one, (batch, classes): with the promised probability it is among them."""
        return self._promise().sets(self.predict(x, batch_size))

    def intervals(self, x: Any, batch_size: int | None = None) -> tuple[Tensor, Tensor]:
        """The ends between which the true value lies with the promised probability."""
        return self._promise().intervals(self.predict(x, batch_size))

    def score(self, x: Any, batch_size: int | None = None) -> Tensor:
        """The uncertainty that the goal is reached by, (batch): the distance, or that of the calibrated prediction."""
        if self.distance is not None:
            return self.distance.score(x)
        return uncertainty(self.predict(x, batch_size))

    def unfamiliar(self, x: Any, batch_size: int | None = None) -> Tensor:
        """Which rows are less familiar than 95 % of the validation rows, as booleans: (batch)."""
        if self.limit is None:
            raise ValueError('upgrade: nothing was searched for unfamiliar rows. Give goal="ood" and outside=.')
        return self.score(x, batch_size) > self.limit

    def keep(self, x: Any, batch_size: int | None = None) -> Tensor:
        """Which rows are certain enough to answer at the promised risk, as booleans: (batch)."""
        if self.threshold is None:
            raise ValueError(f"upgrade: no risk is guaranteed: {'; '.join(self.notes)}.")
        given = self.threshold.score == "given"
        return self.threshold.keep(self.score(x, batch_size) if given else self.predict(x, batch_size))

    def _promise(self) -> Conformal:
        if self.conformal is None:
            raise ValueError(f"upgrade: no coverage is guaranteed: {'; '.join(self.notes)}.")
        return self.conformal

    @property
    def verdict(self) -> str:
        """What was gained, in two sentences."""
        judged = f"on {self.rows['judge']:,} rows that were not used to choose or fit anything"
        scaled, metric = self.gains.get(SCALED), GOALS[self.goal]
        if scaled is None:
            return "Your single network is enough: calibrated, it is the best candidate on the rows for selection."
        if self.enough:
            gain, how = scaled, "both calibrated"
            if scaled.high < 0:  # the scale of the network, fitted to few rows, made it worse
                gain, how = self.gains[NETWORK], "compared with your network as it is"
            return (
                f"Your single network is enough: {self.best}, the best candidate on the rows for selection, changes "
                f"the {metric} by {_interval(gain)} {judged}, {how}."
            )
        text = (
            f"{self.best}, is better: its {metric} is lower by {_interval(scaled, -1)} than that of your calibrated "
            f"network, and by {_interval(self.gains[NETWORK], -1)} than that of your network as given, "
            f"{judged}."
        )
        if (tuned := self.gains.get(TUNED)) is not None:
            differs = "lower by" if tuned.high < 0 else "higher by" if tuned.low > 0 else "not shown to be lower: by"
            text += (
                f" Compared with your network fine-tuned for as long, it is {differs} "
                f"{_interval(tuned, 1 if tuned.low > 0 else -1)}."
            )
        return text[0].upper() + text[1:]

    def explain(self) -> str:
        """The verdict, a table of the candidates, and the guarantees, as text."""
        tried = [one for one in self.table if not one.reason]
        second = "accuracy" if "accuracy" in tried[0].figures else "rmse"
        third = {"ood": "auroc", "abstain": "aurc"}.get(self.goal, "")
        rows = [
            {
                "": one.name,
                "stage": one.stage,
                "members": str(one.members),
                **{name: _four_digits(one.figures, name) for name in ("nll", second, third) if name},
                "cost": f"{one.cost:.2f}",
                "seconds": f"{one.seconds:.1f}",
            }
            for one in tried
        ]
        reasons: dict[str, list[str]] = {}
        for one in self.table:
            if one.reason:
                reasons.setdefault(one.reason, []).append(one.name)
        lines = [self.verdict, "", align_columns(rows, left=("", "stage"))]
        lines += [f"{', '.join(names)} cannot be used: {reason}" for reason, names in reasons.items()]
        uses = {"choose": "to select", "promise": "to set guarantees", "judge": "to evaluate"}
        counts = ", ".join(f"{count:,} {uses.get(what, what)}" for what, count in self.rows.items())
        lines += ["", f"Rows: {counts}. All scales are fitted; costs are relative to the mult-adds of your network."]
        around = [self.conformal, self.threshold]
        return "\n".join([*lines, *(part.explain() for part in around if part is not None), *self.notes])

    def __str__(self) -> str:
        return self.explain()


def uncertainty(prediction: Any) -> Tensor:
    """1 - confidence, or the total variance: what rows are refused by."""
    return prediction.total if isinstance(prediction, Regression) else prediction.score("msp")


def _four_digits(figures: Mapping[str, float], name: str) -> str:
    return f"{figures[name]:.4f}" if name in figures else ""


def _interval(found: Comparison, sign: int = 1) -> str:
    ends = sorted((sign * found.low, sign * found.high))
    return f"{sign * found.difference:.4f} [{ends[0]:.4f}, {ends[1]:.4f}]"
