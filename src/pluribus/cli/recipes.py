"""`pluribus recipes`: the papers' training settings."""

from __future__ import annotations

from rich.table import Table

from .common.messages import screen


def recipes_command() -> None:
    """List the training settings of the papers, by name."""
    from ..training.recipes import RECIPES

    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("name", "epochs", "batch", "optimizer", "rate", "from"):
        table.add_column(name)
    for name, one in RECIPES.items():
        table.add_row(name, str(one.epochs), str(one.batch_size), one.optimizer["name"], f"{one.lr:g}", one.source)
    screen().print(table)
