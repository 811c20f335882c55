"""The options that `compare` and `train` share: what a run is trained on, which network, and how."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_type_hints

from ..._common.names import say_unknown
from ...study.settings import PUBLISHED
from . import options


@dataclass(frozen=True)
class RunOptions:
    """What was said about the data, the network and the training of a run."""

    data_dir: options.Folder = None
    target: options.Target = None
    task: options.Task = None
    image_size: options.ImageSize = None
    split: options.Split = 0
    broken: options.Broken = "stop"
    unpack_limit: options.UnpackLimit = None
    missing: options.Missing = ""
    numbers: options.Numbers = "standard"
    train_rows: options.TrainRows = None
    validation: options.Validation = None
    long_texts: options.LongTexts = "cut"
    model: options.Model = None
    weights: options.Weights = None
    pretrained: options.Pretrained = False
    width: options.StudyWidth = None
    dropout: options.Dropout = None
    size: options.Size = None
    recipe: options.Recipe = None
    augment: options.Augment = None
    epochs: options.Epochs = None
    patience: options.Patience = None
    batch_size: options.BatchSize = None
    lr: options.Rate = None
    weight_decay: options.Decay = None
    device: options.Device = "cpu"
    quiet: options.Quiet = False
    as_json: options.AsJson = False

    @property
    def silent(self) -> bool:
        """Whether only the result is printed."""
        return self.quiet or self.as_json

    def conditions(self, data: list[str], *, train_rows: int | None = None, **source: str) -> dict[str, Any]:
        """What these options say of the `study.settings.Conditions` of runs on `data`."""
        from ...training.augmentation import AUGMENTATIONS

        training = ("epochs", "patience", "batch_size", "lr", "weight_decay", "augment")
        if self.augment is not None and self.augment not in AUGMENTATIONS:
            raise ValueError(f"--augment: {say_unknown(self.augment, AUGMENTATIONS)}")
        described = ("target", "task", "image_size", "split", "broken", "unpack_limit", "validation", "long_texts")
        return {
            "size": self.size,
            "width": self.width or (options.DEMO_WIDTH if self.is_demo(data) else 1.0),
            "dropout": self.dropout,
            "recipe": self.recipe or ("digits" if data == ["digits"] else "default"),
            "training": {
                **(FINE_TUNING if self.reads_texts(data) or self.start else {}),
                **options.training_options(**{name: getattr(self, name) for name in training}),
            },
            "source": options.source_options(
                folder=self.data_dir,
                train_rows=self.train_rows or train_rows,
                tokenizer=(self.model or "")[3:] if self.reads_texts(data) else None,
                **{name: getattr(self, name) for name in (*described, "missing", "numbers")},
                **source,
            ),
            "device": self.device,
            "weights": self.start,
        }

    @property
    def start(self) -> str:
        """The trained weights that runs start from, as `Conditions.weights` has them."""
        if not self.weights and not self.pretrained:
            return ""
        if self.weights and self.pretrained:
            raise ValueError("--weights and --pretrained both say where training starts. Give one of them.")
        if self.model is None or self.model.startswith("hf:"):
            kind = "a transformers folder brings its own" if self.model else "no --model was given"
            raise ValueError(f"--weights and --pretrained are the weights of --model, but {kind}.")
        return PUBLISHED if self.weights is None else str(self.weights.expanduser().absolute())

    def reads_texts(self, data: list[str]) -> bool:
        """Whether the network is one of transformers, which takes texts and nothing else."""
        reads = (self.model or "").startswith("hf:")
        for spec in data if reads else ():
            if not spec.startswith("text:"):
                raise ValueError(f"--model {self.model} takes texts, as in --data text:reviews.csv, not {spec}.")
        return reads

    def is_demo(self, data: list[str]) -> bool:
        """Whether nobody said what to train on or how: then the built-in digits show what ensembles are for."""
        return data == ["digits"] and self.model is None and self.recipe is None


FINE_TUNING = {"epochs": 3, "lr": 5e-5, "batch_size": 32}  # of networks that are trained already, where nobody says so


def takes_run_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options of `RunOptions` one by one in the place of its argument `run`."""
    names = [one.name for one in dataclasses.fields(RunOptions)]

    @functools.wraps(command)
    def with_options(**given: Any) -> None:
        run = RunOptions(**{name: given.pop(name) for name in names})
        command(**given, run=run)

    hints, shared = get_type_hints(command, include_extras=True), inspect.signature(RunOptions, eval_str=True)
    parameters: list[inspect.Parameter] = []
    for name, one in inspect.signature(command).parameters.items():
        parameters += shared.parameters.values() if name == "run" else [one.replace(annotation=hints[name])]
    plain = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]
    with_options.__signature__ = inspect.Signature(plain)  # type: ignore[attr-defined]
    with_options.__annotations__ = {one.name: one.annotation for one in plain}
    return with_options
