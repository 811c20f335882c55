"""`pluribus plan`: which methods and settings fit a budget."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from .common import options
from .common.messages import safe_text, screen

Shape = Annotated[str, typer.Option(help="The shape of one row, such as 3,224,224.")]

Budget = Annotated[str | None, typer.Option(help="An upper limit: 1.5 (times the network), or absolute: 2M, 0.5G.")]


def plan_command(
    model: Annotated[str, typer.Option(help="A built-in network, timm:NAME or python:MODULE:FUNCTION.")] = "resnet18",
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

        pluribus plan --model resnet50 --width 4 --shape 3,224,224 --classes 1000 --parameters 200M
    """
    import torch

    from ..deploy.budget.planning import plan
    from ..models.by_name import build_network

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
        names = dict.fromkeys(["single", *(row["method"] for row in found.best if not found.is_thin(row))])
        chosen, size = ",".join(list(names)[:4]), max((row["size"] for row in found.best), default=4)
        typer.echo(f"Next: pluribus compare --data DATA --model {model} --methods {chosen} --size {size} --seeds 3")
