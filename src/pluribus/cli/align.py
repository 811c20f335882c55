"""`pluribus align`: two checkpoints of one architecture with their units in one order."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from .common import options
from .common.messages import check_writable, say_notes

Checkpoint = Annotated[Path, typer.Argument(help="Weights: .safetensors, or a state_dict written by torch.save.")]


def align_command(
    first: Checkpoint,
    second: Checkpoint,
    model: Annotated[str, typer.Option(help="Their network: built-in, timm:NAME or python:MODULE:FUNCTION.")],
    out: Annotated[Path, typer.Option(help="The file for the first network's weights, reordered.")] = Path(
        "aligned.safetensors"
    ),
    by: Annotated[str, typer.Option(help="What to match: weights, or activations on --data.")] = "weights",
    data: Annotated[
        str | None, typer.Option(help="Data to evaluate on: a name or KIND:PATH; see `pluribus data`.")
    ] = None,
    page: Annotated[Path | None, typer.Option(help="A page with the loss between the two, before and after.")] = None,
    shape: Annotated[str | None, typer.Option(help="Without --data: the shape of one row, such as 3,32,32.")] = None,
    classes: Annotated[int | None, typer.Option(help="Without --data: the number of outputs.", min=1)] = None,
    data_dir: options.Folder = None,
    target: options.Target = None,
    image_size: options.ImageSize = None,
    broken: options.Broken = "stop",
    width: options.Width = 1.0,
    dropout: options.Dropout = None,
    rows: Annotated[int, typer.Option(help="The largest number of rows to match and evaluate on.", min=2)] = 1000,
    points: Annotated[int, typer.Option(help="Points along the line.", min=3)] = 25,
    restarts: Annotated[int, typer.Option(help="Additional searches, from random orders.", min=0)] = 3,
    seed: options.Seed = 0,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Reorder the hidden units of one network to match another; the function that it computes stays the same.

    You can then join two separately trained networks by a straight line, or average their weights. You need not
    describe the architecture: running the network shows which units can be permuted.

    Examples:

        pluribus align one.safetensors two.safetensors --model mlp --data digits --page align.html

        pluribus align one.pt two.pt --model python:nets.py:build --shape 3,32,32 --classes 10
    """
    import torch

    from ..landscape.material import draw_rows
    from ..models.by_name import ModelSpec
    from ..report.claims import claims_page
    from ..study.baselines import model_spec
    from ..study.run import load_data
    from ..study.settings import Run
    from ..workflows.aligning import align_checkpoints, write_network

    if by not in ("weights", "activations"):
        raise ValueError(f"align: --by must be weights or activations, but it is {by!r}.")
    if page is not None and data is None:
        raise ValueError("align: the page shows the loss along a line, so --page needs --data.")
    check_writable("align", out, page)
    settings: dict[str, Any] = {"by": by, "restarts": restarts, "seed": seed, "points": points}
    if data is not None:
        source = options.source_options(folder=data_dir, target=target, image_size=image_size, broken=broken)
        run = Run(data=data, model=model, width=width, dropout=dropout, seed=seed, source=source)
        found = load_data(run)
        build = model_spec(run, found).build
        if not (quiet or as_json):
            say_notes(found.notes)
        settings["train"], settings["test"] = (
            (found.normalise(x), y) for x, y in (draw_rows(found.train, rows), draw_rows(found.test, rows))
        )
        example = settings["train"][0]
    else:
        if shape is None or classes is None:
            raise ValueError("align: give --data, or --shape and --classes, so that the network can be built.")
        if by == "activations":
            raise ValueError("align: activations are compared on data, so --by activations needs --data.")
        row = tuple(options.whole_number("--shape", part) for part in options.split_names(shape))
        build = ModelSpec(model, row, classes, width, dropout).build
        example = torch.randn(4, *row, generator=torch.Generator().manual_seed(seed))
    aligned = align_checkpoints(first, second, build, example, **settings)
    write_network(out, aligned.model)
    if page is not None and aligned.question is not None:
        how = {"first": str(first), "second": str(second), "network": model, "data": str(data), "by": by}
        command = shlex.join(["pluribus", *sys.argv[1:]])
        claims_page("Two networks, aligned", [aligned.question], page, command=command, settings=how)
    _show(aligned, out, page, quiet, as_json)


def _show(aligned: Any, out: Path, page: Path | None, quiet: bool, as_json: bool) -> None:
    question = aligned.question
    if as_json:
        groups = [
            {"size": g.size, "places": [f"{name}[{dim}]" for name, dim in g.places], "outer": g.outer}
            for g in aligned.groups
        ]
        ridges = {row[0]: float(row[-1]) for row in question.figures[0].rows} if question else None
        files = {"weights": str(out), "page": None if page is None else str(page)}
        print(json.dumps({**files, "moved": aligned.moved, "barrier": ridges, "groups": groups}, indent=1))
    elif not quiet:
        print(aligned.groups.explain())
        print(f"{aligned.moved:,} weights moved.")
        if question is not None:
            print(question.found[0])
        print(f"The weights: {out}" + (f"; the page: {page}" if page else ""))
