"""A trained ensemble with everything that a prediction needs: network, classes, encoding, threshold. No pickle."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .conformal import Threshold, abstain
from .data import Data, encoded
from .ensemble import Ensemble
from .files import load, save
from .freeze import freeze
from .networks import network
from .prediction import Classification, Regression, gaussian
from .runs import BASELINES, ROWS, Run, model_of, outputs_of
from .tracing import Members

FORMAT = 1
WEIGHTS, RECORD, TRAINING = "ensemble.safetensors", "bundle.json", "training"


@dataclass
class Bundle:
    """An ensemble that answers for files: `store` writes it to a folder, `opened` reads it back.

    Args:
        record: plain values: the network, the shape of a row, classes, encoding, scaling, threshold, figures
    """

    ensemble: Ensemble
    record: dict[str, Any]

    @property
    def threshold(self) -> Threshold | None:
        """Below it an answer is accepted; None where the validation data could not promise the risk."""
        found = self.record.get("threshold")
        return None if found is None else Threshold(**found)

    def answers(self, source: Any, *, broken: Any = "stop", batch_size: int = ROWS) -> Iterator[dict[str, Any]]:
        """One dict for each row of a table or each picture: what it is, how sure, and whether to accept it."""
        split = encoded(self.record["encoding"], source, broken=broken)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # MC-Dropout draws the same for the same files
            yield from self._answers(split, batch_size)

    def _answers(self, split: Any, batch_size: int) -> Iterator[dict[str, Any]]:
        for start in range(0, len(split), batch_size):
            rows = range(start, min(start + batch_size, len(split)))
            prediction: Any = self.ensemble.predict(self._normalised(split[list(rows)][0]))
            names = split.names(list(rows))
            for i, name in enumerate(names):
                one = self._classified(prediction, i) if self.record["classes"] else self._estimated(prediction, i)
                yield {"name": name, **one}

    def for_export(self, rows: int, frozen: bool = True) -> tuple[nn.Module, Tensor]:
        """A module that takes inputs as files have them and normalises them itself, and an example for it."""
        example = torch.rand(rows, *self.record["shape"])
        return Whole(self, self._normalised(example) if frozen else None), example

    def _normalised(self, x: Tensor) -> Tensor:
        return (x - torch.tensor(self.record["mean"])) / torch.tensor(self.record["std"])

    def _classified(self, prediction: Classification, i: int) -> dict[str, Any]:
        parts = {part: float(getattr(prediction, part)[i]) for part in ("confidence", "aleatoric", "epistemic")}
        found: dict[str, Any] = {"label": self.record["classes"][int(prediction.label[i])], **parts}
        threshold = self.threshold  # without one, nothing can be promised
        kept = threshold is not None and bool(threshold.keep(prediction[i : i + 1]))
        return {**found, "decision": "accept" if kept else "abstain"}

    def _estimated(self, prediction: Regression, i: int) -> dict[str, Any]:
        shift, scale = self.record["target_mean"], self.record["target_std"]
        low, high = prediction[i : i + 1].interval(0.9)
        return {
            "value": float(prediction.mean[i]) * scale + shift,
            "low": float(low) * scale + shift,
            "high": float(high) * scale + shift,
            "aleatoric": float(prediction.aleatoric[i]) * scale**2,
            "epistemic": float(prediction.epistemic[i]) * scale**2,
        }


class Whole(nn.Module):
    """The ensemble behind its normalisation, and for regression before its scaling: (members, batch, outputs)."""

    def __init__(self, bundle: Bundle, example: Tensor | None):
        super().__init__()
        self.task, self.class_dim = bundle.ensemble.task, bundle.ensemble.class_dim
        self.inner = Members(bundle.ensemble) if example is None else freeze(bundle.ensemble, example)
        self.mean = nn.Buffer(torch.tensor(bundle.record["mean"]))
        self.std = nn.Buffer(torch.tensor(bundle.record["std"]))
        self.shift, self.scale = bundle.record["target_mean"], bundle.record["target_std"]

    def forward(self, x: Tensor) -> Any:
        """Every member on every row."""
        outputs = self.inner((x - self.mean) / self.std)
        if self.task != "gaussian":
            return outputs
        means, variances = gaussian(outputs)
        return means * self.scale + self.shift, variances * self.scale**2


def claim(run: Run, folder: Path, overwrite: bool = False) -> None:
    """The folder belongs to one training; what another wrote is not replaced unawares."""
    mine = json.loads(json.dumps(dataclasses.asdict(run), default=list))
    mark = folder / TRAINING / "run.json"
    for path, found in ((mark, _json(mark)), (folder / RECORD, _json(folder / RECORD).get("run"))):
        if not path.exists() or overwrite:
            continue
        keys = [key for key in mine if mine[key] != (found or {}).get(key)]
        if keys:
            raise ValueError(
                f"train: {str(folder)!r} holds another training, which differs in {', '.join(keys)}. "
                "Choose another --out, or replace it with --overwrite."
            )
    if overwrite:
        shutil.rmtree(folder / TRAINING, ignore_errors=True)
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.write_text(json.dumps(mine))


def _json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return {}


def bundled(run: Run, data: Data, ensemble: Ensemble, figures: dict[str, Any], risk: float | None = 0.05) -> Bundle:
    """The trained ensemble of a run; the threshold for `risk` is found on the validation part."""
    if BASELINES[run.method].method != ensemble.method and run.method != "dropout_single_pass":
        raise ValueError(f"bundle: the run trains {run.method}, but the ensemble is made by {ensemble.method}.")
    record: dict[str, Any] = {
        "format": FORMAT,
        "model": _absolute(model_of(run, data)),
        "shape": list(data.shape),
        "outputs": outputs_of(data),
        "width": run.width * BASELINES[run.method].width,
        "dropout": run.dropout,
        "method": run.method,
        "data": run.data,
        "classes": list(data.classes),
        "mean": data.mean.tolist(),
        "std": data.std.tolist(),
        "target_mean": data.target_mean,
        "target_std": data.target_std,
        "encoding": data.encoding,
        "figures": figures,
        "run": json.loads(json.dumps(dataclasses.asdict(run), default=list)),
        "threshold": None,
    }
    made = Bundle(ensemble, record)
    if data.classes and risk is not None and len(data.validation):
        prediction: Any = ensemble.predict((data.normalise(x), y) for x, y in data.validation.batches(ROWS))
        try:
            record["threshold"] = dataclasses.asdict(abstain(prediction, data.validation.y, risk))
        except ValueError as error:
            record["no_threshold"] = str(error)
    return made


def _absolute(model: str) -> str:
    """A network of your own by the whole path of its file, so that it opens from any folder."""
    kind, _, rest = model.partition(":")
    path, _, function = rest.rpartition(":")
    return f"python:{Path(path).absolute()}:{function}" if kind == "python" and path.endswith(".py") else model


def store(bundle: Bundle, folder: str | Path) -> Path:
    """Write the folder; the record comes last, so that a folder that was cut short is not taken for whole."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RECORD).unlink(missing_ok=True)
    save(bundle.ensemble, folder / WEIGHTS)
    temporary = folder / f".{RECORD}.{os.getpid()}"
    temporary.write_text(json.dumps(bundle.record, indent=1))
    os.replace(temporary, folder / RECORD)
    return folder


def opened(folder: str | Path, device: torch.device | str = "cpu") -> Bundle:
    """The bundle in a folder."""
    folder = Path(folder)
    if not (folder / RECORD).is_file():
        raise FileNotFoundError(
            f"predict: {str(folder)!r} is no trained ensemble: there is no {RECORD} in it. "
            "Make one with: pluribus train --out FOLDER"
        )
    try:
        record = json.loads((folder / RECORD).read_text())
    except ValueError as error:
        raise ValueError(f"predict: {str(folder / RECORD)!r} is damaged ({error}). Train again.") from error
    if record.get("format") != FORMAT:
        raise ValueError(
            f"predict: {str(folder / RECORD)!r} has format {record.get('format')!r}, but this version reads {FORMAT}."
        )
    model = network(
        record["model"], tuple(record["shape"]), record["outputs"], width=record["width"], dropout=record["dropout"]
    )
    ensemble = load(folder / WEIGHTS, model)
    return Bundle(ensemble.to(device).eval(), record)
