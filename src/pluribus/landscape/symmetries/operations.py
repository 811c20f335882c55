"""One operation of a running model: its arguments by name, what comes out, and the axes of these.

A rule reads `call["dim"]` for an argument and `call.axes("self")` for the axes of a tensor among them, and gives the
axes of each output. Two kinds of outputs have more to say than a list of axes: a `Stack` (queries, keys and values as
layers of one tensor, each with axes of its own) and `Places` (the indices of `max` or `topk`, which fix the units that
they count once anything looks at them).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..._common.torch_operators import changes_inputs, named_arguments
from ..._common.trees import tensors_of
from .axes import UnitAxis, fix, fixed

Key = tuple[int, int, tuple[int, ...], tuple[int, ...]]


@dataclass
class Stack:
    """The axes of a tensor that is a stack, along one dimension, of tensors with axes of their own."""

    dim: int
    layers: list[list[UnitAxis]]


@dataclass
class Places:
    """The axes of a tensor of places along an axis, whose units keep theirs once anything looks at that tensor."""

    along: UnitAxis
    axes: list[UnitAxis]


Axes = list[UnitAxis] | Stack | Places
Rule = Callable[["OperatorCall"], Sequence[Axes]]  # the axes of each output


class OperatorCall:
    """An operation with its arguments; the outputs come when it has run.

    Args:
        look_up: gives the axes of a tensor that is found under a key
    """

    def __init__(self, operator: Any, args: Any, kwargs: Any, look_up: Callable[[Tensor, Key], list[UnitAxis]]):
        self.operator, self.look_up = operator, look_up
        self.named = named_arguments(operator, args, kwargs)
        self.tensors = tensors_of((args, kwargs))
        self.keys = {id(tensor): key_of(tensor) for tensor in self.tensors}  # as they were before the operation
        self.writes = changes_inputs(operator)
        self.name = operator_name(operator)
        self.outs: list[Tensor] = []

    def __getitem__(self, name: str) -> Any:
        return self.named[name]

    def get(self, name: str, default: Any = None) -> Any:
        """The argument of that name, where the operation has one."""
        return self.named.get(name, default)

    def axes(self, name: str) -> list[UnitAxis]:
        """The axes of the argument of that name."""
        return self.of(self.named[name])

    def of(self, tensor: Tensor) -> list[UnitAxis]:
        """The axes of a tensor among the arguments."""
        return self.look_up(tensor, self.keys[id(tensor)])

    def others(self, *names: str) -> list[list[UnitAxis]]:
        """The axes of those of the named arguments that were given."""
        return [self.axes(name) for name in names if isinstance(self.named.get(name), Tensor)]

    def dims(self, name: str = "dim") -> list[int]:
        """The dimensions that an argument names; all, where it names none."""
        value, count = self.named.get(name), self.named["self"].ndim
        given = [value] if isinstance(value, int) else value
        return [dim % count for dim in given] if given and count else list(range(count))

    def fix_all(self) -> list[Axes]:
        """All that goes in or out keeps its order: the rule of an operation that has none."""
        for tensor in self.tensors:
            fix(*self.of(tensor))
        return [[fixed(size) for size in out.shape] for out in self.outs]


PRODUCERS = set(  # operations whose outputs are activations that are worth a comparison
    "mm addmm bmm baddbmm mv addmv convolution embedding _embedding_bag _embedding_bag_forward_only _trilinear add "
    "sigmoid tanh _cdist_forward _euclidean_dist native_layer_norm _native_batch_norm_legit_no_training "
    "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention "
    "_scaled_dot_product_efficient_attention".split()
)


def operator_name(operator: Any) -> str:
    """What an operation is called, without the mark of one that writes to its input; others' have their namespace."""
    name = operator.overloadpacket.__name__ if operator.namespace == "aten" else str(operator)
    return name.removesuffix("_") if changes_inputs(operator) else name


def memory_of(tensor: Tensor) -> int:
    """Where a tensor's numbers are: the same for all views of it."""
    return tensor.untyped_storage().data_ptr() or -id(tensor)


def key_of(tensor: Tensor) -> Key:
    """A tensor by the numbers that it shows, whichever object shows them."""
    strides = (stride if size != 1 else 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return memory_of(tensor), int(tensor.storage_offset()), tuple(tensor.shape), tuple(strides)
