"""`pluribus reproduce`: the tables and figures of the papers, run and judged by their claims."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from .common import options
from .common.messages import plain_table, safe_text, say_how_to_go_on, say_lines, screen, timed_lines


def reproduce_command(
    item: Annotated[
        str | None, typer.Argument(help="An item, such as packed/table11; without one, the command lists them all.")
    ] = None,
    scale: Annotated[
        str, typer.Option(help="smoke (seconds), laptop (minutes to hours) or paper (the authors' own scale).")
    ] = "smoke",
    data_dir: options.Folder = None,
    out: Annotated[Path, typer.Option(help="The folder for results and pages.")] = Path("pluribus-claims"),
    jobs: Annotated[int, typer.Option(help="Parts to run at the same time, each in its own process.", min=1)] = 1,
    ray: Annotated[str | None, typer.Option(help="Run on a Ray cluster: its address, auto or local.")] = None,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Reproduce a table or a figure of a paper, and judge its claim: holds, does not hold, or inconclusive.

    The folder keeps what was computed: the same command resumes there, and judges again without training.

    Examples:

        pluribus reproduce

        pluribus reproduce packed/table10 --scale laptop

        pluribus reproduce packed/table11 --scale laptop --data-dir ~/data --jobs 2
    """
    from ..reproduce.parts import Context
    from ..reproduce.running import check_scale, find_claim, reproduce_claim

    if item is None:
        _list(as_json, out)
        return
    claim = find_claim(item)
    check_scale(scale)
    command = shlex.join(["pluribus", *sys.argv[1:]])
    with say_how_to_go_on(lambda: f"what was computed is kept in {out}"):
        context = Context(scale, out, data_dir, jobs, ray, timed_lines(quiet or as_json))
        outcome = reproduce_claim(claim, context, command)
    _show(outcome, scale, quiet, as_json)


def _show(outcome: Any, scale: str, quiet: bool, as_json: bool) -> None:
    from ..reproduce.running import RAN

    claim, verdict = outcome.claim, outcome.verdict
    if as_json:
        record = {"item": claim.name, "claim": claim.says, "scale": scale}
        record |= {name: getattr(verdict, name) for name in ("judgement", "scope", "found", "header", "rows")}
        print(json.dumps(record | {"seconds": outcome.seconds, "page": str(outcome.page)}, indent=1))
        return
    if quiet:
        return
    console = screen()
    if verdict.rows:
        console.print(plain_table(verdict.header, verdict.rows, overflow="fold"))
    answer = f"{verdict.judgement.upper()} ({verdict.scope})" if verdict.judgement != RAN else "NO VERDICT"
    lines = ["", f"{claim.title}: {claim.says}", f"{answer}: {verdict.found[0]}"]
    say_lines(console, [*lines, *verdict.found[1:], *claim.notes])
    console.print(f"Report: {safe_text(str(outcome.page))}", soft_wrap=True)


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
            "verdict": (found := stored.get(name, {})).get("judgement"),
            "scale": found.get("scale"),
            "scope": found.get("scope"),
        }
        for name, claim in CLAIMS.items()
    ]
    if as_json:
        print(json.dumps({"items": rows}, indent=1, default=str))
        return
    console = screen()
    console.print(_table_of_items(rows, console.width))
    console.print(f"{len(rows)} items; verdicts from {safe_text(str(out))}; --json has every claim.", soft_wrap=True)


def _table_of_items(rows: Sequence[Mapping[str, Any]], width: int) -> Table:
    """One line for each item; its title is cut where there is no room."""
    texts = []
    for row in rows:
        cost = re.split(r":| on one core| \(", row["costs"]["laptop"])[0].removeprefix("about ")
        verdict = f"{row['verdict']} ({row['scope'] or row['scale']})" if row["verdict"] else "not run"
        title = re.sub(r"^(Figure|Table|Section|Appendix|Footnote) [^:]*: ", "", row["title"])  # the item says it
        texts.append([row["item"], title, cost, verdict])
    room = max(width - sum(max(len(text[i]) for text in texts) + 2 for i in (0, 2, 3)), 12)
    lines = [(item, title if len(title) <= room else f"{title[: room - 1]}…", *rest) for item, title, *rest in texts]
    return plain_table(("item", "title", "laptop", "verdict"), lines, no_wrap=True)
