"""What a model does with its layers, found by running it: a few rows, hooks, and gradients that stop at layers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from .layers import Layout, PerMember, channel_dim
from .surgery import READERS, duplicate, quiet, run_with, weighted
from .trees import Batch, as_batch, map_rows, map_tensors, rows_of, tensors_of, tile


def layouts(method: str, module: nn.Module, own: Mapping[str, Tensor], batch: Batch) -> None:
    """Tell every `PerMember` layer of `module` where its input has the batch."""
    layers = {name: layer for name, layer in module.named_modules() if isinstance(layer, PerMember)}
    found = find_layouts(module, layers, own, batch)
    for name, layer in layers.items():
        layer.layout = found.get(name, Layout())  # never called: it does not matter
        if layer.layout is None:
            raise ValueError(
                f"{method}: the rows of the batch cannot be found in the input of layer {name!r}, so they cannot "
                "belong to different members there. Leave it out with where=, or give example= to the method."
            )


def find_layouts(
    module: nn.Module, names: Collection[str], own: Mapping[str, Tensor], batch: Batch
) -> dict[str, Layout | None]:
    """Where the named layers that are called have the batch in their input; None: nowhere (a table of positions).

    Two rows are run in both orders, and twice over: where the layer's input is exchanged with them, and grows with
    them, there is the batch.
    """
    pair = _two_rows(batch)
    runs = (pair, _exchanged(pair), tile(pair, 2, 2))
    first, second, four = (_inputs(module, names, own, rows) for rows in runs)
    return {
        name: _layout(first[name], second[name], four[name], channel_dim(module.get_submodule(name))) for name in first
    }


def _two_rows(batch: Batch) -> Batch:
    def two(t: Tensor) -> Tensor:
        if t.is_floating_point() or t.is_complex():
            return torch.randn_like(t[:1].expand(2, *t.shape[1:]))
        if t.dtype == torch.bool:
            return torch.cat([t[:1], t[-1:]])
        other = t[:1].roll(1, -1) if t.ndim > 1 else t[-1:]
        return torch.cat([t[:1], other if not torch.equal(other, t[:1]) else (t[:1] == 0).to(t.dtype)])

    with torch.random.fork_rng(devices=[]):
        return map_rows(batch, rows_of(batch), two)


def _exchanged(pair: Batch) -> Batch:
    return map_rows(pair, 2, lambda t: t.flip(0))


def _inputs(module: nn.Module, layers: Collection[str], own: Mapping[str, Tensor], batch: Batch) -> dict[str, Tensor]:
    seen: dict[str, Tensor] = {}
    hooks = [
        module.get_submodule(name).register_forward_pre_hook(
            lambda _, args, kwargs, name=name: (seen.setdefault(name, _first(args, kwargs)), None)[1], with_kwargs=True
        )
        for name in layers
    ]
    with torch.random.fork_rng(devices=[]), quiet(module, *hooks):
        run_with(module, own, *batch)
    return seen


def _first(args: Any, kwargs: Any) -> Tensor:
    return tensors_of((args, kwargs))[0]


def _layout(a: Tensor, b: Tensor, four: Tensor, channel: int) -> Layout | None:
    if a.device.type == "meta":
        return Layout()
    grown = [d for d in range(a.ndim) if d != channel % a.ndim and four.shape[d] == 2 * a.shape[d]]
    folds = [Layout(dim, inner) for dim in grown for inner in (False, True)]
    errors = [
        (b - _flipped(a, dim, (-1, 2) if inner else (2, -1), inner)).nan_to_num().abs().max() for dim, inner in folds
    ]
    apart = (a - b).nan_to_num().abs().max()  # how much the two rows differ: nothing, where they look the same
    if errors and min(errors) <= 0.1 * apart + 1e-5 * a.nan_to_num().abs().max():
        return folds[errors.index(min(errors))]
    return None


def _flipped(a: Tensor, dim: int, shape: tuple[int, int], inner: bool) -> Tensor:
    return a.unflatten(dim, shape).flip(dim + inner).flatten(dim, dim + 1)


# -------------------------------------------------------------------- first and last layers


@torch.inference_mode(False)
def entrances(model: nn.Module, example: Any) -> tuple[list[str], bool]:
    """The layers that read the model's input before any other layer has, and whether all of it goes through them."""
    model = duplicate(model).eval().requires_grad_(False)
    batch = _normal(as_batch(example))
    leaves = tensors_of(batch)
    found, ends = _reached(model, map_rows(batch, rows_of(batch), _tracked), lambda t: t.detach(), leaves)
    later, _ = _reached(model, batch, _tracked, [])
    return found, not ends and not set(found) & set(later)


def _reached(
    model: nn.Module, batch: Batch, cut: Callable[[Tensor], Tensor], leaves: list[Tensor]
) -> tuple[list[str], bool]:
    """The layers whose input, and whether the output, depends on what is tracked; `cut` is done to layers' outputs."""
    found: list[str] = []

    def read(name: str, inputs: Any, output: Any) -> Any:
        x = next(iter(tensors_of(inputs)), None)
        if x is not None and (x.requires_grad or any(_is_same(x, leaf) for leaf in leaves)):
            found.append(name)
        return map_tensors(output, cut)

    hooks = [
        layer.register_forward_hook(lambda _, i, k, o, name=name: read(name, (i, k), o), with_kwargs=True)
        for name, layer in model.named_modules()
        if isinstance(layer, READERS)
    ]
    with torch.enable_grad(), torch.random.fork_rng(devices=[]):
        output = model(*batch[0], **batch[1])
    for hook in hooks:
        hook.remove()
    return list(dict.fromkeys(found)), any(tensor.requires_grad for tensor in tensors_of(output))


def _tracked(t: Tensor) -> Tensor:
    """The tensor with a gradient from here on; no leaf, as it may be changed in place."""
    return t.detach().clone().requires_grad_().clone() if t.is_floating_point() else t


def _is_same(x: Tensor, leaf: Tensor) -> bool:
    if x.is_floating_point() or x.dtype != leaf.dtype:
        return False
    if x is leaf or (x._base is not None and x._base is (leaf if leaf._base is None else leaf._base)):
        return True  # the input or a view of it
    if x.is_meta or x.shape != leaf.shape:
        return False
    return torch.equal(x, leaf)


@torch.inference_mode(False)
def exits(model: nn.Module, example: Any) -> list[str]:
    """The convolutions and linear layers whose output reaches the model's output without passing another layer."""
    model = duplicate(model).eval().requires_grad_(False)
    args, kwargs = _normal(as_batch(example))
    starts: list[tuple[str, Tensor]] = []

    def cut(name: str, output: Any) -> Any:
        if not isinstance(output, Tensor) or not output.is_floating_point():
            return None
        starts.append((name, output.detach().requires_grad_()))
        return starts[-1][1].clone()  # a copy: it may be changed in place

    hooks = [
        layer.register_forward_hook(lambda _, i, o, name=name: cut(name, o)) for name, layer in weighted(model).items()
    ]
    with torch.enable_grad(), torch.random.fork_rng(devices=[]):
        outputs = [t.sum() for t in tensors_of(model(*args, **kwargs)) if t.requires_grad]
    for hook in hooks:
        hook.remove()
    if not outputs:
        return []
    grads = torch.autograd.grad(outputs, [t for _, t in starts], allow_unused=True)
    return list(dict.fromkeys(name for (name, _), grad in zip(starts, grads, strict=True) if grad is not None))


@torch.inference_mode(False)
def bypassed(model: nn.Module, names: Collection[str], batch: Batch) -> list[str]:
    """Of the named layers those whose weights are used without the layer being called."""
    model, batch = duplicate(model).eval(), _normal(batch)
    for parameter in model.parameters():
        parameter.requires_grad_(parameter.is_floating_point())
    called: set[str] = set()
    hooks = [
        model.get_submodule(name).register_forward_pre_hook(lambda *_, name=name: called.add(name)) for name in names
    ]
    missing: list[str] = []
    with torch.enable_grad(), torch.random.fork_rng(devices=[]):
        output = model(*batch[0], **batch[1])
        missing = [name for name in names if name not in called]
        outputs = [t.sum() for t in tensors_of(output) if t.requires_grad]
        if missing and outputs:
            weights = [cast(Tensor, model.get_submodule(name).weight) for name in missing]
            grads = torch.autograd.grad(outputs, weights, allow_unused=True)
            missing = [name for name, grad in zip(missing, grads, strict=True) if grad is not None]
    for hook in hooks:
        hook.remove()
    return missing if outputs else []


def _normal(batch: Batch) -> Batch:
    """The batch as tensors that gradients can be taken through, also in inference mode."""
    return map_tensors(batch, lambda t: t.clone())
