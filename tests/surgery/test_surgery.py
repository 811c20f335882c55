"""Copies of a model with layers changed: what changes, what stays, and what the errors say."""

import copy

import pytest
import torch
import torch.nn.functional as F
from small import Tied, cnn
from torch import Tensor, nn

import pluribus as pb
from pluribus.methods.adapted_layers import Dropped
from pluribus.surgery.calling import call, call_order
from pluribus.surgery.copying import duplicate, state
from pluribus.surgery.initial_laws import reinitialize
from pluribus.surgery.replacing import adapt_, expose_weights, replace
from pluribus.surgery.selecting import exact_pattern, matches, pick

# -------------------------------------------------------------------- replace


def test_replace_changes_a_copy_and_all_layers_of_the_type():
    model = cnn().eval()
    other = replace(model, nn.ReLU, lambda _: nn.GELU())
    assert [type(m).__name__ for m in other] == [
        {"ReLU": "GELU"}.get(type(m).__name__, type(m).__name__) for m in model
    ]
    assert isinstance(model[2], nn.ReLU)
    assert not any(a is b for a in model.modules() for b in other.modules())


def test_layer_used_twice_is_replaced_once():
    layer = nn.Linear(3, 3)
    model = nn.Sequential(layer, nn.Sequential(nn.ReLU(), layer))
    made = []

    def make(old: nn.Module) -> nn.Module:
        made.append(nn.Linear(3, 3))
        return made[-1]

    other = replace(model, nn.Linear, make)
    assert len(made) == 1
    assert other[0] is other[1][1] is made[0]


def test_tied_weights_stay_tied_in_copies():
    for other in (duplicate(Tied()), expose_weights(Tied()), reinitialize(Tied())):
        assert other.one.weight is other.two.weight


def test_attention_with_a_tied_projection_stays_tied_when_opened():
    one, two = nn.MultiheadAttention(4, 2), nn.MultiheadAttention(4, 2)
    two.in_proj_weight = one.in_proj_weight
    model = expose_weights(nn.ModuleList([one, two]))
    assert model[0].q_proj.weight is model[1].q_proj.weight


# -------------------------------------------------------------------- patterns


@pytest.mark.parametrize(
    ("pattern", "matched"),
    [
        ("layer4", ["layer4", "layer4.0", "layer4.0.conv1"]),
        ("layer4|fc", ["layer4", "layer4.0", "layer4.0.conv1", "fc"]),
        ("layer4.0", ["layer4.0", "layer4.0.conv1"]),
        (r"layer4\.0\.", ["layer4.0.conv1"]),
        (r".*conv1", ["layer4.0.conv1"]),
        (r"fc.*", ["fc", "fc_norm"]),
        (exact_pattern(["layer4.0", "fc"]), ["layer4.0", "fc"]),
        ("conv1", []),
        ("layer", []),
    ],
)
def test_pattern_matches_whole_parts_of_a_name_from_its_start(pattern, matched):
    names = ["layer4", "layer40", "layer4.0", "layer4.0.conv1", "fc", "fc_norm"]
    assert [name for name in names if matches(pattern, name)] == matched


NAMES = ["stem", "layer1.conv", "layer2.conv", "fc"]


@pytest.mark.parametrize("pattern", ["layer1|fc", "(layer1|nothing)|fc", "[a|l]ayer1|fc", r"layer1|f\w"])
def test_pick_keeps_the_order_of_the_names(pattern):
    assert pick("m", pattern, reversed(NAMES)) == ["fc", "layer1.conv"]


@pytest.mark.parametrize(
    ("pattern", "part"),
    [("conv", "conv"), ("layer1|head", "head"), (r"fc|layer3\.(a|b)", r"layer3\\.(a|b)"), ("fc|", "")],
)
def test_pattern_or_alternative_that_matches_nothing_is_an_error_that_lists_the_names(pattern, part):
    with pytest.raises(ValueError) as caught:
        pick("treenet", pattern, NAMES, "tensors")
    text = str(caught.value)
    assert text.startswith(f"treenet: the pattern '{part}' matches none of the model's tensors.")
    assert text.endswith("The names are: 'stem', 'layer1.conv', 'layer2.conv', 'fc'.")


def test_pattern_that_is_no_regular_expression_is_an_error():
    with pytest.raises(ValueError, match=r"deep: '\(fc' is not a regular expression \(missing \)"):
        pick("deep", "(fc", NAMES)


# -------------------------------------------------------------------- reset


def test_reset_draws_every_weight_anew_and_keeps_its_deviation():
    model = nn.Sequential(nn.Linear(200, 100), nn.Conv2d(20, 30, 3), nn.MultiheadAttention(60, 2), nn.LSTM(40, 30))
    nn.init.normal_(model[0].weight, std=0.02)
    for (name, old), (_, new) in zip(state(model), state(reinitialize(model)), strict=True):
        if old.unique().numel() == 1:
            assert torch.equal(old, new), name
        else:
            assert not (old == new).any(), name
            if old.numel() > 500:
                assert new.std().item() == pytest.approx(old.std().item(), rel=0.1), name


def test_reset_keeps_constants_of_the_models_own():
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    nn.init.constant_(model[0].bias, 0.7)
    nn.init.zeros_(model[1].weight)  # the usual start of a residual branch
    other = reinitialize(model)
    assert torch.equal(other[0].bias, model[0].bias)
    assert torch.equal(other[1].weight, model[1].weight)


@pytest.mark.parametrize("norm", [nn.BatchNorm1d, nn.LayerNorm, nn.RMSNorm])
def test_reset_starts_trained_normalisation_anew(norm):
    layer = norm(8)
    fresh = copy.deepcopy(layer)
    nn.init.normal_(layer.weight)
    layer(torch.randn(20, 8) + 3)
    other = reinitialize(layer)
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(state(other), state(fresh), strict=True))


def test_reset_draws_a_tied_tensor_once():
    torch.manual_seed(5)
    chain = nn.Sequential(nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False))
    tied = nn.Sequential(chain[0], nn.Linear(6, 6, bias=False))
    tied[1].weight = tied[0].weight
    alone = reinitialize(nn.Sequential(chain[0]), torch.Generator().manual_seed(1))
    both = reinitialize(tied, torch.Generator().manual_seed(1))
    assert torch.equal(both[0].weight, alone[0].weight)
    assert both[1].weight is both[0].weight


def test_generator_decides_what_reset_draws_and_nothing_else_is_drawn():
    model, before = cnn(), torch.get_rng_state()
    draws = [
        torch.cat([p.flatten() for p in reinitialize(model, torch.Generator().manual_seed(s)).parameters()])
        for s in (1, 1, 2)
    ]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert torch.equal(torch.get_rng_state(), before)


def test_reset_of_names_changes_only_those():
    model = cnn()
    model(torch.randn(4, 3, 8, 8))
    names = {"0.weight", "3.norm.running_mean"}
    changed = {
        n
        for (n, a), (_, b) in zip(state(model), state(reinitialize(model, names=names)), strict=True)
        if (a != b).any()
    }
    assert names <= changed <= {"0.weight", "3.norm.running_mean", "3.norm.running_var", "3.norm.num_batches_tracked"}


# -------------------------------------------------------------------- running a model once


class Backwards(nn.Module):
    def __init__(self):
        super().__init__()
        self.last, self.unused, self.first = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        """The layers in another order than they are defined in, one of them twice."""
        return self.last(self.first(F.relu(self.first(x))))


def test_called_gives_the_layers_in_the_order_of_their_first_call():
    model = Backwards()
    assert call_order("m", model, torch.randn(2, 3)) == ["first", "last"]
    assert not any(m._forward_pre_hooks for m in model.modules())


@pytest.mark.parametrize(
    ("example", "shapes"),
    [
        (torch.zeros(2, 7), r"\[\(2, 7\)\]"),
        ((torch.zeros(2, 3), torch.zeros(1)), r"\[\(2, 3\), \(1,\)\]"),
        ({"y": 1}, r"\[\]"),
    ],
)
def test_example_that_does_not_fit_says_its_shape_and_what_to_give(example, shapes):
    with pytest.raises(
        ValueError, match=rf"packed: the model does not run on the example, whose shape is {shapes}: .+\. Give"
    ):
        call("packed", Backwards(), example)


def test_adapted_layer_keeps_its_tensors_its_kind_and_its_place():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    names, layer, weight = list(model.state_dict()), model[1], model[1].weight
    adapt_(model[1], Dropped)
    assert model[1] is layer
    assert layer.weight is weight
    assert isinstance(layer, nn.Linear)
    assert isinstance(layer, Dropped)
    assert type(layer).__name__ == "DroppedLinear"
    assert list(model.state_dict()) == names
    assert type(model[0]) is nn.Linear


class Conv1D(nn.Module):
    """A linear layer that keeps its weight as (inputs, outputs), as GPT-2 has it."""

    def __init__(self, nf: int, nx: int):
        super().__init__()
        self.nf = nf
        self.weight, self.bias = nn.Parameter(torch.randn(nx, nf)), nn.Parameter(torch.randn(nf))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x, self.weight)


def test_linear_layers_of_gpt2_are_opened_too():
    model, x = nn.Sequential(Conv1D(5, 4), nn.ReLU(), Conv1D(3, 5)), torch.randn(2, 4)
    torch.testing.assert_close(expose_weights(model)(x), model(x))
    assert pb.batch_ensemble(model, 3).own == {f"{i}.{key}" for i in (0, 2) for key in ("r", "s", "b")}


def test_a_recurrent_ensemble_gives_its_members_between_training_steps():
    # An LSTM keeps views of the stacked weights, which the optimizer then changes under them.
    ensemble = pb.deep(nn.LSTM(3, 4), 2)
    optimizer = torch.optim.SGD(ensemble.parameters(), 0.1)
    ensemble(torch.randn(5, 2, 3))[0].square().mean().backward()
    optimizer.step()
    x = torch.randn(5, 2, 3)
    assert torch.allclose(ensemble.member(1)(x)[0], ensemble(x)[0][1], atol=1e-6)
