"""`pluribus train`: one ensemble, trained and stored for `pluribus predict`."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from .common import options
from .common.messages import messages, say_how_to_go_on, say_notes
from .common.run_options import RunOptions, takes_run_options


@takes_run_options
def train_command(
    *,
    out: Annotated[Path, typer.Option(help="The folder for the trained ensemble.")],
    method: options.Method = "packed",
    data: options.Data = "digits",
    run: RunOptions,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="An argument of the method, such as alpha=3.")
    ] = None,
    seed: options.Seed = 0,
    risk: Annotated[
        float | None,
        typer.Option(
            help="Abstain so that the error rate is at most this; default 0.05, or the least that is possible."
        ),
    ] = None,
    coverage: Annotated[
        float, typer.Option(help="How often sets and intervals contain the truth.", min=0, max=1)
    ] = 0.9,
    cascade: Annotated[
        bool, typer.Option("--cascade", help="Answer each row with as many members as it needs (docs/serving.md).")
    ] = False,
    margin: Annotated[
        float, typer.Option(help="With --cascade: how much accuracy it may lose.", min=0.0001, max=0.5)
    ] = 0.02,
    threads: options.Threads = None,
    precision: Annotated[
        str | None, typer.Option(help="Precision of training: 32-true, bf16-mixed or 16-mixed.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an ensemble that is already there.")] = False,
) -> None:
    """Train one ensemble for `pluribus predict`. The same command resumes training that was stopped.

    Examples:

        pluribus train --out digits/ --method packed --size 4

        pluribus train --out houses/ --data table:houses.csv --target price --method deep --epochs 40
    """
    import torch

    from ..study.baselines import entry, settings_of
    from ..study.predictor_training import train_predictor
    from ..study.run import load_data
    from ..study.settings import Run

    entry(method, "train")
    given, known = options.settings(settings or [], several=False), sorted(settings_of(method))
    for name in given:
        if name not in known:
            raise ValueError(f"--set: {method} takes no {name!r}. Choose from {', '.join(known)}.")
    threads = threads or torch.get_num_threads()
    torch.set_num_threads(threads)
    planned = Run(
        data=data, model=run.model or "auto", method=method, label=method, settings=given, seed=seed, threads=threads,
        **run.conditions([data]),
    )  # fmt: skip
    options.check_device(run.device)
    found = load_data(planned)
    if not run.silent:
        say_notes(found.notes)
    with say_how_to_go_on(lambda: f"the epochs so far are kept in {out}"):
        predictor, seconds = train_predictor(
            planned, found, out, risk=risk, coverage=coverage, margin=margin if cascade else None,
            overwrite=overwrite, precision=precision,
            progress=not run.silent and messages.is_terminal,
        )  # fmt: skip
    if not run.silent:
        say_notes(predictor.ensemble.notes)
    _show(predictor, [*found.notes, *predictor.ensemble.notes], seconds, out, run.quiet, run.as_json)


def _show(predictor: Any, notes: list[str], seconds: float, out: Path, quiet: bool, as_json: bool) -> None:
    record = predictor.record
    figures = record["figures"]
    if as_json:
        print(json.dumps({"folder": str(out), "test": figures, "seconds": seconds,
                          "threshold": record["threshold"], "conformal": record.get("conformal"),
                          "notes": notes}, indent=1))  # fmt: skip
    elif not quiet:
        names = ("mean_iou", "accuracy", "nll", "ece", "rmse", "coverage")
        text = ", ".join(f"{name} {figures[name]:.4g}" for name in names if name in figures)
        print(f"test: {text}; {f'{seconds:.0f} s of training' if seconds else 'finished before: nothing was changed'}")
        print("\n".join(_promises(predictor)))
        more = " --out FOLDER" if predictor.task == "segmentation" else ""
        done = "written to" if seconds else "finished:"
        print(f"{done} {out}; next: pluribus predict {shlex.quote(str(out))} FILES{more}")


def _promises(predictor: Any) -> list[str]:
    """What the predictor promises, and why it does not promise more."""
    record, promise, threshold = predictor.record, predictor.conformal, predictor.threshold
    if predictor.task not in ("classification", "regression"):
        return []
    if predictor.evidence is None:
        rows = "fewer than 10 validation rows: nothing is calibrated and nothing is promised. Give --validation 0.2"
        return [rows]
    cascade = predictor.record.get("cascade")
    used = [] if cascade is None else [
        f"cascade of {', '.join(map(str, cascade['sizes']))} members: cost {cascade['report']['cost'][0]:.2f} of all "
        f"members on every row; accuracy at most {cascade['report']['bound']:.4f} lower, with confidence 0.95"
    ]  # fmt: skip
    said = used + [one.explain() for one in (promise, threshold) if one is not None]
    return [*said, *(record[name] for name in ("no_conformal", "no_threshold") if name in record)]
