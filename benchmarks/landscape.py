"""What a surface costs, relative to as many plain passes of one network at the same batch.

python benchmarks/landscape.py [side] [images]     by default a grid of 25 x 25 on 1,000 images; the bar is 1.1

The surface is computed once, as a user computes it; plain passes are run in between, one after every fifth point, so
that both meet the machine at the same times. All of the surface counts, what comes before its first point too.
"""

import sys
import time

import torch

from pluribus import landscape as ls
from pluribus import models

BATCH, EVERY = 250, 5


def surface(side: int = 25, images: int = 1000) -> float:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    one, two = (models.medium_cnn().eval() for _ in range(2))
    x, y = torch.randn(images, 3, 32, 32), torch.randint(10, (images,))
    plane = ls.plane(one, two)
    passes: list[float] = []

    def plain() -> None:
        start = time.process_time()
        with torch.no_grad():
            for first in range(0, images, BATCH):
                one(x[first : first + BATCH])
        passes.append(time.process_time() - start)

    def between(done: int, total: int, left: float) -> None:
        if done % EVERY == 0 or done == total:
            plain()

    plain()
    passes.clear()  # the first one warms up
    start = time.process_time()
    ls.surface(plane, (x, y), grid=side, batch_size=BATCH, progress=between)
    seconds = time.process_time() - start - sum(passes)
    found = seconds / (side * side * sum(passes) / len(passes))
    print(
        f"surface of {side} x {side} points, {images} images, medium_cnn: {seconds:.1f} s of process time, {found:.3f} "
        f"of as many plain passes, of which {len(passes)} took {sum(passes) / len(passes):.3f} s each (bar: 1.1)"
    )
    return found


if __name__ == "__main__":
    surface(*map(int, sys.argv[1:3]))
