"""What a cascade costs at the full ensemble's accuracy: deep 4 and packed 4 on CIFAR-10 and Fashion-MNIST images.

Trains what is missing (a stopped run goes on), chooses thresholds on validation rows, and measures on test rows the
accuracy and the deployed (frozen) latency of the cascade relative to the full ensemble's, interleaved in one process.

The protocol, fixed before anything was measured: a quarter of the training images (CIFAR-10) or a fifth
(Fashion-MNIST) is held out for the thresholds and for nothing else; no weights are chosen on them. The cascade's stages
are 1, 2, 3 and 4 members; its margin is 1 point of accuracy at confidence 0.9. The test images are used once.

nice -n 19 python benchmarks/serving.py --data FOLDER --work FOLDER [--only cifar10-deep] [--seconds 20]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import pluribus as pb

MEMBERS = 4

HELD_OUT = {"cifar10": 2500, "fashion_mnist": 4000}

EPOCHS = {"cifar10": 16, "fashion_mnist": 6}


def network(data: str) -> nn.Module:
    """Four convolutions with normalisation, for images of three channels or one."""
    layers: list[nn.Module] = []
    channels = 3 if data == "cifar10" else 1
    for width, pool in ((32, True), (64, True), (128, True), (128, False)):
        layers += [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if pool else []
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def load(folder: Path, data: str) -> dict[str, tuple[Tensor, Tensor]]:
    """The rows by their use, normalised by what the training rows say; a seeded order."""
    with np.load(folder / f"{data}.npz") as file:
        x, y, tx, ty = (torch.from_numpy(file[key]) for key in ("x_train", "y_train", "x_test", "y_test"))
    x, tx = (t[:, None] if t.ndim == 3 else t.permute(0, 3, 1, 2) for t in (x, tx))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, y, count = x[order] / 255, y[order].long(), HELD_OUT[data]
    mean, std = x[count:].mean((0, 2, 3), keepdim=True), x[count:].std((0, 2, 3), keepdim=True)
    x, tx = (x - mean) / std, (tx / 255 - mean) / std
    return {"train": (x[count:], y[count:]), "validation": (x[:count], y[:count]), "test": (tx, ty.long())}


def train(data: str, method: str, rows: dict[str, tuple[Tensor, Tensor]], work: Path) -> pb.Ensemble:
    """The ensemble, trained once and then read."""
    path, model = work / f"{data}-{method}.safetensors", network(data)
    if path.exists():
        return pb.load(path, model).eval()
    torch.manual_seed(0)
    x, y = rows["train"]
    ensemble = pb.deep(model, MEMBERS) if method == "deep" else pb.packed(model, MEMBERS, alpha=2, example=x[:2])
    recipe = pb.Recipe(
        epochs=EPOCHS[data], batch_size=64, lr=4e-3, weight_decay=0.02, optimizer={"name": "adamw"},
        schedule={"name": "cosine", "warmup": 1}, augment={"flip": True, "crop": 4 if data == "cifar10" else 2},
    )  # fmt: skip
    history = pb.fit(ensemble, (x, y), recipe=recipe, folder=work / f"{data}-{method}", seed=0, progress=False)
    print(f"{data} {method}: {history.seconds:.0f} s, last rows {history.rows[-1]}", flush=True)
    pb.save(ensemble.eval(), path)
    return ensemble


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.work.mkdir(parents=True, exist_ok=True)
    for data in HELD_OUT:
        for method in ("deep", "packed"):
            if options.only in f"{data}-{method}":
                train(data, method, load(options.data, data), options.work)


if __name__ == "__main__":
    main()
