"""`pluribus train`: one ensemble, trained and stored for `pluribus predict`."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from .common import options
from .common.messages import messages, next_prediction, say_how_to_go_on, say_notes
from .common.run_options import RunOptions, takes_run_options


@takes_run_options
def train_command(
    *,
    out: Annotated[Path, typer.Option(help="The folder for the trained ensemble.")],
    study: Annotated[
        Path | None,
        typer.Option(help="A folder of `pluribus compare`: its recommended method and settings, or its row --method."),
    ] = None,
    method: options.TrainMethod = None,
    data: options.TrainData = None,
    run: RunOptions,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="An argument of the method, such as alpha=3.")
    ] = None,
    seed: options.TrainSeed = None,
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
        bool, typer.Option("--cascade", help="Answer each row with as many members as it needs (docs/deploy.md).")
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

        pluribus train --study pluribus-runs/digits-1a2b3c4d --out digits/

        pluribus train --out digits/ --method packed --size 4

        pluribus train --out houses/ --data table:houses.csv --target price --method deep --epochs 40
    """
    import torch

    from ..study.chosen_run import choose_run
    from ..study.run import load_data
    from ..workflows.predictor_training import train_predictor

    if study is None:
        planned, kept = _plan(method or "packed", data or "digits", settings or [], seed or 0, threads, run), None
    else:
        _refuse_own_settings(run, settings, threads)
        chosen = choose_run(study, label=method, data=data, seed=seed, model=run.model)
        planned, kept = chosen.run, chosen.kept
        if not run.silent:
            among = f" (chosen among {chosen.rivals} by test rows, so its test metrics are slightly optimistic)"
            say_notes([f"{chosen.why}{among if chosen.rivals > 1 else ''}"])
    options.check_device(planned.device)
    found = load_data(planned)
    if study is None and threads is None and (found.kind == "images" or run.reads_texts([planned.data])):
        planned = dataclasses.replace(
            planned, threads=torch.get_num_threads()
        )  # networks of tables are faster with one
    torch.set_num_threads(planned.threads)
    if not run.silent:
        say_notes(found.notes)
    there = (out / "bundle.json").exists() and not overwrite
    with say_how_to_go_on(lambda: f"the epochs so far are kept in {out}"):
        predictor, seconds = train_predictor(
            planned, found, out, risk=risk, coverage=coverage, margin=margin if cascade else None,
            overwrite=overwrite, precision=precision, kept=kept,
            progress=not run.silent and messages.is_terminal,
        )  # fmt: skip
    if not run.silent:
        say_notes(predictor.ensemble.notes)
    how = f"{seconds:.0f} s of training" if seconds else "finished before" if there else "weights of the study"
    _show(predictor, [*found.notes, *predictor.ensemble.notes], seconds, how, out, run, coverage, risk)


def _plan(method: str, data: str, settings: list[str], seed: int, threads: int | None, run: RunOptions) -> Any:
    """The run that the options describe."""
    from ..study.baselines import entry, settings_of
    from ..study.settings import Run

    entry(method, "train")
    given, known = options.settings(settings, several=False), sorted(settings_of(method))
    for name in given:
        if name not in known:
            raise ValueError(f"--set: {method} takes no {name!r}. Choose from {', '.join(known)}.")
    return Run(
        data=data, model=run.model or "auto", method=method, label=method, settings=given, seed=seed,
        threads=threads or 1, **run.conditions([data]),
    )  # fmt: skip


def _refuse_own_settings(run: RunOptions, settings: list[str] | None, threads: int | None) -> None:
    """A study has its data, network and training already: another one is another study."""
    free, usual = ("quiet", "as_json", "model"), RunOptions()
    said = [name for name, value in vars(run).items() if name not in free and value != getattr(usual, name)]
    said += ["set"] * bool(settings) + ["threads"] * bool(threads)
    if said:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in said)
        raise ValueError(f"--study: the study sets these already: {names}. Leave out one or the other.")


def _show(
    predictor: Any, notes: list[str], seconds: float, how: str, out: Path, run: RunOptions, coverage: float,
    risk: float | None,
) -> None:  # fmt: skip
    record = predictor.record
    figures = record["figures"]
    if run.as_json:
        print(json.dumps({"folder": str(out), "test": figures, "seconds": seconds,
                          "threshold": record["threshold"], "conformal": record.get("conformal"),
                          "notes": notes}, indent=1))  # fmt: skip
    elif not run.quiet:
        names = ("mean_iou", "accuracy", "nll", "ece", "rmse", "coverage")
        text = ", ".join(f"{name} {figures[name]:.4g}" for name in names if name in figures)
        print(f"test: {text}; {how}{': nothing was changed' if how == 'finished before' else ''}")
        print("\n".join(_promises(predictor)))
        more = ["--out", "FOLDER"] if predictor.task == "segmentation" else []
        if how == "finished before" and (changed := _other_promises(predictor, coverage, risk)):
            print("the folder keeps the promises it was written with; predict changes them for its answers")
            more += changed
        done = "finished:" if how == "finished before" else "written to"
        print(f"{done} {out}; next: {next_prediction(out, record, *more)}")


def _other_promises(predictor: Any, coverage: float, risk: float | None) -> list[str]:
    """The options of predict that give what was asked for, where the folder promises something else."""
    promise, threshold = predictor.conformal, predictor.threshold
    found = ["--coverage", f"{coverage:g}"] if promise is not None and promise.coverage != coverage else []
    other = risk is not None and predictor.task == "classification" and (threshold is None or threshold.risk != risk)
    return [*found, *(["--risk", f"{risk:g}"] if other else [])]


def _promises(predictor: Any) -> list[str]:
    """What the predictor promises, and why it does not promise more."""
    record, promise, threshold = predictor.record, predictor.conformal, predictor.threshold
    if predictor.task not in ("classification", "regression"):
        return ["nothing is promised: segmentation and several labels have no promises"]
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
