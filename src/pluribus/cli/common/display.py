"""What the command line shows: the progress of a study, its table and its verdict."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text

from ..._common.untrusted import printable
from ...results.quantities import distance_groups, estimate, format_value, quantity, value
from ...results.store import Group, Result
from ...results.verdict import Verdict
from ...study.folder import Outcome, training_folder
from ...study.progress import read_progress
from ...study.settings import Run
from .messages import safe_text, screen

METRICS = ("mean_iou", "accuracy", "rmse", "nll", "coverage", "ece", "auroc", "cacc", "disagreement")

COSTS = {  # relative to the single network, with their headings
    "relative_parameters": "parameters",
    "relative_mult_adds": "mult-adds",
    "relative_latency": "time",
    "relative_training": "training",
}

SPARE = ("disagreement", "relative_parameters", "ece", "cacc", "relative_training", "relative_latency")  # the first go
KEPT = 3  # of them, which go only after the intervals
MAIN = ("mean_iou", "accuracy", "rmse", "nll")  # whose spread is shown in a narrow table too


class Watch:
    """Shows runs as they start and end, how far those under way are, and the time that is left.

    Args:
        folder: of the study, where runs say how far they are
        jobs: how many runs at once
    """

    def __init__(self, console: Console, quiet: bool, folder: Path, jobs: int):
        self.quiet, self.folder, self.jobs = quiet, folder, jobs
        self.seconds: Mapping[str, float] = {}
        self.running: dict[str, Run] = {}
        self.done, self.before, self.started = 0.0, 0.0, time.monotonic()
        self.progress = Progress(
            LiveText(self.say_runs), BarColumn(bar_width=10), MofNCompleteColumn(), TextColumn("runs,"),
            TimeElapsedColumn(), TextColumn("elapsed,"), LiveText(self.say_time_left),
            console=console, disable=quiet or not console.is_terminal, transient=True, refresh_per_second=2,
        )  # fmt: skip
        self.task = self.progress.add_task("", total=0)

    def expect(self, seconds: Mapping[str, float]) -> None:
        """Take notice of what each run will take on one core, by its name, before the first starts."""
        self.seconds, self.started = seconds, time.monotonic()
        self.before = sum(self._done_of(name) for name in seconds)  # epochs of an earlier start
        self.progress.update(self.task, total=len(seconds))

    def __call__(self, event: str, run: Run, text: str) -> None:
        """Take notice of what happened to a run."""
        if event == "started":
            self.progress.start()
            self.running[run.name] = run
        elif event in ("done", "failed", "retried", "kept"):
            self.running.pop(run.name, None)
        if event in ("done", "failed"):
            self.done += self.seconds.get(run.name, 0.0)
            self.progress.advance(self.task)
        if event != "started" and not self.quiet:
            colour = {"failed": "red", "damaged": "yellow", "retried": "yellow"}.get(event, "green")
            name = f"{run.label} (seed {run.seed})"
            self.progress.console.print(f"  [{colour}]{event:<8}[/] {safe_text(name):<28} {safe_text(text)}")

    def say_runs(self, task: Any) -> str:
        """The first two runs under way with their epochs; with their seeds where runs have one label."""
        labels, each = [run.label for run in self.running.values()], []
        for run in self.running.values():
            at = read_progress(training_folder(self.folder, run.name))
            name = run.label if labels.count(run.label) == 1 else f"{run.label} (seed {run.seed})"
            each.append(f"{name} {at.epoch}/{at.epochs}" if at else name)
        return ", ".join(each[:2])

    def say_time_left(self, task: Any) -> str:
        """Hours, minutes and seconds; "estimating" until they are known, and where runs take longer than expected."""
        seconds = round(self.left() or 0)
        return f"{timedelta(seconds=seconds)} left" if seconds or task.finished else "estimating"

    def left(self) -> float | None:
        """The seconds that are left, as fast as it went so far; None where nobody can say."""
        done = self.done + sum(self._done_of(name) for name in self.seconds)
        whole, gone = sum(self.seconds.values()), time.monotonic() - self.started
        now = done - self.before
        speed = now / gone if now > 0.02 * whole and gone > 5 else self.jobs
        return (whole - done) / max(speed, 1e-9) if done < whole else None

    def _done_of(self, name: str) -> float:
        """The part of a run's seconds that its epochs so far were expected to take; nothing once it is done."""
        found = read_progress(training_folder(self.folder, name))
        return self.seconds[name] * found.epoch / found.epochs if found else 0.0


class LiveText(ProgressColumn):
    """What a function says of the task; on one line, cut where there is no room."""

    def __init__(self, say: Callable[[Any], str]):
        super().__init__(Column(no_wrap=True, overflow="ellipsis"))
        self.say = say

    def render(self, task: Any) -> Text:
        """The text now."""
        return Text(printable(self.say(task)))


def say_duration(seconds: float) -> str:
    """A time as people say it.

    >>> say_duration(50), say_duration(100), say_duration(7000)
    ('about 50 seconds', 'about 2 minutes', 'about 1.9 hours')
    """
    if seconds < 90:
        return f"about {max(10 * round(seconds / 10), 10)} seconds"
    return f"about {seconds / 60:.0f} minutes" if seconds < 5400 else f"about {seconds / 3600:.1f} hours"


@contextmanager
def watch_runs(console: Console, quiet: bool, folder: Path, jobs: int) -> Iterator[Watch]:
    """A watch that is on the screen from the first run to the end of the study; arguments as for `Watch`."""
    watch = Watch(console, quiet, folder, jobs)
    try:
        yield watch
    finally:
        watch.progress.stop()


def show_tables(found: Sequence[Verdict]) -> None:
    """Write the table of each data set, as wide as the terminal."""
    for table in result_tables(found, (console := screen()).width):
        console.print(table)


def result_tables(found: Sequence[Verdict], width: int) -> list[Table]:
    """One table for each data set: metrics with intervals, deployed costs relative to the single network.

    The recommended row is bold; rows that are not clearly different from the single network are dim. What does not
    fit is left out, the least important first, and the caption says so.
    """
    return [_fitting(all_rows(verdict), verdict, width) for verdict in found]


def all_rows(verdict: Verdict) -> list[Group]:
    """The groups, and what needs no training of its own: distances in one network's features, the best's cascade."""
    groups = verdict.groups
    return [*groups, *distance_groups(groups), *cascade_rows(groups, verdict.recommended)]


def cascade_rows(groups: Sequence[Group], recommended: str | None) -> list[Group]:
    """The cascade of the best method as a row: its metrics, and its cost from that of the whole ensemble."""
    known = [group for group in groups if all(run.record.get("cascade") for run in group.runs)]
    if not known:
        return []
    best = max(known, key=lambda group: (group.label == recommended, estimate(group, "accuracy").value))
    return [Group(f"{best.label} cascade", tuple(Result(_as_cascade(run.record)) for run in best.runs))]


def _as_cascade(record: dict[str, Any]) -> dict[str, Any]:
    found, kept = record["cascade"], ("run", "method", "settings", "data", "task", "seed", "model", "size")
    deployed = record["cost"]["deployed"]
    share, ratios = found["cost"], dict(deployed["relative"])
    ratios["mult_adds"] *= share["mult_adds"]
    ratios["latency"] = {"32": ratios["latency"]["32"] * share["latency"]} if "32" in ratios["latency"] else {}
    cost = {**record["cost"], "deployed": {**deployed, "relative": ratios}}
    return {**{key: record[key] for key in kept if key in record}, "label": f"{record['label']} cascade", "cost": cost,
            "metrics": {name: {"value": value} for name, value in found["metrics"].items()}}  # fmt: skip


def _fitting(groups: list[Group], verdict: Verdict, width: int) -> Table:
    """The table with as much as fits: first some columns go, then intervals, then the others that can be spared."""
    known = [name for name in (*METRICS, *COSTS) if any(math.isfinite(estimate(one, name).value) for one in groups)]
    spare, shown, exact = [name for name in SPARE if name in known], list(known), True
    while True:
        hidden = [COSTS.get(name) or quantity(name).title for name in known if name not in shown]
        table = _table(groups, verdict, shown, exact, hidden)
        if Console(width=1000).measure(table).maximum <= width or not (spare or exact):
            return table
        if exact and len(spare) <= KEPT:
            exact = False
        elif spare:
            shown.remove(spare.pop(0))
        else:
            exact = False


def _table(groups: list[Group], verdict: Verdict, names: Sequence[str], exact: bool, hidden: Sequence[str]) -> Table:
    title = safe_text(f"{verdict.data}, {verdict.model}")
    table = Table(title=title, title_justify="left", header_style="bold", box=None, pad_edge=False)
    table.caption, table.caption_justify, table.caption_style = _caption(groups, hidden), "left", "dim"
    table.add_column("method", no_wrap=True)
    for name in names:
        table.add_column(_heading(name), justify="right", no_wrap=exact)
    for group in groups:
        style = "bold" if group is verdict.choice else "dim" if _is_unclear(verdict, group) else ""
        label = group.label + (" *" if group.unfrozen else "")
        table.add_row(safe_text(label), *(_cell(group, name, exact) for name in names), style=style)
    return table


def _is_unclear(verdict: Verdict, group: Group) -> bool:
    """Whether it is not clearly different from the single network."""
    found = verdict.found
    if found is None or found.baseline in (None, group) or group not in verdict.groups:
        return False
    return found.relation(group, found.baseline) == "within noise"


def _caption(groups: Sequence[Group], hidden: Sequence[str]) -> str | None:
    """What the table leaves out, and which costs are not those of a frozen network."""
    lines = [f"Hidden: {', '.join(hidden)}. Use a wider terminal or --json."] if hidden else []
    for group in (group for group in groups if group.unfrozen):
        why = f"cannot be frozen ({group.unfrozen}); its cost is that of the ensemble as trained."
        lines.append(f"* {group.label} {why}")
    return safe_text("\n".join(lines)) or None


def _heading(name: str) -> str:
    kind = quantity(name)
    if name in COSTS:
        return COSTS[name]
    arrow = {"higher": " ↑", "lower": " ↓"}.get(kind.better, "")
    return kind.title + (f", {kind.unit}" if kind.unit else "") + arrow


def _cell(group: Group, name: str, exact: bool) -> str:
    found = estimate(group, name)
    if name in COSTS:
        return f"{found.value:.2f} x"
    half = format_value((found.high - found.low) / 2, name)
    shown = found.known and half.strip("0.") and (exact or name in MAIN)  # no spread that rounds to nothing
    return format_value(found.value, name) + (f" ± {half}" if shown else "")


def sentences(found: Sequence[Verdict]) -> list[str]:
    """What was found, in words."""
    return [sentence.text for verdict in found for sentence in verdict.sentences]


def as_json(outcome: Outcome, found: Sequence[Verdict], **more: Any) -> str:
    """Everything that a script wants to know."""
    rows = [
        {
            "data": one.data,
            "model": one.model,
            "label": group.label,
            "seeds": sorted(group.by_seed),
            "frozen": not group.unfrozen,
            **{name: _number(estimate(group, name).value) for name in _all_names(group)},
            "intervals": {name: [*map(_number, estimate(group, name)[1:3])] for name in _all_names(group)},
        }
        for one in found
        for group in all_rows(one)
    ]
    record = {"rows": rows, "verdict": sentences(found), "failed": outcome.failed}
    return json.dumps(record | {"damaged": [str(error) for error in outcome.damaged], **more}, indent=1)


def _all_names(group: Group) -> list[str]:
    names = [*group.record["metrics"], "cacc", "cnll", "cece", "auroc", "aupr", "fpr95", "parameters", "mult_adds"]
    names += ["memory", "latency", "latency_1", *COSTS, "relative_latency_1", "plain_latency", "training"]
    names += ["unfrozen_mult_adds", "unfrozen_latency"]
    return [name for name in names if any(math.isfinite(value(run, name)) for run in group.runs)]


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
