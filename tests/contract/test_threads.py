"""Threads that call one ensemble, or several, at once: every answer is right, and nothing is damaged."""

import copy
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from small import SMALL, make, targets
from torch import nn

import pluribus as pb

pytestmark = pytest.mark.filterwarnings("ignore:.*this model does not run under vmap")

CALLS = {"mlp": 50, "cnn": 6, "encoder": 6}  # of each thread
DRAWN = ("mc_dropout",)
RUNS = [
    (method, name, run)
    for method in pb.METHODS
    for name in ("mlp", "cnn", "encoder")
    for run in (("once", "auto") if method == "mimo" else ("vmap", "loop", "auto"))
    if run != "auto" or name == "mlp"  # measuring takes its time
]


def in_threads(*functions, calls=100):
    """What each call of each function gives, all functions at once; an error is raised here."""
    start = threading.Barrier(len(functions))

    def work(function):
        start.wait()
        return [function() for _ in range(calls)]

    with ThreadPoolExecutor(len(functions)) as pool:
        return [future.result() for future in [pool.submit(work, function) for function in functions]]


def wrong(outputs, expected):
    return sum(not torch.allclose(output, expected, rtol=1e-4, atol=1e-5) for output in outputs)


def as_it_was(ensemble, before):
    now = ensemble.state_dict()
    return list(now) == list(before) and all(torch.equal(now[name], before[name]) for name in now)


@torch.no_grad()
@pytest.mark.parametrize(("method", "name", "run"), RUNS)
def test_two_threads_get_right_answers_only(method, name, run):
    ensemble, x = make(method, name)
    ensemble.run = run
    before = {key: tensor.clone() for key, tensor in ensemble.state_dict().items()}
    other = x.flip(0)
    a, b = (torch.no_grad()(lambda y=y: ensemble(y)) for y in (x, other))
    first, second = in_threads(a, b, calls=CALLS[name])
    if method in DRAWN:  # equal in law: as many draws as calls, around one mean
        assert all(output.shape == (3, 5, 3) and output.isfinite().all() for output in first + second)
    else:
        assert (wrong(first, a()), wrong(second, b())) == (0, 0)
    assert as_it_was(ensemble, before)
    assert not ensemble.training
    for another in (copy.deepcopy(ensemble), pickle.loads(pickle.dumps(ensemble))):
        torch.manual_seed(0)
        expected = ensemble(x)
        torch.manual_seed(0)
        torch.testing.assert_close(another(x), expected)


def normalised():
    """A network whose mode shows in its output, and whose statistics stay."""
    layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, momentum=0.0), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(8, 3))


@torch.no_grad()
@pytest.mark.parametrize("method", ["single", "deep", "packed", "treenet", "multihead", "unlike"])
def test_predict_in_one_thread_does_not_change_the_mode_for_another(method):
    x, models = torch.randn(5, 3, 8, 8), [normalised() for _ in range(3)]
    options = {"packed": {"example": x}, "treenet": {"branch": "5"}}.get(method, {})
    sizes = () if method == "single" else (3,)
    ensemble = pb.deep([*models, nn.Sequential(models[0])]) if method == "unlike" else None
    ensemble = ensemble or pb.METHODS[method](models[0], *sizes, **options)
    probabilities, training = ensemble.predict(x).members, ensemble.train()(x)
    assert wrong([training.softmax(-1)], probabilities) == 1
    predicted, outputs, _ = in_threads(
        lambda: ensemble.predict(x, batch_size=2).members,
        torch.no_grad()(lambda: ensemble(x)),
        lambda: (ensemble.explain(), ensemble.pooled()),
        calls=15,
    )
    assert (wrong(predicted, probabilities), wrong(outputs, training)) == (0, 0)
    assert all(module.training for module in ensemble.modules())


@pytest.mark.parametrize("run", ["vmap", "loop"])
def test_what_reads_an_ensemble_waits_for_the_members(run, tmp_path):
    """Members, copies, pickles and files while the tensors of the module are those of one member."""
    ensemble, x = make("deep", "cnn")
    ensemble.run = run
    expected = ensemble(x).detach()
    with torch.no_grad():
        outputs, members, copies, pickles, shapes, _ = in_threads(
            torch.no_grad()(lambda: ensemble(x)),
            torch.no_grad()(lambda: ensemble.member(1)(x)),
            torch.no_grad()(lambda: copy.deepcopy(ensemble)(x)),
            torch.no_grad()(lambda: pickle.loads(pickle.dumps(ensemble))(x)),
            lambda: [tuple(t.shape) for t in (*ensemble.state_dict().values(), *ensemble.parameters())],
            lambda: pb.save(ensemble, tmp_path / "saved.safetensors"),
            calls=12,
        )
    assert wrong(outputs, expected) + wrong(copies, expected) + wrong(pickles, expected) == 0
    assert wrong(members, expected[1]) == 0
    assert len(set(map(tuple, shapes))) == 1
    torch.testing.assert_close(pb.load(tmp_path / "saved.safetensors", SMALL["cnn"].build())(x), expected)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_one_trains_while_eight_predict_and_torch_keeps_its_switches():
    """What torch has once for all threads: the fast path of attention, warnings."""
    trained, x = make("batch_ensemble", "encoder")
    asked, _ = make("deep", "encoder")
    alone = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1).eval()
    words, padding = torch.randn(4, 6, 8), torch.arange(6) >= torch.tensor([6, 5, 3, 2])[:, None]
    with torch.no_grad():
        expected, padded = asked(x), alone(words, src_key_padding_mask=padding)

    def step():
        trained.train().loss(x, targets(), F.cross_entropy).backward()
        return torch.zeros(())

    predict = torch.no_grad()(lambda: asked(x))
    apart = torch.no_grad()(lambda: alone(words, src_key_padding_mask=padding))
    _, others, *outputs = in_threads(step, apart, *[predict] * 8, calls=10)
    assert sum(wrong(each, expected) for each in outputs) == 0
    assert wrong(others, padded) == 0
    assert torch.backends.mha.get_fastpath_enabled()


def test_calibrated_conformal_and_frozen_ensembles_answer_in_threads():
    ensemble, x = make("masksembles", "mlp")
    y = targets(40)
    validation = [(torch.randn(40, 6), y)]
    frozen = pb.freeze(ensemble, x)
    calibrated = pb.calibrate(ensemble, validation)
    conformal = pb.conformal(ensemble, validation, coverage=0.8)
    asks = {
        "frozen": torch.no_grad()(lambda: frozen(x)),
        "calibrated": lambda: calibrated.predict(x).mean,
        "conformal": lambda: conformal.sets(x).float(),
    }
    expected = {name: ask() for name, ask in asks.items()}
    results = in_threads(*asks.values(), *asks.values(), calls=30)
    for name, outputs in zip([*asks, *asks], results, strict=True):
        assert wrong(outputs, expected[name]) == 0, name
