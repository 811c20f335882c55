"""What the terminal shows while a study runs."""

import io

import pytest
from rich.console import Console

from pluribus._common.signed_files import write_signed_json
from pluribus.cli.common import display
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
