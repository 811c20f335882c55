"""What happens around a run of the members: what is shared runs once, and what must not change is kept."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any, ClassVar, cast

import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .._common.torch_private import (
    SlowPath,
    inside_of_vmap,
    is_batched,
    is_called_by_torch,
    is_function_watched,
    mark_parameter_,
    no_vmap_fallback_warning,
    outside_transform,
)
from .._common.trees import tensors_of
from ..surgery.copying import aliases, state
from ..surgery.selecting import CONVOLUTIONS, DROPOUTS
from .kept_attributes import CarriesError, is_torchs_own
from .own_chance import refuse_own_chance


class RecomputesError(NotImplementedError):
    """The model runs parts of itself again in backward, which vmap cannot."""


@contextmanager
def ready_for_vmap(module: nn.Module, parts: Sequence[nn.Module], once: Sequence[str]) -> Iterator[None]:
    """Attention that vmap can run, and submodules that it leaves alone, for a while.

    The submodules named in `once` run outside of vmap while their input is shared. Their results are the same for all
    members anyway, except for chance: dropout of a shared trunk is drawn once, so that normalisation layers behind it
    still see one batch.

    Args:
        parts: the module and all its parts, where one is attention; compiled code needs none
    """
    left: list[bool] = []  # vmap is left already, by a part that holds this one: a layer may stand at two places
    with ExitStack() as stack:
        if not torch.compiler.is_compiling():
            _slow_attention(stack, parts)
        for part in {module.get_submodule(name): None for name in once}:
            stack.enter_context(other_forward(part, _outside_vmap(part.forward, left)))
        yield


@contextmanager
def other_forward(part: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Let a module run another forward for a while."""
    own = vars(part).get("forward")  # set on the module itself: put back
    vars(part)["forward"] = forward
    try:
        yield
    finally:
        vars(part).pop("forward")
        if own is not None:
            vars(part)["forward"] = own


def _outside_vmap(forward: Callable[..., Any], left: list[bool]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        if left or any(is_batched(tensor) for tensor in tensors_of((args, kwargs))):
            return forward(*args, **kwargs)
        left.append(True)
        try:
            with outside_transform():
                return forward(*args, **kwargs)
        finally:
            left.pop()

    return run


class AsksError(RuntimeError):
    """The model asks of its tensors what they cannot know under vmap."""


@contextmanager
def refuse_hidden_by_vmap() -> Iterator[None]:
    """Raise after a pass of all members by vmap that draws or asks what each member must by itself."""
    with refuse_own_chance():
        if torch.compiler.is_compiling():
            yield
            return
        with _Questions() as questions:
            yield
    if questions.asked:
        raise AsksError(f"it asks for .{questions.asked} of a tensor, which does not know its gradients there")


class _Questions(TorchFunctionMode):
    """Notes whether code that is not torch's asks a tensor whether gradients are computed for it, in vain."""

    ASKED: ClassVar = {getattr(Tensor, name).__get__: name for name in ("requires_grad", "grad_fn", "is_leaf")}

    def __init__(self) -> None:
        super().__init__()
        self.asked = ""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The function's result."""
        result, name = func(*args, **(kwargs or {})), self.ASKED.get(func)
        if name and is_batched(args[0]) and not is_called_by_torch():
            if bool(getattr(inside_of_vmap(args[0]), name)) != bool(result):
                self.asked = name
        return result


class ParameterMarks:
    """Lets what stands in place of a parameter be an instance of `nn.Parameter`, if the model asks for that.

    Marks cost time. In the first passes in each mode they note whether code that is not torch's asks; if none does,
    later passes do without.
    """

    def __init__(self, module: nn.Module, own: Collection[str], passes: int):
        self.names = [name for name, _ in module.named_parameters() if name in own]
        self.asked, self.passes, self.left = False, passes, dict[tuple[bool, bool], int]()

    def __bool__(self) -> bool:
        """The answer, as one of the tensors' marks."""
        self.asked |= not is_called_by_torch(2)  # who called isinstance
        return True

    def set_(self, tensors: Mapping[str, Tensor], training: bool) -> None:
        """Mark a member's tensors before its pass."""
        key = training, torch.is_grad_enabled()
        left = self.left.get(key, self.passes)
        if not (left or self.asked) or torch.compiler.is_compiling():
            return
        self.left[key] = max(0, left - 1)
        for name in self.names:
            mark_parameter_(tensors[name], self)


def is_autocast(device: torch.device) -> bool:
    """Whether operations on the device run in a lower precision now."""
    return torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)


@contextmanager
def restore_on_error(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Put the tensors' values back if what follows fails."""
    values = [tensor.clone() for tensor in tensors]
    try:
        yield
    except BaseException:
        with torch.no_grad():
            for tensor, value in zip(tensors, values, strict=True):
                tensor.copy_(value)
        raise


@contextmanager
def refuse_halfway(method: str, module: nn.Module) -> Iterator[None]:
    """Refuse a model that had changed parameters in place when what follows fails: they cannot be put back."""
    versions = [(name, p, p._version) for name, p in module.named_parameters() if not p.is_inference()]
    try:
        yield
    except Exception as error:
        if changed := [name for name, parameter, version in versions if parameter._version != version]:
            raise CarriesError.halfway(method, changed) from error
        raise


def shared_parts(module: nn.Module, own: Collection[str]) -> list[str]:
    """Names of the largest submodules that hold no owned tensor, and have state or may draw something at random."""
    names = {alias for name, others in aliases(module).items() if name in own for alias in others}
    owners = {name.rpartition(".")[0] for name in names}
    found: list[str] = []

    def visit(path: str, part: nn.Module) -> None:
        if _is_never_called(part) or any(owner == path or owner.startswith(f"{path}.") for owner in owners):
            for name, child in part.named_children():
                visit(f"{path}.{name}", child)
        elif _has_state_or_chance(part):
            found.append(path)

    for name, child in module.named_children():
        visit(name, child)
    return found


def _has_state_or_chance(part: nn.Module) -> bool:
    if any(True for _ in (*part.parameters(), *part.buffers())):
        return True
    kinds = {type(m) for m in part.modules()}
    return any(issubclass(kind, DROPOUTS) or not is_torchs_own(kind) for kind in kinds)  # type: ignore[arg-type]


def _is_never_called(part: nn.Module) -> bool:
    """Whether it only holds others (nn.ModuleList): its forward is that of nn.Module."""
    return type(part).forward is nn.Module.forward


def _slow_attention(stack: ExitStack, parts: Sequence[nn.Module]) -> None:
    """Keep attention off its fast path, and say nothing of fused attention run member by member.

    Where torch's fast path would write zeros, in padded positions, they are written.
    """
    stack.enter_context(no_vmap_fallback_warning())
    if any(isinstance(part, nn.MultiheadAttention) for part in parts):
        for part in parts:
            if isinstance(part, nn.TransformerEncoder) and _may_nest(part):
                stack.enter_context(other_forward(part, _padded_forward(part)))
        stack.enter_context(SlowPath())


def _may_nest(encoder: nn.TransformerEncoder) -> bool:
    """Whether torch would leave padded positions out, and give zeros for them."""
    first: Any = encoder.layers[0]
    learns = torch.is_grad_enabled() and any(p.requires_grad for p in first.parameters())
    enabled = torch.backends.mha.get_fastpath_enabled() and getattr(encoder, "use_nested_tensor", False)
    return bool(enabled) and not first.training and not learns and not is_function_watched()


def _padded_forward(encoder: nn.TransformerEncoder) -> Callable[..., Tensor]:
    forward = encoder.forward

    def run(src: Tensor, mask: Any = None, src_key_padding_mask: Any = None, is_causal: Any = None) -> Tensor:
        padding = src_key_padding_mask
        nests = (
            padding is not None
            and mask is None
            and src.ndim == 3
            and not (src.requires_grad and torch.is_grad_enabled())
        )
        if not nests or (getattr(encoder, "mask_check", True) and not _is_left_aligned(padding)):
            return forward(src, mask, padding, is_causal)
        y = src
        for layer in encoder.layers:
            y = layer(y, src_key_padding_mask=padding, is_causal=bool(is_causal))
        y = y.masked_fill(_is_padding(padding)[..., None], 0.0)
        return y if encoder.norm is None else cast(Tensor, encoder.norm(y))

    return run


def _is_padding(mask: Tensor) -> Tensor:
    return mask if mask.dtype == torch.bool else mask != 0


def _is_left_aligned(mask: Tensor) -> bool:
    """Whether padding stands behind all the rest, in every row."""
    padding = _is_padding(mask)
    return bool((padding[:, 1:] | ~padding[:, :-1]).all())


@contextmanager
def note_checkpoints() -> Iterator[list[str]]:
    """Notes, in this thread, whether functions of torch.utils.checkpoint are called: they run again in backward."""
    seen: list[str] = []
    before = sys.getprofile()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename == torch.utils.checkpoint.__file__:
            seen.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        yield seen
    finally:
        sys.setprofile(before)


@torch.no_grad()
def average_(shared: Mapping[str, Tensor], seen: Sequence[Mapping[str, Tensor]]) -> None:
    """Statistics that all members share change by the mean of what each member's pass did to them.

    What no pass has changed keeps its bits: a mask's large constants would overflow in a sum.
    """
    for name, buffer in shared.items():
        if not any(differs(statistics[name], buffer) for statistics in seen):
            continue
        each = torch.stack([statistics[name] for statistics in seen])
        if not each.is_floating_point():
            buffer.copy_(each[0])
            continue
        kept = ((each == buffer) | (each.isnan() & buffer.isnan())).all(0)
        buffer.copy_(torch.where(kept, buffer, each.mean(0)))


def differs(copy: Tensor, buffer: Tensor) -> bool:
    """Whether a pass has changed a copy of a buffer; batch normalisation does so without a new version."""
    return not buffer.is_meta and not torch.equal(copy, buffer)


def slice_members(stacked: Mapping[str, Tensor]) -> dict[str, Sequence[Tensor]]:
    """Each member's slices; where gradients are wanted by one operation, so that there is one stacked gradient."""
    wanted = torch.is_grad_enabled()
    return {n: t.unbind(0) if wanted and t.requires_grad else t for n, t in stacked.items()}  # type: ignore[misc]


def unbatchable(module: nn.Module) -> str:
    """The first layer for which torch has no batching rule, or nothing."""
    found = ((name, part) for name, part in module.named_modules() if isinstance(part, nn.RNNBase))
    return next((f"{type(part).__name__}, {name!r}" for name, part in found), "")


def prefer(module: nn.Module, own: Collection[str]) -> tuple[str, str]:
    """The way to run that is faster as a rule, and why."""
    if layer := unbatchable(module):
        return "loop", f"torch has no batching rule for {layer}"
    if own and all(name in own for name, _ in state(module)):
        if any(isinstance(part, CONVOLUTIONS) for part in module.modules()):
            return "loop", "nothing is shared, and batched convolutions are slower than a loop"
    return "vmap", "members in one go; what no member owns is computed once"


# -------------------------------------------------------------------- one thread at a time

_RLock: Any = type(threading.RLock())


class Lock(_RLock):
    """A lock that a copy, or what is read from a pickle, has anew."""

    def __reduce__(self) -> tuple[type[Lock], tuple[()]]:
        return Lock, ()


LOCKS: weakref.WeakKeyDictionary[nn.Module, Lock] = weakref.WeakKeyDictionary()


def lock_of(module: nn.Module) -> Lock:
    """The lock of a module, one for all that share a part of it: who runs it with a member's tensors holds it."""
    parts = list(module.modules())
    lock = next((LOCKS[part] for part in parts if part in LOCKS), None) or Lock()
    for part in parts:
        LOCKS.setdefault(part, lock)
    return lock
