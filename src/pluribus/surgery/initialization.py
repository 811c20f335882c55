"""Fresh parameters, drawn as the given ones seem to have been drawn."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from .._common.torch_private import estimate_spectral_norm_, refresh_hooked_weights_

SAMPLE = 4096  # entries looked at; more would only cost time
CORNER = 8  # entries along each dimension, which decide about most tables of pairs

NO_FAN = 3  # beside 0, 1 and 2: the fan in, the fan out and their mean
GAINS = (1 / 3, 1.0, 2.0)  # variance times fan: torch's default, LeCun or Xavier, He


def draw_like(tensor: Tensor, shape: Sequence[int] | None = None, fan: int | None = None) -> Tensor:
    """A tensor of the same kind, drawn anew, possibly in another shape with as many dimensions.

    Constants, integers, tables of few values and smooth tables (positions, frequencies) are not random: they keep
    their form. Orthogonal matrices become other orthogonal matrices. All else is drawn from a uniform or normal
    distribution with the tensor's mean and standard deviation; where the latter is a usual gain over the fan in,
    the fan out or their mean, it follows the new shape.

    Args:
        fan: which of them, 0 to 2, or `NO_FAN`, where that is known; by default the first that fits

    Example:
        >>> weight = torch.nn.Linear(64, 32).weight
        >>> tuple(draw_like(weight, (16, 32)).shape)
        (16, 32)
    """
    tensor = tensor.detach()
    shape = tuple(tensor.shape if shape is None else shape)
    if tensor.is_meta or 0 in shape:
        return torch.empty(shape, dtype=tensor.dtype, device=tensor.device)
    if tensor.is_complex():
        return torch.view_as_complex(draw_like(torch.view_as_real(tensor), (*shape, 2), fan))
    if not is_random(tensor):
        return resize_evenly(tensor, shape)
    gain = orthogonal_gain(tensor)
    if gain is not None:
        return _draw_orthogonal(tensor, shape, gain)
    return _draw_independent(tensor, shape, fan)


def keep_form_(model: nn.Module, given: nn.Module) -> None:
    """Mend what a new draw breaks: padding rows stay as given, norms follow their weights, spectral norms are anew."""
    with torch.no_grad():
        for module, original in zip(model.modules(), given.modules(), strict=True):
            if isinstance(module, nn.Embedding) and module.padding_idx is not None:
                row = cast(nn.Embedding, original).weight[module.padding_idx]
                module.weight[module.padding_idx] = resize_evenly(row, module.weight.shape[1:])
            if isinstance(module, nn.utils.parametrize.ParametrizationList) and hasattr(module, "original"):
                for part in cast(Any, module):
                    estimate_spectral_norm_(part, module.original)
            for name, norm in module.named_parameters(recurse=False):
                if name.endswith("_g") and hasattr(module, f"{name[:-2]}_v"):
                    _keep_norm_(norm, getattr(module, f"{name[:-2]}_v"), getattr(original, name), original, name)
        refresh_hooked_weights_(model)


def _keep_norm_(norm: Tensor, vector: Tensor, before: Tensor, original: nn.Module, name: str) -> None:
    """Weight norm by hooks: its lengths are those of its vectors, where they were in the given model."""
    given = cast(Tensor, getattr(original, f"{name[:-2]}_v"))
    dims = [d for d in range(norm.ndim) if norm.shape[d] == 1]
    if not given.is_meta and torch.allclose(torch.linalg.vector_norm(given, dim=dims, keepdim=True), before, rtol=1e-4):
        norm.copy_(torch.linalg.vector_norm(vector, dim=dims, keepdim=True))


def resize_evenly(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """The tensor's evenly spaced entries, as many as the shape asks for; sines stay with their cosines."""
    result = tensor.detach()
    for dim, size in enumerate(shape):
        before = result.shape[dim]
        if size != before:
            step = 2 if size % 2 == 0 and _are_pairs(result, dim) else 1
            index = torch.arange(size // step, device=result.device) * (before // step) // (size // step) * step
            result = result.index_select(dim, (index[:, None] + torch.arange(step, device=index.device)).flatten())
    return result.clone()


def _are_pairs(table: Tensor, dim: int) -> bool:
    """Whether neighbours along the dimension are a sine and a cosine: their squares add to one number."""
    if table.is_meta or not table.is_floating_point() or table.ndim < 2 or table.shape[dim] % 2:
        return False
    pairs = table.movedim(dim, -1).unflatten(-1, (-1, 2))
    low, high = _range_of_squares(pairs[(slice(CORNER),) * (pairs.ndim - 1)])
    if high - low > 1e-3 * high:  # the others could only be further apart
        return False
    low, high = _range_of_squares(pairs)
    return high > 0 and high - low < 1e-3 * high


def _range_of_squares(pairs: Tensor) -> tuple[float, float]:
    low, high = pairs.double().square().sum(-1).aminmax()
    return low.item(), high.item()


def is_random(tensor: Tensor) -> bool:
    """Whether the entries look like independent draws: many values, and neighbours that do not resemble."""
    if tensor.is_meta or not tensor.is_floating_point() or tensor.numel() < 2:
        return False
    entries = sample_entries(tensor, 256)  # few, since half precision has few values
    if entries.unique().numel() <= entries.numel() // 2:
        return False
    return not _is_smooth(tensor)


def orthogonal_gain(tensor: Tensor) -> float | None:
    """The common length of the rows (or columns, if these are fewer) where they are orthogonal, else None."""
    if tensor.ndim < 2:
        return None
    rows = tensor.flatten(1)
    rows = rows if rows.shape[0] <= rows.shape[1] else rows.T
    if rows.shape[0] < 2 or rows.shape[1] < 4:
        return None
    some = rows[:: max(1, rows.shape[0] // 16)].double()
    products = some @ some.T
    square = products.diagonal().mean()
    error = (products / square - torch.eye(len(some), dtype=some.dtype, device=some.device)).abs().max()
    rounding = 1e-4 + 4 * torch.finfo(tensor.dtype).eps
    chance = 1 / math.sqrt(rows.shape[1])  # of the size that the products of random rows have
    return square.sqrt().item() if error < min(rounding, chance) else None


def fits_fan(std: float, fan: float, count: int, gains: Sequence[float] = GAINS) -> bool:
    """Whether a standard deviation, estimated from this many entries, is a usual gain over the root of a fan."""
    tolerance = 0.02 + 4 * math.sqrt(2 / count)
    return any(abs(std**2 * fan / gain - 1) < tolerance for gain in gains)


def _is_smooth(tensor: Tensor) -> bool:
    """Whether neighbours along a dimension resemble each other, as in a table of positions."""
    table = tensor.squeeze()
    if table.ndim > 2:  # kernels may become smooth by training
        return False
    if table.ndim == 1 and len(table) > 5 and len(table.diff().sign().unique()) == 1:
        return True
    for dim in range(table.ndim):
        part = table if dim == 0 else table.T
        part = part[:SAMPLE].flatten(1)[:, : max(1, SAMPLE // part.shape[0])] if part.ndim > 1 else part[:SAMPLE]
        if part.shape[0] < 2:
            continue
        part = part.double() - part.double().mean()
        pairs = part[1:].numel()
        likeness = (part[1:] * part[:-1]).mean() / part.square().mean()
        if likeness > max(0.5, 5 / math.sqrt(pairs)):
            return True
    return False


def find_fans(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """Which fan the deviation of each tensor follows, 0 to 2, or `NO_FAN`: of the laws that fit it the commonest.

    One tensor may fit several by chance. That none is followed shows where fans differ and deviations do not.
    """
    seen = {name: (_std(t), _fans(t.shape), t.numel()) for name, t in tensors.items() if t.ndim > 1 and not t.is_meta}
    laws: list[tuple[int, set[str]]] = []
    for fan, gain in itertools.product(range(3), GAINS):
        laws.append((fan, {name for name, (std, fans, n) in seen.items() if fits_fan(std, fans[fan], n, (gain,))}))
    for std, _, _ in seen.values():
        alike = {name for name, (other, _, n) in seen.items() if std and fits_fan(other / std, 1.0, n, (1.0,))}
        columns = list(zip(*(seen[name][1] for name in alike), strict=True))
        if columns and all(max(column) > 1.5 * min(column) for column in columns):
            laws.append((NO_FAN, alike))
    fitting = {name: [(len(names), -fan) for fan, names in laws if name in names] for name in seen}
    return {name: -max(found)[1] for name, found in fitting.items() if found}


def _draw_independent(tensor: Tensor, shape: tuple[int, ...], fan: int | None) -> Tensor:
    entries = sample_entries(tensor, SAMPLE).double()
    count = entries.numel()
    mean, std = entries.mean().item(), _std(tensor)
    kurtosis = (((entries - mean) / entries.std(correction=0)) ** 4).mean().item()
    if abs(mean) < 5 * std / math.sqrt(count):
        mean, std = 0.0, math.sqrt(std**2 + mean**2)
    std *= _fan_ratio(tensor.shape, shape, std, tensor.numel(), fan) if mean == 0 else 1
    result = torch.empty(shape, dtype=torch.float32, device=tensor.device)
    if kurtosis < 2.2:  # 1.8 if uniform, 2.4 if normal within two deviations, 3 if normal
        width = std * math.sqrt(3)
        result.uniform_(mean - width, mean + width)
    else:
        result.normal_(mean, std)
    return result.to(tensor.dtype)


def _std(tensor: Tensor) -> float:
    wide = tensor.dtype if tensor.dtype == torch.float64 else torch.float32
    return tensor.to(wide).std().item()


def _fan_ratio(old: Sequence[int], new: Sequence[int], std: float, count: int, fan: int | None) -> float:
    """By how much the deviation changes with the shape, for a usual gain over a fan; otherwise 1."""
    if len(old) < 2:
        return 1.0
    for number, (before, after) in enumerate(zip(_fans(old), _fans(new), strict=True)):
        if number == fan or (fan is None and fits_fan(std, before, count)):
            return math.sqrt(before / after)
    return 1.0


def _fans(shape: Sequence[int]) -> tuple[float, float, float]:
    """Fan in, fan out and their mean."""
    kernel = math.prod(shape[2:])
    return shape[1] * kernel, shape[0] * kernel, kernel * (shape[0] + shape[1]) / 2


def _draw_orthogonal(tensor: Tensor, shape: tuple[int, ...], gain: float) -> Tensor:
    rows, columns = shape[0], math.prod(shape[1:])
    tall = torch.empty(max(rows, columns), min(rows, columns), dtype=torch.float32, device=tensor.device)
    q, r = torch.linalg.qr(tall.normal_())
    q = q * r.diagonal().sign()  # uniform over the orthogonal matrices
    return (gain * (q if rows >= columns else q.T)).reshape(shape).to(tensor.dtype)


def sample_entries(tensor: Tensor, count: int) -> Tensor:
    """At most this many entries, from all over the tensor."""
    flat = tensor.reshape(-1)
    if flat.numel() <= count:
        return flat
    chosen = torch.Generator().manual_seed(0)
    return flat[torch.randint(flat.numel(), (count,), generator=chosen).to(flat.device)]
