"""How much faster batches are corrupted than one image after another, as ratios.

python benchmarks/corruptions.py [images]     all 19 corruptions of 32 x 32 colour images (default 256); the bar is 5

The other side is tests/support/published.py: numpy, scipy and Pillow, one image at a time. Both make the same images,
float arrays from 0 to 1; both take turns, on one thread; a figure is the median over turns of the process time for the
five severities together.
"""

import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch

from pluribus.data.corruptions import CORRUPTIONS, corrupt
from pluribus.data.corruptions.weather import frost_images

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
import published  # noqa: E402


def speed(images: int = 256, repeats: int = 5, few: int = 32) -> float:
    """The ratio of the total times; the published one is timed on a few images, for its time is the same for each."""
    torch.set_num_threads(1)
    batch = example_images(images)
    x = torch.from_numpy(batch).permute(0, 3, 1, 2).float().div(255).contiguous()
    total = {"one by one": 0.0, "batch": 0.0}
    print(f"{'microseconds per image':24}{'one by one':>12}{'batch':>8}{'ratio':>8}")
    for name in CORRUPTIONS:
        others = {"frost_images": frost_images(96, 3).permute(0, 2, 3, 1).numpy()} if name == "frost" else {}
        seconds: dict[str, list[float]] = {"one by one": [], "batch": []}
        for turn in range(repeats + 1):  # the first warms up
            rng = np.random.default_rng(turn)
            start = time.process_time()
            for severity in range(1, 6):
                for image in batch[:few]:
                    published.corrupt(image, name, severity, rng, **others)
            middle = time.process_time()
            for severity in range(1, 6):
                corrupt(x, name, severity, seed=turn)
            seconds["one by one"].append((middle - start) / (5 * few))
            seconds["batch"].append((time.process_time() - middle) / (5 * images))
        medians = {side: statistics.median(values[1:]) for side, values in seconds.items()}
        for side, value in medians.items():
            total[side] += value
        print(row(name, medians))
    print(row("all", total), "(bar: 5)")
    return total["one by one"] / total["batch"]


def row(name: str, seconds: dict[str, float]) -> str:
    one, batch = seconds["one by one"], seconds["batch"]
    return f"{name:24}{one * 1e6:12.0f}{batch * 1e6:8.0f}{one / batch:8.1f}"


def example_images(images: int) -> np.ndarray:
    """Smooth coloured images with edges, (images, 32, 32, 3) uint8."""
    rng = np.random.default_rng(0)
    down, right = np.mgrid[:32, :32] / 32
    waves = rng.normal(size=(images, 3, 2)) * 6
    phase = rng.uniform(0, 6, size=(images, 3, 1, 1))
    smooth = np.sin(waves[..., 0, None, None] * down + waves[..., 1, None, None] * right + phase)
    edges = np.sign(smooth[:, :1]) * 0.4
    return np.uint8(np.clip(0.5 + 0.3 * smooth + edges * 0.5, 0, 1) * 255).transpose(0, 2, 3, 1).copy()


if __name__ == "__main__":
    sys.exit(0 if speed(*map(int, sys.argv[1:])) >= 5 else 1)
