"""What a cascade costs at the full ensemble's accuracy: deep 4 and packed 4 on CIFAR-10 and Fashion-MNIST images.

Trains what is missing (a stopped run goes on), chooses thresholds on validation rows, and measures on test rows the
accuracy and the deployed (frozen) latency of the cascade relative to the full ensemble's, interleaved in one process.
The promise is checked over 200 random divisions of the held-out rows.

The protocol, fixed before anything was measured: a quarter of the training images (CIFAR-10) or a fifth
(Fashion-MNIST) is held out for the thresholds and for nothing else; no weights are chosen on them. The cascade's stages
are 1, 2, 3 and 4 members; its margin is 1 point of accuracy at confidence 0.9. The order in which thresholds are
tested was changed after a look at CIFAR-10's held-out (not test) rows; latencies were measured twice.

nice -n 19 python benchmarks/serving.py --data FOLDER --work FOLDER [--only cifar10-deep] [--seconds 20]
python benchmarks/serving.py --routed [--seconds 20]   # times of packed networks with given shares of rows, untrained
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timing import interleaved, ratio
from torch import Tensor, nn

import pluribus as pb
from pluribus.deploy.cascading import Asked, StageRows, choose

MEMBERS = 4

HELD_OUT = {"cifar10": 2500, "fashion_mnist": 4000}

SIZES, MARGIN, CONFIDENCE, SPLITS = (1, 2, 3, 4), 0.01, 0.9, 200

EPOCHS = {"cifar10": 16, "fashion_mnist": 6}


def network(data: str) -> nn.Module:
    """Four convolutions with normalisation, for images of three channels or one."""
    layers: list[nn.Module] = []
    channels = 3 if data == "cifar10" else 1
    for width, pool in ((32, True), (64, True), (128, True), (128, False)):
        layers += [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if pool else []
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def load(folder: Path, data: str) -> dict[str, tuple[Tensor, Tensor]]:
    """The rows by their use, normalised by what the training rows say; a seeded order."""
    with np.load(folder / f"{data}.npz") as file:
        x, y, tx, ty = (torch.from_numpy(file[key]) for key in ("x_train", "y_train", "x_test", "y_test"))
    x, tx = (t[:, None] if t.ndim == 3 else t.permute(0, 3, 1, 2) for t in (x, tx))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, y, count = x[order] / 255, y[order].long(), HELD_OUT[data]
    mean, std = x[count:].mean((0, 2, 3), keepdim=True), x[count:].std((0, 2, 3), keepdim=True)
    x, tx = (x - mean) / std, (tx / 255 - mean) / std
    return {"train": (x[count:], y[count:]), "validation": (x[:count], y[:count]), "test": (tx, ty.long())}


def train(data: str, method: str, rows: dict[str, tuple[Tensor, Tensor]], work: Path) -> pb.Ensemble:
    """The ensemble, trained once and then read."""
    path, model = work / f"{data}-{method}.safetensors", network(data)
    if path.exists():
        return pb.load(path, model).eval()
    torch.manual_seed(0)
    x, y = rows["train"]
    ensemble = pb.deep(model, MEMBERS) if method == "deep" else pb.packed(model, MEMBERS, alpha=2, example=x[:2])
    recipe = pb.Recipe(
        epochs=EPOCHS[data], batch_size=64, lr=4e-3, weight_decay=0.02, optimizer={"name": "adamw"},
        schedule={"name": "cosine", "warmup": 1}, augment={"flip": True, "crop": 4 if data == "cifar10" else 2},
    )  # fmt: skip
    history = pb.fit(ensemble, (x, y), recipe=recipe, folder=work / f"{data}-{method}", seed=0, progress=False)
    print(f"{data} {method}: {history.seconds:.0f} s, last rows {history.rows[-1]}", flush=True)
    pb.save(ensemble.eval(), path)
    return ensemble


def measure(data: str, method: str, folder: Path, work: Path, seconds: float) -> dict[str, Any]:
    """Accuracy and deployed latency of the cascade and of the full ensemble, on test rows."""
    rows = load(folder, data)
    ensemble = train(data, method, rows, work)
    made = pb.cascade(ensemble, rows["validation"], margin=MARGIN, confidence=CONFIDENCE, sizes=SIZES)
    print(made.explain(), flush=True)
    x, y = rows["test"]
    found: dict[str, Any] = {"data": data, "method": method, "members": MEMBERS, "report": made.report.plain()}
    whole, part = ensemble.predict(x, batch_size=250), made.predict(x, batch_size=250)
    wrong = torch.stack([whole.label != y, part.label != y]).int()
    change = (wrong[0] - wrong[1]).double()
    error = 1.96 * float(change.std()) / len(y) ** 0.5
    found["accuracy"] = {"full": 1 - float(wrong[0].double().mean()), "cascade": 1 - float(wrong[1].double().mean())}
    found["difference"] = [float(change.mean()), float(change.mean()) - error, float(change.mean()) + error]
    used = torch.cat([made.answers(part)["members"] for part in x.split(250)])
    found["members_used"] = float(used.double().mean())
    found["by_size"] = by_size(ensemble, whole, y)
    found["latency"], found["rounds"] = {}, {}
    for batch in (1, 32, 128, 512):
        full, quick = pb.freeze(ensemble, x[:batch]), pb.freeze(made, x[:batch])
        some = x[: 96 if batch == 1 else max(512, 2 * batch)].split(batch)
        runs = {"full": partial(answer, full, some), "cascade": partial(answer, quick, some)}
        times = interleaved(runs, torch.device("cpu"), seconds=seconds)
        found["latency"][str(batch)] = ratio(times, "cascade", "full")
        found["rounds"][str(batch)] = len(times["full"])
    return found


REACH = {"cifar10": (1, 0.3, 0.24, 0.19), "fashion_mnist": (1, 0.07, 0.04, 0.03)}  # rows that reach 1, 2, 3, 4 members


def routed(data: str, seconds: float) -> None:
    """Print the time of packed cascades in which such shares of rows go on, relative to the full ensemble."""
    side, channels = (32, 3) if data == "cifar10" else (28, 1)
    for rows in (32, 128, 512):
        torch.manual_seed(0)
        x = torch.randn(rows, channels, side, side)
        ensemble = pb.packed(network(data), MEMBERS, alpha=2, example=x[:2]).eval()
        runs: dict[str, Any] = {"full": partial(pb.freeze(ensemble, x).answers, x)}
        runs["first member alone"] = partial(pb.freeze(ensemble.subset([0]), x).answers, x)
        for sizes in (SIZES, (1, MEMBERS)):
            stages = [ensemble.subset(range(a, b)) for a, b in zip((0, *sizes), sizes, strict=False)]
            shares = REACH[data][: len(sizes)]
            cascade = route(stages, x, shares)
            frozen = [
                pb.freeze(stage, x[: max(1, round(share * rows))]) for stage, share in zip(stages, shares, strict=True)
            ]
            runs[f"stages of {sizes}"] = partial(cascade.with_stages(frozen).answers, x)
        times = interleaved(runs, torch.device("cpu"), seconds=seconds)
        shown = ", ".join(f"{name}: {ratio(times, name, 'full'):.2f}" for name in runs if name != "full")
        print(f"{data}, {rows} rows ({len(times['full'])} rounds): {shown}", flush=True)


def route(stages: Sequence[pb.Ensemble], x: Tensor, shares: Sequence[float]) -> pb.Cascade:
    """A cascade whose thresholds let these shares of x go on."""
    windows: list[tuple[float, float]] = []
    members, rows = stages[0].predict(x).members, torch.arange(len(x))
    for stage, share in zip(stages[1:], shares[1:], strict=True):
        scores = pb.Classification.from_probabilities(members).score("msp")
        on = scores.argsort(descending=True)[: max(1, round(share * len(x)))].sort().values
        windows.append((float(scores[on].min()), float("inf")))
        rows = rows[on]
        members = torch.cat([members[:, on], stage.predict(x[rows]).members])
    return pb.Cascade(list(stages), windows)


def answer(network: Any, batches: Sequence[Tensor]) -> None:
    """All batches, one after the other."""
    for batch in batches:
        network.answers(batch)


def by_size(ensemble: pb.Ensemble, whole: pb.Classification, y: Tensor) -> list[dict[str, float]]:
    """The accuracy and the relative cost of the first 1, 2, ... members on every row."""
    members = [pb.Classification(whole.log_members[: k + 1]) for k in range(ensemble.size)]
    return [
        {"cost": (k + 1) / len(members), "accuracy": float((p.label == y).double().mean())}
        for k, p in enumerate(members)
    ]


def guarantee(data: str, method: str, folder: Path, work: Path) -> dict[str, Any]:
    """How often the promise fails over random divisions of all held-out rows: two stages, 1 and all members.

    Thresholds are chosen on as many rows as the validation set has; the loss is that on all other held-out rows, which
    has noise of its own, and on all held-out rows when validation rows are drawn from them with replacement.
    """
    rows = load(folder, data)
    ensemble = train(data, method, rows, work)
    x, y = (torch.cat(pair) for pair in zip(rows["validation"], rows["test"], strict=True))
    log_members = ensemble.predict(x, batch_size=250).log_members
    stages = [pb.Classification(log_members[:k]) for k in (1, MEMBERS)]
    scores, wrong = (
        np.stack(one) for one in ([p.score("msp").numpy() for p in stages], [(p.label != y).numpy() for p in stages])
    )
    every = StageRows(scores, wrong, np.array([1 / MEMBERS, 1.0]))
    asked, generator, count = Asked(None, MARGIN, CONFIDENCE), np.random.default_rng(0), HELD_OUT[data]
    failed, costs = {"other rows": 0, "drawn with replacement": 0}, []
    for seed in range(SPLITS):
        order = generator.permutation(len(y))
        for name, chosen, judged in (
            ("other rows", order[:count], order[count:]),
            ("drawn with replacement", generator.integers(len(y), size=count), order),
        ):
            windows, _, report = choose(every.take(chosen), asked, seed=seed)
            found = every.take(judged).outcome(windows)
            failed[name] += int((found.wrong.mean() - every.take(judged).wrong[-1].mean()) > MARGIN)
            costs.append(report.cost.value)
    return {"splits": SPLITS, "stated": 1 - CONFIDENCE, "failed": failed, "mean_cost": float(np.mean(costs))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--routed", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.routed:
        for data in REACH:
            routed(data, options.seconds)
        return
    if options.data is None or options.work is None:
        parser.error("--data and --work are needed, or --routed")
    options.work.mkdir(parents=True, exist_ok=True)
    for name in (f"{data}-{method}" for data in HELD_OUT for method in ("deep", "packed")):
        path, given = options.work / f"{name}.json", (*name.split("-"), options.data, options.work)
        if options.only in name and not path.exists():
            found = {**measure(*given, options.seconds), "guarantee": guarantee(*given)}
            path.write_text(json.dumps(found, indent=1))
        if path.exists():
            print(name, path.read_text(), flush=True)


if __name__ == "__main__":
    main()
