"""What all members read, inputs and shared parameters: one that changes it in place must not change the next one's."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from .._common.trees import Batch, map_tensors, tensors_of


class InputChanges:
    """What is known of whether a model changes its inputs in place: `seen`, None where it has not run yet."""

    def __init__(self) -> None:
        self.seen: bool | None = None

    def inputs(self, batch: Batch, size: int) -> Iterable[Batch]:
        """The batch for each of `size` passes: the given one if nothing changes it, and otherwise copies."""
        return [batch] * size if self.seen is False else self._copies(batch, size)

    def _copies(self, batch: Batch, size: int) -> Iterator[Batch]:
        for _ in range(size):
            own = map_tensors(batch, lambda tensor: tensor.clone())
            yield own
            copied = tensors_of(own)
            if not self.seen and not any(tensor.is_inference() for tensor in copied):
                self.seen = any(tensor._version for tensor in copied)

    def watched(self, batch: Batch) -> list[tuple[Tensor, int]]:
        """The inputs that each pass sees as they are given, with how often they have been changed so far."""
        if self.seen is not False:
            return []
        return [(tensor, tensor._version) for tensor in _tensors(batch) if not tensor.is_inference()]

    def check(self, watched: Sequence[tuple[Tensor, int]]) -> None:
        """Refuse passes that have changed one of their inputs."""
        for tensor, version in watched:
            if tensor._version != version:
                self._refuse()

    def _refuse(self) -> None:
        self.seen = True
        raise ValueError(
            "The model has changed its input in place, which it did not do for earlier inputs, so that the next member "
            "would see another one. Give the input anew: from now on each member gets a copy. Or set inplace=False in "
            "the model's first layer."
        )


class SharedParameters:
    """The parameters that no member owns: the first pass may change them, as one network does, and no other."""

    def __init__(self, named: Sequence[tuple[str, Tensor]], own: Collection[str]):
        shared = [(name, tensor) for name, tensor in named if name not in own]
        parameters = [(name, t) for name, t in shared if isinstance(t, nn.Parameter) and not t.is_inference()]
        self.versions = [(name, parameter, parameter._version) for name, parameter in parameters]
        self.written: dict[str, Tensor] = {}

    def check(self, method: str) -> None:
        """Refuse a pass that has changed one again."""
        for name, parameter, version in self.versions:
            if parameter._version == version:
                continue
            if not torch.equal(self.written.setdefault(name, parameter.detach().clone()), parameter):
                raise ValueError(
                    f"{method}: the model changes its parameter {name!r} in place when it runs, and the members share "
                    "it, so that each would see it changed once more. Compute a changed copy in forward instead, or "
                    "let each member own it: pb.deep does."
                )


def _tensors(batch: Batch) -> list[Tensor]:
    """As `tensors_of`, in a tenth of the time where every argument is a tensor."""
    given = [*batch[0], *batch[1].values()]
    return given if all(isinstance(value, Tensor) for value in given) else tensors_of(batch)
