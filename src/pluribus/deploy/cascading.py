"""Which rows go on in a cascade: thresholds from validation rows, with a guarantee.

A quarter of the rows proposes windows (low, high), one for each stage but the last, and puts them in order; the others
test them, by an exact bound. With two stages, the score 1 - confidence and such a path:

    all rows go on   (-inf, inf)   passes: it is the last stage
    many             (0.10, inf)   passes
    fewer            (0.25, inf)   passes, and is taken
    few              (0.40, inf)   fails: it may lose more than the margin

The order is fixed before the tests, so each test may use the whole level.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from .._common.trees import map_rows, split_item
from ..core.ensemble import Ensemble
from ..methods import single
from ..surgery.copying import duplicate
from ..uncertainty.abstention import lower_bound, upper_bound
from ..uncertainty.checks import check_share
from ..uncertainty.classification import Classification
from ..uncertainty.resampling import Interval
from .budget.counting import cost
from .stages import SCORES, Cascade

SEARCHED = 0.25  # the share of the validation rows that proposes thresholds; the others test them

MOST = 4096  # combinations of thresholds that are looked at

ENOUGH = 100  # thresholds of one stage


def cascade(
    stages: Ensemble | Sequence[nn.Module],
    validation: Any,
    *,
    risk: float | None = None,
    margin: float | None = None,
    confidence: float = 0.95,
    coverage: float = 1.0,
    score: str = "msp",
    sizes: Sequence[int] | None = None,
    window: bool = False,
    costs: Sequence[float] | None = None,
    seed: int = 0,
) -> Cascade:
    """The cheapest cascade whose error is bounded: each row runs as many members as it needs.

    A row goes on to the next stage while its uncertainty is at or above that stage's threshold. A quarter of the
    validation rows proposes thresholds, from all to few rows going on, each the safest at its cost; the others
    test these in that order, and the last one before a test fails is taken (fixed-sequence testing; Pareto testing,
    Laufer-Goldshtein et al., 2023). With probability `confidence` over validation sets the promise then holds for new
    rows like them, for any networks and any score. `risk` uses the exact binomial bound of `pb.abstain`; `margin` the
    same bound on the rows that only the cascade, and that only the last stage, gets wrong.

    Args:
        stages: an ensemble, whose members are added stage by stage; or ensembles and networks in order of cost, each
            of which replaces the answer of the one before
        validation: (x, y), or a loader of pairs, that nothing was fitted to
        risk: the largest error rate of the cascade; with `coverage`, of the rows that it accepts
        margin: how much lower than the last stage's its accuracy may be; default 0.01, where no risk is given
        coverage: the share of rows to accept; below 1 the least certain answers are marked as not accepted
        score: "msp", "entropy" or "mutual_information"
        sizes: of an ensemble: how many members have answered after each stage; default 1, 2, 4, ... and all
        window: rows may also be so uncertain that they stop (Xia and Bouganis, 2023)
        costs: of each stage by itself, such as its latency; default: its mult-adds
        seed: of the division of the validation rows

    >>> x = torch.randn(4000, 4)
    >>> made = cascade(pb.deep(nn.Linear(4, 3), 4), (x, torch.randint(3, (4000,))), margin=0.05)
    >>> made.counts, made.report.bound <= 0.05
    ([1, 2, 4], True)
    """
    margin = 0.01 if risk is None and margin is None else margin
    asked = Asked(risk, margin, confidence, coverage)
    _check(asked, score, validation)
    made = split(stages, sizes)
    x, y = rows_and_labels(validation)
    _check_rows(len(y), asked)
    _check_outputs(made, x, y)
    pooled = isinstance(stages, Ensemble)
    own = _costs(made, x, costs)
    # Stages that share a trunk run it again, so together they cost more than the whole ensemble does.
    whole = own[-1]
    if pooled:
        whole = _costs([cast(Ensemble, stages)], x, None)[0] if costs is None else sum(own)
    paid = np.cumsum(own) / whole
    rows = _record(Cascade(made, [(-math.inf, math.inf)] * (len(made) - 1), score, pooled=pooled), x, y, paid)
    windows, keep, report = choose(rows, asked, window, seed)
    return Cascade(made, windows, score, pooled=pooled, keep=keep, report=report)


def choose(
    rows: StageRows, asked: Asked, window: bool = False, seed: int = 0
) -> tuple[list[Any], float, CascadeReport]:
    """The cheapest windows that pass their test, the score from which on no row is accepted, and the report."""
    part = np.random.default_rng(seed).permutation(rows.scores.shape[1])
    search, test = (rows.take(some) for some in np.split(part, [math.ceil(SEARCHED * len(part))]))
    chosen = None
    for windows in _path(search, asked, window):
        keep = search.outcome(windows, asked.coverage).keep
        found = test.outcome(windows, keep=keep)
        if (bound := asked.bound(found, test)) > asked.limit:
            break
        chosen = windows, keep, _report(test, found, bound, asked)
    if chosen is None:
        raise ValueError(
            f"cascade: an error of at most {asked.limit:g} cannot be promised, because the last stage itself may be "
            f"wrong as often as {bound:.4g} by {test.scores.shape[1]:,} validation rows. Allow "
            f"risk={math.ceil(bound * 1000) / 1000:g}, accept fewer rows (coverage=0.8), or use margin=."
        )
    return chosen


@dataclass(frozen=True)
class CascadeReport:
    """The guarantee and the cost of a cascade, from validation rows that did not propose its thresholds.

    Args:
        promise: "risk" or "margin"; `asked`, its value; `bound`, what the rows allow at the `confidence`
        rows: how many tested it
        accuracy, last_accuracy: of the cascade (of the rows that it accepts) and of its last stage alone
        coverage: the share of rows that it accepts
        reach: the share of rows that reach each stage
        cost: relative to running the last stage's members on every row

    >>> x, y = torch.randn(4000, 4), torch.randint(3, (4000,))
    >>> report = pb.cascade(pb.deep(nn.Linear(4, 3), 2), (x, y), margin=0.05).report
    >>> report.promise, report.rows, report.cost.low <= report.cost.value
    ('margin', 3000, True)
    """

    promise: str
    asked: float
    bound: float
    confidence: float
    rows: int
    accuracy: Interval
    last_accuracy: Interval
    coverage: Interval
    reach: tuple[float, ...]
    cost: Interval

    def explain(self) -> str:
        """The promise and the cost, as text."""
        what = "its error is" if self.promise == "risk" else "its accuracy falls below the last stage's by"
        share = lambda i: f"{i.value:.2%} ({i.low:.2%} to {i.high:.2%})"  # noqa: E731
        return (
            f"  with confidence {self.confidence:g}, {what} at most {self.bound:.4g} (asked: {self.asked:g}), for "
            f"rows like the {self.rows:,} that tested it\n"
            f"  accuracy {share(self.accuracy)} of {share(self.coverage)} of the rows; last stage "
            f"{share(self.last_accuracy)}\n"
            f"  rows that reach each stage: {', '.join(f'{r:.1%}' for r in self.reach)}; cost "
            f"{self.cost.value:.3f} ({self.cost.low:.3f} to {self.cost.high:.3f}) of the last stage on every row"
        )

    def plain(self) -> dict[str, Any]:
        """As plain values, for a record."""
        return asdict(self)


def split(stages: Any, sizes: Sequence[int] | None = None) -> list[Ensemble]:
    """The stages as ensembles in eval mode, copies of what was given."""
    if isinstance(stages, Ensemble):
        ends = _check_sizes(stages, sizes)
        made = [stages.subset(range(a, b)) for a, b in zip([0, *ends], ends, strict=False)]
    elif not isinstance(stages, Iterable):
        raise TypeError(
            f"cascade: needs an Ensemble, or a list of networks and ensembles, but got a {type(stages).__name__}."
        )
    else:
        made = [duplicate(one if isinstance(one, Ensemble) else single(one)) for one in stages]  # type: ignore[misc]
        if sizes is not None:
            raise ValueError("cascade: sizes divides one ensemble, but a list of stages was given. Leave it out.")
    if len(made) < 2:
        raise ValueError(
            f"cascade: needs at least two stages, but there is {len(made)}. Give more members or networks."
        )
    if len(tasks := {one.task for one in made}) > 1 or not tasks <= {"classification", "binary"}:
        raise ValueError(
            f"cascade: all stages must be of classification, or all binary, but the tasks are {sorted(tasks)}."
        )
    return [one.eval() for one in made]


def rows_and_labels(validation: Any) -> tuple[Any, Tensor]:
    """Inputs and labels of (x, y), or of all batches of a loader."""
    if isinstance(validation, (tuple, list)) and len(validation) == 2:
        return validation[0], torch.as_tensor(validation[1])
    pairs = [split_item(item) for item in validation]
    if not pairs or any(y is None for _, y in pairs):
        raise ValueError("cascade: validation must be (x, y) or a loader of pairs (x, y), but it has no labels.")
    return torch.cat([torch.as_tensor(x) for x, _ in pairs]), torch.cat([torch.as_tensor(y) for _, y in pairs])


# -------------------------------------------------------------------- what was seen on validation rows


class _Outcome(NamedTuple):
    """What a cascade does with some rows: (rows) each."""

    wrong: np.ndarray
    stage: np.ndarray
    accepted: np.ndarray
    keep: float


class StageRows(NamedTuple):
    """Each stage's score and mistake on each row, (stages, rows), and what reaching each stage costs a row, relative to
    what the last one costs by itself."""

    scores: np.ndarray
    wrong: np.ndarray
    costs: np.ndarray

    def take(self, rows: np.ndarray) -> StageRows:
        """Some of the rows."""
        return StageRows(self.scores[:, rows], self.wrong[:, rows], self.costs)

    def outcome(
        self, windows: Sequence[tuple[float, float]], coverage: float = 1.0, keep: float | None = None
    ) -> _Outcome:
        """Of these windows; without `keep`, the most certain share `coverage` of these rows is accepted."""
        stage, goes = np.zeros(self.scores.shape[1], int), np.ones(self.scores.shape[1], bool)
        for k, (low, high) in enumerate(windows):
            goes &= (self.scores[k] >= low) & (self.scores[k] < high)
            stage += goes
        last = np.take_along_axis(self.scores, stage[None], 0)[0]
        if keep is None:
            keep = math.inf if coverage == 1 else float(np.quantile(last, coverage))
        return _Outcome(np.take_along_axis(self.wrong, stage[None], 0)[0], stage, last < keep, keep)


class Asked(NamedTuple):
    """What `cascade` was asked for."""

    risk: float | None
    margin: float | None
    confidence: float = 0.95
    coverage: float = 1.0

    @property
    def level(self) -> float:
        """How often the promise may fail."""
        return 1 - self.confidence

    @property
    def limit(self) -> float:
        """The risk, or the margin."""
        return cast(float, self.margin if self.risk is None else self.risk)

    def bound(self, found: _Outcome, rows: StageRows) -> float:
        """The largest error, or loss of accuracy, that the rows allow."""
        if self.risk is not None:
            return upper_bound(int(found.wrong[found.accepted].sum()), int(found.accepted.sum()), self.level)
        worse, better = int((found.wrong & ~rows.wrong[-1]).sum()), int((~found.wrong & rows.wrong[-1]).sum())
        count = len(found.wrong)
        return upper_bound(worse, count, self.level / 2) - lower_bound(better, count, self.level / 2)

    def guess(self, found: _Outcome, rows: StageRows) -> float:
        """About `bound`, in little time: it puts thresholds in order, and promises nothing."""
        if self.risk is not None:
            return float(found.wrong[found.accepted].mean())
        change = found.wrong.astype(int) - rows.wrong[-1]
        worse = max(int(change.sum()), 0)  # a gain on few rows is luck, as a rule
        return (worse + 2 * math.sqrt(np.abs(change).sum())) / len(change)


def _record(whole: Cascade, x: Any, y: Tensor, costs: np.ndarray) -> StageRows:
    """What each stage would answer to every row."""
    scores: list[np.ndarray] = []
    wrong: list[np.ndarray] = []
    so_far: list[Tensor] = []
    for stage in cast(Any, whole.stages):
        so_far = [*so_far, stage.predict(x).log_members] if whole.pooled else [stage.predict(x).log_members]
        prediction = Classification(torch.cat(so_far))
        scores.append(prediction.score(whole.score).double().cpu().numpy())
        wrong.append((prediction.label.cpu() != y.cpu()).numpy())
    return StageRows(np.stack(scores), np.stack(wrong), costs)


def _path(rows: StageRows, asked: Asked, window: bool) -> list[list[tuple[float, float]]]:
    """Windows in the order of their tests: all rows go on, and then ever fewer, the safest of each cost.

    Only these rows propose, so that the tests are on others.
    """
    stages = len(rows.scores) - 1
    options = [_windows(rows.scores[k], MOST ** (1 / stages), window) for k in range(stages)]
    every = [(-math.inf, math.inf)] * stages
    found = []
    for combination in product(*options):
        outcome = rows.outcome(combination, asked.coverage)
        found.append((rows.costs[outcome.stage].mean(), asked.guess(outcome, rows), list(combination)))
    path: list[list[tuple[float, float]]] = []
    least = math.inf
    for _, bound, windows in sorted(found, key=lambda one: one[:2]):  # cheapest first
        if bound < least:
            path.append(windows)
            least = bound
    return [every, *reversed(path)]


def _windows(scores: np.ndarray, most: float, window: bool) -> list[tuple[float, float]]:
    """What a stage may do: nobody goes on, some, or everybody, at quantiles of its scores."""
    count = max(2, int(min(most, ENOUGH) if not window else math.sqrt(2 * min(most, ENOUGH))))
    inner = np.quantile(scores, np.linspace(0, 1, count)[1:-1]).tolist()
    lows, highs = [-math.inf, *inner], [*inner, math.inf] if window else [math.inf]
    return [(math.inf, math.inf), *((low, high) for low in lows for high in highs if low < high)]


def _report(rows: StageRows, found: _Outcome, bound: float, asked: Asked) -> CascadeReport:
    reach = tuple(float((found.stage >= k).mean()) for k in range(len(rows.costs)))
    costs = rows.costs[found.stage]
    error = 1.96 * float(costs.std()) / math.sqrt(len(costs))
    mean = float(costs.mean())
    return CascadeReport(
        promise="margin" if asked.risk is None else "risk",
        asked=asked.limit,
        bound=bound,
        confidence=asked.confidence,
        rows=len(found.wrong),
        accuracy=_share(~found.wrong[found.accepted]),
        last_accuracy=_share(~rows.wrong[-1]),
        coverage=_share(found.accepted),
        reach=reach,
        cost=Interval(mean, mean - error, mean + error),
    )


def _share(flags: np.ndarray) -> Interval:
    """A share with its exact 95 % interval (Clopper and Pearson)."""
    count, all_ = int(flags.sum()), len(flags)
    return Interval(count / max(all_, 1), lower_bound(count, all_, 0.025), upper_bound(count, all_, 0.025))


def _costs(stages: Sequence[nn.Module], x: Any, costs: Sequence[float] | None) -> list[float]:
    if costs is None:
        one = x[:1] if isinstance(x, Tensor) else torch.as_tensor(x)[:1]
        return [float(cost(stage, one.to(next(stage.parameters()))).mult_adds) for stage in stages]
    if len(costs) != len(stages) or min(costs) <= 0:
        raise ValueError(f"cascade: costs must be a positive number for each of {len(stages)} stages, not {costs}.")
    return list(costs)


# -------------------------------------------------------------------- what is asked for


def _check(asked: Asked, score: str, validation: Any) -> None:
    if asked.risk is not None and asked.margin is not None:
        raise ValueError("cascade: give risk= (its error) or margin= (what it may lose), not both.")
    check_share("cascade", "margin" if asked.risk is None else "risk", asked.limit)
    check_share("cascade", "confidence", asked.confidence)
    if not 0 < asked.coverage <= 1 or (asked.coverage < 1 and asked.risk is None):
        raise ValueError(f"cascade: coverage must be in (0, 1], below 1 with risk= only, but it is {asked.coverage}.")
    if score not in SCORES:
        raise ValueError(f"cascade: the score {score!r} is unknown. Choose from {', '.join(SCORES)}.")
    if validation is None:
        raise ValueError("cascade: thresholds need validation=(x, y), rows that nothing was fitted to.")


def _check_sizes(ensemble: Ensemble, sizes: Sequence[int] | None) -> list[int]:
    if sizes is None:
        return [*(2**k for k in range(ensemble.size.bit_length()) if 2**k < ensemble.size), ensemble.size]
    ends = [int(size) for size in sizes]
    if sorted(set(ends)) != ends or not ends or ends[0] < 1 or ends[-1] > ensemble.size:
        raise ValueError(
            f"cascade: sizes must grow from 1 up to {ensemble.size}, the members of the ensemble, but are {ends}."
        )
    return ends


def rows_needed(limit: float, confidence: float) -> int:
    """The fewest validation rows with which a risk or a margin can be promised at all, without any mistake."""
    return math.ceil(math.log((1 - confidence) / 2) / math.log1p(-limit) / (1 - SEARCHED))


def _check_rows(rows: int, asked: Asked) -> None:
    what, tests = ("a margin", 2) if asked.risk is None else ("a risk", 1)
    tested = rows - math.ceil(SEARCHED * rows)
    if upper_bound(0, max(tested, 1), asked.level / tests) > asked.limit or tested < 1:
        raise ValueError(
            f"cascade: {what} of {asked.limit:g} with confidence {asked.confidence:g} needs about "
            f"{rows_needed(asked.limit, asked.confidence):,} validation rows or more, but there are {rows:,}. Give "
            "more, or allow more."
        )


def _check_outputs(stages: Sequence[Ensemble], x: Any, y: Tensor) -> None:
    """Run the first row, before all of them are: the stages must have the same classes, one label for each row."""
    one = x[:1] if hasattr(x, "ndim") else map_rows(x, len(y), lambda t: t[:1])
    answers: list[Any] = [stage.predict(one) for stage in stages]
    if len({answer.log_members.shape[1:] for answer in answers}) > 1:
        raise ValueError("cascade: the stages must have the same classes and rows, but their outputs differ.")
    if answers[0].label.shape != y[:1].shape:
        raise ValueError(
            f"cascade: needs one label for each row, but the labels have the shape {tuple(y.shape)} and the answer to "
            f"one row {tuple(answers[0].label.shape)}."
        )
