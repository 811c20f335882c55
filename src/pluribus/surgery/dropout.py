"""Every function of torch that drops, and passes in which nothing drops.

| who asks | what for |
|---|---|
| `methods.mc_dropout` | dropout that stays on in eval mode, at the rates of training |
| `core.rows`, `core.execution` | passes that can be compared: `no_chance` |
| `surgery.probing` | rows of a batch, followed through layers |
| `deploy.freezing` | frozen networks, compared with the ensemble |

>>> with no_dropout():
...     torch.equal(F.dropout(torch.ones(3), 0.5), torch.ones(3))
True
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


class Argument(NamedTuple):
    """An argument of a function: its name, its place, and its value where it is not given."""

    name: str
    place: int
    default: Any

    def of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return the argument's value in a call."""
        return args[self.place] if len(args) > self.place else kwargs.get(self.name, self.default)

    def replace(self, args: tuple[Any, ...], kwargs: dict[str, Any], value: Any) -> tuple[tuple[Any, ...], Any]:
        """The call with another value."""
        if len(args) > self.place:
            return (*args[: self.place], value, *args[self.place + 1 :]), kwargs
        return args, {**kwargs, self.name: value}


_ALWAYS = Argument("", 99, True)  # drops whenever its rate is not zero

DROPOUT_FUNCTIONS = (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout)

RATES_AND_SWITCHES: Mapping[Callable[..., Any], tuple[Argument, Argument]] = {
    **dict.fromkeys(DROPOUT_FUNCTIONS[:4], (Argument("p", 1, 0.5), Argument("training", 2, True))),
    **dict.fromkeys(DROPOUT_FUNCTIONS[4:], (Argument("p", 1, 0.5), Argument("training", 2, False))),
    **dict.fromkeys(
        (
            torch.dropout, torch.dropout_, torch.native_dropout, torch.alpha_dropout, torch.feature_dropout,
            torch.feature_alpha_dropout,
        ),
        (Argument("p", 1, 0.5), Argument("train", 2, True)),
    ),
    F.scaled_dot_product_attention: (Argument("dropout_p", 4, 0.0), _ALWAYS),
    F.multi_head_attention_forward: (Argument("dropout_p", 10, 0.0), Argument("training", 13, True)),
}  # fmt: skip


class no_dropout(TorchFunctionMode):  # noqa: N801 -- used as a context, like torch.no_grad
    """Let nothing drop: dropout, called as a module or as a function, attention's own, and stochastic depth."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The function's result, with a rate of zero where it drops."""
        kwargs = kwargs or {}
        if func in RATES_AND_SWITCHES:
            args, kwargs = RATES_AND_SWITCHES[func][0].replace(args, kwargs, 0.0)
        elif func is Tensor.bernoulli_:  # stochastic depth
            return args[0].fill_(1)
        return func(*args, **kwargs)


class no_chance(no_dropout):  # noqa: N801
    """Let nothing drop, and normalise with the running statistics: each row's output depends on that row alone.

    Where a layer keeps no running statistics, its input is scaled and shifted only.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The function's result, without dropout and batch statistics."""
        if func is not F.batch_norm:
            return super().__torch_function__(func, types, args, kwargs)
        names = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
        given = {**dict(zip(names, args, strict=False)), **(kwargs or {}), "training": False}
        if given["running_mean"] is None:
            channels = given["input"].shape[1]
            given["running_mean"] = given["input"].new_zeros(channels)
            given["running_var"] = given["input"].new_ones(channels)
        return func(**given)
