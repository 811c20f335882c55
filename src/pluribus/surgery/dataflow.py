"""Where a model's data flows: through which layers it enters and leaves, and which parts no member's tensor reaches.

Marks are put on tensors, and every operator passes on the marks of what it reads to what it gives (`marks.Marks`). The
outputs of layers are marked with the layer alone, so that marks say which way data came without passing a layer:

    x -> enter -> h -> leave -> y      h is marked "enter", y is marked "leave": they are entrance and exit
    x -------------------------> y     if y is marked "x" as well, x also goes around the layers

The same marks find the trunk of an ensemble. There, what a member owns is marked, and a part none of whose outputs is
marked gives all members the same:

    x -> body -> h -> head -> y        head's weight is owned, so y is marked; h is not: body is the trunk

What becomes a number of Python (`if score > 0`) can decide about anything, so its marks count for all that follows.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .._common.torch_private import checkpoint_hooks, in_backward, parts_of, transform_level
from .._common.trees import Batch, as_batch, clone, map_tensors, tensors_of
from .copying import duplicate, state
from .selecting import READERS, weighted_layers

Marked = frozenset[Any]


class Flow(NamedTuple):
    """What flows in a model, by the positions of its inputs among their tensors, and the names of layers.

    Args:
        entering: for each layer that was called the marks of what it reads
        leaving: the marks of the outputs
        numbers: the marks of what Python has read as a number, which may decide about anything
    """

    entering: dict[str, Marked]
    leaving: Marked
    numbers: Marked

    def inputs(self) -> frozenset[int]:
        """The inputs that layers read before any other layer has."""
        return _positions(frozenset().union(*self.entering.values()))

    def around(self) -> frozenset[int]:
        """The inputs that have a part in the output (a mask, an index) alongside what layers give."""
        return _positions(self.leaving | self.numbers)


def _positions(marks: Marked) -> frozenset[int]:
    return frozenset(mark for mark in marks if isinstance(mark, int))


def trace_flow(model: nn.Module, layers: Collection[str], batch: Batch) -> Flow:
    """Which inputs the layers read, and which inputs and layers reach the output past other layers.

    Values count, sizes do not.
    """
    from .marks import Marks  # late: running an ensemble needs nothing private of torch

    follow, batch = Marks(), clone(batch)
    for position, leaf in enumerate(tensors_of(batch)):
        follow.mark(leaf, frozenset([position]))
    entering: dict[str, Marked] = {}

    def cut(name: str, inputs: Any, output: Any) -> Any:
        marks = (follow.marks_of(tensor) for tensor in tensors_of(inputs))
        entering[name] = entering.get(name, frozenset()).union(*marks)
        with follow.pause():
            output = map_tensors(output, lambda t: t.clone())
        for tensor in tensors_of(output):
            follow.mark(tensor, frozenset([name]))
        return output

    copy = duplicate(model).eval()
    for name in layers:
        copy.get_submodule(name).register_forward_hook(
            lambda _, args, kwargs, output, name=name: cut(name, (args, kwargs), output), with_kwargs=True
        )
    with torch.random.fork_rng(devices=[]), torch.no_grad(), follow:
        output = copy(*batch[0], **batch[1])
    leaving: Marked = frozenset().union(*(follow.marks_of(tensor) for tensor in tensors_of(output)))
    return Flow(entering, leaving, follow.branched)


def find_entrances(model: nn.Module, example: Any) -> tuple[list[str], bool]:
    """The layers that read the model's input before any other layer has, and whether all of it goes through them."""
    readers = [name for name, layer in model.named_modules() if isinstance(layer, READERS)]
    flow = trace_flow(model, readers, as_batch(example))
    found = {name: marks for name in readers if _positions(marks := flow.entering.get(name, frozenset()))}
    pure = [name for name, marks in found.items() if _positions(marks) == marks]  # nothing of what layers give
    mixed = frozenset().union(*(marks for name, marks in found.items() if name not in pure))
    entering = frozenset().union(*(found[name] for name in pure))
    if not pure or entering & (mixed | flow.around()):
        return list(found), False
    return pure, True  # other inputs, such as masks, may go around


def find_exits(model: nn.Module, example: Any) -> list[str]:
    """The convolutions and linear layers whose output reaches the model's output without passing another layer."""
    layers = weighted_layers(model)
    leaving = trace_flow(model, layers, as_batch(example)).leaving
    return [name for name in layers if name in leaving]


# -------------------------------------------------------------------- what members differ in


def find_trunk(member: nn.Module, own: Collection[str], batch: Batch, chance: bool) -> list[int]:
    """The numbers of the largest parts that nothing reaches that members differ in, found by one pass of a copy.

    Args:
        member: a copy of a member, with its own tensors, which the pass may change
        own: the names of what it owns
        chance: members differ in their random draws
    """
    from .marks import OWN, Marks

    flow = Marks(chance)
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
            args, kwargs = clone(batch)
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
