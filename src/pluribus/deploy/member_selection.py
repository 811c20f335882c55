"""Which members to keep and how often each counts, and what more members would give."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from ..core.ensemble import Ensemble
from ..uncertainty.checks import check_classes
from ..uncertainty.classification import Classification
from ..uncertainty.resampling import Interval
from .cascading import rows_and_labels

FOLDS = 5

ROUNDS = 4  # greedy choices, for each member that may be kept

SUBSETS = 30  # of each size, whose mean loss is taken

DRAWS = 100  # of the rows, for intervals

EXPONENTS = np.linspace(0.3, 2.0, 35)


def select(ensemble: Ensemble, validation: Any, size: int | None = None, *, seed: int = 0) -> Ensemble:
    """The members worth running, the most useful first, each with one vote for every time it was chosen.

    Members are added one at a time, the same one again if that is best, so that the likelihood of the validation rows
    grows the most (Caruana et al., 2004). What is expected of each size is measured out of fold: chosen on four fifths
    of the rows, scored on the others. The ensemble that is given back runs, freezes, exports and saves like any other;
    `selection` of it says what was found, and how many members are needed.

    Args:
        validation: (x, y), or a loader of pairs, that the members were not trained on
        size: how many members to keep at most; default: the fewest whose out-of-fold loss is within one standard error
            of the best
        seed: of the folds and of the rows drawn again

    >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
    >>> kept = select(pb.deep(nn.Linear(4, 3), 4), (x, y), size=2)
    >>> kept.size <= 2, kept(x).shape[0] == sum(kept.selection.votes)
    (True, True)
    """
    if not isinstance(ensemble, Ensemble):
        raise TypeError(f"select: needs an Ensemble, but got a {type(ensemble).__name__}. Make one with pb.deep.")
    if size is not None and not 1 <= size <= ensemble.size:
        raise ValueError(f"select: size must be from 1 to {ensemble.size}, the number of members, but it is {size}.")
    ensemble.subset([0])  # whether there can be one, before anything runs
    x, y = rows_and_labels(validation)
    prediction = ensemble.predict(x)
    if not isinstance(prediction, Classification) or prediction.label.shape != y.shape:
        raise ValueError("select: needs an ensemble of classification, and one label for each row.")
    if len(y) < 2 * FOLDS:
        raise ValueError(f"select: needs at least {2 * FOLDS} validation rows, but there are {len(y)}.")
    labels = check_classes(prediction.log_members, y, prediction.class_dim, "select")
    columns = prediction.log_members.movedim(prediction.class_dim, -1).gather(
        -1, labels.expand(ensemble.size, -1)[..., None]
    )
    p = columns[..., 0].double().exp().cpu().numpy()  # of the true class: (members, rows)
    losses, errors = _out_of_fold(p, seed)
    kept = size or _fewest(losses, errors)
    order, votes = _greedy(p, kept)
    made = ensemble.subset(order, votes)
    found = Selection(tuple(order), tuple(votes), tuple(map(float, losses.mean(1))), tuple(errors), fit_law(p, seed))
    made.selection = found  # type: ignore[assignment]
    made.notes.append(f"members {', '.join(map(str, order))} of {ensemble.size} were selected")
    return made


@dataclass(frozen=True)
class Selection:
    """The result of `pb.select`.

    Args:
        members: the numbers of the members kept, in the order in which they were chosen; `votes`, how often each was
        losses: the negative log-likelihood out of fold with at most 1, 2, ... members
        errors: the standard error of its difference from the best of them
        law: the loss that any number of such members would have

    >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
    >>> found = pb.select(pb.deep(nn.Linear(4, 3), 4), (x, y)).selection
    >>> len(found.losses), len(found.members) == len(found.votes)
    (4, True)
    """

    members: tuple[int, ...]
    votes: tuple[int, ...]
    losses: tuple[float, ...]
    errors: tuple[float, ...]
    law: PowerLaw

    def explain(self) -> str:
        """What was kept, the loss by size, and how many members are needed, as text."""
        chosen = ", ".join(f"{m} ({v})" for m, v in zip(self.members, self.votes, strict=True))
        by_size = ", ".join(f"{n}: {loss:.4f}" for n, loss in enumerate(self.losses, start=1))
        return f"kept members (votes): {chosen}\n  NLL out of fold by size: {by_size}\n{self.law.explain()}"


@dataclass(frozen=True)
class PowerLaw:
    """The loss of n members, limit + gain n^-exponent (Lobacheva et al., NeurIPS 2020), fitted to what was seen.

    Args:
        limit, gain, exponent: of the law
        seen: the mean loss of 1, 2, ... of the members
        draws: (limit, gain, exponent) of other rows and of one member less, for intervals
        members: how many of `draws` leave a member out: the first ones

    >>> law = PowerLaw(0.5, 0.1, 1.0, (0.6, 0.55), ((0.5, 0.1, 1.0),), 0)
    >>> law.loss(10).value, law.needed(within=0.01)
    (0.51, 20)
    """

    limit: float
    gain: float
    exponent: float
    seen: tuple[float, ...]
    draws: tuple[tuple[float, float, float], ...]
    members: int

    def loss(self, size: int) -> Interval:
        """The expected loss of so many members, with its 95 % interval (rows and members drawn again)."""
        value = self.limit + self.gain * size**-self.exponent
        others = np.array([limit + gain * size**-exponent for limit, gain, exponent in self.draws])
        left_out, drawn = others[: self.members], others[self.members :]
        jackknife = (self.members - 1) * float(left_out.var()) if self.members else 0.0
        spread = 1.96 * math.sqrt(jackknife + float(drawn.var()))
        return Interval(value, value - spread, value + spread)

    def needed(self, within: float = 0.01) -> int:
        """The fewest members whose loss is within this share of what infinitely many would have."""
        if not within > 0:
            raise ValueError(f"needed: within must be above 0, but it is {within}.")
        share = within * max(self.limit, 1e-12)
        return max(1, math.ceil((self.gain / share) ** (1 / self.exponent) - 1e-9)) if self.gain > 0 else 1

    def explain(self) -> str:
        """The law and what it says of more members, as text."""
        more = [len(self.seen), 2 * len(self.seen), 4 * len(self.seen)]
        told = "; ".join(
            f"{n} members {i.value:.4f} ({i.low:.4f} to {i.high:.4f})" for n in more for i in [self.loss(n)]
        )
        return (
            f"  NLL of n members: {self.limit:.4f} + {self.gain:.4f} n^-{self.exponent:.2f}: {told}\n"
            f"  within 1 % of what infinitely many would have: {self.needed():,} members"
        )


def fit_law(p: np.ndarray, seed: int = 0) -> PowerLaw:
    """The law of members' probabilities of the true class, (members, rows), each size the mean over subsets."""
    size, rows = p.shape
    generator = np.random.default_rng(seed)
    subsets = [_subsets(size, n, generator) for n in range(1, size + 1)]
    each = [np.stack([-_log(p[list(s)].mean(0)) for s in some]) for some in subsets]  # by size: (subsets, rows)
    mean = np.stack([one.mean(0) for one in each])  # (sizes, rows)
    draws: list[tuple[float, float, float]] = []
    left_out = 0
    if size > 3:
        for i in range(size):
            seen = [
                [row.mean() for s, row in zip(some, one, strict=True) if i not in s]
                for some, one in zip(subsets, each, strict=True)
            ]
            draws.append(_fit(np.array([np.mean(one) for one in seen if one])))
        left_out = size
    for _ in range(DRAWS):
        draws.append(_fit(mean[:, generator.integers(rows, size=rows)].mean(1)))
    seen = mean.mean(1)
    return PowerLaw(*_fit(seen), tuple(map(float, seen)), tuple(draws), left_out)


def _fit(seen: np.ndarray) -> tuple[float, float, float]:
    """Least squares, a line for each exponent; of fewer than four sizes it is 1, that of independent errors."""
    sizes, best = np.arange(1, len(seen) + 1), (math.inf, 0.0, 0.0, 1.0)
    for exponent in EXPONENTS if len(seen) > 3 else [1.0]:
        column = sizes**-exponent
        centred = column - column.mean()
        gain = max(0.0, float(centred @ seen / max(centred @ centred, 1e-12)))
        limit = float(seen.mean() - gain * column.mean())
        best = min(best, (float(((limit + gain * column - seen) ** 2).sum()), limit, gain, float(exponent)))
    return best[1:]


def _subsets(size: int, n: int, generator: np.random.Generator) -> list[tuple[int, ...]]:
    if math.comb(size, n) <= SUBSETS * 4:
        return list(combinations(range(size), n))
    return [tuple(generator.choice(size, n, replace=False)) for _ in range(SUBSETS * 4)]


def _greedy(p: np.ndarray, most: int) -> tuple[list[int], list[int]]:
    """Members in the order of their first choice, at most so many, and how often each was chosen: the best round."""
    total, chosen = np.zeros(p.shape[1]), list[int]()
    best: tuple[float, list[int]] = (math.inf, [])
    for count in range(1, ROUNDS * most + 1):
        allowed = range(len(p)) if len(set(chosen)) < most else sorted(set(chosen))
        loss, member = min((float(-_log((total + p[i]) / count).mean()), i) for i in allowed)
        chosen.append(member)
        total = total + p[member]
        if loss < best[0] - 1e-12:
            best = loss, list(chosen)
    order = list(dict.fromkeys(best[1]))
    votes = [best[1].count(member) for member in order]
    return order, [count // math.gcd(*votes) for count in votes]


def _out_of_fold(p: np.ndarray, seed: int) -> tuple[np.ndarray, list[float]]:
    """The loss of each row with at most 1, 2, ... members that others chose: (sizes, rows); and standard errors."""
    fold = np.random.default_rng(seed).permutation(p.shape[1]) % FOLDS
    losses = np.zeros_like(p)
    for number in range(FOLDS):
        inside, outside = fold != number, fold == number
        for most in range(1, len(p) + 1):
            order, votes = _greedy(p[:, inside], most)
            losses[most - 1, outside] = -_log(np.average(p[order][:, outside], axis=0, weights=votes))
    best = losses[losses.mean(1).argmin()]
    return losses, [float((row - best).std() / math.sqrt(p.shape[1])) for row in losses]


def _fewest(losses: np.ndarray, errors: Sequence[float]) -> int:
    means = losses.mean(1)
    return next(n for n, (loss, error) in enumerate(zip(means, errors, strict=True), 1) if loss <= means.min() + error)


_log: Callable[[np.ndarray], np.ndarray] = lambda p: np.log(np.maximum(p, 1e-38))  # noqa: E731
