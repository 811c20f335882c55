"""What a network's intermediate results take in memory, counted on the meta device: nothing is computed."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn

from ..._common.torch_operators import TorchDispatchMode
from ..._common.torch_private import storage_key
from ..._common.trees import Batch, tensors_of


@torch.no_grad()
def activations(module: nn.Module, batch: Batch) -> Watching:
    """The results of one call, as it stands (mode, device); its parameters, buffers and inputs do not count.

    >>> activations(nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True)), ((torch.zeros(2, 4),), {})).total
    64
    """
    with Watching([*module.parameters(), *module.buffers(), *tensors_of(batch)]) as results:
        module(*batch[0], **batch[1])
    return results


class Watching(TorchDispatchMode):
    """Counts the bytes of each new storage until it is freed; tensors that are `known` do not count.

    `peak` is the most that is alive after an operation; `total` all of them, as training keeps them for its gradients.
    """

    def __init__(self, known: list[Tensor]):
        super().__init__()
        self.alive: dict[int, Any] = {}
        self.known = {storage_key(t.untyped_storage()) for t in known}
        self.now, self.peak, self.total = 0, 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        for tensor in tensors_of(output):
            self._add(tensor.untyped_storage())
        self.peak = max(self.peak, self.now)
        return output

    def _add(self, storage: torch.UntypedStorage) -> None:
        key = storage_key(storage)
        if key in self.alive or key in self.known:
            return
        size = storage.nbytes()
        self.alive[key] = weakref.ref(storage, lambda _: self._free(key, size))
        self.now, self.total = self.now + size, self.total + size

    def _free(self, key: int, size: int) -> None:
        if self.alive.pop(key, None) is not None:
            self.now -= size
