"""What we rely on in PyTorch beyond what it promises: how tensors and hooks present themselves."""

import torch
from torch import nn

from pluribus._common import torch_private


class Hook:
    def __call__(self, *_):
        called.append("before")


called: list[str] = []


def test_hooks_of_one_kind_are_taken_off_while_they_run():
    layer = nn.Linear(2, 2)
    layer.register_forward_pre_hook(Hook(), with_kwargs=True)
    layer.register_forward_pre_hook(lambda *_: torch_private.remove_pre_hooks_(layer, Hook))
    called.clear()
    assert len(torch_private.pre_hooks(layer, Hook)) == 1
    layer(torch.ones(1, 2))
    layer(torch.ones(1, 2))
    assert torch_private.pre_hooks(layer, Hook) == []
    assert called == ["before"] and len(layer._forward_pre_hooks) == 1 and not layer._forward_pre_hooks_with_kwargs
