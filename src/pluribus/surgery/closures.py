"""Functions and attributes through which a model reads its own tensors beside the tables of its modules.

A function in an attribute or a hook may hold the model, a part of it or a parameter: in its closure, its defaults, or
as the bound arguments of a `functools.partial`. A copy of the model needs a function of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from copy import deepcopy
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any

from torch import Tensor, nn

from .._common.torch_private import attributes_of_parts, recomputed, storage_key
from .selecting import dotted_name, quote_names

_CONTAINERS = (list, tuple, set, frozenset)


class BoundCopies:
    """Deep copies of values that hold a model; functions that hold parts of the model hold those of the copy.

    The model is searched once for such functions, and for attributes that are views of its parameters.
    """

    def __init__(self, model: nn.Module):
        held = _holding(model)
        self.model = model
        self.inside = {id(part) for part in model.modules()}
        self.inside.update(id(tensor) for tensor in (*model.parameters(), *model.buffers()))
        self.functions = {id(f): f for f in _functions(held) if _reaches(_contents(f), self.inside)} if held else {}
        self.views = _views(model, held) if held else []

    def make(self, value: Any, memo: dict[int, Any]) -> Any:
        """A copy of the value."""
        found = {number: function for number, function in self.functions.items() if number not in memo}
        bound = {number: _unbound(function) for number, function in found.items()}
        memo.update(bound)
        made = deepcopy(value, memo)
        for number, function in found.items():
            _bind_(bound[number], function, self.inside, memo)
        for view, given in self.views:
            _share_memory_(view, given, memo)
        if found and any(id(function) in found for function in _functions(_holding(memo[id(self.model)]))):
            raise ValueError(
                "The model keeps a function in an attribute or a hook that refers to the model itself, and this "
                "version of Python cannot copy functions, so a copy would run parts of the original. Make it a method."
            )
        return made


def _functions(held: Iterable[Any]) -> Iterator[FunctionType]:
    """The functions among the values of a model's attributes and hooks, and those that they hold, each once."""
    seen: set[int] = set()
    stack = list(held)
    while stack:
        value = stack.pop()
        if id(value) in seen or isinstance(value, (Tensor, nn.Module)):
            continue
        seen.add(id(value))
        if isinstance(value, FunctionType):
            if value.__module__ and value.__module__.split(".")[0] == "torch":
                continue
            yield value
        stack += _contents(value)


def _holding(model: nn.Module) -> list[Any]:
    """The values of a model's attributes that may hold functions or tensors: not its numbers and empty tables."""
    kinds = (FunctionType, MethodType, partial, dict, Tensor, *_CONTAINERS)
    every = (value for *_, value in attributes_of_parts(model))
    return [value for value in every if isinstance(value, kinds) and (isinstance(value, Tensor) or value)]


def _contents(value: Any) -> list[Any]:
    """What a container or a function holds; objects of other kinds are not looked into."""
    if isinstance(value, FunctionType):
        defaults = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        return [*(cell.cell_contents for cell in _filled(value)), *defaults]
    if isinstance(value, MethodType):
        return [value.__self__]
    if isinstance(value, partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, _CONTAINERS) else []


def _filled(function: FunctionType) -> list[CellType]:
    found = []
    for cell in function.__closure__ or ():
        try:
            cell.cell_contents  # noqa: B018
        except ValueError:  # nothing yet
            continue
        found.append(cell)
    return found


def _reaches(values: list[Any], inside: Collection[int]) -> bool:
    """Whether one of the values is, or holds, one of the objects with these ids."""
    seen: set[int] = set()
    stack = list(values)
    while stack:
        value = stack.pop()
        if id(value) in inside:
            return True
        if id(value) not in seen:
            seen.add(id(value))
            stack += _contents(value)
    return False


def _unbound(function: FunctionType) -> FunctionType:
    """The same function, with nothing in its closure."""
    cells = tuple(CellType() for _ in function.__closure__ or ())
    made = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, cells)
    made.__kwdefaults__, made.__qualname__ = function.__kwdefaults__, function.__qualname__
    made.__dict__.update(vars(function))
    return made


def _bind_(made: FunctionType, function: FunctionType, inside: Collection[int], memo: dict[int, Any]) -> None:
    """Let it hold what the function holds, copies of what belongs to the model; the rest is the same object."""

    def own(value: Any) -> Any:
        return deepcopy(value, memo) if _reaches([value], inside) else value

    full = {id(cell) for cell in _filled(function)}
    for cell, given in zip(made.__closure__ or (), function.__closure__ or (), strict=True):
        if id(given) in full:
            cell.cell_contents = own(given.cell_contents)
    made.__defaults__ = function.__defaults__ and tuple(map(own, function.__defaults__))
    made.__kwdefaults__ = function.__kwdefaults__ and {k: own(v) for k, v in function.__kwdefaults__.items()}


def _views(model: nn.Module, held: Iterable[Any]) -> list[tuple[Tensor, Tensor]]:
    """The tensors among the values of a model's attributes that are views of its parameters, with those."""
    parameters = list(model.parameters())
    known = {id(parameter) for parameter in parameters}
    others = [tensor for value in held for tensor in _tensors(value) if id(tensor) not in known]
    first = ((view, next((each for each in parameters if _holds(each, view)), None)) for view in others)
    return [(view, given) for view, given in first if given is not None]


def _share_memory_(view: Tensor, given: Tensor, memo: Mapping[int, Any]) -> None:
    """Let the copy of a view of a parameter be a view of the parameter's copy."""
    made, own = memo.get(id(view)), memo.get(id(given))
    if made is None or own is None or made is view or own is given:
        return
    alike = [(t.shape, t.stride(), t.dtype, t.device) for t in (given, own)]
    if alike[0] == alike[1] and (made.shape, made.dtype, made.device) == (view.shape, own.dtype, own.device):
        offset = view.storage_offset() - given.storage_offset() + own.storage_offset()
        made.data = own.detach().as_strided(view.shape, view.stride(), offset)


def _holds(parameter: Tensor, view: Tensor) -> bool:
    """Whether a tensor lies in the memory of a parameter; others may lie in the same storage beside it."""
    place = memory_key(view)
    if place is None or place != memory_key(parameter):
        return False
    first, last = _reach(parameter)
    start, stop = _reach(view)
    return first <= start and stop <= last


def _reach(tensor: Tensor) -> tuple[int, int]:
    """The first and the last element of a storage that a tensor reads."""
    steps = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return int(tensor.storage_offset()), int(tensor.storage_offset() + steps)


def find_hidden(model: nn.Module, own: Mapping[str, Tensor]) -> tuple[str, list[str]] | None:
    """An attribute in which a model keeps some of these parameters, or views of them, too, and their names."""
    parameters = [(name, tensor) for name, tensor in own.items() if isinstance(tensor, nn.Parameter)]
    for path, part, key, value in attributes_of_parts(model):
        held = list(_tensors(value))
        if not held or isinstance(part, nn.RNNBase) or key in recomputed(part):  # made anew in each pass
            continue
        if names := sorted(name for name, p in parameters if any(_holds(p, tensor) for tensor in held)):
            return dotted_name(path, key), names
    return None


def refuse_hidden(method: str, model: nn.Module, own: Mapping[str, Tensor]) -> None:
    """Refuse a model that also keeps what its members are to own where nobody can replace it.

    Args:
        own: the tensors that each member will have of its own, by name
    """
    if found := find_hidden(model, own):
        raise ValueError(
            f"{method}: each member has {quote_names(found[1])} of its own, but the model also reads it from "
            f"{found[0]!r}, which is not a parameter, buffer or module, so all members would read the same one "
            f"there. Read it directly (self.{found[1][0]}) when the model runs."
        )


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors in an attribute: in containers, and in what functions hold."""
    seen: set[int] = set()
    stack = [value]
    while stack:
        value = stack.pop()
        if isinstance(value, Tensor):
            yield value
        elif id(value) not in seen:
            seen.add(id(value))
            stack += _contents(value)


def memory_key(tensor: Tensor) -> int | None:
    """Which memory a tensor is in; None where it has none of its own, or no values."""
    try:
        return storage_key(tensor.untyped_storage()) if tensor.numel() else None
    except (NotImplementedError, RuntimeError):
        return None
