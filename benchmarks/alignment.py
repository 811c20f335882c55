"""The ridge between two networks that were trained apart, before and after their units are in one order.

    python benchmarks/alignment.py [--pairs 3] [--picture docs/images/alignment.png]

Networks are trained on the embedded digits from seeds of their own. The ridge is the largest training loss on the
straight line above the chord between its ends, with the statistics of batch normalisation estimated at each place.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

import pluribus as pb
from pluribus import landscape as ls

POINTS = 11


class Transformer(nn.Module):
    """Patches of 7 x 7 pixels, two layers of four heads."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.place = nn.Linear(49, 64), nn.Parameter(0.1 * torch.randn(16, 64))
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(64), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        patches = x.unfold(2, 7, 7).unfold(3, 7, 7).flatten(4).flatten(1, 3)
        return self.head(self.norm(self.body(self.enter(patches) + self.place).mean(1)))


def mlp() -> nn.Module:
    """Three hidden layers of 512 units."""
    hidden = [nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU()]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(512, 10))


def cnn() -> nn.Module:
    """Two wide convolutions with batch normalisation."""

    def block(i: int, o: int) -> list[nn.Module]:
        return [nn.Conv2d(i, o, 3, 2, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU()]

    return nn.Sequential(*block(1, 64), *block(64, 128), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(512, 10))


KINDS: dict[str, tuple[Callable[[], nn.Module], int]] = {  # with the epochs of each
    "MLP 3 x 512": (mlp, 10),
    "CNN with batch norm": (cnn, 10),
    "transformer": (Transformer, 15),
}

COLOURS = {"as trained": "#c04000", "aligned by weights": "#007a5a", "aligned by activations": "#1f5fb0"}


def train(build: Callable[[], nn.Module], seed: int, x: Tensor, y: Tensor, epochs: int) -> nn.Module:
    """A network of its own initialisation and order of rows."""
    torch.manual_seed(seed)
    model = build()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    return model.eval()


def lines(build: Callable[[], nn.Module], epochs: int, pair: int, x: Tensor, y: Tensor) -> dict[str, ls.Along]:
    """The loss along the line of a pair of networks, in each order of units."""
    one, other = (train(build, seed, x, y, epochs) for seed in (2 * pair, 2 * pair + 1))
    groups = ls.permutations(one, x)
    ways = {"as trained": one}
    ways |= {f"aligned by {by}": ls.align(one, other, x, by, groups=groups) for by in ("weights", "activations")}
    return {name: ls.along(ls.line(model, other), (x, y), POINTS) for name, model in ways.items()}


def draw(found: dict[str, list[dict[str, ls.Along]]], path: str) -> None:
    """The losses along the lines, one panel for each kind of network."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(found), figsize=(11, 3.4), squeeze=False)
    for panel, (kind, pairs) in zip(panels[0], found.items(), strict=True):
        for pair in pairs:
            for name, one in pair.items():
                panel.plot(one.t, one.loss, color=COLOURS[name], label=name if pair is pairs[0] else None, lw=1.6)
        panel.set_title(kind, fontsize=11)
        panel.set_xlabel("from the first network to the second")
        panel.spines[["top", "right"]].set_visible(False)
    panels[0][0].set_ylabel("training loss")
    panels[0][0].legend(frameon=False, fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Print the ridges, and draw the lines where a picture is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--picture")
    chosen = parser.parse_args()
    data = pb.data.load("digits")
    x, y = data.train[:]
    x = data.normalise(x)
    found = {}
    for kind, (build, epochs) in KINDS.items():
        found[kind] = [lines(build, epochs, pair, x, y) for pair in range(chosen.pairs)]
        for name in COLOURS:
            heights = np.array([max(pair[name].barrier, 0.0) for pair in found[kind]])
            print(f"{kind:20} {name:24} {heights.mean():.4f} [{heights.min():.4f}, {heights.max():.4f}]", flush=True)
    if chosen.picture:
        draw(found, chosen.picture)


if __name__ == "__main__":
    main()
