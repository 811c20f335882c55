"""One run of a study: what reaches the network in training, and how shifted and other test data are judged."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F

import pluribus as pb
from pluribus.data.dataset import AnswerKey, NormalisedSplit, Points, Split
from pluribus.study import judging
from pluribus.study.baselines import build_ensemble
from pluribus.study.run import compute, load_data
from pluribus.study.settings import Run
from pluribus.training.fitting import apply_recipe
from pluribus.training.recipes import Recipe

DIGITS = Run(data="digits", model="lenet", method="single", training={"epochs": 1})


@pytest.fixture(scope="module")
def digits():
    data = load_data(DIGITS)
    torch.manual_seed(0)
    return data, build_ensemble(DIGITS, data).eval()


@pytest.mark.parametrize("augment", [None, {"flip": True, "crop": 1}])
def test_images_are_normalised_before_training_whether_augmented_or_not(augment, monkeypatch):
    seen = []
    loss = pb.Ensemble.loss

    def noted(self, batch, *args, **kwargs):
        seen.append(batch)
        return loss(self, batch, *args, **kwargs)

    monkeypatch.setattr(pb.Ensemble, "loss", noted)
    compute(dataclasses.replace(DIGITS, training={"epochs": 1, "augment": augment}))
    x = torch.cat(seen)
    assert abs(float(x.mean())) < 0.1
    assert abs(float(x.std()) - 1) < 0.1


def test_augmentation_leaves_validation_and_test_data_alone(digits):
    data, ensemble = digits
    plan = Recipe(augment={"flip": True, "crop": 1}, batch_size=64)
    batches, augment = apply_recipe(plan, ensemble, NormalisedSplit(data.train, data))
    x, y = next(iter(batches))
    changed, targets = augment(x, y)
    assert not torch.equal(changed, data.normalise(x))
    assert torch.equal(targets, y)
    assert torch.equal(NormalisedSplit(data.test, data)[:5][0], data.normalise(data.test[:5][0]))


def likelihood(ensemble, data, x, y):
    with torch.no_grad():
        return float(F.nll_loss(ensemble(data.normalise(x)).softmax(-1).mean(0).log(), y))


def test_published_shifts_are_judged_one_severity_after_the_other(digits):
    data, ensemble = digits
    x, y = data.test[:100]
    negatives = [Split(Points(x.clone()), y), Split(Points(1 - x), y)]
    found = judging._shift(DIGITS, dataclasses.replace(data, shifted={"negatives": negatives}), ensemble, None)[
        "negatives"
    ]
    assert [row["severity"] for row in found] == [1, 2]
    expected = [likelihood(ensemble, data, pictures, y) for pictures in (x, 1 - x)]
    assert [row["nll"] for row in found] == pytest.approx(expected, rel=1e-4)
    assert expected[0] != expected[1]


def test_other_test_sets_are_judged_among_the_classes_that_occur_in_them(digits):
    data, ensemble = digits
    x, y = data.test[:]
    few = (y == 2) | (y == 5)
    x, y = x[few], y[few]
    changed = dataclasses.replace(data, variants={"few": Split(Points(x), y)}, subsets={"few": [2, 5]})
    figures = judging._variants(changed, ensemble)["few"]
    with torch.no_grad():
        chances = ensemble(data.normalise(x))[..., [2, 5]].softmax(-1).mean(0)
    right = (y == 5).long()
    assert figures["accuracy"] == pytest.approx(float((chances.argmax(-1) == right).float().mean()))
    assert figures["nll"] == pytest.approx(float(-chances.gather(1, right[:, None]).log().mean()), rel=1e-4)


def test_test_sets_with_classes_of_their_own_are_judged_by_their_key(digits):
    data, ensemble = digits
    x, y = data.test[:60]
    answers = torch.zeros(2, 10, dtype=torch.bool)
    answers[0, [0, 2, 4, 6, 8]] = True
    answers[1, [1, 3, 5]] = True
    split, sets = Split(Points(x), y % 2), torch.arange(60) // 3
    keys = {"parity": AnswerKey(answers), "frames": AnswerKey(answers, sets)}
    changed = dataclasses.replace(data, variants=dict.fromkeys(keys, split), answer_keys=keys)
    figures = judging._variants(changed, ensemble)
    with torch.no_grad():
        label = ensemble(data.normalise(x)).softmax(-1).mean(0).argmax(-1)
    right = answers[y % 2, label]
    assert figures["parity"]["accuracy"] == pytest.approx(float(right.float().mean()))
    frames = right.reshape(20, 3)
    assert figures["frames"]["anchor_accuracy"] == pytest.approx(float(frames[:, 0].float().mean()))
    assert figures["frames"]["stable_accuracy"] == pytest.approx(float(frames.all(1).float().mean()))
    assert figures["parity"]["accuracy_among_known"] >= figures["parity"]["accuracy"]
