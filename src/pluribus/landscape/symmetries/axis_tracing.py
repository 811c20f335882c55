"""A run of a model in which every operation says which axes are the same: what is not fixed then may be permuted.

In `nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))` the run meets three operations:

    addmm  (rows, 3) x (3, 8)   the rows of 0.weight are the 8 units of the result, and so is 0.bias
    relu   (rows, 8)            each unit by itself: the same 8 units
    addmm  (rows, 8) x (8, 2)   the columns of 2.weight are these units; the 2 outputs are seen, so they are fixed

What is left free is one axis of 8 units, which stands in 0.weight[0], 0.bias[0] and 2.weight[1]: one group. `Walk` is
the run, `axes.py` the arithmetic of axes, `rules.py` the table of what each operation says; an operation that has no
rule fixes all that it touches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..._common.torch_operators import OperatorMode
from ..._common.torch_private import SlowPath
from ..._common.trees import Batch, logits_of, tensors_of
from ...surgery.copying import duplicate
from .axes import UnitAxis, equate, fix, fixed, fresh, joined, settle
from .rules import (
    PRODUCERS,
    STACK_RULES,
    Axes,
    Key,
    OperatorCall,
    Places,
    Stack,
    key_of,
    memory_of,
    operator_name,
    rule_of,
)

MOST_LAYERS = 64  # a stack of more is left as one axis
Layers = Mapping[tuple[str, int], int]  # how many axes of their own lie one after the other in a dimension of a tensor


def walk(model: nn.Module, batch: Batch) -> Walk:
    """The axes of everything in a run of the model, which is used up: some models change as they run.

    The second of two runs is given: the first shows which constants are written to, and which dimensions hold several
    axes one after the other, as those of queries, keys and values in one matrix.
    """
    first = Walk()
    first.follow(duplicate(model), batch, {})
    layers = {
        (name, dim): _layers(axis)
        for name, axes in first.state.items()
        for dim, axis in enumerate(axes)
        if 1 < _layers(axis) <= MOST_LAYERS
    }
    second = Walk(first.written)
    second.follow(model, batch, layers)
    return second


class Walk(OperatorMode):
    """Takes note of which axes of a running model's tensors are the same.

    Args:
        written: the constants that are written to in such a run, by the step that made them; None: not known yet
    """

    def __init__(self, written: set[int] | None = None) -> None:
        super().__init__()
        self.known: dict[Key, Axes] = {}
        self.alive: list[Tensor] = []  # no memory may be used twice
        self.constants: dict[int, int] = {}  # by their memory: what comes neither from the model nor from its input
        self.known_written, self.written = written, set[int]()
        self.step, self.turn = 0, 0
        self.activations: dict[int, Axes] = {}  # by the turn of an operation that makes some
        self.without_rule: set[str] = set()
        self.state: dict[str, list[UnitAxis]] = {}

    def follow(self, model: nn.Module, batch: Batch, layers: Layers) -> None:
        """Run the model and fix what its outputs show; `state` has the axes of its tensors afterwards."""
        tensors = lasting_state(model)
        for name, tensor in tensors.items():
            counts = [layers.get((name, d), 1) for d in range(tensor.ndim)]
            sizes = zip(tensor.shape, counts, strict=True)
            self.put(tensor.detach(), [joined(*(fresh(size // n) for _ in range(n))) for size, n in sizes])
        for tensor in tensors_of(batch):
            self.put(tensor, [fixed(size) for size in tensor.shape])
        with torch.no_grad(), SlowPath(), self:
            output = model(*batch[0], **batch[1])
        for tensor in tensors_of(logits_of(output)):
            fix(*self.axes(tensor, key_of(tensor)))
        self.state = {name: self.axes(t.detach(), key_of(t)) for name, t in tensors.items()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and take note of what it says about axes."""
        self.step += 1
        self.turn += operator_name(func) in PRODUCERS
        call = OperatorCall(func, args, kwargs or {}, self.axes)
        if call.writes:
            self.written |= {self.constants[m] for t in call.tensors if (m := memory_of(t)) in self.constants}
        is_constant = all([self._is_constant(tensor) for tensor in call.tensors])  # all are looked at
        out = func(*args, **(kwargs or {}))
        call.outs = tensors_of(out)
        self.alive += call.outs
        if is_constant:
            for tensor in call.outs:
                self.constants.setdefault(memory_of(tensor), self.step)
        if not all(self._is_plain(tensor) for tensor in call.outs):
            answer = self._ask(call)
            if call.name in PRODUCERS:
                self.activations[self.turn] = answer[0]
            for tensor, axes in zip(call.outs, answer, strict=True):
                self.put(tensor, axes)
        return out

    def put(self, tensor: Tensor, axes: Axes) -> None:
        """Take note of the axes of a tensor; those that are known of it already are the same."""
        known = self.known.setdefault(key_of(tensor), axes)
        self.alive.append(tensor)
        if known is not axes:
            for one, other in zip(_flat(known), _flat(axes), strict=True):
                equate(one, other)

    def axes(self, tensor: Tensor, key: Key) -> list[UnitAxis]:
        """The axes of a tensor; those of a constant are free where all its units are equal, anew at each use."""
        if self._is_plain(tensor):
            return _of_values(tensor)
        if key not in self.known:
            self.known[key] = _of_values(tensor)
            self.alive.append(tensor)
        self.known[key] = found = _flat(self.known[key])
        return found

    def _ask(self, call: OperatorCall) -> list[Axes]:
        held = self.known.get(call.keys[id(call.tensors[0])]) if call.tensors else None
        try:
            if isinstance(held, Stack) and call.name in STACK_RULES:
                found = STACK_RULES[call.name](call, held)
                if found is not None:  # else its layers must be one
                    return found
            rule = rule_of(call)
            if rule is not None:
                answer = list(rule(call))
                if [_sizes(axes) for axes in answer] == [tuple(out.shape) for out in call.outs]:
                    return answer
        except (ValueError, KeyError, IndexError, TypeError):  # arguments that the rule was not made for
            pass
        if call.tensors:
            self.without_rule.add(call.name)
        return call.fix_all()

    def _is_constant(self, tensor: Tensor) -> bool:
        """Whether a tensor depends neither on the model nor on its input, as far as this run can know by now."""
        memory = memory_of(tensor)
        if key_of(tensor) not in self.known and memory not in self.constants:  # seen for the first time
            self.constants[memory] = -self.step
            self.alive.append(tensor)
        step = self.constants.get(memory)
        return step is not None and step not in self.written and step not in (self.known_written or ())

    def _is_plain(self, tensor: Tensor) -> bool:
        """Whether the tensor is a constant that is never written to."""
        step = self.constants.get(memory_of(tensor))
        return step is not None and self.known_written is not None and step not in self.known_written


def lasting_state(model: nn.Module) -> dict[str, Tensor]:
    """The tensors that a network learns or gathers and that are saved with it, a tied one once."""
    saved = model.state_dict(keep_vars=True)
    named = (*model.named_parameters(), *model.named_buffers())
    return {name: t for name, t in named if name in saved and t.ndim and (t.is_floating_point() or t.is_complex())}


def _flat(axes: Axes) -> list[UnitAxis]:
    """The axes of a tensor that is looked at: the layers of a stack are one from now on, places stay where they are."""
    if isinstance(axes, Places):
        fix(axes.along)
        return axes.axes
    if isinstance(axes, list):
        return axes
    first, *others = axes.layers
    for other in others:
        for a, b in zip(first, other, strict=True):
            equate(a, b)
    return [*first[: axes.dim], fixed(len(axes.layers)), *first[axes.dim :]]


def _sizes(axes: Axes) -> tuple[int, ...]:
    if isinstance(axes, Stack):
        sizes = [axis.size for axis in axes.layers[0]]
        return (*sizes[: axes.dim], len(axes.layers), *sizes[axes.dim :])
    return tuple(axis.size for axis in (axes.axes if isinstance(axes, Places) else axes))


def _of_values(tensor: Tensor) -> list[UnitAxis]:
    """Free where all units are equal."""
    values, found = tensor.detach(), []
    for dim, size in enumerate(tensor.shape):
        uniform = bool(values.numel()) and bool((values == values.narrow(dim, 0, 1)).all())
        found.append(fresh(size) if uniform else fixed(size))
    return found


def _layers(axis: UnitAxis) -> int:
    axis = settle(axis)
    return axis.parts[0].size if axis.kind == "product" and axis.parts[0].is_fixed else 1
