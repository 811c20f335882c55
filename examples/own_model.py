"""Any `nn.Module` becomes an ensemble in one line: here a network of your own, four methods, one table.

You learn: how a method converts your model (`explain()` describes the result), how `pb.fit` trains it as in the
method's paper, and what each costs and gains.
"""

import torch
from torch import Tensor, nn

import pluribus as pb


class Net(nn.Module):
    """A small residual network, written as one would without ever having heard of ensembles."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.enter = nn.Conv2d(1, width, 3, stride=2)
        self.mix = nn.Conv2d(width, width, 3, padding=1)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x).relu()
        h = h + self.mix(h).relu()
        return self.head(h.amax((2, 3)))


def main() -> None:
    data = pb.data.load("sklearn_digits")  # 1,797 digits of 8x8 pixels, embedded in scikit-learn
    (x, y), test = data.train[:], data.test[:]
    torch.manual_seed(0)
    model = Net()
    ensembles = {
        "single": pb.single(model),
        "deep": pb.deep(model, 4),
        "packed": pb.packed(model, 4, alpha=2, example=x[:2]),  # four thin networks, together as large as one
        "batch_ensemble": pb.batch_ensemble(model, 4),  # one network, and two vectors per layer for each member
    }
    print(f"{'method':15} {'parameters':>10} {'accuracy':>9} {'NLL':>6} {'ECE':>6}")
    for name, ensemble in ensembles.items():
        pb.fit(ensemble, (x, y), data.validation[:], epochs=8, batch_size=64, lr=1e-2, optimizer="adam")
        figures = pb.evaluate(ensemble.predict(test[0]), test[1])
        parameters = sum(p.numel() for p in ensemble.parameters())
        print(f"{name:15} {parameters:10,} {figures['accuracy']:9.3f} {figures['nll']:6.3f} {figures['ece']:6.3f}")
    print("\n" + ensembles["packed"].explain())


if __name__ == "__main__":
    main()
