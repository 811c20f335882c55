"""Predictions with several labels for each example: one label after the other, and scikit-learn."""

import pytest
import torch
from sklearn.metrics import hamming_loss, log_loss

import pluribus as pb
from pluribus.uncertainty.classification import Classification


def answers(rows=600, labels=3, seed=0):
    chance = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(2, rows, labels, generator=chance) * torch.tensor([0.3, 1.0, 2.0])
    target = torch.bernoulli(logits.sigmoid().mean(0), generator=chance).long()
    return logits, target


@pytest.mark.parametrize("kind", ["lac", "aps", "raps"])
def test_each_label_gets_the_sets_that_it_gets_alone(kind):
    logits, target = answers()
    fitted, new = Classification.from_binary(logits[:, :400]), Classification.from_binary(logits[:, 400:])
    together = pb.conformal(fitted, target[:400], 0.9, kind)
    sets = together.sets(new)
    assert sets.shape == (200, 3, 2)
    sizes, coverages = [], []
    for i in range(3):
        one = Classification.from_binary(logits[:, :400, i])
        alone = pb.conformal(one, target[:400, i], 0.9, kind)
        other = Classification.from_binary(logits[:, 400:, i])
        assert torch.equal(sets[:, i], alone.sets(other))
        measured = alone.measure(other, target[400:, i])
        sizes.append(measured["size"])
        coverages.append(measured["coverage"])
    assert together.measure(new, target[400:]) == pytest.approx(
        {"coverage": sum(coverages) / 3, "size": sum(sizes) / 3}
    )
    assert min(coverages) > 0.8 and (kind != "lac" or len(set(together.quantile.tolist())) == 3)
    assert "from 400 examples" in together.explain()


def test_randomised_sets_of_labels_keep_their_promise():
    logits, target = answers(4000)
    promise = pb.conformal(Classification.from_binary(logits[:, :2000]), target[:2000], 0.8, "aps", randomise=True)
    inside = promise.sets(Classification.from_binary(logits[:, 2000:])).gather(-1, target[2000:, :, None])[..., 0]
    assert (inside.double().mean(0) > 0.77).all()


def test_abstaining_names_several_labels_and_the_way_out_works():
    logits, target = answers(2000)
    prediction = Classification.from_binary(logits)
    with pytest.raises(ValueError, match=r"multi-label prediction, with 3 labels .*prediction\.members\[:, :, i\]"):
        pb.abstain(prediction, target, 0.2)
    way_out = Classification.from_probabilities(prediction.members[:, :, 2])
    assert pb.abstain(way_out, target[:, 2], 0.2).coverage > 0.5


def test_pixels_are_not_taken_for_labels():
    dense = Classification.from_logits(torch.randn(2, 40, 2, 5, 5), class_dim=2)
    target = torch.zeros(40, 5, 5, dtype=torch.long)
    with pytest.raises(ValueError, match=r"keep one random label \(a pixel, a token\) of each row"):
        pb.conformal(dense, target)
    with pytest.raises(ValueError, match=r"keep one random label \(a pixel, a token\) of each row"):
        pb.abstain(dense, target)


def test_metrics_are_those_of_scikit_learn():
    logits, target = answers()
    found = pb.evaluate(Classification.from_binary(logits), target, metrics=["accuracy", "nll"])
    mean = logits.sigmoid().mean(0)
    assert found["accuracy"] == pytest.approx(1 - hamming_loss(target, mean > 0.5))
    assert found["nll"] == pytest.approx(log_loss(target.flatten(), mean.flatten().double()), rel=1e-5)
