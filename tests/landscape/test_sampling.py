"""Samplers against closed forms; and each gives an Ensemble on which everything works."""

import numpy as np
import pytest
import torch
from torch import nn

import pluribus as pb
from pluribus import landscape as ls

GENERATOR = torch.Generator().manual_seed(3)
X, Y = torch.randn(60, 4, generator=GENERATOR), torch.arange(60) % 3


def network(norm=False):
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8) if norm else nn.Tanh(), nn.Linear(8, 3))


def of_rows(rows, norm=False):
    models = []
    for row in rows:
        models.append(network(norm))
        row = torch.cat([row, torch.rand(16, generator=GENERATOR) + 0.5]) if norm else row
        nn.utils.vector_to_parameters(row.float(), models[-1].parameters())
    return ls.Trajectory.of(models, models[0])


SIZE = sum(p.numel() for p in network().parameters())
WALK = torch.randn(6, SIZE, generator=GENERATOR).cumsum(0)


def weights(ensemble):
    return torch.cat([p.detach().flatten(1) for p in ensemble.module.parameters()], 1).double()


def test_low_rank_samples_have_the_covariance_of_the_checkpoints_across_layers():
    found = weights(ls.low_rank_gaussian(of_rows(WALK), 4000, rank=5, last=6))
    rows = WALK.double()
    covariance = np.cov(rows.numpy().T)
    scale = covariance.diagonal().max()
    assert found.mean(0).numpy() == pytest.approx(rows.mean(0).numpy(), abs=5 * np.sqrt(scale / 4000))
    assert np.cov(found.numpy().T) == pytest.approx(covariance, abs=6 * scale / np.sqrt(4000))
    across = covariance[:32, -3:]  # the first layer with the last one's biases
    assert (
        np.abs(across).max() > 0.2 * scale
        and np.linalg.matrix_rank(found.numpy() - found.numpy().mean(0), tol=0.1) == 5
    )


def test_rank_k_keeps_the_k_largest_principal_components():
    found = weights(ls.low_rank_gaussian(of_rows(WALK), 2000, rank=2, last=6)).numpy()
    centred = WALK.double().numpy() - WALK.double().numpy().mean(0)
    _, s, components = np.linalg.svd(centred, full_matrices=False)
    seen = found - WALK.double().numpy().mean(0)
    assert np.linalg.norm(seen - seen @ components[:2].T @ components[:2]) < 1e-3 * np.linalg.norm(seen)
    assert (seen @ components[:2].T).std(0) == pytest.approx(s[:2] / np.sqrt(5), rel=0.1)


def test_diagonal_samples_have_each_weights_mean_and_variance_and_no_covariance():
    found = weights(ls.diagonal_gaussian(of_rows(WALK), 4000, last=6)).numpy()
    mean, deviation = WALK.double().mean(0).numpy(), WALK.double().std(0).numpy()
    assert found.mean(0) == pytest.approx(mean, abs=5 * deviation.max() / np.sqrt(4000))
    assert found.std(0, ddof=1) == pytest.approx(deviation, rel=0.1)
    correlation = np.corrcoef(found.T)
    assert np.abs(correlation - np.eye(SIZE)).max() < 0.1


@pytest.mark.parametrize(("rank", "scale"), [(4, 0.5), (0, 1.0)])
def test_swag_has_the_mean_and_the_covariance_of_its_paper(rank, scale):
    found = weights(ls.swag(of_rows(WALK), 6000, rank=rank, last=6)).numpy()
    rows = WALK.double().numpy()
    mean, squares, deviations = np.zeros(SIZE), np.zeros(SIZE), []
    for n, row in enumerate(rows):  # as the authors' code collects them
        mean = (n * mean + row) / (n + 1)
        squares = (n * squares + row**2) / (n + 1)
        deviations.append(row - mean)
    covariance = scale * np.diag(squares - mean**2)
    if rank:
        kept = np.array(deviations[-rank:]).T
        covariance += scale * kept @ kept.T / (rank - 1)
    spread = np.sqrt(covariance.diagonal())
    assert ((found.mean(0) - mean) / spread) == pytest.approx(np.zeros(SIZE), abs=5 / np.sqrt(6000))
    gaps = (np.cov(found.T) - covariance) / np.outer(spread, spread)
    assert gaps == pytest.approx(np.zeros((SIZE, SIZE)), abs=7 / np.sqrt(6000))


def test_random_samples_are_at_the_distance_in_all_directions():
    model = network()
    base = weights(pb.single(model))[0]
    steps = weights(ls.random_subspace(model, 500, distance=2.0)) - base
    assert steps.norm(dim=1).numpy() == pytest.approx(np.full(500, 2.0), rel=1e-5)
    assert steps.square().mean(0).numpy() == pytest.approx(np.full(SIZE, 4 / SIZE), rel=0.5)
    lengths = (weights(ls.random_subspace(model, 500, distance=(1.0, 3.0))) - base).norm(dim=1)
    assert 1 <= lengths.min() < 1.1 and 2.9 < lengths.max() <= 3.0001
    assert (weights(ls.random_subspace(model, 2)) - base).norm(dim=1).numpy() == pytest.approx(0.1 * base.norm().item())


def test_dropped_weights_are_0_and_the_others_rescaled():
    model = network()
    base, found = weights(pb.single(model))[0], weights(ls.dropout_subspace(model, 200, keep=0.8))
    kept = found != 0
    assert kept.double().mean().item() == pytest.approx(0.8, abs=0.02)
    assert torch.allclose(found[kept], (base / 0.8).expand_as(found)[kept], atol=1e-6)
    shares = (weights(ls.dropout_subspace(model, 200, keep=(0.2, 1.0))) != 0).double().mean(1)
    assert shares.std() > 0.15 and 0.1 < shares.min() < 0.35 and shares.max() > 0.9


def test_frozen_parameters_stay():
    model = network()
    model[0].requires_grad_(False)
    for made in (ls.random_subspace(model, 2, distance=1.0), ls.dropout_subspace(model, 2, keep=0.5)):
        for i in range(2):
            assert torch.equal(made.member(i)[0].weight, model[0].weight)
            assert not torch.equal(made.member(i)[2].weight, model[2].weight)


def test_samples_below_the_accuracy_are_rejected_counted_and_said():
    model = network()
    y = model(X).argmax(-1)  # the network itself is always right
    made = ls.random_subspace(model, 5, distance=(0.5, 4.0), accept=((X, y), 0.8), tries=500)
    for i in range(5):
        assert (made.member(i)(X).argmax(-1) == y).float().mean() >= 0.8
    freely = ls.random_subspace(model, 40, distance=(0.5, 4.0))
    accuracy = [(freely.member(i)(X).argmax(-1) == y).float().mean().item() for i in range(40)]
    tried = next(n for n in range(41) if sum(a >= 0.8 for a in accuracy[:n]) == 5)  # the same draws, judged apart
    assert f"{tried - 5} of {tried} samples were rejected" in made.explain()
    with pytest.raises(
        ValueError,
        match=r"0 of 2 samples.*0.99 in 7 tries, whose accuracies ranged from 0.* the network itself has 1\.",
    ):
        ls.random_subspace(model, 2, distance=50.0, accept=((X, y), 0.99), tries=7)


def test_averages_are_means():
    rows = torch.stack([torch.full((SIZE,), value) for value in (0.0, 10.0, 20.0)])
    assert weights(ls.weight_average(of_rows(rows))) == pytest.approx(10)
    assert weights(ls.weight_average(of_rows(rows), last=2)) == pytest.approx(15)
    moving = 0.0
    for value in (10.0, 20.0):
        moving = 0.7 * moving + 0.3 * value
    assert weights(ls.moving_average(of_rows(rows), decay=0.7)).numpy() == pytest.approx(moving)
    assert weights(ls.moving_average(of_rows(rows), decay=0.0)).numpy() == pytest.approx(20)


def test_by_default_the_last_quarter_counts_and_five_at_least():
    rows = torch.arange(40.0)[:, None].expand(40, SIZE)
    assert weights(ls.weight_average(of_rows(rows))).numpy() == pytest.approx(34.5)
    assert weights(ls.weight_average(of_rows(rows[:8]))).numpy() == pytest.approx(5)


def test_ensembles_of_subspaces_have_samples_of_every_run():
    runs = [of_rows(WALK), of_rows(WALK + 100)]
    made = ls.of_subspaces(runs, "low_rank", 3, rank=2, last=6)
    means = weights(made).mean(1)
    assert made.size == 6 and bool((means[:3] < 50).all()) and bool((means[3:] > 50).all())
    assert ls.of_subspaces(runs, ls.weight_average, last=2).size == 2
    assert weights(ls.solutions(runs)).numpy() == pytest.approx(torch.stack([WALK[-1], WALK[-1] + 100]).numpy())


class Mean(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(size))

    def forward(self, x):
        return self.theta.expand(len(x), -1)


@pytest.mark.parametrize(("momentum", "prior"), [(0.0, 0.0), (0.5, 0.5)])
def test_csgmcmc_at_temperature_1_recovers_a_gaussian_posterior(momentum, prior):
    # 300 means are estimated at once from 40 rows of unit variance: each posterior is N(sum / (N + p), 1 / (N + p))
    rows, means = 40, 300
    y = torch.randn(rows, means, generator=torch.Generator().manual_seed(1)) + 3
    likelihood = lambda output, target: 0.5 * (output - target).square().sum(1).mean()  # noqa: E731
    made = ls.csgmcmc(
        Mean(means), (torch.zeros(rows, 1), y), 12, cycles=12, epochs=12 * 60, lr=0.2, momentum=momentum,
        weight_decay=prior, exploration=0.2, batch_size=rows, criterion=likelihood, task="regression",
    )  # fmt: skip
    found = weights(made).numpy()
    precision = rows * (1 + prior)
    gaps = found - y.double().sum(0).numpy() / precision
    assert gaps.mean() == pytest.approx(0, abs=5 / np.sqrt(precision * found.size))
    assert gaps.std() ** 2 == pytest.approx(1 / precision, rel=0.15)


def test_without_temperature_cycles_end_at_the_minimum():
    y = torch.randn(40, 5, generator=torch.Generator().manual_seed(1))
    loss = lambda output, target: 0.5 * (output - target).square().sum(1).mean()  # noqa: E731
    data = (torch.zeros(40, 1), y)
    for made in (
        ls.csgmcmc(Mean(5), data, 2, cycles=2, temperature=0, epochs=200, lr=0.5, criterion=loss, task="regression"),
        ls.snapshots(Mean(5), data, 2, epochs=200, lr=0.1, criterion=loss, task="regression"),
    ):
        assert weights(made).numpy() == pytest.approx(y.mean(0).expand(2, 5).double().numpy(), abs=1e-3)


def test_snapshots_are_those_of_a_loop_written_apart():
    model = network()
    made = ls.snapshots(model, [(X, Y)], 2, epochs=6, lr=0.3, momentum=0.9)
    apart, seen = network(), []
    optimizer = torch.optim.SGD(apart.parameters(), 0.3, momentum=0.9)
    for step in range(6):
        rate = 0.15 * (1 + np.cos(np.pi * (step % 3) / 3))
        optimizer.zero_grad()
        nn.functional.cross_entropy(apart(X), Y).backward()
        for p in apart.parameters():  # momentum of steps, each with the rate of its own step
            state = optimizer.state[p]
            state["v"] = 0.9 * state.get("v", 0) - rate * p.grad
            p.data += state["v"]
        if step in (2, 5):
            seen.append(torch.cat([p.detach().reshape(-1) for p in apart.parameters()]).double())
    assert weights(made).numpy() == pytest.approx(torch.stack(seen).numpy(), abs=1e-5)


@pytest.mark.parametrize("batches", [1, 3])
def test_fast_geometric_ensembles_are_those_of_a_loop_written_apart(batches):
    data = [(X[i::batches], Y[i::batches]) for i in range(batches)]
    made = ls.fast_geometric(network(), data, 2, cycle=4, lr=(0.3, 0.01), momentum=0.8, weight_decay=0.01)
    apart, seen, speed = network(), [], {}
    length = 4 * batches
    for i in range(1, 8 * batches + 1):
        t = ((i - 1) % length + 1) / length  # equation of section 4, with alpha_1 0.3 and alpha_2 0.01
        rate = (1 - 2 * t) * 0.3 + 2 * t * 0.01 if t <= 0.5 else (2 - 2 * t) * 0.01 + (2 * t - 1) * 0.3
        x, y = data[(i - 1) % batches]
        slopes = torch.autograd.grad(nn.functional.cross_entropy(apart(x), y), list(apart.parameters()))
        for k, (p, slope) in enumerate(zip(apart.parameters(), slopes, strict=True)):
            speed[k] = 0.8 * speed.get(k, 0) - rate * (slope + 0.01 * p.detach())
            p.data += speed[k]
        if t == 0.5:
            seen.append(torch.cat([p.detach().reshape(-1) for p in apart.parameters()]).double())
    assert made.size == len(seen) == 2
    assert weights(made).numpy() == pytest.approx(torch.stack(seen).numpy(), abs=1e-5)


MAKERS = {
    "random": lambda run: ls.random_subspace(run, 3, distance=0.1, data=X),
    "accepted": lambda run: ls.random_subspace(run, 3, distance=0.1, accept=((X, Y), 0.0), data=X),
    "dropout": lambda run: ls.dropout_subspace(run, 3, keep=0.9, data=X),
    "diagonal": lambda run: ls.diagonal_gaussian(run, 3, data=(X, Y)),
    "low rank": lambda run: ls.low_rank_gaussian(run, 3, rank=2, data=(X, Y)),
    "average": lambda run: ls.weight_average(run, data=(X, Y)),
    "moving": lambda run: ls.moving_average(run, decay=0.5, data=(X, Y)),
    "swag": lambda run: ls.swag(run, 3, rank=3, data=(X, Y)),
    "fast geometric": lambda run: ls.fast_geometric(run, (X, Y), 2, lr=0.02),
    "snapshots": lambda run: ls.snapshots(run, (X, Y), 2, epochs=2),
    "csgmcmc": lambda run: ls.csgmcmc(run, (X, Y), 2, epochs=20, lr=0.01),
    "of subspaces": lambda run: ls.of_subspaces([run, run], "random", 2, distance=0.1, data=X),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_every_sampler_gives_an_ensemble_on_which_everything_works(make, tmp_path):
    run = of_rows(WALK / 10, norm=True)
    before = run.weights.clone()
    made = make(run)
    again = make(run)
    prediction = made.predict(X)
    assert prediction.members.shape == (made.size, 60, 3) and 0 <= pb.evaluate(prediction, Y)["accuracy"] <= 1
    assert torch.equal(prediction.members, again.predict(X).members)  # the same seed, the same samples
    pb.save(made, tmp_path / "made.safetensors")
    loaded = pb.load(tmp_path / "made.safetensors", network(norm=True))
    assert torch.equal(loaded.predict(X).members, prediction.members)
    frozen = pb.freeze(made, X)
    assert torch.allclose(frozen(X).softmax(-1), prediction.members, atol=1e-5)
    for i in range(made.size):  # statistics are those of each network of its own
        member = made.member(i)
        hidden = member[0](X)
        assert torch.allclose(member[1].running_mean, hidden.mean(0), atol=1e-4)
        assert torch.allclose(member(X).softmax(-1), prediction.members[i], atol=1e-5)
    assert torch.equal(run.weights, before) and made.task == "classification"


def test_statistics_that_do_not_fit_are_said():
    run = of_rows(WALK, norm=True)
    for make in (
        lambda: ls.swag(run, 2, rank=3),
        lambda: ls.random_subspace(run, 2), lambda: ls.diagonal_gaussian(run, 2), lambda: ls.weight_average(run),
    ):  # fmt: skip
        with pytest.warns(UserWarning, match="batch normalisation.*as data="):
            make()


def test_the_task_goes_with_the_samples():
    model = nn.Linear(4, 1)
    run = ls.Trajectory.of([model] * 6, model, task="regression")
    assert ls.diagonal_gaussian(run, 2).task == "regression"
    assert ls.diagonal_gaussian(run, 2).predict(X).means.shape[:2] == (2, 60)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: ls.low_rank_gaussian(of_rows(WALK[:3]), 2, rank=4), "rank 4 needs at least 5.*trajectory has 3"),
        (lambda: ls.diagonal_gaussian(of_rows(WALK), 2, last=7), "from 1 to the 6 checkpoints"),
        (lambda: ls.moving_average(of_rows(WALK), decay=1.0), "decay must be"),
        (lambda: ls.random_subspace(network(), 2, distance=-1.0), "distance must be"),
        (lambda: ls.random_subspace(network(), 2, accept=0.5), "accept must be"),
        (lambda: ls.dropout_subspace(network(), 2, keep=(0.9, 0.5)), "smallest, largest"),
        (lambda: ls.of_subspaces([network()], "nuts", 2), "'nuts' is unknown. Choose from"),
        (lambda: ls.swag(of_rows(WALK), 2), "rank 20 needs at least 20 checkpoints, but the trajectory has 6"),
        (lambda: ls.swag(of_rows(WALK), 2, rank=1), "rank must be 0 .* but it is 1"),
        (lambda: ls.fast_geometric(network(), (X, Y), 2, cycle=3), "even number of epochs, but it is 3"),
        (lambda: ls.csgmcmc(network(), (X, Y), 2, cycles=3), "3 cycles were asked for 2"),
        (lambda: ls.csgmcmc(network(), (X, Y), 50, cycles=1, epochs=1), "50 samples need as many different steps"),
    ],
)
def test_bad_input_is_refused_with_a_reason(call, match):
    with pytest.raises(ValueError, match=match):
        call()


def test_low_rank_samples_of_random_ones_lie_in_their_principal_components():
    torch.manual_seed(0)
    model = nn.Linear(6, 5)
    row = torch.cat([p.detach().flatten() for p in model.parameters()])
    random = ls.random_subspace(model, 12, distance=0.5, seed=3)
    drawn = torch.stack([torch.cat([p.flatten() for p in random.member(i).parameters()]) for i in range(12)]).detach()
    _, sizes, components = torch.linalg.svd((drawn - drawn.mean(0)).double())
    made = ls.low_rank_random(model, 400, rank=3, distance=0.5, draws=12, seed=3)
    rows = torch.stack([torch.cat([p.flatten() for p in made.member(i).parameters()]) for i in range(400)]).detach()
    along = (rows - drawn.mean(0)).double() @ components.T
    assert float(along[:, 3:].abs().max()) < 1e-4 < float(along[:, :3].abs().max())
    expected = sizes[:3] / 11**0.5
    torch.testing.assert_close(along[:, :3].std(0), expected, rtol=0.15, atol=0)
    assert ls.SAMPLERS["low_rank_random"] is ls.low_rank_random and len(row) == rows.shape[1]
