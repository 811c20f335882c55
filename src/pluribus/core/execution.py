"""Running the members of an ensemble: by vmap, one after the other, or as rows of one batch."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap

from .._common.contents import holds_batched, holds_tensor
from .._common.torch_private import (
    escaped_transform,
    is_transforming,
    is_watched,
    may_autocast,
    parts_of,
    pytree,
    uncompiled,
    updates_buffers,
)
from .._common.trees import (
    Batch,
    device_of,
    flatten,
    hidden_tensors,
    leave_vmap,
    map_tensors,
    stack_trees,
    tensors_of,
    unstack,
)
from ..surgery.copying import assign_, run_with, state
from ..surgery.selecting import quote_names
from .autotune import LEAN, Measurements, is_unruled
from .input_changes import InputChanges, SharedParameters, each_as_first, in_words
from .isolation import (
    ParameterMarks,
    RecomputesError,
    average_,
    differs,
    is_autocast,
    lock_of,
    note_checkpoints,
    prefer,
    ready_for_vmap,
    refuse_halfway,
    refuse_hidden_by_vmap,
    restore_on_error,
    shared_parts,
    slice_members,
    unbatchable,
)
from .kept_attributes import (
    Attributes,
    CarriesError,
    check_resized,
    drop_stale_caches_,
    find_switches,
    keepers,
    look_at,
    refuse_parameters_made,
    same_outputs,
    try_out,
)
from .replicas import run_replica
from .row_members import Rows, locate_rows_, member_layers

Tensors = Mapping[str, Tensor]
BY_HAND = "set by hand"
BY_VMAP = 'what a member stores in attributes is undone before the next one; set ensemble.run = "vmap" for one graph'


class Runner:
    """Runs the members of one module: what is tried, measured and remembered about that, under one lock.

    The module's tensors are replaced by a member's while that member runs, so two threads must not run at once.

    Args:
        own: the names of the tensors that are stacked, (members, *shape)
        training: whether statistics are updated and trunks see all batches: the ensemble's mode
    """

    BACKENDS: Sequence[str] = ("vmap", "loop", "auto")
    RULE = '"vmap", "loop" or "auto"'

    def __init__(self, module: nn.Module, size: int, own: Collection[str], method: str):
        self.module, self.size, self.own, self.method = module, size, frozenset(own), method
        self.training = module.training
        self.lock = lock_of(module)
        self.rows = Rows()
        for layer in member_layers(module).values():
            layer.rows = self.rows
        self._backend, self.why = self.preferred_backend()
        self.measured = Measurements()  # what "auto" has found
        self._parameters = ParameterMarks(module, self.own, size)
        self._trunk: Sequence[str] | None = None
        self._kept: set[str] = set()  # attributes in which the model keeps tensors that it made
        self._resized: dict[str, list[Tensor]] = {}  # buffers that members have assigned in another shape
        self._changes_input: dict[tuple[bool, bool], InputChanges] = defaultdict(InputChanges)  # training, gradients
        self._tried: set[tuple[bool, ...]] = set()
        self._fresh = self._is_complete = False  # no stale caches are left; a pass for all has made no parameters
        self._attributes: Attributes | None = None  # as they were before the last pass, if nothing has changed them
        self._switches: list[list[tuple[str, Any]]] = []
        self._switches_of: Attributes | None = None
        self._recomputes = self._unknown = False  # parts run again in backward, with the switches as they are

    @property
    def backend(self) -> str:
        """How the members run: one of BACKENDS. Settable."""
        return self._backend

    @backend.setter
    def backend(self, value: str) -> None:
        if value not in self.BACKENDS:
            raise ValueError(f"ensemble.run must be {self.RULE}, but it is {value!r}.")
        self._backend, self.why, self.measured = value, BY_HAND, Measurements()

    def preferred_backend(self) -> tuple[str, str]:
        """The backend to begin with, and why."""
        return prefer(self.module, self.own)

    def explain(self) -> list[str]:
        """How the members run and why, as lines of text."""
        lines = [f"  runs with {self.backend} ({self.why})", *self.measured.explain()]
        if self._recomputes and self.backend != "loop":
            lines.append("  with gradients as a loop: parts of the model run again in backward (checkpointing)")
        if self._kept:
            lines.append(f"  stored by the model and undone after each member: {quote_names(sorted(self._kept), 6)}")
        return lines

    # ---------------------------------------------------------------- the ways to run

    def run_each(self, batch: Batch, per_member: bool = False) -> Any:
        """Every member's output, stacked; with `per_member` each on its own batch, (members, batch, ...)."""
        with self.alone():
            if not self._fresh:
                self._look_for_stale_caches(batch, per_member)
            before = None if torch.compiler.is_compiling() else self._look()
            run = self.backend
            if run == "auto" or self.why != BY_HAND and is_unruled(self.module, batch):
                run, batch = self._measure_each(batch, per_member)
                before = before and self._look()
            if run == LEAN:
                return self._by_lean_loop(batch, per_member, before)
            if run == "loop" or self._needs_loop(batch, per_member):
                return self._by_loop(batch, per_member, before)
            if before is None:
                return self._by_vmap(batch, per_member, None)
            key = (self.training, before.update_buffers(), torch.is_grad_enabled(), per_member)
            if key in self._tried:
                try:
                    return self._by_vmap(batch, per_member, before)
                except RuntimeError as error:
                    self._refuse_vmap(unstack(batch, self.size)[0] if per_member else batch, error)
                    raise
            output = self._vmap_or_loop(batch, per_member)
            self._tried.add(key)
            return output

    def run_rows(self, batch: Batch, index: Tensor | None) -> Any:
        """One pass of the module in which row j belongs to member `index[j]`."""
        with self.alone():
            if index is not None:
                locate_rows_(self.method, self.module, self.own_tensors(), batch)
            return self.in_one_pass(batch, index)

    def in_one_pass(self, batch: Batch, index: Tensor | None) -> Any:
        """The module on a batch whose rows belong to members, in the memory format that is faster."""

        def run(batch: Batch) -> Any:
            with self.rows.belonging_to(index):
                if self._runs_again():
                    with self._noting_checkpoints():
                        return run_replica(self.module, {}, *batch)[0]
                before = None if self._is_complete or torch.compiler.is_compiling() else look_at(self.module)
                output = self.module(*batch[0], **batch[1])
                if before:
                    refuse_parameters_made(self.module, before.changes())
                    self._is_complete = True
                return output

        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            self._look()
        return run(self.format(batch, run))

    def run_member(self, i: int, batch: Batch, statistics: Tensors, pieces: Mapping[str, Any] | None = None) -> Any:
        """Member i's output; what it would do to shared buffers it does to `statistics`."""
        own = {name: tensors[i] for name, tensors in (pieces or self.own_tensors()).items()}
        given = {**own, **statistics}
        self._parameters.set_(own, self.training)
        output, changed = self._call(given, batch)
        with torch.no_grad():
            for name, tensor in changed.items():  # assigned, not changed in place
                if tensor.shape == given[name].shape:
                    given[name].copy_(tensor)
                else:
                    self._resized.setdefault(name, []).append(tensor.detach())
        return output

    def _call(self, tensors: Tensors, batch: Batch) -> tuple[Any, dict[str, Tensor]]:
        if not self._runs_again():
            return run_with(self.module, tensors, *batch)
        with self._noting_checkpoints():
            return run_replica(self.module, tensors, *batch)

    def _by_vmap(self, batch: Batch, per_member: bool, before: Attributes | None, around: Any = nullcontext) -> Any:
        leaves, tree = flatten(batch)
        seen: dict[str, Any] = {}

        def run(_: Tensor, own: dict[str, Tensor], leaves: list[Any]) -> Any:
            self._parameters.set_(own, self.training)
            output, changed = run_with(self.module, own, *pytree.tree_unflatten(leaves, tree))
            seen["leaves"], seen["tree"] = flatten(output)
            return [hidden_tensors(leaf) for leaf in seen["leaves"]], changed

        mapped = [0 if per_member and isinstance(leaf, Tensor) else None for leaf in leaves]
        members = torch.arange(self.size)  # mapped over even when nothing is owned
        once = self.trunk() if self.training or not torch.compiler.is_compiling() else ()
        across = vmap(run, in_dims=(0, 0, mapped), randomness="different")
        with before or nullcontext(), ready_for_vmap(self.module, before.attending if before else (), once), around():
            tensors, changed = across(members, self.own_tensors(), leaves)
        if before and not before.are_unchanged():
            self._undo_batched(before, unstack(batch, self.size)[0] if per_member else batch)
        self._write_back(changed)
        joined = [leave_vmap(leaf, stacked, self.size) for leaf, stacked in zip(seen["leaves"], tensors, strict=True)]
        return pytree.tree_unflatten(joined, seen["tree"])

    def _by_loop(self, batch: Batch, per_member: bool, before: Attributes | None) -> Any:
        shared = self._shared_buffers(before)
        owners = {name: self.module.get_submodule(name.rpartition(".")[0]) for name in shared}
        asleep = {name: shared[name] for name, part in owners.items() if not (self.training or part.training)}
        seen = [{name: buffer.clone() for name, buffer in shared.items()} for _ in range(self.size)]
        if torch.compiler.is_dynamo_compiling() and not keepers(parts_of(self.module)):
            outputs = self._traced_one_by_one(batch, per_member, seen)
        else:
            try:
                outputs = self._one_by_one(batch, per_member, seen, asleep, before)
            except RuntimeError as error:
                raise in_words(self.method, error) from error.__cause__
        average_({name: buffer for name, buffer in shared.items() if name not in asleep}, seen)
        self._resize_buffers(asleep)
        return stack_trees(outputs)

    def _traced_one_by_one(self, batch: Batch, per_member: bool, seen: Sequence[Tensors]) -> list[Any]:
        """The members' outputs, of a module whose parts are torch's own and keep nothing."""
        pieces = slice_members(self.own_tensors())
        batches = unstack(batch, self.size) if per_member else [batch] * self.size
        return [self.run_member(i, batches[i], seen[i], pieces) for i in range(self.size)]

    @uncompiled(BY_VMAP)
    def _one_by_one(
        self, batch: Batch, per_member: bool, seen: Sequence[Tensors], asleep: Tensors, before: Attributes | None
    ) -> list[Any]:
        """The members' outputs; what each of them has kept is undone before the next."""
        named = state(self.module)
        pieces = slice_members({name: tensor for name, tensor in named if name in self.own})
        changes = self._changes_input[self.training, torch.is_grad_enabled()]
        shared = SharedParameters(named, self.own, changes) if len(pieces) < len(named) else None
        outputs, left = [], {}  # type: tuple[list[Any], dict[int, Any]]
        watched = () if per_member else changes.watched(batch)
        batches = unstack(batch, self.size) if per_member else changes.inputs(batch, self.size)
        with self.lock, before or self._look() as before:
            has_caches = before.has_function_caches
            for i, own_batch in enumerate(each_as_first(batches, named, self.own)):
                outputs.append(self.run_member(i, own_batch, seen[i], pieces))
                if shared:
                    shared.check(self.method)
                lost = {name for name, buffer in asleep.items() if differs(seen[i][name], buffer)} if asleep else set()
                if before.parts and (lost or not before.are_unchanged()):
                    self._undo(before, lost, own_batch, i, left)
                    before = self._look()
                if has_caches:
                    before.clear_function_caches()
            changes.check(watched)
        if shared:
            shared.finish_()
        return outputs

    def _shared_buffers(self, before: Attributes | None) -> dict[str, Tensor]:
        """The buffers that a pass may change and no member owns: in eval mode those of modules that may write there."""
        if self.training or (before.update_buffers() if before else updates_buffers(self.module)):
            return {name: buffer for name, buffer in self.module.named_buffers() if name not in self.own}
        return {name: buffer for name, buffer in before.named_buffers() if name not in self.own} if before else {}

    def _needs_loop(self, batch: Batch, per_member: bool) -> bool:
        """Whether vmap would hide something: a lower precision, recomputation, or statistics of all the batches."""
        if may_autocast() and is_autocast(device_of(batch)) or (self._recomputes and torch.is_grad_enabled()):
            return True
        trunk = map(self.module.get_submodule, self.trunk() if per_member and self.training else ())
        return any(True for part in trunk for _ in part.buffers())

    def _vmap_or_loop(self, batch: Batch, per_member: bool) -> Any:
        """The first run: where vmap fails, buffers and chance are put back, the loop runs and is said to."""
        chance, before, reason = torch.get_rng_state(), look_at(self.module), ""
        try:
            with refuse_halfway(self.method, self.module), restore_on_error(list(self.module.buffers())):
                return self._first_vmap(batch, per_member)
        except CarriesError:
            raise
        except RecomputesError:
            pass
        except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
            reason = str(error).strip().splitlines()[0]
        before.restore()
        torch.set_rng_state(chance)
        output = self._by_loop(batch, per_member, self._look())  # an input that does not fit fails here, by itself
        if not reason:
            return output
        self._backend, self.why = "loop", f"vmap failed: {reason}"
        said = f'{self.method}: this model does not run under vmap ({reason}); ensemble.run is now "loop".'
        warnings.warn(said, stacklevel=6)
        return output

    @torch.no_grad()
    def _refuse_vmap(self, batch: Batch, error: RuntimeError) -> None:
        """Say it if a batch fails under vmap alone, where earlier ones did not."""
        if escaped_transform(error):
            raise CarriesError.outside(self.method) from error
        if is_watched() or try_out(self.module, lambda: self.try_member(batch)) is None:
            return  # the model's own error
        reason = f"does not run under vmap for this input ({str(error).strip().splitlines()[0]}), though it did for"
        raise ValueError(f'{self.method}: the model {reason} earlier ones. Set ensemble.run = "loop".') from error

    def _first_vmap(self, batch: Batch, per_member: bool) -> Any:
        try:
            with self._noting_checkpoints():
                return self._by_vmap(batch, per_member, self._look(), refuse_hidden_by_vmap)
        finally:
            if self._runs_again():
                raise RecomputesError("parts of the model run again in backward (gradient checkpointing)")

    # ---------------------------------------------------------------- what a pass leaves behind

    @uncompiled(BY_VMAP)
    def _undo(self, before: Attributes, lost: set[str], batch: Batch, i: int, left: dict[int, Any]) -> None:
        """Put back what member i's pass has kept in attributes.

        What all members leave alike, without tensors, stays as the last member leaves it: a counter counts on.

        Args:
            lost: shared buffers that the pass has changed, and that are not stored
            left: the numbers and words that the members before have left, which this one's are added to
        """
        changes = before.changes()
        refuse_parameters_made(self.module, changes)
        tensors = {change.name for change in changes if holds_tensor(change.now) or holds_tensor(change.before)}
        made = tensors | lost | set(before.names_changed_in_place())
        left[i] = {change.name: change.describe() for change in changes if change.name not in tensors}
        made |= {name for name, value in left[i].items() if i and value != left.get(0, {}).get(name)}
        if made or i < self.size - 1:
            for change in changes:
                change.undo()
        self._check_kept(made, batch)

    def _undo_batched(self, before: Attributes, batch: Batch) -> None:
        """Put back attributes if modules have kept tensors there of a vmap that is over."""
        changes = before.changes()
        refuse_parameters_made(self.module, changes)
        made = {change.name for change in changes if holds_batched(change.now)}
        for change in changes if made else ():
            change.undo()
        self._check_kept(made, batch)

    @uncompiled(BY_VMAP)
    def _look(self) -> Attributes:
        """The module's attributes as they are now: those of the last time, as long as they hold."""
        if self._attributes is None or not self._attributes.hold():
            self._attributes = Attributes(self.module)
        if self._attributes is not self._switches_of and torch.is_grad_enabled():
            self._look_at_switches(self._attributes)
        return self._attributes

    @torch.no_grad()
    def _check_kept(self, names: set[str], batch: Batch) -> None:
        """Refuse a model that goes on from what it has kept in these attributes: the members would share it."""
        if names <= self._kept or is_watched():
            return
        known, self._kept = self._kept, self._kept | names
        before = look_at(self.module)
        shared = {name: buffer.clone() for name, buffer in self.module.named_buffers() if name not in self.own}
        fresh = {name: buffer.clone() for name, buffer in shared.items()}
        self.try_member(batch, shared, seed=1)
        second = self.try_member(batch, shared)
        before.restore()
        first = self.try_member(batch, fresh)  # by the same draws: what was kept may have been drawn
        before.restore()
        if not any(t.is_meta for t in first) and not same_outputs(first, second):
            self._kept = known  # the next call is refused, too
            raise CarriesError.of(self.method, names)

    @torch.no_grad()
    def _look_for_stale_caches(self, batch: Batch, per_member: bool) -> None:
        """Forget, on the first batch in eval mode, what the given model had cached of its own weights."""
        if self.training or torch.compiler.is_compiling() or is_watched():
            return
        self._fresh = True
        one = unstack(batch, self.size)[0] if per_member else batch
        drop_stale_caches_(self.module, lambda seed: self.try_member(one, seed=seed))

    def try_member(self, batch: Batch, shared: dict[str, Tensor] | None = None, seed: int = 0) -> list[Tensor]:
        """What member 0 gives, on copies of all that it may change; what it does to `shared` buffers stays there."""
        own = {name: tensor[0].clone() for name, tensor in self.own_tensors().items()}
        if shared is None:
            shared = {name: buffer.clone() for name, buffer in self.module.named_buffers() if name not in self.own}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            inputs = map_tensors(batch, lambda t: t.clone())
            output, changed = run_with(self.module, {**shared, **own}, *inputs)
        shared.update((name, tensor) for name, tensor in changed.items() if name in shared)
        return tensors_of(output)

    # ---------------------------------------------------------------- what runs again in backward

    def _look_at_switches(self, attributes: Attributes) -> None:
        """Whether it must be found out if the model, with its switches as they are, runs parts again in backward."""
        self._switches_of, now = attributes, find_switches(attributes.parts)
        if now != self._switches:
            self._switches, self._unknown = now, True
            self._tried.clear()

    def _runs_again(self) -> bool:
        return (self._recomputes or self._unknown) and torch.is_grad_enabled()

    @contextmanager
    def _noting_checkpoints(self) -> Iterator[None]:
        """Find out whether the pass inside will run again in backward, if that is not known."""
        if not (self._unknown and torch.is_grad_enabled()):
            yield
            return
        with note_checkpoints() as seen:
            try:
                yield
            finally:
                self._recomputes, self._unknown = bool(seen), False

    # ---------------------------------------------------------------- measuring

    def _measure_each(self, batch: Batch, per_member: bool) -> tuple[str, Batch]:
        """How the members run on this batch, and the batch in the memory format for it."""
        if torch.compiler.is_compiling() or is_transforming():
            return self.preferred_backend()[0], batch
        runs: dict[str, Callable[[Batch], Any]] = {"loop": lambda b: self._by_loop(b, per_member, self._look())}
        if not unbatchable(self.module):
            runs = {"vmap": lambda b: self._first_vmap(b, per_member), **runs}
        if not self.training and any(layer.can_skip_masked() for layer in member_layers(self.module).values()):
            runs[LEAN] = lambda b: self._by_lean_loop(b, per_member, self._look())
        backend = self.measured.fastest(self.module, batch, runs, self.training, per_member)
        return backend.run, backend.format(batch)

    def _by_lean_loop(self, batch: Batch, per_member: bool, before: Attributes | None) -> Any:
        with nullcontext() if is_watched() else self.rows.skipping_masked():  # who counts operations, counts all
            return self._by_loop(batch, per_member, before)

    def format(self, batch: Batch, run: Callable[[Batch], Any]) -> Batch:
        """The batch of one pass in the memory format that is measured to be faster, where that is asked for."""
        if self.backend != "auto" or torch.compiler.is_compiling() or is_transforming():
            return batch
        return self.measured.fastest(self.module, batch, {"one pass": run}, self.training, "once").format(batch)

    # ---------------------------------------------------------------- what the members own

    def own_tensors(self) -> dict[str, Tensor]:
        """The stacked tensors by name."""
        return {name: tensor for name, tensor in state(self.module) if name in self.own}

    def trunk(self) -> Sequence[str]:
        """Names of the largest submodules that no member owns a tensor of."""
        if self._trunk is None:
            self._trunk = shared_parts(self.module, self.own) if self.own else ()
        return self._trunk

    def _write_back(self, changed: Tensors) -> None:
        own = self.own_tensors() if changed else {}
        with torch.no_grad():
            for name, tensor in changed.items():
                if tensor.shape == own[name].shape:
                    own[name].copy_(tensor)
                else:
                    self._resized[name] = list(tensor)
        self._resize_buffers()

    def _resize_buffers(self, but: Collection[str] = ()) -> None:
        """Store buffers that the members have assigned in another shape."""
        resized, self._resized = self._resized, {}
        for name, tensors in ((name, tensors) for name, tensors in resized.items() if name not in but):
            check_resized(self.method, name, tensors, owned=name in self.own)
            assign_(self.module, {name: torch.stack(tensors) if name in self.own else tensors[0]})

    def __getstate__(self) -> dict[str, Any]:
        """What copies and pickles hold: they look at their own module's attributes."""
        return {**vars(self), "_attributes": None, "_switches_of": None}

    def alone(self) -> AbstractContextManager[None]:
        """One thread at a time; compiled code has no locks."""
        return nullcontext() if torch.compiler.is_compiling() else self.lock
