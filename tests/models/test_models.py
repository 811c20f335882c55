"""The papers' networks: counts as printed, outputs as other libraries compute them, widths as asked for."""

import re
from math import ceil
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pluribus import models
from pluribus.deploy.budget.counting import Cost, cost
from pluribus.models import MODELS
from pluribus.models.small import scale_width


def printed(cost: Cost, size: int = 1) -> tuple[int, float]:
    """Parameters, and mult-adds in G with the digits of the tables, of `size` networks."""
    return size * cost.parameters, round(size * cost.mult_adds / 1e9, 3)


def images(channels: int = 3, side: int = 32) -> Tensor:
    return torch.empty(1, channels, side, side, device="meta")


def member(model: nn.Module, gamma: int) -> nn.Module:
    """The network with gamma groups where it takes them, lowered until a group has 64 channels or more."""
    for name, conv in list(model.named_modules()):
        if isinstance(conv, nn.Conv2d) and re.fullmatch(model.takes_gamma, name):
            inputs, outputs = conv.in_channels, conv.out_channels
            fitting = (g for g in range(gamma, 1, -1) if inputs / g >= 64 and inputs % g == 0 == outputs % g)
            groups = next(fitting, 1)
            grouped = nn.Conv2d(inputs, outputs, conv.kernel_size, conv.stride, conv.padding, groups=groups, bias=False)
            model.set_submodule(name, grouped)
    return model


class TestCountsOfThePapers:
    @pytest.fixture(autouse=True)
    def on_meta(self):
        with torch.device("meta"):
            yield

    @pytest.mark.parametrize(
        "name, options, parameters, mult_adds",
        [
            ("resnet18", {}, 11_173_962, 0.555),
            ("resnet50", {}, 23_520_842, 1.298),
            ("wide_resnet28_10", {"bias": True, "stride_on": "second"}, 36_489_290, 5.951),
            ("wide_resnet28_10", {}, 36_479_194, 5.243),
            ("resnext50", {}, 22_992_714, 1.344),
        ],
    )
    def test_single_network_counts_as_printed(self, name, options, parameters, mult_adds):
        assert printed(cost(MODELS[name](**options), images())) == (parameters, mult_adds)

    @pytest.mark.parametrize(
        "name, classes, setting, parameters, mult_adds",
        [
            ("resnet18", 10, (2, 4, 2), 8_175_784, 0.481),
            ("resnet18", 100, (2, 4, 2), 8_268_304, 0.481),
            ("resnet50", 10, (2, 4, 2), 14_552_232, 1.004),
            ("resnet50", 100, (2, 4, 2), 14_921_232, 1.004),
            ("wide_resnet28_10", 10, (2, 4, 2), 19_352_008, 4.058),
            ("wide_resnet28_10", 100, (2, 4, 1), 36_619_568, 5.952),  # printed as 5.96
        ],
    )
    def test_packed_network_counts_as_printed(self, name, classes, setting, parameters, mult_adds):
        alpha, size, gamma = setting
        late = {"stride_on": "second"} if name.startswith("wide") else {}
        model = member(MODELS[name](classes, alpha / size, **late), gamma)
        assert printed(cost(model, images()), size) == (parameters, mult_adds)

    def test_packed_resnet50_for_imagenet_counts_as_printed(self):
        model = models.resnet50(1000, width=3 / 4, style="imagenet")
        assert printed(cost(model, images(side=224)), 4) == (59_087_968, 9.291)

    def test_mimo_counts_as_printed_with_first_and_last_layer_widened(self):
        assert printed(cost(models.resnet18(40, channels=12), images(12))) == (11_194_536, 0.561)
        assert cost(models.wide_resnet28_10(30, channels=9), images(9)).parameters == 36_492_878

    @pytest.mark.parametrize("width", [1, 4])
    def test_resnet50_for_imagenet_counts_as_by_hand(self, width):
        counted = cost(models.resnet50(1000, width, style="imagenet"), images(side=224))
        assert (counted.parameters, counted.mult_adds) == resnet50_by_hand(width)

    @pytest.mark.parametrize(
        "name, options, parameters",
        [
            ("resnet18", {"num_classes": 1000, "style": "imagenet"}, 11_689_512),  # torchvision's figures
            ("resnet50", {"num_classes": 1000, "style": "imagenet"}, 25_557_032),
            ("resnext50", {"num_classes": 1000, "style": "imagenet"}, 25_028_904),
            ("medium_cnn", {}, 971_146),  # the authors' notebook
            ("resnet20", {}, 273_066),  # Keras' example: biases in convolutions, no norm on shortcuts
            ("lenet", {"channels": 1}, 61_706),
        ],
    )
    def test_parameters_are_those_that_others_print(self, name, options, parameters):
        assert sum(p.numel() for p in MODELS[name](**options).parameters()) == parameters


def resnet50_by_hand(width: int) -> tuple[int, int]:
    """Sums over convolutions (inputs, outputs, kernel, side of the output), each with a norm of 2 x outputs."""
    layers, inputs = [(3, 64 * width, 7, 112)], 64 * width
    for stage, depth in enumerate((3, 4, 6, 3)):
        plane, side = 64 * width * 2**stage, 56 // 2**stage
        for i in range(depth):
            before = side * 2 if stage and i == 0 else side
            layers += [(inputs, plane, 1, before), (plane, plane, 3, side), (plane, 4 * plane, 1, side)]
            layers += [(inputs, 4 * plane, 1, side)] if i == 0 else []
            inputs = 4 * plane
    weights = [(a * b * kernel**2, b, side**2) for a, b, kernel, side in layers]
    head = inputs * 1000
    return sum(w + 2 * b for w, b, _ in weights) + head + 1000, sum(w * area for w, _, area in weights) + head


class TestOutputs:
    @pytest.mark.parametrize(
        "ours, theirs",
        [
            ("resnet18", "resnet18"),
            ("resnet50", "resnet50"),
            ("resnext50", "resnext50_32x4d"),
            ("resnet50v2", "resnetv2_50"),
        ],
    )
    def test_imagenet_network_computes_what_timm_computes(self, ours, theirs):
        import timm

        torch.manual_seed(0)
        model, oracle = MODELS[ours](7, style="imagenet"), timm.create_model(theirs, num_classes=7)
        for mine, other in zip(in_order(model), in_order(oracle), strict=True):
            values = other.data.uniform_(0.5, 1.5) if other.ndim == 1 else other.data
            mine.data.copy_(values.view_as(mine))
        x = torch.randn(2, 3, 64, 64)
        torch.testing.assert_close(model.eval()(x), oracle.eval()(x), rtol=1e-3, atol=1e-4)

    @pytest.mark.parametrize("stride_on, strides", [("first", (2, 1)), ("second", (1, 2))])
    def test_wide_resnet_computes_the_papers_formula(self, stride_on, strides):
        torch.manual_seed(0)
        model = models.wide_resnet16_4(7, width=0.25, stride_on=stride_on, bias=True).eval()
        for norm in (m for m in model.modules() if isinstance(m, nn.BatchNorm2d)):
            norm.running_mean.normal_(std=0.1), norm.weight.data.uniform_(0.5, 1.5)
        x = torch.randn(2, 3, 32, 32)
        torch.testing.assert_close(model(x), wide_resnet_by_hand(dict(model.state_dict()), x, strides))

    def test_medium_cnn_computes_the_notebooks_formula(self):
        torch.manual_seed(0)
        model, x = models.medium_cnn().eval(), torch.randn(2, 3, 32, 32)
        y = x
        for i in range(1, 5):
            conv = getattr(model, f"conv{i}")
            y = functional.max_pool2d(functional.conv2d(y, conv.weight, conv.bias, padding=1), 2)
            y = y.relu() if i < 4 else y
        torch.testing.assert_close(model(x), functional.linear(y.flatten(1), model.fc.weight, model.fc.bias))

    @pytest.mark.parametrize("image", [28, 32, 45])
    @pytest.mark.parametrize("name", ["lenet", "small_cnn", "medium_cnn"])
    def test_plain_network_takes_any_image_size(self, name, image):
        assert MODELS[name](7, channels=1, image=image)(torch.zeros(2, 1, image, image)).shape == (2, 7)


def in_order(model: nn.Module) -> list[Tensor]:
    """Parameters in the order of the layers, those of shortcuts first, whatever the layers are called."""
    return [p for _, p in sorted(model.named_parameters(), key=lambda named: "downsample" not in named[0])]


def wide_resnet_by_hand(state: dict[str, Tensor], x: Tensor, strides: tuple[int, int]) -> Tensor:
    def norm(y: Tensor, name: str) -> Tensor:
        mean, variance, weight, bias = (
            state[f"{name}.{key}"] for key in ("running_mean", "running_var", "weight", "bias")
        )
        return functional.relu(functional.batch_norm(y, mean, variance, weight, bias))

    def conv(y: Tensor, name: str, stride: int = 1, padding: int = 1) -> Tensor:
        return functional.conv2d(y, state[f"{name}.weight"], state[f"{name}.bias"], stride, padding)

    y = conv(x, "conv1")
    for stage in (1, 2, 3):
        for block in (0, 1):
            name = f"layer{stage}.{block}"
            first, second = strides if stage > 1 and block == 0 else (1, 1)
            before = norm(y, f"{name}.bn1")
            shortcut = y if block else conv(before, f"{name}.downsample", first * second, 0)
            y = conv(before, f"{name}.conv1", first)
            y = shortcut + conv(norm(y, f"{name}.bn2"), f"{name}.conv2", second)
    return functional.linear(norm(y, "bn1").mean((2, 3)), state["fc.weight"], state["fc.bias"])


@pytest.mark.parametrize("name", MODELS)
class TestEveryModel:
    def test_gives_one_row_of_classes_per_image(self, name):
        model = MODELS[name](num_classes=7, width=0.25)
        assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 7)

    @pytest.mark.parametrize("width", [0.3, 0.5, 2.0])
    def test_width_scales_every_hidden_size_and_neither_input_nor_output(self, name, width):
        with torch.device("meta"):
            whole, thin = MODELS[name](num_classes=7), MODELS[name](num_classes=7, width=width)
        wanted, got = dict(layers(whole)), dict(layers(thin))
        first, grouped = next(iter(wanted)), r".*\.conv[12]" if name == "resnext50" else "(?!)"
        assert got.keys() == wanted.keys()
        assert (got[first].inputs, got["fc"].outputs) == (wanted[first].inputs, 7)
        for layer in got.keys() - {"fc"}:
            multiple = 32 if re.fullmatch(grouped, layer) else 1
            size = ceil(round(width * wanted[layer].outputs, 6))
            assert got[layer].outputs == ceil(size / multiple) * multiple
        assert thin(images()).shape == (1, 7)

    def test_gamma_is_never_taken_by_the_first_or_the_last_layer(self, name):
        model = MODELS[name]()
        taking = [layer for layer, _ in layers(model) if re.fullmatch(model.takes_gamma, layer)]
        assert not {list(dict(layers(model)))[0], "fc"} & set(taking)
        assert taking or name == "mlp"

    def test_dropout_has_the_rate_that_was_asked_for(self, name):
        rates = [m.p for m in MODELS[name](dropout=0.3, width=0.1).modules() if isinstance(m, nn.Dropout)]
        assert rates and set(rates) == {0.3}

    @pytest.mark.parametrize("width", [0, -1.0])
    def test_refuses_a_width_that_is_not_positive(self, name, width):
        with pytest.raises(ValueError, match=f"width above 0, but it is {width}"):
            MODELS[name](width=width)


class Layer(NamedTuple):
    inputs: int
    outputs: int


def layers(model: nn.Module) -> list[tuple[str, Layer]]:
    """The convolutions and linear layers by name."""
    found = []
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Conv2d):
            found.append((name, Layer(layer.in_channels, layer.out_channels)))
        elif isinstance(layer, nn.Linear):
            found.append((name, Layer(layer.in_features, layer.out_features)))
    return found


class TestOptions:
    def test_width_is_rounded_up_but_not_by_rounding_errors(self):
        assert [scale_width(10, width) for width in (1e-9, 0.11, 0.7, 1.1)] == [1, 2, 7, 11]

    def test_lenet_refuses_images_that_vanish(self):
        with pytest.raises(ValueError, match="side of at least 16 pixels, but image=12"):
            models.lenet(image=12)
