"""What becomes of a trained network: accuracy and NLL right after each conversion, and after the same fine-tuning.

Trains a ResNet-20 of half the width on 1,200 of the digits, converts it by each method with its defaults and with
`trained=`, and fine-tunes each for an epoch on the same digits (Adam, 1e-3). Judged on the other 597 digits, means over
seeds. Takes minutes on one thread.

python benchmarks/conversion.py [--seeds 2]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import mean, stdev

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import pluribus as pb

MEMBERS = 4
Conversion = Callable[[nn.Module, Tensor], pb.Ensemble]

CONVERSIONS: dict[str, Conversion] = {
    "the network itself": lambda m, x: pb.single(m),
    "`batch_ensemble`, N(1, 0.5)": lambda m, x: pb.batch_ensemble(m, MEMBERS),
    "`batch_ensemble`, `trained=x`": lambda m, x: pb.batch_ensemble(m, MEMBERS, trained=x),
    "`masksembles`, scale 2": lambda m, x: pb.masksembles(m, MEMBERS, example=x[:2]),
    "`masksembles`, scale 2, `trained=x`": lambda m, x: pb.masksembles(m, MEMBERS, example=x[:2], trained=x),
    "`multihead`, fresh heads": lambda m, x: pb.multihead(m, MEMBERS),
    "`multihead`, `trained=x`": lambda m, x: pb.multihead(m, MEMBERS, trained=x),
    "`treenet`, fresh branches": lambda m, x: pb.treenet(m, MEMBERS, "layer3|fc"),
    "`treenet`, `trained=x`": lambda m, x: pb.treenet(m, MEMBERS, "layer3|fc", trained=x),
    "`mc_dropout`, 0.1 everywhere": lambda m, x: pb.mc_dropout(m, MEMBERS, 0.1),
    "`mc_dropout`, 0.1, `trained=x`": lambda m, x: pb.mc_dropout(m, MEMBERS, 0.1, trained=x),
    "`lora`, the last layer": lambda m, x: pb.lora(m, MEMBERS),
}


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    found = load_digits()
    x, y = torch.tensor(found.images, dtype=torch.float32)[:, None] / 8 - 1, torch.tensor(found.target)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    x, y = x[order], y[order]
    return x[:1200], y[:1200], x[1200:], y[1200:]


def train_(ensemble: pb.Ensemble, x: Tensor, y: Tensor, epochs: int, lr: float) -> None:
    ensemble.train()
    optimizer = torch.optim.Adam([p for p in ensemble.parameters() if p.requires_grad], lr)
    for _ in range(epochs):
        for rows in torch.randperm(len(y)).split(100):
            optimizer.zero_grad()
            ensemble.loss(x[rows], y[rows], F.cross_entropy).backward()
            optimizer.step()


def judge(ensemble: pb.Ensemble, x: Tensor, y: Tensor) -> tuple[float, float]:
    found = pb.evaluate(ensemble.predict(x), y)
    return 100 * found["accuracy"], found["nll"]


def run(seed: int) -> dict[str, tuple[float, ...]]:
    x, y, test_x, test_y = digits()
    torch.manual_seed(seed)
    network = pb.single(pb.models.resnet20(num_classes=10, width=0.5, channels=1))
    train_(network, x, y, 6, 3e-3)
    model, found = network.member(0).eval(), {}
    for name, convert in CONVERSIONS.items():
        torch.manual_seed(seed)
        ensemble = convert(model, x[:256])
        before = judge(ensemble, test_x, test_y)
        train_(ensemble, x, y, 1, 1e-3)
        found[name] = (*before, *judge(ensemble, test_x, test_y))
        print(f"seed {seed}: {name}: {', '.join(f'{value:.3f}' for value in found[name])}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=2)
    torch.set_num_threads(1)
    runs = [run(seed) for seed in range(parser.parse_args().seeds)]
    print("| conversion | accuracy at once, % | NLL at once | accuracy fine-tuned, % | NLL fine-tuned |")
    print("|---|---|---|---|---|")
    for name in CONVERSIONS:
        cells = []
        for column, digits_shown in enumerate((1, 3, 1, 3)):
            values = [found[name][column] for found in runs]
            spread = f" ± {stdev(values):.{digits_shown}f}" if len(values) > 1 else ""
            cells.append(f"{mean(values):.{digits_shown}f}{spread}")
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
