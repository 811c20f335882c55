"""A data set that does not fit in memory is read a batch at a time, in experiments as in studies."""

import os
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

ROWS, CLASSES, SIDE = 20_000, 20, 224  # 12 GB as float32

PROGRAM = """
import resource, sys
limit = 5 * 2**30
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
import torch
import pluribus as pb
from pluribus.reproduce.measured import prepare_rows
from pluribus.training.fitting import apply_recipe

given = {"data": f"folder:{sys.argv[1]}", "outside": "noise", "model": "resnet18", "rows": 1_281_167, "seed": 0}
own = prepare_rows(given, None)
example = own.train[:2][0]
assert len(own.train) > 13_000 and tuple(example.shape) == (2, 3, 224, 224), (len(own.train), example.shape)
assert len(own.test[1]) > 800
tiny = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, 20))
recipe = pb.Recipe(epochs=1, batch_size=256, augment={"flip": True, "resized_crop": {"size": 160}})
batches, augment = apply_recipe(recipe, pb.single(tiny), own.train)
for i, (x, y) in enumerate(batches):
    x, y = augment(x, y)
    assert x.shape[-2:] == (160, 160)
    if i == 3:
        break
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the limit of a process's memory is Linux's")
def test_an_experiment_reads_20_000_files_within_a_limit_of_memory(tmp_path):
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (48, 64, 3), np.uint8))
    for label in range(CLASSES):
        folder = tmp_path / f"class{label}"
        folder.mkdir()
        picture.save(folder / "0.png")
        for i in range(1, ROWS // CLASSES):
            os.link(folder / "0.png", folder / f"{i}.png")
    resized = "from pluribus.data import image_folders; image_folders.LARGEST_KEPT = 10\n"
    done = subprocess.run(
        [sys.executable, "-c", resized + PROGRAM, str(tmp_path)], capture_output=True, text=True, timeout=500,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) < 5 * 1024  # MB, where all rows are 12 GB
