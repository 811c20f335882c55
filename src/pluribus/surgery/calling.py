"""Running a model on an example: whether it fits, in which order layers are called, and which of them runs now."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .._common.trees import Batch, as_batch, logits_of, tensors_of
from .copying import duplicate, restore_modes_
from .selecting import READERS, channel_dim, weighted_layers


def call(method: str, model: nn.Module, example: Any) -> Any:
    """The output for the example; an example that does not fit is the caller's error."""
    args, kwargs = as_batch(example)
    try:
        return model(*args, **kwargs)
    except Exception as error:
        shapes = [tuple(x.shape) for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
        raise ValueError(
            f"{method}: the model does not run on the example, whose shape is {shapes}: {error}. "
            "Give the input of one call: a tensor, a tuple of arguments or a dict."
        ) from error


def refuse_sparse(method: str, example: Any) -> None:
    """Refuse inputs that are sparse tensors, whose rows cannot be taken by their numbers."""
    for x in tensors_of(as_batch(example)):
        if x.layout is not torch.strided:
            raise ValueError(
                f"{method}: an input is sparse ({x.layout}), so its rows cannot be taken out to try other batches. "
                "Give x.to_dense(), in later calls too, or use the ensemble as it is."
            )


def check_example(method: str, model: nn.Module, example: Any) -> None:
    """Check that the example fits, on a copy."""
    copy = duplicate(model)
    with evaluation_mode(copy), torch.random.fork_rng(devices=[]):
        call(method, copy, example)


def call_order(method: str, model: nn.Module, example: Any) -> list[str]:
    """Names of the layers with weights, in the order in which the model calls them first."""
    order: list[str] = []
    hooks = [
        layer.register_forward_pre_hook(lambda *_, name=name: order.append(name))
        for name, layer in model.named_modules()
        if isinstance(layer, READERS)
    ]
    with evaluation_mode(model, *hooks), torch.random.fork_rng(devices=[]):
        call(method, model, example)
    return list(dict.fromkeys(order))


def find_class_dim(model: nn.Module, batch: Batch) -> int | None:
    """Which dimension of the model's output, (batch, ...), its classes are: 1, ..., or -1; None where it does not show.

    The first channel of the last layer is raised: along the classes, and along nothing else, the first entry alone
    goes up. That holds for logits, probabilities and their logarithms, wherever the model moves its dimensions to.
    """
    layers = weighted_layers(model)
    calls: list[str] = []
    raised: list[str] = []  # the last one's output is

    def record(name: str, layer: nn.Module, output: Any) -> Any:
        calls.append(name)
        if raised[-1:] != [name] or not isinstance(output, Tensor):
            return None
        first = torch.zeros(output.shape[channel_dim(layer)], dtype=output.dtype, device=output.device)
        first[0] = 1 + output.abs().max()
        return output + first.reshape(-1, *[1] * (-channel_dim(layer) - 1))

    hooks = [
        layer.register_forward_hook(lambda part, _, output, name=name: record(name, part, output))
        for name, layer in layers.items()
    ]
    with evaluation_mode(model, *hooks), torch.random.fork_rng(devices=[]):
        before = logits_of(model(*batch[0], **batch[1]))
        for name in dict.fromkeys(reversed(calls)):
            raised.append(name)
            change = logits_of(model(*batch[0], **batch[1])) - before
            if bool(change.any()):
                up = change > 1e-3 * change.abs().max()
                found = [dim for dim in range(1, up.ndim) if _only_first(up, dim)]
                return None if len(found) != 1 else -1 if found[0] == up.ndim - 1 else found[0]
    return None


def _only_first(up: Tensor, dim: int) -> bool:
    first, *others = up.unbind(dim)
    return bool(first.all()) and not any(bool(other.any()) for other in others)


@contextmanager
def evaluation_mode(model: nn.Module, *hooks: Any) -> Iterator[None]:
    """Eval mode and no gradients for a while; every module's mode is restored and the hooks are removed."""
    modes = {module: module.training for module in model.modules()}
    if any(modes.values()):
        model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for hook in hooks:
            hook.remove()
        restore_modes_(modes)


@contextmanager
def training_mode(model: nn.Module) -> Iterator[None]:
    """Training mode for a while, but for parts that the user has set to eval mode; every mode is restored."""
    modes = {module: module.training for module in model.modules()}
    if not model.training:
        model.train()
    try:
        yield
    finally:
        restore_modes_(modes)


@contextmanager
def track_modules(model: nn.Module, stack: list[str]) -> Iterator[None]:
    """Keep the names of the running modules on a stack; after an error its top shows where it happened."""
    stack[1:] = []
    hooks = []
    for path, module in model.named_modules():
        hooks.append(module.register_forward_pre_hook(lambda m, a, path=path: stack.append(path)))
        hooks.append(module.register_forward_hook(lambda m, a, o: (stack.pop(), None)[1]))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def refuse_chance_outside_torch(method: str) -> Iterator[None]:
    """Refuse a model that draws from numpy or Python in the passes inside: a graph would hold one number for ever."""
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


def is_autocast(batch: Batch) -> bool:
    """Whether operations on the batch's device run in a lower precision now."""
    return any(torch.is_autocast_enabled(t.device.type) for t in tensors_of(batch) if t.device.type != "meta")
