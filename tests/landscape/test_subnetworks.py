"""Members inside one network: who owns which unit, and the plane through three of them."""

import numpy as np
import pytest
import torch
from plain import flat
from torch import nn

import pluribus as pb
from pluribus import landscape as ls

X = torch.randn(50, 5, generator=torch.Generator().manual_seed(0))
IMAGES = torch.randn(12, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def mlp():
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))


def convolutions():
    torch.manual_seed(3)
    layers = [nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 3), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))


def disjoint():
    """A MIMO network made of two that share nothing; the owners of its units, layer by layer."""
    made = pb.mimo(mlp(), 2, example=X, init="different", generator=torch.Generator().manual_seed(4))
    first, second, last = made.module[0], made.module[2], made.module[4]
    owners = [np.array([0, 1, 1, 0, 0, 1, 0, 1]), np.array([1, 1, 0, 0, 1, 0])]
    with torch.no_grad():
        for unit, owner in enumerate(owners[0]):
            first.weight[unit].unflatten(0, (2, 5))[1 - owner] = 0
        second.weight[torch.as_tensor(owners[1][:, None] != owners[0][None, :])] = 0
        heads = np.repeat([0, 1], 3)
        last.weight[torch.as_tensor(heads[:, None] != owners[1][None, :])] = 0
    return made.eval(), np.concatenate(owners)


def test_separation_of_two_disjoint_networks_names_every_owner():
    made, owners = disjoint()
    found = ls.separation(made, (X, torch.zeros(50)))
    assert found.variance.shape == (2, 14)
    assert found.owner.tolist() == owners.tolist() and found.layers == ["0", "2"]
    assert (found.variance.min(0) == 0).all() and (found.variance.max(0) > 0).all()
    assert found.share == pytest.approx(np.ones(14)) and found.separated() == 1
    assert found.layer.tolist() == [0] * 8 + [1] * 6
    assert ls.separation(made, X, batch_size=7).variance == pytest.approx(found.variance, rel=1e-5)


def test_conditional_variances_are_those_of_all_pairs_of_inputs():
    made = pb.mimo(mlp(), 2, example=X, init="different", generator=torch.Generator().manual_seed(5)).eval()
    found = ls.separation(made, X, repeats=150)
    with torch.no_grad():
        one, other = made.module[0].weight.chunk(2, 1)
        pairs = (X @ one.T)[:, None] + (X @ other.T)[None] + made.module[0].bias  # (first input, second, units)
        hidden = made.module[2](pairs.relu())
    first = torch.cat([part.var(0).mean(0) for part in (pairs, hidden)])  # over the first input, then over the second
    second = torch.cat([part.var(1).mean(0) for part in (pairs, hidden)])
    assert found.variance == pytest.approx(torch.stack([first, second]).numpy(), rel=0.1)


def test_channels_are_units_and_a_unit_without_variance_has_no_owner():
    made = pb.mimo(
        convolutions(), 2, example=IMAGES, init="different", generator=torch.Generator().manual_seed(6)
    ).eval()
    with torch.no_grad():
        made.module[0].weight[2] = 0
        made.module[0].weight[4, :3] = 0  # reads the second input alone
    found = ls.separation(made, IMAGES)
    assert found.variance.shape == (2, 10) and found.owner[2] == -1 and found.owner[4] == 1
    assert np.isnan(found.share[2]) and found.share[4] == 1


def test_the_ensemble_stays_as_it_is():
    made = pb.mimo(convolutions(), 2, example=IMAGES).train()
    before = {name: tensor.clone() for name, tensor in made.state_dict().items()}
    ls.separation(made, IMAGES)
    assert all(torch.equal(before[name], tensor) for name, tensor in made.state_dict().items())
    assert made.training and not any(part._forward_hooks or part._forward_pre_hooks for part in made.modules())


@pytest.mark.parametrize(("model", "x"), [(mlp(), X), (convolutions(), IMAGES)], ids=["mlp", "convolutions"])
def test_a_subnetwork_is_the_member_while_the_others_read_zeros(model, x):
    made = pb.mimo(model, 3, example=x, init="different", generator=torch.Generator().manual_seed(7)).eval()
    for i, network in enumerate(ls.subnetworks(made)):
        inputs = [((x if m == i else torch.zeros_like(x),), {}) for m in range(3)]
        with torch.no_grad():
            assert torch.allclose(network(x), made.answer_apart(inputs)[i], atol=1e-5)
        assert [type(a) for a in network.modules()] == [type(b) for b in model.modules()]
        assert {n: p.shape for n, p in network.named_parameters()} == {n: p.shape for n, p in model.named_parameters()}


def test_words_and_transposed_convolutions_are_sliced_too():
    torch.manual_seed(8)
    words = nn.Sequential(nn.Embedding(9, 6), nn.Flatten(), nn.Linear(24, 2))
    x = torch.randint(9, (7, 4))
    made = pb.mimo(words, 2, example=x, init="different").eval()
    first, second = ls.subnetworks(made)
    table = made.module[0].weight
    assert torch.equal(first[0].weight, table[:9]) and torch.equal(second[0].weight, table[9:])
    bare = nn.Sequential(nn.ConvTranspose1d(3, 4, 3), nn.ReLU(), nn.ConvTranspose1d(4, 2, 3))
    series = torch.randn(5, 3, 6)
    made = pb.mimo(bare, 2, example=series, init="different").eval()
    for i, network in enumerate(ls.subnetworks(made)):
        inputs = [((series if m == i else torch.zeros_like(series),), {}) for m in range(2)]
        with torch.no_grad():
            assert torch.allclose(network(series), made.answer_apart(inputs)[i], atol=1e-5)


@pytest.mark.parametrize("method", [pb.mimo, pb.multihead])
def test_the_plane_goes_through_the_three_members_and_the_origin_is_projected(method):
    made = method(mlp(), 4, example=X, init="different", generator=torch.Generator().manual_seed(9)).eval()
    members = (0, 1, 3)
    plane = ls.subnetwork_plane(made, members)
    networks = ls.subnetworks(made)
    for point, i in zip(plane.points, members, strict=True):
        assert torch.allclose(flat(plane.at(*point)), flat(networks[i]), atol=1e-5)
    at = plane.at(0.3, -0.2)
    assert torch.allclose(at[2].weight, made.module[2].weight, atol=1e-6)  # the body is shared
    same = at[0].weight.shape == made.module[0].weight.shape
    assert same is (method is pb.multihead) and (not same or torch.allclose(at[0].weight, made.module[0].weight))
    rows = torch.stack([flat(networks[i]) for i in members]).double().numpy()
    edges = np.stack([rows[1] - rows[0], rows[2] - rows[0]])
    nearest = rows[0] + np.linalg.lstsq(edges.T, -rows[0], rcond=None)[0] @ edges  # to the origin, in the plane
    assert flat(plane.at(*plane.origin)).numpy() == pytest.approx(nearest, abs=1e-5)
    assert plane.origin_distance == pytest.approx(np.linalg.norm(nearest), rel=1e-4)
    surface = ls.surface(plane, (X, torch.arange(50) % 3), grid=3)
    low, high = plane.extent()[0]
    assert surface.agreement.shape == (3, 3, 3) and low < plane.origin[0] < high


def test_what_is_no_such_ensemble_is_refused():
    with pytest.raises(TypeError, match="as pb.mimo makes, but got the method 'multihead'"):
        ls.separation(pb.multihead(mlp(), 2), X)
    with pytest.raises(TypeError, match="as pb.mimo makes, but got a Sequential"):
        ls.separation(mlp(), X)
    made = pb.mimo(mlp(), 2, example=X)
    with pytest.raises(ValueError, match="at least 2 rows"):
        ls.separation(made, X[:1])
    with pytest.raises(ValueError, match="there are 2. Build the ensemble with at least size=3"):
        ls.subnetwork_plane(made)
    with pytest.raises(TypeError, match="members live in one network.*got a Sequential"):
        ls.subnetwork_plane(mlp())
    with pytest.raises(ValueError, match="must not lie on one line"):
        ls.subnetwork_plane(pb.mimo(mlp(), 3, example=X, init="same"))  # all alike
