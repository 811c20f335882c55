"""The settings that a plan considers, each with its figures: counted, and derived only where that is exact.

Two families. Members that share nothing (deep, packed) are copies of one network: M times its figures. In every
other method each operation either runs once or once per member, so that each figure is a + b M: it is counted
for two and for three members, and known for all sizes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from . import masks
from .activations import Activations, Watching
from .choosing import heads_of, inputs_of, layers_of
from .cost import FORMULAS, _plain_operators
from .dropout import dropout_modules
from .ensemble import Ensemble
from .grouping import group_, groups_of
from .layers import Masked, PerMember
from .methods import METHODS
from .surgery import adapt_, duplicate, opened, quiet, within
from .thinning import rebuild, solve
from .trees import as_batch, rows_of, tensors_of

REFUSALS = (RuntimeError, ValueError, TypeError, IndexError, AttributeError, KeyError, AssertionError)
OPTIMIZER = 4  # a weight, its gradient and two moments


@dataclass(frozen=True)
class Figures:
    """What a network costs; bytes are those of the example's batch."""

    parameters: int
    mult_adds: int
    passes: float
    weights: int  # bytes of parameters
    buffers: int  # bytes
    peak: int  # bytes of results alive at once
    kept: int  # bytes of results that training keeps

    @property
    def memory(self) -> int:
        """Bytes of a prediction."""
        return self.weights + self.buffers + self.peak

    @property
    def training_memory(self) -> int:
        """Bytes of a training step."""
        return OPTIMIZER * self.weights + self.buffers + self.kept


@dataclass(frozen=True)
class Candidate:
    """A method with its settings, its figures or the reason why there are none.

    Args:
        capacity: parameters that one member computes with, relative to the model
        width: channels of one member, relative to the model
        iou: expected overlap of two masks
        expected: the figures are expected values, because widths are drawn
    """

    method: str
    settings: dict[str, Any]
    size: int
    figures: Figures | None
    capacity: float = 1.0
    width: float = 1.0
    iou: float | None = None
    expected: bool = False
    reason: str = ""

    @property
    def call(self) -> str:
        """The code that makes it."""
        example = self.method in ("packed", "masksembles", "mimo")
        size = [] if self.method == "single" else [str(self.size)]
        settings = [f"{name}={value!r}" for name, value in self.settings.items()]
        return f"pb.{self.method}({', '.join(['model', *size, *settings, *(['example=x'] if example else [])])})"


Options = Mapping[str, Any]


def candidates(
    model: nn.Module, x: Any, methods: Sequence[str], sizes: Sequence[int], options: Options
) -> tuple[Figures, list[Candidate]]:
    """The model's own figures, and every candidate of the methods."""
    single = _counted(METHODS["single"](model), x)
    base = _figures(single, 1, rows_of(as_batch(x)))
    found: list[Candidate] = []
    for method in methods:
        try:
            found += CANDIDATES.get(method, _no_candidates)(model, x, base, single, list(sizes), options)
        except REFUSALS as error:
            found.append(_refused(method, {}, error))
    return base, found


def _refused(method: str, settings: dict[str, Any], error: Exception) -> Candidate:
    return Candidate(method, settings, 0, None, reason=(str(error).strip() or repr(error)).splitlines()[0])


def _no_candidates(*_: Any) -> list[Candidate]:
    return []


# -------------------------------------------------------------------- counting


@dataclass(frozen=True)
class _Count:
    """What one conversion showed; mult-adds of all rows."""

    parameters: int
    mult_adds: int
    passes: float
    weights: int
    buffers: int
    results: Activations
    feed: str
    run: str
    output: int  # bytes of one member's output

    def totals(self) -> tuple[int, ...]:
        return self.parameters, self.mult_adds, self.weights, self.buffers, self.results.total


def _counted(ensemble: Ensemble, x: Any) -> _Count:
    """Everything of an ensemble, in one run; like `pb.cost`, the first run finds out whether vmap works."""
    args, kwargs = as_batch(x)
    with _plain_operators(), quiet(ensemble), torch.random.fork_rng(devices=[]):
        ensemble(*args, **kwargs)
        with Watching([*ensemble.parameters(), *ensemble.buffers(), *tensors_of(x)]) as watching:
            with FlopCounterMode(display=False, custom_mapping=FORMULAS) as counter:
                output = ensemble(*args, **kwargs)
    parameters = list(ensemble.parameters())
    return _Count(
        sum(p.numel() for p in parameters), counter.get_total_flops() // 2, float(ensemble.passes), _bytes(parameters),
        _bytes(list(ensemble.buffers())), watching.seen(), ensemble.feed, ensemble.run,
        _bytes(tensors_of(output)) // ensemble.size,
    )  # fmt: skip


def _bytes(tensors: Sequence[Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def _figures(count: _Count, copies: int, rows: int) -> Figures:
    """Of `copies` networks that share nothing, of which the count is one."""
    peak = count.results.peak * copies
    if count.run == "loop":  # one after the other; their outputs stay
        peak = count.results.peak + (copies - 1) * count.output
    return Figures(
        count.parameters * copies, -(-count.mult_adds * copies // rows), float(copies), count.weights * copies,
        count.buffers * copies, peak, count.results.total * copies,
    )  # fmt: skip


def _linear(two: _Count, three: _Count, single: _Count, size: int, rows: int) -> Figures:
    """Of `size` members, from the counts of two and of three."""
    parameters, total, weights, buffers, kept = (
        a + (b - a) * (size - 2) for a, b in zip(two.totals(), three.totals(), strict=True)
    )
    first, second = two.results.timeline, three.results.timeline
    if len(first) == len(second):  # the same operations: each is a + b M
        peak = max((a + (b - a) * (size - 2) for a, b in zip(first, second, strict=True)), default=0)
    else:
        peak = two.results.peak + (three.results.peak - two.results.peak) * (size - 2)
    passes = two.passes + (three.passes - two.passes) * (size - 2)
    kept = single.results.total if two.feed in ("share", "once") else kept  # one pass of the batch
    return Figures(parameters, -(-total // rows), passes, weights, buffers, peak, kept)


def _family(
    method: str, make: Callable[[int], Ensemble], x: Any, base: Figures, single: _Count, sizes: Sequence[int],
    settings: dict[str, Any],
) -> list[Candidate]:  # fmt: skip
    """One candidate for each size of a method whose figures are a + b M."""
    try:
        two, three = (_counted(make(size), x) for size in (2, 3))
    except REFUSALS as error:
        return [_refused(method, settings, error)]
    own = three.parameters - two.parameters  # of one member
    shared = two.parameters - 2 * own
    used = (shared + own) / base.parameters
    rows = rows_of(as_batch(x))
    return [Candidate(method, settings, size, _linear(two, three, single, size, rows), used) for size in sizes]


# -------------------------------------------------------------------- one function per method


def _deep(
    model: nn.Module, x: Any, base: Figures, single: _Count, sizes: Sequence[int], options: Options
) -> list[Candidate]:
    rows = rows_of(as_batch(x))
    return [Candidate("deep", {}, size, _figures(single, size, rows)) for size in sizes]


def _packed(
    model: nn.Module, x: Any, base: Figures, single: _Count, sizes: Sequence[int], options: Options
) -> list[Candidate]:
    found: list[Candidate] = []
    counts: dict[Any, _Count | Exception] = {}
    rows = rows_of(as_batch(x))
    takes_gamma = bool(getattr(model, "takes_gamma", None))
    for size in sizes:
        for alpha in options["alphas"]:
            for gamma in options["gammas"] if takes_gamma else (1,):
                if alpha >= size:  # not thinner than the model
                    continue
                groups = groups_of(model, alpha / size, gamma, None, 64)
                if gamma > 1 and not any(g > 1 for g in groups.values()):
                    continue  # the same network as with gamma 1
                key = alpha / size, tuple(sorted(groups.items()))
                if key not in counts:
                    counts[key] = _thin_count(model, x, alpha / size, groups)
                settings = {"alpha": alpha, "gamma": gamma}
                count = counts[key]
                if isinstance(count, Exception):
                    found.append(_refused("packed", {"size": size, **settings}, count))
                    continue
                capacity = count.parameters / base.parameters
                figures = _figures(count, size, rows)
                found.append(Candidate("packed", settings, size, figures, capacity, alpha / size))
    return found


def _thin_count(model: nn.Module, x: Any, factor: float, groups: dict[str, int]) -> _Count | Exception:
    try:
        widths = solve(model, x, factor, multiples=groups)
        if all(widths.sizes[name] == tuple(tensor.shape) for name, tensor in model.named_parameters()):
            return ValueError(f"no hidden width of the model can be multiplied by {factor:g}")
        return _counted(METHODS["single"](group_(rebuild(model, widths), groups, None)), x)
    except REFUSALS as error:
        return error


def _masksembles(
    model: nn.Module, x: Any, base: Figures, single: _Count, sizes: Sequence[int], options: Options
) -> list[Candidate]:
    view = opened(model)
    names = layers_of("masksembles", view, None, x, but_first=True, per_row=True)
    rows = rows_of(as_batch(x))
    found: list[Candidate] = []
    two, three = (_counted(_masked(view, names, size), x) for size in (2, 3))
    for size in sizes:
        for scale in options["scales"]:  # the network keeps its widths
            capacity, width = _masked_share(view, names, scale, size, base)
            figures = _linear(two, three, single, size, rows)
            iou = masks.expected_iou(scale)
            found.append(Candidate("masksembles", {"scale": scale}, size, figures, capacity, width, iou))
    for capacity in options["capacities"]:  # layers grow instead
        found += [_grown(view, names, x, base, size, scale, capacity) for size in sizes for scale in options["scales"]]
    return found


def _masked(view: nn.Module, names: Sequence[str], size: int) -> Ensemble:
    """As `pb.masksembles`, with masks that have no values."""
    model = duplicate(view)
    for name in names:
        layer = model.get_submodule(name)
        weight = cast(Tensor, layer.weight)
        layer.register_buffer("mask", torch.ones(size, inputs_of(layer), dtype=weight.dtype, device=weight.device))
        adapt_(layer, Masked)
        cast(PerMember, layer).begin_()
    own = [within(name, "mask") for name in names]
    return Ensemble(model, size, own, method="masksembles", feed="share")


def _masked_share(view: nn.Module, names: Sequence[str], scale: float, size: int, base: Figures) -> tuple[float, float]:
    """The parameters that a mask lets through, and the mean share of the channels."""
    dropped, ones, channels = 0.0, 0, 0
    for name in names:
        layer = view.get_submodule(name)
        inputs = inputs_of(layer)
        kept = masks.ones(inputs, size, scale)
        dropped += cast(Tensor, layer.weight).numel() * (1 - kept / inputs)
        ones, channels = ones + kept, channels + inputs
    return 1 - dropped / base.parameters, ones / channels


def _grown(
    view: nn.Module, names: Sequence[str], x: Any, base: Figures, size: int, scale: float, capacity: float
) -> Candidate:
    """Masks of a given width m: layers grow to an expected m S (1 - (1 - 1/S)^n)."""
    settings = {"scale": scale, "capacity": capacity}

    def grow(width: int) -> int:
        kept = max(1, round(capacity * width))
        return max(kept, round(kept * scale * (1 - (1 - 1 / scale) ** size)))

    try:
        wide = rebuild(view, solve(view, x, grow, layers=names))
        count = _counted(_masked(wide, names, size), x)
        one_pass = _counted(METHODS["single"](wide), x)
    except REFUSALS as error:
        return _refused("masksembles", {"size": size, **settings}, error)
    figures = Figures(
        count.parameters, -(-count.mult_adds // rows_of(as_batch(x))), count.passes, count.weights, count.buffers,
        count.results.peak, one_pass.results.total,
    )  # fmt: skip
    share = sum(cast(Tensor, view.get_submodule(n).weight).numel() for n in names) / base.parameters
    used = 1 + share * (capacity**2 - 1)  # inputs and outputs of the masked layers
    return Candidate("masksembles", settings, size, figures, used, capacity, masks.expected_iou(scale), expected=True)


def _batch_ensemble(
    model: nn.Module, x: Any, base: Figures, single: _Count, sizes: Sequence[int], options: Options
) -> list[Candidate]:
    make = lambda size: METHODS["batch_ensemble"](model, size, example=x)  # noqa: E731
    return _family("batch_ensemble", make, x, base, single, sizes, {})


def _mc_dropout(
    model: nn.Module, x: Any, base: Figures, single: _Count, sizes: Sequence[int], options: Options
) -> list[Candidate]:
    if dropout_modules(opened(model)):
        choices: list[dict[str, Any]] = [{}]
    else:
        last = "|".join(map(re.escape, heads_of(model, None, x)))
        choices = [{"rate": options["rate"]}, {"rate": options["rate"], "where": last}]
    found = []
    for settings in choices:
        make = lambda size, s=settings: METHODS["mc_dropout"](model, size, **s, example=x)  # noqa: E731
        found += _family("mc_dropout", make, x, base, single, sizes, settings)
    return found


def _mimo(
    model: nn.Module, x: Any, base: Figures, single: _Count, sizes: Sequence[int], options: Options
) -> list[Candidate]:
    make = lambda size: METHODS["mimo"](model, size, example=x)  # noqa: E731
    return _family("mimo", make, x, base, single, sizes, {})


def _multihead(
    model: nn.Module, x: Any, base: Figures, single: _Count, sizes: Sequence[int], options: Options
) -> list[Candidate]:
    make = lambda size: METHODS["multihead"](model, size, example=x)  # noqa: E731
    return _family("multihead", make, x, base, single, sizes, {})


def _treenet(
    model: nn.Module, x: Any, base: Figures, single: _Count, sizes: Sequence[int], options: Options
) -> list[Candidate]:
    found: list[Candidate] = []
    for branch in options["branches"] or branch_points(model, x):
        make = lambda size, b=branch: METHODS["treenet"](model, size, b)  # noqa: E731
        found += _family("treenet", make, x, base, single, sizes, {"branch": branch})
    return found


def branch_points(model: nn.Module, x: Any, most: int = 3) -> list[str]:
    """Patterns of what members could own, from a part of the model on to its end; the last layer alone is multihead."""
    parts = [name for name in _in_order(model, x) if any(True for _ in model.get_submodule(name).parameters())]
    starts = list(range(1, len(parts) - 1))
    if len(starts) > most:  # evenly spread
        starts = [starts[round((i + 0.5) * len(starts) / most - 0.5)] for i in range(most)]
    return ["|".join(map(re.escape, parts[start:])) for start in starts]


def _in_order(model: nn.Module, x: Any) -> list[str]:
    """The model's parts in the order in which they run first; one that holds most of it gives its own parts."""
    parts = [name for name, _ in model.named_children()]
    leaves = lambda m: sum(1 for c in m.modules() if next(c.children(), None) is None)  # noqa: E731
    while heavy := [p for p in parts if leaves(model.get_submodule(p)) * 3 > leaves(model) * 2]:
        inner = [f"{heavy[0]}.{name}" for name, _ in model.get_submodule(heavy[0]).named_children()]
        if not inner:
            break
        parts = [p for p in parts if p != heavy[0]] + inner
    order: list[str] = []
    view = duplicate(model)
    hooks = [view.get_submodule(p).register_forward_pre_hook(lambda *_, p=p: order.append(p)) for p in parts]
    args, kwargs = as_batch(x)
    with quiet(view, *hooks), torch.random.fork_rng(devices=[]):
        view(*args, **kwargs)
    return list(dict.fromkeys(order))


CANDIDATES: dict[str, Callable[..., list[Candidate]]] = {
    "deep": _deep,
    "packed": _packed,
    "masksembles": _masksembles,
    "batch_ensemble": _batch_ensemble,
    "mc_dropout": _mc_dropout,
    "mimo": _mimo,
    "treenet": _treenet,
    "multihead": _multihead,
}
