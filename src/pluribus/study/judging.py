"""What a trained ensemble is worth: its metrics inside, outside and under shift, its cost, and examples to look at."""

from __future__ import annotations

import dataclasses
import math
import platform
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._common.trees import IGNORED
from ..core.ensemble import Ensemble
from ..data.corruptions.catalogue import corrupt
from ..data.dataset import AnswerKey, Data, NormalisedSplit, Split
from ..deploy.feature_distance import KINDS, feature_distance
from ..deploy.promises import MOST, ROWS, Evidence, gather_evidence
from ..methods.method_info import REFUSALS
from ..results.store import BASELINE, has_classes
from ..uncertainty.calibration import calibrate
from ..uncertainty.classification import Classification
from ..uncertainty.evaluation import answered, bootstrap, evaluate, stability
from ..uncertainty.metrics import aupr, auroc, fpr95
from ..uncertainty.regression import Regression
from ..uncertainty.summary import LEVEL, Summary, summarize
from .baselines import model_spec, recipe_of
from .costs import measure_cascade, measure_cost
from .judging_images import Sums, dense_examples, image_batches, image_metrics, summarise_images
from .settings import Run

EXAMPLES = 12  # examples of each kind that are kept for the page

SCORES = ("msp", "entropy", "mutual_information", "max_logit", "variation_ratio")

REGRESSION_SCORES = ("total", "epistemic")

INTERVALS = ("accuracy", "nll", "brier", "ece", "aurc", "rmse", "mae", "crps", "coverage")

RESAMPLES = 200

SEEN = 1000  # training rows that are predicted, to say how well the network fits them


def judge(
    run: Run, data: Data, ensemble: Ensemble, history: Any, seconds: float
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The record and the columns of a trained ensemble."""
    started = time.monotonic()
    promise = None if has_classes(data.task) else gather_evidence(ensemble, data)
    inside, sums = _measure(ensemble, data, data.test, promise)
    columns = {f"test/{name}": column for name, column in _columns(inside).items()}
    columns |= {f"images/{name}": column.astype(np.float32) for name, column in sums.items() if "score" not in name}
    scores = SCORES if has_classes(data.task) else REGRESSION_SCORES
    uncertainty = _uncertainty(ensemble, data, scores, inside, sums, promise) if data.outside else {}
    distances = _distances(data, ensemble) if run.method == BASELINE and not sums else {}
    uncertainty, detectors = uncertainty | distances, (*scores, *(KINDS if distances else ()))
    columns |= {name: column.float().numpy() for name, column in uncertainty.items()}
    columns |= dense_examples(ensemble, data, sums, EXAMPLES) if sums else _examples(data, inside)
    record = {
        "run": run.name,
        **{key: value for key, value in run.plain().items() if key not in ("training", "source")},
        "model": model_spec(run, data).model,
        "size": ensemble.size,
        "task": data.task,
        "classes": list(data.classes) or _answers(data),
        "training": {
            k: v for k, v in dataclasses.asdict(recipe_of(run, data)).items() if k not in ("methods", "source")
        },
        "metrics": _metrics(inside, sums),
        "validation": figures(ensemble, data, data.selection, promise) if len(data.selection) else {},
        "train": figures(ensemble, data, data.train.take(slice(SEEN)), promise),
        "scaled": _scaled(ensemble, data),
        **({"targets": _by_target(data, inside), "block": len(data.targets)} if data.targets else {}),
        "shift": _shift(run, data, ensemble, promise),
        "outside": {name: {score: _detect(uncertainty, name, score) for score in detectors} for name in data.outside},
        "variants": _variants(data, ensemble),
        "cost": measure_cost(run, data, ensemble),
        "cascade": measure_cascade(data, ensemble),
        "seconds": {"training": seconds, "evaluation": time.monotonic() - started},
        "versions": _versions(),
        "history": history.rows,
        "notes": [*data.notes, *ensemble.notes],
    }
    return record, columns


def figures(ensemble: Ensemble, data: Data, split: Split, promise: Evidence | None) -> dict[str, float]:
    """Every metric of a part of the data."""
    measured = _measure(ensemble, data, split, promise)
    return {name: found["value"] for name, found in _metrics(*measured, intervals=False).items()}


def _scaled(ensemble: Ensemble, data: Data) -> dict[str, float]:
    """NLL and ECE of test rows after temperature scaling, which is fitted to rows that nothing was chosen on."""
    if data.task != "classification" or not len(data.calibration):
        return {}

    def predict(split: Split) -> Any:
        return ensemble.predict((data.normalise(x), y) for x, y in split.batches(ROWS))

    held, test = data.calibration.take(slice(MOST)), data.test.take(slice(MOST))
    fitted = calibrate(predict(held), held.y, method="temperature", when="after")
    return evaluate(fitted.apply(predict(test)), test.y, metrics=["nll", "ece"])


def _measure(ensemble: Ensemble, data: Data, split: Split, promise: Evidence | None) -> tuple[Summary, Sums]:
    """The columns of each example; for segmentation those of some pixels, and sums over the pixels of each image."""
    if data.task != "segmentation":
        return summarise(ensemble, data, split, promise), {}
    pairs = image_batches(data, split, ensemble.size)
    summary, sums = summarise_images(ensemble, pairs, len(split), SCORES)
    if summary is None:
        raise ValueError(f"{data.name}: no pixel of {len(split)} masks has a class, so there is nothing to evaluate.")
    return summary, sums


def _uncertainty(
    ensemble: Ensemble, data: Data, scores: Sequence[str], inside: Summary, sums: Sums, promise: Evidence | None
) -> dict[str, Tensor]:
    """The scores of test rows and of outside data; of images the mean over their pixels."""
    found = {f"inside/{score}": torch.from_numpy(sums[f"score {score}"]) if sums else inside.score(score)
             for score in scores}  # fmt: skip
    for name, split in data.outside.items():
        if sums:
            blank = (
                (x, torch.full((len(x), *x.shape[2:]), IGNORED)) for x, _ in image_batches(data, split, ensemble.size)
            )
            outer = summarise_images(ensemble, blank, len(split), scores)[1]
            found |= {f"outside/{name}/{score}": torch.from_numpy(outer[f"score {score}"]) for score in scores}
        else:
            summary = summarise(ensemble, data, split, promise, targets=False)
            found |= {f"outside/{name}/{score}": _by_row(data, summary.score(score)) for score in scores}
    return {name: _by_row(data, column) if name.startswith("inside") else column for name, column in found.items()}


def _distances(data: Data, ensemble: Ensemble) -> dict[str, Tensor]:
    """Of test rows and of outside data, how far they are from the training rows in one network's features."""
    found: dict[str, Tensor] = {}
    parts = {"inside": data.test, **{f"outside/{name}": split for name, split in data.outside.items()}}
    for kind in KINDS if data.outside else ():
        try:
            distance = feature_distance(ensemble, NormalisedSplit(data.train, data), kind)
        except REFUSALS:  # a network whose last layer cannot be told
            return {}
        found |= {f"{part}/{kind}": distance.score(NormalisedSplit(split, data)) for part, split in parts.items()}
    return found


def _by_row(data: Data, column: Tensor) -> Tensor:
    """The sum over the targets of each row."""
    return column.reshape(-1, len(data.targets)).sum(1) if data.targets else column


def _detect(uncertainty: dict[str, Tensor], name: str, score: str) -> dict[str, float]:
    scores = uncertainty[f"inside/{score}"], uncertainty[f"outside/{name}/{score}"]
    return {"auroc": auroc(*scores), "aupr": aupr(*scores), "fpr95": fpr95(*scores)}


def _answers(data: Data) -> list[str]:
    """What multi-label targets may be, where it is the same for all of them."""
    values = (data.encoding or {}).get("values") or []
    return list(values[0]) if values and all(pair == values[0] for pair in values) else ["0", "1"] if values else []


def _by_target(data: Data, summary: Summary) -> dict[str, dict[str, float]]:
    """The metrics of each of several targets by itself, in its own units."""
    found = {}
    names = ["accuracy", "nll", "brier", "ece"]
    if not has_classes(data.task):
        names = ["rmse", "mae", "nll", "coverage", "width"]
    for i, name in enumerate(data.targets):
        one = evaluate(summary[i :: len(data.targets)], metrics=names)
        if data.task == "regression":
            assert isinstance(data.target_std, list)
            scale = data.target_std[i]
            one = {key: value * scale if key in ("rmse", "mae", "width") else value for key, value in one.items()}
            one["nll"] += math.log(scale)
        found[name] = one
    return found


def summarise(
    ensemble: Ensemble, data: Data, split: Split, promise: Evidence | None = None, targets: bool = True
) -> Summary:
    """What the metrics need of each row of a part of the data; regression in the units of the targets.

    Args:
        promise: what scales probabilities or variances, and gives the intervals; None: the ensemble's own
    """
    pairs = ((data.normalise(x), y) for x, y in split.batches(ROWS))
    return summarise_batches(ensemble, data, pairs, targets, promise)


def summarise_batches(
    ensemble: Ensemble, data: Data, pairs: Iterator[tuple[Tensor, Tensor]], targets: bool, promise: Evidence | None
) -> Summary:
    """The summary of the ensemble's predictions for batches of normalised inputs."""
    if has_classes(data.task):
        if promise is None:
            return ensemble.predict(pairs if targets else ((x,) for x, _ in pairs), keep="summary")
        return summarize((promise.apply(ensemble.predict(x)), y) for x, y in pairs)
    batches = list(pairs)
    scaled: Any = ensemble.predict(iter(batches))
    scaled = scaled if promise is None else promise.apply(scaled)
    assert isinstance(scaled, Regression) and scaled.variances is not None
    units = (0.0, 1.0) if data.targets else (data.target_mean, data.target_std)  # several: each in its own stds
    shift, scale = (torch.tensor(value, dtype=torch.float64) for value in units)
    prediction = Regression(scaled.means.double() * scale + shift, scaled.variances.double() * scale**2)
    target = torch.cat([y for _, y in batches]).double() * scale + shift if targets else None
    if promise is None:
        return Summary(prediction, target)
    low, high = promise.conformal(LEVEL).intervals(scaled)
    return Summary(prediction, target, interval=(low * scale + shift, high * scale + shift))


def _columns(summary: Summary) -> dict[str, np.ndarray]:
    kept = ["target", "label", "confidence", "mean", "lower", "upper", "total", "aleatoric", "epistemic"]
    kept += ["log_likelihood", "squared_error", "member_label"]
    found = {name: getattr(summary, name).detach().cpu() for name in kept if name in summary.names}
    small = torch.int16 if (summary.classes or 0) < 2**15 else torch.int32
    return {n: (c.float() if c.is_floating_point() else c.to(small)).numpy() for n, c in found.items()}


def _metrics(summary: Summary, sums: Sums, intervals: bool = True) -> dict[str, dict[str, Any]]:
    exact = image_metrics(sums) if sums else {}
    values = {**evaluate(summary), **{name: interval.value for name, interval in exact.items()}}
    if not sums:
        values.pop("mean_iou", None)  # labels of a row are no pixels
    found: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        ends: Any = exact.get(name)
        if not sums and intervals and name in INTERVALS:
            ends = bootstrap(summary, metric=name, resamples=RESAMPLES)
        low, high = (None, None) if ends is None or math.isnan(ends.low) else ends[1:]  # the same in every resample
        found[name] = {"value": value, "low": low, "high": high}
    return found


def _shift(run: Run, data: Data, ensemble: Ensemble, promise: Evidence | None) -> dict[str, list[dict[str, float]]]:
    """What is left of accuracy, likelihood and calibration on shifted images: made, or published ones."""
    found: dict[str, list[dict[str, float]]] = {}

    def row(severity: int, pairs: Iterator[tuple[Tensor, Tensor]]) -> dict[str, float]:
        names = ["accuracy", "nll", "ece"] if has_classes(data.task) else ["rmse", "nll"]
        if data.task == "segmentation":
            sums = summarise_images(ensemble, _in_parts(pairs), run.shift_rows)[1]
            return {"severity": severity, **{name: image_metrics(sums)[name].value for name in (*names, "mean_iou")}}
        return {
            "severity": severity,
            **evaluate(summarise_batches(ensemble, data, pairs, True, promise), metrics=names),
        }

    for name, splits in data.shifted.items():
        found[name] = [
            row(i + 1, ((data.normalise(x), y) for x, y in split.batches(ROWS))) for i, split in enumerate(splits)
        ]
    moving = MOVING if data.task == "segmentation" else ()
    for name in (name for name in run.corruptions if data.kind == "images" and name not in moving):
        found[name] = [row(s, _corrupt_rows(run, data, name, s)) for s in run.severities]
    return found


MOVING = ("elastic_transform",)  # corruptions after which a mask no longer fits


def _in_parts(pairs: Iterator[tuple[Tensor, Tensor]], rows: int = 8) -> Iterator[tuple[Tensor, Tensor]]:
    """The same images, fewer at once: pixels take more memory than labels."""
    return (part for x, y in pairs for part in zip(x.split(rows), y.split(rows), strict=True))


def _corrupt_rows(run: Run, data: Data, name: str, severity: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Some rows of the test part, corrupted in the same way for every method and seed."""
    split = data.test.take(_spread(len(data.test), run.shift_rows))
    for i, (x, y) in enumerate(split.batches(ROWS)):
        yield data.normalise(corrupt(x, name, severity, start=i * ROWS)), y


def _spread(rows: int, wanted: int) -> Tensor:
    """So many rows, evenly over all."""
    return torch.linspace(0, rows - 1, min(rows, wanted)).round().long()


def _variants(data: Data, ensemble: Ensemble) -> dict[str, dict[str, float]]:
    found = {}
    for name, split in data.variants.items():
        prediction: Any = ensemble.predict((data.normalise(x), y) for x, y in split.batches(ROWS))
        target = split.y
        if name in data.answer_keys:
            found[name] = _against_key(prediction, target, data.answer_keys[name])
            continue
        if name in data.subsets:
            subset = torch.as_tensor(data.subsets[name])
            prediction = prediction.restrict(subset)
            target = torch.searchsorted(subset, target)
        found[name] = evaluate(prediction, target, metrics=["accuracy", "nll", "ece"])
    return found


def _against_key(prediction: Classification, target: Tensor, key: AnswerKey) -> dict[str, float]:
    """Figures of rows that have classes of their own: among all classes, and among those that can be right."""
    figures: dict[str, float] = {}
    for among, more in (("all", ""), ("known", "_among_known")):
        right = answered(prediction, target, key.answers, among=among)  # type: ignore[arg-type]
        own = {"accuracy": right.double().mean().item()} if key.sets is None else stability(right, key.sets)
        figures |= {name + more: value for name, value in own.items()}
    return figures


def _examples(data: Data, summary: Summary) -> dict[str, np.ndarray]:
    """The most certain mistakes and the most uncertain examples."""
    if has_classes(data.task):
        wrong = (summary.label != summary.target).nonzero().flatten()
        mistakes = wrong[summary.confidence[wrong].argsort(descending=True, stable=True)[:EXAMPLES]]
    else:
        surprise = (summary.mean - summary.target).abs() / summary.total.sqrt().clamp(min=1e-12)
        mistakes = surprise.argsort(descending=True, stable=True)[:EXAMPLES]
    uncertain = summary.total.argsort(descending=True, stable=True)[:EXAMPLES]
    index = torch.cat([mistakes, uncertain])
    reasons = ["mistake"] * len(mistakes) + ["uncertain"] * len(uncertain)
    found = {"examples/index": index.numpy(), "examples/reason": np.array(reasons)}
    if data.kind == "images":
        x = (data.test[index][0] * 255).round().to(torch.uint8).permute(0, 2, 3, 1)
        found["examples/pictures"] = (x[..., 0] if x.shape[-1] == 1 else x).numpy()
    else:
        block = max(len(data.targets), 1)
        targets = [f", {data.targets[i]}" if data.targets else "" for i in (index % block).tolist()]
        names = data.test.names(index // block)
        found["examples/text"] = np.array([f"row {name}{target}" for name, target in zip(names, targets, strict=True)])
    return found


def _versions() -> dict[str, str]:
    from .. import __version__

    return {
        "pluribus": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
