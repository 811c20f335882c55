"""The members of an ensemble before they are one: built, drawn anew or given, then stacked."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .ensemble import FEEDS, Ensemble
from .surgery import aliases, assign_, duplicate, listed, reset, seeded, state

Init = Literal["different", "same"]
Source = nn.Module | Callable[[], nn.Module]


def stack(
    method: str,
    modules: Sequence[nn.Module],
    own: Collection[str] | None = None,
    **options: Any,
) -> Ensemble:
    """An ensemble of modules that are alike but for their values; `own` defaults to all tensors."""
    module, states = duplicate(modules[0]), [dict(state(m)) for m in modules]
    own = list(states[0]) if own is None else own
    stacked = {name: torch.stack([s[name].detach() for s in states]) for name in own}
    assign_(module, stacked)
    return Ensemble(module, len(modules), own, method=method, **options)


def members_of(method: str, model: Source, size: int, init: str, generator: torch.Generator | None) -> list[nn.Module]:
    """The models to stack: built, drawn anew or all alike."""
    if init not in ("different", "same"):
        raise ValueError(f'{method}: init must be "different" or "same", but it is {init!r}.')
    if isinstance(model, nn.Module):
        checked_model(method, model)
        return [model] * size if init == "same" else [reset(model, generator) for _ in range(size)]
    if not callable(model):
        raise TypeError(f"{method}: model must be an nn.Module or a function that builds one, but it is {type(model)}.")
    members = [build(method, model, generator) for _ in range(size if init == "different" else 1)]
    members = members if init == "different" else members * size
    if not all(alike(members[0], member) for member in members):
        raise ValueError(f"{method}: the builder must give alike models each time, but they differ in structure.")
    return members


def build(method: str, builder: Callable[..., Any], generator: torch.Generator | None, *args: Any) -> nn.Module:
    """What the builder gives; a generator seeds what it draws."""
    with seeded(generator):
        return checked_model(method, builder(*args))


def alike(a: nn.Module, b: nn.Module) -> bool:
    """Whether two models differ in nothing but the values of their tensors."""
    return a is b or _form(a) == _form(b)


def _form(model: nn.Module) -> list[Any]:
    simple = (int, float, str, bool, tuple, type(None))
    parts = [
        (name, type(m), {k: v for k, v in vars(m).items() if isinstance(v, simple) and k != "training"})
        for name, m in model.named_modules()
    ]
    return [*parts, *((name, t.shape, t.dtype) for name, t in state(model)), aliases(model)]


def branched(
    method: str, model: nn.Module, size: int, own: list[str], settings: dict[str, Any], notes: list[str],
    init: str, generator: torch.Generator | None, freeze_trunk: bool,
) -> Ensemble:  # fmt: skip
    """Members that own some tensors of the model; the rest is kept, and shared."""
    if init not in ("different", "same"):
        raise ValueError(f'{method}: init must be "different" or "same", but it is {init!r}.')
    revive = method == "multihead"  # heads that start at zero would differ in nothing but their biases
    members = [model] * size if init == "same" else [reset(model, generator, own, revive=revive) for _ in range(size)]
    if init == "different" and size > 1 and not revive and _same_values(members[:2], own):
        members = [reset(model, generator, own, revive=True) for _ in range(size)]
    if init == "different" and size > 1 and _same_values(members[:2], own):
        raise ValueError(
            f"{method}: what the members own, {listed(own, 6)}, starts alike in all of them (constants), and they see "
            "the same rows: they would stay alike for ever. Let them own a layer with weights too."
        )
    settings = {**settings, "init": "same", "freeze_trunk": freeze_trunk}
    made = stack(method, members, own, settings=settings, notes=notes)
    if freeze_trunk:
        for name, parameter in made.module.named_parameters():
            parameter.requires_grad_(name in made.own and parameter.requires_grad)
        made.asleep = frozenset(made._trunk())
        made.train(made.training)
    return made


def _same_values(models: Sequence[nn.Module], names: Collection[str]) -> bool:
    first, second = (dict(state(model)) for model in models)
    return all(first[n].device.type != "meta" and torch.equal(first[n], second[n]) for n in names)


def checked_size(method: str, size: Any) -> int:
    """The size, if it is one."""
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ValueError(
            f"{method}: size, the number of members, must be a whole number from 1 on, but it is {size!r}."
        )
    return size


def checked_model(method: str, model: Any) -> nn.Module:
    """The model, if it is one."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"{method}: the model must be an nn.Module, but it is a {type(model).__name__}.")
    if not any(True for _ in model.parameters()):
        raise ValueError(f"{method}: the model has no parameters, so there is nothing to own or to share.")
    return model


class Several(Ensemble):
    """Networks of unlike architectures, each with all its tensors, run by the loop."""

    stacked = False

    def __init__(self, models: Sequence[nn.Module], method: str):
        together = nn.ModuleList(duplicate(model) for model in models)
        super().__init__(together, len(models), [name for name, _ in state(together)], method=method)
        self._run, self._why = "loop", "the members are of unlike architectures"

    @property
    def run(self) -> str:
        """Always "loop": there is nothing to stack."""
        return self._run

    @run.setter
    def run(self, value: str) -> None:
        if value != "loop":
            raise ValueError(f'ensemble.run must be "loop" for members of unlike architectures, but it is {value!r}.')

    def member(self, i: int) -> nn.Module:
        """A copy of member `i`."""
        return duplicate(self.module[self._checked_index(i)])  # type: ignore[index]

    def explain(self) -> str:
        """As `Ensemble.explain`; the members differ in what they own."""
        counts = [f"{sum(p.numel() for p in member.parameters()):,}" for member in self.module.children()]
        return "\n".join(
            [
                f"{self.method}: {self.size} members, {self.task}",
                f"  of unlike architectures with {', '.join(counts)} parameters; nothing is shared",
                f"  run by {self.run} ({self._why})",
                f"  in training each member sees: {FEEDS[self.feed]}",
            ]
        )

    def _one(self, i: int, args: tuple[Any, ...], kwargs: dict[str, Any], again: bool) -> Any:
        return self.module[i](*args, **kwargs)  # type: ignore[index]

    def _gradients(self) -> tuple[list[list[Tensor]], list[Tensor]]:
        members = self.module.children()
        return [[p.grad for p in member.parameters() if p.grad is not None] for member in members], []
