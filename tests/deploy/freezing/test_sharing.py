"""A frozen ensemble is only read: by threads at once, by whoever looks at its weights, and it shares no tensor."""

import copy
import io
import pickle
import threading

import pytest
import torch
from freezing import alike, frozen, trained
from small import SMALL, make
from torch import Tensor, nn

import pluribus as pb
from pluribus import models
from pluribus._common.torch_private import is_onednn_enabled
from pluribus.deploy.freezing.kernels import Convolution
from pluribus.surgery.copying import state
from pluribus.surgery.dropout import no_dropout


def run_threads(*runs) -> list[BaseException]:
    """Run functions at once; what they raised."""
    errors: list[BaseException] = []
    begin = threading.Barrier(len(runs))

    def call(run) -> None:
        begin.wait()
        try:
            run()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=call, args=(run,)) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def hammer(made: pb.Frozen, batches: list[Tensor], times: int = 100) -> None:
    """Two threads call it `times` times each, and get what one alone gets each time."""
    with no_dropout():
        wanted = [made(x) for x in batches]

    def run(offset: int) -> None:
        with no_dropout():  # as every mode of torch, of this thread alone
            for i in range(times):
                j = (i + offset) % len(batches)
                torch.testing.assert_close(made(batches[j]), wanted[j], rtol=1e-5, atol=1e-6)

    assert run_threads(lambda: run(0), lambda: run(1)) == []
    run(0)


# On other networks than perceptrons, methods that are frozen into the same kinds of kernels as another are slow tests.
OTHERS_KERNELS = {"single", "deep", "lora", "treenet", "multihead", "batch_ensemble"}


def marks(method: str, name: str) -> list[pytest.MarkDecorator]:
    slow = name == "encoder" or name == "cnn" and method in OTHERS_KERNELS
    return [pytest.mark.slow] if slow else []


@pytest.mark.parametrize(
    ("method", "name"),
    [pytest.param(m, n, marks=marks(m, n)) for m in pb.METHODS for n in ("mlp", "cnn", "encoder")],
)
def test_two_threads_get_what_one_gets(method, name):
    ensemble, x = make(method, name)
    made = frozen(ensemble, x)
    batches = [SMALL[name].batch(rows) for rows in (1, 5, 40)]
    if name == "cnn":
        batches.append(torch.randn(3, 3, 11, 9))  # another size
    hammer(copy.deepcopy(made), batches)  # whose first calls are those of the threads
    hammer(pickle.loads(pickle.dumps(made)), batches, 2)


def test_threads_may_freeze_at_once_while_others_predict():
    ensembles = [make("deep", name)[0] for name in ("mlp", "cnn")]
    batches = [SMALL[name].batch(5) for name in ("mlp", "cnn")]
    with torch.no_grad():
        wanted = [ensemble(x) for ensemble, x in zip(ensembles, batches, strict=True)]
    bystander, call = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), nn.Module.__call__
    x = torch.randn(3, 4)
    expected = bystander(x).detach()

    def freeze_again(i: int) -> None:
        for _ in range(3):
            alike(frozen(ensembles[i], batches[i])(batches[i]), wanted[i])

    def predict() -> None:
        for _ in range(300):
            assert torch.equal(bystander(x).detach(), expected)

    assert run_threads(lambda: freeze_again(0), lambda: freeze_again(1), predict) == []
    assert nn.Module.__call__ is call
    assert is_onednn_enabled()  # which counting turns off for a while


# -------------------------------------------------------------------- looking at the weights


@pytest.fixture(scope="module")
def network() -> pb.Frozen:
    """Frozen so that its convolutions run packed, but for one."""
    torch.manual_seed(0)
    made = frozen(pb.deep(trained(models.resnet18(width=0.25)), 2), torch.randn(4, 3, 16, 16))
    convolutions(made)[0].pack_(None)
    made(torch.randn(4, 3, 16, 16))  # which makes the second copies of the weights
    return made


def convolutions(made: nn.Module) -> list[Convolution]:
    return [part for part in made.modules() if isinstance(part, Convolution)]


def forms(made: nn.Module) -> list[int]:
    return [id(part.packed) for part in convolutions(made)]


def test_looking_at_the_weights_changes_nothing(network):
    x, before, wrapped = torch.randn(4, 3, 16, 16), forms(network), nn.Sequential(network)
    assert len(set(before)) > 20
    outputs = network(x)
    looks = [
        lambda: [p.sum() for p in network.parameters()],
        lambda: [p.sum() for p in wrapped.parameters()],
        network.state_dict,
        lambda: [t for _, t in state(network)],
        lambda: copy.deepcopy(network),
        lambda: pickle.dumps(network),
        lambda: torch.save(network, io.BytesIO()),
        lambda: pb.cost(network, x),
        lambda: network.predict(x),
        lambda: network(torch.randn(2, 3, 24, 20)),
        lambda: network.requires_grad_(False).train().eval(),
        lambda: repr(network) + network.explain(),
    ]
    for look in looks:
        look()
        assert forms(network) == before
        assert torch.equal(network(x), outputs)


def test_plain_weights_give_the_same(network):
    x, made = torch.randn(4, 3, 16, 16), copy.deepcopy(network).plain_()
    assert all(part.packed_for is None for part in convolutions(made))
    assert made.count_bytes() < network.count_bytes()
    alike(made(x), network(x))


def test_weights_that_are_loaded_are_those_that_run(network):
    x, other = torch.randn(4, 3, 16, 16), copy.deepcopy(network)
    other.load_state_dict({name: t * 0.5 if t.is_floating_point() else t for name, t in network.state_dict().items()})
    halved = copy.deepcopy(network)
    with torch.no_grad():
        for parameter in halved.parameters():
            parameter *= 0.5
    for ours, theirs in zip(other.buffers(), halved.buffers(), strict=True):
        theirs.copy_(ours)
    alike(other(x), halved(x))
    assert [part.packed_for for part in convolutions(other)] == [part.packed_for for part in convolutions(network)]


def test_copies_run_as_the_network_does_bit_for_bit(network):
    x = torch.randn(4, 3, 16, 16)
    for other in (copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        assert torch.equal(other(x), network(x))
        assert forms(other) != forms(network)


def test_no_rows_give_no_answers(network):
    assert network(torch.randn(0, 3, 16, 16)).shape == (2, 0, 10)


# -------------------------------------------------------------------- modes and tensors of others


def unlike() -> list[nn.Module]:
    torch.manual_seed(0)
    return [trained(SMALL["cnn"].build()), trained(nn.Sequential(nn.Flatten(), nn.Linear(192, 3), nn.BatchNorm1d(3)))]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("likeness", ["alike", "unlike"])
def test_trained_networks_of_ones_own_are_frozen_as_they_predict(likeness, training):
    networks = [trained(SMALL["cnn"].build()) for _ in range(2)] if likeness == "alike" else unlike()
    x = torch.randn(5, 3, 8, 8)
    with torch.no_grad():
        wanted = torch.stack([network(x) for network in networks])
    ensemble = pb.deep(networks).train(training)
    modes = [module.training for module in (ensemble, *ensemble.modules())]
    before = copy.deepcopy(ensemble.state_dict())
    made = frozen(ensemble, x)
    alike(made(x), wanted)
    assert [module.training for module in (ensemble, *ensemble.modules())] == modes
    assert all(torch.equal(t, before[name]) for name, t in ensemble.state_dict().items())
    ensemble.predict(x)
    alike(frozen(ensemble, x)(x), wanted)
    alike(made(x), wanted)


@pytest.mark.parametrize("method", pb.METHODS)
def test_what_is_trained_later_does_not_reach_what_was_frozen(method):
    ensemble, x = make(method, "cnn")
    made = frozen(ensemble, x)
    with no_dropout():
        outputs = made(x)
        with torch.no_grad():
            for _, tensor in state(ensemble):
                if tensor.is_floating_point():
                    tensor.add_(1.0)
        assert torch.equal(made(x), outputs)
    pointers = {t.untyped_storage().data_ptr() for _, t in state(ensemble)}
    assert not pointers & {t.untyped_storage().data_ptr() for _, t in state(made)}


@pytest.mark.parametrize("method", ["multihead", "treenet", "mc_dropout"])
def test_a_trunk_that_has_run_is_frozen_into_the_kernels_of_one_network(method):
    network, x = models.lenet(num_classes=3, channels=1, image=28), torch.randn(2, 1, 28, 28)
    given = {"treenet": ["fc"], "mc_dropout": [0.1]}.get(method, [])
    ensemble = getattr(pb, method)(network, 3, *given).eval()
    with torch.no_grad():
        ensemble(x)
    kernels = [sum(isinstance(part, Convolution) for part in pb.freeze(one, x).modules())
               for one in (pb.single(network).eval(), ensemble)]  # fmt: skip
    assert kernels == [2, 2]
