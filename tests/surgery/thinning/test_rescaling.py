"""Thinned models have the widths that an independent builder gives them, run, and leave the given model alone."""

import copy
import json
import math
import subprocess
import sys

import pytest
import torch
from plain import Attention, Caching, Grouped, Looking, Stubborn, call, cnn, count, mlp, sizes
from torch import Tensor, nn
from zoo import TIMM, ZOO, shorten_

from pluribus import models
from pluribus.surgery.thinning.rescaling import solve_widths, thin
from pluribus.surgery.thinning.widths import ThinError, Widths, rebuild

QUICK = ["bert", "lstm", "transformer_encoder", "unet", "tied"]
OUTSIDE = {  # architectures that no list asked for: the size of their images, and options for fewer like blocks
    "coat_tiny": (224, {"serial_depths": [1] * 4, "parallel_depth": 2}),
    "xcit_nano_12_p16_224": (224, {"depth": 2}),
    "maxvit_tiny_tf_224": (224, {}),
    "convmixer_768_32": (64, {}),
    "edgenext_xx_small": (64, {}),
    "gmlp_s16_224": (224, {}),
    "nf_resnet26": (64, {}),
    "halonet26t": (256, {}),
    "swinv2_tiny_window8_256": (256, {}),
    "mvitv2_tiny": (224, {}),
    "volo_d1_224": (224, {}),
    "skresnet18": (64, {}),
}


# ------------------------------------------------------------------ widths


@pytest.mark.parametrize("factor", [0.5, 0.25, 0.3, 1.5, 2])
def test_networks_have_the_widths_of_their_builders(factor):
    def wide(n):
        return math.ceil(n * factor - 1e-9)

    assert sizes(thin(mlp(64, 20, 7), factor, torch.zeros(2, 8))) == sizes(mlp(wide(64), wide(20), wide(7)))
    expected = cnn(wide(16), wide(24), wide(30))
    result = thin(cnn(16, 24, 30), factor, torch.zeros(2, 3, 8, 8))
    assert sizes(result) == sizes(expected)
    assert repr(result) == repr(expected)


@pytest.mark.parametrize("build", [models.resnet18, models.resnet50, models.wide_resnet16_4])
def test_network_of_ours_has_the_widths_of_its_builder(build):
    result = solve_widths(build(), torch.zeros(2, 3, 32, 32), 0.5)
    assert dict(result.sizes) == sizes(build(width=0.5))


@pytest.mark.parametrize("groups, width, factor, expected", [(4, 32, 0.5, 16), (8, 32, 0.5, 16), (4, 32, 1.25, 40)])
def test_number_of_groups_is_kept(groups, width, factor, expected):
    result = thin(Grouped(groups, width), factor, torch.zeros(2, 4, 9))
    assert sizes(result) == sizes(Grouped(groups, expected))
    assert (result.inner.groups, result.norm.num_groups) == (groups, groups)


@pytest.mark.parametrize("heads, head", [(3, 8), (16, 4), (4, 32)])
@pytest.mark.parametrize("factor", [0.5, 0.75, 2])
def test_number_of_heads_is_kept_and_their_width_scaled(heads, head, factor):
    result = thin(Attention(24, heads, head), factor, torch.zeros(2, 6, 5))
    assert sizes(result) == sizes(Attention(int(24 * factor), heads, int(head * factor)))
    assert (result.heads, result.head) == (heads, head * factor)
    assert result.scale == pytest.approx((head * factor) ** -0.5)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_bidirectional_recurrent_network_has_the_widths_of_the_builder(kind):
    class Recurrent(nn.Module):
        def __init__(self, width: int, hidden: int):
            super().__init__()
            self.embedding = nn.Embedding(20, width)
            self.recurrent = kind(width, hidden, num_layers=2, bidirectional=True, batch_first=True)
            self.head = nn.Linear(2 * hidden, 3)

        def forward(self, words: Tensor) -> Tensor:
            return self.head(self.recurrent(self.embedding(words))[0][:, -1])

    result = thin(Recurrent(8, 12), 0.5, torch.zeros(2, 5, dtype=torch.long))
    assert sizes(result) == sizes(Recurrent(4, 6))
    assert (result.recurrent.input_size, result.recurrent.hidden_size) == (4, 6)


def test_autoencoder_has_the_widths_of_the_builder():
    def build(a: int, b: int) -> nn.Module:
        down = nn.Conv2d(3, a, 3, 2, 1), nn.PReLU(a), nn.Conv2d(a, b, 3, 2, 1)
        return nn.Sequential(*down, nn.ConvTranspose2d(b, a, 4, 2, 1, groups=2), nn.ConvTranspose2d(a, 3, 4, 2, 1))

    assert repr(thin(build(16, 32), 0.5, torch.zeros(2, 3, 16, 16))) == repr(build(8, 16))


def test_float_attribute_that_only_looks_like_a_root_stays():
    model = nn.Sequential(nn.Linear(8, 100), nn.BatchNorm1d(100), nn.Dropout(0.1), nn.LeakyReLU(0.1), nn.Linear(100, 3))
    result = thin(model, 0.5, torch.zeros(2, 8))
    assert (result[1].momentum, result[2].p, result[3].negative_slope) == (0.1, 0.1, 0.1)


# ------------------------------------------------------------------ choices


def test_function_gives_the_width_and_is_asked_once_for_each():
    asked = []

    def grow(width: int) -> int:
        asked.append(width)
        return width + len(asked)

    result = thin(mlp(64, 20, 7), grow, torch.zeros(2, 8))
    assert asked == [64, 20, 7]
    assert sizes(result) == sizes(mlp(65, 22, 10))


def test_function_is_asked_for_the_width_of_all_heads():
    asked = []
    thin(Attention(20, 3, 8), lambda width: asked.append(width) or 2 * width, torch.zeros(2, 6, 5))
    assert sorted(asked) == [20, 20, 24]


def test_only_inputs_of_chosen_layers_change():
    assert dict(solve_widths(mlp(64, 20, 7), torch.zeros(2, 8), 0.5, layers=["6"]).sizes) == sizes(mlp(64, 10, 7))
    assert dict(solve_widths(mlp(64, 20, 7), torch.zeros(2, 8), 2, layers=["3", "9"]).sizes) == sizes(mlp(128, 20, 14))


def test_what_a_residual_ties_changes_together():
    class Residual(nn.Module):
        def __init__(self, width: int, inner: int):
            super().__init__()
            self.enter, self.one = nn.Linear(8, width), nn.Linear(width, inner)
            self.two, self.leave = nn.Linear(inner, width), nn.Linear(width, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = self.enter(x)
            return self.leave(x + self.two(torch.relu(self.one(x))))

    widths = solve_widths(Residual(16, 32), torch.zeros(2, 8), 0.5, layers=["leave"])
    assert dict(widths.sizes) == sizes(Residual(8, 32))


def test_concatenated_parts_change_alone():
    class Concatenated(nn.Module):
        def __init__(self, a: int, b: int, c: int):
            super().__init__()
            self.a, self.b, self.c, self.leave = nn.Linear(8, a), nn.Linear(8, b), nn.Linear(b, c), nn.Linear(a + c, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.leave(torch.cat([self.a(x), self.c(self.b(x))], -1))

    model, example = Concatenated(16, 12, 32), torch.zeros(2, 8)
    assert dict(solve_widths(model, example, 0.5, layers=["c"]).sizes) == sizes(Concatenated(16, 6, 32))
    assert dict(solve_widths(model, example, 0.5, layers=["leave"]).sizes) == sizes(Concatenated(8, 12, 16))


@pytest.mark.parametrize("factor, expected", [(0.5, (32, 12, 4)), (0.3, (20, 8, 3))])
def test_widths_of_layers_with_a_multiple_are_rounded_up_to_it(factor, expected):
    widths = solve_widths(mlp(64, 20, 7), torch.zeros(2, 8), factor, multiples={"3": 4})
    assert dict(widths.sizes) == sizes(mlp(*expected))


# ------------------------------------------------------------------ any model


def hidden(model: nn.Module) -> nn.Module:
    """The part without the embedding of patches, which weighs much before few blocks."""
    return getattr(model, "blocks", model)


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in ZOO])
def test_model_of_others_is_halved_and_trains(name):
    model, example = ZOO[name].build(), ZOO[name].example()
    result = rebuild(model, solve_widths(model, example, 0.5))
    if name in TIMM:  # where embeddings and heads weigh little
        assert 0.24 < count(hidden(result)) / count(hidden(model)) < 0.28
    check_runs_like(result, model, example)


@pytest.mark.slow
@pytest.mark.parametrize("name", OUTSIDE)
def test_model_outside_the_list_is_halved_and_trains(name):
    timm = pytest.importorskip("timm")
    side, fewer = OUTSIDE[name]
    model, example = shorten_(timm.create_model(name, num_classes=10, **fewer)), torch.randn(2, 3, side, side)
    result = thin(model, 0.5, example)
    assert 0.24 < count(hidden(result)) / count(hidden(model)) < 0.31
    check_runs_like(result, model, example)


LANGUAGE = {
    "gpt2": ("GPT2", "LMHeadModel", {"n_embd": 32, "n_layer": 1, "n_head": 4}),
    "llama": (
        "Llama",
        "ForCausalLM",
        {
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 1,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
        },
    ),
}


@pytest.mark.parametrize("name", LANGUAGE)
def test_language_model_is_halved_and_trains(name):
    transformers = pytest.importorskip("transformers")
    family, task, settings = LANGUAGE[name]
    special = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = getattr(transformers, f"{family}Config")(vocab_size=50, **special, **settings)
    model = getattr(transformers, family + task)(config)
    example = {"input_ids": torch.randint(50, (2, 7)), "attention_mask": torch.ones(2, 7, dtype=torch.long)}
    result = thin(model, 0.5, example)
    assert count(result) < 0.55 * count(model)
    check_runs_like(result, model, example)


def check_runs_like(result: nn.Module, model: nn.Module, example: object) -> None:
    result.train()
    output = call(result, example)
    assert output.shape == call(model.train(), example).shape
    output.float().square().sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in result.parameters())
    assert call(result.eval(), example).shape == call(model.eval(), example).shape


def test_tied_weights_stay_tied():
    case = ZOO["tied"]
    result = thin(case.build(), 0.5, case.example())
    assert result.head.weight is result.embedding.weight
    assert result.two.weight is result.one.weight
    assert result.embedding.weight.shape == (50, 8)


def test_configuration_follows():
    case = ZOO["bert"]
    result = thin(case.build(), 0.5, case.example())
    assert result.config.hidden_size == 16
    assert (result.config.num_attention_heads, result.config.max_position_embeddings) == (4, 16)


def test_cached_and_plain_tensors_follow():
    model = Caching().eval()
    example = torch.randn(2, 8)
    model(example)
    result = thin(model, 0.5, example)
    assert result.mask.shape == (6,)
    expected = result.leave(result.enter(example) + 2 * result.bias)
    torch.testing.assert_close(result(example), expected)
    assert model.cache["bias"].shape == (12,)


def test_model_that_looks_at_values_is_thinned_layer_by_layer():
    model, example = Looking(16), torch.randn(4, 8)
    result = thin(model, 0.5, example)
    assert repr(result) == repr(Looking(8))
    assert sizes(result) == sizes(Looking(8))


@pytest.mark.parametrize("model_device, example_device", [("meta", "meta"), ("meta", "cpu"), ("cpu", "meta")])
def test_no_memory_is_needed(model_device, example_device):
    model, example = cnn(16, 24, 30), torch.zeros(2, 3, 8, 8)
    expected = solve_widths(model, example, 0.5)
    assert solve_widths(model.to(model_device), example.to(example_device), 0.5) == expected
    assert {p.device.type for p in rebuild(model, expected).parameters()} == {model_device}


# ------------------------------------------------------------------ copies


@pytest.mark.parametrize("name", ["resnet18", "bert", "lstm", "tied"])
def test_given_model_is_unchanged(name):
    model, example = ZOO[name].build(), ZOO[name].example()
    before = copy.deepcopy(model)
    attributes = described(model)
    thin(model, 0.5, example)
    assert described(model) == attributes
    for (key, old), new in zip(before.state_dict().items(), model.state_dict().values(), strict=True):
        assert torch.equal(old, new), key


def described(model: nn.Module) -> list[str]:
    return [repr([(key, repr(value)) for key, value in module.__dict__.items()]) for module in model.modules()]


def test_generator_decides_the_parameters():
    model = cnn(16, 24, 30)
    widths = solve_widths(model, torch.zeros(2, 3, 8, 8), 0.5)
    one, same, other = (rebuild(model, widths, torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    for a, b, c in zip(one.parameters(), same.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        assert a.ndim < 2 or not torch.equal(a, c)


@pytest.mark.parametrize("name", ["bert", "unet", "transformer_encoder"])
def test_widths_survive_json(name):
    model, example = ZOO[name].build(), ZOO[name].example()
    widths = solve_widths(model, example, 0.3)
    stored = Widths.from_json(json.loads(json.dumps(widths.to_json())))
    assert stored == widths
    check_runs_like(rebuild(model, stored), model, example)


# ------------------------------------------------------------------ errors


def test_module_in_the_way_is_named_and_a_builder_proposed():
    model = nn.Sequential(nn.Linear(8, 24), Stubborn(), nn.Linear(6, 3))
    with pytest.raises(ThinError, match='module "1".*width_factor -> nn.Module'):
        thin(model, 0.5, torch.zeros(2, 8))


def test_example_of_the_wrong_shape_is_an_error_that_names_the_layer():
    with pytest.raises(ThinError, match='module "0"'):
        thin(mlp(64), 0.5, torch.zeros(2, 9))


@pytest.mark.parametrize("factor", [0, -1, math.nan, math.inf])
def test_factor_out_of_range_is_an_error(factor):
    with pytest.raises(ThinError, match="positive"):
        solve_widths(mlp(64), torch.zeros(2, 8), factor)


def test_unknown_layer_is_an_error_that_lists_the_known_ones():
    with pytest.raises(ThinError, match="'first'.*'0', '1'"):
        solve_widths(mlp(64), torch.zeros(2, 8), 0.5, layers=["first"])


def test_multiple_of_a_width_that_must_stay_is_an_error():
    with pytest.raises(ThinError, match='"0".* 8 .*multiple of 3'):
        solve_widths(mlp(64), torch.zeros(2, 8), 0.5, multiples={"0": 3})


def test_widths_of_another_model_are_an_error():
    with pytest.raises(ThinError, match="another model"):
        rebuild(mlp(64, 20), solve_widths(mlp(64), torch.zeros(2, 8), 0.5))


def test_import_is_light():
    heavy = "{'sympy', 'torch.fx.experimental.symbolic_shapes'}"
    code = f"import sys, pluribus.surgery.thinning.rescaling; print({heavy} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
