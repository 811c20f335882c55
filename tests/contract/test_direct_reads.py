"""Models that read a layer's weight or bias themselves: the members are separate networks, or the model is refused.

The oracle writes out what a member's weights are by the papers' equations, and puts them into a network of its own.
"""

import pytest
import torch
import torch.nn.functional as F
from equations import LAYERS, Plain, make, separate
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

import pluribus as pb
from pluribus.surgery.direct_reads import find_direct_reads


class Instead(Plain):
    def inside(self, h):
        return F.linear(h, self.middle.weight, self.middle.bias)


class BiasAgain(Plain):
    def inside(self, h):
        return self.middle(h) + self.middle.bias


class BiasIfAny(Plain):
    def inside(self, h):
        return self.middle(h) + (0.0 if self.middle.bias is None else self.middle.bias.detach())


class Transposed(Plain):
    def inside(self, h):
        return F.linear(self.middle(h), self.middle.weight.T)


class Penalty(Plain):
    def inside(self, h):
        return self.middle(h) + sum(p.square().sum() for p in self.middle.parameters())


class HeadBias(Plain):
    def forward(self, x):
        return super().forward(x) + self.leave.bias


class Hook(Plain):
    """A hook of the layer itself reads its bias."""

    def __init__(self):
        super().__init__()
        self.middle.register_forward_hook(add_bias)


def add_bias(layer, args, output):
    return output + (0 if layer.bias is None else layer.bias)


class EnterWeight(Plain):
    def forward(self, x):
        return super().forward(x) + self.enter.weight.mean()


class LastOfLayer(Plain):
    def inside(self, h):
        return self.middle(h) + list(self.middle.parameters())[-1]


KINDS = (
    Instead,
    BiasAgain,
    BiasIfAny,
    Transposed,
    Penalty,
    HeadBias,
    EnterWeight,
    Hook,
    LastOfLayer,
)


WORDS = "directly, without calling the layer"
SHARED = {"masksembles": {Transposed, Penalty}}  # masks are before a layer: a weight that is read is the shared one
CASES = [
    (method, kind, shown)
    for method in pb.METHODS
    for kind in KINDS
    for shown in ((True, False) if method in ("masksembles", "batch_ensemble", "lora", "multihead") else (True,))
]


@pytest.mark.parametrize(("method", "kind", "shown"), CASES)
def test_members_are_separate_networks_or_the_model_is_refused(method, kind, shown):
    torch.manual_seed(0)
    x, model = torch.randn(5, 6), kind().eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    try:
        ensemble = make(method, model, x if shown else None)
        runs = [run for run in ("vmap", "loop") if run in ensemble.runner.BACKENDS]
        for run in runs:
            ensemble.run = run
            outputs = ensemble(x)
            if method == "mc_dropout" or kind in SHARED.get(method, ()):
                continue
            members = [separate(kind, ensemble, i)(x) for i in range(ensemble.size)]
            torch.testing.assert_close(outputs, torch.stack(members), rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(ensemble.member(-1)(x), members[-1], rtol=1e-4, atol=1e-4)
        assert runs or kind not in (HeadBias, EnterWeight)  # mimo: what is widened
    except ValueError as error:
        assert {"multihead": "its output comes from"}.get(method, WORDS) in str(error), error
        assert method in ("batch_ensemble", "lora", "masksembles", "mc_dropout", "mimo", "multihead", "tabm")
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


FRESH = {
    "mc_dropout": {"rate": 0.5},
    "batch_ensemble": {},
    "lora": {},
    "masksembles": {},
    "multihead": {},
    "mimo": {"first": "enter", "last": "leave"},
}


@pytest.mark.parametrize("method", FRESH)
def test_a_first_batch_that_cannot_be_looked_at_is_refused_and_a_later_one_is_not(method):
    torch.manual_seed(0)
    x, ensemble = torch.randn(5, 6), pb.METHODS[method](Plain(), 2, **FRESH[method]).eval()
    words = f"{method}: the first batch shows.*once before, or give example="
    with pytest.raises(ValueError, match=words):
        torch.func.vjp(ensemble, x)
    with pytest.raises(ValueError, match=words):
        torch.export.export(ensemble, (x,), strict=False)
    expected = ensemble(x)
    if method != "mc_dropout":
        torch.testing.assert_close(torch.func.vjp(ensemble, x)[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # of torch.compile, between its graphs
def test_a_compiled_ensemble_looks_at_its_first_batch():
    x, plain = torch.randn(5, 6), torch.compile(pb.mc_dropout(Plain(), 3, rate=0.5).eval(), backend="eager")
    for _ in range(2):
        first, second, _ = plain(x)
        assert not torch.allclose(first, second)
    for kind in (BiasIfAny, Instead, LastOfLayer):
        with pytest.raises(ValueError, match="directly, without calling"):
            torch.compile(pb.batch_ensemble(kind(), 3).eval(), backend="eager")(x)
    for method in ("batch_ensemble", "lora", "masksembles"):
        ensemble = pb.METHODS[method](Plain(), 3).eval()
        torch.testing.assert_close(torch.compile(ensemble, backend="eager")(x), ensemble(x))


@pytest.mark.parametrize("kind", [BiasAgain, BiasIfAny])
def test_an_example_leaves_such_layers_to_all_members_of_batch_ensemble_in_training_too(kind):
    torch.manual_seed(0)
    x, y = torch.randn(5, 6), torch.randn(5, 3)
    ensemble = make("batch_ensemble", kind(), x)
    assert not any(name.startswith("middle") for name in ensemble.own)
    assert "shared unchanged" in ensemble.explain() and "'middle'" in ensemble.explain()
    expected = sum(F.mse_loss(separate(kind, ensemble, i)(x), y) for i in range(3)) / 3
    torch.testing.assert_close(ensemble.train().loss(x, y, nn.MSELoss()), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="batch_ensemble: the model reads a parameter of 'middle' directly.*where="):
        pb.batch_ensemble(kind(), 3, where="middle", example=x)


@pytest.mark.parametrize("method", ["batch_ensemble", "masksembles", "lora", "mc_dropout", "mimo"])
def test_the_first_look_leaves_an_input_that_the_model_changes_in_place_to_the_members(method):
    class Doubles(Plain):
        def forward(self, x):
            return super().forward(x.mul_(2.0))

    torch.manual_seed(0)
    x = torch.randn(5, 6)
    options = {"rate": 0.5} if method == "mc_dropout" else {}
    if method == "mimo":
        options = {"first": "enter", "last": "leave"}
    ensemble = pb.METHODS[method](Doubles(), 3, **options).eval()
    given = x.clone()
    torch.manual_seed(1)
    outputs = ensemble(given)
    assert torch.equal(given, x) or torch.equal(given, 2 * x)  # as a network leaves it, or not at all
    if method not in ("mc_dropout", "mimo"):
        members = [separate(Plain, ensemble, i)(2 * x) for i in range(3)]
        torch.testing.assert_close(outputs, torch.stack(members), rtol=1e-4, atol=1e-5)
    plain = pb.METHODS[method](Plain(), 3, **options).eval()
    plain.load_state_dict(ensemble.state_dict())
    plain(2 * x)
    torch.manual_seed(1)
    again = plain(2 * x) if method != "mc_dropout" else outputs
    torch.testing.assert_close(outputs, again, rtol=1e-4, atol=1e-5)


def test_what_asks_for_no_values_is_no_read():
    class Asks(Plain):
        def inside(self, h):
            weight = self.middle.weight
            h = h.to(weight.dtype).to(weight.device).type_as(weight) * (1 if weight.requires_grad else 2)
            h = h + torch.zeros_like(weight)[0] + weight.new_zeros(weight.shape[0]) + torch.zeros(len(weight))
            return self.middle(h)

    assert find_direct_reads(Asks(), LAYERS, ((torch.randn(2, 6),), {})) == []
    x, ensemble = torch.randn(4, 6), pb.batch_ensemble(Asks(), 3).eval()
    torch.testing.assert_close(ensemble(x)[2], separate(Plain, ensemble, 2)(x), rtol=1e-4, atol=1e-5)


def test_tied_layers_read_each_others_weights_and_parametrized_ones_are_read_through_theirs():
    class Tied(Plain):
        def __init__(self):
            super().__init__()
            self.again = nn.Linear(8, 8)
            self.again.weight = self.middle.weight

        def inside(self, h):
            return self.again(self.middle(h))

    batch = (torch.randn(2, 6),), {}
    assert find_direct_reads(Tied(), LAYERS, batch) == []
    normed = Transposed()
    weight_norm(normed.middle)
    assert find_direct_reads(normed, LAYERS, batch) == ["middle"]
    for norm in (weight_norm, nn.utils.spectral_norm):  # by a parametrization, and by a hook
        plain = Plain()
        norm(plain.middle)
        assert find_direct_reads(plain, LAYERS, batch) == []


@pytest.mark.parametrize("read", ["weight", "bias"])
def test_mimo_without_an_example_refuses_on_its_first_batch_what_is_read_of_its_ends(read):
    class Reads(Plain):
        def forward(self, x):
            return super().forward(x) + getattr(self.leave, read).mean()

    ensemble = pb.mimo(Reads(), 2, first="enter", last="leave")
    with pytest.raises(ValueError, match="mimo: the model reads a parameter of 'leave' directly.*first= or last="):
        ensemble(torch.randn(4, 6))
    assert pb.mimo(Plain(), 2, first="enter", last="leave")(torch.randn(4, 6)).shape == (2, 4, 3)
