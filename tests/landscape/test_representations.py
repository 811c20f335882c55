"""CKA against its closed form, written apart with explicit matrices."""

import numpy as np
import pytest
import torch
from torch import nn

import pluribus as pb
from pluribus import landscape as ls

X = torch.randn(30, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 20), nn.ReLU(), nn.Linear(20, 5)
    ).eval()


def features(model, x=X):
    found = []
    with torch.no_grad():
        for layer in model:
            x = layer(x)
            if isinstance(layer, (nn.Conv2d, nn.Linear)):
                found.append(x.flatten(1).double().numpy())
    return found


def closed_form(p, q):
    """Of centred features: |P'Q|^2 / (|P'P| |Q'Q|)."""
    p, q = p - p.mean(0), q - q.mean(0)
    return np.square(p.T @ q).sum() / np.sqrt(np.square(p.T @ p).sum() * np.square(q.T @ q).sum())


def debiased(p, q):
    """By the sums over different rows that the unbiased estimate of HSIC stands for (U-centred matrices)."""

    def centred(x):
        n, k = len(x), x @ x.T
        np.fill_diagonal(k, 0)
        k = k - k.sum(0) / (n - 2) - k.sum(1, keepdims=True) / (n - 2) + k.sum() / ((n - 1) * (n - 2))
        np.fill_diagonal(k, 0)
        return k

    k, m = centred(p), centred(q)
    return (k * m).sum() / np.sqrt((k * k).sum() * (m * m).sum())


@pytest.mark.parametrize("batch_size", [7, 30])
@pytest.mark.parametrize(("kind", "options"), [(closed_form, {}), (debiased, {"debiased": True})])
def test_cka_is_its_closed_form_whatever_the_batches(kind, options, batch_size):
    a, b = network(0), network(1)
    expected = np.array([[kind(p, q) for q in features(b)] for p in features(a)])
    assert ls.cka(a, b, X, batch_size=batch_size, **options) == pytest.approx(expected, abs=1e-5)
    assert np.diag(ls.cka(a, data=(X, torch.zeros(30)), **options)) == pytest.approx(np.ones(3), abs=1e-6)


def test_a_layer_and_a_rotated_copy_of_it_are_1():
    one, other = network(0), network(0)
    turn = torch.linalg.qr(torch.randn(20, 20, generator=torch.Generator().manual_seed(1)))[0]
    with torch.no_grad():
        other[4].weight.copy_(3.0 * turn @ one[4].weight)
        other[4].bias.copy_(turn @ one[4].bias + 5)  # turned, scaled and moved
    found = ls.cka(one, other, X)
    assert found[1, 1] == pytest.approx(1, abs=1e-6) and found[2, 2] < 0.999
    stretched = network(0)
    with torch.no_grad():
        stretched[4].weight[0] *= 10
    assert ls.cka(one, stretched, X)[1, 1] < 0.99


def test_any_two_architectures_are_compared_and_layers_have_names():
    small = nn.Sequential(nn.Flatten(), nn.Linear(192, 7), nn.ReLU(), nn.Linear(7, 5))
    assert ls.cka(network(), small, X).shape == (3, 2)
    assert ls.layer_names(network(), X) == ["0", "4", "6"]
    assert ls.layer_names(network(), X, where="1|2") == ["1", "2"]
    assert ls.cka(network(), data=X, where="1|2")[0, 0] == pytest.approx(1)


class Sequences(nn.Module):
    """Rows in the second dimension, a table of positions, a layer that is called twice."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.words, self.places = nn.Embedding(10, 6), nn.Embedding(5, 6)
        self.encoder = nn.TransformerEncoderLayer(6, 2, 12, batch_first=False)
        self.twice = nn.Linear(6, 6)

    def forward(self, x):
        h = (self.words(x) + self.places(torch.arange(5))).transpose(0, 1)  # (words, rows, features)
        h = self.encoder(h)
        return self.twice(self.twice(h).relu()).mean(0)


def test_rows_are_found_wherever_they_are():
    model, x = Sequences().eval(), torch.randint(10, (12, 5), generator=torch.Generator().manual_seed(2))
    names = ls.layer_names(model, x)
    assert "places" not in names and {"words", "twice (1)", "twice (2)", "encoder.self_attn"} <= {*names}
    seen = {}
    model.encoder.linear1.register_forward_hook(lambda m, args, out: seen.update(first=out.detach()))
    model(x)
    rows = seen["first"].transpose(0, 1).flatten(1).double().numpy()
    words = model.words(x).detach().flatten(1).double().numpy()
    found = ls.cka(model, data=x, batch_size=5)
    expected = closed_form(words, rows)
    assert found[names.index("words"), names.index("encoder.linear1")] == pytest.approx(expected, abs=1e-5)


def test_a_layer_that_says_nothing_is_not_a_number():
    model = network()
    with torch.no_grad():
        model[4].weight.zero_()
    found = ls.cka(model, data=X)
    assert np.isnan(found[1]).all() and np.isnan(found[:, 1]).all() and found[0, 0] == pytest.approx(1)


def test_trajectories_ensembles_and_bad_input():
    run = ls.Trajectory.of([network(0), network(1)], network(0))
    assert ls.cka(run, network(1), X)[0, 0] == pytest.approx(1)
    with pytest.raises(ValueError, match="needs one network"):
        ls.cka(pb.deep([network(0), network(1)]), data=X)
    with pytest.raises(ValueError, match="at least 4 rows"):
        ls.cka(network(), data=X[:3], debiased=True)
    with pytest.raises(ValueError, match="needs data"):
        ls.cka(network(), network(1))
    with pytest.raises(ValueError, match=r"'9' matches none of the model's modules"):
        ls.cka(network(), data=X, where="9")
    with pytest.raises(ValueError, match="no layer whose output"):
        ls.cka(nn.BatchNorm2d(3), data=X)
