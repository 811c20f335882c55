"""The members of an ensemble before they are one: built, drawn anew or given, then stacked."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from numbers import Integral, Real
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from ..core.ensemble import Ensemble
from ..core.rows import MemberLayer
from ..surgery.closures import refuse_hidden
from ..surgery.copying import assign_, duplicate, state
from ..surgery.initial_laws import Laws, follow_generator, reinitialize
from ..surgery.replacing import adapt_
from ..surgery.selecting import quote_names
from .model_comparison import find_difference

Init = Literal["different", "same"]

INITS = ("different", "same")

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
    refuse_hidden(method, modules[0], {name: states[0][name] for name in own})
    stacked = {name: torch.stack([s[name].detach() for s in states]) for name in own}
    assign_(module, stacked)
    return Ensemble(module, len(modules), own, method=method, **options)


def members_of(
    method: str, model: Source, size: int, init: str, generator: torch.Generator | None, *, nests: bool = False,
    laws: Laws | None = None,
) -> list[nn.Module]:  # fmt: skip
    """The models to stack: built, drawn anew (by laws that are known already) or all alike."""
    check_choice(method, "init", init, INITS)
    if isinstance(model, nn.Module):
        check_model(method, model, nests=nests)
        refuse_hidden(method, model, dict(state(model)))
        members = [model] * size
        if init == "different":
            laws = laws or Laws(model)
            members = [reinitialize(model, generator, laws=laws) for _ in range(size)]
        refuse_alike(method, members, list(dict(state(model))), init)
        return members
    if not callable(model):
        raise TypeError(f"{method}: model must be an nn.Module or a function that builds one, but it is {type(model)}.")
    members = [call_builder(method, model, generator, nests=nests) for _ in range(size if init == "different" else 1)]
    members = members if init == "different" else members * size
    if differing := next(filter(None, (find_difference(members[0], member) for member in members)), None):
        raise ValueError(
            f"{method}: the builder must give models that differ only in their weights, but they differ in "
            f"{differing}. Give a list of models to pb.deep instead."
        )
    return members


def note_guesses(laws: Laws, names: Collection[str] | None = None) -> list[str]:
    """Lines for `explain()` about tensors whose law no class states, and weights that cannot be drawn at all."""
    guessed = [name for name in laws.guessed if names is None or name in names]
    notes = [f"redrawn from a distribution guessed from their values: {quote_names(guessed, 6)}"] if guessed else []
    if laws.packed:
        notes.append(f"the same for all members, as packed (quantised) weights are kept: {quote_names(laws.packed, 6)}")
    return notes


def call_builder(
    method: str, builder: Callable[..., Any], generator: torch.Generator | None, *args: Any, nests: bool = False
) -> nn.Module:
    """What the builder gives; a generator seeds what it draws."""
    with follow_generator(generator):
        return check_model(method, builder(*args), nests=nests)


def refuse_alike(method: str, members: Sequence[nn.Module], own: Collection[str], init: str) -> None:
    """Refuse members that start alike and see the same rows."""
    if init == "different" and start_alike(members, own):
        raise ValueError(
            f"{method}: what the members own, {quote_names(own, 6)}, starts the same in all of them (constants), and "
            "they see the same rows, so they would stay the same. Let them own a layer with weights too."
        )


def start_alike(models: Sequence[nn.Module], names: Collection[str]) -> bool:
    """Whether the first two models have equal values under these names."""
    if len(models) < 2:
        return False
    first, second = (dict(state(model)) for model in models[:2])
    return all(not first[n].is_meta and torch.equal(first[n], second[n]) for n in names)


def check_size(method: str, size: Any) -> int:
    """The size, if it is one."""
    if isinstance(size, (bool, str)) or not isinstance(size, Integral) or size < 1:
        raise ValueError(
            f"{method}: size, the number of members, must be a whole number of at least 1, but it is {size!r}."
        )
    return int(size)


def check_choice(method: str, name: str, value: Any, known: Sequence[Any]) -> None:
    """Refuse a word that is none of those known."""
    if value not in known:
        raise ValueError(f"{method}: {name} must be one of {quote_names(known)}, but it is {value!r}.")


LARGEST = 2.0**63  # no width or rate is so large


def check_number(method: str, name: str, value: Any, rule: str, fits: Callable[[float], bool]) -> float:
    """The number, if it is one and fits the rule."""
    if isinstance(value, (bool, str)) or not isinstance(value, Real):
        raise ValueError(f"{method}: {name} must be {rule}, but it is {value!r}.")
    if LARGEST <= abs(cast(float, value)) < math.inf:
        raise ValueError(f"{method}: {name} must be below {LARGEST:.2g}, but it is {str(value)[:20]}.")
    if not fits(float(value)):
        raise ValueError(f"{method}: {name} must be {rule}, but it is {value!r}.")
    return int(value) if isinstance(value, Integral) else float(value)


def check_model(method: str, model: Any, *, nests: bool = False) -> nn.Module:
    """The model, if it is one that the method takes; with `nests` also one that contains an ensemble."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"{method}: the model must be an nn.Module, but it is a {type(model).__name__}.")
    if isinstance(model, torch.jit.ScriptModule):
        raise TypeError(f"{method}: a scripted model cannot be changed. Give the nn.Module that it was made from.")
    if scripted := [name for name, part in model.named_modules() if isinstance(part, torch.jit.ScriptModule)]:
        raise TypeError(
            f"{method}: a scripted part cannot run with a member's tensors in place of its own, but the model has "
            f"{quote_names(scripted)}. Give the nn.Module that it was made from."
        )
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        raise TypeError(f"{method}: the model is a {type(model).__name__}. Give model.module, and wrap the ensemble.")
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in model.parameters()):
        raise ValueError(f"{method}: the model has lazy layers that have no size yet. Run it once on a batch first.")
    refuse_hidden(method, model, {})
    if not any(True for _ in model.parameters()):
        raise ValueError(f"{method}: the model has no parameters, so there is nothing to own or to share.")
    if not nests and any(isinstance(part, Ensemble) for part in model.modules()):
        raise ValueError(
            f"{method}: the model already contains an ensemble. Use pb.deep to make an ensemble of ensembles."
        )
    return model


def check_whole(method: str, name: str, value: Any) -> int:
    """The value, if it is a whole number from 1 on."""
    return int(check_number(method, name, value, "a whole number of at least 1", lambda v: v >= 1 and v == v // 1))


def add_vectors_(layer: nn.Module, r: Tensor, s: Tensor | None, mixin: type) -> None:
    """Give a layer vectors of each member's own, (members, ..., channels): r, and with s its bias as well, as b."""
    weight, bias = cast(Tensor, layer.weight), cast("nn.Parameter | None", layer.bias)
    for name, vectors in (("r", r), ("s", s)):
        given = None if vectors is None else nn.Parameter(vectors.to(weight.device, weight.dtype))
        layer.register_parameter(name, given)
    layer.register_parameter("b", None)
    if s is not None:
        if bias is not None:
            layer.b = nn.Parameter(bias.detach().repeat(len(r), 1), bias.requires_grad)
        layer.register_parameter("bias", None)
    begin_(layer, mixin)


def begin_(layer: nn.Module, mixin: type) -> None:
    """Make the layer one that members differ in."""
    adapt_(layer, mixin)
    cast(MemberLayer, layer).begin_()
