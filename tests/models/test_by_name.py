"""Networks by name: they fit the data, and their widths follow."""

import pytest
import torch
from torch import nn

import pluribus as pb
from pluribus.methods._mc_dropout import dropout_rate
from pluribus.methods._shared_trunk import last_part
from pluribus.models import MODELS
from pluribus.models.by_name import build_network, usual


@pytest.mark.parametrize("name", MODELS)
def test_every_network_of_ours_fits_small_images(name):
    with torch.device("meta"):
        model = build_network(name, (1, 28, 28), 7, width=0.25)
        assert model.eval()(torch.zeros(2, 1, 28, 28)).shape == (2, 7)


def test_large_images_get_a_stem_for_them():
    with torch.device("meta"):
        assert build_network("resnet18", (3, 224, 224), 10).conv1.stride == (2, 2)
        assert build_network("resnet18", (3, 32, 32), 10).conv1.stride == (1, 1)


def test_networks_of_timm_take_the_size_and_channels_of_the_data():
    for name in ("resnet10t", "vit_tiny_patch16_224"):
        model = build_network(f"timm:{name}", (1, 32, 32), 5)
        assert model.eval()(torch.zeros(2, 1, 32, 32)).shape == (2, 5)


def test_a_network_without_a_width_is_thinned():
    whole, half = (build_network("timm:resnet10t", (3, 32, 32), 5, width=width) for width in (1.0, 0.5))
    count = lambda model: sum(p.numel() for p in model.parameters())  # noqa: E731
    assert 0.2 < count(half) / count(whole) < 0.35


def test_a_function_of_your_own_gets_what_it_takes(tmp_path, monkeypatch):
    (tmp_path / "nets.py").write_text(
        "from torch import nn\n"
        "def build(inputs, num_classes, width):\n"
        "    units = int(8 * width)\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, units), nn.Linear(units, num_classes))\n"
    )
    model = build_network(f"python:{tmp_path / 'nets.py'}:build", (3, 4, 4), 6, width=2.0)
    assert [layer.weight.shape for layer in model[1:]] == [(16, 48), (6, 16)]


def test_a_file_of_your_own_is_run_once_until_it_changes(tmp_path):
    file, spec = tmp_path / "own_nets.py", f"python:{tmp_path / 'own_nets.py'}:build"
    own = "from torch import nn\nclass Net(nn.{}):\n    pass\ndef build(inputs, num_classes):\n    return Net{}\n"
    file.write_text(own.format("Linear", "(inputs, num_classes)"))
    one, two = (build_network(spec, (4,), 3) for _ in range(2))
    assert type(one) is type(two) and pb.deep([one, two]).size == 2
    file.write_text(own.format("Sequential", "(nn.Linear(inputs, num_classes))"))
    assert isinstance(build_network(spec, (4,), 3), nn.Sequential)


@pytest.mark.parametrize(
    ("spec", "shape", "message"),
    [
        ("resnet19", (3, 32, 32), "'resnet19' is unknown. Did you mean 'resnet18'? Choose from mlp, lenet"),
        ("resnet18", (8,), "takes images, but the rows have the shape (8,). Use mlp."),
        ("timm:resnet1000", (3, 32, 32), "timm has no 'resnet1000'"),
        ("timm:resnet18", (8,), "takes images"),
        ("python:nowhere_at_all:build", (8,), "cannot be loaded"),
        ("python:build", (8,), "must be python:MODULE:FUNCTION"),
        ("python:math:sqrtt", (8,), "cannot be loaded"),
    ],
)
def test_what_is_unknown_or_does_not_fit_is_said(spec, shape, message):
    with pytest.raises(ValueError) as error:
        build_network(spec, shape, 3)
    assert message in str(error.value)


def test_the_usual_network_fits_the_shape():
    for shape in ((4,), (1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 96, 96)):
        with torch.device("meta"):
            assert build_network(usual(shape), shape, 3).eval()(torch.zeros(2, *shape)).shape == (2, 3)


@pytest.mark.parametrize(
    ("name", "branch"), [("resnet18", "layer4|fc"), ("lenet", "fc4|fc"), ("wide_resnet16_4", "layer3|bn|fc")]
)
def test_treenets_branch_is_the_last_part_with_weights(name, branch):
    with torch.device("meta"):
        found = last_part(MODELS[name]())
    assert found.split("|")[-1] == branch.split("|")[-1]
    assert branch.split("|")[0] in found


def test_a_large_container_is_opened():
    model = nn.Sequential()
    model.add_module("blocks", nn.Sequential(*(nn.Linear(8, 8) for _ in range(6))))
    model.add_module("head", nn.Linear(8, 2))
    assert last_part(model) == r"blocks\.5|head"


def test_treenets_branch_is_found_inside_a_wrapper():
    body = nn.ModuleDict({"embedding": nn.Embedding(9, 4), "encoder": nn.Linear(4, 40), "pooler": nn.Linear(40, 5)})
    network = nn.ModuleDict({"body": body, "dropout": nn.Dropout(), "head": nn.Linear(5, 2)})
    assert last_part(network) == r"body\.pooler|head"
    assert last_part(nn.ModuleDict({"network": network})) == r"network\.body\.pooler|network\.head"


def test_the_rate_of_dropout_is_found():
    assert dropout_rate(nn.Sequential(nn.Dropout(0.1), nn.Dropout(0.3))) == 0.3
    assert dropout_rate(nn.Linear(2, 2)) == 0.0


def test_a_network_of_ours_takes_further_arguments_in_its_name():
    plain = build_network("wide_resnet16_4", (3, 32, 32), 10, width=0.25)
    other = build_network("wide_resnet16_4?bias=true&stride_on=second", (3, 32, 32), 10, width=0.25)
    assert plain.layer2[0].conv1.bias is None and other.layer2[0].conv1.bias is not None
    assert plain.layer2[0].conv1.stride == (2, 2) and other.layer2[0].conv2.stride == (2, 2)
    with pytest.raises(ValueError, match="cannot build a network"):
        build_network("wide_resnet16_4?colour=red", (3, 32, 32), 10)
