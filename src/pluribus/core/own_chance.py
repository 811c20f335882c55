"""Chance that is not torch's, or that a model seeds itself: members draw it one by one, not at once as under vmap."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from .._common.torch_private import TorchDispatchMode, is_dispatch_watched, is_transforming


class SeededError(RuntimeError):
    """The model's chance is not torch's, or is seeded by the model, so that members cannot draw side by side."""


@contextmanager
def refuse_own_chance() -> Iterator[None]:
    """Raise `SeededError` after a pass of all members that draws what each member must draw by itself."""
    if is_transforming() or is_dispatch_watched() or torch.compiler.is_compiling():
        yield
        return
    outside = _state_outside_torch()
    with _Draws() as draws:
        yield
    if _state_outside_torch() != outside:
        raise SeededError("it draws random numbers from numpy or Python, which are the same for all members there")
    if draws.seeded:
        raise SeededError("it draws from its own seed or generator, so all members draw the same")


@contextmanager
def refuse_chance_outside_torch(method: str) -> Iterator[None]:
    """Refuse a model whose passes inside draw by chance that a graph cannot hold: it would be one number for ever."""
    before = _state_outside_torch()
    yield
    if _state_outside_torch() != before:
        raise ValueError(
            f"{method}: the model draws random numbers from numpy or Python when it runs, and those drawn now would "
            "stay for ever. Draw with torch (torch.rand, torch.randn), or use the ensemble as it is."
        )


def _state_outside_torch() -> tuple[Any, ...]:
    kind, keys, *rest = np.random.get_state(legacy=True)
    return random.getstate(), np.asarray(keys).tobytes(), tuple(rest)


class _Draws(TorchDispatchMode):
    """Notes whether an operator draws by a generator that it is given, or by torch's after that was set back."""

    def __init__(self) -> None:
        super().__init__()
        self.state, self.seeded = torch.default_generator.get_state(), False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The operator's result."""
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        given = any(isinstance(value, torch.Generator) for value in (*args, *kwargs.values()))
        self.seeded |= given or not torch.equal(torch.default_generator.get_state(), self.state)
        result = func(*args, **kwargs)
        self.state = torch.default_generator.get_state()
        return result
