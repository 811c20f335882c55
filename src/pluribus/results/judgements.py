"""What a claim comes to: it holds, it does not hold, or it is inconclusive, and the rules by which that is decided."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from .._common.text_tables import plural as plural
from ..uncertainty.resampling import Interval

HOLDS, FAILS, OPEN = "holds", "does not hold", "inconclusive"


def above(found: Interval, bar: float = 0.0) -> str:
    """Whether a figure is above a bar: told only where its interval leaves the bar out.

    >>> above(Interval(2.0, 1.0, 3.0)), above(Interval(2.0, -1.0, 5.0)), above(Interval(2.0))
    ('holds', 'inconclusive', 'inconclusive')
    """
    if not found.known or found.low <= bar <= found.high:
        return OPEN
    return HOLDS if found.low > bar else FAILS


def below(found: Interval, bar: float = 0.0) -> str:
    """Whether a figure is below a bar, as `above`."""
    return above(Interval(-found.value, -found.high, -found.low), -bar)


def equal(found: Interval, margin: float) -> str:
    """Whether a difference is less than a margin: its interval lies within it; it is not where it lies outside.

    >>> equal(Interval(0.1, -0.1, 0.3), 0.5), equal(Interval(2.0, 1.0, 3.0), 0.5), equal(Interval(0.4, 0.1, 0.7), 0.5)
    ('holds', 'does not hold', 'inconclusive')
    """
    if not found.known:
        return OPEN
    if -margin <= found.low and found.high <= margin:
        return HOLDS
    return FAILS if found.low > margin or found.high < -margin else OPEN


def all_of(judgements: Sequence[str]) -> str:
    """A claim with several parts: it holds if all do, and fails if one does."""
    if FAILS in judgements:
        return FAILS
    return HOLDS if judgements and OPEN not in judgements else OPEN


def most_of(judgements: Sequence[str]) -> str:
    """A claim about most of several cases: more than half hold, or more than half do not.

    >>> most_of([HOLDS, HOLDS, OPEN]), most_of([HOLDS, FAILS, OPEN])
    ('holds', 'inconclusive')
    """
    counts = Counter(judgements)
    return next((word for word in (HOLDS, FAILS) if 2 * counts[word] > len(judgements)), OPEN)


def count_judgements(judgements: Sequence[str], what: str) -> str:
    """How many of several parts hold, in a sentence.

    >>> count_judgements([HOLDS, FAILS, HOLDS], "finding")
    '2 of 3 findings hold, 1 does not.'
    """
    counts = Counter(judgements)
    said = f"{counts[HOLDS]} of {plural(len(judgements), what)} {'holds' if counts[HOLDS] == 1 else 'hold'}"
    if counts[FAILS]:
        said += f", {counts[FAILS]} {'does' if counts[FAILS] == 1 else 'do'} not"
    if counts[OPEN]:
        said += f", {counts[OPEN]} {'is' if counts[OPEN] == 1 else 'are'} inconclusive"
    return f"{said}."


def show_interval(found: Interval, digits: int = 3) -> str:
    """A figure with its interval, for a sentence.

    >>> show_interval(Interval(0.5, 0.25, 0.75), 2)
    '0.50 [0.25, 0.75]'
    """
    ends = f" [{found.low:.{digits}f}, {found.high:.{digits}f}]" if found.known else ""
    return f"{found.value:.{digits}f}{ends}"
