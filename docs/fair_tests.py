"""The fair tests from stored results: python docs/fair_tests.py draws them; `collect FOLDER DATA`, `demo FOLDER` first.

`collect` reads the folder of `pluribus reproduce --out FOLDER --data-dir DATA`, finished or not, and writes what pages
need of each run into docs/results: JSON, a line each. All that pages show is drawn from those files.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from pluribus.report.charts.sweeps import compute_gains
from pluribus.reproduce.experiments.stored_parts import Context
from pluribus.reproduce.experiments.study_experiment import Compared, choose_labels
from pluribus.reproduce.registry import CLAIMS
from pluribus.reproduce.running import scope_of
from pluribus.results.quantities import difference, estimate, format_interval, format_value, quantity
from pluribus.results.store import Group, Result, group_runs, read
from pluribus.results.styles import assign_styles

DOCS = Path(__file__).resolve().parent
RESULTS = DOCS / "results"
ITEMS = ("packed/capacity", "mimo/capacity", "masksembles/capacity", "packed/residual")
KEPT = (
    *("run", "method", "label", "settings", "data", "model", "task", "size", "width", "seed", "metrics", "validation"),
    *("train", "scaled", "shift", "outside", "cost", "seconds", "best", "versions"),
)
FEWEST = 3  # seeds for a verdict


def collect(folder: Path, data: Path) -> None:
    """Write the finished runs of every item."""
    for name in ITEMS:
        found = []
        for study in CLAIMS[name].experiment.studies(Context("laptop", folder, data)):
            names = {run.name for run in study.runs()}
            paths = [path for path in folder.glob("studies/*/results/*.npz") if path.stem in names]
            found += [read(path).record for path in paths]
        found.sort(key=lambda record: (record["seed"], record["label"]))
        if found:
            _write(name, found)


def _write(name: str, records: list[dict[str, Any]]) -> None:
    path = RESULTS / f"{name.replace('/', '-')}.jsonl"
    lines = [json.dumps(_round({key: one[key] for key in KEPT if key in one}), sort_keys=True) for one in records]
    RESULTS.mkdir(exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    print(f"{path.relative_to(DOCS.parent)}: {len(lines)} runs, {path.stat().st_size / 1e3:.0f} kB")


def _round(value: object) -> object:
    """Six significant digits: more are noise."""
    if isinstance(value, dict):
        return {key: _round(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_round(one) for one in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def stored(name: str) -> dict[str, Group]:
    """The runs of an item by label."""
    path = RESULTS / f"{name.replace('/', '-')}.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    groups = group_runs(Result(json.loads(line)) for line in lines)
    return {group.label: group for one in groups.values() for group in one}


def complete(name: str, groups: dict[str, Group]) -> dict[str, Group]:
    """Every planned setting, with the seeds that all of them have; empty where there is none."""
    planned = {run.label for one in CLAIMS[name].experiment.studies(Context("laptop", DOCS)) for run in one.runs()}
    if not planned <= groups.keys():
        return {}
    seeds = set.intersection(*(set(groups[label].by_seed) for label in planned))
    return {
        label: Group(label, tuple(run for run in groups[label].runs if run.record["seed"] in seeds))
        for label in sorted(planned)
        if seeds
    }


def verdict(name: str) -> tuple[str, list[str]]:
    """A line with the verdict and its scope, and what it rests on; what was run so far where seeds are missing."""
    groups = stored(name)
    whole = complete(name, groups)
    seeds = len(next(iter(whole.values())).by_seed) if whole else 0
    planned = CLAIMS[name].experiment.studies(Context("laptop", DOCS))
    runs, wanted = sum(len(one.by_seed) for one in groups.values()), sum(len(one.runs()) for one in planned)
    scope = scope_of(CLAIMS[name], "laptop")
    if seeds < FEWEST:
        done = f"{runs} of {wanted} runs, {seeds} of {len(planned[0].seeds)} seeds complete"
        return f"not run to its end, so no verdict: {done} ({scope})", []
    found = CLAIMS[name].judge({"": choose_labels(Compared(whole), CLAIMS[name].experiment.choose)})
    partly = f"; {seeds} of them complete" if seeds < len(planned[0].seeds) else ""
    return f"**{found.judgement}** ({scope}{partly})", found.found


# ---------------------------------------------------------------- the capacity curve


def curve(groups: list[Group], path: Path) -> None:
    """The gain over the single network of the same width, and the training accuracy of the single network."""
    names = ("nll", "ece", "auroc", "accuracy")
    figure, axes = plt.subplots(1, len(names) + 1, figsize=(16, 3.6), layout="constrained")
    looks = {"deep": "deep", "packed": "packed", "thin single": "single"}
    styles = assign_styles(list(looks.values()))
    for name, one in zip(names, axes, strict=False):
        factor = quantity(name).factor
        for method, line in compute_gains(groups, name).items():
            style = styles[looks.get(method, method)]
            bars = [[factor * (g.value - g.low) if g.known else 0 for _, g in line],
                    [factor * (g.high - g.value) if g.known else 0 for _, g in line]]  # fmt: skip
            one.errorbar(
                [w for w, _ in line], [factor * g.value for _, g in line], bars, label=method, color=style.colour,
                marker=style.marker, capsize=3, linestyle=":" if method == "thin single" else "-",
            )  # fmt: skip
        one.axhline(0, color="#777777", linewidth=0.8)
        one.set_title(f"Gain in {quantity(name).title}" + (", points" if factor == 100 else ""), fontsize=11)
    axes[0].legend(frameon=False)
    singles = sorted(((g.record["width"], g) for g in groups if g.record["method"] == "single"), key=lambda p: p[0])
    axes[-1].plot([w for w, _ in singles], [100 * estimate(g, "train_accuracy").value for _, g in singles], "ko-")
    axes[-1].set_title("Training accuracy, single, %", fontsize=11)
    for one in axes:
        one.set_xscale("log", base=2)
        one.set_xticks([w for w, _ in singles], [f"{w:g}" for w, _ in singles])
        one.set_xlabel("width of the network")
        one.grid(True, color="#DDDDDD", linewidth=0.6)
        one.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=90)
    plt.close(figure)


# ---------------------------------------------------------------- the gain against the deployed cost


def collect_demo(folder: Path) -> None:
    """Write the runs of `pluribus compare --first-seed 300 --seeds 10 --out FOLDER`."""
    found = sorted((read(path).record for path in folder.glob("results/*.npz")), key=lambda one: one["run"])
    _write("demo", found)


def hero(groups: list[Group], path: Path) -> None:
    """The paired gain in NLL over one network against the time of a frozen prediction, with the frontier."""
    base = next(group for group in groups if group.record["method"] == "single")
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained", sharey=True)
    styles = assign_styles([group.record["method"] for group in groups])
    costs = {"plain_latency": "the network in PyTorch", "relative_latency": "the frozen network"}
    for one, (name, beside) in zip(axes, costs.items(), strict=True):
        points = []
        for group in groups:
            gap, cost = difference(group, base, "nll"), estimate(group, name).value
            style, ends = styles[group.record["method"]], (gap.high - gap.value) if gap.known else 0.0
            points.append((cost, -gap.value))
            one.errorbar(cost, -gap.value, ends, color=style.colour, marker=style.marker, capsize=3, linestyle="")
            one.annotate(group.record["method"], points[-1], (5, 5), textcoords="offset points", fontsize=9)
        best = [p for p in sorted(points) if all(q[1] < p[1] or q == p for q in points if q[0] <= p[0])]
        one.step(*zip(*best, strict=True), where="post", color="#777777", linewidth=1, zorder=0)
        one.axhline(0, color="#777777", linewidth=0.8)
        one.set_xscale("log", base=2)
        one.set_xlabel(f"time of 32 rows, frozen, relative to {beside}")
        one.grid(True, color="#DDDDDD", linewidth=0.6)
        one.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("gain in NLL over one network")
    figure.savefig(path, dpi=100)
    plt.close(figure)


def table(groups: list[Group]) -> str:
    """A row for each setting."""
    names = ("accuracy", "nll", "scaled_nll", "ece", "auroc", "train_accuracy")
    titles = ["", "seeds", *(quantity(name).title for name in names), "Parameters"]
    rows = [titles, ["---"] * len(titles)]
    for group in sorted(groups, key=lambda one: (one.record["width"], one.label)):
        cells = [format_interval(estimate(group, name), name) for name in names]
        size = format_value(estimate(group, "parameters").value, "parameters")
        rows.append([group.label, str(len(group.by_seed)), *cells, size])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def write_between(page: Path, name: str, text: str) -> None:
    """Replace what stands between the page's marks of that name."""
    start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, _, rest = page.read_text().partition(start)
    _, found, after = rest.partition(end)
    assert found, f"{page}: no marks of {name}"
    page.write_text(f"{before}{start}\n{text}\n{end}{after}")


def draw() -> None:
    """Everything that pages show of the fair tests."""
    lines = {name: verdict(name) for name in ITEMS}
    rows = [f"| `{name}` | {CLAIMS[name].says} | {line} |" for name, (line, _) in lines.items()]
    write_between(DOCS / "claims.md", "fair tests", "\n".join(["| item | claim | verdict |", "|---|---|---|", *rows]))
    groups = list(stored("packed/capacity").values())
    if groups:
        curve(groups, DOCS / "images" / "capacity.png")
        line, found = lines["packed/capacity"]
        text = "\n".join([f"`packed/capacity`: {line}.", "", table(groups), "", *(f"- {one}" for one in found)])
        write_between(DOCS / "capacity.md", "capacity", text.rstrip())
    if demo := list(stored("demo").values()):
        hero(demo, DOCS / "images" / "hero.png")


if __name__ == "__main__":
    if sys.argv[1:2] == ["collect"]:
        collect(Path(sys.argv[2]), Path(sys.argv[3]))
    if sys.argv[1:2] == ["demo"]:
        collect_demo(Path(sys.argv[2]))
    draw()
