"""The settings that a plan considers, each with its figures: counted, and derived only where that is exact.

Two families. Members that share nothing (deep, packed) are copies of one network: M times its figures. In every
other method each operation either runs once or once per member, so that each figure is a + b M: it is counted
for two and for three members, and known for all sizes.
"""

from __future__ import annotations

import inspect
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
from .cost import FORMULAS, plain_operators
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


@dataclass(frozen=True)
class Asked:
    """What candidates are wanted for: a model, an example and its rows, numbers of members and settings to try.

    `single` is the count of the model itself and `base` its figures.
    """

    model: nn.Module
    x: Any
    rows: int
    single: _Count
    base: Figures
    sizes: Sequence[int]
    options: Mapping[str, Any]


def candidates(
    model: nn.Module, x: Any, methods: Sequence[str], sizes: Sequence[int], options: Mapping[str, Any]
) -> tuple[Figures, list[Candidate]]:
    """The model's own figures, and every candidate of the methods."""
    single, rows = _counted(METHODS["single"](model), x), rows_of(as_batch(x))
    asked = Asked(model, x, rows, single, _figures(single, 1, rows), list(sizes), options)
    found: list[Candidate] = []
    for method in methods:
        try:
            found += CANDIDATES[method](asked) if method in CANDIDATES else _family(asked, method)
        except REFUSALS as error:
            found.append(_refused(method, {}, error))
    return asked.base, found


def _refused(method: str, settings: dict[str, Any], error: Exception) -> Candidate:
    return Candidate(method, settings, 0, None, reason=(str(error).strip() or repr(error)).splitlines()[0])


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
    ensemble.requires_grad_(False)  # as for `pb.cost`
    with plain_operators(), quiet(ensemble), torch.random.fork_rng(devices=[]):
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


def _family(asked: Asked, method: str, **settings: Any) -> list[Candidate]:
    """One candidate for each size of a method whose figures are a + b M."""
    function = METHODS[method]
    given = {"example": asked.x} if "example" in inspect.signature(function).parameters else {}
    try:
        two, three = (_counted(function(asked.model, size, **settings, **given), asked.x) for size in (2, 3))
    except REFUSALS as error:
        return [_refused(method, settings, error)]
    own = three.parameters - two.parameters  # of one member
    used = (two.parameters - own) / asked.base.parameters
    return [
        Candidate(method, settings, size, _linear(two, three, asked.single, size, asked.rows), used)
        for size in asked.sizes
    ]


# -------------------------------------------------------------------- one function per method


def _deep(asked: Asked) -> list[Candidate]:
    return [Candidate("deep", {}, size, _figures(asked.single, size, asked.rows)) for size in asked.sizes]


def _packed(asked: Asked) -> list[Candidate]:
    found: list[Candidate] = []
    counts: dict[Any, _Count | Exception] = {}
    model, options = asked.model, asked.options
    takes_gamma = bool(getattr(model, "takes_gamma", None))
    for size in asked.sizes:
        for alpha in options["alphas"]:
            for gamma in options["gammas"] if takes_gamma else (1,):
                if alpha >= size:  # not thinner than the model
                    continue
                groups = groups_of(model, alpha / size, gamma, None, 64)
                if gamma > 1 and not any(g > 1 for g in groups.values()):
                    continue  # the same network as with gamma 1
                key = alpha / size, tuple(sorted(groups.items()))
                if key not in counts:
                    counts[key] = _thin_count(model, asked.x, alpha / size, groups)
                settings = {"alpha": alpha, "gamma": gamma}
                count = counts[key]
                if isinstance(count, Exception):
                    found.append(_refused("packed", {"size": size, **settings}, count))
                    continue
                capacity = count.parameters / asked.base.parameters
                figures = _figures(count, size, asked.rows)
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


def _masksembles(asked: Asked) -> list[Candidate]:
    view, scales = opened(asked.model), asked.options["scales"]
    names = layers_of("masksembles", view, None, asked.x, but_first=True, per_row=True)
    found: list[Candidate] = []
    two, three = (_counted(_masked(view, names, size), asked.x) for size in (2, 3))
    for size in asked.sizes:
        for scale in scales:  # the network keeps its widths
            capacity, width = _masked_share(view, names, scale, size, asked.base)
            figures = _linear(two, three, asked.single, size, asked.rows)
            iou = masks.expected_iou(scale)
            found.append(Candidate("masksembles", {"scale": scale}, size, figures, capacity, width, iou))
    for capacity in asked.options["capacities"]:  # layers grow instead
        found += [_grown(asked, view, names, size, scale, capacity) for size in asked.sizes for scale in scales]
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


def _grown(asked: Asked, view: nn.Module, names: Sequence[str], size: int, scale: float, capacity: float) -> Candidate:
    """Masks of a given width m: layers grow to an expected m S (1 - (1 - 1/S)^n)."""
    settings = {"scale": scale, "capacity": capacity}

    def grow(width: int) -> int:
        kept = max(1, round(capacity * width))
        return max(kept, round(kept * scale * (1 - (1 - 1 / scale) ** size)))

    try:
        wide = rebuild(view, solve(view, asked.x, grow, layers=names))
        count = _counted(_masked(wide, names, size), asked.x)
        one_pass = _counted(METHODS["single"](wide), asked.x)
    except REFUSALS as error:
        return _refused("masksembles", {"size": size, **settings}, error)
    figures = Figures(
        count.parameters, -(-count.mult_adds // asked.rows), count.passes, count.weights, count.buffers,
        count.results.peak, one_pass.results.total,
    )  # fmt: skip
    share = sum(cast(Tensor, view.get_submodule(n).weight).numel() for n in names) / asked.base.parameters
    used = 1 + share * (capacity**2 - 1)  # inputs and outputs of the masked layers
    return Candidate("masksembles", settings, size, figures, used, capacity, masks.expected_iou(scale), expected=True)


def _mc_dropout(asked: Asked) -> list[Candidate]:
    if dropout_modules(opened(asked.model)):
        return _family(asked, "mc_dropout")
    rate = asked.options["rate"]
    last = "|".join(map(re.escape, heads_of(asked.model, None, asked.x)))
    return _family(asked, "mc_dropout", rate=rate) + _family(asked, "mc_dropout", rate=rate, where=last)


def _treenet(asked: Asked) -> list[Candidate]:
    branches = asked.options["branches"] or branch_points(asked.model, asked.x)
    return [candidate for branch in branches for candidate in _family(asked, "treenet", branch=branch)]


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


CANDIDATES: dict[str, Callable[[Asked], list[Candidate]]] = {  # every other method has one family
    "single": lambda asked: [],
    "deep": _deep,
    "packed": _packed,
    "masksembles": _masksembles,
    "mc_dropout": _mc_dropout,
    "treenet": _treenet,
}
