"""Lines of equal height of a function on a grid: marching squares."""

from __future__ import annotations

import numpy as np

Point = tuple[float, float]

# The sides of a square (0 bottom, 1 right, 2 top, 3 left) that a line crosses, by which corners are above the level;
# corners count 1, 2, 4, 8 from the lower left around. In the two saddles the middle of the square decides.
_CROSSED: dict[int, list[tuple[int, int]]] = {
    1: [(3, 0)], 2: [(0, 1)], 3: [(3, 1)], 4: [(1, 2)], 6: [(0, 2)], 7: [(3, 2)],
    8: [(2, 3)], 9: [(2, 0)], 11: [(2, 1)], 12: [(1, 3)], 13: [(1, 0)], 14: [(0, 3)],
}  # fmt: skip

_SADDLES = {(5, True): [(3, 2), (1, 0)], (5, False): [(3, 0), (1, 2)],
            (10, True): [(0, 3), (2, 1)], (10, False): [(0, 1), (2, 3)]}  # fmt: skip


def contour_segments(u: np.ndarray, v: np.ndarray, z: np.ndarray, level: float) -> list[tuple[Point, Point]]:
    """The pieces of the line on which z, given at (u[i], v[j]), is `level`; none beside NaN and infinities.

    >>> contour_segments(np.array([0.0, 1.0]), np.array([0.0, 1.0]), np.array([[0.0, 0.0], [1.0, 1.0]]), 0.25)
    [((0.25, 0.0), (0.25, 1.0))]
    """
    found = []
    for i in range(len(u) - 1):
        for j in range(len(v) - 1):
            corners = np.array([z[i, j], z[i + 1, j], z[i + 1, j + 1], z[i, j + 1]], float)
            if not np.isfinite(corners).all():
                continue
            case = int(((corners >= level) * (1, 2, 4, 8)).sum())
            sides = _CROSSED.get(case) or _SADDLES.get((case, bool(corners.mean() >= level)), [])
            places = [(u[i], v[j]), (u[i + 1], v[j]), (u[i + 1], v[j + 1]), (u[i], v[j + 1])]
            found += [tuple(_crossing(side, places, corners, level) for side in pair) for pair in sides]
    return found  # type: ignore[return-value]


def _crossing(side: int, places: list[Point], corners: np.ndarray, level: float) -> Point:
    """Where the level is met on a side, by linear interpolation."""
    first, second = side, (side + 1) % 4
    share = (level - corners[first]) / (corners[second] - corners[first])
    (a, b), (c, d) = places[first], places[second]
    return float(a + share * (c - a)), float(b + share * (d - b))
