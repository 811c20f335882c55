"""What a layer can become inside an ensemble.

`Masked`, `RankOne`, `RankMany`, `OwnHead`, `LowRank`, `Dropped`, `JointInput` and `JointOutput` are mixed into an
existing layer by `surgery.adapt_`: the layer keeps its class, its tensors and its name. `Attention` and `GroupedLinear`
take a layer's place.

A layer finds its member's tensor in one of two ways. Under vmap or the loop the tensor that it sees *is* the
member's, (channels). When the rows of one batch belong to several members it sees the stacked tensor,
(members, channels), and picks a row of it for each row of the batch: `rows.index`, one object for all layers.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._common.torch_private import convolve_as, is_plain_product
from ..core.rows import MemberLayer, member_layers
from ..surgery.replacing import restore_
from ..surgery.selecting import channel_dim

INPUT_SIZES = ("in_features", "in_channels", "num_embeddings", "input_size")

OUTPUT_SIZES = ("out_features", "out_channels")


class Masked(MemberLayer):
    """A layer whose input channels are dropped by a member's fixed mask (Masksembles, section 3)."""

    mask: Tensor

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The layer on the masked input; activations are not rescaled."""
        if self.rows.skips_masked and self.can_skip_masked():
            return self._on_kept_channels(input, *args, **kwargs)
        return super().forward(input * self.own(self.mask, input), *args, **kwargs)  # type: ignore[misc]

    def can_skip_masked(self) -> bool:
        """Whether torch's own forward computes the layer, each output from all inputs: a subclass may do anything."""
        return is_plain_product(cast(nn.Module, self), super().forward)  # type: ignore[misc]

    def _on_kept_channels(self, input: Tensor) -> Tensor:
        """The same output from the channels that the mask keeps alone."""
        layer, kept = cast(nn.Module, self), self.mask.nonzero().flatten()
        weight = cast(Tensor, layer.weight).index_select(1, kept)
        if isinstance(layer, nn.Linear):
            return F.linear(input.index_select(-1, kept), weight, layer.bias)
        if input.ndim == 4 and input.is_contiguous(memory_format=torch.channels_last):
            pixels = input.permute(0, 2, 3, 1)  # channels next to each other: picked in one go
            part = pixels.flatten(0, 2).index_select(1, kept).unflatten(0, pixels.shape[:3]).permute(0, 3, 1, 2)
        else:
            part = input.index_select(channel_dim(layer), kept)
        return convolve_as(layer, part, weight)


class RankOne(MemberLayer):
    """A layer whose weight is scaled by a member's rank-1 matrix: y = ((x * r) W) * s + b (BatchEnsemble).

    Without s the layer keeps its own bias: y = (x * r) W + bias (TabM-mini).
    """

    fast = ("r", "s")
    r: nn.Parameter
    s: nn.Parameter | None
    b: nn.Parameter | None

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The layer without its bias between the two scalings, then the member's bias."""
        y = super().forward(self.scale(input, self.r), *args, **kwargs)  # type: ignore[misc]
        return y if self.s is None else self.scale(y, self.s, self.b)

    def scale(self, x: Tensor, factor: Tensor, shift: Tensor | None = None) -> Tensor:
        """x * factor + shift, with tensors of the members', (channels) or (members, channels)."""
        apart = self.by_member(x, factor.shape[0]) if factor.ndim > 1 else None
        if apart is None:
            y = x * self.own(factor, x)
            return y if shift is None else y + self.own(shift, y)
        channel = channel_dim(cast(nn.Module, self)) + apart.ndim
        shape = [factor.shape[0], *(-1 if d == channel else 1 for d in range(1, apart.ndim))]
        factor = factor.to(x.dtype).reshape(shape)
        if shift is None:
            return (apart * factor).flatten(0, 1)
        return torch.addcmul(shift.to(x.dtype).reshape(shape), apart, factor).flatten(0, 1)


class OwnHead(MemberLayer):
    """A linear layer whose weight and bias are each member's own (TabM)."""

    weight: nn.Parameter
    bias: nn.Parameter | None

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The layer; in a pass over rows of members one product for each of them."""
        if self.rows.index is None:
            return super().forward(input, *args, **kwargs)  # type: ignore[misc]
        apart = self.by_member(input, self.weight.shape[0])
        if apart is None:
            dim, index = self.batch_layout().dim, self.members_of(input)
            y = torch.einsum("n...i,noi->n...o", input.movedim(dim, 0), self.weight[index])
            y = y.movedim(0, dim)
            return y if self.bias is None else y + self.own(self.bias, y)
        x, weight = apart.flatten(1, -2), self.weight.mT  # (members, rows, inputs), (members, inputs, outputs)
        y = torch.bmm(x, weight) if self.bias is None else torch.baddbmm(self.bias[:, None], x, weight)
        return y.unflatten(1, apart.shape[1:-1]).flatten(0, 1)


class RankMany(MemberLayer):
    """A layer whose weight is scaled by a member's matrix of a higher rank: y = sum_k ((x * r_k) W) * s_k + b."""

    fast = ("r", "s")
    r: nn.Parameter  # (rank, inputs)
    s: nn.Parameter  # (rank, outputs)
    b: nn.Parameter | None

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The layer without its bias between each pair of scalings, summed, then the member's bias."""
        y = total = cast(Any, 0.0)
        for r, s in zip(self.r.unbind(-2), self.s.unbind(-2), strict=True):
            y = super().forward(input * self.own(r, input), *args, **kwargs)  # type: ignore[misc]
            total = total + y * self.own(s, y)
        return total if self.b is None else total + self.own(self.b, y)


def is_transposed(layer: object) -> bool:
    """Whether a linear layer keeps its weight with the inputs first, as the `Conv1D` of transformers' GPT-2 does."""
    return any(kind.__name__ == "Conv1D" and hasattr(layer, "nf") for kind in type(layer).__mro__)


def outputs_first(layer: Any) -> Tensor:
    """The weight of a linear layer, (outputs, inputs)."""
    weight = cast(Tensor, layer.weight)
    return weight.T if is_transposed(layer) else weight


class LowRank(MemberLayer):
    """A linear layer with a member's low-rank matrices beside its weight: y = W x + b + factor * B A x (LoRA).

    Args:
        pieces: the outputs that get a product of their own, from and to; several in fused projections
    """

    weight: nn.Parameter
    lora_a: nn.Parameter  # (pieces * rank, inputs)
    lora_b: nn.Parameter  # (outputs of all pieces, rank)
    pieces: tuple[tuple[int, int], ...]
    factor: float

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The layer's output, and what the member's matrices add to it."""
        y = super().forward(input, *args, **kwargs)  # type: ignore[misc]
        inner = F.linear(input, self.lora_a) * self.factor
        if len(self.pieces) == 1 and self.lora_b.shape[0] == y.shape[-1]:
            return y + F.linear(inner, self.lora_b)
        inner, parts, done = inner.unflatten(-1, (len(self.pieces), -1)), [], 0
        for k, ((start, stop), own) in enumerate(zip(self.pieces, self._split_outputs(), strict=True)):
            parts += [y[..., done:start], y[..., start:stop] + F.linear(inner[..., k, :], own)]
            done = stop
        return torch.cat([*parts, y[..., done:]], -1)

    def merged(self) -> Tensor:
        """The one weight that does the same."""
        weight = outputs_first(self).detach().clone()
        inner = self.lora_a.detach().chunk(len(self.pieces))
        for (start, stop), a, b in zip(self.pieces, inner, self._split_outputs(), strict=True):
            weight[start:stop] += self.factor * (b.detach() @ a)
        return weight.T if is_transposed(self) else weight

    def _split_outputs(self) -> tuple[Tensor, ...]:
        return self.lora_b.split([stop - start for start, stop in self.pieces])


class Dropped:
    """A layer with dropout before it."""

    rate: float
    training: bool

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The layer on its input after dropout."""
        return super().forward(F.dropout(input, self.rate, self.training), *args, **kwargs)  # type: ignore[misc]


class JointInput:
    """A first layer that reads the inputs of all members side by side (MIMO).

    `parts` are the inputs of the members but the first while training; without them every member reads the same.
    """

    members: int
    parts: list[Tensor] | None

    def forward(self, input: Any, *args: Any, **kwargs: Any) -> Any:
        """The layer on the members' inputs, joined along the channels (an embedding: summed)."""
        parts = [input] * self.members if self.parts is None else [input, *self.parts]
        if not isinstance(self, nn.Embedding):
            if not isinstance(input, Tensor):
                raise TypeError(
                    f"mimo: the members' inputs are joined along the channels in the first layer, a "
                    f"{type(self).__name__}, which must get a tensor, but it gets a {type(input).__name__}. Put a "
                    "linear layer in front of it, give padded tensors, or choose another method."
                )
            dim = channel_dim(cast(nn.Module, self))
            return super().forward(torch.cat(parts, dim), *args, **kwargs)  # type: ignore[misc]
        options = self.max_norm, self.norm_type, self.scale_grad_by_freq, self.sparse
        tables = self.weight.chunk(self.members)
        return sum(F.embedding(p, t, self.padding_idx, *options) for p, t in zip(parts, tables, strict=True))


class JointOutput(MemberLayer):
    """A last layer that makes the outputs of all members; they leave as rows, members outermost (MIMO)."""

    members: int

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The members' outputs, (members * batch, outputs)."""
        y = super().forward(input, *args, **kwargs)  # type: ignore[misc]
        layout = self.batch_layout()
        y = y.unflatten(channel_dim(cast(nn.Module, self)) + y.ndim, (self.members, -1))
        at, dim = channel_dim(cast(nn.Module, self)) + y.ndim - 1, layout.dim
        rows = y.shape[dim] if self.rows.index is None else self.rows.index.shape[0]
        y = y.unflatten(dim, (layout.unfold(y.shape[dim] // rows)[0], -1))  # the members go between the two
        return y.movedim(at + (at > dim), dim + 1).flatten(dim, dim + 2)


def take_slice_(layer: nn.Module, mixin: type[JointInput] | type[JointOutput], member: int) -> None:
    """Make such a layer a plain one, with the weights of one member's input, or output, alone."""
    size = int(layer.members)  # type: ignore[arg-type]
    restore_(layer, mixin)
    inputs = mixin is JointInput
    turned = isinstance(layer, nn.Embedding) or bool(getattr(layer, "transposed", False))  # inputs come first
    for key, tensor in list(layer.named_parameters(recurse=False)):
        if key == "weight" or (key.startswith("weight_ih_l0") if inputs else key == "bias"):
            dim = 0 if key == "bias" or inputs == turned else 1
            own = tensor.detach().chunk(size, dim)[member].clone()
            setattr(layer, key, nn.Parameter(own, tensor.requires_grad))
    for name in INPUT_SIZES if inputs else OUTPUT_SIZES:
        if isinstance(getattr(layer, name, None), int):
            setattr(layer, name, getattr(layer, name) // size)
    if not isinstance(layer, (JointInput, JointOutput)):  # one layer alone is the first and the last
        for name in ("members", "parts", "rows", "layout", "place"):
            vars(layer).pop(name, None)


def remove_members_(module: nn.Module) -> None:
    """Make the layers of a member that differ from other members' plain ones, as the model had them."""
    for layer in member_layers(module).values():
        part = cast(nn.Module, layer)
        if isinstance(layer, (RankOne, RankMany)) and layer.s is not None:
            bias = layer.b if layer.b is None else nn.Parameter(layer.b.detach())
            part.register_parameter("bias", bias)
        for mixin, names in OWNED.items():
            if isinstance(layer, mixin):
                restore_(part, mixin)
                for name in names:
                    delattr(part, name)


OWNED: dict[type, tuple[str, ...]] = {
    Masked: ("mask",),
    RankOne: ("r", "s", "b"),
    RankMany: ("r", "s", "b"),
    LowRank: ("lora_a", "lora_b"),
    OwnHead: (),
}


class GroupedLinear(nn.Module):
    """A linear layer whose inputs and outputs fall into groups that do not mix: a block-diagonal matrix.

    Shapes:
        input: (..., in_features)
        output: (..., out_features)
        weight: (out_features, in_features / groups)
    """

    def __init__(self, in_features: int, out_features: int, groups: int, bias: bool = True):
        super().__init__()
        if in_features % groups or out_features % groups:
            raise ValueError(
                f"GroupedLinear: {groups} groups must divide {in_features} inputs and {out_features} outputs."
            )
        self.in_features, self.out_features, self.groups = in_features, out_features, groups
        self.weight = nn.Parameter(torch.empty(out_features, in_features // groups))
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw anew, by PyTorch's law for the inputs of a group."""
        nn.Linear.reset_parameters(cast(nn.Linear, self))

    def forward(self, x: Tensor) -> Tensor:
        """Each group of outputs from its group of inputs."""
        groups = x.reshape(-1, self.groups, self.in_features // self.groups).movedim(1, 0)  # (groups, rows, inputs)
        weight = self.weight.unflatten(0, (self.groups, -1)).transpose(1, 2)
        y = torch.bmm(groups, weight).movedim(0, 1).reshape(*x.shape[:-1], self.out_features)
        return y if self.bias is None else y + self.bias

    def extra_repr(self) -> str:
        """What `print` shows."""
        return f"{self.in_features}, {self.out_features}, groups={self.groups}, bias={self.bias is not None}"
