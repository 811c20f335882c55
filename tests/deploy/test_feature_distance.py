"""pb.feature_distance: against scikit-learn and a closed form, on layers of several kinds, and what it refuses."""

import numpy as np
import pytest
import torch
from sklearn.covariance import EmpiricalCovariance
from sklearn.neighbors import NearestNeighbors
from torch import nn

import pluribus as pb
from pluribus.deploy.feature_distance import features_of


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 12), nn.Tanh(), nn.Linear(12, 3))


def rows(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(count, 6, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, :3].argmax(1))


def test_neighbours_are_those_of_scikit_learn():
    model, (x, y), (new, _) = network(), rows(400, 1), rows(50, 2)
    distance = pb.feature_distance(model, (x, y), neighbours=7)
    with torch.no_grad():
        known, asked = (nn.functional.normalize(model[:4](part)).numpy() for part in (x, new))
    expected = NearestNeighbors(n_neighbors=7, algorithm="brute").fit(known).kneighbors(asked)[0][:, -1]
    np.testing.assert_allclose(distance.score(new), expected, atol=2e-3)  # cdist in single precision near zero
    torch.testing.assert_close(distance.score((new, torch.zeros(50)), batch_size=20), distance(new))


@pytest.mark.parametrize("classes", [True, False])
def test_mahalanobis_is_that_of_scikit_learn(classes):
    model, (x, y), (new, _) = network(), rows(400, 1), rows(50, 2)
    distance = pb.feature_distance(model, (x, y if classes else x[:, 0]), "mahalanobis")
    with torch.no_grad():
        known, asked = model[:4](x).double().numpy(), model[:4](new).double().numpy()
    labels = y.numpy() if classes else np.zeros(400, int)
    means = np.stack([known[labels == label].mean(0) for label in np.unique(labels)])
    fitted = EmpiricalCovariance(assume_centered=True).fit(known - means[labels])
    ridge = 1e-3 * np.diag(fitted.covariance_).mean() * np.eye(12)
    precision = np.linalg.inv(fitted.covariance_ + ridge)
    gaps = asked[:, None] - means
    expected = np.sqrt(np.einsum("ncd,de,nce->nc", gaps, precision, gaps).min(1))
    np.testing.assert_allclose(distance(new), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", ["neighbours", "mahalanobis"])
def test_far_rows_are_found_and_the_network_stays_as_it_was(kind):
    model, (x, y) = network().train(), rows(400, 1)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    distance = pb.feature_distance(model, (x, y), kind)
    assert model.training and all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not any(module._forward_pre_hooks for module in model.modules())
    inside, outside = distance.score(rows(200, 3)[0]), distance.score(6 * rows(200, 4)[0] + 3)
    assert pb.metrics.auroc(inside, outside) > 0.8


def test_features_of_pixels_and_of_tokens_are_their_means():
    class Pixels(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 1)

        def forward(self, x):
            return self.head(self.body(x)).mean((2, 3))

    model, x = Pixels(), torch.randn(5, 3, 8, 8)
    torch.testing.assert_close(features_of(model, "head", x), model.body(x).mean((2, 3)))
    tokens = nn.Sequential(nn.Embedding(10, 6), nn.Linear(6, 3))
    ids = torch.randint(10, (4, 7))
    torch.testing.assert_close(features_of(tokens, "1", ids), tokens[0](ids).mean(1))


def test_only_so_many_rows_are_kept_and_each_has_the_same_chance():
    x, y = rows(500, 1)
    found = pb.feature_distance(network(), (x, y), rows=100, batch_size=64)
    assert found.rows.shape == (100, 12)
    counts = torch.zeros(500)
    features = nn.functional.normalize(features_of(network(), "4", x))
    for seed in range(40):
        kept = pb.feature_distance(network(), (x, y), rows=100, batch_size=64, seed=seed).rows
        counts += (torch.cdist(features, kept).min(1).values < 1e-4).float()
    halves = counts[:250].sum() / counts.sum(), counts[250:].sum() / counts.sum()
    assert halves[0] == pytest.approx(0.5, abs=0.05) and halves[1] == pytest.approx(0.5, abs=0.05)


def test_what_cannot_be_is_refused():
    data = rows(20, 1)
    with pytest.raises(ValueError, match="the kind 'knn' is unknown"):
        pb.feature_distance(network(), data, "knn")
    with pytest.raises(ValueError, match="takes one network, but this ensemble has 2 members"):
        pb.feature_distance(pb.deep(network(), 2), data)
    with pytest.raises(ValueError, match="neighbours must be from 1 to 20"):
        pb.feature_distance(network(), data, neighbours=30)
    found = pb.feature_distance(pb.single(network()), data)
    for changed, error in (
        ({"neighbours": 21}, ValueError),
        ({"neighbours": 0}, ValueError),
        ({"head": "x"}, AttributeError),
    ):
        with pytest.raises(error, match="neighbours must be from 1 to 20|has no attribute"):  # as a record can claim
            pb.FeatureDistance(
                **{"model": network(), "kind": "neighbours", "head": found.head, **changed}, reference=found.reference
            )
