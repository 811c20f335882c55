"""What the figures of a table cost, as a ratio, and how much memory a summary needs.

python benchmarks/metrics.py           the ratio for 1,000,000 examples x 10 classes x 4 members; the bar is 4
python benchmarks/metrics.py memory    peak memory of evaluating 50,000 examples x 1,000 classes x 4 members; 1 GB
"""

import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from pluribus.core.ensemble import Ensemble
from pluribus.uncertainty.classification import Classification
from pluribus.uncertainty.evaluation import evaluate
from pluribus.uncertainty.metrics import auroc

FIGURES = ["accuracy", "nll", "brier", "ece", "entropy", "aleatoric", "mutual_information"]


def speed(examples: int = 1_000_000, classes: int = 10, members: int = 4, repeats: int = 9) -> float:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(members, examples, classes, generator=generator)
    target = torch.randint(classes, (examples,), generator=generator)
    numbers = torch.randn(examples, generator=generator)
    half = examples // 2

    def figures() -> None:
        prediction = Classification.from_logits(logits)
        evaluate(prediction, target, metrics=FIGURES)
        score = prediction.score("entropy")
        auroc(score[:half], score[half:])

    parts = {"softmax": lambda: logits.softmax(-1), "sort": lambda: numbers.sort(), "figures": figures}
    seconds = interleaved(parts, repeats)
    ratio = seconds["figures"] / (seconds["softmax"] + seconds["sort"])
    for name, value in seconds.items():
        print(f"{name:8} {value:.3f} s of one processor")
    print(f"ratio    {ratio:.2f} (bar: 4)")
    return ratio


def interleaved(parts: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median process time of each part, the parts taking turns."""
    seconds: dict[str, list[float]] = {name: [] for name in parts}
    for _ in range(repeats):
        for name, run in parts.items():
            start = time.process_time()
            run()
            seconds[name].append(time.process_time() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


class Random(nn.Module):
    """A network whose logits are random, so that nothing but the prediction needs memory."""

    def __init__(self, classes: int):
        super().__init__()
        self.classes, self.scale = classes, nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * torch.randn(len(x), self.classes)


def loader(examples: int, classes: int, batch: int) -> Iterator[tuple[Tensor, Tensor]]:
    for _ in range(0, examples, batch):
        yield torch.zeros(batch, 1), torch.randint(classes, (batch,))


def memory(examples: int = 50_000, classes: int = 1_000, members: int = 4, batch: int = 250) -> float:
    """Megabytes at the peak of predicting and evaluating, above what the imports and one batch of one row need."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    ensemble = Ensemble(Random(classes), members)
    ensemble.run = "loop"
    evaluate(ensemble.predict(loader(1, classes, 1), keep="summary"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    figures = evaluate(ensemble.predict(loader(examples, classes, batch), keep="summary"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"{len(figures)} figures of {examples} x {classes} x {members} in {time.process_time() - start:.0f} s")
    print(f"peak {(peak - before) / 1024:.0f} MB above {before / 1024:.0f} MB (bar: 1024 MB)")
    return (peak - before) / 1024


if __name__ == "__main__":
    memory() if "memory" in sys.argv[1:] else speed()
