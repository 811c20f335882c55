"""`pluribus landscape`: why ensembles work, asked about a network and data of one's own."""

from __future__ import annotations

import json
import shlex
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from .._common.names import say_unknown
from .common import options
from .common.messages import check_writable, say_notes, timed_lines


def landscape_command(
    data: options.Data = "digits",
    ensemble: Annotated[
        Path | None, typer.Option(help="A folder that `pluribus train` wrote: use its members instead of new runs.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("landscape.html"),
    animation: Annotated[
        Path | None, typer.Option(help="An animation of training on the plane of two runs: .gif or .svg.")
    ] = None,
    runs: Annotated[int, typer.Option(help="The number of networks to train.", min=2)] = 3,
    data_dir: options.Folder = None,
    target: options.Target = None,
    image_size: options.ImageSize = None,
    broken: options.Broken = "stop",
    model: options.Model = None,
    width: options.Width = 1.0,
    dropout: options.Dropout = None,
    epochs: options.Epochs = None,
    batch_size: options.BatchSize = None,
    lr: options.Rate = None,
    rows: Annotated[
        int, typer.Option(help="The largest number of training rows; half as many test rows are used.", min=2)
    ] = 1000,
    grid: Annotated[int, typer.Option(help="Points along each side of a surface.", min=3)] = 21,
    samples: Annotated[int, typer.Option(help="Networks to sample around a solution.", min=1)] = 5,
    steps: Annotated[int, typer.Option(help="Training steps at each point of the tunnel.", min=1)] = 80,
    retrained: Annotated[
        int, typer.Option(help="Networks to train again, to compare training schemes; 0 skips that.", min=0)
    ] = 3,
    only: Annotated[
        str, typer.Option(help="Questions to ask, comma-separated; by default all the quick ones. See the docs.")
    ] = "",
    corruptions: Annotated[
        str, typer.Option(help="Corruptions of the test images, comma-separated.")
    ] = "gaussian_noise",
    seed: options.Seed = 0,
    threads: options.Threads = None,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Why do ensembles work? Train a few networks, and examine them in weight space and in function space.

    Writes one page that asks the questions of Fort et al., "Deep Ensembles: A Loss Landscape Perspective".

    Examples:

        pluribus landscape

        pluribus landscape --data folder:photos/ --model resnet20 --epochs 40 --animation training.gif

        pluribus landscape --ensemble digits/
    """
    import torch

    from ..data.corruptions import CORRUPTIONS
    from ..landscape.laboratory.exploration import check_animation, check_questions, explore
    from ..study.run import load_one_target
    from ..study.settings import Run
    from ..workflows.landscape_material import read_members, record_runs

    chosen = tuple(name for name in corruptions.split(",") if name)
    for name in chosen:
        if name not in CORRUPTIONS:
            raise ValueError(f"--corruptions: {say_unknown(name, CORRUPTIONS)}")
    asked = tuple(name for name in only.split(",") if name)
    check_questions(asked)
    check_animation(animation, recorded=ensemble is None)
    check_writable("landscape", out, animation)
    torch.set_num_threads(threads or torch.get_num_threads())
    started, say = time.monotonic(), timed_lines(quiet or as_json)
    settings: dict[str, Any] = {"grid": grid, "samples": samples, "steps": steps, "corruptions": chosen}
    settings["retrained"] = retrained
    if ensemble is not None:
        material, run, found = read_members(ensemble, rows, say, model=model, **settings)
    else:
        run = Run(
            data=data, model=model or "auto", width=width, dropout=dropout, seed=seed,
            training=options.training_options(epochs=epochs, batch_size=batch_size, lr=lr),
            source=options.source_options(
                folder=data_dir, target=target, image_size=image_size, broken=broken
            ),
        )  # fmt: skip
        found = load_one_target("landscape", run)
        if not (quiet or as_json):
            say_notes(found.notes)
        material, run = record_runs(run, found, runs, rows, say, **settings)
    about = f"{len(material.runs)} networks on {found.name}: {run.model}. {BRACKETS}"
    command = shlex.join(["pluribus", *sys.argv[1:]])
    how = _settings(run, material, ensemble)
    questions = explore(material, out, about=about, command=command, settings=how, animation=animation, only=asked)
    left_out = [name for name in asked if name not in {question.name for question in questions}]
    _show(questions, left_out, out, animation, time.monotonic() - started, quiet, as_json)


BRACKETS = (
    "Square brackets hold the smallest and the largest value or, where a figure is a mean over seeds, its 95 % "
    "interval."
)


def _settings(run: Any, material: Any, ensemble: Path | None) -> dict[str, str]:
    """How it was done, for the foot of the page."""
    rows = {"training rows": len(material.train[1]), "test rows": len(material.test[1])}
    trained = f"members of {ensemble}" if ensemble else f"{len(material.runs)} from their own initialisations"
    numbers = {"surface": f"{material.grid} x {material.grid}", "samples of a subspace": material.samples}
    said = {"data": run.data, "network": run.model, "networks": trained, "seed": run.seed, **rows, **numbers}
    return {name: str(value) for name, value in {**said, **run.training}.items()}


def _show(
    questions: Any, left_out: list[str], out: Path, animation: Path | None, seconds: float, quiet: bool, as_json: bool
) -> None:
    if as_json:
        found = {question.name: {"question": question.title, "found": question.found} for question in questions}
        files = {"page": str(out), "animation": None if animation is None else str(animation)}
        print(json.dumps({**files, "seconds": seconds, "questions": found, "not answered": left_out}, indent=1))
    elif not quiet:
        for question in questions:
            print(f"{question.title}\n  {question.found[0]}")
        if left_out:
            print(f"Not answered, for the reasons on the page: {', '.join(left_out)}")
        print(f"The page: {out}" + (f"; the animation: {animation}" if animation else ""))
