"""The private parts of PyTorch that concern operators; running an ensemble imports none of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["TorchDispatchMode"]


def is_pure_operator(target: Any) -> bool:
    """Whether it is an operator of torch that changes none of its inputs and draws nothing at random."""
    if not isinstance(target, torch._ops.OpOverload):
        return False
    return not target._schema.is_mutable and torch.Tag.nondeterministic_seeded not in target.tags


class OperatorMode(TorchDispatchMode):
    """A mode that sees every operator, and does not load the compiler on its first call as others do."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


def changes_inputs(operator: Any) -> bool:
    """Whether an operator writes to one of its inputs."""
    return bool(operator._schema.is_mutable)


def named_arguments(operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call of an operator by their names, with its defaults for those that were not given."""
    arguments = operator._schema.arguments
    defaults = {argument.name: argument.default_value for argument in arguments if argument.has_default_value()}
    return {**defaults, **dict(zip((argument.name for argument in arguments), args, strict=False)), **kwargs}


def fake_tensor_mode(**options: Any) -> Any:
    """A mode under which tensors have shapes and no memory."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(**options)


EMBEDDING_BAGS = torch.ops.aten._embedding_bag, torch.ops.aten._embedding_bag_forward_only  # with and without gradients
TO_COPY = torch.ops.aten._to_copy
TRILINEAR = torch.ops.aten._trilinear
ATTENTION = (  # what F.scaled_dot_product_attention becomes
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu,
    torch.ops.aten._scaled_dot_product_flash_attention,
    torch.ops.aten._scaled_dot_product_efficient_attention,
    torch.ops.aten._scaled_dot_product_attention_math,
    torch.ops.aten.scaled_dot_product_attention,
)
