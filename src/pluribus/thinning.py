"""Any model with its hidden widths multiplied by a factor.

`solve` runs the model once with unknown sizes (`symbols.py`), takes PyTorch's own shape checks as equations and
finds new widths that satisfy them (`scaling.py`); `rebuild` writes them into a copy with fresh parameters.
"""

import functools
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .anatomy import Attribute, copied, holders, joined, tensors, write
from .dry import Run, RunError, trial, trial_on_values
from .redraw import follows, is_random, keep_form_, redraw, spread
from .scaling import Factor, Rounded, Scaling, Trace, UnsolvableError, root_of
from .trees import as_batch, tensors_of

UNSCALED = re.compile("position|vocab|length|layer|block|depth|heads|head$|patch|image|window|token|class|label|seed")
WEIGHTED = (nn.Linear, nn.modules.conv._ConvNd, nn.Embedding)
BUILDER = "Give a function width_factor -> module that builds it instead"


class ThinError(ValueError):
    """The widths of a model cannot be changed."""


@dataclass(frozen=True)
class Widths:
    """New sizes of a model, from which it can be rebuilt without an example.

    Args:
        sizes: the new shape of every parameter, buffer and plain tensor by name, tied ones once.
        attributes: the numbers in attributes of modules that change.
        rounded: the hidden widths that could not be scaled exactly.
    """

    sizes: Mapping[str, tuple[int, ...]]
    attributes: tuple[Attribute, ...] = ()
    rounded: tuple[Rounded, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The same in plain JSON types."""
        return {
            "sizes": {name: list(shape) for name, shape in self.sizes.items()},
            "attributes": [[a.module, a.part, list(a.path), a.value] for a in self.attributes],
            "rounded": [asdict(r) for r in self.rounded],
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Widths":
        """The widths that `to_json` has stored."""
        return cls(
            {name: tuple(shape) for name, shape in stored["sizes"].items()},
            tuple(Attribute(m, part, tuple(path), value) for m, part, path, value in stored["attributes"]),
            tuple(Rounded(**r) for r in stored["rounded"]),
        )


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
    return rebuild(model, solve(model, example, factor))


def solve(
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
        if layers is None and not multiples:
            widths = _layer_by_layer(model, example, factor)
            if widths is not None:
                return widths
        raise ThinError(f"thin: {error}. {BUILDER}.") from error


def rebuild(model: nn.Module, widths: Widths, generator: torch.Generator | None = None) -> nn.Module:
    """A copy of the model with the given sizes and fresh parameters, drawn as its own seem to be."""
    own = tensors(model)
    if own.keys() != widths.sizes.keys():
        differing = sorted(own.keys() ^ widths.sizes.keys())
        raise ThinError(
            f"rebuild: the widths are those of another model: they differ in {differing[:5]}. "
            "Give the model that they were solved for."
        )
    parameters = {id(p) for p in model.parameters()}
    fans = _fans(model, widths.sizes)
    replacements: dict[int, Tensor] = {}
    for name, tensor in own.items():
        shape = widths.sizes[name]
        if id(tensor) in parameters:
            fresh = _fresh(tensor, shape, generator, *fans.get(name, (0, 0)))
            replacements[id(tensor)] = nn.Parameter(fresh, tensor.requires_grad)
        else:
            replacements[id(tensor)] = redraw(tensor, shape) if tensor.is_meta else spread(tensor, shape)
    result = copied(model, replacements)
    write(result, widths.attributes)
    for module in result.modules():
        if isinstance(module, nn.modules.batchnorm._NormBase):
            module.reset_running_stats()
    keep_form_(result, model)
    return result


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
        before = trial(model, example)
        trace = _harvest(model, example, before)
        scaling = Scaling(trace, dict(model.named_parameters()).keys(), factor, layers, multiples)
        scaling.solve()
        widths = _widths(model, scaling)
        after = trial(model, example, widths.sizes, widths.attributes)
    except (RunError, UnsolvableError) as error:
        place = f'module "{error.module}" stands in the way: ' if isinstance(error, RunError) else ""
        raise ThinError(f"{place}{error}") from error
    except (ImportError, AttributeError, TypeError) as error:  # also where private parts of PyTorch have changed
        raise ThinError(f"the model cannot be copied or run with unknown sizes: {error}") from error
    if after.shapes != before.shapes:
        raise ThinError(f"with new widths the model gives {after.shapes} instead of {before.shapes}")
    return widths


def _harvest(model: nn.Module, example: Any, run: Run) -> Trace:
    """Run with unknown sizes; modules that insist on plain integers as attributes get them."""
    from . import symbols

    plain: set[str] = set()
    plain_parts = False
    while True:
        try:
            return symbols.harvest(model, example, run.shapes, plain, plain_parts)
        except RunError as error:
            if error.module in plain and plain_parts:
                raise
            plain_parts = plain_parts or error.module in plain
            plain.add(error.module)


def _widths(model: nn.Module, scaling: Scaling) -> Widths:
    trace = scaling.trace
    sizes = {name: tuple(map(scaling.value, shape)) for name, shape in trace.sizes.items()}
    attributes = []
    held, used, own = holders(model), scaling.used() | {None}, _own_sizes(model, sizes)
    for ((module, part), path), term in trace.attributes.items():
        before, after = scaling.terms.value(term), scaling.value(term)
        unseen = scaling.terms.lone(term) not in used  # forward never looks at it
        if unseen and not UNSCALED.search(str(path[0])):
            seen = own.get(module, {}).get(before, set())
            after = next(iter(seen)) if len(seen) == 1 else after
        if after != before:
            attributes.append(Attribute(module, part, path, after))
    roots = _roots(held, scaling)
    return Widths(sizes, (*attributes, *roots, *_gains(model, sizes, roots)), scaling.rounded())


def _own_sizes(model: nn.Module, sizes: Mapping[str, tuple[int, ...]]) -> dict[str, dict[int, set[int]]]:
    """For each module: the sizes of the tensors that it or a child owns, and what becomes of them."""
    found: dict[str, dict[int, set[int]]] = {}
    for name, tensor in tensors(model).items():
        owner = name.rpartition(".")[0]
        for path in (owner, owner.rpartition(".")[0]):
            for before, after in zip(tensor.shape, sizes[name], strict=True):
                found.setdefault(path, {}).setdefault(before, set()).add(after)
    return found


def _roots(held: Mapping[Any, Mapping[str, Any]], scaling: Scaling) -> list[Attribute]:
    """Floats of the form size**-0.5 in modules that sum over one such size, as attention does."""
    found = []
    for (path, part), attributes in held.items():
        for key, value in attributes.items():
            terms = scaling.trace.roots.get(path, {}).get(root_of(key, value), ())
            sizes = set(map(scaling.value, terms))
            if len(sizes) == 1:
                found.append(Attribute(path, part, (key,), sizes.pop() ** -0.5))
    return found


def _gains(model: nn.Module, sizes: Mapping[str, tuple[int, ...]], known: Collection[Attribute]) -> list[Attribute]:
    """Floats of the form gain * fan_in**-0.5 with one gain for a class, as weight standardisation has them."""
    taken = {(a.module, a.path[0]) for a in known}
    classes: dict[tuple[type, str], list[tuple[str, float, int, int]]] = {}
    for path, module in model.named_modules():
        weight = module._parameters.get("weight")
        if weight is None or weight.ndim < 2:
            continue
        name = joined(path, "weight")
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


def _fans(model: nn.Module, sizes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, int]]:
    """Old and new fan in for parameters whose own shape does not show it: biases, and recurrent weights."""
    found = {}
    own = tensors(model)
    for path, module in model.named_modules():
        weight = joined(path, "weight")
        if isinstance(module, (nn.RNNBase, nn.RNNCellBase)):
            hidden = joined(path, "weight_hh_l0" if isinstance(module, nn.RNNBase) else "weight_hh")
            for key in module._parameters:
                found[joined(path, key)] = own[hidden].shape[1], sizes[hidden][1]
        elif isinstance(module, (nn.Linear, nn.modules.conv._ConvNd)) and weight in own:
            found[joined(path, "bias")] = own[weight][0].numel(), math.prod(sizes[weight][1:])
    return found


def _fresh(tensor: Tensor, shape: tuple[int, ...], generator: torch.Generator | None, fan: int, new_fan: int) -> Tensor:
    """A parameter drawn anew; where it follows torch's default for its fan in, it follows the new fan in."""
    bound = fan**-0.5 if fan else 0.0
    if fan == new_fan or tensor.is_meta or not is_random(tensor) or tensor.abs().max() > bound * 1.001:
        return redraw(tensor, shape, generator)
    if not follows(tensor.float().std().item(), fan, tensor.numel(), (1 / 3,)):
        return redraw(tensor, shape, generator)
    result = torch.empty(shape, dtype=torch.float32, device=tensor.device)
    return result.uniform_(-(new_fan**-0.5), new_fan**-0.5, generator=generator).to(tensor.dtype)


def _layer_by_layer(model: nn.Module, example: Any, factor: Factor) -> Widths | None:
    """The plain rule, for models that cannot run with unknown sizes: scale every layer but the first and the last."""
    try:
        before = _attempt(model, example)
        widths = _rule(model, before.order, factor)
        after = _attempt(model, example, widths)
    except RunError:
        return None
    return widths if after.shapes == before.shapes else None


def _attempt(model: nn.Module, example: Any, widths: Widths | None = None) -> Run:
    """Run a model on fake tensors, or on real ones if it looks at their values."""
    try:
        return trial(model, example, *((widths.sizes, widths.attributes) if widths else ()))
    except RunError:
        given = [*tensors(model).values(), *tensors_of(as_batch(example))]
        if any(tensor.is_meta for tensor in given):
            raise
    with torch.random.fork_rng():
        return trial_on_values(rebuild(model, widths) if widths else copied(model, {}), example)


def _rule(model: nn.Module, order: list[str], factor: Factor) -> Widths:
    """New sizes of the layers that are known: first input and last output stay, all else is scaled."""
    modules = dict(model.named_modules())
    ran = [name for name in order if isinstance(modules[name], WEIGHTED)]
    kept = set(zip(ran[:1] + ran[-1:], ("input", "output"), strict=False))
    sizes = {name: tuple(tensor.shape) for name, tensor in tensors(model).items()}
    attributes: list[Attribute] = []
    rounded: list[Rounded] = []
    wish = functools.cache(lambda width: float(factor(width) if callable(factor) else width * factor))
    for name, module in modules.items():
        for role, path, places in _roles(module):
            if (name, role) in kept:
                continue
            width = _number(module, path)
            new = _in_groups(module, width, wish(width))
            attributes += [Attribute(name, None, key, new) for key in _same(module, path)]
            if role == "output" and abs(new - wish(width)) > 1e-6:
                rounded.append(Rounded(name, width, wish(width), new))
            for tensor, dim in places:
                _resize(sizes, joined(name, tensor), dim, module, new)
    return Widths(sizes, tuple(attributes), tuple(rounded))


def _roles(module: nn.Module) -> list[tuple[str, tuple[str | int, ...], tuple[tuple[str, int], ...]]]:
    """The widths of a known layer: role, attribute, and the sizes of tensors that are this width."""
    bias = ("bias", 0)
    vectors = (("weight", 0), bias, ("running_mean", 0), ("running_var", 0))
    if isinstance(module, nn.Linear):
        return [("input", ("in_features",), (("weight", 1),)), ("output", ("out_features",), (("weight", 0), bias))]
    if isinstance(module, nn.modules.conv._ConvNd):
        i, o = (0, 1) if module.transposed else (1, 0)
        return [("input", ("in_channels",), (("weight", i),)), ("output", ("out_channels",), (("weight", o), bias))]
    if isinstance(module, nn.modules.batchnorm._NormBase):
        return [("both", ("num_features",), vectors)]
    if isinstance(module, nn.GroupNorm):
        return [("both", ("num_channels",), vectors)]
    if isinstance(module, nn.LayerNorm) and len(module.normalized_shape) == 1:
        return [("both", ("normalized_shape", 0), vectors)]
    if isinstance(module, nn.Embedding):
        return [("output", ("embedding_dim",), (("weight", 1),))]
    return []


def _number(module: nn.Module, path: tuple[str | int, ...]) -> int:
    value = getattr(module, str(path[0]))
    return value[path[1]] if len(path) > 1 else value


def _in_groups(module: Any, width: int, wish: float) -> int:
    """The width that is wished for, rounded up to what the groups of the layer need."""
    groups = getattr(module, "groups", getattr(module, "num_groups", 1))
    unit = 1 if groups == width else groups  # depthwise: a group for each channel
    return max(1, math.ceil(wish / unit - 1e-9)) * unit


def _same(module: Any, path: tuple[str | int, ...]) -> list[tuple[str | int, ...]]:
    depthwise = path == ("in_channels",) and module.groups == module.in_channels > 1
    return [path, ("groups",)] if depthwise else [path]


def _resize(sizes: dict[str, tuple[int, ...]], name: str, dim: int, module: Any, new: int) -> None:
    if name not in sizes:
        return
    if isinstance(module, nn.modules.conv._ConvNd) and dim == 1 and module.groups > 1:  # the size of one group
        new = 1 if module.groups == module.in_channels else new // module.groups
    sizes[name] = (*sizes[name][:dim], new, *sizes[name][dim + 1 :])
