"""Tables: every figure of a prediction or its summary, outside data, shift, intervals and paired tests."""

import os
import subprocess
import sys

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
from places import ROOT
from scipy import stats
from torch import nn

import pluribus as pb
from pluribus import metrics
from pluribus.integrations import torchmetric
from pluribus.uncertainty.classification import Classification
from pluribus.uncertainty.evaluation import bootstrap, by_member, compare, evaluate, ood, shift
from pluribus.uncertainty.metrics import METRICS
from pluribus.uncertainty.regression import Regression
from pluribus.uncertainty.summary import Summary

close = torch.testing.assert_close


def labelled(
    members: int = 3, batch: int = 40, classes: int = 6, noise: float = 2.0
) -> tuple[Classification, torch.Tensor]:
    target = torch.randint(classes, (batch,))
    logits = 3 * nn.functional.one_hot(target, classes) + noise * torch.randn(members, batch, classes)
    return Classification.from_logits(logits), target


def measured(batch: int = 40) -> tuple[Regression, torch.Tensor]:
    return Regression(torch.randn(3, batch), 0.1 + torch.rand(3, batch)), torch.randn(batch)


# ---------------------------------------------------------------- evaluate


def test_a_table_has_every_metric_of_its_task():
    table = evaluate(*labelled())
    assert set(table) == {name for name, entry in METRICS.items() if entry.task in ("classification", "any")}
    numbers = evaluate(*measured())
    assert set(numbers) == {name for name, entry in METRICS.items() if entry.task in ("regression", "any")}
    assert all(isinstance(value, float) for value in (*table.values(), *numbers.values()))


def test_figures_are_those_of_scikit_learn():
    p, y = labelled()
    table, mean = evaluate(p, y), p.mean.numpy()
    assert table["accuracy"] == pytest.approx(sk.accuracy_score(y, p.label))
    assert table["nll"] == pytest.approx(sk.log_loss(y, mean / mean.sum(1, keepdims=True), labels=range(6)), abs=1e-6)
    assert table["entropy"] == pytest.approx(stats.entropy(mean, axis=1).mean(), abs=1e-6)
    assert table["entropy"] == pytest.approx(table["aleatoric"] + table["mutual_information"])


def test_without_targets_there_is_what_needs_none():
    names = {"entropy", "aleatoric", "mutual_information", "disagreement", "pairwise_kl"}
    assert set(evaluate(labelled()[0])) == names
    assert set(evaluate(measured()[0])) == {"width"}


def test_dense_predictions_are_judged_by_pixel_without_the_ignored():
    p = Classification.from_logits(torch.randn(3, 2, 5, 4, 4), class_dim=2)
    y = torch.randint(5, (2, 4, 4))
    y[0, :2] = 255
    table = evaluate(p, y, ignore=255)
    judged = y != 255
    assert table["accuracy"] == pytest.approx((p.label == y)[judged].float().mean().item())
    truth, label = y[judged].numpy(), p.label[judged].numpy()
    assert table["mean_iou"] == pytest.approx(
        sk.jaccard_score(truth, label, average="macro", labels=np.union1d(truth, label))
    )
    with pytest.raises(ValueError, match=r"0 to 4, but at \[0, 0, 0\] there is 255"):
        evaluate(p, y)
    with pytest.raises(ValueError, match="all are 255"):
        evaluate(p, torch.full_like(y, 255), ignore=255)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: evaluate(*labelled(), metrics=["acuracy"]), "'acuracy' is unknown. Choose from accuracy, top_5"),
        (lambda: evaluate(labelled()[0], metrics=["nll"]), "nll .* has no log_likelihood. Give the targets"),
        (lambda: evaluate(*labelled(), metrics=["rmse"]), "rmse is a metric for regression"),
        (lambda: evaluate(*labelled(), metrics=["auroc"]), r"Use ood\(inside, outside\)"),
        (lambda: evaluate(Summary(*labelled()), torch.zeros(40)), "holds its own targets"),
        (lambda: evaluate(labelled()[0], torch.zeros(41)), r"shape \(40,\), but theirs is \(41,\)"),
        (lambda: evaluate(measured()[0], torch.zeros(40), ignore=1), "ignore is only for class numbers"),
    ],
)
def test_a_wrong_question_is_answered_by_the_rule(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_members_stand_beside_the_ensemble():
    p, y = labelled()
    rows = by_member(p, y)
    assert rows["ensemble"]["nll"] == evaluate(p, y)["nll"]
    assert rows["member 2"] == pytest.approx({n: evaluate(p.member(2), y)[n] for n in rows["member 2"]})
    assert rows["mean"]["nll"] == pytest.approx(np.mean([rows[f"member {i}"]["nll"] for i in range(3)]))
    assert rows["ensemble"]["nll"] <= rows["mean"]["nll"]  # Jensen
    assert by_member(*measured())["member 1"]["rmse"] > 0


# ---------------------------------------------------------------- summaries


class Linear(nn.Module):
    def __init__(self, outputs: int):
        super().__init__()
        self.linear = nn.Linear(4, outputs)

    def forward(self, x):
        return self.linear(x)


@pytest.mark.parametrize(
    ("task", "outputs"), [("classification", 6), ("binary", 1), ("regression", 1), ("gaussian", 2)]
)
def test_a_summary_is_evaluated_as_the_prediction_is(task, outputs):
    ensemble, x = pb.deep(Linear(outputs), 3), torch.randn(25, 4)
    ensemble.task = task
    y = torch.randint(max(outputs, 2), (25,)) if task in ("classification", "binary") else torch.randn(25)
    loader = [(x[i : i + 4], y[i : i + 4]) for i in range(0, 25, 4)]
    summary = ensemble.predict(loader, keep="summary")
    assert evaluate(summary) == pytest.approx(evaluate(ensemble.predict(x), y), abs=1e-6)
    close(ensemble.predict(loader, batch_size=3, keep="summary").target, summary.target)
    assert set(evaluate(ensemble.predict(x, keep="summary"))) == set(evaluate(ensemble.predict(x)))


def test_a_summary_has_the_scores_of_the_prediction():
    p, y = labelled()
    for summary in (Summary(p), Summary(p, y).kept()):
        for name in ("msp", "max_logit", "energy", "entropy", "mutual_information", "variation_ratio"):
            close(summary.score(name), p.score(name))
        close(summary.total, p.total)
    with pytest.raises(ValueError, match="max_logit needs logits"):
        Summary(Classification.from_probabilities(p.members)).score("max_logit")
    with pytest.raises(ValueError, match="'total' is unknown. Choose from msp"):
        Summary(p).score("total")


def test_rows_members_and_parts_of_a_summary():
    p, y = labelled()
    kept = Summary(p, y).kept()
    close(kept[5:9].log_likelihood, p[5:9].log_likelihood(y[5:9]))
    assert len(kept[3]) == 1 and len(kept) == 40
    joined = Summary.cat([Summary(p[:7], y[:7]), Summary(p[7:], y[7:])])
    assert evaluate(joined) == pytest.approx(evaluate(p, y))
    lazy, stored = by_member(p, y), by_member(kept)
    names = ["accuracy", "nll", "brier", "ece", "aurc", "entropy"]
    for who in lazy:
        assert [stored[who][n] for n in names] == pytest.approx([lazy[who][n] for n in names], abs=1e-6)


@pytest.mark.slow
def test_a_large_evaluation_stays_below_a_gigabyte():
    root = ROOT
    code = "import sys; sys.path.insert(0, 'benchmarks'); import metrics; print(metrics.memory())"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run([sys.executable, "-c", code], cwd=root, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert float(run.stdout.split()[-1]) < 1024  # MB for 50,000 examples x 1,000 classes x 4 members


# ---------------------------------------------------------------- outside, shift


@pytest.mark.parametrize("score", ["msp", "max_logit", "energy", "entropy", "mutual_information", "variation_ratio"])
def test_detection_is_that_of_scikit_learn(score):
    inside, _ = labelled(noise=1.0)
    outside = Classification.from_logits(torch.randn(3, 25, 6))
    found = ood(inside, Summary(outside).kept(), score)
    truth = [0] * 40 + [1] * 25
    values = torch.cat([inside.score(score), outside.score(score)]).numpy()
    assert list(found) == ["auroc", "aupr", "fpr95"]
    assert found["auroc"] == pytest.approx(sk.roc_auc_score(truth, values))
    assert found["aupr"] == pytest.approx(sk.average_precision_score(truth, values))


def test_detection_refuses_other_classes_and_missing_logits():
    p, q = labelled()[0], labelled(classes=5)[0]
    with pytest.raises(ValueError, match="same classes, but they have 6 and 5"):
        ood(p, q)
    with pytest.raises(ValueError, match="max_logit needs logits"):
        ood(p, Classification.from_probabilities(p.members), "max_logit")
    with pytest.raises(ValueError, match="'surprise' is unknown"):
        ood(p, p, "surprise")
    assert ood(measured()[0], measured()[0], "epistemic")["auroc"] > 0


def test_shift_averages_over_corruptions_and_severities():
    rows = lambda *accuracies: [{"accuracy": a, "nll": 1 - a, "ece": a / 10} for a in accuracies]  # noqa: E731
    ours, theirs = {"fog": rows(0.9, 0.8), "snow": rows(0.7, 0.4)}, {"fog": rows(0.8, 0.6), "snow": rows(0.5, 0.4)}
    table = shift(ours, theirs)
    assert table["cacc"] == pytest.approx(0.7) and table["cnll"] == pytest.approx(0.3)
    assert table["cece"] == pytest.approx(0.07)
    assert table["mean_corruption_error"] == pytest.approx((0.3 / 0.6 + 0.9 / 1.1) / 2)
    assert shift(ours, ours)["mean_corruption_error"] == pytest.approx(1)
    with pytest.raises(ValueError, match=r"same corruptions, \['fog', 'snow'\], but it has \['fog'\]"):
        shift(ours, {"fog": rows(0.8, 0.6)})
    with pytest.raises(ValueError, match="same severities"):
        shift({"fog": rows(0.9), "snow": rows(0.9, 0.8)})


# ---------------------------------------------------------------- how sure a figure is


def test_bootstrap_interval_of_accuracy_is_that_of_the_binomial():
    p, y = labelled(batch=2000)
    value, low, high = bootstrap(p, y, metric="accuracy", resamples=2000)
    exact = stats.binomtest(round(value * 2000), 2000).proportion_ci(method="wilson")
    assert (low, high) == pytest.approx((exact.low, exact.high), abs=0.002)


@pytest.mark.parametrize("name", [name for name, entry in METRICS.items() if entry.each is not None])
def test_the_bootstrap_of_a_mean_is_that_of_its_metric_on_the_drawn_examples(name):
    p, y = measured() if METRICS[name].task == "regression" else labelled()
    columns = [getattr(Summary(p, y), need) for need in METRICS[name].needs]
    draws, values = torch.Generator().manual_seed(0), []
    for _ in range(30):
        drawn = torch.randint(40, (40,), generator=draws)
        values.append(METRICS[name].function(*(column[drawn] for column in columns)))
    value = METRICS[name].function(*columns)
    low, high = np.quantile(np.array(values) - (np.mean(values) - value), [0.025, 0.975])
    assert bootstrap(p, y, metric=name, resamples=30) == pytest.approx((value, low, high), rel=1e-12)


@pytest.mark.parametrize("metric", ["nll", "ece"])
def test_ignored_pixels_are_left_out_of_resamples_and_their_image_stays_together(metric):
    logits, generator = torch.randn(2, 6, 4, 3, 2, generator=torch.Generator().manual_seed(1)), torch.Generator()
    y = torch.arange(36).reshape(6, 3, 2) % 4
    y[0, 0], y[2], y[3, 1:] = -100, -100, -100  # images of 4, 6, no, 2, 6 and 6 labels
    found = bootstrap(Classification.from_logits(logits, class_dim=2), y, metric=metric, resamples=40)
    images = [i for i in range(6) if (y[i] != -100).any()]
    values, generator = [], generator.manual_seed(0)
    for _ in range(40):  # whole images by hand, each pixel an example of (members, pixels, classes)
        drawn = [images[i] for i in torch.randint(len(images), (len(images),), generator=generator).tolist()]
        pixels = [(logits[:, i].flatten(2).mT[:, y[i].flatten() != -100], y[i][y[i] != -100]) for i in drawn]
        one = Classification.from_logits(torch.cat([a for a, _ in pixels], 1))
        values.append(evaluate(one, torch.cat([b for _, b in pixels]), metrics=[metric])[metric])
    low, high = np.quantile(np.array(values) - (np.mean(values) - found.value), [0.025, 0.975])
    assert found[1:] == pytest.approx((low, high), rel=1e-6)
    parts = [Summary(Classification.from_logits(logits[:, i], class_dim=2), y[i]) for i in (slice(3), slice(3, 6))]
    assert bootstrap(Summary.cat(parts), metric=metric, resamples=40) == pytest.approx(found)


def test_a_clear_difference_is_called_one_and_chance_is_not():
    good, y = labelled(batch=300, noise=1.0)
    noisy = Classification.from_logits(good.logits + 4 * torch.randn_like(good.logits))
    found = compare(good, noisy, y, metric="accuracy", resamples=300)
    assert found.low > 0 and found.p_value == pytest.approx(1 / 301)
    back = compare(noisy, good, y, metric="accuracy", resamples=300)
    assert back.difference == -found.difference


def test_paired_p_value_is_that_of_scipy():
    p, y = labelled(batch=30)
    q = Classification.from_logits(p.logits + torch.randn_like(p.logits))
    pairs = p.log_likelihood(y).numpy(), q.log_likelihood(y).numpy()
    expected = stats.permutation_test(
        pairs,
        lambda a, b, axis: (a - b).mean(axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=20_000,
        rng=0,
    ).pvalue
    assert compare(p, q, y, metric="nll", resamples=5000).p_value == pytest.approx(expected, abs=0.03)


def test_what_cannot_be_compared_is_an_error():
    p, y = labelled()
    with pytest.raises(ValueError, match="same examples and classes, but there are 40 with 6 and 30 with 6"):
        compare(Summary(p, y), Summary(p[:30], y[:30]))
    with pytest.raises(ValueError, match="targets of both must be equal, but differ at 0"):
        compare(Summary(p, y), Summary(p, (y + 1) % 6))
    with pytest.raises(ValueError, match="equally many members in both, but there are 3 and 1"):
        compare(p, p.member(0), y, metric="disagreement")
    with pytest.raises(ValueError, match="cannot be computed on resampled examples"):
        bootstrap(p, y, metric="classwise_ece")
    with pytest.raises(ValueError, match="level must be between 0 and 1"):
        bootstrap(p, y, level=1)


# ---------------------------------------------------------------- torchmetrics


def test_streaming_takes_columns_settings_and_says_its_direction():
    metric = torchmetric("auroc")
    metric.update(inside=[0.1, 0.2])
    metric.update(outside=torch.tensor([0.15, 0.3]))
    assert metric.compute() == 0.75 and metric.higher_is_better is True
    p, y = labelled()
    coarse = torchmetric("ece", bins=2)
    coarse.update(p, y)
    assert coarse.compute() == metrics.ece(p.confidence, p.label == y, bins=2)
    assert coarse.higher_is_better is False and torchmetric("disagreement").higher_is_better is None
    with pytest.raises(ValueError, match="takes inside, outside, but got"):
        metric.update(middle=[1.0])
    with pytest.raises(ValueError, match="needs target. Give targets"):
        torchmetric("accuracy").update(p)
    with pytest.raises(ValueError, match="'acuracy' is unknown"):
        torchmetric("acuracy")


def test_streaming_joins_two_processes():
    p, y = labelled()
    for name in ("ece", "disagreement", "classwise_ece"):
        one, two = torchmetric(name), torchmetric(name)
        one.update(p[:10], y[:10])
        two.update(p[10:], y[10:])
        one.merge_state(two)
        assert one.compute().item() == pytest.approx(evaluate(p, y)[name], abs=1e-6)
