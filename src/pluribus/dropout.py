"""Dropout wherever it is: modules, functions called in a forward, attention, recurrent layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.overrides import TorchFunctionMode

from .ensemble import Ensemble
from .surgery import DROPOUTS, duplicate, listed
from .trees import Batch


def dropout_modules(model: nn.Module) -> list[str]:
    """Modules that are dropout or have a dropout rate that they apply themselves."""
    return [name for name, m in model.named_modules() if isinstance(m, DROPOUTS) or _has_rate(m)]


def _has_rate(module: nn.Module) -> bool:
    rate = vars(module).get("dropout")
    return (
        isinstance(rate, float)
        and (rate > 0 or not isinstance(module, nn.RNNBase))
        and not module._modules.get("dropout")
    )


def set_rate_(module: nn.Module, rate: float) -> None:
    """Let a dropout module, or one that applies dropout itself, drop at this rate."""
    if isinstance(module, DROPOUTS):
        module.p = rate
    else:
        module.dropout = rate  # type: ignore[assignment]


def awaken(ensemble: Ensemble, batch: Batch) -> None:
    """Find everything that drops in training, and keep it awake in eval mode."""
    found = droppers(ensemble.module, batch)
    if not found:
        raise ValueError(
            "mc_dropout: the model drops nothing in training, so its members would be alike. "
            "Give rate=0.1 to insert dropout, and where= to choose before which layers."
        )
    ensemble.awake = frozenset(found)
    ensemble.notes.append(f"dropout in {len(found)} modules: {listed(found, 6)}")
    ensemble.train(ensemble.training)


def droppers(model: nn.Module, batch: Batch) -> dict[str, float]:
    """Names of the modules that drop something in training, whatever way they do it, and at which rate."""
    found: dict[str, float] = {}
    model = duplicate(model).train()
    with torch.random.fork_rng(devices=[]), torch.no_grad(), _path(model) as path, _Dropouts(path, found):
        model(*batch[0], **batch[1])
    for name, module in model.named_modules():
        if isinstance(module, nn.RNNBase) and module.dropout > 0 and module.num_layers > 1:
            found[name] = module.dropout
    return found


class _Dropouts(TorchFunctionMode):
    """Notes the module that runs whenever a dropout function is called with a rate."""

    functions: Mapping[Callable[..., Any], tuple[str, int]] = {
        **{f: ("p", 1) for f in (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout)},
        F.feature_alpha_dropout: ("p", 1),
        torch.dropout: ("p", 1),
        torch.native_dropout: ("p", 1),
        F.scaled_dot_product_attention: ("dropout_p", 4),
        F.multi_head_attention_forward: ("dropout_p", 10),
    }

    def __init__(self, path: list[str], found: dict[str, float]):
        super().__init__()
        self.path, self.found = path, found

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self.functions:
            name, place = self.functions[func]
            rate = args[place] if len(args) > place else (kwargs or {}).get(name, 0.5 if name == "p" else 0.0)
            given = kwargs or {}
            training = given.get("training", given.get("train", args[2] if len(args) > 2 and name == "p" else True))
            if rate and training:
                self.found.setdefault(self.path[-1], float(rate))
        return func(*args, **(kwargs or {}))


@contextmanager
def _path(model: nn.Module) -> Iterator[list[str]]:
    """The names of the modules that are running, the innermost last."""
    path, hooks = [""], []
    for name, module in model.named_modules():
        hooks.append(module.register_forward_pre_hook(lambda *_, name=name: path.append(name)))
        hooks.append(module.register_forward_hook(lambda *_: (path.pop(), None)[1]))
    try:
        yield path
    finally:
        for hook in hooks:
            hook.remove()
