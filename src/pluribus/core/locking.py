"""One thread at a time: whoever runs a module with a member's tensors in place of its own has its lock."""

from __future__ import annotations

import threading
import weakref
from typing import Any

from torch import nn

_RLock: Any = type(threading.RLock())


class Lock(_RLock):
    """A lock that a copy, or what is read from a pickle, has anew."""

    def __reduce__(self) -> tuple[type[Lock], tuple[()]]:
        return Lock, ()


LOCKS: weakref.WeakKeyDictionary[nn.Module, Lock] = weakref.WeakKeyDictionary()


def lock_of(module: nn.Module) -> Lock:
    """The lock of a module: one for all that share a part of it."""
    parts = list(module.modules())
    lock = next((LOCKS[part] for part in parts if part in LOCKS), None) or Lock()
    for part in parts:
        LOCKS.setdefault(part, lock)
    return lock
