"""What the command line shows: the progress of a study, its table and its verdict."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from .measures import estimate, printed, quantity, value
from .results import Group, Result, grouped
from .runs import Run
from .study import Outcome
from .verdict import verdict

WIDE = 150  # columns, where the output is no terminal
FIGURES = ("accuracy", "rmse", "nll", "ece", "auroc", "cacc", "disagreement")
COSTS = ("relative_parameters", "relative_mult_adds", "relative_latency")


def screen(stderr: bool = False) -> Console:
    """A console that is as wide as the terminal, or wide enough for a table in a file."""
    console = Console(stderr=stderr, highlight=False, emoji=False)
    return console if console.is_terminal else Console(stderr=stderr, highlight=False, emoji=False, width=WIDE)


class Watch:
    """Shows runs as they start and end, with the time that is left."""

    def __init__(self, console: Console, runs: int, quiet: bool):
        self.quiet, self.console, self.running = quiet, console, [""]
        self.progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("runs,"),
            TimeElapsedColumn(), TextColumn("gone,"), TimeRemainingColumn(), TextColumn("left"),
            console=console, disable=quiet or not console.is_terminal, transient=True,
        )  # fmt: skip
        self.task = self.progress.add_task("", total=runs)
        self.running.clear()

    def __call__(self, event: str, run: Run, text: str) -> None:
        """Take notice of what happened to a run."""
        name = f"{run.label} (seed {run.seed})"
        if event == "started":
            self.running.append(name)
        elif event in ("done", "failed", "retried", "kept"):
            self.running = [other for other in self.running if other != name]
        if event in ("done", "failed", "kept"):
            self.progress.advance(self.task)
        self.progress.update(self.task, description=", ".join(self.running[:3]))
        if event != "started" and not self.quiet:
            colour = {"failed": "red", "damaged": "yellow", "retried": "yellow"}.get(event, "green")
            self.progress.console.print(f"  [{colour}]{event:<8}[/] {escape(name):<28} {escape(text)}")


@contextmanager
def watched(console: Console, runs: int, quiet: bool) -> Iterator[Watch]:
    """A watch that is on the screen while a study runs."""
    watch = Watch(console, runs, quiet)
    with watch.progress:
        yield watch


def tables(results: Sequence[Result]) -> list[Table]:
    """One table for each data set: figures with intervals, costs relative to the single network."""
    return [_table(f"{data}, {model}", groups) for (data, model), groups in grouped(results).items()]


def _table(title: str, groups: list[Group]) -> Table:
    table = Table(title=escape(title), title_justify="left", header_style="bold", box=None, pad_edge=False)
    table.add_column("method")
    names = [name for name in (*FIGURES, *COSTS) if any(math.isfinite(estimate(group, name).value) for group in groups)]
    for name in names:
        table.add_column(_heading(name), justify="right")
    for group in groups:
        table.add_row(escape(group.label), *(_cell(group, name) for name in names))
    return table


def _heading(name: str) -> str:
    titles = {"relative_parameters": "parameters", "relative_mult_adds": "mult-adds", "relative_latency": "time"}
    kind = quantity(name)
    arrow = {"higher": " ↑", "lower": " ↓"}.get(kind.better if name not in titles else "", "")
    return titles.get(name, kind.title) + (f", {kind.unit}" if kind.unit and name not in titles else "") + arrow


def _cell(group: Group, name: str) -> str:
    found = estimate(group, name)
    if name in COSTS:
        return f"{found.value:.2f} x"
    half = (found.high - found.low) / 2
    return printed(found.value, name) + (f" ± {printed(half, name)}" if math.isfinite(half) else "")


def sentences(results: Sequence[Result]) -> list[str]:
    """What was found, in words."""
    return [sentence.text for found in verdict(results) for sentence in found.sentences]


def as_json(outcome: Outcome, results: Sequence[Result], **more: Any) -> str:
    """Everything that a script wants to know."""
    rows = [
        {
            "data": data,
            "model": model,
            "label": group.label,
            "seeds": sorted(group.by_seed),
            **{name: _number(estimate(group, name).value) for name in _all_names(group)},
            "intervals": {name: [*map(_number, estimate(group, name)[1:3])] for name in _all_names(group)},
        }
        for (data, model), groups in grouped(results).items()
        for group in groups
    ]
    return json.dumps(
        {
            "rows": rows,
            "verdict": sentences(results),
            "failed": outcome.failed,
            "damaged": [str(error) for error in outcome.damaged],
            **more,
        },
        indent=1,
    )


def _all_names(group: Group) -> list[str]:
    names = [*group.record["metrics"], "cacc", "cnll", "cece", "auroc", "aupr", "fpr95", "parameters", "mult_adds"]
    names += ["latency", *COSTS, "training"]
    return [name for name in names if any(math.isfinite(value(run, name)) for run in group.runs)]


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
