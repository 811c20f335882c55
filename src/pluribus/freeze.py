"""The fastest network that gives what an ensemble gives: inference only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from .answers import answers
from .cost import cost
from .ensemble import Ensemble
from .folding import Network
from .graphs import Holder, Still, Unfit, member_trees, shapes_of, trace
from .kernels import WAYS, Convolution, can_pack
from .layers import RankOne
from .lowering import FORMS, Unable
from .prediction import Prediction
from .race import race
from .summary import gathered
from .surgery import CONVOLUTIONS, call, duplicate, listed, state
from .trees import Batch, answer, as_batch, batches_and_targets, flatten, map_rows, map_tensors, rows_of, tensors_of
from .tuning import pack_, tune_, without_winograd_

CHUNK = 32  # larger buffers are mapped afresh at each call, which costs more than it saves
MANY = 8  # rows from which on the members' convolutions run one after the other


def freeze(
    ensemble: Ensemble,
    example: Any,
    *,
    choose: Literal["measure", "rule"] = "measure",
    memory: Literal["fast", "small"] = "fast",
) -> Frozen:
    """An inference-only module with the ensemble's outputs, to float tolerance, and the fewest operations.

    Normalisation is folded into the layers before it, rank-1 vectors into weights; a channel that a member's masks
    never let through is not computed; what no member owns runs once. The ensemble stays as it is. What cannot be
    traced stays as it was, and `explain` says so.

    Args:
        example: what one call takes, with as many rows as there will be: the way to run is chosen for it. Any number
            of rows works later; other sizes work unless the model's code asks about them
        choose: "measure": the ways to run are timed on the example; "rule": always the same way for the same call
        memory: "small": BatchEnsemble's vectors stay beside the weights that the members share

    >>> import pluribus as pb
    >>> frozen = pb.freeze(pb.deep(nn.Linear(4, 3), 2), torch.zeros(5, 4))
    >>> frozen(torch.zeros(7, 4)).shape
    torch.Size([2, 7, 3])
    """
    _check(ensemble, choose, memory)
    copy, batch = cast(Ensemble, duplicate(ensemble)).eval(), as_batch(example)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        copy.check_once(batch)
        few = _few(example)
        call("freeze", copy, map_tensors(few, lambda t: t.clone()))
        before = cost(copy, few).mult_adds
        made = _frozen(copy, batch, choose, memory)
    made.mult_adds = before, cost(made, few).mult_adds
    return made


class Frozen(nn.Module):
    """What `pluribus.freeze` gives: (members, batch, ...) for a batch, as the ensemble in eval mode.

    `explain()` says what was done. Its weights are plain tensors wherever someone looks at them; between calls on a
    CPU convolutions hold theirs in the order that the kernels read (`plain_()` puts them back).
    """

    def __init__(self, ensemble: Ensemble, batch: Batch, runs: Sequence[nn.Module], tree: pytree.TreeSpec | None):
        super().__init__()
        self.method, self.size, self.task, self.class_dim = (
            ensemble.method, ensemble.size, ensemble.task, ensemble.class_dim,
        )  # fmt: skip
        self.passes = ensemble.passes
        self.runs = nn.ModuleList(runs)  # the structure of the outputs, with a number in place of each tensor:
        self.outline = None if tree is None else pytree.tree_unflatten(list(range(tree.num_leaves)), tree)
        self.form, self.packs, self.chunk = "loop", False, 0
        self.mult_adds = (0, 0)
        self.notes: list[str] = []
        self.joint = ensemble.method == "mimo"
        self.sizes: list[tuple[int, ...]] | None = None  # of the inputs without their rows, where they must be these
        self._packed: list[torch.Size] | None = None  # the sizes of the inputs that weights are packed for
        self.training = False
        self.images = any(isinstance(part, Convolution) for part in self.modules())
        self.large = False  # its values have more dimensions than rows and features

    # ---------------------------------------------------------------- what users call

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Every member on every row: (members, batch, ...)."""
        if torch.is_grad_enabled():
            with torch.no_grad():
                return self.forward(*args, **kwargs)
        if torch.compiler.is_compiling():
            if self._packed:
                torch._dynamo.disable(self.plain_)(for_good=True)  # a decorator would import the compiler at once
            return self._run((args, kwargs))
        batch = args, kwargs
        tensors = _tensors(batch)
        if self.sizes is not None:
            self._check_sizes(tensors)
        if self.packs:
            self._prepare(batch, tensors)
        if not self.chunk or len(tensors[0]) <= self.chunk:
            return self._run(batch)
        rows = len(tensors[0])
        parts = [
            self._run(map_rows(batch, rows, lambda t, start=start: t[start : start + self.chunk]))
            for start in range(0, rows, self.chunk)
        ]
        return pytree.tree_map(lambda *ts: torch.cat(ts, 1) if isinstance(ts[0], Tensor) else ts[0], *parts)

    def answers(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Mean, label, confidence, total, aleatoric and epistemic uncertainty of each row, by name."""
        return answers(self.task, answer(self(*args, **kwargs)), self.class_dim)

    def predict(self, x: Any, batch_size: int | None = None) -> Prediction:
        """The members' predictions, as `Ensemble.predict` gives them."""
        first = next(iter(self.parameters()), torch.zeros(()))
        pairs = batches_and_targets(x, batch_size, first.device, first.dtype)
        outputs = ((answer(self(*args, **kwargs)), y) for (args, kwargs), y in pairs)
        return cast(Prediction, gathered(self.task, outputs, "members", self.class_dim))

    def explain(self) -> str:
        """What was done, and the mult-adds of one example before and after, as text."""
        before, after = self.mult_adds
        lines = [
            f"frozen {self.method}: {self.size} members, {self.task}",
            f"  mult-adds of one example: {before:,} before, {after:,} after",
            *(f"  {note}" for note in self.notes),
        ]
        ways = Counter(part.way for part in self.modules() if isinstance(part, Convolution))
        if self.packs and ways:
            lines.append("  convolutions: " + ", ".join(f"{ways[w]} {text}" for w, text in WAYS.items() if ways[w]))
        if self.chunk:
            lines.append(f"  large batches run {self.chunk} rows at a time")
        if self.sizes is not None:
            lines.append(f"  takes inputs of the sizes {self.sizes}, any number of rows")
        return "\n".join(lines)

    def plain_(self, for_good: bool = False) -> Frozen:
        """Put all weights back into plain tensors; the next call may pack them again unless this is for good."""
        self.packs = self.packs and not for_good
        if self._packed:
            for part in self.modules():
                if isinstance(part, Convolution):
                    part.unpack_()
            self._packed = None
        return self

    # ---------------------------------------------------------------- running

    def _run(self, batch: Batch) -> Any:
        if self.outline is None:  # as it was
            return self.runs[0](*batch[0], **batch[1])
        inputs = _tensors(batch)
        if self.images:
            inputs = [self._format(t) for t in inputs]
        rows = inputs[0].shape[0] if self.joint else 0
        columns = [run.forward(*inputs) for run in self.runs]
        if self.outline == 0 and len(columns) == 1 and not self.joint:  # the usual network
            return columns[0][0]
        leaves = [self._members_first(list(column), rows) for column in zip(*columns, strict=True)]
        return leaves[0] if self.outline == 0 else pytree.tree_unflatten(leaves, flatten(self.outline)[1])

    def _format(self, x: Tensor) -> Tensor:
        return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x

    def _members_first(self, column: list[Any], rows: int) -> Any:
        if not isinstance(column[0], Tensor):
            return column[0]
        if len(column) > 1:
            return torch.cat(column)
        leaf: Tensor = column[0]
        if not self.joint:
            return leaf
        return leaf.unflatten(0, (self.size, -1)) if leaf.shape[0] == self.size * rows else self._same(leaf)

    def _same(self, leaf: Tensor) -> Tensor:
        return leaf.expand(self.size, *leaf.shape)

    def _check_sizes(self, tensors: Sequence[Tensor]) -> None:
        if [tuple(t.shape[1:]) for t in tensors] != self.sizes:
            raise ValueError(
                f"frozen: the network was traced for inputs of the sizes {self.sizes} without their rows, but they are "
                f"{[tuple(t.shape[1:]) for t in tensors]}. Freeze the ensemble again with such an example."
            )

    def _prepare(self, batch: Batch, tensors: Sequence[Tensor]) -> None:
        """Pack the convolutions before the first call, or unpack them where the kernels cannot run."""
        able, sizes = can_pack(tensors[0]), [t.shape[1:] for t in tensors]
        if self._packed and (not able or self._packed != sizes):
            self.plain_()
        if able and not self._packed:
            rows = len(tensors[0])
            self._packed = sizes
            pack_(self, map_rows(batch, rows, lambda t: t[: self.chunk or rows]))

    # ---------------------------------------------------------------- what looks at the weights sees plain ones

    def __getstate__(self) -> dict[str, Any]:
        """Copies and files hold plain weights."""
        self.plain_()
        return self.__dict__.copy()

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        self.plain_()
        return super()._apply(*args, **kwargs)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """As every module; the weights are plain from now on."""
        self.plain_()
        return super().named_parameters(*args, **kwargs)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """As every module; the weights are plain from now on."""
        self.plain_()
        return super().state_dict(*args, **kwargs)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self.plain_()
        super()._load_from_state_dict(*args, **kwargs)

    def train(self, mode: bool = True) -> Frozen:
        """It does not train: the mode stays eval, and dropout of MC-Dropout awake."""
        return self

    def extra_repr(self) -> str:
        """What `print` shows."""
        return f"method={self.method!r}, size={self.size}, form={self.form!r}, task={self.task!r}"


def _tensors(batch: Batch) -> list[Tensor]:
    args, kwargs = batch
    if len(args) == 1 and isinstance(args[0], Tensor) and not kwargs:  # the usual call
        return [args[0]]
    return tensors_of(batch)


# -------------------------------------------------------------------- building


def _frozen(copy: Ensemble, batch: Batch, choose: str, memory: str) -> Frozen:
    """The frozen ensemble; where it cannot be traced, the ensemble as it was."""
    try:
        ways = _ways(copy, batch, choose, memory)
        for name in _order(ways, batch, choose):
            made = ways[name]
            if _is_equal(made, copy, batch) or (without_winograd_(made) and _is_equal(made, copy, batch)):
                return _chunked(made, batch, choose)
        raise Unfit("the traced network gives other outputs")
    except Unfit as reason:
        made = _as_it_was(copy, batch)
        made.notes.append(f"the network stays as it was: {reason}")
        _is_equal(made, copy, batch)
        return made


def _as_it_was(copy: Ensemble, batch: Batch) -> Frozen:
    made = Frozen(copy, batch, [_AsItWas(copy)], None)
    made.form = f"as it was, by {copy.run}"
    return made


class _AsItWas(nn.Module):
    """The ensemble in eval mode."""

    def __init__(self, ensemble: Ensemble):
        super().__init__()
        self.ensemble = ensemble

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As the ensemble."""
        return self.ensemble(*args, **kwargs)


def _networks(copy: Ensemble, batch: Batch, apart: bool) -> tuple[list[Network], pytree.TreeSpec, dict[str, str]]:
    """The traced network, or one for each of several unlike members."""
    around: Callable[[], AbstractContextManager[Any]] = copy.around or nullcontext
    if not copy.stacked:
        trees = [[Holder(member)] for member in cast(Any, duplicate(copy.module))]
        sizes, owned = [1] * copy.size, [{id(t) for _, t in state(tree[0])} for tree in trees]
    else:
        trees = [member_trees(copy.module, copy.size, copy.own)]
        named = dict(state(trees[0][0].module))
        sizes, owned = [1 if copy.method == "mimo" else copy.size], [{id(named[name]) for name in copy.own}]
    networks, kept, tree = [], {}, None
    small = _few(batch)
    for members, size, own in zip(trees, sizes, owned, strict=True):
        traced = trace(members[0], small, around())
        with around():
            shapes = shapes_of(traced.graph, members[0], small)
        joint = copy.method == "mimo"
        made = Network(traced.graph, members, size, own, shapes, joint=joint, apart=apart, sized=traced.sized)
        networks.append(made)
        kept.update(traced.kept)
        if tree is not None and traced.tree != tree:
            raise Unfit("the members' outputs are of different kinds")
        tree = traced.tree
    assert tree is not None
    return networks, tree, kept


def _ways(copy: Ensemble, batch: Batch, choose: str, memory: str) -> dict[str, Frozen]:
    """Every way to run it, each with the best ways for its convolutions; all say which others cannot be had."""
    rows, small = rows_of(batch), memory == "small"
    images = any(isinstance(module, CONVOLUTIONS) for module in copy.modules())
    vectors = any(isinstance(module, RankOne) for module in copy.modules())
    ways: dict[str, Frozen] = {}
    left_out: list[str] = []

    def add(name: str, form: str, networks: Sequence[Network], tree: pytree.TreeSpec, kept: dict[str, str]) -> None:
        try:
            made = _written(copy, batch, networks, tree, form)
        except Unable as reason:
            left_out.append(f"does not run by {name}: {reason}")
            return
        made.form = name
        ways[name] = _told(_tuned(made, batch, choose, memory), batch, networks, kept)

    traced = networks, _, _ = _networks(copy, batch, small)
    layers = [(layer, network) for network in networks for layer in network.layers.values()]
    grouped = any(not layer.is_linear and layer.source in network.own for layer, network in layers)
    for form in FORMS:
        if form == "beside" and grouped and rows > MANY:
            continue  # groups are slower than a loop, and need more memory
        add(form, form, *traced)
    if vectors and not small and (rows <= MANY or not images):  # reading one weight is faster than reading several
        add("beside, with vectors apart", "beside", *_networks(copy, batch, True))
    if copy.run == "vmap" and (not images or rows <= MANY):
        ways["as it was"] = _as_it_was(copy, batch)
    for made in ways.values():
        made.notes += left_out
    return ways


def _written(copy: Ensemble, batch: Batch, networks: Sequence[Network], tree: pytree.TreeSpec, form: str) -> Frozen:
    """The network in a form, if it can be written so and runs."""
    few = _few(batch)
    try:
        made = Frozen(copy, batch, [FORMS[form](network) for network in networks], tree)
        made(*few[0], **few[1])
    except Exception as error:  # an operation that takes no more dimensions than it had may raise anything
        raise Unable((str(error).strip() or repr(error)).split("\n")[0]) from error
    return made


def _tuned(made: Frozen, batch: Batch, choose: str, memory: str) -> Frozen:
    if made.images and can_pack(tensors_of(batch)[0]):
        made.packs = True
        part = map_rows(batch, rows_of(batch), lambda t: t[:CHUNK])
        tune_(made, part, choose == "measure", memory == "fast")
    return made


def _order(ways: dict[str, Frozen], batch: Batch, choose: str) -> list[str]:
    """The names of the ways, the best first."""
    tensors, rows = tensors_of(batch), rows_of(batch)
    first = "beside" if rows <= 2 or not any(made.images for made in ways.values()) else "loop"
    ruled = sorted(ways, key=lambda name: (name != first, name == "as it was"))
    if choose == "rule" or len(ways) < 2 or any(t.is_meta for t in tensors):
        for made in ways.values():
            made.notes.insert(0, f"run by {made.form}, the rule for {rows} rows")
        return ruled
    part = map_rows(batch, rows, lambda t: t[:CHUNK])
    times = race({name: partial(made, *part[0], **part[1]) for name, made in ways.items()}, tensors[0].device)
    for made in ways.values():
        made.notes.insert(0, f"run by {made.form}, chosen for {min(rows, CHUNK)} rows ({_shown(times)})")
    return list(times)


def _shown(times: dict[str, float]) -> str:
    best = min(times.values())
    return "; ".join(f"{name} {time / best:.2f}" for name, time in times.items())


@torch.no_grad()
def _is_equal(made: Frozen, copy: Ensemble, batch: Batch) -> bool:
    """Whether it gives what the ensemble gives, for a few rows, and row by row, which lets it run in chunks."""
    few = _few(batch)
    rows = rows_of(few)
    more = map_rows(few, rows, lambda t: torch.cat([t, t.flip(-1) if t.ndim > 1 else t]))
    with torch.random.fork_rng(devices=[]), Still():
        outputs = []
        for given in (few, more):
            args, kwargs = map_tensors(given, lambda t: t.clone())
            expected, again = copy(*args, **kwargs), copy(*args, **kwargs)
            if not close(again, expected):
                return True  # random in a way that cannot be stilled
            outputs.append(made(*args, **kwargs))
            if not close(outputs[-1], expected):
                return False
    first, both = (tensors_of(output) for output in outputs)
    by_rows = all(t.ndim > 1 and t.shape[1] == rows for t in first)
    by_rows = by_rows and made.large
    made.chunk = CHUNK if by_rows and all(close(b[:, :rows], f) for f, b in zip(first, both, strict=True)) else 0
    return True


def _chunked(made: Frozen, batch: Batch, choose: str) -> Frozen:
    """Images run in parts wherever they can; for other large values it is measured whether that pays."""
    rows, tensors = rows_of(batch), tensors_of(batch)
    if not made.chunk or made.images:
        return made
    made.chunk = 0
    if choose == "measure" and rows > CHUNK and not any(t.is_meta for t in tensors):

        def run(chunk: int) -> None:
            made.chunk = chunk
            made(*batch[0], **batch[1])

        times = race({"whole": partial(run, 0), "in parts": partial(run, CHUNK)}, tensors[0].device)
        made.chunk = CHUNK if next(iter(times)) == "in parts" else 0
    return made


def close(a: Any, b: Any) -> bool:
    """Whether two trees of outputs are alike to 1e-5 of their size."""
    pairs = list(zip(tensors_of(a), tensors_of(b), strict=True))
    return all(x.shape == y.shape and x.dtype == y.dtype and _near(x, y) for x, y in pairs)


def _near(x: Tensor, y: Tensor) -> bool:
    if x.is_meta or not x.is_floating_point():
        return x.is_meta or torch.equal(x, y)
    scale = float(y.nan_to_num(0, 0, 0).abs().max()) if y.numel() else 0.0
    return torch.allclose(x, y, rtol=1e-4, atol=1e-5 * scale + 1e-30, equal_nan=True)


def _told(made: Frozen, batch: Batch, networks: Sequence[Network], kept: dict[str, str]) -> Frozen:
    """It says what was done."""
    layers = [layer for network in networks for layer in network.layers.values()]
    folded = [name.removeprefix("module.") for layer in layers for name in layer.folded]
    shared = [n for network in networks for n in network.layers if n not in network.own]
    if folded:
        made.notes.append(f"normalisation folded into the layer before it: {len(folded)} ({listed(folded, 3)})")
    if shared and made.size > 1:
        made.notes.append(f"layers that run once for all members: {len(shared)} of {len(layers)}")
    if any(layer.plain(0).mask is not None for layer in layers):
        made.notes.append("channels that a member's masks never let through are not computed")
    made.large = any(len(shape) > 2 for network in networks for shape in network.shapes.values())
    if any(network.sized for network in networks):
        made.sizes = [tuple(t.shape[1:]) for t in tensors_of(batch)]
    made.notes += [f"{name!r} stays as it was: {reason}" for name, reason in kept.items()]
    return made


def _few(batch: Any) -> Any:
    """Two rows of the batch, or one."""
    return map_rows(batch, rows_of(batch), lambda t: t[:2])


def _check(ensemble: Any, choose: str, memory: str) -> None:
    if not isinstance(ensemble, Ensemble):
        kind = type(ensemble).__name__
        hint = "Use pb.single(model) for one network." if isinstance(ensemble, nn.Module) else "Make one with pb.deep."
        raise TypeError(f"freeze: the first argument must be an Ensemble, but it is a {kind}. {hint}")
    for name, value, known in (("choose", choose, ("measure", "rule")), ("memory", memory, ("fast", "small"))):
        if value not in known:
            raise ValueError(f"freeze: {name} must be one of {listed(known)}, but it is {value!r}.")
