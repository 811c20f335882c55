"""Checkpoints that training cannot go on from: named, and training starts from the beginning."""

import copy
import json
import warnings

import lightning.pytorch
import pytest
import torch
from torch import nn

import pluribus as pb
from pluribus._common.signed_files import sign
from pluribus.training import fitting
from pluribus.training.checkpoint import read_checkpoint
from pluribus.training.fitting import LAST

X, Y = torch.randn(32, 4, generator=torch.Generator().manual_seed(0)), torch.arange(32) % 3


class Stop(lightning.pytorch.Callback):
    def on_train_epoch_start(self, trainer, pl_module):
        if trainer.current_epoch == 2:
            raise InterruptedError


def train(folder, callbacks=()):
    torch.manual_seed(0)
    ensemble = pb.deep(nn.Linear(4, 3), 2)
    return pb.fit(ensemble, (X, Y), (X, Y), epochs=3, folder=folder, patience=3, callbacks=callbacks)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stopped")
    with pytest.raises(InterruptedError):
        train(folder, [Stop()])
    return torch.load(folder / LAST, weights_only=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return train(tmp_path_factory.mktemp("whole"))


def figures(history):
    return [row["loss"] for row in history.rows]


def test_a_whole_checkpoint_is_gone_on_from(stopped, whole, tmp_path):
    store(stopped, tmp_path / LAST)
    assert figures(train(tmp_path)) == figures(whole)


def without(value, *path):
    value = copy.deepcopy(value)
    holder = value
    for key in path[:-1]:
        holder = holder[key]
    del holder[path[-1]]
    return value


def store(checkpoint, path):
    torch.save(checkpoint, path)
    sign(path)


SPOILED = {
    **{name: (name,) for name in ("epoch", "state_dict", "loops", "optimizer_states", "lr_schedulers")},
    "extra": ("state_dict", "_extra_state"),
    "rows": ("state_dict", "_extra_state", "rows"),
    "loop": ("loops", "fit_loop"),
    "progress": ("loops", "fit_loop", "epoch_progress"),
    "groups": ("optimizer_states", 0, "param_groups"),
    "rate": ("optimizer_states", 0, "param_groups", 0, "lr"),
    "last epoch": ("lr_schedulers", 0, "last_epoch"),
}


@pytest.mark.parametrize("name", SPOILED)
def test_a_checkpoint_that_lacks_something_is_named_and_training_starts_anew(stopped, whole, tmp_path, name):
    store(without(stopped, *SPOILED[name]), tmp_path / LAST)
    with pytest.warns(UserWarning, match=r"last\.ckpt.*cannot be read.*training starts from the beginning"):
        history = train(tmp_path)
    assert figures(history) == figures(whole)


LOOP = ("loops", "fit_loop")

STEPS = (*LOOP, "epoch_loop.automatic_optimization.optim_progress", "optimizer", "step", "total", "completed")

FORGED = {
    "a rate that is none": ("lr_schedulers", 0, "base_lrs", 0, None),
    "a momentum that is none": ("optimizer_states", 0, "state", 0, "exp_avg", None),
    "one rate too many": ("lr_schedulers", 0, "base_lrs", [0.1] * 9),
    "the epoch": ("epoch", 10**6),
    "epochs that are done": (*LOOP, "epoch_progress", "current", "ready", 3),
    "epochs that are counted": (*LOOP, "epoch_progress", "current", "completed", 3),
    "the schedule": ("lr_schedulers", 0, "last_epoch", 3),
    "steps": ("global_step", 10**9),
    "steps of the optimizer": (*STEPS, 10**9),
    "batches": (*LOOP, "epoch_loop.batch_progress", "current", "ready", 9),
    "rows": ("state_dict", "_extra_state", "rows", []),
    "numbers of rows": ("state_dict", "_extra_state", "rows", 0, "epoch", 5),
    "more rows than epochs": ("state_dict", "_extra_state", "rows", [{"epoch": i} for i in range(4)]),
    "the best epoch": ("state_dict", "_extra_state", "best", "ensemble", ([-1.0, 0.0], 7)),
    "stopping": ("state_dict", "_extra_state", "stopped", True),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_checkpoint_whose_counters_disagree_is_named_and_training_starts_anew(stopped, whole, tmp_path, name):
    *path, key, value = FORGED[name]
    changed = holder = copy.deepcopy(stopped)
    for part in path:
        holder = holder[part]
    assert key in holder if isinstance(holder, dict) else key < len(holder)
    holder[key] = value
    store(changed, tmp_path / LAST)
    with pytest.warns(UserWarning, match=r"last\.ckpt.*cannot be read.*training starts from the beginning"):
        history = train(tmp_path)
    assert figures(history) == figures(whole)


def test_a_checkpoint_that_says_it_stopped_early_is_not_believed_where_nothing_stops(stopped, tmp_path):
    changed = copy.deepcopy(stopped)
    changed["state_dict"]["_extra_state"]["stopped"] = True
    store(changed, tmp_path / LAST)
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match="cannot be read"):
        history = pb.fit(pb.deep(nn.Linear(4, 3), 2), (X, Y), (X, Y), epochs=3, folder=tmp_path)
    assert len(history.rows) == 3


@pytest.mark.parametrize("content", [b"", b"hello", json.dumps({}).encode()])
def test_a_file_that_is_no_checkpoint_is_named(whole, tmp_path, content):
    (tmp_path / LAST).write_bytes(content)
    with pytest.warns(UserWarning, match="cannot be read"):
        history = train(tmp_path)
    assert figures(history) == figures(whole)


def test_a_checkpoint_that_would_run_code_is_not_run(whole, tmp_path):
    class Trap:
        def __reduce__(self):
            return (tmp_path / "canary").touch, ()

    store({"state_dict": Trap()}, tmp_path / LAST)
    with pytest.warns(UserWarning, match="cannot be read"):
        train(tmp_path)
    assert not (tmp_path / "canary").exists()


def places(value, path=()):
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield (*path, key)
            yield from places(inner, (*path, key))


JUNK = [
    None, "x", [], {}, -1, 2.5, True, torch.zeros(2, 7), float("nan"), 10**30, (1, 2), torch.zeros(()), [None],
    torch.zeros(2, 3, 4).to_sparse(), torch.zeros(2, 3, 4, device="meta"), torch.zeros(2, 3, 4, dtype=torch.complex64),
]  # fmt: skip


def replaced(stopped, spot, value):
    changed = holder = copy.deepcopy(stopped)
    for key in spot[:-1]:
        holder = holder[key]
    holder[spot[-1]] = value
    return changed


class CaughtError(Exception):
    """Ends a training that was to be looked at only."""


@pytest.fixture(scope="module")
def reader(stopped, tmp_path_factory):
    """Whether training would go on from a checkpoint: the question that `fit` asks, asked of one trainer again."""
    folder, given = tmp_path_factory.mktemp("reader"), {}

    def catch(path, module, trainer):
        given["module"], given["trainer"] = module, trainer
        raise CaughtError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting, "read_checkpoint", catch)
        store(stopped, folder / LAST)
        with pytest.raises(CaughtError):
            train(folder)

    def accepts(checkpoint):
        store(checkpoint, folder / LAST)
        try:
            read_checkpoint(folder / LAST, **given)
        except ValueError as error:
            assert str(error)
            return False
        return True

    assert accepts(stopped)
    return accepts


def sweep(stopped, whole, accepts, folder, cases):
    """Every case is refused, or training goes on from it to the end; the places that are accepted."""
    accepted = [(spot, value) for spot, value in cases if accepts(replaced(stopped, spot, value))]
    for spot, value in accepted:
        store(replaced(stopped, spot, value), folder / LAST)
        assert len(train_quietly(folder).rows) == len(whole.rows), (spot, value)
    return accepted


def test_each_entry_replaced_is_refused_or_gone_on_from(stopped, whole, reader, tmp_path):
    spots = [spot for spot in sorted(places(stopped), key=str) if spot[0] not in ("loops", "callbacks")]
    sweep(stopped, whole, reader, tmp_path, [(spot, JUNK[i % len(JUNK)]) for i, spot in enumerate(spots)])


@pytest.mark.slow
def test_each_entry_replaced_by_anything_is_refused_or_gone_on_from(stopped, whole, reader, tmp_path):
    cases = [(spot, value) for spot in places(stopped) for value in JUNK]
    sweep(stopped, whole, reader, tmp_path, cases)


def train_quietly(folder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return train(folder)
