"""MIMO: one network that reads the inputs of all members side by side and answers for all at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from .auto import in_format
from .ensemble import Ensemble, summed
from .layers import Joined, PerMember, Split
from .probe import entrances, exits, layouts
from .redraw import redraw
from .surgery import READERS, adapt_, call_quietly, listed, pick, quiet, weighted
from .trees import Batch, answer, as_batch, check_members, flatten, map_rows, pytree, rows_of, tensors_of, unstack


class Joint(Ensemble):
    """`size` subnetworks inside one module: its first layers read all inputs, its last layers give all outputs.

    Args:
        first, last: names of the widened layers
        input_repetition: the fraction of rows, exactly, in which all members see the same example
        batch_repetition: how often each example of a batch is used in one training pass
    """

    def __init__(
        self,
        module: nn.Module,
        size: int,
        first: Sequence[str],
        last: Sequence[str],
        *,
        input_repetition: float,
        batch_repetition: int,
        settings: Mapping[str, Any],
        notes: Sequence[str] = (),
    ):
        super().__init__(module, size, method="mimo", settings=settings, notes=notes)
        self.first, self.last = list(first), list(last)
        self.input_repetition, self.batch_repetition = input_repetition, batch_repetition
        self._run, self._why = "once", "one pass answers for all members"

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Every member on every row, each reading the same input: (members, batch, ...)."""
        return self._split((args, kwargs))

    def loss(self, x: Any, y: Any, criterion: Callable[[Any, Any], Tensor], *, per_member: bool = False) -> Tensor:
        """The sum over members of the mean over rows, each member with its own order of the batch.

        The batch is repeated `batch_repetition` times and shuffled; the first floor((1 - input_repetition) * rows)
        rows are shuffled anew for each member, in the rest all members see the same example.

        Args:
            per_member: x and y are (members, batch, ...): each member has a batch of its own, in the order given
        """
        batch = as_batch(x)
        if per_member:
            check_members(batch, self.size)
            inputs, targets = unstack(batch, self.size), unstack(y, self.size)
        else:
            rows = rows_of(batch)
            orders = self.orders(rows)
            inputs = [map_rows(batch, rows, lambda t, i=i: t[i.to(t.device)]) for i in orders]
            targets = [map_rows(y, rows, lambda t, i=i: t[i.to(t.device)]) for i in orders]
        outputs = unstack(self._split(inputs[0], self._captured(inputs)), self.size)
        return summed(criterion, [answer(output) for output in outputs], targets)

    def orders(self, rows: int) -> list[Tensor]:
        """For each member the rows that it sees, in its order."""
        tiled = torch.arange(rows).repeat(self.batch_repetition)
        main = tiled[torch.randperm(len(tiled))]
        apart = int((1 - self.input_repetition) * len(main) + 1e-9)
        return [torch.cat([main[:apart][torch.randperm(apart)], main[apart:]]) for _ in range(self.size)]

    @property
    def run(self) -> str:
        """Always "once"; "auto" also measures which memory format of images is faster."""
        return self._run

    @run.setter
    def run(self, value: str) -> None:
        if value in ("once", "auto"):
            self._run, self._ways = value, {}
        else:
            raise ValueError(f'ensemble.run must be "once" for mimo, whose members are one pass, but it is {value!r}.')

    @property
    def passes(self) -> int:
        """One pass answers for all members."""
        return 1

    def member(self, i: int) -> nn.Module:
        """Refused: the members live in one network."""
        raise TypeError(
            f"mimo: member {i} is not a module of its own: the members share every layer but their slices of the "
            "first and the last. Use ensemble(x)[i]."
        )

    def explain(self) -> str:
        """What was widened, and how the members are fed, as text."""
        total = sum(p.numel() for p in self.module.parameters())
        lines = [
            f"mimo: {self.size} members, {self.task}",
            f"  all share one network with {total:,} parameters; each has its slice of "
            f"{', '.join(map(repr, self.first))} (inputs) and of {', '.join(map(repr, self.last))} (outputs)",
            f"  run {self.run} ({self._why})",
            f"  in training each member sees: its own order of the batch, repeated {self.batch_repetition} times; "
            f"the same example as the others in {self.input_repetition:.0%} of the rows",
            *(f"  {note}" for note in self.notes),
        ]
        return "\n".join(lines)

    def _split(self, batch: Batch, parts: Mapping[str, list[Tensor]] | None = None) -> Any:
        """One pass; every output as (members, batch, ...)."""
        rows = rows_of(batch)
        if any(layer.layout is None for layer in self._layers()):
            layouts("mimo", self.module, {}, batch)

        def run(batch: Batch) -> Any:
            self.rows.index = torch.arange(rows)
            for name in self.first:
                self._layer(name).parts = None if parts is None else parts[name]
            try:
                return self.module(*batch[0], **batch[1])
            finally:
                self.rows.index = None
                for name in self.first:
                    self._layer(name).parts = None

        leaves, tree = flatten(run(in_format(self, batch, run)))
        split = [self._members_first(leaf, rows) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        return pytree.tree_unflatten(split, tree)

    def _members_first(self, output: Tensor, rows: int) -> Tensor:
        if output.ndim and output.shape[0] == self.size * rows:
            return output.unflatten(0, (self.size, rows))
        if output.ndim and output.shape[0] == rows:  # made before the last layer: the same for all members
            return output.expand(self.size, *output.shape)
        raise ValueError(
            f"mimo: the module after the last layer ({', '.join(map(repr, self.last))}) must work row by row, but it "
            f"turned {self.size} members x {rows} rows into the shape {tuple(output.shape)}. "
            "Name another last layer with last=, or write the model so that its last layer gives its output."
        )

    def _captured(self, inputs: Sequence[Batch]) -> dict[str, list[Tensor]]:
        """What the input of each member but the first has become where it enters the first layers."""
        if len(self.first) == 1:
            seen = [_entering(self.module, self.first, batch) for batch in inputs[1:]]
        else:  # what lies between them must not be updated by these passes
            with quiet(self.module):
                seen = [_entering(self.module, self.first, batch) for batch in inputs[1:]]
        parts = {name: [part[name] for part in seen] for name in self.first}
        self._check_side_inputs(inputs, [part for each in parts.values() for part in each])
        return parts

    def _check_side_inputs(self, inputs: Sequence[Batch], parts: list[Tensor]) -> None:
        """Whole numbers that no first layer reads (a mask of padding) reach the body once, for all members."""
        leaves = [tensors_of(batch) for batch in inputs]
        for column in zip(*leaves, strict=True):
            first, *others = column
            if first.is_floating_point() or all(torch.equal(first, other) for other in others):
                continue
            if not any(part.shape == others[0].shape and torch.equal(part, others[0]) for part in parts):
                raise ValueError(
                    f"mimo: an input of type {first.dtype} and shape {tuple(first.shape)} does not enter through "
                    f"{listed(self.first)}, so it must be the same for all members, but it differs. "
                    "Give batches without padding, or choose another method."
                )

    def _layer(self, name: str) -> Joined:
        return cast(Joined, self.module.get_submodule(name))


class _CapturedError(Exception):
    """Ends a pass once everything wanted was seen."""


def _entering(module: nn.Module, names: Sequence[str], batch: Batch) -> dict[str, Tensor]:
    """The inputs of the named layers; the pass ends with the last of them."""
    seen: dict[str, Tensor] = {}

    def capture(name: str, args: Any) -> None:
        seen[name] = tensors_of(args)[0]
        if len(seen) == len(names):
            raise _CapturedError

    hooks = [
        module.get_submodule(name).register_forward_pre_hook(
            lambda _, args, kwargs, name=name: capture(name, (args, kwargs)), with_kwargs=True
        )
        for name in names
    ]
    try:
        module(*batch[0], **batch[1])
    except _CapturedError:
        pass
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def widen_(
    module: nn.Module, size: int, first: Sequence[str], last: Sequence[str], draw: bool, generator: Any = None
) -> None:
    """Widen the first layers' inputs and the last layers' outputs, and let them join and split.

    The weights are tiled (the first layer's divided by `size`), so that every member starts as the given network;
    with `draw` they are drawn anew.
    """
    for name in last:
        layer = module.get_submodule(name)
        dim = 1 if getattr(layer, "transposed", False) else 0
        _tile_(layer, "weight", dim, size, 1, draw, generator)
        if layer.bias is not None:
            _tile_(layer, "bias", 0, size, 1, draw, generator)
        _multiply_(layer, ("out_features", "out_channels"), size)
        adapt_(layer, Split)
        cast(PerMember, layer).begin_()
        layer.members = size  # type: ignore[assignment]
    for name in first:
        layer = module.get_submodule(name)
        rows = isinstance(layer, nn.Embedding) or getattr(layer, "transposed", False)
        weights = [key for key in layer._parameters if key == "weight" or key.startswith("weight_ih_l0")]
        for key in weights:
            _tile_(layer, key, 0 if rows else 1, size, size, draw, generator)
        _multiply_(layer, ("in_features", "in_channels", "num_embeddings", "input_size"), size)
        adapt_(layer, Joined)
        layer.members, layer.parts = size, None  # type: ignore[assignment]


def _tile_(layer: nn.Module, name: str, dim: int, size: int, divisor: int, draw: bool, generator: Any) -> None:
    old = cast(nn.Parameter, getattr(layer, name))
    tiled = torch.cat([old.detach()] * size, dim) / divisor
    if draw:
        tiled = redraw(old.detach().clone().requires_grad_(), tiled.shape, generator)
    setattr(layer, name, nn.Parameter(tiled.detach(), old.requires_grad))


def _multiply_(layer: nn.Module, names: Sequence[str], size: int) -> None:
    for name in names:
        if isinstance(getattr(layer, name, None), int):
            setattr(layer, name, getattr(layer, name) * size)


def ends(model: nn.Module, first: str | None, last: str | None, example: Any) -> tuple[list[str], list[str]]:
    """The layers to widen: those that read the model's input, and those that give its output."""
    readers = [name for name, m in model.named_modules() if isinstance(m, READERS)]
    if example is None and (first is None or last is None):
        raise ValueError(
            "mimo: the first and last layers are found by running the model. Give example=x, or both first= and last=."
        )
    if example is not None:
        call_quietly("mimo", model, example)
    if first is not None:
        starts = pick("mimo", first, readers)
    else:
        starts, all_through = entrances(model, example)
        if not starts or not all_through:
            raise ValueError(
                f"mimo: the model's input must enter through layers that can be widened ({listed(starts)}), but it "
                "also goes around them. Put a convolution or a linear layer in front of the model."
            )
    stops = pick("mimo", last, weighted(model)) if last is not None else exits(model, example)
    if not stops:
        raise ValueError(
            "mimo: no convolution or linear layer gives the model's output. Name the last layer with last=."
        )
    for name in (*starts, *stops):
        if getattr(model.get_submodule(name), "groups", 1) != 1:
            raise ValueError(f'mimo: layer "{name}" has groups and cannot be widened. Use a builder without them.')
    return starts, stops


def check_rows(made: Joint, reference: nn.Module, example: Any, exact: bool) -> None:
    """Members that start as the given model must give its outputs: whatever stands in the way shows here."""
    args, kwargs = as_batch(example)
    with quiet(made), torch.random.fork_rng(devices=[]):
        outputs = tensors_of(made(*args, **kwargs))
    with quiet(reference), torch.random.fork_rng(devices=[]):
        expected = tensors_of(reference(*args, **kwargs))
    for output, single_ in zip(outputs, expected, strict=True):
        same = output.shape[1:] == single_.shape
        if same and exact and output.device.type != "meta" and single_.is_floating_point():
            scale = 1 + float(single_.nan_to_num().abs().max())
            close = partial(torch.allclose, rtol=1e-2, atol=1e-3 * scale, equal_nan=True)
            same = all(close(member, single_) for member in output)
        if not same:
            raise ValueError(
                f"mimo: what stands between {listed(made.last)} and the model's output does not work row by row. "
                "Name another last layer with last=, or write the model so that its last layer gives its output."
            )
