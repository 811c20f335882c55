"""Files: complete or not there, nothing executed, foreign ones refused."""

import json
import pickle

import pytest
import torch
from safetensors.torch import load_file
from small import make, mlp
from torch import nn

import pluribus as pb


def saved(tmp_path, **options):
    ensemble, x = make("masksembles", "mlp", **options)
    path = tmp_path / "ensemble.safetensors"
    pb.save(ensemble, path)
    return ensemble, x, path


def test_task_mode_run_and_precision_come_back(tmp_path):
    ensemble, x = make("deep", "mlp")
    ensemble.task, ensemble.run = "gaussian", "loop"
    pb.save(ensemble.bfloat16().train(), tmp_path / "e")
    loaded = pb.load(tmp_path / "e", mlp())
    assert (loaded.task, loaded.run, loaded.training, loaded.size) == ("gaussian", "loop", True, 3)
    assert loaded.module[0].weight.dtype == torch.bfloat16


def test_grown_and_thinned_widths_need_no_example(tmp_path):
    for ensemble, x in (make("masksembles", "cnn", capacity=1.0), make("packed", "cnn", 4)):
        pb.save(ensemble, tmp_path / "e")
        from small import cnn

        torch.testing.assert_close(pb.load(tmp_path / "e", cnn())(x), ensemble(x), rtol=0, atol=0)


def test_builders_and_unlike_models_come_back(tmp_path):
    build = lambda width: nn.Sequential(nn.Linear(6, int(16 * width)), nn.ReLU(), nn.Linear(int(16 * width), 3))  # noqa: E731
    x = torch.randn(5, 6)
    packed = pb.packed(build, 4, alpha=2)
    pb.save(packed, tmp_path / "packed")
    torch.testing.assert_close(pb.load(tmp_path / "packed", build)(x), packed(x), rtol=0, atol=0)
    models = [nn.Linear(6, 3), mlp().eval()]
    unlike = pb.deep(models).eval()
    pb.save(unlike, tmp_path / "unlike")
    fresh = [nn.Linear(6, 3), mlp()]
    torch.testing.assert_close(pb.load(tmp_path / "unlike", fresh)(x), unlike(x), rtol=0, atol=0)
    with pytest.raises(ValueError, match="list of 2 models"):
        pb.load(tmp_path / "unlike", mlp())


def test_the_file_is_plain_safetensors_with_masks_and_json(tmp_path):
    ensemble, _, path = saved(tmp_path)
    tensors = load_file(path)
    assert torch.equal(tensors["3.mask"], ensemble.module[3].mask)
    size = int.from_bytes(path.read_bytes()[:8], "little")
    header = json.loads(json.loads(path.read_bytes()[8 : 8 + size])["__metadata__"]["pluribus"])
    assert (header["method"], header["size"], header["task"]) == ("masksembles", 3, "classification")
    assert header["version"] == pb.__version__


def test_a_failed_save_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    ensemble, x, path = saved(tmp_path)
    before = path.read_bytes()

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        pb.save(ensemble, path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_pickle_is_never_executed(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (open, (str(tmp_path / "exploded"), "w"))

    (tmp_path / "bomb").write_bytes(pickle.dumps(Bomb()))
    torch.save({"weight": Bomb()}, tmp_path / "bomb.pt")
    for name in ("bomb", "bomb.pt"):
        with pytest.raises(ValueError, match="not a complete safetensors file"):
            pb.load(tmp_path / name, mlp())
    assert not (tmp_path / "exploded").exists()


def test_another_model_is_refused(tmp_path):
    _, _, path = saved(tmp_path)
    with pytest.raises(ValueError, match="matches none|must be those of the ensemble|must have the shape"):
        pb.load(path, nn.Sequential(nn.Linear(6, 3)))
    wider = mlp()
    wider[5] = nn.Linear(16, 4)
    with pytest.raises(ValueError, match="must have the shape"):
        pb.load(path, wider)
