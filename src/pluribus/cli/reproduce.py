"""`pluribus reproduce`: the tables and figures of the papers, run and judged by their claims."""

from __future__ import annotations

import json
import shlex
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from .common import options
from .common.messages import messages, safe_text, say_how_to_go_on, screen


def reproduce_command(
    item: Annotated[
        str | None, typer.Argument(help="An item, such as packed/table11; without one, the command lists them all.")
    ] = None,
    scale: Annotated[
        str, typer.Option(help="smoke (seconds), laptop (minutes to two hours) or paper (the authors' own scale).")
    ] = "smoke",
    data_dir: options.Folder = None,
    out: Annotated[Path, typer.Option(help="The folder for results and pages.")] = Path("pluribus-claims"),
    jobs: Annotated[int, typer.Option(help="Parts to run at the same time, each in its own process.", min=1)] = 1,
    ray: Annotated[str | None, typer.Option(help="Run on a Ray cluster: its address, auto or local.")] = None,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Reproduce a table or a figure of a paper, and judge its claim: holds, does not hold, or cannot be told.

    The folder keeps what was computed: the same command resumes there, and judges again without training.

    Examples:

        pluribus reproduce

        pluribus reproduce packed/table10 --scale laptop

        pluribus reproduce packed/table11 --scale laptop --data-dir ~/data --jobs 2
    """
    from ..reproduce.experiments.stored_parts import Context
    from ..reproduce.running import check_scale, find_claim, reproduce_claim

    if item is None:
        _list(as_json, out)
        return
    claim = find_claim(item)
    check_scale(scale)
    started = time.monotonic()

    def say(text: str) -> None:
        if not (quiet or as_json):
            messages.print(f"{time.monotonic() - started:5.0f} s  {safe_text(text)}", soft_wrap=True)

    command = shlex.join(["pluribus", *sys.argv[1:]])
    with say_how_to_go_on(lambda: f"what was computed is kept in {out}"):
        outcome = reproduce_claim(claim, Context(scale, out, data_dir, jobs, ray, say), command)
    _show(outcome, scale, quiet, as_json)


def _show(outcome: Any, scale: str, quiet: bool, as_json: bool) -> None:
    claim, verdict = outcome.claim, outcome.verdict
    if as_json:
        record = {"item": claim.name, "claim": claim.says, "scale": scale, "judgement": verdict.judgement}
        record |= {"found": verdict.found, "header": verdict.header, "rows": verdict.rows}
        print(json.dumps(record | {"seconds": outcome.seconds, "page": str(outcome.page)}, indent=1))
        return
    if quiet:
        return
    console = screen()
    if verdict.rows:
        table = Table(box=None, header_style="bold", pad_edge=False)
        for head in verdict.header:
            table.add_column(head, overflow="fold")
        for row in verdict.rows:
            table.add_row(*map(safe_text, row))
        console.print(table)
    lines = ["", f"{claim.title}: {claim.says}", f"{verdict.judgement.upper()}: {verdict.found[0]}"]
    for text in [*lines, *verdict.found[1:], *claim.notes, f"The page: {outcome.page}"]:
        console.print(safe_text(text), soft_wrap=True)


def _list(as_json: bool, out: Path) -> None:
    """Every item, what it costs on a laptop, and the verdict that is stored."""
    from ..reproduce.registry import CLAIMS
    from ..reproduce.running import read_verdicts

    stored = {record["item"]: record for record in read_verdicts(out)}
    rows: list[dict[str, Any]] = [
        {
            "item": name,
            "title": claim.title,
            "claim": claim.says,
            "costs": dict(claim.costs),
            "published": dict(claim.published),
            "settings": dict(claim.settings),
            "notes": list(claim.notes),
            "verdict": stored.get(name, {}).get("judgement"),
            "scale": stored.get(name, {}).get("scale"),
        }
        for name, claim in CLAIMS.items()
    ]
    if as_json:
        print(json.dumps({"items": rows}, indent=1, default=str))
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for head in ("item", "claim", "laptop", "verdict"):
        table.add_column(head, overflow="fold", no_wrap=head == "item")
    for row in rows:
        verdict = f"{row['verdict']} ({row['scale']})" if row["verdict"] else ""
        table.add_row(
            *map(
                safe_text,
                (row["item"], f"{row['title']}: {row['claim']}", row["costs"]["laptop"], verdict),
            )
        )
    console = screen()
    console.print(table)
    console.print(f"{len(rows)} items; the verdicts come from {safe_text(str(out))}", soft_wrap=True)
