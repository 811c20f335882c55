"""Whether promises hold: 100 random splits of each table, small networks, and a count on the test rows of each split.

    python benchmarks/coverage.py run --data-dir DATA      # one line per split in docs/results/coverage.jsonl
    python benchmarks/coverage.py write                    # the tables of docs/calibration.md

DATA holds `uci/` and `tables/`. A split that is stored is not computed again. Each split draws new test, validation and
training parts, and trains two small networks.

Regression: `predictor` is what `pluribus train` and `compare` promise, `sklearn` is
`EnsembleRegressor.predict_interval`, `mixture` is the uncalibrated mixture. Classification: `sets` contain the class,
accepted answers have at most the promised `risk` of being wrong, in all but 5 % of the splits. `upgrade` is that for
`pb.upgrade`, whose `unfamiliar` rows are at most 5 %. `write` ends with exit code 1 where a promise does not hold.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import pluribus as pb
from pluribus.data.dataset import Data, Points, Split, divide
from pluribus.deploy.promises import gather_evidence
from pluribus.integrations.sklearn import EnsembleRegressor
from pluribus.uncertainty.outputs import gaussian_nll

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "coverage.jsonl"
PAGE = Path(__file__).parents[1] / "docs" / "calibration.md"
REGRESSION = ("yacht", "bostonHousing", "energy", "concrete", "wine-quality-red")
CLASSES = {"adult": "classification", "diamonds": "cut"}  # tables whose test parts have 10,000 rows, and their targets
SPLITS, LEVEL, TOLERANCE, LEVELS, RISKS = 100, 0.9, 0.02, (0.8, 0.9, 0.95), (0.3, 0.2, 0.1, 0.05)
MEMBERS, EPOCHS, RATE = 2, 20, 0.01
TRAIN, VALIDATION, TEST = 1000, 800, 10_000  # rows of classification


# ---------------------------------------------------------------- one split


def train(x: Tensor, y: Tensor, outputs: int, seed: int) -> pb.Ensemble:
    """Two small networks by a plain loop, so that 700 splits take minutes."""
    torch.manual_seed(seed)
    ensemble = pb.deep(lambda: pb.models.mlp(x.shape[1], outputs or 2, (32,)), MEMBERS)
    ensemble.task = "classification" if outputs else "gaussian"
    optimizer = torch.optim.Adam(ensemble.parameter_groups(RATE, 0.0))
    ensemble.train()
    for _ in range(EPOCHS):
        for some in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            ensemble.loss(x[some], y[some], F.cross_entropy if outputs else gaussian_nll).backward()
            optimizer.step()
    return ensemble.eval()


def covered(low: object, high: object, y: np.ndarray) -> float:
    """The share of targets inside."""
    return float(((np.asarray(low) <= y) & (y <= np.asarray(high))).mean())


def regression_split(x: Tensor, y: Tensor, seed: int) -> dict[str, Any]:
    """Of one random split, the coverage on its test rows."""
    test, validation, training = divide(y, [0.2, 0.1], seed, stratified=False)
    whole = Split(Points(x), y)
    order = torch.randperm(len(validation), generator=torch.Generator().manual_seed(seed))
    parts = {"train": training, "validation": validation[order], "test": test}  # shuffled, as `pb.data.load` does
    data = Data("uci", "regression", "table", **{name: whole.take(part) for name, part in parts.items()})
    ensemble = train(*data.train[:], 0, seed)
    prediction: Any = ensemble.predict(data.test[:][0])
    evidence = gather_evidence(ensemble, data)
    assert evidence is not None
    scaled, truth = evidence.apply(prediction), data.test.y.numpy()
    rest = torch.cat([training, validation])
    regressor = EnsembleRegressor(size=MEMBERS, hidden=(32,), epochs=EPOCHS, lr=RATE, random_state=seed)
    regressor.fit(x[rest].numpy(), y[rest].numpy())
    found: dict[str, Any] = {"mixture": covered(*prediction.interval(LEVEL), truth)}
    for level in LEVELS:
        if level <= 1 - 1 / (len(evidence.nonconformity) + 1):  # else there are too few rows
            found[f"predictor {level}"] = covered(*evidence.conformal(level).intervals(scaled), truth)
    ends = regressor.predict_interval(x[test].numpy(), LEVEL)
    return found | {"sklearn 0.9": covered(ends[:, 0], ends[:, 1], truth)}


def classes_split(x: Tensor, y: Tensor, seed: int) -> dict[str, Any]:
    """Of one random split, the coverage of sets and the errors of accepted answers on its test rows."""
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    ends = [0, TRAIN, TRAIN + VALIDATION, TRAIN + VALIDATION + TEST]
    whole, names = Split(Points(x), y), ("train", "validation", "test")
    parts = {name: whole.take(order[ends[i] : ends[i + 1]]) for i, name in enumerate(names)}
    classes = tuple(map(str, range(int(y.max()) + 1)))
    data = Data("table", "classification", "table", **parts, classes=classes)
    ensemble = train(*data.train[:], len(classes), seed)
    (inputs, truth), evidence = data.test[:], gather_evidence(ensemble, data)
    assert evidence is not None
    prediction: Any = evidence.apply(ensemble.predict(inputs))
    found: dict[str, Any] = {}
    for level in LEVELS:
        found[f"sets {level}"] = share_of(evidence.conformal(level).sets(prediction), truth)
    for risk in RISKS:
        found[f"risk {risk}"] = accepted(lambda r=risk: evidence.threshold(r).keep(prediction), prediction, truth)
    return found | upgrade_split(data, inputs, truth, seed)


def upgrade_split(data: Data, inputs: Tensor, truth: Tensor, seed: int) -> dict[str, Any]:
    """The same of `pb.upgrade` of one network, without fine-tuning."""
    network = train(*data.train[:], len(data.classes), seed + 1000).member(0)
    noise = 3 * torch.randn(200, inputs.shape[1], generator=torch.Generator().manual_seed(seed))
    upgraded = pb.upgrade(
        network,
        data.train[:],
        data.validation[:],
        0,
        goal="ood",
        outside=noise,
        methods=["neighbours"],
        risk=0.2,
        seed=seed,
    )
    prediction = upgraded.predict(inputs)
    keep = upgraded.threshold
    return {
        "upgrade sets 0.9": share_of(upgraded.sets(inputs), truth),
        "upgrade risk 0.2": None if keep is None else accepted(lambda: keep.keep(prediction), prediction, truth),
        "upgrade unfamiliar": float(upgraded.unfamiliar(inputs).double().mean()),
    }


def share_of(sets: Tensor, truth: Tensor) -> float:
    """How many sets contain the true class."""
    return float(sets.gather(1, truth[:, None]).double().mean())


def accepted(choose: Callable[[], Tensor], prediction: Any, truth: Tensor) -> list[float] | None:
    """The share of accepted answers and their error; None where the risk could not be promised."""
    try:
        keep = choose()
    except ValueError:
        return None
    wrong = (prediction.label != truth)[keep].double()
    return [float(keep.double().mean()), float(wrong.mean()) if len(wrong) else 0.0]


# ---------------------------------------------------------------- all splits


def read(table: str, root: Path) -> tuple[Tensor, Tensor]:
    """Inputs and targets, standardised as a whole: this leaks nothing that a promise could gain from."""
    if table in CLASSES:
        data = pb.data.load(f"table:{root / 'tables' / table}.csv", target=CLASSES[table])
        parts = [part[:] for part in (data.train, data.validation, data.test)]
        x, y = (torch.cat(columns) for columns in zip(*parts, strict=True))
        return x, y
    folder = root / "uci" / table
    values = torch.from_numpy(np.loadtxt(folder / "data.txt"))
    columns = np.loadtxt(folder / "index_features.txt", dtype=int)
    x, y = values[:, columns], values[:, int(np.loadtxt(folder / "index_target.txt"))]
    x = (x - x.mean(0)) / x.std(0).clamp_min(1e-9)
    return x.float(), ((y - y.mean()) / y.std()).float()


def stored() -> list[dict[str, Any]]:
    """The splits that are done."""
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def run(root: Path, splits: int) -> None:
    """Compute what is missing."""
    torch.set_num_threads(1)
    done = {(one["table"], one["split"]) for one in stored()}
    for table in (*REGRESSION, *CLASSES):
        missing = [split for split in range(splits) if (table, split) not in done]
        x, y = read(table, root) if missing else (torch.empty(0), torch.empty(0))
        for split in missing:
            values = (classes_split if table in CLASSES else regression_split)(x, y, split)
            with RESULTS.open("a") as file:
                file.write(json.dumps({"table": table, "split": split, "values": values}) + "\n")


# ---------------------------------------------------------------- the page


def write() -> int:
    """Put the tables on the page; 1 where a promise does not hold."""
    found: dict[str, list[dict[str, Any]]] = {}
    for one in stored():
        found.setdefault(one["table"], []).append(one["values"])
    wrong: list[str] = []
    lines = ["| table | splits | mixture | `train`, `compare`: 80 % | 90 % | 95 % | `EnsembleRegressor`: 90 % |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for table in REGRESSION:
        rows, cells = found.get(table, []), []
        for name in ("mixture", *(f"predictor {level}" for level in LEVELS), "sklearn 0.9"):
            cells.append(coverage_cell(rows, name, f"{table}: {name}", wrong))
        lines.append(f"| {table} | {len(rows)} | {' | '.join(cells)} |")
    lines += ["", "| table | promise | kept | accepted | splits with a larger error |", "|---|---|---|---|---|"]
    for table in CLASSES:
        if not (rows := found.get(table, [])):
            continue
        lines.append(f"| {table}, {len(rows)} splits | | | | |")
        for name in (*(f"sets {level}" for level in LEVELS), "upgrade sets 0.9"):
            lines.append(f"| {table} | {name} | {coverage_cell(rows, name, f'{table}: {name}', wrong)} | | |")
        for name in (*(f"risk {risk}" for risk in RISKS), "upgrade risk 0.2"):
            lines.append(risk_row(rows, table, name, wrong))
        alarms = mean(row["upgrade unfamiliar"] for row in rows)
        lines.append(f"| {table} | upgrade: at most 5 % unfamiliar | {100 * alarms:.1f} % | | |")
        wrong += [f"{table}: unfamiliar"] * (alarms > 0.05 + TOLERANCE)
    begin, end = "<!-- promises -->\n", "<!-- end of promises -->\n"
    before, _, rest = PAGE.read_text().partition(begin)
    PAGE.write_text(before + begin + "\n" + "\n".join(lines) + "\n\n" + end + rest.partition(end)[2])
    print("\n".join([*lines, "", f"does not hold: {', '.join(wrong) or 'none'}"]))
    return bool(wrong)


def coverage_cell(rows: list[dict[str, Any]], name: str, place: str, wrong: list[str]) -> str:
    """The mean coverage with its standard error; off by more than two points it is wrong, for sets only below."""
    values = [row[name] for row in rows if name in row]
    if not values:
        return ""
    error = float(np.std(values)) / len(values) ** 0.5
    if name != "mixture":
        gap = mean(values) - float(name.split()[-1])
        wrong += [place] * (gap < -TOLERANCE or name.endswith(" 0.9") and "sets" not in name and gap > TOLERANCE)
    return f"{100 * mean(values):.1f} ± {100 * error:.1f}"


def risk_row(rows: list[dict[str, Any]], table: str, name: str, wrong: list[str]) -> str:
    """How often a threshold was given, what it accepts, and how many splits had more wrong answers than promised."""
    given = [row[name] for row in rows if row.get(name) is not None]
    if not given:
        return f"| {table} | {name} | not possible with these rows | | |"
    risk = float(name.split()[-1])
    broken = sum(error > risk for _, error in given)
    # Test rows are a sample too: an error on the border is exceeded by chance. 95 of 100 may be 90 by luck (p < 0.03).
    wrong += [f"{table}: {name}"] * (broken > 0.1 * len(rows))
    errors, kept = mean(error for _, error in given), mean(share for share, _ in given)
    text = f"error {100 * errors:.1f} % (given in {len(given)} of {len(rows)})"
    return f"| {table} | {name} | {text} | {100 * kept:.0f} % | {broken} of {len(rows)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["run", "write"])
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--splits", type=int, default=SPLITS)
    given = parser.parse_args()
    if given.what == "write":
        return write()
    run(given.data_dir, given.splits)
    return 0


if __name__ == "__main__":
    sys.exit(main())
