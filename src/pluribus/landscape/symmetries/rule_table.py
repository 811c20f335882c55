"""The table of rules: what each operation says about axes. A new rule is one entry; what has none is fixed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch

from . import layer_rules, shape_rules
from .operations import Axes, OperatorCall, Rule, Stack


def rule_of(call: OperatorCall) -> Rule | None:
    """What the operation says about axes; None where nothing is known of it."""
    if torch.Tag.pointwise in call.operator.tags:
        return layer_rules.pointwise
    if call.name in RULES:
        return RULES[call.name]
    if _is_pointwise_elsewhere(call):
        return layer_rules.pointwise
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
        "clone _to_copy copy lift_fresh lift detach alias contiguous positive fill zero": layer_rules.pointwise,
        "native_dropout _softmax _log_softmax _safe_softmax hardswish where masked_fill": layer_rules.pointwise,
        "_prelu_kernel floor_divide": layer_rules.pointwise,
        "log_sigmoid_forward polar complex real imag conj _conj _conj_physical resolve_conj": layer_rules.pointwise,
        "empty zeros ones full new_empty new_zeros new_ones new_full scalar_tensor": layer_rules.constant,
        "empty_like zeros_like ones_like full_like empty_strided new_empty_strided": layer_rules.constant,
        # over some dimensions
        "sum mean amax amin var std var_mean std_mean prod logsumexp norm linalg_vector_norm": layer_rules.reduce,
        "any all nansum count_nonzero": layer_rules.reduce,
        "max min aminmax topk sort kthvalue median nanmedian mode": layer_rules.ranked,
        "argmax argmin argsort cumsum cumprod cummax cummin logcumsumexp flip roll": layer_rules.ordered,
        "tril triu": layer_rules.by_place,
        "_fft_r2c _fft_c2c _fft_c2r": layer_rules.transform,
        # products
        "mm bmm addmm baddbmm mv addmv dot vdot": layer_rules.matmul,
        "_grouped_mm": layer_rules.grouped_matmul,
        "_trilinear": layer_rules.trilinear,
        "convolution _convolution": layer_rules.convolution,
        "_cdist_forward _euclidean_dist": layer_rules.distances,
        "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention": layer_rules.attention,
        "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention": layer_rules.attention,
        # normalisation
        "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training": layer_rules.batch_norm,
        "cudnn_batch_norm miopen_batch_norm _batch_norm_with_update batch_norm": layer_rules.batch_norm,
        "native_layer_norm rms_norm _fused_rms_norm": layer_rules.layer_norm,
        "native_group_norm": layer_rules.group_norm,
        "_weight_norm_interface": layer_rules.weight_norm,
        # views
        "view _unsafe_view reshape _reshape_alias _reshape_copy squeeze unsqueeze unflatten flatten": shape_rules.view,
        "permute transpose t numpy_T": shape_rules.transposed,
        "expand": shape_rules.expand,
        "repeat": shape_rules.repeat,
        "as_strided": shape_rules.as_strided,
        "unfold": shape_rules.unfold,
        "diagonal": shape_rules.diagonal,
        "view_as_real view_as_complex": shape_rules.real_view,
        # joining and cutting
        "cat": shape_rules.cat,
        "stack": shape_rules.stacked,
        "slice narrow split split_with_sizes unsafe_split unsafe_split_with_sizes chunk": shape_rules.slices,
        "unsafe_chunk tensor_split": shape_rules.slices,
        "select unbind": shape_rules.select_slices,
        "glu": shape_rules.glu,
        "constant_pad_nd": shape_rules.pad,
        "channel_shuffle native_channel_shuffle": shape_rules.channel_shuffle,
        "pixel_shuffle pixel_unshuffle": shape_rules.pixel_shuffle,
        "im2col col2im": shape_rules.windows,
        # picks by an index
        "index _unsafe_index": shape_rules.index,
        "index_put _unsafe_index_put _index_put_impl": shape_rules.index_put,
        "index_select": shape_rules.index_select,
        "index_add index_copy": shape_rules.index_add,
        "gather": shape_rules.gather,
        "scatter scatter_add scatter_reduce": shape_rules.scatter,
        "embedding": shape_rules.table_rows,
        "_embedding_bag _embedding_bag_forward_only": layer_rules.bags,
    }
)

PATTERNS: dict[str, Rule] = {
    rf".*(pool|upsample_|_pad|grid_sampler_).*{n}d.*": layer_rules.spatial(n) for n in (1, 2, 3)
}

STACK_RULES: dict[str, Callable[[OperatorCall, Stack], list[Axes] | None]] = _table(
    {
        "clone _to_copy detach alias mul div": shape_rules.same_stack,
        "permute transpose t": shape_rules.moved_stack,
        "select unbind": shape_rules.picked_stack,
        "view _unsafe_view squeeze unsqueeze": shape_rules.viewed_stack,
    }
)
