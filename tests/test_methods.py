"""Each method is what its paper describes: compared with separate networks, closed forms and hand-written sums."""

import math
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import pluribus as pb
from pluribus.layers import GroupedLinear
from pluribus.surgery import state
from small import Encoder, Recurrent, cnn, make, mlp, targets


def close(a, b, **tolerance):
    torch.testing.assert_close(a, b, **{"rtol": 1e-4, "atol": 1e-5, **tolerance})


def plain_mlp(width: int = 16) -> nn.Module:
    return nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3))


# -------------------------------------------------------------------- single and deep


def test_single_keeps_the_weights():
    model, x = mlp().eval(), torch.randn(5, 6)
    close(pb.single(model)(x)[0], model(x))


def test_deep_of_trained_models_is_those_models():
    models, x = [cnn().eval() for _ in range(3)], torch.randn(5, 3, 8, 8)
    ensemble = pb.deep(models)
    assert ensemble.module[0].weight.shape == (3, 8, 3, 3, 3)
    close(ensemble(x), torch.stack([m(x) for m in models]))


def test_deep_of_unlike_models_runs_them_by_the_loop():
    models, x = [plain_mlp(8), plain_mlp(12), nn.Linear(6, 3)], torch.randn(5, 6)
    ensemble = pb.deep(models)
    assert ensemble.run == "loop"
    close(ensemble(x), torch.stack([m(x) for m in models]))
    with pytest.raises(ValueError, match="unlike architectures"):
        ensemble.run = "vmap"


def test_models_that_differ_in_a_setting_only_are_unlike():
    a, b = (nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(slope), nn.Linear(8, 3)) for slope in (0.1, 0.9))
    x = torch.randn(5, 6)
    close(pb.deep([a, b])(x), torch.stack([a(x), b(x)]))


def test_deep_draws_every_tensor_anew_also_raw_parameters_and_attention():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.token = nn.Parameter(torch.randn(1, 1, 8))
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
            self.head = nn.Linear(8, 3)

        def forward(self, x):
            x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
            return self.head(self.attention(x, x, x)[0][:, 0])

    ensemble = pb.deep(Model(), 3)
    for name in ("token", "attention.in_proj_weight", "attention.out_proj.weight", "head.weight"):
        stacked = ensemble.module.get_parameter(name).detach()
        assert (stacked[0] - stacked[1]).abs().max() > 0.01, name
        assert 0.3 < stacked[0].std() / stacked[1].std() < 3


def test_a_builder_is_called_for_each_member():
    calls = []

    def build():
        calls.append(1)
        return mlp()

    assert pb.deep(build, 3).size == 3
    assert len(calls) == 3


@pytest.mark.parametrize("method", ["deep", "packed", "treenet", "multihead"])
def test_init_same_makes_members_alike_and_different_does_not(method):
    for init, alike in (("same", True), ("different", False)):
        ensemble, x = make(method, "mlp", init=init)
        assert torch.allclose(ensemble(x)[0], ensemble(x)[1]) == alike


@pytest.mark.parametrize("method", [m for m in pb.METHODS if m not in ("single", "mc_dropout")])
def test_a_generator_makes_it_repeatable(method):
    outputs = []
    for seed in (1, 1, 2):
        options = {"init": "different"} if method == "mimo" else {}
        ensemble, x = make(method, "mlp", generator=torch.Generator().manual_seed(seed), **options)
        outputs.append(ensemble(x))
        torch.rand(1)  # the global generator does not matter
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])


# -------------------------------------------------------------------- packed


def test_packed_members_are_alpha_over_size_as_wide():
    ensemble = pb.packed(plain_mlp(16), 4, alpha=2, example=torch.randn(2, 6))
    assert [tuple(p.shape) for p in ensemble.member(0).parameters()] == [
        tuple(p.shape) for p in plain_mlp(8).parameters()
    ]


def test_packed_equals_one_network_with_grouped_layers():
    """Figure 3 of the paper: members side by side in the channels, groups keep them apart."""
    ensemble = pb.packed(
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Conv2d(8, 3, 4)),
        4,
        example=torch.randn(2, 3, 8, 8),
    )
    x = torch.randn(5, 3, 8, 8)
    weights = [ensemble.module[i].weight.flatten(0, 1) for i in (0, 2, 4)]
    biases = [ensemble.module[i].bias.flatten() for i in (0, 2, 4)]
    h = F.conv2d(x, weights[0], biases[0]).relu()
    h = F.conv2d(h, weights[1], biases[1], groups=4).relu()
    h = F.conv2d(h, weights[2], biases[2], groups=4)
    close(ensemble(x), h.unflatten(1, (4, 3)).transpose(0, 1))


def test_widths_are_rounded_up_said_and_refused_when_strict():
    model, x = nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 3)), torch.randn(2, 6)
    ensemble = pb.packed(model, 4, alpha=2, example=x)
    assert ensemble.module[0].weight.shape == (4, 4, 6)
    assert "'0' has width 7, which was rounded up from 3.5 to 4" in ensemble.explain()
    with pytest.raises(ValueError, match=r"needs hidden widths that divide, but layer '0' has width 7"):
        pb.packed(model, 4, alpha=2, example=x, strict=True)
    assert pb.packed(plain_mlp(8), 4, alpha=2, example=x, strict=True).size == 4


def test_alpha_may_be_a_fraction_and_more_than_the_size():
    x = torch.randn(2, 6)
    for alpha, width in ((1.5, 6), (4, 16), (6, 24), (0.5, 2)):
        assert pb.packed(plain_mlp(16), 4, alpha=alpha, example=x).module[0].weight.shape == (4, width, 6)


def test_a_builder_needs_no_example():
    seen = []

    def build(width):
        seen.append(width)
        return plain_mlp(int(16 * width))

    ensemble = pb.packed(build, 4, alpha=2)
    assert set(seen) == {0.5}
    assert ensemble.module[0].weight.shape == (4, 8, 6)
    assert not torch.equal(ensemble.module[0].weight[0], ensemble.module[0].weight[1])


def test_gamma_makes_groups_where_they_have_64_channels():
    model = nn.Sequential(nn.Conv2d(3, 256, 1), nn.Conv2d(256, 256, 1), nn.Conv2d(256, 128, 1), nn.Conv2d(128, 10, 1))
    x = torch.randn(2, 3, 4, 4)
    member = pb.packed(model, 4, alpha=2, gamma=2, example=x, where="1|2|3").member(0)
    assert [layer.groups for layer in member] == [1, 2, 2, 1]  # 64 inputs of the last: one group
    member = pb.packed(model, 4, alpha=2, gamma=4, example=x, where="1|2", min_channels=16).member(0)
    assert [layer.groups for layer in member] == [1, 4, 4, 1]
    assert member(x).shape == (2, 10, 4, 4)


def test_gamma_rounds_widths_up_to_its_groups():
    model = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 3))
    ensemble = pb.packed(model, 4, alpha=2, gamma=2, example=torch.randn(2, 6), where="2")
    grouped = ensemble.member(0)[2]
    assert isinstance(grouped, GroupedLinear)
    assert (grouped.in_features, grouped.out_features, grouped.groups) == (6, 6, 2)
    assert ensemble(torch.randn(5, 6)).shape == (4, 5, 3)


def test_gamma_needs_to_know_where():
    with pytest.raises(ValueError, match="Choose with where= among"):
        pb.packed(plain_mlp(), 4, gamma=2, example=torch.randn(2, 6))


# -------------------------------------------------------------------- masks


def test_scale_one_is_one_network():
    model, x = mlp().eval(), torch.randn(5, 6)
    ensemble = pb.masksembles(model, 3, scale=1.0, example=x)
    close(ensemble(x), model(x).expand(3, -1, -1))


def test_masks_before_every_layer_but_the_first_keep_the_weights():
    model, x = mlp().eval(), torch.randn(5, 6)
    ensemble = pb.masksembles(model, 4, example=x)
    assert ensemble.own == {"3.mask", "5.mask"}
    first, second = ensemble.module[3].mask, ensemble.module[5].mask
    for i in range(4):
        h = model[0](x).relu() * first[i]
        h = model[3](h).relu() * second[i]
        close(ensemble(x)[i], model[5](h))


def test_disjoint_masks_equal_separate_thin_networks():
    model, x = plain_mlp(12), torch.randn(5, 6)
    ensemble = pb.masksembles(model, 3, scale=10.0, example=x)
    masks = [ensemble.module[i].mask.bool() for i in (2, 4)]
    assert all((m.sum(0) == 1).all() for m in masks)  # they share no channel
    for i in range(3):
        a, b = masks[0][i], masks[1][i]
        thin = plain_mlp(4)
        thin[0].weight.data, thin[0].bias.data = model[0].weight[a], model[0].bias[a]
        thin[2].weight.data, thin[2].bias.data = model[2].weight[b][:, a], model[2].bias[b]
        thin[4].weight.data, thin[4].bias.data = model[4].weight[:, b], model[4].bias
        close(ensemble(x)[i], thin(x))


def test_disjoint_masks_train_like_separate_thin_networks():
    model = plain_mlp(12)
    ensemble = pb.masksembles(model, 3, scale=10.0, example=torch.randn(2, 6))
    x, y = torch.randn(3, 4, 6), torch.stack([targets(4) for _ in range(3)])
    ensemble.train().loss(x, y, F.cross_entropy, per_member=True).backward()
    hidden = ensemble.module[4].mask.bool()
    for i in range(3):
        member = ensemble.member(i)
        (F.cross_entropy(member(x[i]), y[i]) / 3).backward()  # the mean over all rows
        close(ensemble.module[4].weight.grad[:, hidden[i]], member[4].weight.grad[:, hidden[i]])


def test_masks_share_normalisation_and_each_row_has_one_member_in_all_layers():
    ensemble, _ = make("masksembles", "cnn", 4)
    ensemble.train()
    for part in ensemble.module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    x, seen = torch.randn(6, 3, 8, 8), []
    ensemble(x)  # where the rows are is found on the first batch
    hooks = [
        layer.register_forward_pre_hook(lambda layer, _: seen.append(layer.rows.index.clone()))
        for layer in ensemble._layers()
    ]
    outputs = []
    ensemble.loss(x, targets(6), lambda o, t: outputs.append(o) or F.cross_entropy(o, t))
    assert len(seen) == 2
    assert torch.equal(seen[0], seen[1])
    assert sorted(Counter(seen[0].tolist()).values()) == [1, 1, 2, 2]  # balanced
    for hook in hooks:
        hook.remove()
    manual = ensemble.module
    h = manual[1](manual[0](x)).relu()  # statistics of the whole batch
    masked = h * manual[3].conv.mask[seen[0]][:, :, None, None]
    h = h + manual[3].norm(F.conv2d(masked, manual[3].conv.weight, padding=1)).relu()
    h = h.mean((2, 3)) * manual[6].mask[seen[0]]
    close(outputs[0], F.linear(h, manual[6].weight, manual[6].bias))


def test_shares_are_random_from_step_to_step():
    ensemble, x = make("masksembles", "mlp", 3)
    seen = set()
    ensemble.loss(x, targets(), F.cross_entropy)
    layer = ensemble.module[3]
    layer.register_forward_pre_hook(lambda layer, _: seen.add(tuple(layer.rows.index.tolist())))
    for _ in range(20):
        ensemble.loss(x[:1], targets(1), F.cross_entropy)
    assert seen == {(0,), (1,), (2,)}


def test_fixed_capacity_grows_layers():
    torch.manual_seed(0)
    x = torch.randn(5, 6)
    widths = []
    for seed in range(30):
        ensemble = pb.masksembles(
            plain_mlp(16), 4, scale=2.0, capacity=1.0, example=x, generator=torch.Generator().manual_seed(seed)
        )
        for i in (2, 4):
            mask = ensemble.module[i].mask
            assert (mask.sum(1) == 16).all()  # each member has the original width
            assert (mask.sum(0) > 0).all()
            assert ensemble.module[i].in_features == mask.shape[1]
            widths.append(mask.shape[1])
        assert ensemble(x).shape == (4, 5, 3)
    expected = 16 * 2 * (1 - (1 - 1 / 2) ** 4)
    assert sum(widths) / len(widths) == pytest.approx(expected, abs=0.5)


def test_fixed_capacity_grows_a_residual_network():
    ensemble, x = make("masksembles", "cnn", 4, scale=3.0, capacity=1.0)
    assert ensemble.module[3].conv.in_channels > 8
    assert (ensemble.module[3].conv.mask.sum(1) == 8).all()
    assert ensemble(x).shape == (4, 5, 3)


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


def test_a_layer_that_is_read_but_not_called_is_not_ignored():
    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

        def forward(self, x):
            return self.head(F.linear(x, self.inner.weight).relu())

    x = torch.randn(5, 6)
    with pytest.raises(ValueError, match=r"'inner'.*without calling"):
        pb.batch_ensemble(Reader(), 3)(x)
    ensemble = pb.batch_ensemble(Reader(), 3, example=x)
    assert ensemble.own == {"head.r", "head.s", "head.b"}
    assert ensemble(x).shape == (3, 5, 3)


# -------------------------------------------------------------------- dropout


def test_mc_dropout_is_the_network_in_its_dropout_and_eval_elsewhere():
    ensemble, x = make("mc_dropout", "cnn", 2000)
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


def test_functional_attention_and_recurrent_dropout_are_awake():
    encoder = pb.mc_dropout(Encoder().eval(), 2, example=torch.randn(2, 4, 5))
    assert "" in encoder.awake  # called as a function in the model's own forward
    assert {"encoder.layers.0.self_attn", "encoder.layers.0.dropout1"} <= encoder.awake
    recurrent = pb.mc_dropout(Recurrent(), 2, example=torch.randint(11, (2, 7)))
    assert recurrent.awake == {"lstm"}
    with torch.no_grad():
        x = torch.randint(11, (2, 7))
        outputs = recurrent.eval()(x)
    assert not torch.equal(outputs[0], outputs[1])


def test_rate_overrides_or_inserts():
    overridden = pb.mc_dropout(mlp(), 3, rate=0.25).module[2]
    assert overridden.p == 0.25
    inserted = pb.mc_dropout(plain_mlp(), 3, rate=0.25).module
    assert [getattr(layer, "rate", None) for layer in inserted] == [None, None, 0.25, None, 0.25]
    chosen = pb.mc_dropout(mlp(), 3, rate=0.25, where="5").module
    assert (chosen[2].p, chosen[5].rate) == (0.5, 0.25)


def test_a_model_that_drops_nothing_is_refused():
    with pytest.raises(ValueError, match="drops nothing"):
        pb.mc_dropout(plain_mlp(), 3)(torch.randn(2, 6))
    with pytest.raises(ValueError, match="drops nothing"):
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
def test_mimo_starts_as_the_model_given(name):
    from small import SMALL

    torch.manual_seed(0)
    model, x = SMALL[name].build().eval(), SMALL[name].batch(5)
    ensemble = pb.mimo(model, 3, example=x)
    close(ensemble(x), model(x).expand(3, -1, -1))


def test_mimo_training_sees_each_member_s_own_rows():
    """Members answer for their own input: with the others' slices at zero the network is one member's."""
    model = plain_mlp(8)
    ensemble = pb.mimo(model, 2, example=torch.randn(2, 6))
    ensemble.module[0].weight.data[:, 6:] = 0  # only the first member's input is read
    x, rows = torch.randn(4, 6), []
    ensemble.loss(x, x, lambda o, t: rows.append((o.detach(), t)) or o.sum())
    outputs, own = rows[0]
    half = model[0].weight / 2
    expected = model[4](model[2](F.linear(own, half, model[0].bias).relu()).relu())
    close(outputs, expected)


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


def test_mimo_and_mc_dropout_refuse_members():
    for method in ("mimo", "mc_dropout"):
        with pytest.raises(TypeError, match=f"{method}: .*member"):
            make(method, "mlp")[0].member(0)


def test_an_input_that_goes_around_the_first_layer_is_refused():
    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

        def forward(self, x):
            return self.head(x + self.first(x))

    with pytest.raises(ValueError, match="also goes around|must enter through"):
        pb.mimo(Around(), 3, example=torch.randn(2, 6))


# -------------------------------------------------------------------- trees


def test_the_trunk_runs_once_and_its_statistics_are_updated_once():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    x, y = torch.randn(5, 6), targets()
    ensemble = pb.treenet(model, 3, branch="4").train()
    passes = []
    ensemble.module[0].register_forward_hook(lambda *_: passes.append(1))
    trunk = []
    ensemble.module[2].register_forward_hook(lambda _, i, o: trunk.append(o))
    loss = ensemble.loss(x, y, F.cross_entropy)
    assert len(passes) == 1
    assert ensemble.module[2].num_batches_tracked == 1
    head = ensemble.module[4]
    expected = sum(F.cross_entropy(F.linear(trunk[0].relu(), head.weight[i], head.bias[i]), y) for i in range(3))
    close(loss, expected)
    ensemble.run = "loop"
    ensemble.loss(x, y, F.cross_entropy).backward()
    assert ensemble.module[2].num_batches_tracked == 2


def test_trees_keep_the_trunk_and_branch_where_they_are_told():
    model = cnn().eval()
    ensemble = pb.treenet(model, 3, branch="3|6")
    assert ensemble.own == {n for n, _ in state(model) if n.startswith(("3.", "6."))}
    assert torch.equal(ensemble.module[0].weight, model[0].weight)
    heads = pb.multihead(model, 3)
    assert heads.own == {"6.weight", "6.bias"}


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
    with pytest.raises(ValueError, match="would stay alike for ever"):
        pb.treenet(model, 3, branch="1")


def test_a_head_that_starts_at_zero_is_drawn():
    model = plain_mlp()
    nn.init.zeros_(model[4].weight)
    heads = pb.multihead(model, 3).module[4].weight
    assert (heads[0] - heads[1]).abs().max() > 0.01
