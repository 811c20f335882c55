"""How members run, found by measuring: once for each shape, precision, device and mode, then remembered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .._common.timing import race
from .._common.trees import Batch, device_of, map_tensors, tensors_of

Runs = Mapping[str, Callable[[Batch], Any]]

LEAN = "loop without masked channels"  # of masked layers, in eval mode; found by measuring alone


RULED = ("cpu", "meta")  # devices on which the rule for convolutions was measured, or where nothing runs


def is_unruled(batch: Batch) -> bool:
    """Whether no rule says how convolutions are fastest where the batch is: as on GPUs, where it must be measured."""
    return device_of(batch).type not in RULED


class Backend(NamedTuple):
    """One way to run the members on a batch."""

    run: str
    channels_last: bool = False
    why: str = ""

    def __str__(self) -> str:
        return f"{self.run}, channels-last" if self.channels_last else self.run

    def format(self, batch: Batch) -> Batch:
        """The batch in the memory format of this backend."""
        return map_tensors(batch, to_channels_last) if self.channels_last else batch


def to_channels_last(t: Tensor) -> Tensor:
    """Images in the format that convolutions like; everything else as it is."""
    images = t.ndim == 4 and t.is_floating_point()
    return t.contiguous(memory_format=torch.channels_last) if images else t


class Measurements(dict[tuple[Any, ...], Backend]):
    """The fastest backends that were found so far, each by what it holds for."""

    def fastest(self, module: nn.Module, batch: Batch, runs: Runs, training: bool, kind: Any) -> Backend:
        """The fastest of the runs for this batch, measured at most once; runs of another `kind` are measured anew."""
        tensors = [(tuple(t.shape), t.dtype, t.device.type) for t in tensors_of(batch)]
        key = (*tensors, training, torch.is_grad_enabled(), torch.get_num_threads(), kind)
        if key not in self:
            self[key] = fastest(module, batch, runs, training)
        return self[key]

    def explain(self) -> list[str]:
        """What was measured, as lines of text."""
        return [
            f"    {key[0][0]}, {'training' if key[-4] else 'eval'}: {backend} ({backend.why})"
            for key, backend in self.items()
        ]


def fastest(module: nn.Module, batch: Batch, runs: Runs, training: bool) -> Backend:
    """The fastest backend that works, forward and, where gradients are wanted, backward.

    Buffers and chance are put back; the weights of convolutions stay in the memory format of the winner. With
    `torch.use_deterministic_algorithms` nothing is measured: the first backend.
    """
    backends = [Backend(run) for run in runs]
    if any(t.ndim == 4 and t.is_floating_point() for t in tensors_of(batch)):
        backends += [Backend(run, True) for run in runs]
    if torch.are_deterministic_algorithms_enabled() or device_of(batch).type == "meta":
        return backends[0]._replace(why="nothing was measured")
    device, buffers = device_of(batch), [buffer.clone() for buffer in module.buffers()]
    weights = Weights(module, both=any(backend.channels_last for backend in backends))
    winner = backends[0]

    def once(backend: Backend) -> None:
        """Forward, and backward where gradients are wanted."""
        weights.use(backend.channels_last)
        outputs = [t for t in tensors_of(runs[backend.run](backend.format(batch))) if t.requires_grad]
        wanted = [p for p in module.parameters() if p.requires_grad]
        if training and outputs and wanted:
            torch.autograd.grad([t.float().sum() for t in outputs], wanted, allow_unused=True)

    with torch.random.fork_rng():
        try:
            able = {str(backend): backend for backend in backends if _works(backend, once)}
            if not able:
                return backends[0]._replace(why="no backend works")
            timed = {name: partial(once, backend) for name, backend in able.items()}
            times = race(timed, device, rounds=5, seconds=1.5)
            winner = able[min(times, key=lambda name: times[name])]
        finally:
            weights.use(winner.channels_last)
            with torch.no_grad():
                for buffer, value in zip(module.buffers(), buffers, strict=True):
                    buffer.copy_(value)
    shown = "; ".join(f"{name} {time / times[str(winner)]:.2f}" for name, time in times.items())
    return winner._replace(why=f"measured: {shown}")


class Weights:
    """The weights of a module's convolutions of images in both memory formats, to change over at no cost."""

    def __init__(self, module: nn.Module, both: bool):
        layers = [part for part in module.modules() if both and isinstance(part, nn.Conv2d)]
        held = {id(p): p for part in layers for name, p in part.named_parameters(recurse=False) if name == "weight"}
        with torch.inference_mode(False):  # or they could not be trained later
            # (..., inputs, height, width) with the inputs next to each other in memory, as in images channels-last
            self.both = [(p, p.data, p.data.movedim(-3, -1).contiguous().movedim(-1, -3)) for p in held.values()]

    def use(self, channels_last: bool) -> None:
        """Let the module have its weights in one of the formats."""
        with torch.inference_mode(False):
            for parameter, plain, last in self.both:
                parameter.data = last if channels_last else plain


def _works(backend: Backend, once: Callable[[Backend], None]) -> bool:
    try:
        once(backend)
    except (RuntimeError, ValueError, TypeError, NotImplementedError):
        return False
    return True
