"""The one idea: an ensemble is one module, plus the state that each member has of its own, run once per member."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, cast, overload

import torch
from torch import Tensor, nn

from .._common.torch_private import is_transforming, own_saved_tensors, parts_of, run_uncompiled
from .._common.trees import (
    Batch,
    as_batch,
    check_members,
    check_rows_given,
    clone,
    logits_of,
    map_tensors,
    members_first,
    name_nan,
    repeat_votes,
    rows_of,
    tensors_of,
    tile,
    unstack,
)
from ..surgery.calling import evaluation_mode, find_class_dim
from ..surgery.closures import copy_bound
from ..surgery.copying import assign_, duplicate, state, without_history
from ..surgery.dropout import no_dropout
from ..surgery.row_splitting import rows_to_predict
from ..surgery.selecting import dotted_name, quote_names
from ..uncertainty.outputs import pool
from ..uncertainty.prediction import Prediction, join_outputs, prediction_of
from .execution import Runner
from .feeds import EVERY, Criterion, Feed, row_members
from .rows import member_layers

TASKS = ("classification", "binary", "regression", "gaussian")

FIRST = (
    "the first batch shows what the model drops, or reads of its layers itself, and cannot be looked at inside of one "
    "graph (torch.export, fullgraph=True) or of torch.func. Call the ensemble, or the member, on a batch once before, "
    "or give example= to the method"
)


class Ensemble(nn.Module):
    """`size` networks that share every tensor of `module` except those named in `own`.

    A tensor in `own` is stored stacked, (members, *shape), under its usual name, so that `state_dict`, `to` and
    any optimizer work as for an ordinary module. Made by the functions in `pluribus.methods`.

    Shapes:
        input: (batch, *features), or any tree of such tensors, the same for every member
        output: (members, batch, *outputs), or the module's own tree of such tensors

    Args:
        own: names of the tensors that are stacked
        method, settings, notes: what made it, its arguments, and further lines of `explain`
        feed: what the members see in training, one of `core.feeds`
        first_look: what the method finds out about the model on the first batch, or refuses there: gives lines of
            `explain`, and may say which dropout stays active
        example: a first batch that is known already, as one call takes it

    >>> ensemble = pb.deep(nn.Linear(4, 3), 2)
    >>> ensemble(torch.zeros(5, 4)).shape, ensemble.own == {"weight", "bias"}, ensemble.module.weight.shape
    (torch.Size([2, 5, 3]), True, torch.Size([2, 3, 4]))
    """

    stacked = True  # what members own has the members as its first dimension
    joint = False  # the members answer together, in one pass of the module

    def __init__(
        self,
        module: nn.Module,
        size: int,
        own: Collection[str] = (),
        *,
        method: str = "ensemble",
        settings: Mapping[str, Any] | None = None,
        feed: Feed = EVERY,
        notes: Sequence[str] = (),
        first_look: Callable[[Ensemble, Batch], Sequence[str]] | None = None,
        example: Any = None,
    ):
        super().__init__()
        self.module, self.size, self.own = module, size, frozenset(own)
        self.method, self.settings, self.notes = method, dict(settings or {}), list(notes)
        self.feed, self.first_look = feed, first_look
        self.passes = size  # of the network for one prediction; last layers alone are no pass
        self.votes: tuple[int, ...] | None = None  # how often each member counts; None: once (see `subset`)
        self.active_dropout: Collection[str] = ()  # modules that stay in training mode, found on the first batch
        self.frozen_modules: frozenset[str] = frozenset()  # they stay in eval mode
        self.base = ""  # the hash of all that is shared, where a method has frozen it: it need not be saved
        self._task = "classification"
        # Which dimension of a member's output, (batch, ...), its classes are; None: last, or not known yet. With more
        # than two dimensions the model itself is asked, once (`find_class_dim`); set it where that does not show.
        self.class_dim: int | None = None
        self.runner = self._make_runner()
        self.training = module.training
        if example is not None:
            self.look_once(as_batch(example))

    def _make_runner(self) -> Runner:
        return Runner(self.module, self.size, self.own, self.method)

    # ---------------------------------------------------------------- what users call

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Every member on every row: (members, batch, ...); a member that counts twice (`subset`) stands there twice.

        In training, methods that share their normalisation layers run the members as rows of one batch, so that
        the statistics are those of all members together.
        """
        training = self.training
        if not self.runner.busy:
            outputs = self._forward((args, kwargs), training)
        else:
            with self.runner.alone():  # another thread has changed the modes for a while: it said so before it did
                outputs = self._forward((args, kwargs), self.training)
        return outputs if self.votes is None else repeat_votes(outputs, self.votes)

    def _forward(self, batch: Batch, training: bool) -> Any:
        if self.first_look is not None:
            self.look_once(batch)
        if training and self.feed.passes_once:
            check_rows_given(self.method, batch)
            if self.runner.rows_agree(batch, tiled=True):
                rows = rows_of(batch)
                outputs = self.runner.run_rows(
                    tile(batch, rows, self.size), row_members(batch, rows, self.size), tiled=True
                )
                return map_tensors(outputs, lambda t: members_first(t, self.size, rows * self.size))
        return self.runner.run_each(batch)

    def loss(self, x: Any, y: Any, criterion: Criterion, *, per_member: bool = False) -> Tensor:
        """The scalar to minimise: the members are fed, and their losses reduced, as the method's paper does (`feeds`).

        Args:
            x: what the module takes: a tensor, a tuple of arguments or a dict of named ones, rows first
            y: targets, rows first; any tree
            criterion: criterion(outputs, targets) -> the mean over their rows; any of torch's
            per_member: x and y are (members, batch, ...): each member has a batch of its own

        >>> pb.deep(nn.Linear(4, 3), 2).loss(torch.zeros(5, 4), torch.arange(5) % 3, nn.functional.cross_entropy).ndim
        0
        """
        batch = as_batch(x)
        if per_member:
            check_members(batch, self.size)
        check_rows_given("loss", batch, dim=int(per_member))
        self.look_once(unstack(batch, self.size)[0] if per_member else batch)
        return self.feed.loss(self.runner, batch, y, criterion, per_member)

    def pooled(self) -> nn.Module:
        """A module that gives the ensemble's one answer, (batch, ...): it fits existing loops and tools.

        Classification: the log of the mean probability; binary: the logit of the mean probability;
        regression: the mean; gaussian: mean and variance of the mixture.
        """
        return Pooled(self)

    @overload
    def predict(
        self, x: Any, batch_size: int | None = None, device: torch.device | str | None = None
    ) -> Prediction: ...

    @overload
    def predict(
        self, x: Any, batch_size: int | None = None, device: torch.device | str | None = None, *, keep: str
    ) -> Any: ...

    def predict(
        self,
        x: Any,
        batch_size: int | None = None,
        device: torch.device | str | None = None,
        *,
        keep: str = "members",
    ) -> Any:
        """The members' predictions as a `Classification` or `Regression`, in eval mode and without gradients.

        Args:
            x: a tensor, an array, a tuple or dict of arguments, or a loader of those, or of (x, y); floats that the
                network does not take as they are get the precision of its weights
            batch_size: how many rows to run at once; default: all of a tensor, or the loader's batches
            device: where to run; default: where the ensemble is
            keep: "members", every probability; or "summary", a `Summary` of what the metrics need of each example,
                beside the y of a loader of (x, y), in little memory

        >>> prediction = pb.deep(nn.Linear(4, 3), 2).predict(torch.zeros(5, 4))
        >>> prediction.members.shape, prediction.mean.shape, prediction.epistemic.shape
        (torch.Size([2, 5, 3]), torch.Size([5, 3]), torch.Size([5]))
        """
        if keep not in ("members", "summary"):
            raise ValueError(f'predict: keep must be "members" or "summary", but it is {keep!r}.')
        batches = self.predictions(x, batch_size, device)
        if keep == "members":
            outputs = join_outputs(batches)
            try:
                return prediction_of(self.task, outputs, self.class_dim)
            except ValueError as error:
                raise ValueError(f"{error}{name_nan((x,))}") from None
        from ..uncertainty.summary import summarize

        return summarize((prediction_of(self.task, outputs, self.class_dim), y) for outputs, y in batches)

    def predictions(
        self, x: Any, batch_size: int | None = None, device: torch.device | str | None = None
    ) -> Iterator[tuple[Any, Any]]:
        """The members' outputs batch by batch, in eval mode and without gradients; arguments as for `predict`.

        Each batch of outputs, (members, batch, ...), comes with the y of a loader of (x, y), or None.
        """
        tensors = chain(self.module.parameters(), self.module.buffers())
        home = next((t.device for t in tensors), torch.device("cpu"))
        place = torch.device(device) if device is not None else home
        try:
            if place != home:
                self.to(place)
            for batch, y in rows_to_predict(x, batch_size, place, self._dtype(), self._trying):
                with self._evaluating(batch):
                    outputs = logits_of(self(*batch[0], **batch[1]))
                self.locate_classes(batch, outputs)
                yield outputs, y
        finally:
            if place != home:
                self.to(home)

    @contextmanager
    def _evaluating(self, batch: Batch) -> Iterator[None]:
        """Eval mode without gradients for one batch; beside other threads, where no mode has to change for that."""
        quiet = self.first_look is None and not self.training and self._is_in_eval_mode()
        if quiet and not self.runner.busy:  # in this order: who changes the modes for a while says so before
            with torch.no_grad():
                yield
            return
        with self.runner.lock:
            self.look_once(batch)  # before the modes are noted: dropout that it finds stays active
            self.runner.busy += 1
            try:
                with evaluation_mode(self):
                    yield
            finally:
                self.runner.busy -= 1

    def _is_in_eval_mode(self) -> bool:
        active = {self.module.get_submodule(name) for name in self.active_dropout}
        return not any(part.training and part not in active for part in parts_of(self.module))

    @property
    def members(self) -> Sequence[nn.Module]:
        """The members: real modules that share what nobody owns, and hold slices of the stacked tensors.

        They run when the ensemble does, and keep their own caches and counters. Their parameters lie in the memory of
        the ensemble's; `member(i)` is a copy that does not.

        >>> ensemble = pb.deep(nn.Linear(4, 3), 2)
        >>> x = torch.zeros(5, 4)
        >>> torch.equal(ensemble.members[1](x), ensemble(x)[1])
        True
        """
        if self.joint:
            raise TypeError(f"{self.method}: the members share one network, so they are not modules of their own.")
        return self.runner.members()

    def member(self, i: int) -> nn.Module:
        """Member `i` as an ordinary, independent module: it gives `ensemble(x)[i]`.

        >>> pb.deep(nn.Linear(4, 3), 2).member(1)
        Linear(in_features=4, out_features=3, bias=True)
        """
        i = self._check_index(i)
        if not self.own:
            raise TypeError(
                f"{self.method}: members differ only in their random draws, so member {i} is not a module of its own. "
                "Use ensemble(x), or ensemble.module for the network itself."
            )
        return self.runner.copy_member(i)

    def subset(self, members: Sequence[int], votes: Sequence[int] | None = None) -> Ensemble:
        """Some of the members as an ensemble of their own, in this order; a copy.

        Args:
            members: their numbers
            votes: how often each counts in the answer; it runs once. Default: once each

        >>> ensemble, x = pb.deep(nn.Linear(4, 3), 3), torch.zeros(5, 4)
        >>> some = ensemble.subset([2, 0], votes=[2, 1])
        >>> some.size, torch.equal(some(x), ensemble(x)[[2, 2, 0]])
        (2, True)
        """
        index = [self._check_index(i) for i in members]
        counts = tuple(1 for _ in index) if votes is None else tuple(int(count) for count in votes)
        if not index or len(set(index)) < len(index) or len(counts) != len(index) or min(counts) < 1:
            raise ValueError(
                f"subset: needs different members, and votes of at least 1 for each, but they are {list(members)} with "
                f"the votes {list(counts)}."
            )
        if self.joint or not self.own:
            why = "answer together in one pass" if self.joint else "differ only in their random draws"
            raise TypeError(f"{self.method}: the members {why}, so there is no ensemble of some of them.")
        made = cast(Ensemble, duplicate(self))
        made._take_(index)
        made.passes = len(index) if self.passes == self.size else self.passes
        made.size, made.votes = len(index), counts if max(counts) > 1 else None
        made.runner = made._make_runner()
        return made

    def _take_(self, index: list[int]) -> None:
        """Keep only what these members own."""
        assign_(self.module, {name: t.detach()[index] for name, t in state(self.module) if name in self.own})

    def parameter_groups(
        self, lr: float, weight_decay: float = 0.0, fast_weight_factor: float = 0.5
    ) -> list[dict[str, Any]]:
        """Parameter groups for any optimizer: BatchEnsemble's r and s get no decay and `fast_weight_factor` * lr."""
        names = self.fast
        slow = [p for name, p in self.module.named_parameters() if name not in names]
        fast = [p for name, p in self.module.named_parameters() if name in names]
        groups: list[dict[str, Any]] = [{"params": slow, "lr": lr, "weight_decay": weight_decay}]
        if fast:
            groups.append({"params": fast, "lr": lr * fast_weight_factor, "weight_decay": 0.0})
        return [group for group in groups if group["params"]]

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Clip each member's gradient to `max_norm`, as if it trained alone, and what is shared as one more group.

        Gives back the norms before: (members + 1), those of the members and of what they share.
        """
        if not max_norm > 0:
            raise ValueError(f"clip_grad_norm_: max_norm must be positive, but it is {max_norm}.")
        owned, shared = self._gradients()
        return torch.stack([clip_(gradients, max_norm) for gradients in (*owned, shared)])

    @property
    def run(self) -> str:
        """How the members run: "loop" (one after the other), "vmap" (all in one pass), or "auto". Settable.

        vmap is used where it has given the members' answers for such a batch. "auto" measures both, for models of
        torch's own layers, and the memory format of images, on the first batch of each shape, precision, device and
        mode, and remembers which was faster; `explain()` says so.
        """
        return self.runner.backend

    @run.setter
    def run(self, value: str) -> None:
        self.runner.backend = value

    @property
    def task(self) -> str:
        """What the outputs are: "classification", "binary", "regression" or "gaussian". Settable."""
        return self._task

    @task.setter
    def task(self, value: str) -> None:
        if value not in TASKS:
            raise ValueError(f"ensemble.task must be one of {quote_names(TASKS)}, but it is {value!r}.")
        self._task = value

    def locate_classes(self, batch: Batch, outputs: Any = None) -> int | None:
        """`class_dim`, after the model was asked for it if its outputs, (members, batch, ...), have further dimensions.

        Args:
            outputs: the ensemble's, where they are known
        """
        if self.class_dim is not None or self.task != "classification" or self.joint or torch.compiler.is_compiling():
            return self.class_dim
        if outputs is None:
            with self.runner.lock, evaluation_mode(self):
                outputs = logits_of(self(*batch[0], **batch[1]))
        if isinstance(outputs, Tensor) and outputs.ndim > 3:
            member = self.member(0) if self.own else duplicate(self.module)
            self.class_dim = find_class_dim(member, batch)
        return self.class_dim

    @property
    def fast(self) -> frozenset[str]:
        """The names of the parameters that scale others: BatchEnsemble's r and s."""
        return frozenset(
            dotted_name(name, key) for name, layer in member_layers(self.module).items() for key in layer.fast
        )

    def explain(self) -> str:
        """What the members own and share, how they run and why, and what was decided on the way, as text."""
        owned = self.runner.own_tensors()
        shared = {name: t for name, t in state(self.module) if name not in owned}
        count = lambda ts: sum(t.numel() for t in ts.values() if isinstance(t, nn.Parameter))  # noqa: E731
        lines = [
            f"{self.method}: {self.size} members, {self.task}",
            *([f"  votes of the members: {', '.join(map(str, self.votes))}"] if self.votes else []),
            f"  each member owns {len(owned)} tensors with {count(owned) // self.size:,} parameters",
            f"  all share {len(shared)} tensors with {count(shared):,} parameters",
            *self.runner.explain(),
            f"  in training each member sees: {self.feed.sees}",
            *(f"  {note}" for note in self.notes),
        ]
        return "\n".join(lines)

    def train(self, mode: bool = True) -> Ensemble:
        """Set the mode; MC-Dropout's dropout stays in training mode, a frozen trunk in eval mode."""
        self.training = mode
        for part in parts_of(self.module):
            part.training = mode  # a `train` of a class's own runs in the members, which have its tensors
            if isinstance(part, Ensemble):
                part.train(mode)
        for name in self.active_dropout:
            self.module.get_submodule(name).training = True
        for name in self.frozen_modules:
            for part in parts_of(self.module.get_submodule(name)):
                part.training = False
        self.runner.follow_modes()
        return self

    # ---------------------------------------------------------------- copies

    def __deepcopy__(self, memo: dict[int, Any]) -> Ensemble:
        made = memo[id(self)] = type(self).__new__(type(self))
        memo.update(without_history(self.module, memo))
        made.__setstate__(copy_bound(self.module, vars(self), [memo])[0])
        return made

    def extra_repr(self) -> str:
        """What `print` shows."""
        return f"method={self.method!r}, size={self.size}, run={self.run!r}, task={self.task!r}"

    def look_once(self, batch: Batch) -> None:
        """Apply what the method finds on a first batch."""
        if self.first_look is None:
            return
        with self.runner.alone():
            self._look(batch)

    def _look(self, batch: Batch) -> None:
        if self.first_look is None:  # another thread was faster
            return
        if torch.compiler.is_dynamo_compiling():
            return run_uncompiled(FIRST, self._look, batch)
        if torch.compiler.is_compiling() or is_transforming():
            raise ValueError(f"{self.method}: {FIRST}.")
        with own_saved_tensors():
            self.notes += self.first_look(self, clone(batch))
        self.first_look = None
        for name in self.active_dropout:  # and nothing else: parts that a user has set to eval mode stay in it
            self.module.get_submodule(name).training = True

    @contextmanager
    def _trying(self) -> Iterator[Callable[[Batch], list[Tensor]]]:
        """What one member gives for a batch, rows first, in eval mode and without dropout: to find out about it."""
        with torch.random.fork_rng(devices=[]), no_dropout():
            if self.joint:
                with self.runner.lock, evaluation_mode(self):
                    yield lambda batch: [tensor[0] for tensor in tensors_of(self(*batch[0], **batch[1]))]
            else:
                with evaluation_mode(member := self.runner.copy_member(0)):
                    yield lambda batch: tensors_of(member(*clone(batch)[0], **clone(batch)[1]))

    # ---------------------------------------------------------------- what the members own

    def _gradients(self) -> tuple[list[list[Tensor]], list[Tensor]]:
        """The gradients of each member, views into the stacked ones, and of what is shared."""
        named = [(n, p.grad) for n, p in self.module.named_parameters() if p.grad is not None]
        owned = [[grad[i] for name, grad in named if name in self.own] for i in range(self.size)]
        return owned, [grad for name, grad in named if name not in self.own]

    def _dtype(self) -> torch.dtype:
        return next((p.dtype for p in self.module.parameters() if p.is_floating_point()), torch.float32)

    def _check_index(self, i: int) -> int:
        if not -self.size <= i < self.size:
            raise IndexError(f"member index {i} is out of range (0-{self.size - 1}).")
        return i % self.size


class Pooled(nn.Module):
    """An ensemble's one answer for each row; see `Ensemble.pooled`."""

    def __init__(self, ensemble: Ensemble):
        super().__init__()
        self.ensemble, self.training = ensemble, ensemble.training

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The members pooled: (batch, ...)."""
        outputs = logits_of(self.ensemble(*args, **kwargs))
        return pool(self.ensemble.task, outputs, self.ensemble.locate_classes((args, kwargs), outputs))


def clip_(gradients: Sequence[Tensor], max_norm: float) -> Tensor:
    """Scale the gradients in place to a common norm of at most `max_norm`; the norm before."""
    if not gradients:
        return torch.zeros(())
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradients]))
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factor)
    return norm
