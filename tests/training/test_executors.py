"""Workers do not outlive the process that started them."""

import os
import signal
import subprocess
import sys
import time

import pytest

ORPHAN = """
import os, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pluribus.training.executors import _watch
if __name__ == "__main__":
    pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_watch, initargs=(os.getpid(),))
    print(pool.submit(os.getpid).result(), flush=True)
    pool.submit(time.sleep, 600).result()
"""


STUBBORN = """
import signal, sys, time
from collections import namedtuple
from pluribus.training.executors import run_in_processes
Job = namedtuple("Job", "name seconds")
def work(job):
    if job.seconds:
        signal.signal(signal.SIGTERM, lambda *_: None)  # as a trainer does
        time.sleep(job.seconds)
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are born without
    try:
        for event, job, _ in run_in_processes(work, [Job("long", 600), Job("short", 0)], 2):
            print(event, job.name, flush=True)
    except KeyboardInterrupt:
        print("stopped", flush=True)
"""


LOCKING = """
import multiprocessing
from collections import namedtuple
from pluribus.training.executors import run_in_processes
Job = namedtuple("Job", "name")
KEPT = []
def work(job):
    KEPT.append(multiprocessing.get_context("spawn").RLock())  # as a progress bar does
if __name__ == "__main__":
    print(*(event for event, *_ in run_in_processes(work, [Job("a"), Job("b")], 2)))
"""


@pytest.mark.slow
def test_a_study_ends_without_a_warning_where_workers_hold_locks(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(LOCKING)
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=120)
    assert done.stdout.split().count("done") == 2 and done.stderr == ""


@pytest.mark.slow
def test_ctrl_c_ends_a_study_whose_workers_do_not_listen(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(STUBBORN)
    with subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True) as study:
        assert any(line.startswith("done short") for line in study.stdout)  # one works, the other waits
        time.sleep(1)
        study.send_signal(signal.SIGINT)
        try:
            assert study.wait(60) == 0 and study.stdout.read() == "stopped\n"
        finally:
            study.kill()  # its workers end by themselves


@pytest.mark.slow
def test_workers_end_when_the_study_itself_is_killed(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(ORPHAN)
    with subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True) as study:
        worker = int(study.stdout.readline())
        study.send_signal(signal.SIGKILL)
        study.wait()
    for _ in range(300):
        if not is_alive(worker):
            return
        time.sleep(0.1)
    os.kill(worker, signal.SIGKILL)
    pytest.fail("the worker went on without its study")


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{process}/stat") as file:  # one that nobody waits for is dead too
        return file.read().rpartition(")")[2].split()[0] != "Z"
