"""Draws the chart of cascades in docs/serving.md and prints its table: python docs/serving.py [FOLDER of results].

With a folder of benchmarks/serving.py, its results first replace those stored of the same data and method.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt

plt.switch_backend("svg")
matplotlib.rcParams |= {"svg.hashsalt": "pluribus", "svg.fonttype": "none"}

IMAGES = Path(__file__).parent / "images"

STORED = IMAGES / "serving.json"

COLOURS = {"deep": "#0072B2", "packed": "#D55E00"}

TITLES = {"cifar10": "CIFAR-10 (7,500 training images)", "fashion_mnist": "Fashion-MNIST (16,000 training images)"}


def main() -> None:
    """Store new results, if there are any, and draw."""
    results = json.loads(STORED.read_text())
    if len(sys.argv) > 1:
        found = [json.loads(path.read_text()) for path in sorted(Path(sys.argv[1]).glob("*.json"))]
        known = {(one["data"], one["method"]): one for one in (*results, *found)}
        results = [known[key] for key in sorted(known)]
        STORED.write_text(json.dumps(results, indent=1) + "\n")
    print(*map(table_row, results), sep="\n")
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6))
    for axis, data in zip(axes, TITLES, strict=True):
        for one in (one for one in results if one["data"] == data):
            colour, method = COLOURS[one["method"]], one["method"]
            cost = [size["cost"] for size in one["by_size"]]
            accuracy = [100 * size["accuracy"] for size in one["by_size"]]
            axis.plot(cost, accuracy, "o-", color=colour, label=f"{method}, 1 to 4 members for every row")
            share = one["members_used"] / one["members"]
            axis.plot([share], [100 * one["accuracy"]["cascade"]], "*", color=colour, ms=14, label=f"{method}, cascade")
        axis.set(
            title=TITLES[data], xlabel="members that run, relative to all 4", ylabel="test accuracy, %", xlim=(0, 1.05)
        )
        axis.grid(alpha=0.3)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="lower center", ncol=4, fontsize=8)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    figure.savefig(IMAGES / "serving.svg", metadata={"Date": None})


def table_row(one: dict[str, Any]) -> str:
    """A row of the table."""
    value, low, high = (100 * share for share in one["difference"])
    title, failed = TITLES[one["data"]].split(" (")[0], one["guarantee"]["failed"]["other rows"]
    cells = [f"{title}, {one['method']} {one['members']}"]
    cells += [f"{100 * one['accuracy'][which]:.2f}" for which in ("full", "cascade")]
    cells += [f"{value:+.2f} ({low:+.2f} to {high:+.2f})", f"{one['members_used']:.2f}"]
    cells += [f"{number:.2f}" for number in (one["report"]["cost"][0], *one["latency"].values())]
    return f"| {' | '.join(cells)} | {failed} of {one['guarantee']['splits']} |"


if __name__ == "__main__":
    main()
