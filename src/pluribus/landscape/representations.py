"""What the layers of two networks have in common: linear CKA (Kornblith et al., 2019), exact over batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .._common.trees import as_batch, rows_of
from ..surgery.calling import evaluation_mode
from ..surgery.probing import BatchLayout, Layouts, find_layouts, record_calls
from ..surgery.selecting import READERS, pick, quote_names
from .common.examples import Examples, answer_of, ready
from .common.networks import gram, network_of

LAYERS = (*READERS, nn.MultiheadAttention)  # whose outputs are compared when nobody says
CONSTANT = 1e-12  # of a layer's mean square: variation below it is rounding


def cka(
    a: Any, b: Any = None, data: Any = None, *, where: str | None = None, debiased: bool = False, batch_size: int = 256
) -> np.ndarray:
    """Linear CKA between each layer of `a` and each of `b`, on all rows at once: (layers of a, layers of b).

    1 where one layer's outputs are the other's turned, mirrored and scaled as a whole; not a number for a layer that
    gives the same for all rows. `layer_names` says which layers.

    Args:
        a, b: networks, not necessarily of one architecture; a trajectory stands for its solution; b defaults to a
        data: (x, y), a data set or a loader, or x alone
        where: a pattern of modules whose outputs are compared; by default every convolution, linear, recurrent and
            attention layer and embedding whose output has a row for each example
        debiased: by unbiased estimates of HSIC (Song et al., 2012): plain CKA nears 1 where features outnumber rows
        batch_size: rows in one pass; it changes memory and time, not the result

    >>> cka(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3)), data=torch.randn(16, 4)).shape
    (2, 2)
    """
    examples = Examples("cka", data, batch_size=batch_size)
    least = 4 if debiased else 2
    if examples.rows < least:
        raise ValueError(f"cka: needs at least {least} rows to compare, but there are {examples.rows}.")
    one = _products_of_rows("cka", a, examples, where, debiased)
    other = one if b is None else _products_of_rows("cka", b, examples, where, debiased)
    across = np.array([[_hsic(k, other_k, debiased) for other_k in other.values()] for k in one.values()])
    norms = [np.sqrt([_hsic(k, k, debiased) for k in each.values()]) for each in (one, other)]
    return np.minimum(across / np.outer(*norms), 1.0)


def _hsic(k: np.ndarray, other: np.ndarray, debiased: bool) -> float:
    """Of centred products, times (n - 1)^2; debiased, of products without diagonals, times n (n - 3)."""
    if not debiased:
        return float((k * other).sum())
    n = len(k)  # equation 5 of Song et al.
    total = k.sum() * other.sum() / ((n - 1) * (n - 2))
    found = float((k * other).sum() + total - 2 / (n - 2) * k.sum(0) @ other.sum(0))
    return found if k is not other or found > 0 else np.nan


def layer_names(model: Any, data: Any, *, where: str | None = None) -> list[str]:
    """The layers that `cka` compares, in its order; one that is called several times has a number after its name.

    Args:
        model, data: a network, and inputs for it
        where: a pattern of names; by default the layers with weights

    >>> layer_names(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(16, 4))
    ['0', '2']
    """
    network, examples = network_of("layer_names", model)[0], Examples("layer_names", data)
    layouts = _locate("layer_names", network, examples, where)
    return list(_outputs(network, layouts, examples.batches[0][0]))


def _products_of_rows(
    caller: str, holder: Any, examples: Examples, where: str | None, debiased: bool
) -> dict[str, np.ndarray]:
    """The inner products of all rows of each layer's output, centred, (rows, rows): one layer after the other."""
    network = network_of(caller, holder)[0]
    found = {}
    for name, layouts in _locate(caller, network, examples, where).items():
        parts = [_outputs(network, {name: layouts}, x) for x, _ in examples.batches]
        for title in parts[0]:
            features = torch.cat([part[title] for part in parts]).double()
            mean = features.mean(0)
            products = gram(features - mean)
            # variation below rounding is none
            constant = np.sqrt(np.square(products).sum()) <= CONSTANT * len(features) * float(mean.square().sum())
            if debiased:
                np.fill_diagonal(products, 0)
            found[title] = products * np.nan if constant else products
    return found


def _outputs(model: nn.Module, layouts: dict[str, Layouts], x: Any) -> dict[str, Tensor]:
    """What the layers give for a batch, (rows, features); one that is called several times has a number."""
    x = ready(model, x)
    with evaluation_mode(model):
        seen = record_calls(model, layouts, {}, as_batch(x), outputs=True)
    found = {}
    for name, calls in seen.items():
        places = layouts[name] if len(layouts[name]) > 1 else layouts[name] * len(calls)
        for call, (output, layout) in enumerate(zip(calls, places, strict=True), 1):
            found[name if len(calls) == 1 else f"{name} ({call})"] = _rows_first(output, layout, rows_of(x))
    return found


def _locate(caller: str, model: nn.Module, examples: Examples, where: str | None) -> dict[str, Layouts]:
    """Where the outputs of the layers have their rows; what has none, such as a table of positions, is left out."""
    every = {name: part for name, part in model.named_modules() if name or where is None}
    if where is None:
        names = [name for name, part in every.items() if isinstance(part, LAYERS)]
    else:
        names = pick(caller, where, every, "modules")
    batch = as_batch(ready(model, examples.batches[0][0]))
    with evaluation_mode(model):
        answer_of(model, examples.batches[0][0])  # where it does not run, this says so
        found = find_layouts(model, names, {}, batch, outputs=True)
    if where is not None and (lost := [name for name in names if not found.get(name)]):
        raise ValueError(
            f"{caller}: {quote_names(lost, 6)} has no output with a row for each example. Leave it out of where=."
        )
    placed = {name: layouts for name, layouts in found.items() if layouts}
    if not placed:
        raise ValueError(
            f"{caller}: the model has no layer whose output has a row for each example. "
            "Name modules that do with where=."
        )
    return placed


def _rows_first(output: Tensor, layout: BatchLayout, rows: int) -> Tensor:
    """The output as (rows, features)."""
    dim = layout.dim
    outside, inside = layout.unfold(output.shape[dim] // rows)
    return output.unflatten(dim, (outside, rows, inside)).movedim(dim + 1, 0).reshape(rows, -1).cpu()
