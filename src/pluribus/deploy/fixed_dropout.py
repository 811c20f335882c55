"""Dropout written out in plain operations, drawn once and stored, or drawn at each run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .._common.trees import Batch, rows_of
from ..surgery.dropout import RATES_AND_SWITCHES
from .export_graph import resize


class Draw(NamedTuple):
    """One call of dropout: the shape of what it draws, and its rate."""

    shape: tuple[int, ...]
    rate: float


class Fixed(nn.Module):
    """A module whose dropout has been drawn: each draw is stored, and is the same for every row.

    The members of MC-Dropout are then fixed, thinned networks. A draw has the shape of what it drops, but for the
    dimensions that grow with the batch, in which it has length 1.

    Args:
        batch: what one call takes, of one row or more
        generator: where the draws come from; torch's global one if None
    """

    def __init__(self, module: nn.Module, batch: Batch, generator: torch.Generator | None = None):
        super().__init__()
        self.module = module
        found = find_draws(module, batch)
        device = next((t.device for t in (*module.parameters(), *module.buffers())), torch.device("cpu"))
        for number, draw in enumerate(found):
            keep = (torch.rand(draw.shape, generator=generator) >= draw.rate).float()
            self.register_buffer(f"scale_{number}", _scale(keep, draw.rate).to(device))
        self.count = len(found)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's output under the stored draws."""
        stored = (self.get_buffer(f"scale_{i}") for i in range(self.count))

        def replay(x: Tensor, rate: float, channels: bool) -> Tensor:
            scale = next(stored, None)
            if scale is None:
                raise ValueError("fixed draws: dropout is called more often than on the example, so draws are missing.")
            return x * scale.to(x.dtype)

        with _Dropouts(replay):
            return self.module(*args, **kwargs)


class Redrawn(nn.Module):
    """A module whose dropout is written as a comparison with uniform numbers.

    ONNX has an operator for dropout, but ONNX Runtime takes it out, and optimizers take two for one.
    """

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's output under new draws."""

        def draw(x: Tensor, rate: float, channels: bool) -> Tensor:
            return x * _scale((torch.rand_like(_one_value_per_draw(x, channels)) >= rate).to(x.dtype), rate)

        with _Dropouts(draw):
            return self.module(*args, **kwargs)


def find_draws(module: nn.Module, batch: Batch) -> list[Draw]:
    """Every dropout that the module calls, in order; length 1 in dimensions that grow with the batch."""
    rows = rows_of(batch)
    seen: list[list[Draw]] = []

    def note(x: Tensor, rate: float, channels: bool) -> Tensor:
        seen[-1].append(Draw(tuple(_one_value_per_draw(x, channels).shape), float(rate)))
        return x

    for more in (0, 1):
        args, kwargs = resize(batch, rows + more)
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            module(*args, **kwargs)  # an ensemble may try things on a first batch
            seen.append([])
            with _Dropouts(note):
                module(*args, **kwargs)
    if len(seen[0]) != len(seen[1]):
        raise ValueError(
            "fixed draws: dropout must be called the same number of times for every batch, but it is called "
            f'{len(seen[0])} times for {rows} rows and {len(seen[1])} times for {rows + 1}. Choose draws="random".'
        )
    return [
        a._replace(shape=tuple(n if n == m else 1 for n, m in zip(a.shape, b.shape, strict=True)))
        for a, b in zip(*seen, strict=True)
    ]


def _scale(keep: Tensor, rate: float) -> Tensor:
    """Dropout is x times this."""
    return keep / (1 - rate) if rate < 1 else keep


class _Dropouts(TorchFunctionMode):
    """Everything that drops something goes through `drop(x, rate, channels)`: functions, attention, layers of an RNN.

    `channels` says that a channel is dropped as a whole.
    """

    def __init__(self, drop: Callable[[Tensor, float, bool], Tensor]):
        super().__init__()
        self.drop = drop

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in DROPS_CHANNELS or func in ALPHA:
            rate, switch = (argument.of(args, kwargs) for argument in RATES_AND_SWITCHES[func])
            x = args[0] if args else kwargs["input"]
            if not rate or not switch:
                return x
            if func in ALPHA:
                raise ValueError("export: alpha dropout cannot be written to a file. Use nn.Dropout.")
            return self.drop(x, rate, DROPS_CHANNELS[func])
        if func is F.scaled_dot_product_attention:
            return self._attention(*args, **kwargs)
        if getattr(func, "__name__", "") in RECURRENT and torch.is_tensor(args[-1]) is False and args[5]:
            return self._recurrent(func, *args)
        if func is F.multi_head_attention_forward and args[10] and kwargs.get("training", True):
            raise ValueError(
                "fixed draws: dropout inside nn.MultiheadAttention cannot be stored. "
                'Choose draws="random", or make the ensemble with pb.mc_dropout, which opens it.'
            )
        return func(*args, **kwargs)

    def _attention(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
        is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
    ) -> Tensor:  # fmt: skip
        if not dropout_p:
            return F.scaled_dot_product_attention(
                query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa
            )
        if enable_gqa:
            key, value = (t.repeat_interleave(query.shape[-3] // t.shape[-3], -3) for t in (key, value))
        scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
        if is_causal:
            attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, -math.inf)
        elif attn_mask is not None:
            scores = scores + attn_mask
        return self.drop(scores.softmax(-1), dropout_p, False) @ value

    def _recurrent(
        self, func: Callable[..., Any], x: Tensor, start: Any, weights: Sequence[Tensor], biases: bool, layers: int,
        rate: float, train: bool, both_ways: bool, batch_first: bool,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        """A recurrent network layer by layer, with dropout between them."""
        directions, each = 1 + both_ways, len(weights) // layers
        ends: list[tuple[Tensor, ...]] = []
        for layer in range(layers):
            rows = slice(layer * directions, (layer + 1) * directions)
            begin = start[rows] if isinstance(start, Tensor) else [part[rows] for part in start]
            own = list(weights[layer * each : (layer + 1) * each])
            x, *end = func(x, begin, own, biases, 1, 0.0, train, both_ways, batch_first)
            ends.append(tuple(end))
            if train and layer < layers - 1:
                x = self.drop(x, rate, False)
        return (x, *(torch.cat(parts) for parts in zip(*ends, strict=True)))


def _one_value_per_draw(x: Tensor, channels: bool) -> Tensor:
    """What has one draw for each of its values: x, or one value of each channel."""
    return x[(slice(None), slice(None), *[slice(0, 1)] * (x.ndim - 2))] if channels else x


DROPS_CHANNELS: dict[Callable[..., Any], bool] = {
    **dict.fromkeys((F.dropout, torch.dropout), False),
    **dict.fromkeys((F.dropout1d, F.dropout2d, F.dropout3d), True),
}

ALPHA = (F.alpha_dropout, F.feature_alpha_dropout)

RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
