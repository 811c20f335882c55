"""Users' hooks on layers, quantised parts and lower precisions, against networks built apart."""

import copy
import pickle

import pytest
import torch
from equations import Plain, make, separate
from torch import nn

import pluribus as pb

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*this model does not run under vmap"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of torch.ao
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated"),
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor"),
]
METHODS = ("single", "deep", "packed", "treenet", "multihead", "batch_ensemble", "masksembles", "lora")


def double(layer, args, output):
    return output * 2 + 1


class After(Plain):
    def __init__(self):
        super().__init__()
        self.middle.register_forward_hook(double)


class Quantised(Plain):
    """A part whose weights are packed integers, which are no tensors of the module."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7)
            part = nn.Sequential(nn.Linear(8, 8))
        self.packed = torch.ao.quantization.quantize_dynamic(part, {nn.Linear}, dtype=torch.qint8)

    def inside(self, h):
        return self.middle(h) + self.packed(h)


@pytest.mark.parametrize("kind", [After, pytest.param(Quantised, marks=pytest.mark.slow)])
@pytest.mark.parametrize("method", METHODS)
def test_every_way_to_run_gives_separate_networks(method, kind):
    torch.manual_seed(0)
    x, ensemble = torch.randn(5, 6), make(method, kind().eval(), None)
    expected = torch.stack([separate(kind, ensemble, i)(x) for i in range(ensemble.size)])

    def check(outputs):
        torch.testing.assert_close(outputs, expected, rtol=1e-4, atol=1e-4)

    for run in ("vmap", "loop"):
        ensemble.run = run
        check(ensemble(x))
    check(torch.stack([ensemble.member(i)(x) for i in range(ensemble.size)]))
    check(copy.deepcopy(ensemble)(x))
    check(pickle.loads(pickle.dumps(ensemble))(x))
    check(pb.freeze(ensemble, x, choose="rule")(x))


@pytest.mark.parametrize("method", METHODS)
def test_lower_precisions_give_separate_networks(method):
    torch.manual_seed(0)
    x, ensemble = torch.randn(5, 6), make(method, Plain().eval(), None)
    expected = torch.stack([separate(Plain, ensemble, i)(x) for i in range(ensemble.size)])
    for run in ("vmap", "loop"):
        ensemble.run = run
        with torch.autocast("cpu", dtype=torch.bfloat16):
            apart = torch.stack([separate(Plain, ensemble, i)(x) for i in range(ensemble.size)])
            outputs = ensemble(x)
        assert outputs.dtype == apart.dtype == torch.bfloat16
        torch.testing.assert_close(outputs, apart, rtol=0.05, atol=0.05)
        low = copy.deepcopy(ensemble).to(torch.bfloat16)(x.to(torch.bfloat16))
        assert low.dtype == torch.bfloat16
        torch.testing.assert_close(low.float(), expected, rtol=0.1, atol=0.1)


def test_explain_names_packed_weights_that_members_cannot_have_of_their_own():
    model = nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 3)))
    model[1] = torch.ao.quantization.quantize_dynamic(model[1], {nn.Linear}, dtype=torch.qint8)
    assert "the same for all members" in pb.deep(model, 2).explain()
    assert "the same for all members" not in pb.deep(nn.Linear(4, 3), 2).explain()
