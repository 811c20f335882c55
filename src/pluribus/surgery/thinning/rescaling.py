"""Any model with its hidden widths multiplied by a factor.

`solve_widths` runs the model once with unknown sizes (`symbolic_run`), takes PyTorch's own shape checks as equations
and finds new widths that satisfy them (`solver`); `rebuild` in `widths` makes the copy, with fresh parameters.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from typing import Any

from torch import nn

from ..selecting import dotted_name
from .attributes import Attribute, holders, named_tensors
from .dependent_values import follow_floats, note_ranked, note_tables
from .plain_rule import scale_layer_by_layer
from .shape_runs import RunError, Shapes, dry_run
from .solver import Factor, SizeTrace, UnsolvableError, WidthSolver, find_roots
from .widths import ThinError, Widths, rebuild

BUILDER = "Give a function width_factor -> nn.Module instead of the model"

# Attributes that keep their numbers although a tensor of the module has a size like them.
UNSCALED = re.compile("position|vocab|length|layer|block|depth|heads|head$|patch|image|window|token|class|label|seed")


def thin(model: nn.Module, factor: Factor, example: Any) -> nn.Module:
    """A copy of the model with every hidden width multiplied by the factor, and fresh parameters.

    Example:
        >>> model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 3))
        >>> thin(model, 0.5, torch.zeros(2, 8))
        Sequential(
          (0): Linear(in_features=8, out_features=32, bias=True)
          (1): ReLU()
          (2): Linear(in_features=32, out_features=3, bias=True)
        )
    """
    return rebuild(model, solve_widths(model, example, factor))


def solve_widths(
    model: nn.Module,
    example: Any,
    factor: Factor,
    *,
    layers: Collection[str] | None = None,
    multiples: Mapping[str, int] | None = None,
) -> Widths:
    """The sizes of the model with its hidden widths changed; its inputs and outputs keep theirs.

    The result is checked to run, in train and in eval mode, with outputs of the same shapes.

    Args:
        example: what one call takes: a tensor, a tuple of arguments or a dictionary of them; the meta device will do.
        factor: a width becomes width * factor, rounded up; or a function from the old width to the new one, called
            once for each width that can be chosen freely.
        layers: names of modules; then only the widths that they take as input change, and what depends on those.
        multiples: names of modules whose widths must be multiples of a number; they are rounded up.
    """
    _check_arguments(model, factor, layers, multiples or {})
    try:
        return _solve_equations(model, example, factor, layers, multiples)
    except ThinError as error:
        plain = layers is None and not multiples
        if plain and (widths := scale_layer_by_layer(model, example, factor)) is not None:
            return widths
        raise ThinError(f"thin: {error}. {BUILDER}.") from error


def _check_arguments(
    model: nn.Module, factor: Factor, layers: Collection[str] | None, multiples: Mapping[str, int]
) -> None:
    if not callable(factor) and not (factor > 0 and math.isfinite(factor)):
        raise ThinError(f"thin: the factor must be a positive number, not {factor}. Choose 0.5 to halve all widths.")
    names = dict(model.named_modules())
    unknown = [name for name in [*(layers or ()), *multiples] if name not in names]
    if unknown:
        raise ThinError(f"thin: no module is named {unknown[0]!r}. There are {', '.join(map(repr, names))}.")


def _solve_equations(
    model: nn.Module,
    example: Any,
    factor: Factor,
    layers: Collection[str] | None,
    multiples: Mapping[str, int] | None,
) -> Widths:
    try:
        before = dry_run(model, example)
        trace = _trace_sizes(model, example, before)
        solver = WidthSolver(trace, dict(model.named_parameters()).keys(), factor, layers, multiples)
        solver.solve()
        widths = _widths(model, solver)
        after = dry_run(model, example, widths.sizes, widths.attributes)
    except (RunError, UnsolvableError) as error:
        place = f'module "{error.module}" stands in the way: ' if isinstance(error, RunError) else ""
        raise ThinError(f"{place}{error}") from error
    except (ImportError, AttributeError, TypeError) as error:  # also where private parts of PyTorch have changed
        raise ThinError(f"the model cannot be copied or run with unknown sizes: {error}") from error
    if after != before:
        raise ThinError(f"with new widths the model gives {after} instead of {before}")
    return widths


def _trace_sizes(model: nn.Module, example: Any, modes: dict[bool, Shapes]) -> SizeTrace:
    """Run with unknown sizes; modules that insist on plain integers as attributes get them."""
    from .symbolic_run import trace_sizes  # which loads torch's symbolic shapes

    plain: set[str] = set()
    plain_parts = False
    while True:
        try:
            return trace_sizes(model, example, modes, plain, plain_parts)
        except RunError as error:
            if error.module in plain and plain_parts:
                raise
            plain_parts = plain_parts or error.module in plain
            plain.add(error.module)


def _widths(model: nn.Module, solver: WidthSolver) -> Widths:
    trace = solver.trace
    sizes = {name: tuple(map(solver.value, shape)) for name, shape in trace.sizes.items()}
    attributes = []
    held, used, own = holders(model), solver.used_symbols() | {None}, _own_sizes(model, sizes)
    for ((module, part), path), term in trace.attributes.items():
        before, after = solver.terms.value(term), solver.value(term)
        unseen = solver.terms.lone(term) not in used  # forward never looks at it
        if unseen and not UNSCALED.search(str(path[0])):
            seen = own.get(module, {}).get(before, set())
            after = next(iter(seen)) if len(seen) == 1 else after
        if after != before:
            attributes.append(Attribute(module, part, path, after))
    roots = _roots(held, solver)
    known = (*attributes, *roots, *_gains(model, sizes, roots))
    floats, notes = follow_floats(model, own, known)
    notes += [*note_tables(model, sizes), *note_ranked(solver.trace.ranked)]
    return Widths(sizes, (*known, *floats), solver.rounded_widths(), tuple(notes))


def _own_sizes(model: nn.Module, sizes: Mapping[str, tuple[int, ...]]) -> dict[str, dict[int, set[int]]]:
    """For each module: the sizes of the tensors that it or a child owns, and what becomes of them."""
    found: dict[str, dict[int, set[int]]] = {}
    for name, tensor in named_tensors(model).items():
        owner = name.rpartition(".")[0]
        for path in (owner, owner.rpartition(".")[0]):
            for before, after in zip(tensor.shape, sizes[name], strict=True):
                found.setdefault(path, {}).setdefault(before, set()).add(after)
    return found


def _roots(held: Mapping[Any, Mapping[str, Any]], solver: WidthSolver) -> list[Attribute]:
    """Floats of the form size**-0.5 in modules that sum over one such size, as attention does."""
    found = []
    for (path, part), attributes in held.items():
        for key, size in find_roots(attributes).items():
            sizes = set(map(solver.value, solver.trace.roots.get(path, {}).get(size, ())))
            if len(sizes) == 1:
                found.append(Attribute(path, part, (key,), sizes.pop() ** -0.5))
    return found


def _gains(model: nn.Module, sizes: Mapping[str, tuple[int, ...]], known: Collection[Attribute]) -> list[Attribute]:
    """Floats of the form gain * fan_in**-0.5 with one gain for a class, as weight standardisation has them."""
    taken = {(a.module, a.path[0]) for a in known}
    classes: dict[tuple[type, str], list[tuple[str, float, int, int]]] = {}
    for path, module in model.named_modules():
        weight = dict(module.named_parameters(recurse=False)).get("weight")
        if weight is None or weight.ndim < 2:
            continue
        name = dotted_name(path, "weight")
        fan = weight[0].numel()
        new = math.prod(sizes[name][1:]) if name in sizes else fan
        for key, value in module.__dict__.items():
            if type(value) is float and value > 0 and (path, key) not in taken:
                classes.setdefault((type(module), key), []).append((path, value, fan, new))
    found = []
    for (_, key), items in classes.items():
        gains = [value * fan**0.5 for _, value, fan, _ in items]
        if max(gains) < min(gains) * (1 + 1e-6) and len({fan for _, _, fan, _ in items}) > 1:
            found += [Attribute(path, None, (key,), value * (fan / new) ** 0.5) for path, value, fan, new in items]
    return found
