"""Git re-basin of any model: aligns the hidden units of two networks.

You learn: `ls.permutations` finds which units of *your* network can be permuted, `ls.align` permutes those of one
network to match another without changing its function, and most of the ridge between them goes away. Draws
`rebasin.png`.
"""

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

import pluribus as pb
from pluribus import landscape as ls


class Net(nn.Module):
    """A residual stream and a gate: nobody has written down its symmetries."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.enter, self.gate, self.value = nn.Linear(64, width), nn.Linear(width, width), nn.Linear(width, width)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x.flatten(1)).relu()
        h = h + self.gate(h).sigmoid() * self.value(h).relu()
        return self.head(h)


def main() -> None:
    data = pb.data.load("sklearn_digits")
    train = data.train[:]
    networks = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        run = pb.single(Net())
        pb.fit(run, train, epochs=15, batch_size=64, lr=3e-3, optimizer="adam", seed=seed)
        networks.append(run.member(0).eval())
    one, two = networks

    print(ls.permutations(one, train[0]).explain(), "\n")
    aligned = {by: ls.align(one, two, train[0], by=by) for by in ("weights", "activations")}
    figure, axis = plt.subplots(figsize=(5.4, 3), layout="constrained")
    for name, start in {"as trained": one, **{f"aligned by {by}": model for by, model in aligned.items()}}.items():
        course = ls.along(ls.line(start, two), train, points=21)
        same = torch.allclose(start(train[0]), one(train[0]), atol=1e-4)
        print(f"{name:23} ridge {course.barrier:6.3f}   the same function: {'yes' if same else 'NO'}")
        axis.plot(course.t, course.loss, label=name)
    axis.set(xlabel="from one network to the other", ylabel="training loss")
    axis.legend(frameon=False)
    figure.savefig("rebasin.png", dpi=110)


if __name__ == "__main__":
    main()
