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
from .layers import Attention, Dropped
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
    """Find everything that drops in training, and keep it dropping in eval mode.

    Modules that are dropout, and those that hand a rate to attention, stay in training mode. Where dropout is called
    as a function the call is changed instead: the module around it may do other things in training.
    """
    found, called = droppers(ensemble.module, batch)
    if not found:
        raise ValueError(
            "mc_dropout: the model drops nothing in training, so its members would be alike. "
            "Give rate=0.1 to insert dropout, and where= to choose before which layers."
        )
    ensemble.awake = frozenset(found) - frozenset(called)
    ensemble.around = Dropping if called else None
    ensemble.notes.append(f"dropout in {len(found)} modules: {listed(found, 6)}")
    ensemble.train(ensemble.training)


def droppers(model: nn.Module, batch: Batch) -> tuple[dict[str, float], list[str]]:
    """The modules that drop something in training with their rates, and those that call dropout as a function."""
    found: dict[str, float] = {}
    called: list[str] = []
    model = duplicate(model).train()
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._NormBase):
            module.eval()  # one row has no statistics
    with torch.random.fork_rng(devices=[]), torch.no_grad(), _path(model) as path, _Noting(path, found, called):
        model(*batch[0], **batch[1])
    for name, module in model.named_modules():
        if isinstance(module, nn.RNNBase) and module.dropout > 0 and module.num_layers > 1:
            found[name] = module.dropout
    own = (*DROPOUTS, Dropped, Attention)
    return found, [name for name in called if not isinstance(model.get_submodule(name), own)]


class Dropping(TorchFunctionMode):
    """Lets every dropout that is called as a function drop, also where it is told that nothing trains."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Dropout with training=True; everything else as it is."""
        kwargs = kwargs or {}
        if func in DROPS:
            kwargs = {**kwargs, "training": True}
            args = args[:2] + args[3:]
        return func(*args, **kwargs)


DROPS = (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout)


class _Noting(TorchFunctionMode):
    """Notes the module that runs whenever a dropout function is called with a rate."""

    functions: Mapping[Callable[..., Any], tuple[str, int]] = {
        **dict.fromkeys(DROPS, ("p", 1)),
        torch.dropout: ("p", 1),
        torch.native_dropout: ("p", 1),
        F.scaled_dot_product_attention: ("dropout_p", 4),
        F.multi_head_attention_forward: ("dropout_p", 10),
    }

    def __init__(self, path: list[str], found: dict[str, float], called: list[str]):
        super().__init__()
        self.path, self.found, self.called = path, found, called

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self.functions:
            name, place = self.functions[func]
            rate = args[place] if len(args) > place else (kwargs or {}).get(name, 0.5 if name == "p" else 0.0)
            given = kwargs or {}
            training = given.get("training", given.get("train", args[2] if len(args) > 2 and name == "p" else True))
            if rate and training:
                self.found.setdefault(self.path[-1], float(rate))
                if func in DROPS:
                    self.called.append(self.path[-1])
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
