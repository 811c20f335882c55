"""Passes that run on a copy of the module, which what they leave behind for later still holds then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from .._common.contents import PLAIN, leaves_of_objects
from .._common.torch_private import tables
from ..surgery.copying import share_tensors, state
from ..surgery.selecting import dotted_name
from .kept_attributes import Kept, look_at, refuse_parameters_made


def run_replica(
    module: nn.Module, tensors: Mapping[str, Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, dict[str, Tensor]]:
    """As `run_with`, on a copy of the module that shares every other tensor with it.

    Gradient checkpointing, that runs the pass again in backward, still finds the tensors then. Numbers and buffers that
    the copy assigned anew are put into the module; where no tensor is replaced, so is what it has kept of them.
    """
    known = dict(state(module))
    replica = share_tensors(module, {id(known[name]): tensor for name, tensor in tensors.items()})
    before = look_at(replica)
    output = replica(*args, **kwargs)
    changes = before.changes()
    refuse_parameters_made(replica, changes)
    if not any(change.is_structural for change in changes):  # no mark of a hook that the module does not have
        for change in changes:
            _carry_over_(module, change, PLAIN if tensors else (*PLAIN, Tensor))
    return output, _carry_buffers_over_(module, replica, tensors)


def _carry_over_(module: nn.Module, change: Kept, kinds: tuple[type, ...]) -> None:
    if change.is_plain and all(leaf is None or isinstance(leaf, kinds) for leaf in leaves_of_objects(change.now)):
        vars(module.get_submodule(change.path))[change.key] = change.now


def _carry_buffers_over_(module: nn.Module, replica: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Put buffers that were assigned anew into the module; those in place of which a tensor was given come back."""
    changed: dict[str, Tensor] = {}
    copies = dict(replica.named_modules())
    for path, part in module.named_modules():
        held = tables(part).buffers
        for key, buffer in tables(copies.get(path, part)).buffers.items():
            name = dotted_name(path, key)
            if name in tensors and buffer is not tensors[name] and buffer is not None:
                changed[name] = buffer
            elif name not in tensors and buffer is not held.get(key):
                held[key] = buffer
    return changed
