"""What a model reads beside the tables of its modules: functions that hold it, and attributes that are its parameters.

The oracle is the same network, written with methods alone: networks that are built apart and, for all methods, an
ensemble that was drawn by the same seeds.
"""

import copy
import functools

import pytest
import torch
from keeping import Model
from torch import Tensor, nn

import pluribus as pb


class Written(Model):
    """As a method: what all others must give."""

    def kept(self, rows):
        return self.bias * self.leave.weight.sum()


class Lambda(Model):
    def begin(self):
        self.scale = lambda: self.bias * self.leave.weight.sum()

    def kept(self, rows):
        return self.scale()


class Partial(Model):
    def begin(self):
        self.scale = functools.partial(lambda leave: self.bias * leave.weight.sum(), self.leave)

    def kept(self, rows):
        return self.scale()


class Hook(Model):
    def begin(self):
        self.enter.register_forward_hook(lambda _, args, output: output + self.bias * self.leave.weight.sum())

    def kept(self, rows):
        return 0.0


class Holds(Model):
    def kept(self, rows):
        return self.bias * self.weight().sum()


class InList(Holds):
    def begin(self):
        self.held = [self.leave.weight]

    def weight(self):
        return self.held[0]


class Bound(Holds):
    def begin(self):
        self.weight = functools.partial(torch.clone, self.leave.weight)


class View(Holds):
    def begin(self):
        self.held = self.leave.weight.view(-1)

    def weight(self):
        return self.held


FUNCTIONS = Lambda, Partial, Hook
TENSORS = InList, Bound


def alike(kind: type[nn.Module], number: int = 0) -> tuple[nn.Module, nn.Module]:
    """A network of a kind, and the one that is written with methods, with equal weights."""
    torch.manual_seed(number)
    given, written = kind().eval(), Written().eval()
    with torch.no_grad():
        for mine, theirs in zip(written.parameters(), given.parameters(), strict=True):
            mine.copy_(theirs)
    return given, written


def make(method: str, model: nn.Module) -> pb.Ensemble:
    torch.manual_seed(1)
    options = {"treenet": {"branch": "leave"}, "mc_dropout": {"rate": 0.1}}.get(method, {})
    if method in ("batch_ensemble", "lora"):
        options["where"] = "enter"  # a weight that the model reads itself must be the one that its layer has
    if method in ("packed", "mimo"):
        options["example"] = torch.randn(4, 6)
    if method == "packed":
        options["alpha"] = 3
    return pb.METHODS[method](model, *(() if method == "single" else (3,)), **options).eval()


def answer(ensemble: nn.Module, x: Tensor) -> Tensor:
    torch.manual_seed(2)
    return ensemble(x)


@pytest.mark.parametrize("method", pb.METHODS)
@pytest.mark.parametrize("kind", [Lambda, Hook])
def test_functions_that_hold_the_model_hold_the_members(kind, method):
    given, written = alike(kind)
    x, expected = torch.randn(4, 6), None
    before = given(x)
    try:
        other = make(method, written)
    except ValueError as error:
        with pytest.raises(ValueError, match=str(error)[:40]):
            make(method, given)
        assert method == "mimo"  # what is beside the first layer
        return
    ensemble = make(method, given)
    for run in ("vmap", "loop"):
        if run in ensemble.runner.BACKENDS:
            ensemble.run = other.run = run
        expected = answer(other, x)
        torch.testing.assert_close(answer(ensemble, x), expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(answer(copy.deepcopy(ensemble), x), expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(given(x), before)


@pytest.mark.parametrize("kind", (*FUNCTIONS, *TENSORS))
def test_networks_from_a_list_are_the_separate_ones_or_refused(kind):
    pairs, x = [alike(kind, number) for number in range(3)], torch.randn(4, 6)
    expected = torch.stack([written(x) for _, written in pairs])
    ensemble = pb.deep([given for given, _ in pairs])
    torch.testing.assert_close(ensemble(x), expected, rtol=1e-4, atol=1e-5)
    try:
        alone = pb.deep(pairs[0][0], 3)
    except ValueError as error:
        assert kind in TENSORS and "deep: the model also reads 'leave.weight' from" in str(error)
    else:
        assert kind in FUNCTIONS
        alone = alone.eval()
        torch.testing.assert_close(alone(x)[2], alone.member(2)(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", pb.METHODS)
@pytest.mark.parametrize("kind", [InList])
def test_parameters_that_attributes_hold_too_are_right_or_refused(kind, method):
    given, written = alike(kind)
    x = torch.randn(4, 6)
    try:
        ensemble = make(method, given)
    except ValueError as error:
        assert f"{method}: the model also reads 'leave.weight' from" in str(error)
        return
    expected = answer(make(method, written), x)
    torch.testing.assert_close(answer(ensemble, x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", (*FUNCTIONS, *TENSORS))
def test_a_copy_changes_without_the_original_and_as_a_whole(kind):
    given, written = alike(kind)
    x, before = torch.randn(4, 6), given(torch.ones(4, 6))
    ensemble = pb.lora(given, 2, where="enter")
    with torch.no_grad():
        for model in (ensemble.module, written):
            model.leave.weight.mul_(2.0)
    torch.testing.assert_close(ensemble.eval()(x)[1], written(x), rtol=1e-4, atol=1e-5)
    assert torch.equal(given(torch.ones(4, 6)), before)


@pytest.mark.parametrize("kind", (Lambda, Hook, InList))
def test_what_was_saved_comes_back_into_everything_that_reads_it(kind, tmp_path):
    pairs, x = [alike(kind, number) for number in range(4)], torch.randn(4, 6)
    pb.save(pb.lora(pairs[0][0], 2, where="enter"), tmp_path / "whole.safetensors", whole=True)
    loaded = pb.load(tmp_path / "whole.safetensors", pairs[1][0])
    torch.testing.assert_close(loaded.eval()(x)[0], pairs[0][1](x), rtol=1e-4, atol=1e-5)
    unlike = pb.deep([pairs[0][0], pairs[2][0]])
    pb.save(unlike, tmp_path / "list.safetensors")
    if unlike.stacked:
        return
    loaded = pb.load(tmp_path / "list.safetensors", [pairs[1][0], pairs[3][0]])
    torch.testing.assert_close(loaded(x), torch.stack([pairs[0][1](x), pairs[2][1](x)]), rtol=1e-4, atol=1e-5)


def test_parameters_that_lie_in_one_memory_are_told_apart():
    """As those of a member do, which are parts of the stacked ones, and those of `vector_to_parameters`."""
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3))
    memory = torch.cat([p.detach().flatten() for p in model.parameters()])
    nn.utils.vector_to_parameters(memory, model.parameters())
    assert pb.deep(model, 2)(torch.randn(4, 6)).shape == (2, 4, 3)  # nothing is held beside
    model.held = [model[0].weight]
    assert pb.lora(model, 2, where="1").module.held[0].shape == (8, 6)
    model.held = [model[1].bias.detach()]
    with pytest.raises(ValueError, match="deep: the model also reads '1.bias' from 'held'"):
        pb.deep(model, 2)


@pytest.mark.parametrize("method", ["single", "lora", "mc_dropout"])
def test_a_view_of_a_parameter_that_copies_would_not_follow_is_refused(method):
    with pytest.raises(ValueError, match=f"{method}: the model also reads 'leave.weight' from 'held'.*copies"):
        make(method, View())


def test_what_a_function_holds_beside_the_model_stays_the_same_object():
    seen = []
    model = Written()
    model.enter.register_forward_hook(lambda *_: seen.append(model.bias.shape))
    pb.lora(model, 2, where="enter").eval()(torch.randn(4, 6))
    assert seen


# -------------------------------------------------------------------- gradients inside of a forward


class FuncGrad(Model):
    def energy(self, row):
        return self.leave(torch.relu(self.enter(row) + self.bias)).square().sum()

    def forward(self, x):
        return self.leave(torch.relu(self.enter(x))) + torch.func.vmap(torch.func.grad(self.energy))(x)[:, :3]


class AutogradGrad(FuncGrad):
    def forward(self, x):
        with torch.enable_grad():
            inner = x.detach().clone().requires_grad_()
            slope = torch.autograd.grad(self.energy(inner), inner, create_graph=True)[0]
        return self.leave(torch.relu(self.enter(x))) + slope[:, :3]


@pytest.mark.filterwarnings("ignore:.*this model does not run under vmap")
@pytest.mark.parametrize("method", [m for m in pb.METHODS if m != "mc_dropout"])
@pytest.mark.parametrize("kind", [FuncGrad, AutogradGrad])
def test_gradients_inside_of_a_forward_are_right_or_refused_in_words(kind, method):
    x, refused = torch.randn(4, 6), "inside a torch.func transformation|takes gradients or transforms|because it"
    try:
        ensemble = make(method, kind().eval())
        outputs = ensemble(x)
        for i in range(ensemble.size):
            torch.testing.assert_close(outputs[i], ensemble.member(i)(x), rtol=1e-4, atol=1e-5)
        ensemble.train().loss(x, torch.zeros(4, 3), nn.MSELoss()).backward()
    except ValueError as error:
        assert any(words in str(error) for words in refused.split("|")), error
        assert method in ("mimo", "multihead")  # which find the last layer by gradients


# -------------------------------------------------------------------- what the passes share


def test_an_owned_parameter_that_is_changed_in_place_is_refused_in_words_by_the_loop_with_gradients():
    class Writes(Model):
        def kept(self, rows):
            with torch.no_grad():
                self.bias.mul_(0.5)
            return self.bias

    models, x = [Writes() for _ in range(3)], torch.randn(4, 6)
    ensemble = pb.deep(models).eval()
    with torch.no_grad():
        torch.testing.assert_close(ensemble(x), torch.stack([model(x) for model in models]))
    with pytest.raises(ValueError, match=r"deep: the model changes a parameter in place.*without gradients"):
        ensemble(x)
    with pytest.raises(ValueError, match="freeze: the model changes 'bias' when it runs"):
        pb.freeze(ensemble, x)


@pytest.mark.parametrize("write", [lambda m, now: m.seen.copy_(now), lambda m, now: setattr(m, "seen", now)])
def test_statistics_that_change_in_every_call_cannot_be_frozen_and_caches_can(write):
    class Moving(Model):
        def begin(self):
            self.register_buffer("seen", torch.zeros(8))

        def kept(self, rows):
            if self.moves or not self.seen.any():
                write(self, 0.9 * self.seen + 2 * self.bias.detach())
            return self.seen

    for moves in (True, False):
        models, x = [Moving().eval() for _ in range(3)], torch.randn(4, 6)
        for model in models:
            model.moves = moves
        if moves:
            with pytest.raises(ValueError, match="freeze: the model changes 'seen' when it runs"):
                pb.freeze(pb.deep(models), x, choose="rule")
            continue
        expected = torch.stack([copy.deepcopy(model)(x) for model in models])
        torch.testing.assert_close(pb.freeze(pb.deep(models), x, choose="rule")(x), expected, rtol=1e-4, atol=1e-5)
