"""Options that several commands take, and what they mean."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from ..._common.untrusted import parse_json

_DATA = "The data to train on: a name (see `pluribus data`) or KIND:PATH, such as folder:photos/ or table:houses.csv."
Data = Annotated[str, typer.Option("--data", help=_DATA)]
TrainData = Annotated[str | None, typer.Option("--data", help=f"{_DATA} [digits]")]
SeveralData = Annotated[str, typer.Option("--data", help=f"{_DATA} Separate several with commas.")]
Folder = Annotated[Path | None, typer.Option("--data-dir", help="The folder that holds data sets [PLURIBUS_DATA].")]
Target = Annotated[str | None, typer.Option(help="The table column to predict; or several, comma-separated.")]
Outside = Annotated[str, typer.Option(help="Out-of-distribution (OOD) data: names or KIND:PATH, comma-separated.")]
Shifted = Annotated[str, typer.Option(help="Published shifted test sets, such as cifar10_c, comma-separated.")]
Variants = Annotated[
    str, typer.Option(help="Other test sets with the same classes, such as imagenet_r, comma-separated.")
]
ImageSize = Annotated[int | None, typer.Option(help="Resize images to this side length, in pixels.")]
Broken = Annotated[str, typer.Option(help="What to do with images that cannot be read: stop or skip.")]

Model = Annotated[
    str | None,
    typer.Option(
        help="A built-in network (resnet18, mlp, ...), timm:NAME (the architecture, with random weights unless you add "
        "--pretrained), hf:FOLDER (a transformers text classifier with its weights), or python:MODULE:FUNCTION. The "
        "default is a small network that fits the data."
    ),
]
OwnModel = Annotated[
    str | None,
    typer.Option(
        help="python:FILE:FUNCTION, if the network of the folder is your own code; that code runs only if you say so."
    ),
]
UnpackLimit = Annotated[
    str | None,
    typer.Option(help="The largest size that a compressed file may unpack to, such as 8G [20 times its size]."),
]

Width = Annotated[float, typer.Option(help="A factor on the hidden widths of the network.")]
Dropout = Annotated[float | None, typer.Option(help="The dropout rate.")]

TrainMethod = Annotated[
    str | None, typer.Option("--method", help="A method: {methods}; or a baseline: {baselines}. [packed]")
]
Methods = Annotated[
    str,
    typer.Option(
        help="The methods, comma-separated: {methods} (by default all that train from scratch); also {baselines}."
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        help="Threads of each run [compare: 1, since it runs --jobs at once; train: 1 for tables, whose small networks "
        "are slower with more, else all cores]. Results are the same for the same number.",
        min=1, max=max(os.cpu_count() or 1, 64),
    ),
]  # fmt: skip
Sweep = Annotated[
    list[str] | None,
    typer.Option(
        help="Try several values, such as alpha=1,2,4, for any argument of a method, or for width, dropout, size, lr, "
        "l1, l2, ..."
    ),
]
Choose = Annotated[
    str | None,
    typer.Option(help="Show only the setting of a sweep that has the best value of this metric on validation data."),
]
Corruptions = Annotated[
    str, typer.Option(help="Corruptions of the test images: some, all, benchmark, none, or comma-separated names.")
]
Files = Annotated[list[Path], typer.Argument(help="Images, folders of images, .npz files, or a CSV or Parquet table.")]

Epochs = Annotated[
    int | None,
    typer.Option(help="Passes over the training data [depends on the number of rows, with early stopping].", min=1),
]
BatchSize = Annotated[int | None, typer.Option(help="Rows per training step [what the recipe says].", min=1)]
Rate = Annotated[float | None, typer.Option("--lr", help="The learning rate.", min=0)]
Device = Annotated[str, typer.Option(help="Where to train: cpu, cuda, cuda:1, ...")]

Seed = Annotated[int, typer.Option(help="The seed for everything random.")]
TrainSeed = Annotated[int | None, typer.Option("--seed", help="The seed for everything random [0].")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts, and nothing else.")]

MANY = 15  # options, from which on the help of a command shows them in groups
PANELS = {
    "Data": (
        "data", "outside", "shifted", "variants", "data_dir", "target", "task", "image_size", "split", "broken",
        "unpack_limit", "missing", "numbers", "train_rows", "validation", "long_texts", "corruptions", "shift_rows",
    ),
    "Model": ("model", "weights", "pretrained", "width", "dropout"),
    "Training": (
        "recipe", "augment", "epochs", "patience", "batch_size", "lr", "weight_decay", "device", "threads", "settings",
    ),
    "Study": (
        "study", "method", "methods", "size", "seed", "seeds", "first_seed", "sweep", "choose", "jobs", "ray", "yes",
    ),
}  # fmt: skip  # the others are about the output


class ListsMethods(TyperCommand):
    """A command whose help names the methods that there are; they are imported only when it is asked for."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help with the names filled in."""
        from ...methods import METHODS
        from ...study.baselines import entries

        baselines = [name for name in entries() if name not in METHODS]
        names = {"methods": ", ".join(METHODS), "baselines": ", ".join(baselines)}
        hide_values_of_flags_(self.get_params(ctx))
        for option in self.params:
            if "{methods}" in (getattr(option, "help", None) or ""):
                option.help = option.help.format(**names)  # type: ignore[attr-defined]
        if len(self.params) > MANY:
            groups = {name: panel for panel, names in PANELS.items() for name in names}
            for option in self.get_params(ctx):
                option.rich_help_panel = groups.get(option.name or "", "Output")  # type: ignore[attr-defined]
            order = [*PANELS, "Output"]
            self.params.sort(key=lambda option: order.index(option.rich_help_panel))  # type: ignore[attr-defined]
        super().format_help(ctx, formatter)


def hide_values_of_flags_(parameters: Iterable[Any]) -> None:
    """A flag takes no value, so help shows none."""
    for option in parameters:
        if getattr(option, "is_flag", False):
            option.metavar = ""


# The papers' regime in small: a network that is larger than its task, trained until validation stops improving.
DEMO_ROWS, DEMO_WIDTH = 1000, 2.0


def source_options(**arguments: Any) -> dict[str, Any]:
    """What `data.load` is given in addition to the name; only what was said."""
    several = {key: split_names(arguments.pop(key, "")) for key in ("outside", "shifted", "variants")}
    several["missing"] = split_names(arguments.pop("missing", ""))
    if arguments.get("folder") is not None:
        arguments["folder"] = str(arguments["folder"])
    usual = {"split": 0, "broken": "stop", "long_texts": "cut", "numbers": "standard"}
    said = {key: value for key, value in arguments.items() if value is not None and usual.get(key) != value}
    return {**said, **{key: value for key, value in several.items() if value}}


def training_options(**arguments: Any) -> dict[str, Any]:
    """What is changed in the recipe; only what was said."""
    return {key: value for key, value in arguments.items() if value is not None}


def split_names(text: str | None) -> list[str]:
    """The parts of a text with commas."""
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def _value(text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError:
        return {"None": None, "True": True, "False": False}.get(text, text)


def settings(given: list[str], several: bool) -> dict[str, Any]:
    """NAME=VALUE, or NAME=VALUE,VALUE,... of a sweep."""
    found: dict[str, Any] = {}
    for item in given:
        name, sign, values = item.partition("=")
        if not sign or not name.strip() or not values.strip():
            form = "NAME=VALUE,VALUE,..." if several else "NAME=VALUE"
            raise ValueError(f"{'--sweep' if several else '--set'}: must be {form}, but it is {item!r}.")
        if name.strip() in found:
            raise ValueError(
                f"--sweep: {name.strip()} is given twice. Give all its values at once: {name.strip()}=1,2."
            )
        found[name.strip()] = [_value(part) for part in split_names(values)] if several else _value(values.strip())
    return found


def whole_number(option: str, text: str) -> int:
    """A whole number above 0."""
    if not text.isdigit() or not int(text):
        raise ValueError(f"{option}: must be whole numbers above 0, comma-separated, but it has {text!r}.")
    return int(text)


def budget(option: str, text: str) -> tuple[float, bool]:
    """A limit, and whether it is a multiple of the network's own: 1.5, 1.5x; or absolute: 2M, 0.5G, 20ms, 3s.

    >>> budget("--parameters", "1.5"), budget("--parameters", "2M"), budget("--latency", "20ms")
    ((1.5, True), (2000000.0, False), (0.02, False))
    """
    units = {"": 1.0, "x": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "ms": 1e-3, "s": 1.0}
    found = re.fullmatch(r"([0-9.]+(?:e-?\d+)?)\s*(x|k|M|G|T|ms|s)?", text.strip())
    try:
        number = float(found.group(1)) if found else math.nan
    except ValueError:
        number = math.nan
    if found is None or not number > 0:
        raise ValueError(f"{option}: must be a multiple such as 1.5, or an amount such as 2M or 20ms, not {text!r}.")
    unit = found.group(2) or ""
    return number * units[unit], unit in ("", "x")


def check_device(name: str) -> None:
    """Refuse a device that is not here."""
    import torch

    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(
            f"--device: {name!r} cannot be used ({reason}). Choose cpu, or cuda on a machine that has it."
        ) from None
