"""The operations of a frozen network: layers with everything folded into them, run the fastest way there is.

On a CPU a convolution keeps a second copy of its weight in the order that oneDNN's kernel reads (private operators,
which Inductor uses too). Where they are missing, or something compiles, traces or watches, torch's own operator runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..._common.torch_private import convolve, convolve_and_add, is_dispatch_watched, is_onednn_enabled, reorder_weight


class Convolution(nn.Module):
    """A convolution, then what is added to it, then ReLU.

    `pack_` lets it keep the second copy of the weight, which is made in the first call and whenever the weight changes.

    Shapes:
        input: (batch, inputs, ...)
        added: (batch, outputs, ...)
        output: (batch, outputs, ...)
    """

    weight: Tensor
    bias: Tensor | None

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        groups: int = 1,
        relu: bool = False,
    ):
        super().__init__()
        self.weight = frozen_parameter(channels_last(weight))
        self.bias = None if bias is None else frozen_parameter(bias)
        self.options = list(padding), list(stride), list(dilation), groups  # in the order of oneDNN
        self.relu = relu
        self.packed_for: tuple[int, ...] | None = None  # the shape of its input; None: no second copy
        self.packed: tuple[Tensor, tuple[int, int]] | None = None  # the copy, and of which weight it is

    def forward(self, x: Tensor, added: Tensor | None = None) -> Tensor:
        """Packed where it was packed and the kernels can run."""
        if self.packed_for is not None and can_pack(x):
            packed = self._packed_weight(self.packed_for)
            if added is None:
                return convolve(x, packed, self.bias, self.options, self.relu)
            return convolve_and_add(x, added, packed, self.bias, self.options, self.relu)
        padding, stride, dilation, groups = self.options
        weight = x.new_empty(self.weight.shape) if x.is_meta else self.weight
        y = CONVOLUTION[x.ndim](x, weight, self.bias, stride, padding, dilation, groups)
        return finish(y, added, self.relu)

    def pack_(self, shape: Sequence[int] | None) -> None:
        """Keep the weight in the order that is best for images of this shape too; None: no longer."""
        fits = shape is not None and len(shape) == 4 and can_pack(self.weight)
        self.packed_for, self.packed = tuple(shape) if shape is not None and fits else None, None

    def _packed_weight(self, shape: tuple[int, ...]) -> Tensor:
        """The second copy, made again where the weight lies elsewhere or was written since."""
        now = self.weight.data_ptr(), self.weight._version
        packed = self.packed
        if packed is None or packed[1] != now:
            self.packed = packed = reorder_weight(self.weight.detach(), self.options, shape), now
        return packed[0]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "packed": None}  # neither stored nor copied

    def extra_repr(self) -> str:
        """What `print` shows."""
        shape = tuple(self.weight.shape)
        return f"{shape}, groups={self.options[3]}, relu={self.relu}, packed={self.packed_for is not None}"


class Linear(nn.Module):
    """A linear layer, then what is added to it, then ReLU: (..., inputs) to (..., outputs)."""

    def __init__(self, weight: Tensor, bias: Tensor | None, relu: bool = False):
        super().__init__()
        self.weight = frozen_parameter(weight.contiguous())
        self.bias = None if bias is None else frozen_parameter(bias)
        self.relu = relu

    def forward(self, x: Tensor, added: Tensor | None = None) -> Tensor:
        """The layer."""
        return finish(F.linear(x, self.weight, self.bias), added, self.relu)


class StackedLinear(nn.Module):
    """The linear layers of all members in one product of matrices.

    Shapes:
        input: (members, batch, ..., inputs), or (batch, ..., inputs) where it is `shared` by all members
        output: (members, batch, ..., outputs)
    """

    def __init__(self, weights: Sequence[Tensor], biases: Sequence[Tensor | None], relu: bool, shared: bool):
        super().__init__()
        stacked = torch.stack([weight.T.contiguous() for weight in weights])
        self.weight = frozen_parameter(stacked)  # (members, inputs, outputs)
        filled = [torch.zeros_like(w[:, 0]) if b is None else b for w, b in zip(weights, biases, strict=True)]
        self.bias = frozen_parameter(torch.stack(filled).unsqueeze(1))  # (members, 1, outputs)
        self.relu, self.shared = relu, shared

    def forward(self, x: Tensor, added: Tensor | None = None) -> Tensor:
        """Product and bias in one operation."""
        weight = self.weight
        if self.shared:
            x = x.expand(len(weight), *x.shape)
        if x.ndim == 3:
            y = torch.baddbmm(self.bias, x, weight)
        else:
            y = torch.baddbmm(self.bias, x.flatten(1, -2), weight).unflatten(1, x.shape[1:-1])
        return finish(y, added, self.relu)


def max_pool2d(
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """As `F.max_pool2d`: windows of 2 x 2 as maxima of slices, in 0.3 to 0.5 of the time for images channels-last.

    Torch's operator also writes the place of each maximum, which nobody reads here.
    """
    window, step = (
        one if isinstance(one, Sequence) else (one, one) for one in (kernel_size, stride if stride else kernel_size)
    )
    halves = tuple(window) == tuple(step) == (2, 2) and padding in (0, (0, 0)) and dilation in (1, (1, 1))
    plain = halves and not ceil_mode and not return_indices and not torch.compiler.is_compiling()
    if not plain or x.ndim != 4 or not x.is_contiguous(memory_format=torch.channels_last):
        return MAX_POOL(x, kernel_size, stride, padding, dilation, ceil_mode, return_indices)
    height, width = (size // 2 * 2 for size in x.shape[2:])
    x = torch.maximum(x[:, :, 0:height:2], x[:, :, 1:height:2])
    return torch.maximum(x[..., 0:width:2], x[..., 1:width:2])


class Take(nn.Module):
    """Some of the channels, in this order: those that a member reads."""

    index: Tensor

    def __init__(self, index: Tensor, dim: int, width: int):
        super().__init__()
        self.register_buffer("index", index)
        self.dim, self.width = dim, width

    def forward(self, x: Tensor) -> Tensor:
        """The channels, in the memory format of the input."""
        check_channels(x.shape[self.dim], self.width)
        here = not torch.compiler.is_compiling()  # compilers and other runtimes choose a format of their own
        if here and self.dim == 1 and x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last):
            rows = x.permute(0, 2, 3, 1)  # (batch, height, width, channels)
            taken = rows.reshape(-1, rows.shape[3]).index_select(1, self.index)
            return taken.view(*rows.shape[:3], -1).permute(0, 3, 1, 2)
        return x.index_select(self.dim, self.index)


class TakeEach(Take):
    """Of (members, batch, ...) some of each member's channels: index (members, channels), `dim` that of one member."""

    def forward(self, x: Tensor) -> Tensor:
        """The channels."""
        check_channels(x.shape[self.dim + 1], self.width)
        parts = zip(x.unbind(0), self.index.unbind(0), strict=True)
        return torch.stack([part.index_select(self.dim, index) for part, index in parts])


class Affine(nn.Module):
    """What normalisation is once its statistics are fixed: x * scale + shift along the channels."""

    mean: Tensor
    variance: Tensor

    def __init__(self, scale: Tensor, shift: Tensor, relu: bool = False):
        super().__init__()
        self.scale, self.shift, self.relu = frozen_parameter(scale), frozen_parameter(shift), relu
        self.register_buffer("mean", torch.zeros_like(shift))
        self.register_buffer("variance", torch.ones_like(shift))

    def forward(self, x: Tensor) -> Tensor:
        """Channels in dimension 1."""
        y = F.batch_norm(x, self.mean, self.variance, self.scale, self.shift, False, 0.0, 0.0)
        return finish(y, None, self.relu)


def finish(y: Tensor, added: Tensor | None, relu: bool) -> Tensor:
    """What follows a layer in the same operation: a sum and ReLU."""
    if added is not None:
        y = y.add_(added)
    return y.relu_() if relu else y


def check_channels(given: int, width: int) -> None:
    """Channels are taken by their numbers: where there are more of them, they would be others."""
    if given != width:
        raise ValueError(
            f"frozen: the network was cut where it has {width} channels for the example, but for this input it has "
            f"{given}. Freeze the ensemble again with an example of the same size."
        )


def frozen_parameter(tensor: Tensor) -> nn.Parameter:
    """The tensor as a parameter that is not trained: it moves, and is stored and counted, with its module."""
    return nn.Parameter(tensor.detach(), requires_grad=False)


def channels_last(tensor: Tensor) -> Tensor:
    """The memory format in which convolutions of images are fastest."""
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor.contiguous()


def can_pack(x: Tensor) -> bool:
    """Whether oneDNN's operators can run this, and whether nobody compiles, traces or watches the operators."""
    return (
        x.dtype is torch.float32
        and x.is_cpu
        and x.shape[0] > 0
        and is_onednn_enabled()
        and not torch.compiler.is_compiling()
        and not is_dispatch_watched()
        and not torch.is_autocast_enabled("cpu")
    )


MAX_POOL: Callable[..., Any] = F.max_pool2d

CONVOLUTION: dict[int, Callable[..., Any]] = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}
