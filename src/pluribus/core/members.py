"""The members of an ensemble: real modules that share the tensors nobody owns and hold slices of the stacked ones.

The ensemble's module has every parameter and buffer; what members own is stacked there, (members, *shape). `Members`
makes a copy of the module for each member. The copies' tables of tensors hold

- for a tensor that all share: the very same tensor;
- for a stacked parameter: its slice, in the graph of the stacked one where gradients are computed (`unbind`), and
  otherwise a parameter in the same memory;
- for a stacked buffer: its slice, in the same memory.

So nothing is swapped when a member runs, and nothing must be undone afterwards: a member keeps its own caches, counters
and lists, and gradient checkpointing finds its tensors in backward. Before each run `Members.follow_` brings the copies
in step with the module: other tensors, modes, and attributes that a user has changed there.

    module.weight (3, 8, 4)  --unbind-->  members[0].weight (8, 4), members[1].weight, members[2].weight
    module.scale  (8)        ==========>  the same tensor in all of them
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter, is_
from typing import Any

import torch
from torch import Tensor, nn

from .._common.torch_private import is_transforming, mark_parameters_, parts_of, tables
from .._common.trees import Batch, are_close, batch_kind
from ..surgery.copying import clear_caches_, duplicate_with, replicas, replicate, state
from ..surgery.selecting import quote_names
from ..surgery.watching import PLAIN, ModuleSnapshot
from .rows import MemberLayer, Rows
from .trunk import forget_trunk_


@dataclass(eq=False)
class MemberTensor:
    """A tensor of the ensemble's module, and every place in the members that holds it or a slice of it."""

    name: str  # what the module calls it
    tensor: Tensor
    owned: bool  # it is stacked
    buffer: bool  # it is a buffer; otherwise a parameter
    part: nn.Module  # of the module, that holds it
    places: list[tuple[list[dict[str, Any]], str]] = field(default_factory=list)  # a table of each member, and its key
    pieces: Sequence[Tensor] = ()  # what the members hold

    def now(self) -> list[Tensor]:
        """What the members hold now: a pass may have assigned another tensor."""
        held, key = self.places[0]
        return [table[key] for table in held]


def give_pieces_(entries: Iterable[tuple[MemberTensor, Sequence[Tensor]]]) -> None:
    """Give each member its piece of these tensors."""
    for stored, pieces in entries:
        stored.pieces = pieces
        for held, key in stored.places:
            for table, piece in zip(held, pieces, strict=True):
                table[key] = piece


class Members:
    """The members of one module, in step with it; the tensors named in `own` are stacked."""

    def __init__(self, module: nn.Module, size: int, own: Collection[str]):
        self.module, self.size, self.rows = module, size, Rows()
        self.parts = parts_of(module)
        self.given = ModuleSnapshot(self.parts)
        self.modules = replicas(module, size)
        self.copies = list(map(parts_of, self.modules))
        for part in chain.from_iterable(self.copies):
            if isinstance(part, MemberLayer):
                part.rows = self.rows  # the module's own layers may be in a pass over rows
        self._sources: list[tuple[dict[str, Any], str, MemberTensor]] = []  # every place in the module
        self.owned: list[MemberTensor] = []
        self.shared: list[MemberTensor] = []
        self.owns_buffers = self.shares_buffers = False
        self._find_stored(own)
        self._whole: nn.Module | None = None
        self.written: dict[Any, list[MemberTensor]] = {}  # the shared buffers that passes change
        self.modes: list[bool] = []
        self.rest_()
        if not {type(part).train for part in self.parts} <= {nn.Module.train}:
            for member in self.modules:
                clear_caches_(member)

    def _find_stored(self, own: Collection[str]) -> None:
        names = {id(tensor): name for name, tensor in state(self.module)}
        found: dict[int, MemberTensor] = {}
        every = tables(*self.parts, *chain.from_iterable(self.copies))
        for number, part in enumerate(self.parts):
            parameters, buffers, _ = zip(*every[number :: len(self.parts)], strict=True)
            for (source, *held), are_buffers in ((parameters, False), (buffers, True)):  # the module's, the members'
                for key, tensor in source.items():
                    if tensor is None:
                        continue
                    if id(tensor) not in found:
                        name = names[id(tensor)]
                        found[id(tensor)] = new = MemberTensor(name, tensor, name in own, are_buffers, part)
                        (self.owned if new.owned else self.shared).append(new)
                        self.owns_buffers |= are_buffers and new.owned
                        self.shares_buffers |= are_buffers and not new.owned
                    found[id(tensor)].places.append((held, key))
                    self._sources.append((source, key, found[id(tensor)]))

    # ---------------------------------------------------------------- in step with the module

    def take_over_(self) -> bool:
        """Give the members numbers and words that a user has changed in the module; False if more has changed."""
        changed = self.given.changes()
        if not changed or not all(isinstance(vars(part)[key], PLAIN) for part, key in changed):
            return False
        numbers = {part: number for number, part in enumerate(self.parts)}
        for part, key in changed:
            for copy in self.copies:
                vars(copy[numbers[part]])[key] = vars(part)[key]
        self.given = ModuleSnapshot(self.parts)
        return True

    def are_current(self) -> bool:
        """Whether the members hold the module's tensors, where they are now, and have its modes."""
        return self._hold_its_tensors() and list(map(attrgetter("training"), self.parts)) == self.modes

    def _hold_its_tensors(self) -> bool:
        for table, key, stored in self._sources:
            if table.get(key) is not stored.tensor:
                return False
        return _marks(self.owned) == self._marks

    def follow_(self) -> None:
        """Bring the members in step: the module's tensors, slices in the graph where gradients count, and its modes."""
        if self._hold_its_tensors():
            self._follow_modes_()
        else:
            self.rest_()
        if torch.is_grad_enabled():
            learning: list[tuple[MemberTensor, Sequence[Tensor]]] = []
            parameters: list[Tensor] = []
            for stored in self.owned:
                if stored.tensor.requires_grad:
                    learning.append((stored, stored.tensor.unbind(0)))
                    parameters += () if stored.buffer else learning[-1][1]
            give_pieces_(learning)
            mark_parameters_(parameters)

    def rest_(self) -> None:
        """Give the members the module's modes and tensors: parameters of their own in the stacked ones' memory."""
        for table, key, stored in self._sources:
            stored.tensor = table[key]
        give_pieces_(_slices(self.owned))
        for stored in self.shared:
            give_pieces_([(stored, [stored.tensor] * self.size)])
        self._marks = _marks(self.owned)
        self._follow_modes_()

    def _follow_modes_(self) -> None:
        """Give the members the module's modes, by their own `train`: some change their weights with it (LoRA)."""
        if self.modes == (modes := list(map(attrgetter("training"), self.parts))):
            return
        self.modes = modes
        for copy in self.copies:
            for part, mode in zip(copy, self.modes, strict=True):
                if part.training != mode:
                    if type(part).train is nn.Module.train:
                        part.training = mode
                    else:
                        part.train(mode)

    # ---------------------------------------------------------------- what passes change

    def watched_by(self, key: Hashable, batch: Batch) -> Hashable:
        """What decides which shared buffers a pass changes: the modes, and the kind of batch."""
        return key, batch_kind(batch) if self.shares_buffers else None

    @contextmanager
    def watching(self, method: str, key: Any, once: Sequence[int] = ()) -> Iterator[None]:
        """Let shared buffers be each member's for its pass; they change by the mean of what the passes did to them.

        Args:
            key: what decides which buffers a pass changes; on the first pass all are watched
            once: the numbers of parts that run once, for all members
        """
        known, but = self.written.get(key), {part for number in once for part in parts_of(self.parts[number])}
        apart = known if known is not None else [s for s in self.shared if s.buffer and s.part not in but]
        if apart:
            give_pieces_((stored, [stored.tensor.clone() for _ in range(self.size)]) for stored in apart)
        shared = [s for s in self.shared if s not in apart and not (s.buffer and s.part in but)]
        before = [(stored, version_of(stored.tensor)) for stored in shared]
        try:
            yield
            changed = [stored for stored in apart if self._changes(stored)]
            in_place = [stored for stored, version in before if version_of(stored.tensor) != version]
            if changed or in_place:
                self._refuse_changes(method, changed, in_place)
            for stored in changed:
                average_(method, stored.name, stored.tensor, stored.now())
            self.written[key] = changed if known is None else known
        finally:
            if apart:
                give_pieces_((stored, [stored.tensor] * self.size) for stored in apart)

    def _changes(self, stored: MemberTensor) -> bool:
        if stored.tensor.is_meta:
            return False
        return any(not _is_same(now, stored.tensor) for now in stored.now())

    def _refuse_changes(self, method: str, changed: Sequence[MemberTensor], in_place: Sequence[MemberTensor]) -> None:
        still = [
            stored.name
            for stored in changed
            if not stored.part.training and not are_close(stored.now()[:-1], stored.now()[1:])
        ]
        if still:
            raise ValueError(
                f"{method}: the model changes its buffer {quote_names(still)} when it runs in eval mode, and all "
                "members share it, so each would continue from the others' values. pb.deep lets each member own it."
            )
        if in_place:
            raise ValueError(
                f"{method}: the model changes {quote_names([stored.name for stored in in_place])} in place when it "
                "runs, and the members share it, so each would see the others' changes. Compute a changed copy in "
                "forward instead, or let each member own it: pb.deep does."
            )

    @torch.no_grad()
    def take_back_(self, method: str) -> None:
        """Store owned buffers that a pass has assigned, instead of changing them in place."""
        for stored in self.owned:
            now = stored.now()
            if not stored.buffer or all(map(is_, now, stored.pieces)):
                continue
            if len({each.shape for each in now}) > 1:
                raise ValueError(
                    f"{method}: the members assign buffer {stored.name!r} in the shapes "
                    f"{[tuple(each.shape) for each in now]}, which cannot be stacked. Give the buffer its final size "
                    "when the model is built."
                )
            if now[0].shape == stored.pieces[0].shape:
                for piece, each in zip(stored.pieces, now, strict=True):
                    piece.copy_(each)
                give_pieces_([(stored, stored.pieces)])
            else:
                made = torch.stack([each.detach() for each in now])
                for table, key, other in self._sources:
                    if other is stored:
                        table[key] = made

    # ---------------------------------------------------------------- copies

    def whole(self) -> nn.Module:
        """One more copy of the module, for passes of all members at once."""
        if self._whole is None or len(parts_of(self._whole)) != len(self.parts):  # a pass may have made parts
            self._whole = replicate(self.module)
        for part, copy in zip(self.parts, parts_of(self._whole), strict=True):
            copy.training = part.training
        return self._whole

    def copy(self, i: int) -> nn.Module:
        """Member i as an independent module, with tensors of its own."""
        own: dict[int, Tensor] = {}
        for stored in self.owned:
            value = stored.tensor[i].detach().clone()
            own[id(stored.pieces[i])] = value if stored.buffer else nn.Parameter(value, stored.tensor.requires_grad)
        module = duplicate_with(self.modules[i], own)
        forget_trunk_(module)
        for part in module.modules():
            if isinstance(part, MemberLayer):
                part.rows = Rows()
        return module


def _slices(owned: Sequence[MemberTensor]) -> list[tuple[MemberTensor, Sequence[Tensor]]]:
    """Each member's slices in the memory of the stacked tensors; changes of one are not counted for the others."""
    if is_transforming():  # whose gradients go through what it gives
        return [(stored, list(stored.tensor.unbind(0))) for stored in owned]
    found: list[tuple[MemberTensor, Sequence[Tensor]]] = []
    with torch.inference_mode(False), torch.no_grad():
        for stored in owned:
            learns, pieces = stored.tensor.requires_grad and not stored.tensor.is_inference(), []
            for i in range(len(stored.tensor)):
                piece = stored.tensor.data[i]
                pieces.append(piece if stored.buffer else nn.Parameter(piece, learns))
            found.append((stored, pieces))
    return found


def _marks(owned: Sequence[MemberTensor]) -> list[tuple[int, bool]]:
    """Where the stacked tensors' values are, and whether they learn; nothing inside of a transformation."""
    marks = []
    for stored in owned:
        try:
            marks.append((stored.tensor.data_ptr(), stored.tensor.requires_grad))
        except RuntimeError:  # it has no address
            return []
    return marks


def version_of(tensor: Tensor) -> int:
    """How often a tensor was changed in place."""
    return 0 if tensor.is_inference() else tensor._version


def _is_same(a: Tensor, b: Tensor) -> bool:
    return a is b or (a.shape == b.shape and (torch.equal(a, b) or bool(((a == b) | (a.isnan() & b.isnan())).all())))


@torch.no_grad()
def average_(method: str, name: str, buffer: Tensor, seen: Sequence[Tensor]) -> None:
    """Statistics that all members share change by the mean of what each member's pass did to them.

    Entries that no pass has changed keep their bits: a mask's large constants would overflow in a sum.
    """
    if any(tensor.shape != buffer.shape for tensor in seen):
        raise ValueError(
            f"{method}: the members assign the shared buffer {name!r} of the shape {tuple(buffer.shape)} in the shapes "
            f"{[tuple(tensor.shape) for tensor in seen]}. Give the buffer its final size when the model is built."
        )
    each = torch.stack([tensor.detach() for tensor in seen])
    if not each.is_floating_point():
        buffer.copy_(each[0])
        return
    kept = ((each == buffer) | (each.isnan() & buffer.isnan())).all(0)
    buffer.copy_(torch.where(kept, buffer, each.mean(0)))
