"""The fastest network that gives what an ensemble gives: inference only.

    ensemble -> tracing: one graph of operations, and the members' modules          trace_members
             -> folding: normalisation, masks, vectors go into the layers           Network
             -> lowering: the graph for all members, as a loop or side by side      FORMS
             -> a race of the forms on the example; the first that agrees is taken  _freeze

`form` is the word for how the members are written, "loop" or "beside". For one convolution and two members the loop is
`stack([conv0(x), conv1(x)])`, and side by side it is one convolution with the channels of both. What cannot be traced
runs as in the ensemble, as a whole or in parts, and `explain` says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from math import prod
from typing import Any, NamedTuple, cast, overload

import torch
from torch import Tensor, nn

from ..._common.timing import race
from ..._common.torch_private import pytree
from ..._common.trees import (
    Batch,
    as_batch,
    flatten,
    logits_of,
    map_rows,
    map_tensors,
    members_first,
    repeat_votes,
    rows_of,
    tensors_of,
)
from ...core.ensemble import Ensemble
from ...core.trunk import forget_trunk_
from ...methods.adapted_layers import RankOne
from ...methods.method_info import first_line
from ...surgery.calling import call, refuse_chance_outside_torch, refuse_sparse
from ...surgery.copying import duplicate, state
from ...surgery.dropout import no_dropout
from ...surgery.row_splitting import place_of, rows_to_predict
from ...surgery.selecting import CONVOLUTIONS, quote_names
from ...uncertainty.outputs import compute_answers
from ...uncertainty.prediction import Prediction, join_outputs, prediction_of
from ..budget.counting import bytes_of, cost
from ..stages import Cascade
from .call_signature import Call, Example, Unfit, run_on_copies
from .folding import Network
from .kernels import Convolution, channels_last
from .lowering import FORMS
from .tracing import SAMPLES, Holder, shapes_of, trace
from .verification import agrees, runs_by_rows

CHUNK = 32  # rows of images that run at once at least, and more while no value needs more than BUFFER bytes:
BUFFER = 2**23  # larger ones are mapped afresh at each call, which costs more than it saves

RACED = 256  # rows on which forms are timed where there are no images

MANY = 8  # rows from which on the members' convolutions run one after the other, unless they are narrow

NARROW = 64  # channels of a member; convolutions with fewer waste the vector units one by one

LIGHT = 2**18  # numbers of a weight whose second copy, for oneDNN, does not matter


@overload
def freeze(ensemble: Ensemble, example: Any, *, choose: str = "measure", memory: str = "fast") -> Frozen: ...


@overload
def freeze(
    ensemble: Ensemble | Cascade, example: Any, *, choose: str = ..., memory: str = ..., anytime: bool = True
) -> Cascade: ...


def freeze(
    ensemble: Ensemble | Cascade,
    example: Any,
    *,
    choose: str = "measure",
    memory: str = "fast",
    anytime: bool = False,
) -> Frozen | Cascade:
    """An inference-only module with the ensemble's outputs, to float tolerance, optimised for speed.

    Normalisation is folded into the layers before it, rank-1 vectors into weights; a channel that a member's masks
    never let through is not computed; what no member owns runs once. The ensemble stays as it is. What cannot be
    traced stays as it was, and `explain` says so.

    Shapes:
        input: (batch, *features), as the ensemble takes it
        output: (members, batch, *outputs)

    Args:
        example: what one call takes, with as many rows as there will be: the form is chosen for it. Any number of rows
            works later; other sizes work unless the model's code asks about them
        choose: "measure": the forms are timed on the example; "rule": always the same form for the same call
        memory: "small": vectors (BatchEnsemble) and low-rank matrices stay beside the weights that the members share,
            and no weight is kept twice
        anytime: freeze each member by itself, so that `answers(x, budget=...)` can stop after any of them
        ensemble: or a cascade: then each of its stages is frozen

    >>> import pluribus as pb
    >>> frozen = pb.freeze(pb.deep(nn.Linear(4, 3), 2), torch.zeros(5, 4))
    >>> frozen(torch.zeros(7, 4)).shape
    torch.Size([2, 7, 3])
    """
    if isinstance(ensemble, Cascade):
        return _freeze_cascade(ensemble, example, choose, memory)
    _check(ensemble, choose, memory)
    if anytime:
        members = [ensemble.subset([i]) for i in range(ensemble.size)]
        return _freeze_cascade(Cascade(members, [(-math.inf, math.inf)] * (len(members) - 1)), example, choose, memory)
    refuse_sparse("freeze", example)
    copy, given = cast(Ensemble, duplicate(ensemble)).eval(), Example(example)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        copy.look_once(given.batch)
        few = given.find_rows_(copy)
        with refuse_chance_outside_torch("freeze"):
            outputs = call("freeze", copy, _as_example(map_tensors(few, Tensor.clone)))
        copy.locate_classes(few, logits_of(outputs))
        before = cost(copy, _as_example(few)).mult_adds
        held = {name: tensor.detach().clone() for name, tensor in state(copy.module) if tensor.is_floating_point()}
        run_on_copies(copy, few)  # caches are filled by now
        _refuse_changing(copy, held)
        made = _freeze(copy, given, choose, memory)
        made.mult_adds = before, cost(made, _as_example(few)).mult_adds
    return made


def _freeze_cascade(cascade: Cascade, example: Any, choose: Any, memory: Any) -> Cascade:
    """Each stage frozen for as many rows as will reach it."""
    batch = as_batch(example)
    rows = rows_of(batch)
    shares = cascade.report.reach if cascade.report is not None else [1.0] * len(cascade.stages)
    stages = []
    for stage, share in zip(cascade.stages, shares, strict=True):
        few = map_rows(batch, rows, lambda t: t[: max(1, round(share * rows))])  # noqa: B023
        stages.append(freeze(cast(Ensemble, stage), _as_example(few), choose=choose, memory=memory))
    return cascade.with_stages(stages)


class Frozen(nn.Module):
    """A frozen ensemble, from `pluribus.freeze`: (members, batch, ...), as the ensemble in eval mode.

    `explain()` says what was done. It takes what the example had, by place or by name, any number of rows; what is no
    tensor must be as it was there. On a CPU convolutions keep a second copy of light weights, and for few rows of all,
    in the order that the kernels read; `plain_()` drops these for good. Several threads may call it at once.

    Args:
        ensemble: what was frozen
        arguments: how the example was called: by place or by name, and what was no tensor; None: as the ensemble is
        graphs: the traced networks, one for each group of members
        tree: how the outputs are nested; None: a tensor

    >>> ensemble = pb.multihead(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3)), 2)
    >>> frozen = pb.freeze(ensemble, torch.zeros(5, 4), choose="rule")
    >>> frozen(torch.zeros(7, 4)).shape, frozen.predict(torch.zeros(7, 4)).label.shape
    (torch.Size([2, 7, 3]), torch.Size([7]))
    """

    def __init__(
        self, ensemble: Ensemble, arguments: Call | None, graphs: Sequence[nn.Module], tree: pytree.TreeSpec | None
    ):
        super().__init__()
        self.method, self.size, self.task = ensemble.method, ensemble.size, ensemble.task
        self.class_dim, self.passes, self.votes = ensemble.class_dim, ensemble.passes, ensemble.votes
        self.arguments = arguments  # None: whatever the ensemble takes
        self.graphs = nn.ModuleList(graphs)  # the structure of the outputs, with a number in place of each tensor:
        self.outline = None if tree is None else pytree.tree_unflatten(list(range(tree.num_leaves)), tree)
        self.form, self.chunk = "loop", 0
        self.mult_adds = (0, 0)
        self.notes: list[str] = []
        self.unchanged = ""  # why nothing could be done, where that is so
        self.joint = ensemble.joint
        self.training = False
        self.images = any(isinstance(part, Convolution) for part in self.modules())
        self.narrow = False  # members have convolutions of their own inputs, all with few channels

    # ---------------------------------------------------------------- what users call

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Every member on every row: (members, batch, ...)."""
        if torch.is_grad_enabled():
            with torch.no_grad():
                return self.forward(*args, **kwargs)
        if self.arguments is None:  # as it was
            return self.graphs[0](*args, **kwargs)
        tensors = self.arguments.tensors(args, kwargs)
        if not self.chunk or torch.compiler.is_compiling() or len(tensors[0]) <= self.chunk:
            return repeat_votes(self._run(tensors), self.votes)
        parts = [self._run(part) for part in self.arguments.split(tensors, self.chunk)]
        whole = pytree.tree_map(lambda *ts: torch.cat(ts, 1) if isinstance(ts[0], Tensor) else ts[0], *parts)
        return repeat_votes(whole, self.votes)

    def answers(self, *args: Any, budget: float | None = None, **kwargs: Any) -> dict[str, Tensor]:
        """Mean, label, confidence, total, aleatoric and epistemic uncertainty of each row, by name.

        Args:
            budget: members or seconds that may be spent, of a network frozen with `anytime=True`, or of a cascade

        >>> frozen = pb.freeze(pb.deep(nn.Linear(4, 3), 2), torch.zeros(5, 4))
        >>> answers = frozen.answers(torch.zeros(5, 4))
        >>> sorted(answers), answers["mean"].shape
        (['aleatoric', 'confidence', 'epistemic', 'label', 'mean', 'total'], torch.Size([5, 3]))
        """
        if budget is not None:
            raise ValueError(
                "answers: this network runs all members together, so it cannot stop within a budget. Freeze it with "
                "pb.freeze(ensemble, example, anytime=True), or freeze a pb.cascade."
            )
        return compute_answers(self.task, logits_of(self(*args, **kwargs)), self.class_dim)

    def predict(self, x: Any, batch_size: int | None = None, device: torch.device | str | None = None) -> Prediction:
        """The members' predictions, as `Ensemble.predict` gives them.

        >>> frozen = pb.freeze(pb.deep(nn.Linear(4, 3), 2), torch.zeros(5, 4))
        >>> frozen.predict(torch.zeros(20, 4), batch_size=8).epistemic.shape
        torch.Size([20])
        """
        first = place_of(self, device)
        pairs = rows_to_predict(x, batch_size, first.device, first.dtype, self._trying)
        outputs = join_outputs((logits_of(self(*args, **kwargs)), y) for (args, kwargs), y in pairs)
        return prediction_of(self.task, outputs, self.class_dim)

    def explain(self) -> str:
        """What was done, and the mult-adds of one example before and after, as text."""
        before, after = self.mult_adds
        lines = [
            f"frozen {self.method}: {self.size} members, {self.task}",
            f"  mult-adds of one example: {before:,} before, {after:,} after",
            *(f"  {note}" for note in self.notes),
        ]
        if packed := sum(part.packed_for is not None for part in self._convolutions()):
            lines.append(f"  convolutions: {packed} with a second copy of the weight, in the order of oneDNN's kernels")
        if self.chunk:
            lines.append(f"  large batches run {self.chunk} rows at a time")
        if self.arguments is not None and self.arguments.sizes is not None:
            lines.append(f"  takes inputs of the sizes {self.arguments.sizes}, any number of rows")
        return "\n".join(lines)

    def count_bytes(self) -> int:
        """The memory of the weights."""
        copies = [part.weight for part in self._convolutions() if part.packed_for is not None]
        return bytes_of([*self.parameters(), *self.buffers(), *copies])

    def plain_(self) -> Frozen:
        """Keep no weight twice, in the order of oneDNN's kernels, for good."""
        for part in self._convolutions():
            part.pack_(None)
        return self

    # ---------------------------------------------------------------- running

    @contextmanager
    def _trying(self) -> Iterator[Callable[[Batch], list[Tensor]]]:
        """What the first member gives for a batch, rows first, without dropout: to find out about it."""
        with torch.random.fork_rng(devices=[]), no_dropout():
            yield lambda batch: [tensor[0] for tensor in tensors_of(run_on_copies(self, batch))]

    def _convolutions(self) -> list[Convolution]:
        return [part for part in self.modules() if isinstance(part, Convolution)]

    def _run(self, inputs: list[Tensor]) -> Any:
        if self.images:
            inputs = [channels_last(t) if t.ndim == 4 else t for t in inputs]
        rows = inputs[0].shape[0] if self.joint else 0
        columns = [graph.forward(*inputs) for graph in self.graphs]
        if self.outline == 0 and len(columns) == 1 and not self.joint:  # the usual network
            return columns[0][0]
        leaves = [self._members_first(list(column), rows) for column in zip(*columns, strict=True)]
        return leaves[0] if self.outline == 0 else pytree.tree_unflatten(leaves, flatten(self.outline)[1])

    def _members_first(self, column: list[Any], rows: int) -> Any:
        leaf = column[0]
        if not isinstance(leaf, Tensor):
            return leaf
        if len(column) > 1:
            return torch.cat(column)
        return members_first(leaf, self.size, self.size * rows) if self.joint else leaf

    def train(self, mode: bool = True) -> Frozen:
        """A frozen network does not train: it stays in eval mode, with the dropout of MC-Dropout active."""
        return self

    def extra_repr(self) -> str:
        """What `print` shows."""
        return f"method={self.method!r}, size={self.size}, form={self.form!r}, task={self.task!r}"


# -------------------------------------------------------------------- building


def _freeze(copy: Ensemble, example: Example, choose: str, memory: str) -> Frozen:
    """The frozen ensemble; where it cannot be traced, the ensemble as it was."""
    try:
        for made in _order(_write_forms(copy, example, memory == "small"), example, choose):
            if agrees(made, copy, example):
                made.chunk = made.chunk if made.images and runs_by_rows(made, example) else 0
                return made
        raise Unfit("the traced network gives different outputs")
    except Unfit as reason:
        made = Frozen(copy, None, [copy], None)
        made.form, made.unchanged = f"unchanged, with {copy.run}", str(reason)
        made.notes.append(f"the network is unchanged: {reason}")
        return made


def _refuse_changing(copy: Ensemble, before: dict[str, Tensor]) -> None:
    """Refuse a model that has changed its tensors in a pass: those of a frozen network stay."""
    now = [(name, tensor) for name, tensor in state(copy.module) if name in before and not tensor.is_meta]
    if names := [name for name, t in now if not torch.equal(t.nan_to_num(), before[name].nan_to_num())]:
        raise ValueError(
            f"freeze: the model changes {quote_names(names, 6)} when it runs, but the tensors of a frozen network "
            "are fixed. Compute a changed copy in forward, or use the ensemble itself."
        )


class TracedNetworks(NamedTuple):
    """The traced network, or one for each of several unlike members, and what a call of it takes and gives."""

    networks: list[Network]
    tree: pytree.TreeSpec
    kept: dict[str, str]
    arguments: Call


def trace_members(copy: Ensemble, example: Example, apart: bool) -> TracedNetworks:
    """The ensemble as graphs."""
    modules = [copy.module] if copy.joint else list(copy.members)
    if copy.stacked and not copy.own:  # nothing but chance makes them differ
        modules = modules[:1]
    copied = duplicate(nn.ModuleList(modules).requires_grad_(False))
    forget_trunk_(copied)  # what follows asks whether a layer is torch's own
    holders = [Holder(module) for module in cast(Any, copied)]
    groups = [holders] if copy.stacked else [[holder] for holder in holders]
    size = copy.size if copy.stacked and not copy.joint else 1
    networks, kept, tree = [], {}, None
    arguments = Call([members[0].module for members in groups], example)
    batches = [*map(example.repeat, SAMPLES[:-1]), example.stretch(SAMPLES[-1])]
    for members in groups:
        traced = trace(members[0], batches)
        shapes = shapes_of(traced.graph, members[0], batches[0])
        own = {id(t) for name, t in state(members[0].module) if not copy.stacked or name in copy.own}
        networks.append(Network(traced.graph, members, size, own, shapes, joint=copy.joint, apart=apart))
        arguments.expect_(example, traced.sized, traced.typed)
        kept.update(traced.kept)
        if tree is not None and traced.tree != tree:
            raise Unfit("the members' outputs are of different kinds")
        tree = traced.tree
    assert tree is not None
    return TracedNetworks(networks, tree, kept, arguments)


def count_without_masked(ensemble: Ensemble, example: Any, masks: Mapping[str, Tensor]) -> int:
    """The mult-adds of one example of a masked ensemble once frozen, also where it has no values; `Unfit` if none.

    Args:
        masks: the values of its masks, (members, channels), by the names of their layers
    """
    written = trace_members(ensemble, Example(example), False)
    for network in written.networks:
        for layer in network.layers.values():
            mask = masks.get(str(layer.node.target).removeprefix("module."))
            if mask is not None:
                layer.members = [plain._replace(mask=own) for plain, own in zip(layer.members, mask, strict=True)]
    made = Frozen(ensemble, written.arguments, [FORMS["loop"](one) for one in written.networks], written.tree)
    return cost(made, example).mult_adds


def _write_forms(copy: Ensemble, example: Example, small: bool) -> list[Frozen]:
    """The ensemble in every form; each says which others cannot be had."""
    written = trace_members(copy, example, small)
    variants = {form: (form, written) for form in FORMS}
    kinds = tuple(copy.modules())
    images, vectors = (any(isinstance(one, kind) for one in kinds) for kind in (CONVOLUTIONS, RankOne))
    if vectors and not small and not images:  # one weight is read faster than several
        variants["beside, with vectors apart"] = "beside", trace_members(copy, example, True)
    forms: list[Frozen] = []
    left_out: list[str] = []
    for name, (form, written) in variants.items():
        if form == "beside" and example.rows > MANY and _widest_group(written) > NARROW:
            continue  # groups are slower than a loop, and need more memory
        try:
            made = Frozen(copy, written.arguments, [FORMS[form](one) for one in written.networks], written.tree)
            run_on_copies(made, example.first(2))
        except Exception as error:  # an operation that takes no more dimensions than it had may raise anything
            left_out.append(f"does not run as {name}: {first_line(error)}")
            continue
        made.form, made.chunk = name, max(CHUNK, BUFFER // max(_row_bytes(one, form) for one in written.networks))
        _tell_(made, written)
        if not small:
            _pack_(made, example)
        forms.append(made)
    if not forms:
        raise Unfit(f"it {left_out[-1]}")
    for made in forms:
        made.notes += left_out
    return forms


def _row_bytes(network: Network, form: str) -> int:
    """Of the largest value, for one row: side by side all members' are one."""
    copies = {True: network.size if form == "beside" else 1, False: 1}
    return max(4 * prod(shape) * copies[node in network.own] // SAMPLES[0] for node, shape in network.shapes.items())


def _widest_group(written: TracedNetworks) -> int:
    """The most channels that a member has in a convolution of its own inputs; side by side these run as groups."""
    layers = [(layer, network) for network in written.networks for layer in network.layers.values()]
    own = [one for one, network in layers if not one.is_linear and network.source(one)[0] in network.own]
    return max((len(layer.plain(0).weight) for layer in own), default=0)


def _pack_(made: Frozen, example: Example) -> None:
    """Let convolutions keep their weights in the best order for a batch like the example too, where that is worth it.

    With four members that takes half off a LeNet x4 and off one row of a ResNet-18; the heavy weights of many rows gain
    less than 1.07 from it (docs/benchmarks.md).
    """
    shapes: dict[Convolution, tuple[int, ...]] = {}

    def note(part: Any, args: Any) -> None:
        shapes[part] = tuple(args[0].shape)

    hooks = [part.register_forward_pre_hook(note) for part in made._convolutions()]
    run_on_copies(made, example.first(CHUNK))
    for hook in hooks:
        hook.remove()
    for part, shape in shapes.items():
        if example.rows <= MANY or part.weight.numel() <= LIGHT:
            part.pack_(shape)


def _order(forms: list[Frozen], example: Example, choose: str) -> list[Frozen]:
    """The forms, the best first."""
    tensors, rows = tensors_of(example.batch), example.rows
    images = any(made.images for made in forms)
    if choose == "rule" or len(forms) < 2 or any(t.is_meta for t in tensors):
        best = "loop" if rows > 2 and images and not forms[0].narrow else "beside"
        for made in forms:
            made.notes.insert(0, f"runs as {made.form}, the rule for {rows} rows")
        return sorted(forms, key=lambda made: made.form != best)
    rows = min(rows, CHUNK if images else RACED)
    args, kwargs = example.first(rows)
    times = race({made.form: partial(made, *args, **kwargs) for made in forms}, tensors[0].device)
    told = "; ".join(f"{form} {time / min(times.values()):.2f}" for form, time in times.items())
    for made in forms:
        made.notes.insert(0, f"runs as {made.form}, chosen for {rows} rows ({told})")
    return sorted(forms, key=lambda made: times[made.form])


def _tell_(made: Frozen, written: TracedNetworks) -> None:
    """Let it say what was done."""
    networks = written.networks
    layers = [layer for network in networks for layer in network.layers.values()]
    folded = [name.removeprefix("module.") for layer in layers for name in layer.folded]
    shared = [n for network in networks for n in network.layers if n not in network.own]
    if folded:
        made.notes.append(
            f"normalisation layers folded into the layer before: {len(folded)} ({quote_names(folded, 3)})"
        )
    if shared and made.size > 1:
        made.notes.append(f"layers that run once for all members: {len(shared)} of {len(layers)}")
    if any(layer.plain(0).mask is not None for layer in layers):
        made.notes.append("channels that a member's masks always drop are not computed")
    made.narrow = 0 < _widest_group(written) <= NARROW
    made.notes += [f"{name!r} is unchanged: {reason}" for name, reason in written.kept.items()]


def _as_example(batch: Batch) -> Any:
    """The arguments of a call as an example of one."""
    return batch[1] or batch[0]


def _check(ensemble: Any, choose: str, memory: str) -> None:
    if not isinstance(ensemble, Ensemble):
        kind = type(ensemble).__name__
        hint = "Use pb.single(model) for one network." if isinstance(ensemble, nn.Module) else "Make one with pb.deep."
        if hasattr(ensemble, "ensemble"):  # Calibrated and Upgrade
            hint = "Give its .ensemble, and calibrate the answers of the frozen one with `apply`."
        raise TypeError(f"freeze: the first argument must be an Ensemble, but it is a {kind}. {hint}")
    for name, value, known in (("choose", choose, ("measure", "rule")), ("memory", memory, ("fast", "small"))):
        if value not in known:
            raise ValueError(f"freeze: {name} must be one of {quote_names(known)}, but it is {value!r}.")
