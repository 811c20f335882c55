"""Trained folders, results and studies that mean harm: a message, no raw error; code runs only where it is named."""

import copy
import dataclasses
import json
import os
import sys
import warnings
from types import SimpleNamespace

import fakes
import numpy as np
import pytest
import torch
from hostile import header_of, npy, npy_header, npz, with_header
from hostile_folders import CHECKPOINTS, TRAINED, rewrite
from hypothesis import example, given, settings
from memory import peak_memory
from mutations import FUZZ, mutations, value_or_message
from torch import nn

import pluribus as pb
from pluribus.cli.app import main
from pluribus.data.catalogue import encoded, load
from pluribus.deploy.predictor import RECORD, WEIGHTS, _build, load_predictor, make_predictor
from pluribus.landscape.checkpoints import Trajectory, state_dict_of
from pluribus.models.by_name import ModelSpec
from pluribus.report.page import report
from pluribus.results.store import Damaged, read_all, write
from pluribus.study.progress import MARK, progress_callback, read_progress
from pluribus.study.settings import Run
from pluribus.workflows.landscape_material import _run_of

CANARY = "import pathlib; pathlib.Path(__file__).with_name('canary').touch()\n"

NETWORK = CANARY + "from torch import nn\ndef build(num_classes, inputs): return nn.Linear(inputs, num_classes)\n"


@pytest.fixture(scope="module")
def flowers():
    return load("iris")


@pytest.fixture(scope="module")
def good(flowers, tmp_path_factory):
    """A folder as `pluribus train` writes it."""
    folder = tmp_path_factory.mktemp("good")
    spec = ModelSpec("mlp", (4,), 3, width=0.05)
    make_predictor(spec, flowers, pb.deep(spec.build(), 2), risk=0.9).save(folder)
    return folder


@pytest.fixture
def folder(good, tmp_path):
    """A copy of the good folder, to be spoiled."""
    for name in (RECORD, WEIGHTS):
        (tmp_path / name).write_bytes((good / name).read_bytes())
    return tmp_path


@pytest.fixture
def table(tmp_path):
    (tmp_path / "new.csv").write_text(
        "sepal length (cm),sepal width (cm),petal length (cm),petal width (cm)\n5,3,1,0.2\n6,3,5,2\n"
    )
    return tmp_path / "new.csv"


def run(monkeypatch, capsys, *words):
    """The exit code of a command, what it printed, and what it said beside."""
    monkeypatch.setattr(sys, "argv", ["pluribus", *map(str, words)])
    with pytest.raises(SystemExit) as stop:
        main()
    said = capsys.readouterr()
    assert "Traceback" not in said.out + said.err
    return stop.value.code, said.out, said.err


def changed(folder, **values):
    rewrite(folder / RECORD, {**json.loads((folder / RECORD).read_text()), **values})
    return folder


# ---------------------------------------------------------------- a trained folder


def test_the_folder_is_read_as_it_was_written(good, table, monkeypatch, capsys):
    code, out, _ = run(monkeypatch, capsys, "predict", good, table, "--format", "csv")
    assert code == 0 and len(out.splitlines()) == 3


@pytest.mark.parametrize("spec", ["python:{0}/net.py:build", "python:net:build", "python:os:system"])
@pytest.mark.parametrize("command", ["predict", "export"])
def test_code_that_a_folder_names_is_not_run(folder, table, monkeypatch, capsys, spec, command):
    (folder / "net.py").write_text(NETWORK)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.chdir(folder)
    changed(folder, model=spec.format(folder))
    code, _, said = run(monkeypatch, capsys, command, folder, table if command == "predict" else folder / "x.onnx")
    assert code == 2 and "--model python:FILE:FUNCTION" in said
    assert not (folder / "canary").exists() and not (folder / "x.onnx").exists()


def test_code_that_the_user_names_is_run(flowers, table, tmp_path, monkeypatch, capsys):
    (tmp_path / "net.py").write_text(NETWORK)
    spec = ModelSpec(f"python:{tmp_path / 'net.py'}:build", (4,), 3)
    make_predictor(spec, flowers, pb.deep(nn.Linear(4, 3), 2), promise=False).save(tmp_path)
    assert run(monkeypatch, capsys, "predict", tmp_path, table)[0] == 2 and not (tmp_path / "canary").exists()
    assert run(monkeypatch, capsys, "predict", tmp_path, table, "--model", spec.model)[0] == 0
    assert (tmp_path / "canary").exists()


@pytest.mark.parametrize("name", TRAINED)
def test_a_spoiled_folder_is_refused_in_words_and_little_memory(folder, name):
    TRAINED[name](folder, folder / "canary")
    before = peak_memory()
    with pytest.raises((ValueError, FileNotFoundError)) as refused:
        load_predictor(folder)
    assert 0 < len(str(refused.value)) < 1000
    assert peak_memory() - before < 500 and not (folder / "canary").exists()


# ---------------------------------------------------------------- names that steer a terminal, a table or a page


def test_names_from_files_steer_no_terminal(folder, table, monkeypatch, capsys):
    changed(folder, no_threshold="\x1b[2J\x1b]0;owned\x07[red]x", threshold=None)
    code, _, said = run(monkeypatch, capsys, "predict", folder, table)
    assert code == 0 and "\x1b" not in said and "\x07" not in said and "[red]x" in said


@pytest.mark.parametrize("start", list("=+-@\t\r") + [" =", "\n="])
def test_no_label_in_a_csv_file_is_a_formula(folder, table, monkeypatch, capsys, start):
    names = [f"{start}cmd|' /C calc'!A{i}" for i in range(3)]
    encoding = {**json.loads((folder / RECORD).read_text())["encoding"], "classes": names}
    changed(folder, classes=names, encoding=encoding)
    code, out, _ = run(monkeypatch, capsys, "predict", folder, table, "--format", "csv")
    assert code == 0 and "'" + start.lstrip(" ") in out.replace("' ", "'") and f",{start}cmd" not in out


# ---------------------------------------------------------------- results and studies


def spoil(path, **members):
    with np.load(path) as found:
        arrays = {name: found[name] for name in found.files}
    npz(path, **{name: npy(array) for name, array in {**arrays, **members}.items()})


@pytest.fixture
def study(tmp_path):
    for label in ("single", "deep"):
        run = fakes.classification(label, examples=30, pictures=label == "deep")
        write(tmp_path / "results" / f"{label}.npz", run.record, run.columns)
    rewrite(tmp_path / "study.json", {"choose": None, "command": "pluribus compare"})
    return tmp_path


COLUMNS = {
    "text for numbers": {"test/label": np.array(["a"] * 30)},
    "numbers for text": {"examples/reason": np.zeros(3)},
    "another length": {"test/confidence": np.zeros(7)},
    "more than certain": {"test/confidence": np.full(30, 1e38)},
    "two axes": {"test/target": np.zeros((30, 2))},
    "no axis": {"test/target": np.array(3)},
    "pictures of floats": {"examples/pictures": np.zeros((2, 4, 4))},
    "a promise of terabytes": {"test/label": npy_header("(1000000, 100000000)")},
    "objects": {"test/label": npy_header("(30,)", "'|O'") + b"x"},
}


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_of_another_kind_is_damage(study, name):
    spoil(study / "results" / "deep.npz", **COLUMNS[name])
    results, (damage,) = read_all(study)
    assert len(results) == 1 and isinstance(damage, Damaged) and "deep.npz" in str(damage)


def test_a_choice_by_what_was_not_measured_is_refused(study, monkeypatch, capsys):
    rewrite(study / "study.json", {"choose": "nll"})
    for path in (study / "results").iterdir():
        with np.load(path) as found:
            record = {key: value for key, value in json.loads(str(found["record"])).items() if key != "validation"}
        spoil(path, record=np.array(json.dumps(record)))
    code, _, said = run(monkeypatch, capsys, "report", study)
    assert code == 2 and "was not measured on validation data" in said and not (study / "report.html").exists()


def test_the_page_shows_names_as_text(study):
    run = fakes.classification("<script>alert(1)</script>", examples=30)
    record = {**run.record, "classes": ["</script><img src=x onerror=alert(1)>"] * 10, "data": "{{ 7 * 7 }}"}
    write(study / "results" / "evil.npz", record, run.columns)
    html = report(study)
    assert "<script>alert(1)" not in html and "<img src=x" not in html and "{{ 7 * 7 }}" in html


# ---------------------------------------------------------------- any change at all


def test_any_record_of_a_folder_gives_answers_or_a_message(good, tmp_path, table):
    (tmp_path / WEIGHTS).write_bytes((good / WEIGHTS).read_bytes())

    @FUZZ
    @given(mutations(json.loads((good / RECORD).read_text())))
    def check(record):
        rewrite(tmp_path / RECORD, record)
        value_or_message(lambda: list(load_predictor(tmp_path).answers(table)))

    check()


def test_any_encoding_gives_rows_or_a_message(flowers, table):
    images = {"kind": "images", "task": "classification", "shape": [1, 8, 8], "classes": ["a"]}

    @FUZZ
    @given(mutations(flowers.encoding))
    def check_tables(encoding):
        value_or_message(lambda: encoded(encoding, table)[:])

    @FUZZ
    @given(mutations(images))
    def check_images(encoding):
        value_or_message(lambda: encoded(encoding, np.zeros((2, 8, 8), np.uint8))[:])

    check_tables()
    check_images()


@pytest.mark.parametrize("method", ["deep", "packed", "masksembles", "treenet", "mimo", "mc_dropout"])
def test_any_header_of_weights_gives_an_ensemble_or_a_message(tmp_path, method):
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    more = {"treenet": {"branch": "5"}, "packed": {"example": torch.zeros(2, 4)}}
    more["masksembles"] = more["mimo"] = more["packed"]
    pb.save(pb.METHODS[method](model, 2, **more.get(method, {})), tmp_path / "good")
    header, rest = header_of(tmp_path / "good")
    told = json.loads(header["__metadata__"]["pluribus"])

    @settings(FUZZ, max_examples=40)
    @given(mutations(told))
    def check_ours(changed):
        metadata = {**header["__metadata__"], "pluribus": json.dumps(changed)}
        with_header(tmp_path / "x", {**header, "__metadata__": metadata}, rest)
        value_or_message(lambda: pb.load(tmp_path / "x", model)(torch.zeros(2, 4)))

    @settings(FUZZ, max_examples=20)
    @given(mutations(header))
    def check_theirs(changed):
        with_header(tmp_path / "x", changed, rest)
        value_or_message(lambda: pb.load(tmp_path / "x", model)(torch.zeros(2, 4)))

    check_ours()
    check_theirs()


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_any_record_of_a_result_gives_a_page_or_damage(tmp_path, kind):
    run = getattr(fakes, kind)("deep")
    write(tmp_path / "results" / "deep.npz", run.record, run.columns)
    with np.load(tmp_path / "results" / "deep.npz") as found:
        record = json.loads(str(found["record"]))

    @settings(FUZZ, max_examples=25)
    @given(mutations(record))
    def check(changed):
        spoil(tmp_path / "results" / "deep.npz", record=np.array(json.dumps(changed)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # figures of nonsense
            value_or_message(lambda: report(tmp_path))

    check()


def test_any_header_of_a_trajectory_gives_one_or_a_message(tmp_path):
    model = nn.Linear(3, 2)
    weights = torch.zeros(2, 8)
    Trajectory(copy.deepcopy(model), weights, {}, [0, 1], None, None, "classification", None).save(tmp_path / "good")
    header, rest = header_of(tmp_path / "good")
    key = "pluribus_trajectory"

    @FUZZ
    @given(mutations(json.loads(header["__metadata__"][key])))
    @example("[" * 10_000)
    def check(changed):
        text = changed if isinstance(changed, str) else json.dumps(changed)
        with_header(tmp_path / "x", {**header, "__metadata__": {**header["__metadata__"], key: text}}, rest)
        value_or_message(lambda: Trajectory.load(tmp_path / "x", model))

    check()


# ---------------------------------------------------------------- what an attacker who has read the code would try


@pytest.mark.parametrize("name", [name for name in CHECKPOINTS if "9 GB" in name])
def test_a_checkpoint_that_asks_for_a_gigabyte_in_a_number_is_refused(tmp_path, name):
    CHECKPOINTS[name](tmp_path, tmp_path / "canary")
    before = peak_memory()
    with pytest.raises(ValueError, match="it asks for a bytearray"):
        state_dict_of(tmp_path / "one.pt")
    assert peak_memory() - before < 500


def test_a_network_whose_layers_would_take_gigabytes_for_one_image_is_refused(tmp_path):
    spec = ModelSpec("small_cnn", (3, 4000, 4000), 2)
    (tmp_path / WEIGHTS).touch()
    with pytest.raises(ValueError, match=r"bundle\.json.* claims a network of 1\.\d+ GB .* PLURIBUS_UNPACK_LIMIT"):
        _build(spec, tmp_path)


@pytest.mark.parametrize(
    "put", [os.mkfifo, os.mkdir, lambda at: os.symlink("/dev/zero", at)], ids=["pipe", "dir", "device"]
)
def test_progress_that_is_no_file_is_none(tmp_path, put):
    put(tmp_path / MARK)
    assert read_progress(tmp_path) is None


def test_progress_is_not_written_through_a_link(tmp_path):
    (tmp_path / "mine").write_text("precious")
    (tmp_path / MARK).symlink_to(tmp_path / "mine")
    trainer = SimpleNamespace(current_epoch=0, max_epochs=3)
    progress_callback(tmp_path, 0.0).on_train_epoch_end(trainer, None)
    assert (tmp_path / "mine").read_text() == "precious" and read_progress(tmp_path).epochs == 3


def test_a_folder_cannot_raise_the_limits_of_whoever_reads_it(folder):
    whole = json.loads(json.dumps(dataclasses.asdict(Run(data="iris")), default=list))
    source = {"unpack_limit": "999T", "target": "x"}
    assert _run_of({"run": {**whole, "size": 2, "source": source}}, folder).source == {"target": "x"}
