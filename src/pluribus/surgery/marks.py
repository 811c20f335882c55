"""Which tensors were computed from marked ones: inputs of a model, outputs of layers, or what a member owns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from .._common.torch_operators import TorchDispatchMode
from .._common.torch_private import tensor_memory
from .._common.trees import tensors_of

OWN = frozenset(["own"])  # the mark of what a member owns


class Marks(TorchDispatchMode):
    """Marks every tensor that is computed from marked ones; views share the marks of their memory.

    Args:
        chance: random draws are marked as a member's own
    """

    def __init__(self, chance: bool = False) -> None:
        super().__init__()
        self.marks: dict[int, frozenset[Any]] = {}
        self.chance, self.is_paused = chance, False
        self.branched: frozenset[Any] = frozenset()  # of values that became numbers, which nobody can follow
        self.alive: list[Tensor] = []  # memory must not be used again for others

    def mark(self, tensor: Tensor, marks: frozenset[Any]) -> None:
        """Add marks to a tensor's memory."""
        self.alive.append(tensor)
        self.marks[tensor_memory(tensor)] = self.marks_of(tensor) | marks

    def marks_of(self, tensor: Tensor) -> frozenset[Any]:
        """The marks of what a tensor was computed from."""
        return self.marks.get(tensor_memory(tensor), frozenset())

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Compute without marks for a while."""
        self.is_paused = True
        try:
            yield
        finally:
            self.is_paused = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator, and mark what it gives."""
        output = func(*args, **(kwargs or {}))
        marks: frozenset[Any] = frozenset().union(*(self.marks_of(t) for t in tensors_of((args, kwargs or {}))))
        if self.chance and torch.Tag.nondeterministic_seeded in func.tags:
            marks |= OWN
        if not tensors_of(output):
            self.branched |= marks
        for tensor in tensors_of(output):
            self.mark(tensor, frozenset() if self.is_paused else marks)
        return output
