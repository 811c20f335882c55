"""What a model is made of: its tensors, and the numbers in the attributes of its modules and configurations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ..._common.torch_private import PADDING_ATTRIBUTE, NormBase
from ..selecting import dotted_name

Key = str | int

Holder = tuple[str, str | None]  # a module's name, and the name of an object it holds


# Attributes that are no widths.
GEOMETRY = {
    *("kernel_size", "stride", "padding", "dilation", "output_padding", "output_size", "padding_idx"),
    *(PADDING_ATTRIBUTE, "num_embeddings", "num_layers"),
}

SIZE_ATTRIBUTES: list[tuple[tuple[type[nn.Module], ...], list[tuple[str, str, int]]]] = [
    ((nn.Linear,), [("in_features", "weight", 1), ("out_features", "weight", 0)]),
    ((nn.Conv1d, nn.Conv2d, nn.Conv3d), [("out_channels", "weight", 0)]),
    ((nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), [("in_channels", "weight", 0)]),
    ((NormBase,), [("num_features", "running_mean", 0), ("num_features", "weight", 0)]),
    ((nn.GroupNorm,), [("num_channels", "weight", 0)]),
    ((nn.Embedding, nn.EmbeddingBag), [("embedding_dim", "weight", 1)]),
    ((nn.RNNBase,), [("input_size", "weight_ih_l0", 1), ("hidden_size", "weight_hh_l0", 1)]),
    ((nn.RNNCellBase,), [("input_size", "weight_ih", 1), ("hidden_size", "weight_hh", 1)]),
    ((nn.MultiheadAttention,), [("embed_dim", "out_proj.weight", 0)]),
    ((nn.PReLU,), [("num_parameters", "weight", 0)]),
]


@dataclass(frozen=True)
class Attribute:
    """A number in an attribute of a module, or in one of a plain object (a configuration) that it holds.

    Args:
        part: the name of the held object, or None for the module itself.
        path: the attribute's name, then the keys and positions inside dictionaries, lists and tuples.
    """

    module: str
    part: str | None
    path: tuple[Key, ...]
    value: int | float


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The parameters, the buffers, and the tensors that modules hold as plain attributes."""
    found = dict(model.named_parameters()) | dict(model.named_buffers())
    seen = set(map(id, found.values()))
    for path, module in model.named_modules():
        for key, value in module.__dict__.items():
            if isinstance(value, Tensor) and id(value) not in seen:
                seen.add(id(value))
                found[dotted_name(path, key)] = value
    return found


def holders(model: nn.Module) -> dict[Holder, dict[str, Any]]:
    """The attributes of each module, and of the plain objects (configurations) that modules hold."""
    found: dict[Holder, dict[str, Any]] = {}
    seen = set()
    for path, module in model.named_modules():
        found[path, None] = module.__dict__
        for key, value in module.__dict__.items():
            plain = hasattr(value, "__dict__") and not callable(value) and not isinstance(value, (Tensor, dict))
            if plain and id(value) not in seen:
                seen.add(id(value))
                found[path, key] = value.__dict__
    return found


def set_attributes_(model: nn.Module, attributes: Iterable[Attribute]) -> None:
    """Set attributes of a model: numbers, where it has numbers."""
    held = holders(model)
    for attribute in attributes:
        dictionary, key = held[attribute.module, attribute.part], attribute.path[0]
        assert isinstance(key, str)
        if not isinstance(attribute.value, int | float):
            raise ValueError(f"the attribute {key!r} must be a number, but is {attribute.value!r}.")
        dictionary[key] = _replace(dictionary[key], attribute.path[1:], attribute.value)


def leaves_with_paths(value: Any) -> Iterator[tuple[tuple[Key, ...], Any]]:
    """The path and value of everything inside tuples, lists and dictionaries, at any depth."""
    if type(value) in (tuple, list):
        items: Iterable[tuple[Key, Any]] = enumerate(value)
    elif isinstance(value, dict):
        items = value.items()
    else:
        yield (), value
        return
    for key, inner in list(items):
        for path, leaf in leaves_with_paths(inner):
            yield (key, *path), leaf


def size_attributes(module: nn.Module) -> list[tuple[str, str, int]]:
    """The attributes of a known layer that state a size: attribute, tensor, dimension."""
    return [row for types, rows in SIZE_ATTRIBUTES for row in rows if isinstance(module, types)]


def _replace(value: Any, path: tuple[Key, ...], new: Any) -> Any:
    if not path:
        if not isinstance(value, int | float):
            raise ValueError(f"only a number can be replaced by {new}, not a {type(value).__name__}.")
        return new
    if isinstance(value, dict):
        return {**value, path[0]: _replace(value[path[0]], path[1:], new)}
    return type(value)(_replace(v, path[1:], new) if i == path[0] else v for i, v in enumerate(value))
