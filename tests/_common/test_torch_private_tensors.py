"""What we rely on in PyTorch beyond what it promises: how tensors and hooks present themselves."""

import pytest
import torch
from torch import nn
from torch.func import vmap

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


def test_the_tensor_of_all_members_is_found_under_vmap():
    stacked, seen = torch.randn(3, 2, requires_grad=True), []

    def look(one):
        seen.append(torch_private.inside_of_vmap(one))
        assert not one.requires_grad
        return one

    vmap(look)(stacked)
    assert seen[0].shape == (3, 2) and seen[0].requires_grad
    assert torch_private.inside_of_vmap(stacked) is stacked


def test_a_tensor_can_count_as_a_parameter():
    tensor = torch.zeros(2)
    assert not isinstance(tensor, nn.Parameter)
    torch_private.mark_parameter_(tensor)
    assert isinstance(tensor, nn.Parameter)


def test_backward_goes_by_the_version_that_is_set():
    def squared():
        x, factor = torch.ones(2, requires_grad=True), torch.full((2,), 3.0)
        y = x * factor
        factor.mul_(1.0)
        return x, factor, y.sum()

    _, factor, loss = squared()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    x, factor, loss = squared()
    torch_private.set_versions_([factor], [0])
    loss.backward()
    assert factor._version == 0 and x.grad.tolist() == [3.0, 3.0]


def test_a_function_knows_whether_torch_has_called_it():
    seen = []

    class Looks(nn.Linear):
        def forward(self, x):
            seen.append(torch_private.is_called_by_torch())
            return self.inside(x)

        def inside(self, x):
            seen.append(torch_private.is_called_by_torch())
            seen.append(torch_private.is_called_by_torch(2))
            return super().forward(x)

    Looks(2, 2)(torch.ones(1, 2))
    assert seen == [True, False, True]
