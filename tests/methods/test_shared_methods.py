"""Methods that share most weights, compared with closed forms and hand-written sums."""

import math
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from small import Encoder, Recurrent, close, cnn, make, mlp, plain_mlp, targets
from torch import Tensor, nn
from torch.func import functional_call

import pluribus as pb
from pluribus.surgery.copying import state

# -------------------------------------------------------------------- rank-1 vectors


def test_batch_ensemble_is_its_equation():
    model, x = plain_mlp(8), torch.randn(5, 6)
    ensemble = pb.batch_ensemble(model, 3)
    for i in range(3):
        h = x
        for j in (0, 2, 4):
            layer = ensemble.module[j]
            h = ((h * layer.r[i]) @ model[j].weight.T) * layer.s[i] + model[j].bias
            h = h.relu() if j < 4 else h
        close(ensemble(x)[i], h)


def test_batch_ensemble_of_convolutions_is_a_scaled_kernel():
    x = torch.randn(5, 4, 8, 8)
    ensemble = pb.batch_ensemble(nn.Sequential(nn.Conv2d(4, 6, 3, groups=2)), 3)
    layer = ensemble.module[0]
    for i in range(3):
        kernel = layer.weight * layer.s[i][:, None, None, None]
        kernel = kernel * layer.r[i].view(2, 1, 2).expand(2, 3, 2).reshape(6, 2)[:, :, None, None]
        close(ensemble(x)[i], F.conv2d(x, kernel, layer.b[i], groups=2))


def test_batch_ensemble_trains_on_the_tiled_batch_with_shared_statistics():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    ensemble = pb.batch_ensemble(model, 3).train()
    x, y = torch.randn(5, 6), targets()
    first, last = ensemble.module[0], ensemble.module[3]
    rows = torch.arange(3).repeat_interleave(5)
    h = ((x.repeat(3, 1) * first.r[rows]) @ first.weight.T) * first.s[rows] + first.b[rows]
    h = F.batch_norm(h, None, None, ensemble.module[1].weight, ensemble.module[1].bias, training=True).relu()
    h = ((h * last.r[rows]) @ last.weight.T) * last.s[rows] + last.b[rows]
    close(ensemble.loss(x, y, F.cross_entropy), F.cross_entropy(h, y.repeat(3)))
    assert ensemble.module[1].num_batches_tracked == 1


def test_batch_ensemble_starts():
    normal = pb.batch_ensemble(nn.Sequential(nn.Linear(400, 400)), 4).module[0].r.detach()
    assert normal.mean() == pytest.approx(1, abs=0.05)
    assert normal.std() == pytest.approx(0.5, abs=0.05)
    signs = pb.batch_ensemble(nn.Sequential(nn.Linear(400, 400)), 4, init="signs").module[0]
    assert set(signs.s.unique().tolist()) == {-1.0, 1.0}
    with pytest.raises(ValueError, match="stay alike for ever"):
        pb.batch_ensemble(nn.Linear(4, 4), 4, std=0.0)


# -------------------------------------------------------------------- dropout


def test_mc_dropout_is_the_network_in_its_dropout_and_eval_elsewhere():
    ensemble, x = make("mc_dropout", "cnn", 600)
    ensemble.module[3].drop.p = 0.3
    model = ensemble.module
    with torch.no_grad():
        outputs = ensemble(x[:2])
        h = model[1](model[0](x[:2])).relu()
        inner = model[3].norm(model[3].conv(h)).relu()
        expected = model[6]((h + inner).mean((2, 3)))
    assert not model[1].training
    close(outputs.mean(0), expected, atol=0.03)
    variance = 0.3 / 0.7 * (inner / 36).square().sum((2, 3)) @ model[6].weight.square().T
    close(outputs.var(0), variance, rtol=0.2, atol=1e-6)


def test_functional_attention_and_recurrent_dropout_are_active():
    encoder = pb.mc_dropout(Encoder().eval(), 2, example=torch.randn(2, 4, 5))
    assert {"", "encoder.layers.0.self_attn", "encoder.layers.0.dropout1"} <= encoder.active_dropout
    recurrent = pb.mc_dropout(Recurrent(), 2, example=torch.randint(11, (2, 7)))
    assert recurrent.active_dropout == {"lstm"}
    with torch.no_grad():
        x = torch.randint(11, (2, 7))
        outputs = recurrent.eval()(x)
    assert not torch.equal(outputs[0], outputs[1])


def test_mc_dropout_takes_a_first_batch_of_one_row():
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    assert pb.mc_dropout(model, 3).eval()(torch.randn(1, 6)).shape == (3, 1, 3)


def test_rate_overrides_or_inserts():
    overridden = pb.mc_dropout(mlp(), 3, rate=0.25).module[2]
    assert overridden.p == 0.25
    inserted = pb.mc_dropout(plain_mlp(), 3, rate=0.25).module
    assert [getattr(layer, "rate", None) for layer in inserted] == [None, None, 0.25, None, 0.25]
    chosen = pb.mc_dropout(mlp(), 3, rate=0.25, where="5").module
    assert (chosen[2].p, chosen[5].rate) == (0.5, 0.25)


def test_a_model_that_drops_nothing_is_refused():
    with pytest.raises(ValueError, match="no active dropout"):
        pb.mc_dropout(plain_mlp(), 3)(torch.randn(2, 6))
    with pytest.raises(ValueError, match="no active dropout"):
        pb.mc_dropout(plain_mlp(), 3, example=torch.randn(2, 6))


def test_mc_dropout_trains_with_one_draw_in_one_pass():
    ensemble, x = make("mc_dropout", "mlp", 4)
    ensemble(x)  # what drops is found on the first batch
    passes = []
    ensemble.module[0].register_forward_hook(lambda *_: passes.append(1))
    y = targets()
    torch.manual_seed(3)
    loss = ensemble.train().loss(x, y, F.cross_entropy)
    assert len(passes) == 1
    torch.manual_seed(3)
    close(loss, F.cross_entropy(ensemble.module(x), y))


# -------------------------------------------------------------------- mimo


def test_mimo_reads_members_side_by_side_and_sums_the_heads():
    model = plain_mlp(8)
    ensemble = pb.mimo(model, 3, example=torch.randn(2, 6), init="different")
    x, y = torch.randn(3, 4, 6), torch.stack([targets(4) for _ in range(3)])
    first, last = ensemble.module[0], ensemble.module[4]
    assert first.weight.shape == (8, 18)
    assert last.weight.shape == (9, 8)
    h = F.linear(torch.cat(list(x), 1), first.weight, first.bias).relu()
    h = model[2](h).relu()
    logits = F.linear(h, last.weight, last.bias).unflatten(1, (3, 3))
    expected = sum(F.cross_entropy(logits[:, i], y[i]) for i in range(3))
    close(ensemble.train().loss(x, y, F.cross_entropy, per_member=True), expected)


@pytest.mark.parametrize("name", ["mlp", "cnn", "encoder", "recurrent", "tied"])
def test_mimo_starts_as_the_model_given_where_that_is_asked_for(name):
    from small import SMALL

    torch.manual_seed(0)
    model, x = SMALL[name].build().eval(), SMALL[name].batch(5)
    ensemble = pb.mimo(model, 3, example=x, init="same")
    close(ensemble(x), model(x).expand(3, -1, -1))


def test_mimo_trains_what_stands_before_its_first_layer():
    model = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 3))
    ensemble = pb.mimo(model, 3, example=torch.randn(4, 6)).train()
    ensemble.loss(torch.randn(4, 6), targets(4), F.cross_entropy).backward()
    assert ensemble.module[0].weight.grad.abs().sum() > 0
    assert ensemble.module[0].num_batches_tracked == 3  # each member's batch once


def test_mimo_keeps_padding_and_refuses_masks_that_differ():
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.head = nn.Embedding(9, 6, padding_idx=0), nn.Linear(6, 3)

        def forward(self, words, mask):
            return self.head((self.words(words) * mask[..., None]).mean(1))

    words, mask = torch.tensor([[1, 2, 0], [3, 0, 0]]), torch.ones(2, 3, dtype=torch.long)
    ensemble = pb.mimo(Words(), 2, example=(words, mask))
    ensemble.loss((words, mask), targets(2), F.cross_entropy).backward()
    assert not ensemble.module.words.weight.grad[[0, 9]].any()
    assert ensemble.module.words.weight.grad[[10, 11]].any()
    mask[1, 2] = 0
    with pytest.raises(ValueError, match="must be the same for all members, but it is not"):
        ensemble.loss((torch.stack([words] * 2), torch.stack([mask, mask.flip(0)])), torch.zeros(2, 2).long(),
                      F.cross_entropy, per_member=True)  # fmt: skip


@pytest.mark.parametrize(("repetition", "fraction"), [(1, 0.0), (4, 0.0), (2, 0.6), (1, 1.0), (3, 1 / 3)])
def test_repetition_is_exact(repetition, fraction):
    ensemble = pb.mimo(plain_mlp(), 3, fraction, repetition, example=torch.randn(2, 6))
    orders = torch.stack(ensemble.orders(10))
    assert orders.shape == (3, 10 * repetition)
    for order in orders:  # every example as often as asked
        assert Counter(order.tolist()) == dict.fromkeys(range(10), repetition)
    together = 10 * repetition - math.floor((1 - fraction) * 10 * repetition + 1e-9)
    assert (orders[:, 10 * repetition - together :] == orders[0, 10 * repetition - together :]).all()
    if fraction == 0 and repetition > 1:
        assert (orders[0] != orders[1]).any()


# -------------------------------------------------------------------- trees


def test_the_trunk_runs_once_and_its_statistics_are_updated_once(monkeypatch):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    x, y = torch.randn(5, 6), targets()
    ensemble = pb.treenet(model, 3, branch="4").train()
    passes, linear = [], F.linear
    trunk: list[Tensor] = []
    ensemble.loss(x, y, F.cross_entropy)  # the first batch shows what the trunk is
    ensemble.module[2].register_forward_hook(lambda _, i, o: trunk.append(o))
    ensemble.loss(x, y, F.cross_entropy)
    trunk.clear()
    monkeypatch.setattr(F, "linear", lambda x, w, *more: passes.append(x.shape[1]) or linear(x, w, *more))
    loss = ensemble.loss(x, y, F.cross_entropy)
    monkeypatch.undo()
    assert passes.count(6) == 1 and passes.count(8) == 3
    assert ensemble.module[2].num_batches_tracked == 3
    head = ensemble.module[4]
    expected = sum(F.cross_entropy(F.linear(trunk[0].relu(), head.weight[i], head.bias[i]), y) for i in range(3))
    close(loss, expected)
    ensemble.loss(x, y, F.cross_entropy).backward()
    assert ensemble.module[2].num_batches_tracked == 4


class Relay(nn.Module):
    """Two blocks that share a layer."""

    def __init__(self) -> None:
        super().__init__()
        shared = nn.Linear(6, 6)
        self.one, self.two = nn.Sequential(shared, nn.Tanh()), nn.Sequential(shared, nn.Tanh(), nn.Linear(6, 6))
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 6) -> (batch, 3)."""
        return self.head(self.two(self.one(x)))


@pytest.mark.parametrize("branch", ["head", r"two\.2|head"])
@pytest.mark.parametrize("training", [False, True])
def test_a_trunk_may_share_a_layer_between_its_blocks(branch, training):
    torch.manual_seed(0)
    model, x = Relay(), torch.randn(5, 6)
    ensemble = pb.treenet(model, 3, branch=branch).train(training)
    outputs = ensemble(x)
    for i in range(3):
        own = {name: t[i] if name in ensemble.own else t for name, t in ensemble.module.named_parameters()}
        close(outputs[i], functional_call(model, own, x))


def test_a_frozen_trunk_stays_as_it_is():
    ensemble = pb.treenet(cnn(), 3, branch="6", freeze_trunk=True).train()
    before = {n: t.clone() for n, t in state(ensemble.module) if n not in ensemble.own}
    optimizer = torch.optim.SGD(ensemble.parameters(), 0.1, weight_decay=0.1)
    ensemble.loss(torch.randn(5, 3, 8, 8), targets(), F.cross_entropy).backward()
    optimizer.step()
    after = dict(state(ensemble.module))
    assert all(torch.equal(t, after[n]) for n, t in before.items())
    assert not ensemble.module[1].training
    assert ensemble.module[6].training


def test_multihead_finds_the_layer_that_gives_the_output():
    class Backwards(nn.Module):
        def __init__(self):
            super().__init__()
            self.head, self.body = nn.Linear(8, 3), nn.Linear(6, 8)

        def forward(self, x):
            return self.head(self.body(x).relu())

    x = torch.randn(5, 6)
    assert pb.multihead(Backwards(), 3, example=x).own == {"head.weight", "head.bias"}
    with pytest.raises(ValueError, match="its output comes from 'head'"):
        pb.multihead(Backwards(), 3)(x)
    assert pb.multihead(Backwards(), 3, where="head")(x).shape == (3, 5, 3)


def test_members_that_would_stay_alike_are_refused():
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3))
    with pytest.raises(ValueError, match="would stay the same"):
        pb.treenet(model, 3, branch="1")


def test_a_head_that_starts_at_zero_is_drawn():
    model = plain_mlp()
    nn.init.zeros_(model[4].weight)
    heads = pb.multihead(model, 3).module[4].weight
    assert (heads[0] - heads[1]).abs().max() > 0.01
