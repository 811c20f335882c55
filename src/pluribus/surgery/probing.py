"""What a model does with its layers, found by running it: a few rows, hooks, and gradients that stop at layers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial, wraps
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from .._common.torch_private import transform_level, view_base
from .._common.trees import Batch, as_batch, map_rows, map_tensors, rows_of, tensors_of, tile
from .copying import duplicate, run_with
from .dropout import no_dropout
from .selecting import READERS, channel_dim, weighted_layers

T = TypeVar("T")


class BatchLayout(NamedTuple):
    """Where a layer's input has the batch: in dimension `dim`, where it may be folded with others.

    Args:
        inner: it is innermost there; otherwise outermost
        outside: there are so many others outside of it, and more inside
    """

    dim: int = 0
    inner: bool = False
    outside: int = 0

    def unfold(self, copies: int) -> tuple[int, int]:
        """How many of the copies of each row stand outside of the batch, and how many inside."""
        outside = self.outside or (copies if self.inner else 1)
        return outside, copies // outside


Layouts = tuple[BatchLayout, ...]  # of a layer's calls in one pass, in their order; one, where all are alike

DRAWS = 3  # batches looked at: rows that are picked by their values (sparse experts) are others each time


def find_layouts(
    module: nn.Module, names: Collection[str], own: Mapping[str, Tensor], batch: Batch, *, outputs: bool = False
) -> dict[str, Layouts | None]:
    """Where each call of the named layers that are called has the batch in its input; None: it cannot be said.

    With `outputs`, where it has the batch in its output.

    Two rows are run in both orders, and twice over: where the layer's input is exchanged with them, and grows with
    them, there is the batch. It stands nowhere in a table of positions, and not always at the same place in rows
    that are picked by their values. The module is looked at in its mode, with dropout that drops nothing; chance of
    other kinds hides the rows, so that what is not found is looked for in eval mode too.
    """
    module = duplicate(module)
    found = _layouts_in_mode(module, names, own, batch, outputs)
    if module.training and None in found.values():
        calm = _layouts_in_mode(module.eval(), names, own, batch, outputs)
        found = {name: calm.get(name) if layouts is None else layouts for name, layouts in found.items()}
    return found


def _layouts_in_mode(
    module: nn.Module, names: Collection[str], own: Mapping[str, Tensor], batch: Batch, outputs: bool
) -> dict[str, Layouts | None]:
    channels = {name: None if outputs else channel_dim(module.get_submodule(name)) for name in names}
    record = record_outputs if outputs else _record_inputs
    seen: dict[str, list[list[set[BatchLayout]]]] = {}
    with torch.random.fork_rng(devices=[]), no_dropout(), torch.no_grad():
        for draw in range(DRAWS):
            pair = _two_rows(batch, draw)
            try:
                runs = [record(module, names, own, b) for b in (pair, _swap_rows(pair), tile(pair, 2, 2))]
            except (RuntimeError, IndexError) as error:
                run_with(module, own, *batch)  # torch's own words for an input that does not fit
                raise ValueError(
                    "the members are rows of one batch, so the model must run on any number of rows, but it does not "
                    f"run on two rows of a batch of {rows_of(batch)} ({str(error).splitlines()[0]}): an input belongs "
                    "to the whole batch, as a graph's edges or offsets do. pb.deep runs the model on whole batches."
                ) from error
            for name in {name: None for run in runs for name in run}:
                seen.setdefault(name, []).append(_possible_layouts([run.get(name, []) for run in runs], channels[name]))
    return {name: _agree(draws) for name, draws in seen.items()}


def _possible_layouts(runs: list[list[Tensor]], channel: int | None) -> list[set[BatchLayout]]:
    """The layouts that each call may have; none, where the three runs do not make as many calls."""
    if len({len(calls) for calls in runs}) > 1:
        return [set()]
    return [_fitting_layouts(a, b, four, channel) for a, b, four in zip(*runs, strict=True)]


def _agree(draws: list[list[set[BatchLayout]]]) -> Layouts | None:
    """The layouts that fit all draws: one for all calls, or else one for each call."""
    if common := set.intersection(*(layouts for calls in draws for layouts in calls)):
        return (min(common),)
    if len({len(calls) for calls in draws}) > 1:
        return None
    each = [set.intersection(*calls) for calls in zip(*draws, strict=True)]
    return tuple(map(min, each)) if all(each) else None


def _two_rows(batch: Batch, draw: int = 0) -> Batch:
    def two(t: Tensor) -> Tensor:
        one = t[draw % len(t)][None]
        if t.is_floating_point() or t.is_complex():
            return torch.randn_like(one.expand(2, *t.shape[1:]))
        if t.dtype == torch.bool:
            return torch.cat([one, t[-1 - draw % len(t)][None]])
        other = one.roll(1 + draw, -1) if t.ndim > 1 else t[-1 - draw % len(t)][None]
        return torch.cat([one, other if not torch.equal(other, one) else (one == 0).to(t.dtype)])

    return map_rows(batch, rows_of(batch), two)


def _swap_rows(pair: Batch) -> Batch:
    return map_rows(pair, 2, lambda t: t.flip(0))


def _record_inputs(
    module: nn.Module, layers: Collection[str], own: Mapping[str, Tensor], batch: Batch
) -> dict[str, list[Tensor]]:
    """The inputs of the layers, call by call."""
    hook = lambda record: lambda _, args, kwargs: record((args, kwargs))  # noqa: E731
    return _record(module, layers, own, batch, "register_forward_pre_hook", hook)


def record_outputs(
    module: nn.Module, layers: Collection[str], own: Mapping[str, Tensor], batch: Batch
) -> dict[str, list[Tensor]]:
    """The outputs of the layers, call by call; of several tensors the first."""
    hook = lambda record: lambda _, args, kwargs, output: record(output)  # noqa: E731
    return _record(module, layers, own, batch, "register_forward_hook", hook)


def _record(
    module: nn.Module, layers: Collection[str], own: Mapping[str, Tensor], batch: Batch, register: str, hook: Any
) -> dict[str, list[Tensor]]:
    seen: dict[str, list[Tensor]] = {}

    level = transform_level()

    def record(name: str, tree: Any) -> None:
        if transform_level() != level:
            raise ValueError(
                f"the model calls its layer {name!r} inside a torch.func transformation, where the rows of the batch "
                "cannot be found, so they cannot be assigned to members. Leave that layer out with where=, or "
                "choose pb.deep, which runs the model as it is."
            )
        if found := tensors_of(tree):
            seen.setdefault(name, []).append(found[0].clone())  # it may be changed in place

    hooks = [
        getattr(module.get_submodule(name), register)(hook(partial(record, name)), with_kwargs=True) for name in layers
    ]
    try:
        run_with(module, own, *batch)
    finally:
        for handle in hooks:
            handle.remove()
    return seen


def _fitting_layouts(a: Tensor, b: Tensor, four: Tensor, channel: int | None) -> set[BatchLayout]:
    """The places of the batch that explain what became of an input when its rows were exchanged, and doubled."""
    if a.device.type == "meta":
        return {BatchLayout()}
    if a.shape != b.shape or a.ndim != four.ndim:
        return set()
    doubled = [d for d in range(a.ndim) if four.shape[d] == 2 * a.shape[d] and a.shape[d] % 2 == 0]
    channel = None if channel is None else channel % a.ndim
    folds = [fold for dim in doubled if dim != channel for fold in _folds(dim, a.shape[dim] // 2)]
    errors = [(b - _flip(a, fold)).nan_to_num().abs().max() for fold in folds]
    apart = (a - b).nan_to_num().abs().max()  # how much the two rows differ: nothing, where they look the same
    rounding = 1e-5 * a.nan_to_num().abs().max()
    enough = 0.1 * apart + rounding
    return {fold for fold, error in zip(folds, errors, strict=True) if error <= min(enough, 2 * min(errors) + rounding)}


def _folds(dim: int, copies: int) -> list[BatchLayout]:
    """Every way in which the batch can be folded with a dimension of this size."""
    between = [BatchLayout(dim, False, n) for n in range(2, copies) if copies % n == 0]
    return [BatchLayout(dim), BatchLayout(dim, True), *between]


def _flip(a: Tensor, layout: BatchLayout) -> Tensor:
    """The input with its two rows exchanged."""
    dim = layout.dim
    outside, inside = layout.unfold(a.shape[dim] // 2)
    return a.unflatten(dim, (outside, 2, inside)).flip(dim + 1).flatten(dim, dim + 2)


# -------------------------------------------------------------------- first and last layers


def _in_words(find: Callable[[nn.Module, Any], T]) -> Callable[[nn.Module, Any], T]:
    """The function, whose error says what cannot be done where the model itself runs."""

    @wraps(find)
    def run(model: nn.Module, example: Any) -> T:
        try:
            return find(model, example)
        except RuntimeError as error:
            args, kwargs = _outside_inference(as_batch(example))
            try:
                duplicate(model).eval()(*args, **kwargs)
            except Exception:
                raise error from None  # the model's own
            raise ValueError(
                "the model cannot be traced from input to output, because it takes gradients or transforms "
                f"functions itself ({str(error).strip().splitlines()[0]}). Name the layers with where=, "
                "or with first= and last=, or choose pb.deep, which runs the model as it is."
            ) from error

    return run


@_in_words
@torch.inference_mode(False)
def find_entrances(model: nn.Module, example: Any) -> tuple[list[str], bool]:
    """The layers that read the model's input before any other layer has, and whether all of it goes through them."""
    model = duplicate(model).eval().requires_grad_(False)
    batch = _outside_inference(as_batch(example))
    leaves = tensors_of(batch)
    found, ends = _trace_readers(model, map_rows(batch, rows_of(batch), _track), lambda t: t.detach(), leaves)
    later, _ = _trace_readers(model, batch, _track, [])
    return found, not ends and not set(found) & set(later)


def _trace_readers(
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


def _track(t: Tensor) -> Tensor:
    """The tensor with a gradient from here on; no leaf, as it may be changed in place."""
    return t.detach().clone().requires_grad_().clone() if t.is_floating_point() else t


def _is_same(x: Tensor, leaf: Tensor) -> bool:
    if x.is_floating_point() or x.dtype != leaf.dtype:
        return False
    if x is leaf or (view_base(x) is not x and view_base(x) is view_base(leaf)):
        return True  # the input or a view of it
    if x.is_meta or x.shape != leaf.shape:
        return False
    return torch.equal(x, leaf)


@_in_words
@torch.inference_mode(False)
def find_exits(model: nn.Module, example: Any) -> list[str]:
    """The convolutions and linear layers whose output reaches the model's output without passing another layer."""
    model = duplicate(model).eval().requires_grad_(False)
    args, kwargs = _outside_inference(as_batch(example))
    starts: list[tuple[str, Tensor]] = []

    def cut(name: str, output: Any) -> Any:
        if not isinstance(output, Tensor) or not output.is_floating_point():
            return None
        starts.append((name, output.detach().requires_grad_()))
        return starts[-1][1].clone()  # a copy: it may be changed in place

    hooks = [
        layer.register_forward_hook(lambda _, i, o, name=name: cut(name, o))
        for name, layer in weighted_layers(model).items()
    ]
    with torch.enable_grad(), torch.random.fork_rng(devices=[]):
        outputs = [t.sum() for t in tensors_of(model(*args, **kwargs)) if t.requires_grad]
    for hook in hooks:
        hook.remove()
    if not outputs:
        return []
    grads = torch.autograd.grad(outputs, [t for _, t in starts], allow_unused=True)
    return list(dict.fromkeys(name for (name, _), grad in zip(starts, grads, strict=True) if grad is not None))


def _outside_inference(batch: Batch) -> Batch:
    """The batch as tensors that gradients can be taken through, also in inference mode."""
    return map_tensors(batch, lambda t: t.clone())
