"""Every method on two problems: who knows what it does not know, and what does that cost?

Trains each method of `pb.METHODS` with the same steps, batches and optimizer, on data that is generated here:
drawings of six shapes, with four members (a table, printed), and two moons in the plane, with eight (a picture,
`demo.png`, if matplotlib is installed); MIMO has three. Two minutes or less on two cores.
"""

import math
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pluribus as pb


def main() -> None:
    start = time.perf_counter()
    torch.set_num_threads(1)  # the networks are small: threads would wait for each other
    compare_on_shapes()
    compare_on_moons()
    print(f"\nDone in {time.perf_counter() - start:.0f} s.")


# -------------------------------------------------------------------- making and training


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


# -------------------------------------------------------------------- drawings of shapes: the table


def compare_on_shapes() -> None:
    x, y = shapes(2000, KNOWN, seed=0)
    test, labels = shapes(1000, KNOWN, seed=1)
    unseen, _ = shapes(1000, UNSEEN, seed=2)
    print(f"{len(KNOWN)} shapes; unseen are {' and '.join(UNSEEN)}. Uncertainty is the entropy of the mean, in nats.\n")
    head = ("parameters", "mult-adds", "accuracy", "NLL", "uncertainty", "on unseen", "AUROC")
    print(f"{'method':15}" + "".join(f"{title:>12}" for title in head))
    for method in pb.METHODS:
        torch.manual_seed(0)
        model = pb.models.small_cnn(len(KNOWN), channels=1, image=12, dropout=0.0)
        base, ensemble = pb.cost(model, x[:1]), ensemble_of(method, model, 4, x[:1], branch="conv3|fc")
        train_(ensemble, x, y, steps=400, lr=5e-3)
        spent, inside, outside = pb.cost(ensemble, x[:1]), ensemble.predict(test), ensemble.predict(unseen)
        row = [f"{spent.parameters / base.parameters:.2f} x", f"{spent.mult_adds / base.mult_adds:.2f} x"]
        row += [f"{(inside.label == labels).float().mean():.1%}", f"{F.nll_loss(inside.log_mean, labels):.3f}"]
        row += [f"{inside.total.mean():.3f}", f"{outside.total.mean():.3f}"]
        print(f"{method:15}" + "".join(f"{cell:>12}" for cell in [*row, f"{auroc(inside.total, outside.total):.3f}"]))


KNOWN = {
    "bar": lambda u, v: v.abs(),
    "post": lambda u, v: u.abs(),
    "slash": lambda u, v: (u - v).abs() / math.sqrt(2),
    "backslash": lambda u, v: (u + v).abs() / math.sqrt(2),
    "circle": lambda u, v: (torch.hypot(u, v) - 0.6).abs(),
    "square": lambda u, v: (torch.maximum(u.abs(), v.abs()) - 0.6).abs(),
}
UNSEEN = {
    "plus": lambda u, v: torch.minimum(u.abs(), v.abs()),
    "diamond": lambda u, v: (u.abs() + v.abs() - 0.7).abs() / math.sqrt(2),
}


def shapes(count: int, kinds: dict, seed: int) -> tuple[Tensor, Tensor]:
    """Noisy drawings, (count, 1, 12, 12), at random places and sizes, and which of the kinds they are."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % len(kinds)
    place = 0.6 * torch.rand(2, count, 1, 1, generator=generator) - 0.3
    scale = 0.7 + 0.6 * torch.rand(count, 1, 1, generator=generator)
    line = torch.linspace(-1, 1, 12)
    u, v = (line.view(1, 1, -1) - place[0]) / scale, (line.view(1, -1, 1) - place[1]) / scale
    distances = torch.stack([kind(*torch.broadcast_tensors(u, v)) for kind in kinds.values()])
    drawings = (1 - distances[labels, torch.arange(count)] / 0.2).clamp(min=0)
    return (drawings + 0.4 * torch.randn(drawings.shape, generator=generator)).unsqueeze(1), labels


def auroc(inside: Tensor, outside: Tensor) -> float:
    """How often a row from outside is less certain than one from inside; a tie is half."""
    larger, equal = (compare(outside[:, None], inside).float().mean() for compare in (torch.gt, torch.eq))
    return float(larger + equal / 2)


# -------------------------------------------------------------------- two moons: the picture


def compare_on_moons() -> None:
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        print("\nmatplotlib is not installed, so there is no picture. Install it and run again to get demo.png.")
        return
    x, y = moons(400)
    lines = torch.linspace(-2.5, 3.5, 120), torch.linspace(-2.5, 3, 110)
    grid = torch.cartesian_prod(*lines)
    figure, axes = plt.subplots(2, 5, figsize=(12, 5.2), layout="constrained")
    for axis, method in zip(axes.flat, pb.METHODS, strict=False):
        torch.manual_seed(0)
        ensemble = ensemble_of(method, pb.models.mlp(2, 2, hidden=(64, 64, 64)), 8, x, branch="fc3|fc")
        train_(ensemble, x, y, steps=500, lr=1e-2)
        uncertainty = ensemble.predict(grid).total.view(120, 110).T
        mesh = axis.pcolormesh(*lines, uncertainty, cmap="Purples", vmin=0, vmax=math.log(2), rasterized=True)
        for label, colour in enumerate(("#d95f02", "#1b9e77")):
            axis.scatter(*x[y == label].T, s=3, color=colour)
        axis.set(title=method, xticks=[], yticks=[])
    axes.flat[-1].axis("off")
    bar = figure.colorbar(mesh, cax=axes.flat[-1].inset_axes((0.1, 0.1, 0.1, 0.8)), ticks=[0, math.log(2)])
    bar.ax.set_yticklabels(["certain", "a coin toss"], fontsize=11)
    figure.savefig("demo.png", dpi=110)
    print("\nThe picture is in demo.png: the darker, the less certain.")


def moons(count: int) -> tuple[Tensor, Tensor]:
    """Points of two half circles, (count, 2), and which half circle they are of."""
    generator = torch.Generator().manual_seed(0)
    labels, angle = torch.arange(count) % 2, math.pi * torch.rand(count, generator=generator)
    sign = 1.0 - 2 * labels
    points = torch.stack([labels + sign * angle.cos(), labels / 2 + sign * angle.sin()], 1)
    return points + 0.1 * torch.randn(count, 2, generator=generator), labels


if __name__ == "__main__":
    main()
