"""Gradient boosting on the rows of a study: what a user of tables would pick instead of a network."""

from __future__ import annotations

import importlib.util
import math
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import mean
from typing import Any, NamedTuple

import numpy as np
import torch

from .._common.optional import require
from ..data.dataset import Data, Split
from ..results.store import Result
from ..uncertainty.classification import Classification
from ..uncertainty.evaluation import evaluate
from ..uncertainty.prediction import Prediction
from ..uncertainty.regression import Regression
from .run import load_data
from .settings import Run

ROUNDS, PATIENCE = 1000, 20  # trees at most; rounds without an improvement on validation rows
LOW, HIGH, SPREAD = 0.05, 0.95, 2 * 1.6448536269514722  # quantiles, and how many standard deviations lie between them
SMALLEST = 1e-3  # of a standard deviation, of targets with one of 1


class Library(NamedTuple):
    """How a library's estimators are called and what they are given."""

    module: str
    prefix: str  # of Classifier and Regressor
    options: Mapping[str, Any]
    seed: str
    mean: Mapping[str, Any]  # of a regressor of means
    quantile: Callable[[float], dict[str, Any]]


LIBRARIES = {
    "boosting": Library(
        "sklearn.ensemble", "HistGradientBoosting",
        {"max_iter": ROUNDS, "early_stopping": True, "n_iter_no_change": PATIENCE}, "random_state",
        {"loss": "squared_error"}, lambda level: {"loss": "quantile", "quantile": level},
    ),
    "lightgbm": Library(
        "lightgbm", "LGBM", {"n_estimators": ROUNDS, "early_stopping_round": PATIENCE, "verbose": -1}, "random_state",
        {}, lambda level: {"objective": "quantile", "alpha": level},
    ),
    "xgboost": Library(
        "xgboost", "XGB", {"n_estimators": ROUNDS, "early_stopping_rounds": PATIENCE, "verbosity": 0}, "random_state",
        {}, lambda level: {"objective": "reg:quantileerror", "quantile_alpha": level},
    ),
    "catboost": Library(
        "catboost", "CatBoost",
        {"iterations": ROUNDS, "early_stopping_rounds": PATIENCE, "verbose": False, "allow_writing_files": False},
        "random_seed", {"loss_function": "RMSE"}, lambda level: {"loss_function": f"Quantile:alpha={level}"},
    ),
}  # fmt: skip


def installed() -> list[str]:
    """Every library of gradient boosting that can be imported."""
    return [name for name, one in LIBRARIES.items() if importlib.util.find_spec(one.module.partition(".")[0])]


def check_boosting(data: Data) -> None:
    """Refuse data that boosting cannot learn from."""
    texts = data.kind == "table" and data.encoding is not None and data.encoding["columns"][0]["kind"] == "text"
    if data.kind != "table" or data.task not in ("classification", "regression") or data.targets or texts:
        what = "texts" if texts else f"{data.kind} for {data.task}" + (" of several targets" if data.targets else "")
        raise ValueError(f"--baselines: gradient boosting needs a table with one target, but {data.name} holds {what}.")


def boost(name: str, data: Data, seed: int, calibrate: bool = False) -> tuple[Prediction, dict[str, float]]:
    """What boosting predicts for the test rows of a table, and the seconds of training and of prediction.

    It learns from the training rows and stops by the validation rows that choose a network's epoch. Regression: the
    mean is that of squared errors; the variance is that of a normal distribution with the predicted 5 % and 95 %
    quantiles.

    Args:
        calibrate: variances are scaled to fit the calibration rows, as those of networks are in a study
    """
    check_boosting(data)
    x, y = _arrays(data, data.train)
    held_out = _arrays(data, data.selection)
    inputs = _arrays(data, data.test)[0]
    started = time.process_time()
    quantiles = (None,) if data.classes else (None, LOW, HIGH)
    fitted = [_fit(_make(name, len(data.classes), quantile, seed), x, y, held_out) for quantile in quantiles]
    trained = time.process_time()
    if data.classes:
        found: Prediction = Classification.from_probabilities(_probabilities(fitted[0], inputs, len(data.classes)))
    else:
        center, variance = _normal(fitted, inputs)
        if calibrate and len(data.calibration):
            x, y = _arrays(data, data.calibration)
            middle, spread = _normal(fitted, x)
            variance = variance * ((torch.from_numpy(y) - middle).square() / spread).mean()
        found = Regression(center[None], variance[None])
    return found, {"train": trained - started, "predict": time.process_time() - trained}


def judge_boosting(results: Sequence[Result], runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Boosting on the test rows of a study, each library with every seed, next to the study's most likely method.

    A row has the metrics, the difference of the NLL from that method's on the same rows, half of its 95 % interval
    over test rows, and a sentence.
    """
    found = []
    for run in {one.data: one for one in runs}.values():
        data, seeds = load_data(run), sorted({one.seed for one in runs if one.data == run.data})
        scale = float(data.target_std) if not data.classes else 1.0  # type: ignore[arg-type]
        target = data.test[:][1]
        likelihoods: dict[str, list[np.ndarray]] = {}
        for result in (one for one in results if one.record["data"] == run.data):
            column = result.columns["test/log_likelihood"].astype(float)
            likelihoods.setdefault(result.record["label"], []).append(column)
        best = max(likelihoods, key=lambda label: np.mean(likelihoods[label]), default=None)
        for name in installed():
            made = [boost(name, data, seed, calibrate=True)[0] for seed in seeds]
            rows = np.mean([one.log_likelihood(target).numpy() for one in made], axis=0) - math.log(scale)
            scores = [evaluate(one, target) for one in made]
            units = {key: scale for key in ("rmse", "mae", "crps", "width")}
            metrics = {key: mean(one[key] for one in scores) * units.get(key, 1.0) for key in scores[0]}
            metrics["nll"] = -float(rows.mean())
            row: dict[str, Any] = {"data": run.data, "label": name, "seeds": seeds, "metrics": metrics}
            if best is not None:
                gaps = np.mean(likelihoods[best], axis=0) - rows  # its NLL minus the network's, on the same rows
                row |= {"best": best, "difference": float(gaps.mean())}
                row["half_width"] = 1.96 * float(gaps.std(ddof=1)) / math.sqrt(len(gaps))
                row["sentence"] = _verdict(row, -float(np.mean(likelihoods[best])))
            found.append(row)
    return found


def _verdict(row: dict[str, Any], other: float) -> str:
    name, best, nll = row["label"], row["best"], row["metrics"]["nll"]
    said = f"NLL {nll:.3g}, {best} {other:.3g}: {row['difference']:+.3g} ± {row['half_width']:.2g} on the test rows"
    if abs(row["difference"]) <= row["half_width"]:
        return f"No clear difference between gradient boosting ({name}) and {best}: {said}."
    if row["difference"] < 0:
        return f"Use gradient boosting here ({name}): {said}."
    return f"{best} is better than gradient boosting ({name}): {said}."


def _normal(fitted: Sequence[Any], x: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and variance of each row."""
    center, low, high = (torch.from_numpy(np.asarray(model.predict(x))).float() for model in fitted)
    return center, ((high - low) / SPREAD).clamp_min(SMALLEST).square()


def _arrays(data: Data, part: Split) -> tuple[np.ndarray, np.ndarray]:
    x, y = part[:]
    return data.normalise(x).numpy(), y.numpy()


def _fit(model: Any, x: np.ndarray, y: np.ndarray, held_out: tuple[np.ndarray, np.ndarray]) -> Any:
    if type(model).__module__.startswith("sklearn"):
        return model.fit(x, y, X_val=held_out[0], y_val=held_out[1])
    return model.fit(x, y, eval_set=[held_out])


def _probabilities(model: Any, x: np.ndarray, classes: int) -> torch.Tensor:
    """Of all classes, (1, rows, classes); a class without a training row gets 0."""
    given = np.zeros((len(x), classes), np.float32)
    given[:, np.asarray(model.classes_, int)] = model.predict_proba(x)
    return torch.from_numpy(given)[None]


def _make(name: str, classes: int, quantile: float | None, seed: int) -> Any:
    """An estimator of classes, of the mean, or of a quantile."""
    library = LIBRARIES[name]
    package = require(library.module, "gradient boosting", "sklearn")
    options = {**library.options, library.seed: seed}
    if classes:
        return getattr(package, f"{library.prefix}Classifier")(**options)
    loss = library.mean if quantile is None else library.quantile(quantile)
    return getattr(package, f"{library.prefix}Regressor")(**loss, **options)
