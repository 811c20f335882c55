"""The settings that a plan considers, each with its figures: counted, and derived only where that is exact.

Two families. Members that share nothing are copies of one network: M times its figures. In every other method each
operation either runs once or once per member, so that each figure is a + b M: it is counted for two and for three
members, and known for all sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from ..._common.trees import as_batch, rows_of, tensors_of
from ...core.ensemble import Ensemble
from ...methods import METHODS, single
from ...methods.facts import REFUSALS, Candidate, Wish, candidates_by_size, facts_of, first_line
from ...surgery.calling import evaluation_mode
from .activation_memory import Activations, Watching
from .counting import FORMULAS, plain_operators

OPTIMIZER = 4  # a weight, its gradient and two moments


@dataclass(frozen=True)
class CostFigures:
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
class Counted:
    """A method's candidate with its figures, or the reason why there are none."""

    method: str
    candidate: Candidate
    figures: CostFigures | None
    capacity: float = 1.0
    reason: str = ""


def count_candidates(
    wish: Wish, methods: Sequence[str], progress: Callable[[str], None] = lambda text: None
) -> tuple[CostFigures, list[Counted]]:
    """The model's own figures, and every candidate of the methods."""
    counter = Counter(wish)
    found: list[Counted] = []
    for number, name in enumerate(methods):
        progress(f"counting {name}, {number + 1} of {len(methods)} methods")
        offer = facts_of(METHODS[name]).candidates
        try:
            offered = candidates_by_size(METHODS[name], wish) if offer is None else offer(wish)
            found += counter.count_all(name, offered)
        except REFUSALS as error:
            found.append(Counted(name, Candidate({}, 0), None, reason=first_line(error)))
    return counter.base, found


@dataclass(frozen=True)
class Count:
    """What one run of an ensemble showed; mult-adds of all rows."""

    parameters: int
    mult_adds: int
    passes: float
    weights: int
    buffers: int
    results: Activations
    one_pass: bool  # a training step is one pass of the batch, whatever the number of members
    run: str
    output: int  # bytes of one member's output

    def totals(self) -> tuple[int, ...]:
        """The figures that are a + b M."""
        return self.parameters, self.mult_adds, self.weights, self.buffers, self.results.total


@dataclass
class Counter:
    """Counts candidates for one wish; what several candidates have in common is counted once."""

    wish: Wish
    counts: dict[Any, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rows = rows_of(as_batch(self.wish.example))
        self.base = figures_of_copies(self.count_network(self.wish.model), 1, self.rows)

    def count_all(self, method: str, candidates: Any) -> list[Counted]:
        """The candidates of one method; settings that fail for all sizes are refused once."""
        found: list[Counted] = []
        failed: set[int] = set()
        for candidate in candidates:
            if id(candidate.family) in failed:
                continue
            if candidate.reason:
                found.append(Counted(method, candidate, None, reason=candidate.reason))
                continue
            try:
                found.append(self.count(method, candidate))
            except REFUSALS as error:
                if candidate.family is not None:
                    failed.add(id(candidate.family))
                found.append(Counted(method, candidate, None, reason=first_line(error)))
        return found

    def count(self, method: str, candidate: Candidate) -> Counted:
        """The candidate with its figures."""
        if candidate.member is not None:
            one = self.count_network(candidate.member)
            figures, used = figures_of_copies(one, candidate.size, self.rows), one.parameters
        else:
            assert candidate.family is not None
            figures, used = self._figures_of_family(candidate, candidate.family)
        capacity = used / self.base.parameters if candidate.capacity is None else candidate.capacity
        return Counted(method, candidate, figures, capacity)

    def _figures_of_family(self, candidate: Candidate, make: Callable[[int], Ensemble]) -> tuple[CostFigures, int]:
        """The figures, and the parameters that one member computes with."""
        one_pass = self.count_network(candidate.network or self.wish.model)
        if candidate.exact:
            count = count_ensemble(make(candidate.size), self.wish.example)
            kept = one_pass.results.total if count.one_pass else count.results.total
            figures = CostFigures(
                count.parameters, -(-count.mult_adds // self.rows), count.passes, count.weights, count.buffers,
                count.results.peak, kept,
            )  # fmt: skip
            return figures, count.parameters
        two, three = self._count_once(
            make, lambda: tuple(count_ensemble(make(size), self.wish.example) for size in (2, 3))
        )
        own = three.parameters - two.parameters  # of one member
        return figures_by_size(two, three, one_pass, candidate.size, self.rows), two.parameters - own

    def count_network(self, network: nn.Module) -> Count:
        """One network alone."""
        return self._count_once(network, lambda: count_ensemble(single(network), self.wish.example))

    def _count_once(self, key: Any, count: Callable[[], Any]) -> Any:
        if id(key) not in self.counts:
            self.counts[id(key)] = (key, count())  # the key is held, so that its id stays its own
        return self.counts[id(key)][1]


def count_ensemble(ensemble: Ensemble, x: Any) -> Count:
    """Everything of an ensemble, in one run; like `pb.cost`, the first run finds out whether vmap works."""
    args, kwargs = as_batch(x)
    ensemble.requires_grad_(False)  # as for `pb.cost`
    with plain_operators(), evaluation_mode(ensemble), torch.random.fork_rng(devices=[]):
        ensemble(*args, **kwargs)
        with Watching([*ensemble.parameters(), *ensemble.buffers(), *tensors_of(x)]) as watching:
            with FlopCounterMode(display=False, custom_mapping=FORMULAS) as counter:
                output = ensemble(*args, **kwargs)
    parameters = list(ensemble.parameters())
    return Count(
        sum(p.numel() for p in parameters), counter.get_total_flops() // 2, float(ensemble.passes),
        bytes_of(parameters), bytes_of(list(ensemble.buffers())), watching.result(), ensemble.feed.keeps_one_pass,
        ensemble.run, bytes_of(tensors_of(output)) // ensemble.size,
    )  # fmt: skip


def bytes_of(tensors: Sequence[Tensor]) -> int:
    """How much memory the tensors' values take."""
    return sum(t.numel() * t.element_size() for t in tensors)


def figures_of_copies(count: Count, copies: int, rows: int) -> CostFigures:
    """Of `copies` networks that share nothing, of which the count is one."""
    peak = count.results.peak * copies
    if count.run == "loop":  # one after the other; their outputs stay
        peak = count.results.peak + (copies - 1) * count.output
    return CostFigures(
        count.parameters * copies, -(-count.mult_adds * copies // rows), float(copies), count.weights * copies,
        count.buffers * copies, peak, count.results.total * copies,
    )  # fmt: skip


def figures_by_size(two: Count, three: Count, one_pass: Count, size: int, rows: int) -> CostFigures:
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
    kept = one_pass.results.total if two.one_pass else kept
    return CostFigures(parameters, -(-total // rows), passes, weights, buffers, peak, kept)
