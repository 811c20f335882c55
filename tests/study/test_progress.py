"""How far runs are: said after each epoch, believed only if it makes sense, and a run goes on from its last epoch."""

import numpy as np
import pytest

import pluribus.study.run as module
from pluribus._common.signed_files import write_signed_json
from pluribus.study import Study, conduct
from pluribus.study.estimating import estimate_seconds
from pluribus.study.folder import training_folder
from pluribus.study.progress import MARK, Progress, read_progress
from pluribus.study.run import compute

SMALL = {"data": ["moons"], "methods": ["deep"], "size": 2, "width": 0.1, "training": {"epochs": 4, "batch_size": 64}}


def interrupt_after(epochs: int):
    """A callback that stops training as Ctrl-C does, after so many epochs."""
    real = module.progress_callback

    def callback(folder, earlier):
        found = real(folder, earlier)
        say = found.on_train_epoch_end

        def say_and_stop(trainer, pl_module):
            say(trainer, pl_module)
            if trainer.current_epoch + 1 == epochs:
                raise KeyboardInterrupt

        found.on_train_epoch_end = say_and_stop
        return found

    return callback


def test_a_run_that_is_stopped_goes_on_from_its_last_whole_epoch_and_ends_as_if_it_had_not_been(tmp_path, monkeypatch):
    (run,) = Study(**SMALL).runs()
    expected, columns = compute(run)
    with monkeypatch.context() as patched:
        patched.setattr(module, "progress_callback", interrupt_after(3))
        with pytest.raises(KeyboardInterrupt):
            compute(run, tmp_path)
    assert read_progress(tmp_path)[:2] == (3, 4)
    trained = []
    real = module.progress_callback

    def counting(folder, earlier):
        found = real(folder, earlier)
        say = found.on_train_epoch_end
        found.on_train_epoch_end = lambda *args: (trained.append(args[0].current_epoch), say(*args))
        return found

    monkeypatch.setattr(module, "progress_callback", counting)
    record, again = compute(run, tmp_path)
    assert trained in ([2, 3], [3])  # the epoch under way is lost, and no other
    assert record["history"] == expected["history"] and record["metrics"] == expected["metrics"]
    for name, column in columns.items():
        np.testing.assert_array_equal(again[name], column)


def test_a_study_leaves_nothing_of_its_training_behind(tmp_path):
    study, missing = Study(**SMALL), []
    for _ in range(2):
        conduct(study, tmp_path, forecast=lambda seconds: missing.append(list(seconds)))
    assert not (tmp_path / "training").exists()
    assert missing == [[run.name for run in study.runs()], []]


def test_a_study_that_is_declined_at_its_forecast_leaves_nothing_behind(tmp_path):
    def decline(seconds):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        conduct(Study(**SMALL), tmp_path / "study", forecast=decline)
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize("given", [(5, 4, 1.0), (-1, 4, 1.0), (1, 0, 1.0), (1, 4, -3), (1, 4, float("nan")), (1, 4)])
def test_what_no_run_would_write_is_no_progress(tmp_path, given):
    write_signed_json(tmp_path / MARK, dict(zip(Progress._fields, given, strict=False)))
    assert read_progress(tmp_path) is None
    write_signed_json(tmp_path / MARK, Progress(3, 4, 1.5)._asdict())
    assert read_progress(tmp_path) == Progress(3, 4, 1.5)


def test_estimates_grow_with_epochs_and_are_made_once_for_all_seeds(monkeypatch):
    import pluribus.study.estimating as estimating

    timed = []
    real = estimating._time_run
    monkeypatch.setattr(estimating, "_time_run", lambda *args: timed.append(args) or real(*args))
    found = estimate(seeds=[0, 1])
    assert len(timed) == 1 and len(found) == 2 and min(found.values()) > 0
    assert max(estimate(training={"epochs": 4000, "batch_size": 64}).values()) > 20 * max(found.values())


def estimate(**changes) -> dict[str, float]:
    """The seconds of the runs of a small study."""
    return estimate_seconds(Study(**{**SMALL, **changes}).runs())


def test_the_folder_of_a_run_is_its_own(tmp_path):
    first, second = Study(**{**SMALL, "seeds": [0, 1]}).runs()
    assert training_folder(tmp_path, first.name) != training_folder(tmp_path, second.name)
