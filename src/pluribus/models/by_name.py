"""A network by name, for data of a shape: ours, timm's or your own."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import inspect
import math
import sys
import traceback
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import parse_qsl

import torch
from torch import Tensor, nn

from .._common.names import say_unknown
from .._common.optional import require
from ..data.source import list_names
from ..data.text_folders import build_text_classifier, read_config, read_text_classifier
from ..models import DENSE_MODELS
from ..models import MODELS as ONE_ANSWER
from ..surgery.calling import evaluation_mode
from ..surgery.thinning.rescaling import thin

MODELS = {**ONE_ANSWER, **DENSE_MODELS}

LARGE = 128  # images of this side and larger get a stem for ImageNet


@dataclass(frozen=True)
class ModelSpec:
    """A network in plain values, from which it is built anywhere; arguments as for `build_network`.

    >>> ModelSpec("mlp", (8,), 3, width=0.5).build().fc1
    Linear(in_features=8, out_features=100, bias=True)
    """

    model: str
    shape: tuple[int, ...]
    outputs: int
    width: float = 1.0
    dropout: float | None = None

    @property
    def is_code(self) -> bool:
        """Whether the network is a function of somebody's own, which is run to build it."""
        return self.model.startswith("python:")

    def build(self) -> nn.Module:
        """A new network."""
        return build_network(self.model, tuple(self.shape), self.outputs, width=self.width, dropout=self.dropout)

    def widen(self, factor: float) -> ModelSpec:
        """The same network with its hidden widths multiplied."""
        return dataclasses.replace(self, width=self.width * factor)

    def absolute(self) -> ModelSpec:
        """The same network; one of your own by the whole path of its file, so that it is found from any folder."""
        kind, _, rest = self.model.partition(":")
        path, _, function = rest.rpartition(":")
        if kind == "hf":
            return dataclasses.replace(self, model=f"hf:{Path(rest).expanduser().absolute()}")
        if kind != "python" or not path.endswith(".py"):
            return self
        return dataclasses.replace(self, model=f"python:{Path(path).absolute()}:{function}")


def build_network(
    spec: str, shape: tuple[int, ...], outputs: int, *, width: float = 1.0, dropout: float | None = None
) -> nn.Module:
    """A new network that takes rows of `shape` and gives `outputs` numbers for each.

    Args:
        spec: a name in MODELS, with further arguments as in "wide_resnet28_10?bias=true"; "timm:NAME";
            "hf:PATH", a folder of transformers, with its weights; or
            "python:MODULE:FUNCTION" (MODULE may be a file), your own function, called with those of num_classes,
            channels, image, inputs, width and dropout that it takes
        width: hidden widths relative to the network's own; where its builder takes none, it is thinned or widened
        dropout: the rate, where the builder takes one; None: its own

    >>> build_network("mlp", (8,), 3, width=0.5).fc1
    Linear(in_features=8, out_features=100, bias=True)
    """
    kind, _, name = spec.partition(":")
    if kind == "timm" and name:
        return _resize(_timm(name, shape, outputs, dropout), width, shape)
    if kind == "hf" and name:
        return _hugging_face(name, shape, outputs, width, dropout)
    if kind == "python" and name:
        return _build(spec, _import(name), shape, outputs, width, dropout)
    name, _, query = spec.partition("?")
    if name not in MODELS:
        raise ValueError(f"model: {say_unknown(name, MODELS, ', timm:NAME, hf:PATH, or python:MODULE:FUNCTION')}")
    words = {"true": True, "false": False}
    options = {key: words.get(value, value) for key, value in parse_qsl(query)}
    return _build(name, MODELS[name], shape, outputs, width, dropout, **options)


def usual(shape: tuple[int, ...], dense: bool = False) -> str:
    """The network that rows of this shape get when none is named; `dense`: where every pixel gets an answer."""
    if dense:
        return "unet"
    if len(shape) != 3 or shape[-1] < 16:
        return "mlp"
    return "lenet" if shape[-1] <= 32 and shape[0] == 1 else "small_cnn" if shape[-1] <= 64 else "resnet18"


def _build(
    spec: str, build: Any, shape: tuple[int, ...], outputs: int, width: float, dropout: float | None, **options: Any
) -> nn.Module:
    takes = inspect.signature(build).parameters
    free = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in takes.values()) and spec in MODELS
    offered: dict[str, Any] = {"num_classes": outputs, "width": width}
    if len(shape) == 3:
        offered |= {"channels": shape[0], "image": shape[-1]}
        if free:
            offered["style"] = "imagenet" if shape[-1] >= LARGE else "cifar"
    elif spec in MODELS and "inputs" not in takes:
        raise ValueError(f"model: {spec} takes images, but the rows have the shape {tuple(shape)}. Use mlp.")
    if "inputs" in takes:
        offered["inputs"] = math.prod(shape)
    if dropout is not None:
        offered["dropout"] = dropout
    known = {"channels", "style", "dropout"} if free else set()
    try:
        model = build(**{key: value for key, value in offered.items() if key in takes or key in known}, **options)
    except Exception as error:  # whatever the code of a user raises, or ours on sizes that no network has
        raise ValueError(
            f"model: {spec} cannot build a network with {offered}: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(model, nn.Module):
        raise TypeError(f"model: {spec} must give an nn.Module, but it gives a {type(model).__name__}.")
    return model if "width" in takes else _resize(model, width, shape)


def published_network(spec: ModelSpec) -> nn.Module:
    """timm's network with the weights that timm has for it, from the local cache; the head is drawn anew."""
    kind, _, name = spec.model.partition(":")
    if kind != "timm" or spec.width != 1:
        raise ValueError(
            f"--pretrained: published weights exist only for timm:NAME at its own width, but the model is {spec.model} "
            f"of width {spec.width:g}. Give --weights FILE."
        )
    try:
        return _timm(name, tuple(spec.shape), spec.outputs, spec.dropout, pretrained=True)
    except (ValueError, TypeError):
        raise
    except Exception as error:  # whatever the hub's client raises where it can reach nothing
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise ValueError(
            f"--pretrained: timm's weights for {name} are not in the local cache and cannot be downloaded "
            f"({reason}). Put them there, or give --weights FILE."
        ) from error


def _timm(
    name: str, shape: tuple[int, ...], outputs: int, dropout: float | None, pretrained: bool = False
) -> nn.Module:
    timm = require("timm", f"the model timm:{name}", "timm")
    if name not in timm.list_models():
        near = timm.list_models(f"*{name[:8]}*")[:12]
        raise ValueError(
            f"model: timm has no {name!r}. "
            + (f"Similar names: {', '.join(near)}." if near else "timm.list_models() gives all names.")
        )
    if len(shape) != 3:
        raise ValueError(f"model: timm:{name} takes images, but the rows have the shape {tuple(shape)}. Use mlp.")
    settings: dict[str, Any] = {"num_classes": outputs, "in_chans": shape[0], "pretrained": pretrained}
    if dropout is not None:
        settings["drop_rate"] = dropout
    try:
        try:
            return timm.create_model(name, img_size=shape[-1], **settings)  # transformers know the size of their images
        except TypeError:
            return timm.create_model(name, **settings)
    except Exception as error:
        if pretrained:  # what is missing is said where the weights were asked for
            raise
        said = f"{type(error).__name__}: {error}".splitlines()[0].rstrip(".")
        raise ValueError(
            f"model: timm:{name} cannot build a network for rows of the shape {tuple(shape)} ({said})."
        ) from error


class TextClassifier(nn.Module):
    """A text classifier of transformers for rows of tokens as tables give them, padded at the end.

    Shapes:
        input: (batch, tokens), whole numbers
        output: (batch, outputs)
    """

    def __init__(self, network: nn.Module, padding: int):
        super().__init__()
        self.network, self.padding = network, padding

    def forward(self, x: Tensor) -> Tensor:
        """The logits of each row."""
        return self.network(input_ids=x, attention_mask=(x != self.padding).long()).logits


def _hugging_face(path: str, shape: tuple[int, ...], outputs: int, width: float, dropout: float | None) -> nn.Module:
    """The network in a folder; a head that it has is kept, otherwise one is drawn. Code in the folder is never run."""
    folder = Path(path).expanduser()
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"model: hf:{path} must be a folder with config.json, but there is none.")
    if len(shape) != 1 or width != 1 or dropout is not None:
        raise ValueError(f"model: hf:{path} takes texts (--data text:FILE), and keeps its own width and dropout.")
    try:
        config = read_config(folder)
        has_head = any("ForSequenceClassification" in name for name in config.architectures or ())
        if has_head and config.num_labels != outputs:
            names = list_names([str(name) for name in config.id2label.values()])
            raise ValueError(f"it has outputs for {config.num_labels} labels ({names}), but {outputs} are needed")
        config.num_labels = outputs
        counted = torch.get_default_device().type == "meta"
        network = build_text_classifier(config) if counted else read_text_classifier(folder, config)
    except (ValueError, OSError) as error:
        raise ValueError(f"model: hf:{path} cannot be used: {str(error).rstrip('.')}.") from None
    if config.pad_token_id is None:
        raise ValueError(f"model: hf:{path} has no pad_token_id in its config.json, so texts cannot be padded.")
    return TextClassifier(network, int(config.pad_token_id))


def _import(name: str) -> Any:
    module, _, function = name.rpartition(":")
    if not module:
        raise ValueError(f"model: python:{name} must be python:MODULE:FUNCTION, such as python:nets.py:build.")
    path = Path(module).resolve()
    try:
        loaded = _run_file(path, path.stat().st_mtime_ns) if path.suffix == ".py" else importlib.import_module(module)
        return getattr(loaded, function)
    except Exception as error:  # whatever the code of a user raises
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f", line {place.lineno} of {place.filename}" if Path(place.filename).name == Path(module).name else ""
        raise ValueError(f"model: python:{name} cannot be loaded: {type(error).__name__}: {error}{where}.") from error


@cache
def _run_file(path: Path, changed: int) -> ModuleType:
    """The module of a file, run once for as long as the file is the same: networks of one class are alike."""
    specification = importlib.util.spec_from_file_location(path.stem, path)
    assert specification is not None and specification.loader is not None
    loaded = importlib.util.module_from_spec(specification)
    sys.modules.setdefault(path.stem, loaded)
    specification.loader.exec_module(loaded)
    return loaded


def _resize(model: nn.Module, width: float, shape: tuple[int, ...]) -> nn.Module:
    if width == 1:
        return model
    with evaluation_mode(model):
        return thin(model, width, torch.zeros(2, *shape))
