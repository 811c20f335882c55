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
from .common.networks import network_of

LAYERS = (*READERS, nn.MultiheadAttention)  # whose outputs are compared when nobody says
CONSTANT = 1e-12  # of a layer's mean square: variation below it is rounding


def cka(
    a: Any, b: Any = None, data: Any = None, *, where: str | None = None, debiased: bool = False, batch_size: int = 256
) -> np.ndarray:
    """Linear CKA between each layer of `a` and each of `b`, on all rows at once: (layers of a, layers of b).

    1 where one layer's outputs are the other's turned, mirrored and scaled as a whole; not a number for a layer that
    gives the same for all rows. Inner products of all pairs of rows are summed batch by batch, so that neither
    features nor products of all rows are kept, and the batch size changes nothing. `layer_names` says which layers.

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
    one = _Features("cka", a, examples, where)
    other = one if b is None else _Features("cka", b, examples, where)
    sums = _Sums(one, other, examples.rows)
    spans = np.cumsum([0, *(rows_of(x) for x, _ in examples.batches)])
    for i in range(len(examples.batches)):
        first = [features.read(i) for features in sums.features]
        for j in range(i + 1):
            second = first if i == j else [features.read(j) for features in sums.features]
            blocks = [_products(p, q, debiased and i == j) for p, q in zip(first, second, strict=True)]
            sums.add(blocks, slice(*spans[i : i + 2]), slice(*spans[j : j + 2]))
    return sums.result(debiased)


def layer_names(model: Any, data: Any, *, where: str | None = None) -> list[str]:
    """The layers that `cka` compares, in its order; one that is called several times has a number after its name.

    Args:
        model, data: a network, and inputs for it
        where: a pattern of names; by default the layers with weights

    >>> layer_names(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(16, 4))
    ['0', '2']
    """
    return _Features("layer_names", model, Examples("layer_names", data), where).names


class _Features:
    """The outputs of a network's layers, each as (rows, features) around its mean over all rows."""

    def __init__(self, caller: str, holder: Any, examples: Examples, where: str | None):
        self.model, self.examples = network_of(caller, holder)[0], examples
        self.layouts = _locate(caller, self.model, examples, where)
        self.means: list[Any] = []
        sums: list[Tensor] = []
        self.names = [name for name, _ in self._outputs(0)]
        for i in range(len(examples.batches)):
            parts = [part.double().sum(0) for _, part in self._outputs(i)]
            sums = [a + b for a, b in zip(sums, parts, strict=True)] if sums else parts
        self.means = [total / examples.rows for total in sums]

    def read(self, i: int) -> list[Tensor]:
        """The features of batch i, centred."""
        pairs = zip(self._outputs(i), self.means, strict=True)
        return [(part.double() - mean).to(torch.promote_types(part.dtype, torch.float32)) for (_, part), mean in pairs]

    def _outputs(self, i: int) -> list[tuple[str, Tensor]]:
        x = ready(self.model, self.examples.batches[i][0])
        with evaluation_mode(self.model):
            seen = record_calls(self.model, self.layouts, {}, as_batch(x), outputs=True)
        found = []
        for name, calls in seen.items():
            places = self.layouts[name] if len(self.layouts[name]) > 1 else self.layouts[name] * len(calls)
            for call, (output, layout) in enumerate(zip(calls, places, strict=True), 1):
                title = name if len(calls) == 1 else f"{name} ({call})"
                found.append((title, _rows_first(output, layout, rows_of(x))))
        return found


class _Sums:
    """What the centred products of all pairs of rows are made of, for every pair of layers."""

    def __init__(self, one: _Features, other: _Features, rows: int):
        self.features = [one] if one is other else [one, other]
        self.rows = rows
        sizes = [len(features.names) for features in self.features]
        self.across = np.zeros((sizes[0], sizes[-1]))
        self.within = [np.zeros(size) for size in sizes]
        self.totals = [np.zeros((size, rows)) for size in sizes]

    def add(self, blocks: list[np.ndarray], first: slice, second: slice) -> None:
        """Take in the products of some rows with some others, (layers, rows, others), and of these with those."""
        times = 1 if first == second else 2
        for k, block in enumerate(blocks):
            self.within[k] += times * np.square(block).sum((1, 2))
            self.totals[k][:, first] += block.sum(2)
            if first != second:
                self.totals[k][:, second] += block.sum(1)
        flat = [block.reshape(len(block), -1) for block in blocks]
        self.across += times * flat[0] @ flat[-1].T

    def result(self, debiased: bool) -> np.ndarray:
        """CKA of every pair of layers."""
        join = _unbiased if debiased else _biased
        first, last = self.totals[0], self.totals[-1]
        across = join(self.across, first @ last.T, np.outer(first.sum(1), last.sum(1)), self.rows)
        norms = []
        for features, within, totals in zip(self.features, self.within, self.totals, strict=True):
            own = join(within, np.square(totals).sum(1), totals.sum(1) ** 2, self.rows)
            norms.append(np.sqrt(np.where((own > 0) & ~_constant(features, within, self.rows), own, np.nan)))
        return np.minimum(across / np.outer(norms[0], norms[-1]), 1.0)


def _biased(product: Any, rows: Any, total: Any, n: int) -> Any:
    """tr(K H L H): of the sum of products, the product of row sums, and that of the totals."""
    return product - 2 / n * rows + total / n**2


def _unbiased(product: Any, rows: Any, total: Any, n: int) -> Any:
    """n (n - 3) times equation 5 of Song et al.: the diagonals are 0."""
    return product + total / ((n - 1) * (n - 2)) - 2 / (n - 2) * rows


def _constant(features: _Features, within: np.ndarray, rows: int) -> np.ndarray:
    """Which layers give the same for all rows, but for rounding."""
    squares = np.array([float(mean.square().sum()) for mean in features.means])
    return np.sqrt(within) <= CONSTANT * rows * squares


def _products(one: list[Tensor], other: list[Tensor], hollow: bool) -> np.ndarray:
    blocks = torch.stack([(p @ q.T).double() for p, q in zip(one, other, strict=True)])
    if hollow:
        blocks.diagonal(dim1=1, dim2=2).zero_()
    return blocks.numpy()


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
