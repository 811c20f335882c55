"""Functions and attributes through which a model reads its own tensors beside the tables of its modules.

`deepcopy` does not copy functions: a hook `lambda *_: model.scale` of a copy would read the scale of the original. So
`copy_bound` gives the copy functions of its own, which hold the copy's parts and tensors:

    model.act = lambda x: x * model.scale        copy.act = lambda x: x * copy.scale
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any

from torch import Tensor, nn

from .._common.torch_private import attributes_of_parts, recomputed, tensor_memory
from .selecting import dotted_name, quote_names


def copy_bound(model: nn.Module, value: Any, memos: Iterable[dict[int, Any]]) -> list[Any]:
    """Deep copies of a value that holds the model; functions in its attributes and hooks hold what the copy has.

    Args:
        memos: for each copy what shall stand in it for what, by ids
    """
    holders, made = [], []
    for _, part, key, value_ in attributes_of_parts(model):
        if isinstance(value_, (dict, list, tuple, FunctionType, partial)) and value_:
            holders.append((part, key))
    for memo in memos:
        made.append(deepcopy(value, memo))
        for part, key in holders:
            table = vars(memo[id(part)]) if id(part) in memo else {}  # a `__deepcopy__` of its own may make others
            held: Any = table.get(key)
            if type(held) in (dict, OrderedDict):  # others may refuse to be changed, as outputs of transformers do
                held.update({name: _counterpart(inner, memo) for name, inner in held.items()})
            elif isinstance(held, list):
                held[:] = [_counterpart(inner, memo) for inner in held]
            elif isinstance(held, (FunctionType, partial, tuple)):
                table[key] = _counterpart(held, memo)
    return made


def _counterpart(value: Any, memo: dict[int, Any]) -> Any:
    """What a copy has in place of a value; of functions and containers that hold nothing of the model, the value."""
    if id(value) in memo:
        return memo[id(value)]
    if isinstance(value, FunctionType):
        return _rebind(value, memo)
    if isinstance(value, MethodType):
        return MethodType(value.__func__, _counterpart(value.__self__, memo))
    contents = _contents(value)
    own = [_counterpart(inner, memo) for inner in contents]
    if all(a is b for a, b in zip(contents, own, strict=True)):
        return value
    if isinstance(value, partial):
        count = 1 + len(value.args)
        return partial(own[0], *own[1:count], **dict(zip(value.keywords, own[count:], strict=True)))
    if isinstance(value, dict):
        return type(value)(zip(value, own, strict=True))
    return type(value)(own)


def _rebind(function: FunctionType, memo: dict[int, Any]) -> FunctionType:
    cells = tuple(CellType() for _ in function.__closure__ or ())
    made = FunctionType(function.__code__, function.__globals__, function.__name__, None, cells)
    memo[id(function)] = made  # it may hold itself
    before = _contents(function)
    if all(a is b for a, b in zip(before, (_counterpart(value, memo) for value in before), strict=True)):
        memo[id(function)] = function
        return function
    for cell, given in zip(cells, function.__closure__ or (), strict=True):
        if _is_filled(given):
            cell.cell_contents = _counterpart(given.cell_contents, memo)
    made.__defaults__ = function.__defaults__ and tuple(_counterpart(value, memo) for value in function.__defaults__)
    made.__kwdefaults__ = function.__kwdefaults__ and {
        key: _counterpart(value, memo) for key, value in function.__kwdefaults__.items()
    }
    made.__qualname__ = function.__qualname__
    made.__dict__.update(vars(function))
    return made


def _contents(value: Any) -> list[Any]:
    """What a container or a function holds; objects of other kinds are not looked into."""
    if isinstance(value, FunctionType):
        defaults = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        return [*(cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)), *defaults]
    if isinstance(value, MethodType):
        return [value.__self__]
    if isinstance(value, partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if type(value) in (list, tuple, set, frozenset) else []


def _is_filled(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:  # nothing yet
        return False
    return True


# ---------------------------------------------------------------- parameters in attributes


def find_hidden(model: nn.Module, own: Mapping[str, Tensor]) -> tuple[str, list[str]] | None:
    """An attribute that holds some of these parameters, or views of any parameter, and the parameters' names."""
    for path, part, key, value in attributes_of_parts(model):
        held = [] if isinstance(part, nn.RNNBase) or key in recomputed(part) else list(_tensors(value))
        names = {
            name
            for tensor in held
            for name, parameter in model.named_parameters()
            if (name in own if tensor is parameter else _is_view(tensor, parameter))
        }
        if names:
            return dotted_name(path, key), sorted(names)
    return None


def refuse_hidden(method: str, model: nn.Module, own: Mapping[str, Tensor]) -> None:
    """Refuse a model that also keeps what its members are to own, or a view of a parameter, where no copy has it.

    Args:
        own: the tensors that each member will have of its own, by name
    """
    if found := find_hidden(model, own):
        raise ValueError(
            f"{method}: the model also reads {quote_names(found[1])} from {found[0]!r}, which is not a parameter, "
            "buffer or module, so members, or copies of the model, would read one that is not theirs there. Read it "
            f"directly (self.{found[1][0]}) when the model runs."
        )


def _is_view(tensor: Tensor, parameter: Tensor) -> bool:
    """Whether a tensor lies in the memory of a parameter; others may lie in the same storage beside it."""
    if not tensor.numel() or tensor_memory(tensor) != tensor_memory(parameter):
        return False
    (start, stop), (first, last) = _reach(tensor), _reach(parameter)
    return first <= start and stop <= last


def _reach(tensor: Tensor) -> tuple[int, int]:
    """The first and the last element of a storage that a tensor reads."""
    steps = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return int(tensor.storage_offset()), int(tensor.storage_offset() + steps)


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
