"""Planes, surfaces and paths where the answer is known: bowls, circles, networks built apart."""

import numpy as np
import pytest
import torch
from plain import flat
from torch import nn

import pluribus as pb
from pluribus import landscape as ls
from pluribus.landscape.common import points as points_module

X, Y = torch.randn(40, 4, generator=torch.Generator().manual_seed(3)), torch.arange(40) % 3
DUMMY = (torch.zeros(5, 1), torch.zeros(5))


class Function(nn.Module):
    """A network whose output is a known function of its weights, in two layers."""

    def __init__(self, weights, function=lambda w: 0.5 * (w**2).sum()):
        super().__init__()
        w = torch.as_tensor(weights, dtype=torch.float32)
        self.first, self.second = nn.Parameter(w[:1].clone()), nn.Parameter(w[1:].clone())
        self.function = function

    def forward(self, x):
        return self.function(torch.cat([self.first, self.second]))


def value(output, target):
    return output.mean()


def ring(w):
    return (w.square().sum() - 1).square()


def network(seed, norm=False):
    torch.manual_seed(seed)
    layers = [nn.Linear(4, 8), nn.BatchNorm1d(8) if norm else nn.Tanh(), nn.Linear(8, 3)]
    model = nn.Sequential(*layers)
    return ls.refresh_(model, X + seed) if norm else model


def test_a_quadratic_loss_is_an_exact_bowl():
    minimum = torch.tensor([0.3, -1.0, 0.5, 0.2])
    bowl = lambda w: 0.5 * (w - minimum).square().sum()  # noqa: E731
    a, b = Function([1.0, 2.0, 0.0, 1.0], bowl), Function([-1.0, 0.5, 2.0, 0.0], bowl)
    for plane in (ls.plane(a, b), ls.plane(a, b, Function([0.0, 0.0, 0.0, 3.0], bowl))):
        surface = ls.surface(plane, DUMMY, grid=(7, 5), measures=("loss",), criterion=value)
        holder = Function(minimum, bowl)
        centre, height = plane.project(holder)[0], 0.5 * plane.distance(holder)[0] ** 2
        u, v = np.meshgrid(surface.u, surface.v, indexing="ij")
        expected = 0.5 * ((u - centre[0]) ** 2 + (v - centre[1]) ** 2) + height
        assert surface.loss == pytest.approx(expected, rel=1e-4)
        assert surface.loss.shape == (7, 5) and surface.accuracy is None and surface.agreement is None


def test_networks_lie_where_their_coordinates_say():
    models = [network(i) for i in range(3)]
    for plane in (ls.plane(*models[:2]), ls.plane(*models), ls.plane(pb.deep(models)), ls.plane(models)):
        for point, model in zip(plane.points, plane.networks, strict=True):
            assert torch.allclose(flat(plane.at(*point)), flat(model), atol=1e-5)
        gaps = np.linalg.norm(plane.points[:, None] - plane.points[None], axis=-1)
        true = [[(flat(p) - flat(q)).norm().item() for q in plane.networks] for p in plane.networks]
        assert gaps == pytest.approx(np.array(true), abs=1e-4)  # the axes are distances
    origin = ls.plane(*models[:2])
    assert flat(origin.at(0, 0)).abs().max() < 1e-6
    assert ls.plane(*models).points[0] == pytest.approx([0, 0], abs=1e-6)


def test_a_surface_has_the_figures_of_networks_built_apart():
    models = [network(0), network(1)]
    plane = ls.plane(*models)
    surface = ls.surface(plane, (X, Y), grid=4)
    plain = ls.surface(plane, (X, Y), grid=4, normalised=True)
    labels = [m(X).argmax(-1) for m in models]
    basis = np.linalg.qr(torch.stack([flat(m) for m in models]).double().numpy().T)[0]
    basis = basis * np.sign(
        [flat(models[0]).double().numpy() @ basis[:, 0], flat(models[1]).double().numpy() @ basis[:, 1]]
    )
    for i, u in enumerate(surface.u):
        for j, v in enumerate(surface.v):
            apart = network(0)
            nn.utils.vector_to_parameters(torch.tensor(basis @ [u, v], dtype=torch.float32), apart.parameters())
            output = apart(X)
            accuracy = (output.argmax(-1) == Y).float().mean().item()
            agree = [(output.argmax(-1) == label).float().mean().item() for label in labels]
            assert surface.loss[i, j] == pytest.approx(nn.functional.cross_entropy(output, Y).item(), rel=1e-4)
            assert surface.accuracy[i, j] == pytest.approx(accuracy)
            assert surface.agreement[:, i, j] == pytest.approx(agree)
            assert plain.agreement[:, i, j] == pytest.approx((1 - np.array(agree)) / (1 - accuracy))


def test_statistics_are_estimated_at_every_point_or_kept():
    plane = ls.plane(network(0, norm=True), network(1, norm=True))
    train = X + 5
    anew = ls.surface(plane, (X, Y), grid=3, refresh=train)
    kept = ls.surface(plane, (X, Y), grid=3, refresh=False)
    assert "data given" in anew.statistics and "nearest" in kept.statistics
    for i, j in ((0, 2), (1, 1)):
        there = plane.at(anew.u[i], anew.v[j])
        before = nn.functional.cross_entropy(there(X), Y).item()
        assert kept.loss[i, j] == pytest.approx(before, rel=1e-4)
        hidden = there[0](train)
        there[1].running_mean, there[1].running_var = hidden.mean(0).detach(), hidden.var(0).detach()
        after = nn.functional.cross_entropy(there(X), Y).item()
        assert anew.loss[i, j] == pytest.approx(after, rel=1e-4) and after != pytest.approx(before, rel=1e-3)


def test_a_surface_goes_on_from_where_it_stopped(tmp_path, monkeypatch):
    plane, path = ls.plane(network(0), network(1)), tmp_path / "surface.npz"
    monkeypatch.setattr(points_module, "SAVED_EVERY", 0.0)

    def stop(done, total, left):
        if done == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ls.surface(plane, (X, Y), grid=4, path=path, progress=stop)
    seen = []
    surface = ls.surface(plane, (X, Y), grid=4, path=path, progress=lambda done, total, left: seen.append(done))
    assert seen == list(range(7, 17)) and surface.loss == pytest.approx(ls.surface(plane, (X, Y), grid=4).loss)
    with pytest.raises(ValueError, match="other networks, data or settings"):
        ls.surface(plane, (X + 1, Y), grid=4, path=path)
    assert not list(tmp_path.glob(".*"))


@pytest.mark.slow
def test_processes_give_what_one_gives():
    plane = ls.plane(network(0), network(1))
    one, two = (ls.surface(plane, (X, Y), grid=5, processes=n) for n in (1, 2))
    assert np.array_equal(one.loss, two.loss) and np.array_equal(one.agreement, two.agreement)
    with pytest.raises(ValueError, match="can be pickled"):
        ls.surface(plane, (X, Y), grid=5, processes=2, criterion=lambda o, t: o.mean(), measures=("loss",))


def test_random_directions_have_the_norms_of_filters():
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(3, 2))
    plane = ls.random_plane(model, seed=1)
    moved = plane.at(1, 0)
    for name, before in model.named_parameters():
        step = dict(moved.named_parameters())[name] - before
        if before.ndim < 2:
            assert torch.equal(step, torch.zeros_like(step))
        else:
            norms = [t.detach().flatten(1).norm(dim=1) for t in (step, before)]
            assert torch.allclose(*norms, rtol=1e-4)
    assert torch.equal(flat(plane.at(0, 0)), flat(model)) and plane.points == pytest.approx(np.zeros((1, 2)), abs=1e-6)


def test_principal_directions_are_those_of_sklearn():
    decomposition = pytest.importorskip("sklearn.decomposition")
    steps = np.random.default_rng(0).normal(size=(6, 67)).cumsum(0)
    models = []
    for row in steps:
        models.append(network(0))
        nn.utils.vector_to_parameters(
            torch.tensor(row[: flat(models[0]).numel()], dtype=torch.float32), models[-1].parameters()
        )
    run = ls.Trajectory.of(models, models[0])
    plane = ls.pca_plane(run)
    found = decomposition.PCA(2).fit(run.weights.double().numpy())
    expected = found.transform(run.weights.double().numpy())
    expected = expected - expected[-1]
    assert np.abs(plane.project(run)) == pytest.approx(np.abs(expected), abs=1e-4)
    assert plane.explained == pytest.approx(found.explained_variance_ratio_, rel=1e-4)
    assert plane.points == pytest.approx(np.zeros((1, 2)), abs=1e-5)


def test_a_straight_line_has_the_barrier_of_the_function():
    a, b = Function([1.0, 0.0], ring), Function([-1.0, 0.0], ring)
    found = ls.along(ls.line(a, b), DUMMY, points=5, criterion=value)
    assert found.loss == pytest.approx([0, 0.5625, 1, 0.5625, 0], abs=1e-6) and found.accuracy is None
    assert ls.barrier(ls.line(a, b), DUMMY, criterion=value) == pytest.approx(1, abs=1e-6)
    tilted = lambda w: w[0]  # noqa: E731
    assert ls.barrier(ls.line(Function([0.0, 1.0], tilted), Function([4.0, 0.0], tilted)), DUMMY, criterion=value) == (
        pytest.approx(0, abs=1e-6)
    )


def test_a_tunnel_between_two_minima_stays_low():
    a, b = Function([1.0, 0.0], ring), Function([-1.0, 0.0], ring)
    path = ls.tunnel(a, b, DUMMY, points=9, steps=60, lr=0.1, criterion=value)
    assert ls.barrier(path, DUMMY, points=101, criterion=value) < 0.2
    corners = path.networks.weights
    assert corners.norm(dim=1) == pytest.approx(np.ones(11), abs=0.02)
    assert corners[:, 0] == pytest.approx(np.linspace(1, -1, 11), abs=1e-5)  # orthogonal to the line
    assert torch.equal(flat(path.at(0)), flat(a)) and torch.equal(flat(path.at(1)), flat(b))


def test_a_path_of_classifiers_has_figures_of_networks_built_apart():
    a, b = network(0), network(1)
    found = ls.along(ls.line(a, b), (X, Y), points=3)
    middle = network(0)
    nn.utils.vector_to_parameters((flat(a) + flat(b)) / 2, middle.parameters())
    assert found.loss[1] == pytest.approx(nn.functional.cross_entropy(middle(X), Y).item(), rel=1e-5)
    assert found.accuracy[1] == pytest.approx((middle(X).argmax(-1) == Y).float().mean().item())
    assert found.agreement[1, 1] == pytest.approx((middle(X).argmax(-1) == b(X).argmax(-1)).float().mean().item())
    assert found.agreement[0, 0] == found.agreement[1, 2] == 1


def test_a_stitched_cut_lies_in_triangles_of_the_path_and_the_origin():
    path = ls.Path(ls.plane([network(0), network(1), network(2)]).networks, [0, 0.5, 1])
    cut = ls.stitched(path, (X, Y), grid=(5, 3), reach=2.0)
    assert cut.loss.shape == (5, 3) and cut.agreement.shape == (2, 5, 3)
    assert cut.loss[:, 0] == pytest.approx(np.log(3), rel=1e-5)  # the origin says nothing
    assert cut.loss[:, 1] == pytest.approx(ls.along(path, (X, Y), points=5).loss, rel=1e-5)
    lengths = [flat(m).norm().item() for m in path.networks]
    assert np.linalg.norm(cut.corners, axis=1) == pytest.approx(lengths, rel=1e-5)
    piece = (flat(path.networks[0]) - flat(path.networks[1])).norm().item()
    assert np.linalg.norm(cut.corners[0] - cut.corners[1]) == pytest.approx(piece, rel=1e-4)
    assert cut.fan[:, 1] == pytest.approx(cut.fan[:, 2] / 2) and cut.fan[2, 1] == pytest.approx(cut.corners[1])


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: ls.plane(network(0), network(0)), "not lie on one line"),
        (lambda: ls.plane(network(0), nn.Linear(4, 3)), "the same architecture"),
        (lambda: ls.plane(pb.deep(network(0), 2), network(1)), "needs one network"),
        (lambda: ls.surface(ls.plane(network(0), network(1)), (X, Y), grid=10**7), "100,000,000,000,000 points needs"),
        (lambda: ls.surface(ls.plane(network(0), network(1)), (X, Y), memory=100), "memory= allows"),
        (lambda: ls.surface(ls.plane(network(0), network(1)), X), "needs labels"),
        (
            lambda: ls.surface(ls.plane(network(0), network(1)), (X, Y), measures=("risk",)),
            "the measure 'risk' is unknown",
        ),
        (lambda: ls.tunnel(network(0), network(0), (X, Y)), "the same"),
        (lambda: ls.barrier(ls.line(network(0), network(1)), (X, Y), points=2), "at least 3 points"),
        (lambda: ls.line(network(0), network(1)).at(1.5), "t must be from 0 to 1"),
    ],
)
def test_bad_input_is_refused_with_a_reason(call, match):
    with pytest.raises(ValueError, match=match):
        call()
