"""Which units of a MIMO network belong to which member (Havasi et al., 2021, section 3.3)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..._common.torch_private import NormBase, pytree
from ..._common.trees import as_batch, flatten, map_tensors, rows_of, tensors_of
from ...core.ensemble import Ensemble
from ...methods.building import check_whole
from ...surgery.calling import evaluation_mode
from ...surgery.selecting import READERS, channel_dim, pick
from ..common.arguments import check_arguments
from ..common.examples import Examples, naming_data, ready
from ..subnetworks import check_joint

NORMS = (NormBase, nn.GroupNorm, nn.LayerNorm)


@dataclass(frozen=True)
class Separation:
    """How much each unit of a MIMO network varies with the input of each member.

    Shapes:
        variance: (members, units), the conditional variance of the unit's pre-activation with respect to each input
        owner: (units), the member whose input it varies most with; -1 where it varies with none
        layer: (units), which of `layers` the unit is in

    >>> ensemble = pb.mimo(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)), 3, example=torch.randn(5, 4))
    >>> found = separation(ensemble, torch.randn(20, 4))
    >>> found.owner.shape, found.layers
    ((8,), ['0'])
    """

    variance: np.ndarray
    owner: np.ndarray
    layer: np.ndarray
    layers: list[str]

    @property
    def shape(self) -> tuple[int, ...]:
        """(members, units)."""
        return self.variance.shape

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """The variances, as NumPy takes them."""
        return np.array(self.variance, dtype=dtype, copy=copy is not False)

    @property
    def share(self) -> np.ndarray:
        """The owner's share of the variance over all inputs, (units): 1 where a unit is separated; NaN without one."""
        total = self.variance.sum(0)
        return np.divide(self.variance.max(0), total, out=np.full(len(total), np.nan), where=total > 0)

    def separated(self, least: float = 0.9) -> float:
        """The share of units, of those that vary at all, whose owner has at least this share of the variance."""
        known = self.share[self.owner >= 0]
        return float((known >= least).mean()) if len(known) else float("nan")


@check_arguments()
def separation(
    mimo: Ensemble, data: Any, *, where: str | None = None, repeats: int = 1, batch_size: int = 256, seed: int = 0
) -> Separation:
    """The conditional variance of every pre-activation with respect to each member's input, and each unit's owner.

    E[Var(a | the other inputs)]: in every row the members read examples of their own; then one of them reads another,
    and half the mean square of the change is what varies with that input. Pre-activations are the outputs of
    convolutions and linear layers, but the last; a channel is a unit, whose variance is the mean over its places. In
    eval mode.

    Shapes:
        data: (rows, *features); variance: (members, units)

    Args:
        mimo: what `pb.mimo` gave, trained
        data: (x, y), a data set or a loader, or x alone
        where: a pattern of layers with weights, or of normalisation, whose outputs are looked at instead
        repeats: how often the rows are dealt out anew
        batch_size: rows in one pass; it changes memory and time, not the result
        seed: of the examples that are dealt out

    >>> ensemble = pb.mimo(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)), 3, example=torch.randn(5, 4))
    >>> separation(ensemble, torch.randn(20, 4)).variance.shape
    (3, 8)
    """
    ensemble, repeats = check_joint("separation", mimo), check_whole("separation", "repeats", repeats)
    x = _join([x for x, _ in Examples("separation", data).batches])
    rows = rows_of(x)
    if rows < 2:
        raise ValueError(f"separation: needs at least 2 rows, so that inputs can differ, but there is {rows}.")
    generator = torch.Generator().manual_seed(seed)
    names = _units(ensemble, where)
    sums: dict[str, Tensor] = {}
    count: dict[str, int] = {}
    for _ in range(repeats):
        orders = [torch.randperm(rows, generator=generator) for _ in range(ensemble.size)]
        for start in range(0, rows, batch_size):
            some = slice(start, start + batch_size)
            with naming_data("separation", ensemble, data):
                base = _run(ensemble, names, x, [order[some] for order in orders])
            for member in range(ensemble.size):
                moved = [order.roll(1)[some] if m == member else order[some] for m, order in enumerate(orders)]
                for name, output in _run(ensemble, names, x, moved).items():
                    change = (output - base[name]).double().square().flatten(1).sum(1) / 2
                    total = sums.setdefault(name, torch.zeros(ensemble.size, len(change), dtype=torch.float64))
                    total[member] += change
            for name, output in base.items():
                count[name] = count.get(name, 0) + output.numel() // len(output)
    parts = [(sums[name] / count[name]).numpy() for name in sums]
    variance = np.concatenate(parts, 1)
    owner = np.where(variance.max(0) > 0, variance.argmax(0), -1)
    return Separation(variance, owner, np.repeat(np.arange(len(parts)), [part.shape[1] for part in parts]), list(sums))


def _units(ensemble: Any, where: str | None) -> list[str]:
    """The layers whose outputs are looked at."""
    every = {name: part for name, part in ensemble.module.named_modules() if name and name not in ensemble.last}
    if where is not None:
        chosen = pick("separation", where, every, "modules")
        if unknown := [name for name in chosen if not isinstance(every[name], (*READERS, *NORMS))]:
            raise ValueError(
                f"separation: {unknown[0]!r} is a {type(every[unknown[0]]).__name__}, whose channels are unknown. "
                "Name layers with weights, or normalisation layers."
            )
        return chosen
    names = [name for name, part in every.items() if isinstance(part, READERS)]
    if not names:
        raise ValueError("separation: the network has no layer before its last one. Name modules with where=.")
    return names


def _run(ensemble: Any, names: list[str], x: Any, rows: list[Tensor]) -> dict[str, Tensor]:
    """What the layers give when member m reads the rows rows[m] of x: each as (channels, everything else)."""
    module = ensemble.module
    seen: dict[str, Tensor] = {}

    def note(name: str, layer: nn.Module, args: Any, output: Any) -> None:
        found = tensors_of(output)[0].detach()
        flat = found.movedim(_channel(layer), 0).flatten(1).cpu()
        seen[name] = torch.cat([seen[name], flat], 1) if name in seen else flat

    hooks = [module.get_submodule(name).register_forward_hook(partial(note, name)) for name in names]
    # Passes that only look for inputs come before the one that counts.
    hooks.append(module.register_forward_pre_hook(lambda *_: seen.clear()))
    inputs = [as_batch(ready(module, map_tensors(x, lambda t, own=own: t[own]))) for own in rows]
    with evaluation_mode(ensemble, *hooks):
        ensemble.answer_apart(inputs)
    return seen


def _channel(layer: nn.Module) -> int:
    """The dimension of a layer's output that its channels are in."""
    return 1 if isinstance(layer, NORMS) and not isinstance(layer, nn.LayerNorm) else channel_dim(layer)


def _join(batches: list[Any]) -> Any:
    """All rows in one tree."""
    flat = [flatten(batch) for batch in batches]
    columns = zip(*(leaves for leaves, _ in flat), strict=True)
    return pytree.tree_unflatten([torch.cat(list(column)) for column in columns], flat[0][1])
