"""Each check comes out each way: fed results for which the claim holds, fails and is inconclusive."""

import numpy as np
import pytest

from pluribus.reproduce.packed import TABLE6
from pluribus.reproduce.parts import Stored
from pluribus.reproduce.registry import CLAIMS
from pluribus.reproduce.studies import Compared, choose_labels
from pluribus.results.judgements import FAILS, HOLDS, OPEN
from pluribus.results.store import Group, Result

# ---------------------------------------------------------------- studies: what each label is worth, in steps

PAR = {"single": 0, "deep": 1, "packed": 1, "masksembles": 1, "mc_dropout": 0.2, "mimo": 1}
BEST = {"packed": 2, "masksembles": 1, "deep": 1, "batch_ensemble": 0, "mimo": 0, "single": 0}
ONE_PASS = {"mimo": 2, "single": 0, "dropout_single_pass": 0, "multihead": 0, "deep": 2}
ALPHA_GAMMA = {f"packed alpha={a} gamma={g}": 0.05 * a for a in (1, 2, 3, 4) for g in (1, 2, 4) if (a, g) != (1, 4)}
ROUGH = {label: value + 2 * (label[-1] == "4") for label, value in ALPHA_GAMMA.items()}
SCALES = {f"masksembles scale={s}": s for s in (1.0, 1.1, 1.4, 2.0, 3.0)}
CAPACITY = {f"masksembles scale={s} capacity=1.0": s for s in (1.0, 2.0, 3.0, 4.0, 5.0)}
HALF = {**PAR, "masksembles": 1.2}  # as good, and cheaper
LARGE = {**PAR, "masksembles scale=1.5": 1.2}
STRONG = {"l1": "0.0001", "l2": "0.01"}
REGULARISED = {
    f"mimo size={m} {axis}={value}": 0 if value == "0.0" else -m
    for axis, strong in STRONG.items()
    for m in (1, 3)
    for value in ("0.0", strong)
}
DIVERSE = {"mimo": 4, "deep": 4, "treenet": 1, "batch_ensemble": 1, "multihead": 0}

WIDE = {  # one network, half as wide, four members: each better the wider it is, packed ones the most
    f"{method} width={width}": level * width + 0.5 * width
    for method, level in (("single", 0), ("deep", 1), ("packed", 0.9))
    for width in (1, 4, 8)
} | {"packed width=1": -3}
FAIR = {"single": 0, "thin": 0.2, "deep": 1, "packed": 0.7, "mc_dropout": 0.2, "masksembles": 1.2}
SHARING = {  # behind Deep Ensembles by 2 at width 1, less at width 4
    f"{method} width={width}": level
    for method, levels in {"single": (0, 2), "deep": (3, 5), "masksembles": (1, 4), "mimo": (1, 4.5)}.items()
    for width, level in zip((1, 4), levels, strict=True)
}
STEPS = {"single width=4": 0, "deep width=4": 3, "mimo width=4 size=1": 0.5, "mimo width=4 size=2": 2}

WAYS = {  # item: levels for which it holds, and for which it fails
    "masksembles/capacity": (FAIR, {**FAIR, "masksembles": 0.3}),
    "packed/capacity": (WIDE, {**WIDE, "packed width=8": 7.5}),  # of a gain of 8 over the single network's 4
    "packed/residual": (FAIR, {**FAIR, "packed": 0.3}),
    "packed/schedule": (FAIR, {**FAIR, "packed": 0.3}),
    "packed/sharing": (SHARING, {**SHARING, "mimo width=4": 1}),
    "mimo/capacity": (STEPS, {**STEPS, "mimo width=4 size=2": 0.2}),
    "masksembles/figure6": (PAR, {**PAR, "masksembles": -1}),
    "masksembles/figure7": (
        {"single": 0, "deep": 1, "masksembles scale=1.55 capacity=1.0": 1},
        {"single": 0, "deep": 1, "masksembles scale=1.55 capacity=1.0": -3},
    ),
    "masksembles/figure8": (SCALES, {label: -value for label, value in SCALES.items()}),
    "masksembles/figure9": (CAPACITY, {label: -value for label, value in CAPACITY.items()}),
    "masksembles/figure10": (
        {"single": 0, "deep": 1, "masksembles scale=2.0": 1},
        {"single": 0, "deep": 1, "masksembles scale=2.0": -2},
    ),
    "masksembles/figure11": (LARGE, {**LARGE, "masksembles scale=1.5": -1}),
    "masksembles/figure13": ({**CAPACITY, "deep": 6}, {**CAPACITY, "deep": 1}),
    "masksembles/figure14": (CAPACITY, {label: -value for label, value in CAPACITY.items()}),
    "masksembles/table1": (HALF, {**HALF, "masksembles": -1}),
    "masksembles/table2": (LARGE, {**LARGE, "masksembles scale=1.5": -1}),
    "packed/figure1": (BEST, {**BEST, "packed": -1}),
    "packed/table1": (PAR, {**PAR, "packed": -1}),
    "packed/table2": (BEST, {**BEST, "packed": -1}),
    "packed/table5": (ALPHA_GAMMA, ROUGH),
    "packed/figure6": (
        {f"packed alpha={a} size={m}": a + m for a in (1, 2, 4) for m in (2, 4)},
        {f"packed alpha={a} size={m}": a - m for a in (1, 2, 4) for m in (2, 4)},
    ),
    "packed/figure7": (ALPHA_GAMMA, ROUGH),
    "packed/table8": (BEST, {**BEST, "packed": -1}),
    "packed/figure9": (BEST, {**BEST, "packed": 0.5}),
    "mimo/figure4": (DIVERSE, {**DIVERSE, "mimo": 0}),
    "mimo/figure5": ({f"mimo size={m}": m for m in (1, 2, 3)}, {f"mimo size={m}": -m for m in (1, 2, 3)}),
    "mimo/figure6": (
        {"mimo input_repetition=0.0": 0, "mimo input_repetition=0.6": 2, "mimo input_repetition=1.0": 1},
        {"mimo input_repetition=0.0": 0, "mimo input_repetition=0.6": -2, "mimo input_repetition=1.0": 1},
    ),
    "mimo/figure6b": (
        {f"mimo batch_repetition={r} size={m}": r for r in (1, 2, 4) for m in (2, 3)},
        {f"mimo batch_repetition={r} size={m}": -r for r in (1, 2, 4) for m in (2, 3)},
    ),
    "mimo/figure7": (REGULARISED, {label: -value for label, value in REGULARISED.items()}),
    "mimo/figure8": (REGULARISED, {label: -value for label, value in REGULARISED.items()}),
    "mimo/table1": (ONE_PASS, {**ONE_PASS, "mimo": -1}),
    "mimo/table2": (ONE_PASS, {**ONE_PASS, "mimo": -1}),
    "mimo/table3": (ONE_PASS, {**ONE_PASS, "mimo": -1}),
    "mimo/table4": (ONE_PASS, {**ONE_PASS, "mimo": -1}),
}


VARIANTS = ("imagenet_a", "imagenet_v2", "objectnet", "imagenet_vid_robust", "ytbb_robust")


def run(label, level, seed, noise, **changes):
    """A result whose every figure is better, larger or cheaper by steps of its level."""
    drawn = np.random.default_rng([seed, sum(map(ord, label))])
    level = level + noise * drawn.standard_normal()
    figures = {"accuracy": 0.7 + 0.01 * level, "nll": 1 - 0.05 * level, "ece": 0.2 - 0.01 * level}
    metrics = {**figures, "disagreement": 0.3 + 0.01 * level, "disagreement_by_error": 0.5 + 0.01 * level}
    scores = {
        name: {"auroc": 0.7 + 0.01 * level, "aupr": 0.7 + 0.01 * level, "fpr95": 0.3}
        for name in ("msp", "entropy", "mutual_information")
    }
    record = {
        **{"run": f"{label}-{seed}", "method": label.split()[0], "label": label, "settings": {}, "data": "x"},
        **{"task": "classification", "seed": seed, "metrics": metrics, "outside": {"other": scores}},
        "cost": {"latency": float(np.exp(-level)), "parameters": 100 + level},
        "seconds": {"training": float(np.exp(-level))},
        "shift": {"noise": [{"severity": 1, **figures}]},
        "variants": dict.fromkeys(VARIANTS, {**figures, "stable_accuracy": 0.5 + 0.01 * level}),
    }
    record["cost"]["parameters"] = 400 if label == "deep" else 100
    return Result({**record, **changes})


def study(levels, noise=0.001):
    groups = {
        label: Group(label, tuple(run(label, level, seed, noise) for seed in range(4)))
        for label, level in levels.items()
    }
    return {"x, mlp": Compared(groups)}


@pytest.mark.parametrize("name", WAYS)
def test_a_claim_about_a_study_can_hold_fail_and_be_open(name):
    holding, failing = WAYS[name]
    assert CLAIMS[name].judge(study(holding)).judgement == HOLDS
    assert CLAIMS[name].judge(study(failing)).judgement == FAILS
    assert CLAIMS[name].judge(study(holding, noise=50.0)).judgement == OPEN
    assert CLAIMS[name].judge(study({"other": 1})).judgement == OPEN


def test_nothing_is_said_where_deep_ensembles_do_not_beat_the_single_network():
    """No positive control: packed is as good as Deep Ensembles in everything, but those are not calibrated better."""
    assert CLAIMS["packed/table1"].judge(study(PAR)).judgement == HOLDS
    without = study(PAR)
    for result in without["x, mlp"].groups["deep"].runs:
        result.record["metrics"]["ece"] = 0.5
    verdict = CLAIMS["packed/table1"].judge(without)
    assert verdict.judgement == OPEN
    assert CLAIMS["packed/residual"].judge(study(FAIR)).judgement == HOLDS
    without = study({**FAIR, "packed": -5})  # which would be refuted
    for result in without["x, mlp"].groups["deep"].runs:
        result.record["metrics"]["ece"] = 0.5
    verdict = CLAIMS["packed/residual"].judge(without)
    assert verdict.judgement == OPEN and "deep is not shown to beat single in NLL and ECE" in verdict.found[1]


def test_the_overlaps_of_a_size_are_the_papers():
    from pluribus.reproduce.masksembles import OVERLAPS

    for iou, scale in OVERLAPS.items():
        assert 1 / (2 * scale - 1) == pytest.approx(float(iou), abs=0.005)


def test_of_a_methods_settings_the_best_on_validation_data_stands_for_it():
    rates = {f"mc_dropout rate={rate}": level for rate, level in ((0.1, 1), (0.2, 3), (0.3, 2))}
    compared = study({**rates, "single": 0})["x, mlp"]
    for label, group in compared.groups.items():
        for result in group.runs:
            result.record["validation"] = {"nll": 1.0 if label != "mc_dropout rate=0.3" else 0.5}
    chosen = choose_labels(compared, {"mc_dropout": "nll"})
    assert list(chosen.groups) == ["single", "mc_dropout"]
    assert chosen.values("mc_dropout", "accuracy") == compared.values("mc_dropout rate=0.3", "accuracy")
    assert "mc_dropout rate=0.3 was chosen by nll on validation data, out of 3" in chosen.notes[0]


def test_widths_hold_where_accuracy_rises_and_detection_stays():
    check, labels = CLAIMS["packed/figure8"].judge, [f"single width={w}" for w in (0.25, 0.5, 1, 2)]
    assert check(study({label: 0.5 * i for i, label in enumerate(labels)})).judgement == HOLDS
    assert check(study({label: -i for i, label in enumerate(labels)})).judgement == FAILS
    assert check(study(dict.fromkeys(labels, 0), noise=50.0)).judgement == OPEN


def test_stability_is_judged_by_a_ratio_of_variances():
    def steady(packed, others):
        groups = {
            label: Group(label, tuple(run(label, 0, seed, noise) for seed in range(8)))
            for label, noise in (("packed", packed), ("single", others), ("deep", others))
        }
        return CLAIMS["packed/appendixJ"].judge({"x": Compared(groups)}).judgement

    assert steady(0.001, 5.0) == HOLDS
    assert steady(5.0, 0.001) == FAILS
    assert steady(1.0, 1.0) == OPEN


def test_criteria_are_compared_on_the_same_predictions():
    def told(logit, others):
        def scores(value):
            return {"auroc": value, "aupr": value, "fpr95": 0.5}

        runs = []
        for seed in range(4):
            given = {"max_logit": scores(logit(seed))} | {
                name: scores(others(seed)) for name in ("msp", "entropy", "mutual_information", "variation_ratio")
            }
            runs.append(run("packed", 0, seed, 0.0, outside={"other": given}))
        labels = [f"packed alpha={a} gamma={g} size={m}" for a, g, m in TABLE6]
        groups = {label: Group(label, tuple(runs)) for label in labels}
        return CLAIMS["packed/table6"].judge({"x": Compared(groups)}).judgement

    assert told(lambda s: 0.9 + 0.001 * s, lambda s: 0.8) == HOLDS
    assert told(lambda s: 0.7 + 0.001 * s, lambda s: 0.8) == FAILS
    assert told(lambda s: 0.8 + 0.1 * (-1) ** s, lambda s: 0.8) == OPEN


# ---------------------------------------------------------------- counts and exact items

COUNTED = {"packed/table1-cost", "packed/table10", "mimo/footnote2"}


def counts(name, factor=1.0, only=None):
    """Results that are the printed counts themselves, or others."""
    from pluribus.reproduce import counts as pc

    rows = {"packed/table1-cost": pc.TABLE1, "packed/table10": pc.TABLE10, "mimo/footnote2": pc.FOOTNOTE2}[name]
    found = {}
    for row, part in rows.items():
        printed = CLAIMS[name].published["counts"][row]
        operations = float(printed.get("mult_adds") or float(printed["flops"]) / 2) * 1e9
        grown = factor if row.startswith(("packed", "mimo")) else 1.0
        if only is None or row in only:
            found[part.name] = Stored(
                {"parameters": float(printed["parameters"]) * 1e6 * grown, "mult_adds": operations}
            )
    return found


@pytest.mark.parametrize("name", sorted(COUNTED))
def test_counts_hold_as_printed_fail_where_they_differ_and_are_open_where_there_are_none(name):
    assert CLAIMS[name].judge(counts(name)).judgement == HOLDS
    assert CLAIMS[name].judge(counts(name, factor=30.0)).judgement == FAILS
    assert CLAIMS[name].judge(counts(name, only=())).judgement == OPEN


def test_a_known_misprint_is_named_and_does_not_count_against_the_claim():
    found = counts("packed/table10")
    from pluribus.reproduce.counts import TABLE10

    name = TABLE10["single r50x4"].name
    found[name] = Stored({**found[name].figures, "mult_adds": 63.986e9})
    verdict = CLAIMS["packed/table10"].judge(found)
    assert verdict.judgement == HOLDS
    row = next(row for row in verdict.rows if row[:2] == ["single r50x4", "mult-adds, G"])
    assert row[2:4] == ["70.0", "63.99"] and "BatchEnsemble row" in row[4]


def test_a_count_that_is_not_explained_leaves_the_claim_open():
    from pluribus.reproduce.counts import TABLE1

    found = counts("packed/table1-cost")
    name = TABLE1["deep r18 c10"].name
    found[name] = Stored({**found[name].figures, "parameters": 45.0e6})
    verdict = CLAIMS["packed/table1-cost"].judge(found)
    assert verdict.judgement == OPEN and "Not explained: deep r18 c10" in " ".join(verdict.found)


def test_the_reasons_of_differing_counts_give_the_printed_counts():
    """Sums over the layers of the networks, done by hand: channels after every convolution, and places of biases."""
    printed = CLAIMS["packed/table1-cost"].published["counts"]
    r18 = 64 + 4 * (64 + 128 + 256 + 512) + 128 + 256 + 512
    blocks = zip((64, 128, 256, 512), (3, 4, 6, 3), strict=True)
    r50 = 64 + sum((planes + planes + 4 * planes) * count + 4 * planes for planes, count in blocks)
    wide = 16 + 8 * (160 + 320 + 640) + 160 + 320 + 640
    for net, channels, single in (("r18", r18, 11_220_132), ("r50", r50, 23_705_252), ("wr", wide, 36_489_290)):
        for classes in (10, 100):
            assert f"{(single + 4 * channels) / 1e6:.2f}" == printed[f"masksembles {net} c{classes}"]["parameters"]
    for classes, single in ((10, 23_520_842), (100, 23_705_252)):
        assert f"{(single + 4 * r50) / 1e6:.2f}" == printed[f"batch_ensemble r50 c{classes}"]["parameters"]
    biases = 1024 * (16 + 9 * 160 + 320) + 256 * (8 * 320 + 640) + 64 * 8 * 640  # the second convolution strides
    one = 5_951_117_568 + biases
    assert f"{one / 1e9:.2f}" == printed["single wr c10"]["mult_adds"]
    assert f"{4 * one / 1e9:.2f}" == printed["deep wr c10"]["mult_adds"] == printed["masksembles wr c10"]["mult_adds"]
    assert f"{4 * (5_952_463_872 + biases) / 1e9:.2f}" == printed["mimo wr c10"]["mult_adds"]
    shortcuts = 1024 * 160 + 256 * 320 + 64 * 640
    for classes, head in ((10, 0), (100, 640 * 90)):
        passes = 4 * (5_951_117_568 + head + shortcuts)
        assert f"{passes / 1e9:.2f}" == printed[f"batch_ensemble wr c{classes}"]["mult_adds"] == "23.81"
    for classes, packed in ((10, 4_057_575_936), (100, 5_951_681_536)):
        assert f"{(packed + 2 * biases) / 1e9:.2f}" == printed[f"packed wr c{classes}"]["mult_adds"]
    stem = 9 * 64 * 9  # nine more channels of images
    assert f"{(23_705_252 + stem + 3 * 100 * 2049) / 1e6:.2f}" == printed["mimo r50 c100"]["parameters"] == "24.33"
    assert f"{(11_220_132 + stem + 3 * 100 * 513) / 1e6:.2f}" == "11.38"
    assert f"{(14_552_232 + 4 * 90 * 1025) / 1e6:.2f}" == "14.92" and printed["packed r50 c10"]["parameters"] == "14.55"


def test_the_formula_holds_fails_and_is_open():
    check = CLAIMS["packed/section3.2"].judge
    rows = [[8, 8, 1, 2, 4, 1, 64, 64.0, 64], [8, 8, 1, 4, 4, 1, 256, 256.0, 64]]
    wrong = [[8, 8, 1, 2, 4, 1, 65, 64.0, 64]]
    assert [check({"a": Stored({"rows": each})}).judgement for each in (rows, wrong, [])] == [HOLDS, FAILS, OPEN]


def test_forms_hold_fail_and_are_open():
    check = CLAIMS["packed/figure3"].judge

    def forms(apart):
        return {"a": Stored({"outputs": {"grouped": apart}, "gradients": {"grouped": 0.0}, "scale": 1.0})}

    assert [check(found).judgement for found in (forms(1e-15), forms(1e-3), {})] == [HOLDS, FAILS, OPEN]


def test_examples_of_masks_hold_fail_and_are_open():
    check = CLAIMS["masksembles/figure1"].judge
    two = Stored({"values": [0.2, 4 / 9], "shares": [0.5, 0.5]})
    three = Stored({"values": [0.1, 1 / 6], "shares": [0.5, 0.5]})
    never = Stored({"values": [0.2, 0.3], "shares": [0.5, 0.5]})
    assert check({"S=2": two, "S=3": three}).judgement == HOLDS
    assert check({"S=2": never, "S=3": three}).judgement == FAILS
    assert check({"S=2": two}).judgement == OPEN


@pytest.mark.parametrize(("name", "figure", "right"), [("figure3", "size", 1.875), ("figure12", "iou", 1 / 3)])
def test_drawn_masks_hold_fail_and_are_open(name, figure, right):
    check = CLAIMS[f"masksembles/{name}"].judge

    def drawn(mean, half):
        return {"M=32": Stored({"rows": [{"N": 4, "S": 2.0, figure: [mean, mean - half, mean + half]}]})}

    assert check(drawn(right, 0.01 * right)).judgement == HOLDS
    assert check(drawn(2 * right, 0.01 * right)).judgement == FAILS
    assert check(drawn(right, right)).judgement == OPEN


# ---------------------------------------------------------------- figures of every seed

SEEDED = [
    *(f"fort/figure{i}" for i in (*range(2, 11), "S1", "S2", "S3", "S4", "S5", "S6")),
    *(f"mimo/figure{i}" for i in ("3", "4a", "4b", "9")),
    *("masksembles/figure5", "packed/table7", "packed/appendixK"),
]


def seeds(asked, offset, noise, easier=False):
    """Parts of three seeds whose figures are on the right side of their bars, or on the wrong one."""
    parts = {}
    for seed, wobble in enumerate((-noise, 0.0, noise)):
        values = {}
        for name, (_, figure, bar, below) in asked.items():
            size = bar or 1.0
            if below is None:
                middle = 0.0 if offset > 0 else 2 * size
                values[name] = middle + wobble * size
            else:
                away = offset * size * (-1 if below else 1)
                values[name] = (bar + away) * (1 + wobble) if bar else away + 2 * wobble * size
                if figure.startswith("ratio"):
                    values[name] = max(values[name], 1e-3)
        parts[f"seed-{seed}"] = Stored({"values": {**values, "apart": values.get("harder", 0.0)}})
        if easier:
            parts[f"easier-seed-{seed}"] = Stored({"values": {"apart": 0.0}})
    return parts


@pytest.mark.parametrize("name", SEEDED)
def test_figures_of_seeds_hold_fail_and_are_open(name):
    from pluribus.reproduce.measured import ASKED

    check, easier = CLAIMS[name].judge, name == "fort/figure7"
    assert check(seeds(ASKED, 0.5, 0.01, easier)).judgement == HOLDS
    assert check(seeds(ASKED, -0.5, 0.01, easier)).judgement == FAILS
    assert check(seeds(ASKED, 0.5, 0.9, easier)).judgement == OPEN
    assert check({"seed-0": Stored({"values": {}})}).judgement == OPEN


def test_every_network_of_an_item_must_pass():
    check = CLAIMS["fort/figure3"].judge

    def seeds(network, across):
        return {f"{network}-seed-{i}": Stored({"values": {"cosine": 0.01 + 0.001 * i, "across": across + 0.01 * i}})
                for i in range(3)}  # fmt: skip

    small, other = seeds("small_cnn", 4), seeds("resnet20", 1)
    assert check(small).judgement == HOLDS and check(small | other).judgement == FAILS
    assert [row[0].rpartition(", ")[2] for row in check(small | other).rows] == ["SmallCNN"] * 2 + ["ResNet-20"] * 2


def test_the_harder_problem_is_compared_with_the_easier_one_of_the_same_seed():
    from pluribus.reproduce.fort import harder_minus_easier

    gaps = {"seed-0": 0.5, "seed-1": 0.7, "easier-seed-0": 0.1, "easier-seed-1": 0.4, "easier-seed-2": 0.0}
    found = harder_minus_easier({name: Stored({"values": {"apart": gap}}) for name, gap in gaps.items()})
    assert [round(part.figures["values"]["harder"], 9) for part in found.values()] == [0.4, 0.3]


def test_the_cost_of_sparsity_is_compared_where_both_networks_are_as_sparse():
    from pluribus.landscape.studies.members import lost_more

    one = [[0.0, 0.8], [0.4, 0.8], [0.8, 0.4]]
    assert lost_more(one, one, 1) == 0.0
    assert lost_more([[0.0, 0.9], [0.8, 0.1]], one, 1) == pytest.approx(0.4 - 0.1, abs=0.01)
    assert lost_more([[0.9, 0.9], [1.0, 0.1]], one, 1) is None


def test_the_share_of_attainable_diversity_is_nothing_for_noise_and_all_for_independent_labels():
    from pluribus.landscape.diversity_accuracy_plane import DiversityAccuracy, limits
    from pluribus.landscape.studies.fort import attained_share

    accuracy = np.array([0.5, 0.6])
    low, high = limits(accuracy, 0.8, 10, normalised=False)
    assert attained_share(DiversityAccuracy(accuracy, low, 0.8, 10)) == pytest.approx(0.0)
    assert attained_share(DiversityAccuracy(accuracy, high, 0.8, 10)) == pytest.approx(1.0)


def test_a_control_network_is_compared_across_networks():
    check = CLAIMS["packed/table9"].judge

    def networks(ours, theirs, noise=0.001):
        from pluribus.reproduce.studies import merge_studies

        one, other = study({"packed": ours}, noise), study({"single": theirs}, noise)
        return {"all": merge_studies({"x, resnet50": one["x, mlp"], "x, resnext50": other["x, mlp"]})}

    assert check(networks(2, 0)).judgement == HOLDS
    assert check(networks(0, 2)).judgement == FAILS
    assert check(networks(2, 0, noise=50.0)).judgement == OPEN


# ---------------------------------------------------------------- analyses


def test_the_sparsity_bound_holds_fails_and_is_open():
    check = CLAIMS["packed/figure5"].judge

    def curves(bound, drawn):
        figures = {"bound": [bound], "divergence": [[0.2, 0.0]], "measured": [drawn]}
        return {"curves": Stored({"deviations": [1.0], "shares": [0.5, 1.0], **figures})}

    assert check(curves([0.3, 0.0], [0.201, 0.0])).judgement == HOLDS
    assert check(curves([0.1, 0.0], [0.201, 0.0])).judgement == FAILS
    assert check(curves([0.3, 0.0], [0.5, 0.0])).judgement == OPEN
    assert check({}).judgement == OPEN


def test_the_transition_of_masks_holds_fails_and_is_open():
    check, settings = CLAIMS["masksembles/figure4"].judge, ["single", "S 1.1", "S 2", "S 10", "deep"]

    def rows(*levels, noise=0.001):
        generator = np.random.default_rng(0)
        found = []
        for setting, level in zip(settings, levels, strict=False):
            for seed in range(5):
                value = level + noise * generator.standard_normal()
                figures = {"outside entropy": value, "outside mutual_information": value}
                found.append({"setting": setting, "seed": seed, **figures})
        return {"grid": Stored({"rows": found})}

    assert check(rows(0.1, 0.2, 0.3, 0.4, 0.4)).judgement == HOLDS
    assert check(rows(0.4, 0.3, 0.2, 0.1, 0.4)).judgement == FAILS
    assert check(rows(0.1, 0.2, 0.3, 0.4, 0.4, noise=5.0)).judgement == OPEN
    assert check(rows(0.1)).judgement == OPEN


def test_bias_and_variance_hold_fail_and_are_open():
    check = CLAIMS["mimo/figure2"].judge

    def sizes(bias, variance, error, half=0.1):
        values = {"bias": bias, "variance": variance, "error": error, "members": 0.0}
        changes = {name: {"2": [value, value - half, value + half]} for name, value in values.items()}
        figures = {name: {"1": [1.0, 0.9, 1.1], "2": [1.0 + value, 0.0, 2.0]} for name, value in values.items()}
        return {"sizes": Stored({"sizes": [1, 2], "figures": figures, "changes": changes})}

    assert check(sizes(0.5, -1.0, -0.5)).judgement == HOLDS
    assert check(sizes(0.5, 1.0, 1.5)).judgement == FAILS
    assert check(sizes(0.5, -1.0, -0.5, half=3.0)).judgement == OPEN
    assert check({}).judgement == OPEN


# ---------------------------------------------------------------- UCI


def uci(shift, noise, tables=("yacht", "wine", "energy")):
    """Stored predictions of packed ensembles that are `shift` spreads of Deep's error worse."""
    found, generator = {}, np.random.default_rng(0)
    for table in tables:
        target = np.zeros((10, 200))
        base = 1 + 0.3 * generator.random(10)
        for kind, members, worse in (("deep", 5, 0.0), ("packed", 3, shift)):
            error = base + worse * 0.1 + noise * generator.standard_normal(10)
            means = np.repeat(error[:, None, None], members, 1) * np.ones(200)
            found[f"choice-{table}-{kind}"] = Stored({"chosen": [0.01, 40, 0.0]})
            found[f"{table}-{kind}-0"] = Stored(
                {}, {"means": means, "variances": np.ones_like(means), "target": target}
            )
    return found


def test_regression_holds_fails_and_is_open():
    check = CLAIMS["packed/table11"].judge
    assert check(uci(0.0, 0.0001)).judgement == HOLDS
    assert check(uci(5.0, 0.0001)).judgement == FAILS
    assert check(uci(0.5, 0.5)).judgement == OPEN
    assert check({}).judgement == OPEN


def test_deep_is_held_against_2017_at_the_printed_digits():
    from pluribus.reproduce.uci import no_worse

    assert no_worse(np.array([0.094]), "0.09+-0.00")  # 0.09 at two digits
    assert not no_worse(np.array([0.096]), "0.09+-0.00")
    assert no_worse(np.array([3.78]), "3.28+-1.00") and not no_worse(np.array([3.79]), "3.28+-1.00")


def test_every_item_is_fed_each_way_here():
    masks = {f"masksembles/{item}" for item in ("figure1", "figure3", "figure4", "figure12")}
    others = ("figure3", "figure5", "figure8", "table6", "table9", "section3.2", "appendixJ", "table11")
    here = {"mimo/figure2", *WAYS, *COUNTED, *SEEDED, *masks, *(f"packed/{item}" for item in others)}
    assert set(CLAIMS) == here


def test_a_quantity_of_one_set_is_read_from_that_set_with_the_score_of_the_method():
    from pluribus.results.quantities import value

    def scores(msp, information):
        return {"msp": {"auroc": msp}, "mutual_information": {"auroc": information}}

    outside = {"textures": scores(0.6, 0.9), "imagenet_o": scores(0.4, 0.7)}
    variants = {"imagenet_r": {"accuracy": 0.25, "nll": 5.0}}
    ensemble = run("deep", 0, 0, 0.0, outside=outside, variants=variants, cost={"forward_passes": 4})
    one_pass = run("mimo", 0, 0, 0.0, outside=outside, variants=variants, cost={"forward_passes": 1})
    assert value(ensemble, "auroc") == value(one_pass, "auroc") == pytest.approx(0.5)
    assert value(ensemble, "auroc_mi") == pytest.approx(0.8) and value(one_pass, "auroc_mi") == pytest.approx(0.5)
    assert value(ensemble, "auroc_mi textures") == 0.9 and value(one_pass, "auroc_mi textures") == 0.6
    assert value(ensemble, "auroc imagenet_o") == 0.4
    assert (value(ensemble, "accuracy imagenet_r"), value(ensemble, "nll imagenet_r")) == (0.25, 5.0)
    assert np.isnan(value(ensemble, "accuracy imagenet_a")) and np.isnan(value(ensemble, "auroc_mi svhn"))
