"""MIMO: one network that reads the inputs of all members side by side and answers for all at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from .._common.torch_private import pytree
from .._common.trees import (
    Batch,
    are_close,
    as_batch,
    check_members,
    check_rows_given,
    flatten,
    logits_of,
    map_rows,
    rows_of,
    tensors_of,
    unstack,
)
from ..core.ensemble import Ensemble
from ..core.execution import Runner
from ..core.feeds import sum_losses
from ..core.rows import MemberLayer, locate_rows_
from ..surgery.calling import check_example, evaluation_mode
from ..surgery.closures import refuse_hidden
from ..surgery.copying import aliases, duplicate, state
from ..surgery.dataflow import Flow, find_entrances, find_exits, trace_flow
from ..surgery.direct_reads import find_direct_reads
from ..surgery.initial_laws import Laws, draw_anew_
from ..surgery.replacing import adapt_, expose_weights
from ..surgery.selecting import READERS, dotted_name, exact_pattern, pick, quote_names, weighted_layers
from .adapted_layers import INPUT_SIZES, OUTPUT_SIZES, JointInput, JointOutput, take_slice_
from .building import INITS, Init, check_choice, check_model, check_number, check_size, check_whole, note_guesses
from .layer_choice import refuse_reads
from .method_info import Baseline, Paper, method_info
from .warm_start import find_training


class MimoRunner(Runner):
    """Runs all members in one pass."""

    BACKENDS = ("once", "auto")
    RULE = '"once" for mimo, whose members are one pass'

    def preferred_backend(self) -> tuple[str, str]:
        """One pass, always; "auto" also measures which memory format of images is faster."""
        return "once", "one pass answers for all members"


class MimoEnsemble(Ensemble):
    """`size` subnetworks inside one module: its first layers read all inputs, its last layers give all outputs.

    Args:
        first, last: names of the widened layers
        input_repetition: the fraction of rows, exactly, in which all members see the same example
        batch_repetition: how often each example of a batch is used in one training pass
    """

    joint = True

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
        self.passes = 1
        self._flows: dict[Any, Flow] = {}  # how inputs of some shapes flow

    def _make_runner(self) -> Runner:
        return MimoRunner(self.module, self.size, self.own, self.method)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Every member on every row, each reading the same input: (members, batch, ...)."""
        batch: Batch = (args, kwargs)
        check_rows_given("mimo", batch)
        with self.naming_rows(batch):
            return self._split(batch)

    def loss(self, x: Any, y: Any, criterion: Callable[[Any, Any], Tensor], *, per_member: bool = False) -> Tensor:
        """The sum over members of the mean over rows, each member with its own order of the batch.

        The batch is repeated `batch_repetition` times and shuffled; the first floor((1 - input_repetition) * rows)
        rows are shuffled anew for each member, in the rest all members see the same example.

        Args:
            per_member: x and y are (members, batch, ...): each member has a batch of its own, in the order given
        """
        batch = as_batch(x)
        check_rows_given("loss", batch, dim=int(per_member))
        if per_member:
            check_members(batch, self.size)
            inputs, targets = unstack(batch, self.size), unstack(y, self.size)
        else:
            rows = rows_of(batch)
            orders = self.orders(rows)
            inputs = [map_rows(batch, rows, lambda t, i=i: t[i.to(t.device)]) for i in orders]
            targets = [map_rows(y, rows, lambda t, i=i: t[i.to(t.device)]) for i in orders]
        outputs = unstack(self.answer_apart(inputs), self.size)
        return sum_losses(criterion, [logits_of(output) for output in outputs], targets)

    def answer_apart(self, inputs: Sequence[Batch]) -> Any:
        """Each member on inputs of its own, as in training, in one pass: (members, batch, ...)."""
        with self.naming_rows(inputs[0]):
            self._check_inputs(inputs)
            return self._split(inputs[0], self._capture_parts(inputs))

    def orders(self, rows: int) -> list[Tensor]:
        """For each member the rows that it sees, in its order."""
        tiled = torch.arange(rows).repeat(self.batch_repetition)
        main = tiled[torch.randperm(len(tiled))]
        apart = int((1 - self.input_repetition) * len(main) + 1e-9)
        return [torch.cat([main[:apart][torch.randperm(apart)], main[apart:]]) for _ in range(self.size)]

    def member(self, i: int) -> nn.Module:
        """Refused: the members live in one network."""
        raise TypeError(
            f"mimo: member {i} is not a module of its own: the members share every layer but their slices of the "
            "first and the last. Use ensemble(x)[i]."
        )

    def subnetwork(self, i: int) -> nn.Module:
        """The part of the network that is member `i`'s: its slices of the first and last layers around the body.

        A module with one input. It gives what the member gives while all others read zeros, which is not
        `ensemble(x)[i]`, where all read the same input.
        """
        i = self._check_index(i)
        module = duplicate(self.module)
        for name in self.first:
            take_slice_(module.get_submodule(name), JointInput, i)
        for name in self.last:
            take_slice_(module.get_submodule(name), JointOutput, i)
        return module

    @contextmanager
    def naming_rows(self, batch: Batch) -> Iterator[None]:
        """A pass over rows; where it fails for want of rows, the error says so."""
        try:
            yield
        except (RuntimeError, IndexError, ValueError) as error:
            if torch.compiler.is_compiling():
                raise
            try:
                with evaluation_mode(part := self.subnetwork(0)):
                    shapes = [tuple(tensor.shape) for tensor in tensors_of(part(*batch[0], **batch[1]))]
            except Exception:
                raise error from None  # it is the model's own
            if all(shape[:1] == (rows_of(batch),) for shape in shapes):
                if isinstance(error, ValueError):
                    raise
                raise ValueError(
                    "mimo: with the members' inputs side by side the model does not run "
                    f"({str(error).splitlines()[0]}), perhaps because it uses its input outside of its first layer, or "
                    "picks rows by their values. Use pb.deep or pb.packed."
                ) from error
            raise ValueError(
                f"mimo: the first dimension of every input counts rows of the batch "
                f"here, but inputs of the shapes {[tuple(tensor.shape) for tensor in tensors_of(batch)]} give outputs "
                f"of the shapes {shapes}. Add the dimension: x[None] is a batch of one row."
            ) from error

    def explain(self) -> str:
        """What was widened, and how the members are fed, as text."""
        total = sum(p.numel() for p in self.module.parameters())
        lines = [
            f"mimo: {self.size} members, {self.task}",
            f"  all share one network with {total:,} parameters; each has its slice of "
            f"{', '.join(map(repr, self.first))} (inputs) and of {', '.join(map(repr, self.last))} (outputs)",
            f"  runs {self.run} ({self.runner.why})",
            f"  in training each member sees: its own order of the batch, repeated {self.batch_repetition} times; "
            f"the same example as the others in {self.input_repetition:.0%} of the rows",
            *(f"  {note}" for note in self.notes),
        ]
        return "\n".join(lines)

    def _split(self, batch: Batch, parts: Mapping[str, list[Tensor]] | None = None) -> Any:
        """One pass; every output as (members, batch, ...)."""
        rows = rows_of(batch)
        self.look_once(batch)
        with self.runner.lock:
            locate_rows_("mimo", self.module, {}, batch)
        with self.runner.lock, self._reading(parts):
            shared = [part for each in (parts or {}).values() for part in each]
            leaves, tree = flatten(self.runner.in_one_pass(batch, torch.arange(rows), shared))
        split = [self._members_first(leaf, rows) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        return pytree.tree_unflatten(split, tree)

    @contextmanager
    def _reading(self, parts: Mapping[str, list[Tensor]] | None) -> Iterator[None]:
        """Let the first layers read these inputs of the members but the first; None: all read the same."""
        layers = {name: cast(JointInput, self.module.get_submodule(name)) for name in self.first}
        for name, layer in layers.items():
            layer.parts = None if parts is None else parts[name]
        try:
            yield
        finally:
            for layer in layers.values():
                layer.parts = None

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

    def _capture_parts(self, inputs: Sequence[Batch]) -> dict[str, list[Tensor]]:
        """What the input of each member but the first has become where it enters the first layers."""
        if len(self.first) == 1:
            seen = [_capture_inputs(self.module, self.first, batch) for batch in inputs[1:]]
        else:  # what lies between them must not be updated by these passes
            with evaluation_mode(self.module):
                seen = [_capture_inputs(self.module, self.first, batch) for batch in inputs[1:]]
        return {name: [part[name] for part in seen] for name in self.first}

    def _check_inputs(self, inputs: Sequence[Batch]) -> None:
        """What reaches the body beside the first layers reaches it once, for all members: it must be theirs all."""
        key = tuple((t.dtype, t.shape[1:]) for t in tensors_of(inputs[0]))
        if key not in self._flows:
            self._flows[key] = check_flow(self.module, self.first, inputs[0])
        for i, (first, *others) in enumerate(zip(*map(tensors_of, inputs), strict=True)):
            if i in self._flows[key].around() and not all(torch.equal(first, other) for other in others):
                raise ValueError(
                    f"mimo: an input of type {first.dtype} and shape {tuple(first.shape)} does not enter through "
                    f"{quote_names(self.first)}, so it must be the same for all members, but it is not. "
                    "Give batches without padding, or choose another method."
                )


def check_flow(module: nn.Module, first: Sequence[str], batch: Batch) -> Flow:
    """How the inputs flow; an input that enters through the first layers must not be used beside them too."""
    flow = trace_flow(module, first, batch)
    if flow.inputs() & flow.around():
        raise ValueError(
            f"mimo: the model reads its input in {quote_names(first)}, but also computes something else from it (a "
            "padding mask, the index of the last word, positions), and all members would get the first one's. Pass "
            "that as an input that is the same for all members, or choose another method."
        )
    return flow


class _CapturedError(Exception):
    """Ends a pass once everything wanted was seen."""


def _capture_inputs(module: nn.Module, names: Sequence[str], batch: Batch) -> dict[str, Tensor]:
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


def _check_reads(ensemble: Ensemble, batch: Batch) -> list[str]:
    """On a first batch, where there was no example to look at."""
    made = cast(MimoEnsemble, ensemble)
    _refuse_reads(made.subnetwork(0), made.first, made.last, batch)
    return []


def _refuse_reads(model: nn.Module, first: Sequence[str], last: Sequence[str], batch: Batch) -> None:
    """Refuse a model that reads parameters that are widened outside of their layers."""
    weights = ("weight", "weight_ih_l0", "weight_ih_l0_reverse")  # of first layers, which keep their biases
    reads = [*find_direct_reads(model, first, batch, weights), *find_direct_reads(model, last, batch)]
    refuse_reads("mimo", reads, "first=", "last=")


def widen_(module: nn.Module, size: int, first: Sequence[str], last: Sequence[str]) -> list[str]:
    """Widen the first layers' inputs and the last layers' outputs, and let them join and split.

    The weights are tiled (the first layer's divided by `size`), so that every member starts as the given network.
    Gives back the names of what was widened.
    """
    widened = []
    for name in last:
        layer = module.get_submodule(name)
        dim = 1 if getattr(layer, "transposed", False) else 0
        _tile_(layer, "weight", dim, size, 1)
        if layer.bias is not None:
            _tile_(layer, "bias", 0, size, 1)
        widened += [dotted_name(name, "weight"), dotted_name(name, "bias")]
        _multiply_(layer, OUTPUT_SIZES, size)
        adapt_(layer, JointOutput)
        cast(MemberLayer, layer).begin_()
        layer.members = size  # type: ignore[assignment]
    for name in first:
        layer = module.get_submodule(name)
        rows = isinstance(layer, nn.Embedding) or getattr(layer, "transposed", False)
        own = [key for key, _ in layer.named_parameters(recurse=False)]
        weights = [key for key in own if key == "weight" or key.startswith("weight_ih_l0")]
        for key in weights:
            _tile_(layer, key, 0 if rows else 1, size, size)
        widened += [dotted_name(name, key) for key in weights]
        _multiply_(layer, INPUT_SIZES, size)
        adapt_(layer, JointInput)
        layer.members, layer.parts = size, None  # type: ignore[assignment]
    return widened


def _tile_(layer: nn.Module, name: str, dim: int, size: int, divisor: int) -> None:
    old = cast(nn.Parameter, getattr(layer, name))
    tiled = torch.cat([old.detach()] * size, dim) / divisor
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
        check_example("mimo", model, example)
    if first is not None:
        starts = pick("mimo", first, readers)
    else:
        starts, all_through = find_entrances(model, example)
        if not starts or not all_through:
            raise ValueError(
                f"mimo: the model's input must enter through layers that can be widened ({quote_names(starts)}), but "
                "it also goes around them. Put a convolution or a linear layer in front of the model."
            )
    stops = pick("mimo", last, weighted_layers(model)) if last is not None else find_exits(model, example)
    if not stops:
        raise ValueError(
            "mimo: no convolution or linear layer gives the model's output. Name the last layer with last=."
        )
    for name in (*starts, *stops):
        if why := _unwidenable(model, name, {*starts, *stops}):
            raise ValueError(
                f"mimo: layer {name!r} {why}, so it cannot be widened. Put a plain convolution or linear layer in its "
                "place, name other layers with first= and last=, or choose another method."
            )
    return starts, stops


def _unwidenable(model: nn.Module, name: str, widened: Collection[str]) -> str:
    """Why a layer cannot read or answer for several members; nothing where it can."""
    layer = model.get_submodule(name)
    own = dict(layer.named_parameters(recurse=False))
    if getattr(layer, "groups", 1) != 1:
        return "has groups"
    if isinstance(layer, MemberLayer):
        return "belongs to a member of another ensemble, with a mask or vectors of its own size"
    if not any(key == "weight" or key == "weight_ih_l0" for key in own):
        return "computes its weight from other tensors (a norm or another parametrization)"
    tied = aliases(model)
    others = {other for names in tied.values() for other in names if names & {dotted_name(name, key) for key in own}}
    places = {other for other in others if other.rpartition(".")[0] not in {name, *widened}}
    return f"shares its weight with {quote_names(sorted(places))}" if places else ""


def check_rows(made: MimoEnsemble, reference: nn.Module, example: Any, exact: bool) -> None:
    """Members that start as the given model must give its outputs: whatever stands in the way shows here."""
    args, kwargs = as_batch(example)
    with evaluation_mode(made), torch.random.fork_rng(devices=[]):
        outputs = tensors_of(made(*args, **kwargs))
    with evaluation_mode(reference), torch.random.fork_rng(devices=[]):
        expected = tensors_of(reference(*args, **kwargs))
    for output, single_ in zip(outputs, expected, strict=True):
        same = output.shape[1:] == single_.shape
        if same and exact and output.device.type != "meta" and single_.is_floating_point():
            same = are_close([*output], [single_] * len(output), 1e-3)
        if not same:
            raise ValueError(
                f"mimo: the part between {quote_names(made.last)} and the model's output does not work row by row. "
                "Name another last layer with last=, or write the model so that its last layer gives its output."
            )


MIMO = Paper(
    "Havasi, Marton and Jenatton, Rodolphe and Fort, Stanislav and Liu, Jeremiah Zhe and Snoek, Jasper and "
    "Lakshminarayanan, Balaji and Dai, Andrew M. and Tran, Dustin",
    "Training Independent Subnetworks for Robust Prediction",
    2021,
    "International Conference on Learning Representations",
)


@method_info(
    study_settings=lambda model, dropout: {"init": "different"},  # it is trained from its start
    baselines={"wide_mimo": Baseline("MIMO in a network of twice the width", width=2.0)},
    paper=MIMO,
)
def mimo(
    model: nn.Module,
    size: int,
    input_repetition: float = 0.0,
    batch_repetition: int = 1,
    example: Any = None,
    *,
    first: str | None = None,
    last: str | None = None,
    init: Init | None = None,
    generator: torch.Generator | None = None,
) -> Ensemble:
    """One network that reads `size` inputs side by side and answers for each (MIMO, Havasi et al., 2021).

    The first layers get `size` times their input channels, the last ones `size` times their outputs. In training
    each member has its own order of the batch; a prediction gives every member the same input.

    The members answer in one pass, so there are none to compare it with. The example is checked: the part between the
    last layers and the output must work row by row. What a model does with rows in training mode alone, or for other
    inputs only (shuffling them after the last layer), cannot be seen.

    Shapes:
        input: (batch, *features), as the model takes it
        output of the ensemble: (members, batch, *outputs)

    Args:
        size: how many inputs and answers
        input_repetition: the paper's rho: the exact fraction of rows in which all members see the same example
        batch_repetition: how often each example of a batch is used in one training pass
        first, last: patterns for the layers to widen; by default found by running the example
        init: "different": first and last layers are drawn anew, so that members start apart; "same": they are tiled, so
            that each member starts as the given model. Default: "same" if the model seems to be trained (a
            normalisation layer has seen data, or biases are not as its layers draw them), otherwise "different"
        generator: where random numbers come from; by default torch's own generator

    >>> ensemble = mimo(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), 3, example=torch.randn(5, 4))
    >>> ensemble(torch.zeros(5, 4)).shape, ensemble.module[0].in_features, ensemble.module[2].out_features
    (torch.Size([3, 5, 3]), 12, 9)
    """
    size = check_size("mimo", size)
    input_repetition = check_number("mimo", "input_repetition", input_repetition, "from 0 to 1", lambda v: 0 <= v <= 1)
    batch_repetition = check_whole("mimo", "batch_repetition", batch_repetition)
    check_choice("mimo", "init", init, (*INITS, None))
    model = expose_weights(check_model("mimo", model))
    starts, stops = ends(model, first, last, example)
    if example is not None:
        check_flow(model, starts, as_batch(example))
    reference = duplicate(model)
    widened = widen_(model, size, starts, stops)
    if init is None and any(p.is_meta for p in reference.parameters()):
        init = "same"  # there is nothing to draw
    laws = Laws(reference) if init != "same" else None
    notes: list[str] = []
    if init is None and laws is not None:
        init = "same" if (trained := find_training(reference, laws)) else "different"
        notes.append(
            f"init: {init!r}, because {trained or 'the model does not seem to be trained, so that members start apart'}"
        )
    refuse_hidden("mimo", reference, {name: tensor for name, tensor in state(reference) if name in widened})
    if example is not None:
        _refuse_reads(reference, starts, stops, as_batch(example))
    if init == "different" and laws is not None:
        draw_anew_(model, laws, generator, widened)
        notes += note_guesses(laws, widened)
    untied = [sorted(names) for names in aliases(reference).values() if len(names) > 1 and names & {*widened}]
    notes += [f"{quote_names(names)} shared one tensor and now have one each" for names in untied]
    settings = {
        "input_repetition": input_repetition,
        "batch_repetition": batch_repetition,
        "first": exact_pattern(starts),
        "last": exact_pattern(stops),
    }
    made = MimoEnsemble(
        model, size, starts, stops,
        input_repetition=input_repetition, batch_repetition=batch_repetition, settings=settings,
        notes=notes,
    )  # fmt: skip
    if example is None:
        made.first_look = _check_reads
    else:
        check_rows(made, reference, example, exact=init == "same")
    return made
