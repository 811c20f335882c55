"""Material for the landscape's laboratory: runs that are trained and recorded here, or the members of an ensemble."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from inspect import signature
from pathlib import Path
from typing import Any

from .._common.untrusted import Finite, check_shape
from ..data.catalogue import load
from ..data.dataset import Data
from ..deploy.predictor import RECORD, load_predictor
from ..landscape.material import Material, RunTraining, data_rows
from ..landscape.recorded_training import trajectories
from ..models.by_name import usual as usual_model
from ..study.baselines import check_run, model_spec
from ..study.run import load_data
from ..study.settings import Run

EPOCHS, RATE, BATCH = 20, 1.6e-3, 64  # the rate of Fort et al.


def record_runs(
    run: Run, data: Data, runs: int, rows: int, say: Callable[[str], None], **settings: Any
) -> tuple[Material, Run]:
    """Runs of the network from different initialisations and orders of the rows, and the run with all that was chosen.

    Args:
        run: the data and the network ("auto": the SmallCNN of the paper for images that are large enough for it), and
            what of epochs, lr and batch_size is to be changed in `training`
        rows: training rows at most; half as many are judged on
        settings: of the material: grid, samples, steps, ...
    """
    if runs < 2:
        raise ValueError(f"landscape: needs at least 2 runs to compare, but --runs is {runs}.")
    usual = {"epochs": EPOCHS, "lr": RATE, "batch_size": BATCH}
    run = dataclasses.replace(run, model=_model(run, data), training=usual | dict(run.training))
    check_run(run, data)
    parts, epochs = data_rows(data, rows), int(run.training["epochs"])
    say(f"training {runs} runs of {epochs} epochs on {len(parts['train'][1]):,} rows")
    training = RunTraining(
        model_spec(run, data).build, epochs, float(run.training["lr"]), int(run.training["batch_size"])
    )
    found = trajectories(
        training.build, parts["train"], parts["test"], runs=runs, lr=training.lr, start=True, seed=run.seed,
        **training.options(epochs),
    )  # fmt: skip
    return Material(list(found), say=say, seed=run.seed, training=training, **parts, **settings), run


def read_members(
    folder: Path, rows: int, say: Callable[[str], None], *, model: str | None = None, **settings: Any
) -> tuple[Material, Run, Data]:
    """The members of an ensemble that `pluribus train` wrote, with the data that it was trained on.

    Args:
        model: as for `load_predictor`
    """
    predictor = load_predictor(folder, model=model)
    run, ensemble = _run_of(predictor.record, folder), predictor.ensemble
    if ensemble.size < 2:
        raise ValueError(f"landscape: needs at least 2 members to compare, but {str(folder)!r} has {ensemble.size}.")
    data = load_data(run)
    if list(data.shape) != predictor.record["shape"] or list(data.classes) != predictor.record["classes"]:
        raise ValueError(
            f"landscape: {run.data} is not the data that {str(folder)!r} was trained on: its rows have the shape "
            f"{data.shape} and {len(data.classes)} classes. Train again."
        )
    members = [ensemble.member(i).eval() for i in range(ensemble.size)]
    return Material(members, say=say, seed=run.seed, **data_rows(data, rows), **settings), run, data


RUN = {
    **{"data": str, "model": str, "method": str, "label": str, "recipe": str, "device": str},
    **{"seed": int, "size": (None, int), "shift_rows": int, "threads": int, "width": Finite, "dropout": (None, Finite)},
    **{"settings": {str: Any}, "training": {str: Any}, "corruptions": [str], "severities": [int]},
    "source": {str: (None, str, int, [str])},
    "weights?": str,
}


def _run_of(record: Mapping[str, Any], folder: Path) -> Run:
    """The run that a folder's record tells of."""
    try:
        check_shape(record.get("run"), RUN, "its run")
        unknown = (
            record["run"].keys() - {key.rstrip("?") for key in RUN}
            | record["run"]["source"].keys() - signature(load).parameters.keys()
        )
        if unknown:
            raise ValueError(f"its run has {', '.join(sorted(unknown))}")
        if record["run"]["source"].get("image_size") not in (None, *record.get("shape", ())[1:]):
            raise ValueError(f"its images are not of the size {record['run']['source']['image_size']}")
    except ValueError as error:
        raise ValueError(f"landscape: {str(folder / RECORD)!r} is damaged ({error}). Train again.") from error
    source = {name: value for name, value in record["run"]["source"].items() if name != "unpack_limit"}
    return Run(**{**record["run"], "source": source})  # limits are for whoever reads the files to raise


def _model(run: Run, data: Data) -> str:
    if run.model != "auto":
        return run.model
    return "small_cnn" if data.kind == "images" and data.shape[-1] >= 16 else usual_model(tuple(data.shape))
