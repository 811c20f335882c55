"""Models that change when they run: they register hooks, make layers, draw constants. Compared with networks apart."""

import copy

import pytest
import torch
from torch import Tensor, nn

import pluribus as pb

pytestmark = pytest.mark.filterwarnings("ignore:.*this model does not run under vmap")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.middle = nn.Linear(6, 8), nn.ModuleList([nn.Linear(8, 8)])
        self.begin()
        self.leave = nn.Linear(8, 3)

    def begin(self) -> None:
        pass

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(self.inside(self.middle[0](self.enter(x).relu())))


def apart(kind: type[nn.Module], rows: int = 5) -> tuple[list[nn.Module], Tensor]:
    torch.manual_seed(3)
    return [kind().eval() for _ in range(3)], torch.randn(rows, 6)


class MakesLayer(Model):
    def begin(self):
        self.made = None

    def inside(self, h):
        if self.made is None:
            self.made = nn.Linear(8, 8)
        return self.made(h)


class MakesParameter(Model):
    def begin(self):
        self.register_parameter("made", None)

    def inside(self, h):
        if self.made is None:
            self.made = nn.Parameter(torch.rand(8))
        return h * self.made


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("method", ["deep by vmap", "deep by loop", "batch_ensemble", "mc_dropout", "multihead"])
@pytest.mark.parametrize("kind", [MakesLayer, MakesParameter])
def test_parameters_that_a_pass_makes_are_refused_before_anything_is_given(kind, method, grad):
    name, _, run = method.partition(" by ")
    (model, *_), x = apart(kind)
    options = {"mc_dropout": {"rate": 0.1}}.get(name, {})
    ensemble = pb.METHODS[name](model, 3, **options)
    ensemble.run = run or "loop"
    before = [name for name, _ in ensemble.named_modules()]
    with torch.set_grad_enabled(grad), pytest.raises(ValueError, match="creates the parameters .*Run the model"):
        ensemble(x)
    assert [name for name, _ in ensemble.named_modules()] == before
    if name == "deep":
        model(x)
        again = pb.deep(model, 3)
        torch.testing.assert_close(again(x), torch.stack([again.member(i)(x) for i in range(3)]), rtol=1e-4, atol=1e-5)


class KeepsInDict(Model):
    """A cache that the compiler can follow."""

    def begin(self):
        self.cache = {}

    def inside(self, h):
        if "weight" not in self.cache:
            self.cache["weight"] = self.enter.weight.sum(1)
        return h * self.cache["weight"]


@pytest.mark.filterwarnings("ignore")  # of torch.compile and torch.export
@pytest.mark.parametrize("way", [pytest.param("compile", marks=pytest.mark.slow), "export", "strict"])
def test_a_cache_that_the_compiler_can_follow_is_each_members_own_or_refused(way):
    models, x = apart(KeepsInDict)
    ensemble, expected = pb.deep(models).eval(), torch.stack([copy.deepcopy(model)(x) for model in models])
    ensemble.run = "loop"
    if way == "compile":
        torch.testing.assert_close(torch.compile(ensemble, backend="eager")(x), expected, rtol=1e-4, atol=1e-5)
    elif way == "export":
        torch.testing.assert_close(torch.export.export(ensemble, (x,)).module()(x), expected, rtol=1e-4, atol=1e-5)
    else:
        with pytest.raises(Exception, match="strict=False"):
            torch.export.export(ensemble, (x,), strict=True)
    torch.testing.assert_close(ensemble(x), expected, rtol=1e-4, atol=1e-5)


class DropsInPlace(Model):
    """In training alone it changes its input."""

    def forward(self, x):
        if self.training:
            x.mul_(2)
        return self.leave(self.enter(x).relu())


class ChangesLongInputs(Model):
    def forward(self, x):
        if len(x) > 5:
            x.mul_(2)
        return self.leave(self.enter(x).relu())


def test_what_only_training_does_to_an_input_does_not_reach_the_next_member():
    models, x = apart(DropsInPlace)
    ensemble = pb.deep(models)
    ensemble.run = "loop"
    ensemble.eval()(x)
    ensemble.train()
    expected = torch.stack([copy.deepcopy(model).train()(x.clone()) for model in models])
    torch.testing.assert_close(ensemble(x.clone()), expected, rtol=1e-4, atol=1e-5)


def test_an_input_that_is_changed_in_place_later_than_the_first_is_refused_and_copied_from_then_on():
    models, x = apart(ChangesLongInputs, rows=9)
    ensemble = pb.deep(models)
    ensemble.run = "loop"
    ensemble(x[:5])
    with pytest.raises(ValueError, match="changed its input in place"):
        ensemble(x.clone())
    expected = torch.stack([copy.deepcopy(model)(x.clone()) for model in models])
    torch.testing.assert_close(ensemble(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("run", ["vmap", "loop"])
def test_hidden_states_that_transformers_records_are_each_members_own(run):
    transformers = pytest.importorskip("transformers")
    sizes = {"num_encoder_blocks": 2, "depths": [1, 1], "sr_ratios": [2, 1], "hidden_sizes": [8, 16]}
    kernels = {"patch_sizes": [3, 3], "strides": [2, 2], "num_attention_heads": [1, 2], "mlp_ratios": [2, 2]}
    config = transformers.SegformerConfig(**sizes, **kernels, decoder_hidden_size=16, num_labels=3)
    models = [transformers.SegformerForSemanticSegmentation(config).eval() for _ in range(2)]
    ensemble, x = pb.deep(models), torch.randn(2, 3, 32, 32)
    ensemble.run = run
    with torch.no_grad():
        for _ in range(2):
            expected = torch.stack([copy.deepcopy(model)(x).logits for model in models])
            torch.testing.assert_close(ensemble(x).logits, expected, rtol=1e-4, atol=1e-5)
