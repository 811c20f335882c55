"""Ensembles as scikit-learn's estimators: `EnsembleClassifier` and `EnsembleRegressor`.

They take numbers as arrays, data frames or sparse matrices, and data frames with texts, flags, dates and missing
values, which are prepared as `pluribus train` does. They work in pipelines, searches and cross-validation. Needs
scikit-learn: pip install '.[sklearn]'.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._common.names import say_unknown
from .._common.optional import require
from ..core.ensemble import Ensemble
from ..data.source import list_names
from ..data.tables import column_numbers, column_rules, encode_columns
from ..methods import METHODS
from ..methods.method_info import call_method, info_of
from ..models.by_name import build_network
from ..models.small import mlp
from ..training.batching import EpochBatchSampler, EpochSampler
from ..training.optimizers import OPTIMIZERS
from ..uncertainty.classification import Classification
from ..uncertainty.conformal_prediction import Conformal, conformal
from ..uncertainty.outputs import gaussian
from ..uncertainty.prediction import Prediction
from ..uncertainty.regression import Regression
from .weighted_rows import WeightedRows, dense, dense_batches, weighted_moments

require("sklearn", "pluribus.integrations.sklearn", "sklearn")

from sklearn import base  # noqa: E402
from sklearn.utils import multiclass, validation  # noqa: E402

Network = Callable[[int, int], nn.Module] | nn.Module | str | None


@dataclass(eq=False, repr=False)
class NetworkEstimator(base.BaseEstimator):
    """What both estimators share: rows in, a trained ensemble behind, predictions out.

    >>> X, y = np.array([[0.0], [0.1], [0.9], [1.0]]), np.array(["no", "no", "yes", "yes"])
    >>> classifier = EnsembleClassifier(size=2, random_state=0).fit(X, y)
    >>> classifier.predict_distribution(X).epistemic.shape, classifier.ensemble_.size
    (torch.Size([4]), 2)
    """

    method: str = "deep"
    size: int = 4
    _: KW_ONLY
    network: Network = None
    hidden: Sequence[int] = (100,)
    settings: Mapping[str, Any] | None = None
    epochs: int = 100
    batch_size: int = 64
    optimizer: str = "adam"
    lr: float = 3e-3
    weight_decay: float = 0.0
    scale: bool = True
    device: str | None = None
    random_state: Any = None

    _columns = list[dict[str, Any]]()  # how those of a data frame become numbers, if some are not

    def predict_distribution(self, X: Any) -> Prediction:  # noqa: N803
        """The members' predictions as a `pb.Classification` or `pb.Regression`: aleatoric, epistemic and the rest."""
        validation.check_is_fitted(self)
        rows = self._encode(X)
        if rows is X:
            rows = validation.validate_data(self, X, accept_sparse="csr", dtype=(np.float64, np.float32), reset=False)
        return self._predict_rows(rows)

    def _predict_rows(self, rows: Any) -> Prediction:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed)  # MC-Dropout draws
            return self.ensemble_.predict(dense_batches(rows, *self._scaling))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    # ---------------------------------------------------------------- for the two estimators

    def _commit(self, change: Callable[[Any], None]) -> Any:
        """This estimator after the change; where that fails, as it was."""
        changed = copy.copy(self)
        change(changed)
        self.__dict__ = changed.__dict__
        return self

    def _read(self, X: Any, y: Any, weight: Any, reset: bool, **options: Any) -> WeightedRows:  # noqa: N803
        if reset:
            self._columns = _column_rules(X, weight, self.scale)
        encoded = self._encode(X, reset)
        if encoded is X:
            x, y = validation.validate_data(
                self, X, y, accept_sparse="csr", dtype=(np.float64, np.float32), reset=reset, **options
            )
        else:
            x, y = validation.check_X_y(encoded, y, estimator=self, **options)
        return WeightedRows(x, y, self._check_weight(weight, x.shape[0]))

    def _encode(self, X: Any, reset: bool = False) -> Any:  # noqa: N803
        """A data frame with other columns than numbers as numbers; all else as it is."""
        if not self._columns:
            return X
        if not _is_frame(X):
            names = list_names([column["name"] for column in self._columns])
            raise ValueError(f"{self._name}: was trained on a data frame, so it needs one with the columns {names}.")
        validation.validate_data(self, X, skip_check_array=True, reset=reset)
        return encode_columns(self._columns, X)

    def _check_weight(self, weight: Any, rows: int) -> np.ndarray:
        if weight is None:
            return np.ones(rows)
        weight = validation.check_array(weight, ensure_2d=False, dtype=np.float64, input_name="sample_weight")
        if weight.shape != (rows,) or (weight < 0).any() or not weight.any():
            raise ValueError(
                f"{self._name}: sample_weight must have one number for each of the {rows} rows, none negative and not "
                f"all zero, but its shape is {weight.shape} and its least value {weight.min():g}."
            )
        return weight

    def _begin(self, rows: WeightedRows, outputs: int, task: str) -> None:
        """A new ensemble for these rows, before any training."""
        self._check_settings()
        self._seed = int(validation.check_random_state(self.random_state).randint(2**31 - 1))
        identity = np.zeros(1, rows.x.dtype), np.ones(1, rows.x.dtype)
        mean, std = weighted_moments(rows.x, rows.weight) if self.scale else identity
        self._scaling = mean.astype(rows.x.dtype), std.astype(rows.x.dtype)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed)
            self.ensemble_ = self._build(dense(rows.x[:2], *self._scaling), outputs)
        self.ensemble_.task = task
        self._epochs = 0
        self._state: dict[str, Any] | None = None  # of the optimizer, from which `partial_fit` goes on

    def _build(self, example: Tensor, outputs: int) -> Ensemble:
        model = _network(self.network, example.shape[1], outputs, self.hidden).to(example.dtype)
        method = METHODS[self.method]
        settings = {**info_of(method).study_settings(model, None), **(self.settings or {})}
        ensemble = call_method(method, model, self.size, settings, example)
        shape = tuple(ensemble.eval()(example).shape)
        if shape != (ensemble.size, len(example), outputs):
            raise ValueError(
                f"{self._name}: the network must give {outputs} numbers for each row, but for {len(example)} rows it "
                f"gives the shape {shape[1:]}. Let network(inputs, outputs) end in {outputs} outputs."
            )
        return ensemble if self.device is None else ensemble.to(self.device)

    def _train(self, rows: WeightedRows, criterion: Any, epochs: int) -> None:
        """Train for this many more passes over the rows; `criterion(outputs, (targets, weights))`."""
        groups = self.ensemble_.parameter_groups(self.lr, self.weight_decay)
        optimizer = OPTIMIZERS[self.optimizer](groups)
        if self._state is not None:
            optimizer.load_state_dict(self._state)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed + self._epochs)
            self.ensemble_.train()
            for x, y in self._batches(rows, epochs):
                optimizer.zero_grad()
                loss = self.ensemble_.loss(x, y, criterion)
                if not bool(loss.isfinite()):
                    raise ValueError(
                        f"{self._name}: the loss became {loss.item()} in epoch {self._epochs}. Choose a lower lr than "
                        f"{self.lr:g}, or scale=True."
                    )
                loss.backward()
                optimizer.step()
            self.ensemble_.eval()
        self._state = optimizer.state_dict()

    def _batches(self, rows: WeightedRows, epochs: int) -> Iterator[tuple[Tensor, Any]]:
        weight = (rows.weight / rows.weight.mean()).astype(rows.x.dtype)
        step = max(1, int(self.batch_size) // getattr(self.ensemble_, "batch_repetition", 1))
        order = EpochBatchSampler(EpochSampler(len(rows), self._seed, shuffle=True), step)
        for _ in range(epochs):
            order.set_epoch(self._epochs)
            for some in order:
                targets = torch.from_numpy(rows.y[some]), torch.from_numpy(weight[some])
                x = dense(rows.x[some], *self._scaling)
                yield x.to(self.device), tuple(t.to(self.device) for t in targets)
            self._epochs += 1

    def _check_settings(self) -> None:
        optimizers = [name for name, function in OPTIMIZERS.items() if not getattr(function, "layerwise", False)]
        for name, known in (("method", METHODS), ("optimizer", optimizers)):
            if getattr(self, name) not in known:
                raise ValueError(f"{self._name}: the {name} {say_unknown(getattr(self, name), known)}")
        for name in ("epochs", "batch_size"):
            validation.check_scalar(getattr(self, name), name, Integral, min_val=1)
        validation.check_scalar(self.lr, "lr", Real, min_val=0, include_boundaries="neither")

    @property
    def _name(self) -> str:
        return type(self).__name__


@dataclass(eq=False, repr=False)
class EnsembleClassifier(base.ClassifierMixin, NetworkEstimator):
    """A classifier whose probabilities come from an ensemble of networks.

    Rows are standardised (`scale`), and computed with in their precision: float64, or float32 where they are that.
    Equal rows count as one with the sum of their weights.

    Args:
        method: a name in `pb.METHODS`; `settings` are its further arguments, such as {"alpha": 2}
        size: the number of members
        network: None for a perceptron of `hidden` layers; a function network(inputs, outputs) -> nn.Module; a module;
            or a name that `pluribus compare --model` takes
        class_weight: None, "balanced", or {class: weight}
        random_state: the seed of weights and batches

    >>> X, y = np.array([[0.0], [0.1], [0.9], [1.0]]), np.array(["no", "no", "yes", "yes"])
    >>> classifier = EnsembleClassifier(size=2, random_state=0).fit(X, y)
    >>> classifier.predict([[0.05], [0.95]]).tolist(), classifier.predict_proba([[0.5]]).shape
    (['no', 'yes'], (1, 2))
    """

    class_weight: Mapping[Any, float] | str | None = None

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> EnsembleClassifier:  # noqa: N803
        """This estimator, trained anew; where the rows are refused, it stays as it was.

        Args:
            X: (rows, features): an array, a sparse matrix, or a data frame, also with texts and missing values
            y: (rows): any labels, of two classes at least
            sample_weight: (rows); the same as to repeat rows
        """

        def change(new: Any) -> None:
            rows = new._read_classes(X, y, sample_weight, reset=True).merged()
            new.classes_ = np.unique(rows.y)
            if len(new.classes_) < 2:
                raise ValueError(
                    f"{new._name}: y must have at least two classes, but there is one class, "
                    f"{new.classes_.tolist()[0]!r}"
                    f"{'' if sample_weight is None else ', with a weight above 0'}."
                )
            new._begin(rows, len(new.classes_), "classification")
            new._train(new._weigh_classes(rows), _cross_entropy, new.epochs)

        return self._commit(change)

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> EnsembleClassifier:  # noqa: N803
        """This estimator after one more pass over these rows; how inputs are scaled is taken from the first call.

        Args:
            classes: all that will come; the first call needs them
        """

        def change(new: Any) -> None:
            first = not hasattr(new, "ensemble_")
            if new.class_weight == "balanced":
                raise ValueError(
                    f'{new._name}: partial_fit sees too few rows for class_weight="balanced". Give {{class: weight}}.'
                )
            rows = new._read_classes(X, y, sample_weight, reset=first)
            new.classes_ = new._check_classes(classes, rows.y)
            rows = rows.merged()
            if first:
                new._begin(rows, len(new.classes_), "classification")
            else:
                new.ensemble_ = copy.deepcopy(new.ensemble_)
            new._train(new._weigh_classes(rows), _cross_entropy, 1)

        return self._commit(change)

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803
        """The most probable class of each row: (rows)."""
        probabilities = self.predict_proba(X)
        return self.classes_[probabilities.argmax(1)]

    def predict_proba(self, X: Any) -> np.ndarray:  # noqa: N803
        """The mean of the members' probabilities, in the order of `classes_`: (rows, classes)."""
        prediction = self.predict_distribution(X)
        assert isinstance(prediction, Classification)
        return prediction.mean.numpy()

    def _read_classes(self, X: Any, y: Any, weight: Any, reset: bool) -> WeightedRows:  # noqa: N803
        rows = self._read(X, y, weight, reset)
        y = validation.column_or_1d(rows.y, warn=True)
        multiclass.check_classification_targets(y)
        return WeightedRows(rows.x, y, rows.weight)

    def _check_classes(self, classes: Any, labels: np.ndarray) -> np.ndarray:
        """The classes of all calls of `partial_fit`; what they do not hold is refused."""
        known = getattr(self, "classes_", None)
        if known is None and classes is None:
            raise ValueError(f"{self._name}: the first call of partial_fit needs classes=, all that will occur.")
        found: np.ndarray = np.asarray(known) if classes is None else np.unique(classes)
        if known is not None and not np.array_equal(known, found):
            raise ValueError(f"{self._name}: classes must stay those of the first call, {known}, but they are {found}.")
        if len(found) < 2:
            raise ValueError(
                f"{self._name}: there must be at least two classes, but there is one class, {found.tolist()}."
            )
        if unknown := np.setdiff1d(labels, found).tolist():
            raise ValueError(f"{self._name}: classes must contain all of y, but y also has {unknown[0]!r}.")
        return found

    def _weigh_classes(self, rows: WeightedRows) -> WeightedRows:
        """The rows with classes as numbers, and with what their classes weigh."""
        index = np.searchsorted(self.classes_, rows.y)
        weight, given = rows.weight, self.class_weight
        if isinstance(given, str):
            if given != "balanced":
                raise ValueError(f'{self._name}: class_weight must be "balanced" or {{class: weight}}, not {given!r}.')
            factors = weight.sum() / (len(self.classes_) * np.bincount(index, weight, len(self.classes_)))
        else:
            unknown = [name for name in given or {} if name not in self.classes_]
            if unknown:
                raise ValueError(f"{self._name}: class_weight names {unknown[0]!r}, which is not a class of y.")
            factors = np.array([(given or {}).get(name, 1.0) for name in self.classes_.tolist()])
        return WeightedRows(rows.x, index, weight * factors[index])


@dataclass(eq=False, repr=False)
class EnsembleRegressor(base.RegressorMixin, NetworkEstimator):
    """A regressor that says how uncertain it is: each member gives a mean and a variance.

    Rows and targets are standardised (rows: `scale`) and computed with in the rows' precision, float64 or float32; what
    comes out is in the targets' units. Equal rows count as one with the sum of their weights.

    Args:
        method, size, network, settings, random_state: as for `EnsembleClassifier`
        task: "gaussian", means and variances, for which a network gives two numbers per target; or "regression",
            means alone, so that what the members disagree about is all the uncertainty there is
        calibration: the share of the rows that `fit` does not train on, so that `predict_interval` covers what it says;
            of fewer than 9 rows none, and 0 for none

    >>> X = np.linspace(0, 1, 60)[:, None]
    >>> regressor = EnsembleRegressor(size=2, epochs=5, random_state=0).fit(X, X[:, 0])
    >>> mean, std = regressor.predict(X, return_std=True)
    >>> mean.shape, std.shape, regressor.predict_interval(X, 0.9).shape
    ((60,), (60,), (60, 2))
    """

    task: str = "gaussian"
    calibration: float = 0.2

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> EnsembleRegressor:  # noqa: N803
        """This estimator, trained anew; where the rows are refused, it stays as it was.

        Args:
            X: (rows, features): an array, a sparse matrix, or a data frame, also with texts and missing values
            y: (rows) or (rows, targets)
            sample_weight: (rows); the same as to repeat rows
        """
        return self._commit(lambda new: new._learn(X, y, sample_weight, True, self.epochs, self.calibration))

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> EnsembleRegressor:  # noqa: N803
        """This estimator after one more pass over these rows; the scaling is taken from the first call.

        All rows are trained on, so that there are no calibrated intervals.
        """
        return self._commit(lambda new: new._learn(X, y, sample_weight, not hasattr(new, "ensemble_"), 1))

    def predict(self, X: Any, return_std: bool = False) -> Any:  # noqa: N803
        """The mean, with `return_std` also the standard deviation of the mixture: (rows) or (rows, targets)."""
        found = self.predict_distribution(X)
        return (found.mean.numpy(), found.total.sqrt().numpy()) if return_std else found.mean.numpy()

    def predict_interval(self, X: Any, level: float = 0.9) -> np.ndarray:  # noqa: N803
        """Intervals that contain the target with probability `level` on average: (rows, 2) or (rows, targets, 2).

        Split conformal, of so many predicted standard deviations, from the rows that `fit` held out (`calibration`).
        The mixture's own intervals, which are often too narrow, are `predict_distribution(X).interval(level)`.
        """
        found = self.predict_distribution(X)
        if self._promise is None:
            raise ValueError(
                f"{self._name}: intervals need at least 9 rows that training has not seen, but none were held out. Use "
                "fit with calibration=0.2 and 45 rows or more; predict_distribution(X).interval(level) gives the "
                "mixture's own intervals, which promise nothing."
            )
        return torch.stack(self._promise.at(level).intervals(found), -1).numpy()

    def predict_distribution(self, X: Any) -> Regression:  # noqa: N803
        """The members' predictions in the targets' units, as a `pb.Regression`."""
        return self._unscaled(super().predict_distribution(X))

    def _unscaled(self, found: Any) -> Regression:
        assert isinstance(found, Regression)
        mean, std = (torch.from_numpy(value) for value in self._target_scaling)
        shape = (*found.means.shape[:2], *mean.shape)
        variances = None if found.variances is None else found.variances.reshape(shape) * std**2
        return Regression(found.means.reshape(shape) * std + mean, variances)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _learn(self, X: Any, y: Any, weight: Any, first: bool, epochs: int, share: float = 0.0) -> None:  # noqa: N803
        """Train on these rows, from the beginning or on, but for a share that calibrates."""
        if not 0 <= share < 1:
            raise ValueError(f"{self._name}: calibration must be a share in [0, 1), but it is {share!r}.")
        if self.task not in CRITERIA_OF_TASKS:
            raise ValueError(f'{self._name}: task must be "gaussian" or "regression", but it is {self.task!r}.')
        rows = self._read(X, y, weight, first, multi_output=True, y_numeric=True)
        if rows.y.ndim == 2 and rows.y.shape[1] == 1:
            rows = WeightedRows(rows.x, validation.column_or_1d(rows.y, warn=True), rows.weight)
        rows = WeightedRows(rows.x, rows.y.astype(rows.x.dtype), rows.weight).merged()
        if first:
            mean, std = weighted_moments(rows.y, rows.weight)
            self._target_scaling = np.asarray(mean, rows.y.dtype), np.asarray(std, rows.y.dtype)
            self._begin(rows, int(mean.size) * (2 if self.task == "gaussian" else 1), self.task)
        elif rows.y.shape[1:] != self._target_scaling[0].shape:
            raise ValueError(
                f"{self._name}: y must have as many targets as in the first call, but its shape is {rows.y.shape}."
            )
        else:
            self.ensemble_ = copy.deepcopy(self.ensemble_)
        mean, std = self._target_scaling
        rows, held = self._hold_out(rows, share)
        self._train(WeightedRows(rows.x, (rows.y - mean) / std, rows.weight), CRITERIA_OF_TASKS[self.task], epochs)
        self._promise: Conformal | None = None
        if held is not None:
            found = self._unscaled(self._predict_rows(held.x))
            whole = bool((held.weight % 1 == 0).all()) and held.weight.sum() < 10**6  # then they count repeated rows
            order = torch.from_numpy(np.repeat(np.arange(len(held)), held.weight.astype(int) if whole else 1))
            self._promise = conformal(found[order], torch.from_numpy(held.y)[order], 0.5)

    def _hold_out(self, rows: WeightedRows, share: float) -> tuple[WeightedRows, WeightedRows | None]:
        """The rows to train on, and those that calibrate: random ones, the same for the same random_state."""
        count = (int(share * len(rows)) + 1) // 10 * 10 - 1  # 90 % of n + 1 is a whole number: met, not exceeded
        if count < 9:
            return rows, None
        order = np.random.default_rng(self._seed).permutation(len(rows))
        parts = np.sort(order[count:]), np.sort(order[:count])
        first, second = (WeightedRows(rows.x[some], rows.y[some], rows.weight[some]) for some in parts)
        return first, second


def _is_frame(X: Any) -> bool:  # noqa: N803
    return hasattr(X, "columns") and hasattr(X, "dtypes") and hasattr(X, "iloc")


def _column_rules(X: Any, weight: Any, scale: bool) -> list[dict[str, Any]]:  # noqa: N803
    """How the columns of a data frame become numbers, where some are not numbers already, or have missing values."""
    if not _is_frame(X) or all(kind.kind in "biuf" for kind in X.dtypes) and not X.isna().to_numpy().any():
        return []
    weight, notes = np.ones(len(X)) if weight is None else np.asarray(weight, float), list[str]()
    X, weight = X[weight > 0], weight[weight > 0]  # noqa: N806
    rules = column_rules(X, notes, scale=False)  # the estimator scales, under the weights
    if not rules:
        raise ValueError(f"X: no column is left to predict from. {' '.join(notes)}")
    for note in (note for note in notes if "left out" in note):
        warnings.warn(note, stacklevel=2)
    for rule in (rule for rule in rules if scale and rule.get("missing")):
        numbers = column_numbers(X[rule["name"]], rule["kind"])
        known = ~np.isnan(numbers)
        mean = np.average(numbers[known], weights=weight[known])  # which stands for a missing value
        rule["mean"] = float(f"{mean:.10g}")  # the same for weights as for repeated rows
    return rules


def _network(network: Network, inputs: int, outputs: int, hidden: Sequence[int]) -> nn.Module:
    if network is None:
        return mlp(inputs, outputs, tuple(hidden))
    if isinstance(network, str):
        return build_network(network, (inputs,), outputs)
    return network if isinstance(network, nn.Module) else network(inputs, outputs)


# ---------------------------------------------------------------- what is minimised: means over rows, with weights


def _cross_entropy(output: Tensor, target: tuple[Tensor, Tensor]) -> Tensor:
    label, weight = target
    return (F.cross_entropy(output, label, reduction="none") * weight).mean()


def _squares(output: Tensor, target: tuple[Tensor, Tensor]) -> Tensor:
    y, weight = target
    return _weighted_mean((output.reshape(y.shape) - y).square(), weight)


def _gaussian(output: Tensor, target: tuple[Tensor, Tensor]) -> Tensor:
    y, weight = target
    mean, variance = gaussian(output)
    return _weighted_mean(0.5 * (variance.log() + (y - mean).square() / variance), weight)


def _weighted_mean(losses: Tensor, weight: Tensor) -> Tensor:
    return (losses.flatten(1).mean(1) * weight).mean() if losses.ndim > 1 else (losses * weight).mean()


CRITERIA_OF_TASKS = {"gaussian": _gaussian, "regression": _squares}
