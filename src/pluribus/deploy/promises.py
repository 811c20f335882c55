"""What a trained ensemble can promise, from calibration rows: scaled variances, sets, intervals, a threshold.

The rows are `data.calibration`: neither training nor the choice of an epoch or a setting has seen them. What is kept of
them is one line of numbers each (`Evidence`), so that a promise can be changed without predicting or training again.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._common.untrusted import Finite, Number, check_shape
from ..core.ensemble import Ensemble
from ..data.dataset import Data, Split
from ..uncertainty.abstention import Threshold, abstain
from ..uncertainty.calibration import Calibrated, calibrate
from ..uncertainty.calibration_maps import TEMPERATURES, Temperature, Variance
from ..uncertainty.checks import check_share
from ..uncertainty.classification import Classification
from ..uncertainty.conformal_prediction import INTERVALS, SETS, Conformal, conformal
from ..uncertainty.regression import Regression
from .cascading import cascade
from .stages import Cascade

ROWS = 256  # that are predicted at once

MOST = 10_000  # calibration rows that are used: more change a promise by less than a tenth of a point

COVERAGE, RISK = 0.9, 0.05  # that are promised where nothing else is asked for

RISKS = (0.5, 0.3, 0.2, 0.15, 0.1, 0.07, 0.05, 0.03, 0.02, 0.01)

SHAPE = {
    "kind": str,
    "nonconformity": ([Number], [[Number]]),
    "scale?": (None, Finite),
    "score?": [Finite],
    "wrong?": [int],
}


@dataclass(frozen=True)
class Evidence:
    """What calibration rows say of an ensemble.

    Args:
        kind: of the sets or intervals, as for `pb.conformal`
        nonconformity: of each row's truth: (rows) or (rows, outputs)
        scale: the factor of variances, or the temperature; None: as they are
        score, wrong: of classification, 1 - confidence and whether the label is wrong: (rows)
    """

    kind: str
    nonconformity: Tensor
    scale: float | None = None
    score: Tensor | None = None
    wrong: Tensor | None = None

    def calibrated(self) -> Calibrated | None:
        """What scales a prediction, or None."""
        return calibrated_by(self.scale, classes=self.score is not None)

    def apply(self, prediction: Any) -> Any:
        """The calibrated prediction: what sets, intervals and the threshold are for."""
        calibrated = self.calibrated()
        return prediction if calibrated is None else calibrated.apply(prediction)

    def conformal(self, coverage: float) -> Conformal:
        """Sets or intervals with this coverage, for calibrated predictions."""
        one = torch.ones((), dtype=torch.float64)
        empty = Conformal(None, self.kind, coverage, one, len(self.nonconformity), scores=self.nonconformity)
        return empty.at(coverage)

    def threshold(self, risk: float) -> Threshold:
        """Below it answers are wrong at most as often as `risk`; an error names the risk that can be had."""
        assert self.score is not None and self.wrong is not None
        right_is_zero = Classification.from_probabilities(torch.tensor([[[1.0, 0.0]]]).repeat(1, len(self.score), 1))
        return dataclasses.replace(abstain(right_is_zero, self.wrong, risk, score=self.score), score="msp")

    def least_risk(self, above: float) -> Threshold | None:
        """The threshold for the least of RISKS above this one that can be promised.

        Risks are tried from the largest down until one fails: tests in an order that is fixed before keep their level.
        """
        found = None
        for risk in (each for each in RISKS if each > above):
            try:
                found = self.threshold(risk)
            except ValueError:
                break
        return found

    def plain(self) -> dict[str, Any]:
        """As plain values, for a record."""
        values = {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}
        known = {key: value for key, value in values.items() if value is not None}
        return {key: value.tolist() if isinstance(value, Tensor) else value for key, value in known.items()}


def read_evidence(found: Any, classes: bool) -> Evidence:
    """The evidence of a record; a ValueError says what is wrong with it."""
    check_shape(found, SHAPE, 'its "evidence"')
    if found["kind"] not in (SETS if classes else INTERVALS) or not found["nonconformity"]:
        raise ValueError(f'its "evidence" makes no sense: {found["kind"]!r} of {len(found["nonconformity"])} rows')
    try:
        scores = torch.tensor(found["nonconformity"], dtype=torch.float64)
    except ValueError as error:
        raise ValueError(f'its "evidence" is not a table of numbers ({error})') from None
    lengths = {len(scores), *(len(found.get(name, ())) for name in ("score", "wrong") if classes)}
    if bool(scores.isnan().any()) or len(lengths) != 1 or set(found.get("wrong", ())) - {0, 1}:
        raise ValueError('its "evidence" makes no sense: each row needs its numbers')
    if not classes:
        return Evidence(found["kind"], scores, found.get("scale"))
    score, wrong = torch.tensor(found["score"], dtype=torch.float64), torch.tensor(found["wrong"])
    return Evidence(found["kind"], scores, found.get("scale"), score, wrong)


def calibrated_by(scale: float | None, classes: bool) -> Calibrated | None:
    """What applies a temperature, or a factor of variances."""
    if scale is None:
        return None
    fitted = Temperature(scale) if classes else Variance(scale)
    return Calibrated(None, "", "before" if classes else "", fitted, [], 0, 0)


def find_cascade(ensemble: Ensemble, data: Data, margin: float) -> tuple[Cascade, Split]:
    """The cascade of a trained ensemble, from half of the calibration rows, and the other half."""
    half = len(data.calibration) // 2
    x, y = data.calibration.take(slice(half, half + MOST))[:]
    return cascade(ensemble, (data.normalise(x), y), margin=margin), data.calibration.take(slice(half))


def gather_evidence(ensemble: Ensemble | Cascade, data: Data, rows: Split | None = None) -> Evidence | None:
    """What the calibration rows of the data say of a trained ensemble; None where there are none.

    Variances are multiplied by the factor that fits them best; intervals of so many standard deviations do not depend
    on it, so that the same rows serve both. Probabilities are scaled by one temperature; one number from all rows
    changes what sets and thresholds promise by less than chance does (`benchmarks/coverage.py` counts it).

    Args:
        rows: of the data, to use in place of all calibration rows
    """
    held = (data.calibration if rows is None else rows).take(slice(MOST))
    if not len(held):
        return None
    prediction: Any = ensemble.predict((data.normalise(x), y) for x, y in held.batches(ROWS))
    scale = None if isinstance(ensemble, Cascade) else find_scale(prediction, held.y)
    calibrated = calibrated_by(scale, classes=not isinstance(prediction, Regression))
    return evidence_of(prediction if calibrated is None else calibrated.apply(prediction), held.y, scale)


def find_scale(prediction: Any, target: Tensor) -> float | None:
    """The factor of variances; or the temperature, where it lowers the held-out NLL by more than chance does.

    Where every label is right, no temperature is the best: the search would end at its limit, with certainty.
    """
    if isinstance(prediction, Regression):
        return calibrate(prediction, target).scaling.factor
    fitted = calibrate(prediction, target, method="temperature", when="before")
    row = next(row for row in fitted.table if row["method"] == "temperature")
    found: float = fitted.scaling.value
    return found if row["gain"] > row["gain_error"] and found > TEMPERATURES[0] else None


def evidence_of(prediction: Any, target: Tensor, scale: float | None = None) -> Evidence:
    """What rows say of a prediction, which is calibrated by this scale already."""
    promise = conformal(prediction, target, COVERAGE)
    assert promise.scores is not None
    if isinstance(prediction, Regression):
        return Evidence(promise.kind, promise.scores, scale)
    wrong = (prediction.label != target).long()
    return Evidence(promise.kind, promise.scores, scale, prediction.score("msp").double(), wrong)


def plain_promise(promise: Conformal) -> dict[str, Any]:
    """Sets or intervals as plain values, for a record."""
    numbers = {"quantile": promise.quantile.tolist(), "most": promise.most.tolist()}
    return {"kind": promise.kind, "coverage": promise.coverage, "examples": promise.examples, **numbers}


def check_promises(where: str, task: str, coverage: float | None, risk: float | None) -> None:
    """Refuse what no rows could promise, before anything is trained."""
    for name, value in {"--coverage": coverage, "--risk": risk}.items():
        if value is not None:
            check_share(where, name, value)
    if risk is not None and task != "classification":
        raise ValueError(f"{where} --risk: only classification has a threshold. For regression, use --coverage.")


def promises(evidence: Evidence, coverage: float, risk: float | None) -> dict[str, Any]:
    """The entries of a record for this coverage and risk: what cannot be had is None, and the reason is beside it.

    Args:
        risk: None: RISK, or the least above it that can be had; a number is kept to, or no row is accepted
    """
    found: dict[str, Any] = {"conformal": None, "threshold": None}
    try:
        found["conformal"] = plain_promise(evidence.conformal(coverage))
    except ValueError as error:
        found["no_conformal"] = str(error)
    return found if evidence.score is None else found | find_threshold(evidence, risk)


def find_threshold(evidence: Evidence, risk: float | None) -> dict[str, Any]:
    """The threshold for the risk; where that cannot be had, why, and which risk can."""
    wanted = RISK if risk is None else risk
    try:
        return {"threshold": dataclasses.asdict(evidence.threshold(wanted))}
    except ValueError as error:
        reason = str(error).replace("threshold of given", "threshold of msp")  # the scores of calibration rows
    found = evidence.least_risk(wanted)
    rows = len(evidence.nonconformity)
    if found is None:
        return {"threshold": None, "no_threshold": f"no row is accepted: {reason}"}
    needed = math.ceil(math.log((1 - found.confidence) / found.candidates) / math.log1p(-wanted) / found.coverage)
    few = (
        f"{rows:,} calibration rows are too few to guarantee an error of at most {wanted:g}: that needs about "
        f"{max(needed, rows + 1):,} or more"
    )
    if risk is None and found.coverage < 1:  # one that accepts every row selects nothing
        said = f"{few}. The threshold guarantees at most {found.risk:g}."
        return {"threshold": dataclasses.asdict(found), "no_threshold": said}
    can = f"--risk {found.risk:g} can be guaranteed, and accepts {found.coverage:.0%} of the rows"
    return {"threshold": None, "no_threshold": f"no row is accepted: {few}. {can}."}
