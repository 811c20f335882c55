"""Selected members, cascades and budgets: exact at their ends, by themselves in any batch, and as sure as they say."""

import math

import numpy as np
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import pluribus as pb
from pluribus.deploy.cascading import Asked, StageRows, choose
from pluribus.deploy.member_selection import fit_law


def network():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


@pytest.fixture(scope="module")
def trained():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        x = torch.randn(2600, 8)
        y = (x @ torch.randn(8, 3) + 1.5 * torch.randn(2600, 3)).argmax(1)
        ensemble = pb.deep(network(), 4)
        optimizer = torch.optim.Adam(ensemble.parameters(), 2e-2)
        for _ in range(60):
            optimizer.zero_grad()
            ensemble.loss(x[:200], y[:200], F.cross_entropy).backward()
            optimizer.step()
    return ensemble.eval(), (x[200:2200], y[200:2200]), (x[2200:], y[2200:])


def pooled(members, x):
    """The mean probability of plain networks."""
    with torch.no_grad():
        return torch.stack([member.eval()(x).softmax(-1) for member in members]).mean(0)


# ---------------------------------------------------------------- some members


@pytest.mark.parametrize("method", ["deep", "packed", "masksembles", "batch_ensemble", "treenet", "multihead"])
def test_votes_are_exact_in_prediction_frozen_exported_and_saved(method, tmp_path):
    x, model = torch.randn(6, 8), network()
    more = {"packed": {"example": x}, "masksembles": {"example": x}, "treenet": {"branch": "2"}}.get(method, {})
    ensemble = pb.METHODS[method](model, 4, **more).eval()
    some = ensemble.subset([3, 1], votes=[2, 1])
    one, other = (ensemble.member(i) for i in (3, 1))
    expected = pooled([one, one, other], x)
    assert some.size == 2 and pb.cost(some, x).mult_adds < pb.cost(ensemble, x).mult_adds
    torch.testing.assert_close(some.predict(x).mean, expected)
    torch.testing.assert_close(some.pooled()(x).exp(), expected)
    torch.testing.assert_close(pb.freeze(some, x).predict(x).mean, expected, atol=1e-5, rtol=0)
    pb.save(some, tmp_path / "some.safetensors")
    torch.testing.assert_close(pb.load(tmp_path / "some.safetensors", model).predict(x).mean, expected)
    if method == "deep":
        pb.export(some, x, tmp_path / "some.onnx")
        session = onnxruntime.InferenceSession(tmp_path / "some.onnx")
        mean = session.run(["mean"], {session.get_inputs()[0].name: x.numpy()})[0]
        np.testing.assert_allclose(mean, expected, atol=1e-5)


def test_networks_that_differ_are_kept_with_their_votes():
    ensemble = pb.deep([nn.Linear(8, 3), network(), nn.Sequential(nn.Linear(8, 5), nn.Linear(5, 3))]).eval()
    x = torch.randn(4, 8)
    torch.testing.assert_close(ensemble.subset([2, 0], [1, 2])(x), ensemble(x)[[2, 0, 0]])


def test_members_that_are_no_networks_have_no_subset():
    for ensemble in (pb.mimo(network(), 2, example=torch.randn(4, 8)), pb.mc_dropout(network(), 2, rate=0.1)):
        with pytest.raises(TypeError, match="no ensemble of some of them"):
            ensemble.subset([0])


def test_good_members_are_selected_and_the_choice_is_the_best_of_all_pairs():
    torch.manual_seed(0)
    x, w = torch.randn(600, 8), torch.randn(8, 3)
    y = (x @ w).argmax(1)
    ensemble = pb.deep(nn.Linear(8, 3), 5)
    with torch.no_grad():
        for i in (1, 4):
            ensemble.module.weight[i] = w.T + 0.3 * torch.randn(3, 8)
    kept = pb.select(ensemble, (x, y), size=2)
    found = kept.selection
    assert set(found.members) == {1, 4} and len(found.losses) == 5
    nll = F.nll_loss(kept.predict(x).mean.log(), y).item()
    p = [pooled([ensemble.member(i)], x)[torch.arange(600), y] for i in range(5)]
    best = min(
        -(a * p[i] + (1 - a) * p[j]).log().mean() for i in range(5) for j in range(5) for a in np.linspace(0, 1, 50)
    )
    assert nll <= best + 0.01
    assert pb.select(ensemble, (x, y)).size <= 3


def test_the_power_law_finds_what_more_members_give():
    inside = 0
    for seed in range(10):
        generator = np.random.default_rng(seed)
        signal = generator.normal(1, 1.5, 2000)
        p = 1 / (1 + np.exp(-(signal + generator.normal(0, 1.2, (40, 2000)))))
        found = fit_law(p[:8]).loss(16)
        truth = np.mean([-np.log(p[8 + generator.permutation(32)[:16]].mean(0)).mean() for _ in range(10)])
        inside += found.low <= truth <= found.high
        assert abs(found.value - truth) < 0.01
    assert inside >= 9
    law = fit_law(np.stack([np.full(50, 0.6)] * 4))
    assert law.needed() == 1 and law.loss(9).value == pytest.approx(-math.log(0.6))


# ---------------------------------------------------------------- cascades


def test_with_thresholds_at_their_ends_it_is_the_first_or_the_last_stage(trained):
    ensemble, _, (x, _) = trained
    stages = [ensemble.subset([0]), ensemble.subset([1, 2, 3])]
    for low, members in ((math.inf, 1), (-math.inf, 4)):
        cascade = pb.Cascade(stages, [(low, math.inf)])
        expected = pooled([ensemble.member(i) for i in range(members)], x)
        torch.testing.assert_close(cascade.predict(x).mean, expected)
        assert cascade.answers(x)["members"].unique().tolist() == [members]


def test_each_row_has_the_answer_that_a_loop_over_rows_gives(trained, tmp_path):
    ensemble, _, (x, _) = trained
    x, members = x[:60], [ensemble.member(i) for i in range(4)]
    cascade = pb.Cascade([ensemble.subset(s) for s in ([0], [1], [2, 3])], [(0.2, math.inf), (0.3, 0.6)])
    expected, used = [], []
    for row in x:
        count, mean = 1, pooled(members[:1], row[None])
        if 1 - mean.max() >= 0.2:
            count, mean = 2, pooled(members[:2], row[None])
            if 0.3 <= 1 - mean.max() < 0.6:
                count, mean = 4, pooled(members, row[None])
        expected.append(mean)
        used.append(count)
    assert set(used) == {1, 2, 4}
    frozen = pb.freeze(cascade, x[:8])
    pb.export(frozen, x[:8], tmp_path / "cascade.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "cascade.onnx")
    for size in (1, 7, 60):  # rows do not depend on their batch
        parts = [network.answers(part) for network in (cascade, frozen) for part in x.split(size)]
        name = session.get_inputs()[0].name
        outside = [session.run(["mean", "members"], {name: part.numpy()}) for part in x.split(size)]
        mean = torch.cat([*(part["mean"] for part in parts), *(torch.from_numpy(part[0]) for part in outside)])
        members_used = torch.cat([*(part["members"] for part in parts), *(torch.from_numpy(one[1]) for one in outside)])
        torch.testing.assert_close(mean, torch.cat(expected * 3), atol=1e-5, rtol=0)
        assert members_used.tolist() == used * 3


@pytest.mark.parametrize("kind", ["frozen", "cascade"])
def test_what_is_deployed_is_calibrated_and_given_sets(trained, kind):
    ensemble, held, (rows, _) = trained
    deployed = pb.freeze(ensemble, rows[:4]) if kind == "frozen" else pb.cascade(ensemble, held, margin=0.1)
    given = deployed.predict(held[0])
    calibrated, alone = pb.calibrate(deployed, held), pb.calibrate(given, held[1])
    expected = alone.apply(deployed.predict(rows)).mean
    torch.testing.assert_close(calibrated.predict(rows).mean, expected, rtol=0, atol=1e-6)
    sets, by_hand = pb.conformal(deployed, held), pb.conformal(given, held[1])
    assert torch.equal(sets.sets(rows, device="cpu"), by_hand.sets(deployed.predict(rows)))
    with pytest.raises(ValueError, match="runs where it was made, on cpu, not on meta"):
        pb.calibrate(deployed, held, device="meta")


def test_a_cascade_of_ensembles_ends_with_the_last_one_and_is_cheaper(trained):
    ensemble, validation, (x, _) = trained
    made = pb.cascade([ensemble.member(0), ensemble], validation, margin=0.05, window=True)
    assert made.counts == [1, 4] and made.report.bound <= 0.05 and 0.25 <= made.report.cost.value <= 1.25
    on = made.answers(x)["members"] == 4
    torch.testing.assert_close(made.predict(x).mean[on], ensemble.predict(x).mean[on])


def test_stages_that_share_a_trunk_pay_for_it_again(trained):
    x, y = trained[1]
    report = pb.cascade(pb.multihead(network(), 4), (x, y), margin=0.1).report
    trunk, head, whole = 8 * 16, 16 * 3, 8 * 16 + 4 * 16 * 3
    expected = (trunk + head + report.reach[1] * (trunk + head) + report.reach[2] * (trunk + 2 * head)) / whole
    assert report.cost.value == pytest.approx(expected)


def test_the_risk_of_accepted_rows_is_bounded(trained):
    ensemble, validation, (x, y) = trained
    made = pb.cascade(ensemble, validation, risk=0.32, coverage=0.6)
    answers = made.answers(x)
    accepted = answers["accepted"]
    assert 0.45 < accepted.float().mean() < 0.75
    assert (answers["label"] != y)[accepted].float().mean() < 0.32 and made.report.bound <= 0.32


@pytest.mark.slow
@pytest.mark.parametrize("asked", [Asked(0.2, None, 0.9), Asked(None, 0.02, 0.9)])
def test_the_promise_fails_no_more_often_than_stated_over_200_draws(asked):
    """StageRows are drawn from a population whose error is known exactly."""
    generator = np.random.default_rng(0)
    size, failed, found = 20_000, 0, 0
    margin = generator.gamma(1.0, 1.0, size)  # how easy a row is
    wrong = np.stack([generator.random(size) < 0.5 * np.exp(-factor * margin) for factor in (1.2, 2.2)])
    scores = np.stack([np.exp(-margin) + generator.normal(0, 0.05, size)] * 2)
    every = StageRows(scores, wrong, np.array([0.25, 1.0]))
    for seed in range(200):
        try:
            windows, _, _ = choose(every.take(generator.integers(size, size=800)), asked, seed=seed)
        except ValueError:  # nothing is promised
            continue
        found += 1
        outcome = every.outcome(windows).wrong.mean()
        failed += outcome > (asked.risk if asked.risk is not None else wrong[-1].mean() + asked.margin)
    assert found > 100 and failed <= 0.1 * 200


def test_wrong_use_is_said_before_anything_runs(trained):
    ensemble, (x, y), _ = trained
    few = x[:30], y[:30]
    for wanted, message in (
        (lambda: pb.cascade(ensemble, None), "validation="),
        (lambda: pb.cascade(ensemble, few), "validation rows or more"),
        (lambda: pb.cascade(ensemble, (x, y), risk=0.01), "cannot be promised"),
        (lambda: pb.cascade(ensemble, (x, y), risk=0.1, margin=0.1), "not both"),
        (lambda: pb.cascade(ensemble, (x, y), sizes=(2, 9)), "sizes must grow"),
        (lambda: pb.cascade([ensemble, nn.Linear(8, 4)], (x, y)), "same classes"),
        (lambda: pb.cascade([ensemble], (x, y)), "at least two stages"),
        (lambda: pb.cascade(ensemble, (x, y), score="energy"), "unknown"),
        (lambda: pb.select(ensemble, few, size=9), "from 1 to 4"),
        (lambda: pb.select(ensemble, (x, y.where(y > 0, 9))), r"select: class numbers must be whole .* there is 9"),
        (lambda: pb.fit(ensemble, (x, torch.stack([y, y], 1)), epochs=1), r"class numbers \(int64\), but they are"),
        (lambda: pb.export(pb.Cascade([ensemble, ensemble], [(0, 1)]), x[:4], "a.pt2"), r"written as \.onnx"),
        (lambda: pb.freeze(ensemble, x[:4]).answers(x[:4], budget=2), "anytime=True"),
    ):
        with pytest.raises(ValueError, match=message):
            wanted()


# ---------------------------------------------------------------- budgets


def test_a_budget_of_members_and_of_seconds_is_kept(trained):
    ensemble, _, (x, _) = trained
    frozen = pb.freeze(ensemble, x[:32], anytime=True)
    for members in (1, 3, 4):
        expected = pooled([ensemble.member(i) for i in range(members)], x)
        torch.testing.assert_close(frozen.answers(x, budget=members)["mean"], expected, atol=1e-5, rtol=0)
    assert frozen.answers(x, budget=1e-9)["members"].max() == 1
    assert frozen.answers(x, budget=60.0)["members"].min() == 4
