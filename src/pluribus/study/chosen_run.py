"""The run of a finished study that becomes a predictor: the recommended method, or a named one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .._common.names import say_unknown
from ..deploy.predictor import RECORD
from ..results.store import Result, read_all
from ..results.verdict import Verdict, verdicts
from .folder import predictor_folder, read_study
from .grid import choose_settings
from .settings import Run


@dataclass(frozen=True)
class ChosenRun:
    """A run of a study, and how it was chosen.

    Args:
        why: in words, the verdict of the study or that somebody named it
        kept: the folder of its trained predictor, where `compare --keep` stored one
        rivals: how many methods it was chosen from on the test rows
    """

    run: Run
    why: str
    kept: Path | None
    rivals: int


def choose_run(
    folder: Path,
    *,
    label: str | None = None,
    data: str | None = None,
    seed: int | None = None,
    model: str | None = None,
) -> ChosenRun:
    """The run to train or to take over from a study.

    Args:
        label: of the study's table; None: what the verdict recommends
        data: which data set of several
        seed: None: the first that finished
        model: where the study's network is code, that code again: what a folder names is not run
    """
    study = read_study(folder)
    if study.model and study.model.startswith("python:") and model != study.model:
        raise ValueError(
            f"--study: the network of {str(folder)!r} is its author's own code, which is not run just because a folder "
            f"names it. If you trust that code, add --model {study.model}."
        )
    results = read_all(folder)[0]
    found = verdicts(choose_settings(results, study.choose) if study.choose else results)
    verdict = _of_data(found, data, folder)
    labels = [group.label for group in verdict.groups]
    if label is not None and label not in labels:
        raise ValueError(f"--method: {say_unknown(label, labels)} These are the rows of the study.")
    chosen = label or verdict.recommended
    if not chosen:
        raise ValueError("--study: nothing can be recommended from this study. Name a row with --method.")
    records = [result.record for result in results]  # of earlier commands too: more methods and seeds may have joined
    methods, seeds = (sorted({record[key] for record in records}) for key in ("method", "seed"))
    runs = dataclasses.replace(study, methods=methods, seeds=seeds).runs()
    run = _run(runs, results, verdict, chosen, seed)
    kept = predictor_folder(folder, run.name)
    why = f"{chosen}, as --method says" if label else verdict.sentences[0].text.rstrip(".")
    return ChosenRun(run, why, kept if (kept / RECORD).exists() else None, 1 if label else len(labels))


def _of_data(found: Sequence[Verdict], data: str | None, folder: Path) -> Verdict:
    if not found:
        raise ValueError(f"--study: {str(folder)!r} has no finished run. Finish it with pluribus compare first.")
    fitting = [one for one in found if data in (None, one.data)]
    if len(fitting) != 1:
        names = sorted({one.data for one in found})
        raise ValueError(f"--data: choose one of the study's data sets with --data: {', '.join(names)}.")
    return fitting[0]


def _run(runs: Sequence[Run], results: Sequence[Result], verdict: Verdict, label: str, seed: int | None) -> Run:
    finished = {result.record["run"] for result in results if result.record["data"] == verdict.data}
    fitting = [run for run in runs if run.name in finished and run.label == label and run.data == verdict.data]
    by_seed = {run.seed: run for run in fitting}
    if not fitting or seed is not None and seed not in by_seed:
        seeds = ", ".join(map(str, sorted(by_seed))) or "none"
        raise ValueError(f"--seed: the study has no finished run of {label} with seed {seed}. It has seeds: {seeds}.")
    return fitting[0] if seed is None else by_seed[seed]
