"""Measures what is missing for GPUs: python benchmarks/gpu.py; about two minutes, and it writes a file to send.

Times are relative to one plain network, in its faster memory format. A plain CNN: four packed members in a loop,
with vmap, as grouped convolutions (`pb.layers`) and frozen. A ResNet-18: a deep ensemble and Masksembles, as they are
and frozen, a frozen packed ensemble, and a training step of it. On a GPU every row is measured again under autocast.
Without a GPU, everything runs on the CPU, in a smaller size, and says so.

python benchmarks/gpu.py --device cuda:1 --batch 128 --seconds 5 --json figures.json

The runs of a row take turns, and medians are compared. The file holds the table, the GPU's name and the versions of
torch, CUDA and cuDNN; nothing else about the machine.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from cases import IMAGE, Row, Run, batch_of, cnn, frozen, masks, packed, plain, training
from speed import measure, show
from torch import Tensor, nn

import pluribus as pb
from pluribus import layers, models


def rows(batch: int, resnet: Callable[[], nn.Module]) -> list[Row]:
    """What is measured: each way of running packed members, cheap and dear methods, freezing, and a training step."""
    return [
        *(as_run("packed (2, 4, 1) in a plain CNN", batch, cnn, packed, way) for way in ("loop", "vmap")),
        grouped(batch),
        frozen("packed (2, 4, 1) in a plain CNN, frozen", batch, cnn, packed),
        frozen("packed (2, 4, 1), frozen", batch, resnet, packed),
        frozen("packed (2, 4, 1), frozen", 1, resnet, packed),
        as_run("deep", batch, resnet, deep, "loop"),
        frozen("deep, frozen", batch, resnet, deep),
        as_run("masksembles", batch, resnet, masks, "loop"),
        frozen("masksembles, frozen", batch, resnet, masks),
        training("packed (2, 4, 1)", batch, packed, None, resnet),
    ]


def deep(model: nn.Module, x: Tensor) -> pb.Ensemble:
    """Four independent networks."""
    return pb.deep(model, 4)


def as_run(name: str, batch: int, build: Callable[[], nn.Module], method: Any, way: str) -> Row:
    """An ensemble whose members run one given way."""

    def runs(device: torch.device) -> dict[str, Run]:
        x = batch_of(batch, IMAGE, device)
        made = method(build(), x[:2]).to(device).eval()
        made.run = way
        return {**plain(build, x), "this": lambda: made(x)}

    return Row(f"{name}, {way}", batch, runs)


def grouped(batch: int) -> Row:
    """The plain CNN with four members side by side in its channels."""

    def runs(device: torch.device) -> dict[str, Run]:
        x = batch_of(batch, IMAGE, device)
        made = grouped_cnn().to(device).eval()
        return {**plain(cnn, x), "this": lambda: layers.split_channels(made(x), size=4)}

    return Row("packed (2, 4, 1) in a plain CNN, grouped", batch, runs)


def grouped_cnn() -> nn.Module:
    """The network of `cases.cnn`, written with packed layers."""
    parts: list[nn.Module] = []
    for part in cnn().children():
        if isinstance(part, nn.Conv2d):
            shape = {"kernel_size": part.kernel_size, "stride": part.stride, "padding": part.padding, "bias": False}
            conv = layers.PackedConv2d(part.in_channels, part.out_channels, size=4, alpha=2, first=not parts, **shape)
            parts += [conv, nn.BatchNorm2d(conv.out_channels)]
        elif isinstance(part, nn.Linear):
            parts.append(layers.PackedLinear(part.in_features, part.out_features, size=4, alpha=2, last=True))
        elif not isinstance(part, nn.BatchNorm2d):
            parts.append(part)
    return nn.Sequential(*parts)


def about(device: torch.device) -> dict[str, Any]:
    """What the figures depend on."""
    found: dict[str, Any] = {
        "torch": torch.__version__,
        "pluribus": pb.__version__,
        "python": platform.python_version(),
    }
    if device.type == "cuda":
        found |= {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
        return found | {"device": torch.cuda.get_device_name(device)}
    return found | {"device": platform.processor() or platform.machine(), "threads": torch.get_num_threads()}


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, help="rows in a batch; by default 128 on a GPU, 8 on a CPU")
    parser.add_argument("--seconds", type=float, help="for each row; by default 5 on a GPU, 0.5 on a CPU")
    parser.add_argument("--json", type=Path, default=Path("gpu.json"), help="the file to send")
    return parser.parse_args()


def main() -> None:
    """Measure, print and write."""
    given = arguments()
    device = torch.device(given.device)
    accelerated = device.type != "cpu"
    batch, seconds = given.batch or (128 if accelerated else 8), given.seconds or (5.0 if accelerated else 0.5)
    resnet = models.resnet18 if accelerated else partial(models.resnet18, width=0.25)
    if not accelerated:
        torch.set_num_threads(1)
        print("No GPU here: nothing below was run on one. The ResNet-18 has a quarter of its width, to save time.")
    facts = about(device)
    print(", ".join(f"{name} {value}" for name, value in facts.items()))
    print(f"{'':52} rows on   thr limit  ratio to fs")
    results = []
    for row in rows(batch, resnet):
        for autocast in (False, True) if accelerated else (False,):
            results.append(measure(row, device, seconds, autocast))
            show(results[-1])
    given.json.write_text(json.dumps({"about": facts, "results": results}, indent=1) + "\n")
    print(f"Written to {given.json}. Please send it: it becomes a table of docs/benchmarks.md.")


if __name__ == "__main__":
    main()
