"""A training step of pb.lora with 4 members against 4 steps of peft's LoRA: same rank, layers, rows and optimizer.

A BERT-base configuration with random weights, matrices of rank 8 beside queries and values, one thread; the steps take
turns, and medians of process time are compared.

python benchmarks/lora.py [--layers 12] [--rows 4] [--words 64] [--seconds 120]
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from statistics import median

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from timing import interleaved
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification

import pluribus as pb

MEMBERS, RANK = 4, 8


def bert(layers: int) -> nn.Module:
    """A BERT of the base size, by its configuration alone, without dropout."""
    config = BertConfig(num_hidden_layers=layers, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return BertForSequenceClassification(config)


def our_step(model: nn.Module, words: Tensor, y: Tensor) -> tuple[pb.Ensemble, Callable[[], None]]:
    ensemble = pb.lora(model, MEMBERS, RANK, where=r".*\.(query|value)").train()
    ensemble.run = "loop"
    optimizer = torch.optim.AdamW([p for p in ensemble.parameters() if p.requires_grad], 1e-4)

    def step() -> None:
        optimizer.zero_grad()
        ensemble.loss({"input_ids": words}, y, F.cross_entropy).backward()
        optimizer.step()

    return ensemble, step


def their_steps(model: nn.Module, words: Tensor, y: Tensor) -> Callable[[], None]:
    """As many steps as there are members, of one network: all are alike."""
    config = LoraConfig(r=RANK, lora_alpha=RANK, target_modules=["query", "value"])
    network = get_peft_model(copy.deepcopy(model), config).train()
    optimizer = torch.optim.AdamW([p for p in network.parameters() if p.requires_grad], 1e-4)

    def step() -> None:
        for _ in range(MEMBERS):
            optimizer.zero_grad()
            F.cross_entropy(network(input_ids=words).logits, y).backward()
            optimizer.step()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("layers", 12), ("rows", 4), ("words", 64), ("seconds", 120)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = bert(options.layers)
    words, y = torch.randint(1, 30_000, (options.rows, options.words)), torch.randint(2, (options.rows,))
    ensemble, ours = our_step(model, words, y)
    own = sum(p.numel() for p in ensemble.parameters() if p.requires_grad) / MEMBERS
    every = sum(p.numel() for p in model.parameters())
    print(f"each member owns {own:,.0f} of {every:,} parameters: {100 * own / every:.2f} %")
    steps = {"pb.lora, 4 members": ours, "peft, 4 steps": their_steps(model, words, y)}
    times = interleaved(steps, torch.device("cpu"), seconds=options.seconds)
    for name, found in times.items():
        print(f"{name:20} {median(found):7.3f} s, median of {len(found)}")
    ratios = [a / b for a, b in zip(*times.values(), strict=True)]
    print(f"ratio {median(times['pb.lora, 4 members']) / median(times['peft, 4 steps']):.3f}, of single rounds "
          f"{min(ratios):.3f} to {max(ratios):.3f}")  # fmt: skip


if __name__ == "__main__":
    main()
