"""Result files: complete or not there, readable or named as damaged, never executed."""

import errno
import io
import os
import resource
import signal
import zipfile

import fakes
import numpy as np
import pytest

from pluribus._common.signed_files import write_npz
from pluribus.results.store import Damaged, Result, group_runs, read, read_all, write


@pytest.fixture
def result():
    return fakes.classification("packed alpha=2", examples=20)


@pytest.fixture
def path(tmp_path, result):
    write(tmp_path / "run.npz", result.record, result.columns)
    return tmp_path / "run.npz"


def test_what_was_written_is_read(path, result):
    found = read(path)
    assert found.record == result.record and found.path == path
    assert found.columns.keys() == result.columns.keys()
    for name, column in result.columns.items():
        assert found.columns[name].dtype == column.dtype and np.array_equal(found.columns[name], column), name


def test_numbers_of_numpy_and_what_is_not_finite_survive(tmp_path, result):
    record = {**result.record, "metrics": {"nll": {"value": np.float32(0.5), "low": float("inf"), "high": None}}}
    write(tmp_path / "run.npz", record, {"test/text": np.array(["Größe", "<b>"]), "empty": np.empty(0)})
    found = read(tmp_path / "run.npz")
    assert found.record["metrics"]["nll"] == {"value": 0.5, "low": float("inf"), "high": None}
    assert found.columns["test/text"].tolist() == ["Größe", "<b>"] and found.columns["empty"].shape == (0,)


def test_equal_runs_give_equal_bytes(path, result, tmp_path):
    write(tmp_path / "again.npz", result.record, result.columns)
    assert (tmp_path / "again.npz").read_bytes() == path.read_bytes()


def test_a_column_of_objects_is_refused_before_anything_is_written(tmp_path, result):
    with pytest.raises(ValueError, match="column 'bad' must hold numbers or text"):
        write(tmp_path / "run.npz", result.record, {"bad": np.array([{}, None])})
    assert list(tmp_path.iterdir()) == []


def test_a_record_without_a_needed_entry_is_refused(tmp_path, result):
    record = {key: value for key, value in result.record.items() if key != "label"}
    with pytest.raises(ValueError, match='has no "label"'):
        write(tmp_path / "run.npz", record, {})
    with pytest.raises(TypeError, match="cannot be stored as JSON"):
        write(tmp_path / "run.npz", {**result.record, "settings": {"f": object()}}, {})
    assert list(tmp_path.iterdir()) == []


def test_a_file_cut_off_anywhere_is_named_as_damaged(path):
    whole = path.read_bytes()
    for length in [0, 1, 10, *range(50, len(whole), len(whole) // 40), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(Damaged, match=r"run\.npz") as caught:
            read(path)
        assert caught.value.path == path and isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not JSON"),
        ("[1]", "must be an object"),
        ('{"format": 1}', 'has no "run"'),
        (None, "no entry 'record'"),
    ],
)
def test_a_record_that_makes_no_sense_is_damage(tmp_path, text, reason):
    write_npz(tmp_path / "run.npz", {} if text is None else {"record": np.array(text)})
    with pytest.raises(Damaged, match=reason):
        read(tmp_path / "run.npz")


def test_nothing_in_a_file_is_executed(tmp_path):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "executed"),)

    content = io.BytesIO()
    np.save(content, np.array([Trap()], dtype=object), allow_pickle=True)
    with zipfile.ZipFile(tmp_path / "run.npz", "w") as archive:
        archive.writestr("record.npy", content.getvalue())
    with pytest.raises(Damaged, match="Object arrays cannot be loaded"):
        read(tmp_path / "run.npz")
    assert not (tmp_path / "executed").exists()


def test_a_full_disk_is_said_and_leaves_the_earlier_result(path, result, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left on device.*earlier are untouched.*run.npz") as caught:
        write(path, {**result.record, "seed": 5}, result.columns)
    assert caught.value.errno == errno.ENOSPC
    assert read(path).record["seed"] == 0 and list(path.parent.iterdir()) == [path]


def test_a_write_that_the_system_stops_leaves_no_part_behind(path, result):
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            write(path.parent / "other.npz", result.record, {"noise": np.random.rand(5000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert list(path.parent.iterdir()) == [path]


def test_all_of_a_study_are_read_in_order_and_damage_is_listed(tmp_path):
    results = [fakes.classification("deep", seed=seed, examples=20) for seed in (1, 0)]
    folder = fakes.study(tmp_path, results)
    (folder / "results" / "broken.npz").write_bytes(b"PK")
    (folder / "results" / ".digits.npz.1-ab").write_bytes(b"half of a file that was being written")
    found, damaged = read_all(folder)
    assert [result.record["seed"] for result in found] == [0, 1]
    assert [error.path.name for error in damaged] == ["broken.npz"]
    assert len(read_all(folder / "results")[0]) == 2


def test_what_is_missing_is_not_called_damaged(tmp_path):
    with pytest.raises(FileNotFoundError, match="no result file"):
        read(tmp_path / "no.npz")
    with pytest.raises(FileNotFoundError, match="no folder"):
        read_all(tmp_path / "no")


def test_groups_are_runs_of_one_label_with_the_single_network_first():
    labels = ["packed alpha=10", "deep", "packed alpha=2", "single", "deep"]
    runs = [
        Result({**fakes.classification(label, examples=20).record, "seed": seed}) for seed, label in enumerate(labels)
    ]
    ((key, groups),) = group_runs(runs).items()
    assert key == ("digits", "lenet")
    assert [group.label for group in groups] == ["single", "deep", "packed alpha=2", "packed alpha=10"]
    assert list(groups[1].by_seed) == [1, 4]
