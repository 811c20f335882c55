"""New sizes of a model, and the copy of it that has them, with fresh parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..._common.torch_private import ConvNd, NormBase
from ..copying import duplicate_with
from ..initial_laws import Laws, draw_anew_
from ..initialization import draw_like, fits_fan, is_random, resize_evenly
from ..selecting import dotted_name
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
    fans = _fans(model, widths.sizes)
    for module in result.modules():
        if isinstance(module, NormBase):
            module.reset_running_stats()

    def guess(name: str, given: Tensor, shape: tuple[int, ...]) -> Tensor:
        fresh = _fresh(given, shape, *fans.get(name, (0, 0)))
        return draw_like(given, shape, fan=laws.fans.get(name)) if fresh is None else fresh

    draw_anew_(result, laws, generator, guess=guess)
    return result


def _resize(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    resized = draw_like(tensor, shape) if tensor.is_meta else resize_evenly(tensor, shape)
    return nn.Parameter(resized, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else resized


def _fans(model: nn.Module, sizes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, int]]:
    """Old and new fan in for parameters whose own shape does not show it: biases, and recurrent weights."""
    found = {}
    own = named_tensors(model)
    for path, module in model.named_modules():
        if isinstance(module, (nn.RNNBase, nn.RNNCellBase)):
            hidden = dotted_name(path, "weight_hh_l0" if isinstance(module, nn.RNNBase) else "weight_hh")
            for key, _ in module.named_parameters(recurse=False):
                found[dotted_name(path, key)] = own[hidden].shape[1], sizes[hidden][1]
        elif isinstance(module, (nn.Linear, ConvNd)) and (weight := dotted_name(path, "weight")) in own:
            found[dotted_name(path, "bias")] = own[weight][0].numel(), math.prod(sizes[weight][1:])
    return found


def _fresh(tensor: Tensor, shape: tuple[int, ...], fan: int, new_fan: int) -> Tensor | None:
    """A parameter drawn anew for the new fan in, where it follows torch's default for its own."""
    bound = fan**-0.5 if fan else 0.0
    if fan == new_fan or tensor.is_meta or not is_random(tensor) or tensor.abs().max() > bound * 1.001:
        return None
    if not fits_fan(tensor.float().std().item(), fan, tensor.numel(), (1 / 3,)):
        return None
    result = torch.empty(shape, dtype=torch.float32, device=tensor.device)
    return result.uniform_(-(new_fan**-0.5), new_fan**-0.5).to(tensor.dtype)
