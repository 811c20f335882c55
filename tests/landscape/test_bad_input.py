"""What no function of the laboratory can use is refused with the rule, the value and the way out."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import pluribus as pb
from pluribus import landscape as ls

X, Y = torch.randn(12, 4, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3
ONE, TWO = nn.Linear(4, 3), nn.Linear(4, 3)
LINE, RUN = ls.line(ONE, TWO), ls.Trajectory.of([ONE, TWO, nn.Linear(4, 3)], ONE)
WRONG = {"labels": (X, Y + 100), "values": (X, Y.float()), "nothing": (X, None), "inputs": (X,)}
MESSAGES = {
    "labels": "the labels do not fit cross_entropy with the network's outputs, \\(12, 3\\)",
    "values": "must be class numbers \\(int64\\), but they are floats",
    "nothing": "needs labels, but the data has none",
    "inputs": "needs labels, but the data has none",
}


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
    with pytest.raises(ValueError, match=MESSAGES[kind]):
        call(WRONG[kind])


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: ls.disagreement(ONE, TWO, (X * np.nan, Y)), "network 0 of a gives NaN"),
        (lambda: ls.divergence(ONE, [TWO, broken()], (X, Y)), "divergence: network 1 of b gives NaN"),
        (lambda: ls.snapshots(ONE, (X, Y), 2, epochs=0), "epochs must be a whole number of at least 1, but it is 0"),
        (lambda: ls.csgmcmc(ONE, (X, Y), 2, epochs=0), "epochs must be a whole number of at least 1, but it is 0"),
        (lambda: ls.csgmcmc(ONE, (X, Y), 2, temperature=np.inf), "temperature must be 0 or more, but it is inf"),
        (lambda: ls.plane(ONE, TWO).at(np.nan, 0.0), "u must be a finite number, but it is nan"),
        (lambda: ls.limits(0.5, 0.6, np.inf), "classes must be a whole number of at least 1, but it is inf"),
        (lambda: ls.family(0.5, "x", 3, 0.5), "reference_accuracy must be from 0 to 1, but it is 'x'"),
        (lambda: ls.barrier(LINE, (X, Y), "x"), "points must be a whole number"),
        (lambda: ls.diagonal_gaussian(RUN, 2, last="x"), "last must be a whole number of at least 1, but it is 'x'"),
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
        (lambda: ls.along(ONE, (X, Y)), "along: needs a path from ls.line, ls.tunnel or ls.curve, but got a Linear"),
        (lambda: ls.barrier(None, (X, Y)), "barrier: needs a path"),
        (lambda: ls.stitched(3, (X, Y)), "stitched: needs a path"),
        (lambda: ls.refresh_(None, (X, Y)), "refresh_: the model must be an nn.Module, but it is a NoneType"),
        (lambda: ls.Trajectory.of(ONE, ONE), "checkpoints must be a list of state_dicts"),
    ],
)
def test_what_is_of_another_kind_is_refused(call, match):
    with pytest.raises(TypeError, match=match):
        call()


HIDDEN = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
OTHER = X[:, :2], Y
TRAINED = {"epochs": 1, "seeds": 1, "size": 2}
BAD = object()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ls.surface(ls.plane(ONE, TWO), (X, Y), 3, path=BAD), "surface: path must be the name of a file"),
        (lambda: ls.surface(ls.plane(ONE, TWO), (X, Y), 3, margin="x"), "margin must be a finite number of at least 0"),
        (lambda: ls.surface(ls.plane(ONE, TWO), (X, Y), 3, extent=BAD), "extent must be two pairs of numbers"),
        (lambda: ls.surface(ls.plane(ONE, TWO), (X, Y), 3, measures=3), "measures must be a list of names"),
        (lambda: ls.stitched(LINE, (X, Y), 3, file=3), "stitched: file must be the name of a file"),
        (lambda: ls.permute(HIDDEN, ls.permutations(HIDDEN, X), 3), "generator must be a torch.Generator, or None"),
        (lambda: ls.align(HIDDEN, HIDDEN, X, restarts=-1), "restarts must be a whole number of at least 0, but"),
        (lambda: ls.soup([HIDDEN, HIDDEN], X, generator="x"), "soup: generator must be a torch.Generator"),
        (lambda: ls.random_plane(ONE, seed="x"), "seed must be a whole number of at least 0, but it is 'x'"),
        (lambda: ls.tunnel(ONE, TWO, (X, Y), seed=np.nan), "tunnel: seed must be a whole number of at least 0"),
        (lambda: ls.curve(ONE, TWO, (X, Y), weight_decay=-1), "weight_decay must be a finite number of at least 0"),
        (lambda: ls.curve(ONE, TWO, (X, Y), batch_size="x"), "batch_size must be a whole number of at least 1"),
        (lambda: ls.spectrum(ONE, (X, Y), tolerance="x"), "tolerance must be a positive, finite number"),
        (lambda: ls.spectrum(ONE, (X, Y), exact="x"), "spectrum: exact must be True, False or None"),
        (lambda: ls.cka(ONE, TWO, X, where=BAD), "cka: where must be a pattern of names"),
        (lambda: ls.embedding([RUN], perplexity=0), "perplexity must be a positive, finite number, or None"),
        (lambda: ls.refresh_(nn.BatchNorm1d(4), X, batches="x"), "batches must be a whole number of at least 1, or"),
        (lambda: ls.fast_geometric(ONE, (X, Y), 1, lr="x"), "lr must be a positive number, or two of them"),
        (lambda: ls.fast_geometric(ONE, [], 1), "fast_geometric: there must be at least one batch of data"),
        (lambda: ls.snapshots(ONE, (X, Y), 1, epochs=1, task="x"), "snapshots: task must be one of"),
        (lambda: ls.snapshots(ONE, (X, Y), 1, epochs=1, seed="x"), "snapshots: seed must be a whole number"),
        (lambda: ls.csgmcmc(ONE, (X, Y), 1, epochs=1, augment=3), "csgmcmc: augment must be a function, or None"),
        (lambda: ls.exact_iou("x", 3), "ones must be a whole number of at least 0, but it is 'x'"),
        (lambda: ls.family("x", 0.6, 3, 0.5), "family: accuracies must be numbers from 0 to 1"),
        (lambda: ls.fit_exponent(3, 0.6, 3), "fit_exponent: points must come from diversity_accuracy"),
        (lambda: ls.mask_overlap(sizes="x"), "sizes must be a list of at least one number, but it is 'x'"),
        (lambda: ls.sparsity_curves(inputs=0), "inputs must be a whole number of at least 1, but it is 0"),
        (lambda: ls.sparsity_curves(weight=0), "weight must be a finite number other than 0, but it is 0"),
        (lambda: ls.sparsity_bound(torch.ones(2, 3), "x", 1.0, 0.5), "sparsity_bound: mean must be a number"),
        (lambda: ls.sparsity_divergence(torch.ones(2, 3), 0.1, 1.0, BAD), "sparsity_divergence: p must be a number"),
        (lambda: ls.quality([RUN], samplers=3, data=(X, Y)), "quality: samplers must be a sampler, or several by name"),
        (lambda: ls.Trajectory.of([ONE, TWO], ONE, steps=3), "Trajectory.of: steps must be a list of numbers"),
        (lambda: ls.bias_variance(3, lambda s: (X, X), [1]), "bias_variance: make must be a function, but it is 3"),
        (lambda: ls.bias_variance(lambda n: n, lambda s: (X, X), 3), "bias_variance: sizes must be a list of numbers"),
        (lambda: ls.regularization_path(lambda: 1, (X, Y), (X, Y), l1="x"), "l1 must be a list of numbers"),
        (lambda: ls.sweep(3, [1], (X, Y), (X, Y)), "sweep: make must be a function"),
        (lambda: ls.measure_settings(3, (X, Y), (X, Y)), "measure_settings: entries must be a mapping from names"),
        (lambda: ls.network_widths(ONE, (X, Y), (X, Y)), "network_widths: build must be a function"),
        (lambda: ls.packing(HIDDEN, (X, Y), (X, Y), alphas=3), "alphas must be a list of at least one number"),
        (lambda: ls.randomness(ONE, (X, Y), X, rates=("x",)), "rates must be a list of at least one number"),
        (lambda: ls.trajectories(ONE, (X, Y), runs=2, seed="x"), "seed must be a whole number of at least 0"),
        (lambda: ls.trajectory(ONE, [], epochs=1), "fit: train must have at least one batch, but it is an empty list"),
        (lambda: ls.dropout_grid(HIDDEN, [], (X, Y), **TRAINED), "there must be at least one batch of data"),
        *[
            (lambda epochs=epochs: ls.trajectory(ONE, (X, Y), epochs=epochs), "epochs must be a whole number")
            for epochs in ("x", np.nan, np.inf, 1.5, [])
        ],
    ],
)  # fmt: skip
def test_arguments_of_the_wrong_kind_are_refused_by_name(call, words):
    weights = [p.clone() for model in (ONE, TWO, HIDDEN) for p in model.parameters()]
    with pytest.raises((ValueError, TypeError)) as caught:
        call()
    assert words in str(caught.value)
    left = [p for model in (ONE, TWO, HIDDEN) for p in model.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(weights, left, strict=True))


@pytest.mark.parametrize(
    "call",
    [
        lambda: ls.along(LINE, OTHER, 3),
        lambda: ls.surface(ls.plane(ONE, TWO), OTHER, 3),
        lambda: ls.disagreement(ONE, TWO, OTHER),
        lambda: ls.spectrum(ONE, OTHER, 1),
        lambda: ls.curve(ONE, TWO, OTHER, steps=2),
        lambda: ls.tunnel(ONE, TWO, OTHER, points=2, steps=2, task="classification"),
        lambda: ls.snapshots(ONE, OTHER, 1, epochs=1),
        lambda: ls.fast_geometric(ONE, OTHER, 1),
        lambda: ls.cka(ONE, TWO, OTHER[0]),
        lambda: ls.layer_sparsity(ONE, OTHER[0]),
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


def test_analyses_name_data_and_truths_that_do_not_fit():
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    mimo = pb.mimo(network, 2, example=torch.zeros(2, 4))
    with pytest.raises(ValueError, match=r"does not run on the data, whose inputs have the shapes \(9, 7\)"):
        ls.separation(mimo, torch.randn(9, 7))

    def draw(seed):
        x = torch.rand(20, 1, generator=torch.Generator().manual_seed(seed))
        return x, 2 * x

    def make(size):
        return pb.deep(nn.Linear(1, 1), size)

    with pytest.raises(ValueError, match=r"truth cannot be applied to the test inputs, whose shape is \(1000, 1\)"):
        ls.bias_variance(make, draw, [1], 2, steps=1, truth=nn.Linear(2, 1))
    with pytest.raises(TypeError, match="truth must give a tensor, but it gave a list"):
        ls.bias_variance(make, draw, [1], 2, steps=1, truth=lambda x: x.tolist())
    assert ls.bias_variance(make, draw, [1], 2, steps=1, truth=nn.Linear(1, 1)).bias.shape == (1,)
    with pytest.raises(ValueError, match="dropout_transition: scale must be a positive, finite number"):
        ls.dropout_transition(network, None, None, scale="x")
