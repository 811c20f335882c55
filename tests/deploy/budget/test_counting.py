"""Costs against closed forms: layer by layer, member by member, and with nothing touched."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import pluribus as pb
from pluribus.deploy.budget.counting import Cost, cost

MEMBERS, ROWS = 3, 4


def of_layer(layer: nn.Module, *shapes: tuple[int, ...]) -> int:
    return cost(layer, tuple(torch.zeros(2, *shape) for shape in shapes)).mult_adds


class LooksAtValues(nn.Module):
    """A module that cannot run on the meta device."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        return self.module(x) if x.abs().sum().item() >= 0 else x


ENCODER = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
CLOSED_FORMS = {
    "linear": (nn.Linear(5, 6), (5,), 5 * 6),
    "linear on a sequence": (nn.Linear(5, 6), (7, 5), 7 * 5 * 6),
    "convolution": (nn.Conv2d(4, 6, 3, stride=2, padding=1), (4, 8, 8), 4 * 4 * 6 * 4 * 9),
    "grouped convolution": (nn.Conv2d(4, 6, 3, groups=2), (4, 8, 8), 6 * 6 * 6 * 2 * 9),
    "depthwise convolution": (nn.Conv1d(4, 4, 5, groups=4), (4, 9), 5 * 4 * 5),
    "transposed convolution": (nn.ConvTranspose2d(4, 6, 3, stride=2), (4, 5, 5), 25 * 4 * 6 * 9),
    "grouped transposed convolution": (nn.ConvTranspose2d(4, 6, 3, groups=2), (4, 5, 5), 25 * 4 * 3 * 9),
    "convolution in three dimensions": (nn.Conv3d(2, 3, 3), (2, 5, 5, 5), 27 * 3 * 2 * 27),
    "rnn": (nn.RNN(5, 7, batch_first=True), (4, 5), 4 * (5 + 7) * 7),
    "gru": (nn.GRU(5, 7, batch_first=True), (4, 5), 4 * 3 * (5 + 7) * 7),
    "lstm": (nn.LSTM(5, 7, batch_first=True), (4, 5), 4 * 4 * (5 + 7) * 7),
    "lstm with projection": (nn.LSTM(5, 7, proj_size=3, batch_first=True), (4, 5), 4 * (4 * (5 + 3) * 7 + 7 * 3)),
    "deep two-way lstm": (
        nn.LSTM(5, 7, 2, batch_first=True, bidirectional=True),
        (4, 5),
        2 * 4 * 4 * ((5 + 7) * 7 + (14 + 7) * 7),
    ),
    "encoder layer": (ENCODER, (7, 8), 7 * (4 * 8 * 8 + 2 * 8 * 16) + 2 * 2 * 7 * 7 * 4),
    "encoder": (nn.TransformerEncoder(ENCODER, 3, enable_nested_tensor=False), (7, 8), 3 * (7 * 512 + 784)),
    "normalisation": (nn.BatchNorm1d(5), (5,), 0),
}


class TestLayers:
    @pytest.mark.parametrize("name", CLOSED_FORMS)
    def test_mult_adds_of_a_layer_are_its_closed_form(self, name):
        layer, shape, mult_adds = CLOSED_FORMS[name]
        assert of_layer(layer, shape) == mult_adds

    @pytest.mark.parametrize("name", CLOSED_FORMS)
    def test_a_model_that_looks_at_values_is_counted_alike(self, name):
        layer, shape, mult_adds = CLOSED_FORMS[name]
        assert of_layer(LooksAtValues(layer), shape) == mult_adds

    @pytest.mark.parametrize("wrap", [nn.Sequential, LooksAtValues])
    def test_products_with_vectors_count(self, wrap):
        class Products(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                vector = x.new_ones(5)
                return x @ vector + vector @ vector + torch.addmv(x.new_ones(2), x, vector)

        assert cost(wrap(Products()), torch.zeros(2, 5)).mult_adds == 13  # (10 + 5 + 10) / 2 rows, rounded up

    def test_attention_counts_both_products(self):
        class Attention(nn.Module):
            def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
                return functional.scaled_dot_product_attention(query, key, value)

        assert of_layer(Attention(), (3, 7, 8), (3, 9, 8), (3, 9, 6)) == 3 * 7 * 9 * (8 + 6)


class TestMembers:
    def test_what_no_member_owns_counts_once(self):
        trunk, branch = nn.Conv2d(3, 8, 3), nn.Linear(8 * 36, 5)
        ensemble = pb.treenet(nn.Sequential(trunk, nn.Flatten(), branch), MEMBERS, branch="2")
        assert cost(ensemble, torch.zeros(ROWS, 3, 8, 8)).mult_adds == 36 * 8 * 3 * 9 + MEMBERS * 8 * 36 * 5

    def test_owned_parameters_count_once_per_member_and_shared_ones_once(self):
        ensemble = pb.treenet(nn.Sequential(nn.Linear(5, 6), nn.Linear(6, 2)), MEMBERS, branch="1")
        assert cost(ensemble, torch.zeros(ROWS, 5)).parameters == 36 + MEMBERS * 14


class Noise(nn.Module):
    """Draws in eval mode too, and counts its calls in a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x + torch.randn_like(x) + torch.randn(()).to(x.device)


class TestNothingIsTouched:
    def model(self) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), Noise(), nn.Flatten(), nn.Linear(144, 2))

    @pytest.mark.parametrize("wrap", [nn.Sequential, LooksAtValues])
    def test_parameters_buffers_modes_input_and_chance_stay(self, wrap):
        model, x = wrap(self.model()), torch.randn(2, 3, 8, 8)
        next(iter(model.children()))[1].eval()  # training, but for one layer
        modes, before = [m.training for m in model.modules()], {k: v.clone() for k, v in model.state_dict().items()}
        given, chance = x.clone(), torch.get_rng_state()
        cost(model, x)
        assert [m.training for m in model.modules()] == modes
        assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
        assert torch.equal(given, x) and torch.equal(chance, torch.get_rng_state())
        assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())

    @pytest.mark.parametrize("wrap", [nn.Sequential, LooksAtValues])
    def test_input_is_not_changed_by_a_model_that_works_in_place(self, wrap):
        x = -torch.ones(2, 5)
        cost(wrap(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(5, 2))), x)
        assert torch.equal(x, -torch.ones(2, 5))

    def test_backend_switches_stay(self):
        before = torch.backends.mha.get_fastpath_enabled(), torch.backends.mkldnn.enabled, torch.backends.cudnn.enabled
        cost(self.model(), torch.zeros(2, 3, 8, 8))
        after = torch.backends.mha.get_fastpath_enabled(), torch.backends.mkldnn.enabled, torch.backends.cudnn.enabled
        assert after == before


class TestInputs:
    @pytest.mark.parametrize("of_model", ["cpu", "meta"])
    @pytest.mark.parametrize("of_input", ["cpu", "meta"])
    def test_model_and_input_may_be_on_the_meta_device(self, of_model, of_input):
        model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6)).to(of_model)
        assert cost(model, torch.zeros(2, 5, device=of_input)) == Cost(36 + 12, 30)

    def test_tuple_and_dict_are_the_arguments_of_the_call(self):
        model = nn.Bilinear(3, 4, 5)
        a, b = torch.zeros(2, 3), torch.zeros(2, 4)
        assert cost(model, (a, b)) == cost(model, {"input2": b, "input1": a}) == Cost(65, 60)

    def test_tied_parameters_count_once_and_buffers_not_at_all(self):
        model = nn.Sequential(nn.Linear(5, 5, bias=False), nn.Linear(5, 5, bias=False), nn.BatchNorm1d(5))
        model[1].weight = model[0].weight
        assert cost(model, torch.zeros(2, 5)) == Cost(25 + 10, 50)

    def test_compiled_model_costs_what_the_model_costs(self):
        model = nn.Linear(5, 6)
        assert cost(torch.compile(model, backend="eager"), torch.zeros(2, 5)) == cost(model, torch.zeros(2, 5))


class TestCost:
    @pytest.mark.parametrize(
        "counts, text",
        [
            ((11_173_962, 555_422_720), "11.17 M parameters, 0.555 G mult-adds"),
            ((44_695_848, 2_221_690_880, 4.0), "44.70 M parameters, 2.222 G mult-adds"),
            ((383_571_176, 63_986_204_672), "383.57 M parameters, 63.986 G mult-adds"),
            ((19_466, 2_216_960), "19,466 parameters, 2.217 M mult-adds"),
            ((0, 0), "0 parameters, 0 mult-adds"),
        ],
    )
    def test_prints_as_the_papers_do(self, counts, text):
        assert str(Cost(*counts)) == text


class TestRefusals:
    def test_input_of_the_wrong_shape_is_named_with_torchs_own_words(self):
        with pytest.raises(
            ValueError, match=r"cost: the model must run on x, .*\[\(2, 4\)\].*shapes cannot be multiplied"
        ):
            cost(nn.Linear(5, 6), torch.zeros(2, 4))

    def test_model_that_looks_at_values_asks_for_values(self):
        with pytest.raises(ValueError, match="If the model depends on values, give x and the model on a real device"):
            cost(LooksAtValues(nn.Linear(5, 6)), torch.zeros(2, 5, device="meta"))

    @pytest.mark.parametrize("x", [(), torch.zeros(()), torch.zeros(0, 5), "image"])
    def test_input_without_rows_is_refused(self, x):
        with pytest.raises(ValueError, match="cost: x must start with a tensor of at least one row"):
            cost(nn.Linear(5, 6), x)

    @pytest.mark.parametrize("model", [None, nn.Linear, lambda x: x])
    def test_what_is_no_module_is_refused(self, model):
        with pytest.raises(TypeError, match="cost: the model must be an nn.Module, but it is a"):
            cost(model, torch.zeros(2, 5))


class Token(nn.Module):
    """Calls a module with a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.layer = nn.Parameter(torch.randn(1, 4)), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 4) -> (batch, 3)."""
        return self.layer(x) + self.layer(self.token.expand(len(x), -1))


def test_modules_may_be_called_with_parameters():
    model = Token()
    assert cost(model, torch.zeros(1, 4)).mult_adds == 24
    assert model.token.requires_grad
    assert pb.plan(model, torch.zeros(1, 4), methods=["deep"])
    assert pb.freeze(pb.deep(model, 2), torch.zeros(1, 4)).mult_adds[0] == 48
    assert all(part.requires_grad for part in model.parameters())
