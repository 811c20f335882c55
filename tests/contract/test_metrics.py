"""What every entry of METRICS promises: it equals another library or a closed form, in any order of examples."""

import math
import pickle

import pytest
import torch
from metric_references import FEW, REFERENCES, classification, columns, regression

from pluribus.integrations import torchmetric
from pluribus.uncertainty.evaluation import evaluate
from pluribus.uncertainty.metrics import METRICS
from pluribus.uncertainty.summary import Summary


@pytest.mark.parametrize("name", METRICS)
def test_metric_equals_its_reference(name):
    given = columns(name)
    given = [column[:FEW] for column in given] if name in ("crps", "coverage", "width") else given
    assert METRICS[name].function(*given) == pytest.approx(REFERENCES[name](), abs=1e-6)


def test_every_metric_has_a_reference():
    assert set(REFERENCES) == set(METRICS)


@pytest.mark.parametrize("name", METRICS)
def test_metric_says_its_direction_and_paper(name):
    entry = METRICS[name]
    assert entry.better in ("higher", "lower", "neither") and entry.paper and entry.function.__doc__


@pytest.mark.parametrize("name", [n for n, entry in METRICS.items() if entry.needs != ("class_bins",)])
@pytest.mark.parametrize("ties", [False, True], ids=["", "ties"])
def test_the_order_of_examples_does_not_matter(name, ties):
    given = columns(name, ties)
    together = METRICS[name].task != "ood"
    order = torch.randperm(given[0].shape[-1])
    shuffled = [c[..., order] if together else c[torch.randperm(len(c))] for c in given]
    if METRICS[name].task == "shift":
        shuffled = [c[order[order < len(c)]] for c in given]
    assert METRICS[name].function(*shuffled) == pytest.approx(METRICS[name].function(*given), rel=1e-12)


@pytest.mark.parametrize("name", METRICS)
def test_arrays_and_single_precision_give_the_same(name):
    given = columns(name)
    narrow = [c.float().numpy() if c.is_floating_point() else c.numpy() for c in given]
    assert METRICS[name].function(*narrow) == pytest.approx(METRICS[name].function(*given), abs=1e-6)


@pytest.mark.parametrize("name", METRICS)
def test_one_example_has_a_value(name):
    if METRICS[name].task in ("ood", "shift"):
        given = [column[:1] for column in columns(name)]
    else:
        summary = regression() if METRICS[name].task == "regression" else classification()
        one = Summary(summary._prediction[0], summary.target[:1])
        given = [getattr(one, need) for need in METRICS[name].needs]
    assert not math.isnan(METRICS[name].function(*given))


@pytest.mark.parametrize("name", METRICS)
def test_nan_is_an_error_and_never_a_number(name):
    given = [column.double().clone() for column in columns(name)]
    for i in range(len(given)):
        broken = [column.clone() for column in given]
        broken[i].view(-1)[-1] = math.nan
        if METRICS[name].needs == ("class_bins",):
            continue  # made by class_bins, which refuses
        with pytest.raises(ValueError, match=r"nan"):
            METRICS[name].function(*broken)


@pytest.mark.parametrize("name", [n for n, entry in METRICS.items() if entry.needs != ("class_bins",)])
def test_an_empty_column_is_an_error(name):
    with pytest.raises(ValueError, match=r"at least one"):
        METRICS[name].function(*(column[..., :0] for column in columns(name)))


@pytest.mark.parametrize("name", [n for n, e in METRICS.items() if len(e.needs) > 1 and e.task != "ood"])
def test_columns_of_different_lengths_are_an_error(name):
    first, *others = columns(name)
    with pytest.raises(ValueError, match=METRICS[name].function.__name__):
        METRICS[name].function(first[..., :-1], *others)


@pytest.mark.parametrize("name", [n for n, entry in METRICS.items() if entry.task not in ("ood", "shift")])
def test_streaming_equals_all_at_once(name):
    summary = regression() if METRICS[name].task == "regression" else classification()
    p, y = summary._prediction[:40], summary.target[:40]
    metric = torchmetric(name)
    for rows in (slice(0, 15), slice(15, 30), slice(30, 40)):
        metric.update(p[rows], y[rows])
    assert metric.compute().item() == pytest.approx(evaluate(p, y, metrics=[name])[name], abs=1e-6)
    assert pickle.loads(pickle.dumps(metric)).compute() == metric.compute()
    metric.reset()
    metric.update(p, y)
    assert metric.compute().item() == pytest.approx(evaluate(p, y, metrics=[name])[name], abs=1e-6)
