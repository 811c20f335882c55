"""The findings of Fort et al. with SmallCNN on the embedded digits, 3 seeds of 3 runs, with intervals.

python benchmarks/findings.py [seeds] [epochs] [training rows]
"""

import sys

import torch

from pluribus import data, models
from pluribus import landscape as ls


def main(seeds: int = 3, epochs: int = 10, rows: int = 10_000) -> None:
    torch.set_num_threads(1)
    loaded = data.load("digits", outside=["letters"], validation=0.1)
    parts = []
    for split in (loaded.train, loaded.validation, loaded.test):
        x, y = split[: min(rows, len(split))]
        parts.append((loaded.normalise(x), y))
    outside = loaded.normalise(next(iter(loaded.outside.values()))[:500][0])
    channels, image = loaded.shape[0], loaded.shape[1]
    model = models.small_cnn(len(loaded.classes), channels=channels, image=image)
    told = ls.findings(model, *parts, outside, seeds=seeds, epochs=epochs, batch_size=128, progress=print)
    for finding in told:
        print(finding, [round(value, 4) for value in finding.values], flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
