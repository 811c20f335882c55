"""One module, own state, vmap or loop: trees of tensors, tasks, pooling, choosing how to run."""

import copy
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from small import close, make, mlp, targets
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import pluribus as pb
from pluribus.core.ensemble import Ensemble


@dataclass
class Output:
    """What some models give back."""

    logits: Tensor
    hidden: list[Tensor]
    note: str


class Tree(nn.Module):
    """Takes a dict and a keyword, gives a dataclass."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, batch, *, shift=None):
        h = self.first(batch["x"]).relu()
        return Output(self.head(h if shift is None else h + shift), [h, h * 2], "as it is")


@pytest.mark.parametrize("run", ["vmap", "loop"])
def test_inputs_and_outputs_may_be_trees(run):
    ensemble = pb.deep(Tree(), 3)
    ensemble.run = run
    batch, shift = {"x": torch.randn(5, 4)}, torch.randn(5, 6)
    output = ensemble(batch, shift=shift)
    assert isinstance(output, Output)
    assert output.note == "as it is"
    assert output.hidden[1].shape == (3, 5, 6)
    expected = ensemble.member(2)(batch, shift=shift)
    close(output.logits[2], expected.logits)
    close(output.hidden[1][2], expected.hidden[1])


@pytest.mark.parametrize("run", ["vmap", "loop"])
def test_what_is_no_tensor_passes_through(run):
    class Mixed(nn.Linear):
        def forward(self, x):
            return None, super().forward(x), 3, [None, x]

    ensemble, x = pb.deep(Mixed(4, 3), 2), torch.randn(5, 4)
    ensemble.run = run
    nothing, outputs, three, (none, inputs) = ensemble(x)
    assert (nothing, three, none) == (None, 3, None)
    assert outputs.shape == (2, 5, 3)
    close(inputs, x.expand(2, 5, 4))


def test_the_loss_looks_at_logits_and_targets_may_be_trees():
    ensemble, x = pb.deep(Tree(), 3), {"x": torch.randn(5, 4)}
    targets_ = {"label": targets(), "weight": torch.rand(5)}

    def criterion(output, y):
        return (F.cross_entropy(output, y["label"], reduction="none") * y["weight"]).mean()

    expected = sum(criterion(ensemble.member(i)(x).logits, targets_) for i in range(3))
    close(ensemble.loss((x,), targets_, criterion), expected)
    assert ensemble.pooled()(x).shape == (5, 3)
    assert ensemble.predict((x,), batch_size=2).mean.shape == (5, 3)


def test_pooled_classification_is_the_log_of_the_mean_probability():
    ensemble, x = make("deep", "mlp")
    close(ensemble.pooled()(x), ensemble(x).softmax(-1).mean(0).log())


def test_pooled_binary_is_the_logit_of_the_mean_probability():
    ensemble = pb.deep(nn.Linear(6, 1), 3)
    ensemble.task = "binary"
    x = torch.randn(5, 6)
    close(ensemble.pooled()(x), torch.logit(ensemble(x).sigmoid().mean(0)))
    prediction = ensemble.predict(x)
    close(prediction.mean[:, 1:], ensemble(x).sigmoid().mean(0).detach())


def test_pooled_regression_is_the_mean_and_gaussians_are_mixed():
    ensemble, x = pb.deep(nn.Linear(6, 2), 3), torch.randn(5, 6)
    ensemble.task = "regression"
    close(ensemble.pooled()(x), ensemble(x).mean(0))
    ensemble.task = "gaussian"
    mean, variance = ensemble.pooled()(x)
    outputs = ensemble(x)
    each, spread = outputs[..., 0], F.softplus(outputs[..., 1]) + 1e-6
    close(mean, each.mean(0))
    close(variance, (spread + each.square()).mean(0) - each.mean(0).square())


class Moved(nn.Module):
    """A network whose last layer's channels go where it is told."""

    def __init__(self, last, change):
        super().__init__()
        self.hidden, self.last, self.change = nn.Linear(6, 6), last, change

    def forward(self, x):
        return self.change(self.last(self.hidden(x)))


TURNED = {
    "last": (nn.Linear(6, 3), lambda y: y, (4, 5, 6), -1),
    "last, as long as there are classes": (nn.Linear(6, 3), lambda y: y, (4, 3, 6), -1),
    "moved to the second place": (nn.Linear(6, 3), lambda y: y.transpose(1, 2), (4, 3, 6), 1),
    "of a convolution": (nn.Conv1d(5, 3, 1), lambda y: y, (4, 5, 6), 1),
    "of a convolution, moved to the end": (nn.Conv1d(5, 6, 1), lambda y: y.transpose(1, 2), (4, 5, 6), -1),
    "in logarithms of probabilities": (nn.Linear(6, 3), lambda y: y.log_softmax(-1), (4, 3, 6), -1),
    "of pixels, channels last": (nn.Linear(6, 3), lambda y: y, (4, 3, 3, 6), -1),
    "in the middle": (nn.Linear(6, 3), lambda y: y.transpose(2, 3), (4, 3, 3, 6), 2),
}


@pytest.mark.parametrize("method", ["deep", "batch_ensemble", "multihead", "mc_dropout"])
@pytest.mark.parametrize("case", TURNED)
def test_classes_are_found_wherever_the_model_has_them(case, method):
    last, change, shape, dim = TURNED[case]
    settings = {"rate": 1e-9} if method == "mc_dropout" else {"where": "last"} if method == "multihead" else {}
    ensemble, x = pb.METHODS[method](Moved(last, change), 2, **settings).eval(), torch.randn(*shape)
    prediction = ensemble.predict(x)
    expected = ensemble(x).softmax(dim if dim < 0 else dim + 1).detach()
    close(prediction.members, expected)
    assert ensemble.class_dim == dim and prediction.class_dim in (-1, dim - len(shape))
    close(ensemble.pooled()(x).exp(), expected.mean(0))


def test_where_the_classes_are_is_asked_if_the_model_does_not_show_it():
    mixed = Moved(nn.Linear(6, 3), lambda y: y @ torch.arange(9.0).reshape(3, 3))
    ensemble, x = pb.deep(mixed, 2), torch.randn(4, 5, 6)  # (batch, time, classes)
    with pytest.raises(ValueError, match=r"\(4, 5, 3\).* Set ensemble.class_dim to 1 or -1"):
        ensemble.predict(x)
    ensemble.class_dim = -1
    close(ensemble.predict(x).mean, ensemble(x).softmax(-1).mean(0).detach())
    ensemble.class_dim = 1
    close(ensemble.pooled()(x).exp(), ensemble(x).softmax(2).mean(0))


def test_predict_takes_tensors_arrays_and_loaders():
    ensemble, x = make("deep", "mlp")
    expected = ensemble.predict(x).mean
    loader = DataLoader(TensorDataset(x, targets()), batch_size=2)
    for other in (x.numpy(), x.numpy().astype(np.float64), loader, [x[:3], x[3:]]):
        close(ensemble.predict(other).mean, expected)
    close(ensemble.predict(x, batch_size=2, device="cpu").mean, expected)
    with pytest.raises(ValueError, match="loader is empty"):
        ensemble.predict([])
    with pytest.raises(TypeError, match="must be a tensor"):
        ensemble.predict(3)


class Stubborn(nn.Module):
    """Cannot run under vmap: it looks at values."""

    def __init__(self):
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(6), nn.Linear(6, 3)

    def forward(self, x):
        y = self.head(self.norm(x))
        return y if y.sum() > 0 else y + 1


def test_where_vmap_fails_the_loop_runs_and_it_is_said():
    ensemble, x = pb.deep(Stubborn(), 3).train(), torch.randn(5, 6)
    ensemble.run = "vmap"
    with pytest.warns(UserWarning, match='does not run under vmap.*ensemble.run is now "loop"'):
        outputs = ensemble(x)
    assert ensemble.run == "loop"
    assert "not by vmap" in ensemble.explain()
    assert (ensemble.module.norm.num_batches_tracked == 1).all()  # the failed attempt left no trace
    close(outputs[1], ensemble.member(1)(x))


def test_an_input_that_does_not_fit_fails_as_the_model_does():
    ensemble, _ = make("deep", "mlp")
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes"):
        ensemble(torch.randn(5, 7))


def test_a_model_that_changes_its_input_in_place_gives_every_member_the_same():
    model = nn.Sequential(nn.Hardtanh(-0.1, 0.1, inplace=True), nn.Linear(6, 3))
    ensemble, x = pb.deep(model, 3), torch.randn(5, 6)
    ensemble.run = "loop"
    for _ in range(2):
        before = x.clone()
        close(ensemble(x), torch.stack([ensemble.member(i)(before.clone()) for i in range(3)]))
        assert torch.equal(x, before)


def test_a_module_registered_under_two_names_works():
    inner, norm = nn.Linear(6, 6), nn.BatchNorm1d(6)
    model = nn.Sequential(nn.Linear(6, 6), inner, norm, nn.ReLU(), inner, norm, nn.Linear(6, 3))
    x = torch.randn(5, 6)
    for run in ("vmap", "loop"):
        ensemble = pb.deep(model, 3)
        ensemble.run = run
        members = [ensemble.member(i) for i in range(3)]
        for _ in range(2):
            close(ensemble(x), torch.stack([member(x) for member in members]))
        close(ensemble.module[2].running_mean, torch.stack([member[2].running_mean for member in members]))


def test_statistics_shared_behind_an_owned_layer_are_those_of_all_members():
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4, momentum=None), nn.Linear(4, 3))
    ensemble, x = pb.treenet(model, 3, branch="0|2").train(), torch.randn(50, 6)
    ensemble.run = "loop"
    ensemble(x)
    hidden = torch.stack([ensemble.member(i)[0](x) for i in range(3)])
    close(ensemble.module[1].running_mean, hidden.mean((0, 1)).detach())
    assert ensemble.module[1].num_batches_tracked == 1


def test_a_criterion_must_give_a_scalar():
    for method in pb.METHODS:
        ensemble, x = make(method, "mlp")
        with pytest.raises(ValueError, match='must give the mean over rows.*reduction="mean"'):
            ensemble.loss(x, targets(), nn.CrossEntropyLoss(reduction="none"))


def test_scalars_in_an_output_are_kept_in_training():
    class WithLoss(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = mlp()

        def forward(self, x):
            y = self.layers(x)
            return {"logits": y, "loss": y.square().mean()}

    for method in ("masksembles", "batch_ensemble", "mc_dropout", "deep"):
        output = pb.METHODS[method](WithLoss(), 3).train()(torch.randn(5, 6))
        assert output["logits"].shape == (3, 5, 3)
        assert output["loss"].shape == (3,)


def test_first_batches_may_come_inside_transformations():
    x = torch.randn(5, 6)
    for make_one in (pb.multihead, pb.batch_ensemble):
        inner = make_one(mlp().eval(), 2)
        outer = pb.deep(inner.pooled(), 3)
        outputs = outer(x)
        torch.testing.assert_close(outputs[2], outer.member(2)(x), rtol=1e-4, atol=1e-5)
        inner(x)
        assert pb.deep(inner.pooled(), 3)(x).shape == (3, 5, 3)
        with torch.inference_mode():
            assert make_one(mlp().eval(), 2)(x).shape == (2, 5, 3)
        checkpointed = torch.utils.checkpoint.checkpoint(make_one(mlp(), 2), x, use_reentrant=False)
        checkpointed.sum().backward()
    with pytest.raises(ValueError, match="already contains an ensemble"):
        pb.batch_ensemble(inner.pooled(), 3)


class Assigned(nn.Module):
    """Keeps a running mean by assignment, not in place."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 3)
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x):
        y = self.head(x)
        if self.training:
            self.seen = 0.9 * self.seen + 0.1 * y.detach().mean(0)
        return y - self.seen


@pytest.mark.parametrize("run", ["vmap", "loop"])
def test_buffers_that_are_assigned_are_kept(run):
    ensemble, x = pb.deep(Assigned(), 3).train(), torch.randn(5, 6)
    ensemble.run = run
    members = [ensemble.member(i) for i in range(3)]
    for _ in range(2):
        outputs = ensemble(x)
        expected = torch.stack([member(x) for member in members])
    close(outputs, expected)
    close(ensemble.module.seen, torch.stack([member.seen for member in members]))


def test_a_model_that_keeps_a_tensor_can_still_be_copied():
    class Keeps(nn.Linear):
        def forward(self, x):
            self.last = super().forward(x)
            return self.last

    ensemble, x = pb.deep(Keeps(6, 3), 3), torch.randn(5, 6)
    for _ in range(2):
        outputs = ensemble(x)
        close(copy.deepcopy(ensemble)(x), outputs)
        close(ensemble.member(1)(x), outputs[1])


def test_run_and_task_take_known_values_only():
    ensemble, _ = make("deep", "mlp")
    with pytest.raises(ValueError, match='"vmap", "loop" or "auto"'):
        ensemble.run = "fast"
    with pytest.raises(ValueError, match="'gaussian'"):
        ensemble.task = "ranking"
    with pytest.raises(IndexError, match=r"is out of range \(0-2\)"):
        ensemble.member(3)


def test_an_optimizer_made_before_the_first_batch_stays_right():
    for method in pb.METHODS:
        ensemble, x = make(method, "mlp")
        optimizer = torch.optim.SGD(ensemble.parameters(), 0.1)
        before = [p.clone() for p in ensemble.parameters()]
        ensemble.train().loss(x, targets(), F.cross_entropy).backward()
        optimizer.step()
        assert any(not torch.equal(a, b) for a, b in zip(before, ensemble.parameters(), strict=True))


def test_the_class_itself_needs_no_method():
    module = nn.Linear(4, 3)
    module.bias = nn.Parameter(torch.randn(5, 3))
    ensemble, x = Ensemble(module, 5, ["bias"]), torch.randn(2, 4)
    close(ensemble(x), (x @ module.weight.T)[None] + module.bias[:, None])


@pytest.mark.parametrize("run", ["vmap", "loop"])
@pytest.mark.filterwarnings("ignore")  # of torch.jit: deprecated
def test_torch_jit_is_refused_with_the_ways_out(run):
    ensemble = pb.deep(nn.Linear(4, 3), 2).eval()
    ensemble.run = run
    with pytest.raises(TypeError, match="torch.export.export"):
        torch.jit.trace(ensemble.pooled(), torch.randn(5, 4))
    x = torch.randn(5, 4)
    torch.testing.assert_close(torch.export.export(ensemble.pooled(), (x,)).module()(x), ensemble.pooled()(x))


def test_a_call_takes_few_functions():
    """A newcomer can follow it: at most 60 of our functions in the first call of an MLP, 25 in later ones."""
    ensemble, x = pb.deep(mlp(), 4), torch.randn(5, 6)
    first, second = (called(lambda: ensemble(x)) for _ in range(2))
    assert 10 < len(second) <= 25
    assert len(second) < len(first) <= 60


def called(run: Callable[[], object]) -> list[str]:
    """The names of the functions of Pluribus that are called, without comprehensions; a generator counts once."""
    frames: dict[int, FrameType] = {}  # held, so that no two have the same id
    names = []

    def watch(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call" and "/pluribus/" in code.co_filename and "<" not in code.co_name:
            if id(frame) not in frames:
                names.append(code.co_qualname)
            frames[id(frame)] = frame

    sys.setprofile(watch)
    try:
        run()
    finally:
        sys.setprofile(None)
    return names
