"""Models that ask their tensors something, or write to them, get the answers of separate networks.

The oracle are networks that are built apart, with members' weights by the papers' equations.
"""

import pytest
import torch
from equations import Plain, make, separate
from torch import nn

import pluribus as pb

pytestmark = pytest.mark.filterwarnings("ignore:.*this model does not run under vmap")
METHODS = ("single", "deep", "packed", "treenet", "multihead", "batch_ensemble", "masksembles", "lora")


class Scaled(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))
        self.register_buffer("mean", torch.ones(8))

    def inside(self, h):
        return self.middle(h) * self.scale * (2.0 if self.ask(h) else 1.0)


class RequiresGrad(Scaled):
    def ask(self, h):
        return h.requires_grad


class Learns(Scaled):
    def ask(self, h):
        return self.scale.requires_grad and not self.mean.requires_grad


class IsParameter(Scaled):
    def ask(self, h):
        return isinstance(self.scale, nn.Parameter) and not isinstance(self.mean, nn.Parameter)


class Moving(Scaled):
    """Writes to a buffer in place, and uses it in products."""

    def inside(self, h):
        self.mean.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)
        return self.middle(h) * self.scale * self.mean


class Clamped(Scaled):
    """Writes to a parameter in place before it is used."""

    def __init__(self) -> None:
        super().__init__()
        self.scale.requires_grad_(False)

    def inside(self, h):
        self.scale.clamp_(max=0.5)
        return self.middle(h) * self.scale


KINDS = (RequiresGrad, Learns, IsParameter, Moving, Clamped)


@pytest.mark.parametrize("run", ["vmap", "loop"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", METHODS)
def test_members_answer_and_learn_as_separate_networks(method, kind, run):
    torch.manual_seed(0)
    x, ensemble = torch.randn(5, 6), make(method, kind().eval(), None)
    ensemble.run = run
    for learns in (False, True, True):
        networks = [separate(kind, ensemble, i) for i in range(ensemble.size)]
        for network in networks if method == "lora" else ():
            network.scale.requires_grad_(False)  # as all that its members share
        with torch.set_grad_enabled(learns):
            expected = torch.stack([network(x) for network in networks])
            try:
                outputs = ensemble(x)
            except ValueError as error:  # what all members share goes on from pass to pass
                named = {Moving: "changes its buffer 'mean'", Clamped: "in place"}
                assert named[kind] in str(error), error
                assert ("scale" if kind is Clamped else "mean") not in ensemble.own
                return
        torch.testing.assert_close(outputs, expected, rtol=1e-4, atol=1e-5)
        if learns:
            ensemble.zero_grad()
            outputs.square().sum().backward()
            expected.square().sum().backward()
            bias = ensemble.module.leave.b if method == "batch_ensemble" else ensemble.module.leave.bias
            grads = torch.stack([network.leave.bias.grad for network in networks])
            if method != "lora":  # its biases are frozen
                grads = grads if bias.ndim == 2 else grads.sum(0)
                torch.testing.assert_close(bias.grad, grads, rtol=1e-3, atol=1e-4)


def test_two_passes_before_backward_fail_as_for_one_network_if_a_buffer_is_written_between():
    x, network = torch.randn(5, 6), Moving().eval()
    ensemble = pb.deep(network, 2)
    ensemble.run = "loop"
    for model in (network, ensemble):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            (model(x).sum() + model(x).sum()).backward()
