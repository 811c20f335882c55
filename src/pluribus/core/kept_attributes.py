"""What a model keeps in its attributes while it runs: caches, by-products, counters.

The members run on one module, so what one of them leaves there would be read by the next. A cache is made anew by
each member; a number, such as a counter of calls, ends as any one network would leave it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from operator import getitem, is_
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from .._common.contents import (
    CONTAINERS,
    as_words,
    copy_contents,
    differs_from,
    held_tensors,
    holds_more,
    holds_tensor,
    leaves_of_objects,
    refill,
)
from .._common.torch_private import (
    clear_parametrization_cache,
    hook_tables,
    hooks_so_far,
    is_parametrization_cached,
    parts_of,
    parts_with_hooks,
    tables,
)
from ..surgery.selecting import dotted_name, quote_names

_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_MISSING: Any = object()
T = TypeVar("T")
_CONTAINING = (nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)


class CarriesError(ValueError):
    """The model goes on from what it kept in attributes, which the members would share."""

    @classmethod
    def of(cls, method: str, names: Collection[str]) -> CarriesError:
        """The error that names the attributes."""
        return cls(
            f"{method}: the model continues from what it stored in {quote_names(sorted(names))}, which is not a "
            "buffer that each member owns, so the members would mix their values. Keep it in a buffer "
            "(register_buffer), and let the members own it: pb.deep does."
        )

    @classmethod
    def outside(cls, method: str) -> CarriesError:
        """The error for what is kept where nobody looks."""
        return cls(
            f"{method}: the model reads a tensor that a vmap pass left where members cannot own it: in a global "
            "variable, on a class or in the closure of a function. Keep it in an attribute of the "
            "module."
        )

    @classmethod
    def halfway(cls, method: str, names: Collection[str]) -> CarriesError:
        """The error for parameters that a pass had changed before it failed."""
        return cls(
            f"{method}: the model changes its parameters {quote_names(names)} in place when it runs, and does not run "
            "under vmap: they are no longer what they were before this call. Make the ensemble anew, and set "
            'ensemble.run = "loop" before its first call.'
        )


class Kept(NamedTuple):
    """An attribute that a pass has changed: of which module, in which of its tables, with both values."""

    path: str
    table: dict[str, Any]
    key: str
    before: Any
    contents: list[tuple[Any, Any]]  # the containers in it, and a copy of what each of them held

    @property
    def name(self) -> str:
        """Its dotted name."""
        return dotted_name(self.path, self.key)

    @property
    def now(self) -> Any:
        """What it holds."""
        return self.table.get(self.key)

    @property
    def is_plain(self) -> bool:
        """Whether it is an attribute of the module itself, no parameter, buffer, part or hook."""
        return "_parameters" in self.table and self.key not in _OF_EVERY_MODULE

    @property
    def is_structural(self) -> bool:
        """Whether it is a part or a hook."""
        return self.key in _OF_EVERY_MODULE or isinstance(self.now, nn.Module) or isinstance(self.before, nn.Module)

    def describe(self) -> list[tuple[type, str]]:
        """The numbers and words in what it holds, to be compared with what another pass has left."""
        return [(type(leaf), as_words(leaf)) for leaf in leaves_of_objects(self.now)]

    def undo(self) -> None:
        """Put its earlier value back."""
        for container, held in self.contents:
            refill(container, held)
        if self.before is _MISSING:
            self.table.pop(self.key, None)
        else:
            self.table[self.key] = self.before


class Attributes:
    """The attributes of a module's parts, their hooks and their own parts as they are now.

    A model that marks itself when it registers hooks, or makes a layer, has both or neither when that is undone.
    Parts of torch's own are left out: their forward keeps nothing, unless something is hooked into it.
    """

    def __init__(self, module: nn.Module):
        self.module, self.every = module, parts_of(module)
        self.parts = keepers(self.every)
        self.functions = [function for kind in set(map(type, self.parts)) for function in _cached_methods(kind)]
        self.tables: list[tuple[nn.Module, dict[str, Any], dict[str, Any]]] = []
        self.contents: list[list[tuple[str, list[tuple[Any, Any]]]]] = []
        self.versions: list[tuple[nn.Module, str, Tensor, int]] = []
        self.hooks = {part: _copy_hooks(part) for part in parts_with_hooks(self.parts)}
        self.hooks_so_far = hooks_so_far()
        for part in self.parts:
            own = {key: value for key, value in vars(part).items() if key not in _OF_EVERY_MODULE}
            self._note(part, vars(part), own)
            for table in tables(part):
                self._note(part, table, dict(table))
        self._prepare_a_quick_look()

    def _note(self, part: nn.Module, table: dict[str, Any], own: dict[str, Any]) -> None:
        self.tables.append((part, table, own))
        self.contents.append([(key, copy_contents(value)) for key, value in own.items() if holds_more(value)])
        if "_parameters" in table:  # buffers may change in place
            tensors = ((key, value) for key, value in own.items() if isinstance(value, Tensor))
            self.versions += [(part, key, t, t._version) for key, t in tensors if not t.is_inference()]

    def _prepare_a_quick_look(self) -> None:
        """What `hold` compares, as flat lists: it runs before each call."""
        held = [(table, key, value) for _, table, own in self.tables for key, value in own.items()]
        self.holders, self.keys, self.held = ([entry[i] for entry in held] for i in range(3))
        self.sized = [table for _, table, _ in self.tables]
        self.length = sum(map(len, self.sized))
        self.dicts = [vars(part) for part in self.every]
        self.kinds = [*map(type, self.every)], [*map(len, self.dicts)]
        self.children = [tables(part).children for part in set(self.every) - set(self.parts) if tables(part).children]
        self.children_held = [dict(children) for children in self.children]
        hooks = ((hook_tables(part)[key], held) for part in self.hooks for key, held in self.hooks[part].items())
        self.containers = [*(pair for contents in self.contents for _, pairs in contents for pair in pairs), *hooks]
        self.buffered = [part for part in self.every if tables(part).buffers]
        attends = any(isinstance(part, nn.MultiheadAttention) for part in self.every)
        self.attending = self.every if attends else []

    def __enter__(self) -> Attributes:
        """Begin passes without what functions have cached."""
        if self.functions or is_parametrization_cached():
            self.clear_function_caches()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        """End them likewise, with the attributes of before if one has failed."""
        if kind is not None:
            self.restore()
        if self.functions or is_parametrization_cached():
            self.clear_function_caches()

    def hold(self) -> bool:
        """Whether they are surely the same now, and so are the module's parts, found in microseconds."""
        return (
            self.are_unchanged()
            and ([*map(type, self.every)], [*map(len, self.dicts)]) == self.kinds
            and self.children == self.children_held
        )

    def are_unchanged(self) -> bool:
        """Whether they are surely the same after a pass; `changes` takes a closer look."""
        if sum(map(len, self.sized)) != self.length or hooks_so_far() != self.hooks_so_far:
            return False
        try:
            if not all(map(is_, map(getitem, self.holders, self.keys), self.held)):
                return False
        except KeyError:  # one has gone, another has come
            return False
        if self.containers and any(differs_from(now, before) for now, before in self.containers):
            return False
        return not self.versions or not self.names_changed_in_place()

    def update_buffers(self) -> bool:
        """Whether a part that has buffers of its own is in training mode: batch normalisation then updates them."""
        return bool(self.buffered) and any(part.training for part in self.buffered)

    def named_buffers(self) -> list[tuple[str, Tensor]]:
        """The buffers of the parts, by the names that the module gives them."""
        if not self.buffered:
            return []
        held = {id(buffer) for part in self.parts for buffer in tables(part).buffers.values()}
        return [(name, buffer) for name, buffer in self.module.named_buffers() if id(buffer) in held] if held else []

    def clear_function_caches(self) -> None:
        """Empty what `functools.cache` has stored of the modules' methods, and what parametrizations have."""
        for function in self.functions:
            function.cache_clear()
        clear_parametrization_cache()

    @property
    def has_function_caches(self) -> bool:
        """Whether there is anything to clear."""
        return bool(self.functions) or is_parametrization_cached()

    def changes(self) -> list[Kept]:
        """What is not as it was."""
        found = []
        for (part, table, own), contents in zip(self.tables, self.contents, strict=True):
            changed = {key for key, value in own.items() if table.get(key, _MISSING) is not value}
            if changed or len(table) != len(own) + (len(_OF_EVERY_MODULE) if "_parameters" in table else 0):
                changed |= {key for key in table if key not in own and key not in _OF_EVERY_MODULE}
            held = dict(contents)
            changed |= {key for key, copies in contents if any(differs_from(c, before) for c, before in copies)}
            if changed:
                path = self._path(part)
                whole = [] if "_parameters" in table else [(table, own)]  # the order of parts and tensors counts
                found += [Kept(path, table, k, own.get(k, _MISSING), [*whole, *held.get(k, [])]) for k in changed]
        return found + self._changed_hooks()

    def restore(self) -> None:
        """Put everything back."""
        for change in self.changes():
            change.undo()

    def _changed_hooks(self) -> list[Kept]:
        new = hooks_so_far() != self.hooks_so_far
        found = []
        for part in parts_of(self.module) if new else self.hooks:
            held = self.hooks.get(part, {})
            now = hook_tables(part)
            for key, table in now.items():
                if differs_from(table, before := held.get(key, {})):
                    found.append(Kept(self._path(part), now, key, table, [(table, before)]))
        return found

    def names_changed_in_place(self) -> list[str]:
        """The names of tensors, no buffers, that hold other values."""
        changed = ((part, key) for part, key, tensor, version in self.versions if tensor._version != version)
        return [dotted_name(self._path(part), key) for part, key in changed]

    def _path(self, part: nn.Module) -> str:
        paths = (path for path, other in self.module.named_modules() if other is part)
        return next(paths, type(part).__name__)  # the pass may have taken it out


def look_at(module: nn.Module) -> Attributes:
    """The attributes of a module's parts as they are now."""
    return Attributes(module)


def keepers(parts: Sequence[nn.Module]) -> list[nn.Module]:
    """The parts of a module that may keep something when they run, and containers in which others may."""
    hooked = parts_with_hooks(parts)
    known = _is_torchs_own if torch.compiler.is_dynamo_compiling() else is_torchs_own  # it sees no caches
    kinds = {kind for kind in set(map(type, parts)) if not known(kind)}
    if not hooked and not kinds:
        return []
    return [part for part in parts if type(part) in kinds or part in hooked or isinstance(part, _CONTAINING)]


def _copy_hooks(part: nn.Module) -> dict[str, dict[int, Any]]:
    return {key: dict(table) for key, table in hook_tables(part).items()}


@functools.cache
def is_torchs_own(kind: Any) -> bool:
    """Whether a class of modules, with all that it inherits, is torch's or made by us of torch's."""
    return _is_torchs_own(kind)


def _is_torchs_own(kind: Any) -> bool:
    return all(
        cls.__module__.startswith(("torch.nn.", "pluribus.core", "pluribus.surgery"))
        for cls in kind.__mro__[: kind.__mro__.index(nn.Module)]
    )


def refuse_parameters_made(module: nn.Module, changes: Sequence[Kept]) -> None:
    """Refuse a model that has put parameters into its attributes which it made when it ran; all is undone then."""
    held = [(change.name, parameter) for change in changes for parameter in _parameters_in(change.now)]
    if not held:
        return
    for change in changes:
        change.undo()
    known = {id(parameter) for parameter in module.parameters()}
    if made := sorted({name for name, parameter in held if id(parameter) not in known}):
        raise ValueError(
            f"The model creates the parameters in {quote_names(made)} when it runs, so members cannot own them. Run "
            "the model on a batch before you make an ensemble of it."
        )


def _parameters_in(value: Any) -> Iterator[nn.Parameter]:
    for leaf in leaves_of_objects(value):
        if isinstance(leaf, nn.Parameter):
            yield leaf
        elif isinstance(leaf, nn.Module):
            yield from leaf.parameters()


# -------------------------------------------------------------------- caches outside of attributes


@functools.cache
def _cached_methods(kind: Any) -> tuple[Any, ...]:
    every = (value for cls in kind.__mro__ for value in vars(cls).values())
    return tuple(value for value in every if callable(getattr(value, "cache_clear", None)))


def same_outputs(first: list[Tensor], second: list[Tensor]) -> bool:
    """Whether two runs have given the same, to float tolerance."""
    return len(first) == len(second) and all(_same(a, b) for a, b in zip(first, second, strict=True))


def _same(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not a.is_floating_point():
        return torch.equal(a, b)
    scale = float(a.detach().nan_to_num(0, 0, 0).abs().max()) if a.numel() else 0.0
    return torch.allclose(a, b, rtol=1e-3, atol=1e-4 * scale + 1e-30, equal_nan=True)


def are_close(tensors: Sequence[Tensor]) -> bool:
    """Whether the tensors are the same, to float tolerance."""
    return all(same_outputs([tensors[0]], [tensor]) for tensor in tensors)


def check_resized(method: str, name: str, tensors: Sequence[Tensor], owned: bool) -> None:
    """Refuse what members have assigned to a buffer if it cannot be stored for all of them."""
    if len({t.shape for t in tensors}) > 1 or (not owned and not are_close(tensors)):
        raise ValueError(
            f"{method}: the members assign buffer {name!r} in shapes {[tuple(t.shape) for t in tensors]}, "
            "which cannot be stacked. Give the buffer its final size when the model is built."
        )


def find_switches(parts: Sequence[nn.Module]) -> list[list[tuple[str, Any]]]:
    """What may turn recomputation on and off: the attributes of the modules that are true, false or nothing."""
    return [
        [(key, value) for key, value in vars(part).items() if _is_switch(value) and key != "training"] for part in parts
    ]


def _is_switch(value: Any) -> bool:
    return value is None or isinstance(value, bool)


# -------------------------------------------------------------------- what the given model had cached


Run = Callable[[int], list[Tensor]]


def drop_stale_caches_(module: nn.Module, run: Run) -> None:
    """Take out of a module's attributes what the given model had cached of other weights.

    A cache is what a pass makes anew where it is missing, the same each time; it is stale if the output then differs.

    Args:
        run: the outputs of one member with the draws of a seed
    """
    for part in keepers(parts_of(module)):
        for key, value in list(vars(part).items()):
            if key not in _OF_EVERY_MODULE and holds_tensor(value):
                _drop_if_stale_(module, part, key, run)


def _drop_if_stale_(module: nn.Module, part: nn.Module, key: str, run: Run) -> None:
    def made_by(seed: int) -> tuple[list[Tensor], list[Tensor]] | None:
        return try_out(module, lambda: (run(seed), list(held_tensors(vars(part).get(key)))))

    given = made_by(0)
    clears = (_clear,) if isinstance(vars(part)[key], CONTAINERS) else ()
    for empty in (_set_to_none, _take_out, *clears):
        before = look_at(module)
        empty(part, key)
        made, again = made_by(0), made_by(1)
        before.restore()
        if made and again and made[1] and same_outputs(made[1], again[1]):
            if given is None or not same_outputs(given[0], made[0]):
                empty(part, key)
                return


def try_out(module: nn.Module, run: Callable[[], T]) -> T | None:
    """What a run gives, unless it fails; attributes are put back."""
    before = look_at(module)
    try:
        return run()
    except Exception:  # a model may do anything without what it expects
        return None
    finally:
        before.restore()


def _set_to_none(part: nn.Module, key: str) -> None:
    vars(part)[key] = None


def _take_out(part: nn.Module, key: str) -> None:
    vars(part).pop(key, None)


def _clear(part: nn.Module, key: str) -> None:
    vars(part)[key].clear()
