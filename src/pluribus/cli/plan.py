"""`pluribus plan`: which methods and settings fit a budget."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from .._common.text_tables import plural
from .common import options
from .common.messages import safe_text, say, screen

Shape = Annotated[str, typer.Option(help="The shape of one row, such as 3,224,224.")]
Budget = Annotated[str | None, typer.Option(help="An upper limit: 1.5 (times the network), or absolute: 2M, 0.5G.")]


def plan_command(
    model: Annotated[
        str | None,
        typer.Option(
            help="A built-in network, timm:NAME or python:MODULE:FUNCTION [resnet18; with --data one that fits]."
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="Try the three most promising briefly on these data, which give --shape and --classes."),
    ] = None,
    data_dir: options.Folder = None,
    target: options.Target = None,
    epochs: Annotated[int, typer.Option(help="With --data: how long each is trained.", min=1)] = 5,
    shape: Shape = "3,32,32",
    classes: Annotated[int, typer.Option(help="The number of outputs of the network.", min=1)] = 10,
    width: options.Width = 1.0,
    parameters: Budget = None,
    mult_adds: Budget = None,
    memory: Annotated[
        str | None, typer.Option(help="The memory of a prediction: 1.5 (times the network), or bytes: 200M.")
    ] = None,
    latency: Annotated[
        str | None, typer.Option(help="The time of a prediction, measured: 1.5 (times the network), or 20ms.")
    ] = None,
    rows: Annotated[int, typer.Option(help="Rows per batch, for memory and latency.", min=1)] = 1,
    sizes: Annotated[str, typer.Option(help="The numbers of members to try, comma-separated.")] = "2,3,4,8",
    methods: Annotated[str, typer.Option(help="Some of {methods}, comma-separated; by default all.")] = "",
    training: Annotated[bool, typer.Option("--training", help="Count the memory of a training step instead.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """List the methods and settings that fit a budget, counted exactly before anything is trained or allocated.

    Examples:

        pluribus plan --model resnet18 --parameters 1.0 --mult-adds 1.1

        pluribus plan --model lenet --data mnist --data-dir ~/data --parameters 4

        pluribus plan --model resnet50 --width 4 --shape 3,224,224 --classes 1000 --parameters 200M
    """
    import torch

    from ..deploy.budget.planning import plan
    from ..methods import METHODS
    from ..methods.method_info import info_of
    from ..models.by_name import build_network, usual

    if data is not None and as_json:
        raise ValueError("plan: --json lists settings and trains nothing, so it cannot be given with --data.")
    source = options.source_options(folder=data_dir, target=target)
    if data is not None:
        from ..study.baselines import count_outputs
        from ..study.run import load_data
        from ..study.settings import Run

        found_data = load_data(Run(data=data, source=source))
        shape, classes = ",".join(map(str, found_data.shape)), count_outputs(found_data)
        model = model or usual(found_data.shape, found_data.task == "segmentation")
    model = model or "resnet18"
    row = tuple(options.whole_number("--shape", part) for part in options.split_names(shape))
    limits = {"parameters": parameters, "mult_adds": mult_adds, "memory": memory, "latency": latency}
    values = {name: options.budget(f"--{name.replace('_', '-')}", text) for name, text in limits.items() if text}
    kinds = {relative for _, relative in values.values()}
    if len(kinds) > 1:
        raise ValueError("plan: budgets must be either all multiples of the network (1.5) or all absolute (2M, 20ms).")
    budget: dict[str, Any] = {name: value for name, (value, _) in values.items()}
    measured = latency is not None
    with torch.device("cpu" if measured else "meta"):
        planned = build_network(model, row, classes, width=width)
    with screen(stderr=True).status("counting") as status:
        found = plan(
            planned,
            torch.zeros(rows, *row, device="cpu" if measured else "meta"),
            **budget,
            relative=kinds != {False},
            sizes=[options.whole_number("--sizes", part) for part in options.split_names(sizes)],
            methods=options.split_names(methods) or None,
            training=training,
            progress=lambda text: status.update(safe_text(text)),
        )
    typer.echo(found.to_json(indent=1) if as_json else str(found))
    if found.rows and not as_json:
        able = [one["method"] for one in found.best if not found.is_thin(one)]
        names = list(dict.fromkeys(["single", *(name for name in able if not info_of(METHODS[name]).for_trained)]))[:4]
        size = next((one["size"] for one in found.best if one["method"] in names), 4)
        if data is not None:
            _try(found, names, data, source, model, width, epochs)
        more = ["--target", target] if target else []
        more += ["--data-dir", str(data_dir)] if data_dir else []
        more += ["--width", f"{width:g}"] if width != 1 else []
        given = shlex.join([data or "DATA", *more, "--model", model])
        typer.echo(f"Next: pluribus compare --data {given} --methods {','.join(names)} --size {size} --seeds 3")


def _try(
    found: Any, names: list[str], data: str, source: dict[str, Any], model: str, width: float, epochs: int
) -> None:
    """A small study of the most promising setting of each method, next to the single network."""
    from ..results.verdict import verdicts
    from ..study.folder import conduct
    from ..study.grid import Study
    from .common import display

    best = {one["method"]: {**one["settings"], "size": one["size"]} for one in reversed(found.best)}
    study = Study(
        data=[data], model=model, methods=names, width=width, source=source, training={"epochs": epochs},
        settings={name: best[name] for name in names if name in best},
    )  # fmt: skip
    folder = Path("pluribus-runs") / f"plan-{study.name}"
    talk = screen(stderr=True)
    with display.watch_runs(talk, False, folder, 1) as watch:
        outcome = conduct(study, folder, report=watch)
    display.show_tables(verdicts(outcome.results))
    for name, reason in outcome.failed.items():
        say("[bold red]failed:[/]", f"{name}: {reason}")
    print(f"After {plural(epochs, 'epoch')} each, with one seed: a first impression, no verdict.")
