"""Copies of a model with some of its layers changed. No function here changes the model it is given."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from .layers import Attention
from .redraw import keep_form_, redraw
from .trees import as_batch

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


def replace(
    model: nn.Module,
    match: type[nn.Module] | tuple[type[nn.Module], ...],
    make: Callable[[nn.Module], nn.Module],
) -> nn.Module:
    """A copy of `model` with `make(layer)` in place of every layer of a type in `match`."""
    made: dict[int, nn.Module] = {}  # a layer used twice is replaced by one layer used twice

    def visit(module: nn.Module) -> nn.Module:
        if id(module) not in made:
            if isinstance(module, match):
                made[id(module)] = make(module).train(module.training)
            else:
                made[id(module)] = module
                for name, child in module._modules.items():
                    module._modules[name] = None if child is None else visit(child)
        return made[id(module)]

    return visit(duplicate(model))


def adapt_(layer: nn.Module, mixin: type) -> None:
    """Make `layer` an instance of `mixin` too: it keeps its tensors, its name and its place in the model."""
    if isinstance(layer, mixin):
        raise ValueError(
            f"a layer cannot be {mixin.__name__} twice: the model given is a member of such an ensemble already. "
            "Give the model that the ensemble was made of."
        )
    layer.__class__ = _adapted(mixin, type(layer))  # type: ignore[arg-type]


@cache
def _adapted(mixin: type, base: type) -> type:
    mixins, layer = getattr(base, "_made_of", ((), base))
    body = {
        "_made_of": ((mixin, *mixins), layer),
        "__reduce_ex__": lambda self, protocol: (_blank, type(self)._made_of, self.__getstate__()),
    }
    return type(f"{mixin.__name__}{base.__name__}", (mixin, base), body)


def _blank(mixins: tuple[type, ...], layer: type) -> nn.Module:
    """An adapted layer without state: how pickle and deepcopy start to build one."""
    for mixin in reversed(mixins):
        layer = _adapted(mixin, layer)
    made: nn.Module = object.__new__(layer)
    return made


def opened(model: nn.Module) -> nn.Module:
    """A copy of `model` in which every layer that holds weights is *called*.

    `nn.MultiheadAttention` and the fast path of `nn.TransformerEncoderLayer` read the weights of their
    children without calling them; a changed child would be ignored.
    """
    memo: dict[int, list[nn.Parameter]] = {}
    with torch.random.fork_rng(devices=[]):  # new layers draw weights, which are then replaced
        model = replace(model, nn.MultiheadAttention, lambda attention: _opened(attention, memo))
        model = replace(model, _transposed_linear_types(model), _straight)
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = module.enable_nested_tensor = False
    return model


def _opened(attention: nn.Module, memo: dict[int, list[nn.Parameter]]) -> nn.Module:
    own_forward = type(attention).forward is not nn.MultiheadAttention.forward
    return attention if own_forward else Attention.of(cast(nn.MultiheadAttention, attention), memo)


def _transposed_linear_types(model: nn.Module) -> tuple[type[nn.Module], ...]:
    """The classes of linear layers that keep their weight as (inputs, outputs): Conv1D of GPT-2."""
    return tuple(
        {type(m) for m in model.modules() if type(m).__name__ == "Conv1D" and hasattr(m, "nf") and hasattr(m, "weight")}
    )


def _straight(layer: Any) -> nn.Module:
    """The same layer as an ordinary one."""
    inputs, outputs = layer.weight.shape
    linear = nn.Linear(inputs, outputs, layer.bias is not None, layer.weight.device, layer.weight.dtype)
    linear.weight = nn.Parameter(layer.weight.detach().T.clone(), layer.weight.requires_grad)
    linear.bias = layer.bias
    return linear


def reset(
    model: nn.Module,
    generator: torch.Generator | None = None,
    names: Collection[str] | None = None,
    *,
    revive: bool = False,
) -> nn.Module:
    """A copy of `model` with freshly drawn tensors (those in `names`, by default all).

    Each tensor is drawn from the distribution that the given one seems to come from, so that an
    initialisation of the model's own is kept in law; constants stay. Normalisation layers start anew.

    Args:
        revive: draw the weights of convolutions and linear layers that are constant (zeros) by PyTorch's law
    """
    given, model = model, duplicate(model)
    ids = {id(tensor) for name, tensor in state(model) if names is None or name in names}
    with torch.no_grad(), seeded(generator):
        for module in model.modules():
            fresh = _by_its_own_law(module, revive)
            for name, parameter in module.named_parameters(recurse=False):
                if id(parameter) in ids:
                    ids.remove(id(parameter))  # a tied one is drawn once
                    parameter.copy_(fresh[name] if name in fresh else redraw(parameter))
            if isinstance(module, nn.modules.batchnorm._NormBase) and id(module.running_mean) in ids:
                module.reset_running_stats()
        keep_form_(model, given)
    return model


def _by_its_own_law(module: nn.Module, revive: bool) -> dict[str, Tensor]:
    """What `reset_parameters` draws, for tensors that do not show where they come from."""
    names = [name for name, _ in module.named_parameters(recurse=False)]
    if not _was_trained(module):
        few = isinstance(module, WEIGHTED)  # too few entries to tell a distribution; zeros are meant
        names = [n for n in names if few and (_is_small(getattr(module, n)) or (revive and _is_constant(module)))]
    if not names:
        return {}
    fresh = deepcopy(module)
    fresh.reset_parameters()  # type: ignore[operator]
    return {name: getattr(fresh, name) for name in names}


def _is_small(tensor: Tensor) -> bool:
    if tensor.is_meta or tensor.numel() >= 16:
        return False
    return bool((tensor != tensor.flatten()[0]).any()) or (tensor.numel() == 1 and bool(tensor.any()))


@contextmanager
def seeded(generator: torch.Generator | None) -> Iterator[None]:
    """Let what draws from torch's global generator follow this one for a while."""
    if generator is None:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
        yield


def _is_constant(module: nn.Module) -> bool:
    weight = cast(Tensor, module.weight)
    return not weight.is_meta and bool((weight == weight.flatten()[0]).all())


def _was_trained(module: nn.Module) -> bool:
    """Whether a normalisation layer has seen data: its scales would be no initialisation."""
    if isinstance(module, nn.modules.batchnorm._NormBase) and module.num_batches_tracked is not None:
        return module.num_batches_tracked.device.type != "meta" and bool(module.num_batches_tracked > 0)
    if not isinstance(module, (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)):
        return False
    return any(not p.is_meta and bool((p != p.flatten()[0]).any()) for p in module.parameters(recurse=False))


def duplicate(model: nn.Module) -> nn.Module:
    """A deep copy of `model`; tensors that were computed from others and kept are copied without their history."""
    derived = [tensor for module in model.modules() for tensor in held(vars(module)) if not tensor.is_leaf]
    return deepcopy(model, {id(tensor): tensor.detach().clone() for tensor in derived})


def held(value: Any) -> Iterator[Tensor]:
    """The tensors in an attribute, in lists and dicts too."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (dict, list, tuple)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from held(part)


def state(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every parameter and buffer of `module` by name, a tied one once."""
    yield from module.named_parameters()
    yield from module.named_buffers()


def aliases(module: nn.Module) -> dict[str, set[str]]:
    """All the names of each tensor of `module`, by the name that `state` gives it."""
    names: dict[int, set[str]] = {}
    every = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    for name, tensor in every:
        names.setdefault(id(tensor), set()).add(name)
    return {name: names[id(tensor)] for name, tensor in state(module)}


def run_with(
    module: nn.Module, tensors: Mapping[str, Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, dict[str, Tensor]]:
    """The module's output with these tensors in place of its own, and those that it assigned anew on the way.

    A tensor is replaced wherever it stands: tied ones, and modules that are registered under several names.
    """
    places = _places(module)
    given = {place: tensor for name, tensor in tensors.items() for place in places[name]}
    before = dict(given)
    output = functional_call(module, given, args, kwargs, tie_weights=False)
    return output, {n: given[p] for n in tensors for p in places[n] if given[p] is not before[p]}


def _places(module: nn.Module) -> dict[str, list[str]]:
    """Every place of each tensor, once per module that holds it, by the name that `state` gives it."""
    places: dict[int, list[str]] = {}
    for path, owner in module.named_modules():
        for key, tensor in (*owner._parameters.items(), *owner._buffers.items()):
            places.setdefault(id(tensor), []).append(within(path, key))
    return {name: places[id(tensor)] for name, tensor in state(module)}


def assign_(module: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Put each value where the parameter or buffer of that name is, and everywhere it is tied to."""
    new: dict[int, Tensor] = {}
    for name, old in state(module):
        if name in values:
            is_parameter = isinstance(old, nn.Parameter)
            new[id(old)] = nn.Parameter(values[name], old.requires_grad) if is_parameter else values[name]
    for owner in module.modules():
        for table in (owner._parameters, owner._buffers):
            for key, tensor in table.items():
                if id(tensor) in new:
                    table[key] = new[id(tensor)]  # type: ignore[assignment]


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
        raise ValueError(f"{method}: {pattern!r} is no regular expression ({error}).") from error
    if not found or idle:
        raise ValueError(
            f"{method}: the pattern {(idle or [pattern])[0]!r} matches none of the model's {what}. A pattern must "
            f"match a name from its start (use .* before an inner part). The names are: {listed(names)}."
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


def listed(names: Iterable[str], most: int = 40) -> str:
    """Names for an error message."""
    names = list(names)
    more = f", and {len(names) - most} more" if len(names) > most else ""
    return (", ".join(repr(name) for name in names[:most]) or "none") + more


def weighted(model: nn.Module) -> dict[str, nn.Module]:
    """The convolutions and linear layers of `model` by name, in the order of definition."""
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, WEIGHTED)}


def within(module: str, tensor: str) -> str:
    """The full name of a module's tensor; the model itself has no name."""
    return f"{module}.{tensor}" if module else tensor


def exactly(names: Iterable[str]) -> str:
    """The pattern that matches these names and no others."""
    return "|".join(f"^{re.escape(name)}$" for name in names)


def call(method: str, model: nn.Module, example: Any) -> Any:
    """The output for the example; an example that does not fit is the caller's error."""
    args, kwargs = as_batch(example)
    try:
        return model(*args, **kwargs)
    except Exception as error:
        shapes = [tuple(x.shape) for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
        raise ValueError(
            f"{method}: the model does not run on the example, whose shape is {shapes}: {error}. "
            "Give an example as one call of the model takes it: a tensor, a tuple of arguments or a dict."
        ) from error


def call_quietly(method: str, model: nn.Module, example: Any) -> None:
    """Check that the example fits, on a copy."""
    copy = duplicate(model)
    with quiet(copy), torch.random.fork_rng(devices=[]):
        call(method, copy, example)


def called(method: str, model: nn.Module, example: Any) -> list[str]:
    """Names of the layers with weights, in the order in which the model calls them first."""
    order: list[str] = []
    hooks = [
        layer.register_forward_pre_hook(lambda *_, name=name: order.append(name))
        for name, layer in model.named_modules()
        if isinstance(layer, READERS)
    ]
    with quiet(model, *hooks), torch.random.fork_rng(devices=[]):
        call(method, model, example)
    return list(dict.fromkeys(order))


@contextmanager
def quiet(model: nn.Module, *hooks: Any) -> Iterator[None]:
    """Eval mode and no gradients for a while; every module's mode is restored and the hooks are removed."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for hook in hooks:
            hook.remove()
        for module, mode in modes.items():
            module.training = mode
