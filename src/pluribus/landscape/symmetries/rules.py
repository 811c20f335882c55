"""The table of rules: what each operation says about axes. A new rule is one entry; what has none is fixed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch

from . import layers, shapes
from .operations import Axes, OperatorCall, Rule, Stack


def rule_of(call: OperatorCall) -> Rule | None:
    """What the operation says about axes; None where nothing is known of it."""
    if torch.Tag.pointwise in call.operator.tags:
        return layers.pointwise
    if call.name in RULES:
        return RULES[call.name]
    if _is_pointwise_elsewhere(call):
        return layers.pointwise
    return next((rule for pattern, rule in PATTERNS.items() if re.fullmatch(pattern, call.name)), None)


def rule_of_stack(call: OperatorCall, held: Stack) -> list[Axes] | None:
    """The axes that an operation on a stack gives; None where its layers must be one."""
    rule = STACK_RULES.get(call.name)
    return None if rule is None else rule(call, held)


def _is_pointwise_elsewhere(call: OperatorCall) -> bool:
    """Whether torch says so of the operation that does the same without writing to its input."""
    packet = getattr(torch.ops.aten, call.name, None) if call.writes else None
    return packet is not None and any(torch.Tag.pointwise in getattr(packet, one).tags for one in packet.overloads())


def _table(rows: Mapping[str, Any]) -> dict[str, Any]:
    return {name: rule for names, rule in rows.items() for name in names.split()}


RULES: dict[str, Rule] = _table(
    {
        # each unit by itself
        "clone _to_copy copy lift_fresh lift detach alias contiguous positive fill zero": layers.pointwise,
        "native_dropout _softmax _log_softmax _safe_softmax hardswish where masked_fill": layers.pointwise,
        "_prelu_kernel floor_divide": layers.pointwise,
        "log_sigmoid_forward polar complex real imag conj _conj _conj_physical resolve_conj": layers.pointwise,
        "empty zeros ones full new_empty new_zeros new_ones new_full scalar_tensor": layers.constant,
        "empty_like zeros_like ones_like full_like empty_strided new_empty_strided": layers.constant,
        # over some dimensions
        "sum mean amax amin var std var_mean std_mean prod logsumexp norm linalg_vector_norm": layers.reduce,
        "any all nansum count_nonzero": layers.reduce,
        "max min argmax argmin aminmax topk sort argsort cumsum cumprod cummax cummin logcumsumexp": layers.ordered,
        "flip kthvalue median nanmedian mode": layers.ordered,
        "roll": layers.ordered,
        "tril triu": layers.by_place,
        "_fft_r2c _fft_c2c _fft_c2r": layers.transform,
        # products
        "mm bmm addmm baddbmm mv addmv dot vdot": layers.matmul,
        "_grouped_mm": layers.grouped_matmul,
        "_trilinear": layers.trilinear,
        "convolution _convolution": layers.convolution,
        "_cdist_forward _euclidean_dist": layers.distances,
        "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention": layers.attention,
        "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention": layers.attention,
        # normalisation
        "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training": layers.batch_norm,
        "cudnn_batch_norm miopen_batch_norm _batch_norm_with_update batch_norm": layers.batch_norm,
        "native_layer_norm rms_norm _fused_rms_norm": layers.layer_norm,
        "native_group_norm": layers.group_norm,
        "_weight_norm_interface": layers.weight_norm,
        # views
        "view _unsafe_view reshape _reshape_alias _reshape_copy squeeze unsqueeze unflatten flatten": shapes.view,
        "permute transpose t numpy_T": shapes.transposed,
        "expand": shapes.expand,
        "repeat": shapes.repeat,
        "as_strided": shapes.as_strided,
        "unfold": shapes.unfold,
        "diagonal": shapes.diagonal,
        "view_as_real view_as_complex": shapes.real_view,
        # joining and cutting
        "cat": shapes.cat,
        "stack": shapes.stacked,
        "slice narrow split split_with_sizes unsafe_split unsafe_split_with_sizes chunk unsafe_chunk": shapes.slices,
        "tensor_split": shapes.slices,
        "select unbind": shapes.select,
        "glu": shapes.glu,
        "constant_pad_nd": shapes.pad,
        "channel_shuffle native_channel_shuffle": shapes.channel_shuffle,
        "pixel_shuffle pixel_unshuffle": shapes.pixel_shuffle,
        "im2col col2im": shapes.windows,
        # picks by an index
        "index _unsafe_index": shapes.index,
        "index_put _unsafe_index_put _index_put_impl": shapes.index_put,
        "index_select": shapes.index_select,
        "index_add index_copy": shapes.index_add,
        "gather": shapes.gather,
        "scatter scatter_add scatter_reduce": shapes.scatter,
        "embedding": shapes.table_rows,
        "_embedding_bag _embedding_bag_forward_only": layers.bags,
    }
)

PATTERNS: dict[str, Rule] = {rf".*(pool|upsample_|_pad|grid_sampler_).*{n}d.*": layers.spatial(n) for n in (1, 2, 3)}

STACK_RULES: dict[str, Callable[[OperatorCall, Stack], list[Axes] | None]] = _table(
    {
        "clone _to_copy detach alias mul div": shapes.same_stack,
        "permute transpose t": shapes.moved_stack,
        "select unbind": shapes.picked_stack,
        "view _unsafe_view squeeze unsqueeze": shapes.viewed_stack,
    }
)
