"""Whether a module has changed: its attributes, parts and hooks; and what a pass does that cannot be seen after it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import getitem, is_
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from .._common.torch_private import checkpoint_hooks, parts_of, tables

PLAIN = (bool, int, float, str, type(None))
_OF_EVERY_MODULE = frozenset(vars(nn.Module())) | {"rows", "layout", "place", "parts"}  # and of layers of ours


class ModuleSnapshot:
    """The attributes, parts and hooks of a module's parts as they are now, to see whether a user changes them.

    Lists, dicts and plain objects (configurations) count with all that they hold, however deep.
    """

    def __init__(self, parts: Sequence[nn.Module]):
        self.parts, self.hooks = parts, RemovableHandle.next_id
        self.sized: list[Any] = []  # dicts and lists, of which the lengths count
        self.holders: list[Any] = []  # the same, once for each entry
        self.keys: list[Any] = []
        self.values: list[Any] = []
        inside: list[Any] = _hooks(parts)
        for part, own in zip(parts, tables(*parts), strict=True):
            self.sized.append(vars(part))
            inside.append(own.children)
            for key, value in vars(part).items():
                if key not in _OF_EVERY_MODULE:
                    self.holders.append(vars(part))
                    self.keys.append(key)
                    self.values.append(value)
        inside += self.values
        seen: set[int] = set()
        while inside:
            value = inside.pop()
            if not isinstance(value, (dict, list)):
                if isinstance(value, (*PLAIN, Tensor, nn.Module, type)) or not _is_configuration(value):
                    continue
                value = vars(value)
            if id(value) not in seen:
                seen.add(id(value))
                self.sized.append(value)
                keys, values = (value.keys(), value.values()) if isinstance(value, dict) else (range(len(value)), value)
                self.holders += [value] * len(value)
                self.keys += keys
                self.values += values
                inside += values
        self.length = sum(map(len, self.sized))

    def has_changed(self) -> bool:
        """Whether anything is another object now, or hooks have come."""
        if sum(map(len, self.sized)) != self.length:
            return True
        if self.hooks != RemovableHandle.next_id:  # somebody has registered a hook somewhere
            known = set(map(id, self.sized))
            if any(id(hooks) not in known for hooks in _hooks(self.parts)):
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
        entries = zip(self.holders, self.keys, self.values, strict=True)
        try:
            changed = [(owners.get(id(holder)), key) for holder, key, value in entries if holder[key] is not value]
        except (KeyError, IndexError):
            return None
        found = [(part, key) for part, key in changed if part is not None]
        return found if len(found) == len(changed) else None


def _hooks(parts: Sequence[nn.Module]) -> list[dict[Any, Any]]:
    """The tables of hooks that are not empty; lists that a library calls hooks are attributes like others."""
    found = []
    for part in parts:
        for key, value in vars(part).items():
            if "_hooks" in key and isinstance(value, dict) and value:
                found.append(value)
    return found


def _is_configuration(value: Any) -> bool:
    """Whether it is a plain object that holds values, of no class of torch, numpy or ours."""
    own = not type(value).__module__.startswith(("torch", "pluribus", "numpy"))
    return own and hasattr(value, "__dict__") and not callable(value)


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


@contextmanager
def noting_checkpoints() -> Iterator[list[nn.Module]]:
    """The modules that are called inside of gradient checkpointing, which runs them again in backward."""
    seen: list[nn.Module] = []
    outside, thread = (torch.is_grad_enabled(), checkpoint_hooks()), threading.get_ident()

    def note(module: nn.Module, _: Any) -> None:
        if threading.get_ident() == thread and (torch.is_grad_enabled(), checkpoint_hooks()) != outside:
            seen.append(module)

    hook = register_module_forward_pre_hook(note)
    try:
        yield seen
    finally:
        hook.remove()
