"""What a trained ensemble would give as a cascade, for a row of the comparison: metrics on test rows, and cost."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from .._common.timing import medians
from ..core.ensemble import Ensemble
from ..data.dataset import Data
from ..deploy.cascading import cascade, rows_needed
from ..deploy.freezing.frozen import freeze
from ..deploy.stages import Cascade
from ..methods.method_info import REFUSALS
from ..uncertainty.evaluation import evaluate

MARGINS = (0.01, 0.02, 0.05)  # of accuracy, the least that the calibration rows can promise

CONFIDENCE = 0.9

ROWS = 32  # of the batch that is timed

NAMES = ("accuracy", "nll", "brier", "ece")


def measure_cascade(data: Data, ensemble: Ensemble) -> dict[str, Any] | None:
    """Margin, metrics and cost relative to the whole ensemble; None where there is no cascade of it."""
    if data.task != "classification" or ensemble.joint or not ensemble.own or ensemble.size < 2:
        return None
    margin = least_margin(len(data.calibration))
    if margin is None:
        return None
    x, y = data.calibration[:]
    tx, ty = data.test[:]
    tx = data.normalise(tx)
    try:
        made = cascade(ensemble, (data.normalise(x), y), margin=margin, confidence=CONFIDENCE)
        both: list[Any] = [freeze(one, tx[:ROWS]) for one in (made, ensemble)]
    except REFUSALS:
        return None
    assert isinstance(made, Cascade) and made.report is not None
    used = torch.cat([made.answers(part)["members"] for part in tx.split(256)])
    times = medians([partial(one, tx[:ROWS]) for one in both], tx.device)
    metrics = evaluate(made.predict(tx, batch_size=256), ty, metrics=list(NAMES))
    shares = {"mult_adds": made.report.cost.value, "latency": times[0] / times[1]}
    return {"margin": margin, "members": float(used.double().mean()), "metrics": metrics, "cost": shares}


def least_margin(rows: int) -> float | None:
    """The least of MARGINS that so many validation rows can promise."""
    return next((margin for margin in MARGINS if 2 * rows_needed(margin, CONFIDENCE) <= rows), None)
