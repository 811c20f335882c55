"""The permutation symmetries of any network, found by running it, and tested before they are given back.

`permutations` has three steps:

    1. axis_tracing.walk    runs a copy on a few rows; every operation says which axes of tensors are the same units
    2. _as_groups           numbers the axes that nothing fixed: those are the groups, and where they stand the layout
    3. exact_test.confirm   tries random orders of all groups, and leaves out what changes the outputs

For `nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))` that is one group of 8 units, in 0.weight[0],
0.bias[0] and 2.weight[1]. `permute` and `align` (matching.py) then only reorder tensors.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ..._common.torch_private import plain_attributes
from ..._common.trees import Batch, as_batch, map_arrays, map_tensors, rows_of
from ...core.ensemble import Ensemble
from ...methods.building import check_model
from ...surgery.calling import check_example
from ...surgery.copying import state, tensors_in
from ...surgery.row_splitting import cut_rows, long_tensors
from ...surgery.selecting import quote_names
from ..common.networks import network_of
from .axes import UnitAxis, free_axes, settle
from .axis_tracing import Walk, lasting_state, walk
from .exact_test import as_precise, confirm, precisely, reordered, same_function
from .groups import DimensionPart, Groups, Orders, outer_groups
from .rules import Places, Stack

MOST_ROWS = 8  # more are not needed to see what is connected with what


def permutations(model: Any, example: Any) -> Groups:
    """The groups of hidden units of a network that can be permuted without changing its function.

    Found from runs of copies, without a specification of the architecture: each operation says which dimensions of
    tensors hold the same units, and one without a rule fixes what it touches. At the end random orders of all
    groups are tried in double precision, on the example and on another input; what changes the outputs is left out.
    The function is what the network gives in eval mode: the `logits` of an output that has them, or all its tensors.

    Args:
        model: any network; it is not changed
        example: what one call takes: a tensor, a tuple of arguments or a dict

    >>> model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> print(permutations(model, torch.randn(4, 3)).explain())
    1 group of hidden units; 10^5 orders give the same function.
      group 0: 8 units: 0.weight[0], 0.bias[0], 2.weight[1]
    Kept in place: 2.bias.
    """
    model = one_network("permutations", model)
    example = map_arrays(example)
    check_example("permutations", model, example)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        found, batch = _walk(model, as_batch(example))
        example = map_tensors(example, lambda tensor: tensor.detach().clone())
        groups = replace(_as_groups(found, model), example=example, rows=rows_of(batch))
        groups = confirm(model, groups, batch)
    if not len(groups):
        raise ValueError(
            "permutations: no hidden units were found that can be permuted without changing the function."
            f"{_reasons(model, groups)} A network with a hidden layer of at least two units has some."
        )
    return groups


def permute(model: Any, groups: Groups, generator: torch.Generator | None = None) -> nn.Module:
    """A copy of the network with the units of all groups in random orders: another network with the same function.

    Args:
        model: a network of the groups' architecture
        generator: where random numbers come from; by default torch's own generator

    >>> model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> x = torch.randn(4, 3)
    >>> other = permute(model, permutations(model, x))
    >>> torch.allclose(other(x), model(x), atol=1e-5)
    True
    """
    model = one_network("permute", model)
    check_groups("permute", model, groups)
    return reorder_network("permute", model, groups, groups.random(generator))


def reorder_network(caller: str, model: nn.Module, groups: Groups, orders: Orders) -> nn.Module:
    """A copy of the network with its units in these orders; one that is another function is refused."""
    new = reordered(model, groups, orders)
    if groups.example is not None and not same_function(model, new, as_batch(groups.example)):
        raise ValueError(
            f"{caller}: with its units in another order the network computes another function, so it must cache "
            "something computed from its weights. Clear that first (many models do so in model.train()), and find "
            f"the groups again.{_reasons(model)}"
        )
    return new


def one_network(caller: str, holder: Any) -> nn.Module:
    """The one network that is meant, as a module: a trajectory's solution, or the only network that is held."""
    if isinstance(holder, nn.Module) and not isinstance(holder, Ensemble):
        return check_model(caller, holder, nests=True)
    return network_of(caller, holder)[0]


def check_groups(caller: str, model: nn.Module, groups: Any) -> None:
    """Refuse groups of another architecture."""
    if not isinstance(groups, Groups):
        raise TypeError(f"{caller}: groups must come from ls.permutations, but got a {type(groups).__name__}.")
    own = {name: tuple(tensor.shape) for name, tensor in lasting_state(model).items()}
    for name in [*groups.shapes, *own]:
        if groups.shapes.get(name) != own.get(name):
            first, second = ("absent" if s.get(name) is None else str(s[name]) for s in (own, groups.shapes))
            raise ValueError(
                f"{caller}: the groups must belong to the model, but {name!r} has the shape {first} in the model and "
                f"{second} in the groups. Find them with ls.permutations(model, example)."
            )


def _reasons(model: nn.Module, groups: Groups | None = None) -> str:
    """What may have fixed units: operations without a rule, groups that were left out, tensors that are kept."""
    said = ""
    if groups is not None and groups.without_rule:
        said += f" Operations without a rule keep what they touch in place: {', '.join(groups.without_rule)}."
    if groups is not None and groups.dropped:
        said += f" Left out: {'; '.join(groups.dropped[:3])}."
    own = {id(tensor) for _, tensor in state(model)}
    kept = [
        f"{path}.{name}".lstrip(".")
        for path, part in model.named_modules()
        for name, value in plain_attributes(part).items()
        if any(t.is_floating_point() and id(t) not in own for t in tensors_in(value))
    ]
    if kept:
        said += f" It keeps tensors besides its parameters and buffers, in {quote_names(kept, 3)}."
    return said


def _walk(model: nn.Module, batch: Batch) -> tuple[Walk, Batch]:
    """The axes of a run on a few rows, or on all where the model needs them."""
    few = cut_rows(batch, slice(0, MOST_ROWS // 2), long_tensors(batch)) if rows_of(batch) > MOST_ROWS else batch
    for rows in (few, batch):
        try:
            return precisely(walk, as_precise(model), rows), rows
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            problem = error
    raise ValueError(f"permutations: the model runs, but its operations cannot be traced: {problem}.") from problem


# ---------------------------------------------------------------- from axes to groups


def _as_groups(found: Walk, model: nn.Module) -> Groups:
    units = list({id(a): a for axes in found.state.values() for axis in axes for a in free_axes(axis)}.values())
    number = {id(axis): i for i, axis in enumerate(units)}

    def parts(axes: list[UnitAxis]) -> tuple[DimensionPart, ...]:
        return tuple(_as_part(axis, number) for axis in axes)

    every: list[list[UnitAxis]] = []
    for axes in found.known.values():
        every += axes.layers if isinstance(axes, Stack) else [axes.axes if isinstance(axes, Places) else axes]
    layout = {name: parts(axes) for name, axes in found.state.items()}
    made = {turn: parts(axes) for turn, axes in found.activations.items() if isinstance(axes, list)}
    return Groups(
        _with_groups(layout), tuple(axis.size for axis in units),
        tuple(outer_groups(len(units), [*layout.values(), *map(parts, every)])),
        {name: tuple(tensor.shape) for name, tensor in lasting_state(model).items()},
        without_rule=tuple(sorted(found.without_rule)), activations=_with_groups(made),
    )  # fmt: skip


def _with_groups(layout: dict[Any, tuple[DimensionPart, ...]]) -> dict[Any, tuple[DimensionPart, ...]]:
    return {key: parts for key, parts in layout.items() if any(part.groups for part in parts)}


def _as_part(axis: UnitAxis, number: dict[int, int]) -> DimensionPart:
    axis = settle(axis)
    if axis.kind:
        return DimensionPart(axis.size, kind=axis.kind, parts=tuple(_as_part(part, number) for part in axis.parts))
    return DimensionPart(axis.size, number.get(id(axis)) if axis.is_free else None)
