"""The operations of a frozen network: layers with everything folded into them, run the fastest way there is.

On a CPU a convolution can hold its weight in the order that its kernel reads (oneDNN's operators, which Inductor
uses too). It can always be put back: what is stored, moved or compiled is the plain weight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from .winograd import Tiled, fits

CALL = nn.Module.__call__


class Kernel(nn.Module):
    """An operation of a frozen network."""

    def __call__(self, *args: Any) -> Any:
        """As every module, but straight to `forward` where nobody listens: the rest costs as much as a small layer."""
        hooks = self._forward_pre_hooks or self._forward_hooks or _has_any_global_hook()
        if hooks or nn.Module.__call__ is not CALL:  # torch.fx listens there
            return super().__call__(*args)
        return self.forward(*args)


class Convolution(Kernel):
    """A convolution, then what is added to it, then ReLU.

    `way`, one of `WAYS`, is how it runs once it is packed.

    Shapes:
        input: (batch, inputs, ...)
        added: (batch, outputs, ...)
        output: (batch, outputs, ...)
    """

    weight: Tensor | None
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
        self.weight = constant(channels_last(weight))
        self.bias = None if bias is None else constant(bias)
        self.stride, self.padding, self.dilation = list(stride), list(padding), list(dilation)
        self.groups, self.relu, self.shape = groups, relu, tuple(weight.shape)
        self.way = "plain"
        self.packed: Tensor | Tiled | None = None  # no buffer: it can be neither stored nor moved

    def forward(self, x: Tensor, added: Tensor | None = None) -> Tensor:
        """Packed where it was packed."""
        if isinstance(self.packed, Tensor):
            return self._packed(x, self.packed, added)
        if self.packed is not None:
            y = self.packed(x)
        else:
            function = CONVOLUTION[x.ndim]
            y = function(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)
        if added is not None:
            y = y.add_(added)
        return y.relu_() if self.relu else y

    def _packed(self, x: Tensor, weight: Tensor, added: Tensor | None) -> Tensor:
        unary = "relu" if self.relu else "none"
        options = self.padding, self.stride, self.dilation, self.groups
        if added is None:
            y: Tensor = torch.ops.mkldnn._convolution_pointwise(x, weight, self.bias, *options, unary, [], "")
            return y
        y = torch.ops.mkldnn._convolution_pointwise.binary(
            x, added, weight, self.bias, *options, "add", None, unary if self.relu else None, [], None
        )
        return y

    def ways(self, shape: Sequence[int]) -> list[str]:
        """How it can run for inputs of this shape."""
        if len(shape) != 4:
            return ["plain"]
        able = fits(self.shape[2:], self.stride, self.padding, self.dilation)
        return ["plain", "packed", "winograd"] if able else ["plain", "packed"]

    def pack_(self, shape: Sequence[int], buffer: Tensor | None = None) -> None:
        """Put the weight into the form that `way` reads, for inputs of this shape; `buffer` is written on."""
        if self.weight is None or self.way not in self.ways(shape)[1:]:
            return
        weight = self.weight.detach()
        if self.way == "winograd":
            self.packed = Tiled(weight, self.bias, self.groups, shape, buffer)
        else:
            options = self.padding, self.stride, self.dilation, self.groups
            self.packed = torch.ops.mkldnn._reorder_convolution_weight(weight, *options, shape)
        self.weight = None

    def unpack_(self) -> None:
        """The plain weight again."""
        if self.packed is not None:
            plain = self.packed.plain() if isinstance(self.packed, Tiled) else self.packed.to_dense()
            self.weight, self.packed = constant(channels_last(plain)), None

    def extra_repr(self) -> str:
        """What `print` shows."""
        return f"{self.shape}, groups={self.groups}, relu={self.relu}, way={self.way!r}"


class Linear(Kernel):
    """A linear layer, then what is added to it, then ReLU: (..., inputs) to (..., outputs)."""

    def __init__(self, weight: Tensor, bias: Tensor | None, relu: bool = False):
        super().__init__()
        self.weight = constant(weight.contiguous())
        self.bias = None if bias is None else constant(bias)
        self.relu = relu

    def forward(self, x: Tensor, added: Tensor | None = None) -> Tensor:
        """The layer."""
        y = F.linear(x, self.weight, self.bias)
        if added is not None:
            y = y.add_(added)
        return y.relu_() if self.relu else y


class StackedLinear(Kernel):
    """The linear layers of all members in one product of matrices.

    Shapes:
        input: (members, batch, ..., inputs), or (batch, ..., inputs) where it is `shared` by all members
        output: (members, batch, ..., outputs)
    """

    def __init__(self, weights: Sequence[Tensor], biases: Sequence[Tensor | None], relu: bool, shared: bool):
        super().__init__()
        self.weight = constant(torch.stack([weight.T.contiguous() for weight in weights]))  # (members, inputs, outputs)
        filled = [torch.zeros_like(w[:, 0]) if b is None else b for w, b in zip(weights, biases, strict=True)]
        self.bias = constant(torch.stack(filled).unsqueeze(1))  # (members, 1, outputs)
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
        if added is not None:
            y = y.add_(added)
        return y.relu_() if self.relu else y


class WideLinear(Kernel):
    """A linear layer whose weight is stored as (inputs, outputs), which is faster for one row: (batch, inputs)."""

    def __init__(self, weight: Tensor, bias: Tensor | None, relu: bool = False):
        super().__init__()
        self.weight = constant(weight.T.contiguous())
        self.bias = constant(torch.zeros_like(weight[:, 0]) if bias is None else bias)
        self.relu = relu

    def forward(self, x: Tensor) -> Tensor:
        """Product and bias in one operation."""
        y = torch.addmm(self.bias, x, self.weight)
        return y.relu_() if self.relu else y


class Take(Kernel):
    """Some of the channels, in this order: those that a member reads."""

    index: Tensor

    def __init__(self, index: Tensor, dim: int, width: int):
        super().__init__()
        self.register_buffer("index", index)
        self.dim, self.width = dim, width

    def forward(self, x: Tensor) -> Tensor:
        """The channels, in the memory format of the input."""
        check_width(x.shape[self.dim], self.width)
        here = not torch.compiler.is_compiling()  # compilers and other runtimes choose a format of their own
        if here and self.dim == 1 and x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last):
            rows = x.permute(0, 2, 3, 1)  # (batch, height, width, channels)
            taken = rows.reshape(-1, rows.shape[3]).index_select(1, self.index)
            return taken.view(*rows.shape[:3], -1).permute(0, 3, 1, 2)
        return x.index_select(self.dim, self.index)


class TakeEach(Kernel):
    """Of (members, batch, ...) some of each member's channels; `dim` is that of one member."""

    index: Tensor

    def __init__(self, index: Tensor, dim: int, width: int):
        super().__init__()
        self.register_buffer("index", index)  # (members, channels)
        self.dim, self.width = dim, width

    def forward(self, x: Tensor) -> Tensor:
        """The channels."""
        check_width(x.shape[self.dim + 1], self.width)
        parts = zip(x.unbind(0), self.index.unbind(0), strict=True)
        return torch.stack([part.index_select(self.dim, index) for part, index in parts])


class Affine(Kernel):
    """What normalisation is once its statistics are fixed: x * scale + shift along the channels."""

    mean: Tensor
    variance: Tensor

    def __init__(self, scale: Tensor, shift: Tensor, relu: bool = False):
        super().__init__()
        self.scale, self.shift, self.relu = constant(scale), constant(shift), relu
        self.register_buffer("mean", torch.zeros_like(shift))
        self.register_buffer("variance", torch.ones_like(shift))

    def forward(self, x: Tensor) -> Tensor:
        """Channels in dimension 1."""
        y = F.batch_norm(x, self.mean, self.variance, self.scale, self.shift, False, 0.0, 0.0)
        return y.relu_() if self.relu else y


class Apart(Kernel):
    """Members side by side in the channels, (batch, members * channels, ...), one after the other: members first."""

    def __init__(self, members: int):
        super().__init__()
        self.members = members

    def forward(self, x: Tensor) -> Tensor:
        """(members, batch, channels, ...)."""
        return x.unflatten(1, (self.members, -1)).transpose(0, 1)


class Together(Kernel):
    """Members first, (members, batch, channels, ...), side by side: (batch, members * channels, ...)."""

    def forward(self, x: Tensor) -> Tensor:
        """The opposite of `Apart`."""
        return x.transpose(0, 1).flatten(1, 2)


class Same(Kernel):
    """One value for all members: (members, ...), without a copy."""

    def __init__(self, members: int):
        super().__init__()
        self.members = members

    def forward(self, x: Tensor) -> Tensor:
        """The value, once per member."""
        return x.expand(self.members, *x.shape)


class Constant(Kernel):
    """A tensor that no input changes."""

    def __init__(self, value: Tensor):
        super().__init__()
        self.value = constant(value)

    def forward(self) -> Tensor:
        """The tensor."""
        return self.value


def check_width(given: int, width: int) -> None:
    """Channels are taken by their numbers: where there are more of them, they would be others."""
    if given != width:
        raise ValueError(
            f"frozen: the network was cut where it has {width} channels for the example, but for this input it has "
            f"{given}. Freeze the ensemble again with an example of the same size."
        )


def constant(tensor: Tensor) -> Tensor:
    """The tensor as a parameter that is not trained: it moves, and is stored and counted, with its module."""
    return nn.Parameter(tensor.detach(), requires_grad=False)


def channels_last(tensor: Tensor) -> Tensor:
    """The memory format in which convolutions of images are fastest."""
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor.contiguous()


def can_pack(x: Tensor) -> bool:
    """Whether oneDNN's operators can run this, and whether nobody watches the operators."""
    return (
        x.device.type == "cpu"
        and x.dtype == torch.float32
        and torch.backends.mkldnn.is_available()
        and torch._C._get_mkldnn_enabled()
        and torch._C._len_torch_dispatch_stack() == 0
        and not torch.is_autocast_enabled("cpu")
    )


CONVOLUTION: dict[int, Callable[..., Any]] = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}
WAYS = {
    "plain": "as torch runs them",
    "packed": "with the weight in the order that oneDNN's kernels read",
    "winograd": "with four times fewer multiplications (Winograd), the weight in four times the memory",
}
