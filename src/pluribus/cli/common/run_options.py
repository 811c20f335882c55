"""The options that `compare` and `train` share: what a run is trained on, which network, and how."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from ..._common.names import say_unknown
from ...study.settings import PUBLISHED
from . import options


def option(default: Any, about: str, *names: str, **limits: Any) -> Any:
    """A field that is an option of the command line, with its help."""
    return field(default=default, metadata={"option": typer.Option(*names, help=about, **limits)})


@dataclass(frozen=True)
class RunOptions:
    """What was said about the data, the network and the training of a run."""

    data_dir: options.Folder = None
    target: options.Target = None
    task: str | None = option(
        None, "classification, regression, multilabel or segmentation, if the data leave it open."
    )
    image_size: options.ImageSize = None
    split: int = option(0, "Which standard split of a UCI data set to use.")
    broken: options.Broken = "stop"
    unpack_limit: options.UnpackLimit = None
    missing: str = option("", "Words for a missing value in a table, in addition to empty fields: NA,-999, ...")
    numbers: str = option(
        "standard",
        "How numbers of a table are read: standard, quantile (to a normal distribution) or piecewise (in bins).",
    )
    train_rows: int | None = option(None, "Train on only this many rows, the same share of each class.", min=2)
    validation: float | None = option(
        None, "The share of rows for validation, if the data have no such part [0.1].", min=0.0
    )
    long_texts: str = option("cut", "What to do with texts that are too long for the model: cut or refuse.")
    model: options.Model = None
    weights: Path | None = option(
        None, "Fine-tune from these trained weights of --model: .safetensors, or a torch.save file."
    )
    pretrained: bool = option(
        False, "Fine-tune from timm's pretrained weights for timm:NAME, in the local cache.", "--pretrained"
    )
    width: float | None = option(None, "A factor on the hidden widths of the network [digits: 2].")
    dropout: options.Dropout = None
    size: int | None = option(None, "The number of members [4, or what the recipe says].", min=1, max=10_000)
    recipe: str | None = option(None, "The training settings of a paper, by name; see `pluribus recipes`.")
    augment: str | None = option(
        None,
        "Augment training images: none, hflip, crop (flips and padded crops) or medium (RandAugment, mixup, cutmix) "
        "[what the recipe says].",
    )
    epochs: options.Epochs = None
    patience: int | None = option(None, "Stop after this many epochs without improvement on validation data.", min=1)
    batch_size: options.BatchSize = None
    lr: options.Rate = None
    weight_decay: float | None = option(None, "The weight decay.", min=0)
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
    fields, kinds = dataclasses.fields(RunOptions), get_type_hints(RunOptions, include_extras=True)

    @functools.wraps(command)
    def with_options(**given: Any) -> None:
        run = RunOptions(**{one.name: given.pop(one.name) for one in fields})
        command(**given, run=run)

    shared = []
    for one in fields:
        kind: Any = Annotated[kinds[one.name], one.metadata["option"]] if one.metadata else kinds[one.name]
        shared.append(inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=kind))
    hints, parameters = get_type_hints(command, include_extras=True), list[inspect.Parameter]()
    for name, own in inspect.signature(command).parameters.items():
        parameters += shared if name == "run" else [own.replace(annotation=hints[name])]
    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {one.name: one.annotation for one in parameters}
    return with_options
