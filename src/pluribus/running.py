"""What happens around a run of the members: what is shared runs once, and what must not change is kept."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .surgery import aliases, held
from .trees import tensors_of


@contextmanager
def run_once(module: nn.Module, names: Sequence[str]) -> Iterator[None]:
    """Under vmap, the named submodules run outside of it while their input is shared.

    Their results are the same for all members anyway, except for chance: dropout of a shared trunk is drawn once,
    so that normalisation layers behind it still see one batch.
    """
    with ExitStack() as stack:
        for name in names:
            part = module.get_submodule(name)
            if "forward" in vars(part):  # set on the module itself: put back
                stack.callback(vars(part).__setitem__, "forward", part.forward)
            else:
                stack.callback(vars(part).pop, "forward", None)
            vars(part)["forward"] = _outside_vmap(part.forward)
        yield


def _outside_vmap(forward: Callable[..., Any]) -> Callable[..., Any]:
    from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack

    def run(*args: Any, **kwargs: Any) -> Any:
        if any(torch._C._functorch.is_batchedtensor(tensor) for tensor in tensors_of((args, kwargs))):
            return forward(*args, **kwargs)
        with temporarily_pop_interpreter_stack():
            return forward(*args, **kwargs)

    return run


def is_transforming() -> bool:
    """Whether this runs inside a transformation of torch.func, such as vmap or grad."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def is_autocast(device: torch.device) -> bool:
    """Whether operations on the device run in a lower precision now."""
    return torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)


@contextmanager
def kept_on_error(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Put the tensors' values back if what follows fails."""
    values = [tensor.clone() for tensor in tensors]
    try:
        yield
    except BaseException:
        with torch.no_grad():
            for tensor, value in zip(tensors, values, strict=True):
                tensor.copy_(value)
        raise


def unowned(module: nn.Module, own: Collection[str]) -> list[str]:
    """Names of the largest submodules that hold no owned tensor."""
    names = {alias for name, others in aliases(module).items() if name in own for alias in others}
    owners = {name.rpartition(".")[0] for name in names}
    found: list[str] = []

    def visit(path: str, part: nn.Module) -> None:
        if _is_never_called(part) or any(owner == path or owner.startswith(f"{path}.") for owner in owners):
            for name, child in part.named_children():
                visit(f"{path}.{name}", child)
        else:
            found.append(path)

    for name, child in module.named_children():
        visit(name, child)
    return found


def _is_never_called(part: nn.Module) -> bool:
    """Whether it only holds others (nn.ModuleList): its forward is that of nn.Module."""
    return type(part).forward is nn.Module.forward


@contextmanager
def attention_under_vmap() -> Iterator[None]:
    """Keep nn.TransformerEncoderLayer off its fast path, and say nothing of fused attention run member by member."""
    if torch.compiler.is_compiling():
        yield
        return
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    torch._C._functorch._set_vmap_fallback_warning_enabled(False)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)
        torch._C._functorch._set_vmap_fallback_warning_enabled(True)  # type: ignore[attr-defined]


def leaks(module: nn.Module) -> list[tuple[str, str]]:
    """The attributes in which modules have kept tensors of a vmap that is over: nobody can use those any more."""
    if is_transforming():  # an outer vmap is not over
        return []
    return [
        (name, key)
        for name, part in module.named_modules()
        for key, value in vars(part).items()
        if key not in ("_parameters", "_buffers", "_modules")
        and any(torch._C._functorch.is_batchedtensor(tensor) for tensor in held(value))
    ]


def forget_(module: nn.Module, attributes: Sequence[tuple[str, str]]) -> None:
    """Set the attributes to None."""
    for name, key in attributes:
        vars(module.get_submodule(name))[key] = None


def apart(stacked: Mapping[str, Tensor]) -> dict[str, Sequence[Tensor]]:
    """Each member's slices; where gradients are wanted by one operation, so that there is one stacked gradient."""
    wanted = torch.is_grad_enabled()
    return {n: t.unbind(0) if wanted and t.requires_grad else t for n, t in stacked.items()}  # type: ignore[misc]


@torch.no_grad()
def average_(shared: Mapping[str, Tensor], seen: Sequence[Mapping[str, Tensor]]) -> None:
    """Statistics that all members share change by the mean of what each member's pass did to them."""
    for name, buffer in shared.items():
        each = torch.stack([statistics[name] for statistics in seen])
        buffer.copy_(each.mean(0) if each.is_floating_point() else each[0])


def recurrent(module: nn.Module) -> str:
    """The first layer for which torch has no batching rule, or nothing."""
    found = ((name, part) for name, part in module.named_modules() if isinstance(part, nn.RNNBase))
    return next((f"{type(part).__name__}, {name!r}" for name, part in found), "")


def clip_(gradients: Sequence[Tensor], max_norm: float) -> Tensor:
    """Scale the gradients in place to a common norm of at most `max_norm`; the norm before."""
    if not gradients:
        return torch.zeros(())
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradients]))
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factor)
    return norm
