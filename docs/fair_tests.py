"""The fair tests and the demo from stored results: python docs/fair_tests.py draws them, and writes their tables.

    python docs/fair_tests.py run FOLDER DATA [ITEM ...]  # first computes the runs that are not stored, seed by seed
    python docs/fair_tests.py collect FOLDER DATA  # first adds runs of pluribus reproduce --out FOLDER --data-dir DATA
    python docs/fair_tests.py demo FOLDER          # first adds runs of pluribus compare --out FOLDER

What pages need of each run is stored in docs/results, a line of JSON each; all that pages show is drawn from it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from pluribus.report.charts.sweeps import compute_gains
from pluribus.report.figures import assign_styles
from pluribus.reproduce.parts import Context
from pluribus.reproduce.registry import CLAIMS
from pluribus.reproduce.running import scope_of
from pluribus.reproduce.studies import Compared, choose_labels
from pluribus.results.comparison_phrases import relation
from pluribus.results.quantities import difference, estimate, format_interval, format_value, quantity
from pluribus.results.store import Group, Result, group_runs, read
from pluribus.study.run import compute

DOCS = Path(__file__).resolve().parent
RESULTS = DOCS / "results"
ITEMS = (
    "packed/capacity", "packed/schedule", "packed/sharing", "mimo/capacity", "masksembles/capacity", "packed/residual",
)  # fmt: skip
KEPT = (
    *("run", "method", "label", "settings", "data", "model", "task", "size", "width", "seed", "metrics", "validation"),
    *("train", "scaled", "shift", "outside", "cost", "seconds", "best", "versions"),
)
FEWEST = 3  # seeds for a verdict


def run_missing(folder: Path, data: Path, names: Sequence[str]) -> None:
    """Compute the planned runs that are not stored, one seed of all settings after the other; each is stored at once.

    A run that was stopped goes on after its last whole epoch, which is kept in the folder.
    """
    for name in names or ITEMS:
        studies = CLAIMS[name].experiment.studies(Context("laptop", folder, data))
        for run in sorted((run for study in studies for run in study.runs()), key=lambda run: run.seed):
            known = {
                one["run"] for one in [*_records(name), *_records("packed/capacity")]
            }  # other items share its runs
            if run.name not in known:
                _write(name, [compute(run, folder / "training" / run.name)[0]])


def collect(folder: Path, data: Path) -> None:
    """Add the finished runs of every item to those that are stored; a run that items share is stored once."""
    paths, shared = {path.stem: path for path in folder.glob("studies/*/results/*.npz")}, set()
    for name in ITEMS:
        studies = CLAIMS[name].experiment.studies(Context("laptop", folder, data))
        own = {run.name for study in studies for run in study.runs()} - shared
        shared |= own
        _write(name, [read(paths[run]).record for run in sorted(own & paths.keys())])


def _path(name: str) -> Path:
    return RESULTS / f"{name.replace('/', '-')}.jsonl"


def _records(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in _path(name).read_text().splitlines()] if _path(name).exists() else []


def _write(name: str, records: list[dict[str, Any]]) -> None:
    """Add records to the stored ones; a new record replaces the old one of its run."""
    new = [_round({key: one[key] for key in KEPT if key in one}) for one in records]
    by_run = {one["run"]: one for one in [*_records(name), *new]}
    if not by_run:
        return
    lines = sorted(by_run.values(), key=lambda one: (one["seed"], one["label"]))
    RESULTS.mkdir(exist_ok=True)
    _path(name).write_text("".join(json.dumps(one, sort_keys=True) + "\n" for one in lines))
    print(f"{_path(name).relative_to(DOCS.parent)}: {len(lines)} runs, {_path(name).stat().st_size / 1e3:.0f} kB")


def _round(value: Any) -> Any:
    """Six significant digits: more are noise."""
    if isinstance(value, dict):
        return {key: _round(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_round(one) for one in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def stored(name: str) -> dict[str, Group]:
    """The runs of an item by label, with those that it shares."""
    records = _records(name) + (_records("packed/capacity") if name == "packed/sharing" else [])
    groups = group_runs(Result(one) for one in records)
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
    figure, grid = plt.subplots(2, 3, figsize=(11, 6.4), layout="constrained")
    *axes, key = grid.flat
    gains = {name: compute_gains(groups, name) for name in names}
    methods = list(gains["nll"])
    styles = assign_styles(["single" if method == "thin single" else method for method in methods])
    for name, one in zip(names, axes, strict=False):
        factor = quantity(name).factor
        for i, (method, line) in enumerate(gains[name].items()):
            style = styles["single" if method == "thin single" else method]
            at = [width * 2 ** (0.06 * (i - len(methods) / 2)) for width, _ in line]  # side by side, not on top
            few = any(len(group.by_seed) < FEWEST for group in groups if group.label.startswith(method))
            ends = [(0.0, 0.0) if few or not g.known else (g.value - g.low, g.high - g.value) for _, g in line]
            bars = [[factor * end for end in side] for side in zip(*ends, strict=True)]
            one.errorbar(
                at, [factor * g.value for _, g in line], bars, label=method, color=style.colour, marker=style.marker,
                capsize=2, linewidth=1.2, linestyle=":" if method == "thin single" else "-",
            )  # fmt: skip
        one.axhline(0, color="#777777", linewidth=0.8)
        one.set_title(f"Gain in {quantity(name).title}" + (", points" if factor == 100 else ""), fontsize=11)
    key.axis("off")
    key.legend(*axes[0].get_legend_handles_labels(), loc="center", frameon=False)
    singles = sorted(((g.record["width"], g) for g in groups if g.record["method"] == "single"), key=lambda p: p[0])
    axes[-1].plot([w for w, _ in singles], [100 * estimate(g, "train_accuracy").value for _, g in singles], "ko-")
    axes[-1].set_title("Training accuracy of one network, %", fontsize=11)
    for one in axes:
        one.set_xscale("log", base=2)
        one.set_xticks([w for w, _ in singles], [f"{w:g}" for w, _ in singles])
        one.minorticks_off()
        one.set_xlabel("width of the network")
        one.grid(True, color="#DDDDDD", linewidth=0.6)
        one.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=90)
    plt.close(figure)


# ---------------------------------------------------------------- the gain against the deployed cost


def collect_demo(folder: Path) -> None:
    """Add the runs of `pluribus compare --first-seed 300 --seeds 10 --out FOLDER`."""
    _write("demo", [read(path).record for path in sorted(folder.glob("results/*.npz"))])


LABELS = {  # where the names of close points go
    "mimo": (-6, 4),
    "single": (-6, -12),
    "multihead": (-6, -12),
    "packed": (5, 12),
    "masksembles": (3, 38),
    "batch_ensemble": (5, -24),
    "mc_dropout": (6, -5),
}


def hero(groups: list[Group], path: Path) -> None:
    """The paired gain in NLL over one network against the time of a frozen prediction, with the frontier."""
    base = next(group for group in groups if group.record["method"] == "single")
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained", sharey=True)
    styles = assign_styles([group.record["method"] for group in groups])
    costs = {"plain_latency": "the network in PyTorch", "relative_latency": "the network, frozen as well"}
    for one, (name, beside) in zip(axes, costs.items(), strict=True):
        points = []
        for group in groups:
            gap, cost = difference(group, base, "nll"), estimate(group, name).value
            style, ends = styles[group.record["method"]], (gap.high - gap.value) if gap.known else 0.0
            points.append((cost, -gap.value))
            one.errorbar(cost, -gap.value, ends, color=style.colour, marker=style.marker, capsize=3, linestyle="")
            place = LABELS.get(group.record["method"], (6, 4))
            one.annotate(
                group.record["method"], points[-1], place, textcoords="offset points", fontsize=8.5,
                ha="right" if place[0] < 0 else "left",
            )  # fmt: skip
        best = [p for p in sorted(points) if all(q[1] < p[1] or q == p for q in points if q[0] <= p[0])]
        one.step(*zip(*best, strict=True), where="post", color="#999999", linewidth=1.2, linestyle="--", zorder=0)
        one.axhline(0, color="#777777", linewidth=0.8)
        one.set_xscale("log", base=2)
        one.xaxis.set_major_formatter(lambda value, _: f"{value:g}x")
        one.margins(x=0.16)
        one.set_xlabel(f"time of a deployed prediction,\nrelative to {beside}")
        one.grid(True, color="#DDDDDD", linewidth=0.6)
        one.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("gain in NLL over one network (higher is better)")
    seeds = len(base.by_seed)
    figure.suptitle(
        f"Gain in NLL versus the cost of a deployed prediction: digits, LeNet-5 x2, {seeds} seeds", fontsize=12
    )
    figure.savefig(path, dpi=100)
    plt.close(figure)


DEMO = ("accuracy", "nll", "ece", "auroc", "cacc")


def demo_table(groups: list[Group]) -> str:
    """A row for each method of the demo: means over seeds, the paired gain in NLL, and what a prediction costs."""
    base = next(group for group in groups if group.record["method"] == "single")
    titles = ["method", *(quantity(name).title for name in DEMO), "NLL, difference", "parameters", "time", "verdict"]
    rows = [titles, ["---"] * len(titles)]
    for group in groups:
        gap = difference(group, base, "nll")
        verdict = {"better": "better", "worse": "worse"}.get(relation(gap, "nll"), "no clear difference")
        own = group is not base
        cells = [format_value(estimate(group, name).value, name) for name in DEMO]
        costs = [f"{estimate(group, name).value:.2f}x" for name in ("relative_parameters", "relative_latency")]
        rows.append([group.label, *cells, format_interval(gap, "nll") if own else "", *costs, verdict if own else ""])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


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
    groups = list(stored("packed/sharing").values())  # and those of packed/capacity
    if groups:
        curve(groups, DOCS / "images" / "capacity.png")
        write_between(DOCS / "capacity.md", "capacity", table(groups))
        told = [[f"`{name}`: {lines[name][0]}.", "", *(f"- {one}" for one in lines[name][1])]
                for name in ("packed/capacity", "packed/sharing")]  # fmt: skip
        write_between(DOCS / "capacity.md", "verdicts", "\n\n".join("\n".join(one).rstrip() for one in told))
    for name in ("packed/schedule", "mimo/capacity", "masksembles/capacity", "packed/residual"):
        if own := list(stored(name).values()):
            text = [f"`{name}`: {lines[name][0]}.", "", table(own), "", *(f"- {one}" for one in lines[name][1])]
            write_between(DOCS / "claims.md", name, "\n".join(text).rstrip())
    if demo := list(stored("demo").values()):
        hero(demo, DOCS / "images" / "hero.png")
        write_between(DOCS / "claims.md", "demo", demo_table(demo))


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"]:
        run_missing(Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
    if sys.argv[1:2] == ["collect"]:
        collect(Path(sys.argv[2]), Path(sys.argv[3]))
    if sys.argv[1:2] == ["demo"]:
        collect_demo(Path(sys.argv[2]))
    draw()
