"""What of a model's inputs goes through certain layers, and what goes around them to the output."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .._common.torch_private import (
    TorchDispatchMode,
    checkpoint_hooks,
    in_backward,
    parts_of,
    tensor_memory,
    transform_level,
)
from .._common.trees import Batch, are_close, map_tensors, tensors_of
from .copying import duplicate, state


class Flow(NamedTuple):
    """Positions of the tensors among a model's inputs: those that enter layers, and those that go around them."""

    entering: frozenset[int]
    around: frozenset[int]


def trace_flow(model: nn.Module, layers: Collection[str], batch: Batch) -> Flow:
    """Which inputs the layers read, and which have a part in the output (a mask, an index) beside what layers give.

    Values count, sizes do not. A number that Python reads (`.item()`) is not followed: see `goes_around`.
    """
    follow = _Follow()
    batch = map_tensors(batch, lambda t: t.detach().clone())
    for i, leaf in enumerate(tensors_of(batch)):
        follow.mark(leaf, frozenset([i]))
    entering: set[int] = set()

    def cut(inputs: Any, output: Any) -> Any:
        entering.update(*(follow.marks_of(t) for t in tensors_of(inputs)))
        with follow.pause():
            return map_tensors(output, lambda t: t.clone())

    with _watching(model, layers, cut) as copy, follow:
        output = copy(*batch[0], **batch[1])
    return Flow(frozenset(entering), frozenset().union(*(follow.marks_of(t) for t in tensors_of(output))))


def goes_around(model: nn.Module, layers: Collection[str], one: Batch, two: Batch) -> bool:
    """Whether the outputs for two batches differ although the layers give the same: the rest looks at the batch."""
    given: list[Any] = []
    with _watching(model, layers, lambda _, output: given.append(output)) as copy:
        first = tensors_of(copy(*one[0], **one[1]))
    again = iter(given)
    with _watching(model, layers, lambda _, output: next(again, output)) as copy:
        second = tensors_of(copy(*two[0], **two[1]))
    if next(again, None) is not None or [t.shape for t in first] != [t.shape for t in second]:
        return True
    if any(tensor.is_meta for tensor in (*first, *second)):
        return False  # there are no values to look at
    return not are_close(first, second, 1e-5)


@contextmanager
def _watching(model: nn.Module, layers: Collection[str], change: Callable[[Any, Any], Any]) -> Iterator[nn.Module]:
    """A copy of the model in eval mode, whose layers' outputs are what `change(inputs, output)` gives, if anything."""
    copy = duplicate(model).eval()
    for layer in {copy.get_submodule(name) for name in layers}:
        layer.register_forward_hook(lambda _, args, kwargs, out: change((args, kwargs), out), with_kwargs=True)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        yield copy


# -------------------------------------------------------------------- what members differ in

OWN = frozenset([-1])  # the mark of what a member owns


def find_trunk(member: nn.Module, own: Collection[str], batch: Batch, chance: bool) -> list[int]:
    """The numbers of the largest parts that nothing reaches that members differ in, found by one pass of a copy.

    Args:
        member: a copy of a member, with its own tensors, which the pass may change
        own: the names of what it owns
        chance: members differ in their random draws
    """
    flow = _Follow(chance)
    for name, tensor in state(member):
        if name in own:
            flow.mark(tensor, OWN)
    parts = parts_of(member)
    outputs: dict[nn.Module, list[Tensor] | None] = {}  # None: it was called where nobody can follow
    outside = surroundings()

    def note(part: nn.Module, _: Any, output: Any) -> None:
        seen = outputs.setdefault(part, [])
        if flow.branched or not tensors_of(output) or surroundings() != outside:
            outputs[part] = None
        elif seen is not None:
            seen += tensors_of(output)

    hooks = [part.register_forward_hook(note) for part in parts]
    try:
        with torch.random.fork_rng(devices=[]), flow:
            args, kwargs = map_tensors(batch, lambda t: t.clone())
            member(*args, **kwargs)
    finally:
        for hook in hooks:
            hook.remove()
    free = {part for part, seen in outputs.items() if seen and not any(flow.marks_of(t) for t in seen)}
    return _outermost(member, parts, free)


def _outermost(module: nn.Module, parts: list[nn.Module], free: set[nn.Module]) -> list[int]:
    found: dict[nn.Module, None] = {}

    def visit(part: nn.Module) -> None:
        for child in part.children():
            if child in free:
                found[child] = None
            else:
                visit(child)

    visit(module)
    return [number for number, part in enumerate(parts) if part in found]


def surroundings() -> Any:
    """What differs where a model checkpoints, or takes gradients or transforms functions itself."""
    return torch.is_grad_enabled(), in_backward(), checkpoint_hooks(), transform_level()


class _Follow(TorchDispatchMode):
    """Marks every tensor that is computed from marked ones; views share the marks of their memory.

    Args:
        chance: random draws are marked as a member's own
    """

    def __init__(self, chance: bool = False) -> None:
        super().__init__()
        self.marks: dict[int, frozenset[int]] = {}
        self.chance, self.branched = chance, False  # branched: a marked value became a number, which nobody can follow
        self.alive: list[Tensor] = []  # memory must not be used again for others
        self.is_paused = False

    def mark(self, tensor: Tensor, marks: frozenset[int]) -> None:
        """Add marks to a tensor's memory."""
        self.alive.append(tensor)
        self.marks[tensor_memory(tensor)] = self.marks_of(tensor) | marks

    def marks_of(self, tensor: Tensor) -> frozenset[int]:
        """The inputs that a tensor was computed from."""
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
        marks = frozenset().union(*(self.marks_of(t) for t in tensors_of((args, kwargs or {}))))
        if self.chance and torch.Tag.nondeterministic_seeded in func.tags:
            marks |= OWN
        self.branched |= bool(marks) and not tensors_of(output)
        for tensor in tensors_of(output):
            if marks and not self.is_paused:
                self.mark(tensor, marks)
            else:
                self.alive.append(tensor)
        return output
