"""Layers whose members are rows of a batch: masked ones (Durasov et al., 2021) and BatchEnsemble's (Wen et al., 2020).

The rows of a batch belong to members in equal, consecutive shares: the first M-th to the first member, and so on. The
share of a row follows from its place alone, so it is the same in all layers. In training a shuffled batch is given as
it is (masks) or once for each member (`repeat_rows`, BatchEnsemble); a prediction always repeats it.
"""

from __future__ import annotations

from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from ..methods.building import check_choice, check_number, check_size
from ..methods.mask_sampler import masks as draw_masks


def repeat_rows(x: Tensor, size: int) -> Tensor:
    """The batch once for each member, members outermost.

    Shapes:
        x: (batch, ...); given back: (members * batch, ...)

    >>> repeat_rows(torch.tensor([[1], [2]]), size=2).flatten().tolist()
    [1, 2, 1, 2]
    """
    return x.repeat(check_size("repeat_rows", size), *[1] * (x.ndim - 1))


def split_rows(outputs: Tensor, size: int) -> Tensor:
    """The outputs for a batch that `repeat_rows` gave, by member.

    Shapes:
        outputs: (members * batch, ...); given back: (members, batch, ...)

    >>> split_rows(torch.zeros(8, 3), size=4).shape
    torch.Size([4, 2, 3])
    """
    size = check_size("split_rows", size)
    if not outputs.ndim or outputs.shape[0] % size:
        raise ValueError(
            f"split_rows: the rows of {size} members must be equally many, but the shape is {tuple(outputs.shape)}. "
            "Give the network repeat_rows(x, size)."
        )
    return outputs.unflatten(0, (size, -1))


class _Rows:
    """Finds each row's member, and its tensor."""

    size: int

    def pick(self, own: Tensor, x: Tensor) -> Tensor:
        """A tensor of the members, (members, channels), as a factor or summand of each row of x."""
        linear = isinstance(self, nn.Linear)
        spatial = len(getattr(self, "kernel_size", ()))  # dimensions of an input beside rows and channels
        if x.ndim != 2 + spatial and not (linear and x.ndim > 2):
            wanted = "(rows, ..., features)" if linear else f"(rows, channels, {spatial} more)"
            raise ValueError(f"{type(self).__name__}: the input must be {wanted}, but its shape is {tuple(x.shape)}.")
        rows = x.shape[0]
        member = torch.arange(rows, device=x.device) * self.size // max(rows, 1)  # equal, consecutive shares
        channel = x.ndim - 1 if linear else 1
        return own[member].reshape([rows if d == 0 else -1 if d == channel else 1 for d in range(x.ndim)])


# ---------------------------------------------------------------- Masksembles


class _Masked(_Rows):
    """What a masked layer adds to torch's own: a fixed mask of its input channels for each member."""

    masks: Tensor

    def __init__(
        self, inputs: int, outputs: int, *kernel: Any, size: int, scale: float = 2.0, masks: Tensor | None = None,
        generator: torch.Generator | None = None, **options: Any,
    ):  # fmt: skip
        super().__init__(inputs, outputs, *kernel, **options)  # type: ignore[call-arg]
        self.size = check_size(type(self).__name__, size)
        drawn = (
            draw_masks(inputs, self.size, scale, generator=generator) if masks is None else self._check(masks, inputs)
        )
        layer = cast(nn.Linear, self)
        layer.register_buffer("masks", drawn.to(layer.weight))

    def forward(self, input: Tensor) -> Tensor:
        """The layer on what the mask of each row's member keeps; activations are not rescaled."""
        return super().forward(input * self.pick(self.masks, input))  # type: ignore[misc]

    def _check(self, masks: Tensor, inputs: int) -> Tensor:
        binary = isinstance(masks, Tensor) and bool(((masks == 0) | (masks == 1)).all())
        if not binary or tuple(masks.shape) != (self.size, inputs) or not bool((masks != 0).any(1).all()):
            what = tuple(masks.shape) if isinstance(masks, Tensor) else type(masks).__name__
            raise ValueError(
                f"{type(self).__name__}: masks must be zeros and ones, (members, inputs) = ({self.size}, {inputs}), "
                f"with a one in each, but they are {what}. pb.masks(width, size, scale) draws them."
            )
        return masks.detach().clone()


class MaskedLinear(_Masked, nn.Linear):
    """A linear layer behind a fixed binary mask for each member: the drop-in layer of Masksembles.

    Shapes:
        input: (rows, ..., in_features), whose rows belong to members in equal, consecutive shares
        output: (rows, ..., out_features)
        masks: (members, in_features), a buffer, saved with the weights

    Args:
        size: how many masks
        scale: the paper's S; the larger, the less masks overlap
        masks: your own, instead of drawn ones: zeros and ones
        generator: where the masks come from; by default torch's own generator
        options: as for `nn.Linear`: bias, ...

    >>> layer = MaskedLinear(8, 3, size=4, scale=2.0)
    >>> outputs = split_rows(layer(repeat_rows(torch.randn(5, 8), size=4)), size=4)
    >>> outputs.shape, layer.masks.sum(1)
    (torch.Size([4, 5, 3]), tensor([4., 4., 4., 4.]))
    """


class MaskedConv1d(_Masked, nn.Conv1d):
    """As `MaskedConv2d`, for sequences.

    >>> MaskedConv1d(8, 4, 3, size=4)(torch.zeros(4, 8, 9)).shape
    torch.Size([4, 4, 7])
    """


class MaskedConv2d(_Masked, nn.Conv2d):
    """A convolution behind a fixed binary mask of its input channels for each member; arguments as `MaskedLinear`.

    Shapes:
        input: (rows, in_channels, height, width); output: (rows, out_channels, height, width)
        masks: (members, in_channels)

    >>> MaskedConv2d(8, 4, 3, size=4, scale=3.0, padding=1)(torch.zeros(6, 8, 5, 5)).shape
    torch.Size([6, 4, 5, 5])
    """


class MaskedConv3d(_Masked, nn.Conv3d):
    """As `MaskedConv2d`, for volumes.

    >>> MaskedConv3d(8, 4, 1, size=4)(torch.zeros(4, 8, 2, 2, 2)).shape
    torch.Size([4, 4, 2, 2, 2])
    """


# ---------------------------------------------------------------- BatchEnsemble


class _Batch(_Rows):
    """What a layer of BatchEnsemble adds to torch's own: y = ((x * r) W) * s + b, with r, s and b of each member."""

    b: nn.Parameter | None

    def __init__(
        self, inputs: int, outputs: int, *kernel: Any, size: int, init: Literal["normal", "signs"] = "normal",
        std: float = 0.5, bias: bool = True, generator: torch.Generator | None = None, **options: Any,
    ):  # fmt: skip
        super().__init__(inputs, outputs, *kernel, bias=bias, **options)  # type: ignore[call-arg]
        self.size, name = check_size(type(self).__name__, size), type(self).__name__
        check_choice(name, "init", init, ("normal", "signs"))
        check_number(name, "std", std, "positive: members with equal vectors would stay the same", lambda v: v > 0)

        layer = cast(nn.Linear, self)

        def draw(channels: int) -> nn.Parameter:
            normal = torch.randn(self.size, channels, generator=generator)
            return nn.Parameter((1 + std * normal if init == "normal" else normal.sign()).to(layer.weight))

        self.r, self.s = draw(inputs), draw(outputs)
        self.b = nn.Parameter(layer.bias.detach().repeat(self.size, 1)) if bias else None
        layer.register_parameter("bias", None)

    def forward(self, input: Tensor) -> Tensor:
        """The shared layer between the two scalings of each row's member, then the member's bias."""
        y = super().forward(input * self.pick(self.r, input))  # type: ignore[misc]
        y = y * self.pick(self.s, y)
        return y if self.b is None else y + self.pick(self.b, y)


class BatchLinear(_Batch, nn.Linear):
    """A linear layer of BatchEnsemble: one weight, and vectors r and s and a bias of each member.

    Published recipes train r and s without decay of weights and at half the rate.

    Shapes:
        input: (rows, ..., in_features), whose rows belong to members in equal, consecutive shares: `repeat_rows`
        output: (rows, ..., out_features)
        r, s, b: (members, in_features), (members, out_features), (members, out_features)

    Args:
        size: how many members
        init: r and s are drawn from N(1, std), or are random signs
        bias: whether each member has one
        generator: where r and s come from; by default torch's own generator
        options: as for `nn.Linear`

    >>> layer = BatchLinear(8, 3, size=4)
    >>> split_rows(layer(repeat_rows(torch.randn(5, 8), size=4)), size=4).shape
    torch.Size([4, 5, 3])
    """


class BatchConv1d(_Batch, nn.Conv1d):
    """As `BatchConv2d`, for sequences.

    >>> BatchConv1d(8, 4, 3, size=4)(torch.zeros(4, 8, 9)).shape
    torch.Size([4, 4, 7])
    """


class BatchConv2d(_Batch, nn.Conv2d):
    """A convolution of BatchEnsemble, whose vectors scale channels; arguments as `BatchLinear` and `nn.Conv2d`.

    Shapes:
        input: (rows, in_channels, height, width); output: (rows, out_channels, height, width)

    >>> BatchConv2d(8, 4, 3, size=4, padding=1)(torch.zeros(4, 8, 5, 5)).shape
    torch.Size([4, 4, 5, 5])
    """


class BatchConv3d(_Batch, nn.Conv3d):
    """As `BatchConv2d`, for volumes.

    >>> BatchConv3d(8, 4, 1, size=4)(torch.zeros(4, 8, 2, 2, 2)).shape
    torch.Size([4, 4, 2, 2, 2])
    """
