"""Choosing how to run by measuring: visible, remembered, without side effects."""

import copy

import pytest
import torch
import torch.nn.functional as F
from small import SMALL, make, targets
from torch import Tensor, nn

import pluribus as pb
from pluribus.core import autotune as auto
from pluribus.surgery.copying import state

every = pytest.mark.parametrize(("method", "name"), [(m, n) for m in pb.METHODS for n in ("mlp", "cnn", "recurrent")])
LIKE = {"rtol": 1e-4, "atol": 1e-5}


@every
def test_auto_gives_the_same_outputs_and_remembers(method, name):
    ensemble, x = make(method, name)
    if method == "mc_dropout":
        pytest.skip("outputs are drawn anew")
    expected = ensemble(x)
    ensemble.run = "auto"
    torch.testing.assert_close(ensemble(x), expected, **LIKE)
    found = dict(ensemble.runner.measured)
    assert len(found) == 1
    torch.testing.assert_close(ensemble(x), expected, **LIKE)
    assert ensemble.runner.measured == found
    ensemble(torch.cat([x, x]))
    assert len(ensemble.runner.measured) == 2


@every
def test_a_training_step_under_auto_equals_one_without(method, name):
    if method == "mc_dropout" or name == "recurrent":
        pytest.skip("dropout is drawn anew")
    (one, x), y = make(method, name), targets()
    for module in one.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    other = copy.deepcopy(one)
    other.run = "auto"
    for ensemble in (one.train(), other.train()):
        torch.manual_seed(1)
        ensemble.loss(x, y, F.cross_entropy).backward()
    for (n, a), (_, b) in zip(one.named_parameters(), other.named_parameters(), strict=True):
        if a.grad is not None:
            torch.testing.assert_close(b.grad, a.grad, msg=n, **LIKE)
    for (n, a), (_, b) in zip(state(one), state(other), strict=True):
        torch.testing.assert_close(b, a, msg=n, **LIKE)  # measuring left no trace in statistics


def test_explain_says_what_was_chosen_and_why():
    ensemble, x = make("deep", "cnn")
    ensemble.run = "auto"
    ensemble(x)
    text = ensemble.explain()
    assert "run by auto" in text
    assert "(5, 3, 8, 8), eval: " in text
    assert "measured: " in text


def test_the_fastest_way_is_taken(monkeypatch):
    ensemble, x = make("deep", "cnn")
    ensemble.run = "auto"
    times = {"vmap": 3.0, "loop": 2.0, "vmap, channels-last": 4.0, "loop, channels-last": 1.0}
    monkeypatch.setattr(auto, "race", lambda ways, device, **_: {name: times[name] for name in ways})
    ensemble(x)
    assert str(next(iter(ensemble.runner.measured.values()))) == "loop, channels-last"


@pytest.mark.parametrize(("winner", "stride"), [("vmap, channels-last", 1), ("vmap", 9)])
@pytest.mark.parametrize("method", ["deep", "multihead", "masksembles"])
def test_weights_stay_in_the_memory_format_of_the_winner(method, winner, stride, monkeypatch):
    ensemble, x = make(method, "cnn")
    expected = ensemble.eval()(x)
    before = {name: tensor.clone() for name, tensor in ensemble.state_dict().items()}
    ensemble.run = "auto"
    monkeypatch.setattr(auto, "race", lambda ways, device, **_: {name: 1.0 + (name != winner) for name in ways})
    with torch.inference_mode():  # as validation before training
        torch.testing.assert_close(ensemble(x), expected)
    weights = [part.weight for part in ensemble.modules() if isinstance(part, nn.Conv2d)]
    assert weights
    assert {weight.stride(-3) for weight in weights} == {stride}
    for name, tensor in ensemble.state_dict().items():
        assert torch.equal(tensor, before[name])
    ensemble.train()(x).sum().backward()  # they are no tensors of inference
    assert all(weight.grad is not None for weight in weights)


def test_nothing_is_measured_where_determinism_is_asked_for(monkeypatch):
    ensemble, x = make("deep", "cnn")
    ensemble.run = "auto"
    monkeypatch.setattr(auto, "race", lambda *_, **__: pytest.fail("measured"))
    torch.use_deterministic_algorithms(True)
    try:
        ensemble(x)
    finally:
        torch.use_deterministic_algorithms(False)
    assert "nothing was measured" in ensemble.explain()


class Viewing(nn.Module):
    """A model that cannot take channels-last images: it views what is not contiguous then."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(4 * 36, 3)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 3)."""
        return self.fc(self.conv(x).view(len(x), -1))


def test_a_way_that_fails_is_left_out():
    torch.manual_seed(0)
    ensemble, x = pb.deep(Viewing(), 2).eval(), SMALL["cnn"].batch(3)
    expected = ensemble(x)
    ensemble.run = "auto"
    torch.testing.assert_close(ensemble(x), expected, **LIKE)
    assert not next(iter(ensemble.runner.measured.values())).channels_last


def test_chance_goes_on_as_if_nothing_was_measured():
    ensemble, x = make("deep", "mlp")
    ensemble.run = "auto"
    torch.manual_seed(3)
    wanted = torch.rand(3)
    torch.manual_seed(3)
    ensemble(x)
    assert torch.equal(torch.rand(3), wanted)


def test_a_masked_layer_leaves_out_what_a_member_never_reads():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 8, 3), nn.Flatten(), nn.Linear(128, 3))
    x = torch.randn(2, 3, 8, 8)
    ensemble = pb.masksembles(model, 3, example=x).eval()
    ensemble.run = "vmap"  # which multiplies by the mask
    expected = ensemble(x)
    ensemble.run = "loop"
    torch.testing.assert_close(ensemble(x), expected, **LIKE)
    last = x.contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(ensemble(last), expected, **LIKE)
    gradient = torch.autograd.grad(ensemble(x).square().sum(), ensemble.module[2].weight)[0]
    ensemble.run = "vmap"
    torch.testing.assert_close(gradient, torch.autograd.grad(ensemble(x).square().sum(), ensemble.module[2].weight)[0])


def test_members_gradients_come_from_one_stacked_operation():
    ensemble, x = make("deep", "cnn")
    ensemble.run = "loop"
    ensemble.loss(x, targets(), F.cross_entropy).backward()
    seen, pending, kinds = set(), [ensemble.loss(x, targets(), F.cross_entropy).grad_fn], []
    while pending:
        node = pending.pop()
        if node is not None and node not in seen:
            seen.add(node)
            kinds.append(node.name())
            pending.extend(n for n, _ in node.next_functions)
    owned = sum(name in ensemble.own for name, _ in ensemble.module.named_parameters())
    assert kinds.count("UnbindBackward0") == owned
