"""What no function of the laboratory can use is refused with the rule, the value and the way out."""

import numpy as np
import pytest
import torch
from torch import nn

from pluribus import landscape as ls

X, Y = torch.randn(12, 4, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3
ONE, TWO = nn.Linear(4, 3), nn.Linear(4, 3)
LINE, RUN = ls.line(ONE, TWO), ls.Trajectory.of([ONE, TWO, nn.Linear(4, 3)], ONE)
WRONG = {"labels": (X, Y + 100), "values": (X, Y.float()), "nothing": (X, None)}
MESSAGES = {
    "labels": "the labels do not fit cross_entropy with the network's outputs, \\(12, 3\\)",
    "values": "must be class numbers \\(int64\\), but they are floats",
    "nothing": "a batch must be \\(x, y\\), .* but a tuple has no labels",
}


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize(
    "call",
    [
        lambda data: ls.snapshots(ONE, data, 1, epochs=1, task="classification"),
        lambda data: ls.tunnel(ONE, TWO, data, points=2, steps=2, task="classification"),
        lambda data: ls.curve(ONE, TWO, data, steps=2, task="classification"),
        lambda data: ls.spectrum(ONE, data, top=1, task="classification"),
        lambda data: ls.along(LINE, data, 3, measures=("loss",), task="classification"),
    ],
)
def test_labels_that_do_not_fit_are_refused(call, kind):
    with pytest.raises(ValueError, match=MESSAGES[kind]):
        call(WRONG[kind])


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: ls.disagreement(ONE, TWO, (X * np.nan, Y)), "network 0 of a gives NaN"),
        (lambda: ls.divergence(ONE, [TWO, broken()], (X, Y)), "divergence: network 1 of b gives NaN"),
        (lambda: ls.snapshots(ONE, (X, Y), 2, epochs=0), "epochs must be a whole number of at least 1, but it is 0"),
        (lambda: ls.csgmcmc(ONE, (X, Y), 2, temperature=np.inf), "temperature must be 0 or more, but it is inf"),
    ],
)
def test_values_that_mean_nothing_are_refused(call, match):
    with pytest.raises(ValueError, match=match):
        call()


def broken():
    model = nn.Linear(4, 3)
    nn.init.constant_(model.weight, float("nan"))
    return model


def test_what_is_no_model_is_refused():
    with pytest.raises(TypeError, match="refresh_: the model must be an nn.Module, but it is a NoneType"):
        ls.refresh_(None, (X, Y))


HIDDEN = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
OTHER = X[:, :2], Y
TRAINED = {"epochs": 1, "seeds": 1, "size": 2}


@pytest.mark.parametrize(
    "call",
    [
        lambda: ls.along(LINE, OTHER, 3),
        lambda: ls.surface(ls.plane(ONE, TWO), OTHER, 3),
        lambda: ls.disagreement(ONE, TWO, OTHER),
        lambda: ls.spectrum(ONE, OTHER, 1),
        lambda: ls.curve(ONE, TWO, OTHER, steps=2),
        lambda: ls.snapshots(ONE, OTHER, 1, epochs=1),
        lambda: ls.cka(ONE, TWO, OTHER[0]),
        lambda: ls.refresh_(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), OTHER[0]),
        lambda: ls.trajectory(ONE, OTHER, epochs=1),
        lambda: ls.trajectories(ONE, (X, Y), OTHER, runs=2, epochs=1),
        lambda: ls.dropout_grid(HIDDEN, (X, Y), OTHER, rates=(0.1,), **TRAINED),
        lambda: ls.mask_transition(HIDDEN, OTHER, (X, Y), scales=(2.0,), capacity=None, **TRAINED),
    ],
)
def test_data_of_another_shape_are_refused_in_words(call):
    with pytest.raises(ValueError, match=r"does not run on the data, whose inputs have the shapes \(\d+, 2\)"):
        call()
