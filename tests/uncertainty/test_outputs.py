"""Answers inside the graph: what `predict` gives, for every task."""

import pytest
import torch
from torch import Tensor, nn

import pluribus as pb
from pluribus.uncertainty.outputs import AnswerModule, answer_names, compute_answers
from pluribus.uncertainty.prediction import prediction_of


class Given(nn.Module):
    """Gives what it holds."""

    def __init__(self, outputs):
        super().__init__()
        self.outputs = outputs

    def forward(self, x: Tensor):
        return self.outputs


CASES = {
    "classification": (torch.randn(3, 5, 4) * 4, None),
    "classification, classes second": (torch.randn(3, 5, 4, 2, 2) * 4, 1),
    "classification, tokens": (torch.randn(3, 5, 6, 4) * 4, -1),
    "binary": (torch.randn(3, 5) * 4, None),
    "regression": (torch.randn(3, 5, 2), None),
    "gaussian": (torch.randn(3, 5, 2), None),
}


@pytest.mark.parametrize("case", CASES)
def test_answers_are_those_of_a_prediction(case):
    outputs, class_dim = CASES[case]
    task = case.partition(",")[0]
    expected = prediction_of(task, outputs, class_dim)
    given = AnswerModule(Given(outputs), task, class_dim)(torch.zeros(5))
    assert tuple(given) == answer_names(task)
    for name, tensor in given.items():
        torch.testing.assert_close(tensor, getattr(expected, name), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", ["deep", "batch_ensemble"])
def test_an_ensemble_answers_as_it_predicts(method):
    ensemble = pb.METHODS[method](nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), 3).eval()
    x = torch.randn(5, 6)
    expected, given = ensemble.predict(x), AnswerModule(ensemble)(x)
    torch.testing.assert_close(given["epistemic"], expected.epistemic, rtol=1e-4, atol=1e-6)
    assert torch.equal(given["label"], expected.label)


def test_a_class_that_all_members_exclude_has_probability_zero_and_no_nan():
    logits = torch.tensor([[[0.0, 1.0, -torch.inf]], [[1.0, 0.0, -torch.inf]]])
    given = compute_answers("classification", logits)
    assert given["mean"][0, 2] == 0
    assert all(tensor.isfinite().all() for tensor in given.values())
