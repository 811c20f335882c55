"""`pluribus plan`: which methods and settings fit a budget."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from .common import options

Shape = Annotated[str, typer.Option(help="One row's shape, with commas: 3,224,224.")]

Budget = Annotated[str | None, typer.Option(help="At most: 1.5 (times the network), or an absolute 2M, 0.5G.")]


def plan_command(
    model: Annotated[str, typer.Option(help="A network of ours, timm:NAME, or python:MODULE:FUNCTION.")] = "resnet18",
    shape: Shape = "3,32,32",
    classes: Annotated[int, typer.Option(help="How many numbers the network gives.", min=1)] = 10,
    width: options.Width = 1.0,
    parameters: Budget = None,
    mult_adds: Budget = None,
    memory: Annotated[str | None, typer.Option(help="Of a prediction: 1.5 (times), or bytes as 200M.")] = None,
    latency: Annotated[str | None, typer.Option(help="1.5 (times), or absolute, as 20ms; it is measured.")] = None,
    rows: Annotated[int, typer.Option(help="Rows of the batch for memory and latency.", min=1)] = 1,
    sizes: Annotated[str, typer.Option(help="Numbers of members, with commas.")] = "2,3,4,8",
    methods: Annotated[str, typer.Option(help="Which of {methods}, with commas; by default all.")] = "",
    training: Annotated[bool, typer.Option("--training", help="Memory is that of a training step.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Which methods and settings fit a budget: counted exactly, before anything is trained or allocated.

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
        raise ValueError("plan: budgets must all be multiples of the network (1.5), or all be absolute (2M, 20ms).")
    budget: dict[str, Any] = {name: value for name, (value, _) in values.items()}
    measured = latency is not None
    with torch.device("cpu" if measured else "meta"):
        planned = build_network(model, row, classes, width=width)
    found = plan(
        planned,
        torch.zeros(rows, *row, device="cpu" if measured else "meta"),
        **budget,
        relative=kinds != {False},
        sizes=[options.whole_number("--sizes", part) for part in options.split_names(sizes)],
        methods=options.split_names(methods) or None,
        training=training,
    )
    typer.echo(found.to_json(indent=1) if as_json else str(found))
