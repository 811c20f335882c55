"""How far calls travel through the package: calls that cross from one of its files into another, and the files reached.

    python benchmarks/crossings.py            # packed, loss, predict and freeze of a small MLP
    python benchmarks/crossings.py --compare  # also `pluribus compare` with two methods, in one process
    python benchmarks/crossings.py --pairs 10 # and between which files most calls go

A call crosses when the nearest function of the package below it on the stack stands in another file.
Freezing measures what runs fastest, and repeats what is near the fastest: on a busy machine its count is higher.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import runpy
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

import pluribus as pb

ROOT = str(Path(pb.__file__).parent)
Pairs = Counter[tuple[str, str]]


@contextlib.contextmanager
def count_crossings() -> Iterator[Pairs]:
    """Count the calls between files of the package, by (from, to), until the block ends."""
    found: Pairs = Counter()

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        name = frame.f_code.co_filename
        if event != "call" or not name.startswith(ROOT) or frame.f_code.co_name == "<module>":
            return
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(ROOT):
            caller = caller.f_back
        if caller is not None and caller.f_code.co_filename != name:
            found[caller.f_code.co_filename, name] += 1

    threading.setprofile(watch)
    sys.setprofile(watch)
    try:
        yield found
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def compare_two(folder: str) -> None:
    """What `pluribus compare` does for two methods with one epoch each, without a word."""
    options = "--data moons --model mlp --methods single,packed --epochs 2 --jobs 1 --quiet"
    sys.argv = ["pluribus", "compare", *options.split(), "--out", folder]
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            runpy.run_module("pluribus", run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise


def steps(with_compare: bool, folder: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    """What is counted, in order; each runs once before, so that imports and first measurements do not count."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    x, y = torch.randn(32, 20), torch.randint(10, (32,))
    ensemble = pb.packed(model, 4, example=x)
    yield "packed", lambda: pb.packed(model, 4, example=x)
    yield "loss", lambda: ensemble.loss(x, y, nn.functional.cross_entropy)
    yield "predict", lambda: ensemble.predict(x)
    yield "freeze", lambda: pb.freeze(ensemble, x)
    if with_compare:
        yield "compare", lambda: compare_two(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--pairs", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        for name, run in steps(options.compare, folder):
            if name != "compare":
                run()
            with count_crossings() as found:
                run()
            files = {file for pair in found for file in pair}
            print(f"{name:8} {sum(found.values()):6,} crossings, {len(files):3} files")
            for (start, end), count in found.most_common(options.pairs):
                print(f"    {count:6,}  {Path(start).relative_to(ROOT)} -> {Path(end).relative_to(ROOT)}")


if __name__ == "__main__":
    main()
