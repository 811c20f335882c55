"""Convolutions of 3 x 3 with 2.25 times fewer multiplications (Winograd; Lavin and Gray, 2016, F(2x2, 3x3)).

Each output tile of 2 x 2 is made of 16 products where the direct way needs 36. The transformations of inputs and
outputs are additions; they pay where a layer has many channels and small maps. In single precision the results are
as exact as those of the direct way.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

G = ((1.0, 0.0, 0.0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0.0, 0.0, 1.0))  # section 4.1


def transformed(weight: Tensor) -> Tensor:
    """The weight, (outputs, inputs, 3, 3), as 16 matrices, (16, inputs, outputs)."""
    g = torch.tensor(G, dtype=torch.float64, device=weight.device)
    made = torch.einsum("ia,jb,kcab->ijck", g, g, weight.detach().double())
    return made.flatten(0, 1).to(weight.dtype).contiguous()


def restored(matrices: Tensor) -> Tensor:
    """The weight that `transformed` was given, up to its rounding."""
    inverse = torch.linalg.pinv(torch.tensor(G, dtype=torch.float64)).to(matrices.device)
    made = torch.einsum("ai,bj,ijck->kcab", inverse, inverse, matrices.double().unflatten(0, (4, 4)))
    return made.to(matrices.dtype)


def convolved(x: Tensor, matrices: Tensor, bias: Tensor | None) -> Tensor:
    """The convolution with padding 1, channels-last.

    Shapes:
        x: (batch, inputs, height, width), even height and width
        matrices: (16, inputs, outputs)
    """
    batch, inputs, height, width = x.shape
    h, w, outputs = height // 2, width // 2, matrices.shape[2]
    padded = F.pad(x.permute(0, 2, 3, 1), (0, 0, 1, 1, 1, 1))  # (batch, height + 2, width + 2, inputs)
    rows = x.new_empty(4, batch, h, width + 2, inputs)
    _differences(padded.unsqueeze(0), rows.unsqueeze(1), 2)
    tiles = x.new_empty(4, 4, batch, h, w, inputs)
    _differences(rows, tiles.transpose(0, 1), 3)
    products = torch.bmm(tiles.view(16, -1, inputs), matrices).view(4, 4, batch, h, w, outputs)
    y = x.new_empty(batch, h, 2, w, 2, outputs)
    for column, part in enumerate(_sums(products[:, 0], products[:, 1], products[:, 2], products[:, 3])):
        for row, value in enumerate(_sums(*part.unbind(0))):
            if bias is None:
                y[:, :, row, :, column] = value
            else:
                torch.add(value, bias, out=y[:, :, row, :, column])
    return y.view(batch, height, width, outputs).permute(0, 3, 1, 2)


def _differences(x: Tensor, out: Tensor, dim: int) -> None:
    """The four combinations of neighbours that the products read, two apart along `dim`: out[0] to out[3]."""
    size = x.shape[dim]
    first, second, third, fourth = (_every_other(x, dim, start, size) for start in range(4))
    torch.sub(first, third, out=out[0])
    torch.add(second, third, out=out[1])
    torch.sub(third, second, out=out[2])
    torch.sub(second, fourth, out=out[3])


def _every_other(x: Tensor, dim: int, start: int, size: int) -> Tensor:
    return x[(slice(None),) * dim + (slice(start, size - 2 + start // 2 * 2, 2),)]


def _sums(first: Tensor, second: Tensor, third: Tensor, fourth: Tensor) -> tuple[Tensor, Tensor]:
    return (second + third).add_(first), (second - third).sub_(fourth)


def fits(shape: tuple[int, ...], stride: list[int], padding: list[int], dilation: list[int], groups: int) -> bool:
    """Whether a convolution with a weight of this shape can be computed so."""
    plain = (stride, padding, dilation, groups) == ([1, 1], [1, 1], [1, 1], 1)
    return plain and tuple(shape[2:]) == (3, 3)
