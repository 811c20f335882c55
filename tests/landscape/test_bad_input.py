"""What no function of the laboratory can use is refused with the rule, the value and the way out."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from pluribus import landscape as ls

X, Y = torch.randn(12, 4, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3
ONE, TWO = nn.Linear(4, 3), nn.Linear(4, 3)
LINE, RUN = ls.line(ONE, TWO), ls.Trajectory.of([ONE, TWO, nn.Linear(4, 3)], ONE)
WRONG = {"labels": (X, Y + 100), "values": (X, Y.float()), "nothing": (X, None), "inputs": (X,)}


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize(
    "call",
    [
        lambda data: ls.snapshots(ONE, data, 1, epochs=1, task="classification"),
        lambda data: ls.csgmcmc(ONE, data, 1, epochs=1, task="classification"),
        lambda data: ls.tunnel(ONE, TWO, data, points=2, steps=2, task="classification"),
        lambda data: ls.curve(ONE, TWO, data, steps=2, task="classification"),
        lambda data: ls.spectrum(ONE, data, top=1, task="classification"),
        lambda data: ls.along(LINE, data, 3, measures=("loss",), task="classification"),
    ],
)
def test_labels_that_do_not_fit_are_refused(call, kind):
    match = "the labels do not fit cross_entropy of what the network gives, \\(12, 3\\)"
    with pytest.raises(
        ValueError, match=match if kind in ("labels", "values") else "needs labels, but the data has none"
    ):
        call(WRONG[kind])


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: ls.disagreement(ONE, TWO, (X * np.nan, Y)), "network 0 of a answers with what is no number"),
        (lambda: ls.divergence(ONE, [TWO, broken()], (X, Y)), "divergence: network 1 of b answers with what is no"),
        (lambda: ls.snapshots(ONE, (X, Y), 2, epochs=0), "epochs must be a whole number from 1 on, but it is 0"),
        (lambda: ls.csgmcmc(ONE, (X, Y), 2, epochs=0), "epochs must be a whole number from 1 on, but it is 0"),
        (lambda: ls.csgmcmc(ONE, (X, Y), 2, temperature=np.inf), "temperature must be 0 or more, but it is inf"),
        (lambda: ls.plane(ONE, TWO).at(np.nan, 0.0), "u must be a finite number, but it is nan"),
        (lambda: ls.limits(0.5, 0.6, np.inf), "classes must be a whole number from 1 on, but it is inf"),
        (lambda: ls.family(0.5, "x", 3, 0.5), "reference_accuracy must be from 0 to 1, but it is 'x'"),
        (lambda: ls.barrier(LINE, (X, Y), "x"), "points must be a whole number"),
        (lambda: ls.diagonal_gaussian(RUN, 2, last="x"), "last must be a whole number from 1 on, but it is 'x'"),
        (lambda: ls.solutions(3), "runs must be a list of at least one"),
        *[
            (lambda draw=draw: draw(RUN, 2, seed=1.5), "seed must be a whole number, but it is 1.5")
            for draw in (ls.random_subspace, ls.dropout_subspace, ls.diagonal_gaussian, partial(ls.swag, rank=2))
        ],
    ],
)
def test_values_that_mean_nothing_are_refused(call, match):
    with pytest.raises(ValueError, match=match):
        call()


def broken():
    model = nn.Linear(4, 3)
    nn.init.constant_(model.weight, float("nan"))
    return model


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: ls.along(ONE, (X, Y)), "along: needs a path, which line, tunnel and curve give, but this is a Linear"),
        (lambda: ls.barrier(None, (X, Y)), "barrier: needs a path"),
        (lambda: ls.stitched(3, (X, Y)), "stitched: needs a path"),
        (lambda: ls.refresh_(None, (X, Y)), "refresh_: the model must be an nn.Module, but it is a NoneType"),
        (lambda: ls.Trajectory.of(ONE, ONE), "checkpoints must be a list of state_dicts"),
    ],
)
def test_what_is_of_another_kind_is_refused(call, match):
    with pytest.raises(TypeError, match=match):
        call()
