"""The settings that a plan considers, each with its costs, counted on the ensemble that it makes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from ..._common.trees import as_batch, rows_of, tensors_of
from ...core.ensemble import Ensemble
from ...methods import METHODS, deep, single
from ...methods.method_info import REFUSALS, Candidate, PlanRequest, candidates_by_size, first_line, info_of
from ...surgery.calling import evaluation_mode
from .activation_memory import Watching
from .counting import FORMULAS, plain_operators

OPTIMIZER = 4  # a weight, its gradient and two moments


@dataclass(frozen=True)
class CostFigures:
    """What an ensemble costs; bytes are those of the example's batch."""

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
    """A method's candidate with its costs, or the reason why there are none."""

    method: str
    candidate: Candidate
    figures: CostFigures | None
    capacity: float = 1.0
    reason: str = ""


def count_candidates(
    request: PlanRequest, methods: Sequence[str], progress: Callable[[str], None] = lambda text: None
) -> tuple[CostFigures, list[Counted]]:
    """The model's own costs, and every candidate of the methods."""
    counter = Counter(request)
    found: list[Counted] = []
    for number, name in enumerate(methods):
        progress(f"counting {name}, {number + 1} of {len(methods)} methods")
        offer = info_of(METHODS[name]).candidates
        try:
            offered = candidates_by_size(METHODS[name], request) if offer is None else offer(request)
            found += counter.count_all(name, offered)
        except REFUSALS as error:
            found.append(Counted(name, Candidate({}, 0), None, reason=first_line(error)))
    return counter.base, found


class Counter:
    """Counts candidates for one request."""

    def __init__(self, request: PlanRequest):
        self.request = request
        self.base = count_ensemble(single(request.model), request.example)

    def count_all(self, method: str, candidates: Iterable[Candidate]) -> list[Counted]:
        """The candidates of one method; settings that fail for one size are not tried for others."""
        found: list[Counted] = []
        failed: set[int] = set()
        for candidate in candidates:
            if id(candidate.family) in failed:
                continue
            try:
                if candidate.reason:
                    raise ValueError(candidate.reason)
                found.append(self.count(method, candidate))
            except REFUSALS as error:
                if candidate.family is not None:
                    failed.add(id(candidate.family))
                found.append(Counted(method, candidate, None, reason=first_line(error)))
        return found

    def count(self, method: str, candidate: Candidate) -> Counted:
        """The candidate with its costs."""
        if candidate.member is not None:
            ensemble = deep(candidate.member, candidate.size)
        else:
            assert candidate.family is not None
            ensemble = candidate.family(candidate.size)
        figures = count_ensemble(ensemble, self.request.example)
        if ensemble.feed.keeps_one_pass:  # a training step is one pass of the batch, whatever the number of members
            network = candidate.network
            one = self.base if network is None else count_ensemble(single(network), self.request.example)
            figures = replace(figures, kept=one.kept)
        named = ensemble.module.named_parameters()
        own = sum(p.numel() for name, p in named if name in ensemble.own) // ensemble.size
        used = figures.parameters - (ensemble.size - 1) * own  # of one member
        # Members that live in one network share its body: by the capacity curve, each has about 1 / sqrt(size) of it.
        share = ensemble.size**-0.5 if ensemble.joint else 1.0
        return Counted(method, candidate, figures, candidate.capacity or min(share, used / self.base.parameters))


def count_ensemble(ensemble: Ensemble, x: Any) -> CostFigures:
    """Everything of an ensemble, in one run; like `pb.cost`, the first run finds out whether vmap works."""
    args, kwargs = batch = as_batch(x)
    ensemble.requires_grad_(False)  # as for `pb.cost`
    with plain_operators(), evaluation_mode(ensemble), torch.random.fork_rng(devices=[]):
        ensemble(*args, **kwargs)
        with Watching([*ensemble.parameters(), *ensemble.buffers(), *tensors_of(x)]) as results:
            with FlopCounterMode(display=False, custom_mapping=FORMULAS) as counter:
                ensemble(*args, **kwargs)
    parameters, mult_adds = list(ensemble.parameters()), counter.get_total_flops() // 2
    return CostFigures(
        parameters=sum(p.numel() for p in parameters),
        mult_adds=-(-mult_adds // rows_of(batch)),
        passes=float(ensemble.passes),
        weights=bytes_of(parameters),
        buffers=bytes_of(list(ensemble.buffers())),
        peak=results.peak,
        kept=results.total,
    )


def bytes_of(tensors: Sequence[Tensor]) -> int:
    """How much memory the tensors' values take."""
    return sum(t.numel() * t.element_size() for t in tensors)
