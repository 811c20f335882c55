"""What `--scale paper` runs, item by item, beside what the papers say and print.

The tables below are read from the papers: training, methods and their settings, networks, data, and what is judged.
Every item that is a study has an entry in each. The networks are those whose parameters `reproduce/published` has as
printed.
"""

import math
import re
from pathlib import Path

import pytest
import torch

from pluribus.deploy.budget.counting import cost
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
from pluribus.results.quantities import estimate, quantity
from pluribus.results.store import Group, Result
from pluribus.study.baselines import entry
from pluribus.training.recipes import recipe

CONTEXT = Context("paper", Path("nowhere"))

STUDIES = [  # but for the tests of claims that no paper ran
    name for name, claim in CLAIMS.items()
    if hasattr(claim.experiment, "studies") and "protocol" not in claim.settings
]  # fmt: skip


def runs(item: str) -> list:
    return [run for study in CLAIMS[item].experiment.studies(CONTEXT) for run in study.runs()]


def network(run) -> str:
    return run.model.partition("?")[0]


def method_settings(run) -> dict:
    """Everything that the method is called with, as the study does it: recipe, size of the study, run."""
    name, baseline = entry(run.method)
    said = {} if run.size is None else {"size": run.size}
    return {**recipe(run.recipe).settings(name), **said, **run.settings}


def first_runs(item: str, **wanted) -> dict:
    """The first run of each method, of those whose fields are as wanted."""
    found = {}
    for run in runs(item):
        if all(getattr(run, key) == value for key, value in wanted.items()):
            found.setdefault(run.method, run)
    return found


def made(run, classes: int, side: int):
    """The run's ensemble on the meta device, and a row that it takes."""
    name, baseline = entry(run.method)
    settings = method_settings(run)
    size = settings.pop("size", 4) if baseline.size is None else baseline.size
    with torch.device("meta"):
        model = ModelSpec(run.model, (3, side, side), classes, run.width).widen(baseline.width).build()
        x = torch.empty(1, 3, side, side)
    return call_method(METHODS[name], model, size, settings, x), x


def count(run, classes: int, side: int) -> float:
    """Millions of parameters of the run's ensemble."""
    return sum(p.numel() for p in made(run, classes, side)[0].parameters()) / 1e6


def as_printed(ours: float, printed: str) -> bool:
    scale = 10 ** decimals(printed)
    return float(printed) in (round(ours, decimals(printed)), math.floor(ours * scale) / scale)


# ---------------------------------------------------------------- training


def stepwise(epochs, batch, lr, milestones, factors, augment, optimizer=None, **more) -> dict:
    return {
        "epochs": epochs, "batch_size": batch, "lr": lr, "augment": augment, "optimizer": optimizer or SGD,
        "schedule": {"name": "multistep", "milestones": milestones, "factors": factors}, **more,
    }  # fmt: skip


SGD, NESTEROV = {"name": "sgd", "momentum": 0.9}, {"name": "sgd", "momentum": 0.9, "nesterov": True}
NOT_SAID = {"weight_decay": 0.0, "l1": 0.0, "l2": 0.0, "decays": "all", "criterion": None, "clip": None}
FLIP, CROPPED = {"flip": True}, {"flip": True, "crop": 4}
PARTS = {"flip": True, "resized_crop": {"size": 224}}
THREE = [60, 120, 160]

A3 = {
    "epochs": 100, "batch_size": 2048, "lr": 8e-3, "optimizer": {"name": "lamb"}, "weight_decay": 0.02,
    "decays": "kernels", "criterion": "multilabel_bce", "schedule": {"name": "cosine", "warmup": 5},
    "augment": {"flip": True, "resized_crop": {"size": 160}, "rand_augment": {"n": 2, "m": 6, "mstd": 0.5},
                "mixup": 0.1, "cutmix": 1.0},
}  # fmt: skip

TRAINING = {  # Packed-Ensembles: Table 4; MIMO: appendix B; Masksembles: section 4
    ("packed", "cifar10", "resnet18"): stepwise(75, 128, 0.05, [25, 50], 0.1, "hflip", weight_decay=5e-4),
    ("packed", "cifar10", "resnet50"): stepwise(200, 128, 0.1, THREE, 0.2, "hflip", weight_decay=5e-4),
    ("packed", "cifar10", "resnext50"): stepwise(200, 128, 0.1, THREE, 0.2, "hflip", weight_decay=5e-4),
    ("packed", "cifar10", "wide_resnet28_10"): stepwise(200, 128, 0.1, THREE, 0.2, "hflip", weight_decay=5e-4),
    ("packed", "cifar100", "resnet18"): stepwise(75, 128, 0.05, [25, 50], 0.2, "hflip", weight_decay=1e-4),
    ("packed", "cifar100", "resnet50"): stepwise(200, 128, 0.1, THREE, 0.2, "hflip", weight_decay=5e-4),
    ("packed", "cifar100", "wide_resnet28_10"): stepwise(200, 128, 0.1, THREE, 0.2, "medium", weight_decay=5e-4),
    ("packed", "imagenet", "resnet50"): A3,
    **{("mimo", data, "wide_resnet28_10"): stepwise(200, 512, 0.1, [80, 160, 180], 0.1, CROPPED, NESTEROV, l2=2e-4)
       for data in ("cifar10", "cifar100")},
    ("mimo", "imagenet", "resnet50"): stepwise(90, 4096, 0.1, [30, 60, 80], 0.1, PARTS, NESTEROV, l2=1e-4),
    ("masksembles", "cifar10", "wide_resnet16_4"): stepwise(200, 128, 0.1, THREE, 0.2, CROPPED, NESTEROV,
                                                            weight_decay=5e-4),
    ("masksembles", "imagenet", "resnet50"): stepwise(90, 256, 0.1, [30, 60], 0.1, PARTS, weight_decay=1e-4),
}  # fmt: skip


def longer(epochs: int, milestones: list[int], **more) -> dict:
    return {"epochs": epochs, "schedule": {"name": "multistep", "milestones": milestones, "factors": 0.1}, **more}


ON_CIFAR, ON_IMAGENET = longer(250, [100, 200, 225]), longer(150, [50, 100, 133])

OF_METHODS = {  # what a method trains otherwise
    **{("packed", data, "resnet50"): {"batch_ensemble": {"lr": 0.08}} for data in ("cifar10", "cifar100")},
    ("packed", "imagenet", "resnet50"): {"batch_ensemble": {"clip": 0.0005}},
    **{("mimo", data, "wide_resnet28_10"): {
        **dict.fromkeys(("batch_ensemble", "multihead", "treenet"), ON_CIFAR), "mimo": {**ON_CIFAR, "l2": 3e-4},
    } for data in ("cifar10", "cifar100")},
    ("mimo", "imagenet", "resnet50"): {
        **dict.fromkeys(("multihead", "treenet", "mimo", "wide_mimo"), ON_IMAGENET),
        "batch_ensemble": longer(135, [45, 90, 120]),
    },
}  # fmt: skip

VARIED = {"mimo/figure6b": {"batch_size", "lr"}, "mimo/figure7": {"l1", "l2"}, "mimo/figure8": {"l2"}}


@pytest.mark.parametrize("item", STUDIES)
def test_every_run_trains_as_its_paper_says(item):
    for run in runs(item):
        place = item.partition("/")[0], run.data, network(run)
        said = {**NOT_SAID, **TRAINING[place], **OF_METHODS.get(place, {}).get(run.method, {})}
        if place == ("packed", "imagenet", "resnet50") and (run.method, run.width) == ("masksembles", 4.0):
            said["batch_size"] = 1120
        plan = recipe(run.recipe).changed(**run.training).of(entry(run.method).method)
        for field in said.keys() - VARIED.get(item, set()):
            assert getattr(plan, field) == said[field], (run.label, field)


# ---------------------------------------------------------------- methods, settings, networks and data

RATES = {0.05, 0.1, 0.2, 0.3}
FOUR = {"size": {4}}
DROPPED = {"mc_dropout": {**FOUR, "rate": RATES}}


def masks(scales, capacity=None, **more) -> dict:
    """One network, Deep Ensembles and Masksembles, all with four members."""
    own = {**FOUR, "scale": set(scales), "capacity": {capacity} if not isinstance(capacity, set) else capacity}
    return {"single": {}, "masksembles": own, "deep": FOUR, **more}


def packs(alphas, gammas, sizes=(4,)) -> dict:
    return {"packed": {"size": set(sizes), "alpha": set(alphas), "gamma": set(gammas), "min_channels": {64}}}


def packed_arms(alphas, gammas) -> dict:
    return {
        "single": {}, "deep": FOUR, "batch_ensemble": FOUR, **packs(alphas, gammas),
        "mimo": {**FOUR, "batch_repetition": {1}, "input_repetition": {1.0}, "init": {"different"}},
        "masksembles": {**FOUR, "scale": {2.0}, "capacity": {None}, "after": {True}, "repeat": {True}},
    }  # fmt: skip


def mimos(sizes, repetitions, shared) -> dict:
    return {"size": set(sizes), "batch_repetition": set(repetitions), "input_repetition": set(shared),
            "init": {"different"}}  # fmt: skip


OF_MIMO = {
    "single": {}, "dropout_single_pass": {"rate": {0.1}}, "deep": FOUR, "thin_ensemble": FOUR, "batch_ensemble": FOUR,
    "multihead": {"size": {3}}, "treenet": {"size": {3}}, "mimo": mimos([3], [4], [0.0]),
}  # fmt: skip

OF_MIMO_LARGE = {
    "single": {}, "wide": {}, "deep": FOUR, "batch_ensemble": FOUR, "multihead": {"size": {3}},
    "treenet": {"size": {2}}, **dict.fromkeys(("mimo", "wide_mimo"), mimos([2], [2], [0.6])),
}  # fmt: skip

GRID = {0.3, 0.5, 1.0, 2.0}  # M from 0.3 C to 2 C
FIXED = masks(masks_printed.FIGURE8_SCALES)

ARMS = {
    **dict.fromkeys(("masksembles/table1", "masksembles/figure6"), masks([1.55], 1.0, **DROPPED)),
    "masksembles/figure7": masks([1.1, 1.55, 2.0, 3.0, 5.0], GRID, **DROPPED),
    "masksembles/figure8": FIXED,
    "masksembles/figure10": FIXED,
    **dict.fromkeys((f"masksembles/figure{i}" for i in (9, 13, 14)), masks([1.0, 2.0, 3.0, 4.0, 5.0], 1.0)),
    **dict.fromkeys(("masksembles/table2", "masksembles/figure11"), masks([1.21, 1.5, 2.17, 3.0], **DROPPED)),
    **dict.fromkeys(("packed/table1", "packed/figure1", "packed/figure9"), packed_arms([2], [1, 2])),
    **dict.fromkeys(("packed/table8", "packed/appendixJ"), packed_arms([2], [2])),
    "packed/table2": packed_arms([2, 3], [1]),
    **dict.fromkeys(("packed/table5", "packed/figure7"), packs([1, 2, 3, 4], [1, 2, 4])),
    "packed/figure6": packs([1, 2, 4], [2], [2, 4]),
    "packed/table6": packs([2, 3, 4, 6, 8], [1, 2, 4], [4, 8, 16]),
    "packed/figure8": {"single": {}},
    "packed/table9": {"single": {}, **packs([2], [1])},
    **dict.fromkeys(("mimo/table1", "mimo/table2", "mimo/figure4"), OF_MIMO),
    **dict.fromkeys(("mimo/table3", "mimo/table4"), OF_MIMO_LARGE),
    "mimo/figure5": {"mimo": mimos([1, 2, 3, 4], [4], [0.0])},
    "mimo/figure6": {"mimo": mimos([2], [2], [0.0, 0.3, 0.6, 1.0])},
    "mimo/figure6b": {"mimo": mimos([2, 3, 4], [1, 2, 4], [0.0])},
    **dict.fromkeys(("mimo/figure7", "mimo/figure8"), {"mimo": mimos([1, 2, 3], [4], [0.0])}),
}

DEFAULTS = {"capacity": None, "min_channels": 64, "batch_repetition": 1, "input_repetition": 0.0}


@pytest.mark.parametrize("item", STUDIES)
def test_every_item_runs_the_methods_and_settings_of_its_paper(item):
    found = {}
    for run in runs(item):
        own = found.setdefault(run.method, {})
        for field in ARMS[item].get(run.method, {}):
            own.setdefault(field, set()).add({**DEFAULTS, **method_settings(run)}[field])
    assert found == ARMS[item]


CIFARS, WIDE = ("cifar10", "cifar100"), "wide_resnet28_10"
MASKED, LARGE = {("cifar10", "wide_resnet16_4", 1.0)}, {("imagenet", "resnet50", 1.0)}
ON_RESNET50 = {("cifar100", "resnet50", 1.0)}

PLACES = {  # data, network and width
    **dict.fromkeys((name for name in STUDIES if name.startswith("masksembles")), MASKED),
    **dict.fromkeys((f"masksembles/{name}" for name in ("figure10", "figure11", "table2")), LARGE),
    "packed/table1": {(data, model, 1.0) for data in CIFARS for model in ("resnet18", "resnet50", WIDE)},
    **dict.fromkeys(("packed/figure1", "packed/figure9"),
                    {("cifar100", model, 1.0) for model in ("resnet18", "resnet50", WIDE)}),
    "packed/table2": {("imagenet", "resnet50", width) for width in (1.0, 4.0)},
    **dict.fromkeys((f"packed/{name}" for name in ("table5", "table6", "table8", "figure6", "figure7", "appendixJ")),
                    ON_RESNET50),
    "packed/figure8": {("cifar100", model, width) for model in ("resnet18", "resnet50")
                       for width in (0.25, 0.5, 1, 2)},
    "packed/table9": {("cifar10", "resnet50", 1.0), ("cifar10", "resnext50", 1.0)},
    **dict.fromkeys(("mimo/table1", "mimo/figure4", "mimo/figure5"), {("cifar10", WIDE, 1.0)}),
    **dict.fromkeys(("mimo/table2", "mimo/figure6b"), {("cifar100", WIDE, 1.0)}),
    **dict.fromkeys(("mimo/figure7", "mimo/figure8"), {(data, WIDE, 1.0) for data in CIFARS}),
    **dict.fromkeys(("mimo/table3", "mimo/table4", "mimo/figure6"), LARGE),
}  # fmt: skip

VARIANTS = ["imagenet_a", "imagenet_v2", "objectnet", "imagenet_vid_robust", "ytbb_robust"]

ROWS_OF_IMAGENET = {
    "masksembles": {"shifted": ["imagenet_c"], "image_size": 224},
    "packed": {"outside": ["textures", "imagenet_o"], "variants": ["imagenet_r"], "image_size": 224},
    "mimo": {"shifted": ["imagenet_c"], "variants": VARIANTS, "image_size": 224},
}

SEEDS = {"mimo/figure6b": 1, "mimo/figure7": 3, "mimo/figure8": 3}  # "three repetitions"


@pytest.mark.parametrize("item", STUDIES)
def test_every_item_runs_the_networks_and_data_of_its_paper(item):
    assert {(run.data, network(run), run.width) for run in runs(item)} == PLACES[item]
    large = any(run.data == "imagenet" for run in runs(item))
    assert len({run.seed for run in runs(item)}) == SEEDS.get(item, 1 if large else 5)
    for run in runs(item):
        published = {"outside": ["svhn"], "shifted": [f"{run.data}_c"]}
        assert run.source == (ROWS_OF_IMAGENET[item.partition("/")[0]] if large else published)
        assert not run.corruptions  # the published files take the place of ours


# ---------------------------------------------------------------- what is judged

SIX = {"accuracy", "NLL", "ECE", "cAcc", "cNLL", "cECE"}

JUDGED = {
    "masksembles/table1": {"accuracy", "ECE", "AUROC OOD", "parameters", "training"},
    "masksembles/table2": {"accuracy", "ECE", "parameters", "training"},
    **dict.fromkeys(("masksembles/figure6", "masksembles/figure11", "packed/figure9"), {"cAcc", "cECE"}),
    "masksembles/figure7": {"accuracy", "ECE", "parameters"},
    **dict.fromkeys(("masksembles/figure8", "masksembles/figure10"), {"cECE"}),
    "masksembles/figure9": {"accuracy", "ECE", "AUROC OOD"},
    "masksembles/figure13": {"disagreement by error"},  # equation 7
    "masksembles/figure14": {"ECE"},
    "packed/figure1": {"accuracy", "latency"},
    **dict.fromkeys(("packed/table1", "packed/table9"), {"accuracy", "NLL", "ECE", "AUROC OOD"}),
    "packed/table2": {"accuracy", "AUROC OOD (MI)"},
    **dict.fromkeys(("packed/table5", "packed/appendixJ", "mimo/figure6", "mimo/figure6b"), {"accuracy"}),
    **dict.fromkeys((f"packed/figure{i}" for i in (6, 7, 8)), {"accuracy", "AUPR OOD"}),
    "packed/table6": {"auroc", "aupr"},  # of criteria
    "packed/table8": {"training", "latency"},
    "mimo/figure4": {"disagreement"},
    **dict.fromkeys(("mimo/figure5", "mimo/figure7", "mimo/figure8"), {"accuracy", "NLL"}),
    **dict.fromkeys(("mimo/table1", "mimo/table2", "mimo/table3"), SIX),
    "mimo/table4": {"accuracy", "NLL", "cAcc", "cNLL", "stable"},
}  # fmt: skip

NAMES = sorted(set.union(*JUDGED.values()), key=len, reverse=True)


def parts_of(item: str) -> list[str]:
    """What is asked, as sentences; of runs with a label that no item asks for."""
    result = Result(
        {"label": "other", "method": "other", "seed": 0, "metrics": {}, "cost": {}, "task": "classification"}
    )
    said = CLAIMS[item].judge({"x": Compared({"other": Group("other", (result,))})}).found
    return [line for line in said if line.endswith(", inconclusive.")]


@pytest.mark.parametrize("item", STUDIES)
def test_every_item_is_judged_by_the_metrics_of_its_paper(item):
    found = {next(name for name in NAMES if re.search(rf"[ (]{re.escape(name)}(?!\w)", line, re.IGNORECASE))
             for line in parts_of(item)}  # fmt: skip
    assert found == JUDGED[item]


def test_sizes_times_and_closeness_are_judged_as_the_papers_do():
    said = {item: " ".join(parts_of(item)) for item in STUDIES}
    for item in ("masksembles/table1", "masksembles/figure7"):
        assert "at most 0.6 times the parameters of deep" in said[item]
    for item in ("mimo/table1", "mimo/table2", "mimo/table3"):
        for name in ("accuracy", "NLL", "ECE", "cAcc", "cNLL", "cECE"):
            assert f"mimo is better than multihead in {name}" in said[item]
        for name in ("cAcc", "cNLL", "cECE"):
            assert f"mimo is as good as deep in {name}" in said[item]


def test_packed_table2_shows_the_columns_of_the_paper():
    claim = CLAIMS["packed/table2"]
    row = claim.published["table"]["packed"]
    assert (row["auroc_mi textures"], row["accuracy imagenet_r"]) == ("88.2", "23.8")
    result = Result({"label": "packed", "method": "packed", "seed": 0, "metrics": {}, "cost": {},
                     "task": "classification"})  # fmt: skip
    header = " ".join(claim.judge({"x": Compared({"packed": Group("packed", (result,))})}).header)
    assert "AUROC OOD (MI), textures" in header and "FPR95 OOD (MI), imagenet_o" in header
    assert all(f"{name}, imagenet_r" in header for name in ("Accuracy", "NLL", "ECE"))


@pytest.mark.parametrize(("method", "score"), [("single", 0.7), ("mimo", 0.7), ("packed", 0.8), ("deep", 0.8)])
def test_packed_table2_scores_one_pass_by_its_confidence_and_ensembles_by_mutual_information(method, score):
    model, x = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)), torch.zeros(2, 4)
    passes = cost(call_method(METHODS[method], model, 4, {}, x), x).forward_passes
    scores = {"msp": {"auroc": 0.7}, "mutual_information": {"auroc": 0.8}}
    record = {"label": method, "method": method, "seed": 0, "metrics": {}, "cost": {"forward_passes": passes},
              "task": "classification", "outside": {"textures": scores}}  # fmt: skip
    assert estimate(Group(method, (Result(record),)), "auroc_mi").value == score


def test_every_printed_column_of_mimos_table_4_is_a_quantity():
    assert all(quantity(name).title for row in mimo_printed.TABLE4.values() for name in row)


# ---------------------------------------------------------------- rows and counts as printed

SHORT = {"r18": "resnet18", "r50": "resnet50", "wr": WIDE}
TABLE1_ROWS = [f"{net} c{classes}" for classes in (10, 100) for net in SHORT]


def of_table1(row: str) -> dict:
    """The first run of each method on a row's network and data."""
    net, data = row.split()
    found = {}
    for run in runs("packed/table1"):
        if (network(run), run.data) == (SHORT[net], f"cifar{data[1:]}"):
            found.setdefault(run.method, run)
    return found


@pytest.mark.parametrize("row", TABLE1_ROWS)
def test_the_networks_of_packed_table1_have_the_printed_parameters(row):
    classes, found = int(row.rpartition("c")[2]), of_table1(row)
    assert set(found) == {name.split()[0] for name in packed_printed.TABLE1 if name.endswith(f" {row}")}
    assert method_settings(found["packed"])["gamma"] == (1 if row.startswith("wr") else 2)  # the caption
    ours = {method: count(found[method], classes, 32) for method in ("single", "packed")}
    printed = {method: packed_printed.TABLE1[f"{method} {row}"]["parameters"] for method in ours}
    known = {  # the paper's own misprints (`counts.TABLE1_REASONS`), and gamma 2 in a row whose caption says 1
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
    if row.startswith("wr"):  # whose stride is late
        single = cost(*made(found["single"], classes, 32)).mult_adds / 1e9
        assert as_printed(single, packed_printed.TABLE1[f"single {row}"]["mult_adds"])


@pytest.mark.slow
@pytest.mark.parametrize(("width", "alpha", "row"), [(1.0, 3, "r50"), (4.0, 2, "r50x4")])
def test_the_networks_of_packed_table2_have_the_printed_parameters(width, alpha, row):
    found = first_runs("packed/table2", width=width)
    assert set(found) == {name.split()[0] for name in packed_printed.TABLE2 if name.endswith(f" {row}")}
    assert method_settings(found["packed"])["alpha"] == alpha
    assert as_printed(count(found["single"], 1000, 224), packed_printed.TABLE10[f"single {row}"]["parameters"])
    printed = packed_printed.TABLE10[f"packed alpha={alpha} {row}"]["parameters"]
    assert as_printed(count(found["packed"], 1000, 224), printed)


def test_packed_tables_5_and_6_run_every_setting_that_is_printed():
    settings = {item: [method_settings(run) for run in runs(item)] for item in ("packed/table5", "packed/table6")}
    table5 = {f"alpha={one['alpha']} gamma={one['gamma']}" for one in settings["packed/table5"]}
    assert table5 == set(packed_printed.TABLE5) and len(table5) == 11
    table6 = {f"alpha={one['alpha']} gamma={one['gamma']} M={one['size']}" for one in settings["packed/table6"]}
    assert table6 == set(packed_printed.TABLE6["msp aupr"])
    from pluribus.study.judging import SCORES

    assert {name.split()[0] for name in packed_printed.TABLE6} <= set(SCORES)


def test_packed_table9_has_the_printed_parameters():
    packed, single = first_runs("packed/table9")["packed"], first_runs("packed/table9")["single"]
    assert (packed.model, single.model) == ("resnet50", "resnext50")
    assert as_printed(count(packed, 10, 32), packed_printed.TABLE9["packed r50"]["parameters"])
    assert as_printed(count(single, 10, 32), packed_printed.TABLE9["resnext50"]["parameters"])


def test_packed_table7_runs_both_networks_with_five_seeds():
    parts = CLAIMS["packed/table7"].experiment.plan("paper")
    assert len(parts) == 10 and {part.settings["model"] for part in parts} == {"resnet18", "resnet50"}
    for part in parts:
        given, plan = part.settings, recipe(part.settings["recipe"])
        assert (given["data"], given["runs"], given["gamma"], given["rows"]) == ("cifar100", 4, 2, 50_000)
        assert given["recipe"] == f"packed/cifar100/{given['model']}" and given["lr"] == plan.lr


def test_mimos_network_has_the_printed_parameters():
    assert set(first_runs("mimo/table1")) == set(mimo_printed.TABLE1) == set(mimo_printed.TABLE2)
    assert set(first_runs("mimo/table3")) == set(mimo_printed.TABLE3) >= set(mimo_printed.TABLE4)
    for name in ("single", "mimo"):
        ours = count(first_runs("mimo/table1")[name], 10, 32)
        assert as_printed(ours, mimo_printed.FOOTNOTE2[name]["parameters"])
    widths = {name: entry(name).baseline.width for name in ("thin_ensemble", "wide", "wide_mimo")}
    assert widths == {"thin_ensemble": 0.5, "wide": 2.0, "wide_mimo": 2.0}


def test_mimos_treenet_has_the_whole_last_group_of_blocks_apart():
    from pluribus import models

    for item, model, trunk in (
        ("mimo/table1", WIDE, {"conv1", "layer1", "layer2"}),
        ("mimo/table3", "resnet50", {"conv1", "bn1", "layer1", "layer2", "layer3"}),
    ):
        branch = method_settings(first_runs(item)["treenet"])["branch"]
        with torch.device("meta"):
            network = getattr(models, model)(10)
        made = METHODS["treenet"](network, 2, branch=branch, init="same", trained=False)
        shared = {name.partition(".")[0] for name, _ in network.named_parameters() if name not in made.own}
        assert shared == trunk


def test_mimos_paths_of_regularisation_are_on_both_sets_with_the_other_term_zero():
    for item, axis in (("mimo/figure7", "l1"), ("mimo/figure8", "l2")):
        plans = [recipe(run.recipe).changed(**run.training).of("mimo") for run in runs(item)]
        assert len({getattr(plan, axis) for plan in plans}) == 5 and 0.0 in {getattr(plan, axis) for plan in plans}
        assert {plan.l2 if axis == "l1" else plan.l1 for plan in plans} == {0.0}
    repetitions = {}
    for run in runs("mimo/figure6b"):
        key = run.training["batch_size"], run.training["lr"], run.size
        repetitions.setdefault(run.settings["batch_repetition"], set()).add(key)
    assert all(len(settings) == 12 for settings in repetitions.values()) and len(repetitions) == 3


ONE_NETWORK = {  # items that are measured inside of one network: model, recipe, settings
    **dict.fromkeys(("mimo/figure3", "mimo/figure4a", "mimo/figure4b"),
                    ("small_cnn", "fort/cifar10/small_cnn", {"repetition": 4})),
    "mimo/figure9": (WIDE, "mimo/cifar/wide_resnet28_10", {"repetition": 4, "sizes": [1, 2, 3, 4]}),
    "masksembles/figure5": ("wide_resnet16_4", "masksembles/cifar10/wide_resnet16_4", {}),
    "packed/appendixK": ("resnet18", "packed/cifar10/resnet18", {"gamma": 2}),
}  # fmt: skip


@pytest.mark.parametrize("item", ONE_NETWORK)
def test_experiments_inside_of_one_network_have_that_of_the_paper(item):
    model, named, settings = ONE_NETWORK[item]
    parts = CLAIMS[item].experiment.plan("paper")
    assert len(parts) == 5
    for part in parts:
        given = part.settings
        assert (given["data"], given["rows"], given["model"], given["recipe"]) == ("cifar10", 50_000, model, named)
        assert settings.items() <= given.items()


def test_masksembles_table1_runs_2_3_times_the_network():
    for item in ("masksembles/table1", "masksembles/figure6"):
        found = first_runs(item)
        assert set(found) == set(masks_printed.TABLE1)
        torch.manual_seed(0)
        relative = count(found["masksembles"], 10, 32) / count(found["single"], 10, 32)
        assert relative == pytest.approx(float(masks_printed.TABLE1["masksembles"]["size"]), abs=0.1)
        assert CLAIMS[item].experiment.choose == {"mc_dropout": "nll"}
        (laptop,) = CLAIMS[item].experiment.studies(Context("laptop", Path("nowhere")))
        assert len(set(laptop.corruptions)) == 19


def test_masksembles_table2_runs_the_printed_overlaps_and_masks_from_stage_3_on():
    found = [run for run in runs("masksembles/table2") if run.method == "masksembles"]
    overlaps = {round(1 / (2 * method_settings(run)["scale"] - 1), 1) for run in found}
    printed = {float(row["iou"]) for name, row in masks_printed.TABLE2.items() if name.startswith("masksembles")}
    assert printed | {0.5} == overlaps
    for item in ("masksembles/table2", "masksembles/figure10", "masksembles/figure11"):
        masked = [run for run in runs(item) if run.method in ("masksembles", "mc_dropout")]
        assert masked and {method_settings(run)["where"] for run in masked} == {"layer[234].*"}


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


@pytest.mark.parametrize("name", [name for name in CLAIMS if hasattr(CLAIMS[name].experiment, "studies")])
def test_printed_rows_are_found_under_our_names(name):
    """A printed row that no run has would never stand beside ours."""
    table = CLAIMS[name].published.get("table") or {}
    labels = {run.label for run in runs(name)} | set(CLAIMS[name].experiment.choose)
    if CLAIMS[name].experiment.merge:
        labels = {f"{run.label}, {run.model}" for run in runs(name)}
    assert set(table) <= labels, name
