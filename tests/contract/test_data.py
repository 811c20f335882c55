"""What every entry of DATA promises: built-in sets load as they should, others say what is missing."""

import json
import pickle

import pytest
import torch
from places import ROOT

from pluribus.data import DATA, Data, load

BUILT_IN = [name for name, source in DATA.items() if not source.files and not source.argument and source.role == "data"]
NAMED = [name for name, source in DATA.items() if source.files]


# ---------------------------------------------------------------- sets that are built in


@pytest.fixture(scope="module", params=BUILT_IN)
def data(request) -> Data:
    return load(request.param)


def test_parts_are_tensors_of_one_shape(data):
    for split in (data.train, data.validation, data.test, *data.outside.values()):
        x, y = split[:3]
        assert x.dtype == torch.float32 and x.shape == (3, *data.shape) and y.shape == (3,)
        one, label = split[1]
        assert torch.equal(one, x[1]) and torch.equal(label, y[1])
        assert torch.equal(split[[2, 0]][0], x[[2, 0]]) and torch.equal(split[torch.tensor([2, 0])][0], x[[2, 0]])
        assert len(split.names()) == len(split) == len(split.y)
        assert x.isfinite().all()


def test_targets_are_what_the_task_says(data):
    for split in (data.train, data.validation, data.test):
        if data.task == "classification":
            assert split.y.dtype == torch.int64 and set(split.y.tolist()) == set(range(len(data.classes)))
        else:
            assert split.y.dtype == torch.float32 and data.classes == () and data.target_std > 0
    if data.task == "regression":
        assert data.train.y.mean().abs() < 1e-5 and abs(data.train.y.std(correction=0) - 1) < 1e-5
    for split in data.outside.values():
        assert (split.y == -1).all()


def test_parts_share_no_row(data):
    if data.train.inputs is data.test.inputs:
        rows = torch.cat([data.train.rows, data.validation.rows, data.test.rows])
        assert len(rows.unique()) == len(rows)
    elif data.name != "blundell":  # its parts are drawn one by one
        names = data.train.names() + data.validation.names() + data.test.names()
        assert len(set(names)) == len(names)


def test_normalised_training_inputs_have_mean_zero_and_variance_one(data):
    if data.kind == "images":
        x = data.normalise(data.train[:][0])
        assert x.mean().abs() < 1e-4 and abs(x.std() - 1) < 1e-3
        assert data.mean.shape == data.std.shape == (data.shape[0], 1, 1)
    else:
        assert torch.equal(data.normalise(data.train[:3][0]), data.train[:3][0])


def test_same_seed_gives_the_same_data_and_another_seed_other_rows(data):
    again, other = load(data.name), load(data.name, seed=1)
    assert torch.equal(again.test[:][0], data.test[:][0]) and torch.equal(again.test.y, data.test.y)
    assert not torch.equal(other.test[:50][0], data.test[:50][0])


def test_encoding_is_json_and_data_survives_a_pickle(data):
    assert json.loads(json.dumps(data.encoding)) == data.encoding
    again = pickle.loads(pickle.dumps(data))
    assert torch.equal(again.test[:][0], data.test[:][0]) and repr(again) == repr(data)


# ---------------------------------------------------------------- sets that are read from files


@pytest.mark.parametrize("name", NAMED)
def test_what_is_missing_names_the_file_the_place_and_the_page(tmp_path, name):
    source = DATA[name]
    assert source.found(tmp_path) is None and "http" in source.page
    use = {"data": {}, "outside": {"outside": [name]}, "shifted": {"shifted": [name]}, "variant": {"variants": [name]}}
    with pytest.raises(FileNotFoundError) as error:
        load(name if source.role == "data" else "sklearn_digits", folder=tmp_path, **use[source.role])
    said = str(error.value)
    assert str(tmp_path) in said and source.page in said
    assert any(file in said for file in source.files)


# ---------------------------------------------------------------- documentation


def test_page_lists_every_set():
    page = (ROOT / "docs" / "data.md").read_text()
    assert [name for name in DATA if f"| `{name}" not in page] == []
