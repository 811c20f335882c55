"""What a surface costs, relative to as many plain passes of one network at the same batch.

python benchmarks/landscape.py [side] [images]     by default a grid of 25 x 25 on 1,000 images; the bar is 1.1
"""

import sys
import time

import torch
from timing import ratio

from pluribus import landscape as ls
from pluribus import models


def surface(side: int = 25, images: int = 1000, batch: int = 250, rounds: int = 3) -> float:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    one, two = (models.medium_cnn().eval() for _ in range(2))
    x, y = torch.randn(images, 3, 32, 32), torch.randint(10, (images,))
    plane = ls.plane(one, two)

    def plain() -> None:
        with torch.no_grad():
            for _ in range(side * side):
                for start in range(0, images, batch):
                    one(x[start : start + batch])

    def grid() -> None:
        ls.surface(plane, (x, y), grid=side, batch_size=batch)

    runs = {"plain": plain, "surface": grid}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds):
        for name in list(runs)[:: 1 if turn % 2 else -1]:
            start = time.process_time()
            runs[name]()
            times[name].append(time.process_time() - start)
    found = ratio(times, "surface", "plain")
    print(f"surface of {side} x {side} points, {images} images, medium_cnn: {found:.3f} of plain passes (bar: 1.1)")
    return found


if __name__ == "__main__":
    surface(*map(int, sys.argv[1:3]))
