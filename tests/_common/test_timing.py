import time

import pytest
import torch

from pluribus._common import timing
from pluribus._common.timing import choose_clock, medians, race

CPU = torch.device("cpu")


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still but for what runs on it."""
    now = [0.0]
    monkeypatch.setattr(timing, "choose_clock", lambda device: lambda: now[0])
    return now


def taking(clock, *seconds):
    """A run that takes these seconds, then the last of them again and again."""
    left = list(seconds)

    def run():
        run.calls += 1
        clock[0] += left.pop(0) if len(left) > 1 else left[0]

    run.calls = 0
    return run


def test_the_fastest_comes_first_by_its_shortest_run(clock):
    runs = {"even": taking(clock, 2.0), "noisy": taking(clock, 9.0, 2.5, 1.9)}
    assert race(runs, CPU, rounds=3, seconds=100) == pytest.approx({"noisy": 1.9, "even": 2.0})
    assert list(race(runs, CPU)) == ["noisy", "even"]


def test_what_is_far_behind_is_not_run_again_but_once_may_be_an_accident(clock):
    fast, slow = taking(clock, 1.0), taking(clock, 2.0)
    race({"fast": fast, "slow": slow}, CPU, rounds=5, seconds=100)
    assert (fast.calls, slow.calls) == (1 + 5, 1 + 3)
    assert list(race({"even": taking(clock, 2.0), "disturbed": taking(clock, 9.0, 8.0, 1.0)}, CPU)) == [
        "disturbed",
        "even",
    ]


def test_medians_leave_out_the_first_rounds(clock):
    runs = [taking(clock, 50.0, 40.0, 1.0, 9.0, 2.0), taking(clock, 3.0)]
    assert medians(runs, CPU) == pytest.approx([2.0, 3.0])
    assert [run.calls for run in runs] == [2 + 7, 2 + 7]


def test_one_thread_is_measured_by_the_time_of_the_process(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert choose_clock(CPU) is time.thread_time
    assert choose_clock(torch.device("cuda")) is time.perf_counter
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert choose_clock(CPU) is time.perf_counter


def test_short_runs_are_timed_more_often_and_warmed_each_time(clock):
    short, long = taking(clock, 0.001), taking(clock, 0.02)
    assert medians([short, short], CPU) == pytest.approx([0.001, 0.001])
    assert short.calls == 2 * (1 + 2 * (1 + 31))  # once, then each time twice: another warm-up and 31 rounds
    assert medians([long, long], CPU) == pytest.approx([0.02, 0.02]) and long.calls == 2 * (2 + 7)
