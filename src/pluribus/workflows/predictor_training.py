"""One training for `pluribus train`: its folder belongs to one run, and what comes out of it is a predictor."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from .._common.atomic import only_process, refuse_links
from .._common.signed_files import read_signed_json, write_signed_json
from ..data.dataset import Data
from ..deploy.cascading import rows_needed
from ..deploy.predictor import RECORD, Predictor, load_predictor
from ..deploy.promises import COVERAGE, check_promises, promises
from ..study.baselines import check_run
from ..study.judging import figures
from ..study.run import predictor_of, train
from ..study.settings import Run, differing_fields
from ..training.fitting import LAST

TRAINING = "training"


def train_predictor(
    run: Run,
    data: Data,
    folder: Path,
    *,
    risk: float | None = None,
    coverage: float = COVERAGE,
    margin: float | None = None,
    overwrite: bool = False,
    kept: Path | None = None,
    **options: Any,
) -> tuple[Predictor, float]:
    """The predictor that the folder holds afterwards, and the seconds of its training; options as for `fit`.

    A run that is finished there is not trained again, whatever it promises: nothing is written, and the seconds are 0.

    Args:
        kept: a folder in which the same run is finished already, whose weights are taken
    """
    check_run(run, data)
    check_promises("train", data.task, coverage, risk)
    if margin is not None:
        _check_cascade(data, margin)
    refuse_links("train", folder, TRAINING)
    folder.mkdir(parents=True, exist_ok=True)
    with only_process("train", folder):
        if not overwrite and (done := _finished(run, folder)) is not None:
            return done, 0.0
        claim(run, folder, overwrite)
        # A cascade promises on other rows than its ensemble, so it is not made of kept weights.
        if kept is not None and margin is None and (trained := _finished(run, kept)) is not None:
            predictor, seconds = trained, 0.0
            if (evidence := trained.evidence) is not None:
                trained.record |= promises(evidence, coverage, risk)
        else:
            try:
                ensemble, _, seconds = train(run, data, folder=folder / TRAINING, **options)
            except Exception:
                _remove_without_epochs(folder)
                raise
            predictor = predictor_of(run, data, ensemble, {}, risk=risk, coverage=coverage, margin=margin)
        predictor.record["figures"] = figures(predictor.ensemble, data, data.test, predictor.evidence)
        predictor.save(folder)
        shutil.rmtree(folder / TRAINING)
    return predictor, seconds


def _finished(run: Run, folder: Path) -> Predictor | None:
    """The predictor of this very run, where the folder holds it and no epoch is left to go on from."""
    if (folder / TRAINING).exists() or _json(folder / RECORD).get("run") != run.plain():
        return None
    return load_predictor(folder, model=run.model if run.model.startswith("python:") else None)


def _check_cascade(data: Data, margin: float) -> None:
    """Refuse a cascade that cannot be had, before anything is trained."""
    if data.task != "classification":
        raise ValueError(f"--cascade: needs data with classes, but {data.name} is {data.task}.")
    needed, rows = rows_needed(margin, 0.95), len(data.calibration) // 2
    if rows < needed:
        raise ValueError(
            f"--cascade: a margin of {margin:g} takes {needed:,} rows, and a quarter of the validation rows is "
            f"{rows:,}. Allow a larger --margin, or give more validation rows (--validation 0.3)."
        )


def claim(run: Run, folder: Path, overwrite: bool = False) -> None:
    """The folder belongs to one training; what another wrote is not replaced unawares."""
    mine = run.plain()
    mark = folder / TRAINING / "run.json"
    for path, found in ((mark, _json(mark)), (folder / RECORD, _json(folder / RECORD).get("run"))):
        if not path.exists() or overwrite:
            continue
        found = found if isinstance(found, dict) else {}
        if differing := differing_fields(mine, found):
            raise ValueError(
                f"train: {str(folder)!r} holds a different training run; these differ: {', '.join(differing)}. "
                "Choose another --out, or replace it with --overwrite."
            )
    if overwrite:
        shutil.rmtree(folder / TRAINING, ignore_errors=True)
    mark.parent.mkdir(parents=True, exist_ok=True)
    write_signed_json(mark, mine)


def _remove_without_epochs(folder: Path) -> None:
    """A training that failed before its first epoch leaves nothing to go on from, and nothing behind."""
    if not (folder / TRAINING / LAST).exists():
        shutil.rmtree(folder / TRAINING, ignore_errors=True)
        with suppress(OSError):  # it holds other files
            folder.rmdir()


def _json(path: Path) -> dict[str, Any]:
    try:
        return read_signed_json(path)
    except (OSError, ValueError):
        return {}
