"""What is inside a value: containers, arrays and objects, copied, compared and put back."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
from torch import Tensor, nn

from .torch_private import is_batched

LONGEST = 1000  # entries: longer containers are tables, not caches, and are not looked into
LARGEST = 100_000  # numbers of an array, likewise

CONTAINERS = (dict, list, set, deque)
_NUMBERS = (np.ndarray, array, bytearray)  # changed in place, and without parts
PLAIN = (bool, int, float, complex, str, bytes, np.generic, *_NUMBERS)
_MISSING: Any = object()


def holds_tensor(value: Any) -> bool:
    """Whether there is a tensor in a value."""
    return any(True for _ in held_tensors(value))


def holds_batched(value: Any) -> bool:
    """Whether a value holds a tensor of a running vmap, which is of no use once that is over."""
    return any(is_batched(tensor) for tensor in held_tensors(value))


def held_tensors(value: Any) -> Iterator[Tensor]:
    """The tensors in a value: in containers, and in the attributes of objects."""
    return (leaf for leaf in leaves_of_objects(value) if isinstance(leaf, Tensor))


def leaves_of_objects(value: Any) -> Iterator[Any]:
    """What is in a value, in containers and in the attributes of objects, and holds no more itself."""
    seen: set[int] = set()
    stack = [value]
    while stack:
        value = stack.pop()
        if isinstance(value, (Tensor, *_NUMBERS)) or not holds_more(value):
            yield value
        elif id(value) not in seen:
            seen.add(id(value))
            stack += _entries(value)


def as_words(leaf: Any) -> str:
    """A number, a string or an array as text, equal where the values are; empty for other objects."""
    if isinstance(leaf, np.ndarray):
        return f"{leaf.dtype}{leaf.shape}{leaf.tobytes()!r}" if leaf.size <= LARGEST else ""
    return repr(leaf) if isinstance(leaf, PLAIN) else ""


def holds_more(value: Any) -> bool:
    """Whether a value has a content that may change or holds others."""
    if isinstance(value, (*CONTAINERS, tuple)):
        return 0 < len(value) <= LONGEST or not isinstance(value, tuple)
    return isinstance(value, _NUMBERS) or _is_plain_object(value)


def _is_plain_object(value: Any) -> bool:
    kind = type(value)
    return (hasattr(value, "__dict__") or bool(_slots(kind))) and not (
        isinstance(value, (Tensor, nn.Module, type)) or callable(value) or kind.__module__.startswith("torch")
    )


def _slots(kind: type) -> list[str]:
    named = (vars(each).get("__slots__", ()) for each in kind.__mro__)
    every = (name for names in named for name in ((names,) if isinstance(names, str) else names))
    return [name for name in every if name not in ("__dict__", "__weakref__")]


def _filled_slots(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in _slots(type(value)) if hasattr(value, name)}


def _entries(value: Any) -> Collection[Any]:
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, (*CONTAINERS, tuple)):
        return value
    return [*getattr(value, "__dict__", {}).values(), *_filled_slots(value).values()]


def copy_contents(value: Any) -> list[tuple[Any, Any]]:
    """The containers, arrays and objects in a value, with a copy of what each of them holds."""
    found: list[tuple[Any, Any]] = []
    seen: set[int] = set()
    stack = [value]
    while stack and len(found) < LONGEST:
        value = stack.pop()
        if id(value) in seen or isinstance(value, Tensor) or not holds_more(value):
            continue
        seen.add(id(value))
        found += _copies(value)
        if not isinstance(value, _NUMBERS) and not (isinstance(value, CONTAINERS) and len(value) > LONGEST):
            stack += _entries(value)
    return found


def _copies(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, np.ndarray):
        return [(value, value.copy())] if value.size <= LARGEST and value.flags.writeable else []
    if isinstance(value, _NUMBERS):
        return [(value, value[:])] if len(value) <= LARGEST else []
    if isinstance(value, CONTAINERS):
        return [(value, value.copy())] if len(value) <= LONGEST else []
    if isinstance(value, tuple):
        return []
    attributes = getattr(value, "__dict__", None)
    found: list[tuple[Any, Any]] = []
    if attributes is not None and len(attributes) <= LONGEST:
        found.append((attributes, attributes.copy()))
    if _slots(type(value)):
        found.append((value, _filled_slots(value)))
    return found


def differs_from(container: Any, before: Any) -> bool:
    """Whether a container no longer holds what its copy does."""
    if isinstance(container, np.ndarray):
        return container.shape != before.shape or container.tobytes() != before.tobytes()
    if isinstance(container, _NUMBERS):
        return bool(container != before)
    if not isinstance(container, CONTAINERS):
        container = _filled_slots(container)
    if len(container) != len(before):
        return True
    if isinstance(container, dict):
        return any(before.get(key, _MISSING) is not value for key, value in container.items())
    if isinstance(container, set):
        return bool(container != before)
    return any(a is not b for a, b in zip(container, before, strict=True))


def refill(container: Any, held: Any) -> None:
    """Put back into a container what its copy holds."""
    if isinstance(container, _NUMBERS):
        container[:] = held
    elif isinstance(container, CONTAINERS):
        container.clear()
        container.extend(held) if isinstance(container, (list, deque)) else container.update(held)
    else:
        for name in _slots(type(container)):
            if name in held:
                object.__setattr__(container, name, held[name])
            elif hasattr(container, name):
                object.__delattr__(container, name)
