"""A trained ensemble with everything that a prediction needs: network, classes, encoding, threshold. No pickle."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from .._common.signed_files import (
    check_digest,
    read_safetensors,
    read_signed_json,
    write_safetensors,
    write_signed_json,
)
from .._common.trees import tensors_of
from .._common.untrusted import Finite, Number, check_shape
from ..core.ensemble import Ensemble
from ..data.catalogue import encoded
from ..data.dataset import Data
from ..data.encoding import check_encoding, encoded_shape
from ..data.tables import feature_names
from ..data.unpacking import check_claim
from ..models.by_name import ModelSpec
from ..uncertainty.abstention import Threshold
from ..uncertainty.calibration import Calibrated
from ..uncertainty.classification import SCORES, Classification
from ..uncertainty.conformal_prediction import INTERVALS, SETS, Conformal
from ..uncertainty.outputs import gaussian
from ..uncertainty.prediction import Prediction
from ..uncertainty.regression import Regression
from .cascading import split
from .export_graph import ExportedMembers
from .feature_distance import FeatureDistance, reading_features
from .freezing.frozen import freeze
from .pictures import write_pictures
from .promises import (
    COVERAGE,
    Evidence,
    calibrated_by,
    check_promises,
    find_cascade,
    find_threshold,
    gather_evidence,
    plain_promise,
    promises,
    read_evidence,
)
from .saving import load, save
from .stages import SCORES as CASCADE_SCORES
from .stages import Cascade

FORMAT = 1

WEIGHTS, DISTANCE, RECORD = "ensemble.safetensors", "distance.safetensors", "bundle.json"

ROWS = 256  # that are predicted at once

LARGEST_BATCH = 2**24  # numbers: of large images fewer are predicted at once


@dataclass
class Predictor:
    """A trained ensemble that predicts from files: `save` writes it to a folder, `pb.open` reads it back.

    Args:
        record: plain values: the network, the shape of a row, classes, encoding, threshold, figures; for an upgraded
            network also its scale and what it promises
        distance: of inputs in one network's features, where `upgrade` chose it

    >>> from pluribus.study import Study, conduct
    >>> study = Study(data=["iris"], model="mlp", methods=["deep"], size=2, training={"epochs": 1})
    >>> (result,) = conduct(study, "two-members", keep=True).results
    >>> predictor = pb.open(f"two-members/predictors/{result.record['run']}")
    >>> predictor.ensemble.size, predictor.record["classes"]
    (2, ['setosa', 'versicolor', 'virginica'])
    """

    ensemble: Ensemble
    record: dict[str, Any]
    distance: FeatureDistance | None = None

    @property
    def threshold(self) -> Threshold | None:
        """Below it an answer is accepted; None where the validation data could promise nothing."""
        found = self.record.get("threshold")
        return None if found is None else Threshold(**found)

    @property
    def calibrated(self) -> Calibrated | None:
        """What scales its probabilities or variances; None where nothing was fitted."""
        return calibrated_by(self.record.get("scale"), bool(self.record["classes"]))

    @property
    def conformal(self) -> Conformal | None:
        """The sets or intervals with guaranteed coverage; None if there are none."""
        found = self.record.get("conformal")
        if found is None:
            return None
        quantile, most = (torch.tensor(found[name], dtype=torch.float64) for name in ("quantile", "most"))
        return Conformal(None, found["kind"], found["coverage"], quantile, found["examples"], most=most)

    @property
    def evidence(self) -> Evidence | None:
        """What the calibration rows say; None where there were none."""
        found = self.record.get("evidence")
        return None if found is None else read_evidence(found, bool(self.record["classes"]))

    @property
    def cascade(self) -> Cascade | None:
        """The ensemble as a cascade, where it was trained to answer as one."""
        found = self.record.get("cascade")
        if found is None:
            return None
        windows = [(float(low), float(high)) for low, high in found["windows"]]
        return Cascade(split(self.ensemble, found["sizes"]), windows, found["score"])

    def promising(self, *, coverage: float | None = None, risk: float | None = None) -> Predictor:
        """The same predictor with another promise, from the calibration rows of its training: nothing is trained.

        Args:
            coverage: how often sets and intervals contain the truth; None: as before
            risk: the largest error rate of accepted answers; None: as before
        """
        check_promises("predict", self.task, coverage, risk)
        evidence = self.evidence
        if evidence is None:
            raise ValueError(
                "predict: this folder keeps no calibration rows, so its promises cannot be changed. Train again with "
                "validation rows (--validation 0.2); segmentation and several labels have no promises."
            )
        kept = dict(self.record)
        if coverage is not None:
            kept["conformal"] = plain_promise(evidence.conformal(coverage))
            kept.pop("no_conformal", None)
        if risk is not None:
            kept.pop("no_threshold", None)
            kept |= find_threshold(evidence, risk)
        return Predictor(self.ensemble, kept, self.distance)

    def save(self, folder: str | Path) -> None:
        """Write the folder; the record comes last, so that a folder that was cut short is not taken for whole."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / RECORD).unlink(missing_ok=True)
        save(self.ensemble, folder / WEIGHTS, whole=True)
        if self.distance is not None:
            write_safetensors(folder / DISTANCE, self.distance.reference, {})
        write_signed_json(folder / RECORD, self.record)

    @property
    def task(self) -> str:
        """The task of the data: "classification", "regression", "multilabel" or "segmentation"."""
        return self.record["encoding"]["task"]

    def predict(self, source: Any, *, broken: Any = "stop", unpack_limit: int | str | None = None) -> Prediction:
        """The calibrated prediction for files, arrays or a table of new rows; regression in the units of the target.

        Args:
            source: as for `answers`: a path, a list of images, a data frame, a dict of columns or an array of images
        """
        split = encoded(self.record["encoding"], source, broken=broken, unpack_limit=unpack_limit)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # as for `answers`
            found = self._answering.predict((self._normalise(x), y) for x, y in split.batches(ROWS))
        prediction = self._calibrate(found)
        if not isinstance(prediction, Regression):
            return prediction
        shift, scale = self._units()
        variances = None if prediction.variances is None else prediction.variances.double() * scale**2
        return Regression(prediction.means.double() * scale + shift, variances)

    def sets(self, source: Any, coverage: float | None = None) -> list[list[str]]:
        """Of each row the classes of its conformal set, which holds the true one as often as promised."""
        return self._named_sets(self._promise("classification", "sets", coverage), self.predict(source))

    def intervals(self, source: Any, coverage: float | None = None) -> Tensor:
        """Of each row the ends of its conformal interval, in the units of the target: (rows, 2[, targets])."""
        promise, (shift, scale) = self._promise("regression", "intervals", coverage), self._units()
        split = encoded(self.record["encoding"], source)
        ends = [torch.stack(promise.intervals(self.predict_batch(x)), 1) for x, _ in split.batches(ROWS)]
        return torch.cat(ends) * scale + shift

    def _promise(self, task: str, what: str, coverage: float | None) -> Conformal:
        if self.task != task:
            other = {"classification": " Use sets().", "regression": " Use intervals()."}.get(self.task, "")
            raise ValueError(f"predictor: {what} are for {task}, but its task is {self.task}.{other}")
        promise = self.conformal if coverage is None else self.promising(coverage=coverage).conformal
        if promise is None:
            why = self.record.get("no_conformal", "there were fewer than 10 validation rows to promise from")
            raise ValueError(f"predictor: nothing is promised: {why}.")
        return promise

    def _named_sets(self, promise: Conformal, prediction: Any) -> list[list[str]]:
        rows = promise.sets(prediction).tolist()
        return [[name for name, inside in zip(self.record["classes"], row, strict=True) if inside] for row in rows]

    def _units(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of the training targets."""
        shift, scale = (torch.tensor(self.record[f"target_{part}"], dtype=torch.float64) for part in ("mean", "std"))
        return shift, scale

    def answers(
        self,
        source: Any,
        *,
        broken: Any = "stop",
        batch_size: int = ROWS,
        unpack_limit: int | str | None = None,
        out: str | Path | None = None,
    ) -> Iterator[dict[str, Any]]:
        """One dict for each row of a table or each image: what it is, how sure, and whether to accept it.

        Args:
            out: for segmentation, the folder for the pictures: labels as in the masks of training, and uncertainty, of
                which white is a guess between all classes
        """
        split = encoded(self.record["encoding"], source, broken=broken, unpack_limit=unpack_limit)
        if self.task == "segmentation" and out is None:
            raise ValueError("predict: segmentation writes pictures. Say where with out= (command line: --out).")
        batch_size = max(1, min(batch_size, LARGEST_BATCH // math.prod(self.record["shape"])))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # MC-Dropout draws the same for the same files
            yield from self._answers(split, batch_size) if out is None else write_pictures(self, split, Path(out))

    def _answers(self, split: Any, batch_size: int) -> Iterator[dict[str, Any]]:
        for start in range(0, len(split), batch_size):
            rows = range(start, min(start + batch_size, len(split)))
            distance: Any = self.distance  # of what the network's last layer reads meanwhile
            reading: Any = (
                nullcontext([]) if distance is None else reading_features(self.ensemble.members[0], distance.head)
            )
            with reading as read:
                prediction = self.predict_batch(split[list(rows)][0])
            ways: dict[str, Any] = {"classification": self._classify, "regression": self._estimate}
            columns = ways.get(self.task, self._label)(prediction)
            if distance is not None:
                columns |= self._unfamiliar(distance.of(read[-1]), columns)
            for name, *values in zip(split.names(list(rows)), *columns.values(), strict=True):
                answer = dict(zip(columns, values, strict=True))
                yield {"name": name, **{"predicted_name" if key == "name" else key: one for key, one in answer.items()}}

    def _unfamiliar(self, distances: Tensor, columns: dict[str, list[Any]]) -> dict[str, list[Any]]:
        """The distance, 1 where 95 % of the validation rows are nearer; beyond it no answer is accepted."""
        relative = (distances.double() / self.record["distance"]["limit"]).tolist()
        decisions = zip(columns.get("decision", ()), relative, strict=False)
        near = [decision if far <= 1 else "abstain" for decision, far in decisions]
        return {"distance": relative, **({"decision": near} if near else {})}

    def predict_batch(self, x: Tensor) -> Any:
        """The calibrated prediction for inputs as files have them."""
        return self._calibrate(self._answering.predict(self._normalise(x)))

    def _calibrate(self, prediction: Any) -> Any:
        return prediction if self.calibrated is None else self.calibrated.apply(prediction)

    @cached_property
    def _answering(self) -> Ensemble | Cascade:
        return self.cascade or self.ensemble

    def for_export(self, rows: int, frozen: bool = True) -> tuple[nn.Module, Tensor]:
        """A module that takes inputs as files have them and normalises them itself, and an example for it."""
        if self.record["encoding"].get("columns", [{}])[0].get("kind") == "text":
            raise ValueError(
                "export: a predictor of texts takes tokens, not numbers. Export its ensemble with pb.export."
            )
        example = torch.rand(rows, *self.record["shape"])
        if (cascade := self.cascade) is not None:
            stages = [Predictor(stage, self.record) for stage in cast(Any, cascade.stages)]
            inside = self._normalise(example) if frozen else None
            return cascade.with_stages([SelfNormalising(one, inside) for one in stages]), example
        return SelfNormalising(self, self._normalise(example) if frozen else None), example

    def _normalise(self, x: Tensor) -> Tensor:
        if not x.is_floating_point():  # tokens
            return x
        return (x - torch.tensor(self.record["mean"])) / torch.tensor(self.record["std"])

    def _classify(self, prediction: Classification) -> dict[str, list[Any]]:
        """The answers to a batch, by column."""
        classes, threshold = self.record["classes"], self.threshold
        found: dict[str, list[Any]] = {"label": [classes[label] for label in prediction.label.tolist()]}
        found |= {part: getattr(prediction, part).tolist() for part in ("confidence", "aleatoric", "epistemic")}
        if (promise := self.conformal) is not None:
            found["set"] = self._named_sets(promise, prediction)
        kept = [False] * len(prediction) if threshold is None else threshold.keep(prediction).tolist()
        return {**found, "decision": ["accept" if one else "abstain" for one in kept]}

    def _label(self, prediction: Classification) -> dict[str, list[Any]]:
        """The answers to each label of a multi-label table."""
        found: dict[str, list[Any]] = {}
        encoding = self.record["encoding"]
        for i, (name, values) in enumerate(zip(encoding["target"], encoding["values"], strict=True)):
            found[name] = [values[label] for label in prediction.label[:, i].tolist()]
            for part in ("confidence", "aleatoric", "epistemic"):
                found[f"{name}_{part}"] = getattr(prediction, part)[:, i].tolist()
        return found

    def _estimate(self, prediction: Regression) -> dict[str, list[Any]]:
        shift, scale = self._units()
        promise = self.conformal
        low, high = prediction.interval(COVERAGE) if promise is None else promise.intervals(prediction)
        found = {"value": prediction.mean * scale + shift, "low": low * scale + shift, "high": high * scale + shift}
        found |= {part: getattr(prediction, part) * scale**2 for part in ("aleatoric", "epistemic")}
        names = self.record["encoding"].get("target")
        if not isinstance(names, list):
            return {name: column.tolist() for name, column in found.items()}
        return {
            name if part == "value" else f"{name}_{part}": column[:, i].tolist()
            for i, name in enumerate(names)
            for part, column in found.items()
        }


class SelfNormalising(nn.Module):
    """The ensemble behind its normalisation, and for regression before its scaling: (members, batch, outputs)."""

    def __init__(self, predictor: Predictor, example: Tensor | None):
        super().__init__()
        ensemble, record = predictor.ensemble, predictor.record
        self.task, self.class_dim = ensemble.task, ensemble.class_dim
        self.size, self.about = ensemble.size, _describe(record)
        self.inner = ExportedMembers(ensemble) if example is None else freeze(ensemble, example)
        self.mean = nn.Buffer(torch.tensor(record["mean"]))
        self.std = nn.Buffer(torch.tensor(record["std"]))
        shift, scale = (torch.tensor(record[f"target_{part}"]) for part in ("mean", "std"))
        self.shift, self.scale = nn.Buffer(shift), nn.Buffer(scale)  # one number, or one for each of several targets
        self.fitted: float | None = record.get("scale")  # the temperature, or the factor of variances

    def forward(self, x: Tensor) -> Any:
        """Every member on every row."""
        outputs = self.inner((x - self.mean) / self.std)
        if self.task != "gaussian":
            return outputs if self.fitted is None else outputs / self.fitted
        means, variances = gaussian(outputs)
        if self.fitted is not None:
            middle = means.mean(0)
            means, variances = middle + math.sqrt(self.fitted) * (means - middle), variances * self.fitted
        return means * self.scale + self.shift, variances * self.scale**2


def _describe(record: Mapping[str, Any]) -> dict[str, str]:
    """What whoever runs an exported file must know: what the outputs mean and what the inputs are."""
    kind, columns = record["encoding"]["kind"], record["encoding"].get("columns")
    inputs = "values in [0, 1], channels first" if kind == "images" else json.dumps(feature_names(record["encoding"]))
    return {
        "classes": json.dumps(record["classes"]),
        **({"targets": json.dumps(record["encoding"]["target"])} if record.get("targets") else {}),
        "inputs": inputs,
        "shape": json.dumps(list(record["shape"])),
        "normalisation": json.dumps({"inside": True, "mean": record["mean"], "std": record["std"]}),
        **({"columns": json.dumps(columns), "encoding": TABLE_ENCODING} if columns else {}),
    }


TABLE_ENCODING = (
    "before the file is run: a number (a flag is 1 or 0, a date its days since 1970) becomes (value - mean) / std of "
    "its column, or 0 where it is missing. With knots, it becomes the score that is interpolated between them. With "
    "bins, each gets (value - left) / (right - left), at least 0 but for the first, at most 1 but for the last. If the "
    "column says so, 1 or 0 follows for missing or not. A category "
    "becomes 1 for its level and 0 for the others; the last is for unknown levels."
)


def make_predictor(
    model: ModelSpec,
    data: Data,
    ensemble: Ensemble,
    about: Mapping[str, Any] | None = None,
    *,
    promise: bool = True,
    risk: float | None = None,
    coverage: float = COVERAGE,
    margin: float | None = None,
) -> Predictor:
    """The predictor of a trained ensemble; what it promises is found on the calibration rows of the data.

    Args:
        model: the network that the ensemble was made of
        promise: whether to; otherwise the record has no promise
        risk: None: 0.05, or the least above it that the rows can promise; a number is kept to, or no row is accepted
        about: further plain values for the record
        margin: answer as a cascade that may lose this much accuracy: its thresholds are found on half of the rows
    """
    record: dict[str, Any] = {
        "format": FORMAT,
        **dataclasses.asdict(model.absolute()),
        "classes": list(data.classes),
        **({"targets": list(data.targets)} if data.targets else {}),
        "mean": data.mean.tolist(),
        "std": data.std.tolist(),
        "target_mean": data.target_mean,
        "target_std": data.target_std,
        "encoding": data.encoding,
        **(about or {}),
        "threshold": None,
    }
    answering: Any = ensemble
    rows = None
    if margin is not None:  # what is promised is found on other rows than the thresholds
        answering, rows = find_cascade(ensemble, data, margin)
        windows = [list(window) for window in answering.windows]
        found = {"windows": windows, "score": answering.score, "sizes": answering.counts}
        record["cascade"] = {**found, "report": answering.report.plain()}
    promise &= data.task not in ("segmentation", "multilabel")
    evidence = gather_evidence(answering, data, rows) if promise else None
    if evidence is not None:
        record |= {"evidence": evidence.plain(), "scale": evidence.scale, **promises(evidence, coverage, risk)}
    return Predictor(ensemble, record)


def open(folder: str | Path, device: torch.device | str = "cpu", *, model: str | None = None) -> Predictor:
    """The trained predictor in a folder of `pluribus train`, `upgrade` or `compare --keep`, as `predict` uses it.

    It has `predict`, `sets`, `intervals`, `answers`, `threshold`, `promising` and `ensemble`. Nothing in the folder is
    executed.

    Shapes:
        predictor.predict(source): a `Classification` or `Regression` of (members, rows, classes or targets)
        predictor.intervals(source): (rows, 2[, targets])

    Args:
        device: where the ensemble answers
        model: "python:FILE:FUNCTION", for a folder whose network is code of your own; the code that the folder itself
            names is never run

    >>> from pluribus.study import Study, conduct
    >>> study = Study(data=["iris"], model="mlp", methods=["single"], training={"epochs": 1})
    >>> result = conduct(study, "iris-study", keep=True).results[0]
    >>> predictor = pb.open(f"iris-study/predictors/{result.record['run']}")
    >>> flowers = {"sepal length (cm)": [5.1], "sepal width (cm)": [3.5], "petal length (cm)": [1.4],
    ...            "petal width (cm)": [0.2]}
    >>> predictor.predict(flowers).mean.shape
    torch.Size([1, 3])
    """
    folder = Path(folder)
    missing = not (folder / RECORD).exists()
    if missing and (folder / "study.json").exists():
        raise ValueError(
            f"open: {str(folder)!r} is a study, not a predictor. Make one of it with: pluribus train --study "
            f"{folder} --out FOLDER"
        )
    if missing:
        raise FileNotFoundError(
            f"predict: {str(folder)!r} is not a trained ensemble: it has no {RECORD}. "
            "Make one with: pluribus train --out FOLDER"
        )
    try:
        record = read_signed_json(folder / RECORD)
        _check_record(record)
    except ValueError as error:
        raise ValueError(f"predict: {str(folder / RECORD)!r} is damaged ({error}). Train again.") from error
    spec = ModelSpec(**{one.name: record[one.name] for one in dataclasses.fields(ModelSpec)})
    if model is not None:
        spec = dataclasses.replace(spec, model=model)
    elif spec.is_code:
        raise ValueError(
            f"predict: the network of {str(folder)!r} is its author's own code, {spec.model!r}, which is not run "
            "just because a folder names it. If you trust that code, name it with model= (command line: --model "
            "python:FILE:FUNCTION)."
        )
    ensemble = load(folder / WEIGHTS, _build(spec, folder))
    _check_outputs(record, ensemble, folder)
    ensemble = ensemble.to(device).eval()
    return Predictor(ensemble, record, _read_distance(record, ensemble, folder))


load_predictor = open  # where `open` is Python's own


# ---------------------------------------------------------------- what a record must be

THRESHOLD = {
    **dict.fromkeys(("value", "coverage", "bound", "risk", "confidence"), Number),
    **dict.fromkeys(("kept", "errors", "examples", "candidates"), int),
    "score": str,
}

VECTOR = (Finite, [Finite], [[Finite]], [[[Finite]]])

PROMISE = {"kind": str, "coverage": Finite, "quantile": (Number, [Number]), "most": Number, "examples": int}

SHAPE = {
    "model": str,
    "shape": [int],
    "outputs": int,
    "width": Finite,
    "dropout": (None, Finite),
    "classes": [str],
    "targets?": [str],
    "mean": VECTOR,
    "std": VECTOR,
    "target_mean": (Finite, [Finite]),
    "target_std": (Finite, [Finite]),
    "threshold?": (None, THRESHOLD),
    "no_threshold?": str,
    "scale?": (None, Finite),
    "cascade?": (None, {"windows": [[Number]], "score": str, "sizes": [int], "report": {str: Any}}),
    "conformal?": (None, PROMISE),
    "no_conformal?": str,
    "evidence?": {str: Any},
    "encoding": {str: Any},
    "distance?": {"kind": str, "head": str, "neighbours": int, "limit": Finite},
}

LARGEST_ROW = 2**26  # numbers in one input: a colour image of 4,700 pixels a side


def _check_record(record: Any) -> None:
    check_shape(record, {"format": int})
    if record["format"] != FORMAT:
        raise ValueError(f"it has format {record['format']!r}, but this version reads {FORMAT}")
    check_shape(record, SHAPE)
    shape, encoding = tuple(record["shape"]), record["encoding"]
    if len(shape) not in (1, 3) or min(shape) < 1 or math.prod(shape) > LARGEST_ROW:
        raise ValueError(f'its "shape" makes no sense: {list(shape[:9])}')
    if not 0 < record["width"] <= 1e6 or not 0 <= (record["dropout"] or 0) < 1:
        raise ValueError(f'its "width" {record["width"]} or its "dropout" {record["dropout"]} makes no sense')
    for name in ("mean", "std"):
        _check_vector(name, record[name], shape)
    check_encoding(encoding)
    targets = record.get("targets", [])
    if encoded_shape(encoding) != shape or encoding["classes"] != record["classes"]:
        raise ValueError("its encoding does not match its shape and classes")
    told = encoding["target"] if isinstance(encoding.get("target"), list) else []
    if targets != told:
        raise ValueError("its encoding does not match its targets")
    each = {"regression": 2 * max(len(targets), 1), "multilabel": len(targets)}
    if record["outputs"] != each.get(encoding["task"], len(record["classes"])):
        raise ValueError(f'its "outputs" are {record["outputs"]} for {len(record["classes"])} classes')
    if record.get("scale") is not None and not record["scale"] > 0:
        raise ValueError(f'its "scale" must be positive, but is {record["scale"]}')
    _check_promises(record)


def _check_promises(record: dict[str, Any]) -> None:
    if record.get("evidence") is not None:
        read_evidence(record["evidence"], bool(record["classes"]))
    kinds = SETS if record["classes"] else INTERVALS
    for name, key, known in (
        ("threshold", "score", SCORES),
        ("conformal", "kind", kinds),
        ("cascade", "score", CASCADE_SCORES),
    ):
        found = record.get(name)
        if found is not None and found[key] not in known:
            raise ValueError(f'its "{name}" has the {key} {found[key]!r}, not one of {", ".join(known)}')


def _check_vector(name: str, values: Any, shape: tuple[int, ...]) -> None:
    try:
        vector = torch.tensor(values)
        fits = torch.broadcast_shapes(vector.shape, shape) == shape
    except (ValueError, RuntimeError, TypeError) as error:
        raise ValueError(f'its "{name}" is not a tensor for inputs of the shape {shape} ({error})') from None
    if not fits or not bool(vector.isfinite().all()) or name == "std" and bool((vector <= 0).any()):
        raise ValueError(f'its "{name}" makes no sense for inputs of the shape {shape}')


def _read_distance(record: dict[str, Any], ensemble: Ensemble, folder: Path) -> FeatureDistance | None:
    """The distance that the record tells of."""
    if (found := record.get("distance")) is None:
        return None
    try:
        _, tensors = read_safetensors(folder / DISTANCE)
        made = FeatureDistance(ensemble.member(0), found["kind"], found["head"], tensors, found["neighbours"])
        check_digest(folder / DISTANCE, note=True)
        return made.to(next(ensemble.parameters()).device)
    except (ValueError, TypeError, AttributeError, OSError) as error:
        raise ValueError(f"predict: {str(folder / DISTANCE)!r} is damaged ({error}). Upgrade again.") from error


def _build(spec: ModelSpec, folder: Path) -> nn.Module:
    """The network, after what it needs was counted: a record can claim any width and any size of images."""
    if not spec.is_code:
        there = (folder / WEIGHTS).stat().st_size if (folder / WEIGHTS).is_file() else 0
        check_claim(f"predict: {str(folder / RECORD)!r} claims a network", _needed_bytes(spec), there)
    return spec.build()


@torch.no_grad()
def _needed_bytes(spec: ModelSpec) -> int:
    """Of its weights, and of the largest output of a layer for one row."""
    largest = [0]
    with torch.device("meta"):
        network = spec.build().eval()
        for module in network.modules():
            module.register_forward_hook(lambda _, given, out: largest.append(sum(t.nbytes for t in tensors_of(out))))
        with suppress(Exception):  # what is wrong with it is said when it is used
            network(torch.empty(1, *spec.shape))
    return sum(tensor.nbytes for tensor in network.state_dict().values()) + max(largest)


def _check_outputs(record: dict[str, Any], ensemble: Ensemble, folder: Path) -> None:
    task = record["encoding"]["task"]
    wanted = {"regression": "gaussian", "multilabel": "binary"}.get(task, "classification")
    if ensemble.task != wanted or task == "segmentation" and ensemble.class_dim != 1:
        raise ValueError(
            f"predict: {str(folder)!r} is damaged: its record is for {wanted}, its weights are for {ensemble.task}. "
            "Train again."
        )
    floats = {name: t for name, t in ensemble.state_dict().items() if isinstance(t, Tensor) and t.is_floating_point()}
    if wrong := [name for name, tensor in floats.items() if tensor.isnan().any()]:  # infinity can be meant, as in masks
        raise ValueError(f"predict: {str(folder)!r} is damaged: its weights {wrong[0]!r} hold NaN. Train again.")
