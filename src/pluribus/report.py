"""Stored results as one HTML page that opens offline: the verdict in words, a sortable table, charts, examples."""

from __future__ import annotations

import base64
import contextlib
import json
import math
import os
import re
import shlex
import struct
import zlib
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from .charts import CHARTS
from .drawing import series, swatch
from .measures import best, difference, estimate, printed, quantity
from .outside import outside
from .panels import Figure, Styles, styles
from .results import Damaged, Group, Result, grouped, read_all
from .verdict import Verdict, relation, verdict

TITLE = "Which ensemble should I use?"


def report(
    results: Iterable[Result] | str | os.PathLike[str],
    path: str | os.PathLike[str] | None = None,
    title: str = TITLE,
) -> str:
    """The page as HTML, complete in itself: no network, no other file. Written to `path` where one is given.

    Args:
        results: results as `read_all` gives them, or a study folder; damaged files of a folder are named on the page

    >>> record = dict(run="a", method="single", label="single", data="digits", task="classification", seed=0)
    >>> run = Result(record | {"settings": {}, "metrics": {"nll": {"value": 0.1}}, "cost": {}})
    >>> "single has an NLL of 0.100" in report([run], "report.html")
    True
    """
    damaged: list[Damaged] = []
    plan: dict[str, Any] = {}
    if isinstance(results, (str, os.PathLike)):
        folder = Path(results)
        results, damaged = read_all(folder)
        plan = _plan(folder)
    results = list(results)
    if not results:
        names = f" ({', '.join(error.path.name for error in damaged)} damaged)" if damaged else ""
        raise ValueError(f"report: needs at least one result, but there is none{names}. Run a comparison first.")
    html = _page(results, damaged, plan, title)
    if path is not None:
        _write(Path(path), html)
    return html


def _page(results: list[Result], damaged: list[Damaged], plan: dict[str, Any], title: str) -> str:
    jinja2 = outside("jinja2", "report", "report")
    files = resources.files(__package__)
    strict = {"autoescape": True, "undefined": jinja2.StrictUndefined}
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, **strict)
    environment.filters["svg"] = outside("markupsafe", "report", "report").Markup
    environment.globals.update(swatch=swatch, series=series)
    sections = grouped(results)
    style = styles(group for groups in sections.values() for group in groups)
    verdicts = {(found.data, found.model): found for found in verdict(results)}
    context = {
        "title": title,
        "style": _text(files / "page.css"),
        "script": _text(files / "page.js"),
        "sections": [
            _section(number, verdicts[key], groups, style) for number, (key, groups) in enumerate(sections.items())
        ],
        "damaged": [f"{error.path.name}: {error.reason}" for error in damaged],
        "command": plan.get("command") or _command(results),
        "runs": len(results),
        "versions": sorted({_items(result.record.get("versions") or {}) for result in results}),
    }
    return environment.from_string(_text(files / "page.html")).render(context)


def _section(number: int, found: Verdict, groups: list[Group], style: Styles) -> dict[str, Any]:
    """Everything that the template shows of one data set and model."""
    figures, absent = _figures(groups, style, found.task)
    names = [name for name in COLUMNS[found.task] if _has(groups, name)]
    more = sorted({name for group in groups for name in group.record["metrics"]} - set(names) - {"coverage"})
    topics: dict[str, list[str]] = {}
    for sentence in found.sentences[1:]:
        topics.setdefault(TOPICS.get(sentence.topic, sentence.topic), []).append(_bound(sentence.text))
    notes = dict.fromkeys(str(note) for group in groups for run in group.runs for note in run.record.get("notes") or [])
    return {
        "id": f"data-{number}",
        "name": found.data,
        "model": found.model,
        "headline": _bound(found.sentences[0].text),
        "topics": {title: topics[title] for title in [*TOPICS.values(), *topics] if title in topics},
        "table": _table(groups, names, style),
        "more": _table(groups, [name for name in more if _has(groups, name)], style),
        "figures": figures,
        "absent": absent,
        "variants": _variants(groups),
        "examples": _examples(groups, style, best(groups, found.metric)),
        "settings": [_settings(group) for group in groups],
        "notes": list(notes),
    }


def _figures(groups: list[Group], style: Styles, task: str) -> tuple[list[Figure], list[str]]:
    """The figures that the runs allow, and a sentence for what is left out."""
    figures, absent = [], []
    for kind in CHARTS.values():
        if kind.task not in ("any", task):
            continue
        figure = kind.function(groups, style)
        if figure is not None:
            figures.append(figure)
        elif kind.absent:
            absent.append(kind.absent)
    return figures, list(dict.fromkeys(absent))


def _bound(text: str) -> str:
    """A sentence whose numbers do not break from their units and intervals at the end of a line."""
    text = re.sub(r"(\d) (%|points|times)", "\\1\u00a0\\2", text)
    return re.sub(r" \[(\S+), (\S+)\]", "\u00a0[\\1,\u00a0\\2]", text)


# ---------------------------------------------------------------- tables


def _table(groups: list[Group], names: Sequence[str], style: Styles) -> dict[str, Any]:
    heads = [{"name": name, **vars(quantity(name)), "sign": SIGNS[quantity(name).better]} for name in names]
    tops = {name: best(groups, name) if len(groups) > 1 else None for name in names}
    rows = [
        {
            "label": group.label,
            "style": style[group.label],
            "seeds": len(group.by_seed),
            "cells": [_cell(group, name, tops[name]) for name in names],
        }
        for group in groups
    ]
    return {"heads": heads, "rows": rows}


def _cell(group: Group, name: str, top: Group | None) -> dict[str, Any]:
    found = estimate(group, name)
    mark = ""
    if top is group:
        mark = "best"
    elif top is not None and math.isfinite(found.value) and name not in PRICES:
        mark = "near" if relation(difference(group, top, name), name) == "within noise" else ""
    ends = [printed(end, name) for end in (found.low, found.high)] if found.known and name not in PRICES else None
    sort = f"{found.value:.10g}" if math.isfinite(found.value) else ""
    return {"text": printed(found.value, name), "ends": ends, "mark": mark, "sort": sort}


def _has(groups: Sequence[Group], name: str) -> bool:
    return any(math.isfinite(estimate(group, name).value) for group in groups)


def _variants(groups: list[Group]) -> dict[str, list[list[str]]]:
    """Other test sets: for each a header and a row for each label."""
    found: dict[str, list[list[str]]] = {}
    for name in dict.fromkeys(name for group in groups for name in group.record.get("variants") or {}):
        given = [(group, [(run.record.get("variants") or {}).get(name, {}) for run in group.runs]) for group in groups]
        metrics = dict.fromkeys(metric for _, runs in given for run in runs for metric in run)
        rows = [["Method", *(quantity(metric).title for metric in metrics)]]
        for group, runs in given:
            rows.append([group.label, *(printed(_mean(runs, metric), metric) for metric in metrics)])
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


# ---------------------------------------------------------------- examples


def _examples(groups: list[Group], style: Styles, top: Group | None) -> list[dict[str, Any]]:
    """The examples of each label's first run that stored some: most certain mistakes and most uncertain ones."""
    found = []
    for group in groups:
        run = next((run for run in group.runs if run.columns.get("examples/index", np.empty(0)).size), None)
        if run is None:
            continue
        kinds: dict[str, list[dict[str, str]]] = {}
        for place in range(len(run.columns["examples/index"])):
            reason = _at(run, "examples/reason", place) or "uncertain"
            kinds.setdefault(REASONS.get(reason, reason), []).append(_example(run, place))
        found.append({"label": group.label, "style": style[group.label], "open": group is top, "kinds": kinds})
    return found


def _example(run: Result, place: int) -> dict[str, str]:
    row = int(run.columns["examples/index"][place])
    if run.record["task"] == "classification":
        true, given = (_class(run, f"test/{name}", row) for name in ("target", "label"))
        sure = _at(run, "test/confidence", row)
        words = f"{true} taken for {given}" if true != given else f"{true}, recognised"
        words += f", confidence {100 * float(sure):.1f} %" if sure else ""
    else:
        numbers = [float(_at(run, f"test/{name}", row) or "nan") for name in ("target", "mean", "total")]
        words = f"true {numbers[0]:.4g}, predicted {numbers[1]:.4g} ± {math.sqrt(max(numbers[2], 0)):.2g}"
    pictures = run.columns.get("examples/pictures")
    picture = _png(pictures[place]) if pictures is not None and len(pictures) > place else ""
    return {"words": words, "picture": picture, "text": _at(run, "examples/text", place), "row": str(row)}


def _at(run: Result, name: str, place: int) -> str:
    column = run.columns.get(name)
    return str(np.ravel(column)[place]) if column is not None and column.size > place else ""


def _class(run: Result, name: str, row: int) -> str:
    number, names = _at(run, name, row), run.record.get("classes") or []
    return str(names[int(number)]) if number.isdigit() and int(number) < len(names) else number


def _png(pixels: np.ndarray) -> str:
    """A picture, (height, width) or (height, width, 3) of bytes, as a data address."""
    pixels = np.ascontiguousarray(pixels, dtype=np.uint8)
    height, width = pixels.shape[:2]
    kind = 0 if pixels.ndim == 2 else 2
    rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)  # 0: no filter
    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows.tobytes(), 9)),
        (b"IEND", b""),
    ]
    body = b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in parts
    )
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + body).decode()


# ---------------------------------------------------------------- files


def _plan(folder: Path) -> dict[str, Any]:
    """What study.json says, where there is one that can be read."""
    try:
        found = json.loads((folder / "study.json").read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _command(results: Sequence[Result]) -> str:
    records = [result.record for result in results]
    given = {
        "--data": dict.fromkeys(record["data"] for record in records),
        "--model": dict.fromkeys(str(record["model"]) for record in records if record.get("model")),
        "--methods": dict.fromkeys(record["method"] for record in records),
        "--size": [str(max(int(record.get("size") or 1) for record in records))],
        "--seeds": [str(len({record["seed"] for record in records}))],
        "--recipe": _common(str(record.get("recipe") or "") for record in records),
        "--epochs": _common(str((record.get("training") or {}).get("epochs") or "") for record in records),
    }
    parts = [f"{option} {shlex.quote(','.join(values))}" for option, values in given.items() if values]
    for name in dict.fromkeys(name for record in records for name in record["settings"]):
        values = dict.fromkeys(str(record["settings"][name]) for record in records if name in record["settings"])
        parts.append(f"--sweep {shlex.quote(f'{name}=' + ','.join(values))}")
    return f"pluribus compare {' '.join(parts)}"


def _common(values: Iterable[str]) -> list[str]:
    """The value that all runs have, where there is one."""
    found = set(values)
    return [value for value in found if value and len(found) == 1]


def _text(file: Any) -> str:
    return file.read_text(encoding="utf-8")


def _write(path: Path, html: str) -> None:
    """The page beside its place, then moved: a reader never sees half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(html, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise OSError(error.errno, f"the page could not be written ({error.strerror or error})", str(path)) from error


PRICES = ("parameters", "mult_adds", "relative_mult_adds", "latency", "training")
_COST = ["parameters", "mult_adds", "relative_mult_adds", "latency", "training"]
COLUMNS = {
    "classification": [
        *("accuracy", "nll", "brier", "ece", "aurc", "auroc", "cacc", "cnll", "cece"),
        *("disagreement", "mutual_information", *_COST),
    ],
    "regression": ["rmse", "nll", "crps", "mae", "coverage", "width", "quantile_calibration", "auroc", *_COST],
}
SIGNS = {"higher": "↑", "lower": "↓", "neither": ""}
TOPICS = {
    "budget": "What to use",
    "result": "In detail",
    "accuracy": "Accuracy",
    "error": "Error",
    "calibration": "Calibration",
    "shift": "Under shift",
    "outside": "Outside data",
    "diversity": "Diversity",
    "certainty": "How sure this is",
}
REASONS = {"mistake": "Most certain mistakes", "uncertain": "Most uncertain examples"}
