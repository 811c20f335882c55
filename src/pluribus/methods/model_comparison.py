"""Whether two models differ in nothing but the values of their tensors; what cannot be shown to be equal is unlike."""

from __future__ import annotations

import weakref
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from .._common.torch_private import plain_attributes, tables
from ..surgery.copying import aliases, state

PLAIN = (int, bool, str, bytes, type(None), torch.dtype, torch.device)


def find_difference(a: nn.Module, b: nn.Module) -> str | None:
    """Where two models differ in more than the values of their parameters and buffers, in words; None: nowhere."""
    return None if a is b else _Comparison(a, b).difference()


class _Comparison:
    """Two models side by side: their parts and tensors correspond by name, all else must be equal."""

    def __init__(self, *pair: nn.Module):
        self.pair = pair
        named = [{id(part): name for name, part in (*m.named_modules(), *state(m))} for m in pair]
        self.names = named or [{}, {}]  # without models no tensor and no module has a place
        self.seen: dict[tuple[int, int], Any] = {}  # with what was compared, so that no identity is used twice

    def difference(self) -> str | None:
        """Where they differ, in words."""
        a, b = self.pair
        first, second = (list(m.named_modules(remove_duplicate=False)) for m in self.pair)
        if [(name, _kind(part)) for name, part in first] != [(name, _kind(part)) for name, part in second]:
            return "the types or names of their modules"
        if [self.names[0][id(m)] for _, m in first] != [self.names[1][id(m)] for _, m in second]:
            return "which modules are used twice"
        if _tensors(a) != _tensors(b) or aliases(a) != aliases(b):
            return "the names, shapes, types or ties of their tensors"
        for (name, x), (_, y) in zip(first, second, strict=True):
            one, two = _settings(x), _settings(y)
            for key in {**one, **two}:
                if key not in one or key not in two or not self.same(one[key], two[key]):
                    return f"{key!r} of module {name!r}"
        return None

    def same(self, a: Any, b: Any) -> bool:
        """Whether two values are shown to be equal, however they are nested."""
        if a is b or (id(a), id(b)) in self.seen:
            return True
        if isinstance(a, (Tensor, nn.Module)):
            return self._same_place(a, b)
        if type(a) is not type(b) or isinstance(a, type):
            return False
        self.seen[id(a), id(b)] = a, b
        if isinstance(a, PLAIN):
            return bool(a == b)
        if isinstance(a, (float, complex)):
            return repr(a) == repr(b)  # of NaN, and of a zero's sign
        if isinstance(a, FunctionType):
            return a.__code__ is b.__code__ and _Comparison().same(_contents_of(a), _contents_of(b))
        one, two = _parts(a), _parts(b)
        if one is None or two is None or len(one) != len(two):
            return False
        return all(self.same(x, y) for x, y in zip(one, two, strict=True))

    def _same_place(self, a: Any, b: Any) -> bool:
        """Tensors and modules: at the same place of the models, or hidden in attributes and equal."""
        places = self.names[0].get(id(a)), self.names[1].get(id(b))
        if places != (None, None):
            return places[0] == places[1]
        if isinstance(a, Tensor):
            return isinstance(b, Tensor) and _same_tensor(a, b)
        if not self.names[0] or not isinstance(b, nn.Module) or find_difference(a, b):
            return False
        return all(_same_tensor(x, y) for (_, x), (_, y) in zip(state(a), state(b), strict=True))


def _contents_of(function: FunctionType) -> list[Any]:
    """What a function brings along; it is not copied with a model, so no part of a model may be in it."""
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    return [function.__defaults__, function.__kwdefaults__, vars(function), cells, id(function.__globals__)]


def _parts(value: Any) -> list[Any] | None:
    """What a copy of a value would be made of; None: nobody knows."""
    if type(value) in (list, tuple):
        return list(value)
    if isinstance(value, weakref.ref):  # of recurrent layers, to their weights
        return [value()]
    try:
        made = value.__reduce_ex__(4)
    except Exception:  # of objects that cannot be copied
        return None
    if isinstance(made, str):
        return None
    return [list(part) if i in (3, 4) and part is not None else part for i, part in enumerate(made)]


def _same_tensor(a: Tensor, b: Tensor) -> bool:
    kinds = [(t.shape, t.dtype, t.device, t.requires_grad, t.is_meta, t.layout) for t in (a, b)]
    return kinds[0] == kinds[1] and not a.is_meta and a.layout == torch.strided and torch.equal(a, b)


def _tensors(model: nn.Module) -> list[Any]:
    return [(name, type(t), t.shape, t.dtype, t.requires_grad) for name, t in state(model)]


def _kind(module: nn.Module) -> Any:
    """The module's class; a parametrized module has one of its own."""
    return type(module).__bases__ if parametrize.is_parametrized(module) else type(module)


def _settings(module: nn.Module) -> dict[str, Any]:
    """The attributes of a module but for its tensors and its parts; hooks without their numbers."""
    found = dict(plain_attributes(module))
    for key, value in found.items():
        base = key[: key.find("_hooks") + len("_hooks")]
        if "_hooks" in key and isinstance(value, dict) and isinstance(found.get(base), (dict, list)):
            numbers = list(vars(module)[base])
            found[key] = list(value.values()) if key == base else [numbers.index(number) for number in value]
    found["tables"] = [list(table) for table in tables(module)[0]]
    return found
