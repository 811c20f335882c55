"""Where layers have the rows of the batch, found by running a few rows in other orders.

Members as rows of one batch need to know which entries of a layer's input belong to which row. A layer may read
(batch, channels), but also (time, batch, channels), or (batch * windows, channels). So two rows are run, then the same
two exchanged, then both twice:

    rows  a, b        the layer reads  a1 b1 a2 b2       time outermost, batch innermost
    rows  b, a                         b1 a1 b2 a2       exchanging neighbours explains this, exchanging halves does not
    rows  a, b, a, b                   a1 b1 a1 b1 ...   twice as long in that dimension

Each possible place (`BatchLayout`) makes a prediction of the second input; those that hold are kept. A layer whose
input does not change with the rows (a table of positions) has no such place. This proposes; whether a pass over rows is
right shows where it is compared with the members one by one (`core.execution`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .._common.torch_private import transform_level
from .._common.trees import Batch, map_rows, rows_of, tensors_of, tile
from .copying import duplicate, run_with
from .dropout import no_dropout
from .selecting import channel_dim


class BatchLayout(NamedTuple):
    """Where a layer's input has the batch: in dimension `dim`, where it may be folded with others.

    Args:
        inner: it is innermost there; otherwise outermost
        outside: there are so many others outside of it, and more inside
    """

    dim: int = 0
    inner: bool = False
    outside: int = 0

    def unfold(self, copies: int) -> tuple[int, int]:
        """How many of the copies of each row stand outside of the batch, and how many inside."""
        outside = self.outside or (copies if self.inner else 1)
        return outside, copies // outside


Layouts = tuple[BatchLayout, ...]  # of a layer's calls in one pass, in their order; one, where all are alike

DRAWS = 3  # batches looked at: rows that are picked by their values (sparse experts) are others each time


def find_layouts(
    module: nn.Module, names: Collection[str], own: Mapping[str, Tensor], batch: Batch, *, outputs: bool = False
) -> dict[str, Layouts | None]:
    """Where each call of the named layers that are called has the batch in its input; None: it cannot be said.

    With `outputs`, where it has the batch in its output.

    Two rows are run in both orders, and twice over: where the layer's input is exchanged with them, and grows with
    them, there is the batch. It stands nowhere in a table of positions, and not always at the same place in rows
    that are picked by their values. The module is looked at in its mode, with dropout that drops nothing; chance of
    other kinds hides the rows, so that what is not found is looked for in eval mode too.
    """
    module = duplicate(module)
    found = _layouts_in_mode(module, names, own, batch, outputs)
    if module.training and None in found.values():
        calm = _layouts_in_mode(module.eval(), names, own, batch, outputs)
        found = {name: calm.get(name) if layouts is None else layouts for name, layouts in found.items()}
    return found


def _layouts_in_mode(
    module: nn.Module, names: Collection[str], own: Mapping[str, Tensor], batch: Batch, outputs: bool
) -> dict[str, Layouts | None]:
    channels = {name: None if outputs else channel_dim(module.get_submodule(name)) for name in names}
    seen: dict[str, list[list[set[BatchLayout]]]] = {}
    with torch.random.fork_rng(devices=[]), no_dropout(), torch.no_grad():
        for draw in range(DRAWS):
            pair = _two_rows(batch, draw)
            try:
                batches = pair, map_rows(pair, 2, lambda t: t.flip(0)), tile(pair, 2, 2)
                runs = [record_calls(module, names, own, each, outputs=outputs) for each in batches]
            except (RuntimeError, IndexError) as error:
                run_with(module, own, *batch)  # torch's own words for an input that does not fit
                raise ValueError(
                    "the members are rows of one batch, so the model must run on any number of rows, but it does not "
                    f"run on two rows of a batch of {rows_of(batch)} ({str(error).splitlines()[0]}): an input belongs "
                    "to the whole batch, as a graph's edges or offsets do. pb.deep runs the model on whole batches."
                ) from error
            for name in {name: None for run in runs for name in run}:
                seen.setdefault(name, []).append(_possible_layouts([run.get(name, []) for run in runs], channels[name]))
    return {name: _agree(draws) for name, draws in seen.items()}


def _possible_layouts(runs: list[list[Tensor]], channel: int | None) -> list[set[BatchLayout]]:
    """The layouts that each call may have; none, where the three runs do not make as many calls."""
    if len({len(calls) for calls in runs}) > 1:
        return [set()]
    return [_fitting_layouts(a, b, four, channel) for a, b, four in zip(*runs, strict=True)]


def _agree(draws: list[list[set[BatchLayout]]]) -> Layouts | None:
    """The layouts that fit all draws: one for all calls, or else one for each call."""
    if common := set.intersection(*(layouts for calls in draws for layouts in calls)):
        return (min(common),)
    if len({len(calls) for calls in draws}) > 1:
        return None
    each = [set.intersection(*calls) for calls in zip(*draws, strict=True)]
    return tuple(map(min, each)) if all(each) else None


def _two_rows(batch: Batch, draw: int = 0) -> Batch:
    def two(t: Tensor) -> Tensor:
        one = t[draw % len(t)][None]
        if t.is_floating_point() or t.is_complex():
            return torch.randn_like(one.expand(2, *t.shape[1:]))
        if t.dtype == torch.bool:
            return torch.cat([one, t[-1 - draw % len(t)][None]])
        other = one.roll(1 + draw, -1) if t.ndim > 1 else t[-1 - draw % len(t)][None]
        return torch.cat([one, other if not torch.equal(other, one) else (one == 0).to(t.dtype)])

    return map_rows(batch, rows_of(batch), two)


def record_calls(
    module: nn.Module, layers: Collection[str], own: Mapping[str, Tensor], batch: Batch, *, outputs: bool = False
) -> dict[str, list[Tensor]]:
    """The first tensor that each call of the layers reads, or gives, call by call."""
    seen: dict[str, list[Tensor]] = {}
    level = transform_level()

    def record(name: str, tree: Any) -> None:
        if transform_level() != level:
            raise ValueError(
                f"the model calls its layer {name!r} inside a torch.func transformation, where the rows of the batch "
                "cannot be found, so they cannot be assigned to members. Leave that layer out with where=, or "
                "choose pb.deep, which runs the model as it is."
            )
        if found := tensors_of(tree):
            seen.setdefault(name, []).append(found[0].clone())  # it may be changed in place

    register = "register_forward_hook" if outputs else "register_forward_pre_hook"
    hooks = [
        getattr(module.get_submodule(name), register)(
            lambda _, args, kwargs, *output, name=name: record(name, output or (args, kwargs)), with_kwargs=True
        )
        for name in layers
    ]
    try:
        run_with(module, own, *batch)
    finally:
        for handle in hooks:
            handle.remove()
    return seen


def _fitting_layouts(a: Tensor, b: Tensor, four: Tensor, channel: int | None) -> set[BatchLayout]:
    """The places of the batch that explain what became of an input when its rows were exchanged, and doubled."""
    if a.device.type == "meta":
        return {BatchLayout()}
    if a.shape != b.shape or a.ndim != four.ndim:
        return set()
    doubled = [d for d in range(a.ndim) if four.shape[d] == 2 * a.shape[d] and a.shape[d] % 2 == 0]
    channel = None if channel is None else channel % a.ndim
    folds = [fold for dim in doubled if dim != channel for fold in _folds(dim, a.shape[dim] // 2)]
    errors = [(b - _flip(a, fold)).nan_to_num().abs().max() for fold in folds]
    apart = (a - b).nan_to_num().abs().max()  # how much the two rows differ: nothing, where they look the same
    rounding = 1e-5 * a.nan_to_num().abs().max()
    enough = 0.1 * apart + rounding
    return {fold for fold, error in zip(folds, errors, strict=True) if error <= min(enough, 2 * min(errors) + rounding)}


def _folds(dim: int, copies: int) -> list[BatchLayout]:
    """Every way in which the batch can be folded with a dimension of this size."""
    between = [BatchLayout(dim, False, n) for n in range(2, copies) if copies % n == 0]
    return [BatchLayout(dim), BatchLayout(dim, True), *between]


def _flip(a: Tensor, layout: BatchLayout) -> Tensor:
    """The input with its two rows exchanged."""
    dim = layout.dim
    outside, inside = layout.unfold(a.shape[dim] // 2)
    return a.unflatten(dim, (outside, 2, inside)).flip(dim + 1).flatten(dim, dim + 2)
