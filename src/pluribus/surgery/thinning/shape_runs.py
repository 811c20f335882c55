"""Dry runs: the shapes that a model gives, found without memory."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..._common.torch_operators import fake_tensor_mode, named_arguments
from ..._common.torch_private import pytree
from ..._common.trees import as_batch, tensors_of
from ..calling import track_modules
from ..copying import duplicate_with
from .attributes import Attribute, named_tensors, set_attributes_

Shapes = list[tuple[int, ...]]


class Rankings:
    """Sizes in which a model looks for places, as a router does that sends rows to the best of eight experts.

    Such a size must stay: with four outputs the router would never name half of the experts.

    Args:
        fix: called with each size of which a place is used
    """

    aten = torch.ops.aten
    RANKED = (aten.argmax, aten.argmin, aten.topk, aten.sort, aten.max, aten.min)  # the last of their results: places

    def __init__(self, fix: Callable[[Any], Any]):
        self.fix = fix
        self.places: dict[int, tuple[Tensor, Any]] = {}  # by identity, which lasts as long as the tensor

    def look_at_inputs(self, args: Any) -> None:
        """Fix the sizes whose places an operator reads."""
        for place in (self.places.get(id(argument)) for argument in args):
            if place is not None:
                self.fix(place[1])

    def note(self, func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        """Take note of an operator's result, if it is places."""
        if func.overloadpacket not in self.RANKED:
            return
        found, dim = (
            result if isinstance(result, Tensor) else result[-1],
            named_arguments(func, args, kwargs).get("dim"),
        )
        if not found.is_floating_point() and isinstance(dim, int) and args[0].ndim:
            self.places[id(found)] = found, args[0].shape[dim]


class RunError(Exception):
    """The model does not run; `module` says where it stopped."""

    def __init__(self, module: str, cause: Exception):
        super().__init__(f"{type(cause).__name__}: {cause}")
        self.module = module


def dry_run(
    model: nn.Module,
    example: Any,
    sizes: Mapping[str, tuple[int, ...]] | None = None,
    attributes: Iterable[Attribute] = (),
) -> dict[bool, Shapes]:
    """The shapes of the outputs in each mode (True: train) in which a model runs, possibly with other sizes.

    It runs on fake tensors, which have shapes and no memory.
    """
    found: dict[bool, Shapes] = {}
    for training in (True, False):
        stack = [""]
        try:
            mode, copy = make_fake(model, example, sizes)
            set_attributes_(copy, attributes)
            found[training] = run_fake(copy, example, mode, training, stack)
        except Exception as cause:
            error = RunError(stack[-1], cause)
    if not found:
        raise error
    return found


def output_shapes(output: Any) -> Shapes:
    """The shapes of what a model gives: of the logits where it gives caches and hidden states beside them."""
    return [tuple(map(int, tensor.shape)) for tensor in tensors_of(getattr(output, "logits", output))]


@contextlib.contextmanager
def dry_mode() -> Iterator[None]:
    """No gradients, no warnings, and no fused attention, which knows no fake tensors."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def make_fake(
    model: nn.Module,
    example: Any,
    sizes: Mapping[str, tuple[Any, ...]] | None = None,
    mode: Any = None,
) -> tuple[Any, nn.Module]:
    """A copy of the model with fake tensors of given sizes."""
    mode = fake_tensor_mode(allow_non_fake_inputs=True) if mode is None else mode
    own = named_tensors(model)
    device = _device([*own.values(), *tensors_of(as_batch(example))])
    fakes = {}
    with mode:
        for name, tensor in own.items():
            size = sizes[name] if sizes else tensor.shape
            fakes[id(tensor)] = torch.empty(size, dtype=tensor.dtype, device=device or tensor.device)
    return mode, duplicate_with(model, fakes)


def run_fake(
    fake: nn.Module,
    example: Any,
    mode: Any,
    training: bool,
    stack: list[str],
    watchers: Iterable[Any] = (),
) -> Shapes:
    """The shapes of the outputs on fake tensors; the stack holds the names of the running modules."""
    device = _device([*named_tensors(fake).values(), *tensors_of(as_batch(example))])

    def as_fake(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if device is not None:
            with mode:
                return torch.empty(value.shape, dtype=value.dtype, device=device)
        return mode.from_tensor(value, static_shapes=True)

    batch = pytree.tree_map(as_fake, as_batch(example))
    fake.train(training)
    with track_modules(fake, stack), dry_mode(), mode, contextlib.ExitStack() as entered:
        for watcher in watchers:
            entered.enter_context(watcher)
        output = fake(*batch[0], **batch[1])
    return output_shapes(output)


def _device(given: Iterable[Tensor]) -> torch.device | None:
    """The processor if some tensors have no memory, else None: where each tensor is."""
    return torch.device("cpu") if any(tensor.is_meta for tensor in given) else None
