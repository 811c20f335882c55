"""Two processes that talk to each other, as distributed training has them."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing


def in_two_processes(work: Callable[..., Any], folder: Path, *args: Any) -> Any:
    """What `work(rank, *args)` gives in the process of rank 0."""
    context = torch.multiprocessing.get_context("spawn")
    results, store = context.Queue(), str(folder / "store")
    processes = [context.Process(target=_run, args=(work, rank, store, results, args)) for rank in range(2)]
    for process in processes:
        process.start()
    result = results.get(timeout=120)
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    return result


def _run(work: Callable[..., Any], rank: int, store: str, results: Any, args: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    result = work(rank, *args)
    if rank == 0:
        results.put(result)
    results.close()
    results.join_thread()
    torch.distributed.barrier()
    os._exit(0)  # taking gloo's threads down with the interpreter aborts the process now and then
