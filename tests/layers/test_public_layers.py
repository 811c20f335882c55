"""Layers for networks of one's own: equal to the conversion of whole models, and to definitions written apart."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import pluribus as pb
from pluribus import layers as pl

M = 4


def network(width: int = 16) -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()),
        *(nn.Conv2d(width, 2 * width, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(2 * width), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(8 * width, 12), nn.ReLU(), nn.Linear(12, 5)),
    )


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


# ---------------------------------------------------------------- packed


class Packed(nn.Module):
    """`network`, written with packed layers; pooled maps are flattened member by member."""

    def __init__(self, gamma: int):
        super().__init__()
        self.conv1 = pl.PackedConv2d(3, 16, 3, M, first=True, padding=1)
        self.bn1 = nn.BatchNorm2d(self.conv1.out_channels)
        self.conv2 = pl.PackedConv2d(16, 32, 3, M, 2, gamma, min_channels=1, stride=2, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(self.conv2.out_channels)
        self.fc1 = pl.PackedLinear(128, 12, M)
        self.fc2 = pl.PackedLinear(12, 5, M, last=True)

    def forward(self, x):
        h = F.relu(self.bn1(self.conv1(x)))
        h = F.adaptive_avg_pool2d(F.relu(self.bn2(self.conv2(h))), 2)
        return pl.split_channels(self.fc2(F.relu(self.fc1(h.flatten(1)))), M)


NAMES = {"0": "conv1", "1": "bn1", "3": "conv2", "4": "bn2", "8": "fc1", "10": "fc2"}


def converted(gamma: int):
    """A packed ensemble of the whole model, and the network of packed layers with its weights."""
    x = torch.randn(6, 3, 8, 8)
    ensemble = pb.packed(network(), M, 2, gamma, example=x, where="3", min_channels=1)
    own = Packed(gamma)
    with torch.no_grad():
        for name, tensor in (*ensemble.module.named_parameters(), *ensemble.module.named_buffers()):
            layer, _, key = name.partition(".")
            if key != "num_batches_tracked":
                target = own.get_submodule(NAMES[layer]).get_parameter(key) if "running" not in key else \
                    own.get_submodule(NAMES[layer]).get_buffer(key)  # fmt: skip
                assert target.shape == tensor.flatten(0, 1).shape, name
                target.copy_(tensor.flatten(0, 1))
    return ensemble, own, x


@pytest.mark.parametrize("gamma", [1, 2])
def test_packed_layers_equal_the_packed_model_in_eval_and_in_training(gamma):
    ensemble, own, x = converted(gamma)
    torch.testing.assert_close(own.eval()(x), ensemble.eval()(x), rtol=1e-4, atol=1e-5)
    y = torch.arange(6) % 5
    ensemble.train().loss(x, y, F.cross_entropy).backward()
    sum(F.cross_entropy(outputs, y) for outputs in own.train()(x)).backward()
    weights = dict(ensemble.module.named_parameters())
    for layer, name in NAMES.items():
        mine = own.get_submodule(name).weight.grad
        torch.testing.assert_close(mine, weights[f"{layer}.weight"].grad.flatten(0, 1), rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(own.bn2.running_mean, ensemble.module[4].running_mean.flatten(), rtol=1e-4, atol=1e-6)


KINDS = [(pl.PackedConv1d, F.conv1d, (9,)), (pl.PackedConv2d, F.conv2d, (9, 9)), (pl.PackedConv3d, F.conv3d, (5, 5, 5))]


@pytest.mark.parametrize(("layer", "convolve", "shape"), KINDS)
@pytest.mark.parametrize("gamma", [1, 2])
def test_a_packed_convolution_is_a_convolution_of_each_member(layer, convolve, shape, gamma):
    made = layer(24, 16, 3, M, 2, gamma, min_channels=1, padding=1, stride=2)
    assert made.weight.numel() == M * (2 * 24 / M) * (2 * 16 / M) * 3 ** len(shape) / gamma  # section 3.2
    x = torch.randn(2, 2 * 24, *shape)
    weights, biases = made.weight.chunk(M), made.bias.chunk(M)
    parts = [
        convolve(one, weight, bias, stride=2, padding=1, groups=gamma)
        for one, weight, bias in zip(x.chunk(M, 1), weights, biases, strict=True)
    ]
    torch.testing.assert_close(made(x), torch.cat(parts, 1), rtol=1e-4, atol=1e-5)


def test_a_packed_linear_layer_is_a_block_diagonal_matrix():
    made = pl.PackedLinear(12, 8, M, 2, 3)
    x = torch.randn(3, 7, made.in_features)
    blocks = torch.block_diag(*made.weight.chunk(M * 3))
    torch.testing.assert_close(made(x), x @ blocks.T + made.bias, rtol=1e-4, atol=1e-5)
    assert made.in_features == M * 6 and made.out_features == M * 6  # 4 outputs, rounded up to three groups of two


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: pl.PackedConv2d(8, 8, 3, M, groups=2), "groups follow from size and gamma"),
        (lambda: pl.PackedLinear(8, 8, 0), "size, the number of members"),
        (lambda: pl.PackedLinear(8, 8, M, alpha=-1), "alpha must be a positive number"),
        (lambda: pl.PackedLinear(8, 5, M, 2, 2, last=True), "gamma 2 must divide the 5 outputs"),
        (lambda: pl.split_channels(torch.zeros(3, 10), 4), "must hold outputs of 4 members"),
        (lambda: pl.split_rows(torch.zeros(3, 10), 4), "must be equally many"),
        (lambda: pl.MaskedLinear(8, 3, size=2, masks=torch.ones(3, 8)), r"\(members, inputs\) = \(2, 8\)"),
        (lambda: pl.MaskedLinear(8, 3, size=2, masks=torch.full((2, 8), 0.5)), "masks must be zeros and ones"),
        (lambda: pl.MaskedLinear(8, 3, size=2, masks=torch.eye(2, 8) * torch.tensor([[1.0], [0.0]])), "a one in each"),
        (lambda: pl.BatchLinear(8, 3, size=2, std=0.0), "members with equal vectors would stay the same"),
        (lambda: pl.BatchLinear(8, 3, size=2, init="ones"), "init must be one of 'normal', 'signs'"),
        (lambda: pl.MaskedConv2d(8, 3, 1, size=2)(torch.zeros(8, 4, 4)), "the input must be"),
    ],
)
def test_bad_settings_are_named(make, words):
    with pytest.raises(ValueError, match=words):
        make()


# ---------------------------------------------------------------- masks and rank-1 vectors: rows of a batch


def build(convolution, linear) -> nn.Module:
    return nn.Sequential(
        *(convolution(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), convolution(8, 12, 3, stride=2)),
        *(nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), linear(12, 5)),
    )


def masked_conv(*args, **kwargs):
    return pl.MaskedConv2d(*args, size=M, **kwargs)


def test_masked_layers_equal_the_masked_model():
    x = torch.randn(6, 3, 8, 8)
    model = build(nn.Conv2d, nn.Linear)
    ensemble = pb.masksembles(model, M, 2.0, example=x)
    own = build(lambda *a, **k: masked_conv(*a, **k) if a[0] > 3 else nn.Conv2d(*a, **k),
                lambda i, o: pl.MaskedLinear(i, o, size=M))  # fmt: skip
    own.load_state_dict({name.replace(".mask", ".masks"): t for name, t in ensemble.module.state_dict().items()})
    found = pl.split_rows(own.eval()(pl.repeat_rows(x, M)), M)
    torch.testing.assert_close(found, ensemble.eval()(x), rtol=1e-4, atol=1e-5)


def test_batch_layers_equal_the_batch_ensemble_in_eval_and_in_training():
    x, y = torch.randn(6, 3, 8, 8), torch.arange(6) % 5
    ensemble = pb.batch_ensemble(build(nn.Conv2d, nn.Linear), M)
    own = build(lambda *a, **k: pl.BatchConv2d(*a, size=M, **k), lambda i, o: pl.BatchLinear(i, o, size=M))
    own.load_state_dict(ensemble.module.state_dict())
    found = pl.split_rows(own.eval()(pl.repeat_rows(x, M)), M)
    torch.testing.assert_close(found, ensemble.eval()(x), rtol=1e-4, atol=1e-5)
    loss = F.cross_entropy(own.train()(pl.repeat_rows(x, M)), y.repeat(M))
    torch.testing.assert_close(loss, ensemble.train().loss(x, y, F.cross_entropy), rtol=1e-4, atol=1e-5)


ROWS = [
    (nn.Linear, pl.MaskedLinear, pl.BatchLinear, (), ()), (nn.Linear, pl.MaskedLinear, pl.BatchLinear, (), (7,)),
    (nn.Conv1d, pl.MaskedConv1d, pl.BatchConv1d, (3,), (6,)),
    (nn.Conv2d, pl.MaskedConv2d, pl.BatchConv2d, (3,), (6, 6)),
    (nn.Conv3d, pl.MaskedConv3d, pl.BatchConv3d, (3,), (5, 5, 5)),
]  # fmt: skip


@pytest.mark.parametrize(("plain", "masked", "batch", "kernel", "shape"), ROWS)
@pytest.mark.parametrize("rows", [8, 10, 3, 1])
def test_each_row_goes_through_the_tensors_of_its_member(plain, masked, batch, kernel, shape, rows):
    """Row by row, with a plain layer: y = W (mask x) + b, and y = ((x r) W) s + b."""
    linear = plain is nn.Linear
    x = torch.randn(rows, *shape, 6) if linear else torch.randn(rows, 6, *shape)
    along = (lambda v: v) if linear else (lambda v: v.reshape(-1, *[1] * len(shape)))
    member = [i * M // rows for i in range(rows)]
    counts = [member.count(i) for i in range(M)]
    assert max(counts) - min(counts) <= 1 and member == sorted(member)
    one, other = masked(6, 5, *kernel, size=M, scale=2.0), batch(6, 5, *kernel, size=M)
    reference = plain(6, 5, *kernel)
    reference.load_state_dict({"weight": one.weight, "bias": one.bias})
    expected = torch.cat([reference(x[i : i + 1] * along(one.masks[m])) for i, m in enumerate(member)])
    torch.testing.assert_close(one(x), expected, rtol=1e-4, atol=1e-5)
    reference = plain(6, 5, *kernel, bias=False)
    reference.load_state_dict({"weight": other.weight})
    expected = torch.cat(
        [
            reference(x[i : i + 1] * along(other.r[m])) * along(other.s[m]) + along(other.b[m])
            for i, m in enumerate(member)
        ]
    )
    torch.testing.assert_close(other(x), expected, rtol=1e-4, atol=1e-5)


def test_masks_of_ones_own_are_used_and_saved_with_the_weights():
    own = pb.masks(8, 4, scale=3.0, generator=torch.Generator().manual_seed(1))
    layer = pl.MaskedLinear(8, 3, size=4, masks=own)
    assert torch.equal(layer.masks, own) and "masks" in layer.state_dict()
    assert not any(name == "masks" for name, _ in layer.named_parameters())
    other = pl.MaskedLinear(8, 3, size=4)
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other.masks, own)
