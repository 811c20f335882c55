"""What a model reads of its layers' parameters itself, beside calling the layers: found by running it twice.

In the second run the layers hold other parameters, while calls of them still compute with the old ones. If the output
changes all the same, the model reads the parameters somewhere else, as `F.linear(x, self.layer.weight)` does.

    x -> enter -> h -> middle -> leave -> y      enter, middle and leave compute what they did before
           weight -----------------------^       so that y changes only by what goes around them
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor, nn

from .._common.trees import Batch, are_close, clone, tensors_of
from .copying import duplicate


def find_direct_reads(
    model: nn.Module, names: Collection[str], batch: Batch, keys: Collection[str] = ("weight", "bias")
) -> list[str]:
    """Those of the named layers whose parameters the model reads itself.

    Args:
        keys: the parameters that will be others, or gone; parameters inside of parametrizations always are

    >>> class Reader(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.enter, self.leave = nn.Linear(2, 3), nn.Linear(3, 1)
    ...     def forward(self, x):
    ...         return self.leave(self.enter(x) + self.enter.bias)
    >>> find_direct_reads(Reader(), ["enter", "leave"], ((torch.ones(1, 2),), {}))
    ['enter']
    """

    def outputs(changed: Collection[str]) -> list[Tensor]:
        copy = duplicate(model)
        for layer in [copy.get_submodule(name) for name in names]:
            layer.forward = duplicate(layer).forward
        for name in changed:
            _change_(copy.get_submodule(name), keys)
        return _run(copy, names, batch)[1]

    expected = outputs([])

    def are_read(some: Collection[str]) -> bool:
        try:
            return not are_close(expected, outputs(some))
        except Exception:  # whatever the model's code raises without what it reads
            return True

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return [name for name in names if are_read([name])] if are_read(names) else []


def find_bypassed(model: nn.Module, names: Collection[str], batch: Batch) -> list[str]:
    """Those of the named layers whose parameters are read although the layer is never called."""
    called, _ = _run(duplicate(model), names, batch)
    silent = [name for name in names if name not in called]
    return find_direct_reads(model, silent, batch) if silent else []


def _run(model: nn.Module, names: Collection[str], batch: Batch) -> tuple[set[str], list[Tensor]]:
    """Which of the named layers are called in eval mode, and the outputs; the model may change."""
    called: set[str] = set()
    for name in names:
        model.get_submodule(name).register_forward_pre_hook(lambda *_, name=name: called.add(name))
    args, kwargs = clone(batch)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        output = model.eval()(*args, **kwargs)
    return called, tensors_of(output)


def _change_(layer: nn.Module, keys: Collection[str]) -> None:
    """Change a layer as methods do: other weights, no bias, and one parameter more."""
    for part in layer.modules():
        for key, old in list(part.named_parameters(recurse=False)):
            if (key in keys or part is not layer) and old.is_floating_point():
                setattr(part, key, nn.Parameter(1.5 * old.detach() + 0.1 * torch.randn_like(old), old.requires_grad))
    if "bias" in keys and "bias" in dict(layer.named_parameters(recurse=False)):
        layer.register_parameter("bias", None)
    layer.register_parameter("one_more", nn.Parameter(torch.randn(7)))
