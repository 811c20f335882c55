"""An attention layer whose projections are layers of their own, in place of `nn.MultiheadAttention`."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn


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
        weights = apart if other.in_proj_weight is None else _split_projections(other.in_proj_weight, memo)
        for layer, weight in zip(layers, weights, strict=True):
            layer.weight = weight
        if other.in_proj_bias is not None:
            for layer, bias in zip(layers, _split_projections(other.in_proj_bias, memo), strict=True):
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
        k, v, added = self._extend(k, v)
        q, k, v = (t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in (q, k, v))
        mask = _merge_masks(attn_mask, key_padding_mask, added, q)
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

    def _extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, int]:
        """Keys and values with the learned and the zero entry at the end of the sequence, and how many."""
        added = 0
        if self.bias_k is not None and self.bias_v is not None:
            k, v = (torch.cat([t, b.expand(len(t), -1, -1)], 1) for t, b in ((k, self.bias_k), (v, self.bias_v)))
            added += 1
        if self.add_zero_attn:
            k, v = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))
            added += 1
        return k, v, added


def _split_projections(tensor: Tensor, memo: dict[int, list[nn.Parameter]]) -> list[nn.Parameter]:
    """The projections of queries, keys and values as parameters of their own, the same ones each time."""
    if id(tensor) not in memo:
        memo[id(tensor)] = [nn.Parameter(t.detach().clone(), tensor.requires_grad) for t in tensor.chunk(3)]
    return memo[id(tensor)]


def _merge_masks(attn_mask: Tensor | None, padding: Tensor | None, added: int, q: Tensor) -> Tensor | None:
    """Both masks as one that is added to the scores, (batch or 1, heads or 1, queries or 1, keys)."""
    merged = None
    if attn_mask is not None:
        merged = _as_additive(F.pad(attn_mask, (0, added)), q)
        merged = merged.unflatten(0, (q.shape[0], -1)) if attn_mask.ndim == 3 else merged[None, None]
    if padding is not None:
        padding = _as_additive(F.pad(padding, (0, added)), q)[:, None, None]
        merged = padding if merged is None else merged + padding
    return merged


def _as_additive(mask: Tensor, q: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(q.dtype)
    return torch.zeros_like(mask, dtype=q.dtype).masked_fill(mask, float("-inf"))
