"""Copies of a model with some of its layers replaced. No function here changes the model it is given."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from inspect import signature
from typing import Any, cast

import torch
from torch import nn

from .._common.torch_private import tables
from .attention import Attention
from .copying import duplicate


def replace(
    model: nn.Module,
    match: type[nn.Module] | tuple[type[nn.Module], ...],
    make: Callable[[nn.Module], nn.Module],
) -> nn.Module:
    """A copy of `model` with `make(layer)` in place of every layer of a type in `match`."""
    made: dict[int, nn.Module] = {}  # a layer used twice is replaced by one layer used twice

    def visit(module: nn.Module) -> nn.Module:
        if id(module) not in made:
            if isinstance(module, match):
                made[id(module)] = make(module).train(module.training)
            else:
                made[id(module)] = module
                children = tables(module)[0].children
                for name, child in children.items():
                    children[name] = None if child is None else visit(child)
        return made[id(module)]

    return visit(duplicate(model))


def adapt_(layer: nn.Module, mixin: type) -> None:
    """Make `layer` an instance of `mixin` too: it keeps its tensors, its name and its place in the model."""
    if isinstance(layer, mixin):
        raise ValueError(
            f"a layer cannot be {mixin.__name__} twice: the model is already a member of such an ensemble. Give "
            "the model that the ensemble was made from."
        )
    layer.__class__ = _adapted_class(mixin, type(layer))  # type: ignore[arg-type]


def restore_(layer: nn.Module, mixin: type) -> None:
    """Make `layer`, an instance of `mixin` by `adapt_`, what it was before; its attributes stay."""
    made: tuple[tuple[type, ...], type] = getattr(type(layer), "_made_of", ((), type(layer)))
    mixins, plain = made
    if mixin not in mixins:
        raise ValueError(f"a {type(layer).__name__} was not made a {mixin.__name__}, so it cannot be restored.")
    for other in reversed([kept for kept in mixins if kept is not mixin]):
        plain = _adapted_class(other, plain)
    layer.__class__ = plain


@cache
def _adapted_class(mixin: type, base: type) -> type:
    mixins, layer = getattr(base, "_made_of", ((), base))
    body: dict[str, Any] = {
        "_made_of": ((mixin, *mixins), layer),
        "__reduce_ex__": lambda self, protocol: (_blank_layer, type(self)._made_of, self.__getstate__()),
    }
    name = list(signature(base.forward).parameters)[1]  # type: ignore[attr-defined]  # after self
    if name != "input":  # as mixins and torch's layers call it

        def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            args = args or (kwargs.pop(name),)
            return mixin.forward(self, *args, **kwargs)  # type: ignore[attr-defined]

        body["forward"] = forward
    return type(f"{mixin.__name__}{base.__name__}", (mixin, base), body)


def _blank_layer(mixins: tuple[type, ...], layer: type) -> nn.Module:
    """An adapted layer without state: how pickle and deepcopy start to build one."""
    for mixin in reversed(mixins):
        layer = _adapted_class(mixin, layer)
    made: nn.Module = object.__new__(layer)
    return made


def expose_weights(model: nn.Module) -> nn.Module:
    """A copy of `model` in which every layer that holds weights is *called*.

    `nn.MultiheadAttention` and the fast path of `nn.TransformerEncoderLayer` read the weights of their
    children without calling them; a changed child would be ignored.
    """
    memo: dict[int, list[nn.Parameter]] = {}
    with torch.random.fork_rng(devices=[]):  # new layers draw weights, which are then replaced
        model = replace(model, nn.MultiheadAttention, lambda attention: _expose_attention(attention, memo))
        model = replace(model, _transposed_linear_types(model), _as_linear)
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = module.enable_nested_tensor = False
    return model


def _expose_attention(attention: nn.Module, memo: dict[int, list[nn.Parameter]]) -> nn.Module:
    own_forward = type(attention).forward is not nn.MultiheadAttention.forward
    return attention if own_forward else Attention.of(cast(nn.MultiheadAttention, attention), memo)


def _transposed_linear_types(model: nn.Module) -> tuple[type[nn.Module], ...]:
    """The classes of linear layers that keep their weight as (inputs, outputs): Conv1D of GPT-2."""
    return tuple(
        {type(m) for m in model.modules() if type(m).__name__ == "Conv1D" and hasattr(m, "nf") and hasattr(m, "weight")}
    )


def _as_linear(layer: Any) -> nn.Module:
    """The same layer as an `nn.Linear`."""
    inputs, outputs = layer.weight.shape
    linear = nn.Linear(inputs, outputs, layer.bias is not None, layer.weight.device, layer.weight.dtype)
    linear.weight = nn.Parameter(layer.weight.detach().T.clone(), layer.weight.requires_grad)
    linear.bias = layer.bias
    return linear
