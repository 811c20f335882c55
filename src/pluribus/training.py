"""Training members as if each trained alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .ensemble import Ensemble


class PerMember(torch.optim.Optimizer):
    """Any optimizer, for which each member's slice of a stacked tensor is a parameter of its own.

    Optimizers that look at a whole tensor (LAMB, LARS: the norm of a layer) would see all members as one;
    here they see what they would see in separate training.

    Args:
        build: takes parameter groups and gives an optimizer, such as `lambda groups: LAMB(groups)`
        groups: as `ensemble.parameter_groups` gives them

    >>> import pluribus as pb
    >>> ensemble = pb.deep(nn.Linear(4, 2), 3)
    >>> optimizer = PerMember(ensemble, torch.optim.SGD, ensemble.parameter_groups(lr=0.1))
    >>> len(optimizer.param_groups[0]["params"])  # weight and bias of three members
    6
    """

    def __init__(
        self,
        ensemble: Ensemble,
        build: Callable[[list[dict[str, Any]]], torch.optim.Optimizer],
        groups: list[dict[str, Any]],
    ):
        self.ensemble = ensemble
        owned = {id(p) for name, p in ensemble.module.named_parameters() if name in ensemble.own}
        self.slices = [
            (parameter, [nn.Parameter(row) for row in parameter.detach()])
            for group in groups
            for parameter in group["params"]
            if id(parameter) in owned and ensemble.stacked
        ]
        for parameter, rows in self.slices:
            parameter.register_post_accumulate_grad_hook(partial(_link, rows=rows))
        views = {id(parameter): rows for parameter, rows in self.slices}
        self.inner = build(
            [{**g, "params": [row for p in g["params"] for row in views.get(id(p), [p])]} for g in groups]
        )
        super().__init__(self.inner.param_groups, self.inner.defaults)
        self.param_groups, self.state = self.inner.param_groups, self.inner.state

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of the inner optimizer on the members' slices."""
        for parameter, rows in self.slices:
            if parameter.grad is None or rows[0].grad is None or rows[0].data_ptr() != parameter.data_ptr():
                _link(parameter, rows)
        return self.inner.step() if closure is None else self.inner.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of the ensemble, and of the members' slices."""
        self.ensemble.zero_grad(set_to_none)
        self.inner.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """The inner optimizer's state."""
        return self.inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Put the inner optimizer's state back."""
        self.inner.load_state_dict(state_dict)
        self.param_groups, self.state = self.inner.param_groups, self.inner.state


def _link(parameter: Tensor, rows: list[nn.Parameter]) -> None:
    """Let the slices share the memory of the stacked parameter and of its gradient."""
    for i, row in enumerate(rows):
        row.data = parameter.data[i]
        row.grad = None if parameter.grad is None else parameter.grad[i]
