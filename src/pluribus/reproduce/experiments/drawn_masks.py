"""Masks without training: every set of Masksembles' Figure 1, counted, and the overlap and size of drawn masks."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path

from ...landscape.analyses.masks import mask_overlap
from .stored_parts import Given, InParts, Part, Stored


def count_sets(part: Part, data: Path | None, needed: Mapping[str, Stored]) -> Given:
    """How often each mean IoU comes up among all sets of N masks with M ones at M S positions; all are as likely."""
    size, ones, positions = (int(part.settings[key]) for key in ("N", "M", "positions"))
    subsets = [frozenset(one) for one in itertools.combinations(range(positions), ones)]
    pairs = {(a, b): Fraction(len(a & b), len(a | b)) for a in subsets for b in subsets}
    counts: Counter[Fraction] = Counter()
    first = subsets[0]  # positions are alike: with the first mask held, shares stay the same
    for rest in itertools.product(subsets, repeat=size - 1):
        drawn = (first, *rest)
        counts[sum((pairs[pair] for pair in itertools.combinations(drawn, 2)), Fraction())] += 1
    total, number = sum(counts.values()), size * (size - 1) // 2
    found = {float(value / number): count / total for value, count in sorted(counts.items())}
    return {"values": list(found), "shares": list(found.values())}, {}


FIGURE1 = InParts(
    "masks-figure1",
    lambda scale: [Part(f"S={s}", {"N": 4, "M": 2, "positions": 2 * s}) for s in (2, 3)],
    count_sets,
)

SCALES = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0)

SIZES = (2, 4, 8, 16)


def draw_sets(part: Part, data: Path | None, needed: Mapping[str, Stored]) -> Given:
    """Mean IoU and relative width of drawn masks, each with its interval, for each number of masks and scale."""
    found = mask_overlap(SIZES, SCALES, ones=int(part.settings["M"]), draws=int(part.settings["draws"]))
    rows = [{"N": size, "S": scale, **{name: found[name][i, j].tolist() for name in ("iou", "size")}}
            for i, size in enumerate(SIZES) for j, scale in enumerate(SCALES)]  # fmt: skip
    return {"rows": rows}, {}


def _plan(scale: str) -> list[Part]:
    draws, ones = {"smoke": (5, (32,)), "laptop": (40, (32, 128)), "paper": (100, (32, 128, 512))}[scale]
    return [Part(f"M={one}", {"M": one, "draws": draws}) for one in ones]


DRAWN = InParts("masks-drawn", _plan, draw_sets)
