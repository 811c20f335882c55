"""Whether two models differ in nothing but the values of their tensors; what cannot be shown to be equal is unlike.

Parts and tensors correspond by their names. Everything else that a module holds must be made of the same: it is
pickled, with names in place of the model's own parts, and the bytes are compared.
"""

from __future__ import annotations

import io
import pickle
import weakref
from collections.abc import Mapping
from types import FunctionType
from typing import Any

from torch import Tensor, nn
from torch.nn.utils import parametrize

from .._common.torch_private import plain_attributes, tables
from ..surgery.copying import aliases, state


def find_difference(a: nn.Module, b: nn.Module) -> str | None:
    """Where two models differ in more than the values of their parameters and buffers, in words; None: nowhere."""
    if a is b:
        return None
    first, second = (list(model.named_modules(remove_duplicate=False)) for model in (a, b))
    if [(name, _kind(part)) for name, part in first] != [(name, _kind(part)) for name, part in second]:
        return "the types or names of their modules"
    names = [{id(part): name for name, part in (*m.named_modules(), *state(m))} for m in (a, b)]
    if [names[0][id(part)] for _, part in first] != [names[1][id(part)] for _, part in second]:
        return "which modules are used twice"
    if _tensors(a) != _tensors(b) or aliases(a) != aliases(b):
        return "the names, shapes, types or ties of their tensors"
    for (name, x), (_, y) in zip(first, second, strict=True):
        one, two = _settings(x), _settings(y)
        for key in {**one, **two}:
            if key not in one or key not in two or not _is_same(one[key], two[key], names):
                return f"{key!r} of module {name!r}"
    return None


def _is_same(a: Any, b: Any, names: list[dict[int, str]]) -> bool:
    if a is b and not isinstance(a, (Tensor, nn.Module)):
        return True
    try:
        return _content(a, names[0]) == _content(b, names[1])
    except Exception:  # what cannot be pickled
        return False


def _content(value: Any, names: Mapping[int, str]) -> bytes:
    buffer = io.BytesIO()
    pickler = _Pickler(buffer)
    pickler.names, pickler.fast = names, True  # equal strings are equal, whether they are one object or two
    pickler.dump(value)
    return buffer.getvalue()


class _Pickler(pickle.Pickler):
    """Names the model's parts, and writes out what functions and other tensors are made of."""

    names: Mapping[int, str] = {}

    def persistent_id(self, value: Any) -> str | None:
        """The name of a part or a tensor of the model."""
        return self.names.get(id(value))

    def reducer_override(self, value: Any) -> Any:
        """A function is its code and what it brings along, in which no part of the model may be: it is not copied."""
        if isinstance(value, Tensor):
            kept = value.detach()
            return tuple, ((value.shape, value.requires_grad, str(kept.dtype), kept.cpu().numpy()),)
        if isinstance(value, weakref.ref):  # as recurrent layers have of their weights
            return tuple, ((value(),),)
        if isinstance(value, FunctionType):
            cells = [cell.cell_contents for cell in value.__closure__ or ()]
            held = [value.__defaults__, value.__kwdefaults__, vars(value), cells]
            inside = b"" if value.__module__.startswith("torch") else _content(held, {})
            return tuple, ((id(value.__code__), id(value.__globals__), inside),)
        return NotImplemented


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
