"""Members and ensemble as settings change, against figures computed apart; courses in function space."""

import numpy as np
import pytest
import torch
from torch import nn

import pluribus as pb
from pluribus import landscape as ls

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(90, 4, generator=GENERATOR)
Y = (X[:, 0] > 0).long() + (X[:, 1] > 0).long()


def mlp():
    return nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 3))


def mimo(size, **options):
    return pb.mimo(mlp(), size, example=X, init="different", **options)


def test_figures_of_members_and_ensemble_are_those_computed_apart():
    torch.manual_seed(1)
    made = mimo(3)
    found = ls.member_figures(made, (X, Y))
    with torch.no_grad():
        p = made.eval()(X).double().softmax(-1)
    labels, mean = p.argmax(-1), p.mean(0)
    assert found["accuracy"] == pytest.approx((mean.argmax(-1) == Y).double().mean().item())
    assert found["member_accuracy"] == pytest.approx((labels == Y).double().mean().item())
    assert found["log_likelihood"] == pytest.approx(mean.gather(1, Y[:, None]).log().mean().item(), rel=1e-5)
    each = p.gather(2, Y[None, :, None].expand(3, -1, 1)).log().mean().item()
    assert found["member_log_likelihood"] == pytest.approx(each, rel=1e-5)
    pairs = [(a, b) for a in range(3) for b in range(3) if a != b]
    apart = np.mean([(labels[a] != labels[b]).double().mean().item() for a, b in pairs])
    kl = np.mean([(p[a] * (p[a] / p[b]).log()).sum(-1).mean().item() for a, b in pairs])
    assert found["disagreement"] == pytest.approx(apart) and found["kl"] == pytest.approx(kl, rel=1e-4)


def test_a_sweep_trains_every_setting_for_every_seed():
    sizes = []

    def make(size):
        sizes.append(size)
        return mimo(size)

    found = ls.sweep(make, [1, 3], (X, Y), (X, Y), seeds=2, epochs=6, lr=0.05, batch_size=30)
    assert sizes == [1, 3, 1, 3] and found.settings == [1, 3] and len(found.rows) == 4
    one, three = found.values(1, "accuracy"), found.values(3, "member_accuracy")
    assert len({*one}) + len({*three}) >= 3 and min(one) > 0.6  # seeds differ, and something was learnt
    assert found.values(1, "disagreement") == [0.0, 0.0] and min(found.values(3, "disagreement")) > 0
    curve = found.curve("accuracy")
    assert curve.shape == (2, 3) and curve[0, 0] == pytest.approx(np.mean(one))
    expected = np.mean([a - b for a, b in zip(one, found.values(3, "accuracy"), strict=True)])
    assert found.difference(1, 3, "accuracy").value == pytest.approx(expected)
    again = ls.sweep(make, [1, 3], (X, Y), (X, Y), seeds=2, epochs=6, lr=0.05, batch_size=30)
    assert again.rows == found.rows
    with pytest.raises(ValueError, match="there is no 'speed' of 1"):
        found.values(1, "speed")


def test_a_path_makes_weights_zero_by_l1_and_small_by_l2():
    kept = []

    def make():
        kept.append(mimo(2))
        return kept[-1]

    found = ls.regularization_path(
        make, (X, Y), (X, Y), l1=[0.0, 0.05, 10.0], l2=[3.0], seeds=1, epochs=40, lr=0.03, schedule="cosine",
    )  # fmt: skip
    assert found.settings == [("l1", 0.0), ("l1", 0.05), ("l1", 10.0), ("l2", 3.0)]
    shares = [found.values(setting, "share")[0] for setting in found.settings]
    apart = []
    for made in kept:
        flat = torch.cat([p.detach().reshape(-1) for p in made.parameters()])
        apart.append(float((flat.abs() > 1e-4).double().mean()))
    assert shares == pytest.approx(apart)
    assert shares[0] > 0.99 and shares[0] > shares[1] > shares[2]
    accuracy = [found.values(setting, "accuracy")[0] for setting in found.settings]
    assert accuracy[0] > 0.6 and accuracy[2] <= max((Y == c).double().mean().item() for c in range(3)) + 1e-6
    norms = [sum(p.detach().square().sum().item() for p in made.parameters()) for made in kept]
    assert norms[3] < 0.01 * norms[0]
    assert found.rows[1]["l1"] == 0.05 and found.rows[1]["l2"] == 0 and found.rows[3]["l2"] == 3.0


def test_courses_are_what_members_say_and_are_embedded_like_trajectories():
    torch.manual_seed(2)
    made = mimo(3)
    with torch.no_grad():
        before = made.eval()(X).log_softmax(-1)
    found = ls.courses(made.train(), (X, Y), (X, Y), epochs=4, lr=0.02, start=True, batch_size=30)
    assert len(found) == 3 and [len(course) for course in found] == [5, 5, 5] and found[0].steps == [0, 3, 6, 9, 12]
    with torch.no_grad():
        after = made.eval()(X).log_softmax(-1)
    for i, course in enumerate(found):
        assert torch.allclose(course.answers[0].float(), before[i].float(), atol=1e-5)
        assert torch.allclose(course.answers[-1].float(), after[i].float(), atol=1e-5)
        assert torch.allclose(course.outputs.sum(-1), torch.ones(5, 90, dtype=course.outputs.dtype), atol=1e-5)
    points = ls.embedding(found, "pca")
    assert [part.shape for part in points] == [(5, 2)] * 3
    apart = ls.disagreement(found[0], found[1])[-1, -1]
    assert apart == pytest.approx((after[0].argmax(-1) != after[1].argmax(-1)).double().mean().item())
    with pytest.raises(ValueError, match="only on their probe"):
        ls.disagreement(found[0], found[1], data=X)


def test_bad_input_is_refused():
    with pytest.raises(TypeError, match="must give an Ensemble to train, but gave a Sequential"):
        ls.sweep(lambda size: mlp(), [1], (X, Y), (X, Y))
    with pytest.raises(ValueError, match="weight_decay is what the path varies"):
        ls.regularization_path(lambda: mimo(2), (X, Y), (X, Y), l1=[0.1], weight_decay=0.1)
    with pytest.raises(ValueError, match="needs labels"):
        ls.sweep(mimo, [1], (X, Y), X)


def test_between_members_is_what_the_networks_between_them_get_right():
    torch.manual_seed(3)
    made = mimo(3)
    found = ls.between_members(made, (X, Y), points=5)
    first, second, third = (dict(network.named_parameters()) for network in ls.subnetworks(made))
    template = ls.subnetworks(made)[0]

    def accuracy(*shares):
        mixed = {n: sum(s * own[n] for s, own in zip(shares, (first, second, third), strict=True)) for n in first}
        with torch.no_grad():
            labels = torch.func.functional_call(template, mixed, (X,)).argmax(-1)
        return (labels == Y).double().mean().item()

    alone = [accuracy(*row) for row in torch.eye(3).tolist()]
    assert found["alone_accuracy"] == pytest.approx(np.mean(alone))
    assert found["middle_accuracy"] == pytest.approx(accuracy(1 / 3, 1 / 3, 1 / 3))
    dips = []
    for a, b in ((0, 1), (0, 2), (1, 2)):
        places = [[(1 - t) * (k == a) + t * (k == b) for k in range(3)] for t in (0, 0.25, 0.5, 0.75, 1)]
        chord = [alone[a] + t * (alone[b] - alone[a]) for t in (0, 0.25, 0.5, 0.75, 1)]
        dips.append(max(c - accuracy(*place) for c, place in zip(chord, places, strict=True)))
    assert found["dip"] == pytest.approx(np.mean(dips), abs=1e-6) and len(set(alone)) > 1


def test_a_sweep_takes_further_figures():
    further = lambda made, data: {"rows": float(sum(len(y) for _, y in data.batches))}  # noqa: E731
    found = ls.sweep(mimo, [2], (X, Y), (X, Y), further=further, seeds=1, epochs=1)
    assert found.values(2, "rows") == [90.0]
