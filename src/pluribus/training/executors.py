"""Ways to carry out many jobs: here, in processes, or on a Ray cluster. A job that fails does not stop the others."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import Any, Protocol, TypeVar

from .._common.optional import require

TRIES = 3  # of a job whose worker died
EXIT = 10  # seconds for an idle worker to end; one that is killed leaves semaphores, of which Python warns


class Job(Protocol):
    """A piece of work: anything with a name of its own that can be pickled."""

    @property
    def name(self) -> str:
        """Unlike that of any other job."""


J = TypeVar("J", bound=Job)
Event = tuple[str, J, Any]  # "started", "retried", "failed" with a text, or "done" with what the job gave


def run_here(compute: Callable[[J], Any], jobs: Sequence[J]) -> Iterator[Event[J]]:
    """One job after the other, in this process."""
    for job in jobs:
        yield "started", job, ""
        yield _try(job, partial(compute, job))


def run_in_processes(compute: Callable[[J], Any], jobs: Sequence[J], workers: int) -> Iterator[Event[J]]:
    """A pool of processes; when one dies, the pool is made anew and what was under way is tried again."""
    waiting, tries = list(jobs), dict.fromkeys((job.name for job in jobs), 0)
    while waiting:
        under_way: dict[Future[Any], J] = {}
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_watch, initargs=(os.getpid(),))
        try:
            while waiting or under_way:
                while waiting and len(under_way) < workers:
                    future = pool.submit(compute, waiting[0])  # a broken pool refuses it: then it waits on
                    job = under_way[future] = waiting.pop(0)
                    tries[job.name] += 1
                    yield "started", job, ""
                for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                    event = _try(under_way[future], future.result)
                    under_way.pop(future)
                    yield event
        except BrokenProcessPool:
            for job in under_way.values():
                if tries[job.name] < TRIES:
                    waiting.insert(0, job)
                    yield "retried", job, f"its process died; try {tries[job.name] + 1} of {TRIES}"
                else:
                    yield "failed", job, f"its process died {TRIES} times (out of memory?)"
        finally:
            _stop(pool, patience=0 if waiting or under_way else EXIT)


def _watch(parent: int) -> None:
    """In a worker: end when the parent process is gone, and leave Ctrl-C to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _stop(pool: ProcessPoolExecutor, patience: float) -> None:
    """End the processes: idle ones release what they hold, within some seconds; a job that is cut short is repeated."""
    processes = list((getattr(pool, "_processes", None) or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        process.join(patience)
        process.kill()  # a trainer outlives SIGTERM, and then waits for ever for what a dead neighbour had locked


def run_on_ray(compute: Callable[[J], Any], jobs: Sequence[J], address: str, threads: int) -> Iterator[Event[J]]:
    """Tasks of a Ray cluster; `address` as `ray.init` takes it, or "local" for a new one."""
    if address == "local":
        os.environ.setdefault(LOOPBACK_ONLY, "0")  # looked at when Ray is imported
    ray = require("ray", "--ray", "ray")
    started_here = not ray.is_initialized()
    if started_here:
        _connect(ray, address)
    try:
        options = {"num_cpus": threads, "max_retries": TRIES - 1, "retry_exceptions": False}
        remote = ray.remote(**options)(lambda job: compute(job))  # Ray takes functions, and nothing else that is called
        under_way = {remote.remote(job): job for job in jobs}
        for job in jobs:
            yield "started", job, "handed to Ray"
        while under_way:
            (done, *_), _ = ray.wait(list(under_way), num_returns=1)
            job = under_way.pop(done)
            yield _try(job, partial(_unwrap, ray, done))
    finally:
        if started_here:
            ray.shutdown()


def _connect(ray: Any, address: str) -> None:
    """Join a cluster, or start one that only this machine can reach; an address without a cluster is refused soon."""
    quiet = {"log_to_driver": False, "configure_logging": False}
    if address == "local":
        ray.init(address="local", include_dashboard=False, **quiet)
        return
    if address != "auto":
        _check_listens(address)
    command = [sys.executable, "-c", "import ray, sys; ray.init(sys.argv[1], log_to_driver=False)", address]
    try:  # Ray waits for ever, or ends the process, where something else than Ray answers
        tried = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        raise ValueError(f"--ray: no cluster answered at {address!r} in {PATIENCE} seconds. {HOW_TO_START}") from None
    if tried.returncode:
        reason = next((line for line in reversed(tried.stderr.strip().splitlines()) if line.strip()), "no reason given")
        raise ValueError(f"--ray: no cluster answers at {address!r} ({reason.strip()[:300]}). {HOW_TO_START}")
    ray.init(address=address, **quiet)


def _check_listens(address: str) -> None:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 2**16:
        raise ValueError(f"--ray: must be HOST:PORT, ray://HOST:PORT, auto or local, but it is {address!r}.")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except OSError as error:
        raise ValueError(f"--ray: nothing listens at {address!r} ({error}). {HOW_TO_START}") from None


PATIENCE = 60  # seconds

LOOPBACK_ONLY = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # "0": as on those systems, nobody else can reach it

HOW_TO_START = f"{LOOPBACK_ONLY}=0 ray start --head starts one that only this machine can reach; or use local."


def _unwrap(ray: Any, done: Any) -> Any:
    try:
        return ray.get(done)
    except ray.exceptions.RayTaskError as error:
        raise error.cause if isinstance(getattr(error, "cause", None), Exception) else error from None
    except ray.exceptions.RayError as error:
        raise RuntimeError(f"its worker died {TRIES} times ({error})") from None


def _try(job: J, give: Callable[[], Any]) -> Event[J]:
    """The job's result, or why there is none."""
    try:
        return "done", job, give()
    except (BrokenProcessPool, KeyboardInterrupt):
        raise
    except Exception as error:  # whatever a job may raise
        return "failed", job, f"{type(error).__name__}: {error}"
