"""Choosing how to run by measuring: visible, remembered, without side effects."""

import copy

import pytest
import torch
import torch.nn.functional as F
from small import SMALL, make, targets
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

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


def test_the_fastest_way_is_taken(monkeypatch):
    ensemble, x = make("deep", "cnn")
    ensemble.run = "auto"
    times = {"vmap": 3.0, "loop": 2.0, "vmap, channels-last": 4.0, "loop, channels-last": 1.0}
    monkeypatch.setattr(auto, "race", lambda ways, device, **_: {name: times[name] for name in ways})
    ensemble(x)
    assert str(next(iter(ensemble.runner.measured.values()))) == "loop, channels-last"


@pytest.mark.parametrize(("winner", "stride"), [("loop, channels-last", 1), ("loop", 9)])
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


class Standardised(nn.Conv2d):
    """A convolution whose forward takes the mean over all inputs out of its weight: it needs all of them."""

    def forward(self, x: Tensor) -> Tensor:
        """As `nn.Conv2d`, with another weight."""
        return self._conv_forward(x, self.weight - self.weight.mean(1, keepdim=True), self.bias)


class Scaled(nn.Conv2d):
    """A convolution with torch's own forward, and an inner part that divides by the number of its inputs."""

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(x, weight, bias) / x.shape[1]


def masked(layer: nn.Module, before: nn.Module, x: Tensor, monkeypatch) -> tuple[pb.Ensemble, Tensor]:
    """An ensemble in which `layer` is masked, set to leave masked channels out, and what each member gives."""
    torch.manual_seed(0)
    ensemble = pb.masksembles(nn.Sequential(before, nn.ReLU(), layer), 4, example=x).eval()
    expected = torch.stack([ensemble.member(i)(x) for i in range(4)])
    ensemble.run = "auto"
    monkeypatch.setattr(auto, "race", lambda ways, *_, **__: {name: 1.0 + (name != auto.LEAN) for name in ways})
    return ensemble, expected


@pytest.mark.parametrize(
    ("layer", "before", "shape"),
    [
        (nn.Linear(12, 5), nn.Linear(6, 12), (7, 6)),
        (nn.Linear(12, 5, bias=False), nn.Linear(6, 12), (7, 3, 6)),
        (nn.Conv1d(12, 5, 3, padding=1), nn.Conv1d(4, 12, 3), (7, 4, 9)),
        (nn.Conv2d(12, 5, 3, 2, 2, 2, padding_mode="circular"), nn.Conv2d(4, 12, 3), (7, 4, 9, 8)),
        (nn.Conv3d(12, 5, 3, padding="same"), nn.Conv3d(4, 12, 1), (2, 4, 5, 4, 3)),
        (nn.utils.parametrizations.weight_norm(nn.Conv2d(12, 5, 3)), nn.Conv2d(4, 12, 3), (7, 4, 9, 8)),
    ],
)
def test_members_without_their_masked_channels_give_the_same(layer, before, shape, monkeypatch):
    x = torch.randn(shape)
    ensemble, expected = masked(layer, before, x, monkeypatch)
    seen: list[int] = []
    product = "linear" if isinstance(layer, nn.Linear) else f"conv{len(shape) - 2}d"
    plain = getattr(F, product)
    monkeypatch.setattr(F, product, lambda x, w, *more: seen.append(w.shape[1]) or plain(x, w, *more))
    for x_again in (x, x.to(memory_format=torch.channels_last)) if len(shape) == 4 else (x,):
        seen.clear()
        torch.testing.assert_close(ensemble(x_again), expected)
        read = seen[-4:]  # by the masked layer of each member, in the last pass
        assert auto.LEAN in ensemble.explain() and read == ensemble.module[2].mask.sum(1).long().tolist()
        assert max(read) < 12


@pytest.mark.parametrize("kind", [Standardised, Scaled])
def test_a_layer_with_code_of_its_own_sees_all_channels(kind, monkeypatch):
    x = torch.randn(7, 4, 9, 8)
    ensemble, expected = masked(kind(12, 5, 3), nn.Conv2d(4, 12, 3), x, monkeypatch)
    torch.testing.assert_close(ensemble(x), expected)
    assert auto.LEAN not in ensemble.explain()


def test_what_masks_leave_out_is_counted_all_the_same(monkeypatch):
    x = torch.randn(7, 6)
    ensemble, _ = masked(nn.Linear(12, 5), nn.Linear(6, 12), x, monkeypatch)
    ensemble(x)
    with FlopCounterMode(display=False) as counter:
        ensemble(x)
    assert counter.get_total_flops() == 2 * 7 * (6 * 12 + 4 * 12 * 5)  # what comes before the masks runs once


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


# ---------------------------------------------------------------- devices without a rule


def packed_images():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(8 * 16, 3))
    return pb.packed(model, 4, example=torch.randn(2, 3, 8, 8)), torch.randn(5, 3, 8, 8)


def test_convolutions_are_measured_on_the_first_batch_where_no_rule_was(monkeypatch):
    """The CPU stands for a GPU: a device that the rule does not name."""
    ensemble, x = packed_images()
    by_rule = ensemble.eval()(x)
    assert "measured" not in ensemble.explain()
    monkeypatch.setattr(auto, "RULED", ("meta",))
    torch.testing.assert_close(ensemble(x), by_rule, rtol=1e-4, atol=1e-5)
    assert "measured: " in ensemble.explain() and len(ensemble.runner.measured) == 1
    said = ensemble.explain()
    ensemble(x)
    assert ensemble.explain() == said  # once
    ensemble.train().loss(x, torch.arange(5) % 3, F.cross_entropy).backward()
    assert len(ensemble.runner.measured) == 2  # training is another matter


def test_what_is_set_by_hand_or_has_no_convolutions_is_not_measured(monkeypatch):
    monkeypatch.setattr(auto, "RULED", ("meta",))
    ensemble, x = packed_images()
    ensemble.run = "loop"
    ensemble(x)
    plain = pb.deep(nn.Linear(4, 2), 3)
    plain(torch.randn(5, 4))
    assert "measured" not in ensemble.explain() + plain.explain()
