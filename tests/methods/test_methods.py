"""Each method is what its paper describes: compared with separate networks, closed forms and hand-written sums."""

from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from small import close, cnn, make, mlp, plain_mlp, targets
from torch import nn

import pluribus as pb
from pluribus.core.rows import member_layers
from pluribus.methods.adapted_layers import GroupedLinear

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
    with pytest.raises(ValueError, match="different architectures"):
        ensemble.run = "vmap"


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


def test_rows_of_padding_and_spectral_norms_survive_a_new_draw():
    words = pb.deep(nn.Sequential(nn.Embedding(20, 8, padding_idx=0), nn.Flatten(), nn.Linear(24, 3)), 3)
    assert not words.module[0].weight[:, 0].any()
    normed = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(64, 64)), nn.Linear(64, 3))
    normed.train()(torch.randn(5, 64))
    for i in range(3):
        weight = pb.deep(normed, 3).eval().member(i)[0].weight
        assert torch.linalg.matrix_norm(weight.detach(), 2) == pytest.approx(1, abs=0.2)


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
        outputs.append(ensemble.module[0].lora_a if method == "lora" else ensemble(x))  # lora's members start alike
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
    with pytest.raises(ValueError, match=r"needs divisible hidden widths, but layer '0' has width 7"):
        pb.packed(model, 4, alpha=2, example=x, strict=True)
    assert pb.packed(plain_mlp(8), 4, alpha=2, example=x, strict=True).size == 4


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


def test_masks_share_normalisation_and_each_row_has_one_member_in_all_layers():
    ensemble, _ = make("masksembles", "cnn", 4)
    ensemble.train()
    for part in ensemble.module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    x, seen = torch.randn(6, 3, 8, 8), []
    hooks = [
        layer.register_forward_pre_hook(lambda layer, _: seen.append(layer.rows.index))
        for layer in member_layers(ensemble.module).values()
    ]
    outputs = []
    ensemble.loss(x, targets(6), F.cross_entropy)  # the first batch shows where the rows are
    seen.clear()
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
    layer.register_forward_pre_hook(
        lambda layer, _: layer.rows.index is not None and seen.add((*layer.rows.index.tolist(),)) or None
    )
    for _ in range(20):
        ensemble.loss(x[:1], targets(1), F.cross_entropy)
    assert seen == {(0,), (1,), (2,)}


def test_fixed_capacity_grows_layers():
    torch.manual_seed(0)
    x = torch.randn(5, 6)
    widths = []
    for seed in range(10):
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
