"""Fort et al. at the paper's scale: networks, training, samples and data are those that the paper names."""

import pytest
import torch

from pluribus.data.corruptions import CORRUPTIONS
from pluribus.landscape.material import Material
from pluribus.landscape.studies.findings import ASKED
from pluribus.models.by_name import ModelSpec
from pluribus.reproduce.measured import _augment_normalised
from pluribus.reproduce.parts import Stored
from pluribus.reproduce.registry import CLAIMS
from pluribus.training.recipes import RECIPES

FORT = {name.removeprefix("fort/"): claim for name, claim in CLAIMS.items() if name.startswith("fort/")}

MEDIUM = ("figure5", "figure8", "figure9", "figureS1", "figureS2", "figureS3", "figureS4")

NETWORKS = {  # the captions; Figure 3's two networks are not named in the text
    **dict.fromkeys(("figure2", "figure4"), {"small_cnn"}), **dict.fromkeys(MEDIUM, {"medium_cnn"}),
    "figure3": {"small_cnn", "resnet20"}, "figure6": {"small_cnn", "medium_cnn", "resnet20"},
    "figure7": {"resnet20", "resnet50v2"}, "figure10": {"resnet50v2"}, "figureS5": {"resnet18"},
    "figureS6": {"resnet20"},
}  # fmt: skip

PARAMETERS = {"medium_cnn": 971_146, "resnet20": 273_066, "resnet18": 11_173_962}  # the notebook, Keras, Laurent et al.


def parts(item):
    return [part.settings for part in FORT[item].experiment.plan("paper")]


@pytest.mark.parametrize("item", FORT)
def test_the_networks_are_those_of_the_caption(item):
    assert {one["model"] for one in parts(item)} == NETWORKS[item]
    for one in parts(item):
        assert item == "figureS5" or one["recipe"] == f"fort/{one['data']}/{one['model']}"  # chains have their own
        assert one["rows"] == (1_281_167 if one["data"] == "imagenet" else 50_000)
        if one["model"] in PARAMETERS and one["data"] == "cifar10":
            model = ModelSpec(one["model"], (3, 32, 32), 10).build()
            assert sum(p.numel() for p in model.parameters()) == PARAMETERS[one["model"]]


@pytest.mark.parametrize("item", [item for item in FORT if item != "figure7"])  # it compares two problems
def test_every_part_measures_what_its_item_is_judged_by(item):
    measured = {asked[0] for one in parts(item) for measure in one["measures"] for asked in ASKED[measure].values()}
    missing = FORT[item].judge({"seed-0": Stored({"values": {}})}).found[0]  # of a part that measured nothing
    asked = set(missing.removeprefix("Not measured: ").removesuffix(".").split("; "))
    assert asked <= measured


def test_cnns_are_trained_as_in_section_3():
    for name in ("small_cnn", "medium_cnn"):
        recipe = RECIPES[f"fort/cifar10/{name}"]
        assert (recipe.epochs, recipe.batch_size, recipe.lr, recipe.augment) == (40, 128, 1.6e-3, None)
        assert recipe.optimizer == {"name": "adam"} and recipe.schedule == {"name": "step", "every": 10, "factor": 0.5}
        network = ModelSpec(name, (3, 32, 32), 10).build()
        assert {m.p for m in network.modules() if isinstance(m, torch.nn.Dropout)} == {0.1}
    keras, hard = RECIPES["fort/cifar10/resnet20"], RECIPES["fort/cifar100/resnet20"]
    assert (keras.epochs, keras.batch_size, hard.epochs, hard.batch_size) == (200, 32, 200, 128)
    assert keras.augment == hard.augment == {"flip": True, "shift": 0.1}
    assert hard.schedule["milestones"] == [100, 130, 160, 190]
    assert [hard.lr * factor for factor in hard.schedule["factors"]] == pytest.approx([1e-4, 5e-5, 1e-5, 5e-7])
    large = RECIPES["fort/imagenet/resnet50v2"]
    assert (large.epochs, large.batch_size, large.lr, large.optimizer["momentum"]) == (160, 256, 0.15, 0.9)
    assert large.lr * large.schedule["factors"] ** len(large.schedule["milestones"]) == pytest.approx(0.0015)


@pytest.mark.parametrize("item", ["figure8", "figure9"])
def test_subspaces_are_sampled_ten_times_and_rejected_below_065(item):
    for one in parts(item):
        assert (one["samples"], one["least"], one["recipe"]) == (10, 0.65, "fort/cifar10/medium_cnn")
        assert one["shifted"] == "cifar10_c" and one["severities"] == [1, 2, 3, 4, 5] and one["outside"] == "svhn"
        assert len(one["corruptions"]) == len(CORRUPTIONS) == 19 and one["runs"] >= 5


def test_figure_10_is_on_imagenet_and_figure_7_on_harder_sets():
    assert {(one["data"], one["shifted"]) for one in parts("figure10")} == {("imagenet", "imagenet_c")}
    assert {one["data"] for one in parts("figure7")} == {"cifar10", "cifar100", "imagenet"}
    assert {one["data"] for one in parts("figureS6")} == {"cifar100"}


def test_chains_run_as_the_code_of_their_authors():
    assert {one["data"] for one in parts("figureS5")} == {"cifar10", "cifar100"}
    for one in parts("figureS5"):
        chain = one["chain"]
        assert (one["retrained"], chain["epochs"], chain["batch_size"], chain["lr"]) == (3, 50, 64, 0.5)
        assert (chain["weight_decay"], chain["exploration"]) == (5e-4, 45 / 50)
        assert chain["augment"] == {"flip": True, "crop": 4}
    assert len(parts("figureS5")) == 2 * 4  # four experiments on each set


def test_rows_that_are_normalised_are_augmented_as_images():
    class Scaled:
        mean, std = torch.full((3, 1, 1), 0.5), torch.full((3, 1, 1), 0.25)

    x = torch.rand(4, 3, 8, 8)
    normal = (x - 0.5) / 0.25
    same, _ = _augment_normalised(Scaled, {}, normal, torch.zeros(4))
    torch.testing.assert_close(same, normal)
    cropped, _ = _augment_normalised(Scaled, {"crop": 4}, normal, torch.zeros(4))
    black = (cropped + 2).abs() < 1e-5  # what was padded is black, not grey
    assert bool(black.any()) and float(cropped.min()) >= -2 - 1e-5


class Published:
    """Rows of a published set, which say what they are."""

    def __init__(self, value):
        self.value = value

    def __getitem__(self, rows):
        return torch.full((10, 2), self.value)[rows], torch.zeros(10, dtype=torch.long)[rows]


def test_published_sets_take_the_place_of_our_corruptions():
    rows = torch.zeros(4, 2), torch.zeros(4, dtype=torch.long)
    shifted = {"fog": [Published(1.0), Published(2.0)], "snow": [Published(3.0), Published(4.0)]}
    given = Material([], rows, rows, rows, images=(torch.rand(4, 1, 16, 16), rows[1]), shifted=shifted,
                     severities=(1, 2), normalise=lambda x: 10 * x)  # fmt: skip
    found = [(name, severity, float(x[0, 0]), len(y)) for name, severity, (x, y) in given.shifts()]
    assert found == [("fog", 1, 10.0, 4), ("fog", 2, 20.0, 4), ("snow", 1, 30.0, 4), ("snow", 2, 40.0, 4)]
    own = Material([], rows, rows, rows, images=(torch.rand(4, 1, 16, 16), rows[1]), corruptions=("fog",))
    assert [(name, severity) for name, severity, _ in own.shifts()] == [("fog", 1), ("fog", 3), ("fog", 5)]
    assert list(Material([], rows, rows, rows).shifts()) == []
