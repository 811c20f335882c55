"""The measurements of tables.md: `python docs/tables.py run [TABLE ...]` computes parts, `write` puts them on the page.

Data is found as `pluribus` finds it: in the folder PLURIBUS_DATA, with tables in tables/ and UCI sets in uci/.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
import warnings
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from torch import Tensor, nn

import pluribus as pb
from pluribus.data import load
from pluribus.data.dataset import Data
from pluribus.models.tables import PiecewiseMLP
from pluribus.study.boosting import boost
from pluribus.training.criteria import CRITERIA
from pluribus.uncertainty.prediction import prediction_of

RESULTS = Path(__file__).parent / "results" / "tables"
PAGE = Path(__file__).with_name("tables.md")
UCI = (
    "yacht", "bostonHousing", "energy", "concrete", "wine-quality-red", "kin8nm", "power-plant",
    "naval-propulsion-plant", "protein-tertiary-structure",
)  # fmt: skip
TABLES = {
    "cpu_act": "usr", "delta_elevators": "Se", "california": "value", "diamonds": "price", "adult": "classification",
}  # fmt: skip
METHODS = ("single", "deep", "packed", "batch_ensemble", "tabm", "tabm_ple", "package", "boosting")
SPLITS, MOST, HIDDEN, DROPOUT, MEMBERS = range(5), 10_000, (128, 128), 0.1, 32
SMALL, SMALL_BATCH = 5000, 64


def read(table: str, split: int) -> Data:
    """The table, divided; the same for all methods."""
    folder = Path(os.environ["PLURIBUS_DATA"])
    spec = f"uci:{table}" if table in UCI else f"table:{folder / 'tables' / table}.csv"
    told: dict[str, Any] = {"folder": folder, "split": split} if table in UCI else {"target": TABLES[table]}
    data = load(spec, seed=split, **told)
    return data if len(data.train) <= MOST else load(spec, seed=split, train_rows=MOST, **told)


def rows(data: Data, part: str) -> tuple[Tensor, Tensor]:
    """Inputs and targets of a part."""
    x, y = getattr(data, part)[:MOST]
    return data.normalise(x), y


def compute(table: str, split: int, method: str) -> dict[str, Any]:
    """One part: train, predict the test rows, and measure."""
    data = read(table, split)
    if method == "boosting":
        test = data.test.take(torch.arange(min(MOST, len(data.test))))
        prediction, seconds = boost(method, type(data)(**{**vars(data), "test": test}), split)
    else:
        torch.manual_seed(split)
        prediction, seconds = (train_package if method == "package" else train_ours)(data, split, method)
    scores = pb.evaluate(prediction, rows(data, "test")[1])
    if not data.classes:
        scores = {name: value * (data.target_std if name in ("rmse", "crps") else 1) for name, value in scores.items()}
    kept = ("accuracy", "ece") if data.classes else ("rmse", "crps", "coverage")
    return {
        "table": table, "split": split, "method": method, "rows": [len(data.train), len(rows(data, "test")[1])],
        "values": {name: float(scores[name]) for name in ("nll", *kept)}, "seconds": seconds,
    }  # fmt: skip


def recipe(data: Data) -> pb.Recipe:
    """The recipe, with smaller batches for small tables."""
    plan = pb.RECIPES["tabm"]
    return plan if len(data.train) >= SMALL else plan.changed(batch_size=SMALL_BATCH)


def train_ours(data: Data, seed: int, method: str) -> tuple[Any, dict[str, float]]:
    """A method of Pluribus."""
    train, validation, test = rows(data, "train"), rows(data, "selection"), rows(data, "test")[0]
    outputs = len(data.classes) or 2
    inputs = train[0].shape[1]
    if method == "tabm_ple":
        network = PiecewiseMLP(train[0], outputs, HIDDEN, DROPOUT)
        ensemble = pb.tabm(network, MEMBERS, init="normal", chunks=network.chunks, example=test[:4])
    else:
        network = pb.models.mlp(inputs=inputs, num_classes=outputs, hidden=HIDDEN, dropout=DROPOUT)
        sizes: dict[str, Any] = {
            "deep": (5,),
            "packed": (4, 2),
            "batch_ensemble": (4,),
            "tabm": (MEMBERS,),
            "single": (),
        }
        example = {"example": test[:4]} if method == "packed" else {}
        ensemble = pb.METHODS[method](network, *sizes[method], **example)
    ensemble.task = "classification" if data.classes else "gaussian"
    started = time.process_time()
    pb.fit(ensemble, train, validation, recipe=recipe(data), seed=seed)
    trained = time.process_time()
    prediction = ensemble.predict(test, batch_size=1024)
    return prediction, {"train": trained - started, "predict": time.process_time() - trained}


def train_package(data: Data, seed: int, _: str) -> tuple[Any, dict[str, float]]:
    """The authors' package in a loop of its own: the same optimizer, batches and rule of stopping."""
    import tabm

    train, validation, test = rows(data, "train"), rows(data, "selection"), rows(data, "test")[0]
    task, plan = "classification" if data.classes else "gaussian", recipe(data)
    criterion = CRITERIA["cross_entropy" if data.classes else "gaussian_nll"]
    model = tabm.TabM.make(
        n_num_features=train[0].shape[1], d_out=len(data.classes) or 2, n_blocks=len(HIDDEN), d_block=HIDDEN[0],
        dropout=DROPOUT, k=MEMBERS,
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=plan.lr, weight_decay=plan.weight_decay)
    order = torch.Generator().manual_seed(seed)
    best: list[float] = []
    kept: dict[str, Tensor] = {}
    lowest, waited, started = [math.inf, math.inf], 0, time.process_time()
    for _epoch in range(plan.epochs):
        model.train()
        for index in torch.randperm(len(train[0]), generator=order).split(plan.batch_size):
            optimizer.zero_grad()
            outputs = model(train[0][index])  # (batch, members, outputs)
            targets = train[1][index].repeat_interleave(MEMBERS, 0)
            criterion(outputs.flatten(0, 1), targets if data.classes else targets[:, None]).backward()
            nn.utils.clip_grad_norm_(model.parameters(), plan.clip)
            optimizer.step()
        found = pb.evaluate(predict(model, validation[0], task), validation[1])
        score = [-found["accuracy"], found["nll"]] if data.classes else [found["nll"], found["rmse"]]
        if not best or score < best:
            best, kept = score, {name: tensor.clone() for name, tensor in model.state_dict().items()}
        improved = any(now < before for now, before in zip(score, lowest, strict=True))
        lowest, waited = [min(pair) for pair in zip(score, lowest, strict=True)], 0 if improved else waited + 1
        if waited >= plan.patience:
            break
    model.load_state_dict(kept)
    trained = time.process_time()
    prediction = predict(model, test, task)
    return prediction, {"train": trained - started, "predict": time.process_time() - trained}


@torch.no_grad()
def predict(model: nn.Module, x: Tensor, task: str) -> Any:
    """The members' predictions in eval mode."""
    model.eval()
    return prediction_of(task, torch.cat([model(part) for part in x.split(1024)]).transpose(0, 1), None)


# ---------------------------------------------------------------- parts, and the page


def run(tables: list[str]) -> None:
    """Compute the parts that are not stored."""
    torch.set_num_threads(1)
    for table in tables or [*UCI, *TABLES]:
        for split in SPLITS:
            for method in METHODS:
                path = RESULTS / table / f"{split}-{method}.json"
                if path.exists():
                    continue
                part = compute(table, split, method)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps(part) + "\n")
                print(
                    table,
                    split,
                    method,
                    part["values"],
                    {k: round(v, 1) for k, v in part["seconds"].items()},
                    flush=True,
                )


def stored() -> dict[str, dict[str, dict[int, dict[str, Any]]]]:
    """The parts by table, method and split."""
    found: dict[str, dict[str, dict[int, dict[str, Any]]]] = {}
    for path in sorted(RESULTS.glob("*/*.json")):
        part = json.loads(path.read_text())
        found.setdefault(part["table"], {}).setdefault(part["method"], {})[part["split"]] = part
    return found


STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # 97.5 % quantiles of n - 1 degrees


def difference(one: dict[int, Any], other: dict[int, Any], name: str) -> tuple[float, float, int] | None:
    """The mean of one minus other over common splits, half of its 95 % interval, and how many splits there are."""
    both = sorted(set(one) & set(other))
    gaps = [one[i]["values"][name] - other[i]["values"][name] for i in both]
    if len(gaps) < 2:
        return None
    return mean(gaps), STUDENT[len(gaps)] * stdev(gaps) / math.sqrt(len(gaps)), len(gaps)


MARK = "<!-- measured -->"


def write() -> None:
    """Put what is stored on the page."""
    head = PAGE.read_text().partition(MARK)[0]
    PAGE.write_text(f"{head}{MARK}\n\n## Measured\n\n{tell(stored())}")


def tell(parts: dict[str, Any]) -> str:
    """The tables of the page."""
    order = [table for table in [*UCI, *TABLES] if table in parts]
    missing = [table for table in [*UCI, *TABLES] if table not in parts]
    lines = ["Means over the splits that are done (five, unless said); NLL first, then RMSE or accuracy.", ""]
    lines += [f"Not measured yet: {', '.join(missing)}.", ""] if missing else []
    lines += [
        "The NLL of boosting is that of normal distributions with its 5 % and 95 % quantiles, not calibrated.",
        "",
    ]
    lines += [f"| table | {' | '.join(METHODS)} |", "|---" * (1 + len(METHODS)) + "|"]
    for table in order:
        cells = []
        for method in METHODS:
            done = parts[table].get(method, {})
            if not done:
                cells.append("")
                continue
            second = next(name for name in ("rmse", "accuracy") if name in next(iter(done.values()))["values"])
            values = [mean(part["values"][name] for part in done.values()) for name in ("nll", second)]
            few = "" if len(done) == len(SPLITS) else f" ({len(done)} splits)"
            cells.append(f"{values[0]:.3f}; {values[1]:.4g}{few}")
        lines.append(f"| {table} | {' | '.join(cells)} |")
    lines += ["", "Difference of NLL, `tabm` minus the other (below 0: `tabm` is better), with 95 % intervals:", ""]
    others = ("package", "deep", "single", "batch_ensemble", "tabm_ple", "boosting")
    lines += [f"| table | {' | '.join(others)} |", "|---" * (1 + len(others)) + "|"]
    for table in order:
        gaps = [difference(parts[table].get("tabm", {}), parts[table].get(other, {}), "nll") for other in others]
        cells = ["" if gap is None else f"{gap[0]:+.3f} ± {gap[1]:.3f}{say(gap)}" for gap in gaps]
        lines.append(f"| {table} | {' | '.join(cells)} |")
    lines += [
        "",
        "Further values, means over splits: CRPS or ECE, coverage of 90 % intervals, seconds of training:",
        "",
    ]
    lines += [f"| table | {' | '.join(METHODS)} |", "|---" * (1 + len(METHODS)) + "|"]
    for table in order:
        cells = []
        for method in METHODS:
            done = list(parts[table].get(method, {}).values())
            names = [name for name in ("crps", "ece", "coverage") if done and name in done[0]["values"]]
            values = [f"{mean(part['values'][name] for part in done):.3g}" for name in names]
            values += [f"{mean(part['seconds']['train'] for part in done):.0f} s"] if done else []
            cells.append("; ".join(values))
        lines.append(f"| {table} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def say(gap: tuple[float, float, int]) -> str:
    """Whether an interval contains 0."""
    return " tied" if abs(gap[0]) <= gap[1] else " better" if gap[0] < 0 else " worse"


if __name__ == "__main__":
    warnings.filterwarnings("ignore", message="fit:|start_scaling_init_chunks")
    command, *given = sys.argv[1:] or ["write"]
    run(given) if command == "run" else write()
