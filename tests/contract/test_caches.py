"""What a model keeps from call to call: each member has its own, as separate networks have.

The oracle is a list of networks that were built apart and have never met: copies of an ensemble's member could hold
what another member has left behind.
"""

import copy

import pytest
import torch
import torch.nn.functional as F
from keeping import Model
from torch import Tensor, nn

import pluribus as pb

pytestmark = pytest.mark.filterwarnings("ignore:.*this model does not run under vmap")


class Attribute(Model):
    def begin(self):
        self.cache = None

    def kept(self, rows):
        if self.cache is None:
            self.cache = self.make()
        return self.cache


class FlaggedBuffer(Model):
    """Fills a buffer, in place."""

    def begin(self):
        self.ready = False
        self.register_buffer("cache", torch.zeros(8))

    def kept(self, rows):
        if not self.ready:
            self.ready = True
            self.cache.copy_(self.make()) if rows % 2 else setattr(self, "cache", self.make())
        return self.cache


KINDS = Attribute, FlaggedBuffer


def apart(kind) -> list[nn.Module]:
    """Three networks that are built apart."""
    return [kind().eval() for _ in range(3)]


def expected_of(models: list[nn.Module], x: Tensor) -> Tensor:
    return torch.stack([copy.deepcopy(model)(x) for model in models])


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("run", ["vmap", "loop"])
@pytest.mark.parametrize("kind", KINDS)
def test_each_member_keeps_its_own(kind, run, grad):
    models, x = apart(kind), torch.randn(5, 6)
    with torch.set_grad_enabled(grad):
        ensemble = pb.deep(models)
        ensemble.run = run
        for rows in (5, 4, 5, 5, 4):
            expected = expected_of(models, x[:rows])
            torch.testing.assert_close(ensemble(x[:rows]), expected, rtol=1e-4, atol=1e-5)
            members = torch.stack([ensemble.member(i)(x[:rows]) for i in range(3)])
            torch.testing.assert_close(members, expected, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(copy.deepcopy(ensemble)(x[:rows]), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("run", ["vmap", "loop"])
@pytest.mark.parametrize("method", [m for m in pb.METHODS if m not in ("mimo", "mc_dropout", "single")])
@pytest.mark.parametrize("kind", KINDS)
def test_members_of_all_methods_change_with_their_weights(kind, method, run):
    """A shared weight may be cached for all, what a member owns may not: compared with a model without a cache."""
    model, x = kind(), torch.randn(5, 6)
    options = {"treenet": {"branch": "bias|leave"}}.get(method, {})
    if method in ("packed", "masksembles"):
        options["example"] = x
    ensemble = pb.METHODS[method](model, 3, **options).eval()
    ensemble.run = run
    try:
        outputs = [ensemble(x) for _ in range(2)][-1]
    except ValueError as error:
        assert kind is FlaggedBuffer and "cache" not in ensemble.own and "changes its buffer 'cache'" in str(error)
        return
    for i in range(3):
        member = ensemble.member(i)
        member.kept = lambda rows, member=member: member.make()
        torch.testing.assert_close(outputs[i], member(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("run", ["vmap", "loop"])
def test_cached_parametrizations_are_each_members_own(run):
    models, x = [nn.utils.parametrizations.weight_norm(nn.Linear(6, 3)) for _ in range(3)], torch.randn(5, 6)
    ensemble, expected = pb.deep(models), torch.stack([model(x) for model in models])
    ensemble.run = run
    with nn.utils.parametrize.cached():
        for _ in range(2):
            torch.testing.assert_close(ensemble(x), expected, rtol=1e-4, atol=1e-5)


def test_what_the_given_model_has_cached_is_forgotten_where_training_forgets_it():
    class Forgets(Attribute):
        def train(self, mode=True):
            if mode:
                self.cache = None
            return super().train(mode)

    model, x = Forgets().eval(), torch.randn(5, 6)
    model(x)
    ensemble = pb.deep(model, 3)
    assert not ensemble.training
    member = ensemble.member(0)
    member.cache = None
    torch.testing.assert_close(ensemble(x)[0], member(x))


# -------------------------------------------------------------------- shared buffers


class Constants(nn.Module):
    """Constants beside statistics: a mask that would overflow in a sum, and numbers that would drift."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.norm, self.head = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.register_buffer("mask", torch.full((3,), torch.finfo(torch.float32).min))
        self.register_buffer("third", torch.tensor([0.1, 1 / 3, 1e-8, float("nan"), float("inf")]))
        self.register_buffer("large", torch.full((4,), 65504.0, dtype=torch.float16))
        self.register_buffer("count", torch.tensor(7))

    def forward(self, x: Tensor) -> Tensor:
        y = self.head(torch.relu(self.norm(self.enter(x))))
        return torch.where(torch.arange(3) < 2, y, self.mask / 1e30)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("run", ["vmap", "loop"])
@pytest.mark.parametrize("method", ["treenet", "multihead", "masksembles", "batch_ensemble"])
def test_only_what_the_members_passes_change_changes(method, run, frozen):
    options = {"treenet": {"branch": "head"}}.get(method, {})
    if frozen and method not in ("treenet", "multihead"):
        pytest.skip("has no trunk to freeze")
    model = Constants()
    ensemble = pb.METHODS[method](model, 3, **options, **({"freeze_trunk": True} if frozen else {})).train()
    ensemble.run = run
    x, y = torch.randn(12, 6), torch.randint(3, (12,))
    for _ in range(3):
        ensemble.loss(x, y, F.cross_entropy).backward()
        ensemble.loss(torch.stack([x] * 3), torch.stack([y] * 3), F.cross_entropy, per_member=True).backward()
    for name in ("mask", "third", "large", "count"):
        now, given = getattr(ensemble.module, name), getattr(model, name)
        torch.testing.assert_close(now, given, rtol=0, atol=0, equal_nan=True, msg=name)  # an overflow is no constant
    assert torch.equal(ensemble.module.norm.running_mean, model.norm.running_mean) == frozen


# -------------------------------------------------------------------- padded positions


class Padded(nn.Module):
    """Padded positions reach the output."""

    def __init__(self, norm: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(8) if norm else None)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        return self.head(self.encoder(x, src_key_padding_mask=padding))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("norm", [False, True])
def test_padded_positions_are_those_of_the_network_itself(norm, aligned, grad):
    """PyTorch's fast path, without gradients and with padding at the end, gives zeros there; its slow path does not."""
    models, x = [Padded(norm).eval() for _ in range(3)], torch.randn(4, 6, 8)
    padding = torch.arange(6) >= torch.tensor([6, 5, 3, 2])[:, None]
    padding = padding if aligned else padding.flip(1)
    for mask in (padding, torch.zeros(4, 6).masked_fill(padding, float("-inf"))):
        with torch.set_grad_enabled(grad):
            expected = torch.stack([model(x, mask) for model in models])
            for ensemble in (pb.deep(models), pb.deep([*models[:2], nn.Sequential(models[2])][:2])):
                for run in ("vmap", "loop"):
                    ensemble.run = run
                    for _ in range(2):
                        outputs = ensemble(x, mask)
                        torch.testing.assert_close(outputs, expected[: ensemble.size], rtol=1e-4, atol=1e-5)
                torch.testing.assert_close(ensemble.member(1)(x, mask), expected[1], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("run", ["vmap", "loop"])
def test_biases_that_levit_caches_are_each_members_own(run):
    import timm

    models = [timm.create_model("levit_128s", num_classes=5).eval() for _ in range(3)]
    x = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        for model in models:
            for name, parameter in model.named_parameters():
                if "attention_biases" in name:
                    parameter.normal_(0, 2.0)
        ensemble, expected = pb.deep(models), torch.stack([model(x) for model in models])
        ensemble.run = run
        for _ in range(2):
            torch.testing.assert_close(ensemble(x), expected, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(ensemble.member(1)(x), expected[1], rtol=1e-3, atol=1e-4)
