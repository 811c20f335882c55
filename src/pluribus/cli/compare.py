"""`pluribus compare`: train the methods under equal conditions, and show what each is worth."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from .._common.names import say_unknown
from .common import options
from .common.messages import safe_text, say, say_how_to_go_on, say_lines, say_notes, screen
from .common.run_options import RunOptions, takes_run_options


@takes_run_options
def compare_command(
    *,
    data: options.SeveralData = "digits",
    outside: options.Outside = "",
    shifted: options.Shifted = "",
    variants: options.Variants = "",
    run: RunOptions,
    methods: options.Methods = "",
    seeds: Annotated[int, typer.Option(help="The number of seeds; each trains everything from scratch.", min=1)] = 1,
    first_seed: Annotated[int, typer.Option(help="The first seed.", min=0)] = 0,
    sweep: options.Sweep = None,
    choose: options.Choose = None,
    corruptions: options.Corruptions = "some",
    shift_rows: Annotated[int, typer.Option(help="The number of test images to corrupt.", min=1)] = 500,
    out: Annotated[Path | None, typer.Option(help="The folder of the study; use it again to resume.")] = None,
    jobs: Annotated[int | None, typer.Option(help="Runs at the same time [the number of cores].", min=1)] = None,
    threads: options.Threads = 1,
    ray: Annotated[str | None, typer.Option(help="Run on a Ray cluster: its address, auto or local.")] = None,
    baselines: Annotated[bool, typer.Option("--baselines", help="Tables: add gradient boosting, same rows.")] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Store the trained networks, so that `train --study` need not train again.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Start without asking, even if it takes hours.")] = False,
) -> None:
    """Train the methods under equal conditions, and report the accuracy, calibration, uncertainty and cost of each.

    Writes one HTML page with the verdict, in distribution, under shift and on out-of-distribution (OOD) data. The same
    command resumes a study that was stopped.

    Examples:

        pluribus compare

        pluribus compare --data cifar10 --data-dir ~/data --model resnet18 --size 4 --seeds 3 --outside svhn

        pluribus compare --data cifar10 --methods packed --sweep alpha=1,2,3,4 --sweep gamma=1,2

        pluribus compare --data table:houses.csv --target price --model mlp
    """
    from ..methods import METHODS
    from ..methods.method_info import info_of, keeps_weights
    from ..study.boosting import check_boosting
    from ..study.grid import Study
    from ..study.run import load_data

    names = options.split_names(data)
    demo = run.is_demo(names)
    rows = options.DEMO_ROWS if demo else None
    if run.start:
        usual = [name for name, method in METHODS.items() if keeps_weights(method)]
    else:
        tables = all(name.startswith(("table:", "uci:")) for name in names)
        facts = {name: info_of(method) for name, method in METHODS.items()}
        usual = [name for name in METHODS if not facts[name].for_trained and (tables or not facts[name].for_tables)]
    study = Study(
        data=names,
        model=run.model,
        methods=options.split_names(methods) or [*usual, *(BESIDE if demo else ())],
        seeds=list(range(first_seed, first_seed + seeds)),
        sweep=options.settings(sweep or [], several=True),
        choose=choose,
        corruptions=_corruptions(corruptions),
        shift_rows=shift_rows,
        threads=threads or 1,
        **run.conditions(names, train_rows=rows, outside=outside, shifted=shifted, variants=variants),
    )
    options.check_device(run.device)
    if run.start and not methods:
        study = _without_refusing(study, run)
    for one in study.runs() if baselines else ():
        check_boosting(load_data(one))
    _conduct(study, out, jobs or (1 if run.device != "cpu" else os.cpu_count() or 1), ray, keep, yes, run, baselines)


def _conduct(
    study: Any, out: Path | None, jobs: int, ray: str | None, keep: bool, yes: bool, run: RunOptions, baselines: bool
) -> None:
    from ..report.page import write_verdicts
    from ..results.verdict import verdicts
    from ..study.folder import conduct
    from ..study.grid import choose_settings
    from ..study.run import load_data
    from .common import display

    folder = out or Path("pluribus-runs") / study.name
    talk, command = screen(stderr=True), shlex.join(["pluribus", *sys.argv[1:]])

    def forecast(seconds: dict[str, float]) -> None:
        _say_forecast(seconds, jobs, yes, talk)
        watch.expect(seconds)

    with say_how_to_go_on(lambda: f"{len(list(folder.glob('results/*.npz')))} finished runs are kept in {folder}"):
        with display.watch_runs(talk, run.silent, folder, jobs) as watch:
            ahead = None if ray or run.silent else forecast
            outcome = conduct(
                study, folder, jobs=jobs, ray=ray, keep=keep, command=command, report=watch, forecast=ahead
            )
    results = choose_settings(outcome.results, study.choose) if study.choose else outcome.results
    if not run.silent:
        say_notes(note for one in study.runs()[:1] for note in load_data(one).notes)
    page, found = folder / "report.html", verdicts(results)
    if results:
        write_verdicts(found, page, command=command)
    boosting = _boosting(results, study, folder) if baselines else []
    if run.as_json:
        place = {"folder": str(folder), "page": str(page) if results else None, "next": _next(study, folder)}
        print(display.as_json(outcome, found, **place, **({"baselines": boosting} if baselines else {})))
    elif not run.quiet:
        show = screen()
        for table in display.result_tables(found, show.width):
            show.print()
            show.print(table)
        show.print()
        say_lines(show, [*display.sentences(found)[:6], *(row["sentence"] for row in boosting)])
        if results:
            show.print(f"\nReport: {safe_text(str(page))}", soft_wrap=True)
            show.print(f"Next: {safe_text(_next(study, folder))}", soft_wrap=True)
    for name, reason in outcome.failed.items():
        say("[bold red]failed:[/]", f"{name}: {reason}")
    if outcome.failed:
        raise typer.Exit(1)


def _boosting(results: Any, study: Any, folder: Path) -> list[dict[str, Any]]:
    """Gradient boosting on the rows of the study, stored in its folder."""
    from .._common.atomic import atomic_write
    from ..study.boosting import judge_boosting

    rows = judge_boosting(results, study.runs()) if results else []
    with atomic_write(folder / "baselines.json") as path:
        path.write_text(json.dumps(rows, indent=1))
    return rows


def _without_refusing(study: Any, run: RunOptions) -> Any:
    """The study without the usual methods that cannot keep the answers of the trained weights; each is named."""
    from ..study.baselines import check_run
    from ..study.run import load_data

    left: dict[str, str] = {}
    for one in study.runs():
        try:
            if one.method not in left:
                check_run(one, load_data(one))
        except ValueError as error:
            if "must keep" not in str(error):
                raise
            left[one.method] = str(error)
    if left and not run.silent:
        say_notes(f"left out {name}: {reason}" for name, reason in left.items())
    return dataclasses.replace(study, methods=[name for name in study.methods if name not in left])


def _next(study: Any, folder: Path) -> str:
    """The command that makes a predictor of what the study recommends."""
    more = ["--data", study.data[0]] if len(study.data) > 1 else []
    code = ["--model", study.model] if (study.model or "").startswith("python:") else []
    return shlex.join(["pluribus", "train", "--study", str(folder), *more, *code, "--out", "predictor"])


def _say_forecast(seconds: dict[str, float], jobs: int, yes: bool, talk: Any) -> None:
    """Say how long the runs will take all together; where that is hours, the user is asked first."""
    from .common.display import say_duration

    whole = sum(seconds.values()) / max(min(jobs, len(seconds)), 1)
    if seconds:
        talk.print(f"{len(seconds)} runs, {say_duration(whole)} here with --jobs {jobs}.")
    if whole > HOURS and not yes and talk.is_terminal and sys.stdin.isatty():
        typer.confirm("Start?", abort=True, default=True, err=True)


HOURS = 3600.0  # seconds, from which on one is asked


def _corruptions(text: str) -> list[str]:
    from ..data.corruptions.catalogue import BENCHMARK, CORRUPTIONS

    groups: Mapping[str, Any] = {"some": SOME, "all": list(CORRUPTIONS), "benchmark": list(BENCHMARK), "none": []}
    if text in groups:
        return list(groups[text])
    for name in options.split_names(text):
        if name not in CORRUPTIONS:
            raise ValueError(f"--corruptions: {say_unknown(name, [*groups, *CORRUPTIONS])}")
    return options.split_names(text)


SOME = ("gaussian_noise", "impulse_noise", "motion_blur", "zoom_blur", "contrast", "elastic_transform")
BESIDE = ("wide",)  # a single network as wide as the masked one, so that width and masks are told apart
