"""Two moons in the plane: where is each method uncertain? Draws `moons.png`, in a minute.

Trains each method of `pb.METHODS` but lora, which is for trained networks, with the same steps, batches and optimizer,
eight members; MIMO has three.
"""

import math

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pluribus as pb


def main() -> None:
    torch.set_num_threads(1)  # the networks are small: threads would wait for each other
    x, y = moons(400)
    lines = torch.linspace(-2.5, 3.5, 120), torch.linspace(-2.5, 3, 110)
    grid, (across, up) = torch.cartesian_prod(*lines), [line.numpy() for line in lines]
    figure, axes = plt.subplots(2, 5, figsize=(12, 5.2), layout="constrained")
    for axis, method in zip(axes.flat, [m for m in pb.METHODS if m != "lora"], strict=False):
        torch.manual_seed(0)
        ensemble = ensemble_of(method, pb.models.mlp(2, 2, hidden=(64, 64, 64)), 8, x, branch="fc3|fc")
        train_(ensemble, x, y, steps=500, lr=1e-2)
        uncertainty = ensemble.predict(grid).total.view(120, 110).T.numpy()
        mesh = axis.pcolormesh(across, up, uncertainty, cmap="Purples", vmin=0, vmax=math.log(2), rasterized=True)
        for label, colour in enumerate(("#d95f02", "#1b9e77")):
            axis.scatter(*x[y == label].T.numpy(), s=3, color=colour)
        axis.set(title=method, xticks=[], yticks=[])
    axes.flat[-1].axis("off")
    bar = figure.colorbar(mesh, cax=axes.flat[-1].inset_axes((0.1, 0.1, 0.1, 0.8)), ticks=[0, math.log(2)])
    bar.ax.set_yticklabels(["certain", "a coin toss"], fontsize=11)
    figure.savefig("moons.png", dpi=110)
    print("The picture is in moons.png: the darker, the less certain.")


def ensemble_of(method: str, model: nn.Module, size: int, example: Tensor, branch: str) -> pb.Ensemble:
    if method == "single":
        return pb.single(model)
    options = {
        "packed": {"alpha": 2, "example": example},
        "masksembles": {"scale": 2.0},
        "mc_dropout": {"rate": 0.1},
        "mimo": {"example": example, "init": "different"},
        "treenet": {"branch": branch},
    }
    size = 3 if method == "mimo" else size  # as in its paper: more do not fit into one small network
    return pb.METHODS[method](model, size, **options.get(method, {}))


def train_(ensemble: pb.Ensemble, x: Tensor, y: Tensor, steps: int, lr: float) -> None:
    optimizer = torch.optim.Adam(ensemble.parameter_groups(lr=lr))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    ensemble.train()
    for _ in range(steps):
        rows = torch.randint(len(x), (64,))
        optimizer.zero_grad()
        ensemble.loss(x[rows], y[rows], F.cross_entropy).backward()
        optimizer.step()
        schedule.step()


def moons(count: int) -> tuple[Tensor, Tensor]:
    """Points of two half circles, (count, 2), and which half circle they are of."""
    generator = torch.Generator().manual_seed(0)
    labels, angle = torch.arange(count) % 2, math.pi * torch.rand(count, generator=generator)
    sign = 1.0 - 2 * labels
    points = torch.stack([labels + sign * angle.cos(), labels / 2 + sign * angle.sin()], 1)
    return points + 0.1 * torch.randn(count, 2, generator=generator), labels


if __name__ == "__main__":
    main()
