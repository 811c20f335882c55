"""Bad input gets the rule, the value and the way out, before anything is changed."""

import copy

import numpy as np
import pytest
import torch
from small import cnn, mlp, needed
from torch import nn

import pluribus as pb

X = torch.zeros(2, 6)
SIZED = {method: needed(method, X, "5") for method in pb.METHODS if method != "single"}


@pytest.mark.parametrize("method", SIZED)
@pytest.mark.parametrize("size", [0, -1, 1.5, "4", None, True])
def test_size_is_a_whole_number_from_one_on(method, size):
    with pytest.raises(ValueError, match=rf"{method}: size.*but it is {size!r}"):
        pb.METHODS[method](mlp(), size, **SIZED[method])


@pytest.mark.parametrize("method", pb.METHODS)
@pytest.mark.parametrize("model", [nn.Linear, "resnet18", None, nn.ReLU()])
def test_a_model_is_a_module_with_parameters(method, model):
    size = () if method == "single" else (3,)
    if model is nn.Linear and method in ("deep", "packed"):
        pytest.skip("a class is a builder")
    with pytest.raises((TypeError, ValueError), match=rf"{method}: .*(nn.Module|no parameters)"):
        pb.METHODS[method](model, *size, **SIZED.get(method, {}))


@pytest.mark.parametrize("method", pb.METHODS)
def test_a_model_with_a_scripted_part_is_refused(method):
    model = nn.Sequential(nn.Linear(6, 8), torch.jit.script(nn.Linear(8, 3)))
    size = () if method == "single" else (3,)
    with pytest.raises(TypeError, match=rf"{method}: a scripted part.*has '1'.*Give the nn.Module"):
        pb.METHODS[method](model, *size, **SIZED.get(method, {}))


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("packed", {"alpha": 0}, "alpha must be a positive number, but it is 0"),
        ("packed", {"alpha": -1}, "alpha must be a positive number, but it is -1"),
        ("packed", {"alpha": float("nan")}, "alpha must be a positive number, but it is nan"),
        ("packed", {"gamma": 0}, "gamma must be a whole number of at least 1, but it is 0"),
        ("packed", {"gamma": 1.5}, "gamma must be a whole number of at least 1, but it is 1.5"),
        ("packed", {"alpha": "2"}, "alpha must be a positive number, but it is '2'"),
        ("packed", {"alpha": 4, "example": torch.zeros(2, 7)}, "does not run on the example"),
        ("masksembles", {"capacity": "all"}, "capacity must be.*but it is 'all'"),
        ("mimo", {"batch_repetition": float("nan")}, "batch_repetition must be.*but it is nan"),
        ("batch_ensemble", {"std": float("inf")}, "std must be positive.*but it is inf"),
        ("packed", {"example": None}, "there is no example. Give example=x"),
        ("packed", {"example": torch.zeros(2, 7)}, r"does not run on the example, whose shape is \[\(2, 7\)\]"),
        ("packed", {"gamma": 2, "where": "nothing"}, "'nothing' matches none.*'0', '3', '5'"),
        ("packed", {"init": "some"}, "init must be one of 'different', 'same'"),
        ("masksembles", {"scale": 0.5}, "scale must be finite and at least 1, but it is 0.5"),
        ("masksembles", {"scale": float("inf")}, "scale must be finite and at least 1, but it is inf"),
        ("masksembles", {"capacity": -1.0}, "capacity must be a positive fraction.*but it is -1.0"),
        ("masksembles", {"capacity": 1.0, "example": None, "where": "3"}, "Give example=x"),
        ("masksembles", {"where": "conv"}, "'conv' matches none of the model's layers.*'0', '3', '5'"),
        ("masksembles", {"where": "3|conv"}, "'conv' matches none"),
        ("masksembles", {"where": "("}, "is not a regular expression"),
        ("masksembles", {"example": torch.zeros(2, 7)}, "does not run on the example"),
        ("batch_ensemble", {"init": "ones"}, "init must be one of 'normal', 'signs', but it is 'ones'"),
        ("batch_ensemble", {"where": "conv"}, "'conv' matches none"),
        ("mc_dropout", {"rate": 1.0}, "rate must be between 0 and 1.*, but it is 1.0"),
        ("mc_dropout", {"rate": 0.0}, "rate must be between 0 and 1.*, but it is 0.0"),
        ("mc_dropout", {"where": "3"}, "it needs rate= too"),
        ("mimo", {"input_repetition": 1.5}, "input_repetition must be from 0 to 1, but it is 1.5"),
        ("mimo", {"batch_repetition": 0}, "batch_repetition must be a whole number of at least 1, but it is 0"),
        ("mimo", {"example": None}, "Give example=x, or both first= and last="),
        ("mimo", {"example": torch.zeros(2, 7)}, "does not run on the example"),
        ("mimo", {"first": "nothing"}, "'nothing' matches none"),
        ("treenet", {"branch": "layer4|fc"}, "'layer4' matches none of the model's tensors.*'0.weight'"),
        ("multihead", {"where": "fc"}, "'fc' matches none"),
        ("deep", {"init": "ones"}, "init must be one of 'different', 'same', but it is 'ones'"),
    ],
)
def test_bad_settings_say_rule_value_and_way_out(method, options, message):
    model = mlp()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=message) as caught:
        pb.METHODS[method](model, 4, **{**SIZED[method], **options})
    assert str(caught.value).startswith(f"{method}: ")
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_numbers_may_come_from_numpy():
    assert pb.deep(mlp(), np.int64(2)).size == 2
    assert pb.masksembles(mlp(), 2, scale=np.float32(2), example=X).settings["scale"] == 2.0


def test_models_that_cannot_be_taken_as_they_are_say_what_to_give():
    for model, way_out in (
        (nn.Sequential(nn.LazyLinear(3)), "Run it once"),
        (nn.DataParallel(mlp()), "Give model.module"),
        (torch.jit.script(mlp()), "Give the nn.Module"),
    ):
        for method in SIZED:
            with pytest.raises((TypeError, ValueError), match=way_out):
                pb.METHODS[method](model, 3, **SIZED[method])


def test_lists_of_models():
    with pytest.raises(ValueError, match="the list is empty"):
        pb.deep([])
    with pytest.raises(ValueError, match="size must be the number of models, 2, but it is 3"):
        pb.deep([mlp(), mlp()], 3)
    with pytest.raises(TypeError, match="must be an nn.Module, but it is a str"):
        pb.deep([mlp(), "mlp"])


def test_models_without_a_layer_to_change():
    norm = nn.Sequential(nn.LayerNorm(6))
    for method in ("masksembles", "batch_ensemble"):
        with pytest.raises(ValueError, match="no convolution or linear layer"):
            pb.METHODS[method](norm, 3)
    with pytest.raises(ValueError, match="but the first.*Choose with where="):
        pb.masksembles(nn.Sequential(nn.Linear(6, 3)), 3, example=X)


def test_a_model_that_cannot_be_thinned_says_which_module_and_that_a_builder_will_do():
    class Fixed(nn.Module):
        def forward(self, x):
            return x.reshape(2, 4, 4)[:, :, 0]  # 16 features, whatever the model's width

    class Outside(nn.Module):
        def forward(self, x):
            return torch.from_numpy(x.detach().numpy().reshape(2, 16))  # leaves torch

    bound = nn.Sequential(nn.Linear(6, 16), Fixed(), nn.Linear(4, 3))
    with pytest.raises(ValueError, match=r"no hidden width.*'0', '2'.*width_factor -> nn.Module"):
        pb.packed(bound, 4, example=X)
    partly = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 16), Fixed(), nn.Linear(4, 3))
    assert "'3' keeps its widths" in pb.packed(partly, 4, example=X).explain()
    outside = nn.Sequential(nn.Linear(6, 16), Outside(), nn.Linear(16, 3))
    with pytest.raises(ValueError, match=r'(?s)"1".*width_factor -> '):
        pb.packed(outside, 4, example=X)


def test_a_builder_must_give_alike_models():
    widths = iter((4, 5, 6))
    with pytest.raises(ValueError, match="must give models that differ only in their weights"):
        pb.deep(lambda: nn.Linear(6, next(widths)), 3)


def test_groups_that_do_not_divide_are_refused():
    model = nn.Sequential(nn.Conv2d(3, 130, 1), nn.Conv2d(130, 10, 1))
    with pytest.raises(ValueError, match="multiple of 2|must divide"):
        pb.packed(lambda width: nn.Sequential(nn.Conv2d(3, 131, 1), nn.Conv2d(131, 10, 1)), 4, gamma=2, where="1")
    assert pb.packed(model, 4, alpha=4, gamma=2, where="1", example=torch.zeros(2, 3, 4, 4)).size == 4


def test_wrong_batches_in_training_fail_as_torch_does():
    with pytest.raises(RuntimeError, match="Given groups=1|expected input"):
        pb.masksembles(cnn(), 3, example=torch.zeros(2, 3, 8, 8)).train().loss(
            torch.zeros(2, 4, 8, 8), torch.zeros(2).long(), nn.functional.cross_entropy
        )
