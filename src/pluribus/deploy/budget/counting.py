"""What a network costs, counted and not estimated: parameters, mult-adds of one example, memory of results."""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ..._common.torch_operators import TRILINEAR, TorchDispatchMode
from ..._common.torch_private import storage_key, unwrap_compiled
from ..._common.trees import Batch, as_batch, map_tensors, tensors_of
from ...core.ensemble import Ensemble
from ...methods.method_info import REFUSALS
from ...surgery.copying import duplicate_mapped

aten = torch.ops.aten


@dataclass(frozen=True)
class Cost:
    """Parameters, a tied one once; mult-adds of one example; passes of the network for one prediction.

    Args:
        parameters: of all members together; buffers are none
        mult_adds: of one example through all members
        forward_passes: of the network, for one prediction

    >>> pb.cost(pb.deep(nn.Linear(4, 3), 2), torch.zeros(1, 4)).mult_adds  # two networks of 4 x 3
    24
    """

    parameters: int
    mult_adds: int
    forward_passes: float = 1.0

    def __str__(self) -> str:
        return f"{short_count(self.parameters, 2, 'M')} parameters, {short_count(self.mult_adds)} mult-adds"


def cost(model: nn.Module, x: Any) -> Cost:
    """The cost of one prediction of a network or an ensemble.

    Counted are the mult-adds of every convolution, matrix product, attention and recurrence that runs in eval
    mode, divided by the rows of `x`; what no member of an ensemble owns runs once under vmap. A copy runs, on
    the meta device: nothing is computed or allocated, and model, mode, buffers and chance stay as they are.
    Only a model that looks at values is run with them, as a copy too. Buffers are no parameters.

    Shapes:
        x: (batch, *features), or a tree of such tensors

    Args:
        x: what one forward call takes, rows first: a tensor, a tuple of arguments or a dict of named ones

    >>> print(cost(nn.Linear(784, 10), torch.empty(1, 784, device="meta")))
    7,850 parameters, 7,840 mult-adds
    """
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"cost: the model must be an nn.Module, but it is a {type(model).__name__}. Give a built network."
        )
    rows = _rows(x)
    passes: Any = next((part.passes for part in model.modules() if isinstance(part, Ensemble)), 1)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return Cost(parameters, -(-_mult_adds(model, x) // rows), float(passes))


def training_mult_adds(ensemble: Ensemble, x: Any, y: Any, criterion: Callable[[Any, Any], Tensor]) -> int:
    """Mult-adds of the loss of one example in training, forward: what a method repeats or tiles counts as often.

    A copy runs; the ensemble and chance stay as they are.
    """
    copy: Any = duplicate_mapped(ensemble, lambda t: t.detach().clone()).requires_grad_(False).train()
    with torch.random.fork_rng(devices=[]), plain_operators(), torch.no_grad():
        copy.loss(x, y, criterion)  # here it finds out how its members run
        return -(-count_mult_adds(lambda: copy.loss(x, y, criterion)) // _rows(x))


def count_mult_adds(run: Callable[[], Any]) -> int:
    """Those of the operators that run: torch counts a multiplication and an addition each."""
    with FlopCounterMode(display=False, custom_mapping=FORMULAS) as counter:
        run()
    return counter.get_total_flops() // 2


def _rows(x: Any) -> int:
    shapes = [tuple(tensor.shape) for tensor in tensors_of(as_batch(x))]
    if not shapes or not shapes[0] or not shapes[0][0]:
        raise ValueError(
            f"cost: x must start with a tensor of at least one row, but its tensors have the shapes {shapes}. "
            "Give what one forward call takes, rows first."
        )
    return shapes[0][0]


def _mult_adds(model: nn.Module, x: Any) -> int:
    """Those of all rows: counted on the meta device, or with values where the model asks for them."""
    model = unwrap_compiled(model)  # torch.compile hides the operators
    batch, tensors = as_batch(x), [*model.parameters(), *model.buffers(), *tensors_of(x)]
    with torch.random.fork_rng(sorted({t.device.index for t in tensors if t.is_cuda})):
        try:
            return _count_operations(model, batch, lambda t: t.detach().to("meta"))
        except REFUSALS as error:
            if any(tensor.is_meta for tensor in tensors):
                hint = " If the model depends on values, give x and the model on a real device."
                raise _refusal(x, error, hint) from error
        try:
            return _count_operations(model, batch, lambda t: t.detach().clone())
        except REFUSALS as error:
            raise _refusal(x, error) from error


def _count_operations(model: nn.Module, batch: Batch, change: Callable[[Tensor], Tensor]) -> int:
    # Nothing trains: torch's counter fails where a module is called with a view of a parameter that does.
    model, (args, kwargs) = duplicate_mapped(model, change).requires_grad_(False), map_tensors(batch, change)
    with plain_operators(), torch.no_grad():
        model.eval()(*args, **kwargs)  # here an ensemble finds out whether it runs under vmap
        return count_mult_adds(lambda: model(*args, **kwargs))


COUNTING = threading.RLock()  # switches of all threads: two that count at once would leave them off


@contextmanager
def plain_operators() -> Iterator[None]:
    """Switches off the fused kernels that the counter does not know."""
    with COUNTING, warnings.catch_warnings(), sdpa_kernel(SDPBackend.MATH):
        fast = torch.backends.mha.get_fastpath_enabled()
        warnings.simplefilter("ignore")
        with torch.backends.mkldnn.flags(enabled=False), torch.backends.cudnn.flags(enabled=False):
            torch.backends.mha.set_fastpath_enabled(False)
            try:
                yield
            finally:
                torch.backends.mha.set_fastpath_enabled(fast)


def _refusal(x: Any, error: Exception, hint: str = "") -> ValueError:
    shapes = [tuple(tensor.shape) for tensor in tensors_of(as_batch(x))]
    return ValueError(
        f"cost: the model must run on x, but with the shapes {shapes} it fails: {str(error).rstrip('.')}. "
        f"Give what one forward call takes: a tensor, a tuple of arguments or a dict of named ones.{hint}"
    )


def short_count(count: float, digits: int = 3, units: str = "GM") -> str:
    """As the papers print it, such as 11.17 M or 0.555 G; a small number in full."""
    for unit in units:
        if count >= UNITS[unit] // 10:
            return f"{count / UNITS[unit]:.{digits}f} {unit}"
    return f"{count:,.0f}"


def _trilinear_flops(*shapes: Any, **_: Any) -> int:
    """nn.Bilinear: the three sizes, each with its new axes of length 1, broadcast."""
    sizes = [list(size) for size in shapes[:3]]
    for size, new in zip(sizes, shapes[3:6], strict=True):
        for axis in new:
            size.insert(axis, 1)
    return 2 * prod(map(max, *sizes))


# -------------------------------------------------------------------- memory


def bytes_of(tensors: Sequence[Tensor]) -> int:
    """How much memory the tensors' values take."""
    return sum(t.numel() * t.element_size() for t in tensors)


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


UNITS = {"G": 10**9, "M": 10**6}

FORMULAS = {  # what torch's counter leaves out: 2 per mult-add
    aten.mv: lambda a, b, **_: 2 * prod(a),
    aten.addmv: lambda _, a, b, **__: 2 * prod(a),
    aten.dot: lambda a, b, **_: 2 * prod(a),
    TRILINEAR: _trilinear_flops,
}
