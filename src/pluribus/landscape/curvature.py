"""The curvature of the loss at a network: leading eigenvalues, trace and density of its Hessian, never written down."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from .._common.optional import require
from .._common.trees import rows_of
from ..methods.building import check_whole
from ..surgery.copying import state
from .common.examples import Criterion, Examples, answer_of, loss_of
from .common.networks import network_of

Product = Callable[[Tensor], Tensor]  # of a symmetric matrix with a vector


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues, trace and density of the Hessian of the mean loss at one network.

    Shapes:
        values: (top), the largest eigenvalues, the largest first
        nodes, weights: (any number), where the density is and how much of it: weights sum to 1

    Args:
        lowest: the least eigenvalue: below 0 where the loss falls off in some direction
        trace: the sum of all eigenvalues; `trace_error` is its standard error, 0 where it is exact
        parameters: how many weights may change
        exact: whether the whole matrix was computed

    >>> found = spectrum(nn.Linear(2, 2), (torch.randn(16, 2), torch.arange(16) % 2), top=3)
    >>> found.values.shape, bool(abs(found.weights.sum() - 1) < 1e-6)
    ((3,), True)
    """

    values: np.ndarray
    lowest: float
    trace: float
    trace_error: float
    nodes: np.ndarray
    weights: np.ndarray
    parameters: int
    exact: bool

    def density(self, points: Any, width: float | None = None) -> np.ndarray:
        """The density of eigenvalues at these points, each one blurred to a normal distribution.

        Args:
            width: its standard deviation; by default a hundredth of the range of the spectrum
        """
        low, high = float(self.nodes.min()), float(self.nodes.max())
        width = width or max(0.01 * (high - low), 1e-12 * max(abs(low), abs(high)), 1e-300)
        gaps = (np.asarray(points, float)[..., None] - self.nodes) / width
        return np.exp(-0.5 * gaps**2) @ self.weights / (width * math.sqrt(2 * math.pi))


def spectrum(
    model: Any,
    data: Any,
    top: int = 10,
    *,
    probes: int = 10,
    steps: int = 60,
    exact: bool | None = None,
    tolerance: float = 1e-4,
    criterion: str | Criterion | None = None,
    task: str | None = None,
    batch_size: int = 256,
    seed: int = 0,
) -> Spectrum:
    """The leading eigenvalues, the trace and the density of the Hessian of the mean loss on `data`.

    In eval mode: dropout is off, and statistics of batch normalisation are those that the network has. Leading
    eigenvalues are ARPACK's. The trace is Hutchinson's, the density by stochastic Lanczos quadrature (Ghorbani et al.,
    2019), both from the same random vectors. Where the whole matrix costs no more products than that, it is computed,
    and everything is exact.

    Args:
        model: a network
        top: how many eigenvalues
        probes: random vectors for trace and density
        steps: of Lanczos' method for each of them
        exact: compute the whole matrix, or do not; by default where it has at most probes x steps columns
        tolerance: how far an eigenvalue may be off, relative to the largest
        criterion: by default what the task needs; a function (output, target) -> mean over rows
        batch_size: rows in one pass; it changes memory and time, not the result
        seed: of the random vectors

    >>> found = spectrum(nn.Linear(4, 3), (torch.randn(32, 4), torch.arange(32) % 3), top=2)
    >>> found.values.shape, found.parameters, found.exact
    ((2,), 15, True)
    """
    top, probes = check_whole("spectrum", "top", top), check_whole("spectrum", "probes", probes)
    hessian = _Hessian(model, data, criterion, task, batch_size)
    size = hessian.size
    if top > size:
        raise ValueError(f"spectrum: top must be at most {size}, one eigenvalue per weight, but it is {top}.")
    steps = min(check_whole("spectrum", "steps", steps), size)
    if exact or top == size or (exact is None and size <= probes * steps):
        matrix = torch.stack([hessian(row) for row in torch.eye(size, dtype=torch.float64)]).numpy()
        values = np.linalg.eigvalsh((matrix + matrix.T) / 2)[::-1].copy()
        even = np.full(size, 1 / size)
        return Spectrum(values[:top], float(values[-1]), float(values.sum()), 0.0, values, even, size, True)
    generator = torch.Generator().manual_seed(seed)
    values = _largest(hessian, size, top, tolerance, seed)
    nodes, weights, first, lows = [], [], [], []
    for _ in range(probes):
        start = (torch.randint(2, (size,), generator=generator) * 2 - 1).double() / math.sqrt(size)
        ritz, vectors = lanczos(hessian, start, steps)
        nodes.append(ritz)
        weights.append(vectors[0] ** 2 / probes)  # the Gaussian quadrature of this vector's spectral measure
        first.append(size * float(vectors[0] ** 2 @ ritz))  # v' H v
        lows.append(ritz.min())
    error = float(np.std(first, ddof=1)) / math.sqrt(probes) if probes > 1 else math.nan
    return Spectrum(
        values, float(min(lows)), float(np.mean(first)), error, np.concatenate(nodes), np.concatenate(weights), size,
        False,
    )  # fmt: skip


def lanczos(product: Product, start: Tensor, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Ritz values, and their coefficients in the Krylov basis of a vector of length 1: (steps, values)."""
    rows, diagonal, off = [start], list[float](), list[float]()
    while True:
        basis, image = torch.stack(rows), product(rows[-1])
        diagonal.append(float(image @ rows[-1]))
        length = float(image.norm())
        for _ in range(2):  # full orthogonalisation; twice is enough
            image = image - basis.T @ (basis @ image)
        rest = float(image.norm())
        if len(rows) == steps or rest <= 1e-10 * length:
            values, vectors = np.linalg.eigh(np.diag(diagonal) + np.diag(off, 1) + np.diag(off, -1))
            return values, vectors
        off.append(rest)
        rows.append(image / rest)


class _Hessian:
    """Products of the Hessian of the mean loss with vectors of the weights that may change."""

    def __init__(self, model: Any, data: Any, criterion: Any, task: str | None, batch_size: int):
        networks = network_of("spectrum", model)
        self.examples = Examples("spectrum", data, labelled=True, batch_size=batch_size)
        self.model = networks[0]
        self.loss = loss_of("spectrum", networks, self.examples, criterion, task)
        layout, own = networks.layout, dict(state(self.model))
        names = [name for name, moves in zip(layout.names, layout.moves, strict=True) if moves]
        for name, tensor in own.items():
            if tensor.is_floating_point():
                tensor.requires_grad_(name in names)
        self.weights = [own[name] for name in names]
        self.size = sum(weight.numel() for weight in self.weights)
        self.kept = len(self.examples.batches) == 1
        self.held: tuple[Sequence[Tensor], float] | None = None

    def __call__(self, vector: Tensor) -> Tensor:
        """The product in double precision."""
        parts = [
            part.reshape(weight.shape).to(weight)
            for part, weight in zip(vector.split([w.numel() for w in self.weights]), self.weights, strict=True)
        ]
        total = torch.zeros(self.size, dtype=torch.float64)
        for slopes, share in self._slopes():
            with torch.enable_grad():
                along = sum((slope * part).sum() for slope, part in zip(slopes, parts, strict=True))
            if not isinstance(along, Tensor) or not along.requires_grad:
                continue  # the loss is linear here
            seconds = torch.autograd.grad(along, self.weights, retain_graph=self.kept, materialize_grads=True)
            total += share * torch.cat([second.detach().reshape(-1).cpu().double() for second in seconds])
        if not bool(total.isfinite().all()):
            raise ValueError("spectrum: the loss has no finite second derivative at this network.")
        return total

    def _slopes(self) -> Iterator[tuple[Sequence[Tensor], float]]:
        """The gradients of each batch, which can be derived again, and its share of the rows; of one batch, kept."""
        if self.held is not None:
            yield self.held
            return
        for x, y in self.examples.batches:
            with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):  # the other kernels have no second derivative
                value = self.loss(answer_of(self.model, x), y.to(self.weights[0].device))
                slopes = torch.autograd.grad(value, self.weights, create_graph=True, materialize_grads=True)
            found = slopes, rows_of(x) / self.examples.rows
            if self.kept:
                self.held = found
            yield found


def _largest(product: Product, size: int, top: int, tolerance: float, seed: int) -> np.ndarray:
    """The largest eigenvalues, the largest first; of equal ones a Krylov space sees one, so that it takes rounds."""
    linalg = require("scipy.sparse.linalg", "ls.spectrum", "data")
    start, values, vectors = np.random.default_rng(seed).standard_normal(size), np.zeros(0), np.zeros((size, 0))

    def deflated(vector: np.ndarray) -> np.ndarray:
        vector = vector.reshape(-1)
        low = values + 2 * np.abs(values).max(initial=0)  # what is known comes last from now on
        return product(torch.from_numpy(vector.copy())).numpy() - vectors @ (low * (vectors.T @ vector))

    while len(values) < size - 1:
        matrix = linalg.LinearOperator((size, size), matvec=deflated, dtype=float)
        found, rows = linalg.eigsh(matrix, max(top - len(values), 1), which="LA", v0=start, tol=tolerance)
        known = np.sort(values)[::-1][:top]
        if len(known) == top and found[-1] <= known[-1] + tolerance * np.abs(known).max():
            break  # nothing larger is left
        values, vectors = np.concatenate([values, found]), np.concatenate([vectors, rows], 1)
    return np.sort(values)[::-1][:top].copy()
