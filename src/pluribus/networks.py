"""A network by name, for data of a shape: ours, timm's or your own."""

from __future__ import annotations

import importlib
import inspect
import math
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .models import MODELS
from .outside import outside
from .surgery import quiet
from .thinning import thin

LARGE = 128  # pictures of this side and larger get a stem for ImageNet


def network(
    spec: str, shape: tuple[int, ...], outputs: int, *, width: float = 1.0, dropout: float | None = None
) -> nn.Module:
    """A new network that takes rows of `shape` and gives `outputs` numbers for each.

    Args:
        spec: a name in MODELS; "timm:NAME"; or "python:MODULE:FUNCTION" (MODULE may be a file), your own function,
            called with those of num_classes, channels, image, inputs, width and dropout that it takes
        width: hidden widths relative to the network's own; where its builder takes none, it is thinned or widened
        dropout: the rate, where the builder takes one; None: its own

    >>> network("mlp", (8,), 3, width=0.5).fc1
    Linear(in_features=8, out_features=100, bias=True)
    """
    kind, _, name = spec.partition(":")
    if kind == "timm" and name:
        return _resized(_timm(name, shape, outputs, dropout), width, shape)
    if kind == "python" and name:
        return _built(spec, _imported(name), shape, outputs, width, dropout)
    if spec not in MODELS:
        raise ValueError(
            f"model: {spec!r} is unknown. Choose from {', '.join(MODELS)}, timm:NAME, or python:MODULE:FUNCTION."
        )
    return _built(spec, MODELS[spec], shape, outputs, width, dropout)


def usual(shape: tuple[int, ...]) -> str:
    """The network that rows of this shape get when none is named."""
    if len(shape) != 3 or shape[-1] < 16:
        return "mlp"
    return "lenet" if shape[-1] <= 32 and shape[0] == 1 else "small_cnn" if shape[-1] <= 64 else "resnet18"


def last_part(model: nn.Module) -> str:
    """A pattern of what TreeNet's members own when nobody says: the last layer and the part with weights before it.

    Parts are the children of the model; one that holds most of the weights in more than three parts is opened. The
    first part stays shared, or TreeNet would be a deep ensemble.

    >>> last_part(MODELS["resnet18"]())
    'layer4|fc'
    """
    found: list[str] = []
    for name, part in reversed(_parts(model, sum(p.numel() for p in model.parameters()))[1:]):
        found.insert(0, name)
        if len(found) > 1 and any(p.ndim > 1 for p in part.parameters()):
            break
    return "|".join(name.replace(".", r"\.") for name in found)


def dropout_rate(model: nn.Module) -> float:
    """The largest rate of the model's own dropout; 0 without any."""
    kinds = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
    return max((part.p for part in model.modules() if isinstance(part, kinds)), default=0.0)


def _parts(model: nn.Module, total: int) -> list[tuple[str, nn.Module]]:
    found = []
    for name, part in model.named_children():
        own = sum(p.numel() for p in part.parameters())
        inside = [child for child in part.children() if any(True for _ in child.parameters())]
        if own > total / 2 and len(inside) > 3 and isinstance(part, (nn.Sequential, nn.ModuleList)):
            found += [(f"{name}.{child}", module) for child, module in _parts(part, own)]
        elif own:
            found.append((name, part))
    return found


def _built(
    spec: str, build: Any, shape: tuple[int, ...], outputs: int, width: float, dropout: float | None
) -> nn.Module:
    takes = inspect.signature(build).parameters
    free = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in takes.values()) and spec in MODELS
    offered: dict[str, Any] = {"num_classes": outputs, "width": width}
    if len(shape) == 3:
        offered |= {"channels": shape[0], "image": shape[-1]}
        if free:
            offered["style"] = "imagenet" if shape[-1] >= LARGE else "cifar"
    elif spec in MODELS and "inputs" not in takes:
        raise ValueError(f"model: {spec} takes pictures, but the rows have the shape {tuple(shape)}. Use mlp.")
    if "inputs" in takes:
        offered["inputs"] = math.prod(shape)
    if dropout is not None:
        offered["dropout"] = dropout
    known = {"channels", "style", "dropout"} if free else set()
    model = build(**{key: value for key, value in offered.items() if key in takes or key in known})
    if not isinstance(model, nn.Module):
        raise TypeError(f"model: {spec} must give an nn.Module, but it gives a {type(model).__name__}.")
    return model if "width" in takes else _resized(model, width, shape)


def _timm(name: str, shape: tuple[int, ...], outputs: int, dropout: float | None) -> nn.Module:
    timm = outside("timm", f"the model timm:{name}", "timm")
    if name not in timm.list_models():
        near = timm.list_models(f"*{name[:8]}*")[:12]
        raise ValueError(
            f"model: timm has no {name!r}. "
            + (f"Near ones: {', '.join(near)}." if near else "timm.list_models() gives all names.")
        )
    if len(shape) != 3:
        raise ValueError(f"model: timm:{name} takes pictures, but the rows have the shape {tuple(shape)}. Use mlp.")
    settings: dict[str, Any] = {"num_classes": outputs, "in_chans": shape[0]}
    if dropout is not None:
        settings["drop_rate"] = dropout
    try:
        return timm.create_model(name, img_size=shape[-1], **settings)  # transformers know the size of their pictures
    except TypeError:
        return timm.create_model(name, **settings)


def _imported(name: str) -> Any:
    module, _, function = name.rpartition(":")
    if not module:
        raise ValueError(f"model: python:{name} must be python:MODULE:FUNCTION, such as python:nets.py:build.")
    try:
        if module.endswith(".py"):
            path = Path(module)
            specification = importlib.util.spec_from_file_location(path.stem, path)
            assert specification is not None and specification.loader is not None
            loaded = importlib.util.module_from_spec(specification)
            sys.modules.setdefault(path.stem, loaded)
            specification.loader.exec_module(loaded)
        else:
            loaded = importlib.import_module(module)
        return getattr(loaded, function)
    except (ImportError, FileNotFoundError, AttributeError) as error:
        raise ValueError(f"model: python:{name} cannot be loaded: {error}.") from error


def _resized(model: nn.Module, width: float, shape: tuple[int, ...]) -> nn.Module:
    if width == 1:
        return model
    with quiet(model):
        return thin(model, width, torch.zeros(2, *shape))
