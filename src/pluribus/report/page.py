"""Stored results as one HTML page that opens offline: the advice on one screen, and details that unfold."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Sequence
from datetime import date
from importlib import resources
from pathlib import Path
from typing import Any

from .._common.atomic import atomic_write
from .._common.optional import require
from .._common.signed_files import read_signed_json
from .._common.untrusted import check_shape
from ..results.quantities import best, estimate, format_value, quantity
from ..results.store import Damaged, Group, Result, has_classes, read_all
from ..results.verdict import Verdict, verdicts
from .charts import CHARTS
from .charts.outside import CHANCE
from .charts.quality import gain_chart, trade_off_chart
from .examples import class_colours, group_examples
from .figure import Figure, Styles, number_styles
from .first_screen import FirstScreen, compose_screen
from .svg import HUES, series_class, swatch

SCRIPTS = ("page.js", "page.read.js", "page.take.js")
TITLE = "Which ensemble should I use?"


def report(
    results: Iterable[Result] | str | os.PathLike[str],
    path: str | os.PathLike[str] | None = None,
    title: str = TITLE,
    *,
    command: str = "",
) -> str:
    """The page as HTML, complete in itself: no network, no other file. Written to `path` where one is given.

    Args:
        results: results as `read_all` gives them, or a study folder; damaged files of a folder are named on the page
        command: what repeats the study; by default what its folder says

    >>> record = dict(run="a", method="single", label="single", data="digits", task="classification", seed=0)
    >>> run = Result(record | {"settings": {}, "metrics": {"nll": {"value": 0.1}}, "cost": {}})
    >>> "Only one method ran: single, NLL 0.100" in report([run], "report.html")
    True
    """
    damaged: list[Damaged] = []
    if isinstance(results, (str, os.PathLike)):
        folder = Path(results)
        results, damaged = read_all(folder)
        command = command or _read_command(folder)
    return write_verdicts(verdicts(results), path, title, damaged=damaged, command=command)


def write_verdicts(
    found: Sequence[Verdict],
    path: str | os.PathLike[str] | None,
    title: str = TITLE,
    *,
    damaged: Sequence[Damaged] = (),
    command: str = "",
) -> str:
    """The page of verdicts that were reached already: see `report`."""
    if not found:
        names = f" ({', '.join(error.path.name for error in damaged)} damaged)" if damaged else ""
        raise ValueError(f"report: needs at least one result, but there is none{names}. Run a comparison first.")
    context = {
        "title": title,
        "sections": [_section(number, verdict) for number, verdict in enumerate(found)],
        "damaged": [f"{error.path.name}: {error.reason}" for error in damaged],
        "command": command,
    }
    html = render("page.html", context)
    if path is not None:
        write_page(Path(path), html)
    return html


def render(template: str, context: dict[str, Any]) -> str:
    """The page that a template of this folder makes of a context, with the style and the script of all pages."""
    jinja2 = require("jinja2", "report", "report")
    files = [file for file in resources.files(__package__).iterdir() if file.name.endswith((".html", ".css", ".js"))]
    texts = {file.name: file.read_text(encoding="utf-8") for file in files}
    strict = {"autoescape": True, "undefined": jinja2.StrictUndefined, "loader": jinja2.DictLoader(texts)}
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, **strict)
    environment.filters["svg"] = require("markupsafe", "report", "report").Markup
    environment.globals.update(swatch=swatch, series=series_class, hues=HUES)
    environment.globals.update(style=texts["page.css"], script="\n".join(texts[name] for name in SCRIPTS))
    return environment.get_template(template).render(context)


def _section(number: int, found: Verdict) -> dict[str, Any]:
    """What the template shows of one data set and model."""
    groups, kind = found.groups, "classification" if has_classes(found.task) else "regression"
    summary = compose_screen(found)
    labels = [group.label if group else "" for group in (summary.choice, summary.top)]
    styles = number_styles(groups, *labels)
    figures, absent = _figures(groups, styles, kind)
    names = [name for name in COLUMNS[kind] if _has(groups, name)]
    rest = sorted({name for group in groups for name in group.record["metrics"]} - {*names, *FURTHER, "coverage"})
    more = [name for name in [*FURTHER, *rest] if _has(groups, name)]
    topics: dict[str, list[str]] = {}
    for sentence in found.sentences:
        topics.setdefault(TOPICS.get(sentence.topic, sentence.topic), []).append(_bind(sentence.text))
    runs = [run for group in groups for run in group.runs]
    notes = [note for run in runs for note in run.record.get("notes") or []]
    for group in filter(lambda group: group.unfrozen, groups):
        notes.append(
            f"{group.label} is not frozen, so its costs are those of the ensemble as trained: {group.unfrozen}"
        )
    return {
        "id": f"data-{number}",
        "name": found.data,
        "model": found.model,
        "task": found.task,
        "headline": _bind(summary.sentence),
        "tiles": [[_bind(text) for text in tile] for tile in summary.tiles],
        "changes": [_bind(text) for text in summary.changes] or ["Nothing that these runs hint at."],
        "gain": gain_chart(found.found, summary.choice) if found.found else None,
        "trade_off": trade_off_chart(groups, styles, found.found.metric if found.found else ""),
        "others": not all(summary.stands_out(group) for group in groups),
        "facts": _facts(groups),
        "topics": {title: topics[title] for title in [*TOPICS.values(), *topics] if title in topics},
        "table": _table(summary, names, styles),
        "more": _table(summary, more, styles),
        "figures": figures,
        "absent": absent,
        "tables": _by_part(groups, "targets", "Target") | _by_part(groups, "variants", "Other test set"),
        "colours": class_colours(groups[0].record.get("classes") or []) if found.task == "segmentation" else [],
        "examples": group_examples(groups, styles),
        "settings": [_settings(group) for group in groups],
        "notes": list(dict.fromkeys(notes)),
    }


def _facts(groups: Sequence[Group]) -> str:
    """What was run, when and with what, in a line."""
    runs = [run for group in groups for run in group.runs]
    times = [run.path.stat().st_mtime for run in runs if run.path is not None and run.path.exists()]
    day = date.fromtimestamp(max(times)) if times else date.today()
    seeds = sorted({len(group.by_seed) for group in groups})
    number = " to ".join(map(str, dict.fromkeys([seeds[0], seeds[-1]])))
    versions = dict.fromkeys(_items(run.record.get("versions") or {}) for run in runs)
    record = groups[0].record
    data = f"{record['data']}, {record['model']}" if record.get("model") else record["data"]
    counted = f"{len(runs)} runs, {number} {'seed' if seeds[-1] == 1 else 'seeds'}"
    return " · ".join(filter(None, [f"{day.day} {day:%B %Y}", data, counted, *versions]))


def _figures(groups: list[Group], styles: Styles, task: str) -> tuple[list[Figure], list[str]]:
    """The figures that the runs allow, and a sentence for what is left out."""
    figures, absent = [], []
    for kind in CHARTS.values():
        if kind.task not in ("any", task):
            continue
        figure = kind.function(groups, styles)
        if figure is not None:
            figures.append(figure)
        elif kind.absent:
            absent.append(kind.absent)
    return figures, list(dict.fromkeys(absent))


def _bind(text: str) -> str:
    """A sentence whose numbers do not break from their units and intervals at the end of a line."""
    text = re.sub(r"(\d) (%|points|times)", "\\1\u00a0\\2", text)
    return re.sub(r" \[(\S+), (\S+)\]", "\u00a0[\\1,\u00a0\\2]", text)


# ---------------------------------------------------------------- tables


def _table(summary: FirstScreen, names: Sequence[str], styles: Styles) -> dict[str, Any]:
    heads = [{"name": name, **vars(quantity(name)), "sign": SIGNS[quantity(name).better]} for name in names]
    stars = {name: _stars(summary, name) for name in names}
    rows = [
        {
            "label": group.label,
            "style": styles[group.label],
            "seeds": len(group.by_seed),
            "part": "recommended" if group is summary.choice else "best average" if group is summary.top else "",
            "kind": "chosen" if group is summary.choice else "" if summary.stands_out(group) else "other",
            "cells": [_cell(group, name, group in stars[name]) for name in names],
        }
        for group in summary.verdict.groups
    ]
    return {"heads": heads, "rows": rows}


def _stars(summary: FirstScreen, name: str) -> list[Group]:
    """The best and what is not shown to be worse: the rule of the advice, column by column.

    None where nothing is shown to be worse than the best, for costs, and where the best is worse than chance.
    """
    found = summary.verdict.found
    top = None if found is None else summary.top if name == found.metric else best(found.groups, name)
    if found is None or top is None or name in COSTS or name == "auroc" and estimate(top, name).value < CHANCE:
        return []
    words = {group: found.relation(group, top, name) for group in found.groups}
    starred = [group for group in words if group is top or words[group] == "within noise"]
    return starred if "worse" in words.values() else []


def _cell(group: Group, name: str, star: bool) -> dict[str, Any]:
    found = estimate(group, name)
    ends = found.known and name not in COSTS
    sort, low, high = (f"{end:.10g}" if math.isfinite(end) else "" for end in found)
    texts = [format_value(end, name) for end in found[1:]]
    note = " – ".join(texts) if ends and texts[0] != texts[1] else ""  # ends that print alike would claim too much
    if name.startswith("auroc") and found.value < CHANCE:
        note = "worse than chance"
    if name in COSTS[:2] and group.unfrozen:
        note = "not frozen"
    low, high = (low, high) if ends else ("", "")
    return {"text": format_value(found.value, name), "note": note, "best": star, "sort": sort, "low": low, "high": high}


def _has(groups: Sequence[Group], name: str) -> bool:
    return any(math.isfinite(estimate(group, name).value) for group in groups)


def _by_part(groups: list[Group], key: str, title: str) -> dict[str, list[list[str]]]:
    """Other test sets, or the targets one by one: for each a header and a row for each label."""
    found: dict[str, list[list[str]]] = {}
    for name in dict.fromkeys(name for group in groups for name in group.record.get(key) or {}):
        runs = [(run.record.get(key) or {}).get(name, {}) for group in groups for run in group.runs]
        metrics = list(dict.fromkeys(metric for run in runs for metric in run))
        rows = [["Method", *(quantity(metric).title for metric in metrics)]]
        for group in groups:
            rows.append([group.label, *(format_value(estimate(group, f"{one} {name}").value, one) for one in metrics)])
        found[f"{title}: {name}"] = rows
    return found


def _settings(group: Group) -> list[Any]:
    record = group.record
    seeds = ", ".join(str(seed) for seed in group.by_seed)
    given = [_items(values) or "–" for values in (record["settings"], record.get("training") or {})]
    return [group.label, record["method"], record.get("size", ""), *given, seeds, record.get("threads", "–")]


def _items(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {_short(value)}" for name, value in values.items())


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 200 else f"{text[:199]}…"


# ---------------------------------------------------------------- files


def _read_command(folder: Path) -> str:
    """What was typed to start the study, where its study.json can be read."""
    try:
        found = read_signed_json(folder / "study.json")
        check_shape(found, {"command?": str})
    except (OSError, ValueError):
        return ""
    return str(found.get("command", ""))


def write_page(path: Path, html: str) -> None:
    """Write a page: it is complete or not there."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as temporary:
            temporary.write_text(html, encoding="utf-8", errors="backslashreplace")  # names of files can be no text
    except OSError as error:
        raise OSError(error.errno, f"the page could not be written ({error.strerror or error})", str(path)) from error


COSTS = (
    *("relative_latency", "relative_mult_adds", "relative_training", "parameters", "mult_adds", "latency", "memory"),
    *("relative_latency_1", "unfrozen_mult_adds", "unfrozen_latency", "training"),
)

COLUMNS = {  # as many as a screen of 1280 pixels shows, with what a prediction and an epoch cost
    "classification": [*("mean_iou", "accuracy", "nll", "ece", "auroc", "cacc"), *COSTS[:4]],
    "regression": [*("rmse", "nll", "crps", "coverage", "width", "auroc"), *COSTS[:4]],
}

FURTHER = (  # in the table that unfolds
    *("brier", "aurc", "cnll", "cece", "disagreement", "mutual_information", "mae", "quantile_calibration"),
    *COSTS[4:],
)

SIGNS = {"higher": "↑", "lower": "↓", "neither": ""}

TOPICS = {
    "result": "Result",
    "budget": "By budget",
    "training": "Training",
    "accuracy": "Accuracy",
    "error": "Error",
    "calibration": "Calibration",
    "shift": "Under shift",
    "outside": "Out-of-distribution (OOD) data",
    "diversity": "Diversity",
    "certainty": "Certainty",
}
