"""Quality curves against ensembles built apart, and what makes runs differ."""

import itertools
from functools import partial

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon
from sklearn.metrics import average_precision_score
from torch import nn

import pluribus as pb
from pluribus import landscape as ls

X, Y = torch.randn(90, 4, generator=torch.Generator().manual_seed(3)), torch.arange(90) % 3
MODELS = [[nn.Linear(4, 3) for _ in range(6)] for _ in range(3)]
RUNS = [ls.Trajectory.of(models, models[0]) for models in MODELS]


def test_curves_are_those_of_ensembles_built_apart():
    noisy = (X + torch.randn(90, 4, generator=torch.Generator().manual_seed(4)), Y)
    samplers = {"diag": partial(ls.diagonal_gaussian, last=6), "average": ls.weight_average}
    found = ls.quality(
        RUNS, samplers, (X, Y), shifts={"noise": [noisy, (2 * noisy[0], Y)], "outside": X[:9]}, samples=4
    )
    parts = {
        "solutions": [[models[-1]] for models in MODELS],
        "diag": [list(_members(ls.diagonal_gaussian(run, 4, last=6, seed=i))) for i, run in enumerate(RUNS)],
    }
    for name, networks in parts.items():
        for size in (1, 2, 3):
            judged = []
            for choice in itertools.combinations(range(3), size):
                prediction = pb.deep([m for i in choice for m in networks[i]]).predict(noisy[0])
                judged.append(pb.evaluate(prediction, Y))
            rows = [
                r
                for r in found.rows
                if (r["sampler"], r["size"], r["shift"], r["severity"]) == (name, size, "noise", 1)
            ]
            assert len(rows) == 1 and rows[0]["members"] == size * len(networks[0])
            for ours, theirs in (("accuracy",) * 2, ("brier",) * 2, ("nll",) * 2, ("jsd", "mutual_information")):
                assert rows[0][ours] == pytest.approx(np.mean([j[theirs] for j in judged]), abs=1e-5)
    sizes, accuracy = found.curve("accuracy")
    assert sizes == [1, 2, 3] and accuracy[0] == pytest.approx(
        np.mean([(m[-1](X).argmax(-1) == Y).float().mean().item() for m in MODELS])
    )
    assert found.by_severity("jsd", "diag", 3)[0] == [0, 1, 2]
    outside = [row for row in found.rows if row["shift"] == "outside"]
    assert all("accuracy" not in row and row["jsd"] >= 0 for row in outside)
    assert [row["jsd"] for row in found.rows if row["sampler"] == "solutions" and row["size"] == 1][0] == pytest.approx(
        0
    )


def _members(ensemble):
    return (ensemble.member(i) for i in range(ensemble.size))


def test_samplers_without_a_name_go_by_their_own():
    found = ls.quality(RUNS, [ls.weight_average, "diagonal"], (X, Y), sizes=[1], samples=2)
    assert {row["sampler"] for row in found.rows} == {"solutions", "weight_average", "diagonal"}
    assert ls.quality(RUNS, ls.weight_average, (X, Y), sizes=[1]).curve("nll", "weight_average")[0] == [1]
    with pytest.raises(ValueError, match="two samplers have the same name"):
        ls.quality(RUNS, [lambda run: ls.weight_average(run), lambda run: ls.weight_average(run)], (X, Y))


def test_what_is_no_sampler_is_refused():
    with pytest.raises(TypeError, match="must give an Ensemble, but this gave a list"):
        ls.of_subspaces(RUNS, lambda run, size: [nn.Linear(4, 3)], 3)


def test_corruptions_are_made_of_the_data():
    x = torch.rand(12, 3, 16, 16)
    models = [nn.Sequential(nn.Flatten(), nn.Linear(768, 3)) for _ in range(2)]
    found = ls.quality(models, (), (x, Y[:12]), shifts=["gaussian_noise"], severities=[2], normalise=lambda x: x - 0.5)
    from pluribus.data.corruptions import corrupt

    expected = [(m(corrupt(x, "gaussian_noise", 2) - 0.5).argmax(-1) == Y[:12]).float().mean().item() for m in models]
    assert found.curve("accuracy", shift="gaussian_noise", severity=2)[1][0] == pytest.approx(np.mean(expected))


def test_runs_differ_by_what_differs_between_them():
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
    found = ls.randomness(model, (X, Y), (X, Y), runs=2, rates=(0.01,), epochs=2, batch_size=10)
    assert found.mean("neither") == 0 and "deterministic" in found.note
    assert found.mean("initialisation") > found.mean("batches") > 0 and found.mean("both", 0.01) > 0
    far = 5 * X
    row = ls.randomness(model, (X, Y), (X, Y), runs=2, kinds=["both"], outside=far, epochs=2, batch_size=10).rows[0]
    runs = ls.trajectories(model, (X, Y), runs=2, epochs=2, batch_size=10, lr=1.6e-3)
    inside, outside = (np.stack([_probabilities(run.solution, x) for run in runs]) for x in (X, far))
    mean = inside.mean(0)
    assert row["disagreement"] == pytest.approx((inside[0].argmax(-1) != inside[1].argmax(-1)).mean())
    assert row["accuracy"] == pytest.approx((mean.argmax(-1) == Y.numpy()).mean())
    assert row["nll"] == pytest.approx(-np.log(mean[np.arange(90), Y]).mean(), rel=1e-4)
    for name, p in (("mutual_information", inside), ("outside", outside)):
        js = [jensenshannon(a, b) ** 2 for a, b in zip(*p, strict=True)]
        assert row[name] == pytest.approx(np.mean(js), rel=1e-3)
    sure = np.concatenate([mean.max(-1), outside.mean(0).max(-1)])
    assert row["aupr"] == pytest.approx(average_precision_score(np.repeat([0, 1], 90), -sure), rel=1e-3)
    with pytest.raises(ValueError, match="kind 'weather' is unknown"):
        ls.randomness(model, (X, Y), (X, Y), kinds=["weather"])


def _probabilities(network, x):
    with torch.no_grad():
        return network(x).softmax(-1).double().numpy()


def test_cycles_of_a_chain_are_compared_with_chains():
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    found = ls.chain_against_runs(model, (X, Y), (X, Y), chains=2, cycles=3, epochs=6, lr=0.05)
    starts = pb.deep(model, 2, generator=torch.Generator().manual_seed(0))
    chains = [ls.csgmcmc(starts.member(i), (X, Y), 3, cycles=3, epochs=6, lr=0.05, seed=i) for i in range(2)]
    labels = [[chain.member(k)(X).argmax(-1) for k in range(3)] for chain in chains]
    apart = [[(a != b).double().mean().item() for a, b in itertools.combinations(own, 2)] for own in labels]
    assert found["within"] == pytest.approx([np.mean(own) for own in apart])
    assert found["between"] == pytest.approx([(labels[0][-1] != labels[1][-1]).double().mean().item()])
    assert found["accuracy"] == pytest.approx([(one == Y).double().mean().item() for own in labels for one in own])
    assert "accuracy" not in ls.chain_against_runs(model, (X, Y), X, chains=2, cycles=2, epochs=2)
    with pytest.raises(ValueError, match="at least 2 chains of at least 2 cycles, but there are 2 of 1"):
        ls.chain_against_runs(model, (X, Y), X, chains=2, cycles=1)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: ls.quality(RUNS, ("luck",), (X, Y)), "'luck' is unknown"),
        (lambda: ls.quality(RUNS, (), X), "needs labels"),
        (lambda: ls.quality(RUNS, (), (X, Y), sizes=[4]), "from 1 to the 3 runs"),
        (lambda: ls.quality(RUNS, (), (X, Y)).curve("accuracy", "diag"), "nothing was measured"),
    ],
)
def test_bad_input_is_refused_with_a_reason(call, match):
    with pytest.raises(ValueError, match=match):
        call()


@pytest.mark.parametrize(
    ("values", "bar", "below", "verdict"),
    [
        ([3.0, 3.1, 2.9], 2.0, False, "holds"),
        ([1.0, 1.1, 0.9], 2.0, False, "does not hold"),
        ([1.0, 1.1, 0.9], 2.0, True, "holds"),
        ([3.0, 3.1, 2.9], 2.0, True, "does not hold"),
        ([1.0, 3.0, 2.0], 2.0, False, "open"),
        ([3.0], 2.0, False, "open"),
    ],
)
def test_a_finding_is_judged_by_its_interval(values, bar, below, verdict):
    for figure in ("a difference", "ratio of something"):
        assert ls.Finding("claim", figure, values, bar, below).verdict == verdict


@pytest.mark.slow
def test_the_papers_findings_are_judged_on_any_data():
    x = torch.randn(120, 4, generator=torch.Generator().manual_seed(1))
    y = (x[:, 0] * x[:, 1] > 0).long()
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    parts = [(x[i : i + 40], y[i : i + 40]) for i in (0, 40, 80)]
    found = ls.findings(model, *parts, 3 * x[:20], seeds=2, runs=3, epochs=6, batch_size=10, lr=0.02)
    assert len(found) == 19 and all(len(f.values) == 2 and np.isfinite(f.values).all() for f in found)
    by_claim = {finding.figure: finding for finding in found}
    assert max(by_claim["largest |cosine|"].values) <= 1 and "claim" not in str(found[0])
