"""The question about the order of units: its figures are those of the lines, and nothing is claimed without one."""

import pytest
import torch
from odd_networks import linear
from torch import nn

from pluribus import landscape as ls
from pluribus.landscape.laboratory.questions import aligned_runs
from pluribus.landscape.material import Material


def material(build):
    torch.manual_seed(0)
    x = torch.randn(40, 4)
    rows = x, (x[:, 0] * x[:, 1] > 0).long()
    return Material([build().eval(), build().eval()], rows, rows, rows)


def test_the_ridges_of_the_page_are_those_of_the_lines():
    given = material(lambda: linear(4, 12, 2))
    question = aligned_runs(given)
    one, other = given.runs
    x = given.train[0]
    ways = [one, ls.align(one, other, x), ls.align(one, other, x, "activations")]
    heights = [max(ls.barrier(ls.line(way, other), given.test), 0.0) for way in ways]
    assert [float(row[-1]) for row in question.figures[0].rows] == pytest.approx(heights, abs=1e-4)
    assert [row[0] for row in question.figures[0].rows] == [
        "as trained",
        "aligned by weights",
        "aligned by activations",
    ]
    assert "1 group of hidden units can be permuted" in question.found[1]


def test_networks_without_hidden_units_have_nothing_to_align():
    question = aligned_runs(material(lambda: nn.Linear(4, 2)))
    assert question.figures == [] and question.found[0].startswith("There is nothing to align")
