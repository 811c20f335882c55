"""What a model reads of its layers' parameters itself, beside calling the layers: found by running it once."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.utils.parametrize import ParametrizationList
from torch.overrides import TorchFunctionMode

from .._common.trees import Batch, map_tensors, tensors_of
from .copying import duplicate
from .selecting import dotted_name

AS_NUMBERS = {  # values that leave torch, or go into another tensor
    *("item", "tolist", "numpy", "equal", "allclose", "is_nonzero", "__setitem__"),
    *("__float__", "__int__", "__bool__", "__index__", "__array__", "__contains__"),
}

LIKE = {"to", "type_as", "expand_as", "view_as", "reshape_as"}  # of a second tensor they read no values


def find_direct_reads(
    model: nn.Module, names: Collection[str], batch: Batch, *, asked: Collection[str] = ()
) -> list[str]:
    """The parameters of the named layers whose values are read outside of a call of a module that holds them.

    Args:
        asked: attributes that must not even be asked for there (`if layer.bias is None`)

    >>> class Reader(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.enter, self.leave = nn.Linear(2, 3), nn.Linear(3, 1)
    ...     def forward(self, x):
    ...         return self.leave(self.enter(x) + self.enter.bias)
    >>> find_direct_reads(Reader(), ["enter", "leave"], ((torch.ones(1, 2),), {}))
    ['enter.bias']
    """
    return _watch(model, names, batch, asked)[0]


def find_reads_by_order(member: nn.Module, reads: Collection[str], batch: Batch) -> list[str]:
    """The parameters that a member's model reads outside of their layers, but for `reads`, those of the plain model.

    It must have found them by their place among all (`list(layer.parameters())[-1]`), where a member has other ones.
    """
    found: list[str] = []
    with suppress(Exception):  # the plain model ran: what fails is what the member read
        _watch(member, layers_with_parameters(member), batch, found=found)
    return [name for name in dict.fromkeys(found) if name not in reads]


def find_bypassed(model: nn.Module, names: Collection[str], batch: Batch) -> list[str]:
    """Of the named layers those whose parameters are read without the layer ever being called."""
    reads, called = _watch(model, names, batch)
    return [name for name in layers_with(names, reads) if name not in called]


def layers_with_parameters(model: nn.Module) -> list[str]:
    """The modules that have parameters of their own."""
    return [name for name, part in model.named_modules() if any(True for _ in part.parameters(recurse=False))]


def layers_with(names: Collection[str], tensors: Collection[str]) -> list[str]:
    """Of the named layers those that have one of the named tensors."""
    return [name for name in names if any(not name or tensor.startswith(f"{name}.") for tensor in tensors)]


def _watch(
    model: nn.Module,
    names: Collection[str],
    batch: Batch,
    asked: Collection[str] = (),
    found: list[str] | None = None,
) -> tuple[list[str], set[str]]:
    """The parameters that one pass in eval mode reads outside of their modules, and the modules that it calls.

    Args:
        found: is given the parameters on the way, should the pass fail
    """
    model, running = duplicate(model).eval(), _Running()
    watched: dict[int, str] = {}
    for name in names:
        for key, parameter in model.get_submodule(name).named_parameters():
            watched.setdefault(id(parameter), dotted_name(name, key))
    reads = _Reads(watched, _holders(model, names, watched), running, [] if found is None else found)
    for name in names if asked else ():
        _note_questions_(model.get_submodule(name), name, asked, running, reads.found)
    with torch.random.fork_rng(devices=[]), torch.no_grad(), running.following(model), reads:
        args, kwargs = map_tensors(batch, lambda t: t.clone())  # a model may change its input in place
        model(*args, **kwargs)
    return list(dict.fromkeys(reads.found)), running.called


class _Running:
    """The modules that run now: their own code, and with the hooks around it, which may compute a weight."""

    def __init__(self) -> None:
        self.own_code: list[str] = []
        self.with_hooks: list[str] = []
        self.called: set[str] = set()

    def around(self, tensor: str) -> list[str]:
        """The modules that run now and may read a parameter of theirs by this name."""
        return self.own_code if tensor.rpartition(".")[2] in ("weight", "bias") else self.with_hooks

    @contextmanager
    def following(self, model: nn.Module) -> Iterator[None]:
        """Keep the lists while the model runs."""
        hooks: list[Any] = []
        for name, module in model.named_modules():
            for stack, first in ((self.with_hooks, True), (self.own_code, False)):
                hooks.append(module.register_forward_pre_hook(partial(self._enter, stack, name), prepend=first))
                hooks.append(module.register_forward_hook(partial(self._leave, stack), prepend=not first))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _enter(self, stack: list[str], name: str, *_: Any) -> None:
        stack.append(name)
        self.called.add(name)

    def _leave(self, stack: list[str], *_: Any) -> None:
        stack.pop()


def _holders(model: nn.Module, names: Collection[str], watched: Mapping[int, str]) -> dict[int, set[str]]:
    """For each parameter the modules that may read it: the layers around it, and those that it is tied to.

    A parametrization computes a layer's weight for whoever asks for it, so that it holds nothing itself.
    """
    found: dict[int, set[str]] = {key: set() for key in watched}
    for name, module in model.named_modules():
        if not isinstance(module, ParametrizationList):
            for parameter in module.parameters(recurse=name in names):
                found.get(id(parameter), set()).add(name)
    return found


def _note_questions_(layer: nn.Module, name: str, asked: Collection[str], running: _Running, found: list[str]) -> None:
    """Let a layer note which of these attributes are asked for while it does not run."""
    kind = type(layer)

    def answer(self: nn.Module, key: str) -> Any:
        if key in asked and name not in running.own_code:
            found.append(dotted_name(name, key))
        return kind.__getattr__(self, key)

    layer.__class__ = type(kind.__name__, (kind,), {"__getattr__": answer})


class _Reads(TorchFunctionMode):
    """Notes which of the watched parameters a function gets while none of their holders is running."""

    def __init__(
        self, watched: Mapping[int, str], holders: Mapping[int, set[str]], running: _Running, found: list[str]
    ):
        super().__init__()
        self.watched, self.holders, self.running, self.found = watched, holders, running, found

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The function's result."""
        try:
            result = func(*args, **(kwargs or {}))
        except Exception:
            self._note((args, kwargs))
            raise
        name = getattr(func, "__name__", "")
        if name in AS_NUMBERS or (tensors_of(result) and not name.endswith("_like") and not name.startswith("new_")):
            self._note(args[:1] if name in LIKE else (args, kwargs))
        return result

    def _note(self, given: Any) -> None:
        for tensor in tensors_of(given):
            read = self.watched.get(id(tensor))
            if read is not None and not self.holders[id(tensor)] & set(self.running.around(read)):
                self.found.append(read)
