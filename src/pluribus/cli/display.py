"""What the command line shows: the progress of a study, its table and its verdict."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from ..results.quantities import Differences, estimate, format_value, quantity, value
from ..results.store import Group, Result, group_runs
from ..results.verdict import verdicts
from ..study.folder import Outcome
from ..study.settings import Run
from .messages import safe_text

FIGURES = ("accuracy", "rmse", "nll", "ece", "auroc", "cacc", "disagreement")

COSTS = ("relative_parameters", "relative_mult_adds", "relative_latency")


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
            self.progress.console.print(f"  [{colour}]{event:<8}[/] {safe_text(name):<28} {safe_text(text)}")


@contextmanager
def watch_runs(console: Console, runs: int, quiet: bool) -> Iterator[Watch]:
    """A watch that is on the screen while a study runs."""
    watch = Watch(console, runs, quiet)
    with watch.progress:
        yield watch


def result_tables(results: Sequence[Result]) -> list[Table]:
    """One table for each data set: figures with intervals, costs relative to the single network."""
    return [_table(f"{data}, {model}", groups) for (data, model), groups in group_runs(results).items()]


def _table(title: str, groups: list[Group]) -> Table:
    table = Table(title=safe_text(title), title_justify="left", header_style="bold", box=None, pad_edge=False)
    table.add_column("method")
    names = [name for name in (*FIGURES, *COSTS) if any(math.isfinite(estimate(group, name).value) for group in groups)]
    for name in names:
        table.add_column(_heading(name), justify="right")
    for group in groups:
        table.add_row(safe_text(group.label), *(_cell(group, name) for name in names))
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
    return format_value(found.value, name) + (f" ± {format_value(half, name)}" if math.isfinite(half) else "")


def sentences(results: Sequence[Result], differences: Differences | None = None) -> list[str]:
    """What was found, in words."""
    return [sentence.text for found in verdicts(results, differences) for sentence in found.sentences]


def as_json(outcome: Outcome, results: Sequence[Result], differences: Differences, **more: Any) -> str:
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
        for (data, model), groups in group_runs(results).items()
        for group in groups
    ]
    return json.dumps(
        {
            "rows": rows,
            "verdict": sentences(results, differences),
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
