"""`pluribus compare`: train the methods under equal conditions, and show what each is worth."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from .common import options
from .common.messages import safe_text, say, say_how_to_go_on, say_notes, screen


def compare_command(
    data: options.SeveralData = "digits",
    data_dir: options.Folder = None,
    target: options.Target = None,
    task: options.Task = None,
    outside: options.Outside = "",
    shifted: options.Shifted = "",
    variants: options.Variants = "",
    image_size: options.ImageSize = None,
    split: options.Split = 0,
    broken: options.Broken = "stop",
    unpack_limit: options.UnpackLimit = None,
    train_rows: options.TrainRows = None,
    validation: options.Validation = None,
    model: options.Model = None,
    width: options.StudyWidth = None,
    dropout: options.Dropout = None,
    methods: options.Methods = "",
    size: options.Size = None,
    seeds: Annotated[int, typer.Option(help="How many seeds: each trains everything anew.", min=1)] = 1,
    first_seed: Annotated[int, typer.Option(help="The first of the seeds.", min=0)] = 0,
    sweep: options.Sweep = None,
    choose: options.Choose = None,
    recipe: options.Recipe = None,
    epochs: options.Epochs = None,
    patience: options.Patience = None,
    batch_size: options.BatchSize = None,
    lr: options.Rate = None,
    weight_decay: options.Decay = None,
    corruptions: options.Corruptions = "some",
    shift_rows: Annotated[int, typer.Option(help="How many test images are shifted.", min=1)] = 500,
    out: Annotated[Path | None, typer.Option(help="The study's folder; the same folder goes on where it was.")] = None,
    jobs: Annotated[int | None, typer.Option(help="How many runs at once [the cores].", min=1)] = None,
    threads: Annotated[int, typer.Option(help="Threads of each run.", min=1)] = 1,
    ray: Annotated[str | None, typer.Option(help="Run on a Ray cluster: its address, auto, or local.")] = None,
    device: options.Device = "cpu",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Start at once, however long it will take.")] = False,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Train the methods under equal conditions and show what each is worth, and what it costs.

    Examples:

        pluribus compare

        pluribus compare --data cifar10 --data-dir ~/data --model resnet18 --size 4 --seeds 3 --outside svhn

        pluribus compare --data cifar10 --methods packed --sweep alpha=1,2,3,4 --sweep gamma=1,2

        pluribus compare --data table:houses.csv --target price --model mlp
    """
    from ..methods import METHODS
    from ..methods.facts import facts_of
    from ..study.grid import Study

    names = options.specs(data)
    demo = options.is_demo(names, model, recipe)
    usual = [name for name, method in METHODS.items() if not facts_of(method).for_trained]
    study = Study(
        data=names,
        model=model,
        methods=options.split_names(methods) or [*usual, *(BESIDE if demo else ())],
        size=size,
        seeds=list(range(first_seed, first_seed + seeds)),
        sweep=options.settings(sweep or [], several=True),
        choose=choose,
        width=width or (options.DEMO_WIDTH if demo else 1.0),
        dropout=dropout,
        recipe=recipe or ("digits" if names == ["digits"] else "default"),
        training=options.training_options(
            epochs=epochs, patience=patience, batch_size=batch_size, lr=lr, weight_decay=weight_decay
        ),
        source=options.source_options(
            folder=data_dir, target=target, task=task, outside=outside, shifted=shifted, variants=variants,
            image_size=image_size, split=split, broken=broken, unpack_limit=unpack_limit,
            train_rows=train_rows or (options.DEMO_ROWS if demo else None), validation=validation,
        ),
        corruptions=_corruptions(corruptions),
        shift_rows=shift_rows,
        threads=threads,
        device=device,
    )  # fmt: skip
    options.check_device(device)
    _conduct(study, out, jobs or (1 if device != "cpu" else os.cpu_count() or 1), ray, yes, quiet, as_json)


def _conduct(study: Any, out: Path | None, jobs: int, ray: str | None, yes: bool, quiet: bool, as_json: bool) -> None:
    from ..report.page import report
    from ..results.quantities import Differences
    from ..study.folder import conduct
    from ..study.grid import choose_settings
    from ..study.run import load_data
    from .common import display

    folder = out or Path("pluribus-runs") / study.name
    talk = screen(stderr=True)
    seconds = _forecast(study, folder, jobs, yes, talk) if not (ray or quiet or as_json) else {}
    with say_how_to_go_on(lambda: f"{len(list(folder.glob('results/*.npz')))} finished runs are kept in {folder}"):
        with display.watch_runs(talk, quiet or as_json, folder, seconds, jobs) as watch:
            command = shlex.join(["pluribus", *sys.argv[1:]])
            outcome = conduct(study, folder, jobs=jobs, ray=ray, command=command, report=watch)
    results = choose_settings(outcome.results, study.choose) if study.choose else outcome.results
    if not (quiet or as_json):
        say_notes(note for run in study.runs()[:1] for note in load_data(run).notes)
    page, differences = folder / "report.html", Differences()
    if results:
        report(results if study.choose else folder, page, known=results, differences=differences)
    if as_json:
        place = {"folder": str(folder), "page": str(page) if results else None}
        print(display.as_json(outcome, results, differences, **place))
    elif not quiet:
        show = screen()
        for table in display.result_tables(results, show.width):
            show.print()
            show.print(table)
        for text in ["", *display.sentences(results, differences)[:6], "", f"The page: {page}" if results else ""]:
            show.print(safe_text(text), soft_wrap=True)
    for name, reason in outcome.failed.items():
        say("[bold red]failed:[/]", f"{name}: {reason}")
    if outcome.failed:
        raise typer.Exit(1)


def _forecast(study: Any, folder: Path, jobs: int, yes: bool, talk: Any) -> dict[str, float]:
    """The seconds that each missing run is expected to take; where that is hours, the user is asked first."""
    from ..study.estimating import estimate_seconds
    from ..study.folder import missing_runs
    from ..study.grid import prepare
    from .common.display import say_duration

    missing = missing_runs(study, folder)
    prepare(study, missing)
    seconds = estimate_seconds(missing)
    whole = sum(seconds.values()) / max(min(jobs, len(missing)), 1)
    if missing:
        talk.print(f"{len(missing)} runs, {say_duration(whole)} here with --jobs {jobs}.")
    if whole > HOURS and not yes and talk.is_terminal and sys.stdin.isatty():
        typer.confirm("Start?", abort=True, default=True, err=True)
    return seconds


HOURS = 3600.0  # seconds, from which on one is asked


def _corruptions(text: str) -> list[str]:
    from ..data.corruptions.catalogue import BENCHMARK, CORRUPTIONS

    groups: Mapping[str, Any] = {"some": SOME, "all": list(CORRUPTIONS), "benchmark": list(BENCHMARK), "none": []}
    if text in groups:
        return list(groups[text])
    for name in options.split_names(text):
        if name not in CORRUPTIONS:
            raise ValueError(
                f"--corruptions: {name!r} is unknown. Choose from {', '.join(groups)}, or {', '.join(CORRUPTIONS)}."
            )
    return options.split_names(text)


SOME = ("gaussian_noise", "impulse_noise", "motion_blur", "zoom_blur", "contrast", "elastic_transform")

BESIDE = ("wide",)  # a single network as wide as the masked one, so that width and masks are told apart
