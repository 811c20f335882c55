"""Random draws that follow a generator of the caller's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def follow_generator(generator: torch.Generator | None) -> Iterator[None]:
    """Let what draws from torch's global generator follow this one for a while."""
    if generator is None:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
        yield
