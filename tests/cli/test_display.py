"""What the terminal shows: while a study runs, its table, its verdict, and the help."""

import io

import fakes
import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from pluribus._common.signed_files import write_signed_json
from pluribus.cli.app import COMMANDS, app
from pluribus.cli.common import display
from pluribus.cli.common.messages import say_lines
from pluribus.cli.reproduce import _table_of_items
from pluribus.reproduce.registry import CLAIMS
from pluribus.results.store import Result
from pluribus.results.verdict import verdicts
from pluribus.study.folder import training_folder
from pluribus.study.grid import Study
from pluribus.study.progress import MARK


@pytest.fixture
def watch(tmp_path, monkeypatch):
    """A watch of four runs of 100 seconds each on two cores, at a clock that the test turns; and its runs."""
    clock = [0.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: clock[0])
    study = Study(data=["digits"], methods=["single", "batch_ensemble"], seeds=[0, 1])
    made = display.Watch(Console(file=io.StringIO(), width=80, force_terminal=True), False, tmp_path, 2)
    made.clock, made.runs = clock, study.runs()
    return made


def say(watch, run, epoch):
    folder = training_folder(watch.folder, run.name)
    folder.mkdir(parents=True, exist_ok=True)
    write_signed_json(folder / MARK, {"epoch": epoch, "epochs": 20, "seconds": 1.0})


def test_the_line_of_runs_under_way_fits_80_columns(watch):
    watch.expect({run.name: 100.0 for run in watch.runs})
    for run in watch.runs[2:]:
        say(watch, run, 12)
        watch("started", run, "")
    watch.progress.stop()
    console = Console(file=io.StringIO(), width=80)
    console.print(watch.progress.get_renderable())
    (line,) = console.file.getvalue().splitlines()
    assert len(line) <= 80 and "0/4 runs" in line and line.endswith("left") and "12/20" in line


def test_time_left_counts_epochs_and_does_not_take_those_of_an_earlier_start_for_speed(watch):
    say(watch, watch.runs[0], 10)  # half of it was done before
    watch.expect({run.name: 100.0 for run in watch.runs})
    assert watch.left() == pytest.approx(350 / 2)
    watch.clock[0] = 100.0
    say(watch, watch.runs[0], 20)
    assert watch.left() == pytest.approx(300 / (50 / 100))  # 50 of 400 seconds of work took 100


def test_time_left_is_being_estimated_until_it_is_known_and_where_runs_take_longer(watch):
    column, (task,) = display.LiveText(watch.say_time_left), watch.progress.tasks
    assert column.render(task).plain == "estimating"
    watch.expect({run.name: 100.0 for run in watch.runs})
    assert column.render(task).plain == "0:03:20 left"
    for run in watch.runs:
        say(watch, run, 20)  # all epochs are done, and the runs go on
    assert column.render(task).plain == "estimating"


# ---------------------------------------------------------------- the table and the verdict


def drawn(results, width: int, terminal: bool = False) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=terminal, highlight=False)
    for table in display.result_tables(verdicts(results), width):
        console.print(table)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [80, 120])
def test_methods_are_whole_and_what_is_hidden_is_announced(width):
    results = fakes.many(2)
    text = drawn(results, width)
    assert all(len(line) <= width for line in text.splitlines())
    for label in {result.record["label"] for result in results}:
        assert any(line.startswith(f"{label} ") for line in text.splitlines()), label
    shown = text.splitlines()[1]
    hidden = text[text.index("Hidden: ") :].replace("\n", " ")
    names = [*display.COSTS.values(), "Disagreement", "ECE", "cAcc", "NLL", "AUROC OOD"]
    assert all((name in shown) != (f" {name}" in hidden) for name in names if "," not in name)


def test_the_recommended_row_is_bold_and_unclear_ones_are_dim():
    losses = {"single": [0.2, 0.21, 0.2], "deep": [0.1, 0.12, 0.1], "mimo": [0.19, 0.22, 0.2]}
    results = []
    for label, values in losses.items():
        for seed, nll in enumerate(values):
            record = fakes.classification(label, seed=seed, examples=20, shift=False, outside=False).record
            results.append(Result({**record, "metrics": {"nll": {"value": nll}}}))
    lines = drawn(results, 120, terminal=True).splitlines()
    starts = {label: next(line for line in lines if label in line).split(label)[0] for label in losses}
    assert starts == {"single": "", "deep": "\x1b[1m", "mimo": "\x1b[2m"}


def test_a_row_that_cannot_be_frozen_says_so():
    results = fakes.many(1)
    result = next(one for one in results if one.record["label"] == "deep")
    result.record["cost"]["deployed"] |= {"frozen": False, "why": "it looks at values"}
    text = drawn(results, 150)
    assert "deep * " in text and "* deep cannot be frozen (it looks at values)" in text


def test_lines_break_between_words_on_a_terminal_and_not_at_all_in_a_file():
    text = "Use deep: NLL 0.17, down from 0.22 for a single network, at 4x the cost. " * 3
    found = {}
    for terminal in (True, False):
        console = Console(file=io.StringIO(), width=80, force_terminal=terminal, highlight=False)
        say_lines(console, [text])
        found[terminal] = console.file.getvalue().splitlines()
    assert len(found[False]) == 1
    assert len(found[True]) > 1 and all(len(line) <= 80 for line in found[True])
    assert " ".join(" ".join(found[True]).split()) == text.strip()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_explained_and_no_flag_takes_a_value(name):
    shown = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "100"}).output
    assert "bool" not in shown.lower()
    command = typer.main.get_command(app).commands[name]
    assert [option.name for option in command.params if not getattr(option, "help", None)] == []


def test_the_options_of_compare_are_shown_in_groups():
    shown = CliRunner().invoke(app, ["compare", "--help"], env={"COLUMNS": "80"}).output
    panels = [line.strip("╭─╮ ") for line in shown.splitlines() if line.startswith("╭")]
    assert panels == ["Data", "Model", "Training", "Study", "Output"]


def test_items_are_listed_in_one_line_each():
    rows = [
        {"item": name, "title": claim.title, "costs": claim.costs, "verdict": None, "scale": None}
        for name, claim in CLAIMS.items()
    ]
    console = Console(file=io.StringIO(), width=80)
    console.print(_table_of_items(rows, 80))
    header, *lines = console.file.getvalue().splitlines()
    assert header.split() == ["item", "title", "laptop", "verdict"] and len(lines) == len(CLAIMS)
    assert all(line.startswith(f"{name} ") and len(line) <= 80 for name, line in zip(CLAIMS, lines, strict=True))


def test_the_cascade_of_the_recommended_method_is_a_row_with_its_own_cost():
    ratios = {"parameters": 4.0, "mult_adds": 4.0, "latency": {"32": 3.6}, "plain_latency": {"32": 3.0}}
    deployed = {
        "frozen": True,
        "why": "",
        "parameters": 1,
        "mult_adds": 1,
        "memory": 1,
        "latency": {},
        "relative": ratios,
    }
    record = {"run": "a", "method": "deep", "label": "deep", "settings": {}, "data": "d", "task": "classification",
              "seed": 0, "model": "mlp", "metrics": {"accuracy": {"value": 0.9}}, "cost": {"deployed": deployed},
              "cascade": {"margin": 0.01, "members": 1.5, "metrics": {"accuracy": 0.89},
                          "cost": {"mult_adds": 0.4, "latency": 0.5}}}  # fmt: skip
    groups = [display.Group("deep", (Result(record),)), display.Group("single", (Result({**record, "cascade": None}),))]
    (row,) = display.cascade_rows(groups, "single")
    assert row.label == "deep cascade" and display.estimate(row, "accuracy").value == 0.89
    assert display.estimate(row, "relative_mult_adds").value == pytest.approx(1.6)
    assert display.estimate(row, "relative_latency").value == pytest.approx(1.8)
    assert display.cascade_rows(groups[1:], None) == []


def test_one_network_with_a_distance_is_a_row_and_the_verdict_says_that_it_is_enough():
    single, deep = fakes.classification("single"), fakes.classification("deep")
    found = single.record["outside"]["letters"]
    plain, best = found["msp"]["auroc"], {"auroc": 0.999, "aupr": 0.9, "fpr95": 0.01}
    single.record["outside"]["letters"] = {**found, "neighbours": best, "mahalanobis": found["msp"]}
    found = verdicts([single, deep])
    (table,) = display.result_tables(found, 400)
    assert list(table.columns[0].cells) == ["single", "deep", "single + kNN", "single + Mahalanobis"]
    rows = display.all_rows(found[0])[2:]
    assert [display.estimate(row, "auroc").value for row in rows] == [0.999, plain]
    (said,) = [text for text in display.sentences(found) if "detects OOD data best" in text]
    assert said.startswith("single + kNN") and said.endswith("one network and a distance in its features are enough.")
    assert len(display.all_rows(verdicts([deep])[0])) == 1
