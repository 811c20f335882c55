"""Calibration of the whole ensemble: what is fitted is scored on examples it was not fitted to."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from .._common.trees import split_item
from .calibration_maps import CALIBRATIONS, Temperature, Unchanged, Variance, label_nll
from .checks import check_values, tensor_of
from .classification import Classification, LabelledExamples, judged_examples, labelled_examples
from .metrics import ece
from .outputs import log_mean_exp
from .prediction import Prediction, check_any_batch
from .regression import Regression

TIMES, NONE = ("before", "after"), ("none", "before")
IMPOSSIBLE = math.log(torch.finfo(torch.float32).tiny)  # stands for the logarithm of a probability of zero


def calibrate(
    ensemble: Any,
    validation: Any,
    *,
    method: str = "auto",
    when: str = "auto",
    folds: int = 5,
    seed: int = 0,
    batch_size: int | None = None,
    device: torch.device | str | None = None,
) -> Calibrated:
    """The ensemble with calibrated probabilities (regression: variances), by the method that does best held out.

    Every candidate is fitted on all folds but one and scored on that one; the one with the lowest held-out NLL of
    the pooled prediction is fitted once more on everything. Temperature and vector scaling: Guo et al., *On
    Calibration of Modern Neural Networks*; isotonic: Zadrozny and Elkan, one class against the rest, renormalised.
    Before pooling, one scaling is shared by all members, so that their disagreement is kept; after pooling the
    answer has one member, so that `epistemic` is zero.

    Shapes:
        validation: x (rows, *features) and y (rows); or a prediction of (members, rows, classes) and y
        dense: y (rows, ...); labels of -100 are ignored, and those of one row stay in one fold

    Args:
        ensemble: anything with `predict`; or a prediction, with its targets as `validation`
        validation: a loader of (x, y), a tuple (x, y), or a tuple (prediction, y); not the training data
        method: "temperature", "vector", "isotonic" or "none"; regression: "variance" or "none"; "auto": the best
        when: "before" pooling, on every member's log probabilities, or "after", on those of the mean
        folds: parts of the validation data that candidates are scored on in turn
        seed: of the split into folds
        batch_size: rows in one call of `predict`
        device: where it predicts; by default where the ensemble is

    >>> logits, target = 5 * torch.randn(3, 200, 4), torch.randint(4, (200,))  # sure of itself, and guessing
    >>> calibrated = calibrate(Classification.from_logits(logits), target, method="temperature", when="after")
    >>> calibrated.scaling.value > 5, calibrated.table[0]["method"]
    (True, 'temperature')
    """
    observed = observe("calibrate", ensemble, validation, batch_size, device)
    source = None if isinstance(ensemble, (Classification, Regression)) else ensemble
    if isinstance(observed[0][0], Regression):
        return _calibrate_regression(source, *join_observed(observed), method, folds, seed)
    prediction, target, row = join_examples("calibrate", observed)
    candidates = _candidates(method, when, len(prediction.log_members))
    numbers, row = row.cpu().unique(return_inverse=True)
    fold = _folds(len(numbers), folds, seed)[row]  # labels of one image or sequence stay in one fold
    rows = {time: _rows(prediction, time) for time in TIMES}
    labels = target.cpu()
    judged = {c: _judge_held_out(c[0], rows[c[1]], labels, fold) for c in dict.fromkeys([NONE, *candidates])}
    best = min(candidates, key=lambda c: judged[c][0].mean().item())  # by NLL
    scaling = CALIBRATIONS[best[0]](rows[best[1]], labels)
    return Calibrated(source, *best, scaling, _table(judged, row), len(numbers), folds)


@dataclass(frozen=True)
class Calibrated:
    """An ensemble together with a scaling of its probabilities or variances.

    Shapes:
        predict, apply: a prediction of (members, batch, classes), or (1, batch, classes) where it was pooled first

    Args:
        ensemble: what `predict` asks
        method: the scaling that was chosen
        when: "before" or "after" pooling
        scaling: the fitted scaling itself
        table: one row for each candidate, best first: method, when, held-out nll, ece and accuracy (regression: rmse),
            and `gain`, how much lower the nll is than without calibration, with its standard error `gain_error`
        examples: how many validation examples it was fitted on
        folds: how many parts the candidates were scored on

    >>> logits, target = 5 * torch.randn(3, 200, 4), torch.arange(200) % 4
    >>> calibrated = pb.calibrate(Classification.from_logits(logits), target, method="temperature", when="before")
    >>> calibrated.apply(Classification.from_logits(logits)).members.shape
    torch.Size([3, 200, 4])
    """

    ensemble: Any
    method: str
    when: str
    scaling: Any
    table: list[dict[str, Any]] = field(repr=False)
    examples: int
    folds: int

    def predict(self, x: Any, batch_size: int | None = None, device: torch.device | str | None = None) -> Any:
        """The calibrated prediction for what `ensemble.predict` takes."""
        if self.ensemble is None:
            raise TypeError(
                "Calibrated.predict: needs an ensemble, but this was calibrated on a prediction. Use apply(prediction)."
            )
        return self.apply(self.ensemble.predict(x, batch_size=batch_size, device=device))

    def apply(self, prediction: Any) -> Any:
        """A prediction of the same ensemble, calibrated: a new Classification or Regression."""
        wanted = Regression if isinstance(self.scaling, Variance) else Classification
        if not isinstance(prediction, wanted):
            raise TypeError(
                f"Calibrated.apply: this was fitted on a {wanted.__name__}, but got a {type(prediction).__name__}."
            )
        if isinstance(prediction, Regression):
            return self.scaling(prediction)
        if isinstance(self.scaling, Unchanged):
            return prediction
        if isinstance(self.scaling, Temperature) and self.when == "before" and prediction.logits is not None:
            return Classification.from_logits(prediction.logits / self.scaling.value, prediction.class_dim)
        # In double precision classes that nearly tie keep their order, and so the label, at any temperature.
        log_p = prediction.log_members if self.when == "before" else prediction.log_mean[None].double()
        dim = prediction.class_dim
        scaled = self.scaling(_without_infinities(log_p).movedim(dim, -1)).movedim(-1, dim).to(log_p.dtype)
        calibrated = Classification.from_logits(scaled, dim)
        calibrated.logits = None  # log probabilities: energy and max_logit would be plausible nonsense
        return calibrated

    def explain(self) -> str:
        """What was fitted, how it was chosen, and how the other candidates did, as text."""
        where = {"before": "on every member, before pooling", "after": "after pooling", "": "on the mixture"}[self.when]
        second = "rmse" if isinstance(self.scaling, Variance) else "ece"
        lines = [
            f"{self.method} {where}: {self.scaling.explain()}",
            f"  chosen by held-out NLL: {self.folds} folds of {self.examples:,} examples",
            f"  {'method':<12} {'when':<7} {'nll':>8} {second:>8}  gain in nll",
        ]
        for row in self.table:
            gain = "" if row["method"] == "none" else f"  {row['gain']:+.4f} +- {row['gain_error']:.4f}"
            lines.append(f"  {row['method']:<12} {row['when']:<7} {row['nll']:8.4f} {row[second]:8.4f}{gain}")
        return "\n".join(lines)


# ---------------------------------------------------------------- what was observed


Observed = list[tuple[Prediction, Tensor]]


def observe(
    name: str, ensemble: Any, validation: Any, batch_size: int | None = None, device: torch.device | str | None = None
) -> Observed:
    """The predictions and targets of validation data, in one pass of a loader, whose batches may differ in length."""
    if isinstance(ensemble, (Classification, Regression)):
        return [(ensemble.detach(), tensor_of(validation))]
    pair = isinstance(validation, tuple) and len(validation) == 2
    if pair and isinstance(validation[0], (Classification, Regression)):
        return [(validation[0].detach(), tensor_of(validation[1]))]
    if not hasattr(ensemble, "predict"):
        raise TypeError(
            f"{name}: needs an ensemble with `predict`, but got a {type(ensemble).__name__}. "
            "Make one with pb.single(model), or give (prediction, target)."
        )
    if pair:
        return [(ensemble.predict(validation[0], batch_size=batch_size, device=device), tensor_of(validation[1]))]
    if isinstance(validation, (Tensor, np.ndarray, tuple, Dataset)) or not isinstance(validation, Iterable):
        raise TypeError(
            f"{name}: validation must be a loader of (x, y), or a tuple (x, y) or (prediction, y), but it is a "
            f"{type(validation).__name__}. Give the targets too; wrap a data set in a DataLoader, or give all its "
            "rows, as in data.validation[:]."
        )
    found: Observed = []
    for x, y in (split_item(item) for item in validation):
        if y is None:
            raise TypeError(f"{name}: the loader must give pairs (x, y), but it gives no targets.")
        x = tuple(x) if isinstance(x, list) else x  # several inputs, not a loader of them
        found.append((ensemble.predict(x, batch_size=batch_size, device=device), tensor_of(y)))
    check_any_batch(found)
    return found


def join_observed(observed: Observed) -> tuple[Any, Tensor]:
    """One prediction and its targets, rows first."""
    predictions: list[Any] = [prediction for prediction, _ in observed]
    return type(predictions[0]).cat(predictions), torch.cat([target for _, target in observed])


def join_examples(name: str, observed: Observed) -> LabelledExamples:
    """The labels that count, of all batches together."""
    parts: list[LabelledExamples] = []
    before = 0
    for prediction, target in observed:
        assert isinstance(prediction, Classification)
        found = judged_examples(prediction, target, name)
        parts.append(found._replace(row=found.row + before))
        before += len(prediction)
    predictions, targets, rows = zip(*parts, strict=True)
    together = predictions[0] if len(parts) == 1 else Classification.cat(predictions)
    return labelled_examples(name, together, torch.cat(targets))._replace(row=torch.cat(rows))


# ---------------------------------------------------------------- scoring the candidates


def _candidates(method: str, when: str, members: int) -> list[tuple[str, str]]:
    """What may be chosen, in the order in which ties are settled."""
    _check_name("method", method, CALIBRATIONS)
    _check_name("when", when, TIMES)
    times = [when] if when != "auto" else TIMES if members > 1 else TIMES[:1]  # one member: they are the same
    methods = [method] if method != "auto" else list(CALIBRATIONS)
    return [pair for m in methods for pair in ([NONE] if m == "none" else [(m, time) for time in times])]


def _check_name(what: str, value: str, known: Iterable[str]) -> None:
    if value != "auto" and value not in known:
        raise ValueError(f"calibrate: {what} {value!r} is unknown here. Choose from auto, {', '.join(known)}.")


def _folds(examples: int, folds: int, seed: int) -> Tensor:
    """The fold of each example, at random and balanced."""
    if not 2 <= folds <= examples:
        raise ValueError(
            f"calibrate: folds must be between 2 and the number of validation examples, {examples}, but it is {folds}."
        )
    return torch.randperm(examples, generator=torch.Generator().manual_seed(seed)) % folds


def _rows(prediction: Classification, when: str) -> Tensor:
    """(members or 1, examples, classes)."""
    return _without_infinities(prediction.log_members if when == "before" else prediction.log_mean[None]).cpu()


def _without_infinities(log_p: Tensor) -> Tensor:
    return log_p.nan_to_num(nan=math.nan, neginf=IMPOSSIBLE)


def _judge_held_out(method: str, rows: Tensor, target: Tensor, fold: Tensor) -> Tensor:
    """NLL, confidence and whether the label is right, by maps that were fitted to other folds: (3, examples)."""
    found = torch.zeros(3, len(target), dtype=torch.float64)
    for one in range(int(fold.max()) + 1):
        held, rest = (fold == one).nonzero()[:, 0], (fold != one).nonzero()[:, 0]
        log_p = log_mean_exp(CALIBRATIONS[method](rows[:, rest], target[rest])(rows[:, held])).double()
        confidence, label = log_p.max(-1)
        right = (label == target[held]).double()
        found[:, held] = torch.stack([label_nll(log_p, target[held]), confidence.exp(), right])
    return found


def _table(judged: dict[tuple[str, str], Tensor], row: Tensor) -> list[dict[str, Any]]:
    rows = []
    for (method, when), (nll, confidence, right) in judged.items():
        line = {"method": method, "when": when if method != "none" else "", "nll": nll.mean().item()}
        line |= {"ece": ece(confidence, right), "accuracy": right.mean().item()}
        by_row = torch.bincount(row, judged[NONE][0] - nll) / torch.bincount(row)
        rows.append(line | _gain(by_row))
    return sorted(rows, key=lambda row: row["nll"])


def _gain(differences: Tensor) -> dict[str, float]:
    return {"gain": differences.mean().item(), "gain_error": (differences.std() / math.sqrt(len(differences))).item()}


def _calibrate_regression(
    source: Any, prediction: Regression, target: Tensor, method: str, folds: int, seed: int
) -> Calibrated:
    target = check_values("calibrate", prediction.means, prediction.total, target)
    _check_name("method", method, ("none", "variance"))
    fold = _folds(len(target), folds, seed)
    variance = prediction.total.double()
    if bool((variance <= 0).any()):
        raise ValueError(
            "calibrate: each example needs a variance above zero, but row "
            f"{(variance <= 0).nonzero()[0][0].item()} has none. Use more members or a gaussian task; "
            "pb.conformal gives intervals without variances."
        )
    squares = (target - prediction.mean).double().square() / variance
    factor = torch.ones_like(squares)
    for one in range(folds):
        factor[fold == one] = squares[fold != one].mean()
    log_scale = torch.log(2 * math.pi * variance)
    plain, scaled = 0.5 * (log_scale + squares), 0.5 * (log_scale + factor.log() + squares / factor)
    rmse = (target - prediction.mean).square().mean().sqrt().item()
    rows: list[dict[str, Any]] = [
        {"method": name, "when": "", "nll": nll.mean().item(), "rmse": rmse} | _gain((plain - nll).flatten(1).mean(1))
        for name, nll in (("none", plain[:, None]), ("variance", scaled[:, None]))
    ]
    rows.sort(key=lambda row: row["nll"])
    best = rows[0]["method"] if method == "auto" else method
    scaling = Variance(squares.mean().item() if best == "variance" else 1.0)
    return Calibrated(source, best, "", scaling, rows, len(target), folds)
