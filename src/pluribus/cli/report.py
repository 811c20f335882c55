"""`pluribus report`: the page of a study, written again from its results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .._common.signed_files import read_signed_json
from .._common.untrusted import check_shape
from .common import options
from .common.messages import say


def report_command(
    folder: Annotated[Path, typer.Argument(help="The folder of a study.")],
    out: Annotated[Path | None, typer.Option(help="The page to write [FOLDER/report.html].")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Rewrite the page of a study from its stored results."""
    from ..report.page import write_verdicts
    from ..results.store import read_all
    from ..results.verdict import verdicts
    from ..study.folder import Outcome
    from ..study.grid import choose_settings
    from .common import display

    if not (folder / "study.json").exists():
        raise FileNotFoundError(
            f"report: {str(folder)!r} is not a study: it has no study.json. Give the folder of `pluribus compare`."
        )
    results, damaged = read_all(folder)
    try:
        plan = read_signed_json(folder / "study.json")
        check_shape(plan, {"command?": str, "choose?": (None, str)})
    except ValueError as error:
        raise ValueError(f"report: study.json is damaged ({error}). Run the comparison again.") from error
    for damage in damaged:
        say("[yellow]warning:[/]", str(damage))
    results = choose_settings(results, plan["choose"]) if plan.get("choose") else results
    page, found = out or folder / "report.html", verdicts(results)
    write_verdicts(found, page, damaged=damaged, command=plan.get("command", ""))
    if as_json:
        print(display.as_json(Outcome(results, {}, damaged), found, page=str(page)))
        return
    display.show_tables(found)
    print(f"Report: {page}")
