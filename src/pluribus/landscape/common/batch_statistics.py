"""Statistics of BatchNorm for weights that no training has seen: sampled, averaged, interpolated."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import nn

from ..._common.torch_private import NormBase
from ..._common.trees import rows_of
from ...core.ensemble import Ensemble
from ...methods.building import check_model
from .examples import answer_of, read_batches, ready

Module = TypeVar("Module", bound=nn.Module)


def refresh_(ensemble_or_model: Module, data: Any, *, batch_size: int = 128) -> Module:
    """Re-estimate the running statistics of the module's normalisation layers on `data`, in place; returns the module.

    Every batch counts by its rows; dropout is off. A module without such layers stays as it is, and `data` unread.

    Args:
        ensemble_or_model: what is changed in place, and given back
        data: what it was trained on: (x, y), a data set or a loader, or x alone
        batch_size: rows in one pass; each batch counts by its rows

    >>> model = nn.BatchNorm1d(1)
    >>> refresh_(model, torch.tensor([[1.0], [3.0]])).running_mean
    tensor([2.])
    """
    layers = statistics_layers(check_model("refresh_", ensemble_or_model, nests=True))
    if not layers:
        return ensemble_or_model
    seen = 0
    with _collecting(ensemble_or_model, layers), torch.no_grad():
        for x, _ in read_batches("refresh_", data, batch_size):
            x = ready(ensemble_or_model, x)
            rows = rows_of(x)
            seen += rows
            for layer in layers:
                layer.momentum = rows / seen  # so that the running mean is the mean of what was seen
            answer_of(ensemble_or_model, x)
        if not seen:
            raise ValueError("refresh_: there must be at least one batch of data, but there is none.")
    return ensemble_or_model


def statistics_layers(model: nn.Module) -> list[Any]:
    """The layers that keep running statistics; those of a trunk that is kept as it is are left out."""
    frozen = [model.module.get_submodule(name) for name in model.frozen_modules] if isinstance(model, Ensemble) else []
    kept = {part for trunk in frozen for part in trunk.modules()}
    return [p for p in model.modules() if isinstance(p, NormBase) and p.running_mean is not None and p not in kept]


def warn_without_data(caller: str, model: nn.Module, stacklevel: int = 3) -> None:
    """Say that statistics stay as they are in networks that they do not fit."""
    if statistics_layers(model):
        warnings.warn(
            f"{caller}: the model has batch normalisation, whose statistics belong to the trained weights. Give "
            "training data as data= to estimate them again; without it they stay as they are.",
            stacklevel=stacklevel,
        )


@contextmanager
def _collecting(module: nn.Module, layers: list[Any]) -> Iterator[None]:
    """Start the layers anew in training mode, everything else in eval mode; modes and momenta are put back.

    After an error the statistics are as they were.
    """
    modes = {part: part.training for part in module.modules()}
    momenta = [layer.momentum for layer in layers]
    before = [(buffer, buffer.clone()) for layer in layers for buffer in layer.buffers()]
    try:
        for part in modes:
            part.training = False
        if isinstance(module, Ensemble):
            module.training = True  # what is shared sees all members
        for layer in layers:
            layer.training = True
            layer.reset_running_stats()
        yield
    except BaseException:
        for buffer, value in before:
            buffer.copy_(value)
        raise
    finally:
        for part, mode in modes.items():
            part.training = mode
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
