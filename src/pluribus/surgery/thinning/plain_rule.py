"""The plain rule, for models that cannot run with unknown sizes: scale every layer but the first and the last."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import nn

from ..._common.torch_operators import OperatorMode
from ..._common.torch_private import ConvNd, NormBase
from ..._common.trees import as_batch, tensors_of
from ..copying import duplicate_with
from ..selecting import dotted_name
from .attributes import Attribute, named_tensors
from .dependent_values import note_ranked
from .shape_runs import Rankings, Shapes, dry_mode, output_shapes
from .solver import Factor, RoundedWidth
from .widths import Widths, rebuild

LAYERS = (nn.Linear, ConvNd, nn.Embedding)


class ValueRun(OperatorMode):
    """A run on real tensors: the shapes of the outputs in each mode, the order of the modules, and what is ranked."""

    def __init__(self, model: nn.Module, example: Any):
        super().__init__()
        self.shapes: dict[bool, Shapes] = {}
        self.order: list[str] = []
        self.ranked: set[int] = set()  # sizes whose entries the model ranks
        self.rankings = Rankings(self.ranked.add)
        for name, module in model.named_modules():
            module.register_forward_pre_hook(lambda *_, name=name: self.order.append(name))
        args, kwargs = as_batch(example)
        for training in (True, False):
            with dry_mode(), torch.random.fork_rng(devices=[]), self:
                self.shapes[training] = output_shapes(model.train(training)(*args, **kwargs))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The operator itself."""
        self.rankings.look_at_inputs(args)
        result = func(*args, **(kwargs or {}))
        self.rankings.note(func, args, kwargs or {}, result)
        return result


def scale_layer_by_layer(model: nn.Module, example: Any, factor: Factor) -> Widths | None:
    """New widths by the plain rule; None where the model does not run with them, or has no values to run on."""
    if any(tensor.is_meta for tensor in (*named_tensors(model).values(), *tensors_of(as_batch(example)))):
        return None
    try:
        before = ValueRun(duplicate_with(model, {}), example)
        widths = _scale_widths(model, before, factor)
        with torch.random.fork_rng(devices=[]):
            after = ValueRun(rebuild(model, widths), example)
    except Exception:  # whatever the model's code raises with widths that do not fit
        return None
    return widths if after.shapes == before.shapes else None


def _scale_widths(model: nn.Module, run: ValueRun, factor: Factor) -> Widths:
    """New sizes of the layers that are known: first input, last output and what is ranked stay, all else is scaled."""
    modules = dict(model.named_modules())
    ran = [name for name in run.order if isinstance(modules[name], LAYERS)]
    kept = set(zip(ran[:1] + ran[-1:], ("input", "output"), strict=False))
    sizes = {name: tuple(tensor.shape) for name, tensor in named_tensors(model).items()}
    attributes: list[Attribute] = []
    rounded: list[RoundedWidth] = []
    wish = functools.cache(lambda width: float(factor(width) if callable(factor) else width * factor))
    for name, module in modules.items():
        for role, path, places in _roles(module):
            width = _width(module, path)
            if (name, role) in kept or width in run.ranked:
                continue
            new = _in_groups(module, width, wish(width))
            attributes.append(Attribute(name, None, path, new))
            if path == ("in_channels",) and module.groups == module.in_channels > 1:  # depthwise
                attributes.append(Attribute(name, None, ("groups",), new))
            if role == "output" and abs(new - wish(width)) > 1e-6:
                rounded.append(RoundedWidth(name, width, wish(width), new))
            for tensor, dim in places:
                _resize(sizes, dotted_name(name, tensor), dim, module, new)
    return Widths(sizes, tuple(attributes), tuple(rounded), tuple(note_ranked(run.ranked)))


def _roles(module: nn.Module) -> list[tuple[str, tuple[str | int, ...], tuple[tuple[str, int], ...]]]:
    """The widths of a known layer: role, attribute, and the sizes of tensors that are this width."""
    bias = ("bias", 0)
    vectors = (("weight", 0), bias, ("running_mean", 0), ("running_var", 0))
    if isinstance(module, nn.Linear):
        return [("input", ("in_features",), (("weight", 1),)), ("output", ("out_features",), (("weight", 0), bias))]
    if isinstance(module, ConvNd):
        i, o = (0, 1) if module.transposed else (1, 0)
        return [("input", ("in_channels",), (("weight", i),)), ("output", ("out_channels",), (("weight", o), bias))]
    if isinstance(module, NormBase):
        return [("both", ("num_features",), vectors)]
    if isinstance(module, nn.GroupNorm):
        return [("both", ("num_channels",), vectors)]
    if isinstance(module, nn.LayerNorm) and len(module.normalized_shape) == 1:
        return [("both", ("normalized_shape", 0), vectors)]
    if isinstance(module, nn.Embedding):
        return [("output", ("embedding_dim",), (("weight", 1),))]
    return []


def _width(module: nn.Module, path: tuple[str | int, ...]) -> int:
    value = getattr(module, str(path[0]))
    return value[path[1]] if len(path) > 1 else value


def _in_groups(module: Any, width: int, wish: float) -> int:
    """The width that is wished for, rounded up to what the groups of the layer need."""
    groups = getattr(module, "groups", getattr(module, "num_groups", 1))
    unit = 1 if groups == width else groups  # depthwise: a group for each channel
    return max(1, math.ceil(wish / unit - 1e-9)) * unit


def _resize(sizes: dict[str, tuple[int, ...]], name: str, dim: int, module: Any, new: int) -> None:
    if name not in sizes:
        return
    if isinstance(module, ConvNd) and dim == 1 and module.groups > 1:  # the size of one group
        new = 1 if module.groups == module.in_channels else new // module.groups
    sizes[name] = (*sizes[name][:dim], new, *sizes[name][dim + 1 :])
