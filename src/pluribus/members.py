"""The members of an ensemble before they are one: built, drawn anew or given, then stacked."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from numbers import Integral, Real
from types import FunctionType, MethodType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .ensemble import FEEDS, Ensemble
from .surgery import aliases, assign_, duplicate, listed, reset, seeded, state
from .trees import Batch

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
        members = [model] * size if init == "same" else [reset(model, generator) for _ in range(size)]
        _refuse_alike(method, members, list(dict(state(model))), init)
        return members
    if not callable(model):
        raise TypeError(f"{method}: model must be an nn.Module or a function that builds one, but it is {type(model)}.")
    members = [build(method, model, generator) for _ in range(size if init == "different" else 1)]
    members = members if init == "different" else members * size
    if not all(alike(members[0], member) for member in members):
        raise ValueError(
            f"{method}: the builder must give alike models each time, but they differ in more than their weights. "
            "Give a list of models to pb.deep instead."
        )
    return members


def build(method: str, builder: Callable[..., Any], generator: torch.Generator | None, *args: Any) -> nn.Module:
    """What the builder gives; a generator seeds what it draws."""
    with seeded(generator):
        return checked_model(method, builder(*args))


def alike(a: nn.Module, b: nn.Module) -> bool:
    """Whether two models differ in nothing but the values of their parameters and buffers."""
    if a is b:
        return True
    first, second = list(a.named_modules()), list(b.named_modules())
    return (
        [(name, type(module)) for name, module in first] == [(name, type(module)) for name, module in second]
        and [(n, t.shape, t.dtype, t.requires_grad) for n, t in state(a)]
        == [(n, t.shape, t.dtype, t.requires_grad) for n, t in state(b)]
        and aliases(a) == aliases(b)
        and all(_same(_settings(x), _settings(y), set()) for (_, x), (_, y) in zip(first, second, strict=True))
    )


def _settings(module: nn.Module) -> dict[str, Any]:
    """The attributes of a module but for its tensors, its parts and its mode."""
    return {k: v for k, v in vars(module).items() if k not in ("_parameters", "_buffers", "_modules", "training")}


def _same(a: Any, b: Any, seen: set[tuple[int, int]]) -> bool:
    """Whether two values are the same, however they are nested; what cannot be compared is not."""
    if a is b or (id(a), id(b)) in seen:
        return True
    if type(a) is not type(b):
        return False
    seen.add((id(a), id(b)))
    if isinstance(a, Tensor):
        return a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, nn.Module):
        return alike(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(_same(a[k], b[k], seen) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(_same(x, y, seen) for x, y in zip(a, b, strict=True))
    if isinstance(a, (MethodType, FunctionType, partial)):
        return _same_function(a, b, seen)
    if hasattr(a, "__dict__") and not isinstance(a, type):
        return _same(vars(a), vars(b), seen)
    return bool(a == b)


def _same_function(a: Any, b: Any, seen: set[tuple[int, int]]) -> bool:
    if isinstance(a, MethodType):
        return a.__func__ is b.__func__
    if isinstance(a, partial):
        return _same((a.func, a.args, a.keywords), (b.func, b.args, b.keywords), seen)
    return a.__code__ is b.__code__ and not a.__closure__  # one lambda, met twice


def branched(
    method: str, model: nn.Module, size: int, own: list[str], settings: dict[str, Any], notes: list[str],
    init: str, generator: torch.Generator | None, freeze_trunk: bool,
) -> Ensemble:  # fmt: skip
    """Members that own some tensors of the model; the rest is kept, and shared."""
    if init not in ("different", "same"):
        raise ValueError(f'{method}: init must be "different" or "same", but it is {init!r}.')
    revive = method == "multihead"  # heads that start at zero would differ in nothing but their biases
    members = [model] * size if init == "same" else [reset(model, generator, own, revive=revive) for _ in range(size)]
    if init == "different" and not revive and _same_values(members, own):
        members = [reset(model, generator, own, revive=True) for _ in range(size)]
    _refuse_alike(method, members, own, init)
    settings = {**settings, "init": "same", "freeze_trunk": freeze_trunk}
    made = stack(method, members, own, settings=settings, notes=notes)
    if freeze_trunk:
        for name, parameter in made.module.named_parameters():
            parameter.requires_grad_(name in made.own and parameter.requires_grad)
        made.asleep = frozenset(made._trunk())
        made.train(made.training)
    return made


def _refuse_alike(method: str, members: Sequence[nn.Module], own: Collection[str], init: str) -> None:
    if init == "different" and _same_values(members, own):
        raise ValueError(
            f"{method}: what the members own, {listed(own, 6)}, starts alike in all of them (constants), and they see "
            "the same rows: they would stay alike for ever. Let them own a layer with weights too."
        )


def _same_values(models: Sequence[nn.Module], names: Collection[str]) -> bool:
    if len(models) < 2:
        return False
    first, second = (dict(state(model)) for model in models[:2])
    return all(not first[n].is_meta and torch.equal(first[n], second[n]) for n in names)


def checked_size(method: str, size: Any) -> int:
    """The size, if it is one."""
    if isinstance(size, (bool, str)) or not isinstance(size, Integral) or size < 1:
        raise ValueError(
            f"{method}: size, the number of members, must be a whole number from 1 on, but it is {size!r}."
        )
    return int(size)


def checked_number(method: str, name: str, value: Any, rule: str, fits: Callable[[float], bool]) -> float:
    """The number, if it is one and fits the rule."""
    if isinstance(value, (bool, str)) or not isinstance(value, Real) or not fits(float(value)):
        raise ValueError(f"{method}: {name} must be {rule}, but it is {value!r}.")
    return int(value) if isinstance(value, Integral) else float(value)


def checked_model(method: str, model: Any) -> nn.Module:
    """The model, if it is one."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"{method}: the model must be an nn.Module, but it is a {type(model).__name__}.")
    if isinstance(model, torch.jit.ScriptModule):
        raise TypeError(f"{method}: a scripted model cannot be changed. Give the nn.Module that it was made of.")
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        raise TypeError(f"{method}: the model is a {type(model).__name__}. Give model.module, and wrap the ensemble.")
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in model.parameters()):
        raise ValueError(f"{method}: the model has lazy layers without a size yet. Run it once on a batch before.")
    if not any(True for _ in model.parameters()):
        raise ValueError(f"{method}: the model has no parameters, so there is nothing to own or to share.")
    if method not in ("single", "deep", "treenet", "multihead") and _is_nested(model):
        raise ValueError(f"{method}: the model contains an ensemble already. Use pb.deep to make an ensemble of those.")
    return model


def _is_nested(model: nn.Module) -> bool:
    return any(isinstance(module, Ensemble) for module in model.modules())


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

    def _one(self, i: int, batch: Batch, statistics: dict[str, Tensor], pieces: Any = None) -> Any:
        return self.module[i](*batch[0], **batch[1])  # type: ignore[index]

    def _gradients(self) -> tuple[list[list[Tensor]], list[Tensor]]:
        members = self.module.children()
        return [[p.grad for p in member.parameters() if p.grad is not None] for member in members], []
