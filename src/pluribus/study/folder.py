"""A study and its folder: what is missing there is run, what is there is kept, and another study is refused."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .._common.atomic import move_aside, refuse_links
from .._common.signed_files import read_signed_json, write_signed_json
from .._common.untrusted import check_shape
from ..deploy.predictor import RECORD
from ..results.quantities import value
from ..results.store import Damaged, Result, has_classes, read, write
from ..training.executors import run_here, run_in_processes, run_on_ray
from .estimating import estimate_seconds
from .grid import Study, check_study
from .run import compute
from .settings import Run, differing_fields


@dataclass
class Outcome:
    """What a study has given so far: results in the order of the runs, and why others are missing."""

    results: list[Result] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    damaged: list[Damaged] = field(default_factory=list)


def conduct(
    study: Study,
    folder: str | Path,
    *,
    jobs: int = 1,
    ray: str | None = None,
    keep: bool = False,
    command: str = "",
    report: Callable[[str, Run, str], None] = lambda event, run, text: None,
    forecast: Callable[[dict[str, float]], None] | None = None,
) -> Outcome:
    """Run what is missing in the folder, and give back everything.

    Args:
        jobs: how many runs at once, each in a process of its own
        ray: the address of a Ray cluster ("auto": the one that runs here, "local": a new one); the workers need the
            data at the same paths
        keep: whether each run also stores its trained predictor, for `pluribus train --study`
        command: what was typed, for the page
        report: called with "kept", "damaged", "started", "done", "retried" or "failed", the run, and a text
        forecast: called before the first run with the seconds that each is expected to take on one core, by its name;
            what it raises ends the study before it began
    """
    runs, folder = study.runs(), Path(folder)
    if keep and ray:
        raise ValueError("compare: --keep stores the trained networks of runs on this machine, not those of --ray.")
    places = (f"{part}/{run.name}" for part in (TRAINING, PREDICTORS) for run in runs)
    refuse_links("compare", folder, "results", TRAINING, PREDICTORS, *places)
    check_study(study, runs)
    own = _check_folder(study, folder)
    outcome = Outcome()
    kept = {run.name: result for run in runs if (result := _read_kept(run, folder, outcome, report))}
    if keep:
        kept = {name: result for name, result in kept.items() if (predictor_folder(folder, name) / RECORD).exists()}
    missing = [run for run in runs if run.name not in kept]
    if forecast is not None:
        forecast(estimate_seconds(missing))
    _claim(study, folder, own, command)
    if ray:
        events = run_on_ray(compute, missing, ray, study.threads)
    else:
        resuming = partial(_compute_in, compute, folder, keep)
        events = run_in_processes(resuming, missing, jobs) if jobs > 1 else run_here(resuming, missing)
    for event, run, given in events:
        if event == "done":
            write(_path(folder, run), *given)
            shutil.rmtree(training_folder(folder, run.name), ignore_errors=True)
            given = _line(Result(*given))
        elif event == "failed":
            outcome.failed[run.name] = given
        report(event, run, given)
    with suppress(OSError):
        (folder / TRAINING).rmdir()  # unless a run is left to go on
    present = [run for run in runs if run.name not in outcome.failed]
    outcome.results = [kept.get(run.name) or read(_path(folder, run)) for run in present]
    return outcome


# ---------------------------------------------------------------- the folder


def _path(folder: Path, run: Run) -> Path:
    return folder / "results" / f"{run.name}.npz"


TRAINING, PREDICTORS = "training", "predictors"

Compute = Callable[[Run, Path, Path | None], tuple[dict[str, Any], dict[str, np.ndarray]]]


def training_folder(folder: Path, name: str) -> Path:
    """Where the run of that name keeps its last whole epoch until it is done."""
    return folder / TRAINING / name


def predictor_folder(folder: Path, name: str) -> Path:
    """Where `compare --keep` stores the trained predictor of the run of that name."""
    return folder / PREDICTORS / name


def _compute_in(compute: Compute, folder: Path, keep: bool, run: Run) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What `compute` gives for a run that keeps its epochs, and perhaps its predictor, in the study's folder."""
    return compute(run, training_folder(folder, run.name), predictor_folder(folder, run.name) if keep else None)


def read_study(folder: Path) -> Study:
    """The study of a folder, whose files must be those that it began with."""
    try:
        found = read_signed_json(folder / "study.json")
        study = Study(**{one.name: found[one.name] for one in dataclasses.fields(Study) if one.name in found})
    except FileNotFoundError:
        raise FileNotFoundError(
            f"--study: {str(folder)!r} is not a study: it has no study.json. Make one with `pluribus compare`."
        ) from None
    except (ValueError, TypeError) as error:
        raise ValueError(f"--study: {str(folder / 'study.json')!r} is damaged ({error}). Compare again.") from error
    _check_folder(study, folder)
    return study


def _read_kept(run: Run, folder: Path, outcome: Outcome, report: Callable[[str, Run, str], None]) -> Result | None:
    """The result of a run that is done already; a damaged file is named and its run repeated."""
    path = _path(folder, run)
    if not os.path.lexists(path):
        return None
    try:
        result = read(path)
        if result.record["run"] != run.name:
            raise Damaged(path, f"it is the result of another run, {result.record['run']!r}")
    except Damaged as error:
        outcome.damaged.append(error)
        report("damaged", run, str(error))
        move_aside(path)
        return None
    report("kept", run, _line(result))
    return result


def _line(result: Result) -> str:
    names = ("accuracy", "nll") if has_classes(result.record["task"]) else ("rmse", "nll")
    seconds = result.record.get("seconds") or {}
    whole = sum(seconds.get(part) or 0 for part in ("training", "evaluation"))
    return f"{', '.join(f'{name} {value(result, name):.4g}' for name in names)} in {whole:.0f} s"


def _check_folder(study: Study, folder: Path) -> dict[str, Any]:
    """What all runs of the folder have in common; a folder of another study is refused, so that results do not mix."""
    path = folder / "study.json"
    mine = study._own()
    if path.exists():
        try:
            found = read_signed_json(path)
            check_shape(found, {"files?": {str: str}})
            keys = [key for key in mine if mine[key] != found.get(key)]
        except ValueError:
            keys = []  # cut short by a kill, or no study at all: the results have their own names
        if keys == ["files"]:
            changed = ", ".join(differing_fields(mine["files"], found.get("files") or {}))
            raise ValueError(
                f"compare: {changed} changed since the study in {str(folder)!r} began. Choose another folder."
            )
        if keys:
            raise ValueError(
                f"compare: the folder {str(folder)!r} holds a different study; these differ: "
                f"{', '.join(differing_fields(mine, found))}. Choose another folder."
            )
    return mine


def _claim(study: Study, folder: Path, own: dict[str, Any], command: str) -> None:
    """Write down whose folder it is."""
    folder.mkdir(parents=True, exist_ok=True)
    write_signed_json(folder / "study.json", {**own, **study.to_json(), "command": command})
