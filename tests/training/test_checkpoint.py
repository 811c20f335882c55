"""Checkpoints that training cannot go on from: named, and training starts from the beginning."""

import copy
import json

import lightning.pytorch
import pytest
import torch
from torch import nn

import pluribus as pb
from pluribus._common.signed_files import sign
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


FORGED = {
    "the epoch": ("epoch", 10**6),
    "rows": ("state_dict", "_extra_state", "rows", []),
    "more rows than epochs": ("state_dict", "_extra_state", "rows", [{"epoch": i} for i in range(4)]),
    "another way to step": ("optimizer_states", 0, "param_groups", 0, "amsgrad", True),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_checkpoint_of_other_settings_is_named_and_training_starts_anew(stopped, whole, tmp_path, name):
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
