"""Two checkpoint files in one order of units: read without running anything in them, aligned, judged, written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .._common.signed_files import write_safetensors
from ..landscape.laboratory.questions import alignment_question
from ..landscape.symmetries.groups import Groups
from ..landscape.symmetries.matching import align
from ..landscape.symmetries.symmetry_search import permutations
from ..report.claims import Claim
from ..study.trained_weights import read_weights

Rows = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Aligned:
    """What became of two checkpoints.

    Args:
        question: the line between them before and after, where there was data
    """

    model: nn.Module
    groups: Groups
    moved: int
    question: Claim | None


def align_checkpoints(
    first: Path,
    second: Path,
    build: Callable[[], nn.Module],
    example: Tensor,
    *,
    by: Any = "weights",
    restarts: int = 3,
    seed: int = 0,
    train: Rows | None = None,
    test: Rows | None = None,
    points: int = 25,
) -> Aligned:
    """The network of the first file in the order of units of the second's.

    Args:
        build: a network of their architecture
        example: rows of inputs
        train, test: for statistics of batch normalisation, and for the loss along the line
    """
    model, reference = (read_weights("align", path, build()) for path in (first, second))
    groups = permutations(model, example)
    generator = torch.Generator().manual_seed(seed)
    aligned = align(model, reference, example, by, groups=groups, restarts=restarts, generator=generator)
    pairs = zip(model.parameters(), aligned.parameters(), strict=True)
    moved = sum(int((one != other).sum()) for one, other in pairs)
    question = None
    if test is not None:
        ways = {"as trained": model, f"aligned by {by}": aligned}
        question = alignment_question(ways, reference, groups, test, train, points)
    return Aligned(aligned, groups, moved, question)


def write_network(path: Path, model: nn.Module) -> None:
    """Write what `model.state_dict()` holds as a safetensors file; it is complete or not there."""
    write_safetensors(path, model.state_dict(), {"format": "pt"})
