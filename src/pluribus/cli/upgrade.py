"""`pluribus upgrade`: turns a trained network into an ensemble if that pays, or says that the network is enough."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from .common import options
from .common.messages import messages, next_prediction, safe_text, say_notes
from .common.run_options import RunOptions, takes_run_options


@takes_run_options
def upgrade_command(
    *,
    out: Annotated[Path, typer.Option(help="The folder for the upgraded network.")],
    data: options.Data = "digits",
    run: RunOptions,
    budget: Annotated[
        str, typer.Option(help="Epochs of fine-tuning per method (0: none), or a time for all of them, such as 20min.")
    ] = "2",
    methods: Annotated[str, typer.Option(help="The methods to try, comma-separated [all].")] = "",
    goal: Annotated[
        str,
        typer.Option(
            help="What is to be best: likelihood; ood (detecting --outside); or abstain (few errors among the answers "
            "that it is sure of)."
        ),
    ] = "likelihood",
    outside: options.Outside = "",
    coverage: Annotated[
        float, typer.Option(help="How often the sets or intervals must contain the truth.", min=0, max=1)
    ] = 0.9,
    risk: Annotated[float, typer.Option(help="Abstain so that the error rate is at most this.", min=0, max=1)] = 0.05,
    seed: options.Seed = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is already there.")] = False,
) -> None:
    """Turn a pretrained network into an ensemble that keeps its weights, for `pluribus predict`, and say what it gains.

    Tries every method that keeps the weights, fine-tunes it within the budget and calibrates it. The best one is then
    compared with the network itself on held-out test rows. If it gains nothing, the command writes the network itself,
    with calibrated probabilities.

    Examples:

        pluribus upgrade --data cifar10 --data-dir ~/data --model resnet20 --weights mine.safetensors --out better/

        pluribus upgrade --data folder:photos/ --model python:net.py:build --weights mine.pt --budget 1h --out new/

        pluribus upgrade --data mnist --model lenet --weights mine.pt --budget 0 --goal ood --outside kmnist --out new/
    """
    from ..workflows.upgraded_predictor import check_folder, upgrade_predictor

    if not run.start and not (run.model or "").startswith("hf:"):
        raise ValueError(
            "upgrade: needs a trained network to start from. Give --model and --weights FILE, --model hf:FOLDER, or "
            "--model timm:NAME --pretrained."
        )
    options.check_device(run.device)
    check_folder(out, overwrite)

    def say(text: str) -> None:
        if not run.silent:
            messages.print(safe_text(text), soft_wrap=not messages.is_terminal)

    predictor, upgraded, notes = upgrade_predictor(
        run.conditions([data], outside=outside), data, run.model or "auto", budget, size=run.size or 4,
        coverage=coverage, risk=risk,
        methods=options.split_names(methods) or None, goal=goal, seed=seed, say=say,
    )  # fmt: skip
    predictor.save(out)
    if not run.silent:
        say_notes(notes)
    _show(upgraded, predictor, out, run)


def _show(upgraded: Any, predictor: Any, out: Path, run: RunOptions) -> None:
    if run.as_json:
        table = [vars(tried) for tried in upgraded.table]
        gains = {name: gain._asdict() for name, gain in upgraded.gains.items()}
        found = {"best": upgraded.best, "enough": upgraded.enough, "gains": gains, "rows": upgraded.rows}
        print(json.dumps({"folder": str(out), **found, "table": table, "notes": upgraded.notes}, indent=1))
    elif not run.quiet:
        print(upgraded)
        print(f"written to {out}; next: {next_prediction(out, predictor.record)}")
