"""How long runs will take, before they start: from one step of training and one of evaluation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from .._common.timing import time_once
from ..core.ensemble import Ensemble
from ..data.dataset import Data
from ..training.criteria import CRITERIA, USUAL
from .baselines import build_ensemble, recipe_of
from .judging import ROWS
from .run import load_data
from .settings import Run

FEW, LONG = 8, 0.05  # rows that are tried first, and the seconds from which on more rows would tell nothing new


def estimate_seconds(runs: Sequence[Run]) -> dict[str, float]:
    """About how long each run takes, by its name; runs of one kind are timed once."""
    seconds: dict[str, float] = {}
    for run in runs:
        if run.kind not in seconds:
            with torch.random.fork_rng(devices=[]):
                data = load_data(run)
                seconds[run.kind] = _time_run(run, data, build_ensemble(run, data))
    return {run.name: seconds[run.kind] for run in runs}


def _time_run(run: Run, data: Data, ensemble: Ensemble) -> float:
    threads = torch.get_num_threads()
    torch.set_num_threads(run.threads)
    try:
        plan = recipe_of(run, data)
        criterion = CRITERIA[plan.criterion or USUAL[ensemble.task]]
        repetition = getattr(ensemble, "batch_repetition", 1)

        def step(rows: int) -> None:
            x, y = data.train[: max(rows // repetition, 1)]
            ensemble.train().loss(data.normalise(x), y, criterion).backward()

        def answer(rows: int) -> None:
            with torch.no_grad():
                ensemble.eval()(data.normalise(data.test[:rows][0]))

        steps = math.ceil(len(data.train) / max(plan.batch_size // repetition, 1))
        training = plan.epochs * steps * _time(step, min(plan.batch_size, len(data.train)))
        return training + math.ceil(_rows_judged(run, data) / ROWS) * _time(answer, min(ROWS, len(data.test)))
    finally:
        torch.set_num_threads(threads)


def _time(work: Any, rows: int) -> float:
    """The seconds of some work on this many rows; measured on a few of them where it takes long."""
    device = torch.device("cpu")
    few = min(rows, FEW)
    work(few)  # what is done once is done now
    took = time_once(lambda: work(few), device)
    return took * rows / few if took > LONG else time_once(lambda: work(rows), device)


def _rows_judged(run: Run, data: Data) -> int:
    """How many rows a run predicts after its training."""
    parts = [data.test, data.validation, *data.outside.values(), *data.variants.values()]
    parts += [part for parts in data.shifted.values() for part in parts]
    made = len(run.corruptions) * len(run.severities) * run.shift_rows if data.kind == "images" else 0
    return sum(map(len, parts)) + made
