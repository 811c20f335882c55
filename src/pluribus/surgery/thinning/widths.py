"""New sizes of a model, and the copy of it that has them, with fresh parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..._common.torch_private import NormBase
from ..copying import duplicate_with
from ..initial_laws import Laws, draw_anew_
from ..initialization import draw_like, resize_evenly
from .attributes import Attribute, named_tensors, set_attributes_
from .solver import RoundedWidth


class ThinError(ValueError):
    """The widths of a model cannot be changed."""


@dataclass(frozen=True)
class Widths:
    """New sizes of a model, from which it can be rebuilt without an example.

    Args:
        sizes: the new shape of every parameter, buffer and plain tensor by name, tied ones once.
        attributes: the numbers in attributes of modules that change.
        rounded: the hidden widths that could not be scaled exactly.
        followed: what was changed, or left, because a number or a table looks as if it followed from a width.
    """

    sizes: Mapping[str, tuple[int, ...]]
    attributes: tuple[Attribute, ...] = ()
    rounded: tuple[RoundedWidth, ...] = ()
    followed: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The same in plain JSON types."""
        return {
            "sizes": {name: list(shape) for name, shape in self.sizes.items()},
            "attributes": [[a.module, a.part, list(a.path), a.value] for a in self.attributes],
            "rounded": [asdict(r) for r in self.rounded],
            "followed": list(self.followed),
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Widths:
        """The widths that `to_json` has stored."""
        return cls(
            {name: tuple(shape) for name, shape in stored["sizes"].items()},
            tuple(Attribute(m, part, tuple(path), value) for m, part, path, value in stored["attributes"]),
            tuple(RoundedWidth(**r) for r in stored["rounded"]),
            tuple(stored.get("followed", ())),
        )


def rebuild(
    model: nn.Module,
    widths: Widths,
    generator: torch.Generator | None = None,
    *,
    laws: Laws | None = None,
    change: Callable[[nn.Module], Any] = lambda made: None,
) -> nn.Module:
    """A copy of the model with the given sizes and fresh parameters, drawn as its own were or seem to be.

    Args:
        laws: those of the model, where they are known already
        change: what else becomes of the copy, before its parameters are drawn
    """
    own = named_tensors(model)
    if own.keys() != widths.sizes.keys():
        differing = sorted(own.keys() ^ widths.sizes.keys())
        raise ThinError(
            f"rebuild: the widths belong to another model: they differ in {differing[:5]}. "
            "Give the model that they were solved for."
        )
    laws = laws or Laws(model)
    result = duplicate_with(model, {id(t): _resize(t, widths.sizes[name]) for name, t in own.items()})
    set_attributes_(result, widths.attributes)
    change(result)
    for module in result.modules():
        if isinstance(module, NormBase):
            module.reset_running_stats()
    draw_anew_(result, laws, generator)
    return result


def _resize(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    resized = draw_like(tensor, shape) if tensor.is_meta else resize_evenly(tensor, shape)
    return nn.Parameter(resized, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else resized
