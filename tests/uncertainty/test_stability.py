"""Labels that count as right for classes of another set, and sets of similar frames, counted one by one."""

import numpy as np
import pytest
import torch

import pluribus as pb

ANSWERS = torch.tensor([[1, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 0, 0]]).bool()
LOGITS = torch.randn(3, 40, 5, generator=torch.Generator().manual_seed(0))
KINDS = torch.arange(40) % 3
PREDICTION = pb.Classification.from_logits(LOGITS)


def test_an_answer_is_right_if_it_is_one_of_several():
    chances = LOGITS.softmax(-1).mean(0).numpy()
    found = pb.answered(PREDICTION, KINDS, ANSWERS).tolist()
    assert found == [bool(ANSWERS[k, row.argmax()]) for k, row in zip(KINDS, chances, strict=True)]
    known = [[row[[0, 1]].max(), row[2]] for row in chances]  # no kind stands for the classes 3 and 4
    found = pb.answered(PREDICTION, KINDS, ANSWERS, among="known").tolist()
    assert found == [k < 2 and int(np.argmax(row)) == k for k, row in zip(KINDS.tolist(), known, strict=True)]
    assert not any(pb.answered(PREDICTION, torch.full((40,), 2), ANSWERS))  # nothing is right for the last kind


def test_a_set_is_stable_if_every_frame_is_right():
    generator = np.random.default_rng(0)
    right, sets = generator.random(300) < 0.8, generator.integers(0, 60, 300)
    first = {number: np.flatnonzero(sets == number)[0] for number in set(sets.tolist())}
    anchor = np.mean([right[at] for at in first.values()])
    stable = np.mean([right[sets == number].all() for number in first])
    found = pb.stability(right, sets)
    assert found == pytest.approx(
        {"anchor_accuracy": anchor, "stable_accuracy": stable, "accuracy_drop": anchor - stable}
    )
    assert found["stable_accuracy"] <= found["anchor_accuracy"]
