"""Stored results as one HTML page that opens offline: the verdict in words, a sortable table, charts, examples."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import warnings
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from .._common.atomic import atomic_write
from .._common.optional import require
from .._common.signed_files import read_signed_json
from .._common.untrusted import check_shape
from ..results.quantities import Differences, best, estimate, format_value, quantity
from ..results.store import Damaged, Group, Result, group_runs, has_classes, read_all
from ..results.verdict import Verdict, relation, verdicts
from .charts import CHARTS
from .examples import class_colours, group_examples
from .figure import Figure, Styles, number_styles
from .svg import series_class, swatch

TEMPLATES = ("base.", "parts.", "page.", "claims.")  # and the style and the script

SCRIPTS = ("page.js", "page.read.js", "page.take.js")

TITLE = "Which ensemble should I use?"


def report(
    results: Iterable[Result] | str | os.PathLike[str],
    path: str | os.PathLike[str] | None = None,
    title: str = TITLE,
    *,
    known: Iterable[Result] = (),
    differences: Differences | None = None,
) -> str:
    """The page as HTML, complete in itself: no network, no other file. Written to `path` where one is given.

    Args:
        results: results as `read_all` gives them, or a study folder; damaged files of a folder are named on the page
        known: results of the folder that were read before; their files are not read again
        differences: those computed so far, which are not computed again

    >>> record = dict(run="a", method="single", label="single", data="digits", task="classification", seed=0)
    >>> run = Result(record | {"settings": {}, "metrics": {"nll": {"value": 0.1}}, "cost": {}})
    >>> "single has an NLL of 0.100" in report([run], "report.html")
    True
    """
    damaged: list[Damaged] = []
    plan: dict[str, Any] = {}
    if isinstance(results, (str, os.PathLike)):
        folder = Path(results)
        results, damaged = read_all(folder, known)
        plan = _plan(folder)
    results = list(results)
    if not results:
        names = f" ({', '.join(error.path.name for error in damaged)} damaged)" if damaged else ""
        raise ValueError(f"report: needs at least one result, but there is none{names}. Run a comparison first.")
    try:
        sections = _sections(results, differences or Differences())
    except Exception:  # a record that is valid in form can hold what no chart can show
        results, odd = _without_odd(results)
        damaged += odd
        sections = _sections(results, Differences())
    html = render(
        "page.html",
        {
            "title": title,
            "sections": sections,
            "damaged": [f"{error.path.name}: {error.reason}" for error in damaged],
            "command": plan.get("command") or _command(results),
            "runs": len(results),
            "versions": sorted({_items(result.record.get("versions") or {}) for result in results}),
        },
    )
    if path is not None:
        write_page(Path(path), html)
    return html


def _without_odd(results: list[Result]) -> tuple[list[Result], list[Damaged]]:
    """The results of which each alone gives a page, and the others; where none does, the error of the first."""
    kept, odd = list[Result](), list[Damaged]()
    for result in results:
        try:
            _sections([result], Differences())
            kept.append(result)
        except Exception as error:
            odd.append(Damaged(result.path or Path(result.record["run"]), f"it cannot be shown ({error})"))
    if not kept or not odd:
        raise odd[0] if odd else ValueError("report: these results cannot be shown together.")
    for one in odd:
        warnings.warn(f"report: {one.path} is left out: {one.reason}.", stacklevel=3)
    return kept, odd


def render(template: str, context: dict[str, Any]) -> str:
    """The page that a template of this folder makes of a context, with the style and the script of all pages."""
    jinja2 = require("jinja2", "report", "report")
    files = {file.name: file for file in resources.files(__package__).iterdir() if file.name.startswith(TEMPLATES)}
    texts = {name: file.read_text(encoding="utf-8") for name, file in files.items()}
    strict = {"autoescape": True, "undefined": jinja2.StrictUndefined, "loader": jinja2.DictLoader(texts)}
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, **strict)
    environment.filters["svg"] = require("markupsafe", "report", "report").Markup
    environment.globals.update(swatch=swatch, series=series_class)
    environment.globals.update(style=texts["page.css"], script="\n".join(texts[name] for name in SCRIPTS))
    return environment.get_template(template).render(context)


def _sections(results: list[Result], differences: Differences) -> list[dict[str, Any]]:
    """What the template shows of each data set and model."""
    sections = group_runs(results)
    styles = number_styles(group for groups in sections.values() for group in groups)
    found = zip(verdicts(results, differences), sections.values(), strict=True)  # both in the order of group_runs
    return [_section(i, verdict, groups, styles, differences) for i, (verdict, groups) in enumerate(found)]


def _section(
    number: int, found: Verdict, groups: list[Group], styles: Styles, differences: Differences
) -> dict[str, Any]:
    kind = "classification" if has_classes(found.task) else "regression"
    figures, absent = _figures(groups, styles, kind)
    names = [name for name in COLUMNS[kind] if _has(groups, name)]
    rest = sorted({name for group in groups for name in group.record["metrics"]} - {*names, *FURTHER, "coverage"})
    more = [*FURTHER, *rest]
    topics: dict[str, list[str]] = {}
    for sentence in found.sentences[1:]:
        topics.setdefault(TOPICS.get(sentence.topic, sentence.topic), []).append(_bind(sentence.text))
    notes = dict.fromkeys(str(note) for group in groups for run in group.runs for note in run.record.get("notes") or [])
    return {
        "id": f"data-{number}",
        "name": found.data,
        "model": found.model,
        "task": found.task,
        "headline": _bind(found.sentences[0].text),
        "topics": {title: topics[title] for title in [*TOPICS.values(), *topics] if title in topics},
        "table": _table(groups, names, styles, differences),
        "more": _table(groups, [name for name in more if _has(groups, name)], styles, differences),
        "figures": figures,
        "absent": absent,
        "variants": _variants(groups, "variants"),
        "targets": _variants(groups, "targets"),
        "colours": class_colours(groups[0].record.get("classes") or []) if found.task == "segmentation" else [],
        "examples": group_examples(groups, styles, best(groups, found.metric)),
        "settings": [_settings(group) for group in groups],
        "notes": list(notes),
    }


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


def _table(groups: list[Group], names: Sequence[str], styles: Styles, differences: Differences) -> dict[str, Any]:
    heads = [{"name": name, **vars(quantity(name)), "sign": SIGNS[quantity(name).better]} for name in names]
    tops = {name: best(groups, name) if len(groups) > 1 else None for name in names}
    rows = [
        {
            "label": group.label,
            "style": styles[group.label],
            "seeds": len(group.by_seed),
            "cells": [_cell(group, name, tops[name], differences) for name in names],
        }
        for group in groups
    ]
    return {"heads": heads, "rows": rows}


def _cell(group: Group, name: str, top: Group | None, differences: Differences) -> dict[str, Any]:
    found = estimate(group, name)
    mark = ""
    if top is group:
        mark = "best"
    elif top is not None and math.isfinite(found.value) and name not in COSTS:
        mark = "near" if relation(differences.between(group, top, name), name) == "within noise" else ""
    ends = [format_value(end, name) for end in (found.low, found.high)] if found.known and name not in COSTS else None
    sort, low, high = (f"{end:.10g}" if math.isfinite(end) else "" for end in (found.value, found.low, found.high))
    return {
        "text": format_value(found.value, name),
        "ends": ends,
        "mark": mark,
        "sort": sort,
        "low": low if ends else "",
        "high": high if ends else "",
    }


def _has(groups: Sequence[Group], name: str) -> bool:
    return any(math.isfinite(estimate(group, name).value) for group in groups)


def _variants(groups: list[Group], key: str) -> dict[str, list[list[str]]]:
    """Other test sets, or the targets one by one: for each a header and a row for each label."""
    found: dict[str, list[list[str]]] = {}
    for name in dict.fromkeys(name for group in groups for name in group.record.get(key) or {}):
        given = [(group, [(run.record.get(key) or {}).get(name, {}) for run in group.runs]) for group in groups]
        metrics = dict.fromkeys(metric for _, runs in given for run in runs for metric in run)
        rows = [["Method", *(quantity(metric).title for metric in metrics)]]
        for group, runs in given:
            rows.append([group.label, *(format_value(_mean(runs, metric), metric) for metric in metrics)])
        found[name] = rows
    return found


def _mean(runs: Sequence[dict[str, Any]], metric: str) -> float:
    values = [run[metric]["value"] if isinstance(run.get(metric), dict) else run.get(metric) for run in runs]
    numbers = [value for value in values if isinstance(value, (int, float))]
    return float(np.mean(numbers)) if numbers else math.nan


def _settings(group: Group) -> dict[str, Any]:
    record = group.record
    return {
        "label": group.label,
        "method": record["method"],
        "size": record.get("size", ""),
        "settings": _items(record["settings"]) or "–",
        "training": _items(record.get("training") or {}) or "–",
        "seeds": ", ".join(str(seed) for seed in group.by_seed),
        "threads": record.get("threads", "–"),
    }


def _items(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {_short(value)}" for name, value in values.items())


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 200 else f"{text[:199]}…"


# ---------------------------------------------------------------- files


def _plan(folder: Path) -> dict[str, Any]:
    """What study.json says, where there is one that can be read."""
    try:
        found = read_signed_json(folder / "study.json")
        check_shape(found, {"command?": str, "choose?": (None, str)})
    except (OSError, ValueError):
        return {}
    return found


def _command(results: Sequence[Result]) -> str:
    records = [result.record for result in results]
    given = {
        "--data": dict.fromkeys(record["data"] for record in records),
        "--model": dict.fromkeys(str(record["model"]) for record in records if record.get("model")),
        "--methods": dict.fromkeys(record["method"] for record in records),
        "--size": [str(max(int(record.get("size") or 1) for record in records))],
        "--seeds": [str(len({record["seed"] for record in records}))],
        "--recipe": _common_value(str(record.get("recipe") or "") for record in records),
        "--epochs": _common_value(str((record.get("training") or {}).get("epochs") or "") for record in records),
    }
    parts = [f"{option} {shlex.quote(','.join(values))}" for option, values in given.items() if values]
    for name in dict.fromkeys(name for record in records for name in record["settings"]):
        values = dict.fromkeys(str(record["settings"][name]) for record in records if name in record["settings"])
        parts.append(f"--sweep {shlex.quote(f'{name}=' + ','.join(values))}")
    return f"pluribus compare {' '.join(parts)}"


def _common_value(values: Iterable[str]) -> list[str]:
    """The value that all runs have, where there is one."""
    found = set(values)
    return [value for value in found if value and len(found) == 1]


def write_page(path: Path, html: str) -> None:
    """Write a page: it is complete or not there."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as temporary:
            temporary.write_text(html, encoding="utf-8", errors="backslashreplace")  # names of files can be no text
    except OSError as error:
        raise OSError(error.errno, f"the page could not be written ({error.strerror or error})", str(path)) from error


COSTS = ("relative_mult_adds", "relative_training", "parameters", "mult_adds", "latency", "training")

COLUMNS = {  # as many as a screen of 1280 pixels shows, with what a prediction and an epoch cost
    "classification": [*("mean_iou", "accuracy", "nll", "ece", "auroc", "cacc", "disagreement"), *COSTS[:3]],
    "regression": [*("rmse", "nll", "crps", "coverage", "width", "auroc"), *COSTS[:3]],
}

FURTHER = (  # in the table that unfolds
    *("brier", "aurc", "cnll", "cece", "mutual_information", "mae", "quantile_calibration"),
    *COSTS[3:],
)

SIGNS = {"higher": "↑", "lower": "↓", "neither": ""}

TOPICS = {
    "budget": "What to use",
    "training": "Training",
    "result": "In detail",
    "accuracy": "Accuracy",
    "error": "Error",
    "calibration": "Calibration",
    "shift": "Under shift",
    "outside": "Out-of-distribution (OOD) data",
    "diversity": "Diversity",
    "certainty": "How sure this is",
}
