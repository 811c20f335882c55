"""Every ratio that Pluribus promises: time relative to the plain single network, with the limit and the bar beside it.

python benchmarks/speed.py                          the rows that have a bar, one thread
python benchmarks/speed.py --full                   all networks, batches of 1, 32, 256, one thread and all cores: hours
python benchmarks/speed.py --full --batches 1,32 --threads 1
python benchmarks/speed.py --only packed --seconds 30
python benchmarks/speed.py --scaling                time and mult-adds for 1 to 32 members
python benchmarks/speed.py --memory                 peak memory of a frozen packed network and of the single network
python benchmarks/speed.py --json new.json --compare old.json

The limit is the mult-adds relative to the single network. The runs of a row take turns, and medians of process time
are compared: a noisy machine still gives stable ratios. With a GPU the rows run there too, synchronised, plain and
with autocast; without one the table says so.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import mkdtemp
from typing import Any

import torch
from cases import (
    IMAGE,
    Row,
    batch_of,
    cnn,
    compiled,
    frozen,
    lenet,
    loop,
    masks,
    mlp,
    packed,
    training,
    tree,
    unfrozen,
    vit,
)  # fmt: skip
from timing import interleaved, peak_memory

import pluribus as pb
from pluribus import models

resnet = models.resnet18


def bars() -> list[Row]:
    """The rows that have a bar."""
    dropping = partial(models.resnet18, dropout=0.3)
    return [
        frozen("packed (2, 4, 1), frozen", 32, resnet, packed, 0.92),
        frozen("packed (2, 4, 1), frozen", 1, resnet, packed, 0.95),
        frozen("packed (2, 4, 2), frozen", 32, resnet, partial(packed, gamma=2), 0.80),
        *(of_frozen(f"LeNet x{n}", lenet(n), bar) for n, bar in ((2, 1.8), (4, 1.3), (8, 1.15))),
        of_frozen("ViT", vit, 1.15, shape=(3, 64, 64)),
        frozen("masksembles, frozen", 32, resnet, masks, 1.65),
        unfrozen("masksembles", 32, resnet, masks, 2.9),
        frozen("masksembles in a plain CNN, frozen", 32, cnn, masks, 1.45),
        frozen("masksembles in a plain CNN, frozen", 1, cnn, masks, 1.30),
        frozen("masksembles in an MLP, frozen", 32, mlp, masks, 1.45),
        frozen("masksembles in an MLP, frozen", 1, mlp, masks, 1.30),
        frozen("mimo, frozen", 32, resnet, lambda m, x: pb.mimo(m, 4, example=x), 1.05),
        unfrozen("mimo", 32, resnet, lambda m, x: pb.mimo(m, 4, example=x), 1.05),
        frozen("multihead, frozen", 32, resnet, lambda m, x: pb.multihead(m, 4), 1.05),
        unfrozen("multihead", 32, resnet, lambda m, x: pb.multihead(m, 4), 1.05),
        frozen("mc_dropout before the last layer, frozen", 32, dropping, lambda m, x: pb.mc_dropout(m, 4), 1.05),
        unfrozen("mc_dropout before the last layer", 32, dropping, lambda m, x: pb.mc_dropout(m, 4), 1.05),
        tree(32),
        frozen("batch_ensemble, frozen", 32, resnet, lambda m, x: pb.batch_ensemble(m, 4), 3.7),
        frozen("deep, frozen", 32, resnet, lambda m, x: pb.deep(m, 4), 3.7),
        training("packed (2, 4, 1)", 32, packed, 1.12),
        training("masksembles", 32, masks, 1.10),
        training("mimo", 32, lambda m, x: pb.mimo(m, 4, example=x), 1.10),
        loop(64, 16, 64, 0.33),
        loop(64, 32, 8, 0.12),
        loop(256, 16, 1, 0.50),
        loop(256, 16, 64, 1.0),
        compiled("packed (2, 4, 1)", 32, packed, 1.0),
        compiled("masksembles", 32, masks, 1.8),
    ]


def of_frozen(name: str, build: Any, bar: float, **options: Any) -> Row:
    """A frozen packed ensemble of a small network against that network frozen."""
    return frozen(
        f"packed (2, 4, 1), frozen, of a frozen {name}", 32, build, packed, bar, base=["frozen single"], **options
    )


def full(batches: list[int]) -> list[Row]:
    """Every method that freezing changes, on every network."""
    networks: dict[str, tuple[Any, tuple[int, ...]]] = {
        "ResNet-18": (resnet, IMAGE),
        "MLP": (mlp, IMAGE),
        "ViT": (vit, (3, 64, 64)),
        "WRN-16-4": (models.wide_resnet16_4, IMAGE),
    }
    methods = {
        "packed (2, 4, 1)": packed,
        "masksembles": masks,
        "batch_ensemble": lambda m, x: pb.batch_ensemble(m, 4),
        "deep": lambda m, x: pb.deep(m, 4),
        "multihead": lambda m, x: pb.multihead(m, 4, example=x),
        "mimo": lambda m, x: pb.mimo(m, 4, example=x),
    }
    return [
        frozen(f"{network}: {name}, frozen", rows, build, method, shape=shape)
        for network, (build, shape) in networks.items()
        for name, method in methods.items()
        for rows in batches
    ]


def measure(row: Row, device: torch.device, seconds: float, autocast: bool = False) -> dict[str, Any]:
    """One row of the table."""
    with torch.no_grad(), torch.autocast(device.type, enabled=autocast):
        times = interleaved(row.build(device), device, seconds=seconds)
    middle = {name: median(values) for name, values in times.items()}
    base = min(middle[name] for name in row.base if name in middle)
    single = middle.get("frozen single")
    return {
        "name": row.name + (" (autocast)" if autocast else ""),
        "rows": row.rows,
        "device": device.type,
        "threads": torch.get_num_threads(),
        "limit": row.limit() if row.limit else None,
        "ratio": middle["this"] / base,
        "to_frozen_single": middle["this"] / single if single else None,
        "bar": row.bar,
        "rounds": len(times["this"]),
        "milliseconds": 1e3 * middle["this"],
    }


def scaling(seconds: float) -> list[dict[str, Any]]:
    """Time and mult-adds of deep and of packed with alpha = sqrt(M), frozen, relative to the single network."""
    x, results = batch_of(32, IMAGE, torch.device("cpu")), []
    for size in (1, 2, 4, 8, 16, 32):
        for name, method in (
            ("deep", lambda m, _, size=size: pb.deep(m, size)),
            ("packed, alpha = sqrt(M)", lambda m, x, size=size: pb.packed(m, size, size**0.5, example=x)),
        ):
            row = frozen(f"{name}, M = {size}", 32, resnet, method)
            results.append(measure(row, x.device, seconds))
            show(results[-1])
    return results


def memory() -> dict[str, Any]:
    """Peak memory of one process that predicts, less that of one that only has the packages and an input."""
    begin = (
        "import torch, pluribus as pb; from pluribus import models; torch.set_num_threads(1); "
        "x = torch.randn(32, 3, 32, 32)\n"
    )
    load = begin + "network = torch.load({!r}, weights_only=False)\n"
    run = load + "with torch.no_grad():\n    for _ in range(3): network(x)"
    folder = Path(mkdtemp())
    x = torch.randn(32, *IMAGE)
    torch.save(models.resnet18().eval(), folder / "single")
    torch.save(pb.freeze(packed(models.resnet18(), x[:2]), x), folder / "packed")
    empty = peak_memory(begin)
    used = {name: peak_memory(run.format(str(folder / name))) - empty for name in ("single", "packed")}
    result = {"name": "peak memory: packed (2, 4, 1), frozen", "rows": 32, "ratio": used["packed"] / used["single"]}
    result |= {"bar": 1.1, "limit": 1.0, "device": "cpu", "threads": 1, "to_frozen_single": None}
    return {**result, "megabytes": {name: round(value / 1e6, 1) for name, value in used.items()}}


def show(result: dict[str, Any]) -> None:
    """One line."""
    number = lambda value: "    -" if value is None else f"{value:5.2f}"  # noqa: E731
    bar, ratio = result.get("bar"), result["ratio"]
    verdict = "" if bar is None else "met" if ratio <= bar else "NOT MET"
    print(
        f"{result['name']:52} {result['rows']:4} {result['device']:4} {result['threads']:2} {number(result['limit'])} "
        f"{ratio:6.3f} {number(result.get('to_frozen_single'))} {number(bar)} {verdict}",
        flush=True,
    )


def compare(results: list[dict[str, Any]], path: Path) -> None:
    """How the ratios changed since an earlier file."""
    key = lambda r: (r["name"], r["rows"], r["device"], r["threads"])  # noqa: E731
    earlier = {key(result): result for result in json.loads(path.read_text())["results"]}
    print(f"\nAgainst {path}:")
    for result in results:
        if key(result) in earlier:
            before = earlier[key(result)]["ratio"]
            change = result["ratio"] / before - 1
            mark = "  slower" if change > 0.05 else "  faster" if change < -0.05 else ""
            print(f"{result['name']:52} {result['rows']:4} {before:6.3f} -> {result['ratio']:6.3f} {change:+.1%}{mark}")


def numbers(text: str) -> list[int]:
    """Whole numbers with commas."""
    return [int(part) for part in text.split(",")]


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="all networks, batches and numbers of threads")
    parser.add_argument("--batches", type=numbers, default=[1, 32, 256], help="of --full, with commas: 1,32,256")
    parser.add_argument("--threads", type=numbers, help="of --full, with commas; by default 1 and all cores")
    parser.add_argument("--scaling", action="store_true", help="1 to 32 members")
    parser.add_argument("--memory", action="store_true", help="peak memory")
    parser.add_argument("--only", default="", help="a regular expression that the names of the rows must contain")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each row")
    parser.add_argument("--json", type=Path, help="where to store the results")
    parser.add_argument("--compare", type=Path, help="an earlier file of results")
    return parser.parse_args()


def table(rows: list[Row], seconds: float) -> list[dict[str, Any]]:
    """Measure rows on every device, and show them."""
    results = []
    for row in rows:
        for device in ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]:
            for autocast in (False, True) if device == "cuda" else (False,):
                results.append(measure(row, torch.device(device), seconds, autocast))
                show(results[-1])
    return results


def main() -> None:
    """Measure what was asked for."""
    given, cores = arguments(), torch.get_num_threads()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, {platform.processor() or platform.machine()}, {cores} cores")
    if not torch.cuda.is_available():
        print("No GPU here: nothing below was run on one.")
    print(f"{'':52} rows on   thr limit  ratio to fs   bar")
    chosen = full(given.batches) if given.full else [] if given.scaling or given.memory else bars()
    chosen = [row for row in chosen if re.search(given.only, row.name)]
    results: list[dict[str, Any]] = []
    for threads in (given.threads or sorted({1, cores})) if given.full else [1]:
        torch.set_num_threads(threads)
        results += table(chosen, given.seconds)
    torch.set_num_threads(1)
    if given.scaling:
        results += scaling(given.seconds)
    if given.memory:
        results.append(memory())
        show(results[-1])
        print(results[-1]["megabytes"])
    if given.json:
        about = {"torch": torch.__version__, "cores": cores}
        given.json.write_text(json.dumps({"about": about, "results": results}, indent=1))
    if given.compare:
        compare(results, given.compare)


if __name__ == "__main__":
    main()
