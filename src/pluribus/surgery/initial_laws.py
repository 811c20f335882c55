"""How a model's tensors were drawn: as `reset_parameters` of a layer's class does it where they fit that, else a guess.

A slot is what a module draws: a parameter, or a weight that parametrizations make of their own parameters.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from .._common.torch_private import NormBase, refresh_hooked_weights_
from .copying import duplicate, state
from .initialization import draw_like, find_fans, is_random, keep_form_, sample_entries
from .selecting import WEIGHTED, dotted_name

SAMPLE = 4096  # entries that are compared
ENOUGH = 256  # entries of a law; smaller tensors are drawn several times
MOST_ENTRIES = 2**22  # that are drawn to learn about a law


class Laws:
    """Which tensors of a model look as if `reset_parameters` of a module had drawn them.

    Args:
        own: for the name of a module the names, inside it, of the slots that its `reset_parameters` draws
        guessed: the names of the random tensors that no class explains
        fans: which fan the deviation of each of them seems to follow, as `find_fans` says it
        packed: the names of the modules that hold weights in a packed form, such as quantised ones: nobody draws those
    """

    def __init__(self, model: nn.Module):
        self.given = duplicate(model).eval()  # reading a parametrized weight in train mode may change it
        self.own: dict[str, list[str]] = {}
        known: set[str] = set()
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(0)
            self.values = slots(self.given)
            for path, module in reversed(list(self.given.named_modules())):  # inner modules first
                self.own[path] = self._names_drawn_by(path, module, known)
                known |= {dotted_name(path, key) for key in self.own[path]}
            self.guessed = [name for name, value in self.values.items() if name not in known and is_random(value)]
            self.fans = find_fans({name: self.values[name] for name in self.guessed})
        self.packed = [
            path
            for path, module in self.given.named_modules()
            if any(isinstance(value, torch.ScriptObject) for value in vars(module).values())
        ]

    def _names_drawn_by(self, path: str, module: nn.Module, known: Collection[str]) -> list[str]:
        if not callable(getattr(module, "reset_parameters", None)):
            return []
        inside = f"{path}." if path else ""
        names = [n for n, v in self.values.items() if n.startswith(inside) and n not in known and not v.is_meta]
        if not names:
            return []
        values = {name.removeprefix(inside): self.values[name] for name in names}
        if has_seen_data(module):
            return list(values)
        smallest = min(value.numel() for value in values.values())
        draws = _draw_by_class(module, max(2, ENOUGH // max(1, smallest)))
        return [k for k, v in values.items() if draws and k in draws[0] and fits(v, [draw[k] for draw in draws])]


def reinitialize(
    model: nn.Module,
    generator: torch.Generator | None = None,
    names: Collection[str] | None = None,
    *,
    revive: bool = False,
    laws: Laws | None = None,
) -> nn.Module:
    """A copy of `model` with freshly drawn tensors (those in `names`, by default all).

    Where a tensor fits what its layer's class draws in `reset_parameters`, that is called; any other is drawn from
    the distribution that the given one seems to come from. Constants stay. Normalisation layers start anew.

    Args:
        revive: draw the weights of convolutions and linear layers that are constant (zeros) by their class
        laws: those of the model, where they are known already
    """
    made = duplicate(model)
    draw_anew_(made, laws or Laws(model), generator, names, revive=revive)
    return made


def draw_anew_(
    model: nn.Module,
    laws: Laws,
    generator: torch.Generator | None = None,
    names: Collection[str] | None = None,
    *,
    revive: bool = False,
) -> None:
    """Draw the tensors of a copy of a model, possibly of other sizes, by the laws of that model, in place."""
    ids = {id(tensor) for name, tensor in state(model) if names is None or name in names}
    with torch.no_grad(), follow_generator(generator):
        fresh: dict[str, Tensor] = {}
        refresh_hooked_weights_(model)  # whose sizes a law asks for
        for path, module in model.named_modules():
            keys = _constant_parameters(module) if revive else []
            if keys := [*laws.own.get(path, ()), *keys]:
                drawn = (_draw_by_class(module, 1) or [{}])[0]
                fresh |= {dotted_name(path, key): drawn[key] for key in keys if key in drawn}
            if isinstance(module, NormBase) and id(module.running_mean) in ids:
                module.reset_running_stats()
        for name, value in slots(model).items():
            if name in laws.values and not ids.isdisjoint(_tensor_ids(model, name)):
                if name not in fresh:
                    fresh[name] = draw_like(laws.values[name], value.shape, fan=laws.fans.get(name))
                _assign_(model, name, fresh[name])
        keep_form_(model, laws.given)


def slots(model: nn.Module) -> dict[str, Tensor]:
    """What a model draws, by name, tied ones once: its parameters, and the weights that parametrizations make."""
    found: dict[str, Tensor] = {}
    hidden: set[int] = set()
    for path, module in model.named_modules():
        for key in _invertible(module):
            found[dotted_name(path, key)] = _parametrized_value(module, key)
            hidden |= {id(p) for p in _parametrizations(module)[key].parameters()}
    return found | {name: p for name, p in model.named_parameters() if id(p) not in hidden}


def fits(tensor: Tensor, draws: Sequence[Tensor]) -> bool:
    """Whether the tensor may be one more of such draws: by its range, its deviation and its distribution."""
    given = sample_entries(tensor.detach(), SAMPLE).double()
    drawn = torch.cat([sample_entries(draw.detach(), SAMPLE // len(draws)).double() for draw in draws])
    if tensor.shape != draws[0].shape or tensor.is_complex():
        return False
    if _is_constant(given) or _is_constant(drawn):
        return _is_constant(given) and _is_constant(drawn) and bool(given[0] == drawn[0])
    if all(torch.equal(draws[0], draw) for draw in draws[1:]):
        return False  # it is not drawn at all
    n, m = len(given), len(drawn)
    spread = drawn.square().mean()
    kurtosis = drawn.pow(4).mean() / spread.square()
    if kurtosis < 2.2 and given.abs().max() > drawn.abs().max() * (1 + 20 / m):  # a uniform law has bounds
        return False
    tolerance = 5 * math.sqrt(max(float(kurtosis) - 1, 0.2) * (1 / n + 1 / m))
    ratio = math.log(float(given.square().mean() / spread))
    if ratio > tolerance + 0.02 or (n >= 16 and ratio < -tolerance - 0.02):  # a few entries may be small by chance
        return False
    both = torch.cat([given, drawn]).sort().values
    ranks = [torch.searchsorted(part.sort().values, both, right=True) / len(part) for part in (given, drawn)]
    return bool((ranks[0] - ranks[1]).abs().max() < 2.7 * math.sqrt(1 / n + 1 / m))  # Kolmogorov and Smirnov, 1e-6


def _is_constant(entries: Tensor) -> bool:
    """Whether all entries are alike; a single one may be a draw, unless it is zero or one."""
    if len(entries) == 1:
        return bool(entries[0] == 0) or bool(entries[0] == 1)
    return bool((entries == entries[0]).all())


def has_seen_data(module: nn.Module, batches: int = 1) -> bool:
    """Whether a module is a normalisation layer that saw so many batches, or whose scales an optimizer has moved."""
    if isinstance(module, NormBase) and module.num_batches_tracked is not None:
        return module.num_batches_tracked.device.type != "meta" and bool((module.num_batches_tracked >= batches).any())
    if not isinstance(module, (NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)):
        return False
    return any(not p.is_meta and bool((p != p.flatten()[0]).any()) for p in module.parameters(recurse=False))


def _constant_parameters(module: nn.Module) -> list[str]:
    """The parameters of a convolution or linear layer whose weight is constant."""
    if not isinstance(module, WEIGHTED) or parametrize.is_parametrized(module):
        return []
    weight = module.weight
    constant = not weight.is_meta and bool((weight == weight.flatten()[0]).all())
    return [name for name, _ in module.named_parameters(recurse=False)] if constant else []


def _draw_by_class(module: nn.Module, times: int) -> list[dict[str, Tensor]]:
    """What `reset_parameters` draws, some times; nothing where it fails."""
    drawn: list[dict[str, Tensor]] = []
    plain = deepcopy(module)
    with torch.enable_grad():  # otherwise what takes their place is no parameter
        for part in list(plain.modules()):
            _remove_parametrizations_(part)
    entries = sum(parameter.numel() for parameter in plain.parameters())
    for _ in range(min(times, max(2, MOST_ENTRIES // max(entries, 1)))):
        try:
            with torch.no_grad():
                plain.reset_parameters()  # type: ignore[operator]
        except Exception:
            return []
        drawn.append({name: p.detach().clone() for name, p in plain.named_parameters()})
    return drawn


# -------------------------------------------------------------------- weights that are made by parametrizations


def _parametrizations(module: nn.Module) -> dict[str, Any]:
    return dict(cast(Any, module.parametrizations).items()) if parametrize.is_parametrized(module) else {}


def _remove_parametrizations_(module: nn.Module) -> None:
    keys = list(_parametrizations(module))
    if keys:  # a copy has the same class, of which a property would be removed
        kind = type(module)
        module.__class__ = type(kind.__name__, kind.__bases__, dict(vars(kind)))
    for key in keys:
        parametrize.remove_parametrizations(module, key, leave_parametrized=True)


def _invertible(module: nn.Module) -> list[str]:
    """The names of the parametrized tensors that can be assigned."""
    made = _parametrizations(module)
    return [key for key, parts in made.items() if all(hasattr(part, "right_inverse") for part in parts)]


def _parametrized_value(module: nn.Module, key: str) -> Tensor:
    """The tensor that was drawn: what is made of it is assigned (orthogonal matrices), or it stays as it is."""
    parts = _parametrizations(module)[key]
    if len(parts) == 1 and hasattr(parts, "original"):
        try:
            if torch.equal(parts[0].right_inverse(parts.original), parts.original):
                return cast(Tensor, parts.original)
        except (ValueError, RuntimeError, NotImplementedError):
            pass
    return cast(Tensor, getattr(module, key)).detach()


def _tensor_ids(model: nn.Module, name: str) -> set[int]:
    """The identities of the parameters behind a slot."""
    path, _, key = name.rpartition(".")
    parts = _parametrizations(model.get_submodule(path)).get(key)
    return {id(model.get_parameter(name))} if parts is None else {id(p) for p in parts.parameters()}


def _assign_(model: nn.Module, name: str, value: Tensor) -> None:
    path, _, key = name.rpartition(".")
    module = model.get_submodule(path)
    if key in _parametrizations(module):
        try:
            setattr(module, key, value.to(getattr(module, key)))
        except (ValueError, RuntimeError) as error:  # such as orthogonal matrices, which know their size
            raise ValueError(
                f"the parametrization of {name!r} does not take its new size {tuple(value.shape)}: {error} "
                "Give a function that builds the model in its new size (packed: width_factor -> nn.Module)."
            ) from error
    else:
        model.get_parameter(name).copy_(value)


@contextmanager
def follow_generator(generator: torch.Generator | None) -> Iterator[None]:
    """Let what draws from torch's global generator follow this one for a while."""
    if generator is None:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
        yield
