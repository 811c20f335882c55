"""Members as rows of one batch: each layer that members differ in picks the tensor of each row's member."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import cast

from torch import Tensor, nn

from .._common.torch_private import parts_of
from .._common.trees import Batch, batch_kind, rows_of
from ..surgery.probing import BatchLayout, find_layouts
from ..surgery.selecting import channel_dim


class Rows:
    """Which member each row of the batch belongs to, `index`: (rows,), or None outside such a pass.

    Args:
        located: where layers have the batch, by the shapes of the batch
    """

    skips_masked = False  # layers compute nothing from channels that a member's mask drops
    tiled = False  # every member has equally many rows, which lie together, members outermost

    def __init__(self, located: dict[Hashable, Mapping[str, BatchLayout]] | None = None) -> None:
        self.index: Tensor | None = None
        self.located = {} if located is None else located

    @contextmanager
    def belonging_to(self, index: Tensor | None, tiled: bool = False) -> Iterator[None]:
        """Let the rows of the passes inside belong to these members."""
        self.index, self.tiled = index, tiled
        try:
            yield
        finally:
            self.index, self.tiled = None, False

    @contextmanager
    def skipping_masked(self) -> Iterator[None]:
        """Let layers that can leave out the channels that a member's mask drops, in the passes inside."""
        self.skips_masked = True
        try:
            yield
        finally:
            self.skips_masked = False


class MemberLayer:
    """A layer that has tensors of the members' own, and finds the right one for each row."""

    fast: tuple[str, ...] = ()  # its parameters that train more slowly and without decay
    rows: Rows
    layout: BatchLayout | None  # of its input; None: not located, or never called when it was
    place: str  # its name in the ensemble's module, once it is located

    def begin_(self, rows: Rows | None = None) -> None:
        """Set what every such layer has."""
        self.rows, self.layout, self.place = rows or Rows(), None, ""

    def can_skip_masked(self) -> bool:
        """Whether the layer can compute its output without the channels that a mask drops."""
        return False

    def own(self, tensor: Tensor, x: Tensor) -> Tensor:
        """The tensor, (channels) or (members, channels), shaped to be multiplied with `x`."""
        channel = channel_dim(cast(nn.Module, self)) + x.ndim
        tensor = tensor.to(x.dtype)
        if self.rows.index is None or tensor.ndim == 1:
            return tensor.reshape([-1 if d == channel else 1 for d in range(x.ndim)])
        dim = self.batch_layout().dim
        picked = tensor[self.members_of(x)]  # (rows, channels)
        if dim > channel:
            picked = picked.T
        return picked.reshape([x.shape[dim] if d == dim else -1 if d == channel else 1 for d in range(x.ndim)])

    def members_of(self, x: Tensor) -> Tensor:
        """The member of each row of x, in a pass over rows."""
        assert self.rows.index is not None
        layout = self.batch_layout()
        dim = layout.dim
        copies, rest = divmod(x.shape[dim], self.rows.index.shape[0])
        if rest:
            raise ValueError(
                f"layer {self.place!r} reads {x.shape[dim]} rows in dimension {dim} of its input, which is not a "
                f"multiple of the {self.rows.index.shape[0]} rows of the batch, so they cannot be assigned to members. "
                f"{LEAVE_OUT}"
            )
        outside, inside = layout.unfold(copies)
        return self.rows.index.repeat_interleave(inside).repeat(outside)

    def by_member(self, x: Tensor, members: int) -> Tensor | None:
        """The rows of x apart, (members, rows, ...), in a pass in which each member's rows lie together."""
        if self.rows.index is None or not self.rows.tiled:
            return None
        layout = self.batch_layout()
        copies, rest = divmod(x.shape[0], self.rows.index.shape[0])
        if layout.dim or rest or layout.unfold(copies)[0] != 1:
            return None
        return x.unflatten(0, (members, -1))

    def batch_layout(self) -> BatchLayout:
        """Where the layer's input has the batch; outside of a pass over rows: the usual place."""
        if self.rows.index is None:
            return BatchLayout()
        if self.layout is None:
            raise ValueError(
                f"layer {self.place!r} was not called when all layers were searched for the rows of the batch, so "
                f"its rows cannot be assigned to members. {LEAVE_OUT}"
            )
        return self.layout


LEAVE_OUT = "Leave this layer out with where=."


def member_layers(module: nn.Module) -> dict[str, MemberLayer]:
    """The layers that members differ in, by name."""
    return {name: layer for name, layer in module.named_modules() if isinstance(layer, MemberLayer)}


def locate_rows_(method: str, module: nn.Module, stacked: Mapping[str, Tensor], batch: Batch) -> None:
    """Tell every `MemberLayer` of `module` where its input has the batch, found once for each kind of batch and mode.

    This proposes; whether it is right shows where the pass is compared with the members one by one.
    """
    layers = member_layers(module)
    if not layers:
        return
    modes = tuple(part.training for part in parts_of(module))
    key, located = (modes, batch_kind(batch, rows_of(batch))), next(iter(layers.values())).rows.located
    if key not in located:
        found = find_layouts(module, layers, {name: tensor[0] for name, tensor in stacked.items()}, batch)
        if lost := [name for name, layouts in found.items() if layouts is None or len(layouts) > 1]:
            raise ValueError(
                f"{method}: the rows of the batch cannot be found in the input of layer {lost[0]!r}, so they cannot "
                "be assigned to different members there. Leave it out with where=, or give example= to the method."
            )
        located[key] = {name: layouts[0] for name, layouts in found.items() if layouts is not None}
    for name, layer in layers.items():
        layer.layout, layer.place = located[key].get(name), name
