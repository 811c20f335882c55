"""`pluribus export`: a trained ensemble in one file that needs neither Python nor Pluribus."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .common import options


def export_command(
    folder: Annotated[Path, typer.Argument(help="The folder that `pluribus train` or `upgrade` wrote.")],
    path: Annotated[Path, typer.Argument(help="The file to write: .onnx, or .pt2 for torch.export.")],
    draws: Annotated[str, typer.Option(help="The dropout masks of MC-Dropout: fixed (stored) or random.")] = "fixed",
    rows: Annotated[int, typer.Option(help="Rows in the batch of the final check.", min=1)] = 4,
    freeze: Annotated[bool, typer.Option(help="Freeze first: fold batch norm and cut masked channels.")] = True,
    model: options.OwnModel = None,
    as_json: options.AsJson = False,
) -> None:
    """Write a trained ensemble to one file that needs neither Python nor Pluribus, and check it against PyTorch.

    The file normalises its inputs itself: give it images in [0, 1] or encoded rows of a table.

    Example:

        pluribus export digits/ digits.onnx
    """
    from ..deploy.exporting import export
    from ..deploy.predictor import load_predictor

    written = export(*load_predictor(folder, model=model).for_export(rows, freeze), path, draws=draws)
    typer.echo(json.dumps(written.record(), indent=1) if as_json else written.explain())
