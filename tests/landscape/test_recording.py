"""Trajectories: what is recorded is what a loop written apart sees, and it costs nothing but its own time."""

import pytest
import torch
from plain import flat
from torch import nn

import pluribus as pb
from pluribus import landscape as ls

X, Y = torch.randn(90, 4, generator=torch.Generator().manual_seed(3)), torch.arange(90) % 3


def network() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))


def test_a_trajectory_is_that_of_training_without_a_recorder():
    model = network()
    before = flat(model)
    run = ls.trajectory(model, (X, Y), (X, Y), epochs=3, batch_size=30, seed=7)
    alone = pb.single(network())
    pb.fit(alone, (X, Y), epochs=3, batch_size=30, select=None, seed=7)
    assert torch.equal(flat(model), before)
    assert run.steps == [3, 6, 9] and run.weights.shape == (3, 83) and run.outputs.shape == (3, 90, 3)
    assert torch.equal(run.weights[-1], flat(alone.member(0)))
    assert torch.equal(flat(run.solution), run.weights[-1])
    expected = alone.member(0).eval()(X).softmax(-1)
    assert torch.allclose(run.outputs[-1], expected, atol=1e-6)
    assert torch.equal(run.solution(X), alone.member(0).eval()(X))  # buffers travel with the weights
    assert torch.equal(run[0][1].running_mean, run.buffers["1.running_mean"][0])


def test_dropout_draws_the_same_with_and_without_a_recorder():
    def train(**options):
        torch.manual_seed(1)
        ensemble = pb.single(nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3)))
        pb.fit(ensemble, (X, Y), epochs=2, batch_size=30, **options)
        return flat(ensemble.module)

    assert torch.equal(train(), train(callbacks=[ls.Recorder((X, Y), every=1)]))


def test_steps_the_last_ones_and_the_start_can_be_chosen():
    run = ls.trajectory(network(), (X, Y), epochs=2, batch_size=30, every=2, keep=2, start=True)
    assert run.steps == [4, 6] and len(run) == 2
    whole = ls.trajectory(network(), (X, Y), epochs=2, batch_size=30, every=2, start=True)
    assert whole.steps == [0, 2, 4, 6]
    assert torch.equal(whole.weights[0], flat(network())) and torch.equal(whole.weights[2:], run.weights)


def test_runs_differ_in_what_was_asked_for_alone():
    def first_weights(**kinds):
        runs = ls.trajectories(network(), (X, Y), runs=2, epochs=1, batch_size=30, every=1, start=True, **kinds)
        return [torch.stack([run.weights[i] for run in runs]) for i in (0, 1)]

    same_start, one_step = first_weights(init="same", batches="different")
    assert torch.equal(*same_start) and not torch.equal(*one_step)
    assert torch.equal(*first_weights(init="same", batches="same")[1])
    assert not torch.equal(*first_weights(init="different", batches="same")[0])


def test_a_recorder_serves_loops_of_ones_own():
    model, recorder = network(), ls.Recorder((X, Y), every=1, keep=3)
    optimizer, seen = torch.optim.SGD(model.parameters(), 0.1), []
    for step in range(5):
        nn.functional.cross_entropy(model(X), Y).backward()
        optimizer.step()
        optimizer.zero_grad()
        recorder.record(model, step)
        seen.append(flat(model))
        assert model.training
    run = recorder.trajectory
    assert run.steps == [2, 3, 4] and torch.equal(run.weights, torch.stack(seen[2:]))
    assert torch.allclose(run.outputs[-1], model.eval()(X).softmax(-1), atol=1e-6)


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # lightning's, on newer torch
def test_a_lightning_module_of_ones_own_is_recorded():
    lightning = pytest.importorskip("lightning.pytorch")

    class Own(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = network()

        def training_step(self, batch, index):
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    recorder, module = ls.Recorder((X, Y), every=1, model="net"), Own()
    trainer = lightning.Trainer(
        max_epochs=1, callbacks=[recorder], logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, accelerator="cpu",
    )  # fmt: skip
    batches = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=30)
    trainer.fit(module, batches)
    assert recorder.trajectory.steps == [1, 2, 3]
    assert torch.equal(recorder.trajectory.weights[-1], flat(module.net))


def test_files_give_back_what_was_saved(tmp_path):
    run = ls.trajectory(network(), (X, Y), (X, Y), epochs=2, batch_size=30, dtype="float16")
    run.save(tmp_path / "run.safetensors")
    found = ls.Trajectory.load(tmp_path / "run.safetensors", network())
    assert found.weights.dtype == torch.float16 and torch.equal(found.weights, run.weights)
    assert torch.equal(found.outputs, run.outputs) and torch.equal(found.targets, Y) and found.steps == run.steps
    assert torch.equal(found.solution(X), run.solution(X))  # the solution is kept in full precision
    assert not torch.equal(flat(found.solution), found.weights[-1].float())
    with pytest.raises(ValueError, match="of the model's architecture"):
        ls.Trajectory.load(tmp_path / "run.safetensors", nn.Linear(4, 3))
    (tmp_path / "other").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="holds no trajectory"):
        ls.Trajectory.load(tmp_path / "other", network())


def test_checkpoints_of_anybody_make_a_trajectory(tmp_path):
    models = [network() for _ in range(5)]
    for i, model in enumerate(models):
        with torch.no_grad():
            model[0].weight += i
            model[1].running_mean += i
    torch.save({"state_dict": {f"module.{k}": v for k, v in models[2].state_dict().items()}}, tmp_path / "a.ckpt")
    torch.save(models[3].state_dict(), tmp_path / "b.pt")
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_file(models[4].state_dict(), tmp_path / "c.safetensors")
    checkpoints = [
        models[0].state_dict(),
        models[1],
        tmp_path / "a.ckpt",
        tmp_path / "b.pt",
        tmp_path / "c.safetensors",
    ]
    run = ls.Trajectory.of(checkpoints, network(), (X, Y), steps=[0, 5, 6, 7, 8])
    assert torch.equal(run.weights, torch.stack([flat(model) for model in models])) and run.steps == [0, 5, 6, 7, 8]
    for output, model in zip(run.outputs, models, strict=True):
        assert torch.allclose(output, model.eval()(X).softmax(-1), atol=1e-6)
    with pytest.raises(ValueError, match="checkpoint 1 must be of the model's architecture.*'0.weight'"):
        ls.Trajectory.of([models[0], nn.Sequential(nn.Linear(5, 8))], network())


@pytest.mark.parametrize(
    ("target", "task", "shape"),
    [
        (torch.randn(90), "regression", (1, 90, 1)),
        (Y % 2, "binary", (1, 90, 2)),
        (torch.randn(90, 1), None, (1, 90, 1)),
    ],
)
def test_outputs_are_those_of_the_task(target, task, shape):
    model = nn.Linear(4, 1)
    run = ls.Trajectory.of([model], model, (X, target), task=task)
    assert run.outputs.shape == shape
    expected = model(X) if task != "binary" else torch.cat([1 - model(X).sigmoid(), model(X).sigmoid()], 1)
    assert torch.allclose(run.outputs[0], expected, atol=1e-6)


def test_a_shuffling_loader_as_probe_is_read_once():
    data = torch.utils.data.TensorDataset(X, Y)
    shuffled = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True, generator=torch.Generator())
    run = ls.Trajectory.of([network(), network()], network(), shuffled)
    assert torch.equal(run.outputs[0], run.outputs[1])
    assert (run.outputs[0].argmax(-1) == run.targets).float().mean() == pytest.approx(
        (network().eval()(X).argmax(-1) == Y).float().mean().item()
    )


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: ls.Recorder(X, every="step"), "every must be"),
        (lambda: ls.Recorder(X, every=float("nan")), "every must be"),
        (lambda: ls.Recorder(X, dtype="int8"), "dtype must be one of"),
        (lambda: ls.Recorder(X).trajectory, "nothing has been recorded"),
        (lambda: ls.Trajectory.of([], network()), "at least one checkpoint"),
        (lambda: ls.Trajectory.of([network()], network()).outputs, "need a probe"),
        (lambda: ls.trajectories(network(), [(X, Y), (X, Y)], runs=2), "rows that can be shuffled"),
        (lambda: ls.trajectory(pb.deep(network(), 2), (X, Y)), "trains one network"),
        (lambda: ls.trajectory(network(), (X, Y), epochs=1, every=10_000), "nothing was recorded"),
    ],
)
def test_bad_input_is_refused_with_a_reason(call, match):
    with pytest.raises(ValueError, match=match):
        call()


def test_weights_that_half_precision_cannot_hold_are_refused():
    big = nn.Linear(2, 2)
    nn.init.constant_(big.weight, 1e6)
    with pytest.raises(ValueError, match="bfloat16"):
        ls.Trajectory.of([big], big, dtype="float16")


def test_statistics_are_those_of_the_data_for_models_and_ensembles():
    x = torch.cat([X + 3, 2 * X])  # 180 rows: batches of 100 and 80 are unlike
    models = [network(), network()]
    ensemble = pb.deep(models)
    ls.refresh_(ensemble, x, batch_size=100)
    for i, model in enumerate(models):
        hidden = model[0](x).detach()
        parts = [hidden[:100], hidden[100:]]
        expected = sum(len(p) * p.var(0) for p in parts) / 180
        ls.refresh_(model, torch.utils.data.TensorDataset(x, torch.zeros(180)), batch_size=100)
        assert torch.allclose(model[1].running_mean, hidden.mean(0), atol=1e-5)
        assert torch.allclose(model[1].running_var, expected, atol=1e-5)
        assert torch.allclose(ensemble.member(i)[1].running_mean, hidden.mean(0), atol=1e-5)
        assert torch.allclose(ensemble.member(i)[1].running_var, expected, atol=1e-5)
        assert model.training and model[1].momentum == 0.1


def test_statistics_stay_when_the_data_fails():
    model = network()
    before = model[1].running_mean.clone()
    with pytest.raises(ValueError, match="does not run on the data"):
        ls.refresh_(model, [(X, Y), (X[:, :2], Y)])
    assert torch.equal(model[1].running_mean, before)


@pytest.mark.parametrize("stop_after", [2, 4])
def test_training_that_goes_on_after_a_stop_has_its_whole_trajectory(tmp_path, stop_after):
    lightning = pytest.importorskip("lightning.pytorch")

    class Stop(lightning.Callback):
        def on_train_epoch_start(self, trainer, module):
            if trainer.current_epoch == stop_after:
                raise RuntimeError("the power is gone")

    options = {"epochs": 4, "batch_size": 30, "schedule": "constant"}
    whole = ls.trajectory(network(), (X, Y), (X, Y), **options)
    if stop_after < 4:
        with pytest.raises(RuntimeError, match="power"):
            ls.trajectory(network(), (X, Y), (X, Y), folder=tmp_path, callbacks=[Stop()], **options)
    else:
        ls.trajectory(network(), (X, Y), (X, Y), folder=tmp_path, **options)  # all is done before
    again = ls.trajectory(network(), (X, Y), (X, Y), folder=tmp_path, **options)
    assert again.steps == whole.steps and torch.equal(again.weights, whole.weights)
    assert torch.equal(again.outputs, whole.outputs) and torch.equal(again.solution(X), whole.solution(X))
