"""Which layers of a model a method takes hold of."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any, cast

from torch import Tensor, nn

from .._common.trees import Batch, as_batch
from ..core.ensemble import Ensemble
from ..core.rows import member_layers
from ..surgery.calling import call_order, check_example
from ..surgery.copying import aliases
from ..surgery.dataflow import find_exits
from ..surgery.direct_reads import find_bypassed, find_direct_reads
from ..surgery.probing import find_layouts
from ..surgery.replacing import expose_weights
from ..surgery.selecting import READERS, exact_pattern, pick, quote_names, weighted_layers
from .adapted_layers import OwnHead, remove_members_


def layers_of(
    method: str,
    model: nn.Module,
    where: str | None,
    example: Any,
    *,
    but_first: bool = False,
    per_row: bool = False,
) -> list[str]:
    """The convolutions and linear layers that a pattern chooses, by default all, in the order of their calls.

    Without an example the order is that of definition.

    Args:
        but_first: without a pattern, leave out the layer that reads the model's input
        per_row: with an example and no pattern, leave out layers whose input has no rows (a table of positions)
    """
    choice = weighted_layers(model)
    if not choice:
        raise ValueError(f"{method}: the model has no convolution or linear layer to change.")
    order = [name for name, module in model.named_modules() if isinstance(module, READERS)]
    if example is not None:
        order = call_order(method, model, example)
    if where is not None:
        return pick(method, where, [name for name in order if name in choice])
    names = [name for name in (order[1:] if but_first else order) if name in choice]
    if per_row and example is not None:
        with suppress(ValueError):  # of a model that runs on whole batches alone (graphs), members run one by one
            found = find_layouts(model, names, {}, as_batch(example))
            names = [name for name in names if found.get(name) is not None] or names
    if not names:
        raise ValueError(
            f"{method}: every convolution and linear layer but the first is changed, but the model has only "
            f"{len(choice)}. Choose with where= among: {quote_names(choice)}."
        )
    return names


def note_left_out(model: nn.Module, names: list[str], example: Any, where: str | None) -> list[str]:
    """A line for `explain()` about layers that an example has not shown to read the rows of the batch."""
    left = [name for name in weighted_layers(model) if name not in names]
    if example is None or where is not None or not left:
        return []
    return [f"shared unchanged, because they read the input, or rows other than the batch's: {quote_names(left, 6)}"]


def heads_of(model: nn.Module, where: str | None, example: Any, method: str = "multihead") -> list[str]:
    """The last layers: those that a pattern chooses, that give the output, or that the model says or defines last."""
    names = weighted_layers(model)
    if where is not None:
        return pick(method, where, names)
    if example is not None:
        view = expose_weights(model)
        check_example(method, view, example)
        heads = [name for name in find_exits(view, example) if name in names]
    else:
        heads = _declared_heads(model) or list(names)[-1:]
    if not heads:
        raise ValueError(
            f"{method}: there is no convolution or linear layer that gives the model's output. Name it with where=."
        )
    return heads


def _declared_heads(model: nn.Module) -> list[str]:
    """What `get_classifier`, which timm's models have, calls the last layers."""
    declare = getattr(model, "get_classifier", None)
    if not callable(declare):
        return []
    heads = declare()
    parts = [part for head in (heads if isinstance(heads, tuple) else (heads,)) for part in head.modules()]
    return [name for name, layer in weighted_layers(model).items() if any(layer is part for part in parts)]


def refuse_tied(method: str, model: nn.Module, heads: Collection[str], advice: str) -> None:
    """Refuse heads of which a tensor is also another layer's: members cannot own it alone."""
    for tied in aliases(model).values():
        inside = [name.rpartition(".")[0] in heads for name in tied]
        if any(inside) and not all(inside):
            raise ValueError(f"{method}: {quote_names(sorted(tied))}, of the last layer and others, are tied. {advice}")


def check_heads(ensemble: Ensemble, batch: Batch, heads: list[str]) -> list[str]:
    """On a first batch: the output must come from the heads."""
    try:
        found = find_exits(expose_weights(ensemble.member(0)), batch[1] or batch[0])
    except ImportError:  # a torch in which flow cannot be followed
        return ["whether the output comes from the heads could not be checked with this torch"]
    if not set(found) & set(heads):
        raise ValueError(
            f"multihead: the last layer that the model defines is {quote_names(heads)}, but its output comes from "
            f"{quote_names(found)}. Give where={exact_pattern(found)!r}, or example=x."
        )
    others = sorted(set(found) - set(heads))
    return [f"the output comes from {quote_names(others)} too, which all members share"] if others else []


def check_all_called(ensemble: Ensemble, batch: Batch) -> list[str]:
    """On a first batch: a layer whose weights are read without calling it would ignore what members own."""
    return _check_reads(ensemble, lambda plain, names: find_bypassed(plain, names, batch))


def check_read_inside(ensemble: Ensemble, batch: Batch, keys: Collection[str] = ("weight", "bias")) -> list[str]:
    """On a first batch: what members have of their own must not be read outside of its layer."""
    return _check_reads(ensemble, lambda plain, names: find_direct_reads(plain, names, batch, keys))


def _check_reads(ensemble: Ensemble, find: Callable[[nn.Module, list[str]], list[str]]) -> list[str]:
    member = ensemble.member(0)
    names = [name for name, layer in member_layers(member).items() if not isinstance(layer, OwnHead)]
    remove_members_(member)
    refuse_reads(ensemble.method, find(member, names))
    return []


def leave_out_read(method: str, model: nn.Module, names: list[str], where: str | None, example: Any) -> list[str]:
    """The layers without those that the model reads itself, as an example shows; refused if a pattern names them."""
    reads = [] if example is None else find_direct_reads(model, names, as_batch(example))
    left = [name for name in names if name not in reads]
    if where is not None or not left:
        refuse_reads(method, reads)
    return left


def refuse_reads(method: str, reads: Collection[str], *patterns: str) -> None:
    """Refuse a model that reads the parameters of these layers itself.

    Args:
        patterns: the arguments that choose the layers; default: where=
    """
    if reads:
        raise ValueError(
            f"{method}: the model reads a parameter of {quote_names(reads, 6)} directly, without calling the layer, so "
            "it would miss what members own there. Call the layer in forward, or choose other layers with "
            f"{' or '.join(patterns or ('where=',))}."
        )


def count_input_channels(layer: nn.Module) -> int:
    """How many channels the layer reads, as its weight says (its attributes may lag behind)."""
    weight = cast(Tensor, layer.weight)
    if getattr(layer, "transposed", False):
        return weight.shape[0]
    return weight.shape[1] * cast(int, getattr(layer, "groups", 1))


def count_output_channels(layer: nn.Module) -> int:
    """How many channels the layer makes."""
    weight = cast(Tensor, layer.weight)
    if getattr(layer, "transposed", False):
        return weight.shape[1] * cast(int, layer.groups)
    return weight.shape[0]
