"""Uncertainty for every pixel: digits in a scene, and an object that is not a digit.

You learn: an ensemble of a dense network needs nothing special; `predict` gives (batch, height, width). Uncertainty
lies along edges, on digits that touch or are hard to read, and on what was never in the training data: a letter, which
still gets some label. Draws `segmentation.png`.
"""

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

import pluribus as pb

SIDE = 24


class UNet(nn.Module):
    """Down to an eighth of the side, and up again; 11 outputs per pixel: 10 digits, and the background."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(1, width, 4, 2, 1), nn.Conv2d(width, 2 * width, 4, 2, 1)
        self.low, self.up = nn.Conv2d(2 * width, 8 * width, 4, 2, 1), nn.ConvTranspose2d(8 * width, width, 4, 4)
        self.out = nn.ConvTranspose2d(2 * width, 11, 4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        one = self.one(x).relu()
        low = self.low(self.two(one).relu()).relu()
        return self.out(torch.cat([one, self.up(low).relu()], 1))


def main() -> None:
    torch.manual_seed(0)
    data = pb.data.load("sklearn_digits", outside=["letters"])  # 8x8 pixels each
    x, y = scenes(*data.train[:], count=400)
    ensemble = pb.packed(UNet(), 4, alpha=2, example=x[:2])  # four thin networks cost about as much as one
    pb.fit(ensemble, (x, y), epochs=15, batch_size=16, lr=1e-2, optimizer="adam", schedule="cosine")

    test_x, test_y = scenes(*data.test[:], count=50)
    figures = pb.evaluate(ensemble.predict(test_x), test_y, metrics=["accuracy", "mean_iou", "ece"])
    print("  ".join(f"{name} {value:.3f}" for name, value in figures.items()))

    letters = data.outside["letters"][:][0]
    test_x[:3, :, 8:16, 8:16] = letters[[5, 40, 90]]  # an unknown object in the middle
    p = ensemble.predict(test_x[:3])
    figure, axes = plt.subplots(3, 4, figsize=(6.4, 5), layout="constrained")
    shown = {"scene": (test_x[:3, 0], "gray"), "label": (p.label, "tab20"), "aleatoric": (p.aleatoric, "magma"),
             "epistemic": (p.epistemic, "magma")}  # fmt: skip
    for column, (name, (pictures, colours)) in enumerate(shown.items()):
        axes[0, column].set_title(name)
        for axis, picture in zip(axes[:, column], pictures, strict=True):
            axis.imshow(picture.numpy(), cmap=colours, vmin=0, vmax=float(pictures.max()))
            axis.set(xticks=[], yticks=[])
    figure.savefig("segmentation.png", dpi=110)


def scenes(digits: Tensor, labels: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Scenes with three digits each, (count, 1, 24, 24), and the class of every pixel."""
    x, y = torch.zeros(count, 1, SIDE, SIDE), torch.full((count, SIDE, SIDE), 10)
    for i in range(count):
        for cell in torch.randperm(9)[:3].tolist():
            row, column, k = 8 * (cell // 3), 8 * (cell % 3), int(torch.randint(len(digits), ()))
            x[i, :, row : row + 8, column : column + 8] = digits[k]
            y[i, row : row + 8, column : column + 8][digits[k, 0] > 0.25] = labels[k]
    return x, y


if __name__ == "__main__":
    main()
