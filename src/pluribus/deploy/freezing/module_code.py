"""Whose code a module or function runs: torch's, which the rules of freezing know, or others', which they do not."""

from __future__ import annotations

from torch import fx, nn

from ..._common.torch_private import has_forward_hooks

TORCH = "torch.nn.modules."

PARAMETRIZED = "torch.nn.utils.parametrize"  # its classes compute a tensor again; nothing else is changed

# What a subclass may define beside names that torch's class does not have: a call does not run it.
IDLE = {
    *("__init__", "__module__", "__qualname__", "__doc__", "__annotations__", "__dict__", "__weakref__", "__repr__"),
    *("__firstlineno__", "__static_attributes__", "__constants__", "__reduce_ex__", "__annotate_func__"),
    *("reset_parameters", "extra_repr", "_made_of"),
}


def torch_type(module: nn.Module) -> type | None:
    """The class of torch whose code a call of the module runs, and no other code; None if there is none."""
    return None if hasattr(type(module), "_made_of") else inner_type(module)


def inner_type(module: nn.Module) -> type | None:
    """As `torch_type`, for the layer that is inside of one of ours, such as a masked one."""
    kind = getattr(type(module), "_made_of", ((), type(module)))[1]
    if has_forward_hooks(module) or any(callable(getattr(kind, name, None)) for name in vars(module)):
        return None  # a method was replaced on this one module
    below: list[type] = []
    for ancestor in kind.__mro__:
        if ancestor.__module__.startswith(TORCH):
            return ancestor if all(_is_idle(each, ancestor) for each in below) else None
        below.append(ancestor)
    return None


def _is_idle(subclass: type, ancestor: type) -> bool:
    """Whether a subclass changes nothing that a call of the class of torch runs."""
    return subclass.__module__ == PARAMETRIZED or not any(
        hasattr(ancestor, name) for name in vars(subclass).keys() - IDLE
    )


def known_name(node: fx.Node) -> str:
    """The name of the function or method of torch or Python that a node calls; nothing for those of others."""
    if isinstance(node.target, str):
        return node.target
    module = getattr(node.target, "__module__", None) or "torch"
    return node.target.__name__ if module.split(".")[0] in ("torch", "_operator", "builtins") else ""
