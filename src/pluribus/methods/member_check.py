"""A check of a model by its members, on the first batch that an ensemble, or a member that has left it, sees."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from .._common.torch_private import pre_hooks, remove_pre_hooks_
from .._common.trees import Batch
from ..core.first_look import Findings, look
from ..surgery.copying import duplicate


@dataclass(frozen=True)
class MemberCheck:
    """A first look that refuses a model by running one member, which it may change: `check(method, member, batch)`.

    A member that leaves its ensemble before the first batch takes the check along, for the first batch of its own.
    """

    check: Callable[[str, nn.Module, Batch], None]

    def __call__(self, ensemble: Any, batch: Batch) -> Findings:
        """Nothing to apply: the model is as it should be, or refused."""
        member = ensemble.member(0)
        remove_pre_hooks_(member, _FirstCall)
        self.check(ensemble.method, member, batch)
        return Findings()

    def follow_(self, method: str, member: nn.Module) -> None:
        """Check the member when it is first called."""
        member.register_forward_pre_hook(_FirstCall(method, self.check), prepend=True, with_kwargs=True)


def refuse_unseen(method: str, model: nn.Module) -> None:
    """Refuse a model with a member in it that has yet to be checked: another method would change or hide its layers."""
    if any(pre_hooks(part, _FirstCall) for part in model.modules()):
        raise ValueError(
            f"{method}: the model is, or contains, a member of an ensemble that has not seen a batch yet, so it is not "
            "known whether it reads weights of its layers itself. Call the member on a batch once before."
        )


@dataclass(frozen=True)
class _FirstCall:
    """A hook that checks a member on its first batch and then leaves it; one that is refused stays refused."""

    method: str
    check: Callable[[str, nn.Module, Batch], None]

    def __call__(self, member: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
        if kwargs is not None:  # else another thread has taken the hook off while this one was about to run it
            look(self.method, partial(self._look_at_, member), (args, kwargs))

    def _look_at_(self, member: nn.Module, batch: Batch) -> None:
        with _ONE_AT_A_TIME:
            copy = duplicate(member)
            remove_pre_hooks_(copy, _FirstCall)
            self.check(self.method, copy, batch)
            remove_pre_hooks_(member, _FirstCall)


_ONE_AT_A_TIME = threading.RLock()
