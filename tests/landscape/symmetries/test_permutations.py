"""Groups of hidden units: found as a person would write them down, never wrong, and the given model stays as it is."""

import copy
import itertools

import pytest
import torch
from odd_networks import HIDDEN, ODD, ORDERED, Net, built, linear, ordered, rows, seeded
from torch import nn
from zoo import ZOO

from pluribus import landscape as ls
from pluribus._common.trees import as_batch, logits_of, map_tensors, tensors_of
from pluribus.landscape.symmetries import rules

FAST = ("lstm", "transformer_encoder", "unet", "tied", "bert")


def outputs(model, example):
    args, kwargs = as_batch(example)
    with torch.no_grad():
        return tensors_of(logits_of(model(*args, **kwargs)))


def sizes(groups):
    found = [group.size if group.outer is None else (group.size, group.outer_size) for group in groups]
    return sorted(found, key=str)


def assert_same_function(model, other, example, tolerance=1e-5):
    for one, two in zip(outputs(model, example), outputs(other, example), strict=True):
        assert torch.allclose(one, two, rtol=0, atol=tolerance * max(1.0, float(one.abs().max())))


def assert_permuted(model, other):
    """Every weight is still there, and some are elsewhere."""
    pairs = list(zip(model.parameters(), other.parameters(), strict=True))
    assert all(torch.equal(a.flatten().sort().values, b.flatten().sort().values) for a, b in pairs)
    assert any(not torch.equal(a, b) for a, b in pairs)


# ---------------------------------------------------------------- what is found


@pytest.mark.parametrize("name", ODD)
def test_the_groups_of_an_odd_network_are_those_that_a_person_would_write_down(name):
    odd = ODD[name]
    model, example = built(odd.build), odd.example()
    groups = ls.permutations(model, example)
    assert sizes(groups) == sorted(odd.sizes, key=str)
    other = ls.permute(model, groups, seeded())
    assert_permuted(model, other)
    assert_same_function(model, other, example)
    if isinstance(example, torch.Tensor) and example.is_floating_point():
        assert_same_function(model, other, 2 * torch.randn(example.shape, generator=seeded(3)))


@pytest.mark.parametrize("name", ORDERED)
def test_units_whose_places_count_keep_them(name):
    model, example = built(ordered(ORDERED[name])), rows(6, 5)()
    groups = ls.permutations(model, example)
    assert sizes(groups) == [5]
    assert_same_function(model, ls.permute(model, groups, seeded()), rows(4, 5)())
    assert not any(model.enter.weight.shape == groups.shapes[n] and n.startswith("enter") for n in groups.layout)
    assert HIDDEN not in groups.sizes


@pytest.mark.parametrize("name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in ZOO])
def test_a_permuted_network_of_the_zoo_is_the_same_function(name):
    model, example = built(ZOO[name].build), map_tensors(ZOO[name].example(), lambda t: t[:1])
    groups = ls.permutations(model, example)
    held = sum(torch.Size(groups.shapes[name]).numel() for name in groups.layout)
    assert held > 0.9 * sum(parameter.numel() for parameter in model.parameters())
    assert not groups.without_rule
    other = ls.permute(model, groups, seeded())
    assert any(not torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    assert_same_function(model, other, example)


def test_the_orders_of_an_mlp_are_those_of_its_rows_and_columns():
    model, example = built(lambda: linear(5, 7, 6, 2)), rows(6, 5)()
    groups = ls.permutations(model, example)
    first, second = orders = groups.random(seeded())
    state = model.state_dict()
    by_hand = {
        "0.weight": state["0.weight"][first], "0.bias": state["0.bias"][first],
        "2.weight": state["2.weight"][second][:, first], "2.bias": state["2.bias"][second],
        "4.weight": state["4.weight"][:, second], "4.bias": state["4.bias"],
    }  # fmt: skip
    for name, tensor in by_hand.items():
        assert torch.equal(groups.reorder(name, state[name], orders), tensor)


def test_no_order_of_a_tiny_network_is_missing():
    """All that leave the outputs alone, tried one by one, are those of the groups."""
    model, example = built(lambda: linear(2, 3, 2)), rows(8, 2)()
    groups = ls.permutations(model, example)
    state, found = model.state_dict(), 0
    for one, other in itertools.product(itertools.permutations(range(3)), repeat=2):
        trial = copy.deepcopy(model)
        rearranged = {"0.weight": state["0.weight"][list(one)], "0.bias": state["0.bias"][list(one)]}
        trial.load_state_dict({**state, **rearranged, "2.weight": state["2.weight"][:, list(other)]})
        found += all(
            torch.allclose(a, b, atol=1e-6)
            for a, b in zip(outputs(trial, example), outputs(model, example), strict=True)
        )
    assert found == 6 and groups.sizes == (3,)


def test_units_behind_a_branch_that_starts_at_zero_are_found():
    model = built(ODD["residual"].build)
    with torch.no_grad():
        for block in model.blocks:
            block[-1].weight.zero_()
    assert sizes(ls.permutations(model, ODD["residual"].example())) == [4, 6, 9]


def test_a_wrong_rule_is_found_out_by_the_test_at_the_end(monkeypatch):
    model, example = built(ordered(ORDERED["cumsum"])), rows(6, 5)()
    monkeypatch.setitem(rules.RULES, "cumsum", rules.pointwise)
    groups = ls.permutations(model, example)
    assert groups.sizes == (5,)
    assert [text for text in groups.dropped if "6 units of enter.weight[0], on whose order the outputs depend" in text]


def test_an_operation_without_a_rule_fixes_what_it_touches():
    model = built(ordered(lambda h: h + torch.linalg.qr(h).R.sum()))
    groups = ls.permutations(model, rows(6, 5)())
    assert groups.sizes == (5,) and groups.without_rule == ("linalg_qr",)
    assert "linalg_qr" in groups.explain()


def test_positions_that_the_example_does_not_reach_keep_their_places():
    model = built(ODD["positions"].build)
    groups = ls.permutations(model, ODD["positions"].example())
    other = ls.permute(model, groups, seeded())
    assert_same_function(model, other, rows(2, 9, 5)())  # longer than the example


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_networks_of_other_precisions_are_permuted(dtype):
    model, example = built(lambda: linear(5, 7, 2)).to(dtype), rows(6, 5)().to(dtype)
    other = ls.permute(model, ls.permutations(model, example), seeded())
    assert all(parameter.dtype == dtype for parameter in other.parameters())
    assert_permuted(model, other)
    assert_same_function(model, other, example, 1e-12 if dtype == torch.float64 else 0.05)


def test_code_that_insists_on_single_precision_is_followed_in_double():
    model = built(
        lambda: Net(lambda m, x: m.head(m.enter(x).float().relu()), enter=nn.Linear(5, 7), head=nn.Linear(7, 2))
    )
    groups = ls.permutations(model, rows(6, 5)())
    assert groups.sizes == (7,)


def test_a_trajectory_stands_for_its_solution():
    model, example = built(lambda: linear(5, 7, 2)), rows(6, 5)()
    run = ls.Trajectory.of([model], model)
    assert ls.permutations(run, example).sizes == (7,)
    assert_same_function(model, ls.permute(run, ls.permutations(run, example), seeded()), example)


# ---------------------------------------------------------------- what comes back


def test_groups_say_where_their_units_stand():
    model = built(ODD["attention"].build)
    groups = ls.permutations(model, ODD["attention"].example())
    heads = next(group for group in groups if group.size == 2)
    inner = next(group for group in groups if group.size == 4)
    assert inner.outer == heads.number and inner.outer_size == 2
    assert set(inner.places) == {("q.weight", 0), ("q.bias", 0), ("k.weight", 0), ("k.bias", 0)}
    assert f"4 units in each of the 2 units of group {heads.number}" in groups.explain()
    assert repr(groups) == "Groups(4 groups in 11 of 12 tensors)"


# ---------------------------------------------------------------- the given model stays as it is


@pytest.mark.parametrize("name", ["batch norm", "weight and spectral norm", "gru", "encoder, norm last"])
def test_nothing_of_the_given_model_changes(name):
    odd = ODD[name]
    model, example = built(odd.build).train(), odd.example()
    next(iter(model.modules())).training = False  # modes of its own
    before, kept = copy.deepcopy(model.state_dict()), example.clone()
    modes = [part.training for part in model.modules()]
    versions = [tensor._version for tensor in model.state_dict(keep_vars=True).values()]
    torch.manual_seed(7)
    chance = torch.get_rng_state()
    groups = ls.permutations(model, example)
    other = ls.permute(model, groups, seeded())
    ls.align(other, model, example, groups=groups, restarts=1)
    ls.align(other, model, example, "activations", groups=groups, restarts=0)
    assert torch.equal(torch.get_rng_state(), chance) and torch.equal(example, kept)
    assert [part.training for part in model.modules()] == modes == [part.training for part in other.modules()]
    assert [tensor._version for tensor in model.state_dict(keep_vars=True).values()] == versions
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


class Caching(nn.Module):
    """Keeps a function of its weights from its first run in eval mode until it trains again."""

    def __init__(self, forgets=True):
        super().__init__()
        self.one, self.two, self.three = nn.Linear(5, 7), nn.Linear(7, 6), nn.Linear(6, 2)
        self.kept, self.forgets = None, forgets

    def forward(self, x):
        if self.kept is None:
            product = self.two.weight @ torch.diag(self.one.bias.exp())
            if self.training:
                return self.three((self.one(x).relu() @ product.T).relu())
            self.kept = product
        return self.three((self.one(x).relu() @ self.kept.T).relu())

    def train(self, mode=True):
        if mode and self.forgets:
            self.kept = None
        return super().train(mode)


def test_a_network_that_caches_a_function_of_its_weights_is_followed_on_copies():
    model, example = built(Caching), rows(6, 5)()
    groups = ls.permutations(model, example)
    assert model.kept is None and set(groups.sizes) >= {6}
    model(example)
    other = ls.permute(model, groups, seeded())
    assert_permuted(model, other)
    assert_same_function(model, other, example)


def test_a_network_that_does_not_let_go_of_what_it_cached_is_refused():
    model, example = built(lambda: Caching(forgets=False)), rows(6, 5)()
    groups = ls.permutations(model, example)
    model(example)
    with pytest.raises(ValueError, match="must cache something computed from its weights.*in 'kept'"):
        ls.permute(model, groups, seeded())
    with pytest.raises(ValueError, match="no hidden units.* It keeps tensors .*in 'kept'"):
        ls.permutations(model, example)  # of what it is now


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    "build", [lambda: nn.Linear(5, 2), lambda: nn.Sequential(nn.Linear(5, 1), nn.ReLU(), nn.Linear(1, 2))]
)
def test_a_network_without_a_symmetry_is_refused(build):
    with pytest.raises(ValueError, match="no hidden units were found that can be permuted"):
        ls.permutations(built(build), rows(6, 5)())


def test_a_network_whose_every_unit_has_its_place_says_what_fixed_them():
    model = built(
        lambda: Net(lambda m, x: m.head(torch.linalg.qr(m.enter(x)).Q), enter=nn.Linear(5, 4), head=nn.Linear(4, 2))
    )
    with pytest.raises(ValueError, match="Operations without a rule keep what they touch in place: linalg_qr"):
        ls.permutations(model, rows(6, 5)())


@pytest.mark.parametrize(
    ("model", "example", "error", "words"),
    [
        (lambda: linear(5, 7, 2), rows(6, 4), ValueError, "does not run on the example, whose shape is"),
        (lambda: "linear", rows(6, 5), TypeError, "networks must be an nn.Module"),
        (lambda: nn.Sequential(nn.ReLU()), rows(6, 5), ValueError, "has no parameters"),
        (lambda: Net(lambda m, x: m.a(x) / 0, a=linear(5, 7, 2)), rows(6, 5), ValueError, "must be finite somewhere"),
    ],
)
def test_what_is_no_model_or_no_example_of_it_is_refused(model, example, error, words):
    with pytest.raises(error, match=words):
        ls.permutations(model(), example())


def test_groups_of_another_network_are_refused():
    groups = ls.permutations(built(lambda: linear(5, 7, 2)), rows(6, 5)())
    with pytest.raises(ValueError, match=r"'0.weight' has the shape \(8, 5\) in the model and \(7, 5\) in the groups"):
        ls.permute(built(lambda: linear(5, 8, 2)), groups)
    with pytest.raises(TypeError, match=r"groups must come from ls.permutations, but got a list"):
        ls.permute(built(lambda: linear(5, 8, 2)), [8])
