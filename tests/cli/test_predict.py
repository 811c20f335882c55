"""What `pluribus predict` writes: row by row, the same in every format, and tables as they came."""

import csv
import io
import itertools
import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
from commands import run

from pluribus.cli.predict import MEASURED, NO_INTERVAL, _missing_promises, _print_table


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("predict")
    chance = np.random.default_rng(0)
    rows = [
        f"{a:.3f},{('NA', 'DE', 'FR')[i % 3]},{'yes' if a > 0.5 else 'no'}" for i, a in enumerate(chance.random(300))
    ]
    (folder / "t.csv").write_text("\n".join(["a,land,y", *rows]))
    run(
        "train", "--out", folder / "m", "--data", f"table:{folder / 't.csv'}", "--target", "y", "--epochs", 2, "--quiet"
    )
    return folder


def test_rows_of_a_table_are_written_before_the_last_is_known(capsys):
    def rows():
        for i in itertools.count():
            if i == 10 * MEASURED:
                raise KeyboardInterrupt
            yield {"name": str(i), "label": "yes" if i % 2 else "no", "confidence": i / 7}

    with pytest.raises(KeyboardInterrupt):
        _print_table(rows())
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["name", "label", "confidence"]
    assert [line.split()[0] for line in lines[1:]] == [str(i) for i in range(10 * MEASURED)]
    assert {line.index(line.split()[1]) for line in lines[1 : MEASURED + 1]} == {lines[0].index("label")}


def test_every_format_says_the_same_of_every_row(trained, capsys):
    outputs = {}
    for form in ("table", "jsonl", "csv"):
        run("predict", trained / "m", trained / "t.csv", "--format", form)
        outputs[form] = capsys.readouterr().out
    lines = [json.loads(line) for line in outputs["jsonl"].splitlines()]
    sheet = list(csv.DictReader(io.StringIO(outputs["csv"])))
    table = [re.split(r" {2,}", line.strip()) for line in outputs["table"].splitlines()]
    assert len(lines) == len(sheet) == len(table) - 1 == 300
    for one, row, cells in zip(lines, sheet, table[1:], strict=True):
        shown = dict(zip(table[0], cells, strict=True))
        for name, value in one.items():
            value = " | ".join(value) if isinstance(value, list) else value
            text = value if isinstance(value, str) else f"{value:.4g}"
            assert shown[name] == text and row[name] == str(value)


def test_csv_keeps_the_fields_of_the_rows_empty_ones_too(trained, capsys):
    given = "a,land,b\n0.25,NA,\n,DE,x\n0.5,,y\n"
    (trained / "new.csv").write_text(given)
    run("predict", trained / "m", trained / "new.csv", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    kept = [{name: row[name] for name in ("a", "land", "b")} for row in rows]
    assert kept == list(csv.DictReader(io.StringIO(given)))


def test_missing_words_of_training_are_missing_in_new_files(trained, capsys):
    run(
        "train", "--out", trained / "other", "--data", f"table:{trained / 't.csv'}", "--target", "y", "--epochs", 1,
        "--missing", "DE,-999", "--quiet",
    )  # fmt: skip
    (trained / "words.csv").write_text("a,land\n0.5,DE\n0.5,\n0.5,FR\n")
    run("predict", trained / "other", trained / "words.csv", "--format", "jsonl")
    first, second, known = (json.loads(line) | {"name": ""} for line in capsys.readouterr().out.splitlines())
    assert first == second != known


def test_the_same_finished_training_touches_nothing_and_says_so(tmp_path, capsys):
    (tmp_path / "t.csv").write_text("a,y\n" + "\n".join(f"{i},{i % 7}.5" for i in range(200)))
    command = (
        "train",
        "--out",
        tmp_path / "m",
        "--data",
        f"table:{tmp_path / 't.csv'}",
        "--target",
        "y",
        "--epochs",
        1,
    )
    run(*command, "--method", "deep", "--size", 2)
    first = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in (tmp_path / "m").iterdir()}
    capsys.readouterr()
    run(*command, "--method", "deep", "--size", 2)
    assert "finished" in capsys.readouterr().out
    assert first == {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in (tmp_path / "m").iterdir()}
    width = {}
    for coverage in (0.5, 0.8):
        run("predict", tmp_path / "m", tmp_path / "t.csv", "--format", "jsonl", "--coverage", coverage)
        row = json.loads(capsys.readouterr().out.splitlines()[0])
        width[coverage] = row["high"] - row["low"]
    assert width[0.8] > width[0.5] > 0


def test_intervals_that_promise_nothing_are_said_to():
    found = SimpleNamespace(task="regression", conformal=None, record={})
    assert _missing_promises(found) == [NO_INTERVAL]
    found.record["no_conformal"] = "a coverage of 0.99 needs at least 99 validation examples"
    assert _missing_promises(found) == [found.record["no_conformal"]]
    assert _missing_promises(SimpleNamespace(task="regression", conformal=object(), record={})) == []
