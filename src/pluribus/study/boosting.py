"""Gradient boosting on the rows of a study: what a user of tables would pick instead of a network."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from .._common.optional import require
from ..data.dataset import Data, Split
from ..uncertainty.classification import Classification
from ..uncertainty.prediction import Prediction
from ..uncertainty.regression import Regression

ROUNDS, PATIENCE = 1000, 20  # trees at most; rounds without an improvement on validation rows
LOW, HIGH, SPREAD = 0.05, 0.95, 2 * 1.6448536269514722  # quantiles, and how many standard deviations lie between them
SMALLEST = 1e-3  # of a standard deviation, of targets with one of 1


def installed() -> dict[str, Callable[..., Any]]:
    """Every library of gradient boosting that can be imported, as maker(classes, quantile, seed) -> estimator."""
    others = {"lightgbm": _lightgbm, "xgboost": _xgboost, "catboost": _catboost}
    return {"boosting": _sklearn, **{name: make for name, make in others.items() if importlib.util.find_spec(name)}}


def boost(name: str, data: Data, seed: int) -> tuple[Prediction, dict[str, float]]:
    """What boosting predicts for the test rows of a table, and the seconds of training and of prediction.

    It learns from the training rows and stops by the validation rows that choose a network's epoch. Regression: the
    mean is that of squared errors; the variance is that of a normal distribution with the predicted 5 % and 95 %
    quantiles.
    """
    if data.kind != "table" or data.task not in ("classification", "regression") or data.targets:
        raise ValueError(f"boosting: needs a table with one target, but {data.name} is for {data.task}.")
    make = installed()[name]
    x, y = _arrays(data, data.train)
    held_out = _arrays(data, data.selection)
    inputs = _arrays(data, data.test)[0]
    started = time.process_time()
    quantiles = (None,) if data.classes else (None, LOW, HIGH)
    fitted = [_fit(make(len(data.classes), quantile, seed), x, y, held_out) for quantile in quantiles]
    trained = time.process_time()
    if data.classes:
        found: Prediction = Classification.from_probabilities(_probabilities(fitted[0], inputs, len(data.classes)))
    else:
        mean, low, high = (torch.from_numpy(np.asarray(model.predict(inputs))).float() for model in fitted)
        std = ((high - low) / SPREAD).clamp_min(SMALLEST)
        found = Regression(mean[None], std.square()[None])
    return found, {"train": trained - started, "predict": time.process_time() - trained}


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


def _sklearn(classes: int, quantile: float | None, seed: int) -> Any:
    ensemble = require("sklearn.ensemble", "gradient boosting", "sklearn")
    options: dict[str, Any] = {
        "max_iter": ROUNDS, "early_stopping": True, "n_iter_no_change": PATIENCE, "random_state": seed
    }  # fmt: skip
    if classes:
        return ensemble.HistGradientBoostingClassifier(**options)
    loss = {"loss": "squared_error"} if quantile is None else {"loss": "quantile", "quantile": quantile}
    return ensemble.HistGradientBoostingRegressor(**loss, **options)


def _lightgbm(classes: int, quantile: float | None, seed: int) -> Any:
    package = require("lightgbm", "gradient boosting", "sklearn")
    options = {"n_estimators": ROUNDS, "early_stopping_round": PATIENCE, "random_state": seed, "verbose": -1}
    if classes:
        return package.LGBMClassifier(**options)
    return package.LGBMRegressor(
        **({} if quantile is None else {"objective": "quantile", "alpha": quantile}), **options
    )


def _xgboost(classes: int, quantile: float | None, seed: int) -> Any:
    package = require("xgboost", "gradient boosting", "sklearn")
    options = {"n_estimators": ROUNDS, "early_stopping_rounds": PATIENCE, "random_state": seed, "verbosity": 0}
    if classes:
        return package.XGBClassifier(**options)
    loss = {} if quantile is None else {"objective": "reg:quantileerror", "quantile_alpha": quantile}
    return package.XGBRegressor(**loss, **options)


def _catboost(classes: int, quantile: float | None, seed: int) -> Any:
    package = require("catboost", "gradient boosting", "sklearn")
    options = {
        "iterations": ROUNDS, "early_stopping_rounds": PATIENCE, "random_seed": seed, "verbose": False,
        "allow_writing_files": False,
    }  # fmt: skip
    if classes:
        return package.CatBoostClassifier(**options)
    return package.CatBoostRegressor(
        loss_function="RMSE" if quantile is None else f"Quantile:alpha={quantile}", **options
    )
