"""The exact test: random orders of all groups, in double precision, on the example and on another input.

The rules that found the groups may be wrong, and this is what keeps a wrong one from doing harm. `confirm` draws an
order of every group, puts a copy of the network into it and compares the outputs:

    all groups together     equal: done. Not equal: the groups are halved until those that change the outputs are alone
    each that held          must matter: groups whose weights the outputs never show are left out, too

Equal units would hide a mistake, so the copies have other values: each number is changed by up to a half, zeros (a
branch that starts at zero) become small numbers. What one draw of values keeps silent may speak in another.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ..._common.torch_operators import OperatorMode
from ..._common.torch_private import SlowPath
from ..._common.trees import Batch, logits_of, map_tensors, tensors_of
from ...surgery.copying import clear_caches_, duplicate, duplicate_mapped
from .axis_tracing import lasting_state
from .groups import Groups, Orders, units_at

TOLERANCE = 1e-9  # of the largest output
WIDER = {torch.float32: torch.float64, torch.complex64: torch.complex128}
WIDER |= {torch.float16: torch.float64, torch.bfloat16: torch.float64}

DRAWS = 4  # of values, until every group has been seen to matter
Result = TypeVar("Result")


def confirm(model: nn.Module, groups: Groups, batch: Batch) -> Groups:
    """Those groups of which any order gives the same function, and of which the outputs show something at all.

    The orders are tried on copies with other values, so that no two units are alike; what is silent in one draw of
    values (a ReLU that is never open, a branch that begins with zeros) may speak in another.
    """
    held, seen = set(range(len(groups))), set[int]()
    for draw in range(DRAWS):
        trial = Trial(model, groups, batch, draw)
        if draw == 0 and not trial.batches:
            raise ValueError(
                "permutations: the outputs must be finite somewhere, but for this example they are not. Give "
                "another example."
            )
        if trial.batches:
            held = trial.find_permutable(held)
            seen |= trial.seen(held - seen)
        if held <= seen:
            break
    unseen = {g: "that do not affect the outputs" for g in held - seen}
    return groups.without(
        {**unseen, **{g: "on whose order the outputs depend" for g in set(range(len(groups))) - held}}
    )


class Trial:
    """Tries orders on copies of a network whose values are drawn anew, on the example and on another input."""

    def __init__(self, model: nn.Module, groups: Groups, batch: Batch, draw: int = 0):
        self.groups, self.batches = groups, [batch, _other_input(batch)]
        self.base = _perturb_(as_precise(model), draw)
        self.expected = self._answers(duplicate(self.base))
        if draw == 0 and not all(map(_has_numbers, self.expected)):  # values that the network was not made for
            self.base = as_precise(model)
            self.expected = self._answers(duplicate(self.base))
        used = [i for i, outputs in enumerate(self.expected) if _has_numbers(outputs)]
        self.batches, self.expected = [self.batches[i] for i in used], [self.expected[i] for i in used]

    def find_permutable(self, numbers: set[int]) -> set[int]:
        """Those of the groups that can be permuted together."""
        return numbers if self._holds(numbers) else self._find_permutable(set(), sorted(numbers))

    def seen(self, numbers: set[int]) -> set[int]:
        """Those of the groups whose weights have a part in the outputs."""
        return {g for g in numbers if self._matters(g)}

    def _find_permutable(self, kept: set[int], more: list[int]) -> set[int]:
        """Those groups, beside the kept ones, that can be permuted together: halved until what is wrong is alone."""
        if not more or self._holds(kept | set(more)):
            return kept | set(more)
        if len(more) == 1:
            return kept
        half = len(more) // 2
        return self._find_permutable(self._find_permutable(kept, more[:half]), more[half:])

    def _holds(self, numbers: Collection[int]) -> bool:
        model = reordered(self.base, self.groups, self.groups.random(only=numbers))
        return all(is_close(a, b) for a, b in zip(self._answers(model), self.expected, strict=True))

    def _matters(self, g: int) -> bool:
        model = duplicate(self.base)
        with torch.no_grad():
            for name, tensor in lasting_state(model).items():
                for dim in (d for n, d in self.groups[g].places if n == name):
                    here = (units_at(self.groups.layout[name][dim], g) >= 0).nonzero()[:, 0].to(tensor.device)
                    tensor.index_copy_(dim, here, tensor.index_select(dim, here) * 1.5)
        clear_caches_(model)
        pairs = zip(self._answers(model), self.expected, strict=True)
        return any(not torch.equal(a, b) for found, known in pairs for a, b in zip(found, known, strict=True))

    def _answers(self, model: nn.Module) -> list[list[Tensor]]:
        return [self._run(model, batch) for batch in self.batches]

    def _run(self, model: nn.Module, batch: Batch) -> list[Tensor]:
        """The outputs; none where the model's own code fails on values or an input that it was not made for."""
        try:
            with warnings.catch_warnings(action="ignore"):
                return precisely(_outputs, model, batch)
        except Exception:
            return []


def same_function(model: nn.Module, other: nn.Module, batch: Batch) -> bool:
    """Whether two networks give the same in eval mode, but for rounding."""
    one, two = (precisely(_outputs, as_precise(each), batch) for each in (model, other))
    return is_close(one, two)


def is_close(found: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    """Whether outputs are equal but for rounding, relative to the largest."""
    if [t.shape for t in found] != [t.shape for t in expected]:
        return False
    for one, other in zip(found, expected, strict=True):
        if not (one.is_floating_point() or one.is_complex()):
            if not torch.equal(one, other):
                return False
            continue
        scale = float(other.abs().nan_to_num(0, 0, 0).max()) if other.numel() else 0.0
        if not torch.allclose(one, other, rtol=0, atol=TOLERANCE * max(scale, 1e-3), equal_nan=True):
            return False
    return True


def as_precise(model: nn.Module) -> nn.Module:
    """A copy in eval mode without what it has cached, in double precision."""
    copy = duplicate_mapped(model, _widen)
    clear_caches_(copy)
    return copy.eval()


def precisely(function: Callable[..., Result], model: nn.Module, batch: Batch, *more: Any) -> Result:
    """What the function gives for a model and a batch, computed in double precision, with the same draws each time."""
    device = next((t.device for t in lasting_state(model).values()), torch.device("cpu"))
    batch = map_tensors(batch, lambda tensor: _widen(tensor).to(device))
    with torch.random.fork_rng(devices=[]), Precise():
        torch.manual_seed(0)
        return function(model, batch, *more)


class Precise(OperatorMode):
    """Lets code that asks for single or half precision have double."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The operation's result with wider numbers."""
        kwargs = kwargs or {}
        if kwargs.get("dtype") in WIDER:
            kwargs = {**kwargs, "dtype": WIDER[kwargs["dtype"]]}
        return func(*args, **kwargs)


def _outputs(model: nn.Module, batch: Batch) -> list[Tensor]:
    with torch.no_grad(), SlowPath():
        return tensors_of(logits_of(model(*batch[0], **batch[1])))


def _widen(tensor: Tensor) -> Tensor:
    return tensor.detach().to(WIDER.get(tensor.dtype, tensor.dtype), copy=True)


@torch.no_grad()
def _perturb_(model: nn.Module, draw: int) -> nn.Module:
    """The model with each number changed by up to a half, from the second draw on some signs of parameters too."""
    for tensor in lasting_state(model).values():
        factor = 0.5 + torch.rand(tensor.shape).to(tensor)
        if draw and isinstance(tensor, nn.Parameter):
            factor = factor * torch.randn(tensor.shape).to(tensor).sign()
        tensor.copy_(torch.where(tensor == 0, 0.1 * (factor - 1), tensor * factor))
    clear_caches_(model)
    return model


def reordered(model: nn.Module, groups: Groups, orders: Orders) -> nn.Module:
    """A copy of the network with its units in these orders."""
    copy = duplicate(model)
    with torch.no_grad():
        for name, tensor in lasting_state(copy).items():
            tensor.copy_(groups.reorder(name, tensor.detach(), orders))
    clear_caches_(copy)
    return copy


def _other_input(batch: Batch) -> Batch:
    """An input of the same kind: other numbers of the same mean and spread, whole ones among those that are there."""

    def other(tensor: Tensor) -> Tensor:
        if tensor.is_floating_point() and tensor.numel() > 1:
            return tensor.mean() + tensor.std() * torch.randn_like(tensor)
        if tensor.numel() > 1 and not tensor.is_complex() and tensor.dtype != torch.bool:
            return tensor.reshape(-1)[torch.randint(tensor.numel(), (tensor.numel(),))].reshape(tensor.shape)
        return tensor

    return map_tensors(batch, other)


def _has_numbers(outputs: Sequence[Tensor]) -> bool:
    return any(bool(t.isfinite().any()) for t in outputs)
