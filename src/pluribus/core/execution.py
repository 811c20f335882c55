"""Running the members of an ensemble: one after the other, or in a faster way that has given the same answer.

| way | what it is | when it is used |
|---|---|---|
| loop | the members, real modules, one after the other; a trunk runs once (`trunk`) | by default: it is the truth |
| vmap | one pass for all members | many small members of torch's own layers, or on request |
| rows | one pass, each row of the batch is a member's (`rows`) | training of methods that share normalisation |

The other ways are used where they have agreed with the loop: on copies, for each kind of batch and mode, with dropout
and batch statistics off, and with other values in place of what members own, so that members that start alike differ.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Collection, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap

from .._common.torch_private import (
    clear_parametrization_cache,
    is_parametrization_cached,
    is_transforming,
    is_watched,
    own_saved_tensors,
    parts_of,
    parts_with_hooks,
    pytree,
    run_uncompiled,
)
from .._common.trees import (
    Batch,
    are_close,
    batch_kind,
    clone,
    device_of,
    flatten,
    have_same_numbers,
    hidden_tensors,
    map_tensors,
    rows_of,
    stack_trees,
    tensors_of,
    tile,
    unstack,
)
from ..surgery.calling import is_autocast
from ..surgery.copying import duplicate, refuse_tracing, replicas, replicate, run_with, state
from ..surgery.dataflow import find_trunk
from ..surgery.dropout import no_chance
from ..surgery.selecting import CONVOLUTIONS, is_torchs_own, quote_names
from ..surgery.watching import ModuleSnapshot, noting_checkpoints, take_back_
from .autotune import LEAN, Measurements, is_unruled
from .members import Members, average_, version_of
from .rows import Rows, locate_rows_, member_layers
from .trunk import Trunk

BY_HAND = "set by hand"
MANY = 12  # members from which on vmap is faster for small layers; measured, see docs/benchmarks.md
State = dict[str, Tensor]  # tensors by name
OtherWay = Callable[[nn.Module, State], Any]  # of a module and what members own in it: the outputs
Pick = Callable[[Tensor], Tensor]
FAILS = (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError)


KEEPS = "members are modules of their own, which keep what they store. Use strict=False, pb.export or pb.freeze"


class Runner:
    """Runs the members of one module, of which the tensors named in `own` are stacked, and remembers what it found."""

    BACKENDS: tuple[str, ...] = ("loop", "vmap", "auto")
    RULE = '"vmap", "loop" or "auto"'
    hint = ""  # where to look when a member's pass fails

    def __init__(self, module: nn.Module, size: int, own: Collection[str], method: str):
        self.module, self.size, self.own, self.method = module, size, frozenset(own), method
        self.lock, self.busy = threading.RLock(), 0  # busy: a thread that holds the lock has changed the modes
        self.rows = Rows()
        for layer in member_layers(module).values():
            layer.rows = self.rows
        self._backend, self.why = self.preferred_backend()
        self.measured = Measurements()  # what "auto" has found
        self._convolves = any(isinstance(part, CONVOLUTIONS) for part in parts_of(module))
        self.chance = not self.own  # members differ in their random draws
        self._members: Members | None = None
        self._trunk: Trunk | None = None
        self._once: dict[Hashable, list[int]] = {}  # by modes and gradients: the parts that run once
        self._changes_input: dict[Hashable, bool] = {}  # by modes and gradients
        self._agreed: dict[tuple[Any, ...], str] = {}  # by way, kind of batch and mode: why not; "" where it agreed
        self._checkpoints: dict[Hashable, bool] = {}  # by modes: parts run again in backward
        self._given: ModuleSnapshot | None = None  # the module for which that holds

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
        """The way to begin with, and why."""
        if self.size >= MANY and self._suits_vmap():
            return "vmap", f"{self.size} small members of torch's own layers are faster in one pass"
        return "loop", "the members one after the other"

    def explain(self) -> list[str]:
        """How the members run and why, as lines of text."""
        lines = [f"  runs with {self.backend} ({self.why})", *self.measured.explain()]
        once = {number for numbers in self._once.values() for number in numbers}
        if self._members is not None and once:
            names = {part: name for name, part in self.module.named_modules()}
            parts = [names.get(self._members.parts[number], "?") for number in sorted(once)]
            lines.append(f"  run once for all members: {quote_names(parts, 6)}")
        for (way, *_), reason in self._agreed.items():
            if reason:
                lines.append(f"  not as {way}, for some batches: {reason}")
        return list(dict.fromkeys(lines))

    # ---------------------------------------------------------------- the members

    def members(self) -> list[nn.Module]:
        """The members, in step with the module; their parameters lie in the memory of the stacked ones."""
        with self.lock:
            members = self._in_step()
            members.rest_()
        return members.modules

    def _in_step(self) -> Members:
        """The members, made again where a user has changed the module."""
        if self._members is None or (self._members.given.has_changed() and not self._members.take_over_()):
            self._members = Members(self.module, self.size, self.own)
            self._trunk = None
            self._once.clear()
            self._agreed.clear()
            self._changes_input.clear()
        return self._members

    def copy_member(self, i: int) -> nn.Module:
        """Member i as an independent module."""
        with self.lock:
            members = self._in_step()
            members.rest_()
            return members.copy(i)

    def follow_modes(self) -> None:
        """Let members whose classes have a `train` of their own change their mode now: some change weights with it."""
        if any(type(part).train is not nn.Module.train for part in parts_of(self.module)):
            with self.lock:
                self._in_step().follow_()

    def own_tensors(self) -> dict[str, Tensor]:
        """The stacked tensors by name."""
        return {name: tensor for name, tensor in state(self.module) if name in self.own}

    # ---------------------------------------------------------------- every member on a batch

    def run_each(self, batch: Batch, per_member: bool = False) -> Any:
        """Every member's output, stacked; with `per_member` each on its own batch, (members, batch, ...)."""
        if torch.compiler.is_compiling():
            return self._traced(batch, per_member)
        if torch.jit.is_tracing():
            refuse_tracing()
        run = self._backend
        if run == "auto" or (self._convolves and self.why != BY_HAND and is_unruled(batch)):
            run, batch = self._measure_each(batch, per_member)
        if run == "vmap" and self._agrees_by_vmap(batch, per_member):
            return self._all_by_vmap(batch, per_member)
        by_loop = self._by_lean_loop if run == LEAN and not is_watched() else self._by_loop
        return by_loop(batch, per_member)

    def _by_loop(self, batch: Batch, per_member: bool) -> Any:
        members = self._members
        if (
            members is not None
            and not torch.is_grad_enabled()
            and self._is_ready(members, batch, per_member)
            and not self.busy
        ):
            return self._loop(members, batch, per_member)  # nothing is written: threads run at once
        with self.lock:
            members = self._in_step()
            members.follow_()
            return self._loop(members, batch, per_member)

    def _is_ready(self, members: Members, batch: Batch, per_member: bool) -> bool:
        """Whether the members are in step, and nothing is left to find out about such a batch."""
        key, batch = self._key(), unstack(batch, self.size)[0] if per_member else batch
        if self.module.training or key not in self._once or members.given.has_changed() or not members.are_current():
            return False  # in training mode `predict` of another thread would change the members' modes for a while
        return members.written.get(members.watched_by((key, per_member), batch)) == []

    def _key(self) -> Hashable:
        modes = self._members.modes if self._members is not None else ()
        return tuple(modes), torch.is_grad_enabled()

    def _loop(self, members: Members, batch: Batch, per_member: bool) -> Any:
        one = unstack(batch, self.size)[0] if per_member else batch
        key = self._key()
        if key not in self._once:
            self._look_at_first_batch(members, one, key)
        once = [] if per_member else self._once.get(key, [])  # their inputs differ
        given = [] if per_member else tensors_of(batch)
        versions = list(map(version_of, given))
        watched = members.watched_by((key, per_member), one)
        is_new = watched not in members.written
        with members.watching(self.method, watched, once) if members.shared else nullcontext():
            outputs = self._run_members(members, unstack(batch, self.size) if per_member else batch, once, key)
            if list(map(version_of, given)) != versions:
                self._refuse_changed_input(key)
            if is_new:
                self._refuse_made(members)
        if is_new:
            members.written.setdefault(watched, [])
        if members.owns_buffers:
            members.take_back_(self.method)
        return stack_trees(outputs)

    def _refuse_made(self, members: Members) -> None:
        known = dict(self.module.named_parameters())
        made = dict(members.modules[0].named_parameters()).keys() - known.keys()
        if made:
            self._members = None
            raise ValueError(
                f"{self.method}: the model creates the parameters {quote_names(sorted(made))} when it runs, so members "
                "cannot own them. Run the model on a batch before you make an ensemble of it."
            )

    def _run_members(
        self, members: Members, batch: Batch | list[Batch], once: Sequence[int], key: Hashable
    ) -> list[Any]:
        """The members' outputs, one after the other; the parts with the numbers `once` run in the first alone.

        Members get copies of an input that passes change in place; the first one's copy shows whether they do.
        """
        caches, outputs = is_parametrization_cached(), []
        counted = not torch.is_inference_mode_enabled()
        changes = isinstance(batch, list) or (self._changes_input.get(key) if counted else True)  # None: not known yet
        with self._trunk.running(once) if once else nullcontext(SimpleNamespace()) as trunk:  # type: ignore[union-attr]
            for trunk.member, member in enumerate(members.modules):
                if caches:
                    clear_parametrization_cache()  # torch has one for all copies of a module
                given = batch[trunk.member] if isinstance(batch, list) else batch if changes is False else clone(batch)
                try:
                    outputs.append(member(*given[0], **given[1]))
                except RuntimeError as error:
                    raise explain_error(self.method, error, self.hint) from error.__cause__
                if changes is None:
                    self._changes_input[key] = changes = any(map(version_of, tensors_of(given)))
        if caches:
            clear_parametrization_cache()
        return outputs

    def _look_at_first_batch(self, members: Members, batch: Batch, key: Hashable) -> None:
        """Find what runs once."""
        if self.own and not any(stored.tensor.numel() for stored in members.shared):
            self._once[key] = []
            return
        if is_watched():
            return
        with own_saved_tensors():
            try:
                once = find_trunk(members.copy(0), self.own, batch, self.chance)
            except (*FAILS, ImportError):
                once = []  # an input that does not fit, a model or a torch that cannot be followed: all of it runs
        if once and self._trunk is None:
            self._trunk = Trunk(members.copies)
        self._once[key] = once

    def _refuse_changed_input(self, key: Hashable) -> None:
        self._changes_input[key] = True
        raise ValueError(
            "The model changed its input in place, which it did not do for earlier inputs, so the next member would "
            "see the changed one. Pass the input again: from now on each member gets a copy. Or set inplace=False in "
            "the model's first layer."
        )

    def _traced(self, batch: Batch, per_member: bool) -> Any:
        """The members as one graph: tensors are put in for a while, which a compiler can follow."""
        parts = parts_of(self.module)
        keeps = parts_with_hooks(parts) or not all(is_torchs_own(type(part)) for part in parts)
        modules = [self.module] * self.size
        if keeps and torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling():
            modules = replicas(self.module, self.size)  # what they keep is the trace's
        elif keeps:
            modules = run_uncompiled(KEEPS, self.members)
        pieces = {name: tensor.unbind(0) for name, tensor in self.own_tensors().items()}
        shared = {n: b for n, b in self.module.named_buffers() if n not in self.own} if self.module.training else {}
        batches = unstack(batch, self.size) if per_member else [batch] * self.size
        outputs, seen = [], []
        for i, own_batch in enumerate(batches):
            given = {**{name: each[i] for name, each in pieces.items()}, **{n: b.clone() for n, b in shared.items()}}
            output, changed = run_with(modules[i], given, *own_batch)
            outputs.append(output)
            with torch.no_grad():
                for name in changed.keys() & pieces.keys():
                    pieces[name][i].copy_(changed[name])
            seen.append({name: changed.get(name, given[name]) for name in shared})
        for name, buffer in shared.items():
            average_(self.method, name, buffer, [each[name] for each in seen])
        return stack_trees(outputs)

    # ---------------------------------------------------------------- all members in one pass

    def _suits_vmap(self) -> bool:
        """Whether the model is made of torch's own layers that vmap runs faster than a loop over many members."""
        parts = parts_of(self.module)
        return (
            bool(self.own)
            and all(name in self.own for name, _ in state(self.module))
            and all(is_torchs_own(type(part)) for part in parts)
            and not any(isinstance(part, (*CONVOLUTIONS, nn.RNNBase, nn.MultiheadAttention)) for part in parts)
            and not parts_with_hooks(parts)
        )

    def _agrees_by_vmap(self, batch: Batch, per_member: bool) -> bool:
        """Whether vmap has given the members' answers for this kind of batch; where it fails, a warning says so."""
        if any(isinstance(part, nn.RNNBase) for part in parts_of(self.module)):
            return self._give_up_vmap("torch has no batching rule for recurrent layers")
        if is_parametrization_cached() or is_autocast(batch):
            return False  # torch keeps one weight, or one lower precision, for all
        if is_watched():
            return True

        def run(module: nn.Module, own: State) -> Any:
            with noting_checkpoints() as seen:
                outputs = self._by_vmap(module, own, clone(batch), per_member)
            if seen:
                raise RuntimeError("parts of the model run again in backward (gradient checkpointing)")
            return outputs

        reason = self._compare("vmap", batch, run, per_member=per_member)
        return self._give_up_vmap(reason) if reason else True

    def _give_up_vmap(self, reason: str) -> bool:
        said = f'{self.method}: this model does not run under vmap ({reason}); ensemble.run is now "loop".'
        self._backend, self.why = "loop", f"not by vmap: {reason}"
        warnings.warn(said, stacklevel=5)
        return False

    def _all_by_vmap(self, batch: Batch, per_member: bool) -> Any:
        with self.lock:
            whole, shared = self._in_step().whole(), dict(state(self.module))
            own = {name: shared.pop(name) for name in self.own}
            return self._by_vmap(whole, own, batch, per_member, shared)

    def _by_vmap(
        self, module: nn.Module, own: State, batch: Batch, per_member: bool, shared: State | None = None
    ) -> Any:
        leaves, tree = flatten(batch)
        seen: dict[str, Any] = {}

        def run(_: Tensor, own: dict[str, Tensor], leaves: list[Any]) -> Any:
            output, changed = run_with(module, {**(shared or {}), **own}, *pytree.tree_unflatten(leaves, tree))
            seen["leaves"], seen["tree"] = flatten(output)
            if any(hidden_tensors(leaf) for leaf in seen["leaves"] if not isinstance(leaf, Tensor)):
                raise ValueError("its output holds tensors inside of objects")
            return [leaf for leaf in seen["leaves"] if isinstance(leaf, Tensor)], changed

        mapped = [0 if per_member and isinstance(leaf, Tensor) else None for leaf in leaves]
        count = torch.arange(self.size)  # mapped over even when nothing is owned
        tensors, changed = vmap(run, in_dims=(0, 0, mapped), randomness="different")(count, own, leaves)
        with torch.no_grad():
            for name, tensor in changed.items():
                own[name].copy_(tensor)  # a shared one cannot hold what members have computed: that is an error
        stacked = iter(tensors)
        outputs = [next(stacked) if isinstance(leaf, Tensor) else leaf for leaf in seen["leaves"]]
        return pytree.tree_unflatten(outputs, seen["tree"])

    # ---------------------------------------------------------------- members as rows of one batch

    def rows_agree(self, batch: Batch, tiled: bool) -> bool:
        """Whether members as rows of one batch have given the members' answers for this kind of batch.

        Args:
            tiled: every member sees every row; otherwise each row is one member's
        """
        if torch.compiler.is_compiling() or is_watched():
            return True
        count = rows_of(batch)
        source = torch.arange(count).repeat(self.size if tiled else 1)
        index = torch.arange(self.size).repeat_interleave(count) if tiled else torch.arange(count) % self.size

        def run(module: nn.Module, own: State) -> Any:
            rows, batch_ = Rows(), tile(clone(batch), count, self.size) if tiled else clone(batch)
            for layer in member_layers(module).values():
                layer.rows = rows
            locate_rows_(self.method, module, own, batch_)
            with rows.belonging_to(index.to(device_of(batch)), tiled):
                return module(*batch_[0], **batch_[1])

        return not self._compare("rows", batch, run, lambda leaf: leaf[index, source])

    def run_rows(self, batch: Batch, index: Tensor | None, tiled: bool = False) -> Any:
        """One pass of the module in which row j belongs to member `index[j]`; `tiled`: as `row_members` says."""
        with self.alone():
            if index is not None:
                locate_rows_(self.method, self.module, self.own_tensors(), batch)
            return self.in_one_pass(batch, index, tiled=tiled)

    def in_one_pass(
        self, batch: Batch, index: Tensor | None, shared: Sequence[Tensor] = (), tiled: bool = False
    ) -> Any:
        """The module on a batch whose rows belong to members, in the memory format that is faster.

        Args:
            shared: tensors in the layers' attributes that belong to this pass
        """

        def run(batch: Batch) -> Any:
            with self.rows.belonging_to(index, tiled):
                output = self.module(*batch[0], **batch[1])
            if self._given is not None and not torch.compiler.is_compiling() and self._given.has_changed():
                self._given = ModuleSnapshot(parts_of(self.module))  # the pass has counted something
            return output

        batch = self.format(batch, run)
        if torch.compiler.is_compiling() or not torch.is_grad_enabled() or self._recomputes() is False:
            return run(batch)
        # Parts that run again in backward (gradient checkpointing) must find the rows of this pass then: a copy has
        # them for good.
        replica = replicate(self.module, shared)
        rows = Rows(self.rows.located)
        for layer in member_layers(replica).values():
            layer.rows = rows
        rows.index, rows.tiled = index, tiled
        with noting_checkpoints() as seen:
            output = replica(*batch[0], **batch[1])
        take_back_(self.module, replica)
        self._checkpoints[self._modes()] = bool(seen)
        self._given = ModuleSnapshot(parts_of(self.module))
        return output

    def _recomputes(self) -> bool | None:
        """Whether parts run again in backward, with the model as it is now; None if that is not known."""
        self._forget_if_changed()
        return self._checkpoints.get(self._modes())

    def _modes(self) -> tuple[bool, ...]:
        return tuple(part.training for part in parts_of(self.module))

    # ---------------------------------------------------------------- comparing

    def _compare(
        self, way: str, batch: Batch, run: OtherWay, pick: Pick = lambda leaf: leaf, per_member: bool = False
    ) -> str:
        """Why another way does not do for this kind of batch: nothing where it gives what the members one by one give.

        Args:
            run: the other way's outputs, of a copy of the module and of what members own in it
            pick: what these should be, of the members' stacked outputs
        """
        self._forget_if_changed()
        key = way, per_member, batch_kind(batch), self._modes(), torch.is_grad_enabled()
        reason = self._agreed.get(key)
        if reason is None:
            with self.lock, own_saved_tensors(), torch.random.fork_rng(devices=[]):
                reason = self._agreed[key] = self._difference(batch, run, pick, per_member)
        return reason

    def _forget_if_changed(self) -> None:
        """Find out again what was found out about a module that a user has changed since."""
        if self._given is None or self._given.has_changed():
            self._checkpoints.clear()
            self._agreed.clear()
            self._given = ModuleSnapshot(parts_of(self.module))

    def _difference(self, batch: Batch, run: OtherWay, pick: Pick, per_member: bool) -> str:
        module = duplicate(self.module)
        shake_({name: tensor for name, tensor in state(module) if name in self.own})
        with no_chance():
            one, again = (self._answers(duplicate(module), batch, per_member) for _ in range(2))
        if not are_close(tensors_of(one), tensors_of(again)):
            return "the model's outputs differ from call to call, so they cannot be compared"

        def try_out(copy: nn.Module) -> Any:
            return run(copy, {name: tensor for name, tensor in state(copy) if name in self.own})

        try:
            with no_chance():
                outputs = try_out(copy := duplicate(module))
            try_out(copy)  # with dropout and batch statistics, and after a pass that may have left something behind
            expected = map_tensors(one, pick)
        except FAILS as error:
            return str(error).strip().splitlines()[0]
        if not (have_same_numbers(outputs, expected) and are_close(tensors_of(outputs), tensors_of(expected))):
            return "the outputs differ from those of the members one by one"
        return ""

    def _answers(self, module: nn.Module, batch: Batch, per_member: bool) -> Any:
        """The outputs of the members of a copy of the module."""
        batches = unstack(clone(batch), self.size) if per_member else [clone(batch) for _ in range(self.size)]
        members = Members(module, self.size, self.own).modules
        return stack_trees([member(*args, **kwargs) for member, (args, kwargs) in zip(members, batches, strict=True)])

    # ---------------------------------------------------------------- measuring

    def _measure_each(self, batch: Batch, per_member: bool) -> tuple[str, Batch]:
        """How the members run on this batch, and the batch in the memory format for it."""
        if is_transforming():
            return "loop", batch
        runs: dict[str, Callable[[Batch], Any]] = {"loop": lambda b: self._by_loop(b, per_member)}
        if all(is_torchs_own(type(part)) for part in parts_of(self.module)):
            run = partial(self._by_vmap, batch=clone(batch), per_member=per_member)
            if not self._compare("vmap", batch, run, per_member=per_member):
                runs["vmap"] = lambda b: self._all_by_vmap(b, per_member)
        if not self.module.training and any(layer.can_skip_masked() for layer in member_layers(self.module).values()):
            runs[LEAN] = lambda b: self._by_lean_loop(b, per_member)
        training = any(part.training for part in parts_of(self.module))
        backend = self.measured.fastest(self.module, batch, runs, training, per_member)
        return backend.run, backend.format(batch)

    def _by_lean_loop(self, batch: Batch, per_member: bool) -> Any:
        with self._in_step().rows.skipping_masked():
            return self._by_loop(batch, per_member)

    def format(self, batch: Batch, run: Callable[[Batch], Any]) -> Batch:
        """The batch of one pass in the memory format that is measured to be faster, where that is asked for."""
        if self.backend != "auto" or torch.compiler.is_compiling() or is_transforming():
            return batch
        return self.measured.fastest(self.module, batch, {"one pass": run}, self.module.training, "once").format(batch)

    # ---------------------------------------------------------------- copies

    def __getstate__(self) -> dict[str, Any]:
        """What copies and pickles hold: they make members of their own."""
        return {**vars(self), "lock": None, "busy": 0, "_members": None, "_trunk": None, "_once": {}, "_given": None}

    def __setstate__(self, given: dict[str, Any]) -> None:
        vars(self).update(given)
        self.lock = threading.RLock()

    def alone(self) -> AbstractContextManager[Any]:
        """One thread at a time; compiled code has no locks."""
        return nullcontext() if torch.compiler.is_compiling() else self.lock


def shake_(own: dict[str, Tensor]) -> None:
    """Let members differ in all that they own, as they will when they have been trained."""
    for tensor in own.values():
        if tensor.is_floating_point():
            tensor.data.mul_(1 + 0.5 * torch.rand_like(tensor)).add_(0.1 * torch.rand_like(tensor))


def explain_error(method: str, error: RuntimeError, hint: str) -> Exception:
    """What to raise where a member's pass fails: torch's words for what slices do not allow say too little."""
    if hint:
        return ValueError(f"{method}: the members do not run on this input: {error}. {hint}")
    if "Unbind" not in str(error) or "modified inplace" not in str(error):
        return error
    return ValueError(
        f"{method}: the model changes a parameter in place when it runs. With gradients, a member's parameters are "
        "slices of the stacked ones, which must not change. Compute a changed copy in forward instead, or run it "
        "without gradients."
    )
