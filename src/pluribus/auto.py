"""How an ensemble runs, found by measuring: once for each shape, precision, device and mode, then remembered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .race import race
from .running import is_transforming, kept_on_error, recurrent
from .trees import Batch, device_of, map_tensors, tensors_of

Runs = Mapping[str, Callable[[Batch], Any]]


class Way(NamedTuple):
    """One way to run the members of a batch."""

    run: str
    channels_last: bool = False
    why: str = ""

    def __str__(self) -> str:
        return f"{self.run}, channels-last" if self.channels_last else self.run

    def formatted(self, batch: Batch) -> Batch:
        """The batch in the memory format of this way."""
        return map_tensors(batch, channels_last) if self.channels_last else batch


def measured(ensemble: Any, batch: Batch, per_member: bool) -> tuple[str, Batch]:
    """How an ensemble runs this batch, and the batch in the memory format for it."""
    if torch.compiler.is_compiling() or is_transforming():
        return ensemble._preferred_run()[0], batch
    key = key_of(ensemble, batch, per_member)
    if key not in ensemble._ways:
        runs = {"vmap": lambda b: ensemble._first_vmap(b, per_member)} if not recurrent(ensemble.module) else {}
        ensemble._ways[key] = best(ensemble, batch, {**runs, "loop": lambda b: ensemble._by_loop(b, per_member)})
    way = ensemble._ways[key]
    return way.run, way.formatted(batch)


def in_format(ensemble: Any, batch: Batch, run: Callable[[Batch], Any]) -> Batch:
    """The batch of one pass in the memory format that is measured to be faster, where that is asked for."""
    if ensemble.run != "auto" or torch.compiler.is_compiling() or is_transforming():
        return batch
    key = key_of(ensemble, batch, "once")
    if key not in ensemble._ways:
        ensemble._ways[key] = best(ensemble, batch, {"one pass": run})
    return ensemble._ways[key].formatted(batch)


def explained(ways: Mapping[tuple[Any, ...], Way]) -> list[str]:
    """What was measured, as lines of text."""
    return [f"    {key[0][0]}, {'training' if key[-4] else 'eval'}: {way} ({way.why})" for key, way in ways.items()]


def channels_last(t: Tensor) -> Tensor:
    """Images in the format that convolutions like; everything else as it is."""
    images = t.ndim == 4 and t.is_floating_point()
    return t.contiguous(memory_format=torch.channels_last) if images else t


def key_of(module: nn.Module, batch: Batch, *more: Any) -> tuple[Any, ...]:
    """What a measurement holds for."""
    tensors = [(tuple(t.shape), t.dtype, t.device.type) for t in tensors_of(batch)]
    return (*tensors, module.training, torch.is_grad_enabled(), torch.get_num_threads(), *more)


def best(module: nn.Module, batch: Batch, runs: Runs) -> Way:
    """The fastest way that works, forward and, where gradients are wanted, backward.

    Buffers and chance are put back; the weights of convolutions stay in the memory format of the winner. With
    `torch.use_deterministic_algorithms` nothing is measured: the first way.
    """
    ways = [Way(run) for run in runs]
    if any(t.ndim == 4 and t.is_floating_point() for t in tensors_of(batch)):
        ways += [Way(run, True) for run in runs]
    if torch.are_deterministic_algorithms_enabled() or device_of(batch).type == "meta":
        return ways[0]._replace(why="nothing was measured")
    device, buffers = device_of(batch), [buffer.clone() for buffer in module.buffers()]
    weights = Weights(module, both=any(way.channels_last for way in ways))
    winner = ways[0]
    with torch.random.fork_rng():
        try:
            able = {str(way): way for way in ways if _works(module, way, batch, runs, weights)}
            if not able:
                return ways[0]._replace(why="no way works")
            timed = {name: (lambda way=way: _once(module, way, batch, runs, weights)) for name, way in able.items()}
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
            self.both = [(p, p.data, _inputs_last(p.data)) for p in held.values()]

    def use(self, channels_last: bool) -> None:
        """Let the module have its weights in one of the formats."""
        with torch.inference_mode(False):
            for parameter, plain, last in self.both:
                parameter.data = last if channels_last else plain


def _inputs_last(weight: Tensor) -> Tensor:
    """(..., inputs, height, width) with the inputs next to each other in memory, as images channels-last have them."""
    return weight.movedim(-3, -1).contiguous().movedim(-1, -3)


def _works(module: nn.Module, way: Way, batch: Batch, runs: Runs, weights: Weights) -> bool:
    try:
        with kept_on_error(list(module.buffers())):
            _once(module, way, batch, runs, weights)
    except (RuntimeError, ValueError, TypeError, NotImplementedError):
        return False
    return True


def _once(module: nn.Module, way: Way, batch: Batch, runs: Runs, weights: Weights) -> None:
    """Forward, and backward where gradients are wanted."""
    weights.use(way.channels_last)
    outputs = [t for t in tensors_of(runs[way.run](way.formatted(batch))) if t.requires_grad]
    wanted = [p for p in module.parameters() if p.requires_grad]
    if module.training and outputs and wanted:
        torch.autograd.grad([t.float().sum() for t in outputs], wanted, allow_unused=True)
