"""Similarity against plain formulas, on networks of unlike kinds and holders."""

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon, pdist, squareform
from scipy.stats import entropy
from torch import nn

import pluribus as pb
from pluribus import landscape as ls

X, Y = torch.randn(60, 4, generator=torch.Generator().manual_seed(3)), torch.arange(60) % 3
NETWORKS = [nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)) for _ in range(4)]
HOLDERS = {
    "list": NETWORKS,
    "ensemble": pb.deep(NETWORKS),
    "trajectory": ls.Trajectory.of(NETWORKS, NETWORKS[0], (X, Y)),
    "several": [NETWORKS[0], pb.deep(NETWORKS[1:3]), ls.Trajectory.of(NETWORKS[3:], NETWORKS[0], (X, Y))],
}


def probabilities(model):
    with torch.no_grad():
        return model(X).softmax(-1).double().numpy()


def test_scales_of_normalisation_do_not_make_independent_networks_alike():
    torch.manual_seed(0)
    made = [nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.Conv2d(64, 64, 3)) for _ in range(2)]
    weights = [torch.cat([m[0].weight.flatten(), m[2].weight.flatten()]) for m in made]
    assert ls.cosine(*made)[0, 0] == pytest.approx(torch.cosine_similarity(*weights, dim=0).item(), abs=1e-6)
    assert abs(ls.cosine(*made)[0, 0]) < 0.05 < 0.4 < ls.cosine(*made, parameters="all")[0, 0]


@pytest.mark.parametrize("holder", HOLDERS.values(), ids=HOLDERS)
def test_whatever_holds_networks_may_stand_for_another(holder):
    for kept, parameters in ((lambda p: p.dim() > 1, "matrices"), (lambda p: True, "all")):
        flat = [torch.cat([p.detach().reshape(-1) for p in m.parameters() if kept(p)]).double() for m in NETWORKS]
        cosines = [[float(a @ b / a.norm() / b.norm()) for b in flat] for a in flat]
        assert ls.cosine(holder, parameters=parameters) == pytest.approx(np.array(cosines), abs=1e-9)
    labels = [probabilities(m).argmax(-1) for m in NETWORKS]
    apart = np.array([[(a != b).mean() for b in labels] for a in labels])
    assert ls.disagreement(holder, data=X) == pytest.approx(apart)
    error = np.array([(label != Y.numpy()).mean() for label in labels])
    assert ls.disagreement(holder, data=(X, Y), normalised=True) == pytest.approx(apart / error[:, None])
    assert ls.disagreement(holder, NETWORKS[:2], data=X) == pytest.approx(apart[:, :2])


def test_divergences_are_those_of_scipy():
    p = [probabilities(m) for m in NETWORKS]
    kl = [[entropy(a, b, axis=1).mean() for b in p] for a in p]
    js = [[np.mean([jensenshannon(u, v) ** 2 for u, v in zip(a, b, strict=True)]) for b in p] for a in p]
    assert ls.divergence(NETWORKS, data=X) == pytest.approx(np.array(kl), abs=1e-6)
    assert ls.divergence(NETWORKS, data=X, kind="js") == pytest.approx(np.array(js), abs=1e-6)


def test_disjoint_networks_are_log_2_apart_and_infinitely_by_kl():
    sure = [nn.Linear(1, 2, bias=False) for _ in range(2)]
    for model, weight in zip(sure, ([[1e4], [-1e4]], [[-1e4], [1e4]]), strict=True):
        model.weight.data = torch.tensor(weight)
    x = torch.ones(3, 1)
    assert ls.divergence(sure, data=x, kind="js") == pytest.approx(np.log(2) * (1 - np.eye(2)), abs=1e-9)
    assert ls.divergence(sure, data=x)[0, 1] == pytest.approx(2e4)  # finite: taken from logarithms


def test_functions_of_unlike_architectures_are_compared_and_their_weights_are_not():
    other = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    assert ls.disagreement([NETWORKS[0], other], data=X).shape == (2, 2)
    with pytest.raises(ValueError, match="the same architecture.*'0.weight'"):
        ls.cosine([NETWORKS[0], other])
    relu = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    with pytest.raises(ValueError, match="'1' is a Tanh in one and a ReLU"):
        ls.cosine(NETWORKS[0], relu)


def test_members_that_are_no_modules_of_their_own_are_compared_by_what_they_say():
    ensemble = pb.mimo(NETWORKS[0], 2, example=X)
    labels = ensemble.predict(X).members.argmax(-1)
    assert ls.disagreement(ensemble, data=X)[0, 1] == pytest.approx((labels[0] != labels[1]).double().mean().item())


def test_trained_trajectories_need_no_data():
    run = HOLDERS["trajectory"]
    assert ls.disagreement(run) == pytest.approx(ls.disagreement(NETWORKS, data=X))
    assert ls.disagreement(run, normalised=True) == pytest.approx(
        ls.disagreement(NETWORKS, data=(X, Y), normalised=True)
    )


def test_embeddings_keep_distances():
    runs = [ls.Trajectory.of(NETWORKS[:2], NETWORKS[0], X), ls.Trajectory.of(NETWORKS[2:3], NETWORKS[0], X)]
    points = ls.embedding(runs, method="mds")
    assert [part.shape for part in points] == [(2, 2), (1, 2)]
    p = [probabilities(m) for m in NETWORKS[:3]]
    js = [[np.mean([jensenshannon(u, v) ** 2 for u, v in zip(a, b, strict=True)]) for b in p] for a in p]
    assert squareform(pdist(np.concatenate(points))) == pytest.approx(np.sqrt(js), abs=1e-5)  # three lie in a plane
    flat = np.stack([q.ravel() for q in p])
    assert pdist(np.concatenate(ls.embedding(runs, method="pca"))) == pytest.approx(pdist(flat), abs=1e-5)


def test_tsne_puts_alike_networks_together():
    def near(model):
        close = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        close.load_state_dict({k: v + 0.01 * torch.randn_like(v) for k, v in model.state_dict().items()})
        return close

    groups = [[near(m) for _ in range(6)] for m in NETWORKS[:2]]
    first, second = ls.embedding(groups, method="tsne", data=X)
    within = max(np.ptp(first, 0).max(), np.ptp(second, 0).max())
    assert np.linalg.norm(first.mean(0) - second.mean(0)) > within


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: ls.disagreement(NETWORKS), "needs data="),
        (lambda: ls.disagreement(NETWORKS, data=X, normalised=True), "needs labels"),
        (lambda: ls.embedding(NETWORKS, method="umap", data=X), "method must be"),
        (lambda: ls.embedding(NETWORKS[:3], data=X), "at least 4 networks"),
        (lambda: ls.disagreement([nn.Linear(4, 1)], data=(X, torch.randn(60))), "the task is regression"),
        (lambda: ls.cosine(nn.BatchNorm1d(3)), "has no weight matrix"),
    ],
)
def test_bad_input_is_refused_with_a_reason(call, match):
    with pytest.raises(ValueError, match=match):
        call()
