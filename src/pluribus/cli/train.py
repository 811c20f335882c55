"""`pluribus train`: one ensemble, trained and stored for `pluribus predict`."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from .common import options
from .common.messages import messages, say_how_to_go_on, say_notes


def train_command(
    out: Annotated[Path, typer.Option(help="The folder to write the trained ensemble to.")],
    method: options.Method = "packed",
    data: options.Data = "digits",
    data_dir: options.Folder = None,
    target: options.Target = None,
    task: options.Task = None,
    image_size: options.ImageSize = None,
    split: options.Split = 0,
    broken: options.Broken = "stop",
    unpack_limit: options.UnpackLimit = None,
    train_rows: options.TrainRows = None,
    validation: options.Validation = None,
    model: options.Model = None,
    width: options.StudyWidth = None,
    dropout: options.Dropout = None,
    size: options.Size = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="An argument of the method: alpha=3.")] = None,
    seed: int = 0,
    recipe: options.Recipe = None,
    epochs: options.Epochs = None,
    batch_size: options.BatchSize = None,
    lr: options.Rate = None,
    weight_decay: options.Decay = None,
    risk: Annotated[float, typer.Option(help="The error to keep to by abstaining.", min=0, max=1)] = 0.05,
    threads: Annotated[int | None, typer.Option(min=1)] = None,
    device: options.Device = "cpu",
    precision: Annotated[str | None, typer.Option(help="32-true, bf16-mixed, 16-mixed.")] = None,
    patience: options.Patience = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what another training wrote there.")] = False,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Train one ensemble, for `pluribus predict`. A training that was stopped goes on with the same command.

    Examples:

        pluribus train --out digits/ --method packed --size 4

        pluribus train --out houses/ --data table:houses.csv --target price --method deep --epochs 40
    """
    import torch

    from ..study.baselines import entry, settings_of
    from ..study.run import load_data
    from ..study.settings import Run
    from ..study.training import train_predictor

    entry(method, "train")
    given, known = options.settings(settings or [], several=False), sorted(settings_of(method))
    for name in given:
        if name not in known:
            raise ValueError(f"--set: {method} takes no {name!r}. Choose from {', '.join(known)}.")
    threads = threads or torch.get_num_threads()
    torch.set_num_threads(threads)
    run = Run(
        data=data, model=model or "auto", method=method, label=method, size=size, settings=given,
        width=width or (options.DEMO_WIDTH if options.is_demo([data], model, recipe) else 1.0),
        dropout=dropout, seed=seed, recipe=recipe or ("digits" if data == "digits" else "default"),
        training=options.training_options(
            epochs=epochs, patience=patience, batch_size=batch_size, lr=lr, weight_decay=weight_decay
        ),
        source=options.source_options(folder=data_dir, target=target, task=task, outside="", shifted="", variants="",
                       image_size=image_size, split=split, broken=broken, unpack_limit=unpack_limit,
                       train_rows=train_rows, validation=validation),
        threads=threads, device=device,
    )  # fmt: skip
    options.check_device(device)
    found = load_data(run)
    if not (quiet or as_json):
        say_notes(found.notes)
    with say_how_to_go_on(lambda: f"the epochs so far are kept in {out}"):
        predictor, seconds = train_predictor(
            run, found, out, risk=risk, overwrite=overwrite, precision=precision,
            progress=not (quiet or as_json) and messages.is_terminal,
        )  # fmt: skip
    _show(predictor, found.notes, seconds, out, quiet, as_json)


def _show(predictor: Any, notes: list[str], seconds: float, out: Path, quiet: bool, as_json: bool) -> None:
    record, threshold = predictor.record, predictor.threshold
    figures = record["figures"]
    if as_json:
        print(json.dumps({"folder": str(out), "test": figures, "seconds": seconds,
                          "threshold": record["threshold"], "notes": notes}, indent=1))  # fmt: skip
    elif not quiet:
        names = ("accuracy", "nll", "ece", "rmse", "coverage")
        text = ", ".join(f"{name} {figures[name]:.4g}" for name in names if name in figures)
        print(f"test: {text}; {seconds:.0f} s of training")
        print("\n".join([*filter(None, [record.get("no_threshold")]), *([threshold.explain()] if threshold else [])]))
        print(f"written to {out}; next: pluribus predict {shlex.quote(str(out))} FILES")
