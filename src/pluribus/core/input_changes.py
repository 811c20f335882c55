"""What all members read, inputs and shared parameters: one that changes it in place must not change the next one's."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from .._common.torch_private import escaped_transform, set_versions_
from .._common.trees import Batch, map_tensors, tensors_of
from .kept_attributes import CarriesError


class InputChanges:
    """What is known of whether a model changes in place what all members read; None where it has not run yet.

    Args:
        seen: its inputs
        writes: parameters that no member owns
    """

    def __init__(self) -> None:
        self.seen: bool | None = None
        self.writes: bool | None = None

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
            "The model changed its input in place, which it did not do for earlier inputs, so the next member would "
            "see the changed one. Pass the input again: from now on each member gets a copy. Or set inplace=False in "
            "the model's first layer."
        )


class SharedParameters:
    """The parameters that no member owns: a pass may change them, as one network does, if all passes do the same.

    As long as the model is not known to leave them alone, each pass begins with the same values. Values are compared
    then, since changes of `.data` are not counted.
    """

    def __init__(self, named: Sequence[tuple[str, Tensor]], own: Collection[str], known: InputChanges):
        shared = [(name, tensor) for name, tensor in named if name not in own]
        self.known = known
        self.parameters = [(name, t) for name, t in shared if isinstance(t, nn.Parameter) and not t.is_inference()]
        self.versions = [parameter._version for _, parameter in self.parameters]
        kept = () if known.writes is False else self.parameters
        self.given = {name: parameter.detach().clone() for name, parameter in kept if not parameter.is_meta}
        self.written: dict[str, Tensor] = {}

    def check(self, method: str) -> None:
        """Note what a pass has changed, and undo it before the next; refuse what not all passes have done alike."""
        for (name, parameter), version in zip(self.parameters, self.versions, strict=True):
            given = self.given.get(name)
            if given is None and parameter._version == version:
                continue
            if given is not None and name not in self.written and _is_same(given, parameter):
                continue
            self.known.writes = True
            if not _is_same(self.written.setdefault(name, parameter.detach().clone()), parameter):
                raise ValueError(
                    f"{method}: the model changes its parameter {name!r} in place when it runs, and the members share "
                    "it, so each would see the others' changes. Compute a changed copy in "
                    "forward instead, or let each member own it: pb.deep does."
                )
            if given is not None:
                parameter.data.copy_(given)

    def finish_(self) -> None:
        """Leave them as each pass has left them."""
        self.known.writes = bool(self.written)
        for name, parameter in self.parameters if self.written else ():
            if name in self.written:
                parameter.data.copy_(self.written[name])


def each_as_first(
    batches: Iterable[Batch], named: Sequence[tuple[str, Tensor]], own: Collection[str]
) -> Iterable[Batch]:
    """The batches of the members' passes, each of which finds the tensors changed in place as often as the first.

    A pass changes its member's part of a stacked buffer, and what all share to the same values: what backward keeps of
    other passes stays as it is, though torch counts changes for whole tensors.
    """
    if not torch.is_grad_enabled():
        return batches
    tensors = [t for n, t in named if not (n in own and t.requires_grad or t.is_inference())]
    return _set_back(batches, tensors) if tensors else batches


def _set_back(batches: Iterable[Batch], tensors: Sequence[Tensor]) -> Iterator[Batch]:
    before = [tensor._version for tensor in tensors]
    for batch in batches:
        changed = [(t, version) for t, version in zip(tensors, before, strict=True) if t._version != version]
        if changed:
            set_versions_(*zip(*changed, strict=True))
        yield batch


def _is_same(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a, b) or bool(((a == b) | (a.isnan() & b.isnan())).all())


def in_words(method: str, error: RuntimeError) -> Exception:
    """What to raise where a pass by the loop fails: torch's words for what it does to other passes say too little."""
    if escaped_transform(error):
        return CarriesError.outside(method)
    if "Unbind" not in str(error) or "modified inplace" not in str(error):
        return error
    return ValueError(
        f"{method}: the model changes a parameter in place when it runs. In a loop with gradients, a member's "
        "parameters are slices of the stacked ones, which must not change. Compute a changed copy in forward instead, "
        'set ensemble.run = "vmap", or run it without gradients.'
    )


def _tensors(batch: Batch) -> list[Tensor]:
    """As `tensors_of`, in a tenth of the time where every argument is a tensor."""
    given = [*batch[0], *batch[1].values()]
    return given if all(isinstance(value, Tensor) for value in given) else tensors_of(batch)
