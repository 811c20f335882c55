"""How far a layer is from itself with only a share p of its weights (Packed-Ensembles, Proposition C.1 and Figure 5).

The inputs of the layer are independent Gaussians, and each weight is kept with probability p. Both functions give one
value for each output unit, in nats.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...methods.building import check_whole
from ...surgery.calling import evaluation_mode
from ..common.examples import Examples, answer_of
from ..common.networks import network_of

Share = float | Sequence[float] | Tensor
SHARES = tuple(i / 20 for i in range(1, 21))


def sparsity_divergence(weight: Tensor, mean: Any, variance: Any, p: Share) -> Tensor:
    """The Kullback-Leibler divergence of a layer's outputs from those of its sparse approximation (equation 17).

    Shapes:
        weight: (outputs, inputs)
        mean, variance: of the inputs: (inputs), or a number for all of them
        p: a number in (0, 1], or several: then they come first, (shares, outputs)
        result: (outputs), float64

    >>> sparsity_divergence(torch.ones(2, 100), 0.0, 1.0, 0.5)  # half the weights, half the variance
    tensor([0.1534, 0.1534], dtype=torch.float64)
    """
    shares, spread, ratio, offset = _terms("sparsity_divergence", weight, mean, variance, p)
    # The variance of the approximation is (1 + t) times that of the layer (equation 16), its mean is p times the
    # layer's: log(1 + t) - t / (1 + t) loses no digits where p is near 1.
    t = -(1 - shares) * (1 - shares * ratio / spread)
    return (t.log1p() - t / (1 + t) + ((1 - shares) * offset).square() / spread / (1 + t)) / 2


def sparsity_bound(weight: Tensor, mean: Any, variance: Any, p: Share) -> Tensor:
    """What that divergence cannot exceed (equation 8).

    Args:
        weight, mean, variance, p: as for `sparsity_divergence`

    >>> sparsity_bound(torch.ones(2, 100), 0.0, 1.0, 0.5)
    tensor([0.2500, 0.2500], dtype=torch.float64)
    """
    shares, spread, ratio, offset = _terms("sparsity_bound", weight, mean, variance, p)
    gap = (1 - shares).square() / shares  # p + 1 / p - 2
    return (gap + shares * (1 - shares) * ratio / spread + gap * offset.square() / spread) / 2


def sparsity_curves(
    deviations: Sequence[float] = (0.2, 0.5, 1.0),
    shares: Sequence[float] = SHARES,
    *,
    inputs: int = 100,
    weight: float = 0.1,
    mean: float = 0.1,
    draws: int = 20_000,
    seed: int = 0,
) -> dict[str, Tensor]:
    """Bound, divergence and what drawn masks give, against p, for standard deviations of the output (Figure 5).

    "measured" is the divergence of two Gaussians with the means and variances of outputs that were computed with drawn
    inputs and drawn masks.

    Shapes: "shares": (shares), "deviations": (deviations), "bound", "divergence", "measured": (deviations, shares)

    Args:
        weight: every weight of the unit
        mean: of every input
        draws: masks and inputs that are drawn for "measured"
        seed: of those

    >>> sparsity_curves(deviations=[0.5], shares=[0.5, 1.0], draws=200)["bound"].shape
    torch.Size([1, 2])
    """
    row = torch.full((1, inputs), float(weight))
    kept = torch.as_tensor(shares, dtype=torch.float64)
    generator, found = torch.Generator().manual_seed(seed), []
    for deviation in deviations:
        variance = deviation**2 / (inputs * weight**2)  # of each input, so that the output has this deviation
        h = mean + variance**0.5 * torch.randn(draws, inputs, generator=generator)
        found.append(_curves(row, mean, variance, kept, h, generator))
    stacked = {name: torch.stack([curves[name][:, 0] for curves in found]) for name in found[0]}
    return {"shares": kept, "deviations": torch.as_tensor(deviations, dtype=torch.float64), **stacked}


def _curves(
    weight: Tensor, mean: Any, variance: Any, shares: Tensor, h: Tensor, generator: torch.Generator
) -> dict[str, Tensor]:
    """Bound, divergence, and what masks drawn for rows of inputs give, each (shares, outputs)."""
    dense, uniform = h @ weight.T, torch.rand(h.shape, generator=generator, dtype=h.dtype)
    sparse = torch.stack([(h * (uniform < share)) @ weight.T for share in shares.tolist()])
    whole, part = (torch.distributions.Normal(x.mean(-2), x.std(-2)) for x in (dense.double(), sparse.double()))
    return {
        "bound": sparsity_bound(weight, mean, variance, shares),
        "divergence": sparsity_divergence(weight, mean, variance, shares),
        "measured": torch.distributions.kl_divergence(whole, part),
    }


def layer_sparsity(
    model: nn.Module, data: Any, shares: Sequence[float] = SHARES[1:-1], *, rows: int = 2000, seed: int = 0
) -> dict[str, dict[str, np.ndarray]]:
    """Bound, divergence and what drawn masks give, against p, of each layer of a network on its own inputs.

    Of linear layers, and of convolutions without groups, where each place is a row. The proposition takes the inputs
    of a layer as independent; "measured" takes them as they are, so that it may exceed the bound. Units whose output
    does not vary are left out.

    Args:
        model: a network
        data: (x, y), a data set or a loader, or x alone
        rows: of each layer's inputs, drawn, at most
        seed: of the rows and the masks that are drawn

    Shapes: for each layer "shares", "bound", "divergence", "measured": (shares), means over units, in nats

    >>> found = layer_sparsity(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(50, 4))
    >>> list(found), found["2"]["bound"].shape
    (['0', '2'], (18,))
    """
    kept, rows = _check_shares("layer_sparsity", shares).reshape(-1), check_whole("layer_sparsity", "rows", rows)
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for name, (weight, h) in _layer_inputs(network_of("layer_sparsity", model)[0], data, rows, generator).items():
        mean, variance = h.mean(0), h.var(0)
        varies = weight.square() @ variance > 1e-12 * weight.square().sum(1)
        if bool(varies.any()):
            curves = _curves(weight[varies], mean, variance, kept, h, generator)
            found[name] = {"shares": kept.numpy(), **{key: one.mean(1).numpy() for key, one in curves.items()}}
    if not found:
        raise ValueError(
            "layer_sparsity: the network has no linear layer or ungrouped convolution whose output varies."
        )
    return found


def _layer_inputs(
    network: nn.Module, data: Any, rows: int, generator: torch.Generator
) -> dict[str, tuple[Tensor, Tensor]]:
    """The weight of each layer, (outputs, inputs), and rows of what it read, (rows, inputs), in double precision."""
    read: dict[str, list[Tensor]] = {}

    def note(name: str, layer: nn.Module, args: Any) -> None:
        read.setdefault(name, []).append(_patches(layer, args[0].detach(), rows, generator).double())

    layers = {name: part for name, part in network.named_modules()
              if isinstance(part, nn.Linear) or (isinstance(part, nn.Conv2d) and part.groups == 1)}  # fmt: skip
    hooks = [part.register_forward_pre_hook(partial(note, name)) for name, part in layers.items()]
    with evaluation_mode(network, *hooks), torch.no_grad():
        for x, _ in Examples("layer_sparsity", data).batches:
            answer_of(network, x)
    return {name: (layers[name].weight.detach().double().flatten(1).cpu(), _some(torch.cat(parts), rows, generator))
            for name, parts in read.items()}  # fmt: skip


def _patches(layer: nn.Module, x: Tensor, rows: int, generator: torch.Generator) -> Tensor:
    """Rows that a layer multiplies with its weight: (rows, inputs)."""
    if isinstance(layer, nn.Conv2d):
        spans = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
        sides = {"same": [(span // 2, span - span // 2) for span in spans], "valid": [(0, 0), (0, 0)]}
        given = layer.padding
        rows_and_columns = sides[given] if isinstance(given, str) else [(side, side) for side in given]
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        x = F.pad(x, [*rows_and_columns[1], *rows_and_columns[0]], mode)
        x = F.unfold(x, layer.kernel_size, layer.dilation, 0, layer.stride).transpose(1, 2)
    return _some(x.reshape(-1, x.shape[-1]).cpu(), rows, generator)


def _some(x: Tensor, rows: int, generator: torch.Generator) -> Tensor:
    return x if len(x) <= rows else x[torch.randperm(len(x), generator=generator)[:rows]]


def _terms(caller: str, weight: Tensor, mean: Any, variance: Any, p: Share) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The shares as a column, and for each unit its variance, the sum of (w mu)^2 and its mean: equations 9, 11, 14."""
    shares, weight = _check_shares(caller, p), weight.detach().double()
    if weight.ndim != 2:
        raise ValueError(
            f"{caller}: weight must be (outputs, inputs), but its shape is {tuple(weight.shape)}. For a convolution, "
            "give weight.flatten(1), with a mean and a variance for each of its inputs."
        )
    mu, sigma = (
        torch.as_tensor(value, dtype=torch.float64, device=weight.device).detach().expand(weight.shape[1])
        for value in (mean, variance)
    )
    squares = weight.square()
    spread = squares @ sigma
    if not bool((spread > 0).all()):
        raise ValueError(
            f"{caller}: every output unit must vary, but unit {int((~(spread > 0)).nonzero()[0])} does not, so every "
            "divergence from it is infinite. Leave out units without weights and constant inputs."
        )
    return shares, spread, squares @ mu.square(), weight @ mu


def _check_shares(caller: str, p: Share) -> Tensor:
    shares = torch.as_tensor(p, dtype=torch.float64)
    if not bool(((shares > 0) & (shares <= 1)).all()):
        raise ValueError(
            f"{caller}: p, the share of the weights that stay, must be above 0 and at most 1, but it is "
            f"{shares.tolist()}."
        )
    return shares[:, None] if shares.ndim else shares
