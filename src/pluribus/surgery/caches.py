"""What a given model has cached of its own weights, and what copies of it with other weights must forget."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .._common.torch_private import parts_of, plain_attributes
from .._common.trees import Batch, are_close, map_tensors, tensors_of
from .copying import duplicate, tensors_in


def drop_stale_caches_(members: Sequence[nn.Module], batch: Batch) -> None:
    """Take out of the members' attributes what the model that they are copies of had cached of other weights.

    A cache is what a pass makes again where it is missing, the same each time; it is stale if the output then differs.
    Tried on copies: an attribute that holds a tensor is set to None, taken out, or emptied.
    """
    for number, key in _kept_tensors(members[0]):
        if empty := _find_stale(members[0], number, key, batch):
            for member in members:
                empty(parts_of(member)[number], key)


def keeps_tensors(module: nn.Module) -> bool:
    """Whether there are tensors in attributes of the module's parts, which may be caches."""
    return any(True for _ in _kept_tensors(module))


def _kept_tensors(module: nn.Module) -> Iterator[tuple[int, str]]:
    for number, part in enumerate(parts_of(module)):
        for key, value in plain_attributes(part).items():
            if "hook" not in key and tensors_in(value):
                yield number, key


def _find_stale(member: nn.Module, number: int, key: str, batch: Batch) -> Callable[[nn.Module, str], None] | None:
    """The way to empty an attribute that holds a stale cache."""

    def run(empty: Callable[[nn.Module, str], None] | None, seed: int) -> tuple[list[Tensor], list[Tensor]] | None:
        copy = duplicate(member)
        part = parts_of(copy)[number]
        if empty is not None:
            empty(part, key)
        args, kwargs = map_tensors(batch, lambda t: t.clone())
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(seed)
            try:
                return tensors_of(copy(*args, **kwargs)), tensors_in(vars(part).get(key))
            except Exception:  # a model may do anything without what it expects
                return None

    given = run(None, 0)
    for empty in (_set_to_none, _take_out, _clear):
        made, again = run(empty, 0), run(empty, 1)
        if made and again and made[1] and are_close(made[1], again[1]):
            if given is None or not are_close(given[0], made[0]):
                return empty
    return None


def _set_to_none(part: nn.Module, key: str) -> None:
    vars(part)[key] = None


def _take_out(part: nn.Module, key: str) -> None:
    vars(part).pop(key, None)


def _clear(part: nn.Module, key: str) -> None:
    held: Any = vars(part)[key]
    if isinstance(held, (dict, list)):
        held.clear()
