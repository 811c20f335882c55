"""What `--scale paper` runs, item by item, beside what the papers say and print.

The tables below are read from the papers: methods and numbers of members, settings, training, data. The networks are
those whose parameters `reproduce/published` has as printed.
"""

import math
from pathlib import Path

import pytest
import torch

from pluribus.methods import METHODS
from pluribus.methods.method_info import call_method
from pluribus.models.by_name import ModelSpec
from pluribus.reproduce.parts import Context
from pluribus.reproduce.published import decimals
from pluribus.reproduce.published import masksembles as masks_printed
from pluribus.reproduce.published import mimo as mimo_printed
from pluribus.reproduce.published import packed as packed_printed
from pluribus.reproduce.registry import CLAIMS
from pluribus.reproduce.studies import Compared
from pluribus.results.quantities import quantity
from pluribus.results.store import Group, Result
from pluribus.study.baselines import entry
from pluribus.training.recipes import recipe

CONTEXT = Context("paper", Path("nowhere"))


def runs(item: str) -> list:
    return [run for study in CLAIMS[item].experiment.studies(CONTEXT) for run in study.runs()]


def method_settings(run) -> dict:
    """Everything that the method is called with, as the study does it: recipe, size of the study, run."""
    name, baseline = entry(run.method)
    said = {} if run.size is None else {"size": run.size}
    return {**recipe(run.recipe).settings(name), **said, **run.settings}


def training(run):
    return recipe(run.recipe).changed(**run.training).of(entry(run.method).method)


def first_runs(item: str, **wanted) -> dict:
    """The first run of each method, of those whose fields are as wanted."""
    found = {}
    for run in runs(item):
        if all(getattr(run, key) == value for key, value in wanted.items()):
            found.setdefault(run.method, run)
    return found


def count(run, classes: int, side: int) -> float:
    """Millions of parameters of the run's ensemble, made on the meta device."""
    name, baseline = entry(run.method)
    settings = method_settings(run)
    size = settings.pop("size", 4) if baseline.size is None else baseline.size
    with torch.device("meta"):
        model = ModelSpec(run.model, (3, side, side), classes, run.width).widen(baseline.width).build()
        x = torch.empty(1, 3, side, side)
    made = call_method(METHODS[name], model, size, settings, x)
    return sum(p.numel() for p in made.parameters()) / 1e6


def as_printed(ours: float, printed: str) -> bool:
    scale = 10 ** decimals(printed)
    return float(printed) in (round(ours, decimals(printed)), math.floor(ours * scale) / scale)


# ---------------------------------------------------------------- Packed-Ensembles

SHORT = {"r18": "resnet18", "r50": "resnet50", "wr": "wide_resnet28_10"}

TABLE4 = {  # supplement, Table 4: epochs, batch, rate, momentum, decay, factor, milestones, augmentation
    "r18 c10": (75, 128, 0.05, 0.9, 5e-4, 0.1, [25, 50], "hflip"),
    "r50 c10": (200, 128, 0.1, 0.9, 5e-4, 0.2, [60, 120, 160], "hflip"),
    "wr c10": (200, 128, 0.1, 0.9, 5e-4, 0.2, [60, 120, 160], "hflip"),
    "r18 c100": (75, 128, 0.05, 0.9, 1e-4, 0.2, [25, 50], "hflip"),
    "r50 c100": (200, 128, 0.1, 0.9, 5e-4, 0.2, [60, 120, 160], "hflip"),
    "wr c100": (200, 128, 0.1, 0.9, 5e-4, 0.2, [60, 120, 160], "medium"),
}


def of_table1(item: str, row: str) -> dict:
    """The first run of each method on a row's network and data."""
    net, data = row.split()
    found = {}
    for run in runs(item):
        if run.model.partition("?")[0] == SHORT[net] and run.data == f"cifar{data[1:]}":
            found.setdefault(run.method, run)
    return found


@pytest.mark.parametrize("row", TABLE4)
def test_packed_table1_runs_its_methods_with_the_training_of_table_4(row):
    found = of_table1("packed/table1", row)
    printed = {name.split()[0] for name in packed_printed.TABLE1 if name.endswith(f" {row}")}
    assert set(found) == printed == {"single", "batch_ensemble", "mimo", "masksembles", "packed", "deep"}
    epochs, batch, lr, momentum, decay, factor, milestones, augment = TABLE4[row]
    for method, run in found.items():
        plan = training(run)
        slower = method == "batch_ensemble" and row.startswith("r50")
        assert (plan.epochs, plan.batch_size, plan.lr) == (epochs, batch, 0.08 if slower else lr), method
        assert plan.optimizer == {"name": "sgd", "momentum": momentum}
        assert plan.schedule == {"name": "multistep", "milestones": milestones, "factors": factor}
        assert (plan.weight_decay, plan.augment, plan.criterion, plan.clip) == (decay, augment, None, None)
        assert run.source["outside"] == ["svhn"] and run.source["shifted"] == [f"{run.data}_c"] and not run.corruptions
    settings = {method: method_settings(run) for method, run in found.items()}
    assert all(given["size"] == 4 for method, given in settings.items() if method != "single")
    gamma = 1 if row.startswith("wr") else 2  # the caption
    assert (settings["packed"]["alpha"], settings["packed"]["gamma"]) == (2, gamma)
    assert "min_channels" not in settings["packed"]  # 64, the default
    assert settings["mimo"]["input_repetition"] == 1.0 and settings["mimo"]["init"] == "different"
    masks = settings["masksembles"]
    assert (masks["scale"], masks["after"], masks["repeat"], masks.get("capacity")) == (2.0, True, True, None)
    assert {run.seed for run in runs("packed/table1")} == set(range(5))


@pytest.mark.parametrize("row", TABLE4)
def test_the_networks_of_packed_table1_have_the_printed_parameters(row):
    classes, found = int(row.rpartition("c")[2]), of_table1("packed/table1", row)
    ours = {method: count(found[method], classes, 32) for method in ("single", "packed")}
    printed = {method: packed_printed.TABLE1[f"{method} {row}"]["parameters"] for method in ours}
    known = {  # the paper's own misprints (`packed_counts.TABLE1_REASONS`), and gamma 2 in a row whose caption says 1
        ("single", "wr c100"): 36.55,
        ("packed", "wr c10"): 36.50,
        ("packed", "r18 c100"): 8.27,
        ("packed", "r50 c100"): 14.92,
    }
    for method, number in ours.items():
        if (method, row) in known:
            assert number == pytest.approx(known[method, row], abs=0.005)
        else:
            assert as_printed(number, printed[method]), (method, number, printed[method])


A3 = {"flip": True, "resized_crop": {"size": 160}, "rand_augment": {"n": 2, "m": 6, "mstd": 0.5}, "mixup": 0.1,
      "cutmix": 1.0}  # fmt: skip


@pytest.mark.parametrize(("width", "alpha", "row"), [(1.0, 3, "r50"), (4.0, 2, "r50x4")])
@pytest.mark.slow
def test_packed_table2_runs_a3_on_both_networks(width, alpha, row):
    found = first_runs("packed/table2", width=width)
    assert set(found) == {name.split()[0] for name in packed_printed.TABLE2 if name.endswith(f" {row}")}
    for method, run in found.items():
        plan, given = training(run), method_settings(run)
        assert (run.data, run.model, given["size"]) == ("imagenet", "resnet50", 4)
        assert (plan.epochs, plan.optimizer["name"], plan.lr, plan.weight_decay) == (100, "lamb", 8e-3, 0.02)
        assert plan.batch_size == (1120 if (method, row) == ("masksembles", "r50x4") else 2048)
        assert (plan.criterion, plan.decays, plan.augment) == ("multilabel_bce", "kernels", A3)
        assert plan.schedule == {"name": "cosine", "warmup": 5}
        assert plan.clip == (0.0005 if method == "batch_ensemble" else None)
        assert run.source["outside"] == ["textures", "imagenet_o"] and run.source["variants"] == ["imagenet_r"]
        assert run.source["image_size"] == 224
    packed = method_settings(found["packed"])
    assert (packed["alpha"], packed["gamma"]) == (alpha, 1)
    assert as_printed(count(found["single"], 1000, 224), packed_printed.TABLE10[f"single {row}"]["parameters"])
    printed = packed_printed.TABLE10[f"packed alpha={alpha} {row}"]["parameters"]
    assert as_printed(count(found["packed"], 1000, 224), printed)


def test_packed_table2_is_judged_by_mutual_information_and_shows_imagenet_r():
    said = CLAIMS["packed/table2"].judge({"x": _nothing()})
    header = " ".join(said.header)
    assert "AUROC OOD (MI), textures" in header and "FPR95 OOD (MI), imagenet_o" in header
    assert all(f"{name}, imagenet_r" in header for name in ("Accuracy", "NLL", "ECE"))
    assert any("AUROC OOD (MI)" in line for line in said.found)
    row = CLAIMS["packed/table2"].published["table"]["packed"]
    assert (row["auroc_mi textures"], row["accuracy imagenet_r"]) == ("88.2", "23.8")


def _nothing() -> Compared:
    """Runs of a label that no item asks for."""
    result = Result(
        {"label": "other", "method": "other", "seed": 0, "metrics": {}, "cost": {}, "task": "classification"}
    )
    return Compared({"other": Group("other", (result,))})


def test_packed_tables_5_and_6_run_every_setting_that_is_printed():
    ours = {
        f"alpha={method_settings(run)['alpha']} gamma={method_settings(run)['gamma']}" for run in runs("packed/table5")
    }
    assert ours == set(packed_printed.TABLE5) and len(ours) == 11
    for item, sizes in (("packed/table5", {4}), ("packed/table6", {4, 8, 16})):
        assert {(run.data, run.model) for run in runs(item)} == {("cifar100", "resnet50")}
        assert {method_settings(run)["size"] for run in runs(item)} == sizes
    settings = [method_settings(run) for run in runs("packed/table6")]
    table6 = {f"alpha={one['alpha']} gamma={one['gamma']} M={one['size']}" for one in settings}
    assert table6 == set(packed_printed.TABLE6["msp aupr"])
    from pluribus.study.judging import SCORES

    assert {name.split()[0] for name in packed_printed.TABLE6} <= set(SCORES)


def test_packed_table9_has_the_printed_parameters():
    packed, single = first_runs("packed/table9")["packed"], first_runs("packed/table9")["single"]
    assert (packed.model, single.model, packed.data, single.data) == ("resnet50", "resnext50", "cifar10", "cifar10")
    assert as_printed(count(packed, 10, 32), packed_printed.TABLE9["packed r50"]["parameters"])
    assert as_printed(count(single, 10, 32), packed_printed.TABLE9["resnext50"]["parameters"])


def test_packed_figures_run_the_papers_networks_and_data():
    networks = {
        "packed/figure6": {("cifar100", "resnet50")}, "packed/figure7": {("cifar100", "resnet50")},
        "packed/table8": {("cifar100", "resnet50")}, "packed/appendixJ": {("cifar100", "resnet50")},
        "packed/figure8": {("cifar100", "resnet18"), ("cifar100", "resnet50")},
    }  # fmt: skip
    for item, expected in networks.items():
        assert {(run.data, run.model) for run in runs(item)} == expected, item
    for item in ("packed/figure1", "packed/figure9"):
        assert {run.data for run in runs(item)} == {"cifar100"}
    assert {run.source["shifted"][0] for run in runs("packed/figure9")} == {"cifar100_c"}


def test_packed_table7_runs_both_networks_with_five_seeds():
    parts = CLAIMS["packed/table7"].experiment.plan("paper")
    assert len(parts) == 10 and {part.settings["model"] for part in parts} == {"resnet18", "resnet50"}
    for part in parts:
        given, plan = part.settings, recipe(part.settings["recipe"])
        assert (given["data"], given["runs"], given["gamma"], given["rows"]) == ("cifar100", 4, 2, 50_000)
        assert given["lr"] == plan.lr and plan.augment == "hflip"


# ---------------------------------------------------------------- MIMO

MIMO = {  # appendix B: epochs on CIFAR and on ImageNet, members
    "single": (200, 90, None, None),
    "dropout_single_pass": (200, 90, None, None),
    "deep": (200, 90, 4, 4),
    "thin_ensemble": (200, 90, 4, 4),
    "wide": (200, 90, None, None),
    "batch_ensemble": (250, 135, 4, 4),
    "multihead": (250, 150, 3, 3),
    "treenet": (250, 150, 3, 2),
    "mimo": (250, 150, 3, 2),
    "wide_mimo": (250, 150, 3, 2),
}


@pytest.mark.parametrize(
    ("item", "data"), [("mimo/table1", "cifar10"), ("mimo/table2", "cifar100"), ("mimo/figure4", "cifar10")]
)
@pytest.mark.slow
def test_mimo_tables_1_and_2_run_appendix_b(item, data):
    found = first_runs(item)
    assert set(found) == set(mimo_printed.TABLE1) == set(mimo_printed.TABLE2)
    for method, run in found.items():
        plan, given, (epochs, _, members, _) = training(run), method_settings(run), MIMO[method]
        assert (run.data, run.model, run.source["shifted"]) == (data, "wide_resnet28_10", [f"{data}_c"])
        assert (plan.epochs, plan.batch_size, plan.lr, plan.weight_decay) == (epochs, 512, 0.1, 0.0)
        assert plan.l2 == (3e-4 if method == "mimo" else 2e-4)
        assert plan.schedule["factors"] == 0.1 and plan.augment == {"flip": True, "crop": 4}
        assert members is None or given["size"] == members, method
    mimo = method_settings(found["mimo"])
    assert (mimo["batch_repetition"], mimo["input_repetition"], mimo["init"]) == (4, 0.0, "different")
    assert method_settings(found["dropout_single_pass"])["rate"] == 0.1
    assert entry("thin_ensemble").baseline.width == 0.5
    assert as_printed(count(found["single"], 10, 32), mimo_printed.FOOTNOTE2["single"]["parameters"])
    assert as_printed(count(found["mimo"], 10, 32), mimo_printed.FOOTNOTE2["mimo"]["parameters"])


def test_mimos_treenet_has_the_whole_last_group_of_blocks_apart():
    from pluribus import models

    for item, model, trunk in (
        ("mimo/table1", "wide_resnet28_10", {"conv1", "layer1", "layer2"}),
        ("mimo/table3", "resnet50", {"conv1", "bn1", "layer1", "layer2", "layer3"}),
    ):
        branch = method_settings(first_runs(item)["treenet"])["branch"]
        with torch.device("meta"):
            network = getattr(models, model)(10)
        made = METHODS["treenet"](network, 2, branch=branch, init="same", trained=False)
        shared = {name.partition(".")[0] for name, _ in network.named_parameters() if name not in made.own}
        assert shared == trunk


def test_mimo_tables_3_and_4_run_appendix_b_on_imagenet_and_its_variants():
    found = first_runs("mimo/table3")
    assert set(found) == set(mimo_printed.TABLE3) and set(mimo_printed.TABLE4) <= set(found)
    for method, run in found.items():
        plan, given, (_, epochs, _, members) = training(run), method_settings(run), MIMO[method]
        assert (run.data, run.model, run.source["shifted"]) == ("imagenet", "resnet50", ["imagenet_c"])
        assert (plan.epochs, plan.batch_size, plan.lr, plan.l2) == (epochs, 4096, 0.1, 1e-4)
        assert plan.augment == {"flip": True, "resized_crop": {"size": 224}}
        assert members is None or given["size"] == members, method
    mimo = method_settings(found["mimo"])
    assert (mimo["batch_repetition"], mimo["input_repetition"], mimo["init"]) == (2, 0.6, "different")
    assert entry("wide_mimo").baseline.width == entry("wide").baseline.width == 2.0
    variants = {"imagenet_a", "imagenet_v2", "objectnet", "imagenet_vid_robust", "ytbb_robust"}
    assert {name for run in runs("mimo/table4") for name in run.source["variants"]} == variants


def test_mimos_headline_is_judged_on_corrupted_images_and_against_deep_ensembles():
    for item in ("mimo/table1", "mimo/table2", "mimo/table3"):
        said = " ".join(CLAIMS[item].judge({"x": _nothing()}).found)
        for name in ("accuracy", "nll", "ece", "cacc", "cnll", "cece"):
            title = quantity(name).title
            title = title if not title[1:].islower() else title.lower()
            assert f"mimo is better than multihead in {title}" in said, (item, name)
        for name in ("cAcc", "cNLL", "cECE"):
            assert f"mimo is as good as deep in {name}" in said
    columns = {column for row in mimo_printed.TABLE4.values() for column in row}
    known = {name for name in columns if quantity(name).title}
    assert columns == known


def test_mimos_paths_of_regularisation_are_on_both_sets_with_the_other_term_zero():
    for item, axis in (("mimo/figure7", "l1"), ("mimo/figure8", "l2")):
        found = runs(item)
        assert {run.data for run in found} == {"cifar10", "cifar100"} and {run.seed for run in found} == {0, 1, 2}
        plans = [training(run) for run in found]
        assert len({getattr(plan, axis) for plan in plans}) == 5 and 0.0 in {getattr(plan, axis) for plan in plans}
        assert {plan.l2 if axis == "l1" else plan.l1 for plan in plans} == {0.0}
        assert {run.size for run in found} == {1, 2, 3}
    repetitions = {}
    for run in runs("mimo/figure6b"):
        key = run.training["batch_size"], run.training["lr"], run.size
        repetitions.setdefault(run.settings["batch_repetition"], set()).add(key)
    assert all(len(settings) == 12 for settings in repetitions.values()) and len(repetitions) == 3
    assert {method_settings(run)["input_repetition"] for run in runs("mimo/figure6")} >= {0.0, 0.6, 1.0}
    assert {method_settings(run)["size"] for run in runs("mimo/figure6")} == {2}


def test_mimos_experiments_of_one_network_use_batch_repetition_4():
    for item, network in (("mimo/figure3", "small_cnn"), ("mimo/figure9", "wide_resnet28_10")):
        for part in CLAIMS[item].experiment.plan("paper"):
            assert (part.settings["model"], part.settings["repetition"]) == (network, 4)


# ---------------------------------------------------------------- Masksembles


def test_masksembles_table1_runs_2_3_times_the_network_with_members_at_full_capacity():
    for item in ("masksembles/table1", "masksembles/figure6"):
        found = first_runs(item)
        assert set(found) == set(masks_printed.TABLE1)
        for run in found.values():
            plan = training(run)
            assert (run.data, run.model, method_settings(run)["size"]) == ("cifar10", "wide_resnet16_4", 4)
            assert (plan.epochs, plan.batch_size, plan.lr, plan.weight_decay) == (200, 128, 0.1, 5e-4)
            assert plan.schedule == {"name": "multistep", "milestones": [60, 120, 160], "factors": 0.2}
            assert plan.augment == {"flip": True, "crop": 4}
            assert run.source == {"outside": ["svhn"], "shifted": ["cifar10_c"]}  # its files are of 19 corruptions
        assert method_settings(found["masksembles"])["capacity"] == 1.0
        torch.manual_seed(0)
        relative = count(found["masksembles"], 10, 32) / count(found["single"], 10, 32)
        assert relative == pytest.approx(float(masks_printed.TABLE1["masksembles"]["size"]), abs=0.1)
        assert len({run.settings["rate"] for run in runs(item) if run.method == "mc_dropout"}) > 2
        assert CLAIMS[item].experiment.choose == {"mc_dropout": "nll"}


def test_masksembles_table2_runs_the_printed_overlaps_at_the_size_of_one_network():
    found = [run for run in runs("masksembles/table2") if run.method == "masksembles"]
    overlaps = {round(1 / (2 * method_settings(run)["scale"] - 1), 1) for run in found}
    printed = {float(row["iou"]) for name, row in masks_printed.TABLE2.items() if name.startswith("masksembles")}
    assert printed | {0.5} == overlaps
    assert all(method_settings(run).get("capacity") is None for run in found)
    dropout = next(run for run in runs("masksembles/table2") if run.method == "mc_dropout")
    assert method_settings(dropout)["where"] == method_settings(found[0])["where"] == "layer[234].*"
    labels = {run.label for run in runs("masksembles/table2")}
    table = CLAIMS["masksembles/table2"].published["table"]
    assert {name for name in table if name.startswith("masksembles")} <= labels


def test_masksembles_figures_vary_what_the_paper_varies():
    def scales(item):
        return {method_settings(run)["scale"] for run in runs(item) if run.method == "masksembles"}

    assert scales("masksembles/figure8") == set(masks_printed.FIGURE8_SCALES)
    assert {method_settings(run).get("capacity") for run in runs("masksembles/figure8") if "scale" in run.settings} == {
        None
    }
    assert {2.0, 3.0, 4.0, 5.0} <= scales("masksembles/figure13") and {1.0, 4.0} <= scales("masksembles/figure9")
    grid = [method_settings(run) for run in runs("masksembles/figure7") if run.method == "masksembles"]
    assert {min(one["capacity"] for one in grid), max(one["capacity"] for one in grid)} == {0.3, 2.0}
    assert max(one["scale"] for one in grid) == 5.0 and 1.55 in {one["scale"] for one in grid}


def test_masksembles_size_time_and_diversity_are_judged_as_the_paper_does():
    said = " ".join(CLAIMS["masksembles/table1"].judge({"x": _nothing()}).found)
    assert "at most 0.6 times the parameters of deep" in said and "less training than deep" in said
    assert "at most 0.6 times" in " ".join(CLAIMS["masksembles/figure7"].judge({"x": _nothing()}).found)
    assert "disagreement by error" in " ".join(CLAIMS["masksembles/figure13"].judge({"x": _nothing()}).found)


def test_masks_of_figure_4_train_each_member_on_as_many_rows_as_deep_ensembles(monkeypatch):
    from pluribus.landscape.studies import own_data

    asked = {}

    def noted(caller, tries, *rest):
        asked.update({one.setting: one.options["epochs"] for one in tries})
        return type("Measured", (), {"rows": []})

    monkeypatch.setattr(own_data, "train_each", noted)
    (grid,) = CLAIMS["masksembles/figure4"].experiment.plan("paper")
    own_data.measure_sinusoids(**grid.settings)
    assert asked["single"] == asked["deep"] == 60 and {asked[f"S {s:g}"] for s in (1.1, 2, 3, 10)} == {240}


# ---------------------------------------------------------------- all


@pytest.mark.parametrize("name", [name for name in CLAIMS if hasattr(CLAIMS[name].experiment, "studies")
                                  and "protocol" not in CLAIMS[name].settings])  # fmt: skip
def test_corrupted_images_of_paper_scale_are_the_published_ones(name):
    for run in runs(name):
        assert not run.corruptions
        if run.data != "imagenet":
            assert run.source["shifted"] == [f"{run.data}_c"]
        elif not name.startswith("packed"):  # whose shift is ImageNet-R
            assert run.source["shifted"] == ["imagenet_c"]


@pytest.mark.parametrize("name", [name for name in CLAIMS if hasattr(CLAIMS[name].experiment, "studies")])
def test_printed_rows_and_columns_are_found_under_our_names(name):
    """A printed row that no run has, or a column that is no quantity, would never stand beside ours."""
    table = CLAIMS[name].published.get("table") or {}
    labels = {run.label for run in runs(name)} | set(CLAIMS[name].experiment.choose)
    if CLAIMS[name].experiment.merge:
        labels = {f"{run.label}, {run.model}" for run in runs(name)}
    assert set(table) <= labels, name
