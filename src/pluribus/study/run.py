"""One run, from its data to its record: what it gives depends on the run alone, not on where or when it runs."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..core.ensemble import Ensemble
from ..data.catalogue import load
from ..data.dataset import Data, NormalisedSplit
from ..deploy.predictor import Predictor, make_predictor
from ..training.batching import mix_seeds
from ..training.fitting import fit
from .baselines import build_ensemble, entry, own_model_spec, recipe_of
from .judging import judge
from .progress import progress_callback, read_progress
from .settings import Run


def compute(
    run: Run, folder: Path | None = None, keep: Path | None = None
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Train and judge: the record and the columns of a result file (see `results`).

    Args:
        folder: where the run keeps its last whole epoch, from which it goes on after a stop
        keep: where the trained predictor is stored; None: nowhere
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(run.threads)
    try:
        with torch.random.fork_rng(devices=[]):
            data = load_data(run)
            earlier = read_progress(folder) if folder is not None else None
            before = earlier.seconds if earlier else 0.0
            callbacks = [] if folder is None else [progress_callback(folder, before)]
            ensemble, history, seconds = train(run, data, folder=folder, callbacks=callbacks)
            record, columns = judge(run, data, ensemble, history, before + seconds)
            if keep is not None:
                figures = {name: found["value"] for name, found in record["metrics"].items()}
                predictor_of(run, data, ensemble, figures).save(keep)
            return record, columns
    finally:
        torch.set_num_threads(threads)


def train(run: Run, data: Data, **options: Any) -> tuple[Ensemble, Any, float]:
    """A new ensemble after training, its history, and how long that took; options as for `fit`."""
    torch.manual_seed(mix_seeds(run.seed, 1))
    ensemble = build_ensemble(run, data)
    train = NormalisedSplit(data.train, data)
    validation = NormalisedSplit(data.selection, data) if len(data.selection) else None
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="fit:", category=RuntimeWarning)  # it is an error here
        history = fit(
            ensemble, train, validation, recipe=recipe_of(run, data), seed=run.seed,
            device=None if run.device == "cpu" else run.device, **options,
        )  # fmt: skip
    if history.failure:
        raise ValueError(history.failure)
    finished = entry(run.method).baseline.finish(ensemble)
    finished.task, finished.class_dim = ensemble.task, ensemble.class_dim
    return finished, history, history.seconds


def predictor_of(run: Run, data: Data, ensemble: Ensemble, figures: Mapping[str, float], **promise: Any) -> Predictor:
    """The predictor of a trained run, which says of itself how it was made; `promise` as for `make_predictor`."""
    about = {"method": run.method, "data": run.data, "run": run.plain(), "figures": dict(figures)}
    return make_predictor(own_model_spec(run, data), data, ensemble, about, **promise)


def load_data(run: Run) -> Data:
    """The run's data; the last one stays in memory for the next run."""
    return _load(run.data, json.dumps(dict(run.source), sort_keys=True))


def load_one_target(command: str, run: Run) -> Data:
    """The data of a run, for a command that takes one target for each row."""
    found = load_data(run)
    if found.targets or found.task == "segmentation":
        what = f"{len(found.targets)} targets" if found.targets else "masks"
        raise ValueError(
            f"{command}: takes data with one target for each row, but {run.data} has {what}. Use pluribus train."
        )
    return found


@lru_cache(maxsize=1)
def _load(spec: str, source: str) -> Data:
    return load(spec, **json.loads(source))
