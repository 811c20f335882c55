"""Copies of a model, and a model's tensors: what they are called, how it runs with others, how they are put in."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Mapping
from pickle import PickleError
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from .._common.torch_private import tables
from .closures import copy_bound


def duplicate(model: nn.Module) -> nn.Module:
    """A deep copy of `model`; tensors that were computed from others and kept are copied without their history."""
    return _duplicates(model, {})[0]


def duplicate_with(model: nn.Module, replacements: Mapping[int, Tensor]) -> nn.Module:
    """A copy of `model` with other tensors in place of those with the given ids, and without what it had cached."""
    copy = _duplicates(model, replacements)[0]
    clear_caches_(copy)
    return copy


def clear_caches_(model: nn.Module) -> None:
    """Let modules forget what they computed from their parameters: some do when they begin to train."""
    for module in model.modules():
        if type(module).train is not nn.Module.train and not module.training:
            modes = {part: part.training for part in module.modules()}
            module.train()
            restore_modes_(modes)


def restore_modes_(modes: Mapping[nn.Module, bool]) -> None:
    """Give each module its own mode again, by its own `train`: some change their weights with their mode (LoRA)."""
    for module, mode in modes.items():  # parents before their children, which they take along
        if module.training != mode:
            module.train(mode)


def duplicate_mapped(model: nn.Module, change: Callable[[Tensor], Tensor]) -> nn.Module:
    """A copy of `model` in which every tensor is a changed one; nothing else of its size is made on the way."""
    changed: dict[int, Tensor] = {}
    seen = []  # held until the copy is made: some modules show their tensors as copies, whose ids would be others' then
    for module in model.modules():
        own = (*module.parameters(recurse=False), *module.buffers(recurse=False))
        for value in (*own, *vars(module).values()):
            seen.append(value)
            if isinstance(value, nn.Parameter):
                changed[id(value)] = nn.Parameter(change(value), value.requires_grad)
            elif isinstance(value, Tensor):
                changed[id(value)] = change(value)
    return _duplicates(model, changed)[0]


def _duplicates(model: nn.Module, replacements: Mapping[int, Any], count: int = 1) -> list[nn.Module]:
    computed, memos = without_history(model, replacements), []
    for _ in range(count):
        memos.append({**replacements, **computed})
        computed = dict(zip(computed, map(Tensor.clone, computed.values()), strict=True))
    try:
        return copy_bound(model, model, memos)
    except (PickleError, TypeError) as error:
        raise TypeError(
            f"the model must be copied, so that yours stays unchanged, but it cannot be: {error}. Keep what cannot be "
            "copied (a traced function, a lock, an open file) outside the model, or give it a __deepcopy__."
        ) from error


def without_history(model: nn.Module, known: Mapping[int, Any]) -> dict[int, Tensor]:
    """Copies of the tensors that a model has computed from others and kept, by their ids, but for those known."""
    copies: dict[int, Tensor] = {}
    for tensor in tensors_in(model):
        try:
            computed = not tensor.is_leaf
        except RuntimeError:  # torch does not say of a view whose base an optimizer has changed since
            computed = True
        if computed and id(tensor) not in known:
            copies[id(tensor)] = tensor.data.clone()
    return copies


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors in a module or an attribute, in lists, dicts and parts too."""
    found: list[Tensor] = []
    stack, seen = [value], set()
    while stack:
        value = stack.pop()
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (dict, list, tuple, nn.Module)) and id(value) not in seen:
            seen.add(id(value))
            value = vars(value) if isinstance(value, nn.Module) else value
            stack += value.values() if isinstance(value, dict) else value
    return found


def state(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Every parameter and buffer of `module` by name, a tied one once."""
    return [*module.named_parameters(), *module.named_buffers()]


def aliases(module: nn.Module) -> dict[str, set[str]]:
    """All the names of each tensor of `module`, by the name that `state` gives it."""
    names: dict[int, set[str]] = {}
    every = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    for name, tensor in every:
        names.setdefault(id(tensor), set()).add(name)
    return {name: names[id(tensor)] for name, tensor in state(module)}


def run_with(
    module: nn.Module, tensors: Mapping[str, Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, dict[str, Tensor]]:
    """The module's output with these tensors in place of its own, and those that it assigned anew on the way.

    A tensor is replaced wherever it stands: tied ones, and modules that are registered under several names.
    """
    refuse_tracing()
    places = _places(module)
    given = {place: tensor for name, tensor in tensors.items() for place in places[name]}
    before = dict(given)
    output = functional_call(module, given, args, kwargs, tie_weights=False)
    return output, {n: given[p] for n in tensors for p in places[n] if given[p] is not before[p]}


def refuse_tracing() -> None:
    """Refuse torch.jit.trace, which records a module's own tensors alone."""
    if torch.jit.is_tracing():
        raise TypeError(
            "torch.jit.trace records a module's own tensors, but members run with theirs instead. Use "
            "torch.export.export(ensemble, (x,)), pb.export(ensemble, x, path) or pb.freeze(ensemble, x)."
        )


def _places(module: nn.Module) -> dict[str, list[str]]:
    """Every place of each tensor, once per module that holds it, by the name that `state` gives it."""
    places: dict[int, list[str]] = {}
    for path, owner in module.named_modules():
        for named in (owner.named_parameters, owner.named_buffers):
            for place, tensor in named(path, recurse=False, remove_duplicate=False):
                places.setdefault(id(tensor), []).append(place)
    return {name: places[id(tensor)] for name, tensor in state(module)}


def assign_(module: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Put each value where the parameter or buffer of that name is, and everywhere it is tied to."""
    new: dict[int, Tensor] = {}
    for name, old in state(module):
        if name in values:
            is_parameter = isinstance(old, nn.Parameter)
            new[id(old)] = nn.Parameter(values[name], old.requires_grad) if is_parameter else values[name]
    for parameters, buffers, _ in tables(*module.modules()):
        for table in (parameters, buffers):
            for key, tensor in table.items():
                if id(tensor) in new:
                    table[key] = new[id(tensor)]  # type: ignore[assignment]


def hash_tensors(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of the tensors' names, types, shapes and values, whatever their order; nothing where they have no values.

    >>> hash_tensors({"w": torch.zeros(2)}) == hash_tensors({"w": torch.zeros(2)}) != hash_tensors({"w": torch.ones(2)})
    True
    """
    if any(tensor.is_meta for tensor in tensors.values()):
        return ""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def replicate(model: nn.Module, shared: Iterable[Any] = ()) -> nn.Module:
    """A copy of a model with its parameters and buffers, the same tensors, and everything else its own: `replicas`."""
    return replicas(model, 1, shared)[0]


def replicas(model: nn.Module, count: int, shared: Iterable[Any] = ()) -> list[nn.Module]:
    """Copies of a model with its parameters and buffers, the same tensors, and everything else their own.

    Random generators are shared as well, or all copies would draw alike.

    Args:
        shared: further objects that the copies hold as they are
    """
    known: dict[int, Any] = {id(each): each for each in (*model.parameters(), *model.buffers(), *shared)}
    for part in model.modules():
        for value in vars(part).values():
            if isinstance(value, GENERATORS):
                known[id(value)] = value
    return _duplicates(model, known, count)


GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
