"""Whether a module has changed: its attributes, parts and hooks, and what a copy's pass has left in it."""

from __future__ import annotations

from collections.abc import Sequence
from operator import getitem, is_
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from .._common.torch_private import parts_of, tables

PLAIN = (bool, int, float, str, type(None))
_OF_EVERY_MODULE = frozenset(vars(nn.Module())) | {"rows", "layout", "place", "parts"}  # and of layers of ours


class ModuleSnapshot:
    """The attributes, parts and hooks of a module's parts as they are now, to see whether a user changes them.

    One level deep: an attribute of a configuration counts, what a list inside of it holds does not.
    """

    def __init__(self, parts: Sequence[nn.Module]):
        noted: list[tuple[Any, Any]] = []  # the attributes of parts, their tables and lists, with what they hold
        for part, own in zip(parts, tables(*parts), strict=True):
            attributes = vars(part)
            noted.append((attributes, [entry for entry in attributes.items() if entry[0] not in _OF_EVERY_MODULE]))
            noted.append((own.children, own.children.items()))
            for key, value in attributes.items():
                if isinstance(value, PLAIN):
                    continue
                if key in _OF_EVERY_MODULE:  # of torch's own tables, those of hooks
                    inside = value if "_hooks" in key and value else None
                else:
                    inside = _inside(value)
                if inside is not None:
                    noted.append((inside, inside.items() if isinstance(inside, dict) else enumerate(inside)))
        held = [(holder, key, value) for holder, items in noted for key, value in items]
        self.sized = [holder for holder, _ in noted]
        self.holders, self.keys, self.values = ([entry[i] for entry in held] for i in range(3))
        self.length, self.hooks = sum(map(len, self.sized)), RemovableHandle.next_id
        self.parts = parts

    def has_changed(self) -> bool:
        """Whether anything is another object now, or hooks have come."""
        if sum(map(len, self.sized)) != self.length:
            return True
        if self.hooks != RemovableHandle.next_id:  # somebody has registered a hook somewhere
            if any(value for part in self.parts for key, value in vars(part).items() if "_hooks" in key and value
                   and not any(value is sized for sized in self.sized)):  # fmt: skip
                return True
            self.hooks = RemovableHandle.next_id
        try:
            return not all(map(is_, map(getitem, self.holders, self.keys), self.values))
        except (KeyError, IndexError):  # one has gone, another has come
            return True

    def changes(self) -> list[tuple[nn.Module, str]] | None:
        """The attributes of parts that are other objects now; None if parts, hooks or contents have changed as well."""
        if sum(map(len, self.sized)) != self.length:
            return None
        owners = {id(vars(part)): part for part in self.parts}
        found = []
        for holder, key, value in zip(self.holders, self.keys, self.values, strict=True):
            try:
                if holder[key] is value:
                    continue
            except (KeyError, IndexError):
                return None
            if id(holder) not in owners:
                return None
            found.append((owners[id(holder)], key))
        return found


def _inside(value: Any) -> Any:
    """What a plain object or a container holds, to be watched; None for everything else."""
    if isinstance(value, (dict, list)):
        return value
    if isinstance(value, (Tensor, nn.Module, type)) or callable(value) or not hasattr(value, "__dict__"):
        return None
    return None if type(value).__module__.startswith(("torch", "pluribus", "numpy")) else vars(value)


def take_back_(module: nn.Module, copy: nn.Module) -> None:
    """Let a module have the buffers and the data in attributes that a pass of its copy has left."""
    for part, other in zip(parts_of(module), parts_of(copy), strict=False):
        own, left = tables(part, other)
        own.buffers.update({key: buffer for key, buffer in left.buffers.items() if key in own.buffers})
        for key, value in vars(other).items():
            if key not in _OF_EVERY_MODULE and _is_data(value):
                vars(part)[key] = value


def _is_data(value: Any) -> bool:
    if isinstance(value, (dict, list, tuple)):
        return all(map(_is_data, value.values() if isinstance(value, dict) else value))
    return isinstance(value, (*PLAIN, Tensor))
