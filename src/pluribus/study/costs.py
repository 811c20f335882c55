"""What a prediction costs as it is deployed: the ensemble frozen, checked, and timed in turn with one network.

Four networks take turns for one row and for 32: the frozen ensemble, one network frozen, the same network as PyTorch
runs it, and the ensemble as it was trained. What the machine does meanwhile disturbs all of them alike.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .._common.timing import medians
from ..core.ensemble import Ensemble
from ..data.dataset import Data
from ..deploy.budget.counting import activations, bytes_of, cost, training_mult_adds
from ..deploy.cascading import cascade, rows_needed
from ..deploy.freezing.call_signature import Example
from ..deploy.freezing.frozen import Frozen, freeze
from ..deploy.freezing.verification import agrees
from ..deploy.stages import Cascade
from ..methods import single
from ..methods.method_info import REFUSALS, first_line
from ..results.store import BASELINE
from ..training.criteria import CRITERIA, USUAL
from ..uncertainty.evaluation import evaluate
from .baselines import model_spec
from .settings import Run

ROWS = (1, 32)  # of the batches that are timed

COUNTED = 32  # rows for which mult-adds and memory are counted

CHECKED = 16  # further rows, for which a frozen network must give the ensemble's answers


def measure_cost(run: Run, data: Data, ensemble: Ensemble) -> dict[str, Any]:
    """The ensemble's cost as it is trained and, under "deployed", as `pb.freeze` makes it."""
    device = next((p.device for p in ensemble.parameters()), torch.device("cpu"))
    x = data.normalise(data.test[: min(COUNTED + CHECKED, len(data.test))][0]).to(device)
    network = model_spec(run, data).build().eval().to(device)
    own, one = cost(ensemble, x), cost(network, x)
    deployed, trained_latency = _deployed(ensemble.eval(), network, x, is_one=run.method == BASELINE)
    return {
        **dataclasses.asdict(own),
        "latency": trained_latency[0],
        "latency_rows": min(COUNTED, len(x)),
        "relative": {
            "parameters": own.parameters / one.parameters,
            "mult_adds": own.mult_adds / max(one.mult_adds, 1),
            "latency": trained_latency[1],
            "training": _training(run, data, ensemble, device),
        },
        "deployed": deployed,
    }


@torch.no_grad()
def _deployed(
    ensemble: Ensemble, network: nn.Module, x: Tensor, is_one: bool
) -> tuple[dict[str, Any], tuple[float, float]]:
    """The deployed cost, and the latency of the ensemble as it is trained, in seconds and relative to the network.

    Args:
        is_one: whether the ensemble is that one network, whose cost is 1 and not what two measurements make of it
    """
    seconds, relative, plain = dict[str, float](), dict[str, float](), dict[str, float]()
    for rows in ROWS:
        batch = x[:rows]
        frozen, why = freeze_checked(ensemble, batch, x[-CHECKED:])
        base = frozen if is_one else freeze_checked(single(network).eval(), batch, x[-CHECKED:])[0]
        runs = [partial(made, batch) for made in (frozen, base, network, ensemble)]
        times = medians(runs, x.device)
        seconds[str(rows)], plain[str(rows)] = times[0], times[0] / times[2]
        relative[str(rows)] = 1.0 if is_one else times[0] / times[1]
    if not why:  # counts depend on the form that was fastest here; by rule it is the same everywhere
        frozen = freeze(ensemble, batch, choose="rule")
    own, one = cost(frozen, batch), cost(base, batch)
    ratios = {
        "parameters": own.parameters / max(one.parameters, 1),
        "mult_adds": own.mult_adds / max(one.mult_adds, 1),
        "latency": relative,
        "plain_latency": plain,
    }
    held = frozen.count_bytes() if isinstance(frozen, Frozen) else bytes_of([*frozen.parameters(), *frozen.buffers()])
    memory = held + activations(frozen, ((batch,), {})).peak
    found = {"frozen": not why, "why": why, "parameters": own.parameters, "mult_adds": own.mult_adds}
    return {**found, "memory": memory, "latency": seconds, "relative": ratios}, (times[3], times[3] / times[2])


def freeze_checked(ensemble: Ensemble, example: Tensor, others: Tensor) -> tuple[nn.Module, str]:
    """The frozen ensemble once it has given the ensemble's answers for other rows too; or the ensemble, and why."""
    try:
        frozen = freeze(ensemble, example)
    except REFUSALS as error:
        return ensemble, first_line(error)
    if frozen.unchanged:
        return ensemble, frozen.unchanged
    if not agrees(frozen, ensemble, Example(others)):
        return ensemble, "the frozen network gives different outputs"
    return frozen, ""


def _training(run: Run, data: Data, ensemble: Ensemble, device: torch.device) -> float:
    """The mult-adds of an epoch of training, relative to those of the plain single network."""
    x, y = data.train[: min(COUNTED, len(data.train))]
    x, y, criterion = data.normalise(x).to(device), y.to(device), CRITERIA[USUAL[ensemble.task]]
    network = single(model_spec(run, data).build().to(device))
    network.task = ensemble.task
    return training_mult_adds(ensemble, x, y, criterion) / max(training_mult_adds(network, x, y, criterion), 1)


# ---------------------------------------------------------------- the cascade of the members


MARGINS = (0.01, 0.02, 0.05)  # of accuracy, the least that the calibration rows can promise

CONFIDENCE = 0.9


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
        both: list[Any] = [freeze(one, tx[:COUNTED]) for one in (made, ensemble)]
    except REFUSALS:
        return None
    assert isinstance(made, Cascade) and made.report is not None
    used = torch.cat([made.answers(part)["members"] for part in tx.split(256)])
    times = medians([partial(one, tx[:COUNTED]) for one in both], tx.device)
    metrics = evaluate(made.predict(tx, batch_size=256), ty, metrics=["accuracy", "nll", "brier", "ece"])
    shares = {"mult_adds": made.report.cost.value, "latency": times[0] / times[1]}
    return {"margin": margin, "members": float(used.double().mean()), "metrics": metrics, "cost": shares}


def least_margin(rows: int) -> float | None:
    """The least of MARGINS that so many validation rows can promise."""
    return next((margin for margin in MARGINS if 2 * rows_needed(margin, CONFIDENCE) <= rows), None)
