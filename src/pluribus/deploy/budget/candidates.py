"""The settings that a plan considers, each with its costs, counted on the ensemble that it makes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from ..._common.trees import as_batch, rows_of, tensors_of
from ...core.ensemble import Ensemble
from ...methods import METHODS, deep, single
from ...methods.method_info import REFUSALS, Candidate, PlanRequest, candidates_by_size, first_line, info_of
from ...surgery.calling import evaluation_mode
from .counting import Watching, bytes_of, count_mult_adds, plain_operators

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
    """The model's own costs, and every candidate of the methods; what fails for one size is not tried for others."""
    base = count_ensemble(single(request.model), request.example)
    found: list[Counted] = []
    for number, name in enumerate(methods):
        progress(f"counting {name}, {number + 1} of {len(methods)} methods")
        failed: set[int] = set()
        try:
            for candidate in (info_of(METHODS[name]).candidates or partial(candidates_by_size, METHODS[name]))(request):
                if id(candidate.family) in failed:
                    continue
                try:
                    found.append(_count(name, candidate, request, base))
                except REFUSALS as error:
                    failed |= {id(candidate.family)} if candidate.family is not None else set()
                    found.append(Counted(name, candidate, None, reason=first_line(error)))
        except REFUSALS as error:  # the method offers nothing
            found.append(Counted(name, Candidate({}, 0), None, reason=first_line(error)))
    return base, found


def _count(method: str, candidate: Candidate, request: PlanRequest, base: CostFigures) -> Counted:
    """The candidate with its costs."""
    if candidate.reason:
        raise ValueError(candidate.reason)
    if candidate.member is not None:
        ensemble = deep(candidate.member, candidate.size)
    else:
        assert candidate.family is not None
        ensemble = candidate.family(candidate.size)
    figures = count_ensemble(ensemble, request.example)
    if ensemble.feed.keeps_one_pass:  # a training step is one pass of the batch, whatever the number of members
        network = candidate.network
        one = base if network is None else count_ensemble(single(network), request.example)
        figures = replace(figures, kept=one.kept)
    own = sum(p.numel() for name, p in ensemble.module.named_parameters() if name in ensemble.own) // ensemble.size
    used = figures.parameters - (ensemble.size - 1) * own  # of one member
    # Members that live in one network share its body: by the capacity curve, each has about 1 / sqrt(size) of it.
    share = ensemble.size**-0.5 if ensemble.joint else 1.0
    return Counted(method, candidate, figures, candidate.capacity or min(share, used / base.parameters))


def count_ensemble(ensemble: Ensemble, x: Any) -> CostFigures:
    """Everything of an ensemble, in one run; like `pb.cost`, the first run finds out whether vmap works."""
    args, kwargs = batch = as_batch(x)
    ensemble.requires_grad_(False)  # as for `pb.cost`
    with plain_operators(), evaluation_mode(ensemble), torch.random.fork_rng(devices=[]):
        ensemble(*args, **kwargs)
        with Watching([*ensemble.parameters(), *ensemble.buffers(), *tensors_of(x)]) as results:
            mult_adds = count_mult_adds(lambda: ensemble(*args, **kwargs))
    parameters = list(ensemble.parameters())
    return CostFigures(
        parameters=sum(p.numel() for p in parameters),
        mult_adds=-(-mult_adds // rows_of(batch)),
        passes=float(ensemble.passes),
        weights=bytes_of(parameters),
        buffers=bytes_of(list(ensemble.buffers())),
        peak=results.peak,
        kept=results.total,
    )
