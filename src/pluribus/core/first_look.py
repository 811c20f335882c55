"""What a method finds out about a model on the first batch that it sees."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from .._common.torch_private import is_transforming, own_saved_tensors, run_uncompiled
from .._common.trees import Batch, map_tensors

_Found = TypeVar("_Found")


@dataclass(frozen=True)
class Findings:
    """What a first batch has shown of a model; the ensemble applies it."""

    active_dropout: Collection[str] = ()  # modules that stay in training mode when the ensemble is in eval mode
    notes: Sequence[str] = ()  # lines for `explain()`


FIRST = (
    "the first batch shows what the model drops, or reads of its layers itself, and cannot be looked at inside of one "
    "graph (torch.export, fullgraph=True) or of torch.func. Call the ensemble, or the member, on a batch once before, "
    "or give example= to the method"
)


def look(method: str, first_look: Callable[[Batch], _Found], batch: Batch) -> _Found:
    """What a first look at this batch finds, as plain Python; refused where nothing can be tried out."""
    if torch.compiler.is_dynamo_compiling():
        return run_uncompiled(FIRST, look, method, first_look, batch)
    if torch.compiler.is_compiling() or is_transforming():
        raise ValueError(f"{method}: {FIRST}.")
    with own_saved_tensors():
        return first_look(map_tensors(batch, lambda t: t.clone()))
