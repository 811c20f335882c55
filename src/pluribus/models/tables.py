"""A perceptron for tables whose numbers are embedded piecewise linearly (Gorishniy et al., 2022)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .._common.optional import require
from .small import mlp

BINS, WIDTH = 48, 16  # of the authors' package


class PiecewiseMLP(nn.Module):
    """A perceptron on embedded numbers, next to the columns that are flags or one-hot.

    Shapes:
        input: (batch, columns)
        output: (batch, num_classes)

    Args:
        rows: training rows, which say where the bins of each number are: (rows, columns); columns of at most two
            different values are read as they are
        hidden, dropout: as for `mlp`
    """

    numbers: Tensor
    others: Tensor
    embeds_numbers = True  # TabM then draws its first vectors from N(0, 1)

    def __init__(self, rows: Tensor, num_classes: int, hidden: Sequence[int] = (256, 256), dropout: float = 0.1):
        super().__init__()
        package = require("rtdl_num_embeddings", "piecewise-linear embeddings", "tables")
        numbers = torch.tensor([len(column.unique()) > 2 for column in rows.T])
        if not numbers.any():
            raise ValueError("PiecewiseMLP: no column has more than two different values. Use pb.models.mlp.")
        self.register_buffer("numbers", numbers.nonzero().flatten())
        self.register_buffer("others", (~numbers).nonzero().flatten())
        bins = package.compute_bins(rows[:, numbers], n_bins=min(BINS, len(rows) - 1))
        self.embedding = package.PiecewiseLinearEmbeddings(bins, WIDTH, activation=False, version="B")
        self.chunks = [*[WIDTH] * int(numbers.sum()), *[1] * int((~numbers).sum())]
        self.network = mlp(inputs=sum(self.chunks), num_classes=num_classes, hidden=hidden, dropout=dropout)

    def forward(self, x: Tensor) -> Tensor:
        """The outputs of each row."""
        embedded = self.embedding(x.index_select(1, self.numbers)).flatten(1)
        return self.network(torch.cat([embedded, x.index_select(1, self.others)], 1))
