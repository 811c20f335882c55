"""Metrics over processes: what each has seen is joined, as torchmetrics does it."""

import pytest
import torch
import torch.multiprocessing

import pluribus as pb

NAMES = ("accuracy", "nll", "ece", "classwise_ece", "aurc", "disagreement", "mutual_information")


def _worker(rank: int, store: str, logits: torch.Tensor, target: torch.Tensor, results) -> None:
    import conftest  # noqa: F401  the operators without which torchvision, and so torchmetrics, does not import

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    rows = slice(0, 7) if rank == 0 else slice(7, None)  # unequal shares
    metrics = {name: pb.torchmetric(name) for name in NAMES}
    for metric in metrics.values():
        metric.update(pb.Classification.from_logits(logits[:, rows]), target[rows])
    values = {name: float(metric.compute()) for name, metric in metrics.items()}
    if rank == 0:
        results.put(values)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_processes_compute_what_one_does(tmp_path):
    pytest.importorskip("torchmetrics")
    logits, target = torch.randn(3, 20, 4), torch.randint(4, (20,))
    context = torch.multiprocessing.get_context("spawn")
    results, store = context.Queue(), str(tmp_path / "store")
    workers = [context.Process(target=_worker, args=(rank, store, logits, target, results)) for rank in range(2)]
    for worker in workers:
        worker.start()
    values = results.get(timeout=120)
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    expected = pb.evaluate(pb.Classification.from_logits(logits), target)
    assert values == pytest.approx({name: expected[name] for name in NAMES}, abs=1e-6)
