"""The one idea: an ensemble is one module, plus the state that each member has of its own, run once per member."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.utils import _pytree as pytree

from .auto import Way, explained, in_format, measured
from .layers import PerMember, Rows
from .pooled import Pooled
from .prediction import Prediction
from .probe import layouts
from .running import (
    apart,
    attention_under_vmap,
    average_,
    clip_,
    forget_,
    is_autocast,
    is_transforming,
    kept_on_error,
    leaks,
    recurrent,
    run_once,
    unowned,
)
from .summary import check_keep, gathered
from .surgery import CONVOLUTIONS, assign_, duplicate, listed, run_with, state
from .trees import (
    Batch,
    answer,
    as_batch,
    batches_and_targets,
    check_members,
    device_of,
    flatten,
    map_tensors,
    members_first,
    rows_of,
    stack_trees,
    tensors_of,
    tile,
    unstack,
)

Feed = Literal["every", "share", "tile", "once"]
FEEDS = {
    "every": "every row",
    "share": "its random share of the rows, in one pass of the batch",
    "tile": "every row, in one pass of members x rows",
    "once": "every row with one random draw each, in one pass of the batch",
}
TASKS = ("classification", "binary", "regression", "gaussian")


class Ensemble(nn.Module):
    """`size` networks that share every tensor of `module` except those named in `own`.

    A tensor in `own` is stored stacked, (members, *shape), under its usual name, so that `state_dict`, `to` and
    any optimizer work as for an ordinary module. Made by the functions in `pluribus.methods`.

    Shapes:
        input: (batch, *features), or any tree of such tensors, the same for every member
        output: (members, batch, *outputs), or the module's own tree of such tensors

    Args:
        feed: what the members see in training: "every" row each, a "share" of the rows each, the batch "tile"d
            once per member in one pass, or the batch "once" with one random draw for each row
        awake: modules that stay in training mode when the ensemble is in eval mode (dropout)
        asleep: modules that stay in eval mode when the ensemble trains (a trunk that is kept as it is)
        check: what to look at, once, on the first batch: check(ensemble, batch)
    """

    def __init__(
        self,
        module: nn.Module,
        size: int,
        own: Collection[str] = (),
        *,
        method: str = "ensemble",
        settings: Mapping[str, Any] | None = None,
        feed: Feed = "every",
        fast: Collection[str] = (),
        awake: Collection[str] = (),
        asleep: Collection[str] = (),
        notes: Sequence[str] = (),
        check: Callable[[Ensemble, Batch], None] | None = None,
    ):
        super().__init__()
        self.module, self.size, self.own = module, size, frozenset(own)
        self.method, self.settings, self.feed = method, dict(settings or {}), feed
        self.fast, self.awake, self.asleep = frozenset(fast), frozenset(awake), frozenset(asleep)
        self.notes, self.check = list(notes), check
        self.around: Callable[[], AbstractContextManager[Any]] | None = None  # what predictions run inside of
        self.rows = Rows()
        for layer in self._layers():
            layer.rows = self.rows
        self._task = "classification"
        self.class_dim: int | None = None  # where a member's output has its classes, where its shape does not say
        self._run, self._why = self._preferred_run()
        self._ways: dict[tuple[Any, ...], Way] = {}  # what run = "auto" has measured
        self._shared: Sequence[str] | None = None
        self._leaks: list[tuple[str, str]] = []  # attributes in which the model keeps tensors that it made
        self._changes_input: bool | None = None  # the model changes its input in place; None: not known yet
        self._tried: set[tuple[bool, bool, bool]] = set()
        self.training = module.training
        self._keep_modes()

    # ---------------------------------------------------------------- what users call

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Every member on every row: (members, batch, ...).

        In training, methods that share their normalisation layers run the members as rows of one batch, so that
        the statistics are those of all members together.
        """
        self.check_once((args, kwargs))
        if self.training and self.feed != "every":
            batch, index = self._tiled((args, kwargs))
            return map_tensors(self._by_rows(batch, index), lambda t: members_first(t, self.size, len(index)))
        with (self.around or nullcontext)():
            return self._each((args, kwargs))

    def loss(self, x: Any, y: Any, criterion: Callable[[Any, Any], Tensor], *, per_member: bool = False) -> Tensor:
        """The scalar to minimise: the members are fed, and their losses reduced, as the method's paper does.

        | feed | rows each member sees | reduction |
        |---|---|---|
        | every | all | sum over members of the mean over rows: one joint step equals separate steps |
        | share | its random, balanced share of the batch | mean over rows |
        | tile | all, in one batch of members * rows | mean over members and rows |
        | once | all rows, one random draw each | mean over rows |

        Args:
            x: what the module takes: a tensor, a tuple of arguments or a dict of named ones, rows first
            y: targets, rows first; any tree
            criterion: criterion(outputs, targets) -> the mean over their rows; any of torch's
            per_member: x and y are (members, batch, ...): each member has a batch of its own
        """
        batch = as_batch(x)
        if per_member:
            check_members(batch, self.size)
        self.check_once(unstack(batch, self.size)[0] if per_member else batch)
        if self.feed == "every":
            outputs = [answer(member) for member in unstack(self._each(batch, per_member), self.size)]
            targets = unstack(y, self.size) if per_member else [y] * self.size
            return summed(criterion, outputs, targets)
        batch, y, index = self._fed(batch, y, per_member)
        return summed(criterion, [answer(self._by_rows(batch, index))], [y])

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
            x: a tensor, an array, a tuple or dict of arguments, or a loader of those, or of (x, y)
            batch_size: how many rows to run at once; default: all of a tensor, or the loader's batches
            device: where to run; default: where the ensemble is
            keep: "members", every probability; or "summary", a `Summary` of what the metrics need of each example,
                beside the y of a loader of (x, y), in little memory
        """
        check_keep(keep)
        home = next((t.device for _, t in state(self)), torch.device("cpu"))
        mode, place = self.training, torch.device(device) if device is not None else home
        try:
            if place != home:
                self.to(place)
            self.eval()
            with torch.no_grad():
                pairs = batches_and_targets(x, batch_size, place, self._dtype())
                return gathered(
                    self.task, ((answer(self(*args, **kwargs)), y) for (args, kwargs), y in pairs), keep, self.class_dim
                )
        finally:
            self.train(mode)
            if place != home:
                self.to(home)

    def member(self, i: int) -> nn.Module:
        """Member `i` as an ordinary, independent module: it gives `ensemble(x)[i]`."""
        i = self._checked_index(i)
        if not self.own:
            raise TypeError(
                f"{self.method}: a member owns nothing but chance, so member {i} is not a module of its own. "
                "Use ensemble(x), or ensemble.module for the network itself."
            )
        module = duplicate(self.module)
        assign_(module, {name: tensor[i].detach().clone() for name, tensor in self._owned(module).items()})
        for layer in module.modules():
            if isinstance(layer, PerMember):
                layer.rows = Rows()
        return module

    def parameter_groups(
        self, lr: float, weight_decay: float = 0.0, fast_weight_factor: float = 0.5
    ) -> list[dict[str, Any]]:
        """Parameter groups for any optimizer: BatchEnsemble's r and s get no decay and `fast_weight_factor` * lr."""
        slow = [p for name, p in self.module.named_parameters() if name not in self.fast]
        fast = [p for name, p in self.module.named_parameters() if name in self.fast]
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
        """How the members run: "vmap" (what no member owns is computed once), "loop", or "auto". Settable.

        "auto" measures both, and the memory format of images, on the first batch of each shape, precision, device
        and mode, and remembers which was faster; `explain()` says so.
        """
        return self._run

    @run.setter
    def run(self, value: str) -> None:
        if value not in ("vmap", "loop", "auto"):
            raise ValueError(f'ensemble.run must be "vmap", "loop" or "auto", but it is {value!r}.')
        self._run, self._why, self._ways = value, "set by hand", {}

    @property
    def task(self) -> str:
        """What the outputs are: "classification", "binary", "regression" or "gaussian". Settable."""
        return self._task

    @task.setter
    def task(self, value: str) -> None:
        if value not in TASKS:
            raise ValueError(f"ensemble.task must be one of {listed(TASKS)}, but it is {value!r}.")
        self._task = value

    @property
    def passes(self) -> int:
        """How often the network runs for one prediction; last layers alone are no pass."""
        return 1 if self.method == "multihead" else self.size

    stacked = True  # what members own has the members as its first dimension

    def explain(self) -> str:
        """What the members own and share, how they run and why, and what was decided on the way, as text."""
        owned = self._owned(self.module)
        shared = {name: t for name, t in state(self.module) if name not in owned}
        count = lambda ts: sum(t.numel() for t in ts.values() if isinstance(t, nn.Parameter))  # noqa: E731
        lines = [
            f"{self.method}: {self.size} members, {self.task}",
            f"  each member owns {len(owned)} tensors with {count(owned) // self.size:,} parameters",
            f"  all share {len(shared)} tensors with {count(shared):,} parameters",
            f"  run by {self.run} ({self._why})",
            *explained(self._ways),
            f"  in training each member sees: {FEEDS[self.feed]}",
            *(f"  {note}" for note in self.notes),
        ]
        return "\n".join(lines)

    def train(self, mode: bool = True) -> Ensemble:
        """Set the mode; dropout of MC-Dropout stays awake, a frozen trunk asleep."""
        super().train(mode)
        self._keep_modes()
        return self

    def _keep_modes(self) -> None:
        for name in self.awake:
            self.module.get_submodule(name).training = True
        for name in self.asleep:
            self.module.get_submodule(name).eval()

    def extra_repr(self) -> str:
        """What `print` shows."""
        return f"method={self.method!r}, size={self.size}, run={self.run!r}, task={self.task!r}"

    def check_once(self, batch: Batch) -> None:
        """Run what the method wants to look at on a first batch; inside a transformation it must wait."""
        if self.check is not None and not torch.compiler.is_compiling() and not is_transforming():
            with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):  # none of a checkpoint's
                self.check(self, batch)
            self.check = None

    # ---------------------------------------------------------------- running the members

    def _each(self, batch: Batch, per_member: bool = False) -> Any:
        """Every member's output, stacked; with `per_member` each on its own batch, (members, batch, ...)."""
        alone = per_member and self.training and self._trunk()  # a shared trunk's statistics see all the batches
        run = self.run
        if run == "auto":
            run, batch = measured(self, batch, per_member)
        if run == "loop" or alone or is_autocast(device_of(batch)):  # which vmap would hide
            return self._by_loop(batch, per_member)
        key = (self.training, torch.is_grad_enabled(), per_member)
        if key in self._tried or torch.compiler.is_compiling():
            return self._by_vmap(batch, per_member)
        output = self._vmap_or_loop(batch, per_member)
        self._tried.add(key)
        return output

    def _by_vmap(self, batch: Batch, per_member: bool) -> Any:
        leaves, tree = flatten(batch)
        seen: dict[str, Any] = {}

        def run(_: Tensor, own: dict[str, Tensor], leaves: list[Any]) -> Any:
            output, changed = run_with(self.module, own, *pytree.tree_unflatten(leaves, tree))
            outputs, seen["tree"] = flatten(output)
            seen["leaves"] = [Tensor if isinstance(o, Tensor) else o for o in outputs]
            return [o for o in outputs if isinstance(o, Tensor)], changed

        mapped = [0 if per_member and isinstance(leaf, Tensor) else None for leaf in leaves]
        members = torch.arange(self.size)  # mapped over even when nothing is owned
        once = self._trunk() if self.training or not torch.compiler.is_compiling() else ()
        with attention_under_vmap(), run_once(self.module, once):
            tensors, changed = vmap(run, in_dims=(0, 0, mapped), randomness="different")(
                members, self._owned(self.module), leaves
            )
        self._write_back(changed)
        forget_(self.module, self._leaks)
        stacked = iter(tensors)
        return pytree.tree_unflatten([next(stacked) if o is Tensor else o for o in seen["leaves"]], seen["tree"])

    def _by_loop(self, batch: Batch, per_member: bool) -> Any:
        shared = {n: b for n, b in self.module.named_buffers() if n not in self.own} if self.training else {}
        outputs, seen, pieces = [], [], apart(self._owned(self.module))
        for i, own_batch in enumerate(unstack(batch, self.size) if per_member else [batch] * self.size):
            if not per_member and self._changes_input is not False:
                own_batch = map_tensors(own_batch, lambda t: t.clone())
            statistics = {name: buffer.clone() for name, buffer in shared.items()}
            outputs.append(self._one(i, own_batch, statistics, pieces))
            seen.append(statistics)
            if self._changes_input is None and not torch.compiler.is_compiling():
                self._changes_input = any(tensor._version for tensor in tensors_of(own_batch))
        average_(shared, seen)
        return stack_trees(outputs)

    def _one(self, i: int, batch: Batch, statistics: dict[str, Tensor], pieces: Mapping[str, Any] | None = None) -> Any:
        """Member i's output; what it would do to shared buffers it does to `statistics`."""
        own = {name: tensors[i] for name, tensors in (pieces or self._owned(self.module)).items()}
        output, changed = run_with(self.module, {**own, **statistics}, *batch)
        with torch.no_grad():
            for name, tensor in changed.items():  # assigned, not changed in place
                (own[name] if name in own else statistics[name]).copy_(tensor)
        return output

    def _by_rows(self, batch: Batch, index: Tensor | None) -> Any:
        """One pass of the module in which row j belongs to member `index[j]`."""
        if index is not None and any(layer.layout is None for layer in self._layers()):
            own = {name: tensor[0] for name, tensor in self._owned(self.module).items()}
            layouts(self.method, self.module, own, batch)

        def run(batch: Batch) -> Any:
            self.rows.index = index
            try:
                return self.module(*batch[0], **batch[1])
            finally:
                self.rows.index = None

        return run(in_format(self, batch, run))

    def _fed(self, batch: Batch, y: Any, per_member: bool) -> tuple[Batch, Any, Tensor | None]:
        """The rows of one training pass, their targets, and the member of each row."""
        if per_member:
            rows = rows_of(batch, 1)
            batch, y = (map_tensors(tree, lambda t: t.flatten(0, 1)) for tree in (batch, y))
            return batch, y, self._members(batch, rows)
        if self.feed == "tile":
            rows = rows_of(batch)
            tiled, index = self._tiled(batch)
            return tiled, tile(y, rows, self.size), index
        if self.feed == "share":
            rows = rows_of(batch)
            order = torch.randperm(rows) + torch.randint(self.size, ())  # balanced, the remainder at random
            return batch, y, (order % self.size).to(device_of(batch))
        return batch, y, None

    def _tiled(self, batch: Batch) -> tuple[Batch, Tensor]:
        """The batch once per member, members outermost, and the member of each row."""
        rows = rows_of(batch)
        return tile(batch, rows, self.size), self._members(batch, rows)

    def _members(self, batch: Batch, rows: int) -> Tensor:
        return torch.arange(self.size, device=device_of(batch)).repeat_interleave(rows)

    # ---------------------------------------------------------------- choosing how to run

    def _first_vmap(self, batch: Batch, per_member: bool) -> Any:
        output = self._by_vmap(batch, per_member)
        self._leaks = leaks(self.module)
        forget_(self.module, self._leaks)
        return output

    def _preferred_run(self) -> tuple[str, str]:
        if layer := recurrent(self.module):
            return "loop", f"torch has no batching rule for {layer}"
        if self.own and all(name in self.own for name, _ in state(self.module)):
            if any(isinstance(module, CONVOLUTIONS) for module in self.module.modules()):
                return "loop", "nothing is shared, and batched convolutions are slower than a loop"
        return "vmap", "members in one go; what no member owns is computed once"

    def _vmap_or_loop(self, batch: Batch, per_member: bool) -> Any:
        """The first run: where vmap fails, buffers and chance are put back, the loop runs and is said to."""
        chance = torch.get_rng_state()
        try:
            with kept_on_error(list(self.module.buffers())):
                return self._first_vmap(batch, per_member)
        except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
            reason = str(error).strip().splitlines()[0]
        torch.set_rng_state(chance)
        output = self._by_loop(batch, per_member)  # an input that does not fit fails here with the model's own error
        self._run, self._why = "loop", f"vmap failed: {reason}"
        warnings.warn(
            f'{self.method}: this model does not run under vmap ({reason}); ensemble.run is now "loop".',
            stacklevel=5,
        )
        return output

    # ---------------------------------------------------------------- what the members own

    def _owned(self, module: nn.Module) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in state(module) if name in self.own}

    def _trunk(self) -> Sequence[str]:
        """Names of the largest submodules that no member owns a tensor of."""
        if self._shared is None:
            self._shared = unowned(self.module, self.own) if self.own else ()
        return self._shared

    def _layers(self) -> list[PerMember]:
        return [layer for layer in self.module.modules() if isinstance(layer, PerMember)]

    def _gradients(self) -> tuple[list[list[Tensor]], list[Tensor]]:
        """The gradients of each member, views into the stacked ones, and of what is shared."""
        named = [(n, p.grad) for n, p in self.module.named_parameters() if p.grad is not None]
        owned = [[grad[i] for name, grad in named if name in self.own] for i in range(self.size)]
        return owned, [grad for name, grad in named if name not in self.own]

    def _write_back(self, changed: dict[str, Tensor]) -> None:
        own = self._owned(self.module)
        with torch.no_grad():
            for name, tensor in changed.items():
                own[name].copy_(tensor)

    def _dtype(self) -> torch.dtype:
        return next((p.dtype for p in self.module.parameters() if p.is_floating_point()), torch.float32)

    def _checked_index(self, i: int) -> int:
        if not -self.size <= i < self.size:
            raise IndexError(f"member: there are members 0 to {self.size - 1}, but {i} was asked for.")
        return i % self.size


def summed(criterion: Callable[[Any, Any], Tensor], outputs: Sequence[Any], targets: Sequence[Any]) -> Tensor:
    """The sum of the criterion over members."""
    losses = [criterion(output, target) for output, target in zip(outputs, targets, strict=True)]
    if losses[0].ndim:
        raise ValueError(
            "loss: criterion(outputs, targets) must give the mean over rows, a scalar, but it gives the shape "
            f'{tuple(losses[0].shape)}. Use reduction="mean".'
        )
    return torch.stack(losses).sum()
