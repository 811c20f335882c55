"""Layers by kind, by name and by pattern."""

from __future__ import annotations

import re
from collections.abc import Iterable

from torch import nn

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)

WEIGHTED = (nn.Linear, *CONVOLUTIONS)

READERS = (*WEIGHTED, nn.Embedding, nn.RNNBase)  # layers that a model's input can enter

DROPOUTS = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)


def matches(pattern: str, name: str) -> bool:
    """Whether the regular expression matches a dotted name from its start to its end, or to one of its dots.

    >>> [matches("layer4|fc", name) for name in ("layer4.0.conv1", "fc", "fc_norm", "layer1.0.fc")]
    [True, True, False, False]
    """
    return re.match(rf"(?:{pattern})(?:$|(?=\.)|(?<=\.))", name) is not None


def pick(method: str, pattern: str, names: Iterable[str], what: str = "layers") -> list[str]:
    """The names that `pattern` matches; a pattern, or one of its alternatives, without any is an error."""
    names = list(names)
    try:
        found = [name for name in names if matches(pattern, name)]
        idle = [part for part in _alternatives(pattern) if not any(matches(part, name) for name in names)]
    except re.error as error:
        raise ValueError(f"{method}: {pattern!r} is not a regular expression ({error}).") from error
    if not found or idle:
        raise ValueError(
            f"{method}: the pattern {(idle or [pattern])[0]!r} matches none of the model's {what}. A pattern must "
            f"match a name from its start (use .* before an inner part). The names are: {quote_names(names)}."
        )
    return found


def _alternatives(pattern: str) -> list[str]:
    """The parts of a pattern between the | that stand outside of any brackets."""
    parts, depth = [""], 0
    for token in re.findall(r"\\.|.", pattern):
        depth += (token in "([") - (token in ")]")
        if token == "|" and depth == 0:
            parts.append("")
        else:
            parts[-1] += token
    return parts


def quote_names(names: Iterable[str], most: int = 40) -> str:
    """Names for an error message."""
    names = list(names)
    more = f", and {len(names) - most} more" if len(names) > most else ""
    return (", ".join(repr(name) for name in names[:most]) or "none") + more


def weighted_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The convolutions and linear layers of `model` by name, in the order of definition."""
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, WEIGHTED)}


def dotted_name(*names: str | None) -> str:
    """The full name of a part of a part of the model; the model itself has the name ""."""
    return ".".join(name for name in names if name)


def exact_pattern(names: Iterable[str]) -> str:
    """The pattern that matches these names and no others."""
    return "|".join(f"^{re.escape(name)}$" for name in names)


def channel_dim(layer: nn.Module) -> int:
    """The dimension of the layer's channels, counted from the end."""
    kernel = getattr(layer, "kernel_size", ())
    return -1 - len(kernel) if isinstance(kernel, tuple) else -1


def is_torchs_own(kind: type) -> bool:
    """Whether a class of modules, with all that it inherits, is torch's or made by us of torch's."""
    return all(
        cls.__module__.startswith(("torch.nn.", "pluribus.core", "pluribus.surgery"))
        for cls in kind.__mro__[: kind.__mro__.index(nn.Module)]
    )
