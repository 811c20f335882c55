"""What a layer can become inside an ensemble.

`Masked`, `RankOne`, `Dropped`, `Joined` and `Split` are mixed into an existing layer by `surgery.adapt_`:
the layer keeps its class, its tensors and its name. `Attention` and `GroupedLinear` take a layer's place.

A layer finds its member's tensor in one of two ways. Under vmap or the loop the tensor that it sees *is* the
member's, (channels). When the rows of one batch belong to several members it sees the stacked tensor,
(members, channels), and picks a row of it for each row of the batch: `rows.index`, one object for all layers.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


class Layout(NamedTuple):
    """Where a layer's input has the batch: in dimension `dim`, `inner`most there if it is folded with others."""

    dim: int = 0
    inner: bool = False


class Rows:
    """Which member each row of the batch belongs to, `index`: (rows,), or None outside such a pass."""

    def __init__(self) -> None:
        self.index: Tensor | None = None


class PerMember:
    """A layer that has tensors of the members' own, and finds the right one for each row."""

    rows: Rows
    layout: Layout | None

    def begin_(self, rows: Rows | None = None) -> None:
        """Set what every such layer has."""
        self.rows, self.layout = rows or Rows(), None

    def own(self, tensor: Tensor, x: Tensor) -> Tensor:
        """The tensor, (channels) or (members, channels), shaped to be multiplied with `x`."""
        channel = channel_dim(cast(nn.Module, self)) + x.ndim
        tensor = tensor.to(x.dtype)
        if self.rows.index is None:
            return tensor.reshape([-1 if d == channel else 1 for d in range(x.ndim)])
        dim, inner = self.layout or Layout()
        copies, rest = divmod(x.shape[dim], len(self.rows.index))
        assert not rest, f"dimension {dim} of {tuple(x.shape)} is no multiple of {len(self.rows.index)} rows"
        index = self.rows.index.repeat(copies) if inner else self.rows.index.repeat_interleave(copies)
        picked = tensor[index]  # (rows, channels)
        if dim > channel:
            picked = picked.T
        return picked.reshape([x.shape[dim] if d == dim else -1 if d == channel else 1 for d in range(x.ndim)])


class Masked(PerMember):
    """A layer whose input channels are dropped by a member's fixed mask (Masksembles, section 3)."""

    mask: Tensor

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The layer on the masked input; activations are not rescaled. What a member never reads is left out."""
        if not args and not kwargs and self._leaves_out(input):
            return self._on_some(input)
        return super().forward(input * self.own(self.mask, input), *args, **kwargs)  # type: ignore[misc]

    def _leaves_out(self, x: Tensor) -> bool:
        """Whether one member predicts on a CPU, by a convolution or linear layer that can be cut."""
        layer: Any = self
        return (
            not layer.training
            and self.rows.index is None
            and self.mask.ndim == 1
            and self.mask.numel() >= 32
            and x.device.type == "cpu"
            and getattr(layer, "groups", 1) == 1
            and not getattr(layer, "transposed", False)
            and not self.mask.requires_grad
            and not torch.compiler.is_compiling()
            and not torch._C._functorch.is_batchedtensor(self.mask)
            and torch._C._len_torch_dispatch_stack() == 0
        )

    def _on_some(self, x: Tensor) -> Tensor:
        layer: Any = self
        index = self.mask.nonzero().flatten()
        dim = channel_dim(layer) + x.ndim
        weight = layer.weight.index_select(1, index)
        if isinstance(layer, nn.Linear):
            return F.linear(x.index_select(dim, index), weight, layer.bias)
        if x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last):
            rows = x.permute(0, 2, 3, 1)
            taken = rows.reshape(-1, rows.shape[3]).index_select(1, index)
            part = taken.view(*rows.shape[:3], -1).permute(0, 3, 1, 2)
        else:
            part = x.index_select(dim, index)
        y: Tensor = layer._conv_forward(part, weight, layer.bias)
        return y


class RankOne(PerMember):
    """A layer whose weight is scaled by a member's rank-1 matrix: y = ((x * r) W) * s + b (BatchEnsemble)."""

    r: nn.Parameter
    s: nn.Parameter
    b: nn.Parameter | None

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The layer without its bias between the two scalings, then the member's bias."""
        y = super().forward(input * self.own(self.r, input), *args, **kwargs)  # type: ignore[misc]
        y = y * self.own(self.s, y)
        return y if self.b is None else y + self.own(self.b, y)


class Dropped:
    """A layer with dropout before it."""

    rate: float
    training: bool

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The layer on its input after dropout."""
        return super().forward(F.dropout(input, self.rate, self.training), *args, **kwargs)  # type: ignore[misc]


class Joined:
    """A first layer that reads the inputs of all members side by side (MIMO).

    `parts` are the inputs of the members but the first while training; without them every member reads the same.
    """

    members: int
    parts: list[Tensor] | None

    def forward(self, input: Any, *args: Any, **kwargs: Any) -> Any:
        """The layer on the members' inputs, joined along the channels (an embedding: summed)."""
        parts = [input] * self.members if self.parts is None else [input, *self.parts]
        if not isinstance(self, nn.Embedding):
            dim = channel_dim(cast(nn.Module, self))
            return super().forward(torch.cat(parts, dim), *args, **kwargs)  # type: ignore[misc]
        options = self.max_norm, self.norm_type, self.scale_grad_by_freq, self.sparse
        tables = self.weight.chunk(self.members)
        return sum(F.embedding(p, t, self.padding_idx, *options) for p, t in zip(parts, tables, strict=True))


class Split(PerMember):
    """A last layer that makes the outputs of all members; they leave as rows, members outermost (MIMO)."""

    members: int

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The members' outputs, (members * batch, outputs)."""
        y = super().forward(x, *args, **kwargs)  # type: ignore[misc]
        dim, inner = self.layout or Layout()
        y = y.unflatten(channel_dim(cast(nn.Module, self)) + y.ndim, (self.members, -1))
        at = channel_dim(cast(nn.Module, self)) + y.ndim - 1
        if inner:  # (others, batch): the members go between the two
            rows = y.shape[dim] if self.rows.index is None else len(self.rows.index)
            y = y.unflatten(dim, (-1, rows))
            at, dim = at + (at > dim), dim + 1
        return y.movedim(at, dim).flatten(dim, dim + 1).flatten(dim - inner, dim)


def channel_dim(layer: nn.Module) -> int:
    """The dimension of the layer's channels, counted from the end."""
    kernel = getattr(layer, "kernel_size", ())
    return -1 - len(kernel) if isinstance(kernel, tuple) else -1


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
        template = nn.Linear(in_features // groups, out_features, bias)  # PyTorch's law for this fan-in
        self.weight, self.bias = template.weight, template.bias

    def forward(self, x: Tensor) -> Tensor:
        """Each group of outputs from its group of inputs."""
        groups = x.reshape(-1, self.groups, self.in_features // self.groups).movedim(1, 0)  # (groups, rows, inputs)
        weight = self.weight.unflatten(0, (self.groups, -1)).transpose(1, 2)
        y = torch.bmm(groups, weight).movedim(0, 1).reshape(*x.shape[:-1], self.out_features)
        return y if self.bias is None else y + self.bias

    def extra_repr(self) -> str:
        """What `print` shows."""
        return f"{self.in_features}, {self.out_features}, groups={self.groups}, bias={self.bias is not None}"


class Attention(nn.Module):
    """An `nn.MultiheadAttention` that calls its projections, so that they can be changed like any layer."""

    in_proj_bias = None  # keeps nn.TransformerEncoderLayer off its fast path, which would not call them
    _qkv_same_embed_dim = False

    def __init__(self, embed_dim: int, num_heads: int, kdim: int, vdim: int, bias: bool):
        super().__init__()
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias)
        self.k_proj = nn.Linear(kdim, embed_dim, bias)
        self.v_proj = nn.Linear(vdim, embed_dim, bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias)
        self.dropout, self.batch_first, self.add_zero_attn = 0.0, False, False
        self.bias_k: nn.Parameter | None
        self.bias_v: nn.Parameter | None
        self.register_parameter("bias_k", None)
        self.register_parameter("bias_v", None)

    @classmethod
    def of(cls, other: nn.MultiheadAttention, memo: dict[int, list[nn.Parameter]] | None = None) -> Attention:
        """The attention that computes what `other` computes; `memo` keeps tied projections tied."""
        memo = {} if memo is None else memo
        made = cls(other.embed_dim, other.num_heads, other.kdim, other.vdim, other.in_proj_bias is not None)
        made.dropout, made.batch_first, made.add_zero_attn = other.dropout, other.batch_first, other.add_zero_attn
        made.bias_k = cast("nn.Parameter | None", other.bias_k)
        made.bias_v = cast("nn.Parameter | None", other.bias_v)
        layers = made.q_proj, made.k_proj, made.v_proj
        apart = other.q_proj_weight, other.k_proj_weight, other.v_proj_weight
        weights = apart if other.in_proj_weight is None else _thirds(other.in_proj_weight, memo)
        for layer, weight in zip(layers, weights, strict=True):
            layer.weight = weight
        if other.in_proj_bias is not None:
            for layer, bias in zip(layers, _thirds(other.in_proj_bias, memo), strict=True):
                layer.bias = bias
        made.out_proj.weight, made.out_proj.bias = other.out_proj.weight, other.out_proj.bias
        return made

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Takes and gives what `nn.MultiheadAttention.forward` does."""
        del is_causal  # a hint only: attn_mask must be given with it
        single = query.ndim == 2
        if single:
            query, key, value = query[None], key[None], value[None]
            key_padding_mask = None if key_padding_mask is None else key_padding_mask[None]
        elif not self.batch_first:
            query, key, value = (t.transpose(0, 1) for t in (query, key, value))
        q, k, v = self.q_proj(query), self.k_proj(key), self.v_proj(value)  # (batch, time, embed)
        k, v, added = self._extended(k, v)
        q, k, v = (t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in (q, k, v))
        mask = _merged(attn_mask, key_padding_mask, added, q)
        dropout = self.dropout if self.training else 0.0
        weights = None
        if need_weights or dropout:  # torch's fused attention cannot draw anew for each member under vmap
            scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
            weights = F.dropout((scores if mask is None else scores + mask).softmax(-1), dropout)
            y = weights @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, mask, dropout)
        y = self.out_proj(y.transpose(1, 2).flatten(2))
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)  # heads
        weights = weights if need_weights else None
        if single:
            return y[0], None if weights is None else weights[0]
        return (y if self.batch_first else y.transpose(0, 1)), weights

    def _extended(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, int]:
        """Keys and values with the learned and the zero entry at the end of the sequence, and how many."""
        added = 0
        if self.bias_k is not None and self.bias_v is not None:
            k, v = (torch.cat([t, b.expand(len(t), -1, -1)], 1) for t, b in ((k, self.bias_k), (v, self.bias_v)))
            added += 1
        if self.add_zero_attn:
            k, v = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))
            added += 1
        return k, v, added


def _thirds(tensor: Tensor, memo: dict[int, list[nn.Parameter]]) -> list[nn.Parameter]:
    """The projections of queries, keys and values as parameters of their own, the same ones each time."""
    if id(tensor) not in memo:
        memo[id(tensor)] = [nn.Parameter(t.detach().clone(), tensor.requires_grad) for t in tensor.chunk(3)]
    return memo[id(tensor)]


def _merged(attn_mask: Tensor | None, padding: Tensor | None, added: int, q: Tensor) -> Tensor | None:
    """Both masks as one that is added to the scores, (batch or 1, heads or 1, queries or 1, keys)."""
    merged = None
    if attn_mask is not None:
        merged = _additive(F.pad(attn_mask, (0, added)), q)
        merged = merged.unflatten(0, (q.shape[0], -1)) if attn_mask.ndim == 3 else merged[None, None]
    if padding is not None:
        padding = _additive(F.pad(padding, (0, added)), q)[:, None, None]
        merged = padding if merged is None else merged + padding
    return merged


def _additive(mask: Tensor, q: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(q.dtype)
    return torch.zeros_like(mask, dtype=q.dtype).masked_fill(mask, float("-inf"))
