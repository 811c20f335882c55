"""The private parts of PyTorch that running an ensemble may use, so that a new release fails here first.

Importing this looks up nothing private. Where a release lacks what is looked up in `torch._C`, the public way is taken,
which is slower or more careful. Operators are in `torch_operators`, sizes that are symbols in `torch_symbolic`:
thinning, freezing and the landscape need those, running an ensemble does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import lazy_loader
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from torch.nn.modules.batchnorm import _NormBase as NormBase
    from torch.nn.modules.conv import _ConvNd as ConvNd
    from torch.utils import _pytree as pytree
else:
    pytree = lazy_loader.load("torch.utils._pytree")
    # The first common base: of batch and instance normalisation; of all convolutions, transposed ones too.
    NormBase = next(kind for kind in nn.BatchNorm1d.__mro__ if issubclass(nn.InstanceNorm1d, kind))
    ConvNd = next(kind for kind in nn.Conv1d.__mro__ if issubclass(nn.ConvTranspose1d, kind))

__all__ = ["ConvNd", "NormBase", "pytree"]

_Found = TypeVar("_Found")

# -------------------------------------------------------------------- modules

_TABLES = ("_parameters", "_buffers", "_modules")


class Tables(NamedTuple):
    """What a module holds itself, by name, None included: a change of a table changes the module."""

    parameters: dict[str, nn.Parameter | None]
    buffers: dict[str, Tensor | None]
    children: dict[str, nn.Module | None]


def tables(*parts: nn.Module) -> list[Tables]:
    """The tables in which each part keeps its parameters, its buffers and its children."""
    return [Tables(part._parameters, part._buffers, part._modules) for part in parts]


def plain_attributes(module: nn.Module) -> dict[str, Any]:
    """The attributes of a module that are not its parameters, buffers or children."""
    return {key: value for key, value in vars(module).items() if key not in _TABLES}


def attributes_of_parts(model: nn.Module) -> list[tuple[str, nn.Module, str, Any]]:
    """The attributes of a model's parts that are not parameters, buffers or children: (path, part, name, value)."""
    return [
        (path, part, key, value)
        for path, part in model.named_modules()
        for key, value in vars(part).items()
        if key not in _TABLES
    ]


def parts_of(module: nn.Module) -> list[nn.Module]:
    """The module and all its parts, each once: as `module.modules()`, in a fifth of the time."""
    found = {module: None}
    stack = [module]
    for part in stack:
        for child in part._modules.values():
            if child is not None and child not in found:
                found[child] = None
                stack.append(child)
    return stack


def has_forward_hooks(module: nn.Module) -> bool:
    """Whether the module runs hooks of its own before or after its forward."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def parts_with_hooks(parts: Sequence[nn.Module]) -> set[nn.Module]:
    """Those of the modules that run hooks of their own, forward or backward, or another forward than their class's."""
    return {
        part
        for part in parts
        if part._forward_hooks
        or part._forward_pre_hooks
        or part._backward_hooks
        or part._backward_pre_hooks
        or "forward" in part.__dict__
    }


_RECOMPUTING = (SpectralNorm, WeightNorm)  # hooks that make the attribute of their name anew before each forward


def recomputed(module: nn.Module) -> set[str]:
    """The names of attributes that hooks make anew before each forward, as those of the older norms of weights do."""
    return {hook.name for hook in module._forward_pre_hooks.values() if isinstance(hook, _RECOMPUTING)}


def unwrap_compiled(module: nn.Module) -> nn.Module:
    """The module that torch.compile wrapped; any other is given back as it is."""
    return getattr(module, "_orig_mod", module)


def estimate_spectral_norm_(parametrization: nn.Module, weight: Tensor) -> None:
    """Let a spectral norm's singular vectors fit this weight; other parametrizations have none and stay as they are."""
    if hasattr(parametrization, "_power_method"):
        parametrization._power_method(parametrization._reshape_weight_to_matrix(weight), 15)  # type: ignore


def refresh_hooked_weights_(module: nn.Module) -> None:
    """Compute the weights anew that hooks make before a forward, as those of the older weight and spectral norm do."""
    for part in parts_of(module):
        for hook in part._forward_pre_hooks.values():
            if isinstance(hook, _RECOMPUTING):
                for _ in range(15):  # a spectral norm is estimated step by step
                    hook(part, ())


_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def is_plain_product(layer: nn.Module, forward: Callable[..., Any]) -> bool:
    """Whether `forward`, a method of the layer, is torch's own of a linear layer or of a convolution without groups."""
    function, inner = getattr(forward, "__func__", None), getattr(type(layer), "_conv_forward", None)
    if any(function is kind.forward and inner is kind._conv_forward for kind in _CONVOLUTIONS):
        return bool(layer.groups == 1)
    return function is nn.Linear.forward


def convolve_as(layer: nn.Module, x: Tensor, weight: Tensor) -> Tensor:
    """What a convolution gives with another weight in place of its own."""
    return layer._conv_forward(x, weight, layer.bias)  # type: ignore[operator]


PADDING_ATTRIBUTE = "_reversed_padding_repeated_twice"  # of a convolution: its padding in the order of F.pad

# -------------------------------------------------------------------- vmap


def mark_parameters_(tensors: Iterable[Tensor]) -> None:
    """Let tensors be instances of `nn.Parameter`: a slice of one is a member's parameter."""
    for tensor in tensors:
        tensor._is_param = True


def is_transforming() -> bool:
    """Whether this runs inside a transformation of torch.func, such as vmap or grad."""
    try:
        return torch._C._functorch.peek_interpreter_stack() is not None
    except AttributeError:
        return _is_restricted()


def _is_restricted() -> bool:
    """Whether what transformations forbid is forbidden: hooks for saved tensors, or a random number as a number.

    (A vmap with randomness="same" forbids neither.)
    """
    try:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
            torch.rand((), generator=torch.Generator()).item()
    except RuntimeError:
        return True
    return False


def transform_level() -> int:
    """How many transformations of torch.func this runs inside of; one stands for several where nobody can tell."""
    try:
        interpreter = torch._C._functorch.peek_interpreter_stack()
    except AttributeError:
        return int(_is_restricted())
    return 0 if interpreter is None else interpreter.level()


# -------------------------------------------------------------------- modules


class SlowPath(TorchFunctionMode):
    """Keeps attention off its fast path, in this thread alone: `torch.backends.mha` has one switch for all.

    The fast path is not taken where someone may watch the calls of torch's functions.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The function itself."""
        return func(*args, **(kwargs or {}))


def is_parametrization_cached() -> bool:
    """Whether this runs inside of `torch.nn.utils.parametrize.cached`."""
    return bool(parametrize._cache_enabled)


def clear_parametrization_cache() -> None:
    """Forget what `torch.nn.utils.parametrize.cached` has stored: it does not know whose tensors those are."""
    if parametrize._cache_enabled:
        parametrize._cache.clear()


@contextmanager
def own_saved_tensors() -> Iterator[None]:
    """Keep what backward needs as it is, also inside of hooks that would store something else (a checkpoint's)."""
    try:
        are_own = torch._C._autograd._top_saved_tensors_default_hooks(False) is None
    except AttributeError:
        are_own = _is_restricted()
    if are_own:  # torch.func allows no hooks at all
        yield
        return
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        yield


def checkpoint_hooks() -> Any:
    """What stores tensors for backward instead of torch itself, as gradient checkpointing does inside of its parts.

    Where nobody can tell, something new each time: then whatever runs may be checkpointed.
    """
    try:
        return torch._C._autograd._top_saved_tensors_default_hooks(True)
    except AttributeError:
        return object()


def in_backward() -> Any:
    """Whether this runs inside a backward pass: a hook, or what gradient checkpointing computes again.

    Where nobody can tell, something new each time: then no two places are the same.
    """
    try:
        return torch._C._current_graph_task_id() != -1
    except AttributeError:
        return object()


# -------------------------------------------------------------------- tensors


def is_dispatch_watched() -> bool:
    """Whether a mode, such as a counter of operations or a tracer, sees every operator that runs now, or may see it."""
    try:
        return torch._C._len_torch_dispatch_stack() > 0
    except AttributeError:
        return True


def is_watched() -> bool:
    """Whether a transformation or a mode sees every operator now: passes of our own would be seen as well."""
    return is_transforming() or is_dispatch_watched()


def view_base(tensor: Tensor) -> Tensor:
    """The tensor that this one is a view of, or itself."""
    return tensor if tensor._base is None else tensor._base


def storage_key(storage: torch.UntypedStorage) -> int:
    """The address of a storage: tensors that share memory have the same, as long as one of them is alive."""
    return storage._cdata


def tensor_memory(tensor: Tensor) -> int:
    """Which memory a tensor is in: views have that of their base, as long as one of them is alive."""
    try:
        return storage_key(tensor.untyped_storage())
    except (NotImplementedError, RuntimeError):  # it has none of its own
        return id(tensor)


def run_uncompiled(reason: str, function: Callable[..., _Found], *args: Any) -> _Found:
    """What a function gives that torch.compile runs as plain Python; `reason` is said where one graph was asked for."""
    torch._dynamo.graph_break(msg=reason)
    found: _Found = torch._dynamo.disable(function)(*args)  # loaded here: importing pluribus loads no compiler
    return found


# -------------------------------------------------------------------- oneDNN


def is_onednn_enabled() -> bool:
    """Whether oneDNN's operators are there and nobody has turned them off; torch's public ones do the same, slower."""
    there = all(hasattr(torch.ops.mkldnn, name) for name in ("_reorder_convolution_weight", "_convolution_pointwise"))
    return there and torch.backends.mkldnn.is_available() and torch._C._get_mkldnn_enabled()


def reorder_weight(weight: Tensor, options: Sequence[Any], shape: Sequence[int]) -> Tensor:
    """The weight in the order that oneDNN's kernel reads for inputs of this shape; `options` as in `convolve`."""
    reordered: Tensor = torch.ops.mkldnn._reorder_convolution_weight(weight, *options, shape)
    return reordered


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, options: Sequence[Any], relu: bool = False) -> Tensor:
    """A convolution with a reordered weight; `options`: padding, stride, dilation, groups."""
    activation = "relu" if relu else "none"
    y: Tensor = torch.ops.mkldnn._convolution_pointwise(x, weight, bias, *options, activation, [], "")
    return y


def convolve_and_add(
    x: Tensor, added: Tensor, weight: Tensor, bias: Tensor | None, options: Sequence[Any], relu: bool = False
) -> Tensor:
    """As `convolve`, with a tensor added before ReLU."""
    activation = "relu" if relu else None
    y: Tensor = torch.ops.mkldnn._convolution_pointwise.binary(
        x, added, weight, bias, *options, "add", None, activation, [], None
    )
    return y
