"""How often 90 % intervals contain the truth: over random splits of UCI tables, for each place that writes an interval.

    python benchmarks/coverage.py --data-dir DATA --splits 100

DATA holds `uci/` or is that folder: yacht, bostonHousing, energy, concrete, wine-quality-red, each with `data.txt`, the
target in its last column (`index_target.txt` says which). Each split draws a test part and a training part anew, trains
a small network four times, and counts. `predictor` is what `pluribus train` and `compare` do with their validation
rows, `sklearn` is `EnsembleRegressor.predict_interval`, `mixture` is the uncalibrated mixture for comparison. Exit code
1 where a promise is off by more than two points.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch

import pluribus as pb
from pluribus.data.dataset import Data, Points, Split, divide
from pluribus.deploy.promises import gather_evidence
from pluribus.integrations.sklearn import EnsembleRegressor
from pluribus.uncertainty.outputs import gaussian_nll

TABLES = ("yacht", "bostonHousing", "energy", "concrete", "wine-quality-red")
LEVEL, TOLERANCE = 0.9, 0.02


def read(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Features and targets of a table, standardised as a whole: this leaks nothing that intervals could gain from."""
    values = np.loadtxt(folder / "data.txt")
    columns = np.loadtxt(folder / "index_features.txt", dtype=int)
    x, y = values[:, columns], values[:, int(np.loadtxt(folder / "index_target.txt"))]
    return (x - x.mean(0)) / np.maximum(x.std(0), 1e-9), (y - y.mean()) / y.std()


def train(x: torch.Tensor, y: torch.Tensor, members: int, epochs: int, seed: int) -> pb.Ensemble:
    """Four small networks by a plain loop: 200 splits take minutes."""
    torch.manual_seed(seed)
    ensemble = pb.deep(lambda: pb.models.mlp(x.shape[1], 2, (32,)), members)
    ensemble.task = "gaussian"
    optimizer = torch.optim.Adam(ensemble.parameter_groups(0.01, 0.0))
    ensemble.train()
    for _ in range(epochs):
        for some in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            ensemble.loss(x[some], y[some], gaussian_nll).backward()
            optimizer.step()
    return ensemble.eval()


def covered(low: object, high: object, y: np.ndarray) -> float:
    """The share of targets inside."""
    return float(((np.asarray(low) <= y) & (y <= np.asarray(high))).mean())


def split_coverage(x: np.ndarray, y: np.ndarray, seed: int, members: int, epochs: int) -> dict[str, float]:
    """Of one random split, the coverage on its test rows."""
    rows = torch.from_numpy(y).float()
    test, validation, training = divide(rows, [0.2, 0.1], seed, stratified=False)
    whole = Split(Points(torch.from_numpy(x)), rows)
    parts = {"train": training, "validation": validation, "test": test}
    data = Data("uci", "regression", "table", **{name: whole.take(part) for name, part in parts.items()})
    ensemble = train(*data.train[:], members, epochs, seed)
    prediction = ensemble.predict(data.test[:][0])
    evidence = gather_evidence(ensemble, data)
    assert evidence is not None
    scaled = evidence.calibrated().apply(prediction)
    truth = data.test.y.numpy()
    found = {
        "mixture": covered(*prediction.interval(LEVEL), truth),
        "predictor": covered(*evidence.conformal(LEVEL).intervals(scaled), truth),
    }
    rest = np.concatenate([training, validation])
    regressor = EnsembleRegressor(size=members, hidden=(32,), epochs=epochs, lr=0.01, random_state=seed)
    ends = regressor.fit(x[rest], y[rest]).predict_interval(x[test], LEVEL)
    return found | {"sklearn": covered(ends[:, 0], ends[:, 1], y[test])}


def main() -> int:
    """Print a table of mean coverages, and say which are off."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--splits", type=int, default=100)
    parser.add_argument("--members", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=20)
    given = parser.parse_args()
    torch.set_num_threads(1)
    root = given.data_dir / "uci" if (given.data_dir / "uci").is_dir() else given.data_dir
    wrong = []
    print(f"{'table':<18} {'mixture':>9} {'predictor':>15} {'sklearn':>15}  seconds")
    for table in TABLES:
        x, y = read(root / table)
        started = time.process_time()
        found = [split_coverage(x, y, seed, given.members, given.epochs) for seed in range(given.splits)]
        mean = {name: float(np.mean([one[name] for one in found])) for name in found[0]}
        error = {name: float(np.std([one[name] for one in found]) / given.splits**0.5) for name in found[0]}
        cells = [f"{100 * mean[name]:8.1f} +- {100 * error[name]:.1f}" for name in ("predictor", "sklearn")]
        seconds = time.process_time() - started
        print(f"{table:<18} {100 * mean['mixture']:9.1f} {cells[0]:>15} {cells[1]:>15}  {seconds:.0f}", flush=True)
        wrong += [f"{table}: {name}" for name in ("predictor", "sklearn") if abs(mean[name] - LEVEL) > TOLERANCE]
    print(f"off by more than {100 * TOLERANCE:g} points: {', '.join(wrong) or 'none'}")
    return bool(wrong)


if __name__ == "__main__":
    raise SystemExit(main())
