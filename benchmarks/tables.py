"""TabM next to the authors' package: a training step, and a frozen prediction, relative to the package's own.

32 members, two layers of 256, 16 inputs, one output, dropout 0.1; one thread, in turn, medians of process time:
`python benchmarks/tables.py`. Bars: a step of 256 rows at most 1.1, a frozen prediction of 256 rows at most 0.8.
"""

from __future__ import annotations

import tabm
import torch
import torch.nn.functional as F
from timing import interleaved, ratio
from torch import nn

import pluribus as pb

MEMBERS, WIDTH, INPUTS, ROWS = 32, 256, 16, 256


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    device = torch.device("cpu")
    network = pb.models.mlp(inputs=INPUTS, num_classes=1, hidden=(WIDTH, WIDTH), dropout=0.1)
    ours = pb.tabm(network, MEMBERS).train()
    theirs = tabm.TabM.make(n_num_features=INPUTS, d_out=1, n_blocks=2, d_block=WIDTH, dropout=0.1, k=MEMBERS).train()
    x, y = torch.randn(ROWS, INPUTS), torch.randn(ROWS, 1)
    optimizers = torch.optim.AdamW(ours.parameters()), torch.optim.AdamW(theirs.parameters())

    def step(loss: object, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    def package_loss() -> torch.Tensor:
        return F.mse_loss(theirs(x).flatten(0, 1), y.repeat_interleave(MEMBERS, 0))

    times = interleaved(
        {"ours": lambda: step(lambda: ours.loss(x, y, F.mse_loss), optimizers[0]),
         "package": lambda: step(package_loss, optimizers[1])},
        device, seconds=20,
    )  # fmt: skip
    print(f"training step, {ROWS} rows: {ratio(times, 'ours', 'package'):.2f} of the package's")
    ours.eval()
    theirs.eval()
    for rows in (1, 32, ROWS, 1024):
        some = torch.randn(rows, INPUTS)
        frozen = pb.freeze(ours, some)
        with torch.inference_mode():
            times = interleaved(predictions(frozen, theirs, some), device, seconds=8)
        print(f"frozen prediction, {rows} rows: {ratio(times, 'ours', 'package'):.2f} of the package's ({frozen.form})")


def predictions(frozen: nn.Module, theirs: nn.Module, x: torch.Tensor) -> dict[str, object]:
    return {"ours": lambda: frozen(x), "package": lambda: theirs(x)}


if __name__ == "__main__":
    main()
