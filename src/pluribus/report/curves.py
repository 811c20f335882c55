"""What a chart of the page and a figure of matplotlib both draw, computed once."""

from __future__ import annotations

import numpy as np

Curve = tuple[np.ndarray, np.ndarray]


def compute_roc(inside: np.ndarray, outside: np.ndarray) -> Curve:
    """The shares of inside and of outside data at or above each score that occurs, from the highest on: 0 to 1.

    Inside and outside examples with the same score are one step, which a straight line draws.

    >>> compute_roc(np.array([0.1, 0.2]), np.array([0.2, 0.9]))
    (array([0. , 0. , 0.5, 1. ]), array([0. , 0.5, 1. , 1. ]))
    """
    scores = np.unique(np.concatenate([inside, outside]))[::-1]
    false, true = (1 - np.searchsorted(np.sort(part), scores, side="left") / len(part) for part in (inside, outside))
    return np.concatenate([[0.0], false]), np.concatenate([[0.0], true])


def compute_histograms(parts: list[np.ndarray], bins: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """The edges of bins that hold all parts, and the share of each part in every bin.

    >>> compute_histograms([np.array([0.0, 1.0]), np.array([1.0])], bins=2)
    (array([0. , 0.5, 1. ]), [array([0.5, 0.5]), array([0., 1.])])
    """
    edges = np.histogram_bin_edges(np.concatenate(parts), bins)
    return edges, [np.histogram(part, edges)[0] / len(part) for part in parts]


def divide_by_error(disagreement: np.ndarray, accuracy: np.ndarray) -> np.ndarray:
    """The height of the diversity-accuracy plane of Fort et al. (2019), Figure 6; NaN where there is no error.

    >>> divide_by_error(np.array([0.1, 0.1]), np.array([0.8, 1.0]))
    array([0.5, nan])
    """
    error = 1 - np.asarray(accuracy, float)
    return np.divide(disagreement, error, out=np.full_like(error, np.nan), where=error > 0)
