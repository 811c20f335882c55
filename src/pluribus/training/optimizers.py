"""Optimizers that see each member as if it trained alone, and optimizers by name: OPTIMIZERS at the foot."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..core.ensemble import Ensemble

Groups = list[dict[str, Any]]


def optimizer_of(ensemble: Ensemble, build: Callable[[Groups], torch.optim.Optimizer], groups: Groups) -> Any:
    """The optimizer that `build` makes; one that looks at whole tensors sees each member's slices."""
    if getattr(build, "layerwise", False):
        return PerMember(ensemble, build, groups)
    return build(groups)


class PerMember(torch.optim.Optimizer):
    """Any optimizer, run once for each member on that member's parameters, as in separate training.

    Optimizers that look at a whole tensor (LAMB, LARS: the norm of a layer), or at all of them (a global norm), would
    see all members as one. Shared parameters have an optimizer of their own.

    Shapes:
        a stacked tensor: (members, *shape); what the optimizer sees: members tensors of (*shape)

    Args:
        build: takes parameter groups and gives an optimizer, such as `lambda groups: LAMB(groups)`
        groups: as `ensemble.parameter_groups` gives them

    >>> import pluribus as pb
    >>> ensemble = pb.deep(nn.Linear(4, 2), 3)
    >>> optimizer = PerMember(ensemble, torch.optim.SGD, ensemble.parameter_groups(lr=0.1))
    >>> [len(group["params"]) for group in optimizer.param_groups]  # weight and bias of each of three members
    [2, 2, 2]
    """

    def __init__(
        self,
        ensemble: Ensemble,
        build: Callable[[list[dict[str, Any]]], torch.optim.Optimizer],
        groups: list[dict[str, Any]],
    ):
        self.ensemble = ensemble
        self.slices: list[tuple[Tensor, list[nn.Parameter]]] = []
        places = _places(ensemble)  # by parameter: None where each member has a slice, or whose it is; -1 is shared
        owners: dict[int, list[dict[str, Any]]] = {}
        for group in groups:
            parts: dict[int, list[Tensor]] = {}
            for parameter in group["params"]:
                place = places.get(id(parameter), -1)
                if place is not None:
                    parts.setdefault(place, []).append(parameter)
                    continue
                rows = [nn.Parameter(row) for row in parameter.detach()]
                if parameter.requires_grad:
                    parameter.register_post_accumulate_grad_hook(partial(_link, rows=rows))
                self.slices.append((parameter, rows))
                for i, row in enumerate(rows):
                    parts.setdefault(i, []).append(row)
            for owner, parameters in parts.items():
                owners.setdefault(owner, []).append({**group, "params": parameters})
        self.inner = [build(owners[owner]) for owner in sorted(owners)]  # one optimizer for each: norms are its own
        if inspect.signature(self.inner[0].step).parameters["closure"].default is inspect.Parameter.empty:
            raise ValueError(
                f"PerMember: {type(self.inner[0]).__name__} computes the loss several times in a step, and the loss is "
                "that of all members, so they would not train as if each were alone. Train the members one by one."
            )
        super().__init__([group for one in self.inner for group in one.param_groups], self.inner[0].defaults)
        self._share()

    def _share(self) -> None:
        """Let the members' optimizers work on the groups and the state that this one has."""
        groups = iter(self.param_groups)
        for one in self.inner:
            one.param_groups, one.state = [next(groups) for _ in one.param_groups], self.state

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of each member's optimizer on its slices."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for parameter, rows in self.slices:
            if parameter.grad is None or rows[0].grad is None or rows[0].data_ptr() != parameter.data_ptr():
                _link(parameter, rows)
        for one in self.inner:
            one.step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of the ensemble, and of the members' slices."""
        self.ensemble.zero_grad(set_to_none)
        for one in self.inner:
            one.zero_grad(set_to_none)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Put the state of the members' optimizers back."""
        super().load_state_dict(state_dict)
        self._share()


def _places(ensemble: Ensemble) -> dict[int, int | None]:
    """Whose each parameter is: None where every member owns a slice of it, -1 where all share it."""
    if not ensemble.stacked:  # networks of unlike architectures, one after the other
        return {id(p): i for i, member in enumerate(ensemble.module.children()) for p in member.parameters()}
    named = ensemble.module.named_parameters()
    return {id(p): None if name in ensemble.own else -1 for name, p in named}


def vectors_of(ensemble: Ensemble) -> set[int]:
    """The ids of scales and biases: parameters with one dimension or none, beside that of the members."""
    stacked = ensemble.own if ensemble.stacked else frozenset()
    return {id(p) for name, p in ensemble.module.named_parameters() if p.ndim - (name in stacked) < 2}


def _link(parameter: Tensor, rows: list[nn.Parameter]) -> None:
    """Let the slices share the memory of the stacked parameter and of its gradient."""
    for i, row in enumerate(rows):
        row.data = parameter.data[i]
        row.grad = None if parameter.grad is None else parameter.grad[i]


class Lamb(torch.optim.Optimizer):
    """Adam whose step in each tensor is as long as the tensor's norm says (You et al., 2020); decay is decoupled.

    Gradients are first divided by their global norm where that is above `max_grad_norm`, as in the paper's code.

    >>> weight = nn.Parameter(torch.ones(3))
    >>> optimizer = Lamb([weight], lr=0.1)
    """

    layerwise = True  # each member's tensors have their own norms

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        max_grad_norm: float | None = 1.0,
    ):
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "max_grad_norm": max_grad_norm}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step: m / sqrt(v) + decay * w, scaled to |w| in every tensor that decays."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        scale = self._clip()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step(parameter, parameter.grad * scale, group)
        return loss

    def _clip(self) -> float:
        most = self.defaults["max_grad_norm"]
        gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        if most is None or not gradients:
            return 1.0
        norm = float(torch.stack([gradient.norm() for gradient in gradients]).norm())
        return most / norm if norm > most else 1.0

    def _step(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state, (first, second) = self.state[parameter], group["betas"]
        if not state:
            state |= {"step": 0, "mean": torch.zeros_like(parameter), "square": torch.zeros_like(parameter)}
        state["step"] += 1
        mean = state["mean"].lerp_(gradient, 1 - first) / (1 - first ** state["step"])
        square = state["square"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
        update = mean / ((square / (1 - second ** state["step"])).sqrt() + group["eps"])
        if group["weight_decay"]:
            update = update + group["weight_decay"] * parameter
            weight, length = parameter.norm(), update.norm()
            update = update * torch.where((weight > 0) & (length > 0), weight / length, torch.ones_like(weight))
        parameter.sub_(update, alpha=group["lr"])


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, momentum=0.9),
    "adam": torch.optim.Adam,  # the decay of weights is part of the gradient, as in its paper
    "adamw": torch.optim.AdamW,
    "lamb": Lamb,
}
