"""The operations of a frozen network: layers with everything folded into them, run the fastest way there is.

On a CPU a convolution can hold its weight in the order that its kernel reads (oneDNN's operators, which Inductor
uses too). What is stored, moved, compiled or looked at is the plain weight.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..._common.torch_private import (
    convolve,
    convolve_and_add,
    is_dispatch_watched,
    is_onednn_enabled,
    reorder_weight,
)


class Convolution(nn.Module):
    """A convolution, then what is added to it, then ReLU.

    Once it is packed, its weight is held in the order that oneDNN's kernel reads, and only so; whoever looks at it
    (`parameters`, `state_dict`, copies) gets a plain copy, and nothing changes. At one row that is worth a factor of
    two for grouped convolutions, whose weights torch would reorder in every call.

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
        self.stride, self.padding, self.dilation = list(stride), list(padding), list(dilation)
        self.groups, self.relu, self.shape = groups, relu, tuple(weight.shape)
        self.inputs: tuple[int, ...] | None = None  # the shape that it is packed for
        self.packed: Reordered | None = None  # no buffer: it can be neither stored nor moved

    def forward(self, x: Tensor, added: Tensor | None = None) -> Tensor:
        """Packed where it was packed and the kernels can run."""
        packed = self.packed
        if packed is None or not can_pack(x):
            weight = x.new_empty(self.shape) if x.is_meta else self.weight
            function = CONVOLUTION[x.ndim]
            y = function(x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)
        else:
            return packed(x, self.bias, added, self.relu)
        if added is not None:
            y = y.add_(added)
        return y.relu_() if self.relu else y

    def pack_(self, shape: Sequence[int] | None = None) -> None:
        """Put the weight into the order that is best for images of this shape, where oneDNN's operators are there."""
        self.inputs = self.inputs if shape is None else tuple(shape)
        if self.packed is not None or self.inputs is None or len(self.inputs) != 4:
            return
        weight = self.weight.detach()
        if weight.device.type == "cpu" and weight.dtype == torch.float32 and is_onednn_enabled():
            options = self.padding, self.stride, self.dilation, self.groups
            self.packed = Reordered(weight, options, self.inputs)
            self._parameters = _Shown(self, self._parameters)

    def unpack_(self) -> None:
        """Hold the plain weight again."""
        if self.packed is not None:
            self._parameters = self._parameters.copy()  # first, so that another thread finds a weight at any time
            self.packed = None

    def show_weight(self) -> Tensor:
        """The plain weight of a packed convolution: a copy, one and the same as long as somebody holds it."""
        shown = self._shown() if self._shown is not None else None
        if shown is None:
            assert self.packed is not None
            shown = frozen_parameter(channels_last(self.packed.plain()))
            self._shown = weakref.ref(shown)
        return shown

    _shown: weakref.ref[Tensor] | None = None

    # ---------------------------------------------------------------- what writes or copies the weight

    def __getstate__(self) -> dict[str, Any]:
        """What a copy or a file holds: the weight in the form that it has."""
        state = {name: value for name, value in self.__dict__.items() if name != "_shown"}
        return {**state, "_parameters": dict.copy(self._parameters)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self.packed is not None:
            self._parameters = _Shown(self, self._parameters)
        if not is_onednn_enabled():
            self.unpack_()

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        self.unpack_()
        super()._apply(*args, **kwargs)
        self.pack_()
        return self

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self.unpack_()
        super()._load_from_state_dict(*args, **kwargs)
        self.pack_()

    def extra_repr(self) -> str:
        """What `print` shows."""
        return f"{self.shape}, groups={self.groups}, relu={self.relu}, packed={self.packed is not None}"


class _Shown(dict[str, Any]):
    """The parameters of a packed convolution: whoever looks at its weight sees a plain copy."""

    def __init__(self, part: Convolution, parameters: dict[str, Any]):
        super().__init__(parameters)
        dict.__setitem__(self, "weight", None)
        self.part = part

    def __getitem__(self, name: str) -> Any:
        return self.part.show_weight() if name == "weight" else super().__getitem__(name)

    def __iter__(self) -> Iterator[str]:
        return super().__iter__()  # of our own, or `dict(...)` would not ask for the weight

    def get(self, name: str, default: Any = None) -> Any:
        """As of a dict."""
        return self[name] if name in self else default

    def values(self) -> Any:
        """As of a dict."""
        return [self[name] for name in self]

    def items(self) -> Any:
        """As of a dict."""
        return [(name, self[name]) for name in self]

    def copy(self) -> dict[str, Any]:
        """A plain dict."""
        return dict(self.items())


class Reordered:
    """A convolution whose weight is in the order that oneDNN's kernel reads; `options` as in `convolve`."""

    def __init__(self, weight: Tensor, options: Sequence[Any], shape: Sequence[int]):
        self.options, self.shape = options, shape
        self.weight = reorder_weight(weight, options, shape)

    def __call__(self, x: Tensor, bias: Tensor | None, added: Tensor | None, relu: bool) -> Tensor:
        """As a `Convolution`."""
        if added is None:
            return convolve(x, self.weight, bias, self.options, relu)
        return convolve_and_add(x, added, self.weight, bias, self.options, relu)

    def plain(self) -> Tensor:
        """The weight that it was made of."""
        return self.weight.to_dense()

    def __reduce__(self) -> tuple[Any, ...]:
        return Reordered, (self.plain(), self.options, self.shape)


class Linear(nn.Module):
    """A linear layer, then what is added to it, then ReLU: (..., inputs) to (..., outputs)."""

    def __init__(self, weight: Tensor, bias: Tensor | None, relu: bool = False):
        super().__init__()
        self.weight = frozen_parameter(weight.contiguous())
        self.bias = None if bias is None else frozen_parameter(bias)
        self.relu = relu

    def forward(self, x: Tensor, added: Tensor | None = None) -> Tensor:
        """The layer."""
        y = F.linear(x, self.weight, self.bias)
        if added is not None:
            y = y.add_(added)
        return y.relu_() if self.relu else y


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
        if added is not None:
            y = y.add_(added)
        return y.relu_() if self.relu else y


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


class TakeEach(nn.Module):
    """Of (members, batch, ...) some of each member's channels; `dim` is that of one member."""

    index: Tensor

    def __init__(self, index: Tensor, dim: int, width: int):
        super().__init__()
        self.register_buffer("index", index)  # (members, channels)
        self.dim, self.width = dim, width

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
        return y.relu_() if self.relu else y


class Apart(nn.Module):
    """Members side by side in the channels, (batch, members * channels, ...), one after the other: members first."""

    def __init__(self, members: int):
        super().__init__()
        self.members = members

    def forward(self, x: Tensor) -> Tensor:
        """(members, batch, channels, ...)."""
        return x.unflatten(1, (self.members, -1)).transpose(0, 1)


class Together(nn.Module):
    """Members first, (members, batch, channels, ...), side by side: (batch, members * channels, ...)."""

    def forward(self, x: Tensor) -> Tensor:
        """The opposite of `Apart`."""
        return x.transpose(0, 1).flatten(1, 2)


class Same(nn.Module):
    """One value for all members: (members, ...), without a copy."""

    def __init__(self, members: int):
        super().__init__()
        self.members = members

    def forward(self, x: Tensor) -> Tensor:
        """The value, once per member."""
        return x.expand(self.members, *x.shape)


class Constant(nn.Module):
    """A tensor that no input changes."""

    def __init__(self, value: Tensor):
        super().__init__()
        self.value = frozen_parameter(value)

    def forward(self) -> Tensor:
        """The tensor."""
        return self.value


def check_channels(given: int, width: int) -> None:
    """Channels are taken by their numbers: where there are more of them, they would be others."""
    if given != width:
        raise ValueError(
            f"frozen: the network was cut where it has {width} channels for the example, but for this input it has "
            f"{given}. Freeze the ensemble again with an example of the same size."
        )


def frozen_parameter(tensor: Tensor) -> Tensor:
    """The tensor as a parameter that is not trained: it moves, and is stored and counted, with its module."""
    return nn.Parameter(tensor.detach(), requires_grad=False)


def channels_last(tensor: Tensor) -> Tensor:
    """The memory format in which convolutions of images are fastest."""
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor.contiguous()


def can_pack(x: Tensor) -> bool:
    """Whether oneDNN's operators can run this, and whether nobody watches the operators."""
    return (
        x.dtype is torch.float32
        and x.is_cpu
        and x.shape[0] > 0
        and is_onednn_enabled()
        and not is_dispatch_watched()
        and not torch.is_autocast_enabled("cpu")
    )


CONVOLUTION: dict[int, Callable[..., Any]] = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}
